"""The end of a training step: the learning rate, clipping, Adam, and what is reported.

The plain engine calls these functions, and they are the reference of the CUDA kernels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.learn.config import Config

ADAM_EPSILON = 1e-8
CLIP_EPSILON = 1e-6


class Report(NamedTuple):
    """The latest step of every member: CPU tensors (E,)."""

    loss: Tensor
    intermediate: Tensor  # mean squared error of the (r, d) probe
    gradient_norm: Tensor  # before clipping, without the (r, d) probe
    lr: Tensor
    alive: Tensor  # bool


def learning_rate(config: Config, number: int) -> float:
    """Linear warm-up, then a cosine from lr to final_lr * lr at the last step."""
    if number < config.warmup:
        return config.lr * (number + 1) / config.warmup
    progress = (number - config.warmup) / max(config.steps - 1 - config.warmup, 1)
    return config.lr * (config.final_lr + (1 - config.final_lr) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2)


def clip(gradients: dict[str, Tensor], largest: float) -> tuple[dict[str, Tensor], Tensor]:
    """A model's gradient scaled to a norm of at most ``largest``, and the norm it had.

    The (r, d) probe is clipped on its own: where it only watches, it must not change the model's steps.
    """
    clipped: dict[str, Tensor] = {}
    for watching in (True, False):
        group = {name: g for name, g in gradients.items() if name.startswith("probe_rd") == watching}
        if not group:  # a program has no such probe
            continue
        norm = torch.stack([gradient.square().sum() for gradient in group.values()]).sum().sqrt()
        factor = (largest / (norm + CLIP_EPSILON)).clamp(max=1.0)
        clipped |= {name: gradient * factor for name, gradient in group.items()}
    return clipped, norm


def bias_corrections(betas: tuple[float, float], count: int) -> tuple[float, float]:
    """1 - beta^count for both moments; ``count`` is 1 at the first step."""
    return 1 - betas[0] ** count, 1 - betas[1] ** count


@torch.no_grad()
def adam(
    weight: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    rate: float | Tensor,
    betas: tuple[float, float],
    corrections: tuple[float | Tensor, float | Tensor],
) -> None:
    """One step of Adam, in place on the weight and its two moments.

    Examples
    --------
    >>> import torch
    >>> weight, mean, square = torch.ones(2), torch.zeros(2), torch.zeros(2)
    >>> adam(weight, torch.tensor([3.0, -4.0]), mean, square, 0.1, (0.9, 0.99), bias_corrections((0.9, 0.99), 1))
    >>> weight  # the first step has the length of the rate in every entry
    tensor([0.9000, 1.1000])
    """
    mean.lerp_(gradient, 1 - betas[0])
    square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    root = (square / corrections[1]).sqrt_().add_(ADAM_EPSILON)
    weight.sub_((rate / corrections[0] * mean).div_(root))
