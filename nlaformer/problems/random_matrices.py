"""Families of random matrices: given or clustered eigenvalues in a random basis, covariances, rotated systems."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nlaformer.arrays import is_whole
from nlaformer.errors import shown
from nlaformer.problems.base import (
    Draws,
    Family,
    as_real,
    as_reals,
    as_whole,
    is_reals,
    option,
    real,
    sigmas,
    symmetric,
    whole,
)
from nlaformer.problems.spd import SPD


@dataclass(frozen=True)
class PrescribedSpectrum(Family):
    """Q diag(eigenvalues) Q^T with a uniformly distributed (Haar) orthogonal Q.

    Parameters
    ----------
    n : the size of the systems
    cond : spaces the eigenvalues evenly in their logarithm from 1 to ``cond``; 100 if nothing is given
    eigenvalues : n finite numbers instead; negative ones make A indefinite, zeros singular

    Examples
    --------
    >>> A = PrescribedSpectrum(n=3, eigenvalues=(1, 10, 100)).sample(1, seed=0).A
    >>> torch.linalg.eigvalsh(A).round(decimals=9)
    tensor([[  1.,  10., 100.]], dtype=torch.float64)
    """

    name: ClassVar[str] = "spectrum"
    n: int = whole(20, least=1)
    cond: float | None = option(
        None, "a finite number from 1 on", lambda v: v is None or (is_reals((v,)) and v >= 1), as_real
    )
    eigenvalues: tuple[float, ...] | None = option(
        None, "n finite numbers", lambda v: v is None or is_reals(v), as_reals
    )

    @classmethod
    def complaints(cls, options: Mapping[str, Any]) -> list[str]:
        found, eigenvalues = super().complaints(options), as_reals(options.get("eigenvalues"))
        if eigenvalues is None:
            return found
        if options.get("cond") is not None:
            found.append("cond and eigenvalues contradict each other; give one of them")
        n = as_whole(options.get("n", cls.n))
        if is_reals(eigenvalues) and is_whole(n) and len(eigenvalues) != n:
            found.append(f"eigenvalues must be n = {shown(n)} numbers, not {len(eigenvalues)}")
        return found

    def matrices(self, draw: Draws, count: int) -> Tensor:
        Q = _rotations(draw, count, self.n)
        spectrum = (self.cond or 100.0) ** torch.linspace(0, 1, self.n, dtype=torch.float64)
        if self.eigenvalues:
            spectrum = torch.tensor(self.eigenvalues, dtype=torch.float64)
        return symmetric((Q * spectrum.to(Q)) @ Q.mT)


@dataclass(frozen=True)
class TwoClusters(Family):
    """Q diag(eigenvalues) Q^T with Haar's Q, half of the eigenvalues near 1, the others near ``gap``.

    Parameters
    ----------
    n : the size of the systems
    gap : where the second cluster lies
    width : of a cluster, relative to its place: eigenvalues are uniform in a cluster

    Examples
    --------
    >>> A = TwoClusters(n=4, gap=50.0, width=0.0).sample(1, seed=0).A
    >>> torch.linalg.eigvalsh(A).round(decimals=9)
    tensor([[ 1.,  1., 50., 50.]], dtype=torch.float64)
    """

    name: ClassVar[str] = "two-clusters"
    n: int = whole(20, least=1)
    gap: float = real(100.0, positive=True)
    width: float = option(0.1, "a number from 0 on and below 1", lambda v: is_reals((v,)) and 0 <= v < 1, as_real)

    def matrices(self, draw: Draws, count: int) -> Tensor:
        Q = _rotations(draw, count, self.n)
        places = torch.where(torch.arange(self.n) < (self.n + 1) // 2, 1.0, self.gap).to(Q)
        spectrum = places * (1 + self.width * (2 * draw.uniform("eigenvalues", count, self.n) - 1))
        return symmetric((Q * spectrum[:, None, :]) @ Q.mT)


@dataclass(frozen=True)
class Wishart(Family):
    """The covariance matrix G^T G / m of m = ``samples`` n independent samples of n normal variables.

    Parameters
    ----------
    n : variables
    samples : per variable; near 1, the condition is bad

    Examples
    --------
    >>> bool((torch.linalg.eigvalsh(Wishart(n=4).sample(3, seed=0).A) > 0).all())
    True
    """

    name: ClassVar[str] = "wishart"
    n: int = whole(20, least=1)
    samples: float = option(2.0, "a finite number from 1 on", lambda v: is_reals((v,)) and v >= 1, as_real)

    def matrices(self, draw: Draws, count: int) -> Tensor:
        m = math.ceil(self.samples * self.n)
        G = draw.normal("G", count, m, self.n)
        return symmetric(G.mT @ G / m)


@dataclass(frozen=True)
class RotatedSPD(Family):
    """Q A Q^T with A of the paper's family ``SPD`` and Haar's Q: its spectrum without its structure.

    Parameters
    ----------
    n, sigma : as for ``SPD``

    Examples
    --------
    >>> spectra = [torch.linalg.eigvalsh(family(n=5).sample(1, seed=0).A) for family in (SPD, RotatedSPD)]
    >>> torch.allclose(*spectra)
    True
    """

    name: ClassVar[str] = "rotated"
    n: int = whole(20, least=1)
    sigma: tuple[float, ...] = sigmas(1.2)

    def matrices(self, draw: Draws, count: int) -> Tensor:
        Q = _rotations(draw, count, self.n)
        return symmetric(Q @ SPD(self.n, self.sigma).matrices(draw, count) @ Q.mT)


def _rotations(draw: Draws, count: int, n: int) -> Tensor:
    """Haar-distributed orthogonal matrices, (count, n, n)."""
    G = draw.normal("Q", count, n, n)
    if G.is_cuda:
        return orthonormal(G)
    Q, R = torch.linalg.qr(G)
    # With a positive diagonal of R the factorization is unique, the same on every machine, and Q is Haar.
    return Q * torch.where(R.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[:, None, :]


def orthonormal(G: Tensor) -> Tensor:
    """The factor Q of G = Q R with a positive diagonal of R, column by column on all matrices at once.

    On CUDA ``torch.linalg.qr`` may take one matrix after another. Gram and Schmidt's method, each column made
    orthogonal twice, is as accurate unless G is singular to working precision.
    """
    Q = torch.zeros_like(G)
    for k in range(G.shape[-1]):
        column = G[..., k : k + 1]
        for _ in range(2):
            column = column - Q @ (Q.mT @ column)
        Q[..., k : k + 1] = column / torch.linalg.vector_norm(column, dim=-2, keepdim=True)
    return Q
