"""Calls of learned parts in a traced program (``nlaformer.program.learned`` has the parts)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nlaformer.compiler.graph import Graph, Node
from nlaformer.compiler.places import Place
from nlaformer.compiler.values import Value
from nlaformer.program.language import diag, exp, positive
from nlaformer.program.learned import EXPONENT, Learned, PartSpec, bounded, factors, low_rank


@dataclass(frozen=True)
class Call:
    """A part in a traced program: its nodes ``memory`` before the first step and after each, and what is said."""

    spec: PartSpec
    nodes: tuple[Node, ...]
    memory: dict[str, tuple[Node, Node]] = field(default_factory=dict)
    said: dict[str, Node] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """The line that calls it."""
        return next(iter(self.said.values()), self.nodes[0]).place


def trace_call(part: Learned, graph: Graph, given: list[Any]) -> Any:
    """The nodes of a call; what it gives, as the program uses it."""
    nodes = [graph.node_or_refused(value) for value in given]
    if any(node.op == "refused" for node in nodes):
        return Value(graph.refused())
    spec = PartSpec(part.name, part.gives, graph.method, part.memory, [node.kind for node in nodes[1:]])
    if problem := _problem(spec, graph, nodes):
        return Value(graph.refuse(f"{part.name or part!r}: {problem}"))
    call = graph.learned[part.name] = _call(spec, graph, tuple(nodes))
    said = {name: Value(node) for name, node in call.said.items()}
    if not spec.rank:
        return exp(bounded(said["value"], EXPONENT)) if spec.is_positive else said["value"]
    a = 1.0 if spec.dimensionless else positive(diag(Value(nodes[0])))
    return low_rank(spec.coarse, *factors(spec, said, a))


def _problem(part: PartSpec, graph: Graph, nodes: list[Node]) -> str:
    """What is wrong with a call, in words."""
    if not part.name:
        return "a learned part must be an attribute of the program: name = nf.Learned(...) in its class"
    if graph.method not in ("start", "step"):
        return f"a learned part can be called in start and step, not in {graph.method}"
    if part.memory and graph.method == "start":
        return "memory=True is for a part that is called in step; in start it is called once"
    if nodes[0].extra != "A" or nodes[0].kind != "matrix":
        return f"the first argument must be A, the program's input; given {nodes[0]!r}"
    if graph.n is not None and part.rank > graph.n:
        return f"{part.gives!r} for n = {graph.n} unknowns; M has at most n columns, so choose a k up to {graph.n}"
    known = graph.learned.get(part.name)
    if known is not None and (known.nodes, known.spec.method) != (tuple(nodes), graph.method):
        return "a second call; a learned part is called once, in start or in step"
    if wrong := [node for node in nodes[1:] if node.kind not in ("vector", "scalar")]:
        return f"{wrong[0]!r} is a {wrong[0].kind}; beside A, a learned part takes vectors and scalars"
    return ""


def _call(spec: PartSpec, graph: Graph, nodes: tuple[Node, ...]) -> Call:
    """A call and its nodes."""
    memory, arguments = {}, nodes
    if spec.method == "step":
        name = f"{spec.name}.memory"
        before = graph.make("state", (), name, "memory")
        arguments = (*nodes, before)
        begin = graph.make("learned", (nodes[0],), (spec.name, "memory"), "memory")
        after = graph.make("learned", arguments, (spec.name, "memory"), "memory") if spec.memory else before
        memory = {name: (begin, after)}
    said = {
        output: graph.make("learned", arguments, (spec.name, output), kind) for output, kind in spec.outputs.items()
    }
    return Call(spec, nodes, memory, said)
