"""Matrix Market files (``.mtx``): real coordinate or array files, general, symmetric or skew-symmetric.

Why not ``scipy.io.mmread``: on a damaged file it can crash the process (SciPy 1.17.1 reads past the end of a truncated
entry), and its messages do not name the file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nlaformer.errors import DTypeError, FileError, ShapeError, shown
from nlaformer.problems.base import Draws, Family, option

_LARGEST_DENSE = 2**14  # 2 GiB in float64
_LARGEST_INDEX = 2**53  # indices are parsed with the values, as float64
_LAYOUTS = ("coordinate", "array")
_NUMBERS = ("real", "double", "integer", "unsigned-integer", "pattern", "complex")
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


class _Header(NamedTuple):
    layout: str
    numbers: str
    symmetry: str
    sizes: tuple[int, ...]  # rows, columns and, of a coordinate file, entries


def read_matrix_market(path: str | os.PathLike[str]) -> Any:
    """A Matrix Market file in float64: a SciPy ``coo_array`` for coordinate files, else a 2-D NumPy array.

    Raises
    ------
    FileError : the file is missing or is not a valid Matrix Market file
    DTypeError : its entries are complex
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except (TypeError, ValueError) as error:
        raise FileError(f"{shown(path)} is not the path of a file: {error}") from error
    except OSError as error:
        raise FileError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    try:
        header, body = _read_header(lines)
        if header.numbers == "complex":
            raise DTypeError(f"{os.fspath(path)} holds complex numbers; only real matrices can be used")
        values = np.array(b" ".join(body).split(), dtype=np.float64)
        return _coordinate(header, values) if header.layout == "coordinate" else _array(header, values)
    except ValueError as error:
        raise FileError(
            f"{os.fspath(path)} is not a valid Matrix Market file: {error}. It should begin with a line like "
            "'%%MatrixMarket matrix coordinate real symmetric', then give the sizes, then one entry per line"
        ) from error


def _read_header(lines: list[bytes]) -> tuple[_Header, list[bytes]]:
    """The first line and the sizes, and the lines that follow."""
    first = lines[0].decode("ascii", "replace").lower().split() if lines else []
    if len(first) != 5 or first[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError("its first line is not a Matrix Market header")
    layout, numbers, symmetry = first[2:]
    for given, known in ((layout, _LAYOUTS), (numbers, _NUMBERS), (symmetry, _SYMMETRIES)):
        if given not in known:
            raise ValueError(f"{given!r} in its first line is none of {', '.join(known)}")
    for number, line in enumerate(lines[1:], start=2):
        if line.strip() and not line.startswith(b"%"):
            sizes = tuple(int(token) if token.isdigit() else -1 for token in line.split())
            expected = 3 if layout == "coordinate" else 2
            if len(sizes) != expected or not all(0 <= size < _LARGEST_INDEX for size in sizes):
                raise ValueError(
                    f"line {number} should hold {expected} sizes, not {line[:60].decode('ascii', 'replace')!r}"
                )
            if symmetry != "general" and sizes[0] != sizes[1]:
                raise ValueError(f"a {symmetry} matrix cannot be {sizes[0]} x {sizes[1]}")
            return _Header(layout, numbers, symmetry, sizes), lines[number:]
    raise ValueError("it ends before the sizes")


def _coordinate(header: _Header, values: np.ndarray) -> Any:
    from scipy.sparse import coo_array

    rows, columns, entries = header.sizes
    width = 2 if header.numbers == "pattern" else 3
    if len(values) != width * entries:
        raise ValueError(f"{entries} entries of {width} numbers each are announced, {len(values)} numbers follow")
    table = values.reshape(entries, width)
    i, j = table[:, 0], table[:, 1]
    for name, index, size in (("row", i, rows), ("column", j, columns)):
        if not np.all((index >= 1) & (index <= size) & (index == np.floor(index))):
            raise ValueError(f"a {name} index is not a whole number from 1 to {size}")
    a = table[:, 2] if width == 3 else np.ones(entries)
    i, j = i.astype(np.int64) - 1, j.astype(np.int64) - 1
    if header.symmetry != "general":
        if np.any(i < j) and np.any(i > j):
            raise ValueError(f"a {header.symmetry} file holds one triangle, this one has entries of both")
        skew, off = header.symmetry == "skew-symmetric", i != j
        if skew and not off.all():
            raise ValueError("a skew-symmetric matrix has no entries on its diagonal")
        sign = -1.0 if skew else 1.0
        i, j, a = np.append(i, j[off]), np.append(j, i[off]), np.append(a, sign * a[off])
    return coo_array((a, (i, j)), shape=(rows, columns))


def _array(header: _Header, values: np.ndarray) -> np.ndarray:
    """Column after column; of a symmetric matrix only the lower triangle, of a skew one without the diagonal."""
    if header.numbers == "pattern":
        raise ValueError("an array cannot be a pattern")
    rows, columns = header.sizes
    skew = header.symmetry == "skew-symmetric"
    expected = rows * columns if header.symmetry == "general" else rows * (rows - 1 if skew else rows + 1) // 2
    if len(values) != expected:
        raise ValueError(f"{expected} entries are needed, {len(values)} numbers follow")
    if header.symmetry == "general":
        return values.reshape(columns, rows).T
    j, i = np.triu_indices(rows, 1 if skew else 0)
    A = np.zeros((rows, rows))
    A[j, i] = -values if skew else values
    A[i, j] = values
    return A


@dataclass(frozen=True)
class MatrixMarket(Family):
    """The one matrix of a file, with random solutions: b = A x, x ~ N(0, I).

    Parameters
    ----------
    path : of the ``.mtx`` file; its matrix must be square
    """

    name: ClassVar[str] = "matrix-market"
    path: str = option("", "the path of a file", lambda v: isinstance(v, str) and bool(v), lambda v: _as_path(v))
    n: int = field(init=False, default=0, compare=False)
    _matrix: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        matrix = read_matrix_market(self.path)
        rows, columns = matrix.shape
        if rows != columns or not rows:
            raise ShapeError(f"{self.path} holds a matrix of {rows} x {columns}; a linear system needs a square one")
        if rows > _LARGEST_DENSE:
            raise ShapeError(
                f"{self.path} holds a matrix of {rows} x {rows}; the systems of a family are dense and at most "
                f"{_LARGEST_DENSE} x {_LARGEST_DENSE}. read_matrix_market gives the sparse matrix"
            )
        dense = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
        object.__setattr__(self, "n", rows)
        object.__setattr__(self, "_matrix", torch.tensor(dense, dtype=torch.float64))

    def matrices(self, draw: Draws, count: int) -> Tensor:
        return self._matrix.to(draw.uniform("like", 0)).repeat(count, 1, 1)


def from_matrix_market(path: str | os.PathLike[str]) -> MatrixMarket:
    r"""The family of one matrix, read from a ``.mtx`` file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> text = "%%MatrixMarket matrix coordinate real symmetric\n2 2 3\n1 1 4\n2 1 1\n2 2 3\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "A.mtx")
    ...     _ = file.write_text(text)
    ...     from_matrix_market(file).sample(1, seed=0).A
    tensor([[[4., 1.],
             [1., 3.]]], dtype=torch.float64)
    """
    return MatrixMarket(_as_path(path))


def _as_path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value
