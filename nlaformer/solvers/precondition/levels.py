"""The functions of ``kernels`` on NumPy and SciPy alone: a level of the graph at a time in the place of a node.

Rows that do not depend on each other make a level, and are eliminated together. The triangles are applied by SuperLU,
which finds nothing to eliminate in them. There is no order of minimum discarded fill here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nlaformer.solvers.precondition.rows import Rows

NAME = "in SciPy, without numba: an application takes about five times as long, the set-up ten; install nlaformer[fast]"
minimum_discarded_fill = None


def _entries(A: Rows, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The positions of all entries of some rows, and for each which of the rows it is in."""
    start, length = A.p[rows].astype(np.int64), (A.p[rows + 1] - A.p[rows]).astype(np.int64)
    of = np.repeat(np.arange(len(rows)), length)
    return np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length) + start[of], of


def _breadth_first(A: Rows, sources: NDArray[Any], most: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Nodes in the order of Cuthill and McKee from some sources, until ``most`` are found; and their distances."""
    level, degree = np.full(A.size, -1, np.int32), np.diff(A.p).astype(np.int64)
    level[sources] = 0
    order, front = [sources], sources
    found = len(sources)
    while len(front) and found < most:
        at, parent = _entries(A, front)
        nodes = A.j[at].astype(np.int64)
        fresh = level[nodes] < 0
        nodes, first = np.unique(nodes[fresh], return_index=True)
        front = nodes[np.lexsort((degree[nodes], parent[fresh][first]))]
        level[front] = level[order[-1][0]] + 1
        found += len(front)
        order.append(front)
    return np.concatenate(order[:-1] if not len(front) and len(order) > 1 else order), level


def cuthill_mckee(A: Rows, root: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Nodes breadth-first from a root, neighbours by increasing degree; and their distances from it."""
    order, level = _breadth_first(A, np.array([root]), A.size)
    return np.concatenate([order, np.flatnonzero(level < 0)]), level


def depth(A: Rows, sources: NDArray[Any]) -> int:
    """The largest distance of a node from the nearest of the sources."""
    return int(_breadth_first(A, sources, A.size)[1].max())


def growth(A: Rows, centre: int, most: int) -> NDArray[Any]:
    """How many nodes are nearer to a node than 1, 2, ..., until there are ``most``."""
    level = _breadth_first(A, np.array([centre]), most)[1]
    return np.cumsum(np.bincount(level[level >= 0]))


def balls(A: Rows, centres: NDArray[Any], size: int) -> NDArray[Any]:
    """About ``size`` nodes nearest to each centre, of all centres together."""
    return np.unique(np.concatenate([_breadth_first(A, np.array([c]), min(size, A.size))[0][:size] for c in centres]))


def permuted(A: Rows, order: NDArray[Any]) -> Rows:
    """The rows and columns in another order, sorted."""
    found = A.csr[order][:, order]
    found.sort_indices()
    return Rows.of(found)


def factor(A: Rows, omega: float, shift: float, least: float) -> Rows | None:
    """The same as in ``kernels``."""
    import scipy.sparse as sp

    upper = sp.triu(A.csr, format="csr")
    upper.sort_indices()
    n, p, j, v = A.size, upper.indptr.astype(np.int64), upper.indices.astype(np.int64), upper.data.copy()
    v[p[:-1]] *= 1 + shift
    whole = v[p[:-1]].copy()
    row = np.repeat(np.arange(n), np.diff(p))
    level = _levels(p, j, row)
    one, two = _pairs(p, row)
    # The pairs of entries (k, i), (k, l) of a row that change the entry (i, l), or the two diagonals if there is none.
    key, wanted = row * n + j, j[one] * n + j[two]
    target = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    kept = key[target] == wanted
    turn = np.argsort(level[row[one]], kind="stable")
    ends = np.searchsorted(level[row[one]][turn], np.arange(level.max(initial=0) + 2))
    with np.errstate(all="ignore"):
        for start, end in pairwise(ends):
            now = turn[start:end]
            fill = v[one[now]] * v[two[now]] / v[p[row[one[now]]]]
            stays = kept[now]
            np.subtract.at(v, target[now[stays]], fill[stays])
            lost, at = omega * fill[~stays], now[~stays]
            np.subtract.at(v, p[j[one[at]]], lost)
            np.subtract.at(v, p[j[two[at]]], lost)
        rest = np.bincount(row, np.abs(v), n) - np.abs(v[p[:-1]])
        sound = bool((v[p[:-1]] > np.maximum(1e-8 * whole, least * rest)).all())
    return Rows.of(sp.csr_matrix((v, upper.indices, upper.indptr), shape=upper.shape)) if sound else None


def _levels(p: NDArray[Any], j: NDArray[Any], row: NDArray[Any]) -> NDArray[Any]:
    """The length of the longest path of entries above the diagonal that ends at each row."""
    n = len(p) - 1
    upper = Rows(p, j, row)
    waits = np.bincount(j, minlength=n) - 1  # for so many rows; its own diagonal entry is not one
    level, front = np.zeros(n, np.int64), np.flatnonzero(waits == 0)
    depth = 0
    while len(front):
        level[front] = depth
        columns = j[_entries(upper, front)[0]]
        np.subtract.at(waits, columns, 1)
        columns = np.unique(columns)
        front = columns[(waits[columns] == 0) & ~np.isin(columns, front)]
        depth += 1
    return level


def _pairs(p: NDArray[Any], row: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The positions of every two entries to the right of the diagonal of the same row, each also with itself."""
    at = np.flatnonzero(np.arange(len(row)) > p[row])
    ones, twos = [], []
    for apart in range(int(np.diff(p).max(initial=1)) - 1):
        at = at[at + apart < p[row[at] + 1]]
        ones.append(at)
        twos.append(at + apart)
    return (np.concatenate(ones), np.concatenate(twos)) if ones else (at[:0], at[:0])


def sweeps(T: Rows, order: NDArray[Any] | None) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """The function r -> (T^T D^-1 T)^-1 r; rows of an upper triangle T with the diagonal D, and an order of them."""
    from scipy.sparse.linalg import splu

    triangle = T.csr
    diagonal = triangle.diagonal()
    lower = splu(triangle.T.tocsc(), permc_spec="NATURAL", diag_pivot_thresh=0.0, options=dict(SymmetricMode=True))

    def apply(r: NDArray[Any]) -> NDArray[Any]:
        w = lower.solve(diagonal * lower.solve(r if order is None else r[order]), trans="T")
        if order is None:
            return w
        y = np.empty_like(w)
        y[order] = w
        return y

    return apply
