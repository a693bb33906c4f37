"""Tracing: the three methods of a program, run once on nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nlaformer.compiler.graph import Graph, Node, Place
from nlaformer.compiler.language import Program
from nlaformer.errors import CompileError

_INPUT_KINDS = {"A": "matrix", "b": "vector", "x0": "vector"}


@dataclass(frozen=True)
class Trace:
    """A traced program: its state before, at and after a step, the answer, and the residual if it can be told."""

    program: Program
    graph: Graph
    inputs: dict[str, Node]
    start: dict[str, Node]
    state: dict[str, Node]
    step: dict[str, Node]
    answer: Node
    residual: Node | None

    @property
    def needs(self) -> list[str]:
        """The inputs that start, step and finish name."""
        return list(self.inputs)


def parameters(method: Callable[..., Any]) -> list[str]:
    """The names a method of a program asks for."""
    return [name for name in inspect.signature(method).parameters if name != "self"]


def trace(program: Program, also: Callable[[Trace], list[str]] = lambda traced: []) -> Trace:
    """Run the three methods on nodes. Raises CompileError with all problems, those that ``also`` finds included."""
    tracer = Tracer(program)
    inputs = tracer.inputs
    start = tracer.states("start", inputs)
    state = {name: tracer.graph.make("state", (), name, node.kind) for name, node in start.items()}
    step = tracer.states("step", inputs | state)
    answer = tracer.call("finish", inputs | state) if state else None
    tracer.compare(start, step)
    residual = _trace_residual(program, tracer.graph, inputs, answer)
    if not step:
        refuse_all(program, tracer.graph.problems)
    if not isinstance(answer, Node):
        if answer is not None:
            tracer.refuse("finish", f"finish returns {answer!r:.40}; it must return a value computed from the state")
        answer = next(iter(state.values()))
    traced = Trace(program, tracer.graph, inputs, start, state, step, answer, residual)
    refuse_all(program, [*tracer.graph.problems, *also(traced)])
    return traced


class Tracer:
    """Calls the methods of a program with nodes and notes what is wrong with what they ask for and return."""

    def __init__(self, program: Program):
        self.graph = Graph()
        self.methods = {name: getattr(program, name) for name in ("start", "step", "finish")}
        asked = {name for method in self.methods.values() for name in parameters(method)}
        self.inputs = {
            name: self.graph.make(name, (), name, kind) for name, kind in _INPUT_KINDS.items() if name in asked
        }

    def refuse(self, method: str, message: str) -> Node:
        return self.graph.refuse(message, self.graph.make("constant", (), 1.0, "scalar"), self.place(method))

    def place(self, method: str) -> Place:
        code = inspect.unwrap(self.methods[method]).__code__
        return Place(code.co_filename, code.co_firstlineno)

    def call(self, method: str, known: dict[str, Node]) -> Any:
        """What a method returns, or None if it raised."""
        arguments = {}
        for name in parameters(self.methods[method]):
            arguments[name] = known[name] if name in known else self.graph.make("state", (), name, "vector")
            # If start could not be traced, the state is not known, and nothing is wrong with asking for it.
            if name not in known and (method == "start" or known.keys() - self.inputs.keys()):
                self.refuse(method, f"{method} asks for {name!r}; it may ask for {', '.join(known)}")
        try:
            return self.methods[method](**arguments)
        except Exception as error:
            place = _place_of(error, self.place(method))
            self.graph.refuse(f"{type(error).__name__}: {error}", self.graph.node(1.0), place)
            return None

    def states(self, method: str, known: dict[str, Node]) -> dict[str, Node]:
        """The state a method returns, by name."""
        before = len(self.graph.problems)
        result = self.call(method, known)
        if result is None and len(self.graph.problems) > before:
            return {}
        if not isinstance(result, dict) or not result or not all(isinstance(key, str) for key in result):
            self.refuse(
                method, f"{method} returns {type(result).__name__}; it must return its state by name, dict(x=...)"
            )
            return {}
        for key in result.keys() & _INPUT_KINDS.keys():
            self.refuse(method, f"{method} returns a state named {key!r}, the name of an input; choose another")
        return {key: self.graph.node(value) for key, value in result.items()}

    def compare(self, start: dict[str, Node], step: dict[str, Node]) -> None:
        """Both methods must return the same names and kinds."""
        if not start or not step:
            return
        for name in sorted(start.keys() ^ step.keys()):
            here, there = ("start", "step") if name in start else ("step", "start")
            self.refuse(
                "step", f"{here} returns the state {name!r} and {there} does not; both must return the same names"
            )
        for name in sorted(start.keys() & step.keys()):
            if start[name].kind != step[name].kind:
                kinds = f"a {start[name].kind} in start and a {step[name].kind} in step"
                self.refuse("step", f"the state {name!r} is {kinds}")


def _trace_residual(program: Program, graph: Graph, inputs: dict[str, Node], answer: Any) -> Node | None:
    """The residual as a graph of the answer; it is evaluated beside the transformer, not compiled."""
    default = type(program).residual is Program.residual
    names = ["A", "b", "x"] if default else parameters(program.residual)
    if not isinstance(answer, Node) or not set(names) <= inputs.keys() | {"x"}:
        return None
    x = graph.make("state", (), "answer", answer.kind)
    problems = list(graph.problems)
    known = inputs | {"x": x}
    try:
        residual = program.residual(*(known[name] for name in names))
    except Exception:
        residual = None
    if graph.problems != problems and default:
        # The default residual, b - A x, makes no sense for this answer.
        graph.problems[:] = problems
        return None
    return residual if isinstance(residual, Node) else None


def _place_of(error: Exception, otherwise: Place) -> Place:
    """The last line of a traceback in the user's own file."""
    traceback, place = error.__traceback__, otherwise
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == otherwise.file:
            place = Place(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return place


def _message(program: Program, problems: Sequence[str]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return f"{program.name} cannot be compiled: {count}.\n" + "\n".join(f"  {problem}" for problem in problems)


def refuse_all(program: Program, problems: Sequence[str]) -> None:
    """Raise CompileError if there are problems."""
    if problems:
        raise CompileError(_message(program, problems))
