"""The smallest eigenpair of a symmetric positive definite matrix: conjugate directions for the Rayleigh quotient.

With the residual r = rho x - A x of a vector x of norm 1, the proposal is c = M r, where M is symmetric positive
definite whatever the network says. It is made orthogonal to x and conjugate to the last direction with A - rho; then x
becomes the Ritz vector of the smaller Ritz value in the span of x and this direction d, in closed form: with d of norm
1 and H = [rho, g; g, h] the matrix of A there, (h - mu, -g) for its smaller eigenvalue mu. So no step increases the
Rayleigh quotient. Near the end this is the step of LOBPCG, which takes the best of x, c and the last direction. A step
takes one product with A; A x is updated with x.

The best M is close to the inverse of A - rho, so the network is told where rho lies among the diagonal entries of A.
"""

from __future__ import annotations

from typing import Any

from nlaformer.compiler.language import Program, diag, dot, log, norm, positive, sign, sqrt, zeros_like
from nlaformer.compiler.learned import Learned

_States = dict[str, Any]


class GuidedEigen(Program):
    """The eigenvector of A's smallest eigenvalue from a start b; a network writes the preconditioner of a loop."""

    positive_definite = True

    def __init__(self, rank: int = 1, coarse: bool = False, memory: bool = False):
        self.rank, self.coarse, self.memory = rank, coarse, memory
        self.precondition = Learned(f"diagonal + {'coarse' if coarse else 'rank'} {rank}", memory=memory)

    def start(self, A: Any, b: Any) -> _States:
        x = b / norm(b)
        return dict(x=x, p=A @ x, d=zeros_like(b), q=zeros_like(A @ x))

    def step(self, A: Any, x: Any, p: Any, d: Any, q: Any) -> _States:
        rho = dot(x, p)
        r = rho * x - p
        M = self.precondition(A, x, r / norm(r), log(positive(diag(A) / rho)))
        c = M @ (r / norm(r))
        c = c - dot(x, c) * x
        d, q = d - dot(x, d) * x, q - dot(x, d) * p
        c = c - (dot(c, q - rho * d) / dot(d, q - rho * d)) * d
        d = c / norm(c)
        q = A @ d
        g, half = dot(d, p), (dot(d, q) - rho) / 2.0
        first = half + sqrt(half * half + g * g)  # h - mu
        length = sqrt(first * first + g * g)
        here = 1.0 - sign(length)  # 1 at an eigenvector, from where no direction leads
        return dict(x=(first * x - g * d) / length + here * x, p=(first * p - g * q) / length + here * p, d=d, q=q)

    def residual(self, A: Any, x: Any) -> Any:
        return A @ x - (dot(x, A @ x) / dot(x, x)) * x

    def residual_scale(self, A: Any, x: Any) -> Any:
        return A @ x
