"""The losses of the paper's section 4, and a power that weighs the iterates.

With l_t the mean over a batch of a weighted sum of the squared distances::

    step          1/n ||NLAF_x^t - x_t||^2           to the teacher's iterate
    solution      1/n ||NLAF_x^t - x||^2             to the solution
    intermediate  1/n ||NLAF_in^t - (r_t, d_t)||^2   to the teacher's residual and direction

every loss is a mean of l_t over the window T_0, ..., T: it is given by the three weights in l_t, which ``_WEIGHTS``
states, and by T_0. A power p < 1 replaces l_t by ((l_t + floor_t)^p - 1) / p, and p = 0 by its limit
log(l_t + floor_t): each iterate keeps its minimizer, and its gradient is divided by (l_t + floor_t)^(1-p), so that the
late, small ones count too.

floor_t is the config's from t = 1 on, and at least 1 at t = 0. The teacher's x_0 = 0 is known in advance, so l_0 of a
model that imitates it tends to 0, and its logarithm would drown the other iterates: with the small floor there, result
supervision was stuck at 2.8e-4 at t = 20 after 30 000 steps, where joint, whose l_0 is not 0, had 2.4e-5 after 20 000.

For a program with learned parts the distance to the solution is the family's own error, by default relative, 1/||x||^2
in place of 1/n: its arithmetic does not depend on the scale of a system, and neither does its loss. So is the distance
to the teacher. It has no intermediate term.

Where the loss has no intermediate term, the (r, d) probe learns on detached features, from its own mean squared
error over all iterates: it measures the model and does not shape it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.learn.config import Config
from nlaformer.learn.data import Batch
from nlaformer.problems import Family, Systems

# The weights of step, solution and intermediate in l_t.
_WEIGHTS: dict[str, Callable[[Config], tuple[float, float, float]]] = {
    # 1/(n(T+1)) sum_t ||NLAF_x^t - x_t||^2
    "result": lambda config: (1.0, 0.0, 0.0),
    # 1/(n(T+1)) sum_t ||NLAF_x^t - x_t||^2 + eta ||NLAF_in^t - (r_t, d_t)||^2
    "joint": lambda config: (1.0, 0.0, config.eta),
    # 1/((T-T_0+1)n) sum_{t>=T_0} ||NLAF_x^t - x_t||^2 + lambda ||NLAF_x^t - x||^2
    "step+solution": lambda config: (1.0, config.lambda_, 0.0),
    # 1/((T-T_0+1)n) sum_{t>=T_0} ||NLAF_x^t - x||^2
    "solution": lambda config: (0.0, 1.0, 0.0),
}


class Objective(NamedTuple):
    """The losses of a stack as tensors over its E members."""

    mix: Tensor  # (E, 3): the weights of step, solution, intermediate
    window: Tensor  # (E, T+1): 1/(T-T_0+1) from T_0 on, 0 before
    attached: Tensor  # (E, 1, 1, 1) bool: whether the (r, d) probe shapes the model
    power: Tensor  # (E, 1)
    floor: Tensor  # (E, T+1)


def objective(configs: Sequence[Config], device: torch.device | str = "cpu") -> Objective:
    """The losses of a stack of configs."""
    T = configs[0].T
    mix = torch.tensor([_WEIGHTS[config.supervision](config) for config in configs], device=device)
    t = torch.arange(T + 1, device=device)
    first = torch.tensor([config.first for config in configs], device=device).unsqueeze(1)
    floor = torch.tensor([config.floor for config in configs], device=device).unsqueeze(1)
    return Objective(
        mix,
        (t >= first) / (T - first + 1.0),
        (mix[:, 2] > 0).reshape(-1, 1, 1, 1),
        torch.tensor([config.power for config in configs], device=device).unsqueeze(1),
        torch.where(t == 0, floor.clamp(min=1.0), floor),
    )


def distances(x: Tensor, rd: Tensor, x_teacher: Tensor, rd_teacher: Tensor, x_true: Tensor) -> Tensor:
    """The three squared distances over n of every iterate, averaged over the batch: (E, 3, T+1).

    x, x_teacher (E, B, T+1, n); rd, rd_teacher (E, B, T+1, 2n), or what else is probed; x_true (E, B, n).
    """
    n = x.shape[-1]
    gaps = (x - x_teacher, x - x_true.unsqueeze(-2), rd - rd_teacher)
    return torch.stack([gap.square().sum(-1).mean(1) / n for gap in gaps], 1)


def relative_distances(x: Tensor, batch: Batch, family: Family) -> Tensor:
    """The family's error of a program's iterates, and their squared distance from the teacher's: (E, 3, T+1).

    Both are averaged over the batch, the latter relative to ||x||^2; x (E, B, T+1, n), a batch (E, B, ...).
    """
    x_teacher, x_true = batch.x, batch.x_true
    size = x_true.square().sum(-1, keepdim=True)  # (E, B, 1)
    solution = family.checked_error(x, Systems(batch.A, batch.b, x_true)).mean(1)
    nothing = torch.zeros_like(solution)
    step = ((x - x_teacher).square().sum(-1) / size).mean(1) if x_teacher.numel() else nothing
    return torch.stack([step, solution, nothing], 1)


def loss(squared: Tensor, objective: Objective) -> Tensor:
    """The loss of every member, (E,), from ``distances``; without the detached probe's own error."""
    return loss_terms(squared, objective).sum(-1)


def loss_terms(squared: Tensor, objective: Objective) -> Tensor:
    """What every iterate contributes to the loss, (E, T+1)."""
    iterate = (objective.mix.unsqueeze(-1) * squared).sum(1)  # (E, T+1): l_t
    return objective.window * _raised(iterate, objective)


def _raised(iterate: Tensor, objective: Objective) -> Tensor:
    """What enters the loss for each l_t, (E, T+1): ((l_t + floor_t)^p - 1) / p, its logarithm, or l_t itself."""
    p = objective.power
    # The logarithm sees 1 where it is not asked for: no gradient of it may leak through the selection.
    log = torch.where(p == 1, 1.0, iterate + objective.floor).log()
    root = torch.expm1(p * log) / torch.where(p == 0, 1.0, p)  # keeps its digits where p is small
    return torch.where(p == 1, iterate, torch.where(p == 0, log, root))


def probe_loss(squared: Tensor, objective: Objective) -> Tensor:
    """The error the detached (r, d) probe learns from, (E,); zero where the loss itself teaches the probe."""
    return torch.where(objective.attached.flatten(), 0.0, squared[:, 2].mean(-1))
