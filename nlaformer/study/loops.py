"""Beyond the paper: models trained for T = 20 iterations, looped 40 times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlaformer.console import Sheet
from nlaformer.study import plan
from nlaformer.study.artefact import BEYOND, Artefact, Verdict, not_yet
from nlaformer.study.reading import length, positive, short
from nlaformer.study.results import Record, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "result": plan.name_of(plan.imitation()),
    "joint": plan.name_of(plan.joint()),
    "faster, taught by CG": plan.name_of(plan.accelerated("cg")),
    "faster, taught by PCG": plan.name_of(plan.accelerated("pcg")),
    "looped, prompt injected": plan.name_of(
        plan.accelerated("cg").replace(**plan.ARCHITECTURES["looped"]), "looped"
    ),
}  # fmt: skip


def draw(results: Results) -> Figure | None:
    """The error over twice the iterations of training."""
    from nlaformer.report.figure import FAINT, curve, errors, panels, reference, tidy

    if not (records := results.keyed(NAMES)):
        return None
    figure, (axes,) = panels(1, width=6.4, height=3.9)
    for which, (label, record) in enumerate(records.items()):
        curve(axes, record.own["loops"], label, which)
    first = next(iter(records.values()))
    reference(axes, first.own["cg"], "CG")
    axes.axvline(first.config.T, color=FAINT, linewidth=1)
    axes.annotate("T of training", (first.config.T, 1.2), xytext=(4, 0), textcoords="offset points", fontsize=8)
    errors(axes)
    tidy(axes, f"Looped beyond T, {length(records)}", "iteration t", "squared relative error (mean)")
    axes.legend(frameon=False, fontsize=8)
    return figure


def sheets(results: Results) -> list[Sheet]:
    """The error at T, on the way and at 2T."""
    if not (records := results.keyed(NAMES)):
        return []
    lines = tuple(
        (label, short(record.own["model"][-1]), *(short(record.own["loops"][t]) for t in _places(record)))
        for label, record in records.items()
    )
    T = next(iter(records.values())).config.T
    headings = ("model", f"x_{T} in training", f"t = {T + 1}", f"t = {3 * T // 2}", f"t = {2 * T - 1}", f"t = {2 * T}")
    note = f"{length(records)}. The last iterate leaves through the post block, where there is one."
    return [Sheet("Looped beyond T", headings, lines, note)]


def _places(record: Record) -> tuple[int, ...]:
    T = record.config.T
    return T + 1, 3 * T // 2, 2 * T - 1, 2 * T


def verdicts(results: Results) -> list[Verdict]:
    """What an iterative method would do: not get worse."""
    claim = (
        "The learned loop is an iteration: it may be repeated beyond the T of training (the paper does not test it)."
    )
    where = f"section 3; {BEYOND}"
    records = results.keyed(NAMES)
    if not all(label in records for label in list(NAMES)[:4]):
        return [not_yet(claim, where)]
    ratios = {label: record.own["loops"][-1] / positive(record.own["model"][-1]) for label, record in records.items()}
    said = ", ".join(f"{label} {short(ratio)}" for label, ratio in ratios.items())
    text = f"Error at 2T over the error at T: {said} ({length(records)})."
    return [Verdict(claim, where, text, "holds" if max(ratios.values()) <= 2 else "differs")]


ARTEFACT = Artefact(
    name="fig-loops",
    title="Trained for 20 iterations, looped 40 times",
    paper=BEYOND,
    runs=tuple(NAMES.values()),
    draw=draw,
    sheets=sheets,
    verdicts=verdicts,
)
