"""More than one machine: our certificate and our preconditioners for PETSc, whose vectors live on many ranks.

``certify`` judges the answer of a KSP, and ``PC`` is a preconditioner of PETSc's type "python". Both need petsc4py with
PETSc built for real numbers in double precision. Nothing here imports torch, except for a learned preconditioner.

A rank holds some rows of A and of the vectors. It computes its rows of b - A x and what may be wrong with them as
``solvers/certificate.py`` does, and from the other ranks it needs the entries of x that meet its rows, and norms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from petsc4py import PETSc

from nlaformer.errors import DTypeError, OptionError, ShapeError
from nlaformer.solvers.certificate import UNIT, judged, norm_lower, norm_upper, residual
from nlaformer.solvers.operators import SparseOperator
from nlaformer.solvers.precondition.block import on_block

_AS_ROWS = ("aij", "seqaij", "mpiaij")  # and those that begin so, on a GPU say
_CONVERTED = ("baij", "sbaij", "dense", "nest")  # that PETSc converts entry by entry
OPTION = "pc_nlaformer"

Found = TypeVar("Found")


@dataclass(frozen=True)
class Certificate:
    """The residual of a solve and what is proven about it, the same on every rank."""

    residual_norm: float  # |b - A x| as computed
    residual_bound: float  # no less than the exact |b - A x|
    tolerance: float  # max(rtol |b|, atol)
    converged: bool  # whether the exact |b - A x| is proven to meet the tolerance

    def __str__(self) -> str:
        said = "proven" if self.converged else "not proven"
        return f"|b - A x| <= {self.residual_bound:.3g}; at most {self.tolerance:.3g} is {said}"


def certify(ksp: Any, rtol: float | None = None, atol: float | None = None) -> Certificate:
    """Judge the x of a KSP that has solved: is |b - A x| <= max(rtol |b|, atol) proven?

    Every rank calls it and gets the same answer. A, b and x are those that the KSP holds; neither its own norms nor the
    reason that it gives are trusted. The entries of A are needed: one that is known by its products alone is refused.

    Parameters
    ----------
    ksp : petsc4py.PETSc.KSP after ``ksp.solve(b, x)``
    rtol, atol : tolerances in place of those of the KSP

    Examples
    --------
    >>> from petsc4py import PETSc
    >>> A = PETSc.Mat().createAIJ((2, 2), csr=([0, 1, 2], [0, 1], [2.0, 4.0]), comm=PETSc.COMM_SELF)
    >>> b, x = A.createVecRight(), A.createVecRight()
    >>> b.set(1.0)
    >>> ksp = PETSc.KSP().create(PETSc.COMM_SELF)
    >>> ksp.setOperators(A)
    >>> ksp.solve(b, x)
    >>> certify(ksp, rtol=1e-12).converged
    True
    """
    _check_build()
    A, b, x = _solved(ksp)
    own = ksp.getTolerances()
    rtol, atol = (_tolerance(name, *pair) for name, *pair in (("rtol", rtol, own[0]), ("atol", atol, own[1])))
    rows, columns = _rows(A)
    right, known = b.getArray(readonly=True).copy(), _entries(x, columns)
    (size,) = _norms(A.comm, norm_lower, right)
    tolerance = max(rtol * max(size, 0.0) * (1 - 4 * UNIT), atol)
    for sharp in (False, True):  # in float64, and where only its bound is in the way in twice the precision
        parts = residual(rows, right, known, None if sharp else right - rows.apply(known))
        norm, error, spread = _norms(A.comm, norm_upper, *parts)
        bound, holds = judged(norm, error, spread, tolerance)
        if holds or not norm <= tolerance:
            break
    return Certificate(norm, bound, tolerance, holds and tolerance < np.inf)


class PC:
    """A preconditioner of PETSc's type "python" that acts on the block of each rank.

    The block of a rank is its own rows and columns of the matrix that the PC is given: what couples it to other ranks
    is left out, as in PETSc's block Jacobi, so that more ranks mean more iterations. The option ``-pc_nlaformer``
    replaces ``M``; from the options database alone it is ``-pc_type python -pc_python_type nlaformer.petsc.PC``.

    Parameters
    ----------
    M : what ``on_block`` takes: "jacobi", "ssor", "ic", "ilu", "amg", a model that writes a preconditioner, its folder
        or its bundled name, or a function that makes r -> M r of a CSR matrix. For CG it must be symmetric positive
        definite, which "ilu" is not.

    Examples
    --------
    >>> from petsc4py import PETSc
    >>> pc = PETSc.KSP().create().getPC()
    >>> pc.setType("python")
    >>> pc.setPythonContext(PC("ssor"))
    >>> pc.getPythonContext().M
    'ssor'
    """

    def __init__(self, M: Any = "jacobi") -> None:
        self.M = M
        self._function: Callable[[Any], Any] | None = None

    def setFromOptions(self, pc: Any) -> None:
        """Take M from the options database, where it is there."""
        options = PETSc.Options(pc)
        if options.hasName(OPTION):
            self.M = options.getString(OPTION)

    def setUp(self, pc: Any) -> None:
        """Make the preconditioner of this rank's block; an error on one rank is one on all."""
        _check_build()
        _, P = pc.getOperators()
        csr = _csr(P)
        first, end = P.getOwnershipRangeColumn()
        self._function = _together(P.comm, lambda: on_block(self.M, _square(csr[:, first:end].tocsr())))

    def apply(self, pc: Any, x: Any, y: Any) -> None:
        """Set y to M x."""
        if self._function is None:
            self.setUp(pc)
        assert self._function is not None
        y.setArray(self._function(x.getArray(readonly=True).copy()))

    def view(self, pc: Any, viewer: Any) -> None:
        """Say what it is, in PETSc's ``-ksp_view``."""
        told = getattr(self._function, "told", "")
        viewer.printfASCII(f"  nlaformer: {self.M} on the block of each rank{told and f', on the first {told}'}\n")


# --- what a rank holds ---


def _check_build() -> None:
    """Refuse a PETSc of complex numbers, or of another precision."""
    if np.dtype(PETSc.ScalarType) != np.float64:
        raise DTypeError(
            f"this PETSc computes with {np.dtype(PETSc.ScalarType)}; nlaformer.petsc is for one of real numbers in "
            "double precision, such as the one in Debian's python3-petsc4py-real"
        )


def _solved(ksp: Any) -> tuple[Any, Any, Any]:
    """A, b and x of a KSP that has solved, of sizes that fit."""
    if not isinstance(ksp, PETSc.KSP):
        raise DTypeError(f"certify takes a petsc4py.PETSc.KSP, given a {type(ksp).__name__}")
    b, x = (ksp.getRhs(), ksp.getSolution()) if ksp else (None, None)
    if not b or not x:
        raise OptionError("this KSP has no solution; call ksp.solve(b, x) first")
    A = ksp.getOperators()[0]

    def check() -> None:
        (m, M), (n, N) = A.getSizes()
        if b.getSizes() != (m, M) or x.getSizes() != (n, N):
            raise ShapeError(
                f"A has {M} rows and {N} columns, {m} and {n} of them on this rank; b has {b.getSize()} entries, "
                f"{b.getLocalSize()} here, and x {x.getSize()}, {x.getLocalSize()} here"
            )

    _together(A.comm, check)
    return A, b, x


def _tolerance(name: str, given: float | None, own: float) -> float:
    value = own if given is None else given
    if not 0 <= value < np.inf:  # false for NaN
        raise OptionError(f"{name} is {value}; expected a number that is not negative")
    return float(value)


def _csr(A: Any) -> Any:
    """The rows of A on this rank, with all columns, as a CSR matrix of SciPy's."""
    if not A or A.getType() is None or not A.isAssembled():
        raise OptionError("the matrix is not assembled; call A.assemble() first")
    kind = A.getType()
    if not kind.startswith(_AS_ROWS):
        if not kind.removeprefix("seq").removeprefix("mpi").startswith(_CONVERTED):
            raise OptionError(f"the entries of the matrix are needed, which one of type {kind} does not show")
        A = A.convert("aij", PETSc.Mat())
    start, columns, values = A.getValuesCSR()
    found = sp.csr_matrix((values, columns, start), shape=(A.getLocalSize()[0], A.getSize()[1]), copy=True)
    found.sort_indices()
    return found


def _square(block: Any) -> Any:
    if block.shape[0] != block.shape[1]:
        raise ShapeError(f"the block of this rank has the shape {block.shape}; a preconditioner needs a square one")
    return block


def _rows(A: Any) -> tuple[SparseOperator, Any]:
    """The rows of A on this rank, with the columns that they use, and the numbers of these columns."""
    csr = _csr(A)
    columns, places = np.unique(csr.indices, return_inverse=True)
    own = sp.csr_matrix((csr.data, places.reshape(-1), csr.indptr), shape=(csr.shape[0], len(columns)))
    return SparseOperator(own), columns


# --- between ranks ---


def _entries(v: Any, at: Any) -> Any:
    """The entries of a distributed vector at some places, which are others on every rank."""
    found = PETSc.Vec().createSeq(len(at), comm=PETSc.COMM_SELF)
    where = PETSc.IS().createGeneral(np.asarray(at, dtype=PETSc.IntType), comm=PETSc.COMM_SELF)
    scatter = PETSc.Scatter().create(v, where, found, None)
    scatter.scatter(v, found)
    return found.getArray().copy()


def _gathered(comm: Any, *numbers: float) -> Any:
    """The numbers of every rank on every rank, (ranks, numbers)."""
    own = PETSc.Vec().createMPI((len(numbers), PETSc.DECIDE), comm=comm)
    own.setArray(numbers)
    scatter, every = PETSc.Scatter.toAll(own)
    scatter.scatter(own, every)
    return every.getArray().reshape(-1, len(numbers)).copy()


def _norms(comm: Any, norm: Callable[[Any], float], *vectors: Any) -> list[float]:
    """The norms of distributed vectors, of which this rank holds these parts, rounded as those of the parts."""
    parts = _gathered(comm, *(norm(v) if len(v) else 0.0 for v in vectors))
    return [float(norm(each)) for each in parts.T.copy()]


def _together(comm: Any, work: Callable[[], Found]) -> Found:
    """What the work gives; where it fails on a rank it fails on all, and none waits for another."""
    found, problem = None, None
    try:
        found = work()
    except Exception as error:
        problem = error
    failed = np.flatnonzero(_gathered(comm, float(problem is not None))[:, 0])
    if problem is not None:
        raise problem
    if len(failed):
        raise OptionError(f"rank {failed[0]} refused; its own message says why")
    return found  # type: ignore[return-value]
