"""Matrix Market files (``.mtx``): real coordinate or array files, general, symmetric or skew-symmetric."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nlaformer.errors import DTypeError, FileError, ShapeError
from nlaformer.problems.family import Draws, Family, option

LARGEST_DENSE = 2**14  # 2 GiB in float64


def read_matrix_market(path: str | os.PathLike[str]) -> Any:
    """A Matrix Market file as SciPy reads it, in float64: a ``coo`` matrix for coordinate files, else a 2-D array.

    Raises
    ------
    FileError : the file is missing or is not a Matrix Market file
    DTypeError : its entries are complex
    """
    from scipy.io import mmread

    path = Path(path)
    try:
        with open(path, "rb"):  # SciPy would look for other endings, and would not say why a file cannot be read
            pass
        matrix = mmread(path)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # whatever SciPy's parser or a decompressor thinks of a damaged file
        raise FileError(
            f"{path} is not a valid Matrix Market file ({error}); expected a first line like "
            "'%%MatrixMarket matrix coordinate real symmetric', then the sizes, then one entry per line"
        ) from error
    if matrix.dtype.kind == "c":
        raise DTypeError(f"{path} holds complex numbers; only real matrices can be used")
    return matrix.astype("float64")


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
        if rows > LARGEST_DENSE:
            raise ShapeError(
                f"{self.path} holds a matrix of {rows} x {rows}; the systems of a family are dense and at most "
                f"{LARGEST_DENSE} x {LARGEST_DENSE}. read_matrix_market gives the sparse matrix"
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
