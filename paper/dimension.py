"""The first rows of Figures 8 and 9: embedding dimensions 64, 128 and 256."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from paper import grids, plan
from paper.artefact import Artefact, Verdict, not_yet
from paper.reading import length, score, short
from paper.results import Results

GRID: grids.Grid = {(c.teacher, c.sigma[0], c.d): plan.name_of(c) for c in plan.over_dimension()}
TITLE = "Embedding dimension"


def verdicts(results: Results) -> list[Verdict]:
    """Whether larger is better, case by case."""
    claim, where = "Larger embedding dimensions generally converge better.", "section 4.2, Figures 8 and 9, first rows"
    records = results.keyed(GRID)
    if len(records) < len(GRID):
        return [not_yet(claim, where)]
    better, parts = 0, []
    for teacher in plan.TEACHERS:
        for sigma in plan.SIGMAS:
            scores = [score(records[teacher, sigma, d].own["model"]) for d in plan.DIMENSIONS]
            better += sum(later < earlier for earlier, later in pairwise(scores))
            parts.append(f"{teacher.upper()} {sigma:g}: {', '.join(map(short, scores))}")
    steps = len(parts) * (len(plan.DIMENSIONS) - 1)
    text = f"Mean error at d = 64, 128, 256: {'; '.join(parts)} ({length(records)}). {better} of {steps} steps better."
    return [Verdict(claim, where, text, "holds" if better >= 0.75 * steps else "differs")]


ARTEFACT = Artefact(
    name="fig-dimension",
    title="Embedding dimension 64, 128 and 256, both teachers, all sigmas",
    paper="Figures 8 and 9, first rows",
    runs=tuple(GRID.values()),
    draw=partial(grids.draw, grid=GRID, symbol="d", title=TITLE),
    sheets=partial(grids.sheets, grid=GRID, symbol="d", title=TITLE),
    verdicts=verdicts,
)
