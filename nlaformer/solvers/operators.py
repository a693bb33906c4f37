"""The matrices of many systems behind one interface: dense, sparse, or known only by their products.

X holds the vector of a system alone, (n,), or a vector for each of m lanes, (m, n). Several lanes may share a matrix.
Matrices of least squares have other numbers of rows than of columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from nlaformer.errors import DTypeError, OptionError, ShapeError
from nlaformer.solvers.arithmetic import Array, like, namespace, scale, to_numpy, to_torch, transpose

_Terms = Iterator[tuple[Array, Array, Array | None]]


class Operator(Protocol):
    """What the iterations and the certificate need of a matrix."""

    @property
    def terms(self) -> int:
        """The largest number of products in any component of A x; 0 if unknown."""

    @property
    def size(self) -> float:
        """No less than the norm of |A|, infinity if unknown; 0 if the entries are not known."""

    @property
    def transposed(self) -> Operator:
        """The operator of A^T."""

    def apply(self, X: Array) -> Array:
        """A x of every lane."""

    def absolute(self, X: Array) -> Array:
        """|A| x of every lane, or zero if the entries are not known."""

    def take(self, at: Any) -> Operator:
        """The operator of some lanes."""

    def keep(self, at: Any) -> Operator:
        """The operator of some lanes, most of them in their places; this one is not used any more."""

    @property
    def product(self) -> Callable[[Array], Array]:
        """What ``apply`` does, as fast as it can be."""

    def products(self, X: Array) -> _Terms:
        """A x, one term of every sum at a time: factors a and x, and the components they add to (None: all)."""

    def blocks(self, index: Array, rows: Array | None = None) -> Array:
        """The entries of A at (rows x index) of every matrix: index (k, s) -> (G, k, s, s); rows are the index."""


@dataclass(frozen=True)
class DenseOperator:
    """A matrix, or G matrices, each shared by m / G consecutive lanes."""

    A: Array  # (rows, n) of a system alone, or (G, rows, n)
    shared: int = 1  # lanes to a matrix
    size: float = math.inf
    owned: bool = False  # whether it is a copy

    @property
    def terms(self) -> int:
        return int(self.A.shape[-1])

    @property
    def transposed(self) -> DenseOperator:
        return DenseOperator(transpose(self.A), self.shared, self.size)

    @cached_property
    def _absolute(self) -> DenseOperator:
        return DenseOperator(abs(self.A), self.shared)

    def apply(self, X: Array) -> Array:
        A = self.A
        if X.ndim == 1:
            return A @ X
        if self.shared == 1 and len(A) == len(X):
            if hasattr(np, "matvec") and isinstance(A, np.ndarray):
                return np.matvec(A, X)
            return (X[:, None] @ transpose(A))[:, 0]
        return (X.reshape(len(A), self.shared, -1) @ transpose(A)).reshape(len(X), A.shape[-2])

    def absolute(self, X: Array) -> Array:
        return self._absolute.apply(X)

    def take(self, at: Any) -> DenseOperator:
        if at is ...:
            return self
        if len(self.A) == 1:
            return replace(self, shared=len(at))
        if len(at) == len(self.A) * self.shared and at.tolist() == list(range(len(at))):
            return self  # the lanes of a matrix keep sharing it
        return DenseOperator(self.A[at // self.shared], owned=True)

    def keep(self, at: Any) -> DenseOperator:
        if at is ... or not self.owned:
            return self.take(at)
        moved = [(k, of) for k, of in enumerate(at.tolist()) if k != of]
        if moved:
            to, of = (list(part) for part in zip(*moved, strict=True))
            self.A[to] = self.A[of]
        return DenseOperator(self.A[: len(at)], owned=True)

    @property
    def product(self) -> Callable[[Array], Array]:
        alone = self.A.ndim == 2 and isinstance(self.A, np.ndarray)
        return self.A.dot if alone else self.apply

    def products(self, X: Array) -> _Terms:
        if X.ndim == 1:
            yield from ((self.A[:, j], X[j], None) for j in range(self.terms))
            return
        X = X.reshape(len(self.A), self.shared, -1)
        for j in range(self.terms):
            a, x = self.A[:, None, :, j], X[..., j, None]
            shape = (X.shape[0] * self.shared, a.shape[-1])
            xp = namespace(X)
            yield xp.broadcast_to(a, (len(X), self.shared, a.shape[-1])).reshape(shape), x.reshape(-1, 1), None

    def blocks(self, index: Array, rows: Array | None = None) -> Array:
        of = to_numpy if isinstance(self.A, np.ndarray) else to_torch
        return self.A[..., of(index if rows is None else rows)[:, :, None], of(index)[:, None, :]]


@dataclass(frozen=True)
class SparseOperator:
    """One SciPy matrix in CSR form for all lanes; products are computed on the CPU."""

    A: Any  # csr_array, float64, (n, n), or (rows, n)
    size: float = math.inf

    @cached_property
    def terms(self) -> int:
        return int(np.diff(self.A.indptr).max(initial=0))

    @property
    def transposed(self) -> SparseOperator:
        return SparseOperator(self.A.T.tocsr(), self.size)

    @cached_property
    def _absolute(self) -> SparseOperator:
        return SparseOperator(absolute(self.A))

    def apply(self, X: Array) -> Array:
        return self.A @ X if X.ndim == 1 and isinstance(X, np.ndarray) else _row_by_row(self.A, X)

    def absolute(self, X: Array) -> Array:
        return self._absolute.apply(X)

    def take(self, at: Any) -> SparseOperator:
        return self

    keep = take

    @property
    def product(self) -> Callable[[Array], Array]:
        return self.apply

    def products(self, X: Array) -> _Terms:
        # Rows in order of their length: those that have a k-th entry are then the first ones.
        start, length = self.A.indptr[:-1], np.diff(self.A.indptr)
        order = np.argsort(-length, kind="stable")
        for k in range(self.terms):
            rows = order[: np.searchsorted(-length[order], -k)]
            at = start[rows] + k
            yield like(self.A.data[at], X), X[..., self.A.indices[at].astype(np.int64)], rows

    def blocks(self, index: Array, rows: Array | None = None) -> Array:
        pairs = zip(to_numpy(index), to_numpy(index if rows is None else rows), strict=True)
        return np.stack([self.A[j][:, i].toarray() for i, j in pairs])[None]


def absolute(csr: Any) -> Any:
    """|A| of a CSR array, which shares its indices."""
    return type(csr)((np.abs(csr.data), csr.indices, csr.indptr), shape=csr.shape)


@dataclass(frozen=True)
class ImplicitOperator:
    """A LinearOperator of SciPy: only its products are known.

    Lanes are scaled by powers of two, and a function that is not quite linear (it saturates, or overflows) does not
    notice vectors near 1. The certificate therefore applies it to vectors in the user's units, ``in_units``.
    """

    A: Any
    own: Any = 0  # (m,) exponents of A itself, or one for all; 0 leaves it as it is
    given: Any = 0  # (m,) those of the vectors that it is applied to
    terms: int = 0
    size: float = 0.0

    def scaled(self, exponent: Any) -> ImplicitOperator:
        """The operator of A / 2^e."""
        return replace(self, own=exponent)

    def in_units(self, exponent: Any) -> ImplicitOperator:
        """The operator that sees 2^e x of every lane, and divides what it gives by 2^e."""
        return replace(self, given=exponent)

    @property
    def unit(self) -> float:
        """The rounding error that its products may be expected to have, relative to |A| |x|."""
        single = self.A.dtype is not None and np.dtype(self.A.dtype) in (np.float32, np.float16)
        return float(np.finfo(self.A.dtype if single else np.float64).eps) / 2

    @property
    def transposed(self) -> ImplicitOperator:
        return replace(self, A=self.A.T)

    def apply(self, X: Array) -> Array:
        given = scale(X, _factors(self.given))
        try:
            found = self._columns(given) if X.ndim == 2 and len(X) > 1 else _row_by_row(self.A, given)
        except DTypeError:
            raise
        except NotImplementedError as error:
            raise OptionError(
                f"a product with the LinearOperator is not implemented ({error}); least squares need rmatvec too"
            ) from error
        except ValueError as error:
            rows, n = self.A.shape
            raise ShapeError(
                f"a product with the LinearOperator failed ({error}); it must take {n} numbers and return {rows}"
            ) from error
        return scale(found, _factors(-(self.own + self.given)))

    def _columns(self, X: Array) -> Array:
        columns = _real(self.A.matmat(to_numpy(X).T.copy()))
        return like(np.ascontiguousarray(columns.T), X)

    def absolute(self, X: Array) -> Array:
        rows = self.A.shape[0]
        return like(np.zeros((*X.shape[:-1], rows)), X)

    def take(self, at: Any) -> ImplicitOperator:
        own, given = (e if at is ... or isinstance(e, int) else e[at] for e in (self.own, self.given))
        return replace(self, own=own, given=given)

    keep = take

    @property
    def product(self) -> Callable[[Array], Array]:
        return self.apply

    def products(self, X: Array) -> _Terms:
        return iter(())

    def blocks(self, index: Array, rows: Array | None = None) -> Array:
        raise NotImplementedError("a LinearOperator has no entries")


def _factors(e: Any) -> Any:
    """Exponents of lanes as those of their vectors."""
    return e if isinstance(e, int) else e[:, None]


def _row_by_row(A: Any, X: Array) -> Array:
    """A x of every row with a matrix or operator of SciPy's; faster than one product with all of them."""
    given = to_numpy(X)  # copied: a user's matvec may write into what it is given
    if given.ndim == 1:
        return like(_real(A @ given.copy()), X)
    return like(np.stack([_real(A @ x) for x in given.copy()]), X)


def _real(found: Any) -> np.ndarray:
    """The result of a product in float64, copied, since a user's matvec may return the same buffer again."""
    if np.iscomplexobj(found):
        raise DTypeError("a product with the LinearOperator is complex; only real systems can be solved")
    try:
        return np.array(found, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DTypeError(f"a product with the LinearOperator holds no numbers: {error}") from error
