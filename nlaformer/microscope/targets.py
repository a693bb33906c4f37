"""What a probe looks for: states of known methods on the same systems, by name or by function.

``"cg.r"`` is the state r of the program cg of the library; so are ``"chebyshev.d"``, ``"newton_schulz.X"`` and every
state of ``nf.algorithms()``, and ``alpha`` and ``beta`` of cg and pcg: of the step that led to iterate t, 0 at t = 0.
``METHOD.x`` is the method's iterate, X_t b where a method gives a matrix, and ``METHOD.r`` its residual b - A x where
there is no state r. ``"solution"`` is x. A pair of an ``nf.Program`` and the name of one of its states, or a function
of (A, b), is a target under any name of one's own. A function gives (systems, numbers), the same at all iterates, or
(systems, T + 1, numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from nlaformer.arrays import to_tensor
from nlaformer.compiler import library
from nlaformer.compiler.library.krylov import ConjugateGradient, PreconditionedConjugateGradient
from nlaformer.errors import DTypeError, OptionError, ShapeError, shown, unknown_name
from nlaformer.microscope.subject import answers
from nlaformer.problems import Systems
from nlaformer.program.language import Program
from nlaformer.program.trace import inputs_of

Target: TypeAlias = str | tuple[Program, str] | Callable[[Tensor, Tensor], object]
_SOLUTION = "solution"
_WITH_COEFFICIENTS: dict[object, type[Program]] = {"cg": ConjugateGradient, "pcg": PreconditionedConjugateGradient}
_COEFFICIENTS = ("alpha", "beta")


def _with_coefficients(method: type[Program]) -> Program:
    """Conjugate gradients, plain or preconditioned, with alpha and beta as further states."""

    class Described(method):  # type: ignore[misc, valid-type]
        def start(self, A: Any, b: Any, x0: Any) -> dict[str, Any]:
            states: dict[str, Any] = super().start(A, b, x0)
            return states | dict(alpha=0.0 * states["rho"], beta=0.0 * states["rho"])

        def step(self, A: Any, x: Any, r: Any, d: Any, rho: Any) -> dict[str, Any]:
            states: dict[str, Any] = super().step(A, x, r, d, rho)
            return states | dict(alpha=rho / (d @ (A @ d)), beta=states["rho"] / rho)

    described: Program = Described()
    return described


def values(targets: Sequence[str] | Mapping[str, Target], systems: Systems, T: int) -> dict[str, np.ndarray]:
    """Every target at every iterate, (systems, T + 1, numbers), in float64."""
    several = isinstance(targets, list | tuple | set) and all(isinstance(name, str) for name in targets)
    named = dict(targets) if isinstance(targets, Mapping) else {name: name for name in targets} if several else {}
    if not named or not all(isinstance(name, str) for name in named):
        raise OptionError(f"targets is {shown(targets)}; expected names such as ['cg.x', 'cg.r'], or a mapping of them")
    runs: dict[Any, dict[str, Tensor]] = {}
    return {name: _value(name, target, systems, T, runs) for name, target in named.items()}


def _value(name: str, target: Target, systems: Systems, T: int, runs: dict[Any, dict[str, Tensor]]) -> np.ndarray:
    A, b, x = systems
    if isinstance(target, str) and target == _SOLUTION:
        found = x[:, None].expand(-1, T + 1, -1)
    elif isinstance(target, str):
        method, _, state = target.rpartition(".")
        if not method:
            raise OptionError(f"the target {shown(target)} has no method; expected METHOD.STATE, such as 'cg.{target}'")
        if method not in library.algorithms():
            raise unknown_name("target", target, [_SOLUTION, *(f"{each}.x" for each in library.algorithms())])
        found = _state(_program(method, state), state, systems, T, runs, method)
    elif isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], Program):
        found = _state(*target, systems, T, runs, target[0])
    elif callable(target):
        found = to_tensor(name, target(A.clone(), b.clone()))
        if found.is_complex():
            raise DTypeError(f"the target {name} is complex; expected real numbers, such as real and imaginary parts")
        if not found.dim():
            found = found.expand(1)  # too few, as is said below
        found = found if found.dim() > 2 else found.reshape(len(found), 1, -1)
    else:
        raise OptionError(
            f"the target {name} is {shown(target)}; expected a name, (program, state) or a function (A, b)"
        )
    if len(found) != len(b) or found.shape[1] not in (1, T + 1):
        raise ShapeError(f"the target {name} has shape {tuple(found.shape)}; expected ({len(b)}, {T + 1}, numbers)")
    array: np.ndarray = found.expand(len(b), T + 1, *found.shape[2:]).reshape(len(b), T + 1, -1).double().numpy()
    return array


def _program(method: str, state: str) -> Program:
    if method in _WITH_COEFFICIENTS and state in _COEFFICIENTS:
        return _with_coefficients(_WITH_COEFFICIENTS[method])
    return library.program(method)


def _state(
    program: Program, state: str, systems: Systems, T: int, runs: dict[Any, dict[str, Tensor]], of: object
) -> Tensor:
    """A state of a program on these systems, of a method by its name or of a program; programs run once."""
    key = (of, program.name)  # cg with and without its coefficients
    if key not in runs:
        A, b, _ = systems
        takes = inputs_of(program)
        given = {name: value for name, value in (("A", A), ("b", b)) if name in takes}
        run = program.run(**given, iterations=T)
        iterates = answers(run.x, b)
        runs[key] = {"x": iterates, "r": b[:, None] - iterates @ A.mT} | run.state
    if state not in runs[key]:
        further = _COEFFICIENTS if of in _WITH_COEFFICIENTS else ()
        raise unknown_name(f"state of {program.name}", state, [*runs[key], *further])
    return runs[key][state]
