"""Least-squares problems min |b - A x|: CGLS with a network in the preconditioner's place.

With s = A^T r the gradient and W = diag(1 / |a_j|), the proposal is c = W M W s, where M is symmetric positive definite
whatever the network says. The direction d is c, made such that q = A d is orthogonal to the last q; for this A^T q is
not another product but the last change of s over alpha. The step along d has the smallest residual: no step increases
|r|, and one along c alone would decrease it as long as s is not 0. Columns of zeros, with which rectangular data is
padded, have W = 0: their unknowns stay 0. A step takes one product with A and one with its transpose.
"""

from __future__ import annotations

from typing import Any

from nlaformer.program.language import Program, diag, dot, norm, positive, sqrt, zeros_like
from nlaformer.program.learned import Learned

_States = dict[str, Any]


class GuidedCGLS(Program):
    """Conjugate gradients for least squares with one conjugation; a network writes the preconditioner of a loop."""

    rectangular = True

    def __init__(self, rank: int = 1, coarse: bool = False, memory: bool = False):
        self.rank, self.coarse, self.memory = rank, coarse, memory
        self.precondition = Learned(f"dimensionless diagonal + {'coarse' if coarse else 'rank'} {rank}", memory=memory)

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        squares = positive(diag(A.T @ A))
        scale = sqrt(squares) / squares  # 0 / 0 is 0
        r = b - A @ x0
        s = A.T @ r
        return dict(x=x0, r=r, s=s, d=zeros_like(s), change=zeros_like(s), length=zeros_like(dot(r, r)), scale=scale)

    def step(self, A: Any, x: Any, r: Any, s: Any, d: Any, change: Any, length: Any, scale: Any) -> _States:
        u = scale * s
        c = scale * (self.precondition(A, u / norm(u)) @ u)
        d = c - (dot(c, change) / length) * d  # change = alpha A^T q, length = alpha q . q of the last step
        q = A @ d
        alpha = dot(s, d) / dot(q, q)
        r = r - alpha * q
        s_next = A.T @ r
        return dict(x=x + alpha * d, r=r, s=s_next, d=d, change=s - s_next, length=dot(s, d), scale=scale)

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A.T @ (b - A @ x)
