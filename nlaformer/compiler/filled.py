"""A program whose learned parts are filled in, on its way to weights: trained layers beside compiled ones.

The network of a part (its tokens, its layers, what it is given and says: ``learn/parts.py``) has d rows of P of
its own, its memory h, over all n + 1 tokens, the sink included. A part in ``step`` without a memory has 2 d: h stays as
the pre block has left it, and every loop works on a copy. No compiled instruction but these reads or writes them:

=========  ==========================================================================  ====================
read in    h_i = R (n a_i) + p_i, h_sink = p_0: every token sees itself                1 head, pre block
tell       h_i += w v_i at token i, or the copy is h_i + w v_i;
           h_sink += sum_i W_i v_i, from rows diag(v)                                  2 heads
network    a trained layer; its normalization covers the d rows, and only them         its own heads and FFN
hear       the d rows normalized; of a vector: the n numbers of the probe, read from
           the sink by all tokens; token i keeps number i, by a mask, which is exact   1 head, FFN
           a diagonal or a column: token i reads its own number                        1 head, FFN
=========  ==========================================================================  ====================

A trained layer shares its place with the compiled instructions of that layer: their heads and hidden units stand side
by side (``beside``). The result is one transformer; its loop block holds both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from nlaformer.compiler.analysis import Analysis
from nlaformer.compiler.expression import Expression
from nlaformer.compiler.graph import Graph, Node, reachable
from nlaformer.compiler.instructions import HEADROOM, Builder, Instruction
from nlaformer.compiler.learned import Call
from nlaformer.compiler.reference import Reference
from nlaformer.compiler.result import Run
from nlaformer.compiler.rows import Emit, Parts, Rows
from nlaformer.compiler.terms import Combination, Term
from nlaformer.compiler.trace import ANSWER, TracedProgram
from nlaformer.errors import CompileError
from nlaformer.express import heads as build
from nlaformer.express.heads import Form, Head
from nlaformer.program.language import Program
from nlaformer.program.learned import PartSpec
from nlaformer.transformer import FFN, Heads, Layer
from nlaformer.weights import Sparse, Weight


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


@dataclass(frozen=True)
class FilledProgram:
    """A program as data, a network for each of its parts, the size they were made for, and its own run."""

    reference: Reference
    n: int
    networks: Mapping[str, Network]
    run: Callable[..., Run[Any]]


class Trained(Protocol):
    """A trained program, as ``nf.load`` gives it."""

    def filled(self) -> FilledProgram: ...


# --- the graph ---


def retraced(filled: FilledProgram) -> TracedProgram:
    """The graph of a program that is there as data alone."""
    reference, graph = filled.reference, Graph(filled.n)
    inputs = {name: graph.make("input", (), name, kind) for name, kind in reference.inputs.items()}
    start, step, finish = (_nodes(graph, e) for e in (reference.start, reference.step, reference.finish))
    residual, scale = (_nodes(graph, e) for e in (reference.residual, reference.scale))
    for part in reference.parts:
        graph.learned[part.name] = Call(part, _given((start if part.method == "start" else step).values(), part))
    declared = {"positive_definite": reference.definite, "rectangular": reference.rectangular}
    kind = type(reference.name, (Program,), declared)
    states = [name for name, kind in reference.kinds.items() if name != ANSWER]
    return TracedProgram(
        kind(),
        inputs,
        {name: start[name] for name in states},
        {name: graph.make("state", (), name, start[name].kind) for name in states},
        {name: step[name] for name in states},
        finish[ANSWER],
        residual.get("residual"),
        scale.get("scale"),
        (),
        (),
        tuple(graph.learned.values()),
    )


def _nodes(graph: Graph, expression: Expression) -> dict[str, Node]:
    """The outputs of an expression as nodes of a graph."""
    made: list[Node] = []
    for op, arguments, extra, kind in expression.nodes:
        made.append(graph.make(op, tuple(made[k] for k in arguments), _frozen(extra), kind))
    return {name: made[k] for name, k in expression.outputs.items()}


def _frozen(extra: Any) -> Any:
    return tuple(map(_frozen, extra)) if isinstance(extra, list) else extra


def _given(values: Iterable[Node], part: PartSpec) -> tuple[Node, ...]:
    """A and what else a part is given, from the values of the method that calls it."""
    calls = (node for node in reachable(values) if node.op == "learned" and node.extra[0] == part.name)
    return next(calls).args[: 1 + len(part.inputs)]


def refuse_unknown(filled: FilledProgram, analysis: Analysis) -> None:
    """Raise CompileError where there are no weights for a part."""
    for part in filled.reference.parts:
        name, network = f"{filled.reference.name}: the learned part {part.name}", filled.networks[part.name]
        if part.is_scalar:
            raise CompileError(
                f"{name} gives {part.gives!r}; there are weights for a part that gives a vector, a diagonal or a "
                "diagonal plus columns. The model itself runs it"
            )
        if any(layer.causal for layer in (*network.pre, *network.loop)):
            raise CompileError(f"{name} has causal attention, which would hide the later tokens from compiled heads")
    if len(filled.reference.parts) > 1:
        raise CompileError(
            f"{filled.reference.name} has {len(filled.reference.parts)} learned parts; one can be compiled"
        )
    if "A" in analysis.scaled and any(f.denominator != 1 for pair in analysis.units.values() for f in pair):
        # A run would then scale A by even powers of two, and the network was trained on the nearest one.
        raise CompileError(f"{filled.reference.name} has a state with the unit of a root of A or b; the model runs it")


# --- instructions ---


def speak(builder: Builder, network: Network, given: Sequence[Combination], symmetric: bool, output: str) -> int:
    """The register of a vector that a part says, from what it is given in rows."""
    part, n, hidden = network.part, builder.n, builder.out.hidden
    builder.out.networks[part.name] = network
    copied = part.method == "step" and not part.memory
    if part.name not in hidden:
        rows = {"height": network.width, "tame": False}
        memory = work = builder._register(f"{part.name}.memory", "input", **rows)
        if copied:
            work = builder._register(f"{part.name}.hidden", builder.block, **rows)
        hidden[part.name] = {"pre": memory, builder.block: work}
    with builder.within("pre"):
        # Token i holds row i of A; the network reads columns.
        A: Combination = ((builder.normal["A"], 1.0),)
        if not symmetric:
            A = builder.materialize((Term(1.0, builder.eye, (), "A.T"),))
        state = builder.emit("read in", [A], (), (part.name,), height=0)
        if part.method == "step":
            state = _through(builder, network, "pre", state)
    if part.inputs or copied:
        vectors = [v for v, kind in zip(given, part.inputs, strict=True) if kind == "vector"]
        spread: list[Combination] = [((builder.emit("diagonal", [v], height=n, tame=False), 1.0),) for v in vectors]
        sources = [((state, 1.0),), *given, *spread]
        copy = (hidden[part.name][builder.block],) if copied else ()
        state = builder.emit("tell", sources, (), (part.name,), extra=copy, height=0)
    state = _through(builder, network, "loop" if part.method == "step" else "pre", state)
    numbers = n if part.is_vector else 1
    heard = builder._work(f"heard {output}", part.name, height=numbers, tame=False)
    more: dict[str, Any] = {"extra": (heard,), "tame": False, "bound": HEADROOM}
    return builder.emit("hear", [((state, 1.0),)], (), (part.name, list(part.outputs).index(output)), **more)


def _through(builder: Builder, network: Network, block: str, before: int) -> int:
    """The layers of a block, one after the other. A register without rows stands for what each has done."""
    for k in range(len(getattr(network, block))):
        parameters = (network.part.name, block, k)
        before = builder.emit("network", [((before, 1.0),)], (), parameters, height=0)
    return before


# --- weights ---


def beside(layer: Layer, trained: Layer, first: int, rows: int) -> Layer:
    """A compiled layer with a trained one on the rows from ``first`` on; P has ``rows`` of them."""
    width = trained.gain_1.shape[-1] if trained.gain_1 is not None else None
    norm = None if trained.gain_1 is None or trained.gain_2 is None else (trained.gain_1.data, trained.gain_2.data)
    place = None if width is None else (first, first + width)
    heads = layer.heads if trained.heads is None else _heads(layer.heads, trained.heads, first, rows)
    ffn = layer.ffn if trained.ffn is None else _ffn(layer.ffn, trained.ffn, first, rows)
    return Layer(heads, ffn, norm, rows=place).requires_grad_(False)


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
    b_1 = torch.cat([ffn.b_1.data for ffn, _, _ in sides])
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
        numbers.append(values)
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


def _read_in(at: Rows, i: Instruction) -> Parts:
    weights, memory = _network_of(at, i)[0], _memory(at, i)
    positions = build.select(at.layout["position"])
    columns = _mapped(at.n * weights["read_in"], at.forms(i.sources[0], at.n))
    places = _mapped(weights["positions"].mT, positions)
    value = [column | place for column, place in zip(columns, places, strict=True)]
    return [build.pick_head(at.layout, range(at.layout.tokens), value, memory)], []


def _tell(at: Rows, i: Instruction) -> Parts:
    weights, hidden = _network_of(at, i)
    kinds = at.selection.networks[i.parameters[0]].part.inputs
    given = [at.form(source) for source in i.sources[1 : 1 + len(kinds)]]
    numbers = [form for form, kind in zip(given, kinds, strict=True) if kind == "scalar"]
    vectors = [form for form, kind in zip(given, kinds, strict=True) if kind == "vector"]
    spread = [form for source in i.sources[1 + len(kinds) :] for form in at.forms(source, at.n)]
    heads: list[Head] = []
    gain = float(at.layout.tokens)  # the sink sees all tokens alike; the others see the sink, which has nothing
    own = _mapped(weights["each"], vectors) if vectors else [{} for _ in hidden]
    if i.extra:  # rows of zeros become a copy of the memory
        own = [form | {row: 1.0} for form, row in zip(own, _memory(at, i), strict=True)]
    if vectors or i.extra:
        heads.append(build.pick_head(at.layout, range(at.layout.tokens), own, hidden))
    if vectors:
        whole = _mapped(weights["whole"], spread)
        heads.append(Head([{at.one: build.OFF}], [{at.sink: 1.0}], whole, hidden, gain))
    if numbers:  # each stands in n tokens
        value = _mapped(weights["number"] / at.n, numbers)
        heads.append(Head([{at.one: build.OFF}], [{at.sink: 1.0}], value, hidden, gain))
    return heads, []


def _network(at: Rows, i: Instruction) -> Parts:
    return [], []  # its own heads and units are put beside those of the layer


def _hear(at: Rows, i: Instruction) -> Parts:
    weights, hidden = _network_of(at, i)
    heard, (target,), positions = at.rows(i.extra[0]), at.rows(i.target), list(at.layout["position"])
    tokens, number = at.layout.tokens, i.parameters[1]
    if len(heard) == 1:
        value = _mapped(weights["probe"][number : number + 1], build.select(hidden))
        units = build.masked({heard[0]: 1.0}, target, positions[:1])
        return [build.pick_head(at.layout, range(tokens), value, heard)], units
    value, units = _mapped(weights["probe"], build.select(hidden)), []
    for k, row in enumerate(heard, start=1):
        units += build.masked({row: 1.0}, target, [place for place in positions if place != positions[k]])
    return [build.pick_head(at.layout, [0] * tokens, value, heard)], units


def _network_of(at: Rows, i: Instruction) -> tuple[Mapping[str, Tensor], list[int]]:
    """The weights of a network and the rows that its last layers work on."""
    name = i.parameters[0]
    *_, last = at.selection.hidden[name].values()
    return at.selection.networks[name].weights, at.rows(last)


def _memory(at: Rows, i: Instruction) -> list[int]:
    """The rows in which the pre block leaves what the network has read."""
    return at.rows(at.selection.hidden[i.parameters[0]]["pre"])


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


NETWORKS: dict[str, Emit] = {
    "read in": _read_in,
    "tell": _tell,
    "network": _network,
    "hear": _hear,
}
