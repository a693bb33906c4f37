"""Logarithms: interpolated by an FFN, refined by attention; of scalars, of sizes, and of the entries of A."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from nlaformer.compiler.instructions import MATRIX_NORM, TRIP, ZERO, Instruction
from nlaformer.compiler.rows import Emit, Parts, Rows
from nlaformer.express import heads as build
from nlaformer.express.heads import Form, Head, Unit

_COARSE, _COARSE_UNITS = 16.0, 64
_REST = {torch.float64: 2.0**-30, torch.float32: 2.0**-12}


def _coarse(at: Rows, i: Instruction) -> Parts:
    """Log |v| within a few hundredths between e^-16 and e^16, constant beyond.

    For both signs at once, the slopes near 0 cancel on the other side of 0: with slopes of e^16 the error is |v| / 2 in
    float32. So the reach is shorter there for a larger v. Where v >= 0 is known, nothing cancels.
    """
    sign, bound = i.parameters
    reach = _COARSE
    if sign == "either":  # then the error is at most about 1
        reach = min(reach, max(0.0, -math.log(torch.finfo(at.target.dtype).eps * bound)))
    knots = _knots(math.exp(-reach), math.exp(_COARSE), _COARSE_UNITS)
    logs = [math.log(knot) for knot in knots]
    form, (target,) = at.form(i.sources[0]), at.rows(i.target)
    signs = (1.0,) if sign == "positive" else (1.0, -1.0)
    units = [Unit({at.one: 1.0}, 0.0, {target: (1 - len(signs)) * logs[0]})]
    for side in signs:
        sided = build.times(form, side)
        units += build.piecewise_linear(sided, [0.0, *knots], [logs[0], *logs], {target: 1.0}, at.sink)
    return [], units


def _beneath(at: Rows, i: Instruction) -> Parts:
    """min(log s + 16, 0) within a few hundredths down to s = e^-32, for a sum s >= 0 of absolute values.

    All units face left, so that nothing cancels for s >= 0. For both signs at once, as in ``_coarse``, rounding would
    grow with the reach.
    """
    knots = _knots(math.exp(-2 * _COARSE), math.exp(-_COARSE), _COARSE_UNITS // 2)
    logs = [math.log(knot) + _COARSE for knot in knots]
    output = {at.rows(i.target)[0]: 1.0}
    return [], build.piecewise_linear(at.form(i.sources[0]), [0.0, *knots], [logs[0], *logs], output, at.sink)


def _trip(at: Rows, i: Instruction) -> Parts:
    """TRIP max(0, 1 - s / lowest), 0 in the sink."""
    (lowest,) = i.parameters
    form = build.times(at.form(i.sources[0]), -1.0 / lowest)
    return [], [Unit({**form, at.one: 1.0 + form.get(at.one, 0.0)}, 0.0, {at.rows(i.target)[0]: TRIP})]


def _log(at: Rows, i: Instruction) -> Parts:
    """The logarithm between ``lowest`` and ``highest``, ``end`` at 0, and nearly flat below."""
    lowest, highest, end = i.parameters
    knots = _knots(lowest, highest, at.target.log_units)
    logs = [math.log(knot) for knot in knots]
    units = []
    for form, row in zip(at.forms(i.sources[0]), at.rows(i.target), strict=True):
        units += _flattened(at, form, [0.0, *knots], [end, *logs], row)
    return [], units


def _flattened(at: Rows, form: Form, knots: Sequence[float], values: Sequence[float], target: int) -> list[Unit]:
    """An interpolant that is nearly flat to the left of its first knot.

    The slope there would drown the rows that hold the value. All but a little of it is taken off: what is left
    outweighs the rounding of the difference, so that the value does not end up on the other side.
    """
    units = build.piecewise_linear(form, knots, values, {target: 1.0}, at.sink)
    slope = (values[1] - values[0]) / (knots[1] - knots[0]) * (1.0 - _REST[at.target.dtype])
    beyond = {**build.times(form, -1.0), at.sink: -2.0 * knots[0]}
    return [*units, Unit(beyond, knots[0], {target: slope})]


def _refine(at: Rows, i: Instruction) -> Parts:
    lowest, highest, _, scalar = i.parameters
    source, first, *trip = i.sources
    h = math.log(highest / lowest) / (at.target.log_units - 1)
    heads: list[Head] = []
    units: list[Unit] = []
    rows = (at.forms(source), at.forms(first), at.rows(i.target), at.rows(i.extra[0]))
    for form, log, target, ratio in zip(*rows, strict=True):
        units += _fine_log(at, h, at.target.refine_units, {ratio: 1.0}, target)
        if not scalar:
            down = build.times(log, -1.0)
            heads.append(build.exponential_head(at.layout, down, [form], [ratio], at.ceiling))
            units += build.add_form(log, target)
    if scalar:
        down, (target,), (ratio,) = build.times(at.form(first), -1.0), at.rows(i.target), at.rows(i.extra[0])
        values = [at.form(read) for read in (first, *trip)]
        targets = [target, *(row for register in i.extra[1:] for row in at.rows(register))]
        heads = [
            build.pick_exponential_head(at.layout, 1, down, [at.form(source)], [ratio], at.ceiling),
            build.pick_head(at.layout, [0] + [1] * at.n, values, targets),
        ]
    return heads, units


def _fine_log(at: Rows, h: float, count: int, form: Form, target: int) -> list[Unit]:
    """The logarithm of g for g = s e^-l, where l interpolates log s with steps h: 1 <= g <= e^{h^2/8}."""
    slack = 1e-12 if at.target.is_double else 2e-4
    reach = math.expm1(h**2 / 8) * 1.02 + slack
    step = (reach + slack) / (count - 1)
    knots = [1.0 - slack + step * k for k in range(count)]
    return _flattened(at, form, knots, [math.log(knot) for knot in knots], target)


def _encode(at: Rows, i: Instruction) -> Parts:
    """Four layers: the parts of A; log |A| interpolated and the masks of the signs; two refinements by n heads."""
    register = i.parameters[1]
    rows = at.selection.matrices[register]
    A, part = at.rows(register), at.rows(rows.part)
    plus, minus = part[: at.n], part[at.n :]
    signs, ratio, logs = at.rows(rows.signs), at.rows(rows.ratio), at.rows(rows.logs)
    size: list[Form] = [{p: 1.0, m: 1.0} for p, m in zip(plus, minus, strict=True)]  # |A|
    double = at.target.is_double
    counts = (96, 64, 48) if double else (64, 32, 0)
    highest = 1.01 * MATRIX_NORM
    lowest = highest * (1e-19 if double else 1e-10)
    h = math.log(highest / lowest) / (counts[0] - 1)
    if i.layer == 0:
        units = [Unit({a: 1.0}, 0.0, {p: 1.0}) for a, p in zip(A, plus, strict=True)]
        return [], units + [Unit({a: -1.0}, 0.0, {m: 1.0}) for a, m in zip(A, minus, strict=True)]
    if i.layer == 1:
        knots = _knots(lowest, highest, counts[0])
        values = [-ZERO, *(math.log(knot) for knot in knots)]
        units = []
        for form, row in zip(size, logs, strict=True):
            units += build.piecewise_linear(form, [0.0, *knots], values, {row: 1.0}, at.sink)
        for row, mask in zip(part, signs, strict=True):
            # -ZERO where the part vanishes, 0 from the smallest knot upwards.
            units.append(Unit({row: -ZERO / lowest, at.one: ZERO}, 0.0, {mask: -1.0}))
        return [], units
    if counts[i.layer - 1] == 0:
        return [], []
    if i.layer == 3:
        # How far log |A| may still be off after one refinement, as the g - 1 that this one has to cover.
        h = math.sqrt(8 * ((math.expm1(h**2 / 8) * 1.05 / (counts[1] - 1)) ** 2 / 8 * 1.5))
    heads = [
        build.exponential_head(at.layout, {log: -1.0}, [form], [g], at.ceiling)
        for log, form, g in zip(logs, size, ratio, strict=True)
    ]
    units = []
    for log, g in zip(logs, ratio, strict=True):
        units += _fine_log(at, h, counts[i.layer - 1], {g: 1.0}, log) + build.replace(g)
    return heads, units


def _knots(lowest: float, highest: float, count: int) -> list[float]:
    h = math.log(highest / lowest) / (count - 1)
    return [lowest * math.exp(h * k) for k in range(count)]


LOGARITHMS: dict[str, Emit] = {
    "coarse": _coarse,
    "beneath": _beneath,
    "trip": _trip,
    "log": _log,
    "refine": _refine,
    "encode": _encode,
}
