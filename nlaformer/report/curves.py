"""Figures of what a run, a solve, a training run or an evaluation gave, drawn from plain arrays.

A title states what was found, in numbers, by a rule; text that users choose is never read as mathematics. The model is
in front, thick; what it is compared with is dashed. Few curves carry their names at their right ends, in their colours.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nlaformer.report.figure import CURVES, FAINT, INK, MARKERS, held, panels, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_STYLES = ("--", ":", "-.")
_FEW = 6  # curves that carry their names
_LINE = 0.062  # height of a name, as a part of the axes
_LETTERS = 66  # of a line of a title above 6.4 inches
_BESIDE_NAMES = 52  # the same where long names at the ends of the curves take a third of them
_DECADES = 1e-18  # what lies further below the largest squared error is cut off, unless the first curve goes there


def outcome(statuses: Sequence[str], residuals: Sequence[float], work: str) -> str:
    """How systems ended after some work, and with which residual, the largest of several.

    >>> outcome(["CONVERGED"], [3.14e-11], "12 products")
    'CONVERGED after 12 products, residual 3.1e-11'
    >>> outcome(["CONVERGED", "MAXITER", "CONVERGED"], [1e-9, 0.5, 1e-8], "8 to 30 products")
    '2 CONVERGED, 1 MAXITER after 8 to 30 products, largest residual 0.5'
    """
    counts = Counter(statuses)
    ended = statuses[0] if len(statuses) == 1 else ", ".join(f"{count:,} {name}" for name, count in counts.items())
    if not len(residuals):
        return f"{ended} after {work}"
    largest = "residual" if len(residuals) == 1 else "largest residual"
    # A residual that is not a number is the largest of all.
    return f"{ended} after {work}, {largest} {np.max(np.asarray(residuals, dtype=float)):.2g}"


def history_figure(values: np.ndarray, title: str, y: str, level: tuple[str, float] | None = None) -> Figure:
    """Draw values (..., K + 1) over the iterations, logarithmically: of several systems the median and the range.

    A system that has ended, NaN from there on, keeps its last value. ``level`` is a named line to compare with.
    """
    *batch, length = np.shape(values)
    systems = held(np.array(values, dtype=np.float64).reshape(math.prod(batch), length))  # neither need be there
    figure, (axes,) = panels(1, width=6.4, height=3.6)
    _titled(axes, title, "iteration", y)
    steps, one = range(systems.shape[1]), len(systems) == 1
    middle = np.median(systems, axis=0) if len(systems) else np.full(systems.shape[1], np.nan)
    name = "" if one else f"median of {len(systems):,}"
    axes.plot(steps, _drawn(middle), color=CURVES[0], marker="o", markersize=3, linewidth=1.6, label=name)
    if len(systems) > 1:
        low, high = (_drawn(take(systems, axis=0)) for take in (np.min, np.max))
        axes.fill_between(steps, low, high, color=CURVES[0], alpha=0.14, linewidth=0)
        axes.plot(steps, high, color=CURVES[0], linewidth=0.7, label="largest")
        axes.plot(steps, low, color=CURVES[0], linewidth=0.7, label="smallest")
    if level is not None and level[1] > 0:
        axes.axhline(level[1], color=INK, linewidth=0.9, linestyle="--", label=level[0])
    _logarithmic(axes)
    _name_ends(axes)
    return figure


def errors_figure(
    curves: Mapping[str, Sequence[float]], title: str, y: str, trained: int | None = None, start: int = 0
) -> Figure:
    """Draw errors by iterate, the first curve in front; ``trained`` marks the last iterate of the training."""
    figure, (axes,) = panels(1, width=6.4, height=3.6)
    _titled(axes, title, "iteration", y, letters=_BESIDE_NAMES)
    compared_curves(axes, {name: _drawn(np.asarray(values, dtype=float)) for name, values in curves.items()}, start)
    length = max(map(len, curves.values()), default=1)
    if trained is not None and trained < start + length - 1:
        axes.axvline(trained, color=FAINT, linewidth=0.8, linestyle=":")
        axes.text(trained, 0.99, " trained to here", fontsize=7.5, color=FAINT, va="top",
                  transform=axes.get_xaxis_transform())  # fmt: skip
    _logarithmic(axes)
    low, high = axes.get_ylim()
    front = _drawn(np.asarray(next(iter(curves.values()), ()), dtype=float))
    axes.set_ylim(max(low, min(high * _DECADES, 1e-3 * np.nanmin(front, initial=high))), high)
    _name_ends(axes)
    return figure


def compared_curves(axes: Axes, curves: Mapping[str, Sequence[float] | np.ndarray], start: int = 0) -> None:
    """The first curve thick and with markers, the others dashed; each has its colour."""
    for k, (name, values) in enumerate(curves.items()):
        steps = range(start, start + len(values))
        if k == 0:
            axes.plot(steps, values, color=CURVES[0], marker="o", markersize=3.2, linewidth=2.0, zorder=5, label=name)
        else:
            axes.plot(steps, values, color=CURVES[k % 6], linewidth=1.2, linestyle=_STYLES[(k - 1) % 3], label=name)


def training_figure(
    loss: tuple[Sequence[int], Sequence[float]],
    validations: Sequence[tuple[int, Sequence[float]]],
    title: str,
    y: str,
) -> Figure:
    """Draw a training run: the loss over the steps, and the error of every iterate at several steps."""
    figure, (left, right) = panels(2, width=4.2, height=3.6, share=False)
    figure.suptitle(textwrap.fill(title, 100), color=INK, fontsize=10, parse_math=False)
    left.plot(*loss, color=CURVES[0], linewidth=1.0)
    _titled(left, f"loss at the end {loss[1][-1]:.3g}" if loss[1] else "no loss recorded", "step", "loss")
    if loss[1] and min(loss[1]) > 0:
        left.set_yscale("log")
    places = np.linspace(0, len(validations) - 1, min(4, len(validations))).round().astype(int)
    chosen = [validations[k] for k in np.unique(places)]  # the first, the last, and some between
    _titled(right, f"mean over validation systems, at {len(chosen)} of {len(validations)} steps", "iteration", y, 48)
    for k, (step, errors) in enumerate(chosen):
        weight = (k + 1) / len(chosen)
        shown = _drawn(np.array(errors, dtype=float))
        right.plot(shown, color=CURVES[0], alpha=0.25 + 0.75 * weight, marker=MARKERS[k], markersize=3,
                   linewidth=0.8 + weight, label=f"step {step:,}")  # fmt: skip
    _logarithmic(right)
    _name_ends(right)
    return figure


def scores_figure(targets: Mapping[str, Mapping[str, Sequence[float]]], titles: Sequence[str], y: str) -> Figure:
    """Draw scores by iterate, a panel for each target; the first source of each is in front."""
    figure, axes = panels(len(targets), width=3.2, height=3.2)
    for k, (axis, sources, title) in enumerate(zip(axes, targets.values(), titles, strict=True)):
        _titled(axis, title, "iteration", "" if k else y, 36)
        compared_curves(axis, sources)
        axis.set_ylim(-0.15, 1.05)
        if k + 1 == len(targets):
            _name_ends(axis)
    return figure


def _drawn(values: np.ndarray) -> np.ndarray:
    """Values on a logarithmic scale: zero ends below everything else, and what is not finite is a gap."""
    known = values[np.isfinite(values) & (values > 0)]
    least = known.min() / 10 if known.size else 1.0
    return np.where(np.isfinite(values), np.maximum(values, least), np.nan)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.minorticks_off()


def _titled(axes: Axes, title: str, x: str, y: str, letters: int = _LETTERS) -> None:
    tidy(axes, textwrap.fill(title, letters), x, y)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_parse_math(False)


def _name_ends(axes: Axes) -> None:
    """The names of the curves at their right ends, where they are few; else a legend."""
    lines = [line for line in axes.lines if str(line.get_label()) and not str(line.get_label()).startswith("_child")]
    if len(lines) > _FEW:
        for text in axes.legend(frameon=False, fontsize=7.5, loc="center left", bbox_to_anchor=(1, 0.5)).get_texts():
            text.set_parse_math(False)
        return
    axes.autoscale_view()
    to_axes = axes.transScale + axes.transLimits  # of data, to (0, 0) ... (1, 1)
    ends: list[tuple[float, Line2D]] = []
    for line in lines:
        values = np.asarray(line.get_ydata(), dtype=float)
        known = values[np.isfinite(values)]
        if known.size:
            ends.append((float(to_axes.transform((axes.get_xlim()[1], known[-1]))[1]), line))
    ends.sort(key=lambda end: end[0])
    places: list[float] = []
    for end, _ in ends:  # upwards, each above the one before
        places.append(max(end, places[-1] + _LINE if places else 0.0))
    excess = max(places[-1] - 1.0, 0.0) if places else 0.0
    for place, (_, line) in zip(places, ends, strict=True):
        axes.text(1.02, place - excess, str(line.get_label()), color=line.get_color(), fontsize=8, va="center",
                  transform=axes.transAxes, parse_math=False)  # fmt: skip
