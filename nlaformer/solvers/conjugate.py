"""Conjugate gradients on many lanes, eq. (CGalg), with an eye on the true residual.

The recursion's residual drifts away from b - A x. When it claims convergence, the true one is computed; if that
misses, the iteration starts again from x (residual replacement), until starting again no longer helps.

After a model's part, every direction is kept conjugate to the ones taken there (deflated CG, Saad, Yeung, Erhel and
Guyomarc'h 2000), so that starting again loses little of what they did.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from nlaformer.solvers.certificate import UNIT, norm_of, norm_upper
from nlaformer.solvers.operators import Operator
from nlaformer.solvers.preconditioners import Identity, Preconditioner
from nlaformer.solvers.progress import Progress
from nlaformer.solvers.result import Status

_STRIKES = 3  # claims of one lane that may fail without having halved the true residual
_LARGEST_DETOUR = 60  # claims of one lane that may fail at all


@dataclass(frozen=True)
class Direction:
    """A direction of earlier steps that new ones are kept conjugate to; zero for the lanes that have none."""

    d: Tensor  # (m, n)
    q: Tensor  # (m, n) A d
    curvature: Tensor  # (m,) d.A d

    def without(self, lanes: Tensor) -> Direction:
        """The direction, forgotten for some lanes."""
        return Direction(*(part.index_fill(0, lanes, 0.0) for part in (self.d, self.q, self.curvature)))

    def among(self, lanes: Tensor, count: int) -> Direction:
        """The direction of some lanes as one of ``count`` lanes."""
        parts = (self.d, self.q, self.curvature)
        return Direction(*(part.new_zeros(count, *part.shape[1:]).index_copy_(0, lanes, part) for part in parts))

    def take(self, lanes: Tensor) -> Direction:
        return Direction(self.d[lanes], self.q[lanes], self.curvature[lanes])

    def conjugate(self, d: Tensor, q: Tensor | None = None) -> tuple[Tensor, Any]:
        """Make d conjugate to this direction; A d with it, where it is known."""
        beta = torch.where(self.curvature > 0, (d * self.q).sum(-1) / self.curvature, 0.0)[:, None]
        return d - beta * self.d, None if q is None else q - beta * self.q


@dataclass
class _Search:
    """The recursion's state for the lanes it works on; those that have ended are carried along for a while."""

    lanes: Tensor  # (s,)
    alive: Tensor  # (s,) which of them are going
    going: Tensor  # those
    left: int  # steps until the first of them may have run out of iterations
    A: Operator
    M: Preconditioner
    x: Tensor  # (s, n)
    r: Tensor  # (s, n)
    d: Tensor  # (s, n)
    rz: Tensor  # (s,)
    norm: Tensor  # (s,) |r|
    target: Tensor  # (s,) what the recursion's residual must reach before it claims
    failures: Tensor  # (s,)
    reached: Tensor  # (s,) the smallest true residual at a failed claim
    strikes: Tensor  # (s,) failed claims that did not lower it much
    directions: list[Direction]

    def compact(self) -> None:
        """Go on with the lanes that are alive alone."""
        at = self.alive.nonzero()[:, 0]
        self.A, self.M = self.A.take(at), self.M.take(at)
        self.directions = [direction.take(at) for direction in self.directions]
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor) and value is not self.going:
                setattr(self, field.name, value[at])
        self.lanes = self.going

    def stop(self, which: Tensor) -> None:
        """Leave some lanes as they are from now on."""
        self.alive = self.alive & ~which
        self.going = self.lanes[self.alive]

    def restart(self, at: Tensor, r: Tensor) -> None:
        """Begin again from x with its true residual."""
        self.r[at] = r
        z = self.M.apply(self.r)
        self.d[at], self.rz[at], self.norm[at] = self.deflated(z)[at], (r * z[at]).sum(-1), norm_upper(r)

    def deflated(self, z: Tensor) -> Tensor:
        for direction in self.directions:
            z, _ = direction.conjugate(z)
        return z


def conjugate_gradients(progress: Progress, M: Preconditioner, directions: list[Direction]) -> None:
    """Take every lane that is going to its end, conjugate to the directions that the model's part has taken."""
    lanes = progress.going()
    if not len(lanes):
        progress.follow(lanes, progress.x[lanes])
        return
    search = _begin(progress, lanes, M, directions)
    progress.follow(search.lanes, search.d)
    while True:
        _verify_claims(progress, search)
        _end_spent(progress, search)
        if not len(search.going):
            return
        # Copying the matrices of the lanes that go on pays once half of them have ended.
        if 2 * len(search.going) <= len(search.lanes):
            search.compact()
        _step(progress, search)


def _begin(progress: Progress, lanes: Tensor, M: Preconditioner, directions: list[Direction]) -> _Search:
    problem, M = progress.problem, M.take(lanes)
    r, target = progress.r[lanes], problem.tolerance[lanes]
    z = M.apply(r)
    search = _Search(
        lanes=lanes,
        going=lanes,
        left=0,
        alive=torch.ones_like(lanes, dtype=torch.bool),
        A=problem.A.take(lanes),
        M=M,
        x=progress.x[lanes],
        r=r,
        d=z.clone(),
        rz=(r * z).sum(-1),
        norm=norm_upper(r),
        target=target.clone(),
        failures=torch.zeros_like(lanes),
        reached=torch.full_like(target, torch.inf),
        strikes=torch.zeros_like(lanes),
        directions=[direction.take(lanes) for direction in directions],
    )
    search.d = search.deflated(search.d)
    return search


def _end(progress: Progress, search: _Search, which: Tensor, status: Status, detail: str = "") -> None:
    """End some lanes with the x they have."""
    if bool(which.any()):
        lanes = search.lanes[which]
        progress.x[lanes] = search.x[which]
        progress.end(lanes, status, detail)
        search.stop(which)


def _end_spent(progress: Progress, search: _Search) -> None:
    """End the lanes that are out of iterations."""
    if search.left > 0:
        search.left -= 1
        return
    left = progress.limit[search.lanes] - progress.iterations[search.lanes]
    _end(progress, search, search.alive & (left <= 0), Status.MAXITER)
    if len(search.going):
        search.left = int(left[search.alive].min()) - 1


def _step(progress: Progress, search: _Search) -> None:
    """One iteration of eq. (CGalg)."""
    q = search.A.apply(search.d)
    progress.matvecs[search.going] += 1
    curvature = (search.d * q).sum(-1)
    alpha = search.rz / curvature
    if bool((search.alive & ~((search.rz > 0) & (curvature > 0) & torch.isfinite(alpha))).any()):
        _end_breakdowns(progress, search, curvature)
    alpha = torch.where(search.alive, alpha, 0.0)[:, None]
    r = search.r - alpha * q
    z = search.M.apply(r)
    rz, norm = (r * z).sum(-1), norm_of(r)
    _end(progress, search, search.alive & ~torch.isfinite(rz + norm), Status.NONFINITE, "the iteration left float64")
    progress.before_rising(search.lanes, search.alive, norm, search.x)
    search.x = search.x + alpha * search.d
    search.d = search.deflated(z) + (rz / search.rz)[:, None] * search.d
    search.r, search.rz, search.norm = r, rz, norm
    progress.count(search.going, norm if len(search.going) == len(norm) else norm[search.alive])
    if progress.watched:
        progress.show(search.going, search.x[search.alive], search.r[search.alive])
        progress.follow(search.going, search.d[search.alive])


def _end_breakdowns(progress: Progress, search: _Search, curvature: Tensor) -> None:
    """End the lanes that cannot take a step, and say why."""
    rz, plain = search.rz, isinstance(search.M, Identity)
    broken = ~((rz > 0) & (curvature > 0) & torch.isfinite(rz / curvature))
    cases = (
        (~torch.isfinite(rz + curvature), Status.NONFINITE, "a product with A or M is not finite"),
        (rz < 0, Status.NOT_SPD, "a residual with r.M r < 0 was found: M is not positive definite"),
        ((rz == 0) & (not plain), Status.NOT_SPD, "a residual with r.M r = 0 was found: M is not positive definite"),
        (rz == 0, Status.STAGNATED, "the residual is too small to go on from"),
        (search.d.abs().amax(-1) < 1e-150, Status.STAGNATED, "d.A d cannot be told from zero; scale M"),
        ((curvature <= 0) & (curvature <= -_rounding(search)), Status.NOT_SPD, "a direction with d.A d <= 0 was found"),
        (curvature <= 0, Status.STAGNATED, "d.A d cannot be told from zero"),
        (~torch.isfinite(rz / curvature), Status.NONFINITE, "the iteration left float64"),
    )
    for which, status, detail in cases:
        _end(progress, search, broken & search.alive & which, status, detail)


def _rounding(search: _Search) -> Tensor:
    """How far d.A d may be from its exact value."""
    d = search.d.abs()
    return 2 * (search.A.terms + d.shape[-1] + 2) * UNIT * (d * search.A.absolute(d)).sum(-1)


def _verify_claims(progress: Progress, search: _Search) -> None:
    """Hold the lanes that claim to be done against their true residual."""
    claims = (search.alive & (search.norm <= search.target)).nonzero()[:, 0]
    if not len(claims):
        return
    lanes = search.lanes[claims]
    progress.x[lanes] = search.x[claims]
    exact, done, noise = progress.judge(lanes)
    search.failures[claims] += 1
    search.strikes[claims] += exact.norm > 0.5 * search.reached[claims]
    search.reached[claims] = torch.fmin(search.reached[claims], exact.norm)
    # Where only rounding to the user's precision stands in the way, a smaller residual may leave room for it.
    rounding = ~done & exact.holds
    hopeless = (noise > 0.8 * progress.problem.tolerance[lanes]) | (search.failures[claims] > 3)
    stuck = (search.strikes[claims] > _STRIKES) | (search.failures[claims] > _LARGEST_DETOUR)
    unrounded, stagnated = rounding & hopeless, ~done & ~rounding & stuck
    progress.end_unrounded(lanes[unrounded])
    progress.end(lanes[stagnated], Status.STAGNATED)
    done = done | unrounded | stagnated
    search.stop(torch.zeros_like(search.alive).index_fill(0, claims[done], True))
    search.target[claims] *= torch.where(rounding, 0.1, 0.5)
    again = ~done & ~rounding
    if bool(again.any()):
        search.restart(claims[again], exact.r[again])
