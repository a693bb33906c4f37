"""A program as plain data, and its iteration on batches of tensors: the reference of everything made of the program.

Nothing here calls the user's class; a saved model holds this data and runs it. The learned parts of a program are given
to the iteration as functions, and the memory of a part is one more state, of the kind "memory".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nlaformer.compiler.expression import EMPTY, Expression, Part
from nlaformer.compiler.graph import AXES, Node, reachable
from nlaformer.compiler.trace import ANSWER, TracedProgram
from nlaformer.program.learned import PartSpec

START, STEP = "start ", "step "  # before the name of a state, where what both methods return is in one expression


def returned(traced: TracedProgram) -> dict[str, Node]:
    """What start, step and finish return, each by name."""
    start = {START + name: node for name, node in traced.start.items()}
    step = {STEP + name: node for name, node in traced.step.items()}
    return {**start, **step, ANSWER: traced.answer}


def without_networks(values: Mapping[str, Node]) -> dict[str, Node]:
    """Those values that no learned part has a share in; its network is in the weights, and nowhere else."""
    return {k: node for k, node in values.items() if all(below.op != "learned" for below in reachable([node]))}


@dataclass(frozen=True)
class Reference:
    """A program as plain data.

    Attributes
    ----------
    name : the name of its class
    inputs : each input's kind
    start, step : every state by name; finish : the answer
    residual, scale : what a run is judged by; without outputs where the program has none
    promises : the kinds of the values that the program takes to be positive; start and step give them by name
    parts : its learned parts
    rectangular : whether it takes rectangular matrices, padded with zeros
    """

    name: str
    inputs: dict[str, str]
    start: Expression
    step: Expression
    finish: Expression
    residual: Expression = EMPTY
    scale: Expression = EMPTY
    promises: dict[str, str] = field(default_factory=dict)
    parts: tuple[PartSpec, ...] = ()
    rectangular: bool = False

    @classmethod
    def of(cls, traced: TracedProgram, promises: Sequence[Node] = ()) -> Reference:
        """The data of a traced program; ``promises`` come from its analysis."""
        memory = {name: nodes for call in traced.learned for name, nodes in call.memory.items()}
        start = traced.start | {name: begin for name, (begin, _) in memory.items()}
        step = traced.step | {name: after for name, (_, after) in memory.items()}
        named = {f"promise {k}": node for k, node in enumerate(promises)}
        for values in (start, step):
            made = {id(node) for node in reachable(values.values())}
            values |= {name: node for name, node in named.items() if id(node) in made}
        return cls(
            traced.program.name,
            {name: node.kind for name, node in traced.inputs.items()},
            Expression.of(start),
            Expression.of(step),
            Expression.of({ANSWER: traced.answer}),
            Expression.of({} if traced.residual is None else {"residual": traced.residual}),
            Expression.of({} if traced.scale is None else {"scale": traced.scale}),
            {name: node.kind for name, node in named.items()},
            tuple(call.spec for call in traced.learned),
            traced.program.rectangular,
        )

    def data(self) -> dict[str, Any]:
        """What ``read`` takes, as JSON holds it."""
        plain = vars(self) | {"parts": [part.data() for part in self.parts]}
        return {name: value.data() if isinstance(value, Expression) else value for name, value in plain.items()}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Reference:
        """The program of saved data."""
        values: dict[str, Any] = {**data, "parts": tuple(PartSpec(**part) for part in data["parts"])}
        for name in data.keys() - {"name", "inputs", "promises", "parts", "rectangular"}:
            values[name] = Expression.read(data[name])
        return cls(**values)

    @property
    def definite(self) -> bool:
        """Whether it takes A to be symmetric positive definite; other promises say so themselves: nf.positive(...)."""
        methods = (self.start, self.step)
        made = {each.nodes[each.outputs[name]][0] for each in methods for name in each.outputs.keys() & self.promises}
        return not made.isdisjoint(("dot", "diag"))

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of every state that a run reports and, under ``ANSWER``, of the answer."""
        hidden = {"memory", *self.promises}
        states = {name: kind for name, kind in self.step.kinds.items() if not hidden & {name, kind}}
        return states | self.finish.kinds

    @property
    def size(self) -> int | None:
        """The n of its constant vectors and matrices; None where it has none, and fits every size."""
        nodes = (node for part in (self.start, self.step, self.finish) for node in part.nodes)
        return next((len(extra) for op, _, extra, kind in nodes if op == "constant" and kind != "scalar"), None)

    def first(self, inputs: Mapping[str, Tensor], parts: Mapping[str, Part] | None = None) -> dict[str, Tensor]:
        """Every state after ``start`` and the answer, with any leading axes; ``parts`` fill what is left open."""
        batch = [v.shape[: v.dim() - AXES[self.inputs[name]]] for name, v in inputs.items()]
        size = next((v.shape[-1] for name, v in inputs.items() if self.inputs[name] != "scalar"), 1)
        states = self.start(inputs, parts)
        for name, kind in self.start.kinds.items():
            if kind in AXES:  # zeros and constants have no leading axes
                states[name] = states[name].expand(*torch.broadcast_shapes(*batch), *[size] * AXES[kind])
        return states | self.finish({**inputs, **states})

    def next(
        self, inputs: Mapping[str, Tensor], states: Mapping[str, Tensor], parts: Mapping[str, Part] | None = None
    ) -> dict[str, Tensor]:
        """The same after one more step."""
        states = self.step({**inputs, **states}, parts)
        return states | self.finish({**inputs, **states})

    def carried(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The states alone, which the next step starts from."""
        return {name: values[name] for name in self.step.outputs if name not in self.promises}

    def iterate(self, inputs: Mapping[str, Tensor], iterations: int) -> Iterator[dict[str, Tensor]]:
        """The values of a program without learned parts after ``start`` and after each of the iterations."""
        yield (values := self.first(inputs))
        for _ in range(iterations):
            yield (values := self.next(inputs, self.carried(values)))
