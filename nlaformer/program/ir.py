"""The graph of a program: a node for every value, each with its shape and the line of the user that makes it.

A ``Graph`` holds its nodes once: equal expressions are one node. What an op means is in its record
(``primitives.py``); this file knows three ops by name, since they concern no arithmetic:

    input, state      values that are given, under the name ``extra``
    constant          an array of numbers, ``extra``
    move              entries of other nodes, wherever they come from: ``extra`` is an array of positions,
                      out.flat[k] = the entry at position extra.flat[k], counted through all sources; 0 where negative

Whatever only moves entries is a ``move``: a slice, a transpose, a triangle, a matrix made of vectors, an array with
some entries replaced. A move of moves is one move, so what is written into an array and read again costs nothing.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nlaformer.errors import CompileError

Shape = tuple[int, ...]
AXES = {"scalar": 0, "vector": 1, "matrix": 2}  # of the inputs' kinds
Positions = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Line:
    """A line of a user's source; number 0 if it is not known."""

    file: str = ""
    number: int = 0
    text: str = ""

    @classmethod
    def at(cls, file: str, number: int) -> Line:
        return cls(file, number, linecache.getline(file, number).strip())

    def __str__(self) -> str:
        line = f", line {self.number}" if self.number else ""
        return Path(self.file).name + line + (f": {self.text}" if self.text else "")


NOWHERE = Line()


class RefusedError(CompileError):
    """What cannot be compiled, in words; the tracer adds the line."""


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """A value. ``invariant``: the same in every step, since it is made of inputs and constants."""

    op: str
    args: tuple[Node, ...]
    extra: Any
    shape: Shape
    line: Line
    invariant: bool

    def __repr__(self) -> str:
        return describe(self)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return size_of(self.shape)

    @property
    def kind(self) -> str:
        """Scalar, vector or matrix."""
        return list(AXES)[len(self.shape)] if len(self.shape) < len(AXES) else "array"

    @functools.cached_property
    def listed(self) -> Any:
        """The numbers of a constant, nested, or the positions of a move, in order."""
        return self.extra.ravel().tolist() if self.op == "move" else getattr(self.extra, "tolist", lambda: None)()

    @functools.cached_property
    def moves_as(self) -> str:
        """What a move is in one word, if there is one."""
        return "transpose" if is_transpose(self) else "reshape" if is_reshape(self) else ""


class Graph:
    """The nodes of one program. ``line`` tells which line of the user is running when a node is made."""

    def __init__(self, line: Callable[[], Line] = lambda: NOWHERE):
        self.line = line
        self._nodes: dict[tuple[Any, ...], Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def make(self, op: str, args: Iterable[Node] = (), extra: Any = None, shape: Shape = ()) -> Node:
        """The node of an op; the one that is there, if there is one."""
        args, shape = tuple(args), tuple(shape)
        key = (op, *map(id, args), _key(extra), shape)
        if key not in self._nodes:
            invariant = op != "state" and all(argument.invariant for argument in args)
            self._nodes[key] = Node(op, args, extra, shape, self.line(), invariant)
        return self._nodes[key]

    def input(self, name: str, shape: Shape) -> Node:
        return self.make("input", (), name, shape)

    def state(self, name: str, shape: Shape) -> Node:
        return self.make("state", (), name, shape)

    def constant(self, value: Any) -> Node:
        """An array of numbers."""
        array = np.array(value, dtype=float)
        array.flags.writeable = False
        return self.make("constant", (), array, array.shape)

    def move(self, sources: Iterable[Node], positions: Any) -> Node:
        """The entries of sources at these positions, in the shape of ``positions``; see the module's text."""
        return self._move(*_flat(tuple(sources), np.asarray(positions, dtype=np.int64)))

    def _move(self, sources: tuple[Node, ...], positions: Positions) -> Node:
        if not sources:
            return self.constant(np.zeros(positions.shape))
        if all(source.op == "constant" for source in sources):
            entries = np.concatenate([source.extra.ravel() for source in sources] + [np.zeros(1)])
            return self.constant(entries[positions])
        if len(sources) == 1 and positions.shape == sources[0].shape and _is_in_order(positions):
            return sources[0]
        positions.flags.writeable = False
        return self.make("move", sources, positions, positions.shape)


def _flat(sources: tuple[Node, ...], positions: Positions) -> tuple[tuple[Node, ...], Positions]:
    """The same move from sources that are no moves, each of them used, and once; a constant's zeros are no source."""
    found: dict[int, tuple[Node, int]] = {}  # by id: a source and the first of its positions
    result, total, first = np.full(positions.shape, -1, dtype=np.int64), 0, 0
    for source in sources:
        here = (positions >= first) & (positions < first + source.size)
        place = positions[here] - first
        first += source.size
        inner: tuple[Node, ...] = (source,)
        starts, own = [0], place
        if source.op == "move":
            inner, own = source.args, source.extra.ravel()[place]
            starts = np.cumsum([0, *(each.size for each in inner[:-1])]).tolist()
        elif source.op == "constant":
            own = np.where(source.extra.ravel()[place] == 0, -1, place)
        moved = np.full(own.shape, -1, dtype=np.int64)
        for each, start in zip(inner, starts, strict=True):
            used = (own >= start) & (own < start + each.size)
            if used.any():
                if id(each) not in found:
                    found[id(each)] = each, total
                    total += each.size
                moved[used] = own[used] - start + found[id(each)][1]
        result[here] = moved
    return tuple(source for source, _ in found.values()), result


def _is_in_order(positions: Positions) -> bool:
    return bool(np.array_equal(positions.ravel(), np.arange(positions.size)))


def _key(extra: Any) -> Any:
    """What tells one extra from another."""
    return (extra.dtype.str, extra.shape, extra.tobytes()) if isinstance(extra, np.ndarray) else extra


def size_of(shape: Shape) -> int:
    """The number of entries."""
    return int(np.prod(shape, dtype=np.int64))


def is_number(node: Node) -> bool:
    """Whether a node is a constant number."""
    return node.op == "constant" and not node.shape


def is_zero(node: Node) -> bool:
    """Whether a node is a constant of zeros."""
    return node.op == "constant" and not node.extra.any()


def is_input(node: Node, name: str) -> bool:
    """Whether a node is this input itself."""
    return node.op == "input" and node.extra == name


def is_transpose(node: Node) -> bool:
    """Whether a node is the transpose of a matrix, its only argument."""
    if node.op != "move" or len(node.args) != 1 or node.ndim != 2 or node.args[0].shape != node.shape[::-1]:
        return False
    return _is_in_order(node.extra.T)


def is_reshape(node: Node) -> bool:
    """Whether a node has the entries of its only argument in their order, as v[:, None] does."""
    return node.op == "move" and len(node.args) == 1 and node.size == node.args[0].size and _is_in_order(node.extra)


def reachable(nodes: Iterable[Node], known: Container[Node] = ()) -> list[Node]:
    """These nodes and all they are made of, arguments first; what is known, and what that is made of, is left out."""
    seen: dict[int, Node] = {}
    stack = [(node, False) for node in reversed(list(nodes))]
    while stack:  # not by recursion: a loop over a Python range may nest thousands of operations
        node, ready = stack.pop()
        if id(node) in seen or node in known:
            continue
        if ready:
            seen[id(node)] = node
        else:
            stack.append((node, True))
            stack.extend((argument, False) for argument in reversed(node.args))
    return list(seen.values())


_SYMBOLS = {"add": " + ", "multiply": "*", "divide": "/", "matmul": " @ "}


def describe(node: Node, depth: int = 3) -> str:
    """The expression, about as a user would type it."""
    if node.op == "constant":
        return f"{float(node.extra):g}" if not node.shape else f"a constant of shape {node.shape}"
    if node.op in ("input", "state"):
        return str(node.extra)
    if depth == 0:
        return "…"
    args = [describe(argument, depth - 1) for argument in node.args]
    if node.op == "move":
        return _describe_move(node, args)
    if node.op in _SYMBOLS:
        text = _SYMBOLS[node.op].join(args)
        return f"({text})" if node.op in ("add", "matmul") else text
    return f"{node.op}({', '.join(args)})"


def _describe_move(node: Node, args: list[str]) -> str:
    if is_transpose(node):
        return f"{args[0]}.T"
    if len(node.args) == 1 and not node.shape:
        place = np.unravel_index(int(node.extra), node.args[0].shape)
        return f"{args[0]}[{', '.join(map(str, place))}]"
    return args[0] if is_reshape(node) else f"entries of {', '.join(args)}"
