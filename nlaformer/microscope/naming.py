"""The rule that names an algorithm: which one explains the iterates of a model best, and up to which t.

For a candidate c with iterates x_t^c, and the model's x_t, both for the same systems with solutions x,

    ratio_c(t) = median over systems of  |x_t - x_t^c| / min(|x_t^c - x|, |x_t^c - x_(t-1)^c|).

The deviation is compared with the candidate's own error, since near the solution all methods agree, and with its own
step, since at the start slow methods agree with x = 0.

1. A candidate explains iterate t if ratio_c(t) <= 1/2. It is compared while its own error is above 1e-6 (median,
   relative, not squared), where rounding does not count; after that it has ended.
2. It explains the model *up to t* if it explains every iterate from 1 to t.
3. The candidate that explains best has the largest score, the sum over t of max(0, 1 - ratio_c(t)) up to where it
   ended: how long and how closely it follows.
4. That candidate is named if it explains the model up to t = 3 or further. Otherwise no algorithm is named.

The 1/2 and the 3 are set by the compiled algorithms. Two pairs of candidates are close, each a method with the smallest
error in the norm of A and its twin with the smallest residual: CG and conjugate residuals, steepest descent and minimal
residuals. Chebyshev's method, a fixed polynomial in A / |A|_F, is close to the best one. The score tells such twins
apart where both are candidates; a twin that is none is not excluded. Tests show, for n = 4, 6, 8 on the paper's family,
that a compiled algorithm gets its own name, and without its own candidate at most the name of its twin; and that other
methods and an untrained network are not named. The rule was fixed before it was applied to a learned model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nlaformer.learn.evaluate import squared_deviations, squared_relative_errors
from nlaformer.microscope.measures import middle, numbers

EXPLAINED = 0.5
LEAST = 3
CONVERGED = 1e-6


@dataclass(frozen=True)
class Explanation:
    """How well one candidate explains a model; the numbers by iterate are those of t = 1, ..., T."""

    candidate: str
    until: int
    """It explains every iterate from 1 to this one; 0: not even the first."""
    ended: int
    """The last iterate that was compared."""
    score: float
    ratio: tuple[float, ...]
    deviation: tuple[float, ...]
    """Mean squared deviation from the candidate, relative to the solution."""
    relative_deviation: tuple[float, ...]
    """The same over the candidate's mean squared error."""


def explain(iterates: Tensor, candidates: Mapping[str, Tensor], x: Tensor) -> tuple[Explanation, ...]:
    """Every candidate's explanation of iterates (count, T + 1, n), the best first."""
    found = [_explanation(name, iterates, theirs, x) for name, theirs in candidates.items()]
    return tuple(sorted(found, key=lambda each: -each.score))


def named(explanations: tuple[Explanation, ...]) -> Explanation | None:
    """The explanation that the rule accepts, if there is one."""
    best = explanations[0]
    return best if best.until >= LEAST else None


def _explanation(name: str, iterates: Tensor, theirs: Tensor, x: Tensor) -> Explanation:
    own = (theirs - x[:, None]).norm(dim=-1)[:, 1:]
    step = (theirs[:, 1:] - theirs[:, :-1]).norm(dim=-1)
    deviation = (iterates - theirs).norm(dim=-1)[:, 1:]
    ratio = numbers(middle(deviation / torch.minimum(own, step)))
    going = (middle(own / x.norm(dim=-1, keepdim=True)) > CONVERGED).tolist()
    ended = next((t for t, more in enumerate(going) if not more), len(going))
    until = next((t for t in range(ended) if not ratio[t] <= EXPLAINED), ended)
    squares = squared_deviations(iterates, theirs, x).mean(0)[1:]
    return Explanation(
        name,
        until,
        ended,
        sum(max(0.0, 1 - value) for value in ratio[:ended]),
        ratio,
        numbers(squares),
        numbers(squares / squared_relative_errors(theirs, x).mean(0)[1:]),
    )
