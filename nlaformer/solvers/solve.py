"""nf.solve, nf.cg and nf.pcg: linear systems in, answers with a certificate out.

A solve is read, guided by a model where there is one, finished by conjugate gradients, and certified.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import ArrayT, full_precision, give, whole
from nlaformer.errors import ConvergenceError, ConvergenceWarning, OptionError, unknown_name
from nlaformer.prompt import scale
from nlaformer.solvers.conjugate import conjugate_gradients
from nlaformer.solvers.guided import POLICIES, Guidance, guide
from nlaformer.solvers.parse import read, scale_towards
from nlaformer.solvers.preconditioners import read_preconditioner
from nlaformer.solvers.result import KeptSteps, SolveResult
from nlaformer.solvers.state import SolveState

_METHODS = ("cg", "pcg", *POLICIES)
_CHECKS = ("warn", "raise", "ignore")
_ENOUGH = 2**60  # more iterations than any solve takes; counts stay within int64


def solve(
    A: Any,
    b: ArrayT,
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
) -> SolveResult[ArrayT]:
    """Solve A x = b for symmetric positive definite A.

    CONVERGED means that |b - A x| <= max(rtol |b|, atol) is proven for the x that is returned: the residual is
    recomputed in float64 from that x, and a bound on its own rounding error is added. Products of a LinearOperator are
    taken as exact.

    Parameters
    ----------
    A : NumPy array, torch tensor (dense or sparse), SciPy sparse matrix or LinearOperator
        (..., n, n), symmetric positive definite. Whole numbers are read as float64; complex numbers are refused.
    b : array
        (..., n), a vector for each matrix, or (..., n, k), k columns for each. The number of dimensions decides (one
        less than A's: vectors; as many: columns). One vector (n,) goes with every matrix.
    model : model, path, name or function, optional
        A trained model, what ``nf.load`` takes, or any function (A, b) -> x or iterates x_0, ..., x_T.
    x0 : array, optional
        The initial guess, in the shape of b; zero by default.
    M : optional
        Approximates the *inverse* of A: "jacobi", a diagonal, a matrix, a LinearOperator or a function of r.
    rtol, atol : float
        The tolerance, applied to each right-hand side.
    maxiter : int, optional
        The maximum number of iterations of the classical method; 10 n by default. A model is called at most half as
        often.
    method : {"auto", "cg", "pcg", "warm-start", "refine", "flexible"}
        "warm-start" starts from the model's answer if that lowers the residual. "refine" calls the model for each new
        residual, with an exact line search. "flexible" also makes its answers conjugate to each other (flexible CG).
        After all three, CG finishes, or PCG if there is an M. "auto" is "flexible" for systems no larger than the
        model's, if the first answer divides the residual by 10 and as long as each later one divides it by 3; a model
        that does not costs one product with A. Without a model it is "pcg" if there is an M, else "cg". Systems that do
        not converge with a model are solved again without it.
    callback : function, optional
        Called as callback(x) after every iteration, with a copy of x in the shape and kind of the result.
    check : {"warn", "raise", "ignore"}
        What happens if a system does not converge: a ConvergenceWarning, a ConvergenceError, or nothing.

    Returns
    -------
    SolveResult : x in the kind and precision of the input, the status, and what was measured; unpacks as x, info

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
    return _solve(_Request(A, b, x0, M, rtol, atol, maxiter, callback, check, method, model=model))


def cg(
    A: Any,
    b: ArrayT,
    x0: Any = None,
    *,
    M: Any = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callable[[Any], Any] | None = None,
    check: str = "warn",
    trajectory: bool = False,
) -> SolveResult[ArrayT]:
    """Conjugate gradients: ``solve`` without a model, with SciPy's signature.

    With ``trajectory``, ``result.trajectory`` holds x_k, r_k and d_k of every step, each (..., K + 1, n); a system that
    has ended keeps its last values. With M, this is ``pcg``.

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> result = nf.cg(np.diag([1.0, 2.0, 3.0]), np.ones(3), trajectory=True)
    >>> result.iterations, result.trajectory.d.shape
    (3, (4, 3))
    """
    method = "cg" if M is None else "pcg"
    return _solve(_Request(A, b, x0, M, rtol, atol, maxiter, callback, check, method, trajectory=trajectory))


def pcg(
    A: Any,
    b: ArrayT,
    x0: Any = None,
    *,
    M: Any = "jacobi",
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callable[[Any], Any] | None = None,
    check: str = "warn",
    trajectory: bool = False,
) -> SolveResult[ArrayT]:
    """Preconditioned conjugate gradients; M approximates the *inverse* of A, as in SciPy.

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> nf.pcg(np.diag([1.0, 10.0, 100.0]), np.ones(3)).iterations
    1
    """
    return _solve(_Request(A, b, x0, M, rtol, atol, maxiter, callback, check, "pcg", trajectory=trajectory))


@dataclass(frozen=True)
class _Request:
    """The arguments of a solve as they were given, in the order of ``cg``."""

    A: Any
    b: Any
    x0: Any
    M: Any
    rtol: float
    atol: float
    maxiter: int | None
    callback: Callable[[Any], Any] | None
    check: str
    method: str
    model: Any = None
    trajectory: bool = False

    def check_options(self) -> None:
        """Refuse options that do not exist or contradict each other, in words that suit the command line too."""
        if self.method not in _METHODS:
            raise unknown_name("method", self.method, _METHODS)
        if self.check not in _CHECKS:
            raise unknown_name("check", self.check, _CHECKS)
        if self.method == "cg" and self.M is not None:
            raise OptionError("the method cg takes no preconditioner M; use pcg, or omit M")
        if self.model is None and self.method in POLICIES and self.method != "auto":
            raise OptionError(f"the method {self.method} needs a model, and none was given; give one, or use auto")
        if self.model is not None and self.method not in POLICIES:
            raise OptionError(f"the method {self.method} takes no model; use one of {', '.join(POLICIES)}, or omit it")
        if self.callback is not None and not callable(self.callback):
            raise OptionError(f"callback is a {type(self.callback).__name__}; expected a function of x")

    @property
    def preconditioner(self) -> Any:
        """M; Jacobi for pcg without one."""
        return "jacobi" if self.method == "pcg" and self.M is None else self.M

    @property
    def in_words(self) -> str:
        """What is done."""
        classical = "conjugate gradients" if self.preconditioner is None else "preconditioned conjugate gradients"
        return classical if self.model is None else f"{self.method} with the model, then {classical}"


@torch.no_grad()
@full_precision()
def _solve(request: _Request) -> SolveResult:
    begun = time.perf_counter()
    request.check_options()
    problem = read(request.A, request.b, request.x0, request.rtol, request.atol)
    n = problem.b.shape[-1]
    maxiter = 10 * n if request.maxiter is None else min(whole("maxiter", request.maxiter, 0), _ENOUGH)
    M = read_preconditioner(request.preconditioner, problem)
    state = SolveState(problem, maxiter, request.callback, request.trajectory)
    guidance = None
    if request.model is not None:
        guidance = guide(state, request.model, request.method)
        conjugate_gradients(state, M, guidance.directions)
        guidance.undo_failures()
    conjugate_gradients(state, M, [])
    state.finish()
    result = _result(request, state, guidance, begun)
    _warn_or_raise(result, request.check)
    return result


def _result(request: _Request, state: SolveState, guidance: Guidance | None, begun: float) -> SolveResult:
    problem = state.problem
    unscaled = problem.unscaled(state.x)
    model_seconds = 0.0 if guidance is None else guidance.proposer.seconds

    def in_units(values: Tensor, towards: float) -> Any:
        return problem.numbers(scale_towards(values, problem.exponent_b, towards))

    return SolveResult(
        x=problem.vectors(unscaled),
        x64=problem.vectors(unscaled, torch.float64),
        status=problem.numbers(np.array(state.status, dtype=object)),
        detail=problem.numbers(state.detail),
        iterations=problem.numbers(state.iterations),
        residuals=problem.numbers(state.residuals()),
        residual_norm=in_units(state.norm, math.inf),
        residual_bound=in_units(state.bound, math.inf),
        tolerance=in_units(problem.tolerance, 0.0),
        matvecs=problem.numbers(state.matvecs),
        method=request.in_words,
        model=None if guidance is None else guidance.contribution(),
        model_seconds=model_seconds,
        classical_seconds=time.perf_counter() - begun - model_seconds,
        trajectory=_trajectory(state, jacobi=isinstance(request.preconditioner, str)),
    )


def _trajectory(state: SolveState, jacobi: bool) -> KeptSteps | None:
    """The kept steps in the user's units; d is in those of M r."""
    if not state.trajectory:
        return None
    problem = state.problem
    of_r = problem.exponent_b
    of_x = of_r - problem.exponent_a
    parts = []
    for steps, e in zip(zip(*state.trajectory, strict=True), (of_x, of_r, of_x if jacobi else of_r), strict=True):
        together = scale(torch.stack(steps, -2), e[:, None, None])
        parts.append(give(together.reshape(*problem.shape, *together.shape[1:]), problem.kind))
    return KeptSteps(*parts)


def _warn_or_raise(result: SolveResult, check: str) -> None:
    """Report that a system did not converge."""
    if result.converged or check == "ignore":
        return
    message = result.explain()
    if check == "raise":
        raise ConvergenceError(message, result)
    # The user's line is above _warn_or_raise, _solve, its two decorators and solve.
    warnings.warn(message, ConvergenceWarning, stacklevel=6)
