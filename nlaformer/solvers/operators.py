"""The matrices of many systems behind one interface: dense, sparse, or known only by their products.

A lane is one right-hand side; X (m, n) holds a vector for each of m lanes. Several lanes may share a matrix. Matrices
of least squares have other numbers of rows than of columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from nlaformer.errors import DTypeError, OptionError, ShapeError
from nlaformer.prompt import scale

_Terms = Iterator[tuple[Tensor, Tensor, Tensor | None]]


class Operator(Protocol):
    """What the iterations and the certificate need of a matrix."""

    @property
    def terms(self) -> int:
        """The largest number of products in any component of A x; 0 if unknown."""

    @property
    def transposed(self) -> Operator:
        """The operator of A^T."""

    def apply(self, X: Tensor) -> Tensor:
        """A x of every lane."""

    def absolute(self, X: Tensor) -> Tensor:
        """|A| x of every lane, or zero if the entries are not known."""

    def take(self, lanes: Tensor) -> Operator:
        """The operator of some lanes."""

    def products(self, X: Tensor) -> _Terms:
        """A x, one term of every sum at a time: factors a and x, and the components they add to (None: all)."""

    def blocks(self, index: Tensor, rows: Tensor | None = None) -> Tensor:
        """The entries of A at (rows x index) of every matrix: index (k, s) -> (G, k, s, s); rows are the index."""


@dataclass(frozen=True)
class DenseOperator:
    """G matrices, each shared by m / G consecutive lanes."""

    A: Tensor  # (G, n, n), or (G, rows, n)
    shared: int  # lanes to a matrix

    @property
    def terms(self) -> int:
        return self.A.shape[-1]

    @property
    def transposed(self) -> DenseOperator:
        return DenseOperator(self.A.mT, self.shared)

    def apply(self, X: Tensor) -> Tensor:
        return self._product(self.A, X)

    def absolute(self, X: Tensor) -> Tensor:
        return self._product(self.A.abs(), X)

    def _product(self, A: Tensor, X: Tensor) -> Tensor:
        return (X.reshape(len(A), self.shared, -1) @ A.mT).reshape(len(X), A.shape[-2])

    def take(self, lanes: Tensor) -> DenseOperator:
        if len(self.A) == 1:
            return DenseOperator(self.A, len(lanes))
        every = torch.arange(len(self.A) * self.shared, device=lanes.device)
        if len(lanes) == len(every) and bool((lanes == every).all()):
            return self  # the lanes of a matrix keep sharing it
        return DenseOperator(self.A[lanes // self.shared], 1)

    def products(self, X: Tensor) -> _Terms:
        X = X.reshape(len(self.A), self.shared, -1)
        for j in range(self.terms):
            a = self.A[:, None, :, j].expand(-1, self.shared, -1)
            yield a.flatten(0, 1), X[..., j, None].expand_as(a).flatten(0, 1), None

    def blocks(self, index: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.A[:, (index if rows is None else rows)[:, :, None], index[:, None, :]]


@dataclass(frozen=True)
class SparseOperator:
    """One SciPy matrix in CSR form for all lanes; products are computed on the CPU."""

    A: Any  # csr_array, float64, (n, n), or (rows, n)

    @property
    def terms(self) -> int:
        return int(np.diff(self.A.indptr).max())

    @property
    def transposed(self) -> SparseOperator:
        return SparseOperator(self.A.T.tocsr())

    def apply(self, X: Tensor) -> Tensor:
        return _row_by_row(self.A, X)

    def absolute(self, X: Tensor) -> Tensor:
        return _row_by_row(abs(self.A), X)

    def take(self, lanes: Tensor) -> SparseOperator:
        return self

    def products(self, X: Tensor) -> _Terms:
        # Rows in order of their length: those that have a k-th entry are then the first ones.
        start, length = self.A.indptr[:-1], np.diff(self.A.indptr)
        order = np.argsort(-length, kind="stable")
        for k in range(self.terms):
            rows = order[: np.searchsorted(-length[order], -k)]
            at = start[rows] + k
            a = torch.from_numpy(self.A.data[at]).expand(len(X), -1)
            yield a, X[:, torch.from_numpy(self.A.indices[at].astype(np.int64))], torch.from_numpy(rows)

    def blocks(self, index: Tensor, rows: Tensor | None = None) -> Tensor:
        pairs = zip(index.numpy(), (index if rows is None else rows).numpy(), strict=True)
        parts = [torch.from_numpy(self.A[j][:, i].toarray()) for i, j in pairs]
        return torch.stack(parts)[None]


@dataclass(frozen=True)
class ImplicitOperator:
    """A LinearOperator of SciPy: only its products are known.

    Lanes are scaled by powers of two, and a function that is not quite linear (it saturates, or overflows) does not
    notice vectors near 1. The certificate therefore applies it to vectors in the user's units, ``in_units``.
    """

    A: Any
    exponents: Tensor  # (m, 2) of A itself and of the vectors that it is applied to; 0 leaves them as they are
    terms: int = 0

    @classmethod
    def of(cls, A: Any, lanes: int, device: torch.device | None = None) -> ImplicitOperator:
        """The operator of some lanes, whose vectors, on a device, are passed as they are."""
        return cls(A, torch.zeros(lanes, 2, dtype=torch.int32, device=device))

    def scaled(self, exponent: Tensor) -> ImplicitOperator:
        """The operator of A / 2^e."""
        return replace(self, exponents=torch.stack([exponent, self.exponents[:, 1]], -1))

    def in_units(self, exponent: Tensor) -> ImplicitOperator:
        """The operator that sees 2^e x of every lane, and divides what it gives by 2^e."""
        return replace(self, exponents=torch.stack([self.exponents[:, 0], exponent], -1))

    @property
    def unit(self) -> float:
        """The rounding error that its products may be expected to have, relative to |A| |x|."""
        single = self.A.dtype is not None and np.dtype(self.A.dtype) in (np.float32, np.float16)
        return float(np.finfo(self.A.dtype if single else np.float64).eps) / 2

    @property
    def transposed(self) -> ImplicitOperator:
        return replace(self, A=self.A.T)

    def apply(self, X: Tensor) -> Tensor:
        given = scale(X, self.exponents[:, 1:])
        try:
            found = _row_by_row(self.A, given) if len(X) == 1 else self._columns(given)
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
        return scale(found, -self.exponents.sum(-1, keepdim=True))

    def _columns(self, X: Tensor) -> Tensor:
        columns = _real(self.A.matmat(X.cpu().numpy().T.copy()))
        return torch.from_numpy(np.ascontiguousarray(columns.T)).to(X.device)

    def absolute(self, X: Tensor) -> Tensor:
        return X.new_zeros(len(X), self.A.shape[0])

    def take(self, lanes: Tensor) -> ImplicitOperator:
        return replace(self, exponents=self.exponents[lanes])

    def products(self, X: Tensor) -> _Terms:
        return iter(())

    def blocks(self, index: Tensor, rows: Tensor | None = None) -> Tensor:
        raise NotImplementedError("a LinearOperator has no entries")


def _row_by_row(A: Any, X: Tensor) -> Tensor:
    """A x of every row with a matrix or operator of SciPy's; faster than one product with all of them."""
    return torch.from_numpy(np.stack([_real(A @ x) for x in X.cpu().numpy().copy()])).to(X.device)


def _real(found: Any) -> np.ndarray:
    """The result of a product in float64, copied, since a user's matvec may return the same buffer again."""
    if np.iscomplexobj(found):
        raise DTypeError("a product with the LinearOperator is complex; only real systems can be solved")
    try:
        return np.array(found, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DTypeError(f"a product with the LinearOperator holds no numbers: {error}") from error
