"""How a run ended and where it went wrong, by its residuals, its promises and the rule of ``judge.py``; when asked.

The first thing that goes wrong decides, in the order in which values are made: a value that cannot be the program's
(``INACCURATE``), a broken promise (``NOT_POSITIVE``), a value of the program itself that is not finite (``NONFINITE``).
What comes after it is its consequence. Only where nothing went wrong do the residuals speak. They are evaluated in
float64 whatever the weights compute in.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import full_precision, give
from nlaformer.program.data import ANSWER, ProgramGraph
from nlaformer.program.ir import describe
from nlaformer.program.judge import RULES, Band, bands
from nlaformer.program.language import Program
from nlaformer.program.tensors import size

_SMALLEST = torch.finfo(torch.float64).smallest_normal / 1e-10  # of a goal: the residual that meets it is normal
_CONVERGED = {torch.float64: 1e-10, torch.float32: 1e-4}


class RunStatus(enum.Enum):
    """How a run ended; the value is a sentence to print."""

    CONVERGED = "converged: the residual fell to the accuracy of the arithmetic"
    RUNNING = "not converged yet: the residual was still falling when the iterations ran out; ask for more iterations"
    STAGNATED = (
        "stagnated: the residual stopped falling before it was small; the system may be singular or too badly "
        "conditioned for this method, or a constant of the program does not suit it; a program that does not solve "
        "A x = b is judged by its own residual if it defines one: def residual(self, A, b, x)"
    )
    PRECISION = (
        "for want of digits: the precision of this run leaves the answer no digit (run.digits), or its residual "
        "stopped falling where that precision ends; the program itself may get further in float64: Program.run, or "
        "weights in float64"
    )
    NOT_POSITIVE = (
        "not positive: a value the program takes to be positive was not, so the answer must not be used; for the "
        "conjugate gradient family this means that A is not symmetric positive definite"
    )
    NOT_SYMMETRIC = (
        "not symmetric: the residual did not become small, and this method is for symmetric positive definite A, which "
        "this A is not; nf.solve takes any A, as do the algorithms gmres and bicgstab"
    )
    INACCURATE = (
        "inaccurate: a value of the run is not one that the program could have given in the precision that it is "
        "judged in; the answer may be right all the same, but must not be used unchecked. print(run.diagnose()) names "
        "the value, the step and the program's line"
    )
    DIVERGED = "diverged: the residual grew beyond where it started; the answer must not be used"
    NONFINITE = (
        "not finite: a value of the program itself, or its residual, left the range of the numbers, as in a division "
        "by 0; the answer must not be used. print(run.diagnose()) of a run of weights names the value"
    )
    FINISHED = "finished: this program has no residual to judge by; compare the last iterates"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Record:
    """What a run was given and what it found, in copies of its own; everything that is said of it follows.

    Attributes
    ----------
    inputs, values : (systems, ...), and every state and, under ``ANSWER``, the answer, (systems, T + 1, ...); float64
    dtype : in which they were computed
    graph : the program that they are judged by
    name : of the run
    batch, library : of the arrays that the caller gave
    of_weights : whether weights made the values, and not the program itself
    broken : at which iterates promises are known to have been broken, (systems, T + 1)
    program : the user's own, where it is known
    """

    inputs: Mapping[str, Tensor]
    values: Mapping[str, Tensor]
    dtype: torch.dtype
    graph: ProgramGraph
    name: str
    batch: tuple[int, ...]
    library: str
    of_weights: bool = False
    broken: Tensor | None = None
    program: Program | None = None

    @property
    def answer(self) -> Tensor:
        return self.values[ANSWER]

    def given_back(self, value: Tensor) -> Any:
        """A value as an array of the caller's."""
        return give(value.to(self.dtype).reshape(*self.batch, *value.shape[1:]), self.library)

    @functools.cached_property
    @full_precision()
    def bands(self) -> Mapping[str, Band]:
        """What the program determines of every value; nothing where a network makes some of them."""
        if self.graph.parts or self.graph.values.keys() != self.values.keys():
            return {}
        found = self.values if self.of_weights else None
        return bands(self.graph, self.inputs, self.answer.shape[1] - 1, RULES[self.dtype], found)

    @functools.cached_property
    @full_precision()
    def residuals(self) -> tuple[Tensor, Tensor] | None:
        """The norm of each residual and what it is compared with to have converged, (systems, T + 1) each."""
        return None if self.graph.residual is None else _residuals(self.graph, self._given, self.answer)

    @property
    def _given(self) -> dict[str, Tensor]:
        # Iterations are one more batch dimension, so the inputs get an axis of length one for it.
        return {name: value[:, None] for name, value in self.inputs.items()}

    @property
    def converged(self) -> Tensor:
        """Where the residual has fallen to the accuracy of the arithmetic, (systems, T + 1)."""
        if self.residuals is None:
            return torch.zeros(self.answer.shape[:2], dtype=torch.bool, device=self.answer.device)
        norms, goal = self.residuals
        return norms <= _CONVERGED[self.dtype] * goal

    @functools.cached_property
    def status(self) -> np.ndarray:
        """The status of each system, (systems,)."""
        status = np.full(len(self.answer), RunStatus.FINISHED, dtype=object)
        if self.residuals is not None:
            status[...] = _by_residual(*self.residuals, self.converged)
            self._blame(status)
        if self.judged:
            answer = self.bands[ANSWER]
            undetermined = torch.isfinite(answer.sizes[:, -1]) & (answer.digits[:, -1] < 1)
            ended_well = (status == RunStatus.CONVERGED) | (status == RunStatus.FINISHED)
            status[undetermined.cpu().numpy() & ended_well] = RunStatus.PRECISION
        for meaning, time in (
            (RunStatus.NONFINITE, self.first_lost),
            (RunStatus.NOT_POSITIVE, self.first_broken),
            (RunStatus.INACCURATE, self.first_wrong),
        ):
            first = torch.minimum(self.until, self.first_wrong)
            status[((time < torch.inf) & (time <= first)).cpu().numpy()] = meaning
        if self.graph.positive_definite and "A" in self.inputs:  # a division by a diagonal entry 0 is not what is wrong
            zero = (self.inputs["A"].diagonal(dim1=-2, dim2=-1) == 0).any(-1).cpu().numpy()
            status[zero & (status == RunStatus.NONFINITE)] = RunStatus.NOT_POSITIVE
        return status

    @property
    def judged(self) -> bool:
        """Whether the values are those of weights, and the program is known."""
        return self.of_weights and bool(self.bands)

    @functools.cached_property
    def bars_off(self) -> dict[str, Tensor]:
        """How many bars each value of the weights is off, (systems, T + 1)."""
        return {name: band.bars_off(self.values[name]) for name, band in self.bands.items()}

    @functools.cached_property
    def first_wrong(self) -> Tensor:
        """The step after which a value of the weights is first wrong, infinity for never; (systems,)."""
        if not self.judged:
            return self._never
        return _first(torch.stack([off > RULES[self.dtype].bars for off in self.bars_off.values()]).any(0))

    @functools.cached_property
    def first_lost(self) -> Tensor:
        """When a value of the program itself is first not finite, before convergence, or the last of the run is."""
        end = self.answer.shape[1] - 0.4
        lost = torch.where(torch.isfinite(self.answer[:, -1:]).flatten(1).all(-1), self._never, end)
        if self.judged:
            own = torch.stack([band.lost for band in self.bands.values()]).any(0)
            found = torch.stack([torch.isfinite(size(self.values[k], b.axes)) for k, b in self.bands.items()]).all(0)
            lost = torch.minimum(lost, _first(own & (self._before | ~found)) + 0.1)
        if self.residuals is not None:
            lost = torch.where(torch.isfinite(self.residuals[0][:, -1]), lost, torch.fmin(lost, lost.new_tensor(end)))
        return lost

    @property
    def until(self) -> Tensor:
        """After which time there is nothing to compare with, infinity for never; (systems,)."""
        return torch.minimum(self.first_lost, self.first_broken)

    @functools.cached_property
    def first_broken(self) -> Tensor:
        """When a promise is first broken, infinity for never: a promise on inputs alone before everything else.

        A promise broken after convergence is rounding noise.
        """
        shape, first = self.answer.shape[:2], self._never
        if self.broken is not None:
            return _first(self.broken & self._before) + 0.25
        promises = self.graph.own_promises
        for name, value in promises({**self._given, **self.values}).items():
            axes = promises.outputs[name].ndim
            negative = (value < 0).flatten(-axes).any(-1) if axes else value < 0
            if promises.outputs[name].invariant:
                first = torch.where(negative.expand(shape).any(-1), -1.0, first)
            else:
                first = torch.minimum(first, _first(negative & self._before) + 0.25)
        return first

    @functools.cached_property
    def _before(self) -> Tensor:
        """Before convergence; after it a method may divide what rounding left, (systems, T + 1)."""
        return torch.cumsum(self.converged, -1) == 0

    @property
    def _never(self) -> Tensor:
        return torch.full(self.answer.shape[:1], torch.inf, dtype=torch.float64, device=self.answer.device)

    def _blame(self, status: np.ndarray) -> None:
        """The precision where the program itself gets further in float64, and an A that its method is not for."""
        stagnated = status == RunStatus.STAGNATED
        if self.judged and self.residuals is not None and stagnated.any():
            own, _ = _residuals(self.graph, self._given, self.bands[ANSWER].own)
            further = _last_quarter(own).amin(-1) < 0.1 * _last_quarter(self.residuals[0]).amin(-1)
            status[stagnated & further.cpu().numpy()] = RunStatus.PRECISION
        blamed = (RunStatus.STAGNATED, RunStatus.PRECISION, RunStatus.DIVERGED)
        failed = np.array([each in blamed for each in status], dtype=bool)
        if self.graph.positive_definite and "A" in self.inputs and failed.any():
            A = self.inputs["A"]
            skew = (A - A.mT).abs().amax((-2, -1)) > torch.finfo(self.dtype).eps ** 0.5 * A.abs().amax((-2, -1))
            status[failed & skew.cpu().numpy()] = RunStatus.NOT_SYMMETRIC

    def diagnosis(self) -> Diagnosis:
        """How far each value of the weights is off, and what goes wrong first."""

        def arrays(values: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
            return {key: v.reshape(*self.batch, v.shape[1]).cpu().numpy() for key, v in values.items()}

        digits, allowed = {key: band.digits for key, band in self.bands.items()}, RULES[self.dtype].bars
        strays = []
        for system in torch.nonzero(torch.isfinite(self.first_wrong)).flatten().tolist():
            step = int(self.first_wrong[system])
            off = {key: float(bars[system, step]) for key, bars in self.bars_off.items()}
            key = max(off, key=lambda each: off[each])
            place = tuple(int(k) for k in np.unravel_index(system, self.batch)) if self.batch else ()
            made = self.graph.values if step else {**self.graph.start, ANSWER: self.graph.answer}
            node = made[key]
            line = "" if node.op in ("input", "state") else str(node.line)
            strays.append(Stray(key, step, place, off[key], float(digits[key][system, step]), line))
        return Diagnosis(self.name, arrays(self.bars_off), allowed, arrays(digits), tuple(strays), self._lost())

    def _lost(self) -> str:
        """Which operation of the program itself first gives a number that is not finite."""
        if not self.bands or not bool(torch.isfinite(lost := self._own_lost).any()):
            return ""
        system = int(lost.argmin())
        step = int(lost[system])
        one = {name: value[system : system + 1] for name, value in self.inputs.items()}
        before = {name: band.own[system : system + 1, max(step - 1, 0)] for name, band in self.bands.items()}
        after = {name: band.own[system : system + 1, step] for name, band in self.bands.items()}
        made, given = (self.graph.next_values, one | before) if step else (self.graph.first_values, one)
        when = f"step {step}" if step else "start"
        for each, known, where in ((made, given, when), (self.graph.last_values, one | after, "finish")):
            results = dict(zip(each.nodes, each.results(known), strict=True))
            finite = {node: bool(torch.isfinite(result).all()) for node, result in results.items()}
            for node in each.nodes:
                if not finite[node] and all(finite[argument] for argument in node.args):
                    by_zero = node.op == "divide" and bool((results[node.args[1]] == 0).any())
                    what = "divides by 0" if by_zero else "is not finite"
                    return f"in {where} of the program itself, {describe(node)} {what}"
        return ""

    @property
    def _own_lost(self) -> Tensor:
        """The step after which the program's own values are first not finite, infinity for never."""
        return _first(torch.stack([band.lost for band in self.bands.values()]).any(0))


@dataclass(frozen=True)
class Stray:
    """A value that is not one of the program's.

    Attributes
    ----------
    value : the name of the state, or "finish()" for the answer
    step : 0 for the start, t for the t-th step
    system : its place in the batch
    bars : how many it is off
    digits : that the program determines of it
    line : of the program, where it is computed
    """

    value: str
    step: int
    system: tuple[int, ...]
    bars: float
    digits: float
    line: str

    def __str__(self) -> str:
        name = "the answer" if self.value == ANSWER else f"the state {self.value}"
        when = f"step {self.step}" if self.step else "start"
        text = f"{name} after {when} is {self.bars:.1e} bars off, where the program determines {self.digits:.0f} digits"
        return f"{text}; it is computed in {self.line}" if self.line else text


@dataclass(frozen=True)
class Diagnosis:
    """How far each value of a run is from the program's own; ``print`` it.

    Attributes
    ----------
    bars : how many bars each value is off, 0 where it is undetermined, (..., T + 1)
    allowed : so many are
    digits : that the program determines, (..., T + 1)
    strays : of each system that has one, the first value that is further off
    lost : a sentence about the first value of the program itself that is not finite, where there is one
    """

    name: str
    bars: dict[str, np.ndarray]
    allowed: float
    digits: dict[str, np.ndarray]
    strays: tuple[Stray, ...]
    lost: str = ""

    def __bool__(self) -> bool:
        """Whether every value may be the program's."""
        return not self.strays

    @property
    def first(self) -> Stray | None:
        """The first value of all systems that is further off than is allowed, or None."""
        return min(self.strays, key=lambda stray: stray.step, default=None)

    def __str__(self) -> str:
        strays = f"all values are within {self.allowed:.0f} bars" if self.first is None else str(self.first)
        lines = [f"{self.name}: {strays}" + (f"; {self.lost}" if self.lost else "")]
        for name, bars in self.bars.items():
            if bars.size:
                worst, last = np.unravel_index(np.argmax(bars), bars.shape), self.digits[name][..., -1].min()
                mark = "  <-" if bars[worst] > self.allowed else ""
                lines.append(
                    f"  {name:16} {bars[worst]:.1e} bars off (step {worst[-1]}), {last:.1f} digits at the end{mark}"
                )
        return "\n".join(lines)


def _first(where: Tensor) -> Tensor:
    """The first time at which something is so, infinity for never; (systems,)."""
    times = torch.arange(where.shape[1], dtype=torch.float64, device=where.device)
    return torch.where(where, times, torch.inf).amin(-1)


def _residuals(program: ProgramGraph, given: Mapping[str, Tensor], answer: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of the residuals of answers, and what they are compared with."""
    shape, values, residual = answer.shape[:2], {**given, ANSWER: answer}, program.residual_value
    ((_, node),) = residual.outputs.items()
    number, axes, results = residual.numbers[node], node.ndim, residual.results(values)
    norms = size(results[number], axes).expand(shape)
    if program.scale is not None:
        scale = size(program.scale_value(values)["scale"], program.scale.ndim).expand(shape)
        # Compared with 0, with infinity or with NaN, nothing has converged.
        return norms, torch.where((scale > 0) & torch.isfinite(scale), scale, torch.nan)
    # Compared with the residual of x = 0, |b|: a start far away must not lower the bar. There may be a pole at 0; near
    # one a residual is larger than anything that x has to do with, and to leave it is no fall.
    at_zero = residual.results({**values, ANSWER: torch.zeros_like(answer)})
    zero = size(at_zero[number], axes).expand(shape)
    first = torch.where(torch.isfinite(norms[:, :1]), norms[:, :1], torch.nan)
    here = size(residual.magnitudes(results)[number], axes).expand(shape)
    goal = torch.where(zero == 0, first, torch.fmin(torch.where(torch.isfinite(zero), zero, first), here))
    underflown = goal < _SMALLEST
    if bool(underflown.any()):  # a residual whose products left the range of the numbers says nothing
        underflown = underflown & (residual.underflows(at_zero) | residual.underflows(results))
        norms, goal = (torch.where(underflown, torch.nan, value) for value in (norms, goal))
    return norms, goal


def _by_residual(norms: Tensor, goal: Tensor, converged: Tensor) -> np.ndarray:
    norms, goal, converged = norms.cpu(), goal.cpu(), converged.cpu()
    last = _last_quarter(norms)
    before = norms[:, : -last.shape[1]] if norms.shape[1] > last.shape[1] else norms[:, :1]
    falling = last.amin(-1) < 0.9 * before.amin(-1)
    status = np.full(len(norms), RunStatus.STAGNATED, dtype=object)
    status[falling.numpy() | (norms.shape[1] == 1)] = RunStatus.RUNNING
    status[(norms[:, -1] > 10 * torch.fmax(goal[:, -1], norms[:, 0])).numpy()] = RunStatus.DIVERGED
    status[converged[:, -1].numpy()] = RunStatus.CONVERGED
    return status


def _last_quarter(norms: Tensor) -> Tensor:
    return norms[:, -max(1, norms.shape[1] // 4) :]
