"""The functions of NumPy and torch that compute something of traced values, each written in the ops of the graph.

    |v| = relu(v) + relu(-v)        cosh v = (e^v + e^-v) / 2        |v|_2 = sqrt(v . v)        sum(A, 0) = A^T 1

Only what keeps all digits is written in terms of others here; for the weights, ``rewrites.py`` goes further. A function
stands under NumPy's name, and under torch's where that is another; under ``torch.`` and the name where torch has
another function of this name. Its arguments beyond the values are those that can be compiled: any other
(``keepdims=``, ``where=``, ``dtype=``) is refused (``calls.py``). ``tests/test_compiler_calls.py`` calls each in every
way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nlaformer.compiler.graph import AXES
from nlaformer.compiler.refusals import RefusedError
from nlaformer.compiler.values import Value, graph_of

_Function = Callable[..., Value]
FUNCTIONS: dict[str, _Function] = {}


def registered(*names: str) -> Callable[[_Function], _Function]:
    """Put a function under these names."""

    def register(function: _Function) -> _Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def applied(rule: str, v: Value, *parameters: Any) -> Value:
    """A rule of the graph on one value; its parameters come before the node."""
    return Value(v.graph.call(functools.partial(getattr(v.graph, rule), *parameters), v))


# Entry by entry.


def _pointwise(op: str) -> _Function:
    return lambda v: applied("pointwise", v, op)


FUNCTIONS["sqrt"] = sqrt = _pointwise("sqrt")
FUNCTIONS["exp"] = exp = _pointwise("exp")
FUNCTIONS["log"] = log = _pointwise("log")
FUNCTIONS["relu"] = relu = _pointwise("relu")
FUNCTIONS["sign"] = FUNCTIONS["sgn"] = _pointwise("sign")
FUNCTIONS["negative"] = FUNCTIONS["neg"] = lambda v: -v
FUNCTIONS |= dict.fromkeys(("positive", "copy", "clone", "conj", "conjugate"), lambda v: +v)
FUNCTIONS["reciprocal"] = lambda v: 1.0 / v
FUNCTIONS["rsqrt"] = lambda v: 1.0 / sqrt(v)
FUNCTIONS["square"] = lambda v: v * v
FUNCTIONS |= {name: _pointwise(name) for name in ("expm1", "log1p", "sinh", "tanh", "softplus")}
FUNCTIONS["exp2"] = lambda v: exp(math.log(2.0) * v)
FUNCTIONS["log2"] = lambda v: log(v) / math.log(2.0)
FUNCTIONS["log10"] = lambda v: log(v) / math.log(10.0)
FUNCTIONS["cosh"] = lambda v: 0.5 * (exp(v) + exp(-v))
FUNCTIONS["expit"] = FUNCTIONS["sigmoid"] = lambda v: 1.0 / (1.0 + exp(-v))


def _of_two(rule: str, *parameters: Any) -> _Function:
    """A rule of the graph on two values, of which one may be a number or an array of constants."""

    def function(u: Any, v: Any) -> Value:
        graph = graph_of(u, v)
        assert graph is not None
        return Value(graph.call(functools.partial(getattr(graph, rule), *parameters), u, v))

    return function


add = registered("add")(_of_two("add"))
multiply = registered("multiply", "mul")(_of_two("multiply"))
registered("divide", "true_divide", "div")(_of_two("divide"))
maximum = registered("maximum", "fmax", "clamp_min")(_of_two("pairwise", "maximum"))
minimum = registered("minimum", "fmin", "clamp_max")(_of_two("pairwise", "minimum"))
registered("hypot")(_of_two("pairwise", "hypot"))
registered("logaddexp")(_of_two("pairwise", "logaddexp"))


@registered("subtract", "sub")
def subtract(u: Any, v: Any) -> Value:
    return u - v if isinstance(u, Value) else v.__rsub__(u)


@registered("absolute", "abs", "fabs")
def absolute(v: Value) -> Value:
    return relu(v) + relu(-v)


@registered("clip", "clamp")
def clip(v: Value, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Value:
    low, high = a_min if min is None else min, a_max if max is None else max
    v = +v if low is None else maximum(v, low)
    return v if high is None else minimum(v, high)


@registered("power", "float_power", "pow", "linalg.power")
def power(v: Any, p: Any) -> Value:
    """Whole powers as products, halves with a root, others as exp(p log v), where v must be positive."""
    if isinstance(p, Value):
        return exp(p * (log(v) if isinstance(v, Value) else np.log(v)))
    if np.ndim(p) or not isinstance(p, (int, float, np.number)) or not np.isfinite(p):
        return v.refuse(f"the power {p!r:.40}; powers are numbers", v.kind)
    p = float(p)
    if p < 0:
        return 1.0 / power(v, -p)
    if p % 1 == 0.5:
        return sqrt(v) * power(v, p - 0.5) if p > 0.5 else sqrt(v)
    if p % 1 or p > 64:
        return exp(p * log(v))
    return _whole_power(v, int(p)) if p else ones_like(v)


def _whole_power(v: Value, p: int) -> Value:
    if p > 8:
        half = _whole_power(v, p // 2)
        return half * half * v if p % 2 else half * half
    result = +v
    for _ in range(p - 1):
        result = result * v
    return result


@registered("ones_like")
def ones_like(v: Value) -> Value:
    return Value(v.graph.ones(v.kind))


# Products.

matmul = registered("matmul", "mm", "mv", "linalg.matmul")(_of_two("matmul"))
vdot = registered("vdot")(_of_two("dot"))
registered("outer", "ger", "linalg.outer", "multiply.outer")(_of_two("outer"))


def _kind(value: Any) -> str:
    return value.kind if isinstance(value, Value) else ("scalar", "vector", "matrix")[np.ndim(value)]


@registered("dot")
def dot(u: Any, v: Any) -> Value:
    """NumPy's: a product of matrices, an inner product of vectors, a multiple."""
    return multiply(u, v) if "scalar" in (_kind(u), _kind(v)) else matmul(u, v)


@registered("inner")
def inner(u: Any, v: Any) -> Value:
    return dot(u, v if _kind(u) == "scalar" else np.transpose(v))


@registered("vecdot", "linalg.vecdot")
def vecdot(u: Any, v: Any) -> Value:
    """The inner product of vectors; of matrices that of each row with a row."""
    return total(multiply(u, v), 1) if "matrix" in (_kind(u), _kind(v)) else vdot(u, v)


FUNCTIONS["matvec"] = lambda A, v: inner(v, A)  # the rows of a second matrix are vectors, too
FUNCTIONS["vecmat"] = lambda v, A: dot(v, A)


@registered("linalg.norm")
def norm(v: Value, ord: Any = None, axis: Any = None) -> Value:
    """Of rows or columns where there is one axis; the orders 1 and inf of a matrix are the largest of these."""
    if v.kind != "matrix" or ord is None or axis_of(v, axis) is not None:
        return vector_norm(v, 2 if ord is None else ord, axis)
    if ord == "fro":
        return vector_norm(v)
    if ord not in (1, np.inf):
        raise RefusedError(f"the norm of order {ord!r} of a matrix cannot be compiled; {_NORMS['matrix']}", "scalar")
    first, second = (0, 1) if axis is None else axis
    return largest(vector_norm(v, 1, first if ord == 1 else second))


@registered("linalg.vector_norm", "norm")
def vector_norm(v: Value, ord: Any = 2, axis: Any = None) -> Value:
    """Of all entries of a matrix, too; torch.norm is this one, and has "fro" for 2."""
    axis = axis_of(v, axis)
    if ord in (1, 2, np.inf, "fro") and v.kind == "scalar":
        return absolute(v)
    if ord in (2, "fro"):
        return sqrt(vdot(v, v) if axis is None else total(v * v, axis))
    if ord in (1, np.inf):
        return (total if ord == 1 else largest)(absolute(v), axis)
    raise RefusedError(f"the norm of order {ord!r} of a vector cannot be compiled; {_NORMS['vector']}", "scalar")


FUNCTIONS["linalg.matrix_norm"] = lambda v, ord="fro": norm(v, ord)
_NORMS = {
    "vector": "the orders 1, 2 and np.inf can, and np.sum(np.abs(v) ** p) ** (1 / p) is that of order p",
    "matrix": "the orders 1, np.inf and 'fro' can; the state value of singular_vectors in nf.algorithms() is that of 2",
}


@registered("linalg.matrix_power", "matrix_power")
def matrix_power(A: Value, n: Any) -> Value:
    if not isinstance(n, (int, np.integer)) or not 1 <= n <= 64:
        return A.refuse(f"the power {n!r} of a matrix; whole powers from 1 are products", "matrix")
    result = +A
    for _ in range(int(n) - 1):
        result = result @ A
    return result


# Sums.


def axis_of(v: Value, axis: Any) -> int | None:
    """0 or 1 of a matrix; None for all axes of an array."""
    if axis is None:
        return None
    given, axes = axis if isinstance(axis, (tuple, list)) else (axis,), range(AXES[v.kind])
    whole = (k for k in given if isinstance(k, (int, np.integer)) and not isinstance(k, bool))
    found = {int(k) % len(axes) for k in whole if -len(axes) <= k < len(axes)}
    if not found or len(found) < len(given):
        has = {
            "scalar": "a scalar has none",
            "vector": "a vector has the axis 0",
            "matrix": "a matrix has the axes 0 and 1",
        }
        raise RefusedError(f"axis {axis!r:.40}; {has[v.kind]}")
    return None if len(found) == len(axes) else found.pop()


def _sum_or_mean(op: str) -> _Function:
    def function(v: Value, axis: Any = None) -> Value:
        axis = axis_of(v, axis)
        if axis is None:
            return applied("total", v, op)
        ones = Value(v.graph.ones("vector"))
        sums = (v if axis else v.T) @ ones
        return sums if op == "sum" else sums / (v.graph.n or applied("total", ones, "sum"))

    return function


total = registered("sum")(_sum_or_mean("sum"))
mean = registered("mean")(_sum_or_mean("mean"))


@registered("max", "amax")
def largest(v: Value, axis: Any = None) -> Value:
    return _extreme(maximum, v, axis_of(v, axis))


@registered("min", "amin")
def smallest(v: Value, axis: Any = None) -> Value:
    return _extreme(minimum, v, axis_of(v, axis))


def _of_torch(of_all: _Function, larger: _Function) -> _Function:
    def function(v: Value, other: Any = None) -> Value:
        if isinstance(other, int):
            raise RefusedError("an axis, for which torch gives places, too; write torch.amax or torch.amin")
        return of_all(v) if other is None else larger(v, other)

    return function


FUNCTIONS["torch.max"], FUNCTIONS["torch.min"] = _of_torch(largest, maximum), _of_torch(smallest, minimum)


def _extreme(larger: _Function, v: Value, axis: int | None) -> Value:
    """The largest entry: v and its shifts by 1, 2, 4, ... are compared, until all entries are the same."""
    if v.kind == "scalar":
        return +v
    if axis == 1:
        return _extreme(larger, v.T, 0)
    seen, n = 1, len(v)
    while seen < n:
        step = min(seen, n - seen)
        v = larger(v, applied("roll", v, step))
        seen += step
    return +v[0] if v.kind == "vector" or axis == 0 else _extreme(larger, v[0], None)


@registered("var")
def var(v: Value, axis: Any = None, *, ddof: Any = 0, correction: Any = 0) -> Value:
    axis, ddof = axis_of(v, axis), ddof or correction
    if axis == 1:
        return var(v.T, 0, ddof=ddof)
    deviation = v - mean(v, axis)
    squares = mean(deviation * deviation, axis)
    count = v.size if ddof and axis is None else len(v) if ddof else 1
    if count <= ddof:
        raise RefusedError(f"{count} entries, less the correction {ddof}: nothing is left to divide by")
    return squares * (count / (count - ddof)) if ddof else squares


@registered("torch.var")
def torch_var(v: Value, axis: Any = None, *, unbiased: bool = True, correction: Any = None) -> Value:
    """With Bessel's correction, unless it is told otherwise."""
    if isinstance(axis, bool):
        axis, unbiased = None, axis
    return var(v, axis, ddof=int(unbiased) if correction is None else correction)


FUNCTIONS["std"] = lambda v, axis=None, *, ddof=0, correction=0: sqrt(var(v, axis, ddof=ddof, correction=correction))
FUNCTIONS["torch.std"] = lambda v, axis=None, *, unbiased=True, correction=None: sqrt(
    torch_var(v, axis, unbiased=unbiased, correction=correction)
)
FUNCTIONS["add.reduce"] = lambda v, axis=0: total(v, axis)
