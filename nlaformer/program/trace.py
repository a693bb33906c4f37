"""Tracing: the methods of a program, run once on arrays that note what is done with them.

The first problem that is met ends the tracing, with the line of the user and what to write instead.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import torch

from nlaformer.errors import CompileError
from nlaformer.program import numpy
from nlaformer.program.arrays import Array
from nlaformer.program.creation import traced_creation
from nlaformer.program.data import ANSWER, ProgramGraph
from nlaformer.program.hidden import attributes_of_class, changes, memory_of
from nlaformer.program.ir import AXES, Graph, Line, Node, RefusedError, reachable
from nlaformer.program.language import KINDS, Program
from nlaformer.program.learned import Learned, LowRank
from nlaformer.program.source import current_line

_BLOCKS = ("start", "step", "finish")


def trace(program: Program, n: int) -> ProgramGraph:
    """The graph of a program for systems of size n; CompileError with its first problem."""
    tracer = _Tracer(program, n)
    try:
        with torch.device("cpu"):  # constants are numbers, whatever the default device is
            return tracer.traced()
    except RefusedError as refusal:
        line, message = tracer.tracing.problem or (tracer.line("start"), str(refusal))
        raise CompileError(f"{program.name} cannot be compiled.\n  {line}\n    {message}") from None


def refuse_open_parts(graph: ProgramGraph) -> None:
    """Raise CompileError if the program has learned parts: nothing fills them in."""
    if graph.parts:
        names = ", ".join(part.name for part in graph.parts)
        raise CompileError(
            f"{graph.name} has learned parts that are not filled in ({names}); train it with nf.train, and "
            "use the model that nf.load gives in its place"
        )


def _signature(method: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    except ValueError:  # some of Python's own callables have no signature
        return []


def parameters(method: Callable[..., Any]) -> list[str]:
    """The names a method of a program asks for."""
    return [p.name for p in _signature(method)]


def inputs_of(program: Program) -> dict[str, str]:
    """The kinds of the inputs that a program asks for, by name; scalars last, since the first input tells the size."""
    return _inputs_of(program, _methods_of(program))


def _inputs_of(program: Program, methods: Mapping[str, Any]) -> dict[str, str]:
    asked = {name for each in _BLOCKS if callable(methods[each]) for name in parameters(methods[each])}
    kinds = sorted((KINDS | declared(program)).items(), key=lambda item: item[1] == "scalar")
    return {name: kind for name, kind in kinds if name in asked}


def _methods_of(program: Program) -> dict[str, Any]:
    try:
        return {name: getattr(program, name) for name in (*_BLOCKS, "residual", "residual_scale")}
    except Exception as error:  # of a property
        raise CompileError(f"{program.name}: a method cannot be read: {type(error).__name__}: {error}") from error


class _Tracer:
    """Calls the methods of a program with traced arrays; what they ask for and return is checked."""

    def __init__(self, program: Program, n: int):
        self.program, self.n = program, n
        attributes = attributes_of_class(program, Program) | vars(program)
        name_parts(program, attributes)
        self.tracing = numpy.tracing(Graph(current_line))
        arrays = (np.ndarray, torch.Tensor, list, tuple)
        self.tracing.names = {id(v): f"self.{name}" for name, v in attributes.items() if isinstance(v, arrays)}
        self.methods = _methods_of(program)
        self.changed: dict[str, str] = {}  # what a method changed beside the states, and which
        graph, kinds = self.tracing.graph, _inputs_of(program, self.methods)
        self.inputs = {name: graph.input(name, (n,) * AXES[kind]) for name, kind in kinds.items()}

    def traced(self) -> ProgramGraph:
        start = self.states("start", self.inputs)
        state = {name: self.tracing.graph.state(name, node.shape) for name, node in start.items()}
        known = self.inputs | state
        step = self.states("step", known)
        self.compare(start, step)
        if not any(node.shape for node in self.inputs.values()):
            no_size = "no method asks for A, b or x0, or for a further vector or matrix; there is no size"
            self.refuse("start", no_size)
        answer = self.value("finish", known)
        residual, scale = self.judgement(answer)
        self.refuse_memory()
        self.refuse_parts_in_vain((*start.values(), *step.values(), answer))
        parts = tuple(call.spec for call in self.tracing.learned.values())
        for call in self.tracing.learned.values():
            start |= {name: begin for name, (begin, _) in call.memory.items()}
            step |= {name: after for name, (_, after) in call.memory.items()}
        program = self.program
        flags = {"rectangular": program.rectangular, "positive_definite": program.positive_definite}
        flags["uses_torch"] = self.tracing.uses_torch
        return ProgramGraph(program.name, self.n, self.inputs, start, step, answer, residual, scale, parts, **flags)

    def given(self, method: str) -> bool:
        """Whether the user's class has a method of its own."""
        return getattr(self.methods[method], "__func__", None) is not getattr(Program, method)

    def refuse(self, method: str, message: str) -> NoReturn:
        self.tracing.refuse(message, self.line(method))

    def line(self, method: str) -> Line:
        """The first line of a method; of the class, where it has none."""
        found = self.methods[method]
        while isinstance(found, functools.partial):
            found = found.func
        code = getattr(inspect.unwrap(found), "__code__", None) if self.given(method) else None
        if code is not None:
            return Line.at(code.co_filename, code.co_firstlineno)
        kind = type(self.program)
        try:
            return Line.at(inspect.getsourcefile(kind) or kind.__name__, inspect.getsourcelines(kind)[1])
        except (OSError, TypeError):
            return Line(kind.__name__)

    def call(self, method: str, known: Mapping[str, Node]) -> Any:
        """What a method returns."""
        found = self.methods[method]
        if not callable(found):
            self.refuse(method, f"{method} is {found!r:.40}; it must be a method, def {method}(self, ...)")
        if method in ("start", "step") and not self.given(method):
            self.refuse(method, f"there is no {method}; write def {method}(self, ...) that returns the state by name")
        # Under *args and **kwargs nothing can be given by name.
        if unnamed := [str(p) for p in _signature(found) if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]:
            self.refuse(
                method,
                f"{method} takes {' and '.join(unnamed)}; it must name what it asks for: "
                f"def {method}(self, {', '.join(known)}). A decorator keeps the names with functools.wraps",
            )
        arguments = {name: self.argument(method, name, known) for name in parameters(found)}
        self.tracing.method = method
        memory = memory_of(self.program, Program)
        try:
            with traced_creation(self.tracing):
                result = found(**arguments)
        except RefusedError as refusal:
            self.tracing.refuse(str(refusal))
        except Exception as error:
            self.tracing.refuse(self.what_is_wrong(error), _line_of(error, self.line(method)))
        if self.tracing.problem is not None:  # and the method went on
            raise RefusedError(self.tracing.problem[1])
        self.refuse_changed_inputs(method, arguments)
        self.changed |= dict.fromkeys(changes(memory, memory_of(self.program, Program)), method)
        return result

    def argument(self, method: str, name: str, known: Mapping[str, Node]) -> Any:
        arrays = {each: Array(self.tracing, node) for each, node in known.items()}
        if (M := LowRank.from_states(name, arrays)) is not None:
            return M
        if name in arrays:
            return arrays[name]
        states = [each for each in known if each not in self.inputs]
        if method == "finish" and not self.given(method) and states:
            self.refuse(
                method,
                f"no state is called x, so the answer must be named: write def finish(self, {states[0]}): return "
                f"{states[0]}",
            )
        self.refuse(method, f"{method} asks for {name!r}; it may ask for {', '.join(known)}")

    def what_is_wrong(self, error: Exception) -> str:
        """An exception that a method raised, in words."""
        message = f"{type(error).__name__}: {error}"
        if isinstance(error, AssertionError):
            return f"an assertion that does not hold while the program is traced: omit it. {error}".strip()
        if isinstance(error, AttributeError) and error.obj is self.program:
            return f"{message}. Write {error.name} = ... in the class"
        if "read-only" in message:
            return f"{message}. Into a part of an array, write p[i] = s or p[:] = v; NumPy's diagonals are read-only"
        return message

    def refuse_memory(self) -> None:
        """Refuse what methods change beside the states."""
        if self.changed:
            method = next(reversed(self.changed.values()))
            self.refuse(
                method,
                f"{method} changes something that is not a state ({', '.join(self.changed)}); weights cannot. Return "
                "what changes as a state; lists of iterates are in the run, random numbers can be constants of the "
                "class or further inputs",
            )

    def refuse_parts_in_vain(self, ends: Iterable[Node]) -> None:
        """Refuse a learned part of which nothing is made."""
        made = set(reachable(ends))
        for call in self.tracing.learned.values():
            said = tuple(call.said.values())
            if said and made.isdisjoint(said):
                vain = "is called, but nothing is made of what it gives: return it, or make a state of it"
                self.tracing.refuse(f"{call.spec.name} {vain}", said[0].line)

    def refuse_changed_inputs(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Refuse an input that a method changes in place, if the next call would see the change in NumPy."""
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

    def states(self, method: str, known: Mapping[str, Node]) -> dict[str, Node]:
        """The state a method returns, by name."""
        result = self.call(method, known)
        if not isinstance(result, dict) or not result or not all(isinstance(key, str) for key in result):
            self.refuse(
                method, f"{method} returns {type(result).__name__}; it must return its state by name, dict(x=...)"
            )
        for key in result:
            if not key.isidentifier():
                self.refuse(method, f"{method} returns a state named {key!r:.40}; choose a name that Python takes")
        for key in result.keys() & (KINDS | declared(self.program)).keys():
            self.refuse(method, f"{method} returns a state named {key!r}, the name of an input; choose another")
        parts = ((value.states(key) if isinstance(value, LowRank) else {key: value}) for key, value in result.items())
        return {key: self.node(value, method, key) for part in parts for key, value in part.items()}

    def node(self, value: Any, method: str, name: str) -> Node:
        if isinstance(value, (list, tuple)) and any(isinstance(entry, Array) for entry in value):
            self.refuse(method, f"{method} returns a {type(value).__name__} of values; write np.array(...)")
        try:
            node = self.tracing.node(value)
        except RefusedError as refusal:
            self.refuse(method, str(refusal))
        if node.ndim > 2:
            self.refuse(method, f"{name} has the shape {node.shape}; a state is a number, a vector or a matrix")
        return node

    def compare(self, start: Mapping[str, Node], step: Mapping[str, Node]) -> None:
        """Both methods must return the same names and shapes."""
        for name in sorted(start.keys() ^ step.keys()):
            here, there = ("start", "step") if name in start else ("step", "start")
            self.refuse(
                "step", f"{here} returns the state {name!r} and {there} does not; both must return the same names"
            )
        for name in sorted(start):
            if start[name].shape != step[name].shape:
                shapes = f"{_shape(start[name])} in start and {_shape(step[name])} in step"
                self.refuse("step", f"the state {name!r} is {shapes}")

    def value(self, method: str, known: Mapping[str, Node]) -> Node:
        """The array a method returns."""
        result = self.call(method, known)
        if not isinstance(result, Array):
            self.refuse(
                method, f"{method} returns {result!r:.40}; it must return a value computed from what it asks for"
            )
        return self.node(result, method, f"what {method} returns")

    def judgement(self, answer: Node) -> tuple[Node | None, Node | None]:
        """The residual and its scale, of the answer; they are not compiled, but evaluated beside the weights."""
        x = self.tracing.graph.state(ANSWER, answer.shape)
        known = {**self.inputs, "x": x}
        scaled = self.given("residual_scale")
        if self.methods["residual"] is None:  # the answer is no solution of A x = b, the class says
            if scaled:
                self.refuse("residual_scale", "residual_scale beside residual = None; omit one of them")
            return None, None
        residual: Node | None = None
        if self.given("residual"):
            residual = self.value("residual", known)
        elif {"A", "b"} <= self.inputs.keys() and answer.shape == self.inputs["b"].shape:
            A, b, answered = (Array(self.tracing, node) for node in (self.inputs["A"], self.inputs["b"], x))
            residual = (b - A @ answered).node
        return residual, self.value("residual_scale", known) if scaled else None


def _shape(node: Node) -> str:
    kind = list(AXES)[node.ndim]
    return f"a {kind}" + (f" of shape {node.shape}" if node.shape else "")


def name_parts(program: Program, attributes: Mapping[str, Any]) -> None:
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


def declared(program: Program) -> dict[str, str]:
    """The further inputs of a program, with their kinds."""
    inputs = program.inputs
    if not isinstance(inputs, Mapping) or any(kind not in AXES for kind in inputs.values()):
        raise CompileError(
            f"{program.name}: inputs is {inputs!r:.60}; expected names with their kinds, as in "
            'dict(C="matrix", lower="vector", mu="scalar")'
        )
    for name in inputs:
        if not isinstance(name, str) or not name.isidentifier() or name in {*KINDS, "x", "iterations"}:
            raise CompileError(f"{program.name}: {name!r} cannot be the name of a further input; choose another")
    return dict(inputs)


def _line_of(error: Exception, otherwise: Line) -> Line:
    """The last line of a traceback in the user's own file."""
    traceback, line = error.__traceback__, otherwise
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == otherwise.file:
            line = Line.at(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return line
