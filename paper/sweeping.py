"""What the sweeps over one parameter share: a figure of error curves, a table, and the verdict on the best value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nlaformer.console import Sheet
from paper.artefact import Verdict, not_yet
from paper.reading import Luck, counted, decided, length, listed, score, short
from paper.results import Record, Results

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


class Compared(NamedTuple):
    """Runs of one length that differ in a parameter, and seeds at the value the paper chose."""

    records: dict[float, Record]
    scores: dict[float, float]
    """By value; that of the paper's choice is the mean of its seeds."""
    luck: Luck


def compare(results: Results, values: Values, theirs: float, seeds: Sequence[str]) -> Compared:
    """Those of the runs that are there."""
    known = results.together((*values.values(), *seeds))
    records = {value: known[name] for value, name in values.items() if name in known}
    luck = Luck.of(known[name] for name in seeds if name in known)
    scores = {value: luck.mean if value == theirs else score(record.own["model"]) for value, record in records.items()}
    return Compared(records, scores, luck)


def best(
    results: Results, values: Values, symbol: str, theirs: float, claim: str, where: str, seeds: Sequence[str]
) -> Verdict:
    """Whether the paper's best value is ours too, and by more than luck."""
    records, scores, luck = compare(results, values, theirs, seeds)
    if len(scores) < len(values):
        return not_yet(claim, where)
    others = {value: scores[value] for value in values if value != theirs}
    noise = luck.factor(len(others))
    better = [f"{value:g}" for value, other in others.items() if other * noise < scores[theirs]]
    worse = [f"{value:g}" for value, other in others.items() if other > noise * scores[theirs]]
    said = ", ".join(f"{value:g}: {short(scores[value])}" for value in values)
    text = (
        f"Mean error by {symbol}: {said} ({length(records)}); {luck.told(len(others))}. By more than that better than "
        f"{theirs:g}: {listed(better) or 'none'}; worse: {listed(worse) or 'none'}."
    )
    return Verdict(claim, where, text, decided(scores[theirs], others.values(), noise))
