"""Teachers: conjugate gradients, plain and preconditioned (``problems/conjugate.py``), and every program, on batches.

``teacher`` gives what a training config names: these two, another algorithm, or any ``Program``, whose graph is then
evaluated on whole batches; the targets are its answers and any of its states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from nlaformer.arrays import whole
from nlaformer.errors import CompileError, OptionError, unknown_name
from nlaformer.learn import sources
from nlaformer.problems.conjugate import Trajectory, as_system
from nlaformer.problems.conjugate import cg as cg
from nlaformer.problems.conjugate import pcg as pcg
from nlaformer.program.data import ANSWER, ProgramGraph
from nlaformer.program.language import Program
from nlaformer.program.trace import inputs_of

_ANY = 4  # unknowns, where the size of the systems is not known yet


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
    """A program as data, evaluated in float64 from x_0 = 0; it is traced once for every size of systems."""

    name: str
    program: Program
    probe: tuple[str, ...]
    graphs: dict[int, ProgramGraph] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, name: str, program: Any, probe: Sequence[str] | None, n: int | None) -> ProgramTeacher:
        if not isinstance(program, Program):
            raise OptionError(f"teacher={name} is not an nf.Program; make it a subclass of that")
        teacher = cls(name, program, ())
        graph, inputs = teacher.graph(n or _ANY), inputs_of(program)
        if graph.parts:
            raise OptionError(f"teacher={name} has a learned part; a teacher must be complete")
        if graph.answer.ndim != 1 or not {"A", "b", "x0"} >= inputs.keys() >= {"b"}:
            takes = ", ".join(inputs)
            raise OptionError(f"teacher={name} must solve A x = b; it takes {takes} and gives a {graph.answer.kind}")
        states = [state for state in graph.step if state != "x"]
        chosen = tuple(probe) if probe is not None else ("r", "d") if {"r", "d"} <= set(states) else tuple(states)
        for state in chosen:
            if state not in graph.step:
                raise unknown_name(f"state of teacher={name}", state, graph.step)
        return replace(teacher, probe=chosen or ("x",))

    def graph(self, n: int) -> ProgramGraph:
        """The program for systems of n unknowns."""
        if n not in self.graphs:
            try:
                self.graphs[n] = self.program.graph(n)
            except CompileError as error:
                raise OptionError(f"teacher={self.name} cannot be traced: {error}") from error
        return self.graphs[n]

    @torch.no_grad()
    def __call__(self, A: Tensor, b: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        given = dict(zip(("A", "b", "x0"), as_system(A, b, None), strict=True))
        graph = self.graph(b.shape[-1])
        inputs = {name: given[name] for name in graph.inputs}
        answers, watched = [], []
        for values in graph.iterate(inputs, whole("iterations", iterations, 0)):
            answers.append(values[ANSWER].expand_as(given["b"]))
            flat = [_flat(values[name], graph.step[name].ndim, b.shape[:-1]) for name in self.probe]
            watched.append(torch.cat(flat, -1))
        return torch.stack(answers, -2), torch.stack(watched, -2)

    def entries(self, n: int) -> int:
        return sum(self.graph(n).step[name].size for name in self.probe)


def _flat(value: Tensor, axes: int, batch: torch.Size) -> Tensor:
    """A state as one row of numbers: (..., its entries)."""
    return value.expand(*batch, *value.shape[value.dim() - axes :]).reshape(*batch, -1)
