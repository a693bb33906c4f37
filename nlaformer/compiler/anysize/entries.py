"""Matrices as the prompt holds them: for each row, in slots, the addresses of its entries and their codes.

Entry s of row i stands at slot s of token i. A^T has slots of its own, since a head by address reads the entries of its
own row alone. The diagonal and the sums of the squares of each row stand beside them, as rows of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from nlaformer.compiler.anysize.weights import ABSENT
from nlaformer.errors import DomainError, ShapeError


@dataclass(frozen=True)
class Slots:
    """A matrix by rows: ``slot`` has the number of each entry in its row."""

    matrix: sp.csr_array
    slot: np.ndarray

    @classmethod
    def of(cls, matrix: sp.csr_array) -> Slots:
        first = np.repeat(matrix.indptr[:-1], np.diff(matrix.indptr))
        return cls(matrix, (np.arange(matrix.nnz, dtype=np.int64) - first).astype(np.int32))

    @property
    def longest(self) -> int:
        return int(np.diff(self.matrix.indptr).max(initial=0))

    def tables(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Columns and entries by row and slot, (n, count) each; 0 where a row has no such entry."""
        n = self.matrix.shape[0]
        row = np.repeat(np.arange(n), np.diff(self.matrix.indptr))
        column, entry = np.zeros((n, count), np.int64), np.zeros((n, count))
        column[row, self.slot], entry[row, self.slot] = self.matrix.indices, self.matrix.data
        return column, entry


def code(entry: Any, gain: float) -> Any:
    """log(|a| / (g - |a|)), as a slot holds an entry."""
    size = np.abs(entry)
    with np.errstate(divide="ignore"):
        return np.where(size > 0, np.log(size / (gain - size)), ABSENT)


def sparse(name: str, value: Any) -> sp.csr_array:
    """A matrix of SciPy, torch or NumPy as CSR in float64, each entry once, no zeros; ShapeError if it is none."""
    if isinstance(value, Tensor):
        value = _of_torch(value.detach().cpu())
    if not sp.issparse(value):
        value = np.asarray(value, dtype=float)
        if value.ndim != 2:
            raise ShapeError(f"{name} has shape {value.shape}; expected one matrix, sparse or dense")
    matrix = sp.csr_array(value)
    if matrix.dtype.kind not in "biuf":
        raise ShapeError(f"{name} is a matrix of {matrix.dtype}; expected real numbers")
    if matrix is value or np.shares_memory(matrix.data, getattr(value, "data", matrix.data)):
        matrix = matrix.copy()
    matrix = matrix.astype(np.float64)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if not np.isfinite(matrix.data).all():
        raise DomainError(f"{name} has entries that are not finite")
    return matrix


def _of_torch(value: Tensor) -> Any:
    if value.layout == torch.strided:
        return value.numpy()
    if value.layout in (torch.sparse_csr, torch.sparse_csc):
        kind = sp.csr_array if value.layout == torch.sparse_csr else sp.csc_array
        pointers = value.crow_indices() if value.layout == torch.sparse_csr else value.ccol_indices()
        indices = value.col_indices() if value.layout == torch.sparse_csr else value.row_indices()
        return kind((value.values().numpy(), indices.numpy(), pointers.numpy()), shape=tuple(value.shape))
    held = value.to_sparse_coo().coalesce()
    return sp.coo_array((held.values().numpy(), tuple(held.indices().numpy())), shape=tuple(value.shape))


def padded(matrix: sp.csr_array, n: int) -> sp.csr_array:
    """With rows and columns of zeros, n x n."""
    if matrix.shape == (n, n):
        return matrix
    pointers = np.append(matrix.indptr, np.full(n - matrix.shape[0], matrix.indptr[-1], matrix.indptr.dtype))
    return sp.csr_array((matrix.data, matrix.indices, pointers), shape=(n, n))


def transposed(matrix: sp.csr_array) -> sp.csr_array:
    return sp.csr_array(matrix.T.tocsr())


def beside(name: str, matrices: Mapping[str, sp.csr_array], n: int) -> Any:
    """What stands beside the inputs under a name: a diagonal, sums of squares by row, log n."""
    if name == "log n":
        return float(np.log(n))
    what, matrix = name.split(" of ")
    if what == "diagonal":
        return matrices[matrix].diagonal()
    squares = matrices[matrix.removesuffix(".T")].copy()
    squares.data = squares.data**2
    return np.asarray(squares.sum(axis=0 if matrix.endswith(".T") else 1)).ravel()


def bits(numbers: Any, count: int) -> np.ndarray:
    """Whole numbers as rows of 0 and 1, (count, ...)."""
    numbers = np.asarray(numbers, np.int64)
    return np.stack([(numbers >> k) & 1 for k in range(count)]).astype(float)


def longest_row(name: str, parts: Iterable[Slots], slots: int) -> None:
    """Refuse rows with more entries than there are slots."""
    needed = max((part.longest for part in parts), default=0)
    if needed > slots:
        raise ShapeError(
            f"{name} has a row or column with {needed:,} entries; these weights have {slots} slots for a row. "
            f"Compile with slots={needed}"
        )
