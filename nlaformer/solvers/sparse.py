"""Sparse matrices of SciPy and torch, checked and brought into CSR form.

Neither library looks at the indices of a matrix that exists: a product with one whose indices were damaged reads or
writes foreign memory. Every index is therefore checked here, and read as numbers before any compiled routine sees it.
"""

from __future__ import annotations

import sys
from itertools import chain
from typing import Any

import numpy as np

from nlaformer.arrays import is_tensor
from nlaformer.errors import DTypeError, NLAFormerError, ShapeError

# What a matrix whose parts do not fit together may raise while it is read.
_MALFORMED = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError, MemoryError)
_TORCH_LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
COMPLEX = "only real numbers are taken here; the solvers of scipy.sparse.linalg take complex ones"
_COMPRESSED = ("csr", "csc", "bsr")


def is_sparse(value: Any) -> bool:
    """Whether a value is a sparse matrix of SciPy or a sparse tensor of torch."""
    if is_tensor(value):
        return str(value.layout).removeprefix("torch.") in _TORCH_LAYOUTS
    scipy_sparse = sys.modules.get("scipy.sparse")  # which a matrix of its kind has loaded
    return scipy_sparse is not None and bool(scipy_sparse.issparse(value))


def to_csr(name: str, value: Any) -> Any:
    """A CSR array with sorted indices, without duplicates; the given matrix is not changed."""
    if len(value.shape) != 2:
        raise ShapeError(f"{name} is sparse, of shape {tuple(value.shape)}; expected one matrix (n, n)")
    if is_tensor(value) and value.device.type == "meta":
        raise DTypeError(f"{name} is a tensor without numbers, on the device meta; expected numbers")
    try:
        csr = _of_torch(name, value) if is_tensor(value) else _of_scipy(name, value)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
    except NLAFormerError:
        raise
    except _MALFORMED as error:
        raise ShapeError(f"{name} is a damaged sparse matrix ({error}); build it again") from error
    return csr


def _of_scipy(name: str, matrix: Any) -> Any:
    from scipy.sparse import csr_array

    if matrix.format not in _COMPRESSED:
        rows, columns, values = _coordinates(matrix)
        return _assembled(name, rows, columns, values, matrix.shape)
    _check_numbers(name, matrix.dtype)
    if isinstance(matrix.data, np.ma.MaskedArray):
        raise DTypeError(f"{name} has masked entries; a sparse matrix leaves out what is 0")
    twin = type(matrix)(matrix)  # of the same arrays: the check changes attributes
    twin.check_format(full_check=True)
    twin.data = _native(twin.data)
    return csr_array(twin)


def _coordinates(matrix: Any) -> tuple[Any, Any, Any]:
    """The row, the column and the value of every entry."""
    if matrix.format == "lil":
        if not len(matrix.rows) == len(matrix.data) == matrix.shape[0]:
            raise ValueError("it has another number of rows than its shape says")
        lengths = [len(columns) for columns in matrix.rows]
        if lengths != [len(values) for values in matrix.data]:
            raise ValueError("a row has more indices than values, or fewer")
        rows = np.repeat(np.arange(len(lengths)), lengths)
        return rows, list(chain(*matrix.rows)), np.array(list(chain(*matrix.data)), dtype=_native_type(matrix.dtype))
    if matrix.format == "dok":
        keys = np.array(list(matrix.keys()) or np.zeros((0, 2), np.int64))
        return keys[:, 0], keys[:, 1], np.array(list(matrix.values()), dtype=_native_type(matrix.dtype))
    if matrix.format == "dia":  # a diagonal outside the matrix is empty, but SciPy takes the lower 32 bits of offsets
        if matrix.data.shape[:1] != matrix.offsets.shape:
            raise ValueError("it has more offsets than diagonals, or fewer")
        inside = (matrix.offsets > -matrix.shape[0]) & (matrix.offsets < matrix.shape[1])
        native = (_native(matrix.data[inside]), _native(matrix.offsets[inside]))
        matrix = type(matrix)(native, shape=matrix.shape).tocoo()
    return matrix.row, matrix.col, matrix.data


def _assembled(name: str, rows: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
    """A CSR array of entries whose indices were checked."""
    from scipy.sparse import coo_array

    indices = []
    for which, given, size in (("row", rows, shape[0]), ("column", columns, shape[1])):
        index = np.asarray(given)
        if index.size and index.dtype.kind not in "iu":
            raise ValueError(f"its {which} indices are {index.dtype}, not whole numbers")
        if index.shape != np.shape(values) or index.ndim != 1:
            raise ValueError(f"it has {index.size} {which} indices for {np.size(values)} values")
        if index.size and not (index.min() >= 0 and index.max() < size):
            raise ValueError(f"a {which} index lies outside the {size} {which}s")
        indices.append(index.astype(np.int64))
    values = np.asarray(values)
    _check_numbers(name, values.dtype)
    return coo_array((_native(values), tuple(indices)), shape=shape).tocsr()


def _check_numbers(name: str, dtype: Any) -> None:
    if np.dtype(dtype).kind == "c":
        raise DTypeError(f"{name} is complex ({dtype}); {COMPLEX}")
    if np.dtype(dtype).kind not in "biuf" or np.dtype(dtype).itemsize > 8:
        raise DTypeError(f"{name} holds {dtype} values; convert them to float64 or float32")


def _native(values: Any) -> Any:
    """Numbers in the byte order of this machine, in a type that SciPy computes with."""
    return values.astype(_native_type(values.dtype), copy=False)


def _native_type(dtype: Any) -> Any:
    kind = np.dtype(dtype)
    if kind.kind in "iu" and kind.itemsize < 8:  # entries that stand twice are summed
        return np.dtype(np.int64)
    return np.dtype(np.float32) if kind == np.float16 else kind.newbyteorder("=")


def _of_torch(name: str, value: Any) -> Any:
    import torch

    if value.is_complex():
        raise DTypeError(f"{name} is complex ({value.dtype}); {COMPLEX}")
    if value.dense_dim():
        raise ShapeError(
            f"{name} is sparse in some dimensions and dense in others; expected one kind: {name}.to_dense()"
        )
    value = value.detach()
    if value.layout == torch.sparse_coo:
        checked = torch.sparse_coo_tensor(value._indices(), value._values(), value.shape, check_invariants=True)
    else:
        by_row = value.layout in (torch.sparse_csr, torch.sparse_bsr)
        pointers = value.crow_indices() if by_row else value.ccol_indices()
        indices = value.col_indices() if by_row else value.row_indices()
        checked = torch.sparse_compressed_tensor(
            pointers, indices, value.values(), value.shape, layout=value.layout, check_invariants=True
        ).to_sparse_coo()
    checked = checked.coalesce().cpu()
    entries = checked.values().double() if checked.dtype in (torch.float16, torch.bfloat16) else checked.values()
    rows, columns = checked.indices().numpy()
    return _assembled(name, rows, columns, entries.numpy(), (value.shape[0], value.shape[1]))
