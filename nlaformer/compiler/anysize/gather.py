"""The executor: a pass of a block on rows, where heads gather what they declare to attend to.

Scalars are numbers; a matrix's slots are one CSR product with the weights that its heads give; what a loop makes of
rows that it never changes is made once. Everything else is entrywise, and runs over pieces that stay in the cache,
between two barriers: sums over all tokens, and products with matrices.

What is left out of the literal softmax (docs/any-size.md): the tokens that are not addressed, e^-128 of the addressed
one; the share e^(score - 90) of an exponential that its own sink does not get; the sign that a gate shuts out, e^-2048
times |v| / 2^-160 at most.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from nlaformer.compiler.anysize.entries import Slots, code
from nlaformer.compiler.anysize.plan import Plan, Sum, Value
from nlaformer.compiler.anysize.reading import Piecewise

PIECE = 1 << 14  # tokens that are evaluated at once
_NEAR_ONE = 1e-15
Rows = dict[int, Any]  # a number, or an array with one for each token
Node = tuple[str, Any]  # ("value", number) or ("sum", its terms)


class Table:
    """A piecewise linear function on arrays; the pieces of a grid of binades are found from the bits."""

    def __init__(self, function: Piecewise) -> None:
        self.knots, self.slope, self.intercept = function.knots, function.slope, function.intercept
        self.listed = self.knots.tolist()
        self.shift = self.base = 0
        if len(self.knots) > 1 and self.knots[0] > 0:
            bits = self.knots.view(np.int64)
            shift = 52
            while shift > 40 and (bits[1] - bits[0]) >> shift == 0:
                shift -= 1
            if ((bits >> shift) << shift == bits).all() and (np.diff(bits >> shift) == 1).all():
                self.shift, self.base = shift, int(bits[0] >> shift) - 1

    def at(self, x: float) -> float:
        if math.isnan(x):
            return x
        k = bisect.bisect_right(self.listed, x)
        return float(self.slope[k] * x + self.intercept[k])

    def apply(self, x: np.ndarray, out: np.ndarray, other: np.ndarray, whole: np.ndarray) -> None:
        if self.shift:
            np.right_shift(x.view(np.int64), self.shift, out=whole)
            np.subtract(whole, self.base, out=whole)
        else:
            whole[...] = np.searchsorted(self.knots, x, side="right")
        self.slope.take(whole, out=other, mode="clip")
        np.multiply(other, x, out=other)
        self.intercept.take(whole, out=out, mode="clip")
        np.add(out, other, out=out)


@dataclass
class Matrices:
    """The matrices of a run by name, and the products that heads make of them."""

    slots: Mapping[str, Slots]
    gains: Mapping[str, float]
    made: dict[object, sp.csr_array] = field(default_factory=dict)

    def product(self, name: str, weights: Any) -> sp.csr_array:
        """The entries that the heads of a matrix's slots give: gain / (1 + e^-(code)) for the sign of each."""
        if (name, weights) not in self.made:
            held, slots = self.slots[name], 1 + max(s for s, *_ in weights)
            gain, scale, shift = np.zeros((3, 2, max(slots, held.longest)))
            for number, (s, score, offset, g) in enumerate(weights):
                sign = number % 2 if len(weights) > 1 else 0
                gain[sign, s] += g
                scale[sign, s], shift[sign, s] = sum(c for _, c in score), offset
            matrix = held.matrix
            place = (matrix.data < 0).astype(np.int8), held.slot
            score = scale[place] * code(matrix.data, self.gains[name.removesuffix(".T")]) + shift[place]
            entry = gain[place] / (1.0 + np.exp(-score))
            self.made[name, weights] = sp.csr_array((entry, matrix.indices, matrix.indptr), shape=matrix.shape)
        return self.made[name, weights]


class Pass:
    """One pass of a block, made ready from its plan: the values in the order of their barriers."""

    def __init__(self, plan: Plan, n: int, matrices: Matrices) -> None:
        self.plan, self.n, self.matrices = plan, n, matrices
        self.scalars: list[float] = [0.0] * len(plan.values)
        self.full: dict[Node, np.ndarray] = {}
        self.kept: set[Node] = set()
        self.made: dict[int, sp.csr_array] = {}
        self.tables = {id(f): Table(f) for value in plan.values if (f := value.function) is not None}
        self._of: list[int] = []
        self.stages = [self._stage(value) for value in plan.values]
        self.constant = self._constant()
        self._once = False
        self._arrange()

    # --- in which order ---

    def _stage(self, value: Value) -> int:
        """How many barriers there are before a value."""
        stage = max((self._stage_of(source) for source in self._sources(value)), default=0)
        later = value.op in ("slots", "total") or (value.op == "first")
        self._of.append(stage + later)
        return stage + later

    def _stage_of(self, source: Sum) -> int:
        return max((self._of[k] for vector, scalars in source for k in (*scalars, vector) if k is not None), default=0)

    @staticmethod
    def _sources(value: Value) -> list[Sum]:
        signs = [{(value.extra[3], ()): 1.0}] if value.op == "exp" and len(value.extra) > 3 else []
        return [*value.sums, *signs]  # type: ignore[list-item]

    def _constant(self) -> list[bool]:
        """Which values are made of rows alone that the pass leaves as they are."""
        found: list[bool] = []
        for number, value in enumerate(self.plan.values):
            if value.op == "row":
                found.append(self.plan.end.get(value.extra[0]) == self.plan.of(number))  # type: ignore[call-overload]
            else:
                used = {k for s in self._sources(value) for v, scalars in s for k in (*scalars, v) if k is not None}
                found.append(value.op not in ("total", "first", "slots") and all(found[k] for k in used))
        return found

    def node(self, source: Sum) -> Node:
        """What has to be there for a sum: a value, or the sum itself."""
        if len(source) == 1:
            ((vector, scalars), c) = next(iter(source.items()))
            if vector is not None and not scalars and c == 1.0:
                return ("value", vector)
        return ("sum", tuple(sorted(source.items(), key=repr)))

    def inputs(self, node: Node) -> list[Node]:
        """The arrays that a node is made of."""
        kind, what = node
        if kind == "sum":
            return [("value", vector) for (vector, _), _ in what if vector is not None]
        value = self.plan.values[what]
        return [self.node(s) for s in self._sources(value) if not self.plan.is_scalar(s)] if value.op != "row" else []

    def barrier(self, node: Node) -> bool:
        """Whether an array is there without being computed entry by entry: a row, or a product with a matrix."""
        return node[0] == "value" and self.plan.values[node[1]].op in ("row", "slots")

    def is_constant(self, node: Node) -> bool:
        if node[0] == "value":
            return self.constant[node[1]]
        return all(self.constant[k] for (v, scalars), _ in node[1] for k in (*scalars, v) if k is not None)

    def _arrange(self) -> None:
        """Sort sinks into segments; find what is computed in each, and what has to be kept for a later one."""
        values, segments = self.plan.values, 1 + max(self.stages, default=0)
        segments += 1
        self.totals: list[list[int]] = [[] for _ in range(segments)]
        self.products: list[list[int]] = [[] for _ in range(segments)]
        self.numbers: list[list[int]] = [[] for _ in range(segments)]
        sinks: list[list[Node]] = [[] for _ in range(segments)]
        needed = self._needed()
        for number, value in enumerate(values):
            if number not in needed:
                continue
            stage = self.stages[number]
            if value.op in ("total", "first") and self._has_vector(value):
                self.totals[stage - 1].append(number)
                sinks[stage - 1] += self.inputs(("value", number))
            elif value.op == "slots":
                self.products[stage - 1].append(number)
                if not self.plan.is_scalar(value.sums[0]):
                    sinks[stage - 1].append(self.node(value.sums[0]))
                    self.kept.add(self.node(value.sums[0]))
            elif value.scalar and value.op != "row":
                self.numbers[stage].append(number)
        for source in self.plan.end.values():
            if not self.plan.is_scalar(source):
                self.kept.add(self.node(source))
                sinks[self._stage_of(source)].append(self.node(source))
        self.segments: list[list[Node]] = []
        self.first_segment: list[Node] = []
        made: set[Node] = set()
        used_in: dict[Node, set[int]] = {}
        for k, here in enumerate(sinks):
            order: list[Node] = []
            for sink in here:
                self._collect(sink, order, made, used_in, k)
            self.segments.append(order)
        self.kept |= {node for node, where in used_in.items() if len(where) > 1 and not self.barrier(node)}
        for node in self.first_segment:
            self.kept.add(node)

    def _has_vector(self, value: Value) -> bool:
        return any(not self.plan.is_scalar(source) for source in value.sums)

    def _needed(self) -> set[int]:
        """The values that rows at the end are made of."""
        stack = [k for s in self.plan.end.values() for v, scalars in s for k in (*scalars, v) if k is not None]
        found: set[int] = set()
        while stack:
            number = stack.pop()
            if number not in found:
                found.add(number)
                sources = self._sources(self.plan.values[number])
                stack += [k for s in sources for v, scalars in s for k in (*scalars, v) if k is not None]
        return found

    def _collect(
        self, node: Node, order: list[Node], made: set[Node], used_in: dict[Node, set[int]], segment: int
    ) -> None:
        """Put a node and what it is made of into the order of a segment, unless it is there; note where it is used."""
        if self.barrier(node):
            return
        if self.is_constant(node):
            if node not in made:
                made.add(node)
                for each in self.inputs(node):
                    self._collect(each, order, made, used_in, segment)
                self.first_segment.append(node)
            return
        used_in.setdefault(node, set()).add(segment)
        if node in made:
            return
        made.add(node)
        for each in self.inputs(node):
            self._collect(each, order, made, used_in, segment)
        order.append(node)

    # --- a pass ---

    def run(self, rows: Rows) -> Rows:
        """The rows after the pass."""
        kept_before = {node: self.full[node] for node in self.first_segment} if self._once else {}
        self.full = kept_before
        for number, value in enumerate(self.plan.values):
            if value.op == "row":
                given = rows[value.extra[0]]  # type: ignore[index]
                if value.scalar:
                    self.scalars[number] = given
                else:
                    self.full["value", number] = given
        for k, order in enumerate(self.segments):
            for number in self.numbers[k]:
                self.scalars[number] = self._number(self.plan.values[number])
            if k == 0 and not self._once:
                self._entrywise(self.first_segment, [])
            self._entrywise(order, self.totals[k])
            for number in self.products[k]:
                self._multiply(number)
        self._once = True
        result = {}
        for row, source in self.plan.end.items():
            result[row] = self._total(source) if self.plan.is_scalar(source) else self.full[self.node(source)]
        return result

    def _multiply(self, number: int) -> None:
        value = self.plan.values[number]
        if number not in self.made:
            self.made[number] = self.matrices.product(*value.extra)
        matrix = self.made[number]
        (source,) = value.sums
        scalar = self.plan.is_scalar(source)
        vector = np.full(self.n, self._total(source)) if scalar else self.full[self.node(source)]
        self.full["value", number] = matrix @ vector

    def _total(self, source: Sum) -> float:
        """A sum of scalars."""
        return math.fsum(self._coefficient(scalars, c) for (_, scalars), c in source.items())

    def _coefficient(self, scalars: Sequence[int], c: float) -> float:
        for scalar in scalars:
            c *= self.scalars[scalar]
        return c

    def _number(self, value: Value) -> float:
        """A value that is equal in all tokens."""
        x = self._total(value.sums[0]) if value.sums else 0.0
        if value.op == "table":
            return self.tables[id(value.function)].at(x)
        if value.op == "bent":
            right, left = value.extra
            return float((right if x > 0 else left) * x)
        if value.op == "weight":  # e^x and not e^(x - 90), which would be rounded on the grid of 90
            shift, gain, over_all = value.extra[:3]
            share = math.exp(min(x + shift, 700.0)) * (self.n if over_all else 1.0)
            return gain * math.exp(shift) * math.exp(min(x, 700.0)) / (1.0 + share)  # type: ignore[no-any-return]
        if value.op == "total":  # of numbers: n of them
            weight = 1.0 if len(value.sums) == 1 else self._total(value.sums[1])
            return self.n * x * weight
        return x

    # --- entry by entry ---

    def _entrywise(self, order: Sequence[Node], totals: Sequence[int]) -> None:
        if not order and not totals:
            return
        n, size = self.n, min(PIECE, self.n)
        for node in order:
            if node in self.kept:
                self.full[node] = np.empty(n)
        slots, count = self._buffers(order, totals)
        pool = np.empty((count + 2, size))
        whole = np.empty(size, np.int64)
        steps = [self._step(node) for node in order]
        sums = np.zeros(len(totals))
        reduced = [self._reduction(self.plan.values[number]) for number in totals]
        for low in range(0, n, size):
            high = min(low + size, n)
            length = high - low

            def at(node: Node, low: int = low, high: int = high, length: int = length) -> np.ndarray:
                held = self.full.get(node)
                return pool[slots[node], :length] if held is None else held[low:high]

            spare, ints = pool[-2:, :length], whole[:length]
            for node, step in zip(order, steps, strict=True):
                step(at, at(node), spare, ints)
            for k, reduce in enumerate(reduced):
                sums[k] += reduce(at, low, spare)
        for number, found in zip(totals, sums.tolist(), strict=True):
            self.scalars[number] = found

    def _buffers(self, order: Sequence[Node], totals: Sequence[int]) -> tuple[dict[Node, int], int]:
        """A buffer for each node that is not kept, used again after its last use."""
        last: dict[Node, int] = {}
        for place, node in enumerate(order):
            for each in self.inputs(node):
                last[each] = place
        for number in totals:
            for each in self.inputs(("value", number)):
                last[each] = len(order)
        slots: dict[Node, int] = {}
        free: list[int] = []
        count = 0
        for place, node in enumerate(order):
            if node not in self.kept:
                if not free:
                    free.append(count)
                    count += 1
                slots[node] = free.pop()
            for each in dict.fromkeys(self.inputs(node)):
                if last.get(each) == place and each in slots:
                    free.append(slots[each])
        return slots, count

    def _step(self, node: Node) -> Callable[..., None]:
        """What computes a node on a piece, into ``out``; ``spare`` are two buffers."""
        if node[0] == "sum":
            return self._sum(dict(node[1]))
        value = self.plan.values[node[1]]
        return getattr(self, f"_{value.op}")(value)  # type: ignore[no-any-return]

    def _sum(self, terms: Sum) -> Callable[..., None]:
        """A sum of values with factors, which are known when its segment begins."""
        parts = [(("value", v), self._coefficient(k, c)) for (v, k), c in terms.items() if v is not None]
        constant = math.fsum(self._coefficient(k, c) for (v, k), c in terms.items() if v is None)
        parts.sort(key=lambda part: abs(part[1]) == 1.0)  # what is multiplied anyway comes first
        (first, factor), others = parts[0], parts[1:]

        def step(at: Callable[[Node], np.ndarray], out: np.ndarray, spare: np.ndarray, whole: np.ndarray) -> None:
            held, rest = at(first), others
            if factor == 1.0 and rest and abs(rest[0][1]) == 1.0:
                (np.add if rest[0][1] > 0 else np.subtract)(held, at(rest[0][0]), out=out)
                rest = rest[1:]
            else:
                np.multiply(held, factor, out=out)
            for node, c in rest:
                if abs(c) == 1.0:
                    (np.add if c > 0 else np.subtract)(out, at(node), out=out)
                else:
                    np.multiply(at(node), c, out=spare[0])
                    np.add(out, spare[0], out=out)
            if constant:
                np.add(out, constant, out=out)

        return step

    def _bent(self, value: Value) -> Callable[..., None]:
        source, (right, left) = self.node(value.sums[0]), value.extra

        def step(at: Callable[[Node], np.ndarray], out: np.ndarray, spare: np.ndarray, whole: np.ndarray) -> None:
            x = at(source)
            if right == -left:
                np.abs(x, out=out)
                factor = right
            else:
                (np.maximum if left == 0.0 else np.minimum)(x, 0.0, out=out)
                factor = right if left == 0.0 else left
                if left != 0.0 and right != 0.0:
                    np.maximum(x, 0.0, out=spare[0])
                    np.multiply(spare[0], right, out=spare[0])
                    np.multiply(out, left, out=out)
                    np.add(out, spare[0], out=out)
                    factor = 1.0
            if factor != 1.0:
                np.multiply(out, factor, out=out)

        return step

    def _table(self, value: Value) -> Callable[..., None]:
        source, table = self.node(value.sums[0]), self.tables[id(value.function)]
        return lambda at, out, spare, whole: table.apply(at(source), out, spare[0], whole)

    def _exp(self, value: Value) -> Callable[..., None]:
        score, (shift, gain, over_all, *sign) = self.node(value.sums[0]), value.extra
        factor = gain * math.exp(shift)
        tables = any(v is not None and self.plan.values[v].op == "table" for v, _ in value.sums[0])
        sink = 0.0 if tables or over_all else 1.0 / gain

        def step(at: Callable[[Node], np.ndarray], out: np.ndarray, spare: np.ndarray, whole: np.ndarray) -> None:
            if sink:  # a score of any size: at most the gain
                np.negative(at(score), out=out)
                np.exp(out, out=out)
                np.divide(out, factor, out=out)
                np.add(out, sink, out=out)
                np.divide(1.0, out, out=out)
            else:
                np.exp(at(score), out=out)
                if abs(factor - 1.0) > _NEAR_ONE:
                    np.multiply(out, factor, out=out)
            if sign:
                np.copysign(out, at(("value", sign[0])), out=out)

        return step

    def _product(self, value: Value) -> Callable[..., None]:
        first, second = (self.node(source) for source in value.sums)
        return lambda at, out, spare, whole: np.multiply(at(first), at(second), out=out)

    def _reduction(self, value: Value) -> Callable[..., float]:
        """A sum over a piece, or the entry of token 1."""
        if value.op == "first":
            source = self.node(value.sums[0])
            return lambda at, low, spare: float(at(source)[0]) if low == 0 else 0.0
        terms = [None if self.plan.is_scalar(s) else self.node(s) for s in value.sums]
        factor = math.prod(self._total(s) for s, node in zip(value.sums, terms, strict=True) if node is None)

        def reduce(at: Callable[[Node], np.ndarray], low: int, spare: np.ndarray) -> float:
            arrays = [at(node) for node in terms if node is not None]
            found = np.dot(*arrays) if len(arrays) == 2 else arrays[0].sum()
            return float(factor * found)

        return reduce
