"""The graph of a traced program: nodes for what is computed, and the problems found on the way.

An op, its arguments' kinds and what it gives (s scalar, v vector, m matrix; *any* is one kind throughout):

    input, state, constant, zeros, ones, identity          leaves; ``extra`` has the name, or the number or numbers
    add, multiply, divide     s or any with any -> any     entry by entry
    matmul                    m with m or v
    dot                       v with v, m with m -> s      of matrices: the Frobenius inner product
    outer                     v with v -> m
    transpose, triangle       m -> m                       ``extra`` of triangle: ("lower" or "upper", k)
    diag, diagonal            m -> v, v -> m
    roll                      v -> v, m -> m, along axis 0; ``extra`` is the shift
    sum, mean                 v or m -> s
    sqrt, exp, log, positive, relu, sign                   any -> any, entry by entry
    expm1, log1p, sinh, tanh, softplus                     the same, for which there are no weights (``rewrites.py``)
    maximum, minimum, logaddexp, hypot                     s or any with any -> any, nor for these
    refused                   what cannot be compiled; whatever is computed from it is refused without a word

Nodes are hash-consed: equal expressions are one node. Everything else that NumPy has is written in terms of these
(``functions.py``); what a user's method holds in its hands is a ``Value`` (``values.py``).

A further op needs a name (``functions.py``), a rule below, its value (``expression.py``: ``_OPERATIONS``, and ``_SUMS``
or ``_EXACT``; the explorer: ``page/program.js``), its rounding (``judge.py``: ``_EXACT``) and
either other ops to be written in or weights of its own. Written in others (``rewrites.py``: ``_COMPOSITIONS``), that is
all. Else it needs a way through that module (``_rule``), its unit and sign (``analysis.py``: ``_solve_units``,
``_is_positive``), whether it vanishes (``vanishing.py``), its scale (``scaling.py``: ``_of_same_scale``, ``_floating``,
``_is_homogeneous``) and a method of the selector (``nodes.py``, ``products.py``, ``moves.py``).
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from nlaformer.compiler.places import Place, current_line
from nlaformer.compiler.refusals import EntriesWanted, RefusedError
from nlaformer.program.ir import AXES as AXES
from nlaformer.program.language import KINDS as KINDS

_OF_NUMBERS: dict[str, Callable[..., float]] = {
    **{name: getattr(math, name) for name in ("sqrt", "exp", "log", "expm1", "log1p", "sinh", "tanh", "hypot")},
    "positive": lambda v: v,
    "relu": lambda v: max(v, 0.0),
    "sign": lambda v: float(np.sign(v)),
    "softplus": lambda v: float(np.logaddexp(0.0, v)),
    "logaddexp": lambda u, v: float(np.logaddexp(u, v)),
    "maximum": max,
    "minimum": min,
}
# Each entry is one of the arguments', or 0; the second row is of graphs by the front end of program/.
REARRANGING = frozenset({"transpose", "diag", "diagonal", "triangle", "roll", "move", "where", "largest", "smallest"})
_OF_ZERO = ("relu", "sign", "sqrt", "expm1", "log1p", "sinh", "tanh")  # 0 where their argument is
_LEAST = {"sqrt": 0.0, "log": 0.0, "log1p": -1.0}  # below which, or at which, a number has no value


class Node:
    """A value of the graph. ``kind`` is scalar, vector or matrix; None for a refused value of unknown kind.

    ``invariant``: the same in every step, since it is made of inputs and constants.
    """

    def __init__(self, graph: Graph, op: str, args: tuple[Node, ...], extra: Any, kind: Any, place: Place):
        self.graph, self.op, self.args, self.extra, self.place = graph, op, args, extra, place
        self.kind: str = kind
        self.invariant: bool = op != "state" and all(argument.invariant for argument in args)

    def __repr__(self) -> str:
        return describe(self)

    @property
    def is_zero(self) -> bool:
        return self.op == "zeros" or (self.op == "constant" and self.extra == 0.0)


@dataclass
class Graph:
    """The nodes of one program and the problems found while tracing it; ``n`` where the size is known."""

    n: int | None = None
    nodes: dict[tuple[Any, ...], Node] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    refused_at: set[Place] = field(default_factory=set)
    uses_torch: bool = False  # functions of torch were called, which take no NumPy arrays
    visits: dict[Place, int] = field(default_factory=dict)
    method: str = ""  # that is being traced
    learned: dict[str, Any] = field(default_factory=dict)  # the calls of learned parts, by name
    here: Place | None = None  # where nodes are made that no line of the user makes
    attributes: dict[int, str] = field(default_factory=dict)  # names of the program's arrays of constants, by id
    # Of arrays with rows (axis 0, entries of vectors) or columns (axis 1) set: the array before, the axis, the parts.
    placed: dict[int, tuple[Node, int, dict[int, Node]]] = field(default_factory=dict)
    units: list[Node] = field(default_factory=list)  # the vectors with 1 in one place, once one is asked for
    numbers_wanted: bool = False  # a traced value stood where NumPy or Python takes numbers alone
    assemble: Callable[[np.ndarray], Node] | None = None  # of an array of traced entries, where there may be some

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape fits the registers."""
        return shape in ((self.n,), (self.n, self.n))

    def make(self, op: str, args: tuple[Node, ...], extra: Any, kind: str | None) -> Node:
        key = (op, *map(id, args), extra, kind)
        if key not in self.nodes:
            self.nodes[key] = Node(self, op, args, extra, kind, self.place())
        return self.nodes[key]

    def place(self) -> Place:
        """Where a node is made."""
        return self.here or current_line()

    def refuse(self, message: str, kind: str | None = None, place: Place | None = None) -> Node:
        """Note a problem; of the line where tracing is, only the first. The node of a refused value."""
        here = place or self.place()
        text = f"{here}\n    {message}"
        if text not in self.problems and not (place is None and here in self.refused_at):
            self.problems.append(text)
        self.refused_at.add(here)
        return self.refused(kind)

    def refused(self, kind: str | None = None, args: tuple[Node, ...] = ()) -> Node:
        return self.make("refused", args, None, kind)

    def want_entries(self, what: str) -> bool:
        """Whether arrays take traced values now; they do when the program is traced again, if the size is known."""
        if self.assemble is None and self.n is not None:
            raise EntriesWanted
        if self.assemble is None:
            self.refuse(f"{what} where the size of the systems is not known; write whole vectors")
        return self.assemble is not None

    def call(self, rule: Callable[..., Node], *args: Any) -> Node:
        """What a rule makes of nodes, values and constants; a refused value if it cannot, or if one of them is."""
        try:
            nodes = [self.node(argument) for argument in args]
            if any(node.op == "refused" for node in nodes):
                kinds = {node.kind for node in nodes}
                # With its arguments, whose own problems may be found later.
                return self.refused(kinds.pop() if len(kinds) == 1 else None, tuple(nodes))
            return rule(*nodes)
        except RefusedError as refusal:
            return self.refuse(str(refusal), refusal.kind)

    def node_or_refused(self, value: Any) -> Node:
        return self.call(lambda node: node, value)

    def zeros(self, kind: str) -> Node:
        return self.make("zeros", (), None, kind)

    def ones(self, kind: str) -> Node:
        return self.number(1.0) if kind == "scalar" else self.make("ones", (), None, kind)

    def identity(self) -> Node:
        return self.make("identity", (), None, "matrix")

    def number(self, value: float) -> Node:
        return self.make("constant", (), float(value), "scalar")

    def node(self, value: Any) -> Node:
        """The node of a traced value, a number or an array of constants."""
        node = value if isinstance(value, Node) else getattr(value, "node", None)
        if isinstance(node, Node):
            return node
        given = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        if isinstance(given, np.ndarray) and given.dtype == object and self.assemble is not None:
            return self.assemble(given)
        array = np.asarray(given) if isinstance(given, (int, float, np.generic, np.ndarray, list, tuple)) else None
        if array is None or array.dtype == object:
            raise RefusedError(
                f"a {type(value).__name__} ({value!r:.40}) among traced values; constants are numbers and their arrays"
            )
        if array.dtype.kind not in "biuf" or array.ndim > 2:
            raise RefusedError(
                f"an array of {array.dtype} in {array.ndim} dimensions; constants are real, of at most two"
            )
        if array.dtype.kind in "iu" and any(int(float(k)) != k for k in array.ravel().tolist()):
            raise RefusedError(f"the constant {value!r:.40}, which float64 does not hold exactly; write a float")
        array = array.astype(float)
        if not np.isfinite(array).all():
            raise RefusedError(f"the constant {value!r:.40}; constants must be finite")
        if not array.ndim:
            return self.number(float(array))
        name = self.attributes.get(id(value))
        return self._array(array, f"self.{name}" if name else "a constant")

    def _array(self, array: np.ndarray, what: str) -> Node:
        """A constant vector or matrix. Multiples of ones and of the identity fit every size."""
        kind, n = ("vector", "matrix")[array.ndim - 1], array.shape[0]
        if set(array.shape) != {n} or n != (self.n or n):
            expected = "vectors of length n and n x n matrices" + ("" if self.n is None else f", n = {self.n}")
            raise RefusedError(f"{what} of shape {array.shape}; constants are numbers, {expected}", kind)
        first = float(array.flat[0]) if n else 0.0
        if (array == first).all():
            return self.multiply(self.number(first), self.ones(kind)) if first else self.zeros(kind)
        if kind == "matrix" and np.array_equal(array, first * np.eye(n)):
            return self.multiply(self.number(first), self.identity())
        rows = array.tolist()
        return self.make("constant", (), tuple(map(tuple, rows)) if kind == "matrix" else tuple(rows), kind)

    def _folds(self, operation: Callable[[Any, Any], Any], u: float, v: float) -> bool:
        """Whether what an operation makes of two numbers may stand in its place.

        Not if it leaves the range of float64: of 1e-200 * (1e-200 * x) something is left at x = 1e300.
        """
        value = operation(u, v)
        if not math.isfinite(value):
            return False
        if abs(value) < sys.float_info.min:
            return Fraction(value) == operation(Fraction(u), Fraction(v))
        return True

    # Entry by entry. NumPy's broadcasting: a vector beside a matrix stands for each of its rows.

    def add(self, u: Node, v: Node) -> Node:
        if is_number(u) and is_number(v) and self._folds(operator.add, u.extra, v.extra):
            return self.number(u.extra + v.extra)
        for one, other in ((u, v), (v, u)):
            if one.is_zero and one.kind in (other.kind, "scalar"):
                return other
            if other.kind == "matrix" and one.kind == "scalar":
                return self.add(self.multiply(one, self.ones("matrix")), other)
            if other.kind == "matrix" and one.kind == "vector":
                return self.add(self.outer(self.ones("vector"), one), other)
        return self.make("add", (u, v), None, u.kind if v.kind == "scalar" else v.kind)

    def multiply(self, u: Node, v: Node) -> Node:
        if is_number(v):
            u, v = v, u
        if is_number(u):
            if is_number(v) and self._folds(operator.mul, u.extra, v.extra):
                return self.number(u.extra * v.extra)
            if v.op == "multiply" and is_number(v.args[0]) and self._folds(operator.mul, u.extra, v.args[0].extra):
                return self.multiply(self.number(u.extra * v.args[0].extra), v.args[1])
            if u.extra == 1.0:
                return v
        for one, other in ((u, v), (v, u)):
            if one.op == "zeros" and other.kind in (one.kind, "scalar"):
                return one
            if other.kind == "matrix" and one.kind == "vector":
                return self.matmul(other, self.diagonal(one))
        if v.kind == "scalar" and u.kind != "scalar":
            u, v = v, u
        return self.make("multiply", (u, v), None, v.kind)

    def divide(self, u: Node, v: Node) -> Node:
        if v.is_zero:
            raise RefusedError("a division by zero", u.kind)
        if is_number(v) and self._folds(operator.truediv, 1.0, v.extra):
            return self.multiply(self.number(1.0 / v.extra), u)
        if {u.kind, v.kind} == {"matrix", "vector"}:
            if v.kind == "vector":
                return self.multiply(u, self.divide(self.number(1.0), v))
            u = self.outer(self.ones("vector"), u)
        return self.make("divide", (u, v), None, u.kind if v.kind == "scalar" else v.kind)

    def pointwise(self, op: str, v: Node) -> Node:
        """A function of one value, entry by entry."""
        if is_number(v) and v.extra > _LEAST.get(op, -math.inf):
            return self.number(_OF_NUMBERS[op](v.extra))
        if (v.op == "zeros" and op in _OF_ZERO) or (v.op == op == "relu"):
            return v
        return self.make(op, (v,), None, v.kind)

    def pairwise(self, op: str, u: Node, v: Node) -> Node:
        """A function of two values, entry by entry."""
        if is_number(u) and is_number(v):
            return self.number(_OF_NUMBERS[op](u.extra, v.extra))
        for one, other in ((u, v), (v, u)):
            if op == "maximum" and one.is_zero and one.kind in (other.kind, "scalar"):
                return self.pointwise("relu", other)
        if {u.kind, v.kind} == {"vector", "matrix"}:
            u, v = (self.outer(self.ones("vector"), w) if w.kind == "vector" else w for w in (u, v))
        return self.make(op, (u, v), None, u.kind if v.kind == "scalar" else v.kind)

    # Products, parts and sums.

    def matmul(self, u: Node, v: Node) -> Node:
        if "scalar" in (u.kind, v.kind):
            raise RefusedError(f"a {u.kind} @ a {v.kind}; write * for a product with a scalar", "vector")
        if u.kind == "vector":
            return self.dot(u, v) if v.kind == "vector" else self.matmul(self.transpose(v), u)
        if "zeros" in (u.op, v.op):
            return self.zeros(v.kind)
        if u.op == "identity":
            return v
        return u if v.op == "identity" else self.make("matmul", (u, v), None, v.kind)

    def dot(self, u: Node, v: Node) -> Node:
        if u.kind != v.kind or u.kind == "scalar":
            raise RefusedError(
                f"the inner product of a {u.kind} and a {v.kind}; write * for a scalar, @ otherwise", "scalar"
            )
        if "zeros" in (u.op, v.op):
            return self.zeros("scalar")
        return self.make("dot", (u, v), None, "scalar")

    def outer(self, u: Node, v: Node) -> Node:
        if u.kind != "vector" or v.kind != "vector":
            raise RefusedError(f"the outer product of a {u.kind} and a {v.kind}; both must be vectors", "matrix")
        if "zeros" in (u.op, v.op):
            return self.zeros("matrix")
        return self.ones("matrix") if u.op == v.op == "ones" else self.make("outer", (u, v), None, "matrix")

    def transpose(self, v: Node) -> Node:
        if v.kind != "matrix" or v.op in ("zeros", "ones", "identity", "diagonal"):
            return v
        return v.args[0] if v.op == "transpose" else self.make("transpose", (v,), None, "matrix")

    def diag(self, v: Node) -> Node:
        """The diagonal of a matrix, or the matrix with a diagonal, as in NumPy."""
        if v.kind != "matrix":
            return self.diagonal(v)
        if v.op == "transpose":
            return self.diag(v.args[0])
        if v.op == "diagonal":
            return v.args[0]
        if v.op in ("zeros", "ones", "identity"):
            return self.zeros("vector") if v.op == "zeros" else self.ones("vector")
        return self.make("diag", (v,), None, "vector")

    def diagonal(self, v: Node) -> Node:
        if v.kind != "vector":
            raise RefusedError(f"the diagonal matrix of a {v.kind}; it is made of a vector", "matrix")
        if v.op in ("zeros", "ones"):
            return self.zeros("matrix") if v.op == "zeros" else self.identity()
        return self.make("diagonal", (v,), None, "matrix")

    def triangle(self, side: str, k: int, v: Node) -> Node:
        if v.kind != "matrix":
            raise RefusedError(f"the {side} triangle of a {v.kind}; it is a part of a matrix", "matrix")
        return v if v.op == "zeros" else self.make("triangle", (v,), (side, k), "matrix")

    def roll(self, shift: int, v: Node) -> Node:
        if v.kind == "scalar" or v.op in ("zeros", "ones") or shift == 0:
            return v
        if v.op == "roll":
            return self.roll(shift + v.extra, v.args[0])
        return self.make("roll", (v,), shift, v.kind)

    def total(self, op: str, v: Node) -> Node:
        """The sum or mean of all entries."""
        if v.kind == "scalar":
            return v
        if v.op == "zeros":
            return self.zeros("scalar")
        return self.number(1.0) if (op, v.op) == ("mean", "ones") else self.make(op, (v,), None, "scalar")


def is_number(node: Node) -> bool:
    """Whether a node is a Python number."""
    return node.op == "constant" and node.kind == "scalar"


def reachable(nodes: Iterable[Node]) -> list[Node]:
    """These nodes and all they are made of, arguments first."""
    seen: dict[int, Node] = {}
    stack = [(node, False) for node in reversed(list(nodes))]
    while stack:  # not by recursion: a loop over a Python range may nest thousands of operations
        node, ready = stack.pop()
        if id(node) in seen:
            continue
        if ready:
            seen[id(node)] = node
        else:
            stack.append((node, True))
            stack.extend((argument, False) for argument in reversed(node.args))
    return list(seen.values())


def is_input(node: Node, name: str) -> bool:
    """Whether a node is this input itself."""
    return node.op == "input" and node.extra == name


def describe(node: Node, depth: int = 3) -> str:
    """The expression, as a user would type it."""
    if node.op == "constant":
        return f"{node.extra:g}" if node.kind == "scalar" else f"a constant {node.kind}"
    if node.op in ("input", "state"):
        return str(node.extra)
    if depth == 0:
        return "…"
    args = [describe(argument, depth - 1) for argument in node.args]
    if node.op == "transpose":
        return f"{args[0]}.T"
    symbol = {"add": " + ", "multiply": "*", "divide": "/", "matmul": " @ "}.get(node.op)
    if symbol is not None:
        return "(" + symbol.join(args) + ")" if node.op in ("add", "matmul") else symbol.join(args)
    if node.op == "triangle":
        return f"{'tril' if node.extra[0] == 'lower' else 'triu'}({args[0]}, {node.extra[1]})"
    if node.op == "roll":
        args.append(str(node.extra))
    return f"{node.op}({', '.join(args)})"
