"""From layers of instructions to weights, through the builders of ``express.heads``.

P has the registers A (token j holds row j of A), one, position, and those the selection asked for; column 1 is the sink
and stays zero in all of them. Instructions of one layer share heads where they can: scales with one exponent,
products of A with one exponent, dots with one key.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nlaformer.arrays import check_memory
from nlaformer.compiler.instructions import Block, Combination, Instruction, Selection
from nlaformer.compiler.schedule import Schedule
from nlaformer.express import heads as build
from nlaformer.express.heads import Form, Head, Unit
from nlaformer.prompt import Layout
from nlaformer.transformer import Layer, NLAFormer

_ZERO = 200.0  # e^-200 stands for zero
# Numbers that the interpolated logarithms of A take while the weights are made, for each entry of A.
_INTERPOLANTS = 1500
_TRIP = 1000.0
_REST = {torch.float64: 2.0**-30, torch.float32: 2.0**-12}
# Sink scores of exponential heads. Exponents are rounded to the grid of their distance from it, which doubles beyond 64
# (float32: 32); values up to e^19 (e^7) above keep their accuracy.
_CEILING = {torch.float64: 56.0, torch.float32: 24.0}
_MATRIX_CEILING = {torch.float64: 46.0, torch.float32: 24.0}


@dataclass(frozen=True)
class Weights:
    """The transformer, the layout of its prompt, and the names of the selection's registers in it."""

    model: NLAFormer
    layout: Layout
    names: dict[int, str]


def emit(selection: Selection, layers: Schedule) -> Weights:
    """The weights of a schedule."""
    emitter = _Emitter(selection, layers)
    tokens = emitter.layout.tokens
    attention = 2 * emitter.n + _INTERPOLANTS if selection.matrix is not None else 2
    needed = 8 * (emitter.layout.rows * tokens + attention * tokens**2)
    what = f"n is {emitter.n:,}: the weights and the run of a single system"
    check_memory(what, needed, torch.device("cpu"), ". Choose a smaller n")
    return Weights(emitter.model(), emitter.layout, emitter.names)


class _Emitter:
    """Registers to rows, instructions to heads and units."""

    def __init__(self, selection: Selection, layers: Schedule):
        self.selection, self.blocks, self.target = selection, layers, selection.target
        self.n, self.matrix_norm = selection.target.n, selection.matrix_norm
        self.layout = self._layout()
        self.sink = self.layout["position"][0]
        self.one = self.layout["one"][0]
        self.ceiling = _CEILING[self.target.dtype]

    def _layout(self) -> Layout:
        layers = [layer for block in self.blocks.layers.values() for layer in block]
        written = {register for layer in layers for i in layer for register in (i.target, *i.extra)}
        registers = [("A", self.n), ("one", 1), ("position", self.n + 1)]
        self.names: dict[int, str] = {0: "one"}
        taken = {"A", "one", "position"}
        for k, register in enumerate(self.selection.registers):
            if k > 1 and (k in written or register.block == "input"):
                name, copy = register.name, 2
                while name in taken:
                    name, copy = f"{register.name} ({copy})", copy + 1
                taken.add(name)
                self.names[k] = name
                registers.append((name, register.height))
        return Layout(tuple(registers), tokens=self.n + 1)

    def rows(self, register: int) -> list[int]:
        if register == 1:  # the identity: the position rows of the data tokens
            return list(self.layout["position"])[1:]
        return list(self.layout[self.names[register]])

    def forms(self, source: Combination) -> list[Form]:
        """A combination of registers as one form for each of its rows."""
        height = max((len(self.rows(register)) for register, _ in source), default=1)
        forms: list[Form] = [{} for _ in range(height)]
        for register, coefficient in source:
            for form, row in zip(forms, self.rows(register), strict=True):
                form[row] = form.get(row, 0.0) + coefficient
        return forms

    def form(self, source: Combination) -> Form:
        return self.forms(source)[0]

    # --- blocks ---

    def model(self) -> NLAFormer:
        return NLAFormer(self._block("pre"), self._block("loop"), self._block("post")).to(self.target.dtype)

    def _block(self, block: Block) -> list[Layer]:
        parts = [self.layer(instructions) for instructions in self.blocks.layers[block]]
        if parts:
            parts[-1][1].extend(self._ending(block))
        return [build.assemble(self.layout, heads, units) for heads, units in parts]

    def _ending(self, block: Block) -> list[Unit]:
        """Write the state, clear the work rows."""
        units = []
        for register, source in self.blocks.writes[block].items():
            forms = self.forms(source) if source else [{} for _ in self.rows(register)]
            for row, form in zip(self.rows(register), forms, strict=True):
                units += build.replace(row, form)
        for register in self.blocks.clears[block]:
            units += [unit for row in self.rows(register) for unit in build.replace(row)]
        return units

    def layer(self, instructions: Sequence[Instruction]) -> tuple[list[Head], list[Unit]]:
        heads: list[Head] = []
        units: list[Unit] = []
        shared: dict[tuple[object, ...], list[Instruction]] = defaultdict(list)
        for i in instructions:
            if i.op in ("scale", "matvec"):
                shared[(i.op, i.exponent, i.parameters)].append(i)
            elif i.op == "dot":
                shared[(i.op, i.sources[0], i.parameters)].append(i)
            else:
                more_heads, more_units = getattr(self, "_" + i.op)(i)
                heads += more_heads
                units += more_units
        for (op, *_), group in shared.items():
            heads += getattr(self, f"_{op}")(group)
        return heads, units

    # --- instructions that share heads ---

    def _scale(self, group: Sequence[Instruction]) -> list[Head]:
        value, target = self._values(group, source=0)
        exponent = self.form(group[0].exponent)
        return [build.exponential_head(self.layout, exponent, value, target, self.ceiling)]

    def _matvec(self, group: Sequence[Instruction]) -> list[Head]:
        value, target = self._values(group, source=0)
        exponent = self.form(group[0].exponent) if group[0].exponent else {}
        (operator,) = group[0].parameters
        return self._kernel(1.0, operator == "A.T", exponent, value, target)

    def _kernel(
        self, power: float, transpose: bool, exponent: Form, value: Sequence[Form], target: Sequence[int]
    ) -> list[Head]:
        """target_j += sum_i |A_ji|^power sign_ji e^{exponent_j} value_i, a head for each sign."""
        assert self.selection.matrix is not None
        logs = self.rows(self.selection.matrix.logs)
        masks = self.rows(self.selection.matrix.signs)
        ceiling = _MATRIX_CEILING[self.target.dtype] + max(0.0, math.log(self.matrix_norm))
        heads = []
        for sign, mask in ((1.0, masks[: self.n]), (-1.0, masks[self.n :])):
            scores: list[Form] = [{a: power, m: 1.0} for a, m in zip(logs, mask, strict=True)]
            gain = sign**power
            heads.append(build.kernel_head(self.layout, scores, transpose, exponent, value, target, ceiling, gain))
        return heads

    def _dot(self, group: Sequence[Instruction]) -> list[Head]:
        value, target = self._values(group, source=1)
        (lin,) = group[0].parameters
        key = [self.form(group[0].sources[0])]
        return build.linear_heads(self.layout, lin, key=key, query=[{self.one: 1.0}], value=value, target=target)

    def _values(self, group: Sequence[Instruction], source: int) -> tuple[list[Form], list[int]]:
        value = [form for i in group for form in self.forms(i.sources[source])]
        return value, [row for i in group for row in self.rows(i.target)]

    # --- the others ---

    def _product(self, i: Instruction) -> tuple[list[Head], list[Unit]]:
        (lin,) = i.parameters
        factor, value = i.sources
        return build.product_heads(self.layout, lin, self.form(factor), self.forms(value), self.rows(i.target)), []

    def _matmul(self, i: Instruction) -> tuple[list[Head], list[Unit]]:
        """Token j holds row j of X and i row i of Y: sum_i X_ji Y_i."""
        (lin,) = i.parameters
        key, (query, value) = build.select(self.rows(1)), (self.forms(source) for source in i.sources)
        return build.linear_heads(self.layout, lin, key=key, query=query, value=value, target=self.rows(i.target)), []

    def _squares(self, i: Instruction) -> tuple[list[Head], list[Unit]]:
        return self._kernel(2.0, False, {}, [{self.one: 1.0}], self.rows(i.target)), []

    def _sum(self, i: Instruction) -> tuple[list[Head], list[Unit]]:
        return [build.sum_head(self.layout, self.forms(i.sources[0]), self.rows(i.target))], []

    def _relu(self, i: Instruction) -> tuple[list[Head], list[Unit]]:
        return [], [Unit(self.form(i.sources[0]), 0.0, {self.rows(i.target)[0]: 1.0})]

    def _diag(self, i: Instruction) -> tuple[list[Head], list[Unit]]:
        """The entry of register A that stands in the token of its own position; exact."""
        (target,) = self.rows(i.target)
        gate = 4.0 * self.matrix_norm
        units = []
        for row, position in zip(self.layout["A"], self.rows(1), strict=True):
            for sign in (1.0, -1.0):
                units.append(Unit({row: sign, position: gate}, -gate, {target: sign}))
        return [], units

    def _trip(self, i: Instruction) -> tuple[list[Head], list[Unit]]:
        """_TRIP max(0, 1 - s / lowest), 0 in the sink."""
        (lowest,) = i.parameters
        form = build.times(self.form(i.sources[0]), -1.0 / lowest)
        return [], [Unit({**form, self.one: 1.0 + form.get(self.one, 0.0)}, 0.0, {self.rows(i.target)[0]: _TRIP})]

    def _log(self, i: Instruction) -> tuple[list[Head], list[Unit]]:
        """The logarithm between ``lowest`` and ``highest``, -_ZERO or _ZERO at 0, and nearly flat below."""
        lowest, highest, policy = i.parameters
        knots = _knots(lowest, highest, self.target.log_units)
        logs = [math.log(knot) for knot in knots]
        end = -_ZERO if policy == "num" else _ZERO
        return [], self._flattened(self.form(i.sources[0]), [0.0, *knots], [end, *logs], self.rows(i.target)[0])

    def _flattened(self, form: Form, knots: Sequence[float], values: Sequence[float], target: int) -> list[Unit]:
        """An interpolant that is nearly flat to the left of its first knot.

        The slope there would drown the rows that hold the value. All but a little of it is taken off: what is left
        outweighs the rounding of the difference, so that the value does not end up on the other side.
        """
        units = build.piecewise_linear(form, knots, values, {target: 1.0}, self.sink)
        slope = (values[1] - values[0]) / (knots[1] - knots[0]) * (1.0 - _REST[self.target.dtype])
        beyond = {**build.times(form, -1.0), self.sink: -2.0 * knots[0]}
        return [*units, Unit(beyond, knots[0], {target: slope})]

    def _refine(self, i: Instruction) -> tuple[list[Head], list[Unit]]:
        lowest, highest, _, scalar = i.parameters
        source, first, *trip = i.sources
        (target,), (ratio,) = self.rows(i.target), self.rows(i.extra[0])
        down = build.times(self.form(first), -1.0)
        h = math.log(highest / lowest) / (self.target.log_units - 1)
        units = self._fine_log(h, self.target.refine_units, {ratio: 1.0}, target)
        if not scalar:
            head = build.exponential_head(self.layout, down, [self.form(source)], [ratio], self.ceiling)
            return [head], units + build.add_form(self.form(first), target)
        values = [self.form(read) for read in (first, *trip)]
        targets = [target, *(row for register in i.extra[1:] for row in self.rows(register))]
        heads = [
            build.pick_exponential_head(self.layout, 1, down, [self.form(source)], [ratio], self.ceiling),
            build.pick_head(self.layout, [0] + [1] * self.n, values, targets),
        ]
        return heads, units

    def _fine_log(self, h: float, count: int, form: Form, target: int) -> list[Unit]:
        """The logarithm of g for g = s e^-l, where l interpolates log s with steps h: 1 <= g <= e^{h^2/8}."""
        slack = 1e-12 if self.target.is_double else 2e-4
        reach = math.expm1(h**2 / 8) * 1.02 + slack
        step = (reach + slack) / (count - 1)
        knots = [1.0 - slack + step * k for k in range(count)]
        return self._flattened(form, knots, [math.log(knot) for knot in knots], target)

    # --- the logarithms of A ---

    def _encode(self, i: Instruction) -> tuple[list[Head], list[Unit]]:
        """Four layers: the parts of A; log |A| interpolated and the masks of the signs; two refinements by n heads."""
        rows = self.selection.matrix
        assert rows is not None
        A, part = list(self.layout["A"]), self.rows(rows.part)
        plus, minus = part[: self.n], part[self.n :]
        signs, ratio, logs = self.rows(rows.signs), self.rows(rows.ratio), self.rows(rows.logs)
        size: list[Form] = [{p: 1.0, m: 1.0} for p, m in zip(plus, minus, strict=True)]  # |A|
        double = self.target.is_double
        counts = (96, 64, 48) if double else (64, 32, 0)
        highest = 1.01 * self.matrix_norm
        lowest = highest * (1e-19 if double else 1e-10)
        h = math.log(highest / lowest) / (counts[0] - 1)
        if i.layer == 0:
            units = [Unit({a: 1.0}, 0.0, {p: 1.0}) for a, p in zip(A, plus, strict=True)]
            return [], units + [Unit({a: -1.0}, 0.0, {m: 1.0}) for a, m in zip(A, minus, strict=True)]
        if i.layer == 1:
            knots = _knots(lowest, highest, counts[0])
            values = [-_ZERO, *(math.log(knot) for knot in knots)]
            units = []
            for form, row in zip(size, logs, strict=True):
                units += build.piecewise_linear(form, [0.0, *knots], values, {row: 1.0}, self.sink)
            for row, mask in zip(part, signs, strict=True):
                # -_ZERO where the part vanishes, 0 from the smallest knot upwards.
                units.append(Unit({row: -_ZERO / lowest, self.one: _ZERO}, 0.0, {mask: -1.0}))
            return [], units
        if counts[i.layer - 1] == 0:
            return [], []
        if i.layer == 3:
            # How far log |A| may still be off after one refinement, as the g - 1 that this one has to cover.
            h = math.sqrt(8 * ((math.expm1(h**2 / 8) * 1.05 / (counts[1] - 1)) ** 2 / 8 * 1.5))
        heads = [
            build.exponential_head(self.layout, {log: -1.0}, [form], [g], self.ceiling)
            for log, form, g in zip(logs, size, ratio, strict=True)
        ]
        units = []
        for log, g in zip(logs, ratio, strict=True):
            units += self._fine_log(h, counts[i.layer - 1], {g: 1.0}, log) + build.replace(g)
        return heads, units


def _knots(lowest: float, highest: float, count: int) -> list[float]:
    h = math.log(highest / lowest) / (count - 1)
    return [lowest * math.exp(h * k) for k in range(count)]
