"""What the study reads from finished runs: curves, iterations to a threshold, scores, and how all that is written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nlaformer.study.filing import THRESHOLDS
from nlaformer.study.results import Record, Results

Curve = Sequence[float]


def at(record: Record, sigma: float) -> dict[str, Any]:
    """A run's evaluation at a sigma."""
    return record.evaluations[f"spd, sigma {sigma}"]


def finite(curve: Sequence[float | None]) -> list[float]:
    """A curve from a file, where null stands for what was not finite."""
    return [math.inf if value is None else value for value in curve]


def iterations(curve: Curve, bound: float) -> int | None:
    """The first iterate whose mean squared relative error is at most a bound; None if there is none.

    >>> iterations([1.0, 0.2, 0.009], 1e-2)
    2
    """
    return next((t for t, error in enumerate(curve) if error is not None and error <= bound), None)


def counted(curve: Curve, bounds: Sequence[float] = THRESHOLDS) -> str:
    """The iterations to 1e-1, ..., 1e-4, as a cell: "4 6 8 10", a dash where the curve does not get there."""
    found = [iterations(curve, bound) for bound in bounds]
    return " ".join("-" if count is None else str(count) for count in found)


def fewer(curve: Curve, than: Curve) -> dict[float, float]:
    """By threshold, the share of iterations saved over another method; where both get there.

    >>> fewer([1.0, 0.09, 0.009], [1.0, 0.3, 0.1, 0.1, 0.01])
    {0.1: 0.5, 0.01: 0.5}
    """
    pairs = {bound: (iterations(curve, bound), iterations(than, bound)) for bound in THRESHOLDS}
    return {bound: 1 - own / other for bound, (own, other) in pairs.items() if own is not None and other}


def score(curve: Curve) -> float:
    """One number for a curve: the geometric mean of the squared relative errors of x_1, ..., x_T; less is better."""
    errors = [error for error in curve[1:] if error is not None]
    if len(errors) < len(curve) - 1 or min(errors) <= 0:
        return math.inf
    return math.exp(sum(math.log(error) for error in errors) / len(errors))


def spread(results: Results, names: Sequence[str]) -> float:
    """The factor between the best and the worst score of runs that differ in their seed; 1.1 unless two are there."""
    scores = [score(record.own["model"]) for record in results.together(names).values()]
    return max(scores) / min(scores) if len(scores) > 1 else 1.1


def length(records: Mapping[Any, Record] | Iterable[Record]) -> str:
    """How long the runs of a comparison were trained, in words: "100k steps"."""
    values = records.values() if isinstance(records, Mapping) else records
    steps = sorted({record.config.steps for record in values})
    return " and ".join(f"{count // 1000}k" if count % 1000 == 0 else str(count) for count in steps) + " steps"


def short(value: float | None) -> str:
    """A number for people: two digits."""
    return "-" if value is None else f"{value:.2g}"


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
