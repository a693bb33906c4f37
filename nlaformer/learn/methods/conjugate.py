"""Symmetric positive definite systems: conjugate gradient methods with a network in the preconditioner's place.

What it writes, a diagonal plus a column or more, is symmetric positive definite whatever it says. In ``GuidedCG`` it
speaks in every loop: M changes with the residual alone, so that it cannot drift in a long run. No step increases the
error in the norm of A; with c = M r the step along c alone would decrease it, and the step along d is the best one in
the plane of c and the direction before. -c gives the same step as c. In ``LearnedPCG`` the network reads A once and
writes M; the rest is the preconditioned method with all its theory: in exact arithmetic it ends in at most n steps.
With ``coarse`` the columns stand for the smallest eigenvalues of A, as on a grid, and not for the largest.
"""

from __future__ import annotations

from typing import Any

from nlaformer.program.language import Program, dot, norm, zeros_like
from nlaformer.program.learned import Learned

_States = dict[str, Any]


class GuidedCG(Program):
    """Flexible conjugate gradients with one conjugation (Notay 2000); a network writes the preconditioner of a loop."""

    positive_definite = True

    def __init__(self, rank: int = 1, coarse: bool = False):
        self.rank, self.coarse = rank, coarse
        self.precondition = Learned(f"diagonal + {'coarse' if coarse else 'rank'} {rank}")

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        return dict(x=x0, r=b - A @ x0, d=zeros_like(b), q=zeros_like(b))

    def step(self, A: Any, x: Any, r: Any, d: Any, q: Any) -> _States:
        c = self.precondition(A, r / norm(r)) @ r
        d = c - (dot(c, q) / dot(d, q)) * d
        q = A @ d  # not by a recurrence from A c: where d is small, it would no longer be the product with d
        alpha = dot(r, d) / dot(d, q)
        return dict(x=x + alpha * d, r=r - alpha * q, d=d, q=q)


class LearnedPCG(Program):
    """Preconditioned conjugate gradients; a network writes the preconditioner, a diagonal and ``rank`` columns."""

    positive_definite = True

    def __init__(self, rank: int = 1, coarse: bool = False):
        self.rank, self.coarse = rank, coarse
        self.precondition = Learned(f"diagonal + {'coarse' if coarse else 'rank'} {rank}")

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        M = self.precondition(A)
        r = b - A @ x0
        z = M @ r
        return dict(x=x0, r=r, d=z, rho=dot(r, z), M=M)

    def step(self, A: Any, x: Any, r: Any, d: Any, rho: Any, M: Any) -> _States:
        q = A @ d
        alpha = rho / dot(d, q)
        r = r - alpha * q
        z = M @ r
        rho_next = dot(r, z)
        return dict(x=x + alpha * d, r=r, d=z + (rho_next / rho) * d, rho=rho_next, M=M)
