"""What a user gives, an argument at a time: a matrix, real numbers, a tolerance; or an error that says why."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from nlaformer.arrays import is_tensor, plain, to_array, to_tensor
from nlaformer.errors import DTypeError, OptionError, ShapeError
from nlaformer.solvers.arithmetic import Array, to_numpy
from nlaformer.solvers.sparse import COMPLEX, is_sparse, to_csr


def is_array(matrices: Any) -> bool:
    """Whether it is dense."""
    return isinstance(matrices, np.ndarray) or is_tensor(matrices)


def read_matrix(name: str, value: Any, square: bool = True) -> Any:
    """A dense tensor (..., n, n), or a CSR array or LinearOperator of SciPy's: real, square if so, not empty."""
    found: Any = value
    if type(value) is np.ndarray:
        found = read_real(name, value)
    elif is_sparse(value):
        found = to_csr(name, value)
        if found.dtype.kind in "iu":
            _check_integers(name, found.data)
    elif not is_array(value) and hasattr(value, "matvec") and hasattr(value, "shape"):
        found = _linear_operator(name, value)
    else:
        found = read_real(name, value)
    shape = tuple(found.shape)
    if len(shape) < 2 or (square and shape[-1] != shape[-2]) or not math.prod(shape):
        wanted = "square matrices (..., n, n), n" if square else "matrices (..., m, n), m and n"
        raise ShapeError(f"{name} has shape {getattr(value, 'shape', shape)}; expected {wanted} from 1 on")
    return found


def _linear_operator(name: str, value: Any) -> Any:
    """What has a shape and a matvec as a LinearOperator of SciPy's, of real numbers."""
    from scipy.sparse.linalg import aslinearoperator

    try:
        found = aslinearoperator(value)
        kind = np.dtype(found.dtype).kind if found.dtype is not None else "f"
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"{name} is a {type(value).__name__} that SciPy cannot read as a LinearOperator: {error}"
        ) from error
    if kind == "c":
        raise DTypeError(f"{name} is complex ({found.dtype}); {COMPLEX}")
    if kind not in "biuf":
        raise DTypeError(f"{name} holds {found.dtype} values; only real systems can be solved")
    return found


def read_real(name: str, value: Any) -> Array:
    """A dense array of real numbers that float64 can hold: NumPy's, or a tensor if it is one."""
    if type(value) is np.ndarray and value.dtype == np.float64:
        return value
    found = to_tensor(name, value).detach() if is_tensor(value) else to_array(name, value)
    kind = str(found.dtype).removeprefix("torch.")
    if kind.startswith("complex"):
        raise DTypeError(f"{name} is complex ({found.dtype}); {COMPLEX}")
    if isinstance(found, np.ndarray) and found.itemsize > 8:
        raise DTypeError(f"{name} holds {kind} values; convert them to float64 or float32")
    if kind.startswith(("int", "uint")):
        _check_integers(name, found)
    return found


def _check_integers(name: str, values: Any) -> None:
    """Refuse whole numbers that float64 cannot hold: the answer would be that of another system."""
    array = to_numpy(values)
    if array.size and max(abs(int(array.min())), abs(int(array.max()))) > 2**53:
        raise DTypeError(f"{name} holds whole numbers beyond 2^53, which float64 does not hold exactly; convert them")


def result_dtype(*dtypes: Any) -> str:
    """The name of the widest precision among those given; whole numbers count as float64."""
    if all(dtype == np.float64 for dtype in dtypes):
        return "float64"
    kinds = {str(dtype).removeprefix("torch.") for dtype in dtypes}
    if kinds == {"float16"} or kinds == {"bfloat16"}:
        return kinds.pop()
    return "float32" if kinds <= {"float16", "bfloat16", "float32"} else "float64"


def read_tolerance(name: str, value: Any) -> float:
    """A finite number from 0 on, or an OptionError."""
    if type(value) is float and 0 <= value < math.inf:
        return value
    number = plain(value)
    try:
        found = float(number) if isinstance(number, (Real, Decimal)) and not isinstance(number, bool) else math.nan
    except (OverflowError, ValueError):
        found = math.nan
    if not 0 <= found < math.inf:
        raise OptionError(f"{name} must be a finite number from 0 on, not {value!r:.60}")
    return found
