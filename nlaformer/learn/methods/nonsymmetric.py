"""Nonsymmetric systems: a generalized conjugate residual method with a network in the preconditioner's place.

The direction d is the proposal c made such that q = A d is orthogonal to the last q; the step along it has the smallest
residual. So no step increases |r|, whatever the network proposes. A step takes one product with A.
"""

from __future__ import annotations

from typing import Any

from nlaformer.compiler.language import Program, dot, norm, zeros_like
from nlaformer.compiler.learned import Learned

_States = dict[str, Any]


class GuidedGCR(Program):
    """Generalized conjugate residuals with one orthogonalization (GCR(1)); a network proposes the direction."""

    propose = Learned("vector", memory=True)

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        return dict(x=x0, r=b - A @ x0, d=zeros_like(b), q=zeros_like(b))

    def step(self, A: Any, x: Any, r: Any, d: Any, q: Any) -> _States:
        c = self.propose(A, r / norm(r))
        p = A @ c
        beta = dot(p, q) / dot(q, q)
        d, q = c - beta * d, p - beta * q
        alpha = dot(r, q) / dot(q, q)
        return dict(x=x + alpha * d, r=r - alpha * q, d=d, q=q)
