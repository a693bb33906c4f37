r"""nf.eigenpair: an extremal eigenpair of a symmetric matrix, with an enclosure of the eigenvalue.

The best vector of a growing subspace (Rayleigh and Ritz) gives theta and v; the residual r = A v - theta v, perhaps
preconditioned, is the next direction. Without M this is Lanczos' method with full orthogonalization; with M,
Davidson's. A full subspace is replaced by its best vectors (a thick restart). A step costs one product with A.

For symmetric A there is an eigenvalue lambda with (Krylov, Weinstein)

    |lambda - theta| <= |A v - theta v| / |v|,

for any theta and v. The right side is bounded with its rounding errors (``certificate.certify_eigenpair``) for the
theta and v that are returned. Nothing in it says which eigenvalue lambda is: only that the smallest one of A is at most
theta + bound, and the largest one at least theta - bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import ArrayT, FloatArray, full_precision, give, is_tensor, whole
from nlaformer.errors import OptionError, ShapeError, unknown_name
from nlaformer.program.data import ProgramGraph
from nlaformer.solvers.arithmetic import cast, scale, to_numpy, to_torch
from nlaformer.solvers.inputs import read_matrix, read_real, read_tolerance, result_dtype
from nlaformer.solvers.lanczos import EigenSearch
from nlaformer.solvers.models import loaded, program_of, residual_of
from nlaformer.solvers.operators import ImplicitOperator
from nlaformer.solvers.parse import Problem, read, scale_towards
from nlaformer.solvers.preconditioners import Identity, learned, read_preconditioner
from nlaformer.solvers.result import Outcome, Status, check_reporting, warn_or_raise
from nlaformer.solvers.runner import Runner, read_runner
from nlaformer.solvers.search import search_with
from nlaformer.solvers.sparse import is_sparse

_ENDS = ("smallest", "largest")


@dataclass(frozen=True, eq=False)
class EigenResult(Outcome, Generic[ArrayT]):
    """An eigenvalue and its eigenvector, with their certificate; unpacks as ``value, vector``.

    ``residual_norm``, ``residual_bound`` and ``tolerance`` are of |A v - theta v| / |v|. ``evaluations`` counts
    products with A.

    Attributes
    ----------
    value : theta
    vector : v, near length 1, in the kind and precision of A; without convergence, that of the smallest residual
    vector64 : v before it was rounded to that precision
    """

    value: float
    vector: ArrayT
    vector64: ArrayT

    @property
    def enclosure(self) -> tuple[float, float]:
        """Numbers between which an eigenvalue of A lies, proven if A is symmetric, converged or not.

        They are infinite where A has turned out not to be symmetric.
        """
        known, bound = self.status not in (Status.NOT_SYMMETRIC, Status.NOT_LINEAR), float(self.residual_bound)
        if not known or not math.isfinite(self.value + bound):
            return -math.inf, math.inf
        below, above = self.value - bound, self.value + bound
        return math.nextafter(below, -math.inf), math.nextafter(above, math.inf)

    def __iter__(self) -> Iterator[float | ArrayT]:
        return iter((self.value, self.vector))

    def __repr__(self) -> str:
        return f"<EigenResult: {self.value:.6g} +- {self.residual_bound:.1e}, {self.explain()}>"


@torch.no_grad()
@full_precision()
def eigenpair(
    A: ArrayT,
    *,
    which: str = "smallest",
    model: Any = None,
    x0: Any = None,
    M: Any = None,
    rtol: float = 1e-6,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callable[[Any], Any] | None = None,
    check: str = "warn",
) -> EigenResult[ArrayT]:
    """An eigenpair of a symmetric matrix at the end of its spectrum, certified.

    CONVERGED means that |A v - theta v| <= max(rtol |A|, atol) |v| is proven for the theta and v that are returned.
    Then an eigenvalue lies within ``result.enclosure``. It is the wanted one unless the start was orthogonal to its
    eigenvectors, or nearly so, or a model ended at another eigenvector; that is likely and not proven. |A| is measured
    from below, by the largest Ritz value.

    Parameters
    ----------
    A : NumPy array, torch tensor (dense or sparse), SciPy sparse matrix or LinearOperator
        (n, n), equal to its transpose, entry by entry. A LinearOperator is taken to be symmetric unless its products
        show that it is not.
    which : {"smallest", "largest"}
        The end of the spectrum, by value and not by absolute value.
    model : trained program, its folder or name, or function, optional
        A program of A and a start b whose answer is an eigenvector, such as ``guided-eigen``, or a function
        (A, v) -> v, which sees A as it was given. It is run again while each run halves the residual, maxiter times at
        most; then Lanczos' method goes on, and, should that fail, once more from the start.
    x0 : array, optional
        The start, (n,); by default one drawn with a fixed seed.
    M : optional
        Approximates the inverse of A - theta, as ``nf.solve`` takes it; a learned one is refused.
    rtol, atol : float
        The tolerance.
    maxiter : int, optional
        The maximum number of steps of Lanczos' method; 20 n by default, at least 1,000.
    callback : function, optional
        Called as callback(v) after every step.
    check : {"warn", "raise", "ignore"}
        What happens without convergence: a ConvergenceWarning, a ConvergenceError, or nothing.

    Returns
    -------
    EigenResult : the value, the vector, the status, the enclosure, and what was measured

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> result = nf.eigenpair(np.diag([1.0, 2.0, 5.0]), which="largest")
    >>> round(result.value, 6), result.vector.round(6).__abs__().tolist()
    (5.0, [0.0, 0.0, 1.0])
    >>> low, high = result.enclosure
    >>> low <= 5 <= high, high - low < 1e-7
    (True, True)
    """
    begun = time.perf_counter()
    if which not in _ENDS:
        raise unknown_name("end of the spectrum", which, _ENDS)
    check_reporting(check, callback)
    rtol, atol = read_tolerance("rtol", rtol), read_tolerance("atol", atol)
    problem, symmetric = _read(A, x0)
    n = problem.unknowns
    limit = max(20 * n, 1000) if maxiter is None else whole("maxiter", maxiter, 0)
    preconditioner = read_preconditioner(M, problem)
    if learned(M) is not None:
        raise OptionError("a learned preconditioner stands for the inverse of A, not of A - theta; pass another M")
    runner = _runner(loaded(model), problem, which)
    search = search_with(
        runner, lambda: EigenSearch(problem, preconditioner, which, (rtol, atol), limit, callback, symmetric)
    )
    result: EigenResult[ArrayT] = _result(search, runner, begun)
    warn_or_raise(result, check, above=4)  # two decorators
    return result


def _read(A: Any, x0: Any) -> tuple[Problem, bool]:
    """A single matrix, scaled, with the start as its right-hand side, and whether no entry says it is not symmetric."""
    matrix = read_matrix("A", A)
    if len(matrix.shape) != 2:
        raise ShapeError(f"A has shape {tuple(matrix.shape)}; nf.eigenpair takes one matrix (n, n) at a time")
    n = matrix.shape[-1]
    if x0 is None:
        x0 = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        x0 = x0.to(A.device) if isinstance(A, Tensor) else x0.numpy()
    start = to_torch(read_real("x0", x0))
    if start.shape != (n,):
        raise ShapeError(f"x0 has shape {tuple(start.shape)}; expected ({n},), that of a vector for A")
    # Only the scaled A and start are of use. "gmres" takes any square A: the search itself decides whether it is
    # symmetric, more strictly than nf.solve. Without an x0 and a tolerance, nothing of a linear system is computed.
    problem = read(A, x0, None, 0.0, 0.0, "gmres", modelled=True, tensors=True)
    if bool(problem.finite.all()) and not bool(problem.b.any()):
        raise OptionError("x0 is 0, from where no direction leads; pass another start, or none")
    return replace(problem, dtype=result_dtype(matrix.dtype)), _is_symmetric(matrix)  # whatever that of x0 is


def _is_symmetric(matrix: Any) -> bool:
    """Whether A is its transpose, entry by entry, before scaling takes small ones to zero; an operator may be."""
    if is_tensor(matrix) or isinstance(matrix, np.ndarray):
        return bool(np.array_equal(to_numpy(matrix), to_numpy(matrix).T))
    return not is_sparse(matrix) or not (matrix != matrix.T).nnz


def _runner(model: Any, problem: Problem, which: str) -> Runner | None:
    """The runner of a model that finds eigenvectors of A, in the units of the problem."""
    if model is None:
        return None
    if isinstance(problem.A, ImplicitOperator):
        raise OptionError("the entries of a LinearOperator cannot be shown to a model; omit it")
    if (program := program_of(model, 3)) is not None:
        _check_program(program, which)
    A = to_torch(problem.A.blocks(torch.arange(problem.unknowns, device=problem.b.device)[None]))[0, 0]

    def of_function(v: Tensor) -> Any:  # as in nf.solve, a function sees A as it was given
        return model(give(scale(A, problem.exponent_a), problem.kind), give(v, problem.kind))

    return read_runner(model, {"A": A}, ("b", "x0"), of_function, "A", "v")


def _check_program(program: ProgramGraph, which: str) -> None:
    """Refuse a program that does not look for the smallest eigenvalue."""
    A = torch.diag(torch.arange(1.0, 4.0, dtype=torch.float64))
    first, other = torch.eye(3, dtype=torch.float64)[0], torch.ones(3, dtype=torch.float64)
    zero, far = (residual_of(program, {"A": A, "b": other}, x) for x in (first, other))
    if zero is None or far is None or bool(zero.any()) or not bool(far.any()):
        raise OptionError(f"the model {program.name} does not look for an eigenvector: see its residual")
    if which != "smallest":
        raise OptionError("programs look for the smallest eigenvalue; negate A, or omit the model")


def _result(search: EigenSearch, runner: Runner | None, begun: float) -> EigenResult[Any]:
    """What is returned; a search that ended without convergence is judged at its best vector."""
    problem, status, detail = search.problem, search.status or Status.STAGNATED, search.detail
    theta, v = (math.nan, torch.full_like(search.v, math.nan)) if search.best is None else search.best[1:]
    found = search.proof or search.judge(theta, v)
    if bool(found.holds[0]) and status in (Status.MAXITER, Status.STAGNATED):
        status, detail = Status.CONVERGED, ""
    elif status in (Status.MAXITER, Status.STAGNATED) and problem.dtype != "float64":
        status = Status.PRECISION if bool(search.judge(theta, v, "float64").holds[0]) else status

    unclear = status in (Status.MAXITER, Status.STAGNATED, Status.NOT_SYMMETRIC)
    if unclear and isinstance(problem.A, ImplicitOperator):
        search.matvecs += 1
        if bool(problem.A.apply(torch.zeros_like(problem.b)).any()):
            status, detail = Status.NOT_LINEAR, "A applied to 0 is not 0"

    def in_units(value: Any, towards: float) -> float:
        return float(scale_towards(torch.as_tensor(value, dtype=torch.float64).cpu(), search.e.cpu()[0], towards))

    value = float(scale(torch.tensor(theta, dtype=torch.float64), search.e.cpu()[0]))
    if not math.isfinite(value) and search.best is not None:
        status, detail = Status.NONFINITE, "the eigenvalue is beyond the largest float64"
    residuals: FloatArray = scale(torch.tensor(search.norms, dtype=torch.float64), search.e.cpu()).numpy()
    return EigenResult(
        status=status,
        detail=detail,
        iterations=search.steps,
        residuals=residuals,
        residual_norm=in_units(found.norm[0], math.inf),
        residual_bound=in_units(found.bound[0], math.inf),
        tolerance=in_units(search.tolerance(), 0.0),
        evaluations=search.matvecs,
        method=search.in_words("Lanczos" if isinstance(search.M, Identity) else "Davidson", runner),
        model=None if runner is None else runner.contribution(),
        seconds=time.perf_counter() - begun,
        value=value,
        vector=give(cast(v, problem.dtype), problem.kind),
        vector64=give(v.clone(), problem.kind),
    )
