"""What Figures 8 and 9 share: our acceleration at several values of a parameter, for both teachers and all sigmas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nlaformer.console import Sheet
from nlaformer.learn.evaluate import worse_than_zero
from paper import plan
from paper.reading import counted, length, score, short
from paper.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Grid = Mapping[tuple[str, float, int], str]
"""Names of runs by teacher, sigma and the value of the parameter."""


def draw(results: Results, grid: Grid, symbol: str, title: str) -> Figure | None:
    """A row of panels for each teacher, a panel for each sigma, a curve for each value."""
    from matplotlib.figure import Figure

    from nlaformer.report.figure import curve, errors, reference, tidy

    if not (records := results.keyed(grid)):
        return None
    figure = Figure(figsize=(10.2, 6.2), layout="constrained")
    rows = figure.subplots(2, 3, sharex=True, sharey=True)
    values = sorted({value for *_, value in grid})
    for teacher, row in zip(plan.TEACHERS, rows, strict=True):
        for sigma, axes in zip(plan.SIGMAS, row, strict=True):
            here = {value: records[teacher, sigma, value] for value in values if (teacher, sigma, value) in records}
            for value, record in here.items():
                remark = " (worse than x = 0)" if worse_than_zero(record.own["model"]) else ""
                curve(axes, record.own["model"], f"{symbol} = {value}{remark}", values.index(value))
            for record in list(here.values())[:1]:
                reference(axes, record.own[teacher], teacher.upper(), "--" if teacher == "cg" else ":")
            errors(axes)
            tidy(axes, f"taught by {teacher.upper()}, sigma = {sigma:g}", "iteration t" if teacher == "pcg" else "",
                 "squared relative error" if sigma == plan.SIGMAS[0] else "")  # fmt: skip
            if here:
                axes.legend(frameon=False, fontsize=7.5, loc="upper right")
    figure.suptitle(f"{title}: mean of 512 systems, {length(records)}", fontsize=10)
    return figure


def sheets(results: Results, grid: Grid, symbol: str, title: str) -> list[Sheet]:
    """A line for each run."""
    if not (records := results.keyed(grid)):
        return []
    lines = tuple(
        (
            teacher.upper(),
            f"{sigma:g}",
            str(value),
            short(score(record.own["model"])),
            short(record.own["model"][-1]),
            counted(record.own["model"]),
        )
        for (teacher, sigma, value), record in sorted(records.items())
    )
    note = f"{length(records)}. Mean error: geometric, over x_1 to x_T. Iterations to 1e-1, 1e-2, 1e-3, 1e-4."
    return [Sheet(title, ("teacher", "sigma", symbol, "mean error", "error at T", "iterations to"), lines, note)]
