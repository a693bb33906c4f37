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
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from nlaformer.arrays import ArrayT, FloatArray, full_precision, give, whole
from nlaformer.errors import OptionError, ShapeError, unknown_name
from nlaformer.prompt import scale
from nlaformer.solvers.certificate import Certificate, certify_eigenpair, norm_of, norm_upper
from nlaformer.solvers.operators import DenseOperator, ImplicitOperator, SparseOperator
from nlaformer.solvers.outcome import CHECKS, Outcome, warn_or_raise
from nlaformer.solvers.parse import Problem, read, read_matrix, read_tolerance, scale_towards
from nlaformer.solvers.preconditioners import DiagonalPlusRank, Identity, Preconditioner, read_preconditioner
from nlaformer.solvers.result import Status
from nlaformer.solvers.runner import PAYS, Runner, loaded, read_runner, residual_of

_ENDS = ("smallest", "largest")
_LONGEST = 48  # directions before a restart
_KEPT = 12  # of them after it
_NEW = 1e-12  # of |c| that must be left once it is orthogonal to the directions before it
_STRIKES = 3  # claims that may fail
_NOISE = 2.0**-48  # of |A|: a residual that falls no further
_LOWER = 1 - 2.0**-30  # more than a Ritz value loses to rounding, so that it is no more than |A|
_SKEW = 1e-3  # of |A|: how much products may contradict the symmetry of A


@dataclass(frozen=True)
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
        """Numbers between which an eigenvalue of A lies, proven if A is symmetric, converged or not."""
        if not math.isfinite(self.value + self.residual_bound):
            return -math.inf, math.inf
        below, above = self.value - self.residual_bound, self.value + self.residual_bound
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
    eigenvectors, or nearly so; that is likely and not proven. |A| is measured from below, by the largest Ritz value.

    Parameters
    ----------
    A : NumPy array, torch tensor (dense or sparse), SciPy sparse matrix or LinearOperator
        (n, n), equal to its transpose, entry by entry. A LinearOperator is taken to be symmetric unless its products
        show that it is not.
    which : {"smallest", "largest"}
        The end of the spectrum, by value and not by absolute value.
    model : trained program, its folder or name, or function, optional
        A program of A and a start b whose answer is an eigenvector, such as ``guided-eigen``, or a function
        (A, v) -> v. It is run again while each run halves the residual; then Lanczos' method goes on, and, should that
        fail, once more from the start.
    x0 : array, optional
        The start, (n,); by default one drawn with a fixed seed.
    M : optional
        Approximates the inverse of A - theta, as ``nf.solve`` takes it; a learned one is refused.
    rtol, atol : float
        The tolerance.
    maxiter : int, optional
        The maximum number of steps; 20 n by default, at least 1,000.
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
    if check not in CHECKS:
        raise unknown_name("check", check, CHECKS)
    if callback is not None and not callable(callback):
        raise OptionError(f"callback is a {type(callback).__name__}; expected a function of v")
    rtol, atol = read_tolerance("rtol", rtol), read_tolerance("atol", atol)
    problem = _read(A, x0)
    n = problem.unknowns
    limit = max(20 * n, 1000) if maxiter is None else whole("maxiter", maxiter, 0)
    preconditioner = read_preconditioner(M, problem)
    if isinstance(preconditioner, DiagonalPlusRank):
        raise OptionError("a learned preconditioner stands for the inverse of A, not of A - theta; pass another M")
    runner = _runner(loaded(model), problem, which)
    search = _Search(problem, preconditioner, which, (rtol, atol), limit, callback)
    search.run(runner)
    if runner is not None and runner.applications and search.status is not Status.CONVERGED:
        search = search.without_model(_Search(problem, preconditioner, which, (rtol, atol), limit, callback))
    result: EigenResult[ArrayT] = search.result(runner, begun)
    warn_or_raise(result, check, above=4)  # two decorators
    return result


def _read(A: Any, x0: Any) -> Problem:
    """A single matrix, scaled, with the start as its right-hand side."""
    matrix = read_matrix("A", A)
    if len(matrix.shape) != 2:
        raise ShapeError(f"A has shape {tuple(matrix.shape)}; nf.eigenpair takes one matrix (n, n) at a time")
    n = matrix.shape[-1]
    if x0 is None:
        x0 = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        x0 = x0.to(torch.float32) if "float32" in str(matrix.dtype) else x0  # the precision of the result is A's
        x0 = x0.to(A.device) if isinstance(A, Tensor) else x0.numpy()
    problem = read(A, x0, None, 0.0, 0.0, "gmres")
    if problem.b.shape != (1, n) or problem.columns:
        raise ShapeError(f"x0 has another shape than ({n},), that of a vector for A")
    if bool(problem.finite.all()) and not bool(problem.b.any()):
        raise OptionError("x0 is 0, from where no direction leads; pass another start, or none")
    return problem


def _runner(model: Any, problem: Problem, which: str) -> Runner | None:
    """The runner of a model that finds eigenvectors of A, in the units of the problem."""
    if model is not None and isinstance(problem.A, ImplicitOperator):
        raise OptionError("the entries of a LinearOperator cannot be shown to a model; omit it")
    if model is None:
        return None
    if hasattr(model, "program"):
        _check_program(model, which)
    A = problem.A.blocks(torch.arange(problem.unknowns, device=problem.b.device)[None])[0, 0]
    return read_runner(model, {"A": A}, ("b", "x0"), problem.kind, lambda v: model(give(A.clone(), problem.kind), v))


def _check_program(model: Any, which: str) -> None:
    """Refuse a program that does not look for the smallest eigenvalue."""
    A = torch.diag(torch.arange(1.0, 4.0, dtype=torch.float64))
    first, other = torch.eye(3, dtype=torch.float64)[0], torch.ones(3, dtype=torch.float64)
    zero, far = (residual_of(model, {"A": A, "b": other}, x) for x in (first, other))
    if zero is None or far is None or bool(zero.any()) or not bool(far.any()):
        raise OptionError(f"the model {model.program.name} does not look for an eigenvector: see its residual")
    if which != "smallest":
        raise OptionError("programs look for the smallest eigenvalue; negate A, or omit the model")


class _Search:
    """The subspace, the best vector so far, and how the search ended."""

    def __init__(
        self,
        problem: Problem,
        M: Preconditioner,
        which: str,
        tolerances: tuple[float, float],
        limit: int,
        callback: Callable[[Any], Any] | None,
    ) -> None:
        self.problem, self.M, self.limit, self.callback = problem, M, limit, callback
        self.sign = 1.0 if which == "smallest" else -1.0
        self.rtol, self.atol = tolerances
        n, self.e = problem.unknowns, problem.exponent_a
        self.V = problem.b.new_zeros(0, n)  # (k, n), orthonormal
        self.W = self.V.clone()  # their products with A
        self.theta, self.v, self.r = 0.0, problem.b[0], problem.b[0]
        self.reach = 0.0  # the largest |Ritz value| so far
        self.skew = 0.0  # how much products contradict the symmetry of A
        self.norms: list[float] = []
        self.matvecs = self.steps = 0
        self.status: Status | None = None
        self.detail = ""
        self.best: tuple[float, float, Tensor] | None = None  # the smallest residual, with theta and v
        self.proof: Certificate | None = None  # of what converged

    # The subspace

    def apply(self, v: Tensor) -> Tensor:
        self.matvecs += 1
        return self.problem.A.apply(v[None])[0]

    def add(self, c: Tensor) -> bool:
        """Extend the subspace by a direction; False if it holds it already, or the product is not finite."""
        size = float(c.abs().max())
        if not 0 < size < math.inf:
            return False
        c = c / size
        given = float(norm_of(c))
        for _ in range(2):
            c = c - self.V.mT @ (self.V @ c)
        left = float(norm_of(c))
        if not left > _NEW * given:
            return False
        c = c / left
        c = c - self.V.mT @ (self.V @ c)  # what the division enlarged
        c = c / norm_of(c)
        w = self.apply(c)
        if not bool(torch.isfinite(w).all()):
            self.end(Status.NONFINITE, "a product with A is not finite")
            return False
        self.V, self.W = torch.cat([self.V, c[None]]), torch.cat([self.W, w[None]])
        return True

    def ritz(self) -> float:
        """The best vector of the subspace, its value and its residual; returns the residual's norm."""
        if len(self.V) > _LONGEST:
            self._restart()
        H = self.V @ self.W.mT
        values, Y = torch.linalg.eigh(self.sign * (H + H.mT) / 2)
        self.reach = max(self.reach, float(values.abs().max()))
        self.skew = max(self.skew, float((H - H.mT).abs().max()))
        self.theta = self.sign * float(values[0])
        self.v, w = Y[:, 0] @ self.V, Y[:, 0] @ self.W
        self.r = w - self.theta * self.v
        norm = float(norm_upper(self.r[None]))
        if self.best is None or norm < self.best[0]:
            self.best = (norm, self.theta, self.v)
        return norm

    def _restart(self) -> None:
        H = self.V @ self.W.mT
        _, Y = torch.linalg.eigh(self.sign * (H + H.mT) / 2)
        self.V, self.W = Y[:, :_KEPT].mT @ self.V, Y[:, :_KEPT].mT @ self.W

    # The search

    def run(self, runner: Runner | None) -> None:
        """Search until the certificate holds, or the search ends without."""
        if not bool(self.problem.finite.all()):
            self.end(Status.NONFINITE, "A or x0 holds NaN or infinity")
        elif self._asymmetric():
            self.end(Status.NOT_SYMMETRIC, "an entry differs from its mirror image")
        if self.status is None and self.add(self.problem.b[0]):
            self.norms.append(self.ritz())
            if runner is not None:
                self._follow(runner)
            self._lanczos()

    def without_model(self, fresh: _Search) -> _Search:
        """The search from the start as if there had been no model; its steps are counted with those before them."""
        fresh.run(None)
        fresh.steps, fresh.norms = self.steps + fresh.steps, self.norms + fresh.norms[1:]
        fresh.matvecs += self.matvecs
        return fresh

    def _asymmetric(self) -> bool:
        A = self.problem.A
        if isinstance(A, DenseOperator):
            return not torch.equal(A.A, A.A.mT)
        return isinstance(A, SparseOperator) and bool((A.A != A.A.T).nnz)

    def _follow(self, runner: Runner) -> None:
        """Let a model run from the best vector while each run halves the residual."""
        norm = self.norms[-1]
        most = self.limit
        while runner.applications < most and norm > self.tolerance():
            found = runner.ask(self.v)
            if found is None or not self.add(found):
                return
            before, norm = norm, self.ritz()
            self._count(norm)
            self.limit += 1  # of the steps without a model
            runner.pays(before, norm)
            if not norm <= PAYS * before:
                return

    def _lanczos(self) -> None:
        """Take steps along residuals until the end."""
        strikes, norm, target = 0, self.norms[-1], 1.0
        while self.status is None:
            if norm <= max(target * self.tolerance(), _NOISE * self.reach):
                found = self.judge(self.theta, self.v)
                if bool(found.holds[0]):
                    self.best, self.proof = (norm, self.theta, self.v), found
                    self.end(Status.CONVERGED, "")
                    return
                strikes, target = strikes + 1, 0.5 * target
            if strikes > _STRIKES or len(self.V) >= self.problem.unknowns:
                self.end(Status.STAGNATED, "")
            elif self.skew > _SKEW * self.reach:
                self.end(Status.NOT_SYMMETRIC, "u.(A v) is not v.(A u) for two vectors")
            elif self.steps >= self.limit:
                self.end(Status.MAXITER, "")
            else:
                norm = self._step(norm)

    def _step(self, before: float) -> float:
        """One direction more; returns the residual's norm."""
        c = self.M.apply(self.r[None])[0]
        if not self.add(c) and self.status is None:
            # Nothing new in the residual: a random direction tells whether the subspace is all there is to find.
            draw = torch.randn(
                self.r.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1 + self.steps)
            )
            if not self.add(draw.to(self.r)) and self.status is None:
                self.end(Status.STAGNATED, "no new direction is left")
        if self.status is not None:
            return before
        norm = self.ritz()
        self._count(norm)
        if not math.isfinite(norm):
            self.end(Status.NONFINITE, "the iteration left float64")
        return norm

    def _count(self, norm: float) -> None:
        self.steps += 1
        self.norms.append(norm)
        if self.callback is not None:
            self.callback(give(self.v.to(self.problem.dtype), self.problem.kind))

    # The end

    def tolerance(self) -> float:
        """The tolerance of the residual, in the units of the problem; no more than max(rtol |A|, atol)."""
        own = scale(torch.tensor([self.atol], dtype=torch.float64), -self.e.cpu())
        return max(self.rtol * self.reach * _LOWER, float(own) * _LOWER)

    def judge(self, theta: float, v: Tensor, dtype: torch.dtype | None = None) -> Certificate:
        """The certificate of theta and v as they are returned, in the units of the problem."""
        A, e = self.problem.A, self.e
        if theta == 0 and not isinstance(A, ImplicitOperator) and not bool(A.absolute(torch.ones_like(v)[None]).any()):
            zero = torch.zeros(1, dtype=torch.float64, device=v.device)  # A is 0, without a rounding error
            return Certificate(v[None], v[None], zero, zero, zero == 0)
        value = scale(scale(torch.tensor([theta], dtype=torch.float64, device=v.device), e), -e)
        if isinstance(A, ImplicitOperator):
            A = A.in_units(torch.zeros_like(e))
        self.matvecs += 1
        returned = v.to(dtype or self.problem.dtype).double()
        tolerance = torch.tensor([self.tolerance()], dtype=torch.float64, device=v.device)
        return certify_eigenpair(A, value, returned[None], tolerance)

    def end(self, status: Status, detail: str) -> None:
        if self.status is None:
            self.status, self.detail = status, detail

    def result(self, runner: Runner | None, begun: float) -> EigenResult[Any]:
        """What is returned; a search that ended without convergence is judged at its best vector."""
        problem, status = self.problem, self.status or Status.STAGNATED
        theta, v = (math.nan, torch.full_like(self.v, math.nan)) if self.best is None else self.best[1:]
        found = self.proof or self.judge(theta, v)
        if bool(found.holds[0]) and status in (Status.MAXITER, Status.STAGNATED):
            status = Status.CONVERGED
        elif status in (Status.MAXITER, Status.STAGNATED) and problem.dtype != torch.float64:
            status = Status.PRECISION if bool(self.judge(theta, v, torch.float64).holds[0]) else status

        def in_units(value: Any, towards: float) -> float:
            return float(scale_towards(torch.as_tensor(value, dtype=torch.float64).cpu(), self.e.cpu()[0], towards))

        value = float(scale(torch.tensor(theta, dtype=torch.float64), self.e.cpu()[0]))
        if not math.isfinite(value) and self.best is not None:
            status, self.detail = Status.NONFINITE, "the eigenvalue is beyond the largest float64"
        residuals: FloatArray = scale(torch.tensor(self.norms, dtype=torch.float64), self.e.cpu()).numpy()
        return EigenResult(
            status=status,
            detail=self.detail,
            iterations=self.steps,
            residuals=residuals,
            residual_norm=in_units(found.norm[0], math.inf),
            residual_bound=in_units(found.bound[0], math.inf),
            tolerance=in_units(self.tolerance(), 0.0),
            evaluations=self.matvecs,
            method=_in_words(self, runner),
            model=None if runner is None else runner.contribution(),
            seconds=time.perf_counter() - begun,
            value=value,
            vector=give(v.to(problem.dtype), problem.kind),
            vector64=give(v, problem.kind),
        )


def _in_words(search: _Search, runner: Runner | None) -> str:
    own = "Lanczos" if isinstance(search.M, Identity) else "Davidson"
    if runner is None:
        return own
    return f"runs of the model, then {own}" if runner.accepted else f"{own}; the model was of no use"
