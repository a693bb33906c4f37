"""The smallest eigenpair of a symmetric positive definite matrix, and the methods that it faces.

A problem is a matrix A and a start b ~ N(0, I); the answer x is the eigenvector of the smallest eigenvalue. The error
of an iterate is the relative gap of its Rayleigh quotient,

    (rho - lambda) / rho,    rho = x . A x / x . x,

which lies in [0, 1). It is computed without cancellation from the part e of x that is orthogonal to the answer:
rho - lambda = e . (A - lambda) e / x . x. Lanczos' method (with full orthogonalization) has the smallest Rayleigh
quotient in the Krylov space of b; LOBPCG (Knyazev 2001) the smallest in the span of x, the residual, preconditioned
with the diagonal of A, and the last direction. An iteration is a product with A.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nlaformer.problems.base import Draws, Family, Rival, Systems, option, sigmas, whole
from nlaformer.problems.gallery import Poisson1D
from nlaformer.problems.random_matrices import Wishart
from nlaformer.problems.spd import SPD
from nlaformer.problems.vectors import divided, dot, product


@dataclass(frozen=True)
class SmallestEigenpair(Family):
    """The eigenvector of the smallest eigenvalue of matrices of another family, from a random start.

    Parameters
    ----------
    n : the size of the matrices
    sigma : of the log-normal diagonal; of several, each matrix takes one at random
    of : "spd", "wishart" or "poisson-1d", the family of the matrices; sigma is of "spd" only

    Examples
    --------
    >>> family = SmallestEigenpair(n=5)
    >>> A, b, x = family.sample(3, seed=0)
    >>> torch.allclose(torch.linalg.eigvalsh(A)[:, :1] * x, (A @ x[..., None])[..., 0])
    True
    >>> bool((family.error(x[:, None], Systems(A, b, x)) < 1e-25).all())
    True
    """

    name: ClassVar[str] = "smallest-eigenpair"
    definite: ClassVar[bool] = False
    measure: ClassVar[str] = "relative gap of the Rayleigh quotient"
    n: int = whole(20, least=1)
    sigma: tuple[float, ...] = sigmas(1.2)
    of: str = option("spd", "spd, wishart or poisson-1d", lambda v: v in ("spd", "wishart", "poisson-1d"), str)

    def systems(self, draw: Draws, count: int) -> Systems:
        made = {"spd": SPD(self.n, self.sigma), "wishart": Wishart(self.n), "poisson-1d": Poisson1D(self.n)}[self.of]
        A = made.matrices(draw, count)
        return Systems(A, draw.normal("start", count, self.n), torch.linalg.eigh(A).eigenvectors[..., 0])

    def error(self, x: Tensor, systems: Systems) -> Tensor:
        answer, A = systems.x.unsqueeze(-2), systems.A
        smallest = ((answer @ A) * answer).sum(-1) / answer.square().sum(-1)  # (..., 1)
        length = x.square().sum(-1, keepdim=True)
        x = x / torch.where(length > 0, length, 1.0).sqrt()
        e = x - (x * answer).sum(-1, keepdim=True) * answer
        gap = ((e @ A) * e).sum(-1) - smallest * e.square().sum(-1)
        # A start of zeros has no Rayleigh quotient: its error is that of the worst.
        return torch.where(length[..., 0] > 0, gap / (gap + smallest), 1.0)

    def rivals(self) -> Mapping[str, Rival]:
        return {"Lanczos": lanczos, "LOBPCG, Jacobi": lobpcg}

    def others(self) -> Mapping[str, Family]:
        return {
            "sigma 2": SmallestEigenpair(self.n, (2.0,)),
            "wishart": SmallestEigenpair(self.n, of="wishart"),
            "poisson-1d": SmallestEigenpair(self.n, of="poisson-1d"),
        }


def lanczos(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    """Ritz vectors of the smallest Ritz value in the Krylov spaces of b, (count, iterations + 1, n), in float64."""
    A, b = A.double(), b.double()
    basis = [divided(b, b.norm(dim=-1, keepdim=True))]
    products = [product(A, basis[0])]
    iterates = [basis[0]]
    for _ in range(iterations):
        V, w = torch.stack(basis, 1), products[-1]
        for _ in range(2):  # twice is enough
            w = w - (V.mT @ (V @ w[..., None]))[..., 0]
        size = w.norm(dim=-1, keepdim=True)
        ends = size <= 1e-13 * products[-1].norm(dim=-1, keepdim=True)  # the space is invariant: nothing to add
        basis.append(torch.where(ends, 0.0, divided(w, size)))
        products.append(product(A, basis[-1]))
        iterates.append(_ritz(torch.stack(basis, 1), torch.stack(products, 1)))
    return torch.stack(iterates, 1)


def lobpcg(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    """The iterates of LOBPCG for one vector, preconditioned with A's diagonal; as ``lanczos``."""
    A, b = A.double(), b.double()
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    x, d = divided(b, b.norm(dim=-1, keepdim=True)), torch.zeros_like(b)
    iterates = [x]
    for _ in range(iterations):
        r = product(A, x) - dot(x, product(A, x)) * x
        basis = [x]
        for v in (divided(r, diagonal), d):
            size = v.norm(dim=-1, keepdim=True)
            for _ in range(2):
                for u in basis:
                    v = v - dot(u, v) * u
            left = v.norm(dim=-1, keepdim=True)
            basis.append(torch.where(left <= 1e-14 * size, 0.0, divided(v, left)))
        V = torch.stack(basis, 1)
        found = _ritz(V, V @ A)
        d = found - dot(x, found) * x
        x = found
        iterates.append(x)
    return torch.stack(iterates, 1)


def _ritz(V: Tensor, products: Tensor) -> Tensor:
    """The Ritz vector of the smallest Ritz value in the span of rows V (count, k, n), some of which may be 0."""
    H = products @ V.mT
    H = (H + H.mT) / 2
    nothing = (V == 0).all(-1)
    largest = 2 * H.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) + 1.0
    H = H + torch.diag_embed(torch.where(nothing, largest, 0.0))  # a row of zeros must not be the smallest
    return (V.mT @ torch.linalg.eigh(H).eigenvectors[..., :1])[..., 0]
