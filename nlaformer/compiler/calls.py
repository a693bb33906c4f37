"""How a method calls NumPy and torch: by name (``by_name``); and the functions that compute nothing.

These take parts of arrays, move, copy and join them, or give others in their shape.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any

import numpy as np

from nlaformer.compiler.functions import FUNCTIONS, applied, axis_of, matmul, multiply, ones_like, registered, total
from nlaformer.compiler.refusals import REMEDIES, TAKES_VALUES, RefusedError, remedy
from nlaformer.compiler.values import Value

# Methods, and what is nothing at all for a real array of this kind.
METHODS = (
    *("sum", "mean", "max", "min", "dot", "copy", "trace", "diagonal", "transpose", "clip", "var", "std", "abs"),
    *("sqrt", "exp", "log", "relu", "sign", "square", "norm", "clone", "tril", "triu", "item", "astype"),
    *("ravel", "flatten", "detach", "conj", "conjugate"),
)


def by_name(value: Value, library: str, name: str, args: Any, options: dict[str, Any]) -> Value:
    """A function of NumPy or torch, by name, or a method; refused in the same spelling if there is none."""
    spelling = f"{library}.{name}" if library else f".{name}"
    value.graph.uses_torch |= library == "torch"
    if any(map(_holds_refused, (*args, *options.values()))):
        return Value(value.graph.refused())
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


# Parts, views and copies.

FUNCTIONS |= {"shape": lambda v: v.shape, "ndim": lambda v: v.ndim, "size": lambda v: v.size}  # type: ignore[dict-item]
FUNCTIONS["trace"] = FUNCTIONS["linalg.trace"] = lambda A: total(diag(A))


@registered("diag", "diagonal", "linalg.diagonal")
def diag(v: Value, k: Any = 0) -> Value:
    """Of a matrix a view, which NumPy makes read-only; other diagonals are shorter, and are copied."""
    if k != 0:
        return _joined(v, "diag", (v, k), {})  # type: ignore[no-any-return]
    return v.view("diag", None) if v.kind == "matrix" else applied("diag", v)


@registered("tril")
def tril(A: Value, k: Any = 0) -> Value:
    return applied("triangle", A, "lower", operator.index(k))


@registered("triu")
def triu(A: Value, k: Any = 0) -> Value:
    return applied("triangle", A, "upper", operator.index(k))


@registered("roll")
def roll(v: Value, shift: Any, axis: Any = None) -> Value:
    if not isinstance(shift, (int, np.integer)):
        return v.refuse(f"a roll by {shift!r:.40}; the shift is a whole number", v.kind)
    if v.kind == "matrix" and axis is None:
        return v.refuse("np.roll of a matrix without axis=, which runs over its rows; give axis=0 or axis=1", v.kind)
    along = axis_of(v, axis)
    if v.kind == "matrix" and along != 0:
        v = applied("roll", v.T, int(shift)).T
    return +v if along == 1 else applied("roll", v, int(shift))


@registered("flip")
def flip(v: Value, axis: Any = None) -> Value:
    along = axis_of(v, axis)
    if v.kind == "matrix" and along != 0:
        v = v[:, ::-1]
    return v if along == 1 or v.kind == "scalar" else v[::-1]


FUNCTIONS["torch.flip"] = lambda v, axis: +flip(v, axis)  # NumPy's is a view
FUNCTIONS["torch.diag"] = lambda v, k=0: +diag(v, k)


@registered("cumsum")
def cumsum(v: Value, axis: Any = None) -> Value:
    if v.kind != "vector":
        return v.refuse(f"the cumulative sums of a {v.kind}; write np.tril(np.ones_like(A)) @ A for those along axis 0")
    axis_of(v, axis)
    return matmul(np.tril(np.ones((len(v), len(v)))), v)


@registered("diff")
def diff(v: Value) -> Any:
    return v[:, 1:] - v[:, :-1] if v.kind == "matrix" else v[1:] - v[:-1]


FUNCTIONS |= dict.fromkeys(("transpose", "t", "matrix_transpose", "linalg.matrix_transpose"), lambda v: v.T)
FUNCTIONS["torch.transpose"] = lambda v, dim0, dim1: v.T if (dim0 - dim1) % 2 else v[:]


@registered("astype")
def astype(v: Value, dtype: Any) -> Value:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = None  # one of torch's, say
    if kind == np.float64:
        return +v
    remedy = "numbers are floating-point throughout, and their precision is dtype= of nf.compile: omit it"
    return v.refuse(f"a conversion to {dtype!r:.30}; {remedy}", v.kind)


@registered("item")
def item(v: Value) -> Value:
    return +v if v.kind == "scalar" else v.refuse(f".item() of a {v.kind}; a scalar has it", "scalar")


@registered("ravel", "torch.flatten")
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


FUNCTIONS["zeros_like"] = lambda v: Value(v.graph.zeros(v.kind))
FUNCTIONS["full_like"] = lambda v, fill_value: multiply(fill_value, ones_like(v))


@registered("identity_like")
def identity_like(A: Value) -> Value:
    if A.kind != "matrix":
        return A.refuse(f"identity_like of a {A.kind}; write nf.identity_like(A)", "matrix")
    return Value(A.graph.identity())


@registered("promise")
def promise(v: Value) -> Value:
    """nf.positive: the same array, of a known sign."""
    return Value(v.node, lambda: applied("pointwise", v, "positive").node, v.become)


@registered("copyto")
def copyto(dst: Any, src: Any) -> Any:
    dst[...] = src


@registered("fill_diagonal")
def fill_diagonal(a: Value, val: Any) -> Any:
    a.become(tril(a, -1) + triu(a, 1) + applied("diagonal", multiply(val, Value(a.graph.ones("vector")))))


# What NumPy does with entries, whatever they are, and gives another size to.
JOINING = (
    *("concatenate", "stack", "vstack", "hstack", "column_stack", "append", "insert", "delete"),
    *("reshape", "take", "tile", "repeat"),
)


def _joined(value: Value, name: str, args: Any, options: dict[str, Any]) -> Any:
    """Arrays of other sizes need entries, which are there once a program is traced with them."""
    if not value.graph.want_entries(f"np.{name}"):
        return Value(value.graph.refused())
    from nlaformer.compiler.pieces import by_entries

    if name == "reshape" and isinstance(args[0], Value) and args[0].kind == "matrix":
        args = (_as_it_is(args[0]), *args[1:])
    return by_entries(value.graph, getattr(np, name), args, options)
