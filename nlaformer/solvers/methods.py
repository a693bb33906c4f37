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

from nlaformer.solvers.conjugate import Direction
from nlaformer.solvers.learned import Learned
from nlaformer.solvers.progress import Progress


@dataclass(frozen=True)
class Policy:
    """How a model is used.

    Attributes
    ----------
    pays : an answer pays if it multiplies the residual by no more than this; none: if it does what three steps of a
        classical method would do, and at least divides it by 3
    patience : answers in a row that may fail to pay before the model's part ends; they are used all the same
    memory : directions that a new one is made conjugate to
    applications : the most answers to ask for; none: half of the iterations, the others are the classical method's
    line_search : false takes the model's answer as it is
    """

    pays: float | None
    patience: int = 0
    memory: int = 0
    applications: int | None = None
    line_search: bool = True


# What must be left of d.A d once d is conjugate to the directions before it; of less, rounding errors are a large part.
_NEW = 1e-10

POLICIES = {
    "auto": Policy(pays=None, memory=16),
    "warm-start": Policy(pays=1.0, applications=1, line_search=False),
    "refine": Policy(pays=0.5, patience=1),
    "flexible": Policy(pays=0.9, patience=4, memory=16),
}


@dataclass(frozen=True)
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
    poor = torch.zeros_like(progress.iterations)
    begun = _norm(progress.r)
    pays = model.three_steps if policy.pays is None else torch.full_like(begun, policy.pays)
    most = min(policy.applications or (progress.maxiter + 1) // 2, progress.maxiter)
    for _ in range(most):
        if not len(lanes):
            break
        r = progress.r[lanes]
        d, fit = model.correction(lanes, r)
        lanes, r, d = lanes[fit], r[fit], d[fit]
        if not len(lanes):
            break
        q = progress.apply(lanes, d)
        alone = (d * q).sum(-1)
        for before in use.directions:
            d, q = before.take(lanes).conjugate(d, q)
        curvature = (d * q).sum(-1)
        alpha = (r * d).sum(-1) / curvature if policy.line_search else torch.ones_like(curvature)
        r_next, x_next = r - alpha[:, None] * q, progress.x[lanes] + alpha[:, None] * d
        ratio = _norm(r_next) / _norm(r)
        usable = (
            torch.isfinite(ratio)
            & torch.isfinite(x_next).all(-1)
            & ((curvature > _NEW * alone.abs()) | (not policy.line_search))
        )
        poor[lanes] = torch.where(ratio <= pays[lanes], 0, poor[lanes] + 1)
        going = usable & (poor[lanes] <= policy.patience)
        # An answer that did not pay but lowers the residual was paid for: after the first, it is used as the last one.
        used = going | (usable & (ratio < 1) & (use.accepted[lanes] > 0))
        model.refused["it does not lower the residual enough"] += int((~used).sum())
        _advance(progress, use, lanes[used], x_next[used], r_next[used])
        if policy.memory:
            del use.directions[: len(use.directions) - policy.memory + 1]
            use.directions.append(Direction.of(lanes[used], d[used], q[used], len(progress.x)))
        lanes = _end_claims(progress, lanes[going])
    touched = use.accepted > 0
    use.reduction[touched] = (_norm(progress.r) / begun)[touched]
    return use


def _advance(progress: Progress, use: Use, lanes: Tensor, x: Tensor, r: Tensor) -> None:
    if len(lanes):
        progress.advance(lanes, x, r)
        use.accepted[lanes] += 1


def _end_claims(progress: Progress, lanes: Tensor) -> Tensor:
    """Judge the lanes whose running residual is small enough; the ones that go on with the model."""
    small = _norm(progress.r[lanes]) <= progress.problem.tolerance[lanes]
    claims = lanes[small]
    if len(claims):
        exact, _ = progress.judge(claims)
        progress.r[claims] = exact.r
    return lanes[~small]


def _norm(v: Tensor) -> Tensor:
    return v.square().sum(-1).sqrt()
