"""Around the layers of a trained network: what it reads, what it is told, what it says (``filled``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from nlaformer.compiler.instructions import Instruction
from nlaformer.compiler.rows import Emit, Parts, Rows
from nlaformer.express import heads as build
from nlaformer.express.heads import Form, Head


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
