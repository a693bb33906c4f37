"""Everything that is known of a primitive, in one record each.

There are weights for the primitives of ``CORE``. A primitive beside them has a ``rewrite``: what it is in terms of
others, written in NumPy. With ``evaluate`` it is a node of the graph, which runs, teaches and certifies as it stands
and is rewritten for the weights alone (``core.py``); without, it is written out while a program is traced, and needs no
more than its names and its rewrite. So a new function of NumPy is

    primitive("cosh", numpy=("cosh",), rewrite=lambda v: 0.5 * (np.exp(v) + np.exp(-v)), text="hyperbolic cosine")

and from then on it is traced, evaluated, enclosed, compiled, fuzzed and listed. Rewrites lose digits where the function
itself does not: min(1e-14, 1) as 1 - (1 - 1e-14), expm1 of 1e-12. A run whose weights lost digits that matter is found
to be inaccurate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.program import enclose, facts, rewrites, rounding, tensors
from nlaformer.program.ir import Graph, Node, RefusedError, Shape, is_zero
from nlaformer.program.tensors import entrywise


@dataclass(frozen=True)
class Primitive:
    """What is known of a primitive.

    Attributes
    ----------
    name : of its nodes
    text : what it is, for the table of the language
    numpy : the names under which NumPy, SciPy and torch have it; ``torch.x`` is torch's alone
    arity : the number of its arguments, where it has names
    evaluate : its value on tensors; None if it is written out while a program is traced
    shape : its shape from those of its arguments and its ``extra``
    rounding : the size of the terms that its rounding is relative to; None if it is exact
    enclose : a bound on its error from those of its arguments (``enclose.py``)
    rewrite : what it is in terms of others, from arrays and the parts of ``extra``; None for those with weights
    unit : its exponents of A and b from those of its arguments
    sign : whether it is positive, from whether its arguments are
    vanishes : whether it is 0, from whether its arguments are
    kin : the arguments that share its scale
    truth : whether it gives truth values, as 1 and 0
    domain : between which numbers its arguments lie
    """

    name: str
    text: str = ""
    numpy: tuple[str, ...] = ()
    arity: int = 1
    evaluate: tensors.Evaluate | None = None
    shape: Callable[[Sequence[Shape], Any], Shape] = lambda shapes, extra: np.broadcast_shapes(*shapes)
    rounding: rounding.Rule | None = None
    enclose: enclose.Rule | None = None
    rewrite: Callable[..., Any] | None = None
    unit: facts.UnitRule = facts.unit_same
    sign: facts.SignRule = facts.sign_unknown
    vanishes: Callable[[Sequence[bool]], bool] = facts.never_vanishes
    kin: Callable[[Node], Sequence[Node]] = facts.no_kin
    truth: bool = False
    domain: tuple[float, float] = (-math.inf, math.inf)


PRIMITIVES: dict[str, Primitive] = {}
BY_NAME: dict[str, Primitive] = {}  # by the names that NumPy, SciPy and torch have for it


def primitive(name: str, **facts: Any) -> Primitive:
    """Enter a record."""
    PRIMITIVES[name] = made = Primitive(name, **facts)
    BY_NAME.update(dict.fromkeys(made.numpy, made))
    return made


# --- the primitives with weights ---


def _matmul_shape(shapes: Sequence[Shape], extra: Any) -> Shape:
    u, v = shapes
    if not u or not v:
        raise RefusedError("a product @ with a scalar; write * for it")
    if u[-1] != v[-2 if len(v) > 1 else 0]:
        raise RefusedError(f"a product @ of the shapes {u} and {v}, which do not fit")
    rows, columns = u[:-1][-1:], v[1:][-1:]
    return (*np.broadcast_shapes(u[:-2], v[:-2]), *rows, *columns)


def _reduced_shape(shapes: Sequence[Shape], extra: Any) -> Shape:
    axes, keeps = extra
    return tuple(1 if k in axes else side for k, side in enumerate(shapes[0]) if keeps or k not in axes)


def _given(shapes: Sequence[Shape], extra: Any) -> Shape:
    raise TypeError("a leaf of the graph is not applied to anything")


primitive("input", text="an input, by name", shape=_given)
primitive("state", text="a state, by name", shape=_given)
primitive("constant", text="numbers", shape=_given, unit=facts.unit_none, sign=facts.sign_of_constant)
primitive("learned", text="what a learned part gives", shape=_given, unit=facts.unit_none)
primitive(
    "add",
    text="u + v",
    numpy=("add",),
    arity=2,
    evaluate=entrywise(torch.add),
    rounding=rounding.of_terms(entrywise(torch.add)),
    enclose=enclose.add,
    unit=facts.unit_sum,
    sign=facts.sign_kept,
    vanishes=all,
    kin=facts.kin_arrays,
)
primitive(
    "multiply",
    text="u * v",
    numpy=("multiply", "torch.mul"),
    arity=2,
    evaluate=entrywise(torch.multiply),
    rounding=rounding.of_terms(entrywise(torch.multiply)),
    enclose=enclose.multiply,
    unit=facts.unit_product,
    sign=facts.sign_of_product,
    vanishes=any,
    kin=facts.kin_of_product,
)
primitive(
    "divide",
    text="u / v, 0 where both are 0",
    numpy=("divide", "true_divide", "torch.div"),
    arity=2,
    evaluate=tensors.divide,
    rounding=rounding.of_value,
    enclose=enclose.divide,
    unit=facts.unit_quotient,
    sign=facts.sign_kept,
    vanishes=facts.first_vanishes,
    kin=facts.kin_of_quotient,
)
primitive(
    "sqrt",
    text="square root",
    numpy=("sqrt",),
    evaluate=tensors.sqrt,
    rounding=rounding.of_value,
    enclose=enclose.sqrt,
    unit=facts.unit_root,
    sign=facts.sign_kept,
    vanishes=facts.first_vanishes,
    domain=(0.0, math.inf),
)
primitive(
    "exp",
    text="e^v",
    numpy=("exp",),
    evaluate=entrywise(torch.exp),
    rounding=rounding.of_value,
    enclose=enclose.exp,
    unit=facts.unit_without,
    sign=facts.sign_always,
)
primitive(
    "log",
    text="natural logarithm",
    numpy=("log",),
    evaluate=entrywise(torch.log),
    rounding=rounding.of_logarithm,
    enclose=enclose.log,
    unit=facts.unit_without,
    domain=(0.0, math.inf),
)
primitive(
    "relu",
    text="v where it is positive, else 0",
    numpy=("relu",),
    evaluate=entrywise(torch.relu),
    enclose=enclose.first,
    sign=facts.sign_of_zero,
    vanishes=facts.first_vanishes,
    kin=facts.kin_arrays,
)
primitive(
    "sign",
    text="-1, 0 or 1",
    numpy=("sign", "torch.sgn"),
    evaluate=entrywise(torch.sign),
    rounding=rounding.of_value,
    enclose=enclose.sign,
    unit=facts.unit_none,
    sign=facts.sign_kept,
)
primitive(
    "positive",
    text="v itself, with the promise that it is positive",
    evaluate=entrywise(lambda v: v),
    enclose=enclose.first,
    sign=facts.sign_always,
    vanishes=facts.first_vanishes,
    kin=facts.kin_arrays,
)
primitive(
    "matmul",
    text="product of matrices and vectors",
    numpy=("matmul", "torch.mm", "torch.mv"),
    arity=2,
    evaluate=tensors.matmul,
    shape=_matmul_shape,
    rounding=rounding.of_terms(tensors.matmul),
    enclose=enclose.product,
    unit=facts.unit_product,
    sign=facts.sign_of_product,
    vanishes=any,
    kin=facts.kin_of_matmul,
)
primitive(
    "sum",
    text="sum over axes",
    evaluate=tensors.total,
    shape=_reduced_shape,
    rounding=rounding.of_terms(tensors.total),
    enclose=enclose.summed,
    sign=facts.sign_kept,
    vanishes=facts.first_vanishes,
)
primitive(
    "move",
    text="entries at other places: slices, transposes, triangles, joined arrays",
    evaluate=tensors.move,
    shape=lambda shapes, extra: extra.shape,
    enclose=enclose.moved,
    unit=facts.unit_sum,
    sign=facts.sign_kept,
    vanishes=all,
    kin=facts.kin_arrays,
)
CORE = tuple(PRIMITIVES)

# --- primitives that are nodes of the graph and are rewritten for the weights ---


def _function(name: str, evaluate: Callable[[Tensor], Tensor], rule: enclose.Rule, **more: Any) -> None:
    primitive(
        name,
        numpy=(name,),
        evaluate=entrywise(evaluate),
        enclose=rule,
        rounding=more.pop("rounding", rounding.of_value),
        **more,
    )


for name, evaluate, rewrite, text in (
    ("maximum", torch.maximum, rewrites.maximum, "the larger of u and v"),
    ("minimum", torch.minimum, rewrites.minimum, "the smaller of u and v"),
):
    primitive(
        name,
        text=text,
        numpy=(name, f"f{name[:3]}"),
        arity=2,
        evaluate=entrywise(evaluate),
        rounding=rounding.of_choice,
        enclose=enclose.larger,
        rewrite=rewrite,
    )
for name, reduced, pair, text in (
    ("max", tensors.largest, np.maximum, "largest entry over axes"),
    ("min", tensors.smallest, np.minimum, "smallest entry over axes"),
):
    primitive(
        name,
        text=text,
        evaluate=reduced,
        shape=_reduced_shape,
        rounding=rounding.of_largest,
        enclose=enclose.largest,
        rewrite=rewrites.folded(pair),
    )
primitive(
    "where",
    text="u where c, else v",
    evaluate=tensors.where,
    rounding=rounding.of_chosen,
    enclose=enclose.where,
    rewrite=rewrites.where,
)
primitive(
    "hypot",
    text="sqrt(u u + v v)",
    numpy=("hypot",),
    arity=2,
    evaluate=tensors.hypot,
    rounding=rounding.of_value,
    enclose=enclose.slope_one,
    rewrite=lambda u, v: np.sqrt(u * u + v * v),
)
primitive(
    "logaddexp",
    text="log(e^u + e^v)",
    numpy=("logaddexp",),
    arity=2,
    evaluate=entrywise(torch.logaddexp),
    rounding=rounding.of_logaddexp,
    enclose=enclose.logaddexp,
    rewrite=lambda u, v: np.log(np.exp(u) + np.exp(v)),
)
_function("expm1", torch.expm1, enclose.expm1, text="e^v - 1", rewrite=rewrites.expm1)
_function(
    "log1p", torch.log1p, enclose.log1p, text="log(1 + v)", rewrite=lambda v: np.log(1.0 + v), domain=(-1.0, math.inf)
)
_function("sinh", torch.sinh, enclose.sinh, text="hyperbolic sine", rewrite=lambda v: 0.5 * (np.exp(v) - np.exp(-v)))
_function("tanh", torch.tanh, enclose.slope_one, text="hyperbolic tangent", rewrite=rewrites.tanh)
_function(
    "softplus",
    lambda v: torch.logaddexp(v, torch.zeros_like(v)),
    enclose.slope_one,
    text="log(1 + e^v)",
    rewrite=lambda v: np.log(1.0 + np.exp(v)),
)
_function("sin", torch.sin, enclose.slope_one, text="sine", rounding=rounding.of_wave, rewrite=rewrites.sin)
_function("cos", torch.cos, enclose.slope_one, text="cosine", rounding=rounding.of_wave, rewrite=rewrites.cos)
_function("arctan", torch.arctan, enclose.slope_one, text="arc tangent", rewrite=rewrites.arctan)

# --- primitives that are written out while a program is traced: what keeps all digits in terms of others ---

_relu, _sign = rewrites.relu, np.sign
_WRITTEN_OUT: tuple[tuple[str, tuple[str, ...], Callable[..., Any], str], ...] = (
    ("subtract", ("subtract", "torch.sub"), lambda u, v: u + -1.0 * v, "u - v"),
    ("negative", ("negative", "torch.neg"), lambda v: -1.0 * v, "-v"),
    ("absolute", ("absolute", "abs", "fabs"), lambda v: _relu(v) + _relu(-v), "|v|"),
    ("square", ("square",), lambda v: v * v, "v v"),
    ("reciprocal", ("reciprocal",), lambda v: 1.0 / v, "1 / v"),
    ("cosh", ("cosh",), lambda v: 0.5 * (np.exp(v) + np.exp(-v)), "hyperbolic cosine"),
    ("exp2", ("exp2",), lambda v: np.exp(math.log(2.0) * v), "2^v"),
    ("expit", ("expit", "torch.sigmoid"), lambda v: 1.0 / (1.0 + np.exp(-v)), "1 / (1 + e^-v)"),
    ("tan", ("tan",), lambda v: np.sin(v) / np.cos(v), "tangent"),
    ("heaviside", ("heaviside",), lambda u, v: np.where(u == 0, v, u > 0), "0, v or 1 by the sign of u"),
    ("copysign", ("copysign",), lambda u, v: np.abs(u) * np.where(v < 0, -1.0, 1.0), "|u| with the sign of v"),
)
_TRUTHS: tuple[tuple[str, tuple[str, ...], Callable[..., Any], str], ...] = (
    ("greater", ("greater", "torch.gt"), lambda u, v: _relu(_sign(u - v)), "u > v"),
    ("less", ("less", "torch.lt"), lambda u, v: _relu(_sign(v - u)), "u < v"),
    ("greater_equal", ("greater_equal", "torch.ge"), lambda u, v: 1.0 - _relu(_sign(v - u)), "u >= v"),
    ("less_equal", ("less_equal", "torch.le"), lambda u, v: 1.0 - _relu(_sign(u - v)), "u <= v"),
    ("not_equal", ("not_equal", "torch.ne", "bitwise_xor"), lambda u, v: np.abs(_sign(u - v)), "u != v"),
    ("equal", ("equal", "torch.eq"), lambda u, v: 1.0 - np.abs(_sign(u - v)), "u == v"),
    ("logical_not", ("logical_not", "invert"), lambda v: 1.0 - np.abs(_sign(v)), "where v is 0"),
    (
        "logical_and",
        ("logical_and", "bitwise_and"),
        lambda u, v: np.abs(_sign(u)) * np.abs(_sign(v)),
        "where both are not 0",
    ),
    ("logical_or", ("logical_or", "bitwise_or"), lambda u, v: _sign(np.abs(u) + np.abs(v)), "where one is not 0"),
)
for name, names, rewrite, text in (*_WRITTEN_OUT, *_TRUTHS):
    arity, truth = rewrite.__code__.co_argcount, (name, names, rewrite, text) in _TRUTHS
    primitive(name, numpy=names, arity=arity, rewrite=rewrite, text=text, truth=truth)
_OF_POSITIVES: tuple[tuple[str, tuple[str, ...], Callable[..., Any], str], ...] = (
    ("rsqrt", ("torch.rsqrt",), lambda v: 1.0 / np.sqrt(v), "1 / sqrt(v)"),
    ("log2", ("log2",), lambda v: np.log(v) / math.log(2.0), "logarithm to base 2"),
    ("log10", ("log10",), lambda v: np.log(v) / math.log(10.0), "logarithm to base 10"),
)
for name, names, rewrite, text in _OF_POSITIVES:
    primitive(name, numpy=names, rewrite=rewrite, text=text, domain=(0.0, math.inf))


# --- nodes ---


def apply(graph: Graph, op: str, *args: Node, extra: Any = None) -> Node:
    """The node of a primitive on nodes of a graph, simplified where no rounding changes."""
    record = PRIMITIVES[op]
    shape = record.shape([argument.shape for argument in args], extra)
    if op in ("add", "multiply") and args[1].op == "constant":
        args = args[::-1]
    if op == "divide" and is_zero(args[1]) and not is_zero(args[0]):
        raise RefusedError("a division by zero")
    if op in ("sum", "max", "min") and not extra[0]:
        return args[0]
    if all(argument.op == "constant" for argument in args):
        assert record.evaluate is not None
        value = record.evaluate(graph.make(op, args, extra, shape), *(torch.tensor(a.extra) for a in args))
        if bool(torch.isfinite(value).all()):
            return graph.constant(value.numpy())
    return _simplified(graph, op, args, shape) or graph.make(op, args, extra, shape)


def _simplified(graph: Graph, op: str, args: Sequence[Node], shape: Sequence[int]) -> Node | None:
    first, last = args[0], args[-1]
    if op == "add" and is_zero(first) and last.shape == shape:
        return last
    if op == "multiply" and first.op == "constant" and last.shape == shape and (first.extra == 1.0).all():
        return last
    if op in ("multiply", "matmul") and any(map(is_zero, args)):
        return graph.constant(np.zeros(shape))
    if op == "matmul" and any(_is_identity(argument) for argument in args):
        return last if _is_identity(first) else first
    if op in ("sum", "max", "min", "relu", "sqrt") and is_zero(first):
        return graph.constant(np.zeros(shape))
    return last if op == last.op == "relu" else None


def _is_identity(node: Node) -> bool:
    return node.op == "constant" and node.ndim == 2 and np.array_equal(node.extra, np.eye(node.shape[0]))
