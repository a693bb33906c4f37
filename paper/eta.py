"""Figure 4b: joint supervision with different weights eta of the intermediate variables."""

from __future__ import annotations

import math
from functools import partial

from paper import plan, sweeping
from paper.artefact import Artefact, Verdict, not_yet
from paper.reading import decided, length, listed, score, short
from paper.results import Results

VALUES = {eta: plan.name_of(plan.joint(eta=eta)) for eta in plan.ETAS}
SEEDS = plan.seeds_of(plan.joint())
BEST = 5e-4  # the paper's
RESULT = plan.name_of(plan.imitation())  # eta = 0
TITLE, WHERE = "Joint supervision, by the weight eta", "section 4.1, Figure 4b"


def verdicts(results: Results) -> list[Verdict]:
    """The best eta, and that both ends are worse."""
    claim = "Of the weights 0.05 to 0.0001 of the intermediate variables, 0.0005 is the best."
    return [sweeping.best(results, VALUES, "eta", BEST, claim, WHERE, SEEDS), _middle(results)]


def _middle(results: Results) -> Verdict:
    claim = "Result supervision must dominate, but the intermediate variables must not weigh too little."
    records, scores, luck = sweeping.compare(results, VALUES, BEST, SEEDS)
    if len(scores) < len(VALUES):
        return not_yet(claim, WHERE)
    if scores[BEST] == math.inf:
        return Verdict(claim, WHERE, f"At eta = {BEST:g} all runs diverged.", "not reproducible as stated")
    ends = {eta: scores[eta] for eta in (max(VALUES), min(VALUES))}
    said = listed([f"{short(error / scores[BEST], '.3g')} times at {eta:g}" for eta, error in ends.items()])
    text = f"Beside that at eta = {BEST:g} the mean error is {said} ({length(records)}); {luck.told(len(ends))}."
    if none := results.keyed({**VALUES, 0.0: RESULT}).get(0.0):
        ratio = short(score(none.own["model"]) / scores[BEST], ".3g")
        text += f" Without them, by result supervision, it is {ratio} times that."
    return Verdict(claim, WHERE, text, decided(scores[BEST], ends.values(), luck.factor(len(ends))))


ARTEFACT = Artefact(
    name="fig-eta",
    title=TITLE,
    paper="Figure 4b",
    runs=tuple(dict.fromkeys((*VALUES.values(), *SEEDS, RESULT))),
    draw=partial(sweeping.draw, values=VALUES, symbol="eta"),
    sheets=partial(sweeping.sheets, values=VALUES, symbol="eta", title=TITLE),
    verdicts=verdicts,
)
