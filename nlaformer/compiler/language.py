"""The language: an iterative method written as one writes NumPy, traced into a graph.

A ``Program`` has three methods, the three blocks of eq. (TFstructure): ``start`` -> pre block, ``step`` -> loop block,
``finish`` -> post block. They run as they stand on NumPy or torch arrays, which is the reference (``Program.run``),
and on ``Node`` objects, which record a graph (``trace``). Nodes are hash-consed: equal expressions are one node.

Tracing never stops at the first mistake: what cannot be compiled is noted with the line it stands on, and the trace
goes on with a node of the likely kind, so that ``CompileError`` can list everything at once.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nlaformer.errors import CompileError

_PACKAGE = str(Path(__file__).parent)
_INPUT_KINDS = {"A": "matrix", "b": "vector", "x0": "vector"}


class Program:
    """An iterative method. Write ``start`` and ``step``; ``finish`` and ``residual`` may be left out.

    ``start`` takes any of A, b, x0 and returns the state by name; ``step`` takes any of A, b and the state and
    returns the new state; ``finish`` takes any of A, b and the state and returns the answer, the state x if it is left
    out. ``residual`` takes any of A, b, x; its norm is what a run reports and judges convergence by. Attributes of the
    class are constants: they go into the weights.

    ``positive_definite = True`` declares A symmetric positive definite: the compiler may then take ``dot(v, A @ v)``
    and ``diag(A)`` to be positive, and a run whose data say otherwise ends in a status that says so.

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> class Jacobi(nf.Program):
    ...     def start(self, x0):
    ...         return dict(x=x0)
    ...
    ...     def step(self, A, b, x):
    ...         return dict(x=x + (b - A @ x) / nf.diag(A))
    >>> A, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    >>> Jacobi().run(A, b, iterations=40).x[-1].round(6)
    array([0.090909, 0.636364])
    """

    positive_definite = False

    def start(self, *inputs: Any) -> dict[str, Any]:
        raise NotImplementedError("a Program needs a start method that returns its state by name")

    def step(self, *state: Any) -> dict[str, Any]:
        raise NotImplementedError("a Program needs a step method that returns the new state by name")

    def finish(self, x: Any) -> Any:
        return x

    def residual(self, *values: Any) -> Any:
        A, b, x = values
        return b - A @ x

    @property
    def name(self) -> str:
        return type(self).__name__

    def run(self, A: Any = None, b: Any = None, x0: Any = None, iterations: int = 30) -> Any:
        """The reference: the program itself on NumPy or torch arrays, system by system, no transformer."""
        from nlaformer.compiler.reference import run_reference

        return run_reference(self, A, b, x0, iterations)


def parameters(method: Callable[..., Any]) -> list[str]:
    """The names a method of a program asks for."""
    return [name for name in inspect.signature(method).parameters if name != "self"]


# --- the graph -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A line of the user's class."""

    file: str
    line: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        name = Path(self.file).name
        return f"{name}, line {self.line}" + (f": {text}" if text else "")


class Node:
    """A value in a traced program. ``kind`` is scalar, vector or matrix; ``extra`` a constant's number or a name."""

    __array_priority__ = 1000.0
    __hash__ = object.__hash__

    def __init__(self, graph: Graph, op: str, args: tuple[Node, ...], extra: Any, kind: str, place: Place):
        self.graph, self.op, self.args, self.extra, self.kind, self.place = graph, op, args, extra, kind, place

    def __repr__(self) -> str:
        return describe(self)

    # What can be compiled.

    def __add__(self, other: Any) -> Node:
        return self.graph.add(self, other)

    def __radd__(self, other: Any) -> Node:
        return self.graph.add(other, self)

    def __sub__(self, other: Any) -> Node:
        return self.graph.add(self, self.graph.multiply(-1.0, other))

    def __rsub__(self, other: Any) -> Node:
        return self.graph.add(other, self.graph.multiply(-1.0, self))

    def __neg__(self) -> Node:
        return self.graph.multiply(-1.0, self)

    def __pos__(self) -> Node:
        return self

    def __mul__(self, other: Any) -> Node:
        return self.graph.multiply(self, other)

    def __rmul__(self, other: Any) -> Node:
        return self.graph.multiply(other, self)

    def __truediv__(self, other: Any) -> Node:
        return self.graph.divide(self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return self.graph.divide(other, self)

    def __matmul__(self, other: Any) -> Node:
        return self.graph.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Node:
        return self.graph.matmul(other, self)

    def __pow__(self, power: Any) -> Node:
        if power == 0.5:
            return self.graph.function("sqrt", self)
        if isinstance(power, int) and 1 <= power <= 8 and self.kind != "matrix":
            result = self
            for _ in range(power - 1):
                result = self.graph.multiply(result, self)
            return result
        return self.graph.refuse(
            f"the power {power!r}; write a whole number from 1 to 8, 0.5, or nf.exp(p * nf.log(v))", self
        )

    @property
    def T(self) -> Node:
        if self.kind != "matrix":
            return self.graph.refuse("the transpose of a vector means nothing; leave .T away", self)
        if self.op != "A":
            return self.graph.refuse("only A itself can be transposed; write A.T", self)
        return self.graph.make("transpose", (self,), None, "matrix")

    # What cannot, noted and answered so that the trace can go on.

    def _compare(self, other: Any) -> bool:
        place = self.graph.place()
        self.graph.refuse(
            "a decision that depends on the data; the weights are fixed, so write the step without it "
            "(run() stops being useful at convergence by itself: further loops leave the answer in place)",
            self,
        )
        # True once: an `if` is traced through its first branch, a `while` ends.
        self.graph.visits[place] = self.graph.visits.get(place, 0) + 1
        return self.graph.visits[place] == 1

    __lt__ = __le__ = __gt__ = __ge__ = _compare

    def __eq__(self, other: object) -> bool:
        return self is other or self._compare(other)

    def __ne__(self, other: object) -> bool:
        return self is not other and self._compare(other)

    def __bool__(self) -> bool:
        return self._compare(None)

    def __float__(self) -> float:
        self.graph.refuse(
            "an ordinary number is wanted here, but the value is known only when the weights run; "
            f"write it with + - * / @ and {_functions()}",
            self,
        )
        return 1.0

    def __int__(self) -> int:
        return int(self.__float__())

    def __index__(self) -> int:
        return self.__int__()

    def __abs__(self) -> Node:
        return self.graph.refuse("abs(v); write nf.sqrt(nf.positive(v * v))", self)

    def __getitem__(self, index: Any) -> Node:
        node = self.graph.refuse("single entries cannot be taken; write whole vectors, or nf.dot with a vector", self)
        return self.graph.make("zeros", (), None, "scalar") if self.kind == "vector" else node

    def __iter__(self) -> Any:
        self.graph.refuse("a loop over the entries of a value; write whole vectors", self)
        return iter(())

    def __len__(self) -> int:
        self.graph.refuse("len(v); the size is n of nf.compile, give it to the program as a constant", self)
        return 1

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        self.graph.refuse(f"a NumPy function; write it with + - * / @ and {_functions()}", self)
        return np.ones({"scalar": (), "vector": (2,), "matrix": (2, 2)}[self.kind])

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Node:
        own = {"add": Node.__radd__, "subtract": Node.__rsub__, "multiply": Node.__rmul__, "divide": Node.__rtruediv__}
        own |= {"true_divide": Node.__rtruediv__, "matmul": Node.__rmatmul__}
        if ufunc.__name__ in own and method == "__call__" and isinstance(inputs[1], Node):
            return own[ufunc.__name__](inputs[1], inputs[0])
        return self.graph.refuse(f"np.{ufunc.__name__}; write it with + - * / @ and {_functions()}", self)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Node:
        return self.graph.refuse(f"np.{function.__name__}; write it with + - * / @ and {_functions()}", self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Node:
        node = next(argument for argument in args if isinstance(argument, Node))
        name = getattr(function, "__name__", "function")
        return node.graph.refuse(f"torch.{name}; write it with + - * / @ and {_functions()}", node)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.graph.refuse(f".{name}; a traced value has + - * / @, .T on A, and {_functions()}", self)
        return lambda *args, **kwargs: self


@dataclass
class Graph:
    """The nodes of one program and the problems found while tracing it."""

    nodes: dict[tuple[Any, ...], Node] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    visits: dict[Place, int] = field(default_factory=dict)

    def make(self, op: str, args: tuple[Node, ...], extra: Any, kind: str) -> Node:
        key = (op, *map(id, args), extra, kind)
        if key not in self.nodes:
            self.nodes[key] = Node(self, op, args, extra, kind, self.place())
        return self.nodes[key]

    def place(self) -> Place:
        """The innermost line outside this file: where the user wrote it."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        return Place(frame.f_code.co_filename, frame.f_lineno)

    def refuse(self, message: str, like: Node, place: Place | None = None) -> Node:
        """Note a problem; answer with a node of the same kind."""
        text = f"{place or self.place()}\n    {message}"
        if text not in self.problems:
            self.problems.append(text)
        return like

    def constant(self, value: Any) -> Node | None:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            return None
        return self.make("constant", (), float(value), "scalar")

    def node(self, value: Any, like: Node | None = None) -> Node:
        if isinstance(value, Node):
            return value
        constant = self.constant(value)
        if constant is None:
            constant = self.make("constant", (), 1.0, "scalar")
            self.refuse(
                f"a {type(value).__name__} ({value!r:.40}) among traced values; constants must be numbers", constant
            )
        elif not np.isfinite(constant.extra):
            self.refuse(f"the constant {constant.extra}; constants must be finite", constant)
        return constant

    def add(self, u: Any, v: Any) -> Node:
        u, v = self.node(u), self.node(v)
        if u.op == v.op == "constant":
            return self.make("constant", (), u.extra + v.extra, "scalar")
        for one, other in ((u, v), (v, u)):
            nothing = one.op == "constant" and one.extra == 0.0
            if nothing or (one.op == "zeros" and one.kind in (other.kind, "scalar")):
                return other
        if "matrix" in (u.kind, v.kind) and u.kind != v.kind:
            return self.refuse(
                f"a {u.kind} plus a {v.kind}; for a multiple of the identity write nf.identity_like(A)", u
            )
        return self.make("add", (u, v), None, "vector" if "vector" in (u.kind, v.kind) else u.kind)

    def multiply(self, u: Any, v: Any) -> Node:
        u, v = self.node(u), self.node(v)
        if v.op == "constant":
            u, v = v, u
        if u.op == "constant":
            if v.op == "constant":
                return self.make("constant", (), u.extra * v.extra, "scalar")
            if v.op == "multiply" and v.args[0].op == "constant":
                return self.multiply(u.extra * v.args[0].extra, v.args[1])
            if u.extra == 1.0:
                return v
        if u.op == "zeros" and v.kind in (u.kind, "scalar"):
            return u
        if v.op == "zeros" and u.kind in (v.kind, "scalar"):
            return v
        if "matrix" in (u.kind, v.kind) and "scalar" not in (u.kind, v.kind):
            return self.refuse(f"a {u.kind} times a {v.kind}, entry by entry; for the product write @", v)
        if v.kind == "scalar" and u.kind != "scalar":
            u, v = v, u
        return self.make("multiply", (u, v), None, v.kind)

    def divide(self, u: Any, v: Any) -> Node:
        u, v = self.node(u), self.node(v)
        if v.op == "constant":
            if v.extra == 0.0:
                return self.refuse("a division by the constant 0", u)
            return self.multiply(1.0 / v.extra, u)
        if v.op == "zeros":
            return self.refuse("a division by zeros", u)
        if v.kind == "matrix" or (u.kind == "matrix" and v.kind != "scalar"):
            return self.refuse(f"a {u.kind} divided by a {v.kind}; there is no inverse, write an iteration for it", u)
        return self.make("divide", (u, v), None, u.kind if v.kind == "scalar" else "vector")

    def matmul(self, u: Any, v: Any) -> Node:
        u, v = self.node(u), self.node(v)
        if (u.kind, v.kind) == ("vector", "vector"):
            return self.dot(u, v)
        if u.kind != "matrix" or v.kind == "scalar":
            fix = "write A.T @ v" if v.kind == "matrix" else "write * for a product with a scalar"
            return self.refuse(f"a {u.kind} @ a {v.kind}; {fix}", v if u.kind == "scalar" else u)
        if "zeros" in (u.op, v.op):
            return self.make("zeros", (), None, v.kind)
        return self.make("matmul", (u, v), None, v.kind)

    def dot(self, u: Any, v: Any) -> Node:
        u, v = self.node(u), self.node(v)
        scalar = self.make("constant", (), 1.0, "scalar")
        if u.kind != v.kind or u.kind == "scalar":
            return self.refuse(f"dot of a {u.kind} and a {v.kind}; both must be vectors", scalar)
        if u.kind == "matrix" and not (u is v and u.op == "A"):
            return self.refuse("dot of matrices; only nf.dot(A, A) and nf.norm(A) can be compiled", scalar)
        if "zeros" in (u.op, v.op):
            return self.make("zeros", (), None, "scalar")
        return self.make("dot", (u, v), None, "scalar")

    def function(self, name: str, v: Any) -> Node:
        v = self.node(v)
        if name == "zeros":
            return self.make("zeros", (), None, v.kind)
        if name == "identity":
            if v.kind != "matrix":
                return self.refuse(f"identity_like of a {v.kind}; write nf.identity_like(A)", v)
            return self.make("identity", (), None, "matrix")
        if name == "diag":
            if v.op != "A":
                vector = self.make("zeros", (), None, "vector")
                return self.refuse(f"diag of {describe(v)}; only nf.diag(A) can be compiled", vector)
            return self.make("diag", (v,), None, "vector")
        if v.kind == "matrix":
            return self.refuse(f"{name} of a matrix", v)
        return self.make(name, (v,), None, v.kind)


def describe(node: Node, depth: int = 3) -> str:
    """The expression, as it might be typed."""
    if node.op == "constant":
        return f"{node.extra:g}"
    if node.op in ("A", "b", "x0", "state"):
        return str(node.extra or node.op)
    if depth == 0:
        return "…"
    args = [describe(argument, depth - 1) for argument in node.args]
    if node.op == "transpose":
        return f"{args[0]}.T"
    symbol = {"add": " + ", "multiply": "*", "divide": "/", "matmul": " @ "}.get(node.op)
    if symbol is not None:
        return "(" + symbol.join(args) + ")" if node.op in ("add", "matmul") else symbol.join(args)
    return f"{node.op}({', '.join(args)})"


# --- functions that work on nodes and on arrays -------------------------------------------------------------------


def _functions() -> str:
    return "nf.dot, nf.norm, nf.diag, nf.sqrt, nf.exp, nf.log, nf.zeros_like, nf.identity_like, nf.positive"


def _graph(*values: Any) -> Graph | None:
    return next((value.graph for value in values if isinstance(value, Node)), None)


def _library(value: Any) -> Any:
    """The module whose functions fit an array."""
    if type(value).__module__.startswith("torch"):
        import torch

        return torch
    return np


def dot(u: Any, v: Any) -> Any:
    """The inner product of two vectors; of A with itself, the square of its Frobenius norm.

    >>> float(dot(np.array([1.0, 2.0]), np.array([3.0, 4.0])))
    11.0
    """
    graph = _graph(u, v)
    return graph.dot(u, v) if graph else (u * v).sum()


def norm(v: Any) -> Any:
    """The Euclidean norm of a vector, the Frobenius norm of A.

    >>> float(norm(np.array([3.0, 4.0])))
    5.0
    """
    return sqrt(dot(v, v))


def diag(A: Any) -> Any:
    """The diagonal of A as a vector.

    >>> diag(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [1.0, 4.0]
    """
    graph = _graph(A)
    return graph.function("diag", A) if graph else _library(A).diagonal(A)


def sqrt(v: Any) -> Any:
    """The square root, entry by entry; of a value whose sign the compiler can tell."""
    graph = _graph(v)
    return graph.function("sqrt", v) if graph else _library(v).sqrt(v)


def exp(v: Any) -> Any:
    """The exponential, entry by entry."""
    graph = _graph(v)
    return graph.function("exp", v) if graph else _library(v).exp(v)


def log(v: Any) -> Any:
    """The natural logarithm, entry by entry; of a value whose sign the compiler can tell."""
    graph = _graph(v)
    return graph.function("log", v) if graph else _library(v).log(v)


def zeros_like(v: Any) -> Any:
    """Zeros in the shape of v."""
    graph = _graph(v)
    return graph.function("zeros", v) if graph else _library(v).zeros_like(v)


def identity_like(A: Any) -> Any:
    """The identity matrix of A's size."""
    graph = _graph(A)
    if graph:
        return graph.function("identity", A)
    library = _library(A)
    return library.eye(A.shape[0], dtype=A.dtype) + library.zeros_like(A)


def positive(v: Any) -> Any:
    """V itself, with the promise that it is positive; a run in which it is not says so in its status."""
    graph = _graph(v)
    return graph.function("positive", v) if graph else v


# --- tracing -----------------------------------------------------------------------------------------------------


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


def trace(program: Program) -> Trace:
    """Run the three methods on nodes. Raises CompileError with all problems."""
    graph = Graph()
    methods = {name: getattr(program, name) for name in ("start", "step", "finish")}
    asked = {name: parameters(method) for name, method in methods.items()}
    named = [n for n in ("A", "b", "x0") if any(n in names for names in asked.values())]
    inputs = {name: graph.make(name, (), name, _INPUT_KINDS[name]) for name in named}
    state: dict[str, Node] = {}

    def call(name: str, known: dict[str, Node]) -> Any:
        method = methods[name]
        code = inspect.unwrap(method).__code__
        place = Place(code.co_filename, code.co_firstlineno)
        arguments = {}
        for parameter in asked[name]:
            if parameter in known:
                arguments[parameter] = known[parameter]
            else:
                arguments[parameter] = graph.make("state", (), parameter, "vector")
                if known.keys() - inputs.keys() or name == "start":
                    graph.refuse(
                        f"{name} asks for {parameter!r}; it may ask for {', '.join(known)}", arguments[parameter], place
                    )
        try:
            return method(**arguments)
        except CompileError:
            raise
        except Exception as error:
            graph.refuse(
                f"{type(error).__name__}: {error}", graph.make("constant", (), 1.0, "scalar"), _place_of(error, place)
            )
            return None

    def states(name: str, result: Any) -> dict[str, Node]:
        method = methods[name]
        code = inspect.unwrap(method).__code__
        place = Place(code.co_filename, code.co_firstlineno)
        anything = graph.make("constant", (), 1.0, "scalar")
        if result is None and graph.problems:
            return {}
        if not isinstance(result, dict) or not result or not all(isinstance(key, str) for key in result):
            graph.refuse(
                f"{name} returns {type(result).__name__}; it must return its state by name, dict(x=…)", anything, place
            )
            return {}
        for key in result.keys() & {"A", "b", "x0"}:
            graph.refuse(f"{name} returns a state named {key!r}, the name of an input; choose another", anything, place)
        return {key: graph.node(value) for key, value in result.items()}

    start = states("start", call("start", inputs))
    # zeros and constants carry no kind of their own beyond what they were made like
    state = {name: graph.make("state", (), name, node.kind) for name, node in start.items()}
    step = states("step", call("step", inputs | state))
    answer = call("finish", inputs | state) if state else None
    _compare_states(graph, program, start, step)
    residual = _trace_residual(program, graph, inputs, answer)
    if graph.problems:
        raise CompileError(_message(program, graph.problems))
    return Trace(program, graph, inputs, start, state, step, graph.node(answer), residual)


def _compare_states(graph: Graph, program: Program, start: dict[str, Node], step: dict[str, Node]) -> None:
    code = inspect.unwrap(program.step).__code__
    place = Place(code.co_filename, code.co_firstlineno)
    anything = graph.make("constant", (), 1.0, "scalar")
    if not start or not step:
        return
    for name in start.keys() ^ step.keys():
        where, other = ("start", "step") if name in start else ("step", "start")
        graph.refuse(
            f"{where} returns the state {name!r} and {other} does not; both must return the same names", anything, place
        )
    for name in start.keys() & step.keys():
        if start[name].kind != step[name].kind:
            graph.refuse(
                f"the state {name!r} is a {start[name].kind} in start and a {step[name].kind} in step", anything, place
            )


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
    """The last line of a traceback that is not ours."""
    traceback, place = error.__traceback__, otherwise
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename != __file__:
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
