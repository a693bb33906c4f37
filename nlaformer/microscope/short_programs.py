"""Short programs with a few constants, which ``extraction`` fits to a model's iterates. Each has ten lines at most.

The paper's family is A = s s^T + U diag(u) U^T + diag(exp(sigma z)): a vector, a diagonal, and what is left over.
``RankOneRefinement`` finds s from the entries of A off the diagonal, takes M = (D + s s^T)^-1 with what remains of the
diagonal as D (Sherman and Morrison's formula), and corrects x by a combination of M r and M A M r; 2 M r - M A M r
would be a step of Newton and Schulz's iteration for the inverse. ``DiagonalRefinement`` is the same without s: what it
explains needs no vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.program.language import Program, positive

_States = dict[str, Any]


class Momentum(Program):
    """A fixed step along the residual, and a share of the last step."""

    rate, memory = 1.5, 0.1

    def start(self, x0: Any) -> _States:
        return dict(x=x0, previous=x0)

    def step(self, A: Any, b: Any, x: Any, previous: Any) -> _States:
        r = b - A @ x
        return dict(x=x + (self.rate / np.linalg.norm(A)) * r + self.memory * (x - previous), previous=x)


class DiagonalRefinement(Program):
    """Corrections by a diagonal approximate inverse."""

    shift, first, second = 0.3, 0.5, -0.1

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, D=np.maximum(np.diag(A), 0.01) + self.shift)

    def step(self, A: Any, b: Any, x: Any, D: Any) -> _States:
        z = (b - A @ x) / positive(D)
        return dict(x=x + self.first * z + self.second * (A @ z) / positive(D), D=D)


class RankOneRefinement(Program):
    """Corrections by an approximate inverse of the paper's family, a diagonal and a vector found in A."""

    shift, weight, first, second = 0.3, 1.0, 2.0, -1.0

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        B, s = A - np.diag(np.diag(A)), A @ b
        for _ in range(6):  # s s^T is by far the largest part of B
            s = B @ s / np.linalg.norm(s)
        s = s / np.sqrt(np.linalg.norm(s))
        return dict(x=x0, s=self.weight * s, D=np.maximum(np.diag(A) - s * s, 0.01) + self.shift)

    def step(self, A: Any, b: Any, x: Any, s: Any, D: Any) -> _States:
        w = s / positive(D) / positive(1 + s @ (s / positive(D)))
        y = (b - A @ x) / positive(D)
        z = y - (s @ y) * w
        y = A @ z / positive(D)
        return dict(x=x + self.first * z + self.second * (y - (s @ y) * w), s=s, D=D)
