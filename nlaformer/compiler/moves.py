"""Entries, rows and columns in other places, by hard attention: exact, so that a 0 stays 0.

In the graph these are products with vectors and matrices of zeros and ones: e_i . v, M @ e_j, an order of all entries,
a scalar in one place, a mask. A linearized product would leave 1e-13 of the largest entry in every other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from nlaformer.compiler.graph import Node
from nlaformer.compiler.nodes import Nodes
from nlaformer.compiler.terms import Combination, Term, Terms

# Of one head: the token that each token reads, from 1 on, 0 for none; and the rows that go to rows.
Route = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


class Moves(Nodes):
    """Products of which one factor only says where entries go, and rolls.

    ``_as_...`` are None for all other products. A value of no terms, (), is 0 and false too: ask whether it is None.
    """

    def _as_mask(self, one: Node, other: Node) -> Terms | None:
        """Entry by entry, a factor of zeros and ones."""
        mask = _zeros_and_ones(one, self.n)
        if mask is None:
            return None
        own = range(1, self.n + 1)
        columns = [mask] if mask.ndim == 1 else list(mask.T)
        single = other.kind != "matrix"
        routes = [_route(column * own, [(0 if single else k, k)]) for k, column in enumerate(columns)]
        source, exponent = self._in_row(other)
        return self._move(source, exponent, routes, len(columns), tame=self._is_calm(source, other))

    def _as_entry(self, one: Node, other: Node) -> Terms | None:
        """e_i . v, or an entry of a matrix, if v is e_j M or M e_j: the same in every token."""
        place = self._place(one)
        if place is None:
            return None
        row = 0
        if other.op == "matmul" and (second := self._place(other.args[1])) is not None:
            left = other.args[0]
            other, row = (left.args[0], place) if left.op == "transpose" else (left, second)
            place = second if left.op == "transpose" else place
        return self._move(*self._side(other), [_route([place + 1] * self.n, [(row, 0)])], 1)

    def _as_order(self, left: Node, right: Node) -> Terms | None:
        """P X, X P and X e_j with at most a 1 in each row of P, in each column, for the rows and columns of X."""
        own = range(1, self.n + 1)
        order = _zeros_and_ones(left, self.n)
        if order is not None and (order.sum(1) <= 1).all():
            source, exponent = self._in_row(right)
            height = self._height(source) if source else 1
            routes = [_route(order @ own, [(k, k) for k in range(height)])]
            calm = right.kind == "matrix" or bool((order.sum(1) == 1).all() and (order.sum(0) == 1).all())
            # What is left of a vector may be far smaller than it was.
            return self._move(source, exponent, routes, height, **({} if calm else {"tame": False}))
        place = self._place(right)
        if place is not None and left.op == "transpose":  # a row of a matrix
            unit = np.eye(self.n)
            routes = [_route((place + 1) * unit[k], [(k, 0)]) for k in range(self.n)]
            return self._move(*self._in_row(left.args[0]), routes, 1, tame=False)
        if place is not None:
            return self._move(*self._in_row(left), [_route(own, [(place, 0)])], 1, tame=False)
        order = _zeros_and_ones(right, self.n) if right.kind == "matrix" else None
        if order is None or (order.sum(0) > 1).any():
            return None
        pairs = [(int(a), int(z)) for a, z in np.argwhere(order)]
        return self._move(*self._in_row(left), [_route(own, pairs)], self.n)

    def _roll(self, node: Node) -> Terms:
        """Token j reads token j - shift."""
        source, exponent = self._in_row(node.args[0])
        tokens, height = [1 + (j - node.extra) % self.n for j in range(self.n)], self._height(source)
        return self._move(source, exponent, [_route(tokens, [(k, k) for k in range(height)])], height)

    def _as_rolled_columns(self, node: Node) -> Terms | None:
        """The transpose of a roll of a transpose, which is np.roll along axis 1: row k goes to row k + shift."""
        (roll,) = node.args
        if roll.op != "roll" or roll.args[0].op != "transpose":
            return None
        pairs = [(k, (k + roll.extra) % self.n) for k in range(self.n)]
        return self._move(*self._in_row(roll.args[0].args[0]), [_route(range(1, self.n + 1), pairs)], self.n)

    def _as_copies(self, u: Node, v: Node) -> Terms | None:
        """The outer product u v^T, if u or v is a vector of zeros and ones."""
        rows, columns = _zeros_and_ones(u, self.n), _zeros_and_ones(v, self.n)
        if columns is not None:
            pairs = [(0, int(k)) for k in np.flatnonzero(columns)]
            return self._move(*self._in_row(u), [_route(range(1, self.n + 1), pairs)], self.n)
        if rows is None:
            return None
        routes = [_route((k + 1) * rows, [(0, k)]) for k in range(self.n)]
        return self._move(*self._in_row(v), routes, self.n)

    def _place(self, node: Node) -> int | None:
        """The place of the 1 in a unit vector."""
        entries = _zeros_and_ones(node, self.n) if node.kind == "vector" else None
        return int(entries.argmax()) if entries is not None and entries.sum() == 1 else None

    def _move(self, source: Combination, exponent: Combination, routes: list[Route], height: int, **more: Any) -> Terms:
        if not source:
            return ()
        # An entry that is read by many tokens enlarges the norm.
        readers = np.bincount([token for tokens, _ in routes for token in tokens if token], minlength=2)
        room = math.sqrt(readers.max()) if height > 1 else 1.0
        more = {"height": height, "bound": room * self._bound(source), "size": self._size(source), **more}
        return (Term(1.0, self.emit("move", [source], (), tuple(routes), **more), exponent),)


def _route(tokens: Iterable[float], pairs: Iterable[tuple[int, int]]) -> Route:
    return tuple(int(token) for token in tokens), tuple(pairs)


def _zeros_and_ones(node: Node, n: int) -> np.ndarray | None:
    """The numbers of a constant vector or matrix of zeros and ones; None of any other."""
    if node.op in ("transpose", "diagonal"):
        inner = _zeros_and_ones(node.args[0], n)
        return None if inner is None else inner.T if node.op == "transpose" else np.diag(inner)
    if node.kind == "scalar" or node.op not in ("constant", "ones", "identity"):
        return None
    if node.op != "constant":
        return np.eye(n) if node.op == "identity" else np.ones([n] * (1 + (node.kind == "matrix")))
    array = np.asarray(node.extra)
    return array if np.isin(array, (0.0, 1.0)).all() else None
