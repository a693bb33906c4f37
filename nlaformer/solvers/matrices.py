"""Matrices as operators with their largest entries near 1, and what keeps them from being positive definite."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nlaformer.solvers.arithmetic import Array, cast, exponent, like, namespace, scale, to_numpy, transpose
from nlaformer.solvers.certificate import UNIT, norm_upper
from nlaformer.solvers.inputs import is_array, result_dtype
from nlaformer.solvers.operators import DenseOperator, ImplicitOperator, Operator, SparseOperator, absolute
from nlaformer.solvers.sparse import is_sparse

_SKEW = 1e-3  # of the largest entry: a gap that is no rounding error
_NEARLY_SYMMETRIC = 1e-6  # of the largest entry: a gap that may be rounding, float32's at most
_DIGITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}  # binary ones after the first
NEAR_ONE = (2.0**-64, 2.0**64)  # largest entries that are not scaled


class Flaws(NamedTuple):
    """What keeps a matrix from being symmetric positive definite, as its entries show, or nothing.

    CG on A computes residuals b - A x of A as it is given, and so does the certificate. What an asymmetry takes away is
    that directions are conjugate, and steps stay the same up to rounding where they are to sqrt(eps) (Simon 1984). So
    CG takes an A whose entries differ from their mirror images by 10 n eps of the largest entry, or by sqrt(eps) of the
    least one on the diagonal, more than the rounding errors of a matrix that was computed, as in U diag(s) V^T.
    """

    asymmetry: str = ""  # beyond sqrt(eps)
    diagonal: str = ""
    skew: bool = False  # an asymmetry beyond 10 n eps, with which a method for any A is at least as good

    @classmethod
    def of(cls, gap: float, diagonal: float, largest: float, n: int, eps: float) -> Flaws:
        asymmetry = low = ""
        rounding, most = 10 * n * eps * largest, _SKEW * largest
        if gap > min(max(rounding, math.sqrt(eps) * diagonal), most):
            nearly = "; if only by rounding, solve with (A + A.T) / 2" if gap < _NEARLY_SYMMETRIC * largest else ""
            share = f"{gap / largest:.1e} of the largest{nearly}"
            asymmetry = f"A is not symmetric: an entry differs from its mirror image by {share}"
        if diagonal <= 0:
            low = f"A has {'a zero' if diagonal == 0 else 'a negative'} entry on its diagonal"
        return cls(asymmetry, low, gap > min(rounding, most))

    @property
    def complaint(self) -> str:
        """Why A does not suit CG."""
        return self.asymmetry or self.diagonal


Measured = tuple[list[int], list[bool], list[Flaws]]  # of every matrix: the exponent, whether it is finite, its flaws


def measure(
    matrices: Any, batch: tuple[int, ...], lanes: int, alone: bool, compare: bool, exact: bool, modelled: bool
) -> tuple[Operator, Measured]:
    """The matrices with their largest entries near 1, and what was measured; ``compare`` them with their transposes."""
    if is_array(matrices):
        A = cast(matrices, "float64")
        if not alone and math.prod(A.shape[:-2]) > 1:
            A = namespace(A).broadcast_to(A, (*batch, *A.shape[-2:]))
        A = A.reshape(A.shape[-2:] if alone else (-1, *A.shape[-2:]))
        return _dense(A, lanes, compare, result_dtype(matrices.dtype), modelled)
    if is_sparse(matrices):
        return _sparse(matrices, compare, exact, modelled)
    return ImplicitOperator(matrices), ([0], [True], [Flaws()])


def _dense(A: Array, lanes: int, compare: bool, dtype: str, modelled: bool) -> tuple[Operator, Measured]:
    xp = namespace(A)

    def most(values: Array) -> list[float]:
        """The largest entry of every matrix in absolute value."""
        if values.ndim == 2:
            return [max(float(values.max()), -float(values.min()))]
        found: list[float] = xp.max(abs(values), axis=(-2, -1)).tolist()
        return found

    largest = most(A)
    lowest = [float(A.diagonal().min())] if A.ndim == 2 else xp.min(xp.linalg.diagonal(A), axis=-1).tolist()
    finite, e = [math.isfinite(size) for size in largest], [_exponent(size, modelled) for size in largest]
    if any(e) or not all(finite):
        at = e[0] if A.ndim == 2 else like(np.array(e), A)[:, None, None]
        known = like(np.array(finite), A) != 0
        A = scale(xp.where(known.reshape(*known.shape[: A.ndim - 2], 1, 1), A, 0.0), -at)
    gaps = [0.0] * len(largest)
    mirror = transpose(A)
    if compare and not bool((mirror == A).all()):
        gaps = most(A - mirror)
    flaws = _flaws(gaps, lowest, largest, e, A.shape[-1], dtype)
    size = norm_upper(A.reshape(-1)) if len(largest) == 1 else math.inf  # that of Frobenius
    return DenseOperator(A, lanes // len(largest), size), (e, finite, flaws)


def _sparse(csr: Any, compare: bool, exact: bool, modelled: bool) -> tuple[Operator, Measured]:
    dtype, csr = str(csr.dtype), csr if csr.dtype == np.float64 else csr.astype(np.float64)
    lowest, size = float(csr.diagonal().min()), absolute(csr)
    largest = float(size.data.max(initial=0.0))
    finite, e = math.isfinite(largest), _exponent(largest, modelled)
    if e or not finite:
        data = scale(csr.data, -e) if finite else np.zeros_like(csr.data)
        csr = type(csr)((data, csr.indices, csr.indptr), shape=csr.shape)
        size = absolute(csr)
    over, down = size @ np.ones(csr.shape[1]), size.T @ np.ones(csr.shape[0])
    gap = 0.0
    if compare:
        least = 0.0 if exact else _least_gap(csr, np.abs(over - down))
        gap = least if least > _SKEW * float(size.data.max(initial=0.0)) else _gap(csr)
    # | |A| |^2 <= |A|_1 |A|_inf
    norm = math.sqrt(over.max()) * math.sqrt(down.max()) * (1 + (csr.nnz + 8) * UNIT)
    return SparseOperator(csr, norm), ([e], [finite], _flaws([gap], [lowest], [largest], [e], csr.shape[1], dtype))


def _least_gap(csr: Any, apart: Any) -> float:
    """What ``_gap`` is no less than, from how far the sums of row and column of |A| are apart; it takes no A - A^T."""
    i = int(apart.argmax())
    return float(apart[i]) / max(1, csr.indptr[i + 1] - csr.indptr[i] + np.count_nonzero(csr.indices == i))


def _gap(csr: Any) -> float:
    """The largest difference of an entry of A from its mirror image."""
    mirror = csr.T.tocsr()
    if np.array_equal(mirror.indptr, csr.indptr) and np.array_equal(mirror.indices, csr.indices):
        return 0.0 if np.array_equal(mirror.data, csr.data) else float(np.abs(mirror.data - csr.data).max())
    return float(np.abs((csr - mirror).data).max(initial=0.0))


def _flaws(
    gaps: list[float], lowest: list[float], largest: list[float], e: list[int], n: int, dtype: str
) -> list[Flaws]:
    """Those of every matrix; the diagonal is measured before the scaling, which may take a small entry to zero."""
    if not any(gaps) and min(lowest) > 0:
        return [Flaws()] * len(gaps)
    eps, found = 2.0 ** -_DIGITS[result_dtype(dtype)], []
    for gap, low, size, k in zip(gaps, lowest, largest, e, strict=True):
        diagonal = max(scale(low, -k), 5e-324) if low > 0 else low
        found.append(Flaws.of(gap, diagonal, scale(size, -k), n, eps))
    return found


def _exponent(largest: float, always: bool) -> int:
    """The power of two that brings a number near 1; 0 for one that is not far, unless ``always``, or not finite."""
    far = math.isfinite(largest) and not NEAR_ONE[0] <= largest <= NEAR_ONE[1]
    return exponent(largest) if far or (always and math.isfinite(largest)) else 0


def keeps(matrices: Any, batch: tuple[int, ...], e: list[int]) -> list[bool]:
    """Whether no entry of each matrix is taken to zero by the scaling, of every matrix; an operator has no entries."""
    if not any(e):
        return [True] * len(e)
    if is_sparse(matrices):
        parts = [matrices.data.astype(np.float64)]
    else:
        A = to_numpy(cast(matrices, "float64"))
        parts = list(np.broadcast_to(A, (*(batch if len(e) > 1 else ()), *A.shape[-2:])).reshape(len(e), -1))
    smallest = [float(np.abs(part).min(initial=np.inf, where=part != 0)) for part in parts]
    return [scale(size, -k) > 0 for size, k in zip(smallest, e, strict=True)]
