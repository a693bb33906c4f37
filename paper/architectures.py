"""Beyond the paper: its three blocks beside a looped transformer after Yang et al. and an ordinary deep one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nlaformer.console import Sheet
from paper import plan
from paper.artefact import BEYOND, Artefact, Judgement, Verdict, not_yet
from paper.reading import Luck, counted, decided, length, score, short
from paper.results import Record, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASKS = ("imitating CG", "faster than CG")
NAMES = {
    (task, architecture): plan.name_of(config.replace(**changes), architecture)
    for task, config in zip(TASKS, plan.architecture_bases(), strict=True)
    for architecture, changes in plan.ARCHITECTURES.items()
}
SEEDS = {task: plan.seeds_of(config) for task, config in zip(TASKS, plan.architecture_bases(), strict=True)}
COMPARISONS = len(NAMES) - len(TASKS)
OURS = "nlaformer"
WHERE = "section 3"
LABELS = {
    OURS: "pre, loop, post (NLAFormer)",
    "looped": "looped, prompt injected (Yang et al.)",
    "deep": "deep, no weights shared",
}


def draw(results: Results) -> Figure | None:
    """A panel for each task."""
    from nlaformer.report.figure import band, errors, panels, reference, tidy

    if not (records := results.keyed(NAMES)):
        return None
    seeds = results.together((*NAMES.values(), *(name for names in SEEDS.values() for name in names)))
    figure, grid = panels(2, width=4.4, height=3.6)
    for task, axes in zip(TASKS, grid, strict=True):
        here = [(which, records[task, name]) for which, name in enumerate(LABELS) if (task, name) in records]
        for which, record in here:
            others = (
                [seeds[name] for name in SEEDS[task][1:] if name in seeds] if which == 0 else []
            )  # ours comes first
            band(axes, [each.own["model"] for each in (record, *others)], list(LABELS.values())[which], which)
        for _, record in here[:1]:
            reference(axes, record.own["cg"], "CG")
        errors(axes)
        tidy(
            axes,
            f"{task}, {_length(records, task)}",
            "iteration t",
            "squared relative error" if task == TASKS[0] else "",
        )
        if here:
            axes.legend(frameon=False, fontsize=7.5)
    return figure


def _length(records: Mapping[tuple[str, str], Record], task: str) -> str:
    return length(record for (its_task, _), record in records.items() if its_task == task)


def sheets(results: Results) -> list[Sheet]:
    """A line for each run."""
    if not (records := results.keyed(NAMES)):
        return []
    lines = tuple(
        (task, LABELS[architecture], short(score(record.own["model"])), short(record.own["model"][-1]),
         counted(record.own["model"]))
        for (task, architecture), record in records.items()
    )  # fmt: skip
    headings = ("task", "architecture", "mean error", "error at T", "iterations to")
    return [Sheet("Architectures", headings, lines, f"{length(records)}. Iterations to 1e-1, 1e-2, 1e-3, 1e-4.")]


def verdicts(results: Results) -> list[Verdict]:
    """The paper argues for its three blocks, and compares them with nothing."""
    claim = "Pre, loop and post blocks are an effective design (the paper cites Gao et al. and does not test it)."
    records = results.together((*NAMES.values(), *(name for names in SEEDS.values() for name in names)))
    if not all(name in records for name in NAMES.values()):
        return [not_yet(claim, WHERE)]
    parts, found = [], set()
    for task in TASKS:
        luck = Luck.of(records[name] for name in SEEDS[task] if name in records)
        others = {name: score(records[NAMES[task, name]].own["model"]) for name in LABELS if name != OURS}
        found.add(decided(luck.mean, others.values(), luck.factor(COMPARISONS)))
        said = ", ".join(f"{LABELS[name]} {short(value)}" for name, value in ({OURS: luck.mean} | others).items())
        parts.append(f"{task}: {said} ({length([records[NAMES[task, OURS]]])}; {luck.told(COMPARISONS)})")
    judgement: Judgement = "differs" if "differs" in found else "not reproducible as stated"
    if found == {"holds"}:
        judgement = "holds"
    return [Verdict(claim, WHERE, f"Mean error, {'; '.join(parts)}.", judgement)]


ARTEFACT = Artefact(
    name="fig-architectures",
    title="NLAFormer, a looped transformer and a deep one",
    paper=BEYOND,
    runs=tuple(dict.fromkeys((*NAMES.values(), *(name for names in SEEDS.values() for name in names)))),
    draw=draw,
    sheets=sheets,
    verdicts=verdicts,
)
