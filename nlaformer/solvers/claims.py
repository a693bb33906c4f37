"""Claims of convergence: a method watches its running residual, and the true one decides.

The residual of a recursion drifts away from b - A x. A lane whose running residual meets its target *claims*; the true
residual of its x is then computed and certified. If that misses the tolerance, the lane goes on from the true residual
with a lower target, until that no longer helps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.solvers.certificate import Certificate
from nlaformer.solvers.result import Status
from nlaformer.solvers.state import SolveState

_STRIKES = 3  # claims of one lane that may fail without having halved the true residual
_LARGEST_DETOUR = 60  # claims of one lane that may fail at all


class Verdict(NamedTuple):
    """What became of some claims."""

    exact: Certificate  # of the float64 iterates
    ended: Tensor  # (k,) which lanes ended
    again: Tensor  # (k,) which go on from their true residual


class Claims:
    """The claims of some lanes: at which running residual they claim next, and how their claims went."""

    def __init__(self, state: SolveState, lanes: Tensor) -> None:
        self._state = state
        self.target = state.problem.tolerance[lanes].clone()  # (s,) the running |g| at which a lane claims
        self._failures = torch.zeros_like(lanes)  # (s,) claims that failed
        self._strikes = torch.zeros_like(lanes)  # (s,) those that did not lower the true residual much
        self._reached = torch.full_like(self.target, torch.inf)  # (s,) the smallest true residual at a failed claim

    def keep(self, at: Tensor) -> None:
        """Forget all lanes but some."""
        self.target, self._failures = self.target[at], self._failures[at]
        self._strikes, self._reached = self._strikes[at], self._reached[at]

    def judge(self, at: Tensor, lanes: Tensor, x: Tensor, norm: Tensor) -> Verdict:
        """Certify the x of the claims ``at``, made by ``lanes`` with a running residual of some norm."""
        state = self._state
        exact, done, noise = state.judge(lanes, x)
        self._failures[at] += 1
        self._strikes[at] += exact.norm >= 0.5 * self._reached[at]  # 0 is no less than 0
        self._reached[at] = torch.fmin(self._reached[at], exact.norm)
        # Where only rounding to the user's precision is in the way, a smaller residual may leave room for it.
        rounding = ~done & exact.holds
        spent = (self._failures[at] > 3) | (norm == 0)  # a residual of 0 cannot fall further
        hopeless = (noise > 0.8 * state.problem.tolerance[lanes]) | spent
        stuck = (self._strikes[at] > _STRIKES) | (self._failures[at] > _LARGEST_DETOUR)
        unrounded, stagnated = rounding & hopeless, ~done & ~rounding & stuck
        state.end_unrounded(lanes[unrounded])
        state.end(lanes[stagnated], Status.STAGNATED)
        done = done | unrounded | stagnated
        self.target[at] *= torch.where(rounding, 0.1, 0.5)
        return Verdict(exact, done, ~done & ~rounding)
