"""Which method suits a matrix: what each would cost is predicted in products with A, and the least is tried first.

A direct method is a preconditioner that leaves nothing to do, so that a choice is always an iteration and its M, and
the certificate comes with it. What is measured takes about as long as forty products:

- the dimension of the graph (``incomplete.dimension``), which tells two dimensions, where factors stay sparse, from
  three, and from none, where every factorization and every hierarchy fills up;
- the digits that 10 steps of CG with Jacobi win on a random right-hand side, or 25 where 10 do not decide. One's own b
  might hide what is hard;
- the iterations of "ic" on small balls of the graph, which grow like n^(1/2d).

A choice that was wrong is left after four times the iterations that were predicted, and the next goes on from its x.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nlaformer.errors import NLAFormerError, OptionError
from nlaformer.solvers.operators import absolute
from nlaformer.solvers.precondition.incomplete import (
    Candidates,
    count_iterations,
    dimension,
    m_matrix,
    machine,
)
from nlaformer.solvers.precondition.named import Named, build, hierarchy, jacobi
from nlaformer.solvers.precondition.rows import Rows

SMALL, DIRECT = 1000, 3000  # unknowns of a sparse matrix up to which SuperLU is taken: any, and one without much fill
_PLANE = 2.45  # the dimension below which factors stay sparse
_SPACE = 4.0  # the dimension from which nothing but Jacobi does
_DOMINANT = 0.9985  # the largest off-diagonal sum over the diagonal for which Jacobi is enough
_STEPS = (10, 25)  # of the probe
_SLOW, _FAST = 1.0, 2.2  # digits of the first steps after which no more are needed
# Costs in products with A, measured on meshes and graphs from 4e4 to 1e6 (docs/solve.md has the table of the choice)
_OF_JACOBI, _OF_IC, _OF_AMG, _OF_LU = 1.7, (80.0, 4.0), (150.0, 7.0, 2.0), 800.0
_LEAST_AMG = 450.0  # what no solve with a hierarchy costs less than
_SLOW_AMG = 12  # iterations on the balls from which they grow with n
_DENSE = 24  # unknowns of a dense matrix for each product that its Cholesky factorization costs


_DEPENDENT = 1e-7  # the share of a column that must be left beside those before it
_KEPT = 256  # unknowns for which CGLS keeps all its directions
_CHEAP = 2000  # iterations of LSMR, which are as long as a hundred of CGLS
_CONFIRMED = 10  # iterations with a direct method: one or two where it is good, a few more refine it


@dataclass(frozen=True)
class Choice:
    """A method that may suit: the iteration, its preconditioner, and after how many iterations to give up."""

    method: str  # "cg", "minres", "gmres" or "bicgstab"; of least squares "cgls" or "lsmr"
    M: Named | None
    why: str
    limit: int | None = None
    setup_seconds: float = 0.0  # that M took


def choices(A: Any, symmetric: bool, definite: bool = True) -> Iterator[Choice]:
    """The methods for a matrix, a dense array or a CSR matrix in canonical format, the best first.

    A method is set up when it is asked for. The last has no limit. ``definite`` is False where a solve has shown it.
    """
    known = _Measured(A)
    if A.shape[0] != A.shape[1]:
        return _rectangular(known)
    if isinstance(A, np.ndarray):
        return _dense(known, symmetric)
    if not symmetric:
        return _general(known)
    return _definite(known) if definite and known.diagonal.min() > 0 else _indefinite(known)


@dataclass
class _Measured:
    """What is known of a matrix, each figure from when it is first asked for."""

    A: Any
    said: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return int(self.A.shape[0])

    @cached_property
    def diagonal(self) -> NDArray[Any]:
        found: NDArray[Any] = self.A.diagonal()
        return found

    @cached_property
    def dimension(self) -> float:
        found = dimension(Rows.of(self.A))
        self.said.append(f"its graph is of dimension {found:.2g}")
        return found

    @cached_property
    def dominant(self) -> bool:
        """Whether a diagonal says so much of the matrix that nothing beats Jacobi."""
        diagonal, one = np.abs(self.diagonal), np.ones(self.size)
        others = diagonal - self.A @ one if self.is_m_matrix else absolute(self.A) @ one - diagonal
        found = bool((diagonal > 0).all() and (others <= _DOMINANT * diagonal).all())
        if found:
            self.said.append("it is diagonally dominant")
        return found

    @cached_property
    def is_m_matrix(self) -> bool:
        """Whether no entry beside the diagonal is positive, up to rounding."""
        return m_matrix(self.A, self.diagonal)

    @cached_property
    def jacobi(self) -> float:
        """The iterations that CG with Jacobi may take to eight digits."""
        steps, digits = _probe(self.A, self.diagonal)
        if digits == -math.inf:
            return digits
        self.said.append(f"{steps} steps with Jacobi win {digits:.2g} digits on a random vector")
        slower = 1.7 if steps < _STEPS[-1] else 1.4  # the first steps of a slow solve win most
        return float(steps * (8 / max(digits, 1e-2)) ** (1.0 if digits > 2 else slower))

    @cached_property
    def candidates(self) -> Candidates:
        return Candidates.of(self.A)

    def ic(self, relaxed: bool = True) -> float:
        """The iterations that CG with "ic" may take to eight digits."""
        return self.candidates.iterations(self.dimension, relaxed)

    def jacobi_choice(self, method: str, limit: int | None = None) -> Iterator[Choice]:
        """That of the preconditioner that needs the diagonal alone."""
        return self.choice(method, "jacobi", lambda: jacobi(self.diagonal), limit)

    def choice(
        self, method: str, name: str, make: Callable[[], Named | None], limit: int | None = None
    ) -> Iterator[Choice]:
        """The one choice of a preconditioner, or none where it cannot be built."""
        begun = time.perf_counter()
        try:
            M = make()
        except (NLAFormerError, np.linalg.LinAlgError, RuntimeError, MemoryError) as error:
            self.said.append(f"{name} failed: {(str(error) or type(error).__name__).splitlines()[0]}")
            return
        kind = "dense" if isinstance(self.A, np.ndarray) else "sparse"
        why = ", ".join([f"A is {kind}", *self.said])
        yield Choice(method, M, why, limit, time.perf_counter() - begun)


def _probe(A: Any, diagonal: NDArray[Any]) -> tuple[int, float]:
    """Steps of CG with Jacobi, and the digits that the residual loses in them; -inf where A shows to be indefinite."""
    from scipy.linalg.blas import daxpy, ddot, dscal

    r = np.random.default_rng(0).standard_normal(A.shape[0])
    square, inverse = ddot(r, r), 1 / diagonal
    d, rz, first = np.zeros_like(r), 1.0, square
    for k in range(1, _STEPS[-1] + 1):
        z = inverse * r
        rz, before = ddot(r, z), rz
        d = daxpy(z, dscal(rz / before, d))
        q = A @ d
        curvature = ddot(d, q)
        if not (curvature > 0 and rz > 0):
            return k, -math.inf
        r = daxpy(q, r, a=-rz / curvature)
        square = ddot(r, r)
        digits = -math.log10(square / first) / 2 if square > 0 else 16.0
        if k == _STEPS[0] and not _SLOW <= digits < _FAST:
            break
    return k, digits


# Dense matrices


def _dense(known: _Measured, symmetric: bool) -> Iterator[Choice]:
    A = known.A
    if symmetric and (known.diagonal > 0).all():
        if known.size > DIRECT and 0 < _OF_JACOBI * known.jacobi < known.size / _DENSE:
            yield from known.jacobi_choice("cg", int(4 * known.jacobi))
        yield from known.choice("cg", "cholesky", lambda: _cholesky(A), _CONFIRMED)
    elif known.size > DIRECT:  # no probe tells how many steps GMRES takes: half of what LU costs are tried
        yield from known.jacobi_choice("gmres", known.size // (2 * _DENSE))
    yield from known.choice("gmres", "lu", lambda: _lu(A), _CONFIRMED)
    yield from known.choice("gmres", "", lambda: None)


def _cholesky(A: NDArray[Any]) -> Named:
    from scipy.linalg.lapack import dpotrf, dpotrs

    factor, failed = dpotrf(A.T, lower=1)  # A is its own transpose, and LAPACK wants columns in one piece
    if failed:
        raise np.linalg.LinAlgError("A is not positive definite")
    return Named("cholesky", lambda r: dpotrs(factor, r, lower=1)[0])


def _lu(A: NDArray[Any]) -> Named:
    from scipy.linalg.lapack import dgetrf, dgetrs

    factor, pivots, failed = dgetrf(A.T)
    if failed:
        raise np.linalg.LinAlgError("A is singular")
    return Named("lu", lambda r: dgetrs(factor, pivots, r, trans=1)[0])


# Least squares


def _rectangular(known: _Measured) -> Iterator[Choice]:
    """For least squares. CGLS keeps directions, which costs more than its products, and saves more where A is hard."""
    A, (rows, n) = known.A, known.A.shape
    known.said.append("it is not square")
    if isinstance(A, np.ndarray) and rows > n and n <= DIRECT:
        yield from known.choice("cgls", "qr", lambda: _qr(A), _CONFIRMED)
    if n > _KEPT:
        yield from known.choice("lsmr", "", lambda: None, min(_CHEAP, 2 * n))
    yield from known.choice("cgls", "", lambda: None)


def _qr(A: NDArray[Any]) -> Named:
    """The inverse of A^T A = R^T R."""
    from scipy.linalg import qr
    from scipy.linalg.lapack import dtrtrs

    R = np.asfortranarray(qr(A, mode="r", check_finite=False)[0][: A.shape[1]])
    apart = np.abs(R.diagonal()) / np.maximum(np.sqrt((R * R).sum(0)), np.finfo(np.float64).tiny)
    if not apart.min() > _DEPENDENT:
        raise np.linalg.LinAlgError("the columns of A are dependent, or nearly so")
    return Named("qr", lambda g: dtrtrs(R, dtrtrs(R, g, trans=1)[0])[0])


# Sparse matrices


def _superlu(A: Any, symmetric: bool) -> Named:
    from scipy.sparse import csc_matrix
    from scipy.sparse.linalg import splu

    if not symmetric:
        return Named("splu", splu(A.tocsc()).solve)
    mirror = csc_matrix((A.data, A.indices, A.indptr), shape=A.shape)  # rows of A are its columns
    options = dict(SymmetricMode=True)
    return Named("splu", splu(mirror, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options).solve)


@dataclass(frozen=True)
class _Plan:
    """A preconditioner that might be built, the cost of a solve with it in products, and its iterations."""

    name: str
    cost: float
    iterations: float


def _definite(known: _Measured) -> Iterator[Choice]:
    """For a sparse symmetric matrix with a positive diagonal; one that is not definite after all ends as such."""
    if known.size <= SMALL:
        plans = [_Plan("splu", 0.0, 1)]
    elif known.dominant or known.dimension >= _SPACE:
        plans = []
    elif known.size <= DIRECT:
        plans = [_Plan("splu", 0.0, 1)]
    elif known.jacobi < 0:
        yield from _indefinite(known)
        return
    else:
        plans = _plans(known)
    for place, plan in enumerate(plans):
        after = plans[place + 1].cost if place + 1 < len(plans) else math.inf
        limit = _CONFIRMED if plan.name == "splu" else int(4 * plan.iterations) + 20
        make = {"splu": partial(_superlu, known.A, symmetric=True), "ic": partial(_ic, known, after)}
        yield from known.choice("cg", plan.name, make.get(plan.name, partial(build, plan.name, known.A)), limit)
    yield from known.jacobi_choice("cg")


def _plans(known: _Measured) -> list[_Plan]:
    """What might be built for a large mesh, and costs less than Jacobi, the cheapest first."""
    jacobi, plane = _OF_JACOBI * known.jacobi, known.dimension < _PLANE
    found = []
    if jacobi > 2 * _OF_IC[0] and machine().minimum_discarded_fill is not None:
        iterations = known.ic()
        known.said.append(f'"ic" is expected to take {iterations:.0f} iterations')
        found.append(_Plan("ic", _cost_of_ic(iterations), iterations))
    if find_spec("pyamg") is not None and known.is_m_matrix and min([jacobi, *(p.cost for p in found)]) > _LEAST_AMG:
        found.append(_amg_plan(known))
    if plane:
        found.append(_Plan("splu", _OF_LU, 1))
    return sorted((plan for plan in found if plan.cost < jacobi), key=lambda plan: plan.cost)


def _amg_plan(known: _Measured) -> _Plan:
    """Algebraic multigrid, tried on the balls of the graph: where it is fast there, it is as fast on the whole."""
    inside = known.candidates.ball[1]
    levels, _ = hierarchy(inside)
    count = count_iterations(inside, levels.aspreconditioner().matvec)
    known.said.append(f'"amg" takes {count} on a part')
    if count > _SLOW_AMG:
        return _Plan("amg", math.inf, math.inf)
    iterations = 1.5 * count
    setup, cycle, own = _OF_AMG
    complexity = levels.operator_complexity()
    return _Plan("amg", setup * complexity + iterations * (cycle * complexity + own), iterations)


def _cost_of_ic(iterations: float) -> float:
    return _OF_IC[0] + _OF_IC[1] * iterations


def _ic(known: _Measured, after: float) -> Named:
    """The incomplete factorization, unless its relaxed form breaks down and the next plan costs less than the plain."""
    found = known.candidates.factor()
    if found.omega == 0 and _cost_of_ic(known.ic(relaxed=False)) > after:
        raise OptionError("the relaxed factorization breaks down")
    return Named("ic", found.apply, str(found))


def _indefinite(known: _Measured) -> Iterator[Choice]:
    """For a sparse symmetric matrix that is not definite."""
    known.said.append("it is not definite")
    if known.size <= SMALL or known.dimension < (_SPACE if known.size <= DIRECT else _PLANE):
        yield from known.choice("gmres", "splu", lambda: _superlu(known.A, symmetric=False), _CONFIRMED)
    yield from known.choice("minres", "", lambda: None)


def _general(known: _Measured) -> Iterator[Choice]:
    """For a sparse matrix that is not symmetric."""
    A = known.A
    known.said.append("it is not symmetric")
    if known.size <= SMALL or (not known.dominant and known.dimension < _SPACE):
        if known.size <= DIRECT:
            yield from known.choice("gmres", "splu", lambda: _superlu(A, symmetric=False), _CONFIRMED)
        elif known.dimension < _PLANE:
            if known.is_m_matrix and find_spec("pyamg") is not None:
                yield from known.choice("bicgstab", "amg", lambda: build("amg", A, "gmres"), 50)
            yield from known.choice("gmres", "splu", lambda: _superlu(A, symmetric=False), _CONFIRMED)
    yield from known.jacobi_choice("bicgstab", 1000)
    if known.size <= SMALL or known.dimension < _SPACE:
        yield from known.choice("gmres", "ilu", lambda: build("ilu", A, "gmres"), 1000)
    yield from known.choice("gmres", "", lambda: None)
