"""Nonsymmetric systems: a generalized conjugate residual method with a network in the preconditioner's place.

The direction d is the proposal c made such that q = A d is orthogonal to the last three q; the step along it has the
smallest residual. So no step increases |r|, whatever the network proposes. A proposal of which less than 1e-5 is left
is dropped: d and q are updated side by side, and rounding would part them. A step takes one product with A.
"""

from __future__ import annotations

from typing import Any

from nlaformer.program.language import Program, dot, norm, relu, sign, zeros_like
from nlaformer.program.learned import Learned

_States = dict[str, Any]
_LEAST = 1e-10  # of |A c|^2


class GuidedGCR(Program):
    """Generalized conjugate residuals with three orthogonalizations, ORTHOMIN(3); a network proposes the direction.

    With a ``rank`` it writes a preconditioner M of a diagonal and so many columns in every loop, and c = M r.
    """

    def __init__(self, rank: int = 0):
        self.rank = rank
        self.propose = Learned(f"dimensionless diagonal + rank {rank}" if rank else "vector", memory=True)

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        none = zeros_like(b)
        return dict(x=x0, r=b - A @ x0, d1=none, q1=none, d2=none, q2=none, d3=none, q3=none)

    def step(self, A: Any, x: Any, r: Any, d1: Any, q1: Any, d2: Any, q2: Any, d3: Any, q3: Any) -> _States:
        said = self.propose(A, r / norm(r))
        d = said @ (r / norm(r)) if self.rank else said
        q = A @ d
        least = _LEAST * dot(q, q)
        for d_before, q_before in ((d1, q1), (d2, q2), (d3, q3)):
            beta = dot(q, q_before) / dot(q_before, q_before)
            d, q = d - beta * d_before, q - beta * q_before
        new = sign(relu(dot(q, q) - least))  # 1, or 0 where nothing new was proposed
        d, q = new * d, new * q
        alpha = dot(r, q) / dot(q, q)
        return dict(x=x + alpha * d, r=r - alpha * q, d1=d, q1=q, d2=d1, q2=q1, d3=d2, q3=q2)
