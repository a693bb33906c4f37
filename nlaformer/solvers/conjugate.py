"""Conjugate gradients on many lanes, eq. (CGalg), with an eye on the true residual.

The recursion's residual drifts away from b - A x. When it claims convergence, the true one is computed; if that
misses, the iteration starts again from x (residual replacement), until starting again no longer helps.

After a model's part, every direction is kept conjugate to the ones taken there (deflated CG, Saad, Yeung, Erhel and
Guyomarc'h 2000), so that starting again loses little of what they did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nlaformer.solvers.certificate import norm_upper
from nlaformer.solvers.operators import Operator
from nlaformer.solvers.preconditioners import Preconditioner
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
    """The recursion's state for the lanes it works on."""

    lanes: Tensor  # (s,)
    A: Operator
    M: Preconditioner
    x: Tensor  # (s, n)
    r: Tensor  # (s, n)
    d: Tensor  # (s, n)
    rz: Tensor  # (s,)
    target: Tensor  # (s,) what the recursion's residual must reach before it claims
    failures: Tensor  # (s,)
    reached: Tensor  # (s,) the smallest true residual at a failed claim
    strikes: Tensor  # (s,) failed claims that did not lower it much
    directions: list[Direction]

    def keep(self, at: Tensor) -> None:
        """Go on with some of the lanes."""
        self.A, self.M = self.A.take(at), self.M.take(at)
        self.directions = [direction.take(at) for direction in self.directions]
        for name in ("lanes", "x", "r", "d", "rz", "target", "failures", "reached", "strikes"):
            setattr(self, name, getattr(self, name)[at])

    def restart(self, at: Tensor, r: Tensor) -> None:
        """Begin again from x with its true residual."""
        self.r[at] = r
        z = self.M.apply(self.r)
        self.d[at], self.rz[at] = self.deflated(z)[at], (r * z[at]).sum(-1)

    def deflated(self, z: Tensor) -> Tensor:
        for direction in self.directions:
            z, _ = direction.conjugate(z)
        return z


def conjugate_gradients(progress: Progress, M: Preconditioner, directions: list[Direction]) -> None:
    """Take every lane that is going to its end, conjugate to the directions that the model's part has taken."""
    search = _begin(progress, M, directions)
    if search is None:
        return
    progress.follow(search.d, search.lanes)
    while len(search.lanes):
        _verify_claims(progress, search)
        going = _still_going(progress, search)
        if not len(going):
            return
        # Copying the matrices of the lanes that go on pays once half of them have ended.
        if 2 * len(going) <= len(search.lanes):
            search.keep(going)
            going = torch.arange(len(going), device=going.device)
        _step(progress, search, going)


def _begin(progress: Progress, M: Preconditioner, directions: list[Direction]) -> _Search | None:
    lanes = progress.going()
    if not len(lanes):
        return None
    problem, M = progress.problem, M.take(lanes)
    r = progress.r[lanes]
    z = M.apply(r)
    target = problem.tolerance[lanes]
    search = _Search(
        lanes,
        problem.A.take(lanes),
        M,
        progress.x[lanes],
        r,
        z.clone(),
        (r * z).sum(-1),
        target.clone(),
        torch.zeros_like(lanes),
        torch.full_like(target, torch.inf),
        torch.zeros_like(lanes),
        [direction.take(lanes) for direction in directions],
    )
    search.d = search.deflated(search.d)
    return search


def _still_going(progress: Progress, search: _Search) -> Tensor:
    """The positions of the lanes that go on; those out of iterations end here."""
    spent = progress.iterations[search.lanes] >= progress.limit[search.lanes]
    for lane in search.lanes[spent].tolist():
        if progress.status[lane] is None:
            progress.end([lane], Status.MAXITER)
    places = [k for k, lane in enumerate(search.lanes.tolist()) if progress.status[lane] is None]
    return torch.tensor(places, dtype=torch.long, device=search.lanes.device)


def _step(progress: Progress, search: _Search, going: Tensor) -> None:
    """One iteration of eq. (CGalg) for the lanes at ``going``."""
    q = search.A.apply(search.d)
    progress.matvecs[search.lanes[going]] += 1
    curvature = (search.d * q).sum(-1)
    alpha = search.rz / curvature
    x, r = search.x + alpha[:, None] * search.d, search.r - alpha[:, None] * q
    z = search.M.apply(r)
    rz = (r * z).sum(-1)
    broken = _breakdowns(progress, search, going, curvature, torch.isfinite(x).all(-1) & torch.isfinite(r).all(-1))
    good = going[~broken]
    search.d[good] = search.deflated(z)[good] + (rz / search.rz)[good, None] * search.d[good]
    search.x[good], search.r[good], search.rz[good] = x[good], r[good], rz[good]
    if len(good):
        progress.advance(search.lanes[good], x[good], r[good])
        progress.follow(search.d[good], search.lanes[good])


def _breakdowns(progress: Progress, search: _Search, going: Tensor, curvature: Tensor, finite: Tensor) -> Tensor:
    """End the lanes at ``going`` that cannot take this step; which of them those are."""
    rz, curvature, finite = search.rz[going], curvature[going], finite[going]
    broken = ~((rz > 0) & (curvature > 0) & finite)
    for k in broken.nonzero()[:, 0].tolist():
        lane, place = search.lanes[going[k]].item(), going[k : k + 1]
        if not torch.isfinite(rz[k]) or not torch.isfinite(curvature[k]):
            progress.end([lane], Status.NONFINITE, "a product with A or M is not finite")
        elif rz[k] < 0:
            progress.end([lane], Status.NOT_SPD, "a residual with r.M r < 0 was found: M is not positive definite")
        elif rz[k] == 0:
            progress.end([lane], Status.STAGNATED)
        elif curvature[k] <= -_rounding(search, place):
            progress.end([lane], Status.NOT_SPD, "a direction with d.A d <= 0 was found")
        elif curvature[k] <= 0:
            progress.end([lane], Status.STAGNATED, "d.A d cannot be told from zero")
        else:
            progress.end([lane], Status.NONFINITE, "the iteration left the range of float64")
    return broken


def _rounding(search: _Search, place: Tensor) -> float:
    """How far d.A d may be from its exact value."""
    d = search.d[place].abs()
    A = search.A.take(place)
    n = d.shape[-1]
    size = (d * A.absolute(d)).sum().item()
    return 2 * (A.terms + n + 2) * 2.0**-53 * size


def _verify_claims(progress: Progress, search: _Search) -> None:
    """Hold the lanes that claim to be done against their true residual."""
    claims = (norm_upper(search.r) <= search.target).nonzero()[:, 0]
    claims = claims[[progress.status[lane] is None for lane in search.lanes[claims].tolist()]]
    if not len(claims):
        return
    exact, noise = progress.judge(search.lanes[claims])
    tolerance = progress.problem.tolerance[search.lanes[claims]]
    for k, place in enumerate(claims.tolist()):
        lane = int(search.lanes[place])
        if progress.status[lane] is not None:
            continue
        search.failures[place] += 1
        search.strikes[place] += int(exact.norm[k] > 0.5 * search.reached[place])
        search.reached[place] = torch.fmin(search.reached[place], exact.norm[k])
        if exact.holds[k]:
            # Only rounding to the user's precision stands in the way; a smaller residual may leave room for it.
            if noise[k] > 0.8 * tolerance[k] or search.failures[place] > 3:
                progress.end([lane], Status.PRECISION)
            search.target[place] = 0.1 * search.target[place]
        elif search.strikes[place] > _STRIKES or search.failures[place] > _LARGEST_DETOUR:
            progress.end([lane], Status.STAGNATED)
        else:
            search.target[place] = 0.5 * search.target[place]
            search.restart(claims[k : k + 1], exact.r[k : k + 1])
