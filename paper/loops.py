"""Beyond the paper: models trained for T = 20 iterations, looped 40 times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nlaformer.console import Sheet
from paper import plan
from paper.artefact import BEYOND, Artefact, Verdict, not_yet
from paper.reading import length, positive, short, span
from paper.results import Record, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS = {
    "result": plan.seeds_of(plan.imitation()),
    "joint": plan.seeds_of(plan.joint()),
    "faster, taught by CG": plan.seeds_of(plan.accelerated("cg")),
    "faster, taught by PCG": plan.seeds_of(plan.accelerated("pcg")),
    "looped, prompt injected": (
        plan.name_of(plan.accelerated("cg").replace(**plan.ARCHITECTURES["looped"]), "looped"),
    ),
}
STABLE = 2.0  # a factor of the error


def draw(results: Results) -> Figure | None:
    """The error over twice the iterations of training."""
    from nlaformer.report.figure import FAINT, band, errors, panels, reference, tidy

    if not (kinds := results.kinds(SEEDS)):
        return None
    figure, (axes,) = panels(1, width=6.4, height=3.9)
    for which, (kind, records) in enumerate(kinds.items()):
        band(axes, [record.own["loops"] for record in records], kind, which)
    first = next(iter(kinds.values()))[0]
    reference(axes, first.own["cg"], "CG")
    axes.axvline(first.config.T, color=FAINT, linewidth=1)
    axes.annotate("T of training", (first.config.T, 1.2), xytext=(4, 0), textcoords="offset points", fontsize=8)
    errors(axes)
    tidy(axes, f"Looped beyond T, {length(kinds)}", "iteration t", "squared relative error (mean)")
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def sheets(results: Results) -> list[Sheet]:
    """The error at T, on the way and at 2T."""
    if not (kinds := results.kinds(SEEDS)):
        return []
    lines = tuple(
        (kind, str(record.config.seed), short(record.own["model"][-1]),
         *(short(record.own["loops"][t]) for t in _places(record)))
        for kind, records in kinds.items() for record in records
    )  # fmt: skip
    T = next(iter(kinds.values()))[0].config.T
    headings = ("model", "seed", f"x_{T} in training", *(f"t = {t}" for t in (T + 1, 3 * T // 2, 2 * T - 1, 2 * T)))
    note = f"{length(kinds)}. The last iterate leaves through the post block, where there is one."
    return [Sheet("Looped beyond T", headings, lines, note)]


def _places(record: Record) -> tuple[int, ...]:
    T = record.config.T
    return T + 1, 3 * T // 2, 2 * T - 1, 2 * T


def _growth(record: Record) -> float:
    """By how much the error grows from T to 2T; a model that diverged has nothing left to repeat."""
    last, first = record.own["loops"][-1], record.own["model"][-1]
    return last / positive(first) if math.isfinite(last) and math.isfinite(first) else math.inf


def verdicts(results: Results) -> list[Verdict]:
    """What an iterative method would do: not get worse."""
    claim = (
        "The learned loop is an iteration: it may be repeated beyond the T of training (the paper does not test it)."
    )
    where = f"section 3; {BEYOND}"
    kinds = results.kinds(SEEDS)
    if not all(kind in kinds for kind in list(SEEDS)[:4]):
        return [not_yet(claim, where)]
    ratios = {kind: [_growth(record) for record in records] for kind, records in kinds.items()}
    said = ", ".join(f"{kind} {span(seeds)}" for kind, seeds in ratios.items())
    text = f"Error at 2T over the error at T: {said} ({length(kinds)}; over the seeds)."
    return [Verdict(claim, where, text, "holds" if max(map(max, ratios.values())) <= STABLE else "differs")]


ARTEFACT = Artefact(
    name="fig-loops",
    title="Trained for 20 iterations, looped 40 times",
    paper=BEYOND,
    runs=tuple(name for names in SEEDS.values() for name in names),
    draw=draw,
    sheets=sheets,
    verdicts=verdicts,
)
