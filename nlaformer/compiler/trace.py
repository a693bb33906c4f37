"""Tracing: the methods of a program, run once on nodes."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nlaformer.compiler.fresh import fillable
from nlaformer.compiler.graph import AXES, KINDS, Graph, Node, reachable
from nlaformer.compiler.learned import Call
from nlaformer.compiler.places import Place
from nlaformer.compiler.refusals import EntriesWanted, RefusedError
from nlaformer.compiler.values import Value
from nlaformer.errors import CompileError
from nlaformer.program.data import ProgramGraph
from nlaformer.program.hidden import attributes_of_class, changes, memory_of
from nlaformer.program.ir import Node as StateNode
from nlaformer.program.language import Program
from nlaformer.program.learned import Learned, LowRank
from nlaformer.program.trace import trace as graph_of

# The name of what finish returns, beside the states; no state can have it, since no method could ask for it.
ANSWER = "finish()"


@dataclass(frozen=True)
class TracedProgram:
    """A program as a graph: its state before, at and after a step, the answer, the residual and its scale, if any.

    ``problems`` lists what cannot be compiled, ``changed`` what the program changes beside its states,
    ``learned`` the calls of its learned parts. ``graph`` is what the front end of ``program/`` made, if it did.
    """

    program: Program
    inputs: dict[str, Node]
    start: dict[str, Node]
    state: dict[str, Node]
    step: dict[str, Node]
    answer: Node
    residual: Node | None
    scale: Node | None
    problems: tuple[str, ...]
    changed: tuple[str, ...]
    learned: tuple[Call, ...] = ()
    graph: ProgramGraph | None = None

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """All nodes of start, step and answer, arguments first."""
        return reachable((*self.start.values(), *self.step.values(), self.answer))

    @property
    def uses_torch(self) -> bool:
        """Whether the methods call functions of torch, which take tensors alone."""
        return self.answer.graph.uses_torch if self.graph is None else self.graph.uses_torch


def _signature(method: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    except ValueError:  # some of Python's own callables have no signature
        return []


def parameters(method: Callable[..., Any]) -> list[str]:
    """The names a method of a program asks for."""
    return [p.name for p in _signature(method)]


def trace_program(program: Program, n: int | None = None) -> TracedProgram:
    """A traced program; what this front end refuses and that of ``program/`` takes, in the nodes of the latter."""
    refused: CompileError | None = None
    try:
        traced = _traced_program(program, n)
    except CompileError as error:
        refused = error
    if n is not None and (refused is not None or traced.problems):
        with contextlib.suppress(CompileError):
            return _of_graph(program, graph_of(program, n))
    if refused is not None:
        raise refused
    return traced


def _of_graph(program: Program, graph: ProgramGraph) -> TracedProgram:
    """A graph of ``program/`` as the rest of the compiler takes it: without learned parts, in arrays of size n."""
    of_size = ((), (graph.n,), (graph.n, graph.n))
    made: dict[str, Any] = {**graph.step, ANSWER: graph.answer}
    if graph.parts or any(node.shape not in of_size for node in made.values()):
        raise CompileError(f"{program.name} has states of other sizes than n = {graph.n}")
    state: dict[str, Any] = {name: StateNode("state", (), name, v.shape, v.line, False) for name, v in made.items()}
    state |= {node.extra: node for node in reachable(made.values()) if node.op == "state"}
    given = {name: state[name] for name in graph.step}
    start, step, ends = (dict[str, Any](each) for each in (graph.start, graph.step, {"answer": graph.answer}))
    ends |= {"residual": graph.residual, "scale": graph.scale}
    inputs: dict[str, Any] = dict(graph.inputs)
    return TracedProgram(program, inputs, start, given, step, **ends, problems=(), changed=(), graph=graph)


def _traced_program(program: Program, n: int | None = None) -> TracedProgram:
    """Run the methods on traced values and collect the problems; CompileError at once where the state is not known.

    With ``n``, the size of the systems, ``len(b)`` and arrays of constants are known to fit. The methods are
    run again with arrays that take traced values (``fresh.py``) where a line takes a slice, which ends the first run
    (``EntriesWanted``). They are also run again where a value stood in the place of a number, which is a problem of the
    first run: the second counts if it has fewer.
    """
    tracer = _Tracer(program, n)
    first: TracedProgram | CompileError
    try:
        first = _traced(tracer)
    except EntriesWanted:
        return _traced(_Tracer(program, n, fills=True))
    except CompileError as error:
        first = error
    if tracer.graph.numbers_wanted and n is not None:
        again = _Tracer(program, n, fills=True)
        try:
            second = _traced(again)
            if len(second.problems) < len(tracer.graph.problems):
                return second
        except CompileError as error:
            if len(again.graph.problems) < len(tracer.graph.problems):
                raise error from None
    if isinstance(first, CompileError):
        raise first
    return first


def _traced(tracer: _Tracer) -> TracedProgram:
    program, inputs = tracer.program, tracer.inputs
    start = tracer.states("start", inputs)
    state = {name: tracer.state(name, node) for name, node in start.items()}
    step = tracer.states("step", inputs | state)
    tracer.compare(start, step)
    if all(node.kind == "scalar" for node in inputs.values()):
        tracer.refuse("start", "no method asks for A, b or x0, or for a further vector or matrix; there is no size")
    if not start or start.keys() != step.keys():
        refuse(program, tracer.graph.problems)
    answer = tracer.value("finish", inputs | state)
    answer = next(iter(state.values())) if answer is None else answer
    residual, scale = _judgement(tracer, answer)
    problems, changed = tuple(tracer.graph.problems), tuple(sorted(tracer.changed))
    learned = tuple(tracer.graph.learned.values())
    return TracedProgram(program, inputs, start, state, step, answer, residual, scale, problems, changed, learned)


class _Tracer:
    """Calls the methods of a program with traced values and notes what is wrong with what they ask for and return."""

    def __init__(self, program: Program, n: int | None, fills: bool = False):
        attributes = attributes_of_class(program, Program) | vars(program)
        _name_parts(program, attributes)
        arrays = {
            id(v): name for name, v in attributes.items() if isinstance(v, (np.ndarray, torch.Tensor, list, tuple))
        }
        self.graph, self.program, self.fills = Graph(n, attributes=arrays), program, fills
        self.changed: set[str] = set()  # what methods changed beside the states
        try:
            self.methods = {
                name: getattr(program, name) for name in ("start", "step", "finish", "residual", "residual_scale")
            }
        except Exception as error:  # of a property
            raise CompileError(f"{program.name}: a method cannot be read: {type(error).__name__}: {error}") from error
        blocks = [self.methods[name] for name in ("start", "step", "finish")]
        asked = {name for method in blocks if callable(method) for name in parameters(method)}
        # Scalars last: the first input tells the size.
        kinds = dict(sorted((KINDS | _declared(program)).items(), key=lambda item: item[1] == "scalar"))
        self.inputs = {name: self.graph.make("input", (), name, kind) for name, kind in kinds.items() if name in asked}

    def given(self, method: str) -> bool:
        """Whether the user's class has a method of its own."""
        return getattr(self.methods[method], "__func__", None) is not getattr(Program, method)

    def refuse(self, method: str, message: str) -> Node:
        return self.graph.refuse(message, None, self.place(method))

    def state(self, name: str, start: Node) -> Node:
        """The state before a step; where start could not be traced and its kind is not known, neither can this."""
        return self.graph.make("state", (), name, start.kind) if start.kind else start

    def place(self, method: str) -> Place:
        """The first line of a method; of the class, where it has none."""
        found = self.methods[method]
        while isinstance(found, functools.partial):
            found = found.func
        code = getattr(inspect.unwrap(found), "__code__", None) if self.given(method) else None
        if code is not None:
            return Place(code.co_filename, code.co_firstlineno)
        kind = type(self.program)
        try:
            return Place(inspect.getsourcefile(kind) or kind.__name__, inspect.getsourcelines(kind)[1])
        except (OSError, TypeError):
            return Place(kind.__name__, 0)

    def call(self, method: str, known: dict[str, Node]) -> Any:
        """What a method returns; None if it raised or is no method."""
        found = self.methods[method]
        if not callable(found):
            self.refuse(method, f"{method} is {found!r:.40}; it must be a method, def {method}(self, ...)")
            return None
        if method in ("start", "step") and not self.given(method):
            self.refuse(method, f"there is no {method}; write def {method}(self, ...) that returns the state by name")
            return None
        # Under *args and **kwargs nothing can be given by name.
        if unnamed := [str(p) for p in _signature(found) if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]:
            self.refuse(
                method,
                f"{method} takes {' and '.join(unnamed)}; it must name what it asks for: "
                f"def {method}(self, {', '.join(known)}). A decorator keeps the names with functools.wraps",
            )
            return None
        arguments: dict[str, Any] = {}
        self.graph.method = method
        for name in parameters(found):
            M = LowRank.from_states(name, {each: Value(node) for each, node in known.items()})
            node = known[name] if name in known else self.graph.refused()
            arguments[name] = M or Value(node)
            # If start could not be traced, the state is not known, and nothing is wrong with asking for it.
            if M is None and name not in known and (method == "start" or known.keys() - self.inputs.keys()):
                self.refuse(method, f"{method} asks for {name!r}; it may ask for {', '.join(known)}")
        before, memory = len(self.graph.problems), memory_of(self.program, Program)
        try:
            with fillable(self.graph) if self.fills else contextlib.nullcontext():
                result = found(**arguments)
            self._refuse_changed_inputs(method, arguments)
            return result
        except Exception as error:
            # What goes wrong after a refused value may be its consequence.
            if len(self.graph.problems) == before:
                message = f"{type(error).__name__}: {error}"
                if isinstance(error, AssertionError):
                    message = f"an assertion that does not hold while the program is traced: omit it. {error}".strip()
                if "read-only" in message:
                    message += ". Into a part of an array, write p[i] = s or p[:] = v"
                self.graph.refuse(message, None, _place_of(error, self.place(method)))
            return None
        finally:
            self.changed.update(changes(memory, memory_of(self.program, Program)))

    def _refuse_changed_inputs(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Refuse an input that start or step changes in place, if the next call would see the change in NumPy."""
        if method not in ("start", "step"):
            return
        for name in self.inputs.keys() & arguments.keys():
            next_calls = [self.methods[call] for call in ("step", "finish") if callable(self.methods[call])]
            if arguments[name].node is not self.inputs[name] and any(name in parameters(call) for call in next_calls):
                self.refuse(
                    method,
                    f"{method} changes the input {name} in place; weights keep what a run is given. Write {name} = "
                    f"{name}.copy() first, or, if later steps are to see the change, return it as a state",
                )

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
        for key in result:
            if not key.isidentifier():
                self.refuse(method, f"{method} returns a state named {key!r:.40}; choose a name that Python takes")
        for key in result.keys() & (KINDS | _declared(self.program)).keys():
            self.refuse(method, f"{method} returns a state named {key!r}, the name of an input; choose another")
        parts = ((value.states(key) if isinstance(value, LowRank) else {key: value}) for key, value in result.items())
        return {key: self._node(value, method) for part in parts for key, value in part.items()}

    def _node(self, value: Any, method: str) -> Node:
        if isinstance(value, (list, tuple)) and any(isinstance(entry, Value) for entry in value):
            return self.refuse(method, f"{method} returns a {type(value).__name__} of values; write np.array(...)")
        try:
            return self.graph.node(value)
        except RefusedError as refusal:
            return self.graph.refuse(str(refusal), refusal.kind, self.place(method))

    def value(self, method: str, known: dict[str, Node]) -> Node | None:
        """The value a method returns; None, and a problem noted, if it is not a traced value."""
        before = len(self.graph.problems)
        result = self.call(method, known)
        if isinstance(result, Value) or (self.fills and isinstance(result, np.ndarray) and result.dtype == object):
            return self._node(result, method)
        if len(self.graph.problems) == before:
            self.refuse(
                method, f"{method} returns {result!r:.40}; it must return a value computed from what it asks for"
            )
        return None

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
            if "refused" not in (start[name].op, step[name].op) and start[name].kind != step[name].kind:
                kinds = f"a {start[name].kind} in start and a {step[name].kind} in step"
                self.refuse("step", f"the state {name!r} is {kinds}")


def _judgement(tracer: _Tracer, answer: Node) -> tuple[Node | None, Node | None]:
    """The residual and its scale as graphs of the answer; they are evaluated beside the transformer, not compiled."""
    x = tracer.state(ANSWER, answer)
    known = tracer.inputs | {"x": x}
    residual: Node | None
    if tracer.methods["residual"] is None:  # the answer is no solution of A x = b, the class says
        if tracer.given("residual_scale"):
            tracer.refuse("residual_scale", "residual_scale beside residual = None; omit one of them")
        return None, None
    if tracer.given("residual"):
        residual = tracer.value("residual", known)
    else:
        # b - A x makes sense for a vector, if the program has A and b at all.
        fits = {"A", "b"} <= tracer.inputs.keys() and answer.kind == "vector"
        A, b = (Value(tracer.inputs[name]) if fits else None for name in ("A", "b"))
        residual = (b - A @ Value(x)).node if A is not None and b is not None else None
    return residual, tracer.value("residual_scale", known) if tracer.given("residual_scale") else None


def _name_parts(program: Program, attributes: Mapping[str, Any]) -> None:
    """Give every learned part the name of its attribute. One part under two names would be one network for both."""
    names: dict[int, str] = {}
    for name, value in attributes.items():
        if isinstance(value, Learned):
            if other := names.get(id(value)):
                raise CompileError(
                    f"{program.name}: {other} and {name} are one nf.Learned object, so they would be one network; "
                    f"write {name} = nf.Learned({value.gives!r}) for a second one, or keep one of the names"
                )
            names[id(value)] = value.name = name


def _declared(program: Program) -> dict[str, str]:
    """The further inputs of a program, with their kinds."""
    declared = program.inputs
    if not isinstance(declared, Mapping) or any(kind not in AXES for kind in declared.values()):
        raise CompileError(
            f"{program.name}: inputs is {declared!r:.60}; expected names with their kinds, as in "
            'dict(C="matrix", lower="vector", mu="scalar")'
        )
    for name in declared:
        if not isinstance(name, str) or not name.isidentifier() or name in {*KINDS, "x", "iterations"}:
            raise CompileError(f"{program.name}: {name!r} cannot be the name of a further input; choose another")
    return dict(declared)


def _place_of(error: Exception, otherwise: Place) -> Place:
    """The last line of a traceback in the user's own file."""
    traceback, place = error.__traceback__, otherwise
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == otherwise.file:
            place = Place(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return place


def refuse(program: Program, problems: Sequence[str]) -> None:
    """Raise CompileError if there are problems."""
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise CompileError(f"{program.name} cannot be compiled: {count}.\n{listed}")


def refuse_changes(traced: TracedProgram) -> None:
    """Raise CompileError if the program changes anything but its states: it was traced with what was there then."""
    if traced.changed:
        raise CompileError(
            f"{traced.program.name} changes something while it runs that is not a state ({', '.join(traced.changed)}); "
            "weights cannot. Return what changes as a state; lists of iterates are in the run, random numbers can be "
            "constants of the class or further inputs"
        )


def refuse_open_parts(traced: TracedProgram) -> None:
    """Raise CompileError if the program has learned parts: nothing fills them in."""
    if traced.learned:
        names = ", ".join(call.spec.name for call in traced.learned)
        raise CompileError(
            f"{traced.program.name} has learned parts that are not filled in ({names}); train it with nf.train, and "
            "use the model that nf.load gives in its place"
        )
