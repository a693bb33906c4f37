"""Beyond the paper: every kind of run, with the paper's loss and ours, those that claims rest on from three seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nlaformer.console import Sheet
from paper import plan
from paper.artefact import BEYOND, Artefact, Verdict, not_yet
from paper.reading import Luck, counted, length, listed, score, short, span
from paper.results import Record, Results

SEEDS = {label: plan.seeds_of(config) for label, config in plan.kinds().items()}
CONSTANT = dict(zip(("result", "joint", "faster than CG"), plan.names(plan.like_the_paper()), strict=True))
LIKE_THEM = {"result": "result, power 1", "joint": "joint, power 1", "faster than CG": "faster than CG, power 1"}

LITTLE, TWICE = 1.5, 2.0  # factors of the mean error


def sheets(results: Results) -> list[Sheet]:
    """A line for each kind, its seeds side by side."""
    kinds = {label: list(results.together(names).values()) for label, names in SEEDS.items()}
    kinds |= {f"{label}, power 1, constant 1e-3": list(results.together([name]).values())
              for label, name in CONSTANT.items()}  # fmt: skip
    lines = tuple(_line(label, records) for label, records in kinds.items() if records)
    if not lines:
        return []
    headings = ("run", "steps", "seeds", "mean error", "error at T", "iterations to", "discrepancy")
    note = (
        "Our recipes weigh the iterates by a power below 1. Mean error: geometric, over x_1 to x_T. Iterations to "
        "1e-1, 1e-2, 1e-3, 1e-4."
    )
    return [Sheet("Every kind of run at sigma 1.2", headings, lines, note)]


def _line(label: str, records: Sequence[Record]) -> tuple[str, ...]:
    own = [record.own for record in records]
    return (
        label,
        length(records),
        str(len(records)),
        span([score(row["model"]) for row in own]),
        span([row["model"][-1] for row in own]),
        counted(*(row["model"] for row in own)),
        span([row["discrepancy"] for row in own]),
    )


def verdicts(results: Results) -> list[Verdict]:
    """How much of a difference is luck, and what the learning rate changes."""
    return [_luck(results), _constant(results)]


def _luck(results: Results) -> Verdict:
    claim = f"The seed changes a kind's mean error by less than a factor of {LITTLE:g} (the paper does not say)."
    kinds = {label: list(results.together(names).values()) for label, names in SEEDS.items() if len(names) > 1}
    if any(len(records) < len(plan.SEEDS) for records in kinds.values()):
        return not_yet(claim, BEYOND)
    parts, factors = [], []
    for label, records in kinds.items():
        luck = Luck.of(records)
        whole = len(luck.scores) == len(records)  # none of them diverged
        factors.append(luck.factor(runs=1) if whole else math.inf)
        observed = max(luck.scores) / min(luck.scores) if whole else math.inf
        parts.append(f"{label} {short(observed, '.3g')} and {short(factors[-1], '.3g')}")
    found = (
        f"The largest factor between {len(plan.SEEDS)} seeds, and that between two which may be luck (95%): "
        f"{'; '.join(parts)}."
    )
    return Verdict(claim, BEYOND, found, "holds" if max(factors) < LITTLE else "differs")


def _constant(results: Results) -> Verdict:
    claim = (
        "A plain training (constant learning rate of 1e-3, the paper's losses) does as well as one with our schedule."
    )
    parts, worse = [], []
    for label, name in CONSTANT.items():
        pair = results.together([name, SEEDS[LIKE_THEM[label]][0]])
        if len(pair) < 2:
            return not_yet(claim, BEYOND)
        constant, ours = (record.own["model"] for record in pair.values())
        worse.append(score(constant) / score(ours))
        parts.append(
            f"{label} {short(score(constant))} for {short(score(ours))} ({counted(constant)} for {counted(ours)})"
        )
    text = f"Mean error (and iterations to 1e-1 ... 1e-4) with a constant 1e-3 and with our schedule: {listed(parts)}."
    return Verdict(claim, BEYOND, text, "holds" if max(worse) < TWICE else "differs")


RUNS = Artefact(
    name="table-runs",
    title="Every kind of run, the paper's loss and ours, up to three seeds",
    paper=BEYOND,
    runs=(*(name for names in SEEDS.values() for name in names), *CONSTANT.values()),
    sheets=sheets,
    verdicts=verdicts,
)
