"""What a model is used for: its corrections as search directions, for as long as they pay.

With c ~ A^-1 r from the model and conjugation against the directions before it,

    d = c - sum_j (c.A d_j / d_j.A d_j) d_j      x <- x + (r.d / d.A d) d      r <- r - (r.d / d.A d) A d

is flexible conjugate gradients: the model may be as nonlinear as it likes, since each step minimizes the error in the
A-norm along d whatever d is. Without the sum it is iterative refinement with an exact line search. A step costs one
product with A. An answer that does not pay ends the model's part of that system; what is left is for the classical
method, which starts from the last iterate that paid and keeps conjugate to the model's directions (deflation), or
from x0 as if there had been no model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nlaformer.solvers.certificate import norm_of
from nlaformer.solvers.conjugate import Direction
from nlaformer.solvers.learned import Learned
from nlaformer.solvers.progress import Progress


@dataclass(frozen=True)
class Policy:
    """How a model is used.

    Attributes
    ----------
    first : the first answer pays if it multiplies the residual by no more than this
    pays : and any other one if it multiplies it by no more than this
    patience : answers in a row that may fail to pay before the model's part ends; they are used all the same
    memory : directions that a new one is made conjugate to
    applications : the most answers to ask for; none: half of the iterations, the others are the classical method's
    line_search : false takes the model's answer as it is
    """

    first: float
    pays: float
    patience: int = 0
    memory: int = 0
    applications: int | None = None
    line_search: bool = True


# What must be left of d.A d once d is conjugate to the directions before it; of less, rounding errors are a large part.
_NEW = 1e-10

POLICIES = {
    "auto": Policy(first=0.1, pays=1 / 3, memory=16),
    "warm-start": Policy(first=1.0, pays=1.0, applications=1, line_search=False),
    "refine": Policy(first=0.5, pays=0.5, patience=1),
    "flexible": Policy(first=0.9, pays=0.9, patience=4, memory=16),
}


@dataclass
class Use:
    """What the model's part came to, for each lane."""

    accepted: Tensor  # (m,)
    reduction: Tensor  # (m,) |r| where the model's part ended over |r| where it began
    directions: list[Direction]


def apply_model(progress: Progress, model: Learned, policy: Policy, unfit: str = "") -> Use:
    """Let the model advance the lanes that are going, each until its answers no longer pay.

    ``unfit`` says why it is not to be asked at all.
    """
    lanes = progress.going()
    use = Use(torch.zeros_like(progress.iterations), torch.ones_like(progress.norm), [])
    if unfit:
        model.refused[unfit] += len(lanes)
        return use
    begun = norm_of(progress.r)
    part = _Part(progress, use, policy)
    for _ in range(min(policy.applications or (progress.maxiter + 1) // 2, progress.maxiter)):
        if not len(lanes):
            break
        c, fit = model.correction(lanes, progress.r[lanes])
        lanes, c = lanes[fit], c[fit]
        if len(lanes):
            lanes, refused = part.step(lanes, c)
            model.refused["it does not lower the residual enough"] += refused
    touched = use.accepted > 0
    use.reduction[touched] = (norm_of(progress.r) / begun)[touched]
    use.directions = [direction.without((~touched).nonzero()[:, 0]) for direction in use.directions]
    return use


class _Part:
    """The model's part while it runs."""

    def __init__(self, progress: Progress, use: Use, policy: Policy) -> None:
        self.progress, self.use, self.policy = progress, use, policy
        self.poor = torch.zeros_like(progress.iterations)  # answers in a row that did not pay

    def step(self, lanes: Tensor, c: Tensor) -> tuple[Tensor, int]:
        """Use the model's answers c where they are worth it: the lanes that go on with it, and how many refused."""
        progress, policy, use = self.progress, self.policy, self.use
        x, r, direction, fresh = self._along(lanes, c)
        ratio = norm_of(r) / norm_of(progress.r[lanes])
        usable = torch.isfinite(ratio) & torch.isfinite(x).all(-1) & fresh
        pays = torch.where(use.accepted[lanes] > 0, policy.pays, policy.first)
        self.poor[lanes] = torch.where(ratio <= pays, 0, self.poor[lanes] + 1)
        going = usable & (self.poor[lanes] <= policy.patience)
        # An answer that did not pay but lowers the residual was paid for: after the first, it is used as the last one.
        used = going | (usable & (ratio < 1) & (use.accepted[lanes] > 0))
        self._accept(lanes[used], x[used], r[used])
        if policy.memory:
            del use.directions[: len(use.directions) - policy.memory + 1]
            use.directions.append(direction.take(used).among(lanes[used], len(progress.x)))
        return self._end_claims(lanes[going]), int((~used).sum())

    def _along(self, lanes: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Direction, Tensor]:
        """The x and r after a step along d, once conjugate to the directions before it; whether any of d is left."""
        q = self.progress.apply(lanes, d)
        alone = (d * q).sum(-1)
        for before in self.use.directions:
            d, q = before.take(lanes).conjugate(d, q)
        x, r, curvature = self.progress.x[lanes], self.progress.r[lanes], (d * q).sum(-1)
        if self.policy.line_search:
            alpha, fresh = (r * d).sum(-1) / curvature, curvature > _NEW * alone.abs()
        else:
            alpha, fresh = torch.ones_like(curvature), torch.ones_like(curvature, dtype=torch.bool)
        return x + alpha[:, None] * d, r - alpha[:, None] * q, Direction(d, q, curvature), fresh

    def _accept(self, lanes: Tensor, x: Tensor, r: Tensor) -> None:
        if len(lanes):
            self.progress.advance(lanes, x, r)
            self.progress.limit[lanes] += 1
            self.use.accepted[lanes] += 1

    def _end_claims(self, lanes: Tensor) -> Tensor:
        """Judge the lanes whose running residual is small enough; the ones that go on with the model."""
        progress = self.progress
        small = norm_of(progress.r[lanes]) <= progress.problem.tolerance[lanes]
        claims = lanes[small]
        if len(claims):
            exact, _, _ = progress.judge(claims)
            progress.r[claims] = exact.r
        return lanes[~small]
