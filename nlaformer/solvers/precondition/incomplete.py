"""Modified incomplete Cholesky without fill that chooses its order and its relaxation by itself.

*Relaxation.* Dropped fill goes, times omega, to the diagonal (Gustafsson 1978). With D, the largest distance of a node
from a row that is diagonally dominant, 1 - omega = 6 / D^2: on a grid of m^2 points the smallest eigenvalue, relative
to the largest, is about 2.5 / D^2, and dropped fill should be lumped up to that.

*Order.* Candidates are tried on four small balls cut out of the graph: each is ordered as it is there, factored, and a
system is *solved*, so that the cost does not depend on n. Reverse Cuthill-McKee from two far-apart corners, and minimum
discarded fill, ordered on the ball alone. On M-matrices the last must take three quarters of the iterations of the
others, since fronts that collide leave rows without a later neighbour, which relaxation cannot lump; elsewhere fewer.

*Breakdown.* A pivot less than half the sum of the others of its row is taken for one: relaxation is omitted, then the
diagonal is shifted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nlaformer.errors import OptionError
from nlaformer.solvers.precondition.rows import Rows

_DOMINANT = 1e-4  # the row sum over the diagonal entry above which a row is taken for one beside the boundary
_BALLS, _BALL = 4, 1200
_WORTH_COMPILING = 3000  # nodes: to load numba takes a third of a second
_MOST = 200  # iterations on the balls
# (relaxed, shift, least pivot over the sum of the others of its row), until one does not break down
_ATTEMPTS = ((True, 0.0, 0.5), (False, 0.0, 0.5), (False, 0.01, 0.25), (False, 0.03, 0.25))
_LAST = tuple((False, shift, 0.0) for shift in (0.03, 0.1, 0.3, 1.0, 10.0, 100.0, 1e4))


def machine() -> ModuleType:
    """The loops: compiled by numba where that is installed."""
    try:
        from nlaformer.solvers.precondition import kernels
    except ImportError:
        from nlaformer.solvers.precondition import levels

        return levels
    return kernels


@dataclass(frozen=True)
class Incomplete:
    """What was chosen, and the factor.

    Attributes
    ----------
    apply : r -> M r
    order : "rcm", "rcm2" (from another corner) or "mdf"
    omega, shift : the relaxation and the shift of the diagonal
    trials : the iterations on the balls, by order
    """

    apply: Callable[[NDArray[Any]], NDArray[Any]]
    order: str
    omega: float
    shift: float
    trials: dict[str, int]

    def __str__(self) -> str:
        tried = ", ".join(f"{name} {count}" for name, count in self.trials.items())
        return (
            f"order {self.order} (iterations on balls of the graph: {tried}), relaxation {self.omega:.6g}, "
            f"shift {self.shift:g}, {machine().NAME}"
        )


def incomplete_cholesky(A: Any, order: str | None = None) -> Incomplete:
    """The factor of a symmetric CSR matrix in canonical format, with the order that was chosen, or a given one."""
    return Candidates.of(A).factor(order)


@dataclass(frozen=True)
class _Factor:
    rows: Rows
    omega: float
    shift: float


def _factored(A: Rows, order: NDArray[Any], omega: float, relaxed: bool = True) -> tuple[_Factor, NDArray[Any]]:
    order = np.ascontiguousarray(order, np.uint32)
    B = machine().permuted(A, order)
    for use, shift, least in (*_ATTEMPTS[0 if relaxed else 1 :], *_LAST):
        found = machine().factor(B, omega if use else 0.0, shift, least)
        if found is not None:
            return _Factor(found, omega if use else 0.0, shift), order
    raise OptionError('M="ic" failed: the incomplete factorization breaks down for every shift of the diagonal')


def relaxation(A: Any, rows: Rows) -> float:
    """1 - omega = 6 / D^2."""
    sums = A @ np.ones(rows.size) / A.diagonal()
    sources = np.flatnonzero(sums > _DOMINANT)
    if 0 < len(sources) <= rows.size // 2:
        D = machine().depth(rows, sources) + 1.0
    else:
        D = max(2.0, machine().cuthill_mckee(rows, 0)[1].max() / 2)
    return float(min(0.4, 6 / D**2))


def m_matrix(A: Any, diagonal: NDArray[Any] | None = None) -> bool:
    """Whether no entry beside the diagonal is positive, up to rounding; the diagonal is."""
    total = float((A.diagonal() if diagonal is None else diagonal).sum())
    positive = (float(A.data.sum()) + float(np.abs(A.data).sum())) / 2
    return positive <= (1 + 1e-6) * total


def dimension(rows: Rows) -> float:
    """That of the space in which the graph lies: d where balls of twice the radius hold 2^d times the nodes."""
    from nlaformer.solvers.precondition import levels

    found, loops = [], levels if rows.size < _WORTH_COMPILING else machine()
    for centre in np.random.default_rng(0).integers(0, rows.size, 5):
        counts = loops.growth(rows, int(centre), rows.size // 32)
        radius = max(len(counts) - 1, 1)
        if len(counts) < 3:  # all is near
            return math.inf if len(counts) == 2 and counts[1] > 32 else 1.0
        half = radius // 2
        found.append(math.log(counts[radius] / counts[half]) / math.log((radius + 0.5) / (half + 0.5)))
    return float(np.median(found))


def _far_apart(rows: Rows) -> list[NDArray[Any]]:
    """The orders of Cuthill and McKee from one or two far-apart nodes, found by distances in the graph alone."""
    search = machine().cuthill_mckee
    order, level = search(rows, int(search(rows, 0)[0][-1]))
    last, degree = np.flatnonzero(level == level.max()), np.diff(rows.p).astype(np.int64)
    opposite = search(rows, int(last[degree[last].argmin()]))[1]
    middle = np.flatnonzero(np.abs(level - opposite) <= 1)
    if len(middle) < 2:
        return [order]
    third = int(middle[search(rows, int(middle[0]))[1][middle].argmax()])
    return [order, search(rows, third)[0]]


@dataclass
class Candidates:
    """The orders, and what each takes on the balls."""

    A: Any
    rows: Rows
    omega: float
    _orders: dict[str, NDArray[Any]] = field(default_factory=dict)
    _counts: dict[tuple[str, bool], int] = field(default_factory=dict)

    @classmethod
    def of(cls, A: Any) -> Candidates:
        """Those of a symmetric CSR matrix in canonical format."""
        rows = Rows.of(A)
        return cls(A, rows, 1 - relaxation(A, rows))

    def factor(self, order: str | None = None) -> Incomplete:
        """The factor in the order that is chosen, or in a given one."""
        choice = self.choose() if order is None else order
        found, nodes = _factored(self.rows, self.order(choice), self.omega)
        if found.omega == 0 and order is None:
            second = self.choose(relaxed=False)
            if second != choice:
                choice = second
                found, nodes = _factored(self.rows, self.order(choice), self.omega)
        apply = machine().sweeps(found.rows, nodes)
        return Incomplete(apply, choice, found.omega, found.shift, self.trials(found.omega))

    def iterations(self, dimension: float, relaxed: bool = True) -> float:
        """What the chosen order may take on the whole: more than on the balls, like n^(1 / 2d), or n^(1 / d) without
        relaxation.
        """
        count = self._count(self.choose(relaxed), relaxed)
        return float(count * max(1.0, self.rows.size / _BALL) ** ((0.5 if relaxed else 1.0) / max(dimension, 1.0)))

    @cached_property
    def names(self) -> list[str]:
        found = dict(zip(("rcm", "rcm2"), _far_apart(self.rows), strict=False))
        self._orders |= {name: order[::-1] for name, order in found.items()}
        return list(found)

    @cached_property
    def is_m_matrix(self) -> bool:
        """Whether no entry beside the diagonal is positive, up to rounding."""
        return m_matrix(self.A)

    @cached_property
    def ball(self) -> tuple[NDArray[Any], Any, Rows]:
        """The nodes of the balls, in increasing order, and the matrix among them."""
        centres = np.random.default_rng(0).integers(0, self.rows.size, _BALLS)
        nodes = machine().balls(self.rows, centres, _BALL)
        inside = self.A[nodes][:, nodes]
        inside.sort_indices()
        return nodes, inside, Rows.of(inside)

    def order(self, name: str) -> NDArray[Any]:
        """The order of the whole."""
        if name == "natural":
            return np.arange(self.rows.size)
        if name == "mdf" and name not in self._orders:
            self._orders[name] = machine().minimum_discarded_fill(self.rows)
        elif name not in self._orders and name not in self.names:
            raise OptionError(f"there is no order named {name}; known: {', '.join(self.names)}, mdf, natural")
        return self._orders[name]

    def choose(self, relaxed: bool = True) -> str:
        """The order that takes least, with a preference that the module's text explains."""
        counts = {name: self._count(name, relaxed) for name in self.names}
        most = max(counts.values())
        best = min(counts, key=lambda name: (round(20 * counts[name] / most), name != "rcm"))
        if machine().minimum_discarded_fill is None:
            return best
        own = self._count("mdf", relaxed)
        if not self.is_m_matrix:
            return best if counts[best] <= own else "mdf"
        if own > 0.75 * counts[best]:
            return best
        # That of the whole graph may be worse on the ball than that of the ball.
        self.order("mdf")
        del self._counts["mdf", relaxed]
        return "mdf" if self._count("mdf", relaxed) <= 0.75 * counts[best] else best

    def trials(self, omega: float) -> dict[str, int]:
        """The iterations by order, of those that were tried with this relaxation."""
        return {name: count for (name, relaxed), count in self._counts.items() if relaxed == (omega > 0)}

    def _count(self, name: str, relaxed: bool) -> int:
        """The iterations on the balls."""
        if (name, relaxed) not in self._counts:
            nodes, inside, rows = self.ball
            if name in self._orders or name in self.names:
                rank = np.empty(self.rows.size, np.int64)
                rank[self._orders[name]] = np.arange(self.rows.size)
                order = np.argsort(rank[nodes])
            else:
                order = machine().minimum_discarded_fill(rows)
            found, order = _factored(rows, order, self.omega, relaxed)
            self._counts[name, relaxed] = count_iterations(inside, machine().sweeps(found.rows, order))
            if relaxed and found.omega == 0:
                self._counts[name, False] = self._counts[name, True]
        return self._counts[name, relaxed]


def count_iterations(A: Any, apply: Callable[[NDArray[Any]], NDArray[Any]], rtol: float = 1e-8) -> int:
    """How many iterations of conjugate gradients a random system takes, up to a limit."""
    r = np.random.default_rng(2).standard_normal(A.shape[0])
    goal = rtol * math.sqrt(r @ r)
    z = apply(r)
    d, rz = z.copy(), float(r @ z)
    for k in range(1, _MOST + 1):
        q = A @ d
        r -= rz / float(d @ q) * q
        if math.sqrt(r @ r) <= goal:
            return k
        z = apply(r)
        rz, before = float(r @ z), rz
        d *= rz / before
        d += z
    return _MOST
