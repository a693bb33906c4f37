"""nf.solve, nf.cg and nf.pcg: systems in, answers with a certificate out."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import give, whole
from nlaformer.errors import ConvergenceError, ConvergenceWarning, OptionError, unknown_name
from nlaformer.learn.teachers import Trajectory
from nlaformer.prompt import scale
from nlaformer.solvers.certificate import norm_of
from nlaformer.solvers.conjugate import conjugate_gradients
from nlaformer.solvers.learned import Learned
from nlaformer.solvers.methods import POLICIES, Use, apply_model
from nlaformer.solvers.parse import read, scale_towards
from nlaformer.solvers.preconditioners import read_preconditioner
from nlaformer.solvers.progress import Progress
from nlaformer.solvers.result import Contribution, SolveResult, Status

METHODS = ("cg", "pcg", *POLICIES)
CHECKS = ("warn", "raise", "ignore")
_ENOUGH = 2**60  # iterations that no solve comes to; counts stay within int64


def solve(
    A: Any,
    b: Any,
    *,
    model: Any = None,
    x0: Any = None,
    M: Any = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    method: str = "auto",
    callback: Callable[[Any], Any] | None = None,
    check: str = "warn",
) -> SolveResult:
    """Solve A x = b for symmetric positive definite A.

    A right-hand side is CONVERGED if and only if |b - A x| <= max(rtol |b|, atol) is proven for the x that is returned:
    the residual is recomputed in float64 from that x, and a bound on its own rounding error is added.

    Parameters
    ----------
    A : NumPy array, torch tensor (dense or sparse), SciPy sparse matrix or LinearOperator
        (..., n, n), symmetric positive definite. Whole numbers are read as float64; complex numbers are refused.
    b : array
        (..., n), a vector for each matrix, or (..., n, k), k columns for each; which of the two, the number of
        dimensions says (one less than A's: vectors; as many: columns). One vector (n,) goes with every matrix.
    model : model, path, name or function, optional
        A trained model, what ``nf.load`` takes, or any function (A, b) -> x or iterates x_0, ..., x_T.
    x0 : array, optional
        Where to begin, in the shape of b; zero by default.
    M : optional
        Approximates the *inverse* of A: "jacobi", a diagonal, a matrix, a LinearOperator or a function of r.
    rtol, atol : float
        The tolerance, for every right-hand side on its own.
    maxiter : int, optional
        The most iterations of the classical method; 10 n by default. A model is asked at most half as often.
    method : {"auto", "cg", "pcg", "warm-start", "refine", "flexible"}
        "warm-start" begins at the model's answer if that lowers the residual. "refine" asks the model again for each
        residual, with an exact line search. "flexible" also makes its answers conjugate to each other (flexible CG).
        All three leave what remains to CG, or PCG where there is an M. "auto" is "flexible" for systems no larger
        than the model's, if the first answer divides the residual by 10 and for as long as the others divide it by 3;
        a model that does not costs one product with A. Without a model it is "pcg" where there is an M, else "cg".
        Whatever does not converge with the help of a model is done again without.
    callback : function, optional
        Called as callback(x) after every iteration, with a copy of x in the shape and kind of the result.
    check : {"warn", "raise", "ignore"}
        What to do when a system did not converge: a ConvergenceWarning, a ConvergenceError, or nothing.

    Returns
    -------
    SolveResult : x in the kind and precision that came in, the status, and what was measured; unpacks as x, info

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> A, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    >>> result = nf.solve(A, b, rtol=1e-10)
    >>> result.x.round(6), result.status.name, result.iterations
    (array([0.090909, 0.636364]), 'CONVERGED', 2)
    >>> x, info = nf.solve(A, b)
    >>> info
    0
    >>> nf.solve(-A, b, check="ignore").status.name
    'NOT_SPD'
    """
    return _solve(A, b, model, x0, M, rtol, atol, maxiter, method, callback, check, False)


def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    M: Any = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callable[[Any], Any] | None = None,
    check: str = "warn",
    trajectory: bool = False,
) -> SolveResult:
    """Conjugate gradients: ``solve`` without a model, with SciPy's signature.

    With ``trajectory``, ``result.trajectory`` keeps x_k, r_k and d_k of every step, each (..., K + 1, n); a system that
    has ended stays as it is. With M, this is ``pcg``.

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> result = nf.cg(np.diag([1.0, 2.0, 3.0]), np.ones(3), trajectory=True)
    >>> result.iterations, result.trajectory.d.shape
    (3, (4, 3))
    """
    method = "cg" if M is None else "pcg"
    return _solve(A, b, None, x0, M, rtol, atol, maxiter, method, callback, check, trajectory)


def pcg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    M: Any = "jacobi",
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callable[[Any], Any] | None = None,
    check: str = "warn",
    trajectory: bool = False,
) -> SolveResult:
    """Preconditioned conjugate gradients; M approximates the *inverse* of A, as in SciPy.

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> nf.pcg(np.diag([1.0, 10.0, 100.0]), np.ones(3)).iterations
    1
    """
    return _solve(A, b, None, x0, M, rtol, atol, maxiter, "pcg", callback, check, trajectory)


@torch.no_grad()
def _solve(
    A: Any,
    b: Any,
    model: Any,
    x0: Any,
    M: Any,
    rtol: float,
    atol: float,
    maxiter: int | None,
    method: str,
    callback: Callable[[Any], Any] | None,
    check: str,
    trajectory: bool,
) -> SolveResult:
    begun = time.perf_counter()
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if check not in CHECKS:
        raise unknown_name("check", check, CHECKS)
    if method == "cg" and M is not None:
        raise OptionError('method="cg" takes no preconditioner M; use method="pcg" or leave M out')
    if model is None and method in POLICIES and method != "auto":
        raise OptionError(f"method={method!r} needs a model; pass model=, or use method='auto'")
    if model is not None and method not in POLICIES:
        raise OptionError(f"method={method!r} takes no model; use one of {', '.join(POLICIES)}")
    if callback is not None and not callable(callback):
        raise OptionError(f"callback is a {type(callback).__name__}; expected a function of x")
    problem = read(A, b, x0, rtol, atol)
    steps = _steps(maxiter, problem.b.shape[-1])
    M = "jacobi" if method == "pcg" and M is None else M
    preconditioner = read_preconditioner(M, problem)
    learned = None if model is None else Learned(model, problem)
    if learned is not None and method != "auto" and not learned.possible:
        raise OptionError(f"method={method!r} needs the model, but {learned.unfit}")
    progress = Progress(problem, steps, callback, trajectory)
    _first_look(progress)
    use = None
    if learned is not None:
        unfit = learned.unfit if method == "auto" else ""
        use = apply_model(progress, learned, POLICIES[method], unfit)
    conjugate_gradients(progress, preconditioner, use.directions if use else [])
    if use is not None:
        _second_chance(progress, use)
        conjugate_gradients(progress, preconditioner, [])
    progress.finish()
    classical = "conjugate gradients" if M is None else "preconditioned conjugate gradients"
    words = classical if learned is None else f"{method} with the model, then {classical}"
    jacobi = problem.exponent_a if isinstance(M, str) else None
    result = _result(progress, words, learned, use, begun, jacobi)
    _report(result, check)
    return result


def _steps(maxiter: Any, n: int) -> int:
    return 10 * n if maxiter is None else min(whole("maxiter", maxiter, 0), _ENOUGH)


def _first_look(progress: Progress) -> None:
    """End the lanes whose x0 is good enough, then those whose matrix is seen to be unfit."""
    problem, lanes = progress.problem, progress.going()
    claims = lanes[norm_of(progress.r[lanes]) <= problem.tolerance[lanes]]
    if len(claims):
        progress.judge(claims)
    for lane in progress.going().tolist():
        if problem.complaint[lane]:
            progress.end([lane], Status.NOT_SPD, problem.complaint[lane])


def _second_chance(progress: Progress, use: Use) -> None:
    """Put the lanes that did not converge after answers of the model were used back to their beginning."""
    settled = (Status.CONVERGED, Status.PRECISION)
    lanes = [lane for lane in use.accepted.nonzero()[:, 0].tolist() if progress.status[lane] not in settled]
    progress.start_again(torch.tensor(lanes, dtype=torch.long, device=progress.x.device))


def _result(
    progress: Progress, method: str, model: Learned | None, use: Use | None, begun: float, jacobi: Tensor | None
) -> SolveResult:
    problem = progress.problem
    contribution, model_seconds = None, 0.0
    if model is not None and use is not None:
        asked, accepted, reduction = map(problem.numbers, (model.applications, use.accepted, use.reduction))
        reasons = tuple(reason for reason, count in model.refused.most_common() if count)
        contribution, model_seconds = Contribution(asked, accepted, reduction, reasons), model.seconds
    exact = problem.unscaled(progress.x)
    statuses = np.empty(len(exact), dtype=object)
    statuses[:] = progress.status

    def in_units(values: Tensor, towards: float) -> Any:
        return problem.numbers(scale_towards(values, problem.exponent_b, towards))

    return SolveResult(
        x=problem.vectors(exact),
        x64=problem.vectors(exact, torch.float64),
        status=progress.status[0] if problem.single else statuses.reshape(problem.shape),
        detail=progress.detail[0] if problem.single else np.array(progress.detail).reshape(problem.shape),
        iterations=problem.numbers(progress.iterations),
        residuals=progress.residuals()[0] if problem.single else problem.numbers(progress.residuals()),
        residual_norm=in_units(progress.norm, math.inf),
        residual_bound=in_units(progress.bound, math.inf),
        tolerance=in_units(problem.tolerance, 0.0),
        matvecs=problem.numbers(progress.matvecs),
        method=method,
        model=contribution,
        model_seconds=model_seconds,
        classical_seconds=time.perf_counter() - begun - model_seconds,
        trajectory=_trajectory(progress, jacobi),
    )


def _trajectory(progress: Progress, jacobi: Tensor | None) -> Trajectory | None:
    """The kept steps in the user's units, (..., K + 1, n); d is in those of M r."""
    if not progress.trajectory:
        return None
    problem = progress.problem
    of_r = problem.exponent_b
    units = (of_r - problem.exponent_a, of_r, of_r if jacobi is None else of_r - jacobi)
    parts = []
    for steps, e in zip(zip(*progress.trajectory, strict=True), units, strict=True):
        together = scale(torch.stack(steps, -2), e[:, None, None])
        parts.append(give(together.reshape(*problem.shape, *together.shape[1:]), problem.kind))
    return Trajectory(*parts)


def _report(result: SolveResult, check: str) -> None:
    """Warn or raise where a system did not converge."""
    if result.converged or check == "ignore":
        return
    message = result._status_line()
    if not isinstance(result.status, Status):
        seen = {status for status in np.ravel(result.status) if status is not Status.CONVERGED}
        message += "".join(f"\n{status}" for status in Status if status in seen)
    if check == "raise":
        raise ConvergenceError(message, result)
    # The user's line stands above _report, _solve, its decorator and solve.
    warnings.warn(message, ConvergenceWarning, stacklevel=5)
