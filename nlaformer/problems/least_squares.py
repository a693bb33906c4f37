"""Least-squares problems min |b - A x| with more rows than columns, and the methods that they face.

The data of a regression: k features of n observations, each in a unit of its own, which share a common factor,

    A = (G + f c^T) diag(s),    s = exp(sigma z),    G (n x k), f (n), c and z (k) ~ N(0, 1).

b = A x + e, where x is drawn and e, of ``noise`` times the size of A x, is orthogonal to the columns, so that x is the
solution. A is padded with zero columns to n x n, and x with zeros, as programs with ``rectangular = True`` take them.

CGLS (Hestenes and Stiefel 1952) and LSQR (Paige and Saunders 1982) have the same iterates but for rounding. An
iteration is a product with A and one with its transpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from nlaformer.arrays import is_whole
from nlaformer.errors import shown
from nlaformer.problems.base import Draws, Family, Rival, Systems, as_whole, real, whole
from nlaformer.problems.vectors import divided, dot, product


@dataclass(frozen=True)
class LeastSquares(Family):
    """A regression with features of different units and a common factor, padded with zeros to a square.

    Parameters
    ----------
    n : rows, the observations
    columns : the features; by default half as many, at least one
    sigma : of the logarithm of a feature's unit
    noise : |e| over |A x|

    Examples
    --------
    >>> A, b, x = LeastSquares(n=6, columns=2).sample(3, seed=0)
    >>> theirs = torch.linalg.lstsq(A[..., :2], b[..., None]).solution[..., 0]
    >>> torch.allclose(theirs, x[..., :2]), x[..., 2:].abs().max().item(), A[..., 2:].abs().max().item()
    (True, 0.0, 0.0)
    """

    name: ClassVar[str] = "least-squares"
    definite: ClassVar[bool] = False
    n: int = whole(40, least=1)
    columns: int = whole(0, least=0)
    sigma: float = real(1.0)
    noise: float = real(0.5)

    @classmethod
    def complaints(cls, options: Mapping[str, Any]) -> list[str]:
        found = super().complaints(options)
        n, k = (as_whole(options.get(name, getattr(cls, name))) for name in ("n", "columns"))
        if is_whole(n) and is_whole(k) and k > n:
            found.append(f"columns must be at most n = {shown(n)}, not {shown(k)}")
        return found

    def systems(self, draw: Draws, count: int) -> Systems:
        k = self.columns or max(self.n // 2, 1)
        factor = draw.normal("factor", count, self.n, 1) * draw.normal("common", count, 1, k)
        unscaled = draw.normal("features", count, self.n, k) + factor
        s = torch.exp(self.sigma * draw.normal("units", count, k))
        y = draw.normal("x", count, k)  # s x: features of any unit matter alike
        image = (unscaled * y[:, None, :]).sum(-1)
        e = _orthogonal(unscaled, draw.normal("noise", count, self.n))
        e = self.noise * divided(e, e.norm(dim=-1, keepdim=True)) * image.norm(dim=-1, keepdim=True)
        missing = self.n - k
        return Systems(pad(unscaled * s[:, None, :], (0, missing)), image + e, pad(y / s, (0, missing)))

    def rivals(self) -> Mapping[str, Rival]:
        return METHODS

    def others(self) -> Mapping[str, Family]:
        return {
            "sigma 2": LeastSquares(self.n, self.columns, 2.0, self.noise),
            "noise 10": LeastSquares(self.n, self.columns, self.sigma, 10.0),
            "n / 4 columns": LeastSquares(self.n, max(self.n // 4, 1), self.sigma, self.noise),
            "3 n / 4 columns": LeastSquares(self.n, max(3 * self.n // 4, 1), self.sigma, self.noise),
        }


def _orthogonal(A: Tensor, e: Tensor) -> Tensor:
    """What is left of e, (count, n), without its part in the span of the columns of A (count, n, k)."""
    if A.shape[-1] == A.shape[-2]:
        return torch.zeros_like(e)
    A = A / A.norm(dim=-2, keepdim=True)
    factor = torch.linalg.cholesky(A.mT @ A)
    for _ in range(2):  # twice is enough
        e = e - (A @ torch.cholesky_solve(A.mT @ e[..., None], factor))[..., 0]
    return e


def cgls(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    """The iterates of CGLS from x_0 = 0, (count, iterations + 1, n), in float64; A (count, n, n), b (count, n).

    >>> A, b = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]), torch.tensor([[1.0, 3.0]])
    >>> cgls(A, b, 1)[0, -1]
    tensor([2., 0.], dtype=torch.float64)
    """
    A, b = A.double(), b.double()
    x, r = torch.zeros_like(b), b
    s = product(A.mT, r)
    d, rho = s, dot(s, s)
    iterates = [x]
    for _ in range(iterations):
        q = product(A, d)
        alpha = divided(rho, dot(q, q))
        x, r = x + alpha * d, r - alpha * q
        s = product(A.mT, r)
        rho, before = dot(s, s), rho
        d = s + divided(rho, before) * d
        iterates.append(x)
    return torch.stack(iterates, 1)


def _scaled_cgls(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    """CGLS for the columns divided by their norms, which is what Jacobi's preconditioner is here."""
    norms = A.double().norm(dim=-2, keepdim=True)
    return divided(cgls(divided(A.double(), norms), b, iterations), norms)


def lsqr(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    """The iterates of LSQR from x_0 = 0, (count, iterations + 1, n), in float64."""
    A, b = A.double(), b.double()
    beta = b.norm(dim=-1, keepdim=True)
    u = divided(b, beta)
    v = product(A.mT, u)
    alpha = v.norm(dim=-1, keepdim=True)
    v = divided(v, alpha)
    w, x, phi, rho = v, torch.zeros_like(b), beta, alpha
    iterates = [x]
    for _ in range(iterations):
        u = product(A, v) - alpha * u
        beta = u.norm(dim=-1, keepdim=True)
        u = divided(u, beta)
        v = product(A.mT, u) - beta * v
        alpha = v.norm(dim=-1, keepdim=True)
        v = divided(v, alpha)
        length = torch.hypot(rho, beta)
        cosine, sine = divided(rho, length), divided(beta, length)
        x = x + divided(cosine * phi, length) * w
        w = v - divided(sine * alpha, length) * w
        phi, rho = sine * phi, -cosine * alpha
        iterates.append(x)
    return torch.stack(iterates, 1)


METHODS: dict[str, Rival] = {"CGLS": cgls, "LSQR": lsqr, "CGLS, columns of norm 1": _scaled_cgls}
