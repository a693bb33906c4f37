"""The state of a solve: where every lane stands. The only place that calls a lane converged.

The methods (``conjugate_gradients``, ``minimal_residuals``, ``guided``) read the state and change it through methods of
``SolveState``. What they lower is g: the residual r = b - A x, or, of least squares, A^T r.

A residual of a recursion drifts away from b - A x. A lane whose running residual meets its target *claims* to have
converged; the true residual of its x is then computed and certified. If that misses the tolerance, the lane goes on
from the true residual with a lower target, until that no longer helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nlaformer.solvers.arithmetic import Array, Number, like, scale, to_numpy
from nlaformer.solvers.certificate import Certificate, certify, norm_of
from nlaformer.solvers.operators import ImplicitOperator, Operator
from nlaformer.solvers.parse import Problem, of_rows
from nlaformer.solvers.result import Status

OTHER_ADJOINT = "c.(A^T r) is not (A c).r: rmatvec is another matrix"
_FAR = 1e16  # |b - A x0| over |b|, more or less: beyond it the rounding of x0 alone is more than b
_APART = 1e-3  # of |A| |c| |r| by which the two may differ
_STRIKES = 3  # claims of one lane that may fail without having halved the true residual
_LARGEST_DETOUR = 60  # claims of one lane that may fail at all


def contradicts(c: Array, q: Array, r: Array, g: Array, reach: Number) -> Any:
    """Whether q = A c and g = A^T r cannot be products with a matrix and its transpose; ``reach`` is about |A|."""
    gap = abs((c * g).sum(-1) - (q * r).sum(-1))
    return gap > _APART * reach * norm_of(c) * norm_of(r)


@dataclass(slots=True)
class Lane:
    """Where one lane stands."""

    tolerance: float
    limit: int  # of its iterations
    status: Status | None = None
    detail: str = ""
    iterations: int = 0
    matvecs: int = 0
    running: float = math.nan  # the norm of the running g
    norm: float = math.nan  # of the x that was judged last
    bound: float = math.nan
    # Its claims
    target: float = 0.0  # the running |g| at which it claims next
    failures: int = 0
    strikes: int = 0  # claims that did not lower the true residual much
    reached: float = math.inf  # the smallest true residual at a failed claim

    def begin(self) -> None:
        """Forget the claims of another method."""
        self.target, self.failures, self.strikes, self.reached = self.tolerance, 0, 0, math.inf

    def end(self, status: Status, detail: str = "") -> None:
        """Give it a status."""
        self.status, self.detail = status, detail


class _Found(NamedTuple):
    """What was found of the x of one lane."""

    holds: bool
    norm: float
    bound: float
    noise: float  # by how much rounding to the user's precision changes the residual


class SolveState:
    """The iterates, running residuals, counts and statuses of all lanes.

    A lane goes on until it has a status. Only ``judge`` gives CONVERGED, and only to an x that passed its certificate
    as it will be returned. ``keep`` stores x, r and d of every iteration.
    """

    def __init__(self, problem: Problem, maxiter: int, callback: Callable[[Any], Any] | None, keep: bool) -> None:
        self.problem, self.maxiter, self.form = problem, maxiter, problem.form
        self._callback, self.keeps = callback, keep
        self.lanes = [Lane(tolerance, maxiter) for tolerance in self.form.list(problem.tolerance)]
        self.x = like(np.zeros((*problem.b.shape[:-1], problem.unknowns)), problem.b)  # (m, n)
        if problem.x0 is not None:
            self.x[...] = problem.x0
        if problem.adjoint is not None:  # the tolerance took a product, the scale of an operator another one
            for lane in self.lanes:
                lane.matvecs = 2 if isinstance(problem.A, ImplicitOperator) else 1
        self.trajectory: list[tuple[Array, Array, Array]] = []
        self.r = self._first_residuals()  # (m, rows of A), running
        self.g = self._first_gradients()  # (m, n), running
        norm = norm_of(self.g)
        for lane, length in zip(self.lanes, self.form.list(norm), strict=True):
            lane.running = length
        self.start = (0.0 if problem.x0 is None else self.x + 0.0, self.r, self.g, self.form.list(norm))
        self.r = self.r + 0.0  # the methods change it in place
        self.g = self.r if problem.adjoint is None else self.g + 0.0
        self._history = [(self.all, [0] * len(self.lanes), [norm])]  # lanes, their k, and |g_k| from there on
        # The smallest running residual that rose again, of every lane, and its x.
        self.held: Number = self.form.numbers([math.inf] * len(self.lanes))
        self.best: Array = None
        self._end_at_x0()

    def _first_residuals(self) -> Array:
        """End the lanes whose input is not finite or whose answer is 0; the residuals of the others."""
        problem, form = self.problem, self.form
        if broken := form.positions(form.no(problem.finite)):
            self.x[form.at(broken)] = math.nan
            self.end(broken, Status.NONFINITE, "A, b or x0 holds NaN or infinity")
        zero = form.dot(problem.b, problem.b) == 0
        if form.some(zero):  # of small numbers the squares are 0 too
            zero = form.peak(problem.b) == 0
        if problem.adjoint is not None and not isinstance(problem.A, ImplicitOperator):
            zero = zero | (form.peak(problem.A.absolute(0 * self.x + 1)) == 0)  # least squares with A = 0
        solved = [lane for lane in form.positions(zero) if self.lanes[lane].status is None]
        if solved:
            self.x[form.at(solved)] = 0.0
            for lane in solved:
                self.lanes[lane].norm = self.lanes[lane].bound = 0.0
            self.end(solved, Status.CONVERGED)
            self.end_affine(solved)
        self._end_other_adjoint()
        r = problem.b
        if problem.x0 is not None and (lanes := self.going()):
            at, r = form.at(lanes), r + 0.0
            r[at] = problem.b[at] - self.apply(lanes, self.x[at])
            near = norm_of(r[at]) < _FAR * norm_of(problem.b[at])  # false for NaN
            if far := form.positions(form.no(near)):
                at = form.at([lanes[k] for k in far])
                self.x[at], r[at] = 0.0, problem.b[at]
        return r

    def end_affine(self, lanes: list[int]) -> None:
        """End lanes with an operator that does not take 0 to 0."""
        if lanes and isinstance(self.problem.A, ImplicitOperator):
            found = self.apply(lanes, self.form.xp.zeros_like(self.x[self.form.at(lanes)]))
            affine = self.form.positions(self.form.peak(found) != 0)
            self.end([lanes[k] for k in affine], Status.NOT_LINEAR, "A applied to 0 is not 0")

    def _end_other_adjoint(self) -> None:
        """End least squares with an operator whose rmatvec contradicts its matvec; A^T r certifies nothing there."""
        problem, form = self.problem, self.form
        if problem.adjoint is None or not isinstance(problem.A, ImplicitOperator) or not (lanes := self.going()):
            return
        one, draws = form.at(lanes[:1]), np.random.default_rng(1)
        c, y = (like(draws.standard_normal(v.shape), v) for v in (self.x[one], problem.b[one]))
        q, g = self.apply(lanes[:1], c), self.gradient(lanes[:1], y)
        self.count_products(lanes[1:], 2)  # the operator is that of all
        reach = max(*form.list(norm_of(q) / norm_of(c)), *form.list(norm_of(g) / norm_of(y)))
        if form.some(contradicts(c, q, y, g, reach)):
            self.end(lanes, Status.NOT_LINEAR, OTHER_ADJOINT)

    def _first_gradients(self) -> Array:
        """What is lowered, where the lanes begin; the residuals themselves unless these are least squares."""
        if self.problem.adjoint is None or not (lanes := self.going()):
            return self.r
        g, at = 0 * self.x, self.form.at(lanes)
        g[at] = self.gradient(lanes, self.r[at])
        return g

    def _end_at_x0(self) -> None:
        """End the lanes whose x0 is a solution, then those whose matrix cannot be positive definite."""
        found = zip(self.lanes, self.start[3], strict=True)
        claims = [k for k, (lane, norm) in enumerate(found) if lane.status is None and norm <= lane.tolerance]
        if claims:
            self.judge(claims)
        for lane, complaint in zip(self.lanes, self.problem.complaint, strict=True):
            if complaint and lane.status is None:
                lane.end(Status.NOT_SPD, complaint)

    # Reading

    @property
    def all(self) -> list[int]:
        """Every lane."""
        return list(range(len(self.lanes)))

    @property
    def watched(self) -> bool:
        """Whether every iterate is shown to a callback or kept."""
        return self._callback is not None or self.keeps

    def going(self, minimal: bool | None = None) -> list[int]:
        """The lanes that have not ended; of one kind, where that is asked for."""
        kinds = self.problem.minimal
        return [
            k for k, lane in enumerate(self.lanes) if lane.status is None and (minimal is None or kinds[k] == minimal)
        ]

    def residuals(self) -> NDArray[np.float64]:
        """|g_k| of every lane in the user's units, (m, K + 1), NaN after its end."""
        if self.form.alone:
            return self._residuals_alone()
        most = max(lane.iterations for lane in self.lanes) + 1
        table = np.full((len(self.lanes), most + 1), np.nan)  # a last step may not count
        for lanes, begun, norms in self._history:
            found = to_numpy(self.form.xp.stack(norms, axis=-1))  # (lanes, steps)
            table[np.array(lanes)[:, None], np.array(begun)[:, None] + np.arange(len(norms))] = found
        for row, lane in zip(table, self.lanes, strict=True):
            if lane.status is Status.CONVERGED:
                row[lane.iterations] = lane.norm
            row[lane.iterations + 1 :] = np.nan
        e = self.problem.exponent
        own: NDArray[np.float64] = scale(table[:, :most], of_rows(e if isinstance(e, int) else np.array(e.tolist())))
        return own

    def _residuals_alone(self) -> NDArray[np.float64]:
        lane = self.lanes[0]
        found = np.array([norm for _, _, norms in self._history for norm in norms][: lane.iterations + 1])
        if lane.status is Status.CONVERGED:
            found[-1] = lane.norm
        own: NDArray[np.float64] = scale(found, self.problem.exponent)
        return own[None]

    # Iterating

    def apply(self, lanes: list[int], v: Array) -> Array:
        """A v of some lanes, counted."""
        self.count_products(lanes)
        return self.problem.A.take(self.form.at(lanes)).apply(v)

    def gradient(self, lanes: list[int], r: Array) -> Array:
        """What is lowered, g, for the residuals r of some lanes; of least squares a product with A^T, counted."""
        if self.problem.adjoint is None:
            return r
        self.count_products(lanes)
        return self.problem.adjoint.take(self.form.at(lanes)).apply(r)

    def count_products(self, lanes: list[int], count: int = 1) -> None:
        """Count products with A, or A^T, for some lanes."""
        if not count:
            return
        for lane in lanes:
            self.lanes[lane].matvecs += count

    def accept(self, lanes: list[int], x: Array, r: Array, g: Array) -> None:
        """Take a step that a model proposed. It does not count against the limit of the classical method."""
        at, norm = self.form.at(lanes), norm_of(g)
        self.keep_before_rise(at, norm_of(self.g[at]), norm, self.x[at])
        self.count(lanes, [norm])
        for lane in lanes:
            self.lanes[lane].limit += 1
        self.show(lanes, x, r, g)

    def count(self, lanes: list[int], norms: list[Number], products: int = 0) -> None:
        """Count iterations of some lanes, whose running g had these norms, and products."""
        if not norms:
            self.count_products(lanes, products)
            return
        begun, steps = [], len(norms)
        for k, norm in zip(lanes, self.form.list(norms[-1]), strict=True):
            lane = self.lanes[k]
            begun.append(lane.iterations + 1)
            lane.iterations += steps
            lane.matvecs += products
            lane.running = norm
        self._history.append((lanes, begun, norms))

    def show(self, lanes: list[int], x: Array, r: Array, g: Array) -> None:
        """Set the iterates and running residuals of some lanes, and call the callback."""
        at = self.form.at(lanes)
        self.x[at] = x
        self.replace(lanes, r, g)
        if self._callback is not None:
            self._callback(self.problem.vectors(self.problem.unscaled(self.x)))

    def replace(self, lanes: list[int], r: Array, g: Array) -> None:
        """Set the running residuals of some lanes."""
        at = self.form.at(lanes)
        self.r[at], self.g[at] = r, g

    def keep(self, lanes: list[int], d: Array) -> None:
        """Store x, r and d of this iteration, if that was asked for; lanes that have ended keep their last d."""
        if self.keeps:
            full = self.trajectory[-1][2] + 0.0 if self.trajectory else 0 * self.x
            if lanes:
                full[self.form.at(lanes)] = d
            self.trajectory.append((self.x + 0.0, self.r + 0.0, full))

    def keep_before_rise(self, at: Any, before: Number, after: Number, x: Array) -> None:
        """Keep x of the lanes whose residual rises from its smallest value so far."""
        if at is ...:
            if before < self.held:
                self.best, self.held = x + 0.0, before
            return
        rising = self.form.no(after < before) & (before < self.held[at])
        if bool(rising.any()):
            self._hold(at[rising], before[rising], x[rising])

    def _hold(self, at: Any, norm: Number, x: Array) -> None:
        """Keep an x of some lanes, and its running residual."""
        if at is ...:
            self.best, self.held = x + 0.0, norm
            return
        self.best = 0 * self.x if self.best is None else self.best
        self.best[at], self.held[at] = x, norm

    def start_again(self, lanes: list[int]) -> None:
        """Put lanes back to where they began, with the full number of iterations."""
        if not lanes:
            return
        at = self.form.at(lanes)
        self.keep_before_rise(at, norm_of(self.g[at]), math.inf + 0 * self.held[at], self.x[at])
        x, r, g, _ = self.start
        self.x[at] = x if isinstance(x, float) else x[at]
        self.replace(lanes, r[at], g[at])
        for lane in (self.lanes[k] for k in lanes):
            lane.limit, lane.status, lane.running = lane.iterations + self.maxiter, None, math.inf

    def reopen(self, lanes: list[int]) -> None:
        """Let lanes go on with another method, from the x of the smallest residual so far."""
        held = self.form.list(self.held)
        for k in lanes:
            lane, one = self.lanes[k], self.form.at([k])
            if held[k] < math.inf and not lane.running < held[k]:
                self.x[one] = self.best[one]
            r = self.problem.b[one] - self.apply([k], self.x[one])
            g = self.gradient([k], r)
            if not self.form.list(norm_of(g))[0] <= self.start[3][k]:
                x, r, g, _ = self.start
                self.x[one], r, g = x if isinstance(x, float) else x[one], r[one], g[one]
            self.replace([k], r, g)
            lane.status, lane.detail, lane.running = None, "", self.form.list(norm_of(g))[0]

    # Ending

    def end(self, lanes: Sequence[int], status: Status, detail: str = "") -> None:
        """Give some lanes a status."""
        for lane in lanes:
            self.lanes[lane].end(status, detail)

    def judge(self, lanes: list[int]) -> tuple[Certificate, list[_Found]]:
        """Certify the present x of some lanes; those that hold end as CONVERGED.

        Returns the certificate of the float64 iterate, as it is and lane by lane.
        """
        form, at = self.form, self.form.at(lanes)
        x = self.x[at]
        returned = self.problem.rounded(x, at)
        found = exact = self._certify(lanes, x)
        noise = [0.0] * len(lanes)
        if returned is not x and not bool((returned == x).all()):
            found = self._certify(lanes, returned)
            noise = form.list(norm_of(found.g - exact.g))
        judged = zip(lanes, form.list(found.holds), form.list(found.norm), form.list(found.bound), strict=True)
        for k, holds, norm, bound in judged:
            lane = self.lanes[k]
            lane.norm, lane.bound = norm, bound
            if holds:
                lane.end(Status.CONVERGED)
        each = (*map(form.list, (exact.holds, exact.norm, exact.bound)), noise)
        return exact, [_Found(*found) for found in zip(*each, strict=True)]

    def claim(self, lanes: list[int], running: Number) -> tuple[Certificate, list[int]]:
        """Certify the x of lanes that claim to have converged with a running |g|, and lower the targets of the others.

        Returns the certificate, and the positions of those that go on from their true residual.
        """
        exact, found = self.judge(lanes)
        again: list[int] = []
        unrounded: list[int] = []
        for position, (own, was) in enumerate(zip(found, self.form.list(running), strict=True)):
            lane = self.lanes[lanes[position]]
            lane.failures += 1
            lane.strikes += not own.norm < 0.5 * lane.reached  # 0 is no less than 0
            lane.reached = min(lane.reached, own.norm)
            if lane.status is not None:
                continue
            if (
                own.holds
            ):  # only rounding to the user's precision is in the way: a smaller residual may leave room for it
                spent = lane.failures > 3 or was == 0  # a residual of 0 cannot fall further
                if spent or own.noise > 0.8 * lane.tolerance:
                    unrounded.append(lanes[position])
                lane.target *= 0.1
            elif lane.strikes > _STRIKES or lane.failures > _LARGEST_DETOUR:
                lane.end(Status.STAGNATED)
            else:
                lane.target *= 0.5
                again.append(position)
        self.end_unrounded(unrounded)
        if again:  # the running residual was not that of this x
            goes_on = [lanes[k] for k in again]
            at, norms = self.form.at(goes_on), [found[k].norm for k in again]
            self._hold(at, self.form.numbers(norms), self.x[at])
            for k, norm in zip(goes_on, norms, strict=True):
                self.lanes[k].running = norm
        return exact, again

    def _certify(self, lanes: list[int], x: Array) -> Certificate:
        """The certificate of an x for some lanes; a LinearOperator is applied to that x in the user's units."""
        problem, at = self.problem, self.form.at(lanes)
        A, adjoint = self._in_units(problem.A, at, problem.exponent_b - problem.exponent_a), None
        if problem.adjoint is not None:
            adjoint = self._in_units(problem.adjoint, at, problem.exponent_b)
        self.count_products(lanes, 1 if adjoint is None else 2)
        tolerance = self.form.numbers([self.lanes[lane].tolerance for lane in lanes])
        return certify(A, problem.b[at], x, tolerance, adjoint)

    def _in_units(self, A: Operator, at: Any, exponent: Any) -> Operator:
        own = A.take(at)
        if not isinstance(own, ImplicitOperator):
            return own
        return own.in_units(exponent if isinstance(exponent, int) else exponent[at])

    def end_unrounded(self, lanes: list[int]) -> None:
        """End lanes whose iterate holds, but not in the user's precision: PRECISION if it holds in float64."""
        if not lanes:
            return
        at = self.form.at(lanes)
        found = self._certify(lanes, self.problem.rounded(self.x[at], at, "float64"))
        for k, holds in zip(lanes, self.form.list(found.holds), strict=True):
            if holds:
                self.lanes[k].end(Status.PRECISION)
            else:
                self.lanes[k].end(Status.NONFINITE, "the answer is outside the range of float64")
