"""Graphs of ``program/`` on their way to weights: in core primitives, through the rules of ``lower/``, to a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nlaformer.compiler.lower.blocks import lower
from nlaformer.compiler.lower.facts import Core
from nlaformer.compiler.machine.emit import Weights, emit
from nlaformer.compiler.machine.rows import Stored, Target
from nlaformer.compiler.machine.schedule import in_words, schedule
from nlaformer.errors import CompileError
from nlaformer.program.core import core
from nlaformer.program.data import ProgramGraph
from nlaformer.program.ir import Node, reachable
from nlaformer.prompt import Layout
from nlaformer.transformer import NLAFormer


@dataclass(frozen=True)
class Made:
    """What a back end makes: the weights, the layout of the prompt, where values stand in it, what each layer does."""

    model: NLAFormer
    layout: Layout
    state: dict[str, Any]
    answer: dict[str, Any]
    scales: dict[str, list[str]]
    schedule: dict[str, Any]


def core_of(graph: ProgramGraph) -> Core:
    """A graph in core primitives, as the rules take it."""
    made, _ = core(graph)
    states = {node.extra: node for node in reachable((*made.step.values(), made.answer)) if node.op == "state"}
    for name, node in made.step.items():
        states.setdefault(name, Node("state", (), name, node.shape, node.line, False))
    state = {name: states[name] for name in made.step}
    for node in reachable((*made.start.values(), *made.step.values(), made.answer)):
        if node.ndim > 2 or max(node.shape[:1], default=0) > graph.n:
            raise CompileError(
                f"{graph.name} cannot be compiled: 1 problem.\n  {node.line}\n    an array of shape {node.shape}; "
                f"those that a prompt of n = {graph.n} tokens holds have one or two axes, the first of at most n "
                "entries. Compute its parts"
            )
    return Core(made.name, made.n, made.inputs, made.start, state, made.step, made.answer, made.positive_definite)


def weights_of(graph: ProgramGraph, target: Any, networks: Mapping[str, Any]) -> Made:
    """The weights of a graph; ``networks`` fill its learned parts."""
    plan, _ = lower(core_of(graph), Target(target.n, target.dtype, target.order, target.bound), networks)
    layers = schedule(plan)
    weights = emit(plan, layers)
    if plan.answer is None:
        raise RuntimeError("a plan without an answer")
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
