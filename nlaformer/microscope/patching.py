"""nf.patch: replace, scale, exchange or zero any named intermediate while a model runs.

The names are those of a recording (``places``), and ``registers.NAME[t]``: a state of a program after t steps. Of a
compiled algorithm the value is decoded, in the units of the run's input, and encoded again, with the rows that depend
on it (``compiler/states.py``); other states stay as they are. Where a change leaves an entry as it was, nothing
changes, to the last bit.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import to_tensor
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.errors import OptionError, ShapeError, UnusedPatchWarning, shown
from nlaformer.learn.programs import TrainedProgram
from nlaformer.microscope.places import (
    Model,
    fits,
    matching,
    names,
    register,
    register_names,
    registers,
    transformers,
    unwatched,
    watching,
)

# A number or an array in place of the value, or a function of it, (systems, ...).
Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64 | np.float32]]
Change: TypeAlias = float | Tensor | Array | Callable[[Tensor], Tensor]
_Change = Callable[[Tensor], Tensor]
_Changes: TypeAlias = Mapping[str, _Change]


def patch(model: Model, changes: Mapping[str, Change]) -> Patch:
    """Change intermediates of every run of a model inside a ``with`` statement.

    Parameters
    ----------
    model : as in ``nf.trace``
    changes : for each name, or pattern with ``*``, what takes the place of the value: a number (0 zeroes it), an array
        (of one system, or with leading dimensions for all systems), or a function. A function gets a tensor
        (systems, ...), leading dimensions as one, in the orientation of ``nf.trace``, and returns the new value: it
        scales with ``lambda v: 2 * v`` and exchanges systems with ``lambda v: v[[1, 0]]``. A name comes before a
        pattern that fits it. ``registers.r[3]`` is the state r of a program after three steps; patterns of registers
        begin with ``registers.``

    Returns
    -------
    context manager; afterwards the model is as before, also after an exception. Patches may be nested: an inner one
    changes what the outer one has left. A batch runs in one piece inside. A run of the model that a function of
    ``changes`` makes itself is not patched. A change that no run came to gives an UnusedPatchWarning.

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> A, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    >>> cg = nf.algorithm("cg", n=2, verify=False)
    >>> with nf.patch(cg, {"registers.d[1]": lambda d: 0 * d}):  # no direction, so x stays where it is
    ...     run = cg.run(A, b, iterations=2)
    >>> run.x.round(6)[1:]
    array([[0.25, 0.5 ],
           [0.25, 0.5 ]])
    """
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):
        raise OptionError(f"changes is {shown(changes)}; expected a value for each name: {{name: value}}")
    given = {name: _function(model, name, change) for name, change in changes.items()}
    states = {name: change for name, change in given.items() if name.startswith("registers.")}
    plain = {name: change for name, change in given.items() if name not in states}
    _check_registers(model, states)
    steps = _numbers(plain)
    watched = matching(plain, names(model, steps), beside=register_names(model, steps))
    return Patch(tuple(changes), lambda: _patched(model, plain, watched, states))


class Patch:
    """Changes that hold inside a ``with`` statement. Made by ``nf.patch``; it can be used again."""

    def __init__(self, changed: tuple[str, ...], make: Callable[[], AbstractContextManager[None]]):
        self.changed, self._make = changed, make
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        entered = self._make()
        entered.__enter__()
        self._entered.append(entered)

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)

    def __repr__(self) -> str:
        return f"<patch of {', '.join(self.changed)}, for use in a with statement>"


def _numbers(changes: Iterable[str]) -> list[int]:
    """Passes or steps that names may be of: 0, and the numbers in them."""
    return sorted({0, *(int(number) for name in changes for number in re.findall(r"\[(\d+)\]", name))})


@contextmanager
def _patched(model: Model, plain: _Changes, watched: set[str], states: _Changes) -> Iterator[None]:
    used: set[str] = set()
    runs: list[str] = []

    def see(name: str, value: Tensor) -> Tensor | None:
        change = _of(name, plain, used)
        return None if change is None else change(value)

    with ExitStack() as stack:
        for transformer in transformers(model).values():
            transformer.observers.append(runs.append)
            stack.callback(transformer.observers.remove, runs.append)
        stack.enter_context(watching(model, watched, see))
        if states and isinstance(model, TrainedProgram):
            stack.enter_context(_patched_program(model, states, used))
        elif states and isinstance(model, Algorithm):
            stack.enter_context(_patched_algorithm(model, states, used))
        yield
    if runs and (unused := [name for name in (*plain, *states) if name not in used]):
        warnings.warn(
            f"no run came to {', '.join(unused)}, so nothing was changed there", UnusedPatchWarning, stacklevel=4
        )


def _of(name: str, changes: _Changes, used: set[str]) -> _Change | None:
    """The change of a name: its own, or that of the first pattern that fits; ``used`` gets what it was given under."""
    known = name if name in changes else next((each for each in changes if "*" in each and fits(each, name)), None)
    if known is None:
        return None
    used.add(known)
    return changes[known]


# --- registers ---


def _check_registers(model: Model, changes: _Changes) -> None:
    if changes and not registers(model):
        raise OptionError(
            f"{', '.join(changes)}: this model has no registers, which the states of a program are; nf.probe finds "
            "what can be read from the state of a trained model"
        )
    matching(changes, register_names(model, _numbers(changes)))
    if isinstance(model, Algorithm) and not len(model.model.pre):
        for name in changes.keys() & set(register_names(model, [0])):
            raise OptionError(
                f"{name}: this algorithm has no pre block, so its first states are its inputs; change those"
            )


def _at(model: Model, changes: _Changes, t: int, used: set[str]) -> dict[str, _Change]:
    """The changes of states after t steps."""
    found = {state: _of(register(state, t), changes, used) for state in registers(model)}
    return {state: change for state, change in found.items() if change is not None}


@contextmanager
def _patched_program(model: TrainedProgram, states: _Changes, used: set[str]) -> Iterator[None]:
    def change(t: int, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {state: function(values[state]) for state, function in _at(model, states, t, used).items()}

    model.interventions.append(change)
    try:
        yield
    finally:
        model.interventions.remove(change)


@contextmanager
def _patched_algorithm(model: Algorithm, states: _Changes, used: set[str]) -> Iterator[None]:
    """States stand in P after the last layer of a pass."""
    powers: dict[str, Tensor] = {}
    first, last = len(model.model.pre) - 1, len(model.model.loop) - 1

    def see(name: str, P: Tensor) -> Tensor | None:
        passed = re.match(r"loop\[(\d+)\]", name)
        changes = _at(model, states, int(passed[1]) + 1 if passed else 0, used)
        return model.with_states(P, powers, changes) if changes else None

    model.observers.append(powers.update)
    try:
        with watching(model, [f"pre.layer[{first}].output", f"loop.layer[{last}].output"], see):
            yield
    finally:
        model.observers.remove(powers.update)


# --- values ---


def _function(model: Model, name: str, change: Change) -> _Change:
    """A change as a function of the value, which checks the shape of what it gives."""

    def changed(value: Tensor) -> Tensor:
        if not callable(change):
            return _fitted(name, given, value)
        with unwatched(model):
            result = change(value.clone())
        if result is None:
            raise OptionError(f"the function for {name} returned nothing; it must return the new value")
        return _fitted(name, to_tensor(name, result), value)

    if callable(change) and not _takes_one(change):
        raise OptionError(f"the function for {name} must take one argument, the value, a tensor (systems, ...)")
    given = torch.empty(0) if callable(change) else to_tensor(name, change)
    return changed


def _takes_one(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind("value")
    except TypeError:
        return False
    except ValueError:  # some built-in functions do not say
        pass
    return True


def _fitted(name: str, given: Tensor, value: Tensor) -> Tensor:
    """What was given, in the shape, precision and place of the value (systems, ...)."""
    own = value.shape[1:]
    if given.is_complex():
        raise OptionError(f"{name} was given complex numbers; the models compute with real ones")
    if given.dim() > len(own):
        given = given.reshape(-1, *given.shape[given.dim() - len(own) :])
    try:
        if given.dim() > len(own) and len(given) != len(value):
            raise RuntimeError
        return given.to(value).expand(value.shape)
    except RuntimeError:
        raise ShapeError(
            f"{name} has shape {tuple(own)} for each of {len(value)} systems; given {tuple(given.shape)}"
        ) from None
