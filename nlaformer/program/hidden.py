"""What a program can remember beside its states: attributes, closures, globals and generators of random numbers.

Weights remember nothing but the states. A program that keeps a counter or a list somewhere else computes something
else in each step, and no fixed weights do; so whatever its methods change is found by comparing prints of everything
they can reach, taken before and after they are traced, and refused by name. ``start`` may reset what ``step`` changes:
the prints are compared method by method.
"""

from __future__ import annotations

import array
import functools
import logging
import os
import random
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from nlaformer.program.language import is_traced

_MOST = 10_000  # parts of one value that are looked at
Memory = dict[str, Any]


def attributes_of_class(program: Any, base: type) -> dict[str, Any]:
    """What the user's classes of a program hold, as it is stored; ``base`` is not the user's."""
    kinds = [kind for kind in type(program).__mro__ if kind not in base.__mro__]
    return {name: value for kind in reversed(kinds) for name, value in vars(kind).items()}


def memory_of(program: Any, base: type) -> Memory:
    """A print of everything that the methods of a program may change, by name; ``base`` is not the user's."""
    attributes = attributes_of_class(program, base)
    own = {name: value for name, value in vars(program).items() if not _is_cached(attributes.get(name))}
    functions = [found for value in (*attributes.values(), *own.values()) if (found := _function(value)) is not None]
    inner = [vars(value).items() for value in attributes.values() if isinstance(value, type)]
    places = [attributes.items(), own.items(), *inner, *(_reached(function, functions) for function in functions)]
    memory: Memory = {}
    for place in places:
        for name, value in place:
            if _is_data(name, value) or place is places[1]:
                memory[name] = (*memory.get(name, ()), _print(value, {}))
    return memory | {
        "np.random": _print(np.random.get_state(), {}),
        "random": hash(random.getstate()),
        "torch's random numbers": _print(torch.get_rng_state(), {}),
    }


def changes(before: Memory, after: Memory) -> list[str]:
    """The names that are not as they were."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _is_data(name: str, value: Any) -> bool:
    is_code = _function(value) is not None or isinstance(value, (type, types.ModuleType))
    return not name.startswith("__") and not is_code and not _is_cached(value)


def _is_cached(value: Any) -> bool:
    """Whether an attribute is computed once: it appears on the instance, but does not change."""
    return isinstance(value, functools.cached_property)


def _function(value: Any) -> types.FunctionType | None:
    """The function behind a method, a property or a partial function."""
    if isinstance(value, type) or is_traced(value):
        return None
    for inner in ("fget", "func", "__func__", "__wrapped__"):
        found = getattr(value, inner, None)
        if callable(found):
            return _function(found)
    return value if isinstance(value, types.FunctionType) else None


def _reached(function: types.FunctionType, own: list[types.FunctionType]) -> Iterator[tuple[str, Any]]:
    """What a function reaches outside its class, by name: its closure and its globals, and those of its neighbours.

    Neighbours are functions and classes whose files are in the same folder.
    """
    folders, seen, stack = {_folder(other) for other in own}, set(), [function]
    while stack:
        found = stack.pop()
        if id(found) in seen or _folder(found) not in folders:
            continue
        seen.add(id(found))
        for name, value in (*_closure(found), *_globals(found)):
            if (inner := _function(value)) is not None:
                stack.append(inner)
            elif _is_data(name, value):
                yield name, value


def _folder(function: types.FunctionType) -> str:
    return os.path.dirname(function.__code__.co_filename)


def _closure(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function holds by itself: its closure, and its defaults, which may be lists."""
    code, defaults = function.__code__, function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that a function names; the attributes it names of functions and modules among them, all of classes.

    A method of a class may change what the function does not name.
    """
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        outer = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
        inner = dict(_closure(function)) if code is function.__code__ else {}
        for name, value in (outer | inner).items():
            if name in outer:
                yield name, value
            if isinstance(value, (type, types.FunctionType, types.ModuleType)):
                known, every = vars(value), isinstance(value, type)
                yield from ((f"{name}.{each}", known[each]) for each in known if every or each in code.co_names)


def _print(value: Any, seen: dict[int, tuple[int, Any]]) -> Any:
    """What tells whether a value has changed; ``seen`` numbers the parts met before, each of which is printed once.

    It holds them too: an id is of one part only as long as that exists.
    """
    if isinstance(value, (type(None), bool, int, float, complex, str, bytes, np.generic)):
        return type(value).__name__, repr(value)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.shape, value.dtype.str, hash(value.tobytes())
    if isinstance(value, (bytearray, memoryview, array.array)):
        return type(value).__name__, bytes(value)
    if id(value) in seen or len(seen) >= _MOST:
        return seen[id(value)][0] if id(value) in seen else id(value)
    seen[id(value)] = len(seen), value
    inner = _parts(value)
    return (type(value).__name__, id(value)) if inner is None else (type(value).__name__, _each(inner(), seen))


def _each(values: Any, seen: dict[int, tuple[int, Any]]) -> tuple[Any, ...]:
    if isinstance(values, Mapping):
        return tuple((_print(key, seen), _print(entry, seen)) for key, entry in values.items())
    return tuple(_print(entry, seen) for entry in values)


def _parts(value: Any) -> Callable[[], Any] | None:
    """What a value is made of; None if nothing is known of it but which one it is."""
    if isinstance(value, (list, tuple, Mapping)) or type(value).__name__ == "deque":
        return lambda: value
    if isinstance(value, np.ndarray):  # of objects
        return value.ravel().tolist
    if isinstance(value, (set, frozenset)):
        return lambda: sorted(map(repr, value))
    if isinstance(value, types.GeneratorType):
        return lambda: (value.gi_frame and value.gi_frame.f_lasti, repr(value.gi_frame and value.gi_frame.f_locals))
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        return lambda: _left(value)
    if isinstance(value, np.random.Generator):
        return lambda: value.bit_generator.state
    if isinstance(value, (np.random.RandomState, torch.Generator)):
        return lambda: value.get_state()
    if isinstance(value, random.Random):
        return lambda: value.getstate()
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    if isinstance(value, (type, logging.Logger)) or _function(value) or not (slots or hasattr(value, "__dict__")):
        return None
    return lambda: [getattr(value, name, None) for name in slots] + [getattr(value, "__dict__", None)]


def _left(iterator: Iterator[Any]) -> Any:
    """What is left of an iterator of Python's own, as far as it tells: those of itertools do not from 3.14 on."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return iterator.__reduce__()
    except TypeError:
        return repr(iterator), repr(getattr(iterator, "__length_hint__", int)())
