"""Moves: entries to other places, exactly, so that a 0 stays 0. One router for all of them.

Token j holds row j of an array, row k of P its column k. An entry moves from row l of token s to row k of token j. The
first plan that fits is taken:

as it is   every entry stays where it is
view       whole rows stay in their tokens, k takes l in all of them: no instruction, only other rows are read
Show       no entry leaves its token: masks in an FFN, or a head where that is sooner
Attend     one head for each way of reading tokens, j -> s, that a pair (l, k) has
gathered   each token reads one other token alone: one head, then masks in the FFN of that layer
shifted    else, each token first puts what moves by t = s - j into row t, masks; one head for each shift that occurs,
           masks: two layers, at most n - 1 heads for any move. A transpose is the case it was made for
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from nlaformer.compiler.lower.context import Lowering, lowers, tokens_and_rows
from nlaformer.compiler.lower.facts import is_system_matrix
from nlaformer.compiler.lower.sizes import in_rows, is_calm, side
from nlaformer.compiler.machine.instructions import Attend, Reading, Show, Showing
from nlaformer.compiler.machine.rows import ATTENTION, Range
from nlaformer.compiler.terms import Combination, Term, Terms, add
from nlaformer.program.ir import Node

Ints = np.ndarray[Any, np.dtype[np.int64]]


@lowers("move")
def lower_move(low: Lowering, node: Node) -> Terms:
    """A sum of routed sources: each entry comes from one of them."""
    if is_system_matrix(node):  # the transpose of an input
        (inner,) = node.args
        return (Term(1.0, low.machine.eye, low.input_scale(inner.extra), f"{inner.extra}.T"),)
    parts, first = [], 0
    for source in node.args:
        here = (node.extra >= first) & (node.extra < first + source.size)
        parts.append(routed(low, source, np.where(here, node.extra - first, -1)))
        first += source.size
    return add(*parts)


def routed(low: Lowering, source: Node, positions: Ints) -> Terms:
    """The entries of a value at some positions, in their shape; 0 where a position is negative."""
    if source.op == "constant":
        return low.numbers(np.append(source.extra.ravel(), 0.0)[positions])
    value = low.value(source)
    if not source.shape and low.is_exponential(source):
        chosen = low.numbers((positions >= 0).astype(float))
        return tuple(Term(t.coefficient * c.coefficient, c.register, t.exponent) for t in value for c in chosen)
    move = _Move.of(positions, source.shape, low.n)
    if is_system_matrix(source) and len(move.readings()) > low.n:  # it has a transpose, by the kernel of its logarithms
        across = np.where(positions < 0, -1, positions % low.n * low.n + positions // low.n)
        if _Move.of(across, source.shape, low.n).is_own:
            places = np.arange(source.size).reshape(source.shape).T
            return routed(low, low.graph.move([source], places), across)
    if not len(move.token):
        return ()
    if move.stays:
        return value
    rows, exponent = side(low, source) if not positions.shape else in_rows(low, source)
    if not rows:
        return ()
    moved = _view(low, rows, move) if move.is_view else ((_placed(low, rows, move, source), 1.0),)
    return tuple(Term(c, row, exponent) for row, c in moved)


@dataclass(frozen=True)
class _Move:
    """Entry by entry: the token and row that it comes to, and the token and row that it comes from."""

    n: int
    token: Ints
    row: Ints
    from_token: Ints
    from_row: Ints
    shape: tuple[int, int]  # of the result, in tokens and rows
    source: tuple[int, int]
    ndim: int

    @classmethod
    def of(cls, positions: Ints, source: tuple[int, ...], n: int) -> _Move:
        """A scalar stands in every token, its own copy is as good as any."""
        placed = positions.reshape(tokens_and_rows(positions.shape))
        if not positions.shape:
            placed = np.broadcast_to(placed, (n, 1))
        held = tokens_and_rows(source) if source else (n, 1)
        token, row = np.nonzero(placed >= 0)
        from_token, from_row = np.divmod(placed[token, row], held[1])
        if not source:
            from_token = token
        return cls(n, token, row, from_token, from_row, placed.shape, held, positions.ndim)

    @property
    def is_own(self) -> bool:
        return bool((self.token == self.from_token).all())

    @property
    def is_view(self) -> bool:
        """Whether each row takes one row of the source, in every token where that has anything."""
        if not self.is_own or self.shape[0] < self.source[0]:
            return False
        pairs = {*zip(self.row.tolist(), self.from_row.tolist(), strict=True)}
        return len({k for k, _ in pairs}) == len(pairs) and len(self.token) == len(pairs) * self.source[0]

    @property
    def stays(self) -> bool:
        """Whether the result stands where the source does."""
        same = self.is_view and self.shape[1] == self.source[1] and len(self.token) == np.prod(self.source)
        return same and bool((self.row == self.from_row).all())

    @property
    def is_permutation(self) -> bool:
        return self.shape == self.source and len({*zip(self.from_token, self.from_row, strict=True)}) == np.prod(
            self.shape
        )

    def readings(self) -> list[Reading]:
        """One for each way in which a pair of rows reads tokens."""
        tokens: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0] * self.n)
        for j, k, s, a in self._entries():
            tokens[a, k][j] = s + 1
        pairs: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        for pair, reads in tokens.items():
            pairs[tuple(reads)].append(pair)
        return [(reads, tuple(pairs[reads])) for reads in pairs]

    def showing(self, from_row: Ints | None = None) -> tuple[Showing, ...]:
        """Which rows go to which, and in which tokens."""
        tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        rows = self.from_row if from_row is None else from_row
        for a, z, j in zip(rows.tolist(), self.row.tolist(), self.token.tolist(), strict=True):
            tokens[a, z].append(j)
        return tuple((a, z, tuple(shown)) for (a, z), shown in tokens.items())

    def gathered(self) -> Ints | None:
        """The token that each token reads, if that is one; -1 for none."""
        reads = np.full(self.n, -1)
        reads[self.token] = self.from_token
        return reads if (reads[self.token] == self.from_token).all() else None

    def _entries(self) -> list[tuple[int, int, int, int]]:
        columns = (self.token, self.row, self.from_token, self.from_row)
        return list(zip(*(column.tolist() for column in columns), strict=True))


def _view(low: Lowering, rows: Combination, move: _Move) -> Combination:
    """The same combination of rows of these rows."""
    taken = dict(zip(move.row.tolist(), move.from_row.tolist(), strict=True))
    found = []
    for number, c in rows:
        row = low.machine.rows[number]
        parts = [(number, min(taken[k], row.height - 1)) if k in taken else None for k in range(move.shape[1])]
        calibrated = row.range.calibrated and move.ndim == 2
        found.append((low.machine.view(parts, Range(row.range.bound, row.range.typical, calibrated)), c))
    return tuple(sorted(found))


def _placed(low: Lowering, rows: Combination, move: _Move, source: Node) -> int:
    """The row of an instruction that moves entries."""
    machine, height = low.machine, move.shape[1]
    known = _range(low, rows, move, source)
    readings, gathered = move.readings(), move.gathered()
    # Attention that may read the rows now is half a layer before the FFN.
    by_attention = len(readings) == 1 and machine.ready(machine.roots(rows)) % 2 == ATTENTION
    if move.is_own and not by_attention:
        return machine.add(Show((rows,), move.showing()), height, known)
    if len(readings) > 2 and gathered is not None:
        used = np.unique(move.from_row)
        pairs = tuple((int(a), k) for k, a in enumerate(used))
        showing = move.showing(np.searchsorted(used, move.from_row))
        attend = Attend((rows,), ((tuple(gathered + 1), pairs),), showing)
        return machine.add(attend, height, known, beside=[(len(used), known)])
    if len(readings) <= low.n:
        return machine.add(Attend((rows,), tuple(readings)), height, known)
    return _shifted(low, rows, move, known)


def _shifted(low: Lowering, rows: Combination, move: _Move, known: Range) -> int:
    """By shifts: what moves by t stands in rows of its own, which one head moves."""
    machine, n = low.machine, move.n
    shift = (move.from_token - move.token) % n
    # Of the entries that a token sends by one shift, each has a row of its own.
    slot = np.zeros(len(shift), np.int64)
    sent: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for e, (s, t, a) in enumerate(zip(move.from_token.tolist(), shift.tolist(), move.from_row.tolist(), strict=True)):
        slots = sent[s, t]
        slot[e] = slots.setdefault(a, len(slots))
    lanes, lane = np.unique(np.stack([shift, slot]), axis=1, return_inverse=True)
    lane = lane.ravel()
    tokens: dict[tuple[int, int], set[int]] = defaultdict(set)
    for a, z, s in zip(move.from_row.tolist(), lane.tolist(), move.from_token.tolist(), strict=True):
        tokens[a, z].add(s)
    sorting = Show((rows,), tuple((a, z, tuple(sorted(each))) for (a, z), each in tokens.items()))
    sorted_rows = machine.add(sorting, lanes.shape[1], known)
    readings = []
    for t in np.unique(shift[shift > 0]).tolist():
        reads = tuple(1 + (j + t) % n for j in range(n))
        readings.append((reads, tuple((z, z) for z in np.flatnonzero(lanes[0] == t).tolist())))
    # What does not move is shown from the sorted rows themselves, which come after those that were read.
    attend = Attend(
        (((sorted_rows, 1.0),),), tuple(readings), move.showing(np.where(shift == 0, lanes.shape[1] + lane, lane))
    )
    return machine.add(attend, move.shape[1], known, beside=[(lanes.shape[1], known)])


def _range(low: Lowering, rows: Combination, move: _Move, source: Node) -> Range:
    """An entry that is read by many tokens enlarges the norm; part of a vector, or a row of a matrix, may be small."""
    machine = low.machine
    copies = np.unique(np.stack([move.from_token, move.from_row]), axis=1, return_counts=True)[1].max()
    room = float(np.sqrt(copies)) if move.shape[1] > 1 else 1.0
    calibrated = machine.calibrated(rows)
    if move.ndim == 1 and not move.is_permutation:
        diagonal = move.is_own and move.source[1] > 1
        calibrated = calibrated and (diagonal or (move.is_own and is_calm(low, rows, source)))
    return Range(room * machine.bound(rows), machine.typical(rows), calibrated)


def spread(low: Lowering, node: Node, shape: tuple[int, ...]) -> Terms:
    """A value; of a scalar among arrays, in each of their entries."""
    return low.value(node) if node.shape == shape else routed(low, node, np.zeros(shape, np.int64))


def within_shape(low: Lowering, value: Terms, node: Node) -> Terms:
    """A value of a node that is shorter than the rows of P, with zeros in the other tokens; else as it is."""
    rows = low.stored(value)
    if not low.is_partial(node) or not rows:
        return value
    showing = tuple((k, k, tuple(range(node.shape[0]))) for k in range(low.height(node)))
    return ((Term(1.0, low.machine.add(Show((rows,), showing), low.height(node), low.machine.like(rows)))),)
