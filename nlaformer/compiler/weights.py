"""A program as data becomes weights: lowered by rules, put into layers, written as arrays.

lower     rules for each primitive (``lower/``): values become sums of terms, rows and instructions of the machine
schedule  instructions that are needed -> layers of each block, and what its last one writes and clears (``machine/``)
emit      layers -> weights
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nlaformer.compiler.lower.blocks import lower
from nlaformer.compiler.lower.facts import Facts, facts_of
from nlaformer.compiler.lower.normal import normal
from nlaformer.compiler.machine.emit import Weights, emit
from nlaformer.compiler.machine.networks import Network
from nlaformer.compiler.machine.rows import Stored, Target
from nlaformer.compiler.machine.schedule import in_words, schedule
from nlaformer.errors import CompileError
from nlaformer.program.data import ProgramGraph
from nlaformer.prompt import Layout
from nlaformer.transformer import NLAFormer


@dataclass(frozen=True)
class Made:
    """The weights of a program, the layout of the prompt, where values stand in it, and what the layers do.

    Attributes
    ----------
    state, answer : the rows of each state and of the answer
    scales : of inputs that a run does not scale, the rows of size 1 and of the logarithm of their scale
    schedule : of each block what its layers compute, in words
    facts : units, signs, and which inputs a run scales
    """

    model: NLAFormer
    layout: Layout
    state: dict[str, Any]
    answer: dict[str, Any]
    scales: dict[str, list[str]]
    schedule: dict[str, list[list[str]]]
    facts: Facts


def weights_of(program: ProgramGraph, target: Target, networks: Mapping[str, Network] | None = None) -> Made:
    """The weights of a program; ``networks`` fill its learned parts."""
    of_size = ((), (program.n,), (program.n, program.n))
    for name, node in program.values.items():
        if node.shape not in of_size:
            reason = f"{name} has the shape {node.shape}; states and answers of weights are of size n = {program.n}"
            raise CompileError(f"{program.name} cannot be compiled.\n  {node.line}\n    {reason}")
    plan, facts = lower(program, target, networks)
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
        facts,
    )


def _place(stored: Stored, weights: Weights) -> dict[str, Any]:
    scale = None if stored.scale is None else weights.names[stored.scale]
    return {"kind": stored.kind, "rows": [weights.names[stored.row]], "scale": scale, "logarithm": stored.logarithm}


def refuse_unknown_units(program: ProgramGraph) -> None:
    """Raise CompileError where a learned part is given what has a unit, or the sign under a root is not known."""
    if problems := facts_of(normal(program)).problems:
        node, text = problems[0]
        raise CompileError(f"{program.name} cannot be compiled.\n  {node.line}\n    {text}")
