"""The new front end and the new back end together, as ``compiling.compiled`` takes a back end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nlaformer.compiler.analysis import Analysis
from nlaformer.compiler.compiling import Made
from nlaformer.compiler.graph import Node as OldNode
from nlaformer.compiler.graph import reachable
from nlaformer.compiler.lower.blocks import lower
from nlaformer.compiler.machine.emit import Weights, emit
from nlaformer.compiler.machine.rows import Stored, Target
from nlaformer.compiler.machine.schedule import in_words, schedule
from nlaformer.compiler.trace import TracedProgram
from nlaformer.program.data import ProgramGraph
from nlaformer.program.ir import Graph, Node
from nlaformer.program.primitives import apply
from nlaformer.program.trace import trace


def lowered(traced: TracedProgram, analysis: Analysis, target: Any, networks: Mapping[str, Any]) -> Made:
    """The weights of a program, which is traced again."""
    new = Target(target.n, target.dtype, target.order, target.bound)
    program = _converted(traced, target.n) if networks else trace(traced.program, target.n)
    plan, facts = lower(program, new, networks)
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
        replace(analysis, units=dict(facts.units), scaled=facts.scaled),
    )


def _place(stored: Stored, weights: Weights) -> dict[str, Any]:
    scale = None if stored.scale is None else weights.names[stored.scale]
    return {"kind": stored.kind, "rows": [weights.names[stored.row]], "scale": scale, "logarithm": stored.logarithm}


# --- trained programs, which are there as nodes of the old graph ---


def _converted(traced: TracedProgram, n: int) -> ProgramGraph:
    graph, images = Graph(), {}
    states = [node for block in (traced.start, traced.step) for node in block.values() if node.kind != "memory"]
    for node in reachable((*traced.inputs.values(), *states, traced.answer)):
        images[id(node)] = _image(graph, n, node, [images[id(argument)] for argument in node.args])

    def named(nodes: Mapping[str, OldNode]) -> dict[str, Node]:
        return {name: images[id(node)] for name, node in nodes.items() if node.kind != "memory"}

    blocks = [named(nodes) for nodes in (traced.inputs, traced.start, traced.step)]
    definite = traced.program.positive_definite
    return ProgramGraph(traced.program.name, n, *blocks, images[id(traced.answer)], positive_definite=definite)


def _image(graph: Graph, n: int, node: OldNode, args: list[Node]) -> Node:
    """A node of the old graph in the primitives of the new one."""
    shape = {"scalar": (), "vector": (n,), "matrix": (n, n)}.get(node.kind, (n,))
    if node.op in ("input", "state", "learned"):
        return graph.make(node.op, args, node.extra, shape)
    constants = {"zeros": np.zeros(shape), "ones": np.ones(shape), "identity": np.eye(n), "constant": node.extra}
    if node.op in constants:
        return graph.constant(constants[node.op])
    if node.op in ("diag", "diagonal", "transpose"):
        places = 1 + np.arange(args[0].size).reshape(args[0].shape)
        return graph.move(args, (places.T if node.op == "transpose" else np.diag(places)) - 1)
    return apply(graph, "matmul" if node.op == "dot" else node.op, *args)
