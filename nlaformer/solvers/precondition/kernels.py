"""The loops of an incomplete factorization, compiled by numba.

Every index is unsigned: numba checks a signed one for counting from the end, which makes a sweep 2.3 times as long.
With unsigned indices it takes as long as the same loop in C. ``levels`` has the same functions without numba.

Rows of A are given as pointers p (n + 1, uint64), columns j (unsigned) and values v, sorted, with all diagonal entries.
An order is an array of nodes, the first to be eliminated first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nlaformer.solvers.precondition.rows import Rows

ONE = np.uint64(1)
NAME = "compiled by numba"


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled on the first call; kept on the disk where there is a place for it."""
    options: dict[str, Any] = dict(nogil=True, error_model="numpy")
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba finds no folder that it may write to
        return njit(**options)(function)


# Orders and distances


def cuthill_mckee(A: Rows, root: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Nodes breadth-first from a root, neighbours by increasing degree; and their distances from it."""
    return _cuthill_mckee(A.p, A.j, root)


@_compiled
def _cuthill_mckee(p, j, root):  # type: ignore[no-untyped-def]
    n = len(p) - 1
    order, level = np.empty(n, np.uint32), np.full(n, -1, np.int32)
    head, tail, unseen = 0, 0, 0
    while tail < n:
        while tail and level[unseen] >= 0:  # the next connected part
            unseen += 1
        order[tail] = unseen if tail else root
        level[order[tail]] = 0
        tail += 1
        while head < tail:
            u = order[head]
            head += 1
            first = tail
            for k in range(p[u], p[u + ONE]):
                x = j[k]
                if level[x] < 0:
                    level[x] = level[u] + 1
                    degree, at = p[x + ONE] - p[x], tail
                    while at > first and p[order[at - 1] + ONE] - p[order[at - 1]] > degree:
                        order[at] = order[at - 1]
                        at -= 1
                    order[at] = x
                    tail += 1
    return order, level


def depth(A: Rows, sources: NDArray[Any]) -> int:
    """The largest distance of a node from the nearest of the sources."""
    return int(_depth(A.p, A.j, sources.astype(np.uint32)))


@_compiled
def _depth(p, j, sources):  # type: ignore[no-untyped-def]
    n = len(p) - 1
    order, level = np.empty(n, np.uint32), np.full(n, -1, np.int32)
    head, tail = 0, len(sources)
    for k in range(tail):
        order[k] = sources[k]
        level[sources[k]] = 0
    while head < tail:
        u = order[head]
        head += 1
        for k in range(p[u], p[u + ONE]):
            x = j[k]
            if level[x] < 0:
                level[x] = level[u] + 1
                order[tail] = x
                tail += 1
    return level[order[tail - 1]]


def growth(A: Rows, centre: int, most: int) -> NDArray[Any]:
    """How many nodes are nearer to a node than 1, 2, ..., until there are ``most``."""
    found: NDArray[Any] = _growth(A.p, A.j, centre, most)
    return found


@_compiled
def _growth(p, j, centre, most):  # type: ignore[no-untyped-def]
    n = len(p) - 1
    seen, order, counts = np.zeros(n, np.uint8), np.empty(n, np.int64), [0]
    order[0], seen[centre] = centre, 1
    head, tail = 0, 1
    while head < tail < most:
        counts.append(tail)
        end = tail
        while head < end:
            u = order[head]
            head += 1
            for k in range(p[u], p[u + 1]):
                x = j[k]
                if not seen[x]:
                    seen[x] = 1
                    order[tail] = x
                    tail += 1
    counts.append(tail)
    return np.array(counts[1:])


def balls(A: Rows, centres: NDArray[Any], size: int) -> NDArray[Any]:
    """The ``size`` nodes nearest to each centre that no earlier ball holds."""
    return _balls(A.p, A.j, centres, size)


@_compiled
def _balls(p, j, centres, size):  # type: ignore[no-untyped-def]
    n = len(p) - 1
    seen, found = np.zeros(n, np.uint8), np.empty(min(n, len(centres) * size), np.int64)
    head, tail = 0, 0
    for centre in centres:
        if seen[centre]:
            continue
        most = min(len(found), tail + size)
        if tail < most:
            found[tail] = centre
            seen[centre] = 1
            tail += 1
        while head < tail:
            u = found[head]
            head += 1
            for k in range(p[u], p[u + 1]):
                x = j[k]
                if not seen[x] and tail < most:
                    seen[x] = 1
                    found[tail] = x
                    tail += 1
    return np.sort(found[:tail])


def minimum_discarded_fill(A: Rows) -> NDArray[Any]:
    """The order that eliminates next the node whose elimination discards least (D'Azevedo, Forsyth and Tang 1992).

    What a node discards is the sum of (a_ij a_ik / a_ii)^2 over its remaining neighbours j, k that are not adjacent,
    over the square of its first diagonal entry. Nodes wait in buckets by powers of 2^(1/4).
    """
    return _minimum_discarded_fill(A.p, A.j, A.v)


@_compiled
def _minimum_discarded_fill(p, j, v):  # type: ignore[no-untyped-def]
    n, buckets = len(p) - 1, 160
    v, order, done, mark = v.copy(), np.empty(n, np.uint32), np.zeros(n, np.uint8), np.zeros(n, np.uint64)
    first, diagonal = np.empty(n), np.empty(n)
    head, tail = np.full(buckets, -1), np.full(buckets, -1)
    bucket, after, before = np.zeros(n, np.int64), np.full(n, -1), np.full(n, -1)
    low = 0
    for row in range(n):
        for k in range(p[row], p[row + 1]):
            if j[k] == row:
                diagonal[row] = first[row] = v[k]
    for step in range(n + 1):
        if step:
            while head[low] < 0:
                low += 1
            c = head[low]
            head[low] = after[c]
            if after[c] >= 0:
                before[after[c]] = -1
            else:
                tail[low] = -1
            done[c] = 1
            order[step - 1] = c
            start, end = p[c], p[c + 1]
            for a in range(start, end):  # eliminate c within the pattern
                i = j[a]
                if done[i]:
                    continue
                f = v[a] / diagonal[c]
                diagonal[i] -= f * v[a]
                for q in range(p[i], p[i + ONE]):
                    mark[j[q]] = q + ONE
                for b in range(start, end):
                    if j[b] != i and not done[j[b]] and mark[j[b]]:
                        v[mark[j[b]] - ONE] -= f * v[b]
                for q in range(p[i], p[i + ONE]):
                    mark[j[q]] = 0
        else:
            start, end = np.uint64(0), np.uint64(n)
        for a in range(start, end):  # what its neighbours would discard now, at first all nodes
            i = j[a] if step else np.uint32(a)
            if done[i]:
                continue
            total = 0.0
            for q in range(p[i], p[i + ONE]):
                x = j[q]
                if x == i or done[x] or v[q] == 0:
                    continue
                for r in range(p[x], p[x + ONE]):
                    mark[j[r]] = 1
                s = 0.0
                for r in range(p[i], q):
                    y = j[r]
                    if y != i and not done[y] and not mark[y]:
                        s += v[r] * v[r]
                total += v[q] * v[q] * s
                for r in range(p[x], p[x + ONE]):
                    mark[j[r]] = 0
            total /= (diagonal[i] * first[i]) ** 2
            new = 0
            if total > 1e-12:
                new = min(max(int(4 * (np.log2(total) + 39.9)), 0), buckets - 1)
            if step:
                old = bucket[i]
                if old == new:
                    continue
                if before[i] >= 0:
                    after[before[i]] = after[i]
                else:
                    head[old] = after[i]
                if after[i] >= 0:
                    before[after[i]] = before[i]
                else:
                    tail[old] = before[i]
            bucket[i], after[i], before[i] = new, -1, tail[new]
            if tail[new] >= 0:
                after[tail[new]] = i
            else:
                head[new] = i
            tail[new] = i
            low = min(low, new)
    return order


# Factors


def permuted(A: Rows, order: NDArray[Any]) -> Rows:
    """The rows and columns in another order, sorted."""
    rank = np.empty(len(order), A.j.dtype)
    rank[order] = np.arange(len(order), dtype=A.j.dtype)
    return Rows(*_permuted(A.p, A.j, A.v, order, rank))


@_compiled
def _permuted(p, j, v, order, rank):  # type: ignore[no-untyped-def]
    n = len(order)
    p2, j2, v2 = np.empty_like(p), np.empty_like(j), np.empty_like(v)
    p2[0] = 0
    for i in range(n):
        start = at = p2[i]
        for k in range(p[order[i]], p[order[i] + ONE]):
            x, a = rank[j[k]], at
            while a > start and j2[a - ONE] > x:
                j2[a], v2[a] = j2[a - ONE], v2[a - ONE]
                a -= ONE
            j2[a], v2[a] = x, v[k]
            at += ONE
        p2[i + 1] = at
    return p2, j2, v2


def factor(A: Rows, omega: float, shift: float, least: float) -> Rows | None:
    """The rows of D + U of the modified incomplete Cholesky factorization (D + U)^T D^-1 (D + U) of A + shift diag(A).

    Fill outside the pattern is dropped, and omega times it is taken from the diagonal. None where a diagonal entry is
    less than ``least`` times the sum of the others of its row, or hardly above zero.
    """
    v = A.v.copy()
    if not _factor(A.p, A.j, v, omega, shift, least):
        return None
    return Rows(*_upper(A.p, A.j, v))


@_compiled
def _factor(p, j, v, omega, shift, least):  # type: ignore[no-untyped-def]
    n = len(p) - 1
    mark, diagonal = np.zeros(n, np.uint64), np.empty(n, np.uint64)
    for i in range(n):
        start, end, middle = p[i], p[i + 1], p[i]
        while j[middle] < i:
            middle += ONE
        diagonal[i] = middle
        for k in range(start, end):
            mark[j[k]] = k + ONE
        v[middle] *= 1 + shift
        whole, dropped, rest = v[middle], 0.0, 0.0
        for k in range(start, middle):
            c = j[k]
            f, lost = v[k] / v[diagonal[c]], 0.0
            for q in range(diagonal[c] + ONE, p[c + ONE]):
                at = mark[j[q]]
                if at:
                    v[at - ONE] -= f * v[q]
                else:
                    lost += v[q]
            dropped += f * lost
        for k in range(middle + ONE, end):
            rest += abs(v[k])
        v[middle] -= omega * dropped
        for k in range(start, end):
            mark[j[k]] = 0
        if not v[middle] > max(1e-8 * whole, least * rest):
            return False
    return True


@_compiled
def _upper(p, j, v):  # type: ignore[no-untyped-def]
    n = len(p) - 1
    p2, j2, v2 = np.empty_like(p), np.empty_like(j), np.empty_like(v)
    at = np.uint64(0)
    p2[0] = 0
    for i in range(n):
        for k in range(p[i], p[i + 1]):
            if j[k] >= i:
                j2[at], v2[at] = j[k], v[k]
                at += ONE
        p2[i + 1] = at
    return p2, j2[:at].copy(), v2[:at].copy()


def sweeps(T: Rows, order: NDArray[Any] | None) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """The function r -> (T^T D^-1 T)^-1 r; rows of an upper triangle T with the diagonal D, and an order of them."""
    n = len(T.p) - 1
    inverse = 1 / T.v[T.p[:-1]]
    work, any_order = np.empty(n), np.arange(0 if order is None else n, dtype=np.uint32)
    any_order = any_order if order is None else order

    def apply(r: NDArray[Any]) -> NDArray[Any]:
        y = np.empty(n)
        _sweeps(T.p, T.j, T.v, inverse, any_order, r, work, y)
        return y

    return apply


@_compiled
def _sweeps(p, j, v, inverse, order, r, w, y):  # type: ignore[no-untyped-def]
    n, moved = len(inverse), len(order) > 0
    if moved:
        for i in range(n):
            w[i] = r[order[i]]
    else:
        w[:] = r
    for i in range(n):
        t = w[i] * inverse[i]
        for k in range(p[i] + ONE, p[i + 1]):
            w[j[k]] -= t * v[k]
    for back in range(n):
        i = n - 1 - back
        s = w[i]
        for k in range(p[i] + ONE, p[i + 1]):
            s -= v[k] * w[j[k]]
        w[i] = s * inverse[i]
        if moved:
            y[order[i]] = w[i]
    if not moved:
        y[:] = w
