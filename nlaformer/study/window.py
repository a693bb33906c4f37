"""The second rows of Figures 8 and 9: learning windows of 10, 15 and 20 iterates.

A window K supervises the last K iterates only. What the model shows before them is nobody's business in training, so
windows are compared from iterate T - 9 on, where all of them look, and by what each reaches when.
"""

from __future__ import annotations

from functools import partial

from nlaformer.study import grids, plan
from nlaformer.study.artefact import Artefact, Verdict, not_yet
from nlaformer.study.filing import THRESHOLDS
from nlaformer.study.reading import counted, iterations, length, score, short
from nlaformer.study.results import Record, Results

GRID: grids.Grid = {(c.teacher, c.sigma[0], c.window or c.T): plan.name_of(c) for c in plan.over_window()}
TITLE = "Learning window"


def verdicts(results: Results) -> list[Verdict]:
    """Whether 15 is slightly worse than 20, in the iterates both of them supervise and in all of them."""
    claim = "A window of 15 is only slightly worse than one of 20 and stays competitive."
    where = "section 4.2, Figures 8 and 9, second rows"
    records = results.keyed(GRID)
    pairs = {
        (teacher, sigma): (records.get((teacher, sigma, 15)), records.get((teacher, sigma, 20)))
        for teacher in plan.TEACHERS
        for sigma in plan.SIGMAS
    }
    known = {key: (less, full) for key, (less, full) in pairs.items() if less is not None and full is not None}
    if len(known) < len(pairs):
        return [not_yet(claim, where)]
    late = [_late(less) / _late(full) for less, full in known.values()]
    less, full = known["cg", 1.2]
    text = (
        f"Over the last 10 iterates the mean error is {short(min(late))} to {short(max(late))} times that of 20; "
        f"iterations to 1e-1 ... 1e-4 at sigma 1.2, taught by CG: {counted(less.own['model'])} for "
        f"{counted(full.own['model'])}, as iterates before the window are not trained to be good "
        f"({length(records)})."
    )
    as_soon = all(_as_soon(less, full) for less, full in known.values())
    slightly = all(ratio <= 2 for ratio in late)
    return [Verdict(claim, where, text, "holds" if slightly and as_soon else "differs")]


def _as_soon(less: Record, full: Record) -> bool:
    """Whether the shorter window needs at most one iteration more to each threshold the full one reaches."""
    pairs = [(iterations(less.own["model"], b), iterations(full.own["model"], b)) for b in THRESHOLDS]
    known = [(ours, theirs) for ours, theirs in pairs if theirs is not None]
    return bool(known) and all(ours is not None and ours <= theirs + 1 for ours, theirs in known)


def _late(record: Record) -> float:
    """The mean error over the last ten iterates."""
    return score(record.own["model"][-11:])


ARTEFACT = Artefact(
    name="fig-window",
    title="Learning window 10, 15 and 20, both teachers, all sigmas",
    paper="Figures 8 and 9, second rows",
    runs=tuple(GRID.values()),
    draw=partial(grids.draw, grid=GRID, symbol="K", title=TITLE),
    sheets=partial(grids.sheets, grid=GRID, symbol="K", title=TITLE),
    verdicts=verdicts,
)
