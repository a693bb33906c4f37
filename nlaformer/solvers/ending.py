"""How a solve ends: lanes that did not converge are certified too, at the best iterate there is."""

from __future__ import annotations

import math

from nlaformer.solvers.operators import ImplicitOperator
from nlaformer.solvers.result import Status
from nlaformer.solvers.state import SolveState


def finish(state: SolveState) -> None:
    """Certify the lanes that ended without an answer as well, at the iterate of the smallest residual.

    Those that hold after all are converged.
    """
    form, problem = state.form, state.problem
    finite = form.list(problem.finite)
    ends = (Status.CONVERGED, Status.PRECISION)
    lanes = [k for k, lane in enumerate(state.lanes) if lane.status not in ends and finite[k]]
    if not lanes:
        return
    before = {k: (state.lanes[k].status, state.lanes[k].detail) for k in lanes}
    held = form.list(state.held)
    if kept := [k for k in lanes if held[k] < math.inf and not state.lanes[k].running < held[k]]:
        at = form.at(kept)
        state.x[at] = state.best[at]
    _, found = state.judge(lanes)
    # Running residuals may have strayed: where the true one is larger than it was, the start is better.
    norms = {k: own.norm for k, own in zip(lanes, found, strict=True)}
    going = [k for k in lanes if state.lanes[k].status is not Status.CONVERGED]
    if worse := [k for k in going if not norms[k] <= state.start[3][k] * (1 + 1e-10)]:
        start, at = state.start[0], form.at(worse)
        state.x[at] = start if isinstance(start, float) else start[at]
        _, found = state.judge(lanes)
    for k, own in zip(lanes, found, strict=True):
        lane, at = state.lanes[k], form.at([k])
        if before[k][0] in (Status.MAXITER, Status.STAGNATED) and not own.holds and own.bound <= lane.tolerance:
            said = "the residual is proven to meet the tolerance, but other evaluations in float64 may not show it"
            lane.end(Status.STAGNATED, said)
        if not math.isfinite(form.list(form.peak(problem.unscaled(state.x[at], at)))[0]):
            lane.end(Status.NONFINITE, "the answer is beyond the largest float64")
        elif own.holds and lane.status is not Status.CONVERGED:
            state.end_unrounded([k])
    unclear = (Status.MAXITER, Status.STAGNATED, Status.NOT_SPD, Status.INTERRUPTED)
    state.end_affine([k for k in lanes if state.lanes[k].status in unclear])
    _tell_padding(state, [k for k in lanes if state.lanes[k].status is Status.STAGNATED])
    for k, (status, detail) in before.items():  # such products prove nothing, whatever the certificate says
        if status is Status.NOT_LINEAR:
            state.lanes[k].end(status, detail)


def _tell_padding(state: SolveState, lanes: list[int]) -> None:
    """Say that A has columns of zeros, where these are not known to be least squares."""
    lanes = [lane for lane in lanes if not state.lanes[lane].detail]
    if not lanes or state.problem.adjoint is not None or isinstance(state.problem.A, ImplicitOperator):
        return
    at = state.form.at(lanes)
    empty = (state.problem.A.take(at).transposed.absolute(0 * state.problem.b[at] + 1) == 0).any(-1)
    for lane in (lanes[k] for k in state.form.positions(empty)):
        state.lanes[lane].detail = 'A has a column of zeros; if b - A x is to be as small as it can, use method="cgls"'
