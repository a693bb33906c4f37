"""Families beyond the paper's: common model problems of numerical analysis.

Discretized differential equations and graphs are written through an incidence matrix B (edges x nodes), whose rows
hold the difference of an edge's two ends: A = B^T diag(a) B with the edges' coefficients a. An edge to the boundary,
where the solution is zero, has one end only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nlaformer.errors import shown
from nlaformer.problems.base import Draws, Family, Rival, as_whole, real, symmetric, whole
from nlaformer.problems.preconditioners import on_grids


@dataclass(frozen=True)
class Poisson1D(Family):
    """-(a u')' = f on an interval, zero at both ends, with a log-normal coefficient a on every edge of the grid.

    Parameters
    ----------
    n : inner grid points
    sigma : of the logarithm of the coefficient; 0 gives the constant-coefficient matrix tridiag(-1, 2, -1)

    Examples
    --------
    >>> Poisson1D(n=3, sigma=0.0).sample(1, seed=0).A[0]
    tensor([[ 2., -1.,  0.],
            [-1.,  2., -1.],
            [ 0., -1.,  2.]], dtype=torch.float64)
    """

    name: ClassVar[str] = "poisson-1d"
    n: int = whole(20, least=1)
    sigma: float = real(1.0)

    def matrices(self, draw: Draws, count: int) -> Tensor:
        return _stiffness(_differences(self.n), torch.exp(self.sigma * draw.normal("edges", count, self.n + 1)))


@dataclass(frozen=True)
class Poisson2D(Family):
    """-div(a grad u) = f on a square, zero on its boundary: the five-point stencil, log-normal a on every edge.

    Parameters
    ----------
    n : inner grid points, a square number: 25 is a grid of 5 x 5
    sigma : of the logarithm of the coefficient

    Examples
    --------
    >>> Poisson2D(n=4, sigma=0.0).sample(1, seed=0).A[0]
    tensor([[ 4., -1., -1.,  0.],
            [-1.,  4.,  0., -1.],
            [-1.,  0.,  4., -1.],
            [ 0., -1., -1.,  4.]], dtype=torch.float64)
    """

    name: ClassVar[str] = "poisson-2d"
    n: int = whole(25, least=1)
    sigma: float = real(1.0)

    @classmethod
    def complaints(cls, options: Mapping[str, Any]) -> list[str]:
        found, n = super().complaints(options), as_whole(options.get("n", cls.n))
        if not any(line.startswith("n ") for line in found) and math.isqrt(n) ** 2 != n:
            side = math.isqrt(n)
            found.append(
                f"n must be a square number, such as {shown(side**2)} or {shown((side + 1) ** 2)}, not {shown(n)}"
            )
        return found

    def matrices(self, draw: Draws, count: int) -> Tensor:
        side = math.isqrt(self.n)
        line, eye = _differences(side), torch.eye(side, dtype=torch.float64)
        B = torch.cat([torch.kron(line, eye), torch.kron(eye, line)])  # (2 side (side + 1), n)
        return _stiffness(B, torch.exp(self.sigma * draw.normal("edges", count, len(B))))

    def rivals(self) -> Mapping[str, Rival]:
        return on_grids()

    def others(self) -> Mapping[str, Family]:
        return {f"sigma {sigma:g}": Poisson2D(self.n, sigma) for sigma in (0.0, 0.5, 2.0)}


@dataclass(frozen=True)
class RBFKernel(Family):
    """The kernel matrix of Gaussian-process and kernel ridge regression: exp(-|p_i - p_j|^2 / (2 length^2)) + ridge I.

    Parameters
    ----------
    n : data points, uniform in the unit cube
    dimension : of the cube
    length : the length scale; the larger, the worse the condition
    ridge : added to the diagonal (the variance of the noise)

    Examples
    --------
    >>> A = RBFKernel(n=4, ridge=0.5).sample(2, seed=0).A
    >>> A.diagonal(dim1=-2, dim2=-1).unique()
    tensor([1.5000], dtype=torch.float64)
    """

    name: ClassVar[str] = "rbf"
    n: int = whole(20, least=1)
    dimension: int = whole(2, least=1)
    length: float = real(0.3, positive=True)
    ridge: float = real(0.1)

    def matrices(self, draw: Draws, count: int) -> Tensor:
        points = draw.uniform("points", count, self.n, self.dimension) / self.length
        # Differences first: |p|^2 + |q|^2 - 2 p.q cancels, and A might end up indefinite.
        distance = (points[:, :, None] - points[:, None, :]).square().sum(-1)  # (count, n, n)
        return torch.exp(-distance / 2) + self.ridge * torch.eye(self.n, dtype=points.dtype, device=points.device)


@dataclass(frozen=True)
class GraphLaplacian(Family):
    """L + shift I with the Laplacian L of a random graph: every two nodes are joined with equal probability.

    Parameters
    ----------
    n : nodes
    degree : expected number of neighbours of a node
    shift : added to the diagonal, since L alone is singular

    Examples
    --------
    >>> A = GraphLaplacian(n=6, shift=0.25).sample(1, seed=0).A
    >>> A.sum(-1).unique()
    tensor([0.2500], dtype=torch.float64)
    """

    name: ClassVar[str] = "graph-laplacian"
    n: int = whole(20, least=1)
    degree: float = real(4.0)
    shift: float = real(0.1, positive=True)

    def matrices(self, draw: Draws, count: int) -> Tensor:
        chance = draw.uniform("edges", count, self.n, self.n)
        joined = (chance * (self.n - 1) < self.degree).to(chance.dtype).triu(1)
        W = joined + joined.mT
        return torch.diag_embed(W.sum(-1) + self.shift) - W


def _differences(n: int) -> Tensor:
    """The incidence matrix of n points on a line with a boundary edge at either end: (n + 1, n)."""
    return torch.eye(n + 1, n, dtype=torch.float64) - torch.eye(n + 1, n + 1, dtype=torch.float64)[:, 1:]


def _stiffness(B: Tensor, a: Tensor) -> Tensor:
    """B^T diag(a) B for every row of coefficients a: (count, n, n)."""
    B = B.to(a)
    return symmetric(B.mT @ (a[..., None] * B))
