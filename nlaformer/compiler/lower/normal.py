"""One way to say one thing: the graph of a program, before facts are found and rules are applied.

Constants of zeros and ones that select, P @ X, X * mask, e_i . v, say where entries go: they become moves, which are
exact. A linearized product would leave 1e-13 of the largest entry in every other. Sums by ones become sums, division by
a number a multiple, v @ M a product with the transpose, and what NumPy broadcasts in a sum stands there as a move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from nlaformer.compiler.lower.facts import Core, is_system_matrix
from nlaformer.program.ir import Graph, Line, Node, is_number, is_transpose
from nlaformer.program.primitives import apply


def normal(core: Core) -> Core:
    """The same program in its normal form."""
    return _Normal().of(core)


class _Normal:
    def __init__(self) -> None:
        self.line = Line()
        self.graph = Graph(lambda: self.line)
        self.images: dict[int, Node] = {}

    def of(self, core: Core) -> Core:
        for node in (*core.nodes, *core.inputs.values(), *core.state.values()):
            self.image(node)
        image = self.images

        def each(nodes: Mapping[str, Node]) -> dict[str, Node]:
            return {name: image[id(node)] for name, node in nodes.items()}

        return replace(
            core,
            inputs=each(core.inputs),
            start=each(core.start),
            state=each(core.state),
            step=each(core.step),
            answer=image[id(core.answer)],
        )

    def image(self, node: Node) -> Node:
        if id(node) not in self.images:
            self.line = node.line
            args = [self.images[id(argument)] for argument in node.args]
            rule: Callable[..., Node | None] = getattr(self, f"_{node.op}", lambda *_: None)
            self.images[id(node)] = rule(node, *args) or self._same(node, args)
        return self.images[id(node)]

    def _same(self, node: Node, args: list[Node]) -> Node:
        if node.op in ("add", "multiply", "matmul", "divide", "relu", "sqrt", "exp", "log", "sign", "positive"):
            return apply(self.graph, node.op, *args)
        return self.graph.make(node.op, args, node.extra, node.shape)

    # --- rules: what another node says as well, or None ---

    def _move(self, node: Node, *sources: Node) -> Node:
        return self.graph.move(sources, node.extra)

    def _add(self, node: Node, u: Node, v: Node) -> Node:
        return apply(self.graph, "add", *(self.spread(argument, node.shape) for argument in (u, v)))

    def _divide(self, node: Node, u: Node, v: Node) -> Node | None:
        if is_number(v) and v.extra:
            return self.times(1.0 / float(v.extra), u)
        if v.shape and v.shape != node.shape:  # a reciprocal is broadcast, not a divisor
            v = apply(self.graph, "divide", self.graph.constant(1.0), v)
            return apply(self.graph, "multiply", u, v)
        return None

    def _multiply(self, node: Node, u: Node, v: Node) -> Node | None:
        for mask, other in ((u, v), (v, u)):
            c = selecting(mask)
            if c and mask.shape and other.shape and other.op != "constant":
                kept = np.broadcast_to(mask.extra != 0, node.shape)
                places = _broadcast(other.shape, node.shape)
                return self.times(c, self.graph.move([other], np.where(kept, places, -1)))
        if node.ndim < 2:
            return None
        for one, other in ((u, v), (v, u)):
            column, row = self._column(one, node.shape), self._row(other, node.shape)
            if row is not None:
                if column is not None:  # an outer product
                    return apply(self.graph, "matmul", column, self.graph.move([row], np.arange(row.size)[None]))
                diagonal = np.where(np.eye(row.size) > 0, np.arange(row.size), -1)
                if one.shape == node.shape:
                    return apply(self.graph, "matmul", one, self.graph.move([row], diagonal))
            if column is not None and other.shape == node.shape:
                return apply(self.graph, "multiply", column, other)
        return None

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
        if u.ndim == 1 and v.ndim == 2:
            transposed = self.graph.move([v], np.arange(v.size).reshape(v.shape).T)
            return self._matmul(node, transposed, u) or apply(self.graph, "matmul", transposed, u)
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
        if v.ndim < 2 or len(node.extra[0]) == 2 or (node.extra[0] == (1,) and not is_system_matrix(v)):
            return None
        matrix = v if node.extra[0] == (1,) else self.graph.move([v], np.arange(v.size).reshape(v.shape).T)
        product = apply(self.graph, "matmul", matrix, self.graph.constant(np.ones(matrix.shape[1])))
        return self.graph.move([product], np.arange(product.size).reshape(node.shape))

    # --- words ---

    def times(self, c: float, v: Node) -> Node:
        if v.op == "constant":
            return self.graph.constant(c * v.extra)
        return v if c == 1.0 else apply(self.graph, "multiply", self.graph.constant(c), v)

    def spread(self, v: Node, shape: tuple[int, ...]) -> Node:
        if v.shape == shape or is_number(v):
            return v if v.shape == shape else self.graph.constant(np.full(shape, v.extra))
        return self.graph.move([v], _broadcast(v.shape, shape)) if v.shape else v

    def total(self, v: Node, axis: int) -> Node:
        return apply(self.graph, "sum", v, extra=((axis % v.ndim,), False))


def selecting(node: Node) -> float:
    """The number c of a constant array of zeros and c, else 0."""
    if node.op != "constant" or not node.extra.any():
        return 0.0
    c = float(node.extra.ravel()[np.flatnonzero(node.extra)[0]])
    return c if np.isin(node.extra, (0.0, c)).all() else 0.0


def _broadcast(shape: tuple[int, ...], to: tuple[int, ...]) -> np.ndarray:
    """The positions of the entries of an array as they stand where NumPy broadcasts it."""
    return np.broadcast_to(np.arange(int(np.prod(shape, dtype=int))).reshape(shape), to)
