"""The smallest eigenpair of a symmetric positive definite matrix: conjugate directions for the Rayleigh quotient.

With the residual r = rho x - A x of a vector x of norm 1, the proposal is c = M r, where M is symmetric positive
definite whatever the network says. It is made orthogonal to x and conjugate to the last four directions with A - rho.
Then x becomes the Ritz vector of the smaller Ritz value in the span of x and this direction d, in closed form: with d
of norm 1 and H = [rho, g; g, h] the matrix of A there, (h - mu, -g) for its smaller eigenvalue mu. So no step increases
the Rayleigh quotient.

Conjugate directions need no second look where the function is quadratic. Here it is only near the end: while rho falls,
what was conjugate is so no longer. So x becomes the Ritz vector with each of three earlier directions in turn as well.
Their products with A are known. This comes close to the best vector in the span of all of them, as in Davidson's
method, and a step takes one product with A as before; A x is updated with x.

The best M is close to the inverse of A - rho, so the network is told where rho lies among the diagonal entries of A.
"""

from __future__ import annotations

from typing import Any

from nlaformer.program.language import Program, diag, dot, log, norm, positive, sign, sqrt, zeros_like
from nlaformer.program.learned import Learned

_States = dict[str, Any]
_KEPT = 4


class GuidedEigen(Program):
    """The eigenvector of A's smallest eigenvalue from a start b; a network writes the preconditioner of a loop."""

    positive_definite = True

    def __init__(self, rank: int = 1, coarse: bool = False, memory: bool = False):
        self.rank, self.coarse, self.memory = rank, coarse, memory
        self.precondition = Learned(f"diagonal + {'coarse' if coarse else 'rank'} {rank}", memory=memory)

    def start(self, A: Any, b: Any) -> _States:
        x = b / norm(b)
        p = A @ x
        return dict(x=x, p=p) | _states([(zeros_like(x), zeros_like(p))] * _KEPT)

    def step(
        self, A: Any, x: Any, p: Any, d1: Any, q1: Any, d2: Any, q2: Any, d3: Any, q3: Any, d4: Any, q4: Any
    ) -> _States:
        rho = dot(x, p)
        r = rho * x - p
        M = self.precondition(A, x, r / norm(r), log(positive(diag(A) / rho)))
        c = M @ (r / norm(r))
        c = c - dot(x, c) * x
        kept = [(d1, q1), (d2, q2), (d3, q3), (d4, q4)]
        for d, q in kept:
            d, q = d - dot(x, d) * x, q - dot(x, d) * p
            c = c - (dot(c, q - rho * d) / dot(d, q - rho * d)) * d
        c = c / norm(c)
        kept = [(c, A @ c), *kept[:-1]]
        for d, q in kept:
            x, p = _ritz(x, p, d, q)
        return dict(x=x, p=p) | _states(kept)

    def residual(self, A: Any, x: Any) -> Any:
        return A @ x - (dot(x, A @ x) / dot(x, x)) * x

    def residual_scale(self, A: Any, x: Any) -> Any:
        return A @ x


def _states(kept: list[tuple[Any, Any]]) -> _States:
    """The directions and their products with A by name, the latest first."""
    return {f"{name}{k}": value for k, pair in enumerate(kept, 1) for name, value in zip("dq", pair, strict=True)}


def _ritz(x: Any, p: Any, d: Any, q: Any) -> tuple[Any, Any]:
    """The Ritz vector of the smaller Ritz value in the span of x, of norm 1, and d, and its product with A."""
    along = dot(x, d)
    d, q = d - along * x, q - along * p
    size = norm(d)
    d, q = d / size, q / size
    g, half = dot(d, p), (dot(d, q) - dot(x, p)) / 2.0
    first = half + sqrt(half * half + g * g)  # h - mu
    length = sqrt(first * first + g * g)
    here = 1.0 - sign(length)  # 1 at an eigenvector, from where no direction leads, and where d is 0
    return (first * x - g * d) / length + here * x, (first * p - g * q) / length + here * p
