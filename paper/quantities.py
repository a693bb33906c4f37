"""The quantities of paper/protocol.md for one run, and its tests and intervals over the seeds.

The p-values of one hypothesis, of differences and of equivalences together, are adjusted by Holm's method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from paper.curves import Curve, geometric_mean, typical
from paper.results import Record

LEVEL, MARGIN = 0.05, math.log(1.1)


# --- quantities of a run ---


def errors(record: Record, who: str = "model") -> list[float]:
    """e_0, ..., e_T: a value that is not finite or exceeds 1 counts as 1."""
    return [error if error <= 1 else 1.0 for error in record.own[who]]


def capped_mean_error(record: Record) -> float:
    """G, the geometric mean of e_1, ..., e_T."""
    return geometric_mean(errors(record)[1:])


def crossing(curve: Curve, level: float) -> float:
    """tau: where log e_t, interpolated in t, first falls to a level; T where it never does.

    >>> crossing([1.0, 1e-2, 1e-4], 1e-3), crossing([1.0, 1.0], 0.5)
    (1.5, 1.0)
    """
    return float(crossings(torch.tensor(curve, dtype=torch.float64), level))


def crossings(errors: Tensor, threshold: float = 1e-3) -> Tensor:
    """Tau of every system: where log e_t, interpolated in t, first falls to a threshold; T where it never does.

    An error above 1 counts as 1, as everywhere in protocol.md.

    >>> crossings(torch.tensor([[1.0, 1e-2, 1e-4], [9.0, 1e-6, 1e-6], [1.0, 1.0, 1.0]])).tolist()
    [1.5, 0.5, 2.0]
    """
    T = errors.shape[-1] - 1
    logs = torch.where(errors.isfinite(), errors, 1.0).clamp(1e-300, 1.0).log()
    level = torch.tensor(threshold, dtype=logs.dtype).log()
    reached = logs <= level
    t = reached.int().argmax(-1).clamp(min=1)
    before, after = (logs.gather(-1, k.unsqueeze(-1)).squeeze(-1) for k in (t - 1, t))
    found = torch.where(reached[..., 0], 0.0, t - 1 + (level - before) / (after - before))
    return torch.where(reached.any(-1), found, float(T))


def horizon(record: Record) -> int:
    """The largest t with D_s <= 0.1 for all s = 1..t, D the deviation relative to the teacher's own error."""
    teacher = record.own[record.config.teacher]
    within = [d <= 0.1 * e for d, e in zip(record.own["deviation"][1:], teacher[1:], strict=True)]
    return within.index(False) if False in within else len(within)


def lead(record: Record, over: str = "cg") -> float:
    """L, the geometric mean over t = 2..6 of CG's error over the run's."""
    return typical(errors(record, over)) / typical(errors(record))


def silent_discrepancy(record: Record) -> float:
    """Delta_0, the discrepancy of the zero predictor, r = d = 0: a mean over t = 2, ..., n."""
    terms = record.own["silence"][2 : record.config.n + 1]
    return sum(terms) / len(terms)


def growth(record: Record) -> float:
    """How much tau(1e-3) grows from the best conditioned quarter of the systems to the worst, over CG's growth."""
    own, cg = (record.own["crossing"][who] for who in ("model", "cg"))
    return (own[-1] - own[0]) / (cg[-1] - cg[0])


def failed(record: Record) -> bool:
    """Whether a run failed: e_T = 1."""
    return errors(record)[-1] == 1


# --- tests over the seeds ---


@dataclass(frozen=True)
class Comparison:
    """A quantity of one group of seeds over that of another, and the adjusted p-values of "differs" and "equal"."""

    ratio: float
    low: float
    high: float
    p_differs: float
    p_equal: float

    @property
    def outcome(self) -> str:
        """The word of the protocol, for a quantity of which less is better."""
        if self.p_equal < LEVEL:
            return "equal"
        if self.p_differs < LEVEL:
            return "better" if self.ratio < 1 else "worse"
        return "undecided"


def compare(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> dict[str, Comparison]:
    """The comparisons of one hypothesis, by name: Welch's tests of the logarithms, adjusted by Holm's method."""
    logs = {name: ([math.log(q) for q in one], [math.log(q) for q in other]) for name, (one, other) in pairs.items()}
    tests = {name: stats.ttest_ind(one, other, equal_var=False) for name, (one, other) in logs.items()}
    raw: dict[tuple[str, str], float] = {}
    for name, (one, other) in logs.items():
        raw[name, "differs"] = float(tests[name].pvalue)
        sides = [(MARGIN, "less"), (-MARGIN, "greater")]
        raw[name, "equal"] = max(
            float(stats.ttest_ind([q - m for q in one], other, equal_var=False, alternative=side).pvalue)
            for m, side in sides
        )
    adjusted = holm(raw)
    found = {}
    for name, (one, other) in logs.items():
        low, high = tests[name].confidence_interval(1 - LEVEL)
        found[name] = Comparison(
            math.exp(fmean(one) - fmean(other)),
            math.exp(low),
            math.exp(high),
            adjusted[name, "differs"],
            adjusted[name, "equal"],
        )
    return found


def holm(p: Mapping[Any, float]) -> dict[Any, float]:
    """P-values adjusted by Holm's method; a test that could not be made (NaN) decides nothing.

    >>> {name: round(value, 6) for name, value in holm({"a": 0.01, "b": 0.04, "c": 0.03}).items()}
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    ordered = sorted((1.0 if math.isnan(value) else value, k, name) for k, (name, value) in enumerate(p.items()))
    found, largest = {}, 0.0
    for rank, (value, _, name) in enumerate(ordered):
        largest = max(largest, min(1.0, value * (len(ordered) - rank)))
        found[name] = largest
    return found


def interval(values: Sequence[float], logarithm: bool = True) -> list[float]:
    """Student's interval of 95% over the seeds, of the logarithms unless a value may be negative; infinite values: all.

    >>> interval([0.1, float("inf")])
    [0.0, inf]
    """
    if math.inf in values:  # of a run that diverged
        return [0.0 if logarithm else -math.inf, math.inf]
    logs = [math.log(value) for value in values] if logarithm else list(values)
    half = float(stats.t.ppf(1 - LEVEL / 2, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs))
    ends = [fmean(logs) - half, fmean(logs) + half]
    return [math.exp(end) for end in ends] if logarithm else ends


def prediction_factor(values: Sequence[float], comparisons: int = 1, single: bool = False) -> float:
    """The factor by which one more value may differ from the geometric mean of some, or from a single one, by luck.

    Student's prediction interval of 95% for the logarithms, for several comparisons after Bonferroni.
    """
    logs = [math.log(value) for value in values]
    quantile = float(stats.t.ppf(1 - LEVEL / 2 / comparisons, len(logs) - 1))
    return math.exp(quantile * stdev(logs) * math.sqrt(1 + (1 if single else 1 / len(logs))))
