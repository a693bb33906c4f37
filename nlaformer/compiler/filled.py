"""A program whose learned parts are filled in, on its way to weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nlaformer.compiler.analysis import Analysis
from nlaformer.compiler.expression import Expression
from nlaformer.compiler.graph import Graph, Node, reachable
from nlaformer.compiler.learned import Call
from nlaformer.compiler.machine.networks import Network
from nlaformer.compiler.reference import Reference
from nlaformer.compiler.result import Run
from nlaformer.compiler.trace import ANSWER, TracedProgram
from nlaformer.errors import CompileError
from nlaformer.program.data import ProgramGraph
from nlaformer.program.language import Program
from nlaformer.program.learned import PartSpec


@dataclass(frozen=True)
class FilledProgram:
    """A program as data, a network for each of its parts, the size they were made for, and its own run."""

    reference: Reference
    graph: ProgramGraph
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
