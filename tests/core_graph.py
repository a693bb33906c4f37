"""Programs of the old front end in core primitives, for the new back end: until the new front end traces them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nlaformer.compiler.analysis import Analysis
from nlaformer.compiler.compiling import Made
from nlaformer.compiler.graph import Node as OldNode
from nlaformer.compiler.lower.blocks import lower
from nlaformer.compiler.lower.facts import Core
from nlaformer.compiler.machine.emit import Weights, emit
from nlaformer.compiler.machine.rows import Stored, Target
from nlaformer.compiler.machine.schedule import in_words, schedule
from nlaformer.compiler.trace import TracedProgram
from nlaformer.program.ir import Graph, Line, Node
from nlaformer.program.primitives import apply


def core_of(traced: TracedProgram) -> Core:
    """The same program in core primitives; it has been rewritten for the weights."""
    converter = _Converter(traced.answer.graph.n or 0)
    of = converter.image
    return Core(
        traced.program.name,
        converter.n,
        {name: of(node) for name, node in traced.inputs.items()},
        {name: of(node) for name, node in traced.start.items()},
        {name: of(node) for name, node in traced.state.items()},
        {name: of(node) for name, node in traced.step.items()},
        of(traced.answer),
        traced.program.positive_definite,
    )


class _Converter:
    def __init__(self, n: int):
        self.n, self.line = n, Line()
        self.graph = Graph(lambda: self.line)
        self.images: dict[int, Node] = {}

    def image(self, node: OldNode) -> Node:
        from nlaformer.compiler.graph import reachable as old_reachable

        for each in old_reachable([node]):
            if id(each) not in self.images:
                self.line = Line(text=str(each.place))
                self.images[id(each)] = self._made(each, [self.images[id(argument)] for argument in each.args])
        return self.images[id(node)]

    def _made(self, node: OldNode, args: list[Node]) -> Node:
        graph, n, extra = self.graph, self.n, node.extra
        shape = {"scalar": (), "vector": (n,), "matrix": (n, n)}[node.kind]
        if node.op in ("input", "state", "learned"):
            return graph.make(node.op, args, extra, shape)
        leaves: dict[str, Callable[[], Any]] = {
            "constant": lambda: np.array(extra, float),
            "zeros": lambda: np.zeros(shape),
            "ones": lambda: np.ones(shape),
            "identity": lambda: np.eye(n),
        }
        if node.op in leaves:
            return graph.constant(leaves[node.op]())
        moves: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "transpose": np.transpose,
            "diag": np.diagonal,
            "diagonal": np.diag,
            "triangle": lambda v: (np.tril if extra[0] == "lower" else np.triu)(v, extra[1]),
            "roll": lambda v: np.roll(v, extra, 0),
        }
        if node.op in moves:
            places = 1 + np.arange(args[0].size).reshape(args[0].shape)
            return graph.move(args, moves[node.op](places) - 1)
        if node.op == "dot":
            if args[0].ndim == 1:
                return apply(graph, "matmul", *args)
            return apply(graph, "sum", apply(graph, "multiply", *args), extra=((0, 1), False))
        if node.op == "outer":
            column, row = np.arange(n)[:, None], np.arange(n)[None]
            return apply(graph, "multiply", graph.move(args[:1], column), graph.move(args[1:], row))
        if node.op in ("sum", "mean"):
            total = apply(graph, "sum", args[0], extra=(tuple(range(args[0].ndim)), False))
            return total if node.op == "sum" else apply(graph, "multiply", graph.constant(1 / args[0].size), total)
        return apply(graph, node.op, *args)


def lowered(traced: TracedProgram, analysis: Analysis, target: Any, networks: Mapping[str, Any]) -> Made:
    """The new back end, as ``compiling.compiled`` takes it."""
    core = core_of(analysis.lowered)
    new = Target(target.n, target.dtype, target.order, target.bound)
    plan, facts = lower(core, new, networks)
    assert facts.scaled == analysis.scaled
    assert facts.units == analysis.units, (facts.units, analysis.units)
    layers = schedule(plan)
    weights = emit(plan, layers)
    assert plan.answer is not None
    return Made(
        weights.model,
        weights.layout,
        {name: _place(stored, weights) for name, stored in plan.state.items()},
        _place(plan.answer, weights),
        {name: [weights.names[row] for row in rows] for name, rows in plan.scales.items()},
        in_words(plan, layers),
    )


def _place(stored: Stored, weights: Weights) -> dict[str, Any]:
    scale = None if stored.scale is None else weights.names[stored.scale]
    return {"kind": stored.kind, "rows": [weights.names[stored.row]], "scale": scale, "logarithm": stored.logarithm}
