"""Logarithms as instructions: interpolated by an FFN, refined by attention; of scalars, of sizes, of the entries of A.

A logarithm is refined, because interpolation alone leaves h^2/8. And where a dot falls into its own noise or turns
negative, a *stop* row grows without bound and takes the states to zero that vanish with it, and the dot with them: x
then stays as it is (sudden convergence, b = 0, an indefinite A), and so does what the program sums up beside it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from nlaformer.compiler.machine.forms import (
    Floats,
    Forms,
    Ints,
    Units,
    added,
    bent,
    interpolated,
    replaced,
    select,
    stack,
)
from nlaformer.compiler.machine.instructions import Half, Instruction, Parts, Words
from nlaformer.compiler.machine.rows import MATRIX_NORM, STOP, ZERO, EncodedMatrix, Placed, Target

if TYPE_CHECKING:
    from nlaformer.compiler.machine.writer import Writer

_ROUGH, _ROUGH_UNITS = 16.0, 64
_REST = {torch.float64: 2.0**-30, torch.float32: 2.0**-12}


@dataclass(frozen=True)
class Log(Instruction):
    """The logarithm between ``lowest`` and ``highest``, interpolated; ``end`` at 0, and nearly flat below."""

    lowest: float = 0.0
    highest: float = 0.0
    end: float = 0.0
    half: ClassVar[Half] = "ffn"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        target = to.rows(group[0].target)
        knots, logs = _knots(self.lowest, self.highest, to.target.log_units)
        values, rest = np.append(self.end, logs), _REST[to.target.dtype]
        forms = to.forms(self.sources[0], len(target))
        return [], interpolated(forms, np.append(0.0, knots), values, target, to.sink, flat=rest)

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"log {say(self.sources[0])}, interpolated"


@dataclass(frozen=True)
class RoughLog(Instruction):
    """Log |v| within a few hundredths between e^-16 and e^16, constant beyond.

    For both signs at once, the slopes near 0 cancel on the other side of 0: with slopes of e^16 the error is |v| / 2 in
    float32. So the reach is shorter there for a larger v. Where v >= 0 is known, nothing cancels.
    """

    bound: float = 1.0
    positive: bool = False
    half: ClassVar[Half] = "ffn"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        form, target = to.forms(self.sources[0])[0], to.rows(group[0].target)
        reach = _ROUGH
        if not self.positive:  # then the error is at most about 1
            reach = min(reach, max(0.0, -math.log(torch.finfo(to.target.dtype).eps * self.bound)))
        knots, logs = _knots(math.exp(-reach), math.exp(_ROUGH), _ROUGH_UNITS)
        knots, values = np.append(0.0, knots), np.append(logs[0], logs)
        sides = (form,) if self.positive else (form, -form)
        twice = np.array([(1 - len(sides)) * logs[0]])
        units = [Units(to.ones, np.zeros(1), target, twice)]
        return [], units + [u for side in sides for u in interpolated(side, knots, values, target, to.sink)]

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"log |{say(self.sources[0])}|, roughly"


@dataclass(frozen=True)
class Beneath(Instruction):
    """min(log s + 16, 0) within a few hundredths down to s = e^-32, for a sum s >= 0 of absolute values.

    All units face left, so that nothing cancels for s >= 0. For both signs at once, as in ``RoughLog``, rounding would
    grow with the reach.
    """

    half: ClassVar[Half] = "ffn"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        knots, logs = _knots(math.exp(-2 * _ROUGH), math.exp(-_ROUGH), _ROUGH_UNITS // 2)
        logs = logs + _ROUGH
        form, target = to.forms(self.sources[0])[0], to.rows(group[0].target)
        return [], interpolated(form, np.append(0.0, knots), np.append(logs[0], logs), target, to.sink)

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"min(log {say(self.sources[0])} + 16, 0), roughly"


@dataclass(frozen=True)
class Stop(Instruction):
    """STOP max(0, 1 - s / lowest), 0 in the sink."""

    lowest: float = 0.0
    half: ClassVar[Half] = "ffn"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        form = to.forms(self.sources[0])[0] * (-1.0 / self.lowest)
        return [], [bent(form + to.ones, to.rows(group[0].target), STOP)]

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"large where {say(self.sources[0])} < {self.lowest:.0e}, else 0"


@dataclass(frozen=True)
class Refine(Instruction):
    """L + log g for g = s e^-L, where L interpolates log s between ``lowest`` and ``highest``, ``end`` at 0.

    ``sources`` are s, L and, where there is one, its stop. A scalar is read from the first token by all tokens, and so
    are L and the stop. Beside stand g and the stop.
    """

    lowest: float = 0.0
    highest: float = 0.0
    end: float = 0.0
    scalar: bool = False
    half: ClassVar[Half] = "both"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        source, first, *stops = map(to.forms, self.sources)
        target, ratio = to.rows(group[0].target), to.rows(group[0].beside[0])
        h = math.log(self.highest / self.lowest) / (to.target.log_units - 1)
        units = _fine_log(to, h, to.target.refine_units, select(ratio), target)
        if self.scalar:
            picked = [target, *(to.rows(row) for row in group[0].beside[1:])]
            read = to.first(stack(first, *stops), np.concatenate(picked))
            return [to.pick_exponential(1, -first, source, ratio), read], units
        each = range(len(target))
        return [to.exponential(-first[k], source[k], ratio[k : k + 1]) for k in each], units + added(first, target)

    def words(self, say: Words, beside: Sequence[str]) -> str:
        source, _, *stops = map(say, self.sources)
        text = f"log {source}, refined" + "".join(f", {beside[1]} = {stop}" for stop in stops)
        return text + (", read from token 1" if self.scalar else "")


@dataclass(frozen=True)
class Encode(Instruction):
    """One of four layers: the parts of A; log |A| interpolated and the masks of the signs; two refinements."""

    name: str = ""
    rows: EncodedMatrix = field(default_factory=EncodedMatrix)
    layer: int = 0
    half: ClassVar[Half] = "both"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        A, part, signs, ratio, logs = map(to.rows, self.rows)
        plus, minus = part[: to.n], part[to.n :]
        if self.layer == 0:
            return [], [bent(select(A), plus), bent(select(A, -1.0), minus)]
        size = select(plus) + select(minus)  # |A|
        counts, lowest, highest, h = _encoding(to.target)
        if self.layer == 1:
            knots, values = _knots(lowest, highest, counts[0])
            values = np.append(-ZERO, values)
            units = interpolated(size, np.append(0.0, knots), values, logs, to.sink)
            # -ZERO where the part vanishes, 0 from the smallest knot upwards.
            below = select(part, -ZERO / lowest) + to.ones.copies(len(part)) * ZERO
            return [], [*units, bent(below, signs, -1.0)]
        count = counts[self.layer - 1]
        if count == 0:
            return [], []
        if self.layer == 3:
            # How far log |A| may still be off after one refinement, as the g - 1 that this one has to cover.
            h = math.sqrt(8 * ((math.expm1(h**2 / 8) * 1.05 / (counts[1] - 1)) ** 2 / 8 * 1.5))
        log = select(logs, -1.0)
        heads = [to.exponential(log[k], size[k], ratio[k : k + 1]) for k in range(to.n)]
        return heads, _fine_log(to, h, count, select(ratio), logs) + replaced(ratio)

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return ("parts of {0}", "log |{0}|, signs of {0}", "log |{0}| refined", "log |{0}| refined again")[
            self.layer
        ].format(self.name)


def _encoding(target: Target) -> tuple[tuple[int, int, int], float, float, float]:
    """The units of the layers that encode A, where its logarithm is interpolated, and the step of the knots."""
    counts = (96, 64, 48) if target.is_double else (64, 32, 0)
    highest = 1.01 * MATRIX_NORM
    lowest = highest * (1e-19 if target.is_double else 1e-10)
    return counts, lowest, highest, math.log(highest / lowest) / (counts[0] - 1)


def _fine_log(to: Writer, h: float, count: int, forms: Forms, target: Ints) -> list[Units]:
    """The logarithm of g for g = s e^-L, where L interpolates log s with steps h: 1 <= g <= e^{h^2/8}."""
    slack = 1e-12 if to.target.is_double else 2e-4
    reach = math.expm1(h**2 / 8) * 1.02 + slack
    step = (reach + slack) / (count - 1)
    knots = [1.0 - slack + step * k for k in range(count)]
    logs = np.array([math.log(knot) for knot in knots])
    return interpolated(forms, np.array(knots), logs, target, to.sink, flat=_REST[to.target.dtype])


@functools.lru_cache(maxsize=64)
def _knots(lowest: float, highest: float, count: int) -> tuple[Floats, Floats]:
    """Knots at equal ratios, and their logarithms."""
    h = math.log(highest / lowest) / (count - 1)
    knots = [lowest * math.exp(h * k) for k in range(count)]
    return np.array(knots), np.array([math.log(knot) for knot in knots])
