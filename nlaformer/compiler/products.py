"""Products, parts and sums of vectors and matrices as values: products entry by entry, and what looks across tokens."""

from __future__ import annotations

import math
from typing import Any

from nlaformer.compiler.graph import Node
from nlaformer.compiler.instructions import HEADROOM, MATRIX_NORM
from nlaformer.compiler.moves import Moves
from nlaformer.compiler.terms import Term, Terms, combine, multiply, registers_of
from nlaformer.express.linearize import design, design_product

_GROWTH = 2.0


class Products(Moves):
    """Products, and the nodes that are not computed entry by entry."""

    # --- products, entry by entry ---

    def _multiply(self, node: Node) -> Terms:
        u, v = node.args
        for one, other in ((u, v), (v, u)):
            if self._is_exponential(one):
                return multiply(self.value(other), self.value(one))
            if (moved := self._as_mask(one, other)) is not None:
                return moved
            if self.analysis.is_positive(one) and (one.kind == "scalar" or one.invariant):
                factor, exponent = self.logarithm(one, "num")
                return multiply(self.value(other), (Term(factor, self.one, exponent),))
            if self._is_step(one, other):
                return multiply(self.value(other), self._signed(one))
        return self._product(u, v)

    def _is_step(self, scalar: Node, other: Node) -> bool:
        """Whether a scalar is a step length, a dot over something positive, and what it multiplies has none in it."""
        if scalar.op != "divide" or other.kind == "scalar":
            return False
        dot, size = scalar.args
        if dot.op == "multiply" and dot.args[0].op == "constant":
            dot = dot.args[1]
        inside = registers_of(*(term.exponent for term in self.value(other)))
        return dot.op == "dot" and self.analysis.is_positive(size) and self.signed.isdisjoint(inside)

    def _signed(self, node: Node) -> Terms:
        """A scalar of either sign as e^F - e^H, by the logarithms of it and of its opposite: one of them is that of 0.

        Both are read from the first token, so that x + alpha d and r - alpha A d take the same alpha in every entry; a
        product would multiply by the copy of each token, which differ by what a dot amplifies its rounding.
        """
        with self.within(self._home(node), node.place):
            source, exponent = self._in_row(node)
            if not source:
                return ()
            rough = self._coarse(source)  # of both: that of 0 is beyond use
            terms = []
            for sign in (1.0, -1.0):
                factor, log = self._log_of(combine((sign, source)), "num", True)
                self.interpolated |= {register: rough for register, _ in log}
                self.signed |= registers_of(log)
                terms.append(Term(sign * factor, self.one, combine((1.0, exponent), (1.0, log))))
            return tuple(terms)

    def _product(self, u: Node, v: Node) -> Terms:
        """The factor of the score is one whose size is known; between two such, the smaller one."""
        sides = [(*self._side(node), node) for node in (u, v)]
        if not all(source for source, _, _ in sides):
            return ()
        sides.sort(key=lambda side: (not self._is_calm(side[0], side[2]), self._height(side[0]), self._bound(side[0])))
        (key, e), (value, f, _) = self._calmed(*sides[0]), sides[1]
        lin = design_product(self.target.dtype, min(self._bound(key), 8.0) / 2, order=self.target.order)
        height = max(self._height(key), self._height(value))
        more: dict[str, Any] = {"bound": HEADROOM * self._size(key) * self._size(value), "height": height}
        more["tame"] = self._is_calm(value, sides[1][2])
        row = self.emit("product", [key, value], (), (lin,), scalar=u.kind == v.kind == "scalar", **more)
        return (Term(1.0, row, combine((1.0, e), (1.0, f))),)

    # --- products across tokens ---

    def _matmul(self, node: Node) -> Terms:
        left, right = node.args
        if (moved := self._as_order(left, right)) is not None:
            return moved
        transposed = left.op == "transpose"
        inner = left.args[0] if transposed else left
        if inner.op == "input":
            return self._by_input(inner.extra, transposed, right)
        if right.op == "ones" and right.kind == "vector" and not transposed:
            return self._row_sums(inner)
        (X, e), (Y, f) = self._factor(inner), self._side(right)
        if not X or not Y:
            return ()
        # A matrix at fixed scale, an inverse say, may have entries far above 1, so c is small and the order high.
        typical = 1.0 if e else 8.0
        lin = design(self.n, self.target.dtype, typical, order=3, summands=self.n)
        size = self._size(X) * self._size(Y)
        more: dict[str, Any] = {"height": self._height(Y), "bound": HEADROOM * size, "size": size}
        if right.kind == "vector":  # which may be far smaller than the norms of its factors
            more["tame"] = False
        row = self.emit("matmul", [X, Y], (), (lin, transposed), **more)
        return (Term(1.0, row, combine((1.0, e), (1.0, f))),)

    def _row_sums(self, node: Node) -> Terms:
        """X @ 1: token j holds row j."""
        X, exponent = self._in_row(node)
        if not X:
            return ()
        more: dict[str, Any] = {"bound": self._bound(X) * math.sqrt(self.n), "size": self._size(X), "tame": False}
        return (Term(1.0, self.emit("row sums", [X], **more), exponent),)

    def _by_input(self, name: str, transposed: bool, right: Node) -> Terms:
        """The product with an input matrix, which is kept as logarithms."""
        value = self.value(right)
        plain = all(not term.operator and self._scalar_part(term.exponent) == term.exponent for term in value)
        if not plain:
            exponent = self.common_exponent(value, right)
            value = tuple(Term(c, register, exponent) for register, c in self.materialize(value, exponent))
        operator, scale = name + (".T" if transposed else ""), self._input_scale(name)
        return tuple(Term(t.coefficient, t.register, combine((1.0, t.exponent), (1.0, scale)), operator) for t in value)

    def _transpose(self, node: Node) -> Terms:
        (inner,) = node.args
        if inner.op == "input":
            return (Term(1.0, self.eye, self._input_scale(inner.extra), f"{inner.extra}.T"),)
        if (moved := self._as_rolled_columns(node)) is not None:
            return moved
        X, exponent = self._in_row(inner)
        if not X:
            return ()
        more: dict[str, Any] = {"height": self.n, "bound": self._bound(X)}
        skewed = self.emit("skew", [X], **more)
        shifted = self._work("shifted", skewed, height=self.n)
        row = self.emit("transpose", [((skewed, 1.0),)], extra=(shifted,), **more)
        return (Term(1.0, row, exponent),)

    def _outer(self, node: Node) -> Terms:
        if (moved := self._as_copies(*node.args)) is not None:
            return moved
        (u, e), (v, f) = (self._factor(argument) for argument in node.args)
        if not u or not v:
            return ()
        lin = design(self.n, self.target.dtype, 0.5 * self._size(u) * self._size(v), order=3)
        row = self.emit("outer", [u, v], (), (lin,), height=self.n, bound=self._bound(u) * self._bound(v))
        return (Term(1.0, row, combine((1.0, e), (1.0, f))),)

    def _dot(self, node: Node) -> Terms:
        u, v = node.args
        if u.kind == "matrix":
            return self._matrix_dot(u, v)
        for one, other in ((u, v), (v, u)):
            if (moved := self._as_entry(one, other)) is not None:
                return moved
        sides = [(*self._side(argument), argument) for argument in (u, v)]
        if not all(source for source, _, _ in sides):
            return ()
        calm = [self._is_calm(source, argument) for source, _, argument in sides]
        if all(calm) or u is v:
            (first, e), (second, f) = (self._calmed(*side) for side in sides)
            owned, definite = self._is_owned(u) and self._is_owned(v), self.traced.program.positive_definite
            # Without a definite A, residuals may grow tenfold in a step.
            row = self._dot_of(first, second, spread=owned and definite, room=1.0 if definite or not owned else _GROWTH)
            return (Term(1.0, row, combine((1.0, e), (1.0, f))),)
        if calm[1]:
            sides.reverse()
        (key, e), (value, f, _) = self._calmed(*sides[0]), sides[1]
        return (Term(1.0, self._dot_of(key, value, ordered=True, spread=False), combine((1.0, e), (1.0, f))),)

    def _matrix_dot(self, u: Node, v: Node) -> Terms:
        if u is v and u.op == "input":
            with self.within("pre"):
                rows = self.emit("squares", [((self.one, 1.0),)], (), (u.extra,), also=self._encoded(u.extra))
                total = self.emit("sum", [((rows, 1.0),)], bound=MATRIX_NORM**2)
            return (Term(1.0, total, combine((2.0, self._input_scale(u.extra)))),)
        (X, e), (Y, f) = self._factor(u), self._factor(v)
        if not X or not Y:
            return ()
        bound = self._bound(X) * self._bound(Y)
        lin = design_product(self.target.dtype, min(bound, 32.0) / 8, order=3)
        rows = self.emit("row dots", [X, Y], (), (lin,), bound=bound)
        return (Term(1.0, self.emit("sum", [((rows, 1.0),)], bound=bound), combine((1.0, e), (1.0, f))),)

    def _sum(self, node: Node) -> Terms:
        source, exponent = self._in_row(node.args[0])
        if not source:
            return ()
        bound = self._bound(source) * math.sqrt(self.n * self._height(source))
        return (Term(1.0, self.emit("sum", [source], bound=bound), exponent),)

    def _mean(self, node: Node) -> Terms:
        count = self.n if node.args[0].kind == "vector" else self.n**2
        return tuple(Term(t.coefficient / count, t.register, t.exponent) for t in self._sum(node))

    def _diag(self, node: Node) -> Terms:
        return self._by_ffn("diag", node, height=1)

    def _diagonal(self, node: Node) -> Terms:
        return self._by_ffn("diagonal", node, height=self.n)

    def _triangle(self, node: Node) -> Terms:
        return self._by_ffn("triangle", node, tuple(node.extra))
