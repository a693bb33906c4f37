"""Nonsymmetric systems whose symmetric part is positive definite, and the methods that they face.

    A = S + K,    S of the paper's family,    K = skew (G - G^T) / sqrt(2),    G ~ N(0, 1)

x . A x = x . S x > 0, so that A is regular and no step of a method with minimal residual is 0 before the end. GMRES
(Saad and Schultz 1986) is full: no method with as many products has a smaller residual. BiCGSTAB (van der Vorst 1992)
keeps a fixed number of vectors. An iteration is a product with A, of which a step of BiCGSTAB takes two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nlaformer.problems.base import Draws, Family, Rival, real, sigmas, whole
from nlaformer.problems.spd import SPD
from nlaformer.problems.vectors import divided, dot, product


@dataclass(frozen=True)
class Nonsymmetric(Family):
    """A matrix of the family ``spd`` plus a random skew-symmetric one.

    Parameters
    ----------
    n : the size of the systems
    sigma : of the log-normal diagonal; of several, each system takes one at random
    skew : standard deviation of the entries of the skew-symmetric part

    Examples
    --------
    >>> A, b, x = Nonsymmetric(n=4, skew=0.5).sample(3, seed=0)
    >>> bool((torch.linalg.eigvalsh(A + A.mT) > 0).all()), bool(torch.allclose(A, A.mT))
    (True, False)
    """

    name: ClassVar[str] = "nonsymmetric"
    definite: ClassVar[bool] = False
    n: int = whole(20, least=1)
    sigma: tuple[float, ...] = sigmas(1.2)
    skew: float = real(0.7)

    def matrices(self, draw: Draws, count: int) -> Tensor:
        G = draw.normal("skew", count, self.n, self.n)
        return SPD(self.n, self.sigma).matrices(draw, count) + self.skew * (G - G.mT) / 2**0.5

    def rivals(self) -> Mapping[str, Rival]:
        return METHODS

    def others(self) -> Mapping[str, Family]:
        return {
            "symmetric": Nonsymmetric(self.n, self.sigma, skew=0.0),
            "skew 2": Nonsymmetric(self.n, self.sigma, skew=2.0),
            "sigma 2": Nonsymmetric(self.n, (2.0,), self.skew),
            "convection": Convection(self.n),
        }


@dataclass(frozen=True)
class Convection(Family):
    """-(a u')' + v u' on an interval, zero at both ends: log-normal a on every edge, central differences for u'.

    Parameters
    ----------
    n : inner grid points
    sigma : of the logarithm of the coefficient a
    velocity : |v| is uniform from 0 to this, in units of a over the width of the grid; its sign is random

    Examples
    --------
    >>> Convection(n=3, sigma=0.0, velocity=0.0).sample(1, seed=0).A[0]
    tensor([[ 2., -1.,  0.],
            [-1.,  2., -1.],
            [ 0., -1.,  2.]], dtype=torch.float64)
    """

    name: ClassVar[str] = "convection"
    definite: ClassVar[bool] = False
    n: int = whole(20, least=1)
    sigma: float = real(1.0)
    velocity: float = real(2.0)

    def matrices(self, draw: Draws, count: int) -> Tensor:
        a = torch.exp(self.sigma * draw.normal("edges", count, self.n + 1))
        v = self.velocity * (2 * draw.uniform("velocity", count, 1) - 1) / 2
        inner = a[:, 1:-1]
        upper, lower = torch.diag_embed(v - inner, offset=1), torch.diag_embed(-v - inner, offset=-1)
        return torch.diag_embed(a[:, 1:] + a[:, :-1]) + upper + lower

    def rivals(self) -> Mapping[str, Rival]:
        return METHODS


def gmres(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    """The iterates of GMRES without restarts from x_0 = 0, (count, iterations + 1, n), in float64.

    A (count, n, n), b (count, n). A system that is solved stays so.

    >>> A, b = torch.tensor([[[2.0, 1.0], [-1.0, 2.0]]]), torch.tensor([[1.0, 1.0]])
    >>> gmres(A, b, 2)[0, -1]
    tensor([0.2000, 0.6000], dtype=torch.float64)
    """
    A, b = A.double(), b.double()
    basis = b.new_zeros(len(b), iterations + 1, b.shape[-1])  # Arnoldi's, orthonormal rows
    R = b.new_zeros(len(b), iterations, iterations)  # of the QR factorization of Arnoldi's matrix
    g = b.new_zeros(len(b), iterations + 1)
    g[:, 0] = b.norm(dim=-1)
    basis[:, 0] = divided(b, g[:, :1])
    rotations: list[tuple[Tensor, Tensor]] = []
    iterates = [torch.zeros_like(b)]
    for t in range(iterations):
        known = basis[:, : t + 1]
        w = product(A, basis[:, t])
        size, column = w.norm(dim=-1), b.new_zeros(len(b), t + 2)
        for _ in range(2):  # twice is enough
            parts = (known @ w[..., None])[..., 0]
            w, column[:, : t + 1] = w - (parts[:, None] @ known)[:, 0], column[:, : t + 1] + parts
        below = w.norm(dim=-1)
        below = torch.where(below <= 1e-14 * size, 0.0, below)  # what is left is rounding: the space is invariant
        column[:, t + 1] = below
        basis[:, t + 1] = torch.where(below[:, None] > 0, divided(w, below[:, None]), 0.0)
        for k, (cosine, sine) in enumerate(rotations):
            upper, lower = column[:, k].clone(), column[:, k + 1].clone()
            column[:, k], column[:, k + 1] = cosine * upper + sine * lower, cosine * lower - sine * upper
        length = torch.hypot(column[:, t], column[:, t + 1])
        cosine = torch.where(length > 0, divided(column[:, t], length), 1.0)
        rotations.append((cosine, divided(column[:, t + 1], length)))
        R[:, :t, t], R[:, t, t] = column[:, :t], torch.where(length > 0, length, 1.0)
        g[:, t + 1], g[:, t] = -rotations[-1][1] * g[:, t], torch.where(length > 0, cosine * g[:, t], 0.0)
        y = torch.linalg.solve_triangular(R[:, : t + 1, : t + 1], g[:, : t + 1, None], upper=True)
        iterates.append((known.mT @ y)[..., 0])
    return torch.stack(iterates, 1)


def bicgstab(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    """The iterates of BiCGSTAB from x_0 = 0, (count, iterations + 1, n), one for each product with A, in float64.

    After the first product of a step the iterate is x + alpha d, after the second the step's own. A system that cannot
    take another step (0 / 0) keeps its iterate.
    """
    A, b = A.double(), b.double()
    x, r = torch.zeros_like(b), b
    d, rho = r, dot(r, b)
    iterates = [x]
    while len(iterates) <= iterations:
        q = product(A, d)
        alpha = divided(rho, dot(b, q))
        s = r - alpha * q
        w = product(A, s)
        omega = divided(dot(w, s), dot(w, w))
        iterates += [x + alpha * d, x + alpha * d + omega * s]
        x, r = iterates[-1], s - omega * w
        rho, before = dot(b, r), rho
        d = r + divided(rho * alpha, before * omega) * (d - omega * q)
    return torch.stack(iterates[: iterations + 1], 1)


METHODS: dict[str, Rival] = {"GMRES": gmres, "BiCGSTAB": bicgstab}
