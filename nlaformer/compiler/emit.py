"""From layers of instructions to weights, through the builders of ``express.heads``.

Instructions of one layer share heads where they can: scales with one exponent, products of A with one exponent, dots
with one key. Here are the blocks and the products; ``rows`` has the layout, ``emit_exact``, ``emit_logarithms`` and
``filled`` the other instructions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from nlaformer.arrays import check_memory
from nlaformer.compiler.emit_exact import EXACT
from nlaformer.compiler.emit_logarithms import LOGARITHMS
from nlaformer.compiler.filled import NETWORKS, beside
from nlaformer.compiler.instructions import EYE, MATRIX_NORM, Block, Instruction, Selection
from nlaformer.compiler.rows import Parts, Rows
from nlaformer.compiler.schedule import Schedule
from nlaformer.express import heads as build
from nlaformer.express.heads import Form, Head, Unit
from nlaformer.express.linearize import Linearization
from nlaformer.prompt import Layout
from nlaformer.transformer import Layer, NLAFormer

_SHARPNESS = 4.0  # of the softmax that finds the largest entry
# Numbers that the interpolated logarithms of A take while the weights are made, for each entry of A.
_INTERPOLANTS = 1500
_MATRIX_CEILING = {torch.float64: 46.0, torch.float32: 24.0}
_OTHERS = EXACT | LOGARITHMS | NETWORKS


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


class _Emitter(Rows):
    """Blocks to layers, instructions to heads and units."""

    def __init__(self, selection: Selection, layers: Schedule):
        super().__init__(selection, layers)
        encodings = [i for block in layers.layers.values() for layer in block for i in layer if i.op == "encode"]
        self.encoded = {name: selection.matrices[register] for name, register in (i.parameters for i in encodings)}

    def model(self) -> NLAFormer:
        return NLAFormer(self._block("pre"), self._block("loop"), self._block("post")).to(self.target.dtype)

    def _block(self, block: Block) -> list[Layer]:
        parts = [self.layer(instructions) for instructions in self.blocks.layers[block]]
        for register, layer in self.blocks.early[block].items():
            rows = self.rows(register)
            if layer == len(parts) - 1:
                parts[layer][0].append(self._clear(rows))
            else:
                parts[layer][1].extend(unit for row in rows for unit in build.replace(row))
        if parts:
            parts[-1][1].extend(self._ending(block))
        layers = [build.assemble(self.layout, heads, units) for heads, units in parts]
        for i in (i for instructions in self.blocks.layers[block] for i in instructions):
            trained = self._trained(i, block)
            if trained is not None and layers[i.layer].rows is None:
                hidden = self.selection.hidden[i.parameters[0]][block]
                layers[i.layer] = beside(layers[i.layer], trained, self.rows(hidden)[0], self.layout.rows)
        return layers

    def _trained(self, i: Instruction, block: Block) -> Layer | None:
        """What of a network stands in the layer of an instruction: one of its layers, or the last normalization."""
        if i.op not in ("network", "hear"):
            return None
        network = self.selection.networks[i.parameters[0]]
        if i.op == "network":
            layer: Layer = getattr(network, block)[i.parameters[2]]
            return layer
        gain = network.weights.get("gain")
        return None if gain is None else Layer(norm=(gain, gain.clone()))  # no unit of that layer reads them

    def _clear(self, rows: Sequence[int]) -> Head:
        """Every token takes what it holds itself from its rows."""
        return build.pick_head(self.layout, range(self.n + 1), [{row: -1.0} for row in rows], rows)

    def _ending(self, block: Block) -> list[Unit]:
        """Write the state, clear the work rows."""
        units = []
        for register, source in self.selection.writes[block].items():
            forms = self.forms(source, len(self.rows(register)))
            for row, form in zip(self.rows(register), forms, strict=True):
                is_zero = register in self.blocks.early[block]
                units += (build.add_form(form, row) if form else []) if is_zero else build.replace(row, form)
        for register in self.blocks.clears[block]:
            units += [unit for row in self.rows(register) for unit in build.replace(row)]
        return units

    def layer(self, instructions: Sequence[Instruction]) -> Parts:
        heads: list[Head] = []
        units: list[Unit] = []
        shared: dict[tuple[object, ...], list[Instruction]] = defaultdict(list)
        for i in instructions:
            if i.op in ("scale", "matvec"):
                shared[(i.op, i.exponent, i.parameters)].append(i)
            elif i.op == "dot":
                shared[(i.op, i.sources[0], i.parameters)].append(i)
            else:
                other = _OTHERS.get(i.op)
                more_heads, more_units = other(self, i) if other else getattr(self, "_" + i.op.replace(" ", "_"))(i)
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

    # --- products and sizes ---

    def _product(self, i: Instruction) -> Parts:
        (lin,) = i.parameters
        target = self.rows(i.target)
        factors, values = self.forms(i.sources[0]), self.forms(i.sources[1], len(target))
        if len(factors) == 1:
            return self._alone(build.product_heads(self.layout, lin, factors[0], values, target)), []
        heads = []  # of matrices: heads for each row
        for factor, value, row in zip(factors, values, target, strict=True):
            heads += build.product_heads(self.layout, lin, factor, [value], [row])
        return self._alone(heads), []

    def _row_dots(self, i: Instruction) -> Parts:
        """Token j: the dot of row j of X and row j of Y."""
        (lin,) = i.parameters
        X, Y = (self.forms(source) for source in i.sources)
        return self._alone(build.row_dot_heads(self.layout, lin, X, Y, [{self.one: 1.0}], self.rows(i.target))), []

    def _alone(self, heads: list[Head]) -> list[Head]:
        """Heads under which the sink attends to itself alone, so that it stays zero (see ``_linear_heads``)."""
        sink = self.sink
        return [replace(head, query=[*head.query, {sink: build.OFF}], key=[*head.key, {sink: 1.0}]) for head in heads]

    def _linear(self, i: Instruction, key: list[Form], query: list[Form], value: list[Form]) -> Parts:
        return self._linear_heads(i.parameters[0], key, query, value, self.rows(i.target)), []

    def _linear_heads(
        self, lin: Linearization, key: list[Form], query: list[Form], value: list[Form], target: list[int]
    ) -> list[Head]:
        """target_j += sum_i value_i (key_i . query_j); the sink attends to itself alone, so that it stays zero.

        Where it sees all tokens alike the heads cancel there, but for a rounding: a logarithm of 0 is steep, and a head
        that multiplies by an exponential reads the sink with a large factor.
        """
        heads = build.linear_heads(self.layout, lin, key=key, query=query, value=value, target=target)
        alone = {self.one: 1.0, self.sink: build.OFF}
        return [replace(head, query=[*head.query[:-1], alone]) for head in heads]

    def _matmul(self, i: Instruction) -> Parts:
        """Token j holds row j of X and i row i of Y: sum_i X_ji Y_i, or sum_i X_ij Y_i."""
        eye, (X, Y) = build.select(self.rows(EYE)), (self.forms(source) for source in i.sources)
        return self._linear(i, X, eye, Y) if i.parameters[1] else self._linear(i, eye, X, Y)

    def _outer(self, i: Instruction) -> Parts:
        """Token j: sum_i (v_i u_j) e_i."""
        u, v = (self.forms(source) for source in i.sources)
        return self._linear(i, v, u, build.select(self.rows(EYE)))

    def _squares(self, i: Instruction) -> Parts:
        return self._kernel(i.parameters[0], 2.0, {}, [{self.one: 1.0}], self.rows(i.target)), []

    def _peak(self, i: Instruction) -> Parts:
        return [build.peak_head(self.layout, self.form(i.sources[0]), self.rows(i.target)[0], _SHARPNESS)], []

    def _ratio(self, i: Instruction) -> Parts:
        """S e^-l at the first token, and l there."""
        source, log = i.sources
        down = build.times(self.form(log), -1.0)
        heads = [
            build.pick_exponential_head(self.layout, 1, down, [self.form(source)], self.rows(i.target), self.ceiling),
            build.pick_head(self.layout, [0] + [1] * self.n, [self.form(log)], self.rows(i.extra[0])),
        ]
        return heads, []
