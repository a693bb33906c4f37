"""Products and quotients of many vectors at once: matrices are (count, n, n), vectors (count, n)."""

from __future__ import annotations

import torch
from torch import Tensor


def product(A: Tensor, v: Tensor) -> Tensor:
    """A v of every pair."""
    return (A @ v[..., None])[..., 0]


def dot(u: Tensor, v: Tensor) -> Tensor:
    """Inner products, (count, 1)."""
    return (u * v).sum(-1, keepdim=True)


def divided(u: Tensor, v: Tensor) -> Tensor:
    """The quotient u / v, and 0 where v is 0."""
    return torch.where(v == 0, 0.0, u / torch.where(v == 0, 1.0, v))
