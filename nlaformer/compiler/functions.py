"""The names that NumPy and torch have for what a traced value can do, each written in the ops of the graph.

    |v| = relu(v) + relu(-v)        cosh v = (e^v + e^-v) / 2        |v|_2 = sqrt(v . v)        trace A = sum(diag A)

Only what keeps all digits is written in terms of others here; for the weights, ``lower.py`` goes further. A function
stands under NumPy's name, and under torch's where that is another; under ``torch.`` and the name where torch has
another function of this name. Its arguments beyond the values are those that can be compiled: any other
(``keepdims=``, ``where=``, ``dtype=``) is refused. ``tests/test_compiler_calls.py`` calls each in every way.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from nlaformer.compiler.graph import AXES, RefusedError
from nlaformer.compiler.refusals import REMEDIES, TAKES_VALUES, remedy
from nlaformer.compiler.values import Value, graph_of

_Function = Callable[..., Value]
FUNCTIONS: dict[str, _Function] = {}


def _named(*names: str) -> Callable[[_Function], _Function]:
    def register(function: _Function) -> _Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def named(value: Value, library: str, name: str, args: Any, options: dict[str, Any]) -> Value:
    """A function of NumPy or torch, by name, or a method; refused in the same spelling if there is none."""
    spelling = f"{library}.{name}" if library else f".{name}"
    value.graph.uses_torch |= library == "torch"
    if any(map(_holds_refused, (*args, *options.values()))):
        return Value(value.graph.make("refused", (), None, None))
    out = options.pop("out", None)
    (target,) = out if isinstance(out, tuple) else (out,)
    if target is not None and not isinstance(target, Value):
        value.graph.numbers_wanted = True
        return value.refuse(f"{spelling} into an array of numbers; {TAKES_VALUES}")
    options = {_OF_TORCH.get(key, key): option for key, option in options.items() if not _is_not_given(key, option)}
    function = (library == "torch" and FUNCTIONS.get(f"torch.{name}")) or FUNCTIONS.get(name)
    if library == "np" and name in JOINING:
        return _joined(value, name, args, options)
    if function is None:
        kind = value.kind if _is_pointwise(name) else None
        return value.refuse(f"{spelling} cannot be compiled; {remedy(name)}", kind)
    try:
        inspect.signature(function).bind(*args, **options)
    except TypeError:
        given = ", ".join(f"{key}={option!r:.20}" for key, option in options.items()) or f"{len(args)} arguments"
        taken = ", ".join(inspect.signature(function).parameters)
        instead = f". {REMEDIES['keepdims']}" if "keepdims" in options else ""
        return value.refuse(f"{spelling} with {given}; what can be compiled is {spelling}({taken}){instead}")
    try:
        result = function(*args, **options)
    except RefusedError as refusal:
        return value.refuse(f"{spelling}: {refusal}", refusal.kind)
    return result if target is None else target.become(result)


def _holds_refused(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_refused, value))
    return isinstance(value, Value) and value.node.op == "refused"


# What NumPy does with entries, whatever they are, and gives another size to.
JOINING = (
    *("concatenate", "stack", "vstack", "hstack", "column_stack", "append", "insert", "delete"),
    *("reshape", "take", "tile", "repeat"),
)


def _joined(value: Value, name: str, args: Any, options: dict[str, Any]) -> Any:
    """Arrays of other sizes need entries, which are there once a program is traced with them."""
    if not value.graph.want_entries(f"np.{name}"):
        return Value(value.graph.make("refused", (), None, None))
    from nlaformer.compiler.pieces import by_entries

    if name == "reshape" and isinstance(args[0], Value) and args[0].kind == "matrix":
        args = (_as_it_is(args[0]), *args[1:])
    return by_entries(value.graph, getattr(np, name), args, options)


# Options by torch's names.
_OF_TORCH = {"dim": "axis", "dims": "axis", "shifts": "shift", "keepdim": "keepdims", "p": "ord"}
_NO_VALUE = inspect.signature(np.sum).parameters["initial"].default


def _is_not_given(key: str, option: Any) -> bool:
    """Whether an option is what NumPy and torch pass where it was not given."""
    usual = dict.fromkeys(("keepdims", "keepdim", "inplace"), False) | {"axis": _NO_VALUE}
    return option is _NO_VALUE or option is usual.get(key)


def _is_pointwise(name: str) -> bool:
    function = getattr(np, name, None)
    return isinstance(function, np.ufunc) and function.nin == 1


def _with(rule: str, v: Value, *parameters: Any) -> Value:
    """A rule of the graph on one value; its parameters come before the node."""
    return Value(v.graph.call(functools.partial(getattr(v.graph, rule), *parameters), v))


# Entry by entry.


def _pointwise(op: str) -> _Function:
    return lambda v: _with("pointwise", v, op)


FUNCTIONS["sqrt"] = sqrt = _pointwise("sqrt")
FUNCTIONS["exp"] = exp = _pointwise("exp")
FUNCTIONS["log"] = log = _pointwise("log")
FUNCTIONS["relu"] = relu = _pointwise("relu")
FUNCTIONS["sign"] = FUNCTIONS["sgn"] = _pointwise("sign")
FUNCTIONS["negative"] = FUNCTIONS["neg"] = lambda v: -v
FUNCTIONS["positive"] = lambda v: +v
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


add = _named("add")(_of_two("add"))
multiply = _named("multiply", "mul")(_of_two("multiply"))
_named("divide", "true_divide", "div")(_of_two("divide"))
maximum = _named("maximum", "fmax", "clamp_min")(_of_two("pairwise", "maximum"))
minimum = _named("minimum", "fmin", "clamp_max")(_of_two("pairwise", "minimum"))
_named("hypot")(_of_two("pairwise", "hypot"))
_named("logaddexp")(_of_two("pairwise", "logaddexp"))


@_named("subtract", "sub")
def subtract(u: Any, v: Any) -> Value:
    return u - v if isinstance(u, Value) else v.__rsub__(u)


@_named("absolute", "abs", "fabs")
def absolute(v: Value) -> Value:
    return relu(v) + relu(-v)


@_named("clip", "clamp")
def clip(v: Value, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Value:
    low, high = a_min if min is None else min, a_max if max is None else max
    v = +v if low is None else maximum(v, low)
    return v if high is None else minimum(v, high)


@_named("power", "float_power", "pow", "linalg.power")
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


# Products.

matmul = _named("matmul", "mm", "mv", "linalg.matmul")(_of_two("matmul"))
vdot = _named("vdot")(_of_two("dot"))
_named("outer", "ger", "linalg.outer", "multiply.outer")(_of_two("outer"))


def _kind(value: Any) -> str:
    return value.kind if isinstance(value, Value) else ("scalar", "vector", "matrix")[np.ndim(value)]


@_named("dot")
def dot(u: Any, v: Any) -> Value:
    """NumPy's: a product of matrices, an inner product of vectors, a multiple."""
    return multiply(u, v) if "scalar" in (_kind(u), _kind(v)) else matmul(u, v)


@_named("inner")
def inner(u: Any, v: Any) -> Value:
    return dot(u, v if _kind(u) == "scalar" else np.transpose(v))


@_named("vecdot", "linalg.vecdot")
def vecdot(u: Any, v: Any) -> Value:
    """The inner product of vectors; of matrices that of each row with a row."""
    return total(multiply(u, v), 1) if "matrix" in (_kind(u), _kind(v)) else vdot(u, v)


@_named("matvec")
def matvec(A: Any, v: Any) -> Value:
    """The rows of a second matrix are vectors, too."""
    return inner(v, A)


@_named("vecmat")
def vecmat(v: Any, A: Any) -> Value:
    return dot(v, A)


@_named("linalg.norm")
def norm(v: Value, ord: Any = None, axis: Any = None) -> Value:
    """Of rows or columns where there is one axis; the orders 1 and inf of a matrix are the largest of these."""
    if v.kind != "matrix" or ord is None or _axis(v, axis) is not None:
        return vector_norm(v, 2 if ord is None else ord, axis)
    if ord == "fro":
        return vector_norm(v)
    if ord not in (1, np.inf):
        raise RefusedError(f"the norm of order {ord!r} of a matrix cannot be compiled; {_NORMS['matrix']}", "scalar")
    first, second = (0, 1) if axis is None else axis
    return largest(vector_norm(v, 1, first if ord == 1 else second))


@_named("linalg.vector_norm", "norm")
def vector_norm(v: Value, ord: Any = 2, axis: Any = None) -> Value:
    """Of all entries of a matrix, too; torch.norm is this one, and has "fro" for 2."""
    axis = _axis(v, axis)
    if ord in (1, 2, np.inf, "fro") and v.kind == "scalar":
        return absolute(v)
    if ord in (2, "fro"):
        return sqrt(vdot(v, v) if axis is None else total(v * v, axis))
    if ord in (1, np.inf):
        return (total if ord == 1 else largest)(absolute(v), axis)
    raise RefusedError(f"the norm of order {ord!r} of a vector cannot be compiled; {_NORMS['vector']}", "scalar")


@_named("linalg.matrix_norm")
def matrix_norm(v: Value, ord: Any = "fro") -> Value:
    return norm(v, ord)


_NORMS = {
    "vector": "the orders 1, 2 and np.inf can, and np.sum(np.abs(v) ** p) ** (1 / p) is that of order p",
    "matrix": "the orders 1, np.inf and 'fro' can; the state value of singular_vectors in nf.algorithms() is that of 2",
}


@_named("linalg.matrix_power", "matrix_power")
def matrix_power(A: Value, n: Any) -> Value:
    if not isinstance(n, (int, np.integer)) or not 1 <= n <= 64:
        return A.refuse(f"the power {n!r} of a matrix; whole powers from 1 are products", "matrix")
    result = +A
    for _ in range(int(n) - 1):
        result = result @ A
    return result


# Parts, sums, and values in the shape of others.


def _axis(v: Value, axis: Any) -> int | None:
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


@_named("sum")
def total(v: Value, axis: Any = None) -> Value:
    return _sum_or_mean("sum", v, axis)


@_named("mean")
def mean(v: Value, axis: Any = None) -> Value:
    return _sum_or_mean("mean", v, axis)


@_named("max", "amax")
def largest(v: Value, axis: Any = None) -> Value:
    return _extreme(maximum, v, _axis(v, axis))


@_named("min", "amin")
def smallest(v: Value, axis: Any = None) -> Value:
    return _extreme(minimum, v, _axis(v, axis))


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
        v = larger(v, roll(v, step, axis=0))
        seen += step
    return +v[0] if v.kind == "vector" or axis == 0 else _extreme(larger, v[0], None)


def _sum_or_mean(op: str, v: Value, axis: Any) -> Value:
    axis = _axis(v, axis)
    if axis is None:
        return _with("total", v, op)
    ones = Value(v.graph.ones("vector"))
    sums = (v if axis else v.T) @ ones
    return sums if op == "sum" else sums / (v.graph.n or _with("total", ones, "sum"))


@_named("var")
def var(v: Value, axis: Any = None, *, ddof: Any = 0, correction: Any = 0) -> Value:
    axis, ddof = _axis(v, axis), ddof or correction
    if axis == 1:
        return var(v.T, 0, ddof=ddof)
    deviation = v - mean(v, axis)
    squares = mean(deviation * deviation, axis)
    count = v.size if ddof and axis is None else len(v) if ddof else 1
    if count <= ddof:
        raise RefusedError(f"{count} entries, less the correction {ddof}: nothing is left to divide by")
    return squares * (count / (count - ddof)) if ddof else squares


@_named("torch.var")
def torch_var(v: Value, axis: Any = None, *, unbiased: bool = True, correction: Any = None) -> Value:
    """With Bessel's correction, unless it is told otherwise."""
    if isinstance(axis, bool):
        axis, unbiased = None, axis
    return var(v, axis, ddof=int(unbiased) if correction is None else correction)


@_named("std")
def std(v: Value, axis: Any = None, *, ddof: Any = 0, correction: Any = 0) -> Value:
    return sqrt(var(v, axis, ddof=ddof, correction=correction))


@_named("torch.std")
def torch_std(v: Value, axis: Any = None, *, unbiased: bool = True, correction: Any = None) -> Value:
    return sqrt(torch_var(v, axis, unbiased=unbiased, correction=correction))


FUNCTIONS["add.reduce"] = lambda v, axis=0: total(v, axis)
FUNCTIONS |= {"shape": lambda v: v.shape, "ndim": lambda v: v.ndim, "size": lambda v: v.size}  # type: ignore[dict-item]
FUNCTIONS["trace"] = FUNCTIONS["linalg.trace"] = lambda A: total(diag(A))


@_named("diag", "diagonal", "linalg.diagonal")
def diag(v: Value, k: Any = 0) -> Value:
    """Of a matrix a view, which NumPy makes read-only; other diagonals are shorter, and are copied."""
    if k != 0:
        return _joined(v, "diag", (v, k), {})  # type: ignore[no-any-return]
    return v.view("diag", None) if v.kind == "matrix" else _with("diag", v)


@_named("tril")
def tril(A: Value, k: Any = 0) -> Value:
    return _with("triangle", A, "lower", operator.index(k))


@_named("triu")
def triu(A: Value, k: Any = 0) -> Value:
    return _with("triangle", A, "upper", operator.index(k))


@_named("roll")
def roll(v: Value, shift: Any, axis: Any = None) -> Value:
    if not isinstance(shift, (int, np.integer)):
        return v.refuse(f"a roll by {shift!r:.40}; the shift is a whole number", v.kind)
    if v.kind == "matrix" and axis is None:
        return v.refuse("np.roll of a matrix without axis=, which runs over its rows; give axis=0 or axis=1", v.kind)
    along = _axis(v, axis)
    if v.kind == "matrix" and along != 0:
        v = _with("roll", v.T, int(shift)).T
    return +v if along == 1 else _with("roll", v, int(shift))


@_named("flip")
def flip(v: Value, axis: Any = None) -> Value:
    along = _axis(v, axis)
    if v.kind == "matrix" and along != 0:
        v = v[:, ::-1]
    return v if along == 1 or v.kind == "scalar" else v[::-1]


FUNCTIONS["torch.flip"] = lambda v, axis: +flip(v, axis)  # NumPy's is a view
FUNCTIONS["torch.diag"] = lambda v, k=0: +diag(v, k)


@_named("cumsum")
def cumsum(v: Value, axis: Any = None) -> Value:
    if v.kind != "vector":
        return v.refuse(f"the cumulative sums of a {v.kind}; write np.tril(np.ones_like(A)) @ A for those along axis 0")
    _axis(v, axis)
    return matmul(np.tril(np.ones((len(v), len(v)))), v)


@_named("diff")
def diff(v: Value) -> Any:
    return v[:, 1:] - v[:, :-1] if v.kind == "matrix" else v[1:] - v[:-1]


@_named("transpose", "t", "matrix_transpose", "linalg.matrix_transpose")
def transpose(v: Value) -> Value:
    return v.T


FUNCTIONS["torch.transpose"] = lambda v, dim0, dim1: v.T if (dim0 - dim1) % 2 else v[:]


@_named("copy", "clone", "conj", "conjugate")
def copy(v: Value) -> Value:
    return +v


@_named("astype")
def astype(v: Value, dtype: Any) -> Value:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = None  # one of torch's, say
    if kind == np.float64:
        return +v
    remedy = "numbers are floating-point throughout, and their precision is dtype= of nf.compile: omit it"
    return v.refuse(f"a conversion to {dtype!r:.30}; {remedy}", v.kind)


@_named("item")
def item(v: Value) -> Value:
    return +v if v.kind == "scalar" else v.refuse(f".item() of a {v.kind}; a scalar has it", "scalar")


@_named("ravel", "torch.flatten")
def ravel(v: Value) -> Value:
    """A view, where the entries lie side by side in memory."""
    if v.kind != "vector":
        return v.refuse(f"a {v.kind} made into a vector, of another length than n")
    return v[:] if v.is_own else _as_it_is(v)


FUNCTIONS["flatten"] = lambda v: +ravel(v)
FUNCTIONS["detach"] = FUNCTIONS["torch.conj"] = lambda v: v[:]


def _as_it_is(v: Value) -> Value:
    """An array that NumPy gives as a view or as a copy, by its place in memory: no name of it may change."""
    seen = v.node
    changed = "an array changed in place beside what np.ravel or np.reshape made of it; write .copy() after these"
    return Value(
        seen,
        lambda: seen if v.node is seen else v.graph.refuse(changed, v.kind),
        lambda node: v.graph.refuse(changed, v.kind),
    )


@_named("zeros_like")
def zeros_like(v: Value) -> Value:
    return Value(v.graph.zeros(v.kind))


@_named("ones_like")
def ones_like(v: Value) -> Value:
    return Value(v.graph.ones(v.kind))


@_named("full_like")
def full_like(v: Value, fill_value: Any) -> Value:
    return multiply(fill_value, ones_like(v))


@_named("identity_like")
def identity_like(A: Value) -> Value:
    if A.kind != "matrix":
        return A.refuse(f"identity_like of a {A.kind}; write nf.identity_like(A)", "matrix")
    return Value(A.graph.identity())


@_named("promise")
def promise(v: Value) -> Value:
    """nf.positive: the same array, of a known sign."""
    rule = functools.partial(v.graph.pointwise, "positive")
    return Value(v.node, lambda: v.graph.call(rule, v.node), v.become)


@_named("copyto")
def copyto(dst: Any, src: Any) -> Any:
    dst[...] = src


@_named("fill_diagonal")
def fill_diagonal(a: Value, val: Any) -> Any:
    a.become(tril(a, -1) + triu(a, 1) + _with("diagonal", multiply(val, Value(a.graph.ones("vector")))))


# Methods, and what is nothing at all for a real array of this kind.
METHODS = (
    *("sum", "mean", "max", "min", "dot", "copy", "trace", "diagonal", "transpose", "clip", "var", "std", "abs"),
    *("sqrt", "exp", "log", "relu", "sign", "square", "norm", "clone", "tril", "triu", "item", "astype"),
    *("ravel", "flatten", "detach", "conj", "conjugate"),
)
