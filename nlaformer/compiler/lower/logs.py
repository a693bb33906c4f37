"""Logarithms: of positive values, of steps of either sign; where they stop a method; and the functions made of them.

Division, roots and powers of positive values are arithmetic on logarithms. A step length whose sign is not known, alpha
= (r . d) / (d . q), is e^F - e^H with the logarithms of alpha and of -alpha, and no product: it would cost x the digits
below 1e-13.
"""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Literal

from nlaformer.compiler.lower.context import Lowering, lowers
from nlaformer.compiler.lower.facts import causes, dot_of, vanishing
from nlaformer.compiler.lower.moves import spread, within_shape
from nlaformer.compiler.lower.sizes import in_rows, is_calm, of_size_one, rough_log
from nlaformer.compiler.machine.instructions import IsZero, Relu, Sign
from nlaformer.compiler.machine.logarithms import Log, Refine, Stop
from nlaformer.compiler.machine.rows import FARTHEST, UNKNOWN_SCALAR, ZERO, Range
from nlaformer.compiler.terms import Combination, Term, Terms, add, combine, multiply
from nlaformer.program.ir import Node

# Where the logarithm of 0 goes: as a numerator e^F = 0, as a denominator e^-F = 0.
Place = Literal["numerator", "denominator"]
# (c, F) for the value c e^F.
Logarithm = tuple[float, Combination]


def log_of_rows(
    low: Lowering, source: Combination, place: Place, scalar: bool, clears: Set[str] | None = None
) -> Logarithm:
    """(c, F) with source = c e^F: interpolated, then refined; with a stop where it ``clears`` states."""
    machine = low.machine
    if not source:
        return 1.0, ((machine.one, FARTHEST if place == "denominator" else -FARTHEST),)
    largest = max(abs(c) for _, c in source)
    source = tuple((row, c / largest) for row, c in source)
    lowest, highest = _reach(low, source)
    height, unknown = machine.height(source), Range(calibrated=False, scalar=scalar)
    # Where nothing stops, 0 is a power of e that underflows, whatever it is multiplied with.
    zero = ZERO if clears is not None else FARTHEST
    end = zero if place == "denominator" else -zero
    first = machine.add(Log((source,), lowest, highest, end), height, unknown)
    sources: list[Combination] = [source, ((first, 1.0),)]
    beside = [(height, Range(calibrated=True))]
    if clears is not None:
        sources.append(((machine.add(Stop((source,), lowest), 1, UNKNOWN_SCALAR), 1.0),))
        beside.append((1, Range(scalar=True)))
    refine = Refine(tuple(sources), lowest, highest, end, scalar)
    refined = machine.add(refine, height, unknown, beside)
    if machine.rows[refined].range.rough is None:
        machine.learn(refined, rough=first)
    if clears is not None:
        stop = machine.beside(refine, height)[1]
        machine.learn(refined, stop=stop)
        low.stops[machine.block].setdefault(stop, set()).update(clears)
    return largest, ((refined, 1.0),)


def _reach(low: Lowering, source: Combination) -> tuple[float, float]:
    """Where the logarithm is interpolated: from the noise of a dot to well above its bound."""
    machine = low.machine
    bound = machine.bound(source) if machine.calibrated(source) else sum(abs(c) for _, c in source)
    noise = next((known.noise for row, _ in source if (known := machine.rows[row].range).noise), 0.0)
    if noise:
        return noise**2 * bound, 1e3 * low.n * bound
    reach = 1e16 if low.target.is_double else 1e7
    return bound / reach, bound * reach


def logarithm(low: Lowering, node: Node, place: Place) -> Logarithm:
    """(c, F) with node = c e^F, for a positive node."""
    with low.machine.within(low.home(node), node.line):
        value = low.value(node)
        if len(value) == 1 and low.is_exponential(node) and value[0].coefficient > 0:
            return value[0].coefficient, value[0].exponent
        source, exponent = in_rows(low, node)
        if not node.shape and len({low.origin(term.exponent) for term in value}) > 1:
            source, exponent = of_size_one(low, source, exponent, node)  # it may be far smaller than its parts
        c, log = log_of_rows(low, source, place, not node.shape, _clears(low, node, place))
        # The square of what a stop takes to e^-k of it is e^-2k of it.
        stops = stops_of(low, log) if place == "numerator" else ()
        return c, combine((1.0, exponent), (1.0, log), (-2.0, stops))


def either_sign(low: Lowering, node: Node) -> Terms:
    """A scalar of either sign as e^F - e^H, by the logarithms of it and of its opposite: one of them is that of 0.

    Both are read from the first token, so that x + alpha d and r - alpha A d take the same alpha in every entry; a
    product would multiply by the copy of each token, which differ by what a dot amplifies its rounding.
    """
    with low.machine.within(low.home(node), node.line):
        source, exponent = in_rows(low, node)
        if not source:
            return ()
        rough = rough_log(low, source)  # of both: that of 0 is beyond use
        terms = []
        for sign in (1.0, -1.0):
            c, log = log_of_rows(low, combine((sign, source)), "numerator", True)
            for row, _ in log:
                low.machine.learn(row, rough=rough, of_either_sign=True)
            terms.append(Term(sign * c, low.machine.one, combine((1.0, exponent), (1.0, log))))
        return tuple(terms)


# --- stops ---


def stops_of(low: Lowering, exponent: Combination) -> Combination:
    """The stops of the logarithms in an exponent."""
    stops = (low.machine.rows[row].range.stop for row, _ in exponent)
    return tuple(sorted((stop, 1.0) for stop in stops if stop is not None))


def _clears(low: Lowering, node: Node, place: Place) -> set[str] | None:
    """The states that a stop of a positive scalar takes to 0: what vanishes with it.

    A quotient by d . A d <= 0 ends a method: all goes to 0 that falls with any product of their group.
    """
    groups = groups_of(low, node)
    if not groups:
        return None
    if place == "denominator":
        pair = dot_of(node)
        square = pair is not None and pair[0] is pair[1]
        fall = {name for group in groups for name in low.floating[group] if name in low.falling}
        return fall if fall and not square else None
    return vanishing_states(low, causes(node, low.facts), groups)


def vanishing_states(low: Lowering, with_: set[int], groups: set[int]) -> set[str]:
    """The vector states of some groups that vanish in this block's values where the nodes ``with_`` do."""
    values = low.core.start if low.machine.block == "pre" else low.core.step
    found = vanishing(values.values(), with_)
    return {name for group in groups for name in low.floating[group] if id(values[name]) in found}


def groups_of(low: Lowering, node: Node) -> set[int]:
    """The floating groups whose vectors a scalar is made of; in the pre block, of those that it begins."""
    found: set[int | None] = set()
    seen: set[int] = set()
    stack = [] if node.shape else [node]
    while stack:
        other = stack.pop()
        if id(other) in seen:
            continue
        seen.add(id(other))
        if (pair := dot_of(other)) is not None:
            found |= {low.home_of(argument) for argument in pair}
        elif not other.shape:
            stack.extend(other.args)
    return {group for group in found if group is not None}


# --- signs ---


def _halves(low: Lowering, source: Combination, scalar: bool) -> list[int]:
    """max(v, 0) and max(-v, 0)."""
    machine = low.machine
    noise = next((known.noise for row, _ in source if (known := machine.rows[row].range).noise), 0.0)
    known = machine.like(source, scalar=scalar, noise=noise)
    signed = (tuple((row, sign * c) for row, c in source) for sign in (1.0, -1.0))
    return [machine.add(Relu((half,)), machine.height(source), known) for half in signed]


def _signs(low: Lowering, source: Combination, scalar: bool) -> list[int]:
    """Rows that are 0 where v > 0 and where v < 0, and 1 elsewhere."""
    height, known = low.machine.height(source), Range(scalar=scalar)
    return [low.machine.add(IsZero((((half, 1.0),),)), height, known) for half in _halves(low, source, scalar)]


# --- rules ---


@lowers("sqrt")
def lower_sqrt(low: Lowering, node: Node) -> Terms:
    c, exponent = logarithm(low, node.args[0], "numerator")
    return (Term(math.sqrt(c), low.ones(node), combine((0.5, exponent))),)


@lowers("log")
def lower_log(low: Lowering, node: Node) -> Terms:
    c, exponent = logarithm(low, node.args[0], "numerator")
    value = add((Term(math.log(c), low.ones(node)),), tuple(Term(k, row) for row, k in exponent))
    return within_shape(low, value, node)


@lowers("exp")
def lower_exp(low: Lowering, node: Node) -> Terms:
    source = dict(low.stored(low.value(node.args[0])))
    constant = math.exp(source.pop(low.machine.one, 0.0))
    return (Term(constant, low.ones(node), combine((1.0, source.items()))),)


@lowers("sign")
def lower_sign(low: Lowering, node: Node) -> Terms:
    source, _ = in_rows(low, node.args[0])
    if not source:
        return ()
    above, below = _signs(low, source, not node.shape)
    return (Term(1.0, below), Term(-1.0, above))


@lowers("divide")
def lower_divide(low: Lowering, node: Node) -> Terms:
    """U / v = u e^-log v for v > 0; else sign(v) u e^-log|v|, the sign by masks, which is exact."""
    u, v = node.args
    machine = low.machine
    if low.facts.is_positive(v):
        c, exponent = logarithm(low, v, "denominator")
        # Only now, since the logarithm may have put it into better rows.
        value = spread(low, u, node.shape) if low.is_partial(node) else low.value(u)
        if not u.shape and low.facts.is_positive(u) and groups_of(low, u):
            # 0 / 0 is 0, also over the state of a product that stopped before, which is e^-2k.
            k, log = logarithm(low, u, "numerator")
            value = (Term(k, machine.one, combine((1.0, log), (-2.0, stops_of(low, log)))),)
        return multiply(value, (Term(1 / c, machine.one, combine((-1.0, exponent))),))
    with machine.within(low.home(v)):
        source, exponent = in_rows(low, v)
        signs = _signs(low, source, not v.shape)
        size = tuple(sorted((half, 1.0) for half in _halves(low, source, not v.shape)))
        c, log = log_of_rows(low, size, "denominator", not v.shape)
    numerator, e = in_rows(low, u)
    if not numerator:
        return ()
    known = machine.like(numerator, scalar=not node.shape, calibrated=is_calm(low, numerator, u))
    height = max(machine.height(numerator), machine.height(source))
    row = machine.add(Sign((numerator, *(((sign, 1.0),) for sign in signs))), height, known)
    return (Term(1 / c, row, combine((1.0, e), (-1.0, exponent), (-1.0, log))),)
