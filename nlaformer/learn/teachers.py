"""Teachers: conjugate gradients, plain and preconditioned (``problems/conjugate.py``), and every program, on batches.

``teacher`` gives what a training config names: these two, another algorithm, or any ``Program``, whose graph is then
evaluated on whole batches; the targets are its answers and any of its states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from nlaformer.arrays import whole
from nlaformer.compiler.graph import AXES
from nlaformer.compiler.reference import Reference
from nlaformer.compiler.trace import ANSWER, trace_program
from nlaformer.errors import OptionError, unknown_name
from nlaformer.learn import sources
from nlaformer.problems.conjugate import Trajectory, as_system
from nlaformer.problems.conjugate import cg as cg
from nlaformer.problems.conjugate import pcg as pcg
from nlaformer.program.language import Program


class Teacher(Protocol):
    """A method whose iterates are targets."""

    def __call__(self, A: Tensor, b: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        """The answers from x_0 = 0, (..., T+1, n), and the probed states side by side, (..., T+1, entries)."""
        ...

    def entries(self, n: int) -> int:
        """The length of the probed states of n unknowns, taken together."""
        ...


def teacher(
    name: str, options: Mapping[str, Any] | None = None, probe: Sequence[str] | None = None, n: int | None = None
) -> Teacher:
    """The teacher of a name, "cg", "pcg", another algorithm, or "module:Name", with its options.

    With ``n``, the size of the systems, constants of another size are refused.

    ``probe`` names the states that are targets of the second probe. The default is r and d or, where these are not both
    among the states, every state but the answer's own, x.

    Examples
    --------
    >>> A, b = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.tensor([1.0, 2.0])
    >>> x, rd = teacher("cg")(A, b, 2)
    >>> x.shape, rd.shape
    (torch.Size([3, 2]), torch.Size([3, 4]))
    >>> teacher("steepest_descent", probe=("r",))(A, b, 2)[1].shape
    torch.Size([3, 2])
    """
    if name in _OWN and not options and probe in (None, ("r", "d")):
        return _OWN[name]
    return ProgramTeacher.of(name, sources.make("teacher", name, options or {}, known()), probe, n)


@cache
def known() -> dict[str, type]:
    """The programs of the library by name."""
    from nlaformer.compiler import library

    return {name: type(library.program(name)) for name in library.algorithms()}


@dataclass(frozen=True)
class _OwnTeacher:
    """CG and PCG as written here: always float64, a solved system stays as it is bit for bit."""

    method: Callable[[Tensor, Tensor, int], Trajectory]

    def __call__(self, A: Tensor, b: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        path = self.method(A, b, iterations)
        return path.x, torch.cat([path.r, path.d], -1)

    def entries(self, n: int) -> int:
        return 2 * n


_OWN = {"cg": _OwnTeacher(cg), "pcg": _OwnTeacher(pcg)}


@dataclass(frozen=True)
class ProgramTeacher:
    """A program as data, evaluated in float64 from x_0 = 0."""

    program: Reference
    probe: tuple[str, ...]

    @classmethod
    def of(cls, name: str, program: Any, probe: Sequence[str] | None, n: int | None) -> ProgramTeacher:
        if not isinstance(program, Program):
            raise OptionError(f"teacher={name} is not an nf.Program; make it a subclass of that")
        traced = trace_program(program, n)
        if traced.problems:
            raise OptionError(f"teacher={name} cannot be traced:\n" + "\n".join(traced.problems))
        if any(node.op == "learned" for node in traced.nodes):
            raise OptionError(f"teacher={name} has a learned part; a teacher must be complete")
        if traced.answer.kind != "vector" or not {"A", "b", "x0"} >= traced.inputs.keys() >= {"b"}:
            takes = ", ".join(traced.inputs)
            raise OptionError(f"teacher={name} must solve A x = b; it takes {takes} and gives a {traced.answer.kind}")
        states = [state for state in traced.state if state != "x"]
        chosen = tuple(probe) if probe is not None else ("r", "d") if {"r", "d"} <= set(states) else tuple(states)
        for state in chosen:
            if state not in traced.state:
                raise unknown_name(f"state of teacher={name}", state, traced.state)
        return cls(Reference.of(traced), chosen or ("x",))

    @torch.no_grad()
    def __call__(self, A: Tensor, b: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        given = dict(zip(("A", "b", "x0"), as_system(A, b, None), strict=True))
        inputs = {name: given[name] for name in self.program.inputs}
        answers, watched = [], []
        for values in self.program.iterate(inputs, whole("iterations", iterations, 0)):
            answers.append(values[ANSWER].expand_as(given["b"]))
            watched.append(torch.cat([self._flat(name, values[name], b.shape) for name in self.probe], -1))
        return torch.stack(answers, -2), torch.stack(watched, -2)

    def _flat(self, name: str, value: Tensor, shape: torch.Size) -> Tensor:
        """A state as one row of numbers: (..., n^axes)."""
        axes = AXES[self.program.kinds[name]]
        return value.expand(*shape[:-1], *[shape[-1]] * axes).reshape(*shape[:-1], -1)

    def entries(self, n: int) -> int:
        return sum(n ** AXES[self.program.kinds[name]] for name in self.probe)
