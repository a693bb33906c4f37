"""The preconditioners that have a name. All but "ilu" are symmetric positive definite for such an A, as CG needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nlaformer.errors import DTypeError, MissingPackageError, OptionError, ShapeError, UnknownNameError, unknown_name
from nlaformer.solvers.precondition.incomplete import incomplete_cholesky, m_matrix, machine
from nlaformer.solvers.precondition.rows import Rows

_OVER = 1.5  # relaxation of "ssor"
_NEARLY_SYMMETRIC = 1e-6  # of the largest entry: a gap that may be rounding
OWN = (
    "a preconditioner of your own is a LinearOperator, such as PyAMG's ml.aspreconditioner(), a matrix, a diagonal, a "
    "function of r, or a model that writes one"
)


@dataclass(frozen=True)
class Named:
    """A preconditioner that was built; ``told`` says what was chosen on the way."""

    name: str
    apply: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    told: str = ""

    def __call__(self, r: NDArray[np.float64]) -> NDArray[np.float64]:
        """M r of a vector of float64, in a new array."""
        return self.apply(r)


def build(name: str, A: Any, method: str = "cg", symmetric: bool = False) -> Named:
    """The preconditioner of a name for a real square A, an array or a SciPy matrix.

    Parameters
    ----------
    name : "jacobi", "ssor", "ic", "ilu" or "amg"
    A : (n, n)
    method : the method that it is for; "cg" and "minres" need one that is symmetric positive definite
    symmetric : whether A is known to be symmetric, and is not looked at for it

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(4, 4)).tocsr()
    >>> M = build("ic", A)  # no fill in a tridiagonal matrix: the factorization is complete
    >>> np.allclose(M(A @ np.arange(4.0)), np.arange(4.0))
    True
    """
    if name not in _BUILDERS:
        raise unknown(name)
    if name == "ilu" and method in ("cg", "pcg", "minres"):
        raise OptionError(
            f'M="ilu" is not symmetric, even where A is, and {method} needs a symmetric M: take "ic" or "amg", or the '
            'method "gmres"'
        )
    if not isinstance(A, np.ndarray) and not hasattr(A, "tocsr"):
        raise OptionError(f'M="{name}" needs the entries of A, which a {type(A).__name__} does not show; {OWN}')
    if len(A.shape) != 2 or A.shape[0] != A.shape[1]:
        raise ShapeError(f'M="{name}" is for one square matrix; A has the shape {tuple(A.shape)}')
    if np.dtype(A.dtype).kind not in "biuf":
        raise DTypeError(f'M="{name}" is for real matrices; A holds {A.dtype} values')
    return _BUILDERS[name](A, symmetric)


def unknown(name: object, others: Iterable[str] = ()) -> UnknownNameError:
    """The error for a name that none has, with the names that there are and how to pass one's own."""
    return UnknownNameError(f"{unknown_name('preconditioner', name, [*_BUILDERS, *others])}; {OWN}")


def _csr(A: Any) -> Any:
    """A as a CSR matrix of float64 in canonical format."""
    import scipy.sparse as sp

    csr = sp.csr_matrix(A, dtype=np.float64)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    if not np.isfinite(csr.data).all():
        raise OptionError("A holds NaN or infinity; no preconditioner can be made of it")
    return csr


def _definite(name: str, A: Any, symmetric: bool) -> Any:
    """A symmetric CSR matrix with a positive diagonal, or an error."""
    csr = _csr(A)
    if csr.diagonal().min() <= 0:
        raise OptionError(f'M="{name}" needs a positive definite A, and an entry of its diagonal is not positive')
    if symmetric:
        return csr
    gap = csr - csr.T
    if gap.nnz and abs(gap).max() > _NEARLY_SYMMETRIC * abs(csr).max():
        raise OptionError(f'M="{name}" needs a symmetric A; take "ilu", "amg" or "jacobi", which do not')
    if gap.nnz:
        csr = _csr((csr + csr.T) / 2)  # the loops rely on a symmetric pattern
    return csr


def _jacobi(A: Any, symmetric: bool) -> Named:
    return jacobi(np.asarray(A.diagonal(), dtype=np.float64))


def jacobi(diagonal: NDArray[np.float64]) -> Named:
    """The preconditioner of a diagonal; zeros in it stand for 1."""
    inverse = np.divide(1.0, diagonal, out=np.ones_like(diagonal), where=diagonal != 0)
    return Named("jacobi", lambda r: inverse * r)


def _ssor(A: Any, symmetric: bool) -> Named:
    import scipy.sparse as sp

    csr = _definite("ssor", A, symmetric)
    triangle = sp.csr_matrix(sp.triu(csr, 1, format="csr") + sp.diags_array(csr.diagonal() / _OVER))
    triangle.sort_indices()
    loops = machine()
    return Named("ssor", loops.sweeps(Rows.of(triangle), None), f"over-relaxation {_OVER}, {loops.NAME}")


def _ic(A: Any, symmetric: bool) -> Named:
    found = incomplete_cholesky(_definite("ic", A, symmetric))
    return Named("ic", found.apply, str(found))


def _ilu(A: Any, symmetric: bool) -> Named:
    from scipy.sparse.linalg import spilu

    try:
        factors = spilu(_csr(A).tocsc(), drop_tol=1e-3, fill_factor=10)
    except RuntimeError as error:
        raise OptionError(f'M="ilu" failed: {error}; pass another M') from error
    return Named("ilu", factors.solve, f"SuperLU, {factors.L.nnz + factors.U.nnz:,} entries")


def hierarchy(csr: Any) -> tuple[Any, str]:
    """PyAMG's levels for a CSR matrix, and what they are called."""
    try:
        import pyamg
    except ImportError as error:
        raise MissingPackageError('M="amg" is PyAMG\'s; install it with pip install "nlaformer[amg]"') from error
    signs = m_matrix(csr)
    solver = pyamg.ruge_stuben_solver if signs else pyamg.smoothed_aggregation_solver
    levels = solver(csr, max_coarse=500, coarse_solver="splu")
    return levels, "Ruge-Stueben" if signs else "smoothed aggregation"


def _amg(A: Any, symmetric: bool) -> Named:
    levels, kind = hierarchy(_csr(A))
    return Named("amg", levels.aspreconditioner().matvec, f"PyAMG, {kind}, {len(levels.levels)} levels")


_BUILDERS: dict[str, Callable[[Any, bool], Named]] = dict(jacobi=_jacobi, ssor=_ssor, ic=_ic, ilu=_ilu, amg=_amg)
NAMES = tuple(_BUILDERS)
