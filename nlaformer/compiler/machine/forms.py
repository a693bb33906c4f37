"""Heads and hidden units as arrays of entries: what an instruction writes, and the layer they are assembled to.

``Forms`` are linear combinations of the rows of P, one below the other, by their nonzero entries. A head has forms for
query, key and value, and a target row for each value; hidden units have a form and a bias each, and one row that they
are added to with a weight. The mathematics of the heads is that of ``express.heads``, which writes operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nlaformer.transformer import FFN, Heads, Layer
from nlaformer.weights import Sparse

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
# A difference of scores that makes a softmax weight exactly zero, in float64 as in float32.
OFF = 1024.0
# More than any number that a mask has to hide; within the range of float32.
HIDDEN = 2.0**100


@dataclass(frozen=True)
class Forms:
    """``count`` linear combinations of rows: entry k is ``value[k]`` times row ``row[k]``, in form ``form[k]``."""

    count: int
    form: Ints
    row: Ints
    value: Floats

    def __mul__(self, factor: float) -> Forms:
        return Forms(self.count, self.form, self.row, factor * self.value)

    def __neg__(self) -> Forms:
        return self * -1.0

    def __add__(self, other: Forms) -> Forms:
        """Sums, form by form."""
        return Forms(
            self.count,
            np.concatenate([self.form, other.form]),
            np.concatenate([self.row, other.row]),
            np.concatenate([self.value, other.value]),
        )

    def __getitem__(self, k: int) -> Forms:
        """One of the forms."""
        found = self.form == k
        return Forms(1, np.zeros(int(found.sum()), np.int64), self.row[found], self.value[found])

    def copies(self, count: int) -> Forms:
        """Each form so many times, one after the other."""
        form = (self.form[:, None] * count + np.arange(count)).ravel()
        return Forms(self.count * count, form, self.row.repeat(count), self.value.repeat(count))

    def mapped(self, weight: Floats) -> Forms:
        """The combinations of these forms that the rows of a weight (out, count) say."""
        form = np.arange(len(weight)).repeat(len(self.form))
        value = (weight[:, self.form] * self.value).ravel()
        return Forms(len(weight), form, np.tile(self.row, len(weight)), value)

    def total(self) -> Forms:
        """The sum of all forms, as one."""
        return Forms(1, np.zeros_like(self.form), self.row, self.value)


def select(rows: Sequence[int] | Ints | range, value: float = 1.0) -> Forms:
    """One form for each of these rows."""
    rows = np.asarray(rows, np.int64)
    return Forms(len(rows), np.arange(len(rows)), rows, np.full(len(rows), value))


def nothing(count: int) -> Forms:
    """Forms that are 0."""
    return Forms(count, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def stack(*parts: Forms) -> Forms:
    """All forms below each other."""
    firsts = np.cumsum([0, *(part.count for part in parts)])
    return Forms(
        int(firsts[-1]),
        np.concatenate([part.form + first for part, first in zip(parts, firsts[:-1], strict=True)]),
        np.concatenate([part.row for part in parts]),
        np.concatenate([part.value for part in parts]),
    )


@dataclass(frozen=True)
class Head:
    """One attention head: forms for query, key and value components, and the row each value is added to."""

    query: Forms
    key: Forms
    value: Forms
    target: Ints
    gain: float = 1.0


@dataclass(frozen=True)
class Units:
    """Hidden units: ReLU(form + bias), added to a row with a weight."""

    form: Forms
    bias: Floats
    target: Ints
    weight: Floats


def bent(form: Forms, target: Ints, weight: float = 1.0) -> Units:
    """Target += weight max(form, 0)."""
    return Units(form, np.zeros(form.count), target, np.full(form.count, weight))


def added(form: Forms, target: Ints) -> list[Units]:
    """Target += form, exactly: x = ReLU(x) - ReLU(-x). Width 2."""
    return [bent(form, target), bent(-form, target, -1.0)]


def replaced(target: Ints, form: Forms | None = None) -> list[Units]:
    """Target = form, or 0: the difference is added, exactly. Width 2."""
    old = select(target, -1.0)
    return added(old if form is None else form + old, target)


def masked(form: Forms, target: Ints, hidden: Forms) -> list[Units]:
    """Target += form, exactly, but not in the tokens where a row of ``hidden`` is 1. Width 2.

    What is shown has exact zeros added to it; what is hidden lies below the threshold, however large.
    """
    off = hidden * -HIDDEN
    return [bent(form + off, target), bent(off + -form, target, -1.0)]


def interpolated(
    form: Forms, knots: Floats, values: Floats, target: Ints, sink: int, *, flat: float | None = None
) -> list[Units]:
    """Target += g(form) for the interpolant g through increasing knots; as many units as knots, for each form.

    g continues linearly to the left of the first knot and is constant to the right of the last. All units face left,
    ReLU(knot - x): for a concave increasing g, the logarithm, their weights then have one sign and nothing cancels; if
    they faced right, cancellation would amplify rounding by 1e8 over twelve decades. In the column of the sink, which
    is a row of positions, nothing is added.

    ``flat``: to the left of the first knot g is nearly flat, since its slope there would drown the rows that hold the
    value. All but this part of it is taken off: what is left outweighs the rounding of the difference, so that the
    value does not end up on the other side.
    """
    count, each = form.count, len(knots) - 1
    slopes = np.diff(values) / np.diff(knots)
    reach = np.full(count * each, 2.0 * max(abs(knots[0]), abs(knots[-1])))
    gate = Forms(count * each, np.arange(count * each), np.full(count * each, sink), -reach)
    bends = np.append(slopes[1:], 0.0) - slopes
    ends = Forms(count, np.arange(count), np.full(count, sink), np.full(count, -1.0))
    units = [
        Units((-form).copies(each) + gate, np.tile(knots[1:], count), target.repeat(each), np.tile(bends, count)),
        Units(ends, np.ones(count), target, np.full(count, values[-1])),
    ]
    if flat is not None:
        beyond = Forms(count, np.arange(count), np.full(count, sink), np.full(count, -2.0 * knots[0]))
        slope = np.full(count, slopes[0] * (1.0 - flat))
        units.append(Units(-form + beyond, np.full(count, knots[0]), target, slope))
    return units


# --- layers ---


def assembled(heads: Sequence[Head], units: Sequence[Units], rows: int, dtype: torch.dtype) -> Layer:
    """A layer from heads and hidden units. Narrower heads are padded with zeros."""
    attention = ffn = None
    if heads:
        inner, width = max(head.query.count for head in heads), max(head.value.count for head in heads)
        place = np.concatenate([k * width + np.arange(len(head.target)) for k, head in enumerate(heads)])
        gain = np.concatenate([np.full(len(head.target), head.gain) for head in heads])
        W_O = _weight(np.concatenate([head.target for head in heads]), place, gain, (rows, len(heads) * width), dtype)
        W_Q, W_K = (_below([getattr(head, side) for head in heads], inner, rows, dtype) for side in ("query", "key"))
        attention = Heads(W_Q, W_K, _below([head.value for head in heads], width, rows, dtype), W_O, count=len(heads))
    if units:
        form = stack(*(part.form for part in units))
        bias, target, weight = (np.concatenate([getattr(u, s) for u in units]) for s in ("bias", "target", "weight"))
        ffn = FFN(
            _weight(form.form, form.row, form.value, (form.count, rows), dtype),
            torch.from_numpy(bias).to(dtype),
            _weight(target, np.arange(form.count), weight, (rows, form.count), dtype),
            torch.zeros(rows, dtype=dtype),
        )
    return Layer(attention, ffn).requires_grad_(False)


def _below(parts: Sequence[Forms], height: int, rows: int, dtype: torch.dtype) -> Sparse:
    """Forms below each other, each part padded to ``height``."""
    form = np.concatenate([k * height + part.form for k, part in enumerate(parts)])
    row, value = (np.concatenate([getattr(part, side) for part in parts]) for side in ("row", "value"))
    return _weight(form, row, value, (len(parts) * height, rows), dtype)


def _weight(out: Ints, source: Ints, value: Floats, shape: tuple[int, int], dtype: torch.dtype) -> Sparse:
    """A weight from its entries; those of one place are added up."""
    place = out * shape[1] + source
    order = np.argsort(place, kind="stable")
    place, value = place[order], value[order]
    first = np.append(True, np.diff(place) > 0) if len(place) else np.zeros(0, bool)
    if not first.all():
        value, place = np.add.reduceat(value, np.flatnonzero(first)), place[first]
    if not value.all():
        place, value = place[value != 0.0], value[value != 0.0]
    index = np.stack(np.divmod(place, shape[1]))
    return Sparse(torch.from_numpy(index), torch.from_numpy(value).to(dtype), shape)
