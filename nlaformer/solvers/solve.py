"""nf.solve, nf.cg and nf.pcg: linear systems in, answers with a certificate out.

A solve is read, guided by a model where there is one, finished by conjugate gradients, GMRES or CGLS, and certified.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nlaformer.arrays import ArrayT, flushes_subnormals, full_precision, is_tensor, whole
from nlaformer.errors import OptionError
from nlaformer.solvers.answer import answer
from nlaformer.solvers.bicgstab import bicgstab
from nlaformer.solvers.chosen import Chosen
from nlaformer.solvers.conjugate_gradients import Direction, conjugate_gradients
from nlaformer.solvers.ending import finish
from nlaformer.solvers.lsmr import lsmr
from nlaformer.solvers.minimal_residuals import minimal_residuals
from nlaformer.solvers.models import refusal, warn_refused
from nlaformer.solvers.parse import Problem, read
from nlaformer.solvers.preconditioners import Identity, Preconditioner, learned, read_preconditioner
from nlaformer.solvers.progress import Progress
from nlaformer.solvers.request import Request
from nlaformer.solvers.result import Contribution, SolveResult, Status, warn_or_raise
from nlaformer.solvers.state import SolveState

if TYPE_CHECKING:
    from nlaformer.solvers.learned import DiagonalPlusRank
    from nlaformer.solvers.proposers import Proposer

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
    switch: bool = True,
) -> SolveResult[ArrayT]:
    """Solve A x = b, or, if A is not square, min |b - A x|.

    The method is what suits A: Cholesky's or LU, or an iteration with the preconditioner that is expected to take least
    time; ``print(result)`` says which, why, and what it cost to decide. CONVERGED means that |b - A x| <= max(rtol |b|,
    atol) is proven for the x that is returned: the residual is recomputed in float64 from that x, and a bound on its
    own rounding error is added. For least squares, where A is not square, it means that |A^T (b - A x)| <= max(rtol
    |A^T b|, atol) is; where b is orthogonal to all columns of A, so that A^T b is nothing but rounding errors, x is 0
    and the tolerance is their size. Products of a LinearOperator
    are taken as exact.

    Parameters
    ----------
    A : NumPy array, torch tensor (dense or sparse), SciPy sparse matrix or LinearOperator
        (..., n, n), or (..., m, n) for least squares. Whole numbers are read as float64; complex numbers are refused.
        A square LinearOperator, whose entries are not known, is taken to be symmetric; see ``method``.
    b : array
        (..., n), a vector for each matrix, or (..., n, k), k columns for each. The number of dimensions decides (one
        less than A's: vectors; as many: columns). One vector (n,) goes with every matrix. (For least squares, m for n.)
    model : model, path, name or function, optional
        A trained model or program, what ``nf.load`` takes, a compiled algorithm, or any function (A, b) -> x or
        iterates x_0, ..., x_T.
    x0 : array, optional
        The initial guess, in the shape of x; zero by default, and in the place of one so far off that |b - A x0| is
        beyond 1e16 times the size of b.
    M : optional
        Approximates the *inverse* of A, or, for least squares, of A^T A: "jacobi", "ssor", "ic", "amg" or, for GMRES,
        "ilu", a model that writes a preconditioner (or its folder or name), a diagonal, a matrix, a LinearOperator or a
        function of r. With an M, a symmetric A is solved by CG and another one by GMRES.
    rtol, atol : float
        The tolerance, applied to each right-hand side.
    maxiter : int, optional
        The maximum number of iterations of the classical method; 10 n by default. A model is called at most half as
        often.
    method : {"auto", "cg", "pcg", "gmres", "minres", "cgls", "lsmr", "guided", "warm-start", "refine", "flexible"}
        "cg" and "pcg" refuse an A that is not symmetric, "gmres" solves with any square A (a LinearOperator that is not
        symmetric, or a symmetric A that is not definite), "minres" with any symmetric A, "cgls" and "lsmr" are least
        squares with any A; "lsmr" keeps no directions. The others leave the choice to A; a square A that is padded with
        columns of zeros, as that of ``problems.LeastSquares``, is square.

        "guided" takes the steps that a network proposes in every loop, or those of a learned preconditioner, and goes
        on with CG where a plain step gains as much (docs/solve.md has the rule). The next three are for models that
        answer. "warm-start" starts from the model's answer if that lowers the residual. "refine" calls the model for
        each new residual, with an exact line search. "flexible" also makes its answers conjugate to each other
        (flexible CG). After all of them, the classical method finishes, with M if there is one. "auto" is for systems
        no larger than the model's: "guided" if the model proposes directions, else "flexible" if the first answer
        divides the residual by 10 and as long as each later one divides it by 3; a model that does not costs one
        product with A. Systems that do not converge with a model are solved again without it.
    callback : function, optional
        Called as callback(x) after every iteration, with a copy of x in the shape and kind of the result.
    check : {"warn", "raise", "ignore"}
        What happens if a system does not converge: a ConvergenceWarning, a ConvergenceError, or nothing.
    switch : bool
        False leaves every step of "guided" and of a learned M to the network, however bad they are.

    Returns
    -------
    SolveResult : x in the kind and precision of the input, the status, and what was measured; unpacks as x, info

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> A, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    >>> result = nf.solve(A, b, rtol=1e-10)
    >>> result.x.round(6), result.status.name, result.iterations
    (array([0.090909, 0.636364]), 'CONVERGED', 1)
    >>> result.method
    'Cholesky factorization, 1 iteration of conjugate gradients; chosen in ... s because A is dense'
    >>> x, info = nf.solve(A, b)
    >>> info
    0
    >>> nf.solve(-A, b, method="cg", check="ignore").status.name
    'NOT_SPD'
    >>> nf.solve(np.array([[1.0], [1.0], [1.0]]), np.array([1.0, 2.0, 6.0])).x  # the mean
    array([3.])
    """
    return _solve(Request(A, b, x0, M, rtol, atol, maxiter, callback, check, method, model=model, switch=switch))


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
    return _solve(Request(A, b, x0, M, rtol, atol, maxiter, callback, check, method, trajectory=trajectory))


def gmres(
    A: Any,
    b: ArrayT,
    x0: Any = None,
    *,
    M: Any = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
    callback: Callable[[Any], Any] | None = None,
    check: str = "warn",
) -> SolveResult[ArrayT]:
    """GMRES for any square A; M stands at the right, so that the residual is that of A x = b.

    It starts again after ``restart`` steps, 256 at most where nothing is said; ``maxiter`` counts steps.

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> nf.gmres(np.array([[0.0, 2.0], [-1.0, 1.0]]), np.array([2.0, 0.0])).x.round(6)
    array([1., 1.])
    """
    return _solve(Request(A, b, x0, M, rtol, atol, maxiter, callback, check, "gmres", restart=restart))


def minres(
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
) -> SolveResult[ArrayT]:
    """MINRES for a symmetric A, definite or not; M must be positive definite.

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> result = nf.minres(np.diag([1.0, -2.0, 3.0]), np.ones(3))
    >>> result.x.round(6), result.iterations
    (array([ 1.      , -0.5     ,  0.333333]), 3)
    """
    return _solve(Request(A, b, x0, M, rtol, atol, maxiter, callback, check, "minres"))


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
    switch: bool = True,
) -> SolveResult[ArrayT]:
    """Preconditioned conjugate gradients; M approximates the *inverse* of A, as in SciPy.

    With a learned M, plain CG takes over where it gains as much, unless ``switch`` is False (see ``solve``).

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> nf.pcg(np.diag([1.0, 10.0, 100.0]), np.ones(3)).iterations
    1
    """
    return _solve(
        Request(A, b, x0, M, rtol, atol, maxiter, callback, check, "pcg", trajectory=trajectory, switch=switch)
    )


def _solve(request: Request) -> SolveResult:
    begun = time.perf_counter()
    request.check_options()
    if (M := learned(request.preconditioner)) is not None:
        request = replace(request, M=M)
    refused = ""
    if request.method == "auto" and request.model is not None and (refused := refusal(request.model, request.A)):
        warn_refused(refused, above=3)
        request = replace(request, model=None, switch=True)  # which had been the model's
    modelled = request.model is not None or M is not None
    # As IEEE says, and without warnings of single operations, whatever NumPy or torch was set to.
    with np.errstate(all="ignore"):
        if modelled or is_tensor(request.A) or is_tensor(request.b) or flushes_subnormals():
            import torch

            with torch.no_grad(), full_precision():
                result = _solved(request, modelled, begun)
        else:
            result = _solved(request, modelled, begun)
    if refused:
        none: Any = 0 * result.iterations
        method = f"{result.method}; no answer of the model was used"
        result = replace(result, method=method, model=Contribution(none, none, none + 1.0, (refused,)))
    # The user's line is above this one and solve.
    warn_or_raise(result, request.check, above=3)
    return result


def _solved(request: Request, modelled: bool, begun: float) -> SolveResult:
    problem = read(request.A, request.b, request.x0, request.rtol, request.atol, request.method, modelled)
    n = max(problem.unknowns, problem.b.shape[-1])
    maxiter = 10 * n if request.maxiter is None else min(whole("maxiter", request.maxiter, 0), _ENOUGH)
    chosen = _chosen(request, problem)
    if chosen is not None and not modelled:
        problem = chosen.problem
    M = read_preconditioner(request.preconditioner, problem)
    state = SolveState(problem, maxiter, request.callback, request.trajectory)
    proposer, M = _proposer(request, problem, M)
    if not request.switch and (proposer is None or not proposer.guided):
        raise OptionError("switch=False has no effect: nothing here proposes directions; omit it")
    written = 0.0 if proposer is None else proposer.seconds  # that the model took to write a preconditioner
    setup_seconds = time.perf_counter() - begun - written
    guidance = None
    try:
        if proposer is not None:
            from nlaformer.solvers.guided import guide

            method = (
                request.method if request.model is not None else "guided"
            )  # a learned M is used as it was asked for
            guidance = guide(state, proposer, method, M, request.switch)
            used = bool(guidance.directions or guidance.accepted.any())
            if problem.single and not used:
                state, M, chosen = _alone(request, state, M)  # as if there had been no model, to the last bit
            else:
                if used or chosen is None:
                    _go_on(request, state, M, guidance.directions)
                guidance.undo_failures(others=chosen is not None)
        if chosen is not None:
            chosen.run(state, lambda method, M: _iterate(method, state, M, []))
        elif guidance is None or state.going():
            _go_on(request, state, M, [])
    except KeyboardInterrupt:
        state.end(state.going(), Status.INTERRUPTED)
    finish(state)
    return answer(request, state, guidance, chosen, begun, setup_seconds)


def _chosen(request: Request, problem: Problem) -> Chosen | None:
    """The methods that suit A, where the method is left to it and its entries are known."""
    return Chosen(problem) if request.chooses and Chosen.may(problem) else None


def _alone(request: Request, state: SolveState, M: Preconditioner) -> tuple[SolveState, Preconditioner, Chosen | None]:
    """The state of a system that a model was shown as that of a system alone, with the products it took so far."""
    problem = read(request.A, request.b, request.x0, request.rtol, request.atol, request.method)
    chosen = _chosen(request, problem)
    problem = problem if chosen is None else chosen.problem
    fresh = SolveState(problem, state.maxiter, request.callback, request.trajectory)
    fresh.lanes[0].matvecs = state.lanes[0].matvecs
    return fresh, M if isinstance(M, Identity) else read_preconditioner(request.preconditioner, problem), chosen


def _go_on(request: Request, state: SolveState, M: Preconditioner, directions: list[Direction]) -> None:
    """The classical methods, each for its lanes, after the directions of a model."""
    _iterate(request.method, state, M, directions, request.restart)


def _iterate(
    method: str, state: SolveState, M: Preconditioner, directions: list[Direction], restart: int | None = None
) -> None:
    progress = Progress()
    try:
        if method == "bicgstab":
            bicgstab(state, M, progress)
            return
        if method == "lsmr" and (adjoint := state.problem.adjoint) is not None:
            lsmr(state, adjoint, progress)
            return
        conjugate_gradients(state, M, directions, progress)
        minimal_residuals(state, M, directions, progress, restart, method == "minres")
    finally:
        progress.close()


def _proposer(request: Request, problem: Problem, M: Preconditioner) -> tuple[Proposer | None, Preconditioner]:
    """What guides the solve, and the preconditioner of the plain steps: a learned M guides if nothing else does."""
    if request.model is not None:
        from nlaformer.solvers.proposers import read_model

        return read_model(request.model, problem), M
    if learned(request.preconditioner) is not None:
        from nlaformer.solvers.proposers import Preconditioned

        return Preconditioned(cast("DiagonalPlusRank", M), problem), Identity()
    if request.method == "guided":
        raise OptionError("the method guided needs a model, or a learned M, and there is none; give one, or use auto")
    return None, M
