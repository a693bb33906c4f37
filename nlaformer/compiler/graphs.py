"""Graphs of ``program/`` on their way to weights: in core primitives, through the rules of ``lower/``, to a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nlaformer.compiler.analysis import Analysis
from nlaformer.compiler.lower.blocks import lower
from nlaformer.compiler.machine.emit import Weights, emit
from nlaformer.compiler.machine.rows import Stored, Target
from nlaformer.compiler.machine.schedule import in_words, schedule
from nlaformer.program.data import ProgramGraph
from nlaformer.prompt import Layout
from nlaformer.transformer import NLAFormer


@dataclass(frozen=True)
class Made:
    """What a back end makes: the weights, the layout of the prompt, where values stand in it, what layers do, units."""

    model: NLAFormer
    layout: Layout
    state: dict[str, Any]
    answer: dict[str, Any]
    scales: dict[str, list[str]]
    schedule: dict[str, Any]
    analysis: Analysis


def weights_of(graph: ProgramGraph, analysis: Analysis, target: Any) -> Made:
    """The weights of a graph without learned parts."""
    plan, _ = lower(graph, Target(target.n, target.dtype, target.order, target.bound), {})
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
        analysis,
    )


def _place(stored: Stored, weights: Weights) -> dict[str, Any]:
    scale = None if stored.scale is None else weights.names[stored.scale]
    return {"kind": stored.kind, "rows": [weights.names[stored.row]], "scale": scale, "logarithm": stored.logarithm}
