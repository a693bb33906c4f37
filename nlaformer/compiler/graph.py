"""The graph of a traced program: nodes that compute like arrays and record what was done to them.

Nodes are hash-consed: equal expressions are one node. What cannot be compiled is noted with its line, and tracing
continues with a node of the likely kind, so that ``CompileError`` can list everything at once. ``expression.py`` turns
nodes into plain data, which can be saved and evaluated.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nlaformer.express import symbol

_FUNCTIONS = "nf.dot, nf.norm, nf.diag, nf.sqrt, nf.exp, nf.log, nf.zeros_like, nf.identity_like, nf.positive"
AXES = {"scalar": 0, "vector": 1, "matrix": 2}
KINDS = {"A": "matrix", "b": "vector", "x0": "vector"}  # of the inputs
# NumPy's names of the operators, for arrays that stand to the left of a node.
_OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "true_divide": "/", "matmul": "@"}
# Lines in these files are never the user's.
_OURS = {symbol.__file__} | {str(Path(__file__).with_name(name)) for name in ("graph.py", "language.py", "trace.py")}


@dataclass(frozen=True)
class Place:
    """A line of the user's class; line 0 if its source is not available."""

    file: str
    line: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        name = Path(self.file).name
        line = f", line {self.line}" if self.line else ""
        return name + line + (f": {text}" if text else "")


class Node(symbol.Symbol):
    """A value in a traced program. ``kind`` is scalar, vector or matrix; ``extra`` a constant's number or a name."""

    __array_priority__ = 1000.0
    __hash__ = object.__hash__

    def __init__(self, graph: Graph, op: str, args: tuple[Node, ...], extra: Any, kind: str, place: Place):
        self.graph, self.op, self.args, self.extra, self.kind, self.place = graph, op, args, extra, kind, place

    def __repr__(self) -> str:
        return describe(self)

    # What can be compiled, beside the + - * / of Symbol.

    def _apply(self, operator: str, left: Any, right: Any) -> Node:
        return self.graph.apply(operator, left, right)

    def __pos__(self) -> Node:
        return self

    def __matmul__(self, other: Any) -> Node:
        return self._apply("@", self, other)

    def __rmatmul__(self, other: Any) -> Node:
        return self._apply("@", other, self)

    def __pow__(self, power: Any) -> Node:
        exponent = self.graph.constant(power)
        if exponent is not None and exponent.extra == 0.5:
            return self.graph.function("sqrt", self)
        if exponent is not None and exponent.extra in range(1, 9) and self.kind != "matrix":
            return self._whole_power(int(exponent.extra))
        return self.graph.refuse(
            f"the power {power!r} of a {self.kind}; vectors and scalars have the powers 1 to 8 and 0.5. Otherwise "
            "write 1 / v, nf.exp(p * nf.log(v)), or @ for a product of matrices",
            self,
        )

    def __rpow__(self, base: Any) -> Node:
        return self.graph.refuse(f"{base!r:.40} ** v; write nf.exp(v * p), p the logarithm of {base!r:.40}", self)

    @property
    def T(self) -> Node:
        if self.kind != "matrix":
            return self.graph.refuse("a vector has no transpose; omit .T", self)
        if self.op != "A":
            return self.graph.refuse("only A itself can be transposed; write A.T", self)
        return self.graph.make("transpose", (self,), None, "matrix")

    # What cannot be compiled: noted, and answered so that tracing can continue.

    def _refuse(self, what: str) -> Node:
        return self.graph.refuse(f"{what}; write it with + - * / @ and {_FUNCTIONS}", self)

    def _compare(self, other: Any) -> bool:
        place = self.graph.place()
        self.graph.refuse(
            "a decision that depends on the data; the weights are fixed, so write the step without it "
            "(a test for convergence is not needed: further loops leave the answer as it is)",
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
        self._refuse("a Python number is needed here, but the value is known only when the weights run")
        return 1.0

    def __int__(self) -> int:
        return int(self.__float__())

    __index__ = __int__

    def __abs__(self) -> Node:
        return self.graph.refuse("abs(v); write nf.sqrt(nf.positive(v * v))", self)

    def _unknown(self, other: Any) -> Node:
        return self.graph.refuse("an operator that cannot be compiled; use + - * / @ and **", self)

    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __and__ = __rand__ = __or__ = __ror__ = _unknown

    def __format__(self, specification: str) -> str:
        return repr(self)  # so that a step may print what it computes

    def __setitem__(self, index: Any, value: Any) -> None:
        self.graph.refuse("single entries cannot be set; write whole vectors", self)

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
        self._refuse("a NumPy function")
        return np.ones((2,) * AXES[self.kind])

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Node:
        operator = _OPERATORS.get(ufunc.__name__)
        if operator is not None and method == "__call__" and isinstance(inputs[1], Node):
            return self.graph.apply(operator, inputs[0], inputs[1])
        return self._refuse(f"np.{ufunc.__name__}")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Node:
        return self._refuse(f"np.{function.__name__}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Node:
        node = next(argument for argument in args if isinstance(argument, Node))
        return node._refuse(f"torch.{getattr(function, '__name__', 'function')}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.graph.refuse(f".{name}; a traced value has + - * / @, .T on A, and {_FUNCTIONS}", self)
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
        """The innermost line that is not ours: where the user wrote it."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename in _OURS:
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

    def node(self, value: Any, place: Place | None = None) -> Node:
        if isinstance(value, Node):
            return value
        constant = self.constant(value)
        if constant is None:
            constant = self.make("constant", (), 1.0, "scalar")
            message = f"a {type(value).__name__} ({value!r:.40}) among traced values; constants must be numbers"
            self.refuse(message, constant, place)
        elif not np.isfinite(constant.extra):
            self.refuse(f"the constant {constant.extra}; constants must be finite", constant, place)
        return constant

    def apply(self, operator: str, u: Any, v: Any) -> Node:
        """The node of an operator + - * / @."""
        if operator == "-":
            return self.add(u, self.multiply(-1.0, v))
        return {"+": self.add, "*": self.multiply, "/": self.divide, "@": self.matmul}[operator](u, v)

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
        if name == "zeros_like":
            return self.make("zeros", (), None, v.kind)
        if name == "identity_like":
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


def reachable(nodes: Iterable[Node]) -> list[Node]:
    """These nodes and all they are made of, arguments first."""
    seen: dict[int, Node] = {}

    def visit(node: Node) -> None:
        if id(node) not in seen:
            for argument in node.args:
                visit(argument)
            seen[id(node)] = node

    for node in nodes:
        visit(node)
    return list(seen.values())


def is_invariant(node: Node) -> bool:
    """Whether a value is the same in every step: it is made of inputs and constants."""
    return all(n.op != "state" for n in reachable([node]))


def describe(node: Node, depth: int = 3) -> str:
    """The expression, as a user would type it."""
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
