"""Linear systems read from files, and answers written to files: ``.mtx`` (Matrix Market), ``.npy`` and ``.npz``.

An ``.npz`` file holds a sparse matrix of ``scipy.sparse.save_npz``, or arrays of ``numpy.savez``: the one with the name
that is looked for, or the only one. Nothing is unpickled, so reading a file runs no code. The indices of a sparse
matrix are checked, which SciPy's reader does not do: a product with a damaged matrix may crash the process.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from nlaformer.errors import DomainError, DTypeError, FileError, NLAFormerError, ShapeError
from nlaformer.io import replace_file
from nlaformer.problems.matrix_market import read_matrix_market
from nlaformer.solvers.sparse import is_sparse

_SUFFIXES = (".mtx", ".npy", ".npz")
WRITABLE = (".npy", ".mtx")
_LARGEST_DENSE = 2**31  # entries of right-hand sides given as a sparse matrix


def read_system(A: Path, b: Path | None, seed: int = 0) -> tuple[Any, np.ndarray]:
    """A matrix, or a batch of them, and right-hand sides; without a file for b, b is standard normal."""
    matrix = _read_array("A", A)
    shape = matrix.shape
    if len(shape) < 2 or 0 in shape:
        raise ShapeError(f"{A} holds an array of shape {shape}; a linear system needs matrices (..., m, n)")
    if is_sparse(matrix):
        matrix = _by_rows(A, matrix)
    if b is None:
        return matrix, np.random.default_rng(seed).standard_normal(shape[:-1])
    right = _read_array("b", b)
    n, rows = shape[-2], right.shape
    if n not in (rows[:1] if is_sparse(right) else rows[-2:]):
        raise ShapeError(
            f"{b} holds an array of shape {rows}; A {shape} needs (..., {n}), or (..., {n}, k) for k columns"
        )
    if is_sparse(right):
        if math.prod(rows) > _LARGEST_DENSE:
            raise ShapeError(f"{b} holds {rows[1]:,} right-hand sides, more than are solved at once; split the file")
        right = right.toarray()
    if b.suffix.lower() != ".npy" and right.shape == (n, 1):
        right = right[:, 0]  # a Matrix Market vector is a matrix of one column
    return matrix, right


def holds(name: str, path: Path) -> bool:
    """Whether a file is a readable archive with an array of this name."""
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{name}.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def preconditioner_option(M: str) -> Any:
    """The preconditioner that an option names: "jacobi", or a file with a matrix or a diagonal."""
    if M == "jacobi":
        return M
    if Path(M).suffix.lower() not in _SUFFIXES:
        raise FileError(f"M is {M!r}; expected jacobi, or a file that ends in {', '.join(_SUFFIXES)}")
    found = _read_array("M", Path(M))
    if is_sparse(found):
        return _by_rows(Path(M), found)
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def _read_array(name: str, path: Path) -> Any:
    """A dense array or a sparse matrix of real, finite numbers; ``name`` is looked for in an archive."""
    kind = path.suffix.lower()
    if kind not in _SUFFIXES:
        raise FileError(f"cannot tell what {path} holds; expected a file that ends in {', '.join(_SUFFIXES)}")
    if kind == ".mtx":
        found = read_matrix_market(path)
    else:
        try:
            # Mapping refuses pickles, and files shorter than their header says before any memory is allocated.
            found = np.array(open_memmap(path, mode="r")) if kind == ".npy" else _from_archive(name, path)
        except NLAFormerError:
            raise
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror or error}") from error
        except Exception as error:  # readers raise almost anything on a damaged file
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FileError(f"{path} is damaged or not a {kind} file ({reason}); save it again") from error
    return _usable(path, found)


def write_array(path: Path, x: np.ndarray) -> None:
    """Write an answer as ``.npy``, or as a Matrix Market array with a column for each right-hand side."""
    if path.suffix.lower() == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, x, allow_pickle=False)
        replace_file(path, buffer.getvalue())
        return
    if x.ndim > 2:
        raise ShapeError(f"the answer has shape {x.shape}, a Matrix Market file two dimensions; write a .npy file")
    columns = x.reshape(len(x), -1)
    lines = ["%%MatrixMarket matrix array real general", f"{columns.shape[0]} {columns.shape[1]}"]
    lines += [repr(float(value)) for value in columns.T.ravel()]
    replace_file(path, ("\n".join(lines) + "\n").encode())


def check_output(path: Path, kinds: tuple[str, ...], inputs: tuple[Path | None, ...] = ()) -> None:
    """Refuse, before any work, an output file that cannot be written or that is an input."""
    if path.suffix.lower() not in kinds:
        raise FileError(f"cannot write {path}; expected a file that ends in {' or '.join(kinds)}")
    if os.path.isdir(path) or not os.path.isdir(path.parent):  # Path's own raise for a name that is too long
        reason = "it is a folder" if os.path.isdir(path) else f"there is no folder {path.parent}"
        raise FileError(f"cannot write {path}: {reason}")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise FileError(f"cannot write {path}: you may not write there; name another file")
    if any(given is not None and path.resolve() == given.resolve() for given in inputs):
        raise FileError(f"{path} holds the system to be solved; name another file for the answer")


def _from_archive(name: str, path: Path) -> Any:
    with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as archive:  # the first says what is no archive
        if "format" in archive.files:
            return _sparse(path)
        if name not in archive.files and len(archive.files) != 1:
            held = ", ".join(archive.files) or "nothing"
            raise FileError(f"{path} holds {held}; expected an array called {name}, or only one")
        found = archive[name if name in archive.files else archive.files[0]]
    if not isinstance(found, np.ndarray):
        raise FileError(f"{path} is an archive, but holds no array; save it again with np.savez")
    return found


def _sparse(path: Path) -> Any:
    from scipy.sparse import coo_array, load_npz

    found = load_npz(path)
    if hasattr(found, "check_format"):
        found.check_format(full_check=True)
    return coo_array(found)


def _usable(path: Path, found: Any) -> Any:
    """Refuse numbers that are not real and finite, with an error that names the file."""
    if found.dtype.kind not in "biuf":
        raise DTypeError(f"{path} holds {found.dtype} values; expected real numbers")
    entries = found.data if is_sparse(found) else found
    if not np.isfinite(entries).all():
        count = int((~np.isfinite(entries)).sum())
        raise DomainError(f"{path} holds NaN or infinity in {count:,} of {entries.size:,} entries; remove them")
    if is_sparse(found) and found.ndim != 2:
        raise ShapeError(f"{path} holds a sparse array of shape {found.shape}; expected a matrix")
    return found


def _by_rows(path: Path, matrix: Any) -> Any:
    """A sparse matrix in CSR form, after a check of its size: a damaged file may claim any, and CSR allocates it."""
    from scipy.sparse import csr_array

    if matrix.nnz < matrix.shape[0]:
        raise ShapeError(
            f"{path} holds {matrix.nnz:,} entries in a matrix of {matrix.shape[0]:,} x {matrix.shape[1]:,}; a positive "
            "definite one has at least its diagonal"
        )
    return csr_array(matrix)
