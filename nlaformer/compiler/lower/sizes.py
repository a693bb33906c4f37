"""How a value of unknown size is brought to size 1 before it stands in a score.

Attention multiplies by linearizing the softmax, which is accurate to about 1e-13 of the *range* its scores were made
for. A row is *calibrated* if its bound is near the truth: an input (its prompt has norm 1, the logarithm of its scale
stands in a row beside it where the program does not commute with scaling), the mantissa of a floating state, what is
made of such rows, and vectors that are divided by their norms. Any other factor of a score is first divided by its own
size:

    vector   l_j = log |v_j|, interpolated | peak = max_j l_j, by a sharp softmax | v e^-peak          2 layers
    matrix   the same from the sums of its rows' absolute values                                      3 layers
    scalar   l = log |s| | s e^-l, read from the first token                                           1 layer

The rough logarithms end at e^-16 (in float32 before that where v may be large). In double precision min(0, 16 + log
sum_j |v_j|) is added to the peak beside them: a vector may fall to e^-32 in one step, by sudden convergence, say, or
once a method has overshot, and keeps its digits.

A factor that is not in the score, the value of the heads, may have any size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nlaformer.compiler.lower.context import Lowering
from nlaformer.compiler.machine.instructions import FirstToken, Peak, Relu, Scale, Total
from nlaformer.compiler.machine.logarithms import Beneath, RoughLog
from nlaformer.compiler.machine.rows import UNKNOWN_SCALAR, Range
from nlaformer.compiler.terms import Combination, Term, Terms, combine
from nlaformer.program.ir import Node

# A value in rows, without the exponent at which it stands there; and that exponent.
InRows = tuple[Combination, Combination]
_OF_SIZE = Range(calibrated=False, scalar=True, of_size=True)


# --- sizes that are found at run time ---


def normalized(low: Lowering, source: Combination, ndim: int) -> InRows:
    """(row, F) with source = row e^F and a row of size about 1; 0 stays 0."""
    if not source:
        return source, ()
    machine, factor = low.machine, max(abs(c) for _, c in source)
    source = tuple((row, c / factor) for row, c in source)
    shift = ((machine.one, math.log(factor)),) if factor != 1.0 else ()
    if ndim == 0:
        first = FirstToken((source, ((rough_log(low, source), 1.0),)))
        row = machine.add(first, 1, Range(2.0, 1.0, scalar=True), beside=[(1, _OF_SIZE)])
        (picked,) = machine.beside(first)
        return ((row, 1.0),), combine((1.0, ((picked, 1.0),)), (1.0, shift))
    top = peak(low, source, ndim)
    row = machine.add(Scale((source, combine((-1.0, top)))), machine.height(source), Range(math.sqrt(low.n)))
    return ((row, 1.0),), combine((1.0, top), (1.0, shift))


def rough_log(low: Lowering, source: Combination, positive: bool = False) -> int:
    """A rough logarithm of the size of each entry, whatever its sign, or where it is known to be positive."""
    return low.machine.add(RoughLog((source,), low.machine.bound(source), positive))


def peak(low: Lowering, source: Combination, ndim: int) -> Combination:
    """The logarithm of the largest entry, within a few tenths; where that ends, of the sum of absolute values."""
    add, double = low.machine.add, low.target.is_double
    absolute: Combination = ((add(Relu((source,), absolute=True)), 1.0),) if ndim == 2 or double else ()
    log = rough_log(low, absolute if ndim == 2 else source, positive=ndim == 2)
    rows = [add(Peak((((log, 1.0),),)), 1, _OF_SIZE)]
    if double:
        total = add(Total((absolute,)), 1, UNKNOWN_SCALAR)
        rows.append(add(Beneath((((total, 1.0),),)), 1, _OF_SIZE))
    return combine(*((1.0, ((row, 1.0),)) for row in rows))


def maximum(low: Lowering, exponents: Iterable[Combination]) -> Combination:
    """About the largest of several exponents, from interpolated logarithms: F + max(0, H - F), in pairs."""
    one = low.machine.one
    largest: dict[Combination, float] = {}
    for exponent in exponents:
        rough = dict(_rough(low, exponent))
        constant = rough.pop(one, 0.0)
        form = combine((1.0, rough.items()))
        largest[form] = max(largest.get(form, -math.inf), constant)
    forms = [combine((1.0, form), (constant, ((one, 1.0),))) for form, constant in largest.items()]
    while len(forms) > 1:
        pairs = [forms[k : k + 2] for k in range(0, len(forms), 2)]
        forms = [_larger(low, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return forms[0] if forms else ()


def _larger(low: Lowering, F: Combination, H: Combination) -> Combination:
    above = low.machine.add(Relu((combine((1.0, H), (-1.0, F)),)), 1, UNKNOWN_SCALAR)
    return combine((1.0, F), (1.0, ((above, 1.0),)))


def _rough(low: Lowering, exponent: Combination) -> Combination:
    """An exponent without the refinement of its logarithms, which is known a half layer earlier."""
    parts = []
    for row, c in exponent:
        known = low.machine.rows[row].range
        if not known.scalar:
            continue
        if known.rough is not None:
            row = low.machine.add(FirstToken((((known.rough, 1.0),),)), 1, UNKNOWN_SCALAR)
        parts.append((c, ((row, 1.0),)))
    return combine(*parts)


# --- values in rows ---


def common_exponent(low: Lowering, value: Terms, node: Node) -> Combination:
    """The exponent at which a value is best put into a row: its own where all terms agree, else its group's.

    Exponents of different origin are aligned at run time, by the largest.
    """
    exponents = {low.scalar_part(term.exponent) for term in value}
    if len(exponents) == 1:
        return exponents.pop()
    if node.shape:
        group = low.group_of(node)
        if group is not None and low.machine.block == "loop":
            scale = low.scale_row[group]
            if all(dict(exponent).get(scale) == 1.0 for exponent in exponents):
                return ((scale, 1.0),)
        elif () in exponents or low.is_kin_of_a_state(node):
            return ()
    ordered = list(dict.fromkeys(low.scalar_part(term.exponent) for term in value))
    # Of the two exponents of a scalar of either sign one is that of 0: no row can be put at it.
    either = any(low.machine.rows[row].range.of_either_sign for exponent in ordered for row, _ in exponent)
    if either or len({low.origin(exponent) for exponent in ordered}) > 1:
        return maximum(low, ordered)
    rows = [term.exponent for term in value if term.register != low.machine.one]
    if rows or () in exponents or not value:
        return low.scalar_part(rows[0]) if rows else ()
    return ordered[0]


def in_rows(low: Lowering, node: Node) -> InRows:
    """A value in rows, without the exponent at which it is best kept there; and that exponent."""
    # No rows where all terms cancel, as in x - x, which the graph does not see: what is made of it has no terms.
    with low.machine.within(low.home(node), node.line):
        value = low.value(node)
        exponent = common_exponent(low, value, node)
        return low.stored(value, exponent), exponent


def side(low: Lowering, node: Node) -> InRows:
    """A factor in rows, and its exponent; inputs by their copies of size 1."""
    if node.op == "input":
        return ((low.normal[node.extra], 1.0),), low.input_scale(node.extra)
    return in_rows(low, node)


def is_calm(low: Lowering, source: Combination, node: Node) -> bool:
    """Whether a value may stand in a score: calibrated, and no difference that may be far smaller than its parts.

    Where the program itself computes a group's norm, as conjugate gradients do, its residuals fall slowly enough.
    """
    return low.machine.calibrated(source) and (len(source) == 1 or node.ndim == 2 or is_owned(low, node))


def is_owned(low: Lowering, node: Node) -> bool:
    """Whether the program itself computes the norm of a vector's group."""
    # In the pre block, only of what begins one. In r / 2 + b * b, the vector b * b is of the group of r as well,
    # which counts for a stop (``home_of``), but the program's own r . r says nothing about the norm of b * b.
    group = low.begun.get(id(node)) if low.machine.block == "pre" else low.group_of(node)
    return group is not None and low.own_scale(group) is not None


def calmed(low: Lowering, source: Combination, exponent: Combination, node: Node) -> InRows:
    """A factor that may stand in a score, and its exponent."""
    return (source, exponent) if is_calm(low, source, node) else of_size_one(low, source, exponent, node)


def of_size_one(low: Lowering, source: Combination, exponent: Combination, node: Node) -> InRows:
    """A value divided by its size, and its exponent; from now on this row is the value of the node."""
    with low.machine.within(low.home(node)):
        row, log = normalized(low, source, node.ndim)
    exponent = combine((1.0, exponent), (1.0, log))
    low.has_value(node, tuple(Term(c, number, exponent) for number, c in row))
    return row, exponent


def factor(low: Lowering, node: Node) -> InRows:
    """A value in rows of size about 1, and its exponent."""
    return calmed(low, *side(low, node), node)
