"""One way to say one thing: the graph of a program, before facts are found and rules are applied.

Constants of zeros and ones that select, P @ X, X * mask, e_i . v, say where entries go: they become moves, which are
exact. A linearized product would leave 1e-13 of the largest entry in every other. Sums by ones become sums, and what
NumPy broadcasts in a sum stands there as a move.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from nlaformer.compiler.lower.facts import Core, is_system_matrix
from nlaformer.errors import CompileError
from nlaformer.program.core import core
from nlaformer.program.data import ProgramGraph
from nlaformer.program.ir import Graph, Line, Node, RefusedError, is_number, is_transpose, reachable
from nlaformer.program.primitives import apply


def normal(program: ProgramGraph) -> Core:
    """The same program in its normal form; the memory of learned parts, which the weights keep, is no state."""
    maker = _Normal(program.n)
    try:
        return maker.of(core(program)[0])
    except RefusedError as refusal:
        raise CompileError(f"{program.name} cannot be compiled.\n  {maker.line}\n    {refusal}") from None


class _Normal:
    def __init__(self, n: int) -> None:
        self.n, self.line = n, Line()
        self.graph = Graph(lambda: self.line)
        self.images: dict[Node, Node] = {}
        self.uses: Counter[Node] = Counter()  # of an image

    def of(self, program: ProgramGraph) -> Core:
        memories = {part.memory_name for part in program.parts}
        blocks = (program.start, program.step)
        start, step = ({name: node for name, node in block.items() if name not in memories} for block in blocks)
        nodes = reachable((*program.inputs.values(), *start.values(), *step.values(), program.answer))
        self.multiplied = {frozenset(node.args) for node in nodes if node.op == "multiply"}
        ends = (*start.values(), *step.values(), program.answer)
        uses = Counter([*ends, *(argument for node in nodes for argument in node.args)])
        for node in nodes:
            self.uses[self.image(node)] += uses[node]

        def each(nodes: Mapping[str, Node]) -> dict[str, Node]:
            return {name: self.images[node] for name, node in nodes.items()}

        state = {name: self.graph.state(name, node.shape) for name, node in start.items()}
        answer, definite = self.images[program.answer], program.positive_definite
        return Core(program.name, program.n, each(program.inputs), each(start), state, each(step), answer, definite)

    def image(self, node: Node) -> Node:
        self.line = node.line
        args = [self.images[argument] for argument in node.args]
        rule: Callable[..., Node | None] = getattr(self, f"_{node.op}", lambda *_: None)
        image = rule(node, *args) or self._same(node, args)
        if image.shape and image.shape[0] > self.n:
            raise RefusedError(f"an array of shape {image.shape}; weights take {self.n} rows at most")
        self.images[node] = image
        return image

    def _same(self, node: Node, args: list[Node]) -> Node:
        if node.op in ("add", "multiply", "matmul", "divide", "relu", "sqrt", "exp", "log", "sign", "positive"):
            return apply(self.graph, node.op, *args)
        return self.graph.make(node.op, args, node.extra, node.shape)

    # --- rules: what another node says as well, or None ---

    def _constant(self, node: Node) -> Node:
        return self.graph.constant(node.extra.reshape(self.folded(node.shape)))

    def _move(self, node: Node, *sources: Node) -> Node:
        places = node.extra.reshape(self.folded(node.shape))
        return self.taken(sources[0], places) if len(sources) == 1 else self.graph.move(sources, places)

    def _add(self, node: Node, u: Node, v: Node) -> Node:
        return apply(self.graph, "add", *(self.spread(argument, self.folded(node.shape)) for argument in (u, v)))

    def _divide(self, node: Node, u: Node, v: Node) -> Node:
        shape = self.folded(node.shape)
        if v.shape and v.shape != shape:  # a reciprocal is broadcast, not a divisor
            return self._multiply(node, u, apply(self.graph, "divide", self.graph.constant(1.0), v))
        return apply(self.graph, "divide", self.spread(u, shape) if u.shape else u, v)

    def _multiply(self, node: Node, u: Node, v: Node) -> Node:
        shape = self.folded(node.shape)
        for mask, other in ((u, v), (v, u)):
            c = selecting(mask)
            if c and mask.shape and other.shape and other.op != "constant":
                kept = np.broadcast_to(mask.extra != 0, shape)
                places = _broadcast(other.shape, shape)
                return self.times(c, self.graph.move([other], np.where(kept, places, -1)))
        for one, other in ((u, v), (v, u)) if len(shape) == 2 else ():
            column, row = self._column(one, shape), self._row(other, shape)
            if row is not None:
                if column is not None:  # an outer product
                    return apply(self.graph, "matmul", column, self.graph.move([row], np.arange(row.size)[None]))
                diagonal = np.where(np.eye(row.size) > 0, np.arange(row.size), -1)
                if one.shape == shape:
                    return apply(self.graph, "matmul", one, self.graph.move([row], diagonal))
            if column is not None and other.shape == shape:
                return apply(self.graph, "multiply", column, other)
        u, v = (self.spread(factor, shape) if factor.shape else factor for factor in (u, v))
        return apply(self.graph, "multiply", u, v)

    def _column(self, v: Node, shape: tuple[int, ...]) -> Node | None:
        """The (p, 1) array that stands in each column of an array of this shape, as NumPy broadcasts."""
        if v.shape == (shape[0], 1) and shape[1] > 1:
            return v
        if v.op == "move" and v.shape == shape and len(v.args) == 1 and shape[1] > 1:
            first = v.extra[:, :1]
            return self.graph.move(v.args, first) if (v.extra == first).all() and (first >= 0).any() else None
        return None

    def _row(self, v: Node, shape: tuple[int, ...]) -> Node | None:
        """The vector that stands in each row of an array of this shape."""
        if v.shape in ((shape[1],), (1, shape[1])) and shape[0] > 1:
            return self.graph.move([v], np.arange(v.size))
        if v.op == "move" and v.shape == shape and len(v.args) == 1 and shape[0] > 1:
            first = v.extra[0]
            return self.graph.move(v.args, first) if (v.extra == first).all() and (first >= 0).any() else None
        return None

    def _matmul(self, node: Node, u: Node, v: Node) -> Node | None:
        if not node.shape and u.ndim == 2:  # long vectors
            return apply(self.graph, "sum", apply(self.graph, "multiply", u, v), extra=((0, 1), False))
        if not node.shape and frozenset(node.args) in self.multiplied:  # the products are there, and are summed
            return self.total(apply(self.graph, "multiply", u, v), 0)
        for one, other in ((u, v), (v, u)):
            if not node.shape and other.op == "move" and (other.extra >= 0).sum() == len(other.args):
                # Of numbers that come one by one: each has a scale of its own.
                places = np.flatnonzero(other.extra >= 0)
                pairs = ([self.graph.move([factor], k) for factor in (one, other)] for k in places)
                return self.added(self._multiply(node, *pair) for pair in pairs)
        if not node.shape:
            for one, other in sorted(((u, v), (v, u)), key=lambda pair: pair[1].invariant):
                if one.op == "move" and (whole := _part_of(other)) is not None:
                    # Its entries stay where they are, and those of the other factor move to them.
                    places = np.full(whole.shape, -1)
                    places[other.extra] = np.arange(other.size)
                    return apply(self.graph, "matmul", self.graph.move([one], places), whole)
        rows = self._vectors(u, 1) if node.ndim == 1 else {}
        columns = self._vectors(u, 0) if node.ndim == 1 else {}
        if columns and (not rows or len(columns) < len(rows)):
            return self.added(self._multiply(node, self.graph.move([v], k), w) for k, w in columns.items())
        if rows:
            places = np.full(node.shape, -1)
            places[list(rows)] = range(len(rows))
            return self.graph.move([apply(self.graph, "matmul", w, v) for w in rows.values()], places)
        for constant, other, axis in ((u, v, 0), (v, u, -1)):
            c = selecting(constant)
            if not c or other.op == "constant":
                continue
            chosen = constant.extra != 0
            if constant.ndim == 1 and chosen.all():
                # Of an input, whose entries are there as logarithms, and over tokens, a product will do.
                by_product = is_system_matrix(other) or is_transpose(other)
                return None if by_product else self.times(c, self.total(other, axis))
            # Which row of the other factor each row of the product is, or which column each column.
            chosen = chosen if constant is u or constant.ndim == 1 else chosen.T
            if (chosen.sum(-1) <= 1).all():
                places = np.arange(other.size).reshape(other.shape)
                places = np.append(places, np.full_like(places.take([0], axis), -1), axis)
                of_none = other.shape[axis]
                take = np.where(chosen.any(-1), chosen.argmax(-1), of_none)
                return self.times(c, self.graph.move([other], places.take(take, axis)))
        return None

    def _sum(self, node: Node, v: Node) -> Node | None:
        """Sums of columns, and of rows of an input, whose entries are there as logarithms: products with ones."""
        if node.args[0].ndim == 1 and v.ndim == 2:  # a long vector
            total = apply(self.graph, "sum", v, extra=((0, 1), False))
            return self.graph.move([total], np.zeros(node.shape, np.int64))
        if v.ndim < 2 or len(node.extra[0]) == 2 or (node.extra[0] == (1,) and not is_system_matrix(v)):
            return None
        matrix = v if node.extra[0] == (1,) else self.graph.move([v], np.arange(v.size).reshape(v.shape).T)
        product = apply(self.graph, "matmul", matrix, self.graph.constant(np.ones(matrix.shape[1])))
        return self.graph.move([product], np.arange(product.size).reshape(node.shape))

    # --- words ---

    def _vectors(self, matrix: Node, axis: int) -> dict[int, Node]:
        """The vectors that a matrix was filled with, by the number of their column (axis 0) or row; else none.

        Where the vectors are there, products with each of them cost a layer less than one with the matrix.
        """
        if matrix.op != "move" or any(source.ndim != 1 for source in matrix.args):
            return {}
        lines = enumerate(matrix.extra.T if axis == 0 else matrix.extra)
        found = {k: self.graph.move(matrix.args, places) for k, places in lines if (places >= 0).any()}
        return found if all(len(vector.args) == 1 or vector.op != "move" for vector in found.values()) else {}

    def folded(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A vector that is longer than the rows of P stands as a matrix, in the same order."""
        if len(shape) != 1 or shape[0] <= self.n:
            return shape
        return (1, shape[0]) if shape[0] % self.n else (self.n, shape[0] // self.n)

    def times(self, c: float, v: Node) -> Node:
        if v.op == "constant":
            return self.graph.constant(c * v.extra)
        return v if c == 1.0 else apply(self.graph, "multiply", self.graph.constant(c), v)

    def spread(self, v: Node, shape: tuple[int, ...]) -> Node:
        if v.shape == shape or is_number(v):
            return v if v.shape == shape else self.graph.constant(np.full(shape, v.extra))
        return self.graph.move([v], _broadcast(v.shape, shape)) if v.shape else v

    def taken(self, v: Node, places: np.ndarray) -> Node:
        """Entries of a value; of a sum that nothing else needs, the sum of these entries of its terms."""
        alone = self.uses[v] <= 1 and v.ndim > 0 and 0 < places.size < v.size
        if not alone or not (v.op == "add" or (v.op == "multiply" and is_number(v.args[0]))):
            return self.graph.move([v], places)
        if v.op == "add" and any(argument.shape != v.shape for argument in v.args):
            return self.graph.move([v], places)
        return apply(self.graph, v.op, *(self.taken(arg, places) if arg.shape else arg for arg in v.args))

    def added(self, terms: Iterable[Node]) -> Node:
        return functools.reduce(functools.partial(apply, self.graph, "add"), terms)

    def total(self, v: Node, axis: int) -> Node:
        return apply(self.graph, "sum", v, extra=((axis % v.ndim,), False))


def selecting(node: Node) -> float:
    """The number c of a constant array of zeros and c, else 0."""
    if node.op != "constant" or not node.extra.any():
        return 0.0
    c = float(node.extra.ravel()[np.flatnonzero(node.extra)[0]])
    return c if np.isin(node.extra, (0.0, c)).all() else 0.0


def _part_of(vector: Node) -> Node | None:
    """The vector of which another one has some of the entries, each once."""
    if vector.op != "move" or len(vector.args) > 1 or vector.args[0].ndim != 1:
        return None
    once = int(vector.extra.min(initial=0)) >= 0 and len(np.unique(vector.extra)) == vector.size
    return vector.args[0] if once else None


def _broadcast(shape: tuple[int, ...], to: tuple[int, ...]) -> np.ndarray:
    """The positions of the entries of an array where NumPy broadcasts it; a folded one is a vector."""
    places = np.arange(int(np.prod(shape, dtype=int)))
    return np.broadcast_to(places if shape and shape[-1] not in (1, to[-1]) else places.reshape(shape), to)
