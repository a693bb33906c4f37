"""Instructions of a trained network that fills a learned part, and its layers beside compiled ones.

The network has d rows of P of its own, its memory h, over all n + 1 tokens, the sink included. A part in ``step``
without a memory has 2 d: h stays as the pre block has left it, and every loop works on a copy. No compiled instruction
but these reads or writes them:

=========  ==========================================================================  ====================
ReadIn     h_i = R (n a_i) + p_i, h_sink = p_0: every token sees itself                1 head, pre block
Tell       h_i += w v_i at token i, or the copy is h_i + w v_i;
           h_sink += sum_i W_i v_i, from rows diag(v)                                  2 heads
Trained    a trained layer; its normalization covers the d rows, and only them         its own heads and FFN
Hear       the d rows normalized; of a vector: the n numbers of the probe, read from
           the sink by all tokens; token i keeps number i, by a mask, which is exact   1 head, FFN
           a diagonal or a column: token i reads its own number                        1 head, FFN
=========  ==========================================================================  ====================

A trained layer shares its place with the compiled instructions of that layer: their heads and hidden units stand side
by side (``beside``). The result is one transformer; its loop block holds both.

The first source of each instruction but the first is the row of no height that stands for what was done before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nlaformer.compiler.machine.forms import OFF, Head, Ints, masked, nothing, select, stack
from nlaformer.compiler.machine.instructions import Half, Instruction, Parts, Words
from nlaformer.compiler.machine.rows import Block, Placed
from nlaformer.program.learned import PartSpec
from nlaformer.transformer import FFN, Heads, Layer
from nlaformer.weights import Sparse, Weight

if TYPE_CHECKING:
    from nlaformer.compiler.machine.writer import Writer


@dataclass(frozen=True)
class Network:
    """What fills a learned part, in float64: its layers, and the weights around them by name."""

    part: PartSpec
    pre: Sequence[Layer]
    loop: Sequence[Layer]
    weights: Mapping[str, Tensor]

    @property
    def width(self) -> int:
        """d, the rows of its memory."""
        return self.weights["positions"].shape[-1]


def _weights(to: Writer, part: str) -> tuple[dict[str, Any], Ints]:
    """The weights of a network and the rows that its last layers work on."""
    *_, last = to.plan.hidden[part].values()
    numbers = to.plan.networks[part].weights
    return {name: tensor.detach().double().cpu().numpy() for name, tensor in numbers.items()}, to.rows(last)


@dataclass(frozen=True)
class ReadIn(Instruction):
    """The rows of A, or of its transpose, into the memory."""

    part: str = ""

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        weights, _ = _weights(to, self.part)
        columns = to.forms(self.sources[0], to.n).mapped(to.n * weights["read_in"])
        places = select(to.positions).mapped(weights["positions"].T)
        memory = to.rows(to.plan.hidden[self.part]["pre"])
        return [to.pick(np.arange(to.n + 1), columns + places, memory)], []

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"{say(self.sources[0])} read by the network"


@dataclass(frozen=True)
class Tell(Instruction):
    """The numbers and vectors that a part is given; ``vectors`` of them, and their diagonal matrices, come last."""

    part: str = ""
    scalars: int = 0
    vectors: int = 0
    copies: bool = False

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        weights, hidden = _weights(to, self.part)
        given = self.sources[1:]
        numbers = [to.forms(source)[0] for source in given[: self.scalars]]
        vectors = [to.forms(source)[0] for source in given[self.scalars :][: self.vectors]]
        spread = [to.forms(source, to.n) for source in given[self.scalars + self.vectors :]]
        heads: list[Head] = []
        gain = float(to.n + 1)  # the sink sees all tokens alike; the others see the sink, which has nothing
        own = stack(*vectors).mapped(weights["each"]) if vectors else nothing(len(hidden))
        if self.copies:  # rows of zeros become a copy of the memory
            own = own + select(to.rows(to.plan.hidden[self.part]["pre"]))
        if vectors or self.copies:
            heads.append(to.pick(np.arange(to.n + 1), own, hidden))
        query, key = to.ones * OFF, select([to.sink])
        if vectors:
            heads.append(Head(query, key, stack(*spread).mapped(weights["whole"]), hidden, gain))
        if numbers:  # each stands in n tokens
            heads.append(Head(query, key, stack(*numbers).mapped(weights["number"] / to.n), hidden, gain))
        return heads, []

    def words(self, say: Words, beside: Sequence[str]) -> str:
        given = ", ".join(map(say, self.sources[1 : 1 + self.scalars + self.vectors]))
        return f"the network after {say(self.sources[0])} is given {given}"


@dataclass(frozen=True)
class Trained(Instruction):
    """A layer of the network; its own heads and units are put beside those of the layer."""

    part: str = ""
    block: str = ""
    layer: int = 0
    half: ClassVar[Half] = "both"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        return [], []

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"a trained layer after {say(self.sources[0])}"


@dataclass(frozen=True)
class Hear(Instruction):
    """One of the vectors that the network says."""

    part: str = ""
    output: int = 0
    half: ClassVar[Half] = "both"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        weights, hidden = _weights(to, self.part)
        heard, target, data = to.rows(group[0].beside[0]), to.rows(group[0].target), to.positions[1:]
        if len(heard) == 1:  # each token its own number
            value = select(hidden).mapped(weights["probe"][self.output : self.output + 1])
            return [to.pick(np.arange(to.n + 1), value, heard)], masked(select(heard), target, select([to.sink]))
        hidden_from = stack(*(select(np.delete(data, k)).total() for k in range(to.n)))
        hidden_from = hidden_from + select([to.sink]).copies(to.n)
        head = to.pick(np.zeros(to.n + 1, np.int64), select(hidden).mapped(weights["probe"]), heard)
        return [head], masked(select(heard), target.repeat(to.n), hidden_from)

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"what the network says after {say(self.sources[0])}"


# --- trained layers beside compiled ones ---


def trained_layer(to: Writer, placed: Placed, block: Block) -> tuple[Layer, int] | None:
    """What of a network stands in the layer of an instruction, one of its layers or the last normalization.

    And the first of the rows that it works on.
    """
    instruction = placed.instruction
    if not isinstance(instruction, (Trained, Hear)):
        return None
    network = to.plan.networks[instruction.part]
    first = int(to.rows(to.plan.hidden[instruction.part][block])[0])
    if isinstance(instruction, Trained):
        return getattr(network, block)[instruction.layer], first
    gain = network.weights.get("gain")
    return None if gain is None else (Layer(norm=(gain, gain.clone())), first)  # no unit of that layer reads them


def beside(layer: Layer, trained: Layer, first: int, rows: int, dtype: torch.dtype) -> Layer:
    """A compiled layer with a trained one on the rows from ``first`` on; P has ``rows`` of them."""
    width = trained.gain_1.shape[-1] if trained.gain_1 is not None else None
    norm = None
    if trained.gain_1 is not None and trained.gain_2 is not None:
        norm = (trained.gain_1.data.to(dtype), trained.gain_2.data.to(dtype))
    place = None if width is None else (first, first + width)
    heads = layer.heads if trained.heads is None else _heads(layer.heads, trained.heads, first, rows)
    ffn = layer.ffn if trained.ffn is None else _ffn(layer.ffn, trained.ffn, first, rows)
    return Layer(heads, ffn, norm, rows=place).to(dtype).requires_grad_(False)


def _heads(compiled: Heads | None, trained: Heads, first: int, rows: int) -> Heads:
    """The heads of both."""
    sides = [(heads, heads.count, offset) for heads, offset in ((compiled, 0), (trained, first)) if heads is not None]
    W_Q, W_K, W_U = (_joined(sides, name, rows) for name in ("W_Q", "W_K", "W_U"))
    return Heads(W_Q, W_K, W_U, _joined(sides, "W_O", rows, by_rows=False), sum(count for _, count, _ in sides))


def _ffn(compiled: FFN | None, trained: FFN, first: int, rows: int) -> FFN:
    """The hidden units of both."""
    sides = [(ffn, ffn.width, offset) for ffn, offset in ((compiled, 0), (trained, first)) if ffn is not None]
    b_2 = torch.zeros(rows, dtype=torch.float64)
    for ffn, _, offset in sides:
        b_2[offset : offset + len(ffn.b_2)] += ffn.b_2.data
    b_1 = torch.cat([ffn.b_1.data.double() for ffn, _, _ in sides])
    return FFN(_joined(sides, "W_1", rows), b_1, _joined(sides, "W_2", rows, by_rows=False), b_2)


def _joined(sides: Sequence[tuple[Any, int, int]], name: str, rows: int, by_rows: bool = True) -> Sparse:
    """A weight of several modules: of each its heads or hidden units, how many, and the first of its rows of P.

    Narrower heads are padded with zeros. ``by_rows``: the weight has the rows of P as its columns.
    """
    weights = [(getattr(module, name), count, offset) for module, count, offset in sides]
    own_axis = 0 if by_rows else 1
    widest = max(weight.shape[own_axis] // count for weight, count, _ in weights)
    before, places, numbers = 0, [], []
    for weight, count, offset in weights:
        index, values = _entries(weight)
        width = weight.shape[own_axis] // count
        own, other = index[own_axis], index[1 - own_axis] + offset
        own = (before + own // width) * widest + own % width
        places.append(torch.stack([own, other] if by_rows else [other, own]))
        numbers.append(values.double())
        before += count
    shape = (before * widest, rows) if by_rows else (rows, before * widest)
    return Sparse(torch.cat(places, 1), torch.cat(numbers), shape)


def _entries(weight: Weight) -> tuple[Tensor, Tensor]:
    """The places and values of the nonzero entries."""
    if isinstance(weight, Sparse):
        return weight.index, weight.values
    full = weight.weight.detach()
    index = torch.nonzero(full).T.contiguous()
    return index, full[index[0], index[1]]
