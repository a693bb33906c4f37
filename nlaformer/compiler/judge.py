"""How a run ended: from its residuals, its promises and the deviation of every value from the program's own.

The first thing that goes wrong decides, in the order in which values are made: a value unlike the program's own
(``INACCURATE``), a broken promise (``NOT_POSITIVE``), a value of the program itself that is not finite (``NONFINITE``).
What comes after it is its consequence. Only where nothing went wrong do the residuals speak. They are evaluated in
float64 whatever the weights compute in.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nlaformer.compiler.deviation import Deviation, Tolerance
from nlaformer.compiler.diagnose import event_times
from nlaformer.compiler.ends import Methods, compared
from nlaformer.compiler.expression import EMPTY, Expression, size
from nlaformer.compiler.found import STEP, Found, own_nodes, own_value, sizes
from nlaformer.compiler.graph import AXES
from nlaformer.compiler.noise import NOISE
from nlaformer.compiler.trace import ANSWER

_SMALLEST = torch.finfo(torch.float64).smallest_normal / 1e-10  # of a goal: the residual that meets it is normal


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
        "stagnated for want of digits: the residual stopped falling where the precision of this run ends; on the same "
        "inputs the program itself gets further in float64: Program.run, or weights in float64"
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
        "inaccurate: a value of the run differs from the program's own by more than its tolerance; the answer may be "
        "right all the same, but must not be used unchecked. print(run.diagnose()) names the value, the step and what "
        "makes it"
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
class Checks:
    """What a run is judged by.

    Attributes
    ----------
    residual, scale : of the answer, and what it is compared with; empty where the program has none
    promises : values that the program takes to be positive
    program : "start x", "step x" and "finish()": what every value should be
    definite : whether the program takes A to be symmetric positive definite
    """

    residual: Expression = EMPTY
    scale: Expression = EMPTY
    promises: Expression = EMPTY
    program: Expression = EMPTY
    definite: bool = False


@dataclass(frozen=True)
class Judgement:
    """Of every system: residual norms (systems, T + 1), status (systems,), and until when its values are judged.

    ``deviations`` are those of every value and run, which a diagnosis reads.
    """

    norms: Tensor | None
    status: np.ndarray
    settled: Tensor
    until: Tensor
    deviations: Mapping[str, Deviation]


def judge(found: Found, checks: Checks, known: Tensor | None = None) -> Judgement:
    """The status of each system of a run; ``known`` tells where promises were broken, (systems, T + 1)."""
    nodes = own_nodes(checks.program, found.without_zeros())
    found, norms, goal, converged = with_settled(found, checks, nodes)
    status = np.full(len(found.answer), RunStatus.FINISHED, dtype=object)
    if norms is not None:
        status[...] = _by_residual(norms, goal, converged)
        _blame_precision(status, found, norms, checks)
        _blame_asymmetry(status, found, checks)
    deviations = compared(checks.program, found, nodes)
    wrong, lost = _first_deviations(found, deviations)
    broken = _first_broken(found, checks, converged, known)
    if norms is not None:
        lost = torch.where(torch.isfinite(norms[:, -1]), lost, torch.fmin(lost, lost.new_tensor(norms.shape[1] - 0.4)))
    until = torch.minimum(broken, lost)
    for time, meaning in ((lost, RunStatus.NONFINITE), (broken, RunStatus.NOT_POSITIVE), (wrong, RunStatus.INACCURATE)):
        first = (time < torch.inf) & (time <= torch.minimum(until, wrong))
        status[first.cpu().numpy()] = meaning
    _blame_diagonal(status, found, checks)
    return Judgement(norms, status, found.settled, until, deviations)


class Settled(NamedTuple):
    """What was found, with the times at which it is settled; its residual norms, their goal, and where they meet it."""

    found: Found
    norms: Tensor | None
    goal: Tensor
    converged: Tensor


def with_settled(found: Found, checks: Checks, nodes: Sequence[Tensor]) -> Settled:
    """Settled is where the residual has converged or fallen and is vouched for; ``nodes`` of ``own_nodes``."""
    norms, goal, start = _residual_norms(found, checks)
    if norms is None:
        return Settled(found, norms, goal, torch.zeros_like(found.settled))
    converged = norms <= (1e-10 if found.dtype == torch.float64 else 1e-4) * goal
    bar = Tolerance.of(found.dtype).fallen * start
    fallen = converged | ((norms <= bar) & (bar > 0))
    beside_goal = norms <= Tolerance.of(found.dtype).fallen * goal
    settled = fallen & _vouched(found, checks, nodes, fallen, bar, beside_goal)
    return Settled(replace(found, settled=settled), norms, goal, converged)


def _vouched(
    found: Found, checks: Checks, nodes: Sequence[Tensor], fallen: Tensor, bar: Tensor, beside_goal: Tensor
) -> Tensor:
    """Where not the step alone says that its residual has fallen: it had before, or has in the program's own step.

    Weights that give 0 for x would otherwise pass wherever 0 is a solution. The program's own residual may be a decade
    above the bar. A residual that is small beside its first alone, since the run began far away, says nothing about
    the answer: that must be like the one of the program's own step.
    """
    vouched, program = torch.ones_like(fallen), checks.program
    known = checks.residual and ANSWER in program.outputs  # not so in checks of an older form
    if not known or fallen.shape[1] < 2 or not bool(fallen.any()):
        return vouched
    made = {name: state[:, 1:] for name, state in found.states.items()}  # states of a network are taken as they are
    made |= {n: own_value(program, STEP + n, nodes, found)[0] for n in made if STEP + n in program.outputs}
    answer = program.only(ANSWER)({**found.inputs, **made})
    norms = _norm(checks.residual, {**found.inputs, **answer})
    vouched[:, 1:] = fallen[:, :-1] | (norms.expand_as(bar[:, 1:]) <= 10 * bar[:, 1:])
    own = answer[ANSWER].expand_as(found.answer[:, 1:])
    alike = sizes(found.answer[:, 1:] - own) <= NOISE * sizes(own)
    vouched[:, 1:] &= alike | beside_goal[:, 1:]
    return vouched


def _residual_norms(found: Found, checks: Checks) -> tuple[Tensor | None, Tensor, Tensor]:
    """The norm of each residual, None without one, what it is compared with to have converged, and what to have fallen.

    (systems, T + 1) each. It has fallen beside its first or its own terms.
    """
    if not checks.residual:
        return None, found.answer, found.answer
    shape = found.answer.shape[:2]
    values = {**found.inputs, ANSWER: found.answer}
    ((name, number),) = checks.residual.outputs.items()
    results, kind = checks.residual.results(values), checks.residual.kinds[name]
    norms, terms = (size(v, kind).expand(shape) for v in (results[number], checks.residual.terms(number, results)))
    start = torch.maximum(norms[:, :1].nan_to_num(0.0, 0.0), terms.nan_to_num(0.0, 0.0))
    if checks.scale:
        scale = _norm(checks.scale, values).expand(shape)
        # Compared with 0, with infinity or with NaN, nothing has converged.
        return norms, torch.where((scale > 0) & torch.isfinite(scale), scale, torch.nan), start
    # Compared with the residual of x = 0, |b|: a start far away must not lower the bar. There may be a pole at 0; near
    # one a residual is larger than anything that x has to do with, and to leave it is no fall.
    at_zero = checks.residual.results({**values, ANSWER: torch.zeros_like(found.answer)})
    zero = size(at_zero[number], kind).expand(shape)
    first = torch.where(torch.isfinite(norms[:, :1]), norms[:, :1], torch.nan)
    here = size(checks.residual.magnitudes(results)[number], kind).expand(shape)
    goal = torch.where(zero == 0, first, torch.fmin(torch.where(torch.isfinite(zero), zero, first), here))
    start = torch.where(torch.isfinite(zero), start, goal)
    underflown = goal < _SMALLEST
    if bool(underflown.any()):  # a residual whose products left the range of the numbers says nothing
        underflown = underflown & (checks.residual.underflows(at_zero) | checks.residual.underflows(results))
        norms, goal = (torch.where(underflown, torch.nan, value) for value in (norms, goal))
    return norms, goal, start


def _norm(expression: Expression, values: Mapping[str, Tensor]) -> Tensor:
    (kind,) = expression.kinds.values()
    return size(expression.value(values), kind)


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


def _blame_precision(status: np.ndarray, found: Found, norms: Tensor, checks: Checks) -> None:
    """Say so where the program's own run in float64 ends at a tenth of the residual at which a run stagnated."""
    systems = torch.from_numpy(np.nonzero(status == RunStatus.STAGNATED)[0]).to(norms.device)
    methods = Methods.of(checks.program, list(found.states))
    if not checks.residual or not len(systems) or methods is None:
        return
    inputs, own_norms = {name: value[systems, 0] for name, value in found.inputs.items()}, []
    for own in methods.run(inputs, norms.shape[1] - 1):
        own_norms.append(_norm(checks.residual, {**inputs, ANSWER: own[ANSWER]}).expand(len(systems))[:, None])
    own_end, end = (_last_quarter(values).amin(-1) for values in (torch.cat(own_norms, -1), norms[systems]))
    status[systems[own_end < 0.1 * end].cpu().numpy()] = RunStatus.PRECISION


def _last_quarter(norms: Tensor) -> Tensor:
    return norms[:, -max(1, norms.shape[1] // 4) :]


def _blame_asymmetry(status: np.ndarray, found: Found, checks: Checks) -> None:
    """Say so where a method for symmetric matrices did not converge on one that is not."""
    blamed = (RunStatus.STAGNATED, RunStatus.PRECISION, RunStatus.DIVERGED)
    failed = np.array([each in blamed for each in status], dtype=bool)
    if not checks.definite or "A" not in found.inputs or not failed.any():
        return
    A = found.inputs["A"][:, 0]
    skew = (A - A.mT).abs().amax((-2, -1)) > torch.finfo(found.dtype).eps ** 0.5 * A.abs().amax((-2, -1))
    status[failed & skew.cpu().numpy()] = RunStatus.NOT_SYMMETRIC


def _blame_diagonal(status: np.ndarray, found: Found, checks: Checks) -> None:
    """Say so where a method for positive definite matrices left the numbers on one with a 0 on its diagonal."""
    if checks.definite and "A" in found.inputs:
        zero = (found.inputs["A"][:, 0].diagonal(dim1=-2, dim2=-1) == 0).any(-1).cpu().numpy()
        status[zero & (status == RunStatus.NONFINITE)] = RunStatus.NOT_POSITIVE


def _first_deviations(found: Found, deviations: Mapping[str, Deviation]) -> tuple[Tensor, Tensor]:
    """When a value first differs from the program's own, and when that first is not finite; infinity for never."""
    never = torch.full((len(found.answer),), torch.inf, dtype=torch.float64, device=found.answer.device)
    wrong, lost = never, never
    if not deviations:
        last = found.answer[:, -1:].flatten(1)
        return never, torch.where(torch.isfinite(last).all(-1), never, found.answer.shape[1] - 0.4)
    for name, deviation in deviations.items():
        times = event_times(name, deviation.error)
        if times.numel():
            wrong = torch.minimum(wrong, torch.where(deviation.wrong, times, torch.inf).amin(-1))
            lost = torch.minimum(lost, torch.where(deviation.lost, times + 0.1, torch.inf).amin(-1))
    return wrong, lost


def _first_broken(found: Found, checks: Checks, converged: Tensor, known: Tensor | None) -> Tensor:
    """When a promise is first broken, infinity for never: a promise on inputs alone before everything else.

    A promise broken after convergence is rounding noise.
    """
    shape = found.answer.shape[:2]
    first = torch.full(shape[:1], torch.inf, dtype=torch.float64, device=found.answer.device)
    before = torch.cumsum(converged, -1) == 0
    times = 0.25 + torch.arange(shape[1], dtype=torch.float64, device=first.device)
    of_inputs = {
        name
        for name in checks.promises.outputs
        if all(checks.promises.nodes[number][0] != "state" for number in checks.promises.below(name))
    }
    if known is not None:
        first = torch.where(known & before, times, torch.inf).amin(-1)
    for name, value in checks.promises({**found.inputs, **found.states}).items():
        axes = AXES[checks.promises.kinds[name]]
        negative = value < 0
        negative = negative.flatten(-axes).any(-1) if axes else negative
        if name in of_inputs:
            first = torch.where(negative.expand(shape).any(-1), -1.0, first)
        else:
            first = torch.minimum(first, torch.where(negative & before, times, torch.inf).amin(-1))
    return first
