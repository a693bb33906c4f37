"""A pass of a block as values: what the forms of its layers make of the rows, each made once and only if it is needed.

Rows hold sums of values with factors that are numbers or scalars, so that what is linear costs nothing until a value is
made of it. A scalar is a row that is equal in all tokens: it is one number, and what reads only scalars is computed
once. Two heads whose scores differ in which sign they shut out are one: e^score with the sign of what they gate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nlaformer.compiler.anysize.reading import Form, HeadForm, LayerForm, Piecewise

# (vector or None, scalars that multiply it) -> coefficient
Key = tuple[int | None, tuple[int, ...]]
Sum = dict[Key, float]
SHUT = 1000.0  # a score with so much times |u| or more is that of a sign


@dataclass(frozen=True)
class Value:
    """A value: what it is, of which sums, with which numbers; a scalar or one number for each token."""

    op: str
    sums: tuple[Sum, ...]
    scalar: bool
    extra: tuple[Any, ...] = ()
    function: Piecewise | None = None


@dataclass
class Plan:
    """The values of one pass in an order in which they can be made; ``end``: rows after it."""

    values: list[Value] = field(default_factory=list)
    end: dict[int, Sum] = field(default_factory=dict)
    _known: dict[object, int] = field(default_factory=dict)

    def value(
        self,
        op: str,
        sums: Sequence[Sum],
        scalar: bool,
        extra: tuple[Any, ...] = (),
        function: Piecewise | None = None,
    ) -> int:
        key = (op, tuple(tuple(sorted(s.items(), key=repr)) for s in sums), extra, id(function))
        if key not in self._known:
            self._known[key] = len(self.values)
            self.values.append(Value(op, tuple(sums), scalar, extra, function))
        return self._known[key]

    def is_scalar(self, source: Sum) -> bool:
        return all(vector is None for vector, _ in source)

    def of(self, number: int) -> Sum:
        """A value as a sum."""
        return {(None, (number,)): 1.0} if self.values[number].scalar else {(number, ()): 1.0}

    def times(self, source: Sum, scalar: int) -> Sum:
        return {(vector, tuple(sorted((*scalars, scalar)))): c for (vector, scalars), c in source.items()}


def plan(layers: Iterable[LayerForm], rows: Mapping[int, bool], one: int) -> Plan:
    """The plan of a pass; ``rows`` are those that are not 0, each with whether it is a scalar."""
    made = Plan()
    held: dict[int, Sum] = {one: {(None, ()): 1.0}}
    for row, scalar in rows.items():
        if row != one:
            held[row] = made.of(made.value("row", (), scalar, (row,)))
    for layer in layers:
        before = dict(held)
        for target, source in _attention(made, layer.heads, before):
            held[target] = added(held.get(target, {}), source)
        before = dict(held)
        for form, target, function in layer.functions:
            held[target] = added(held.get(target, {}), _function(made, combined(before, form), function))
    made.end = {row: source for row, source in held.items() if source and row != one}
    return made


def added(u: Sum, v: Sum, factor: float = 1.0) -> Sum:
    total = dict(u)
    for key, c in v.items():
        total[key] = total.get(key, 0.0) + factor * c
        if total[key] == 0.0:
            del total[key]
    return total


def combined(held: Mapping[int, Sum], form: Form) -> Sum:
    total: Sum = {}
    for row, c in form.items():
        total = added(total, held.get(row, {}), c)
    return total


# --- heads ---


def _attention(made: Plan, heads: Sequence[HeadForm], held: Mapping[int, Sum]) -> list[tuple[int, Sum]]:
    found: list[tuple[int, Sum]] = []
    slots: dict[tuple[str, int, tuple[tuple[int, float], ...]], list[object]] = {}
    others: dict[tuple[str, int], list[_Head]] = {}
    for head in heads:
        for form, target, gain in head.values:
            value = combined(held, form)
            if not value:
                continue
            if head.slot is not None:
                matrix, slot = head.slot
                entry = (slot, tuple(head.score.items()), head.shift, gain)
                slots.setdefault((matrix, target, tuple(sorted(form.items()))), []).append(entry)
                continue
            others.setdefault((head.kind, target), []).append(
                _Head(combined(held, head.score), head.shift, value, gain)
            )
    for (matrix, target, read), entries in slots.items():
        value = combined(held, dict(read))
        found.append((target, made.of(made.value("slots", (value,), False, (matrix, tuple(entries))))))
    for (kind, target), terms in others.items():
        found += [(target, _head(made, kind, head)) for head in _signed(made, terms)]
    return found


@dataclass(frozen=True)
class _Head:
    """A head's score; what it is more than that of the sink; its value; and the vector whose sign multiplies it."""

    score: Sum
    shift: float
    value: Sum
    gain: float
    sign: int | None = None


def _signed(made: Plan, heads: list[_Head]) -> list[_Head]:
    """Heads with pairs joined that differ in the sign that their scores shut out: the sign multiplies the value."""
    result: list[_Head] = []
    waiting: dict[object, int] = {}
    for head in heads:
        gate = _gate(made, head.score)
        if gate is None:
            result.append(head)
            continue
        key, of, sign = gate
        rest = {k: c for k, c in head.score.items() if k != key}
        value = {k: sign * c for k, c in head.value.items()}
        mark = (_frozen(rest), head.shift, of, _frozen({k: head.gain * c for k, c in value.items()}))
        if (mark, -sign) in waiting:
            result[waiting.pop((mark, -sign))] = _Head(rest, head.shift, value, head.gain, of)
        else:
            waiting[mark, sign] = len(result)
            result.append(head)
    return result


def _frozen(source: Sum) -> tuple[tuple[Key, float], ...]:
    return tuple(sorted(source.items(), key=repr))


def _gate(made: Plan, score: Sum) -> tuple[Key, int, float] | None:
    """The part of a score that shuts out a sign: where it is, of which vector, and the sign that it lets through."""
    for key, c in score.items():
        vector, scalars = key
        if vector is None or scalars or c > -SHUT:
            continue
        value = made.values[vector]
        ((of, _), *more) = value.sums[0] if value.sums else ((None, ()),)
        if value.op == "bent" and of is not None and not more and value.sums[0] == {(of, ()): 1.0}:
            if value.extra == (0.0, -1.0):
                return key, of, 1.0
            if value.extra == (1.0, 0.0):
                return key, of, -1.0
    return None


def _head(made: Plan, kind: str, head: _Head) -> Sum:
    """Gain / (1 + e^-(score + shift)) value, at the token itself, at token 1 or summed over all."""
    score, shift, value, gain = head.score, head.shift, head.value, head.gain
    signs = () if head.sign is None else (head.sign,)
    if kind == "first":
        if score:
            raise ValueError("a score of the first token that is not constant")
        scaled = {key: gain / (1 + _exp(-shift)) * c for key, c in value.items()}
        return scaled if made.is_scalar(scaled) else made.of(made.value("first", (scaled,), True))
    constant = made.is_scalar(score) and not signs
    weight: int | None = None
    if score or signs:
        weight = made.value("weight" if constant else "exp", (score,), constant, (shift, gain, kind == "all", *signs))
        factor = 1.0
    else:
        factor = gain * _exp(shift) if kind == "all" else gain / (1 + _exp(-shift))
    value = {key: factor * c for key, c in value.items()}
    if kind == "all":
        parts = (value,) if weight is None else (value, made.of(weight))
        return made.of(made.value("total", parts, True, (shift,)))
    if weight is None:
        return value
    if constant:
        return made.times(value, weight)
    scalars = {key: c for key, c in value.items() if key[0] is None}
    vectors = {key: c for key, c in value.items() if key[0] is not None}
    result: Sum = {(weight, key[1]): c for key, c in scalars.items()}
    if vectors:
        common = {scalars for _, scalars in vectors}
        outside = common.pop() if len(common) == 1 else ()
        inside = {(vector, () if outside else own): c for (vector, own), c in vectors.items()}
        product = made.value("product", (inside, made.of(weight)), False)
        result = added(result, {(product, outside): 1.0})
    return result


def _exp(x: float) -> float:
    return math.exp(min(x, 709.0))


# --- functions ---


def _function(made: Plan, source: Sum, function: Piecewise) -> Sum:
    """A piecewise linear function of a sum: linear ones cost nothing."""
    if not source and len(function.knots) <= 1:
        at_zero = float(function.intercept[0])
        return {(None, ()): at_zero} if at_zero else {}
    if len(function.knots) <= 1 and (function.slope == function.slope[0]).all():
        slope, constant = float(function.slope[0]), float(function.intercept[0])
        return added({k: slope * c for k, c in source.items()}, {(None, ()): constant} if constant else {})
    scalar = made.is_scalar(source)
    if len(function.knots) == 1 and not function.intercept.any() and function.knots[0] == 0.0:
        left, right = (float(slope) for slope in function.slope)
        return made.of(made.value("bent", (source,), scalar, (right, left)))
    return made.of(made.value("table", (source,), scalar, (), function))
