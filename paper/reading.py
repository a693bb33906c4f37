"""What the study reads from finished runs: curves, iterations to a threshold, scores, and how all that is written."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from paper import plan
from paper.artefact import Judgement
from paper.filing import THRESHOLDS
from paper.results import Record

Curve = Sequence[float]
LUCK = 1.36  # the largest factor between the scores of runs of one seed each, benchmarks/results/learning*.json


def at(record: Record, sigma: float) -> dict[str, Any]:
    """A run's evaluation at a sigma."""
    return record.evaluations[f"spd, sigma {sigma}"]


def iterations(curve: Curve, bound: float) -> int | None:
    """The first iterate whose mean squared relative error is at most a bound; None if there is none.

    >>> iterations([1.0, 0.2, 0.009], 1e-2)
    2
    """
    return next((t for t, error in enumerate(curve) if error <= bound), None)


def counted(*curves: Curve, bounds: Sequence[float] = THRESHOLDS) -> str:
    """The iterations to 1e-1, ..., 1e-4, as a cell, a dash where a curve does not get there; of several the range.

    >>> counted([1.0, 0.05, 0.005], [1.0, 0.5, 0.005], bounds=(1e-1, 1e-2, 1e-3))
    '1..2 2 -'
    """
    cells = []
    for bound in bounds:
        found = [iterations(curve, bound) for curve in curves]
        reached = sorted(count for count in found if count is not None)
        ends = [*map(str, reached[:1] + reached[-1:]), *(["-"] if None in found else [])]
        cells.append("..".join(dict.fromkeys((ends[0], ends[-1]))))
    return " ".join(cells)


def span(values: Sequence[float], digits: str = ".2g") -> str:
    """The least and the largest of some numbers, as a cell.

    >>> span([0.0123, 0.02, 0.01])
    '0.01 to 0.02'
    """
    return " to ".join(dict.fromkeys((short(min(values), digits), short(max(values), digits))))


def fewer(curve: Curve, than: Curve) -> dict[float, float]:
    """By threshold, the share of iterations saved over another method; where both get there.

    >>> fewer([1.0, 0.09, 0.009], [1.0, 0.3, 0.1, 0.1, 0.01])
    {0.1: 0.5, 0.01: 0.5}
    """
    pairs = {bound: (iterations(curve, bound), iterations(than, bound)) for bound in THRESHOLDS}
    return {bound: 1 - own / other for bound, (own, other) in pairs.items() if own is not None and other}


def score(curve: Curve) -> float:
    """One number for a curve: the geometric mean of the squared relative errors of x_1, ..., x_T; less is better."""
    errors = [positive(error) for error in curve[1:]]
    return math.exp(sum(map(math.log, errors)) / len(errors))


def positive(error: float) -> float:
    """An error to divide by, or to take the logarithm of, where it may be exactly 0."""
    return max(error, sys.float_info.min)


def overtaken(own: Sequence[float], theirs: Sequence[float]) -> int | None:
    """The first iterate at which a teacher's error is smaller than its pupil's, if it ever is."""
    return next((t for t in range(1, len(own)) if theirs[t] < own[t]), None)


@dataclass(frozen=True)
class Luck:
    """What runs that differ in their seed alone come to: a score, and how far others may be from it by luck."""

    scores: tuple[float, ...]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Luck:
        """From runs of one kind. That a run may diverge is another kind of luck: such runs are left out."""
        scores = [score(record.own["model"]) for record in records]
        return cls(tuple(value for value in scores if math.isfinite(value)))

    @property
    def mean(self) -> float:
        """The geometric mean; infinite where all of them diverged."""
        return math.exp(statistics.fmean(map(math.log, self.scores))) if self.scores else math.inf

    def factor(self, comparisons: int = 1, runs: int | None = None) -> float:
        """By which one other run may be away from the mean of these, or of ``runs`` of them, by luck.

        Student's interval of 95% for the logarithms, for several comparisons together after Bonferroni.
        """
        seeds = len(self.scores)
        if seeds < 2:
            return LUCK
        quantile = stats.t.ppf(1 - 0.025 / comparisons, seeds - 1)
        spread = statistics.stdev(map(math.log, self.scores)) * math.sqrt(1 + 1 / (runs or seeds))
        return math.exp(min(quantile * spread, 700))  # more is no float, and as good as anything

    def told(self, comparisons: int = 1, runs: int | None = None) -> str:
        """The same in words, and where it is from."""
        factor = f"factors of up to {short(self.factor(comparisons, runs), '.3g')}"
        if len(self.scores) < 2:
            return f"one seed, where shorter runs (benchmarks/results/learning*.json) differ by {factor}"
        return f"{factor} may be luck ({len(self.scores)} seeds, 95%)"


def decided(own: float, others: Iterable[float], noise: float) -> Judgement:
    """Whether an error is smaller than all others, by more than luck; it differs where one of them is smaller so."""
    others = list(others)
    if any(other * noise < own for other in others):
        return "differs"
    return "holds" if all(other > noise * own for other in others) else "not reproducible as stated"


def length(records: Mapping[Any, Record] | Mapping[Any, list[Record]] | Iterable[Record]) -> str:
    """How the runs of a comparison were trained: "100k steps, power 0.5, bf16". Power 1 is the paper's loss."""
    groups = records.values() if isinstance(records, Mapping) else records
    values = [record for group in groups for record in (group if isinstance(group, list) else [group])]
    steps = sorted({record.config.steps for record in values})
    said = listed(list(map(plan.thousands, steps)))
    power = listed([f"{power:g}" for power in sorted({record.config.power for record in values})])
    return f"{said} steps, power {power}, {listed(sorted({record.arithmetic for record in values}))}"


def short(value: float | None, digits: str = ".2g") -> str:
    """A number for people: two digits; a dash where there is none, or none that is finite."""
    return "-" if value is None or not math.isfinite(value) else f"{value:{digits}}"


def bare(bound: float) -> str:
    """A bound of one digit, as we write it.

    >>> bare(0.01)
    '1e-2'
    """
    return f"{bound:.0e}".replace("e-0", "e-")


def with_error(mean: float | None, standard_error: float | None) -> str:
    """A mean beside its standard error."""
    return f"{short(mean)} +- {short(standard_error)}"


def percent(share: float) -> str:
    """A share for people.

    >>> percent(0.4991)
    '50%'
    """
    return f"{100 * share:.0f}%"


def listed(parts: Sequence[str]) -> str:
    """Words as an enumeration.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""
