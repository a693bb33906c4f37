"""Products entry by entry and across tokens, and sums.

The factor that stands in the score is one whose size is known; between two such, the smaller one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from nlaformer.compiler.lower.context import Lowering, lowers
from nlaformer.compiler.lower.facts import dot_of, is_system_matrix
from nlaformer.compiler.lower.logs import either_sign, logarithm
from nlaformer.compiler.lower.moves import routed
from nlaformer.compiler.lower.normal import selecting
from nlaformer.compiler.lower.sizes import calmed, common_exponent, factor, in_rows, is_calm, is_owned, side
from nlaformer.compiler.machine.instructions import InToken, Kernel, Linear, RowSums, Scale, Total
from nlaformer.compiler.machine.rows import HEADROOM, MATRIX_NORM, Range
from nlaformer.compiler.terms import Combination, Term, Terms, combine, multiply, registers_of
from nlaformer.express.linearize import design, design_product, exponent_rounding
from nlaformer.program.ir import Node, is_transpose

_GROWTH = 2.0  # how far residuals may grow in a step without a definite A


# --- entry by entry ---


@lowers("multiply")
def lower_multiply(low: Lowering, node: Node) -> Terms:
    """Factors that are exponentials or have logarithms go into the exponent; else a product of rows."""
    # A scalar first: what is made of it may put other values into better rows.
    u, v = sorted(node.args, key=lambda factor: factor.ndim)
    for one, other in ((u, v), (v, u)):
        if other.ndim < one.ndim and low.is_partial(one):
            continue
        if low.is_exponential(one):
            return multiply(low.value(other), low.value(one))
        if low.facts.is_positive(one) and (not one.shape or one.invariant):
            c, exponent = logarithm(low, one, "numerator")
            return multiply(low.value(other), (Term(c, low.machine.one, exponent),))
        if _is_step(low, one, other):
            return multiply(low.value(other), either_sign(low, one))
    for mask, scalar in ((u, v), (v, u)):
        if not scalar.shape and (c := selecting(mask)):  # a scalar in some places
            places = np.where(mask.extra != 0, 0, -1)
            return tuple(replace(term, coefficient=c * term.coefficient) for term in routed(low, scalar, places))
    return _product(low, u, v)


def _is_step(low: Lowering, scalar: Node, other: Node) -> bool:
    """Whether a scalar is a step length, a dot over something positive, and what it multiplies has none in it."""
    if scalar.op != "divide" or scalar.shape or not other.shape:
        return False
    dot, size = scalar.args
    if dot.op == "multiply" and dot.args[0].op == "constant":
        dot = dot.args[1]
    inside = registers_of(*(term.exponent for term in low.value(other)))
    either = any(low.machine.rows[row].range.of_either_sign for row in inside)
    return dot_of(dot) is not None and low.facts.is_positive(size) and not either


def _product(low: Lowering, u: Node, v: Node) -> Terms:
    machine = low.machine
    sides = [(*side(low, node), node) for node in (u, v)]
    if not all(source for source, _, _ in sides):
        return ()
    sides.sort(key=lambda s: (not is_calm(low, s[0], s[2]), machine.height(s[0]), machine.bound(s[0])))
    (key, e), (value, f, of_value) = calmed(low, *sides[0]), sides[1]
    lin = design_product(low.target.dtype, min(machine.bound(key), 8.0) / 2, order=low.target.order)
    bound = HEADROOM * machine.typical(key) * machine.typical(value)
    known = Range(bound, bound / HEADROOM, is_calm(low, value, of_value), scalar=not u.shape and not v.shape)
    height = max(machine.height(key), machine.height(value))
    row = machine.add(InToken((key, ((machine.one, 1.0),), value), lin), height, known)
    return (Term(1.0, row, combine((1.0, e), (1.0, f))),)


# --- across tokens ---


@lowers("matmul")
def lower_matmul(low: Lowering, node: Node) -> Terms:
    """U . v, u v^T, X v, X Y: one linearized layer; with an input the kernel of its logarithms, without."""
    left, right = node.args
    if (pair := dot_of(node)) is not None:
        return _dot(low, *pair)
    if is_system_matrix(left):
        return _by_input(low, left, right)
    if left.ndim == right.ndim == 2 and left.shape[1] == 1 < right.shape[1]:
        u, v = (low.graph.move([argument], np.arange(argument.size)) for argument in (left, right))
        return _outer(low, u, v)
    transposed = is_transpose(left)
    inner = left.args[0] if transposed else left
    (X, e), (Y, f) = factor(low, inner), side(low, right)
    if not X or not Y:
        return ()
    machine, n = low.machine, low.n
    # A matrix at fixed scale, an inverse say, may have entries far above 1, so c is small and the order high.
    lin = design(n, low.target.dtype, 1.0 if e else 8.0, order=3, summands=n)
    size = machine.typical(X) * machine.typical(Y)
    # A vector may be far smaller than the norms of its factors.
    calibrated = right.ndim == 2 and machine.calibrated(X) and machine.calibrated(Y)
    eye = low.eye(inner.shape[1 - transposed])
    # Token j holds row j of X and i row i of Y: sum_i X_ji Y_i, or sum_i X_ij Y_i.
    sources = (X, low.eye(low.height(inner)), Y) if transposed else (eye, X, Y)
    height = machine.height(Y)
    row = machine.add(Linear(sources, lin), height, Range(HEADROOM * size, size, calibrated))
    return (Term(1.0, row, combine((1.0, e), (1.0, f))),)


def _by_input(low: Lowering, matrix: Node, right: Node) -> Terms:
    """The product with an input matrix, which is kept as logarithms: an operator on the terms, and no layer yet."""
    name = (matrix.args[0] if matrix.args else matrix).extra
    value = low.value(right)
    plain = all(not term.operator and low.scalar_part(term.exponent) == term.exponent for term in value)
    if not plain:
        exponent = common_exponent(low, value, right)
        value = tuple(Term(c, row, exponent) for row, c in low.stored(value, exponent))
    operator, scale = name + (".T" if matrix.args else ""), low.input_scale(name)
    return tuple(Term(t.coefficient, t.register, combine((1.0, t.exponent), (1.0, scale)), operator) for t in value)


def _outer(low: Lowering, left: Node, right: Node) -> Terms:
    """Token j: sum_i (v_i u_j) e_i."""
    machine = low.machine
    (u, e), (v, f) = (factor(low, argument) for argument in (left, right))
    if not u or not v:
        return ()
    # Where few entries hold the norms, products are far larger than their mean; in float32 that shows.
    room = 0.5 if low.target.is_double else 2.0
    lin = design(low.n, low.target.dtype, room * machine.typical(u) * machine.typical(v), order=3)
    bound, calibrated = machine.bound(u) * machine.bound(v), machine.calibrated(u) and machine.calibrated(v)
    width = right.shape[0]
    row = machine.add(Linear((v, u, low.eye(width)), lin), width, Range(bound, bound / HEADROOM, calibrated))
    return (Term(1.0, row, combine((1.0, e), (1.0, f))),)


def _dot(low: Lowering, u: Node, v: Node) -> Terms:
    sides = [(*side(low, argument), argument) for argument in (u, v)]
    if not all(source for source, _, _ in sides):
        return ()
    calm = [is_calm(low, source, argument) for source, _, argument in sides]
    if all(calm) or u is v:
        (first, e), (second, f) = (calmed(low, *each) for each in sides)
        owned, definite = is_owned(low, u) and is_owned(low, v), low.core.definite
        # Without a definite A, residuals may grow in a step.
        room = 1.0 if definite or not owned else _GROWTH
        key, value = sorted((first, second), key=lambda source: _unruly(low, source))
        row = dot_row(low, key, value, spread=owned and definite, room=room)
        return (Term(1.0, row, combine((1.0, e), (1.0, f))),)
    if calm[1]:
        sides.reverse()
    (key, e), (value, f, _) = calmed(low, *sides[0]), sides[1]
    return (Term(1.0, dot_row(low, key, value), combine((1.0, e), (1.0, f))),)


def dot_row(low: Lowering, key: Combination, value: Combination, spread: bool = False, room: float = 1.0) -> int:
    """The dot of two vectors in rows, of which ``key`` stands in the score.

    ``spread``: no few entries make up most of its norm; ``room``: how far it is expected to exceed its size.
    """
    machine, n, dtype = low.machine, low.n, low.target.dtype
    typical = 2 * machine.bound(key) / HEADROOM / math.sqrt(n) if spread else 0.7 * machine.typical(key)
    lin = design(n, dtype, room * typical, order=low.target.order, summands=n)
    calibrated = machine.calibrated(value)  # else the size of the dot is not known
    noise = 10 * lin.steps * exponent_rounding(lin.C, lin.dtype) if calibrated else 0.0
    bound, size = machine.bound(key) * machine.bound(value), machine.typical(key) * machine.typical(value)
    known = Range(bound, size, calibrated and machine.calibrated(key), noise=noise)
    return machine.add(Linear((key, ((machine.one, 1.0),), value), lin), 1, known)


def _unruly(low: Lowering, source: Combination) -> tuple[int, Combination]:
    """How likely a vector is to outgrow its bound, which costs the accuracy of a key but not that of a value.

    A v is calibrated, since A has norm 1; d = r + beta d may be hundreds of times longer than r on hard systems.
    """
    ranks: dict[type | None, int] = {Kernel: 0, Scale: 2}
    return max(ranks.get(low.machine.maker(row), 1) for row, _ in source), source


# --- sums ---


@lowers("sum")
def lower_sum(low: Lowering, node: Node) -> Terms:
    """Over tokens by one head; over the rows of a token by the FFN, which is exact."""
    (inner,), axes = node.args, set(node.extra[0])
    by_rows, by_tokens = inner.ndim == 2 and 1 in axes, 0 in axes
    # A product that is needed for itself is summed; else the factors make an inner product, in one layer.
    if inner.op == "multiply" and inner.args[0].shape == inner.args[1].shape and low.uses[id(inner)] == 1:
        u, v = inner.args
        if by_rows and by_tokens and u is v and u.op == "input":
            return _squared_norm(low, u)
        if (inner.ndim == 1 or by_rows) and not any(map(low.is_exponential, (u, v))):
            return _dot(low, u, v) if inner.ndim == 1 else _row_dots(low, u, v, by_tokens)
    machine = low.machine
    source, exponent = in_rows(low, inner)
    if not source:
        return ()
    if not by_tokens:
        known = Range(machine.bound(source) * math.sqrt(low.n), machine.typical(source), calibrated=False)
        return (Term(1.0, machine.add(RowSums((source,)), 1, known), exponent),)
    bound = machine.bound(source) * math.sqrt(low.n * machine.height(source))
    known = Range(bound, bound / HEADROOM, machine.calibrated(source))
    return (Term(1.0, machine.add(Total((source,)), 1, known), exponent),)


def _squared_norm(low: Lowering, matrix: Node) -> Terms:
    """The sum of the squares of an input matrix."""
    machine, name = low.machine, matrix.extra
    with machine.within("pre"):
        logs, signs = low.encoded(name)
        rows = machine.add(Kernel((((machine.one, 1.0),), (), logs, signs), name, power=2.0), 1, Range())
        total = machine.add(Total((((rows, 1.0),),)), 1, Range(MATRIX_NORM**2, MATRIX_NORM**2 / HEADROOM))
    return (Term(1.0, total, combine((2.0, low.input_scale(name)))),)


def _row_dots(low: Lowering, u: Node, v: Node, all_tokens: bool) -> Terms:
    """Token j: the dot of row j of X and row j of Y; perhaps summed over the tokens."""
    machine = low.machine
    (X, e), (Y, f) = factor(low, u), factor(low, v)
    if not X or not Y:
        return ()
    bound = machine.bound(X) * machine.bound(Y)
    lin = design_product(low.target.dtype, min(bound, 32.0) / 8, order=3)
    known = Range(bound, bound / HEADROOM, machine.calibrated(X) and machine.calibrated(Y))
    sources: tuple[Combination, ...] = (X, Y, ((machine.one, 1.0),))
    row = machine.add(InToken(sources, lin, entries=False), 1, known)
    if all_tokens:
        row = machine.add(Total((((row, 1.0),),)), 1, known)
    return (Term(1.0, row, combine((1.0, e), (1.0, f))),)
