"""Runs over one parameter: eta (Figure 4b), lambda (Figure 6), embedding size and window (Figures 8 and 9).

A window K supervises the last K iterates only, from T - K + 1 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nlaformer.console import Sheet
from nlaformer.learn.evaluate import worse_than_zero
from nlaformer.report.figure import curve, panels, reference, tidy
from paper import plan
from paper.curves import OUTCOME, errors, length, outcome, short
from paper.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sweep = Mapping[float, str]
"""Names of runs by the value of the parameter."""
Grid = Mapping[tuple[str, float, int], str]
"""Names of runs by teacher, sigma and the value of the parameter."""

ETA: Sweep = {eta: plan.name_of(plan.joint(eta=eta)) for eta in plan.ETAS}
LAMBDA: Sweep = {weight: plan.name_of(plan.paper_accelerated("cg", lambda_=weight)) for weight in plan.ALL_LAMBDAS}
DIMENSION: Grid = {(c.teacher, c.sigma[0], c.d): plan.name_of(c) for c in plan.over_dimension()}
WINDOW: Grid = {(c.teacher, c.sigma[0], c.window or c.T): plan.name_of(c) for c in plan.over_window()}
_NOTE = (
    "Mean error: the geometric mean of the squared relative errors of x_1 to x_T. Iterations to 1e-1, 1e-2, 1e-3, 1e-4"
)


def sweep_figure(results: Results, sweep: Sweep, symbol: str) -> Figure:
    """The squared relative error over the iterations, a curve for each value, and CG's."""
    records = results.runs(sweep)
    figure, (axes,) = panels(1, width=5.6, height=3.8)
    for which, (value, record) in enumerate(records.items()):  # the colours repeat after six
        curve(axes, record.own["model"], f"{symbol} = {value:g}", which, style="-" if which < 6 else ":")
    reference(axes, next(iter(records.values())).own["cg"], "CG")
    errors(axes)
    tidy(axes, f"By the weight {symbol}, {length(records.values())}", "iteration t", "squared relative error (mean)")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    return figure


def sweep_table(results: Results, sweep: Sweep, symbol: str, title: str) -> list[Sheet]:
    """A line for each value."""
    records = results.runs(sweep)
    lines = tuple(
        (f"{value:g}", *outcome([record]), short(record.own["discrepancy"]))
        for value, record in sorted(records.items(), reverse=True)
    )
    headings = (symbol, *OUTCOME, "discrepancy")
    return [Sheet(title, headings, lines, f"{length(records.values())}. {_NOTE}, a dash where it is not reached.")]


def grid_figure(results: Results, grid: Grid, symbol: str, title: str) -> Figure:
    """A row of panels for each teacher, a panel for each sigma, a curve for each value."""
    from matplotlib.figure import Figure

    records = results.runs(grid)
    figure = Figure(figsize=(10.2, 6.2), layout="constrained")
    rows = figure.subplots(2, 3, sharex=True, sharey=True)
    values = sorted({value for *_, value in grid})
    for teacher, row in zip(plan.TEACHERS, rows, strict=True):
        for sigma, axes in zip(plan.SIGMAS, row, strict=True):
            for which, value in enumerate(values):
                own = records[teacher, sigma, value].own
                remark = " (worse than x = 0)" if worse_than_zero(own["model"]) else ""
                curve(axes, own["model"], f"{symbol} = {value}{remark}", which)
            reference(axes, own[teacher], teacher.upper(), "--" if teacher == "cg" else ":")
            errors(axes)
            tidy(axes, f"taught by {teacher.upper()}, sigma = {sigma:g}", "iteration t" if teacher == "pcg" else "",
                 "squared relative error" if sigma == plan.SIGMAS[0] else "")  # fmt: skip
            axes.legend(frameon=False, fontsize=7.5, loc="upper right")
    figure.suptitle(f"{title}: mean of 512 systems, {length(records.values())}", fontsize=10)
    return figure


def grid_table(results: Results, grid: Grid, symbol: str, title: str) -> list[Sheet]:
    """A line for each run."""
    records = results.runs(grid)
    lines = tuple(
        (teacher.upper(), f"{sigma:g}", str(value), *outcome([record]))
        for (teacher, sigma, value), record in sorted(records.items())
    )
    headings = ("teacher", "sigma", symbol, *OUTCOME)
    return [Sheet(title, headings, lines, f"{length(records.values())}. {_NOTE}.")]
