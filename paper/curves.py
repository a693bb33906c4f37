"""Curves of errors over the iterates: their numbers, how tables write them, how figures draw them."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes

from nlaformer.learn import evaluate
from nlaformer.report.figure import CURVES, curve
from paper import plan
from paper.results import Record

Curve = Sequence[float]
FIRST_THRESHOLDS = evaluate.THRESHOLDS[:4]
LEAD_ITERATES = range(2, 7)  # at x_1 a network has had too few layers; later its own accuracy limits it


def iterations(curve: Curve, bound: float) -> float:
    """The first iterate whose mean squared relative error is at most a bound; infinite if there is none.

    >>> iterations([1.0, 0.2, 0.009], 1e-2)
    2
    """
    return next((t for t, error in enumerate(curve) if error <= bound), math.inf)


def iteration_counts(curve: Curve, bounds: Sequence[float] = FIRST_THRESHOLDS) -> list[float]:
    """The iterations to each bound."""
    return [iterations(curve, bound) for bound in bounds]


def counted(*curves: Curve, bounds: Sequence[float] = FIRST_THRESHOLDS) -> str:
    """The iterations to 1e-1, ..., 1e-4 as a cell, a dash where a curve does not reach it; of several the range.

    >>> counted([1.0, 0.05, 0.005], [1.0, 0.5, 0.005], bounds=(1e-1, 1e-2, 1e-3))
    '1..2 2 -'
    """
    cells = []
    for bound in bounds:
        found = [iterations(curve, bound) for curve in curves]
        cells.append("..".join(dict.fromkeys(short(end, "g") for end in extremes(found))))
    return " ".join(cells)


def overtaken(own: Curve, theirs: Curve) -> float:
    """The first iterate at which the teacher's error is smaller than the pupil's; infinite if it never is."""
    return next((t for t in range(1, len(own)) if theirs[t] < own[t]), math.inf)


def mean_error(curve: Curve) -> float:
    """One number for a curve: the geometric mean of the squared relative errors of x_1, ..., x_T."""
    return geometric_mean(curve[1:])


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of errors, which may be 0 or infinite."""
    return statistics.geometric_mean(map(positive, values))


def typical(curve: Curve) -> float:
    """The geometric mean over the iterates of the lead, t = 2..6."""
    return geometric_mean([curve[t] for t in LEAD_ITERATES])


def law(weight: float) -> float:
    """The lead of the minimizer of the loss "step + lambda solution" over its teacher, at every iterate."""
    return (1 + weight) ** 2


def extremes(values: Iterable[float]) -> list[float]:
    """The least and the largest of some numbers.

    >>> extremes(x * x for x in (3, -1, 2))
    [1, 9]
    """
    ordered = sorted(values)
    return [ordered[0], ordered[-1]]


def positive(error: float) -> float:
    """An error as a divisor or inside a logarithm: at least the smallest normal number."""
    return max(error, sys.float_info.min)


def short(value: float | None, digits: str = ".2g") -> str:
    """A number with two digits; a dash where there is none or it is not finite."""
    return "-" if value is None or not math.isfinite(value) else f"{value:{digits}}"


def span(values: Sequence[float], digits: str = ".2g") -> str:
    """The least and the largest of some numbers, as a cell.

    >>> span([0.0123, 0.02, 0.01])
    '0.01 to 0.02'
    """
    return " to ".join(dict.fromkeys(short(end, digits) for end in extremes(values)))


OUTCOME = ("mean error", "error at T", "iterations to")


def outcome(records: Sequence[Record]) -> tuple[str, str, str]:
    """How runs that differ in the seed alone came out: the cells under the headings ``OUTCOME``."""
    curves = [record.own["model"] for record in records]
    return span(list(map(mean_error, curves))), span([curve[-1] for curve in curves]), counted(*curves)


def with_error(mean: float, standard_error: float) -> str:
    """A mean and its standard error."""
    return f"{short(mean)} +- {short(standard_error)}"


def length(*kinds: Iterable[Record]) -> str:
    """How the runs of a comparison were trained: "100k steps, power 0.5, bf16"."""
    records = [record for records in kinds for record in records]
    steps = " and ".join(plan.thousands(steps) for steps in sorted({record.config.steps for record in records}))
    power = " and ".join(f"{power:g}" for power in sorted({record.config.power for record in records}))
    return f"{steps} steps, power {power}, {' and '.join(sorted({record.arithmetic for record in records}))}"


def band(axes: Axes, curves: Sequence[Curve], label: str, which: int) -> None:
    """The curve of the first seed, and a band from the lowest to the highest of all seeds."""
    seeds = f", {len(curves)} seeds" if len(curves) > 1 else ""
    curve(axes, curves[0], label + seeds, which)
    if len(curves) > 1:
        columns = list(zip(*curves, strict=True))
        lowest, highest = [min(column) for column in columns], [max(column) for column in columns]
        axes.fill_between(range(len(columns)), lowest, highest, color=CURVES[which], alpha=0.18, linewidth=0)


def shades(count: int) -> list[tuple[float, ...]]:
    """Colours for the values of an ordered quantity, from dark to light; they remain distinct without colour."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.88 * k / max(count - 1, 1)) for k in range(count)]


def error_scale(axes: Axes, lowest: float = 1e-8) -> None:
    """Squared relative errors on a logarithmic scale, down to about the accuracy of float32."""
    axes.set_yscale("log")
    axes.set_ylim(lowest, 3)
    axes.minorticks_off()
