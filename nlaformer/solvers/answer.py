"""What a solve returns, in the units and the shape of the user, and what was done in words."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from nlaformer.solvers.arithmetic import namespace, scale
from nlaformer.solvers.chosen import Chosen
from nlaformer.solvers.parse import scale_towards
from nlaformer.solvers.preconditioners import learned
from nlaformer.solvers.request import Request
from nlaformer.solvers.result import KeptSteps, SolveResult
from nlaformer.solvers.state import SolveState

if TYPE_CHECKING:
    from nlaformer.solvers.guided import Guidance


def answer(
    request: Request,
    state: SolveState,
    guidance: Guidance | None,
    chosen: Chosen | None,
    begun: float,
    setup_seconds: float,
) -> SolveResult:
    """What a solve returns."""
    problem = state.problem
    unscaled = problem.unscaled(state.x)
    model_seconds = 0.0 if guidance is None else guidance.proposer.seconds

    def told(what: str, towards: float | None = None) -> Any:
        """A number of every lane, of a residual in the user's units."""
        values = [getattr(lane, what) for lane in state.lanes]
        if towards is not None and not isinstance(problem.exponent, int):
            values = problem.form.list(scale_towards(problem.form.numbers(values), problem.exponent, towards))
        elif towards is not None and problem.exponent:
            values = [scale_towards(value, problem.exponent, towards) for value in values]
        return problem.numbers(values)

    seconds = time.perf_counter() - begun
    return SolveResult(
        x=problem.vectors(unscaled),
        x64=problem.vectors(unscaled, "float64"),
        status=told("status"),
        detail=told("detail"),
        iterations=told("iterations"),
        residuals=problem.numbers(state.residuals()),
        residual_norm=told("norm", math.inf),
        residual_bound=told("bound", math.inf),
        tolerance=told("tolerance", 0.0),
        evaluations=told("matvecs"),
        method=_in_words(request, state, guidance, chosen),
        model=None if guidance is None else guidance.contribution(),
        model_seconds=model_seconds,
        setup_seconds=setup_seconds,
        classical_seconds=seconds - setup_seconds - model_seconds,
        seconds=seconds,
        trajectory=_trajectory(request, state) if state.trajectory else None,
        least_squares=problem.adjoint is not None,
    )


_STEPS = {
    "auto": "flexible {} with the model",
    "flexible": "flexible {} with the model",
    "guided": "{} guided by the model",
    "warm-start": "a warm start from the model's answer",
    "refine": "refinement with the model",
}


def _in_words(request: Request, state: SolveState, guidance: Guidance | None, chosen: Chosen | None) -> str:
    """What was done, in the order of the steps."""
    minimal, square = state.problem.minimal, "MINRES" if request.method == "minres" else "GMRES"
    kinds = [] if all(minimal) else ["conjugate gradients"]
    if any(minimal):
        kinds.append(square if state.problem.adjoint is None else "LSMR" if request.method == "lsmr" else "CGLS")
    classical = " or ".join(kinds)
    writes = guidance is not None and request.model is None  # a preconditioner
    if request.preconditioner is not None and not writes:
        classical = f"preconditioned {classical}"
    if chosen is not None and (guidance is None or chosen.tried):
        classical = chosen.in_words()
    if guidance is None:
        return classical
    used = int(guidance.accepted.sum())
    if not used:
        return f"{classical}; no answer of the model was used"
    steps = _STEPS["guided" if guidance.proposer.guided else request.method].format(" or ".join(kinds))
    if writes:
        steps = f"{' or '.join(kinds)} preconditioned by the model"
    return steps if used == sum(lane.iterations for lane in state.lanes) else f"{steps}, then {classical}"


def _trajectory(request: Request, state: SolveState) -> KeptSteps:
    """The kept steps in the user's units; d is in those of M r."""
    problem, M = state.problem, request.preconditioner
    like_x = isinstance(M, str) or learned(M) is not None  # of a user's M it is unknown
    of_r = problem.exponent_b
    of_x = of_r - problem.exponent_a
    parts = []
    for steps, e in zip(zip(*state.trajectory, strict=True), (of_x, of_r, of_x if like_x else of_r), strict=True):
        rows = e if isinstance(e, int) else e[:, None, None]
        together = scale(namespace(steps[0]).stack(steps, axis=-2), rows)
        parts.append(problem.given(together.reshape(*problem.shape, *together.shape[-2:])))
    return KeptSteps(*parts)
