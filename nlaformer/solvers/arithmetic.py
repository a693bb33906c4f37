"""One system, or several, in the same words.

A system ``Alone`` is a vector (n,), and its numbers are Python's: no array library makes them faster. ``Several`` are
the rows of an array (m, n), and their numbers are arrays (m,). The reader, the certificate and the iterations are
written once, for both and for the arrays of NumPy and torch; what differs is here.

A lane is one right-hand side with its matrix. The index of the only lane of a system alone is ``...``.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # NumPy's or torch's, float64
Number: TypeAlias = Any  # a float, or an array (m,)
Flag: TypeAlias = Any  # a bool, or an array (m,)


class Alone:
    """One system: vectors (n,), and Python's numbers."""

    alone = True

    def __init__(self, xp: Any, device: Any) -> None:
        self.xp, self.device, self.numpy = xp, device, device is None
        self.sqrt: Callable[[Number], Number] = math.sqrt
        self.isfinite: Callable[[Number], Flag] = math.isfinite
        self.no: Callable[[Flag], Flag] = operator.not_
        self.some: Callable[[Flag], bool] = bool
        # u.v; y + a x and a x, which may be in the place of y and of x. BLAS copies what is not contiguous.
        self.dot: Callable[[Array, Array], Number] = lambda u, v: float(u.dot(v))
        self.add: Callable[..., Array] = lambda x, y, a=1.0: y.add_(x, alpha=a)
        self.times: Callable[[Number, Array], Array] = lambda a, x: x.mul_(a)
        if self.numpy:
            from scipy.linalg.blas import daxpy, ddot, dscal

            self.dot, self.add, self.times = ddot, daxpy, dscal

    def peak(self, v: Array) -> Number:
        """The largest entry in absolute value."""
        return float(abs(v).max())

    def broken(self, rz: Number, curvature: Number) -> bool:
        """Whether one is no positive number."""
        return not (0 < rz < math.inf and 0 < curvature < math.inf)

    def lost(self, number: Number) -> bool:
        """Whether one is not finite."""
        return not math.isfinite(number)

    def column(self, a: Number) -> Number:
        """Numbers as factors of vectors."""
        return a

    def coefficients(self, rows: Array, v: Array) -> Array:
        """The products of v with vectors (k, n)."""
        return rows @ v

    def combination(self, weights: Array, rows: Array) -> Array:
        """The sum of vectors (k, n) with weights (k,)."""
        return weights @ rows

    def where(self, flag: Flag, a: Any, b: Any) -> Any:
        """A number, a where a flag is set and else b."""
        return a if flag else b

    def positions(self, flags: Flag) -> list[int]:
        """Where it is set."""
        return [0] if flags else []

    def list(self, numbers: Any) -> list[Any]:
        """Those of every lane as Python's."""
        return [numbers]

    def numbers(self, values: Sequence[Any]) -> Number:
        """Those of every lane."""
        return values[0]

    def at(self, lanes: Sequence[int]) -> Any:
        """The index of some lanes."""
        return ...


class Several:
    """Many systems: vectors are rows (m, n), and numbers arrays (m,)."""

    alone = False

    def __init__(self, xp: Any, device: Any) -> None:
        self.xp, self.device, self.numpy = xp, device, device is None
        self.sqrt: Callable[[Number], Number] = xp.sqrt
        self.isfinite: Callable[[Number], Flag] = xp.isfinite
        self.no: Callable[[Flag], Flag] = xp.logical_not
        self.where: Callable[[Flag, Any, Any], Any] = xp.where
        self.dot: Callable[[Array, Array], Number] = xp.vecdot if self.numpy else _products_of_rows

    def peak(self, v: Array) -> Number:
        """The largest entries of rows in absolute value."""
        return self.xp.max(abs(v), axis=-1)

    def add(self, x: Array, y: Array, a: Number | None = None) -> Array:
        """Return y + a x, in the place of y."""
        if a is None:
            y += x
        elif self.numpy:
            y += a[:, None] * x
        else:
            y.addcmul_(x, a[:, None])
        return y

    def times(self, a: Number, x: Array) -> Array:
        """Return a x, in the place of x."""
        x *= a[:, None]
        return x

    def broken(self, rz: Number, curvature: Number) -> bool:
        """Whether one is no positive number."""
        return not bool(((rz > 0) & (curvature > 0) & (curvature < math.inf)).all())

    def lost(self, number: Number) -> bool:
        """Whether one is not finite."""
        return not math.isfinite(number.sum())

    def column(self, a: Number) -> Number:
        """Numbers as factors of rows."""
        return a[:, None]

    def coefficients(self, rows: Array, v: Array) -> Array:
        """The products of every row v with its own vectors (m, k, n)."""
        return self.xp.matmul(rows, v[..., None])[..., 0]

    def combination(self, weights: Array, rows: Array) -> Array:
        """The sum of every lane's vectors (m, k, n) with weights (m, k)."""
        return self.xp.matmul(weights[:, None], rows)[:, 0]

    def some(self, flags: Flag) -> bool:
        """Whether one is set."""
        return bool(flags.any())

    def positions(self, flags: Flag) -> list[int]:
        """Where they are set."""
        found: list[int] = self.xp.nonzero(flags)[0].tolist()
        return found

    def list(self, numbers: Any) -> list[Any]:
        """Those of every lane as Python's."""
        found: list[Any] = numbers.tolist()
        return found

    def numbers(self, values: Sequence[Any]) -> Number:
        """Those of every lane."""
        kinds = {bool: self.xp.bool, int: self.xp.int64}
        return self.xp.asarray(values, dtype=kinds.get(type(values[0]), self.xp.float64), device=self.device)

    def at(self, lanes: Sequence[int]) -> Any:
        """The index of some lanes."""
        return self.xp.asarray(lanes, dtype=self.xp.int64, device=self.device)


def _products_of_rows(u: Array, v: Array) -> Number:
    return (u * v).sum(-1)


Form: TypeAlias = Alone | Several


def namespace(like: Array) -> Any:
    """The functions of the array library that an array belongs to."""
    return _namespace(None if isinstance(like, np.ndarray) else "torch")


@cache
def _namespace(library: str | None) -> Any:
    if library is None and hasattr(np, "vecdot"):
        return np  # which has the functions of the standard since version 2, and array_api_compat takes a while to load
    return importlib.import_module(f"array_api_compat.{library or 'numpy'}")


def form_of(like: Array) -> Form:
    """The form of vectors (n,) or (m, n)."""
    return _form(like.ndim == 1, None if isinstance(like, np.ndarray) else like.device)


@cache
def _form(alone: bool, device: Any) -> Form:
    xp = _namespace(None if device is None else "torch")
    return Alone(xp, device) if alone else Several(xp, device)


def exponent(magnitude: Any) -> Any:
    """The integers e for which 2^e is nearest to magnitudes in ratio, 0 for zero.

    >>> [exponent(x) for x in (1.0, 1.5, 0.0, 3e-320)]
    [0, 1, 0, -1061]
    """
    if isinstance(magnitude, float):
        mantissa, e = math.frexp(magnitude)
        return e - 1 if 0 < mantissa < 2**-0.5 else e
    if isinstance(magnitude, np.ndarray):
        mantissas, exponents = np.frexp(magnitude)
        return np.where((mantissas > 0) & (mantissas < 2**-0.5), exponents - 1, exponents)
    from nlaformer import prompt

    return prompt.exponent(magnitude)


def scale(X: Any, e: Any) -> Any:
    """Numbers or arrays times 2^e, exactly unless the result leaves the range of float64; e broadcasts against X.

    >>> scale(3e-320, 1064), scale(1.0, 2000), scale(np.ones(2), -1).tolist()
    (5.9296875, inf, [0.5, 0.5])
    """
    if isinstance(e, int) and e == 0:
        return X
    if isinstance(X, float):
        with np.errstate(over="ignore"):
            return float(np.ldexp(X, e))
    if isinstance(X, np.ndarray):
        return np.ldexp(X, e)
    import torch

    from nlaformer import prompt

    return prompt.scale(X, torch.as_tensor(e, device=X.device))


def transpose(A: Array) -> Array:
    """A^T of every matrix, without a copy."""
    return A.swapaxes(-2, -1)


def cast(X: Array, dtype: str) -> Array:
    """The numbers in a precision, which NumPy may not have: then as a tensor; without a copy where that is possible."""
    if isinstance(X, np.ndarray) and dtype != "bfloat16":
        return X.astype(dtype, copy=False)
    import torch

    return to_torch(X).to(getattr(torch, dtype))


def to_numpy(X: Array) -> np.ndarray:
    """The array as one of NumPy's, which lacks bfloat16, without a copy where that is possible."""
    if isinstance(X, np.ndarray):
        return X
    return (X.float() if str(X.dtype) == "torch.bfloat16" else X).detach().cpu().numpy()


def like(X: Any, other: Array) -> Array:
    """An array of NumPy's or torch's in the kind, and on the device, of another one."""
    if isinstance(other, np.ndarray):
        return to_numpy(X)
    import torch

    return torch.as_tensor(X).to(other)


def to_torch(X: Array) -> Any:
    """The array as a tensor, without a copy where that is possible."""
    import torch

    if not isinstance(X, np.ndarray):
        return X
    usable = X.flags.writeable and min(X.strides, default=0) >= 0  # torch warns of others, or refuses them
    return torch.from_numpy(X if usable else X.copy())
