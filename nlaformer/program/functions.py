"""The functions of NumPy and torch that compute something of several entries, each written in NumPy.

A function stands under NumPy's name, and under torch's where that is another; under ``torch.`` and the name where torch
has another function of this name. Its arguments beyond the arrays are those that can be compiled: any other
(``where=``, ``dtype=``) is refused (``numpy.py``).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from nlaformer.program.arrays import Array, tracing_of
from nlaformer.program.ir import RefusedError

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def registered(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function under these names."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def array(*values: Any) -> Any:
    """The first of some values as an array, beside traced ones."""
    tracing = tracing_of(*values)
    if tracing is None or isinstance(values[0], Array):
        return values[0]
    return tracing.array(tracing.node(values[0]))


# --- entry by entry ---


@registered("power", "float_power", "pow", "linalg.power")
def power(v: Any, p: Any) -> Any:
    """Whole powers as products, halves with a root, others as exp(p log v), where v must be positive."""
    if isinstance(p, Array):
        return np.exp(p * np.log(v))
    if np.ndim(p) or not isinstance(p, (int, float, np.number)) or not np.isfinite(p):
        raise RefusedError(f"the power {p!r:.40}; powers are numbers")
    p = float(p)
    if p < 0:
        return 1.0 / power(v, -p)
    if p % 1 == 0.5:
        return np.sqrt(v) * power(v, p - 0.5) if p > 0.5 else np.sqrt(v)
    if p % 1 or p > 64:
        return np.exp(p * np.log(v))
    return _whole_power(v, int(p)) if p else np.ones_like(v)


def _whole_power(v: Any, p: int) -> Any:
    if p > 8:
        half = _whole_power(v, p // 2)
        return half * half * v if p % 2 else half * half
    return functools.reduce(operator.mul, [v] * p) if p > 1 else v.copy()


@registered("clip", "clamp")
def clip(v: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    low, high = a_min if min is None else min, a_max if max is None else max
    v = array(v, low, high)
    v = v.copy() if low is None else np.maximum(v, low)
    return v if high is None else np.minimum(v, high)


FUNCTIONS["clamp_min"], FUNCTIONS["clamp_max"] = lambda v, min: np.maximum(v, min), lambda v, max: np.minimum(v, max)


@registered("where")
def where(condition: Any, x: Any, y: Any) -> Any:
    """Of a condition that is known beforehand, entries are only moved."""
    condition = array(condition, x, y)
    tracing = condition.tracing
    if condition.node.op != "constant":
        return (condition if condition.truth else np.not_equal(condition, 0.0)).apply("where", x, y)
    nodes = tracing.node(x), tracing.node(y)
    first, second = (np.arange(node.size).reshape(node.shape) for node in nodes)
    return tracing.array(tracing.graph.move(nodes, np.where(condition.node.extra, first, second + first.size)))


FUNCTIONS |= dict.fromkeys(("conj", "conjugate", "positive", "clone"), lambda v: v.copy())
FUNCTIONS |= dict.fromkeys(("detach", "torch.conj", "real"), lambda v: v[...])


# --- products ---


@registered("dot", "torch.matmul")
def dot(u: Any, v: Any) -> Any:
    return u * v if np.ndim(u) == 0 or np.ndim(v) == 0 else np.matmul(u, v)


@registered("vdot")
def vdot(u: Any, v: Any) -> Any:
    return u @ v if np.ndim(u) == np.ndim(v) == 1 else np.sum(array(u, v) * v)


@registered("inner")
def inner(u: Any, v: Any) -> Any:
    return dot(u, v if np.ndim(v) < 2 or not np.ndim(u) else np.swapaxes(v, -1, -2))


@registered("vecdot", "linalg.vecdot")
def vecdot(x1: Any, x2: Any) -> Any:
    return np.sum(x1 * x2, axis=-1)


FUNCTIONS["matvec"] = lambda A, v: inner(v, A)  # the rows of a second matrix are vectors, too
FUNCTIONS["vecmat"] = lambda v, A: dot(v, A)


@registered("outer", "linalg.outer", "torch.ger")
def outer(u: Any, v: Any) -> Any:
    return np.reshape(u, (-1, 1)) * np.reshape(v, (1, -1))


@registered("kron")
def kron(a: Any, b: Any) -> Any:
    a, b = array(a, b), array(b, a)
    if a.ndim != b.ndim or a.ndim > 2:
        raise RefusedError(f"np.kron of the shapes {a.shape} and {b.shape}; two vectors or two matrices have one")
    large = functools.reduce(lambda v, axis: np.repeat(v, b.shape[axis], axis), range(a.ndim), a)
    return large * np.tile(b, a.shape)


@registered("linalg.multi_dot")
def multi_dot(arrays: Any) -> Any:
    return functools.reduce(np.matmul, arrays)


@registered("convolve")
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """The product of a Toeplitz matrix, whose entries are moved, and the shorter one."""
    a, v = array(a, v), array(v, a)
    if len(a) < len(v):
        a, v = v, a
    k, n = len(v), len(a)
    places = np.arange(n + k - 1)[:, None] - np.arange(k)
    T = np.concatenate([a, [0.0]])[np.where((places >= 0) & (places < n), places, n)]
    if mode not in ("full", "same", "valid"):
        raise RefusedError(f"np.convolve with mode={mode!r:.20}; expected full, same or valid")
    cut = {"full": 0, "same": (k - 1) // 2, "valid": k - 1}[mode]
    count = {"full": n + k - 1, "same": n, "valid": n - k + 1}[mode]
    return T[cut : cut + count] @ v


@registered("linalg.matrix_power", "matrix_power")
def matrix_power(A: Any, n: Any) -> Any:
    if not isinstance(n, (int, np.integer)) or not 1 <= n <= 64:
        raise RefusedError(f"the power {n!r} of a matrix; whole powers from 1 are products")
    return functools.reduce(np.matmul, [A] * int(n))


# --- norms ---


@registered("linalg.norm")
def norm(v: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Of rows or columns where there is one axis; the orders 1 and inf of a matrix are the largest of these."""
    matrix = np.ndim(v) == 2 if axis is None else np.size(axis) == 2
    if not matrix or ord is None:
        return vector_norm(v, 2 if ord is None else ord, axis, keepdims)
    if ord == "fro":
        return vector_norm(v, 2, axis, keepdims)
    if ord not in (1, np.inf):
        raise RefusedError(f"the norm of order {ord!r} of a matrix cannot be compiled; {_NORMS['matrix']}")
    first, second = (0, 1) if axis is None else axis
    sums = np.sum(np.abs(v), axis=first if ord == 1 else second, keepdims=True)
    return np.max(sums, axis=axis, keepdims=keepdims)


@registered("linalg.vector_norm", "norm")
def vector_norm(v: Any, ord: Any = 2, axis: Any = None, keepdims: bool = False) -> Any:
    """Of all entries of a matrix, too; torch.norm is this one, and has "fro" for 2."""
    v = array(v)
    if ord in (1, 2, np.inf, "fro") and not v.shape:
        return np.abs(v)
    if ord in (2, "fro"):
        return np.sqrt(np.sum(v * v, axis=axis, keepdims=keepdims))
    if ord in (1, np.inf):
        return (np.sum if ord == 1 else np.max)(np.abs(v), axis=axis, keepdims=keepdims)
    raise RefusedError(f"the norm of order {ord!r} of a vector cannot be compiled; {_NORMS['vector']}")


FUNCTIONS["linalg.matrix_norm"] = lambda v, ord="fro", axis=None, keepdims=False: norm(v, ord, axis, keepdims)
_NORMS = {
    "vector": "the orders 1, 2 and np.inf can, and np.sum(np.abs(v) ** p) ** (1 / p) is that of order p",
    "matrix": "the orders 1, np.inf and 'fro' can; the state value of singular_vectors in nf.algorithms() is that of 2",
}

# --- sums, products and extremes over axes ---


def axes_of(v: Any, axis: Any) -> tuple[int, ...]:
    """The axes that are meant, counted from 0."""
    if axis is None:
        return tuple(range(v.ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    whole = (k for k in given if isinstance(k, (int, np.integer)) and not isinstance(k, bool))
    found = {int(k) % v.ndim for k in whole if -v.ndim <= k < v.ndim}
    if not found or len(found) < len(given):
        has = ["a scalar has none", "a vector has the axis 0", "a matrix has the axes 0 and 1"]
        raise RefusedError(f"axis {axis!r:.40}; {has[v.ndim] if v.ndim < 3 else f'the array has {v.ndim} axes'}")
    return tuple(sorted(found))


def _reduction(op: str) -> Callable[..., Any]:
    def function(v: Any, axis: Any = None, keepdims: bool = False) -> Any:
        v = array(v)
        return v.apply(op, extra=(axes_of(v, axis), bool(keepdims)))

    return function


total = registered("sum", "add.reduce of all")(_reduction("sum"))
largest = registered("max", "amax", "maximum.reduce of all")(_reduction("max"))
smallest = registered("min", "amin", "minimum.reduce of all")(_reduction("min"))
for _name, _function in (("add", total), ("maximum", largest), ("minimum", smallest)):
    FUNCTIONS[f"{_name}.reduce"] = lambda v, axis=0, keepdims=False, of=_function: of(v, axis, keepdims)


def _count(v: Any, axis: Any) -> int:
    return int(np.prod([v.shape[k] for k in axes_of(v, axis)], dtype=int))


@registered("mean")
def mean(v: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return total(v, axis, keepdims) / _count(array(v), axis)


@registered("var")
def var(v: Any, axis: Any = None, *, ddof: Any = 0, correction: Any = 0, keepdims: bool = False) -> Any:
    v, ddof = array(v), ddof or correction
    count = _count(v, axis)
    if count <= ddof:
        raise RefusedError(f"{count} entries, less the correction {ddof}: nothing is left to divide by")
    deviation = v - mean(v, axis, keepdims=True)
    return total(deviation * deviation, axis, keepdims) / (count - ddof)


@registered("torch.var")
def torch_var(v: Any, axis: Any = None, *, unbiased: bool = True, correction: Any = None) -> Any:
    """With Bessel's correction, unless it is told otherwise."""
    if isinstance(axis, bool):
        axis, unbiased = None, axis
    return var(v, axis, ddof=int(unbiased) if correction is None else correction)


@registered("std")
def std(v: Any, axis: Any = None, *, ddof: Any = 0, correction: Any = 0, keepdims: bool = False) -> Any:
    return np.sqrt(var(v, axis, ddof=ddof, correction=correction, keepdims=keepdims))


FUNCTIONS["torch.std"] = lambda v, axis=None, *, unbiased=True, correction=None: np.sqrt(
    torch_var(v, axis, unbiased=unbiased, correction=correction)
)


def _of_torch(of_all: Callable[..., Any], larger: Callable[..., Any]) -> Callable[..., Any]:
    def function(v: Any, other: Any = None) -> Any:
        if isinstance(other, int):
            raise RefusedError("an axis, for which torch gives places, too; write torch.amax or torch.amin")
        return of_all(v) if other is None else larger(v, other)

    return function


FUNCTIONS["torch.max"], FUNCTIONS["torch.min"] = _of_torch(largest, np.maximum), _of_torch(smallest, np.minimum)
FUNCTIONS["ptp"] = lambda v, axis=None: largest(v, axis) - smallest(v, axis)
FUNCTIONS["any"] = lambda v, axis=None, keepdims=False: total(np.abs(np.sign(v)), axis, keepdims) > 0
FUNCTIONS["all"] = lambda v, axis=None, keepdims=False: np.logical_not(
    FUNCTIONS["any"](np.logical_not(v), axis, keepdims)
)


@registered("prod")
def prod(v: Any, axis: Any = None) -> Any:
    """By halves, so that few layers make it."""
    v = array(v)
    for k in reversed(axes_of(v, axis)):
        v = np.moveaxis(v, k, 0)
        while (count := len(v)) > 1:
            half = count // 2
            pairs = v[:half] * v[half : 2 * half]
            v = np.concatenate([pairs, v[2 * half :]]) if count % 2 else pairs
        v = v[0]
    return v


@registered("cumprod")
def cumprod(v: Any, axis: Any = None) -> Any:
    v = array(v)
    if v.ndim != 1:
        raise RefusedError(f"the cumulative products of an array of shape {v.shape}; of a vector they can be compiled")
    return np.stack([prod(v[: k + 1]) for k in range(len(v))])


@registered("cumsum")
def cumsum(v: Any, axis: Any = None) -> Any:
    v = array(v)
    v = np.ravel(v) if axis is None else v
    (along,) = axes_of(v, axis)
    sums = np.tril(np.ones((v.shape[along], v.shape[along]))) @ np.swapaxes(v, along, 0)
    return np.swapaxes(sums, along, 0)


@registered("diff")
def diff(v: Any, n: int = 1, axis: int = -1) -> Any:
    for _ in range(n):
        along = np.swapaxes(v, axis, 0)
        v = np.swapaxes(along[1:] - along[:-1], axis, 0)
    return v


FUNCTIONS["trace"] = FUNCTIONS["linalg.trace"] = lambda A, k=0: total(np.diagonal(A, k))

# --- arrays in the shape of others, and arrays that are changed ---

FUNCTIONS |= {"shape": lambda v: array(v).shape, "ndim": lambda v: array(v).ndim, "size": lambda v: array(v).size}
FUNCTIONS |= {"iscomplexobj": lambda v: False, "isrealobj": lambda v: True, "tolist": lambda v: list(v)}


@registered("full_like")
def full_like(v: Any, fill_value: Any) -> Any:
    made = v.tracing.constant(np.zeros(v.shape))
    made[...] = fill_value
    return made


FUNCTIONS["torch.fill"] = full_like
FUNCTIONS |= dict.fromkeys(("zeros_like", "empty_like"), lambda v: full_like(v, 0.0))
FUNCTIONS["ones_like"] = lambda v: full_like(v, 1.0)


@registered("identity_like")
def identity_like(A: Any) -> Any:
    if A.ndim != 2:
        raise RefusedError(f"identity_like of an array of shape {A.shape}; it takes a matrix")
    return A.tracing.constant(np.eye(len(A)))


@registered("astype")
def astype(v: Any, dtype: Any, copy: bool = True) -> Any:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = None  # one of torch's, say
    if kind != np.float64 and not (v.truth and kind == np.bool_):
        raise RefusedError(
            f"a conversion to {dtype!r:.30}; numbers are floating-point throughout, and their precision is dtype= of "
            "nf.compile: omit it"
        )
    return v.tracing.array(v.node, kind == np.bool_)


@registered("item")
def item(v: Any, *index: Any) -> Any:
    if not all(isinstance(k, (int, np.integer)) for k in index) or (not index and v.size != 1):
        raise RefusedError(f".item() of an array of shape {v.shape}; a scalar has it")
    return v[index] if len(index) > 1 else np.ravel(v)[index[0] if index else 0]


@registered("promise")
def promise(v: Any) -> Any:
    """nf.positive: the same array, of a known sign."""
    return v.apply("positive")


@registered("copyto")
def copyto(dst: Any, src: Any, where: Any = True) -> None:
    dst[...] = src if where is True else np.where(where, src, dst)


@registered("fill")
def fill(v: Any, value: Any) -> None:
    v[...] = value


@registered("fill_diagonal")
def fill_diagonal(a: Any, val: Any) -> None:
    places = np.arange(min(a.shape))
    a[places, places] = val
