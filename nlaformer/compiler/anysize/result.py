"""The record of a run for any n: judged as any other, on sparse matrices."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from nlaformer.arrays import full_precision, give
from nlaformer.compiler.anysize.reference import Method, Reference
from nlaformer.errors import OptionError
from nlaformer.program.data import ANSWER
from nlaformer.program.judge import RULES, Band
from nlaformer.program.language import Program
from nlaformer.program.run import Run
from nlaformer.program.status import Diagnosis, Record, RunStatus
from nlaformer.program.tensors import size

if TYPE_CHECKING:
    from nlaformer.compiler.anysize.algorithm import AnySizeAlgorithm


DENSE = 500  # the largest n at which a record holds dense matrices too


@dataclass(frozen=True)
class Given:
    """What a run was given.

    Attributes
    ----------
    n, batch, library : the size, the shape of the systems, and the library of the results
    matrices : divided by powers of two
    vectors : (systems, n), and (systems,) for scalars, as given; scaled : divided by powers of two
    powers : of every input, state and the answer
    own : the matrices as given
    """

    n: int
    batch: tuple[int, ...]
    library: str
    matrices: Mapping[str, sp.csr_array]
    vectors: Mapping[str, np.ndarray]
    scaled: Mapping[str, np.ndarray]
    powers: Mapping[str, Any]
    own: Mapping[str, sp.csr_array] = field(default_factory=dict)

    @property
    def systems(self) -> int:
        return math.prod(self.batch)

    def system(self, number: int) -> dict[str, Any]:
        """The inputs of one system, as given."""
        return {**self.own, **{name: torch.tensor(value[number]) for name, value in self.vectors.items()}}


@dataclass(frozen=True)
class AnySizeRecord(Record):
    """A record whose matrices are sparse; ``count``: its iterations, None where not all iterates are kept."""

    given: Given | None = None
    reference: Reference | None = None
    count: int | None = None

    @functools.cached_property
    @full_precision()
    def bands(self) -> Mapping[str, Band]:
        """What the program determines of every value."""
        assert self.given is not None and self.reference is not None
        if self.count is None or not self.reference.is_judged(self.given.n, RULES[self.dtype]):
            return {}
        parts = [
            self.reference.bands(
                self.given.system(k),
                self.given.n,
                self.count,
                RULES[self.dtype],
                {name: value[k : k + 1] for name, value in self.values.items()},
            )
            for k in range(self.given.systems)
        ]
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}

    @functools.cached_property
    @full_precision()
    def residuals(self) -> tuple[Tensor, Tensor] | None:
        """The norm of each residual and what it is compared with to have converged, (systems, T + 1) each."""
        assert self.given is not None and self.reference is not None
        if self.reference.residual is None:
            return None
        found = [self._residuals(self.reference.residual, k) for k in range(self.given.systems)]
        return torch.stack([norms for norms, _ in found]), torch.stack([goal for _, goal in found])

    def _residuals(self, residual: Method, system: int) -> tuple[Tensor, Tensor]:
        assert self.given is not None and self.reference is not None
        given, answers, n = self.given.system(system), self.answer[system], self.given.n

        def norms(method: Method, x: Tensor) -> Tensor:
            # Iterate by iterate: a product x @ x of all of them at once would be one of matrices.
            return torch.stack([size(_only(method({**given, "x": each, ANSWER: each}, n)), 1) for each in x])

        found = norms(residual, answers)
        if self.reference.scale is not None:
            goal = norms(self.reference.scale, answers)
            return found, torch.where((goal > 0) & torch.isfinite(goal), goal, torch.nan)
        zero = norms(residual, torch.zeros_like(answers[:1])).expand(found.shape)
        first = torch.where(torch.isfinite(found[:1]), found[:1], torch.nan).expand(found.shape)
        return found, torch.where((zero > 0) & torch.isfinite(zero), zero, first)

    @functools.cached_property
    def first_broken(self) -> Tensor:
        """When a value that the program takes to be positive is first not, infinity for never; (systems,)."""
        assert self.given is not None and self.reference is not None
        broken = torch.zeros(self.answer.shape[:2], dtype=torch.bool)
        if self.count is not None:
            for k in range(self.given.systems):
                given = self.given.system(k)
                for t in range(self.count + 1):
                    states = {name: value[k, t] for name, value in self.values.items() if name != ANSWER}
                    for value in self.reference.promises({**given, **states}, self.given.n).values():
                        broken[k, t] |= bool((value < 0).any())
        times = torch.arange(broken.shape[1], dtype=torch.float64)
        return torch.where(broken & self._before, times, torch.inf).amin(-1) + 0.25

    def _lost(self) -> str:
        return ""  # the graph is for matrices that are not sparse

    def _blame(self, status: np.ndarray) -> None:
        """An A that the method is not for."""
        assert self.given is not None
        blamed = (RunStatus.STAGNATED, RunStatus.PRECISION, RunStatus.DIVERGED)
        failed = np.array([each in blamed for each in status], dtype=bool)
        if self.graph.positive_definite and "A" in self.given.matrices and failed.any():
            A = self.given.matrices["A"]
            skew = abs(A - A.T).max() > torch.finfo(self.dtype).eps ** 0.5 * abs(A).max()
            if skew:
                status[failed] = RunStatus.NOT_SYMMETRIC


class AnySizeRun(Run[Any]):
    """A run for any n. Where n is large, or not all iterates were kept, its residuals alone are judged."""

    @functools.cached_property
    def digits(self) -> dict[str, Any]:
        """How many significant digits the program determines of each value (``Run.digits``)."""
        if not self.record.bands:
            raise OptionError(
                "how many digits there are takes 24 runs of the program and every iterate; n is too large for that, or "
                'the run has keep="last"'
            )
        return Run.digits.func(self)  # type: ignore[attr-defined,no-any-return]

    def check(self, program: Program | None = None) -> Diagnosis:
        """Compare this run with the program's own lines, which take dense arrays (``Run.check``)."""
        if self.x.shape[-1] > DENSE or (isinstance(self.record, AnySizeRecord) and self.record.count is None):
            raise OptionError(
                f"the lines of a program take dense arrays: up to n = {DENSE}, with every iterate. diagnose() compares "
                "with what was traced"
            )
        return Run.check(self, program)


def _only(values: Mapping[str, Any]) -> Tensor:
    (value,) = values.values()
    return value.reshape(-1)  # type: ignore[no-any-return]


def _joined(bands: Sequence[Band]) -> Band:
    """The bands of several systems as one."""
    first = bands[0]
    parts = {name: torch.cat([getattr(band, name) for band in bands]) for name in ("own", "spread", "lost", "unit")}
    return Band(axes=first.axes, rule=first.rule, **parts)


def run_of(found: Mapping[str, np.ndarray], given: Given, algorithm: AnySizeAlgorithm, count: int | None) -> Run[Any]:
    """Iterates, (systems, T + 1, ...), in the units of what was given, with a record of what they are judged by."""
    from nlaformer.compiler.anysize.algorithm import scaled_by

    values = {name: torch.from_numpy(scaled_by(value, given.powers[name])) for name, value in found.items()}
    vectors = {name: torch.tensor(value) for name, value in given.vectors.items()}
    if given.n <= DENSE:
        for name, matrix in given.own.items():
            vectors[name] = torch.from_numpy(matrix.toarray()).expand(given.systems, -1, -1)
    record = AnySizeRecord(
        vectors, values, torch.float64, algorithm.traced.graph, algorithm.name, given.batch, given.library, True, None,
        algorithm.program, given, algorithm.reference, count,
    )  # fmt: skip
    back = {
        key: give(value.reshape(*given.batch, *value.shape[1:]).clone(), given.library) for key, value in values.items()
    }
    return AnySizeRun(back.pop(ANSWER), back, record)
