"""The building blocks of all constructions: attention heads and pieces of feed-forward networks.

Weights are written as *forms*: a form is a linear combination of rows, ``{row: coefficient}``. A head has a form
for every component of its query, key and value, and a target row for every value; a hidden unit of an FFN has a
form, a bias and the rows it is added to. ``assemble`` turns heads and units into a layer.

All attention of a layer reads the old P; the FFN then reads the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from nlaformer.express.linearize import Linearization
from nlaformer.prompt import Layout
from nlaformer.transformer import FFN, Heads, Layer
from nlaformer.weights import Sparse

Form = dict[int, float]

# A difference of scores that makes a softmax weight exactly zero, in float64 as in float32.
OFF = 1024.0
# More than any number that a mask has to hide; within the range of float32.
HIDDEN = 2.0**100


@dataclass(frozen=True)
class Head:
    """One attention head: forms for query, key and value components, and the row each value is added to."""

    query: Sequence[Form]
    key: Sequence[Form]
    value: Sequence[Form]
    target: Sequence[int]
    gain: float = 1.0


@dataclass(frozen=True)
class Unit:
    """One hidden unit: ReLU(form + bias), added to each output row with its coefficient."""

    form: Form
    bias: float
    output: Form


def select(rows: Iterable[int]) -> list[Form]:
    """One form for each of these rows, with coefficient 1."""
    return [{row: 1.0} for row in rows]


def times(form: Form, factor: float) -> Form:
    """A form times a number."""
    return {row: factor * coefficient for row, coefficient in form.items()}


def everywhere(layout: Layout) -> Form:
    """The form that is 1 in every token."""
    return {**_ones(layout), layout["position"][0]: 1.0}


def _ones(layout: Layout) -> Form:
    """The form that is 1 in every data token: the register of ones where there is one, else a sum of position rows."""
    if "one" in layout.names:
        return {layout["one"][0]: 1.0}
    return dict.fromkeys(list(layout["position"])[layout.data_tokens], 1.0)


def linear_heads(
    layout: Layout,
    lin: Linearization,
    *,
    key: Sequence[Form],
    query: Sequence[Form],
    value: Sequence[Form],
    target: Sequence[int],
) -> list[Head]:
    """target_j += sum_i value_i (key_i . query_j), by linearizing the softmax (see ``linearize``).

    Key, query and value must vanish on the sink column.
    """
    sink = layout["position"][0]
    return [
        Head(
            query=[*(times(form, multiple * lin.c) for form in query), everywhere(layout)],
            key=[*key, {sink: lin.C}],
            value=value,
            target=target,
            gain=gain,
        )
        for multiple, gain in lin.heads
    ]


def product_heads(
    layout: Layout, lin: Linearization, factor: Form, value: Sequence[Form], target: Sequence[int]
) -> list[Head]:
    """target_j += value_j factor_j, token by token: every token sees itself and the sink, nothing else.

    ``lin`` is ``linearize.design_product``'s.
    """
    return row_dot_heads(layout, lin, [factor], [_ones(layout)], value, target)


def row_dot_heads(
    layout: Layout,
    lin: Linearization,
    left: Sequence[Form],
    right: Sequence[Form],
    value: Sequence[Form],
    target: Sequence[int],
) -> list[Head]:
    """target_j += value_j (left_j . right_j), token by token, as ``product_heads``; ``right`` vanishes on the sink."""
    own, others, _ = _itself(layout)
    return [
        Head([*own, *(times(form, multiple * lin.c) for form in left)], [*others, *right], value, target, gain)
        for multiple, gain in lin.heads
    ]


def exponential_head(
    layout: Layout, exponent: Form, value: Sequence[Form], target: Sequence[int], ceiling: float
) -> Head:
    """target_j += value_j e^{exponent_j} for exponents well below ``ceiling``.

    Every token sees itself and the sink, nothing else.
    """
    own, others, data = _itself(layout)
    return _below_ceiling(layout, [*own, exponent], [*others, data], value, target, ceiling)


def gate_head(layout: Layout, condition: Form, value: Sequence[Form], target: Sequence[int]) -> Head:
    """target_j += value_j where condition_j > 0: the weight is the logistic function of the condition.

    Exact where the condition is beyond +-OFF. It is the sink that scores -condition: the token itself keeps its exact
    0 and the others their -OFF, which would be rounded away beside a large condition.
    """
    own, others, _ = _itself(layout)
    sink = layout["position"][0]
    return Head([*own, times(condition, -1.0), {sink: OFF}], [*others, {sink: 1.0}, {sink: 1.0}], value, target)


def pick_head(layout: Layout, source: Sequence[int], value: Sequence[Form], target: Sequence[int]) -> Head:
    """target_j += value at token ``source[j]``: hard attention, exact."""
    position = layout["position"]
    readers = [{position[j]: OFF for j in range(layout.tokens) if source[j] == i} for i in range(layout.tokens)]
    return Head(query=readers, key=select(position), value=value, target=target)


def pick_exponential_head(
    layout: Layout, source: int, exponent: Form, value: Sequence[Form], target: Sequence[int], ceiling: float
) -> Head:
    """target_j += (value e^{exponent}) at token ``source``, the same in every data token j to the last bit.

    Only the source and the sink are seen.
    """
    hidden = {row: -OFF for k, row in enumerate(layout["position"]) if k not in (0, source)}
    return _below_ceiling(layout, [_ones(layout)], [{**exponent, **hidden}], value, target, ceiling)


def kernel_head(
    layout: Layout,
    logs: Sequence[Form],
    transpose: bool,
    exponent: Form,
    value: Sequence[Form],
    target: Sequence[int],
    ceiling: float,
    gain: float = 1.0,
) -> Head:
    """target_j += gain e^{exponent_j} sum_i e^{L_ji} value_i, with row j of L standing in token j as ``logs``.

    A matrix kept as logarithms needs no linearization: the kernel of softmax attention is the exponential.
    ``transpose`` takes L_ij instead. Scores stay well below ``ceiling``.
    """
    units = select(list(layout["position"])[layout.data_tokens])
    query, key = (units, logs) if transpose else (logs, units)
    return _below_ceiling(layout, [*query, exponent], [*key, _ones(layout)], value, target, ceiling, gain)


def _below_ceiling(
    layout: Layout,
    query: Sequence[Form],
    key: Sequence[Form],
    value: Sequence[Form],
    target: Sequence[int],
    ceiling: float,
    gain: float = 1.0,
) -> Head:
    """target_j += gain sum_i e^{key_i . query_j} value_i, for scores well below ``ceiling``.

    The sink has score ``ceiling`` and takes nearly all attention: the weight of a token that is seen alone is
    e^{score - ceiling} / (1 + e^{score - ceiling}). The sink's own column attends to the sink alone, however large
    the scores, so that it stays zero.
    """
    sink = layout["position"][0]
    return Head(
        query=[*query, everywhere(layout), {sink: OFF}],
        key=[*key, {sink: ceiling}, {sink: 1.0}],
        value=value,
        target=target,
        gain=gain * math.exp(ceiling),
    )


def peak_head(layout: Layout, value: Form, target: int, sharpness: float) -> Head:
    """target_j += about the largest value_i over the data tokens, in every data token.

    The mean by the weights e^{sharpness value_i}; it is at most log(n) / sharpness below the largest.
    """
    sink = layout["position"][0]
    query: list[Form] = [_ones(layout), {sink: OFF}]
    return Head(query, [{**times(value, sharpness), sink: -OFF}, {sink: 1.0}], [value], [target])


def sum_head(layout: Layout, value: Sequence[Form], target: Sequence[int]) -> Head:
    """target_j += sum_i value_i over all tokens, in every data token: uniform attention."""
    sink = layout["position"][0]
    return Head([{sink: OFF}], [{sink: 1.0}], value, target, gain=float(layout.tokens))


def _itself(layout: Layout) -> tuple[list[Form], list[Form], Form]:
    """Query and key forms under which a data token scores 0 with itself and -OFF with every other data token.

    The key is OFF (e_i - 1) rather than OFF e_i with OFF taken off afterwards: the token's own score is then an
    exact zero, and what is added to it is not rounded to the grid of OFF.
    """
    data, ones = list(layout["position"])[layout.data_tokens], _ones(layout)
    if "one" in layout.names:
        others = [{**times(ones, -OFF), own: OFF} for own in data]
    else:
        others = [dict.fromkeys([row for row in data if row != own], -OFF) for own in data]
    return select(data), others, ones


def add_form(form: Form, target: int) -> list[Unit]:
    """Target += form, exactly: x = ReLU(x) - ReLU(-x). Width 2."""
    return [Unit(form, 0.0, {target: 1.0}), Unit(times(form, -1.0), 0.0, {target: -1.0})]


def replace(target: int, form: Form | None = None) -> list[Unit]:
    """Target = form, or 0: the difference is added, exactly. Width 2."""
    form = form or {}
    return add_form({**form, target: form.get(target, 0.0) - 1.0}, target)


def masked(form: Form, target: int, hidden: Iterable[int]) -> list[Unit]:
    """Target += form, exactly, but not in the tokens of the position rows ``hidden``. Width 2.

    What is shown has exact zeros added to it; what is hidden lies below the threshold, however large.
    """
    off = dict.fromkeys(hidden, -HIDDEN)
    return [Unit({**times(form, sign), **off}, 0.0, {target: sign}) for sign in (1.0, -1.0)]


def exchange(first: int, second: int) -> list[Unit]:
    """Swap two rows: their difference goes to one and is taken from the other. Width 2."""
    return [
        Unit({second: 1.0, first: -1.0}, 0.0, {first: 1.0, second: -1.0}),
        Unit({first: 1.0, second: -1.0}, 0.0, {first: -1.0, second: 1.0}),
    ]


def piecewise_linear(
    form: Form, knots: Sequence[float], values: Sequence[float], output: Form, sink: int | None = None
) -> list[Unit]:
    """Output += g(form) for the interpolant g through increasing knots; as many units as knots.

    g continues linearly to the left of the first knot and is constant to the right of the last. All units face left,
    ReLU(knot - x): for a concave increasing g, the logarithm, their weights then have one sign and nothing cancels; if
    they faced right, cancellation would amplify rounding by 1e8 over twelve decades. ``sink`` is the position row of
    the sink, in whose column nothing is added.
    """
    gate = {} if sink is None else {sink: -2 * max(abs(knots[0]), abs(knots[-1]))}
    slopes = [(values[k] - values[k - 1]) / (knots[k] - knots[k - 1]) for k in range(1, len(knots))]
    units = [
        Unit({**times(form, -1.0), **gate}, knot, times(output, after - before))
        for knot, before, after in zip(knots[1:], slopes, [*slopes[1:], 0.0], strict=True)
    ]
    constant = Unit({} if sink is None else {sink: -1.0}, 1.0, times(output, values[-1]))
    return [*units, constant]


def assemble(layout: Layout, heads: Sequence[Head] = (), units: Sequence[Unit] = ()) -> Layer:
    """A layer, in float64, from heads and hidden units. Narrower heads are padded with zeros."""
    rows = layout.rows
    attention = ffn = None
    if heads:
        inner, width = max(len(h.query) for h in heads), max(len(h.value) for h in heads)
        attention = Heads(
            _weight([h.query for h in heads], inner, rows),
            _weight([h.key for h in heads], inner, rows),
            _weight([h.value for h in heads], width, rows),
            _sparse(
                ((row, i * width + k, h.gain) for i, h in enumerate(heads) for k, row in enumerate(h.target)),
                (rows, len(heads) * width),
            ),
            count=len(heads),
        )
    if units:
        ffn = FFN(
            _weight([[unit.form for unit in units]], len(units), rows),
            torch.tensor([unit.bias for unit in units], dtype=torch.float64),
            _sparse(
                ((row, k, w) for k, unit in enumerate(units) for row, w in unit.output.items()), (rows, len(units))
            ),
            torch.zeros(rows, dtype=torch.float64),
        )
    return Layer(attention, ffn).requires_grad_(False)


def _weight(groups: Sequence[Sequence[Form]], height: int, rows: int) -> Sparse:
    """Groups of forms below each other, each group padded to ``height``."""
    return _sparse(
        (
            (i * height + k, row, w)
            for i, forms in enumerate(groups)
            for k, form in enumerate(forms)
            for row, w in form.items()
        ),
        (len(groups) * height, rows),
    )


def _sparse(entries: Iterable[tuple[int, int, float]], shape: tuple[int, int]) -> Sparse:
    nonzero = [entry for entry in entries if entry[2] != 0.0]
    index = torch.tensor([(i, j) for i, j, _ in nonzero], dtype=torch.long).reshape(-1, 2).T.contiguous()
    return Sparse(index, torch.tensor([w for _, _, w in nonzero], dtype=torch.float64), shape)
