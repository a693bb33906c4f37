"""From layers of instructions to weights, through the builders of ``express.heads``.

P has the registers A (token j holds row j of A), one, position, and those the selection asked for; column 1 is the sink
and stays zero in all of them. Instructions of one layer share heads where they can: scales with one exponent,
products of A with one exponent, dots with one key.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nlaformer.arrays import check_memory
from nlaformer.compiler.filled import beside
from nlaformer.compiler.instructions import MATRIX_NORM, ZERO, Block, Combination, Instruction, Selection, registers_of
from nlaformer.compiler.schedule import Schedule
from nlaformer.express import heads as build
from nlaformer.express.heads import Form, Head, Unit
from nlaformer.express.linearize import Linearization
from nlaformer.prompt import Layout
from nlaformer.transformer import Layer, NLAFormer

_Parts = tuple[list[Head], list[Unit]]
SIGN_THRESHOLD = {torch.float64: 2.0**-900, torch.float32: 2.0**-100}  # |sign(v)| is 1 from here on
_SHARPNESS = 4.0  # of the softmax that finds the largest entry
_COARSE, _COARSE_UNITS = 16.0, 64
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
    attention = 2 * emitter.n + _INTERPOLANTS if selection.matrices else 2
    needed = 8 * (emitter.layout.rows * tokens + attention * tokens**2)
    what = f"n is {emitter.n:,}: the weights and the run of a single system"
    check_memory(what, needed, torch.device("cpu"), ". Choose a smaller n")
    return Weights(emitter.model(), emitter.layout, emitter.names)


class _Emitter:
    """Registers to rows, instructions to heads and units."""

    def __init__(self, selection: Selection, layers: Schedule):
        self.selection, self.blocks, self.target = selection, layers, selection.target
        self.n = selection.target.n
        self.layout = self._layout()
        encodings = [i for block in layers.layers.values() for layer in block for i in layer if i.op == "encode"]
        self.encoded = {name: selection.matrices[register] for name, register in (i.parameters for i in encodings)}
        self.sink = self.layout["position"][0]
        self.one = self.layout["one"][0]
        self.ceiling = _CEILING[self.target.dtype]

    def _layout(self) -> Layout:
        layers = [layer for block in self.blocks.layers.values() for layer in block]
        written = {register for layer in layers for i in layer for register in (i.target, *i.extra)}
        read = {register for layer in layers for i in layer for register in i.reads}
        read |= registers_of(*(source for writes in self.blocks.writes.values() for source in writes.values()))
        unused = {self.selection.inputs[name] for name in self.selection.scales} - read
        registers = [("one", 1), ("position", self.n + 1)]
        self.names: dict[int, str] = {0: "one"}
        taken = {"one", "position"}
        for k, register in enumerate(self.selection.registers):
            if k in unused:  # the copy of size 1 is
                continue
            if register.name == "A" and register.block == "input":
                self.names[k] = "A"
                registers.insert(0, ("A", self.n))
            elif k > 1 and (k in written or register.block == "input"):
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

    def forms(self, source: Combination, height: int = 1) -> list[Form]:
        """A combination of registers as one form for each of its rows, at least ``height``, a single row repeated."""
        height = max(height, *(len(self.rows(register)) for register, _ in source)) if source else height
        forms: list[Form] = [{} for _ in range(height)]
        for register, coefficient in source:
            rows = self.rows(register)
            for form, row in zip(forms, rows * height if len(rows) == 1 else rows, strict=True):
                form[row] = form.get(row, 0.0) + coefficient
        return forms

    def form(self, source: Combination) -> Form:
        return self.forms(source)[0]

    # --- blocks ---

    def model(self) -> NLAFormer:
        return NLAFormer(self._block("pre"), self._block("loop"), self._block("post")).to(self.target.dtype)

    def _block(self, block: Block) -> list[Layer]:
        parts = [self.layer(instructions) for instructions in self.blocks.layers[block]]
        for register, layer in self.blocks.early[block].items():
            parts[layer][1].extend(unit for row in self.rows(register) for unit in build.replace(row))
        if parts:
            parts[-1][1].extend(self._ending(block))
        layers = [build.assemble(self.layout, heads, units) for heads, units in parts]
        for i in (i for instructions in self.blocks.layers[block] for i in instructions if i.op == "network"):
            part, own, k = i.parameters
            trained, memory = getattr(self.selection.networks[part], own)[k], self.rows(self.selection.memories[part])
            layers[i.layer] = beside(layers[i.layer], trained, memory[0], self.layout.rows)
        return layers

    def _ending(self, block: Block) -> list[Unit]:
        """Write the state, clear the work rows."""
        units = []
        for register, source in self.blocks.writes[block].items():
            forms = self.forms(source, len(self.rows(register)))
            for row, form in zip(self.rows(register), forms, strict=True):
                is_zero = register in self.blocks.early[block]
                units += (build.add_form(form, row) if form else []) if is_zero else build.replace(row, form)
        for register in self.blocks.clears[block]:
            units += [unit for row in self.rows(register) for unit in build.replace(row)]
        return units

    def layer(self, instructions: Sequence[Instruction]) -> _Parts:
        heads: list[Head] = []
        units: list[Unit] = []
        shared: dict[tuple[object, ...], list[Instruction]] = defaultdict(list)
        for i in instructions:
            if i.op in ("scale", "matvec"):
                shared[(i.op, i.exponent, i.parameters)].append(i)
            elif i.op == "dot":
                shared[(i.op, i.sources[0], i.parameters)].append(i)
            else:
                more_heads, more_units = getattr(self, "_" + i.op.replace(" ", "_"))(i)
                heads += more_heads
                units += more_units
        for (op, *_), group in shared.items():
            heads += getattr(self, f"_{op}")(group)
        return heads, units

    # --- instructions that share heads ---

    def _scale(self, group: Sequence[Instruction]) -> list[Head]:
        value, target = self._values(group, source=0)
        exponents = self.forms(group[0].exponent)
        if len(exponents) == 1:
            return [build.exponential_head(self.layout, exponents[0], value, target, self.ceiling)]
        exponents *= len(group)  # of matrices: a head for each row
        return [
            build.exponential_head(self.layout, exponent, [form], [row], self.ceiling)
            for exponent, form, row in zip(exponents, value, target, strict=True)
        ]

    def _matvec(self, group: Sequence[Instruction]) -> list[Head]:
        value, target = self._values(group, source=0)
        exponent = self.form(group[0].exponent) if group[0].exponent else {}
        (operator,) = group[0].parameters
        return self._kernel(operator, 1.0, exponent, value, target)

    def _kernel(
        self, operator: str, power: float, exponent: Form, value: Sequence[Form], target: Sequence[int]
    ) -> list[Head]:
        """target_j += sum_i |A_ji|^power sign_ji e^{exponent_j} value_i, a head for each sign."""
        name = operator.removesuffix(".T")
        matrix = self.encoded[name]
        logs, masks = self.rows(matrix.logs), self.rows(matrix.signs)
        ceiling = _MATRIX_CEILING[self.target.dtype] + math.log(MATRIX_NORM)
        heads = []
        for sign, mask in ((1.0, masks[: self.n]), (-1.0, masks[self.n :])):
            scores: list[Form] = [{a: power, m: 1.0} for a, m in zip(logs, mask, strict=True)]
            transpose, gain = operator != name, sign**power
            heads.append(build.kernel_head(self.layout, scores, transpose, exponent, value, target, ceiling, gain))
        return heads

    def _dot(self, group: Sequence[Instruction]) -> list[Head]:
        value, target = self._values(group, source=1)
        (lin,) = group[0].parameters
        key = [self.form(group[0].sources[0])]
        return self._linear_heads(lin, key, [{self.one: 1.0}], value, target)

    def _values(self, group: Sequence[Instruction], source: int) -> tuple[list[Form], list[int]]:
        value = [form for i in group for form in self.forms(i.sources[source], len(self.rows(i.target)))]
        return value, [row for i in group for row in self.rows(i.target)]

    # --- the others ---

    def _product(self, i: Instruction) -> _Parts:
        (lin,) = i.parameters
        target = self.rows(i.target)
        factors, values = self.forms(i.sources[0]), self.forms(i.sources[1], len(target))
        if len(factors) == 1:
            return build.product_heads(self.layout, lin, factors[0], values, target), []
        heads = []  # of matrices: heads for each row
        for factor, value, row in zip(factors, values, target, strict=True):
            heads += build.product_heads(self.layout, lin, factor, [value], [row])
        return heads, []

    def _row_dots(self, i: Instruction) -> _Parts:
        """Token j: the dot of row j of X and row j of Y."""
        (lin,) = i.parameters
        X, Y = (self.forms(source) for source in i.sources)
        return build.row_dot_heads(self.layout, lin, X, Y, [{self.one: 1.0}], self.rows(i.target)), []

    def _linear(self, i: Instruction, key: list[Form], query: list[Form], value: list[Form]) -> _Parts:
        return self._linear_heads(i.parameters[0], key, query, value, self.rows(i.target)), []

    def _linear_heads(
        self, lin: Linearization, key: list[Form], query: list[Form], value: list[Form], target: list[int]
    ) -> list[Head]:
        """target_j += sum_i value_i (key_i . query_j); the sink attends to itself alone, so that it stays zero.

        Where it sees all tokens alike the heads cancel there, but for a rounding, and a logarithm of 0 is steep.
        """
        heads = build.linear_heads(self.layout, lin, key=key, query=query, value=value, target=target)
        alone = {self.one: 1.0, self.sink: build.OFF}
        return [replace(head, query=[*head.query[:-1], alone]) for head in heads]

    def _matmul(self, i: Instruction) -> _Parts:
        """Token j holds row j of X and i row i of Y: sum_i X_ji Y_i, or sum_i X_ij Y_i."""
        eye, (X, Y) = build.select(self.rows(1)), (self.forms(source) for source in i.sources)
        return self._linear(i, X, eye, Y) if i.parameters[1] else self._linear(i, eye, X, Y)

    def _skew(self, i: Instruction) -> _Parts:
        """Row s of token i: X_i,i-s, so that the transpose moves row s by s tokens."""
        forms, rows = self.forms(i.sources[0], self.n), self.rows(i.target)
        units = []
        for s, row in enumerate(rows):
            targets = [row] * self.n
            units += self._masked(forms, targets, [{(k + s) % self.n} for k in range(self.n)])
        return [], units

    def _transpose(self, i: Instruction) -> _Parts:
        """Token j reads row s of token j + s, X_j+s,j, and puts it into row j + s."""
        skewed, moved, target = self.forms(i.sources[0]), self.rows(i.extra[0]), self.rows(i.target)
        heads = []
        units = []
        for s, (form, row) in enumerate(zip(skewed, moved, strict=True)):
            source = [0, *(1 + (j + s) % self.n for j in range(self.n))]
            heads.append(build.pick_head(self.layout, source, [form], [row]))
            kept = [{(k - s) % self.n} for k in range(self.n)]
            units += self._masked([{row: 1.0}] * self.n, target, kept)
        return heads, units

    def _outer(self, i: Instruction) -> _Parts:
        """Token j: sum_i (v_i u_j) e_i."""
        u, v = (self.forms(source) for source in i.sources)
        return self._linear(i, v, u, build.select(self.rows(1)))

    def _squares(self, i: Instruction) -> _Parts:
        return self._kernel(i.parameters[0], 2.0, {}, [{self.one: 1.0}], self.rows(i.target)), []

    def _sum(self, i: Instruction) -> _Parts:
        """Over all tokens and, of a matrix, rows."""
        return [build.sum_head(self.layout, [self._total(i)], self.rows(i.target))], []

    def _row_sums(self, i: Instruction) -> _Parts:
        """Token j: the sum of its own rows, in the FFN, which is exact."""
        return [], build.add_form(self._total(i), self.rows(i.target)[0])

    def _total(self, i: Instruction) -> Form:
        """The sum of all rows of a source."""
        total: Form = {}
        for form in self.forms(i.sources[0]):
            for row, c in form.items():
                total[row] = total.get(row, 0.0) + c
        return total

    def _roll(self, i: Instruction) -> _Parts:
        """Token j reads token j - shift."""
        (shift,) = i.parameters
        source = [0, *(1 + (j - shift) % self.n for j in range(self.n))]
        return [build.pick_head(self.layout, source, self.forms(i.sources[0]), self.rows(i.target))], []

    def _pick(self, i: Instruction) -> _Parts:
        """The first token's value."""
        return [build.pick_head(self.layout, [0] + [1] * self.n, self.forms(i.sources[0]), self.rows(i.target))], []

    def _peak(self, i: Instruction) -> _Parts:
        return [build.peak_head(self.layout, self.form(i.sources[0]), self.rows(i.target)[0], _SHARPNESS)], []

    def _ratio(self, i: Instruction) -> _Parts:
        """S e^-l at the first token, and l there."""
        source, log = i.sources
        down = build.times(self.form(log), -1.0)
        heads = [
            build.pick_exponential_head(self.layout, 1, down, [self.form(source)], self.rows(i.target), self.ceiling),
            build.pick_head(self.layout, [0] + [1] * self.n, [self.form(log)], self.rows(i.extra[0])),
        ]
        return heads, []

    # --- exact pieces of the FFN ---

    def _relu(self, i: Instruction) -> _Parts:
        rows = self.rows(i.target)
        forms = self.forms(i.sources[0], len(rows))
        return [], [Unit(form, 0.0, {row: 1.0}) for form, row in zip(forms, rows, strict=True)]

    def _absolute(self, i: Instruction) -> _Parts:
        """The sum of the absolute values of a token's entries."""
        (target,) = self.rows(i.target)
        return [], [
            Unit(build.times(form, sign), 0.0, {target: 1.0})
            for form in self.forms(i.sources[0])
            for sign in (1.0, -1.0)
        ]

    def _below(self, i: Instruction) -> _Parts:
        """max(0, 1 - v / t) for v >= 0: 1 at 0, 0 from the threshold on."""
        rows = zip(self.forms(i.sources[0]), self.rows(i.target), strict=True)
        return [], [
            Unit({**build.times(form, -1.0 / SIGN_THRESHOLD[self.target.dtype]), self.one: 1.0}, 0.0, {row: 1.0})
            for form, row in rows
        ]

    def _flip(self, i: Instruction) -> _Parts:
        """Where the first mask is 0, u; where the second is, -u; else 0: u times a sign, exactly."""
        target = self.rows(i.target)
        u, positive, negative = (self.forms(source, len(target)) for source in i.sources)
        units = []
        for form, p, m, row in zip(u, positive, negative, target, strict=True):
            units += build.masked(form, row, p) + build.masked(build.times(form, -1.0), row, m)
        return [], units

    def _constant(self, i: Instruction) -> _Parts:
        """Each row a form over the positions."""
        units = []
        for row, numbers in zip(self.rows(i.target), i.parameters, strict=True):
            form = {place: number for place, number in zip(self.rows(1), numbers, strict=True) if number}
            units += build.add_form(form, row) if form else []
        return [], units

    def _diag(self, i: Instruction) -> _Parts:
        """Entry k of token k."""
        forms = self.forms(i.sources[0], self.n)
        return [], self._masked(forms, self.rows(i.target) * self.n, [{k} for k in range(self.n)])

    def _diagonal(self, i: Instruction) -> _Parts:
        forms = self.forms(i.sources[0], self.n)
        return [], self._masked(forms, self.rows(i.target), [{k} for k in range(self.n)])

    def _triangle(self, i: Instruction) -> _Parts:
        """Row k of the register holds column k: entry (j, k) stands in token j."""
        side, offset = i.parameters
        inside = [
            {j for j in range(self.n) if (k - j <= offset if side == "lower" else k - j >= offset)}
            for k in range(self.n)
        ]
        return [], self._masked(self.forms(i.sources[0], self.n), self.rows(i.target), inside)

    def _masked(self, forms: Sequence[Form], rows: Sequence[int], kept: Sequence[set[int]]) -> list[Unit]:
        positions = self.rows(1)
        units = []
        for form, row, tokens in zip(forms, rows, kept, strict=True):
            hidden = [place for j, place in enumerate(positions) if j not in tokens]
            units += build.masked(form, row, hidden)
        return units

    # --- around the layers of a trained network (``filled``) ---

    def _read_in(self, i: Instruction) -> _Parts:
        weights, memory = self._network_of(i)
        positions = build.select(self.layout["position"])
        columns = _mapped(self.n * weights["read_in"], self.forms(i.sources[0], self.n))
        places = _mapped(weights["positions"].mT, positions)
        value = [column | place for column, place in zip(columns, places, strict=True)]
        return [build.pick_head(self.layout, range(self.layout.tokens), value, memory)], []

    def _tell(self, i: Instruction) -> _Parts:
        weights, memory = self._network_of(i)
        kinds = self.selection.networks[i.parameters[0]].part.inputs
        given = [self.form(source) for source in i.sources[1 : 1 + len(kinds)]]
        numbers = [form for form, kind in zip(given, kinds, strict=True) if kind == "scalar"]
        vectors = [form for form, kind in zip(given, kinds, strict=True) if kind == "vector"]
        spread = [form for source in i.sources[1 + len(kinds) :] for form in self.forms(source, self.n)]
        heads: list[Head] = []
        gain = float(self.layout.tokens)  # the sink sees all tokens alike; the others see the sink, which has nothing
        if vectors:
            own = _mapped(weights["each"], vectors)
            heads.append(build.pick_head(self.layout, range(self.layout.tokens), own, memory))
            whole = _mapped(weights["whole"], spread)
            heads.append(Head([{self.one: build.OFF}], [{self.sink: 1.0}], whole, memory, gain))
        if numbers:  # each stands in n tokens
            value = _mapped(weights["number"] / self.n, numbers)
            heads.append(Head([{self.one: build.OFF}], [{self.sink: 1.0}], value, memory, gain))
        return heads, []

    def _network(self, i: Instruction) -> _Parts:
        return [], []  # its own heads and units are put beside those of the layer

    def _hear(self, i: Instruction) -> _Parts:
        weights, memory = self._network_of(i)
        heard, (target,), positions = self.rows(i.extra[0]), self.rows(i.target), list(self.layout["position"])
        tokens, number = self.layout.tokens, i.parameters[1]
        if len(heard) == 1:
            value = _mapped(weights["probe"][number : number + 1], build.select(memory))
            units = build.masked({heard[0]: 1.0}, target, positions[:1])
            return [build.pick_head(self.layout, range(tokens), value, heard)], units
        value, units = _mapped(weights["probe"], build.select(memory)), []
        for k, row in enumerate(heard, start=1):
            units += build.masked({row: 1.0}, target, [place for place in positions if place != positions[k]])
        return [build.pick_head(self.layout, [0] * tokens, value, heard)], units

    def _network_of(self, i: Instruction) -> tuple[Mapping[str, Tensor], list[int]]:
        """The weights of a network and the rows of its memory."""
        part = i.parameters[0]
        return self.selection.networks[part].weights, self.rows(self.selection.memories[part])

    # --- logarithms ---

    def _coarse(self, i: Instruction) -> _Parts:
        """Log |v| within a few hundredths between e^-16 and e^16, constant beyond."""
        knots = _knots(math.exp(-_COARSE), math.exp(_COARSE), _COARSE_UNITS)
        logs = [math.log(knot) for knot in knots]
        form, (target,) = self.form(i.sources[0]), self.rows(i.target)
        units = [Unit({self.one: 1.0}, 0.0, {target: -logs[0]})]
        for sign in (1.0, -1.0):
            both = build.times(form, sign)
            units += build.piecewise_linear(both, [0.0, *knots], [logs[0], *logs], {target: 1.0}, self.sink)
        return [], units

    def _trip(self, i: Instruction) -> _Parts:
        """_TRIP max(0, 1 - s / lowest), 0 in the sink."""
        (lowest,) = i.parameters
        form = build.times(self.form(i.sources[0]), -1.0 / lowest)
        return [], [Unit({**form, self.one: 1.0 + form.get(self.one, 0.0)}, 0.0, {self.rows(i.target)[0]: _TRIP})]

    def _log(self, i: Instruction) -> _Parts:
        """The logarithm between ``lowest`` and ``highest``, ``end`` at 0, and nearly flat below."""
        lowest, highest, end = i.parameters
        knots = _knots(lowest, highest, self.target.log_units)
        logs = [math.log(knot) for knot in knots]
        units = []
        for form, row in zip(self.forms(i.sources[0]), self.rows(i.target), strict=True):
            units += self._flattened(form, [0.0, *knots], [end, *logs], row)
        return [], units

    def _flattened(self, form: Form, knots: Sequence[float], values: Sequence[float], target: int) -> list[Unit]:
        """An interpolant that is nearly flat to the left of its first knot.

        The slope there would drown the rows that hold the value. All but a little of it is taken off: what is left
        outweighs the rounding of the difference, so that the value does not end up on the other side.
        """
        units = build.piecewise_linear(form, knots, values, {target: 1.0}, self.sink)
        slope = (values[1] - values[0]) / (knots[1] - knots[0]) * (1.0 - _REST[self.target.dtype])
        beyond = {**build.times(form, -1.0), self.sink: -2.0 * knots[0]}
        return [*units, Unit(beyond, knots[0], {target: slope})]

    def _refine(self, i: Instruction) -> _Parts:
        lowest, highest, _, scalar = i.parameters
        source, first, *trip = i.sources
        h = math.log(highest / lowest) / (self.target.log_units - 1)
        heads: list[Head] = []
        units: list[Unit] = []
        rows = (self.forms(source), self.forms(first), self.rows(i.target), self.rows(i.extra[0]))
        for form, log, target, ratio in zip(*rows, strict=True):
            units += self._fine_log(h, self.target.refine_units, {ratio: 1.0}, target)
            if not scalar:
                down = build.times(log, -1.0)
                heads.append(build.exponential_head(self.layout, down, [form], [ratio], self.ceiling))
                units += build.add_form(log, target)
        if scalar:
            down, (target,), (ratio,) = build.times(self.form(first), -1.0), self.rows(i.target), self.rows(i.extra[0])
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

    def _encode(self, i: Instruction) -> _Parts:
        """Four layers: the parts of A; log |A| interpolated and the masks of the signs; two refinements by n heads."""
        register = i.parameters[1]
        rows = self.selection.matrices[register]
        A, part = self.rows(register), self.rows(rows.part)
        plus, minus = part[: self.n], part[self.n :]
        signs, ratio, logs = self.rows(rows.signs), self.rows(rows.ratio), self.rows(rows.logs)
        size: list[Form] = [{p: 1.0, m: 1.0} for p, m in zip(plus, minus, strict=True)]  # |A|
        double = self.target.is_double
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
                units += build.piecewise_linear(form, [0.0, *knots], values, {row: 1.0}, self.sink)
            for row, mask in zip(part, signs, strict=True):
                # -ZERO where the part vanishes, 0 from the smallest knot upwards.
                units.append(Unit({row: -ZERO / lowest, self.one: ZERO}, 0.0, {mask: -1.0}))
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


def _mapped(weight: Tensor, forms: Sequence[Form]) -> list[Form]:
    """A form for each row of a weight: that combination of the given forms."""
    result: list[Form] = []
    for numbers in weight.tolist():
        total: Form = {}
        for number, form in zip(numbers, forms, strict=True):
            for row, coefficient in form.items():
                total[row] = total.get(row, 0.0) + number * coefficient
        result.append(total)
    return result
