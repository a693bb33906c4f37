"""What the sweeps over one parameter share: a figure of error curves, a table, and the verdict on the best value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nlaformer.console import Sheet
from nlaformer.study.artefact import Verdict, not_yet
from nlaformer.study.reading import counted, length, listed, luck, score, short
from nlaformer.study.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Mapping[float, str]
"""The runs of a sweep: the names by the value of the parameter."""


def draw(results: Results, values: Values, symbol: str) -> Figure | None:
    """The squared relative error over the iterations, a curve for each value, CG beside them."""
    from nlaformer.report.figure import curve, errors, panels, reference, tidy

    if not (records := results.keyed(values)):
        return None
    figure, (axes,) = panels(1, width=5.6, height=3.8)
    for which, (value, record) in enumerate(records.items()):  # the colours begin again after six
        curve(axes, record.own["model"], f"{symbol} = {value:g}", which, style="-" if which < 6 else ":")
    reference(axes, next(iter(records.values())).own["cg"], "CG")
    errors(axes)
    tidy(axes, f"By the weight {symbol}, {length(records)}", "iteration t", "squared relative error (mean)")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    return figure


def sheets(results: Results, values: Values, symbol: str, title: str) -> list[Sheet]:
    """A line for each value."""
    if not (records := results.keyed(values)):
        return []
    lines = tuple(
        (
            f"{value:g}",
            short(score(record.own["model"])),
            short(record.own["model"][-1]),
            counted(record.own["model"]),
            short(record.own["discrepancy"]),
        )
        for value, record in sorted(records.items(), reverse=True)
    )
    note = (
        f"{length(records)}. Mean error: the geometric mean of the squared relative errors of x_1 to x_T. Iterations "
        "to 1e-1, 1e-2, 1e-3, 1e-4, a dash where it is not reached."
    )
    headings = (symbol, "mean error", "error at T", "iterations to", "discrepancy")
    return [Sheet(title, headings, lines, note)]


def best(
    results: Results, values: Values, symbol: str, theirs: float, claim: str, where: str, seeds: tuple[str, ...]
) -> Verdict:
    """Whether the paper's best value is ours too, and by more than luck."""
    records = results.keyed(values)
    if len(records) < len(values):
        return not_yet(claim, where)
    scores = {value: score(record.own["model"]) for value, record in records.items()}
    noise, told = luck(results, seeds)
    alike = [value for value in values if scores[value] <= noise * min(scores.values()) < math.inf]
    said = ", ".join(f"{value:g}: {short(scores[value])}" for value in values)
    text = f"Mean error by {symbol}: {said} ({length(records)}); {told}."
    if alike == [theirs]:
        return Verdict(claim, where, text, "holds")
    best = listed([f"{value:g}" for value in alike]) or "none: all diverged"
    text += f" Best is {best}" + (", as far as can be told." if alike[1:] else ".")
    return Verdict(claim, where, text, "not reproducible as stated" if theirs in alike else "differs")
