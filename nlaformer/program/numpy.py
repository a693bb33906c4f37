"""How a method calls NumPy and torch: every call of theirs on traced arrays arrives here, by name.

Primitives know their names (``primitives.py``), other functions that compute are in ``functions.py``. What only moves
entries is a set of names: NumPy's own function is run on the places of the entries, and what it makes of them tells
where each entry comes from, and whether NumPy would give a view.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from typing import Any

import numpy as np

from nlaformer.program.arrays import Array, Tracing, holds_array
from nlaformer.program.functions import FUNCTIONS, array
from nlaformer.program.ir import Graph, RefusedError
from nlaformer.program.primitives import BY_NAME, PRIMITIVES, Primitive
from nlaformer.program.refusals import INDEX, TAKES_VALUES, remedy

_ALL = range(32)
# Functions that only move entries, and which of their arguments are arrays.
MOVES: dict[str, Container[int]] = dict.fromkeys(
    (
        *("transpose", "swapaxes", "moveaxis", "reshape", "ravel", "squeeze", "expand_dims", "broadcast_to", "copy"),
        *("roll", "flip", "fliplr", "flipud", "rot90", "tril", "triu", "diag", "diagonal", "diagflat", "take", "tile"),
        *("repeat", "delete", "pad", "concatenate", "stack", "vstack", "hstack", "column_stack", "block", "split"),
        *("array_split", "hsplit", "vsplit", "linalg.diagonal", "matrix_transpose", "linalg.matrix_transpose"),
    ),
    (0,),
)
MOVES |= {"append": (0, 1), "insert": (0, 2)}
MOVES |= dict.fromkeys(("broadcast_arrays", "meshgrid", "atleast_1d", "atleast_2d"), _ALL)
_NOT_OF_TORCH = ("split", "meshgrid", "pad", "repeat", "delete", "insert")  # which means something else by these names
_JOINING = ("concatenate", "stack", "vstack", "hstack", "column_stack", "block")
_OF_TRUTHS = ("bitwise_and", "bitwise_or", "bitwise_xor", "invert")
_ONLY_MOVES = ("constant", "edge", "empty", "reflect", "symmetric", "wrap")  # modes of np.pad
# Names and options of torch, and of methods, for what NumPy calls otherwise.
_OTHER_NAMES = {
    **{"cat": "concatenate", "concat": "concatenate", "unsqueeze": "expand_dims", "permute": "transpose"},
    **{"t": "transpose", "view": "reshape", "contiguous": "copy", "movedim": "moveaxis", "mul": "multiply"},
}
_OTHER_OPTIONS = {"dim": "axis", "dims": "axis", "shifts": "shift", "keepdim": "keepdims", "p": "ord"}
_NO_VALUE = inspect.signature(np.sum).parameters["initial"].default
FUNCTIONS["torch.transpose"] = lambda v, dim0, dim1: np.swapaxes(v, dim0, dim1)
FUNCTIONS["torch.flip"] = lambda v, axis: np.flip(v, axis).copy()  # NumPy's is a view
FUNCTIONS["torch.diag"] = lambda v, k=0: np.diag(v, k).copy()
FUNCTIONS["torch.equal"] = FUNCTIONS["torch.allclose"] = lambda *args: bool(np.all(np.equal(*args)))
FUNCTIONS["torch.flatten"] = lambda v: np.ravel(v)
FUNCTIONS["flatten"] = lambda v, order="C": np.ravel(v, order).copy()


def tracing(graph: Graph) -> Tracing:
    """What the arrays of a graph share."""
    return Tracing(graph, call)


def call(of: Tracing, library: str, name: str, args: Any, options: dict[str, Any]) -> Any:
    """A function of NumPy or torch, or a method; refused in the same spelling if there is none."""
    spelling = f"{library}.{name}" if library else f".{name}"
    of.uses_torch |= library == "torch"
    out = options.get("out")
    (target,) = out if isinstance(out, tuple) else (out,)
    if target is not None and not isinstance(target, Array):
        if _is_traced(args) or (function := _function_of_numpy(name)) is None:
            of.refuse(f"{spelling} into an array of numbers; {TAKES_VALUES}")
        return function(*map(_numbers, args), out=target)
    options = {_OTHER_OPTIONS.get(k, k): option for k, option in options.items() if not _is_not_given(k, option)}
    try:
        result = _called(of, library, name, args, options, spelling)
    except RefusedError as refusal:
        of.refuse(f"{spelling}: {refusal}")
    return result if target is None else target.become(result)


def _is_not_given(key: str, option: Any) -> bool:
    """Whether an option is what NumPy and torch pass where it was not given."""
    usual = dict.fromkeys(("keepdims", "keepdim", "inplace"), False) | {"axis": _NO_VALUE}
    return key == "out" or option is _NO_VALUE or option is usual.get(key)


def _called(of: Tracing, library: str, name: str, args: Any, options: dict[str, Any], spelling: str) -> Any:
    """What a call gives: a primitive, another function, or entries that are moved."""
    if library == "torch" and (f"torch.{name}" in FUNCTIONS or f"torch.{name}" in BY_NAME):
        name = f"torch.{name}"
    elif library in ("", "torch"):
        name = _OTHER_NAMES.get(name, name)
        if name in ("reshape", "transpose") and len(args) > 2:  # as methods, they take several numbers
            args = (args[0], args[1:])
    if name.endswith(".outer") and (record := BY_NAME.get(name.removesuffix(".outer"))) is not None:
        u, v = (array(each, *args) for each in args)
        args, name = (np.reshape(u, (*u.shape, *[1] * v.ndim)), v), record.numpy[0]
    if name in BY_NAME:
        if options or len(args) != BY_NAME[name].arity:
            given = _spelled(options) or f"{len(args)} arguments"
            raise RefusedError(f"it cannot be compiled with {given}; what can be is {spelling} of the values alone")
        if name in _OF_TRUTHS and not all(isinstance(value, Array) and value.truth for value in args):
            raise RefusedError("it is for truth values alone; np.logical_and and its like take numbers, too")
        return primitive(of, BY_NAME[name], args)
    if name in FUNCTIONS:
        return _checked(FUNCTIONS[name], args, options, spelling)
    if name in MOVES and not (library == "torch" and name in _NOT_OF_TORCH):
        return moved(of, name, args, options)
    known = _function_of_numpy(name) if library == "np" else None
    if known is not None and not _is_traced((*args, *options.values())):
        result = known(*map(_numbers, args), **{key: _numbers(option) for key, option in options.items()})
        return of.constant(result) if isinstance(result, np.ndarray) and result.dtype.kind in "fb" else result
    raise RefusedError(f"it cannot be compiled; {remedy(name)}")


def primitive(of: Tracing, record: Primitive, args: Any) -> Any:
    """A primitive, or what it is written out as."""
    given = [value if isinstance(value, Array) else of.array(of.node(value)) for value in args]
    if record.name in ("add", "multiply") and all(value.truth for value in given):  # NumPy's of truth values
        record = PRIMITIVES["logical_or" if record.name == "add" else "logical_and"]
    if record.evaluate is not None:
        return given[0].apply(record.name, *given[1:])
    assert record.rewrite is not None
    return of.array(record.rewrite(*given).node, record.truth)


def _checked(function: Callable[..., Any], args: Any, options: dict[str, Any], spelling: str) -> Any:
    """A function, if it takes these arguments."""
    try:
        inspect.signature(function).bind(*args, **options)
    except TypeError:
        given = _spelled(options) or f"{len(args)} arguments"
        taken = ", ".join(inspect.signature(function).parameters)
        raise RefusedError(f"it cannot be compiled with {given}; what can be is {spelling}({taken})") from None
    return function(*args, **options)


def _spelled(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={option!r:.20}" for key, option in options.items())


def _function_of_numpy(name: str) -> Callable[..., Any] | None:
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part, None)
    return found  # type: ignore[no-any-return]


def _is_traced(value: Any) -> bool:
    """Whether a value is known only when the weights run."""
    if isinstance(value, (list, tuple)):
        return any(map(_is_traced, value))
    return isinstance(value, Array) and value.node.op != "constant"


def _numbers(value: Any) -> Any:
    """An argument that is known beforehand, as NumPy takes it."""
    if _is_traced(value):
        raise RefusedError(INDEX)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_numbers, value))
    return np.asarray(value) if isinstance(value, Array) else value


def moved(of: Tracing, name: str, args: Any, options: dict[str, Any]) -> Any:
    """A function that only moves entries, run on their places; 0 is where it puts a zero of its own."""
    if name == "pad" and (options.get("mode", "constant") not in _ONLY_MOVES or np.any(options.get("constant_values"))):
        raise RefusedError(f"it cannot be compiled with {_spelled(options)}; np.concatenate joins arrays")
    if options.keys() & {"dtype", "casting", "subok", "like"}:
        raise RefusedError(f"it cannot be compiled with {_spelled(options)}; omit it")
    sources: list[Array] = []

    def source(value: Any) -> Any:
        if name in _JOINING and isinstance(value, (list, tuple)) and (not sources or name == "block"):
            return [source(part) if name == "block" else part_of(part) for part in value]
        return part_of(value)

    def part_of(value: Any) -> np.ndarray:
        sources.append(value if isinstance(value, Array) else of.array(of.node(value)))
        first = 1 + sum(each.size for each in sources[:-1])
        return np.arange(first, first + sources[-1].size).reshape(sources[-1].shape)

    given = [source(value) if k in MOVES[name] else _numbers(value) for k, value in enumerate(args)]
    named = {key: part_of(value) if holds_array(value) else _numbers(value) for key, value in options.items()}
    alone = sources[0] if len(sources) == 1 else None
    if alone is not None and isinstance(given[0], np.ndarray):
        given[0] = alone.places
    function = _function_of_numpy(name)
    assert function is not None
    nodes = [each.node for each in sources] if alone is None or given[0] is not alone.places else [alone.owner.node]

    def result_of(places: Any) -> Any:
        if alone is not None and np.ndim(places) and np.may_share_memory(places, alone.places):
            return alone.view(places, not places.flags.writeable)
        return of.array(of.graph.move(nodes, np.asarray(places) - 1), all(each.truth for each in sources))

    result = function(*given, **named)
    return type(result)(map(result_of, result)) if isinstance(result, (list, tuple)) else result_of(result)
