"""The second rows of Figures 8 and 9: learning windows of 10, 15 and 20 iterates.

A window K supervises the last K iterates only, from T - K + 1 on. What the model shows before them is nobody's business
in training, so 15 is compared with 20 in the iterates of its window; what becomes of the others is a claim of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from nlaformer.learn.evaluate import worse_than_zero
from paper import grids, plan
from paper.artefact import BEYOND, Artefact, Verdict, not_yet
from paper.filing import THRESHOLDS
from paper.reading import counted, iterations, length, listed, score, short
from paper.results import Record, Results

GRID: grids.Grid = {(c.teacher, c.sigma[0], c.window or c.T): plan.name_of(c) for c in plan.over_window()}
TITLE = "Learning window"
WHERE = "section 4.2, Figures 8 and 9, second rows"
SLIGHTLY = 2.0  # a factor of the mean error


def verdicts(results: Results) -> list[Verdict]:
    """Whether 15 is slightly worse than 20 in the iterates both supervise; before these; and whether all learn."""
    claim = "A window of 15 is only slightly worse than one of 20: NLAFormer does not overfit to a window."
    before = "The iterates before the window, which nothing supervises, are as good as with a full one."
    records = results.keyed(GRID)
    pairs = {
        (teacher, sigma): (records.get((teacher, sigma, 15)), records.get((teacher, sigma, 20)))
        for teacher in plan.TEACHERS
        for sigma in plan.SIGMAS
    }
    known = {key: (less, full) for key, (less, full) in pairs.items() if less is not None and full is not None}
    if len(known) < len(pairs):
        return [not_yet(claim, WHERE), not_yet(before, BEYOND), _learned(records)]
    late = [_supervised(less, less) / _supervised(full, less) for less, full in known.values()]
    whole = [score(less.own["model"]) / score(full.own["model"]) for less, full in known.values()]
    first = known["cg", 1.2][0].config.first
    found = (
        f"Over the iterates {first} to {known['cg', 1.2][0].config.T} the mean error is {short(min(late))} to "
        f"{short(max(late))} times that of 20, over all of them {short(min(whole))} to {short(max(whole))} times "
        f"(both teachers, all sigmas; {length(records)})."
    )
    slightly = all(ratio <= SLIGHTLY for ratio in late)
    counts = [f"{counted(less.own['model'])} for {counted(full.own['model'])}" for less, full in known.values()]
    as_soon = all(_as_soon(less, full) for less, full in known.values())
    soon = (
        "Iterations to 1e-1 ... 1e-4 with a window of 15 for those with 20, taught by CG at sigma 1, 1.2 and 1.4, then "
        f"by PCG: {', '.join(counts)}."
    )
    return [
        Verdict(claim, WHERE, found, "holds" if slightly else "differs"),
        Verdict(before, BEYOND, soon, "holds" if as_soon else "differs"),
        _learned(records),
    ]


def _learned(records: Mapping[tuple[str, float, int], Record]) -> Verdict:
    """How many runs of each window learned nothing, or lost it again."""
    claim = "Every run with a shorter window than 20 learns something, too."
    if len(records) < len(GRID):
        return not_yet(claim, BEYOND)
    lost = {
        window: [key for key in GRID if key[2] == window and worse_than_zero(records[key].own["model"])]
        for window in plan.WINDOWS
    }
    runs = len(GRID) // len(plan.WINDOWS)
    parts = [
        f"{len(keys)} of {runs} with {window}"
        + (f" ({listed([f'{teacher.upper()} at sigma {sigma:g}' for teacher, sigma, _ in keys])})" if keys else "")
        for window, keys in lost.items()
    ]
    found = f"Worse in the end than x = 0: {listed(parts)} ({length(records)}, one seed)."
    shorter = [key for window, keys in lost.items() for key in keys if window < max(plan.WINDOWS)]
    return Verdict(claim, BEYOND, found, "differs" if shorter else "holds")


def _as_soon(less: Record, full: Record) -> bool:
    """Whether the shorter window needs at most one iteration more to each threshold the full one reaches."""
    pairs = [(iterations(less.own["model"], b), iterations(full.own["model"], b)) for b in THRESHOLDS]
    known = [(ours, theirs) for ours, theirs in pairs if theirs is not None]
    return bool(known) and all(ours is not None and ours <= theirs + 1 for ours, theirs in known)


def _supervised(record: Record, window: Record) -> float:
    """The mean error over the iterates of a window, another run's perhaps."""
    return score(record.own["model"][window.config.first - 1 :])


ARTEFACT = Artefact(
    name="fig-window",
    title="Learning window 10, 15 and 20, both teachers, all sigmas",
    paper="Figures 8 and 9, second rows",
    runs=tuple(GRID.values()),
    draw=partial(grids.draw, grid=GRID, symbol="K", title=TITLE),
    sheets=partial(grids.sheets, grid=GRID, symbol="K", title=TITLE),
    verdicts=verdicts,
)
