"""Conjugate gradients on many lanes: the iteration of section 3, checked against the true residual (``claims``).

After a claim that failed, the iteration restarts from x with the true residual (residual replacement).

After the steps of a model, every direction is kept conjugate to the ones taken there (deflated CG, Saad, Yeung, Erhel
and Guyomarc'h 2000), so that a restart loses little of what they did. They cannot remove what rounding errors
put back into the residual along the model's own, and on badly scaled systems that grows; so every step ends with the
best steps along those, which lower the A-norm of the error and take no product with A.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nlaformer.solvers.certificate import UNIT, norm_of, norm_upper
from nlaformer.solvers.claims import Claims
from nlaformer.solvers.operators import DenseOperator, ImplicitOperator, SparseOperator
from nlaformer.solvers.preconditioners import Identity, Preconditioner
from nlaformer.solvers.result import Status
from nlaformer.solvers.state import SolveState


@dataclass(frozen=True)
class Direction:
    """A direction of earlier steps that new ones are kept conjugate to; zero for lanes that did not use it."""

    d: Tensor  # (m, n)
    q: Tensor  # (m, n) A d
    curvature: Tensor  # (m,) d.A d

    def among(self, lanes: Tensor, count: int) -> Direction:
        """The direction of some lanes as one of ``count`` lanes."""
        parts = (self.d, self.q, self.curvature)
        return Direction(*(part.new_zeros(count, *part.shape[1:]).index_copy_(0, lanes, part) for part in parts))

    def take(self, lanes: Tensor) -> Direction:
        """The direction of some lanes."""
        return Direction(self.d[lanes], self.q[lanes], self.curvature[lanes])

    def coefficient(self, w: Tensor) -> Tensor:
        """The beta for which d - beta * self.d is conjugate to this direction, (m, 1), for w = d; see ``test``."""
        return torch.where(self.curvature > 0, (w * self.q).sum(-1) / self.curvature, 0.0)[:, None]


@dataclass(frozen=True)
class _Together:
    """All directions of earlier steps, conjugate to each other and with d.A d = 1."""

    pairs: Tensor  # (s, K, 2 n) d and A d, side by side: one product with both

    @classmethod
    def of(cls, directions: list[Direction], lanes: Tensor) -> _Together:
        """The directions of some lanes; zero where a lane did not use one."""
        own = [direction.take(lanes) for direction in directions]
        length = torch.stack([one.curvature for one in own], 1).clamp(min=0).sqrt()[..., None]
        pairs = torch.stack([torch.cat([one.d, one.q], -1) for one in own], 1)
        return cls(torch.where(length > 0, pairs / length, 0.0))

    def take(self, at: Tensor) -> _Together:
        """The directions of some lanes."""
        return _Together(self.pairs[at])

    def conjugate(self, z: Tensor) -> Tensor:
        """What is left of z once it is conjugate to all of them."""
        d, q = self.pairs.chunk(2, -1)
        return z - ((q @ z[:, :, None]).mT @ d)[:, 0]

    def step(self, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """The x and r after the best step along each of them."""
        d, _ = self.pairs.chunk(2, -1)
        of_x, of_r = ((d @ r[:, :, None]).mT @ self.pairs)[:, 0].chunk(2, -1)
        return x + of_x, r - of_r


def conjugate_gradients(state: SolveState, M: Preconditioner, directions: list[Direction]) -> None:
    """Take every lane of CG that goes on to its end, conjugate to the directions of the model's steps."""
    lanes = state.going()
    lanes = lanes[~state.problem.minimal[lanes]]
    if not len(lanes):
        state.keep(lanes, state.x[lanes])
        return
    recursion = _Recursion(state, lanes, M, directions)
    state.keep(lanes, recursion.d)
    while True:
        recursion.verify_claims()
        recursion.end_spent()
        if not len(recursion.going):
            return
        recursion.compact()
        recursion.step()


class _Recursion:
    """The recursion of the lanes it works on; lanes that have ended are carried along for a while.

    A lane's x is its own until the lane ends, claims or is watched; then the state gets it.
    """

    def __init__(self, state: SolveState, lanes: Tensor, M: Preconditioner, directions: list[Direction]) -> None:
        self.state, self.lanes, self.going = state, lanes, lanes
        self.alive = torch.ones_like(lanes, dtype=torch.bool)  # (s,) which of the lanes go on
        self.steps_left = 0  # until the first of them may have run out of iterations
        self.A, self.M = state.problem.A.take(lanes), M.take(lanes)
        self.before = _Together.of(directions, lanes) if directions else None
        self.x, self.r = state.x[lanes], state.r[lanes]  # (s, n)
        z = self.M.apply(self.r)
        # (s,) the largest |A d| / |d| and |M r| / |r|, where the entries of A or M are not known
        self.reach_A = torch.zeros_like(state.norm[lanes])
        self.reach_M = _reach(self.M, self.reach_A, self.r, z)
        self.d = self._deflated(z.clone())  # (s, n)
        self.rz, self.norm = (self.r * z).sum(-1), norm_upper(self.r)  # (s,)
        self.claims = Claims(state, lanes)

    def step(self) -> None:
        """One iteration of (preconditioned) conjugate gradients, section 3."""
        state = self.state
        q = self.A.apply(self.d)
        state.count_product(self.going)
        self.reach_A = _reach(self.A, self.reach_A, self.d, q)
        curvature = (self.d * q).sum(-1)
        alpha = self.rz / curvature
        if bool((self.alive & ~((self.rz > 0) & (curvature > 0) & torch.isfinite(alpha))).any()):
            self._end_breakdowns(curvature)
        alpha = torch.where(self.alive, alpha, 0.0)[:, None]
        x, r = self.x + alpha * self.d, self.r - alpha * q
        if self.before is not None:
            x, r = self.before.step(x, r)
        z = self.M.apply(r)
        self.reach_M = _reach(self.M, self.reach_M, r, z)
        rz, norm = (r * z).sum(-1), norm_of(r)
        self._end(self.alive & ~torch.isfinite(rz + norm), Status.NONFINITE, "the iteration left float64")
        state.keep_before_rise(self.lanes, self.alive, norm, self.x)
        self.x = x
        self.d = self._deflated(z) + (rz / self.rz)[:, None] * self.d
        self.r, self.rz, self.norm = r, rz, norm
        state.count_iteration(self.going, norm if len(self.going) == len(norm) else norm[self.alive])
        if state.watched:
            state.show(self.going, self.x[self.alive], self.r[self.alive], self.r[self.alive])
            state.keep(self.going, self.d[self.alive])

    def verify_claims(self) -> None:
        """Check the lanes that claim to have converged by their true residual."""
        at = (self.alive & (self.norm <= self.claims.target)).nonzero()[:, 0]
        if not len(at):
            return
        verdict = self.claims.judge(at, self.lanes[at], self.x[at], self.norm[at])
        self._stop(torch.zeros_like(self.alive).index_fill(0, at[verdict.ended], True))
        if bool(verdict.again.any()):  # from x with its true residual
            at, r = at[verdict.again], verdict.exact.r[verdict.again]
            self.r[at] = r
            z = self.M.apply(self.r)
            self.d[at], self.rz[at], self.norm[at] = self._deflated(z)[at], (r * z[at]).sum(-1), norm_upper(r)

    def end_spent(self) -> None:
        """End the lanes that are out of iterations."""
        if self.steps_left > 0:
            self.steps_left -= 1
            return
        left = self.state.limit[self.lanes] - self.state.iterations[self.lanes]
        self._end(self.alive & (left <= 0), Status.MAXITER)
        if len(self.going):
            self.steps_left = int(left[self.alive].min()) - 1

    def compact(self) -> None:
        """Drop the lanes that have ended. Copying the other matrices pays once half of the lanes have ended."""
        if 2 * len(self.going) > len(self.lanes):
            return
        at = self.alive.nonzero()[:, 0]
        self.A, self.M = self.A.take(at), self.M.take(at)
        self.before = self.before and self.before.take(at)
        self.x, self.r, self.d = self.x[at], self.r[at], self.d[at]
        self.rz, self.norm = self.rz[at], self.norm[at]
        self.claims.keep(at)
        self.reach_A, self.reach_M = self.reach_A[at], self.reach_M[at]
        self.lanes, self.alive = self.going, self.alive[at]

    def _end(self, which: Tensor, status: Status, detail: str = "") -> None:
        """End some lanes with the x they have."""
        if bool(which.any()):
            self.state.end(self.lanes[which], status, detail, self.x[which])
            self._stop(which)

    def _stop(self, which: Tensor) -> None:
        """Take no more steps on some lanes."""
        self.alive = self.alive & ~which
        self.going = self.lanes[self.alive]

    def _deflated(self, z: Tensor) -> Tensor:
        """Make z conjugate to the directions of the model's steps."""
        return z if self.before is None else self.before.conjugate(z)

    def _end_breakdowns(self, curvature: Tensor) -> None:
        """End the lanes that cannot take a step, and say why; not definite is what no rounding error explains."""
        rz, plain, size = self.rz, isinstance(self.M, Identity), self.d.abs().amax(-1)
        broken = ~((rz > 0) & (curvature > 0) & torch.isfinite(rz / curvature))
        bent = curvature < -_rounding(self.A, self.d, self.reach_A)
        skewed = torch.zeros_like(broken) if plain else rz < -_rounding(self.M, self.r, self.reach_M)
        missed = torch.zeros_like(broken) if plain else (rz <= 0) & self._loses_under_M()
        cases = (
            (~torch.isfinite(rz + curvature), Status.NONFINITE, "a product with A or M is not finite"),
            (skewed, Status.NOT_SPD, "a residual with r.M r < 0 was found: M is not positive definite"),
            (missed, Status.NOT_SPD, "M e = 0 for a unit vector e: M is not positive definite"),
            (rz <= 0, Status.STAGNATED, f"r.{'' if plain else 'M '}r cannot be told from zero"),
            (size < 1e-150, Status.STAGNATED, "d.A d cannot be told from zero; scale M"),
            (bent, Status.NOT_SPD, "d.A d < 0 for a direction d"),
            (curvature <= 0, Status.STAGNATED, "d.A d cannot be told from zero"),
            (~torch.isfinite(rz / curvature), Status.NONFINITE, "the iteration left float64"),
        )
        for which, status, detail in cases:
            self._end(broken & self.alive & which, status, detail)

    def _loses_under_M(self) -> Tensor:
        """Whether M e = 0 for the unit vector e that is nearest to the residual."""
        e = torch.nn.functional.one_hot(self.r.abs().argmax(-1), self.r.shape[-1]).to(self.r)
        return (self.r != 0).any(-1) & (self.M.apply(e) == 0).all(-1)


def _reach(A: Preconditioner, reach: Tensor, v: Tensor, product: Tensor) -> Tensor:
    """The largest |A v| / |v| of every lane so far, for operators whose entries are not known."""
    if isinstance(A, Identity | DenseOperator | SparseOperator):
        return reach
    return torch.fmax(reach, norm_of(product) / norm_of(v))


def _rounding(A: Preconditioner, v: Tensor, reach: Tensor) -> Tensor:
    """More than rounding errors and underflow can make of v.A v, in each lane.

    ``reach`` is the largest |A v| / |v| seen, at most |A|: what is known of an operator whose entries are not.
    """
    size, n = v.abs(), v.shape[-1]
    underflow = 2.0**-1060 * n**2 * (1 + size.sum(-1)).square()
    if isinstance(A, DenseOperator | SparseOperator):
        return 2 * (A.terms + n + 2) * UNIT * (size * A.absolute(size)).sum(-1) + underflow
    unit = A.unit if isinstance(A, ImplicitOperator) else UNIT
    return 2 * (2 * n + 2) * unit * reach * size.square().sum(-1) + underflow
