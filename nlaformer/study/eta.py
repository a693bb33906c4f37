"""Figure 4b: joint supervision with different weights eta of the intermediate variables."""

from __future__ import annotations

import math
from functools import partial

from nlaformer.study import plan, sweeping
from nlaformer.study.artefact import Artefact, Verdict, not_yet
from nlaformer.study.reading import length, luck, score
from nlaformer.study.results import Results

VALUES = {eta: plan.name_of(plan.joint(eta=eta)) for eta in plan.ETAS}
SEEDS = plan.seeds_of(plan.joint())
RESULT = plan.name_of(plan.imitation())  # eta = 0
TITLE, WHERE = "Joint supervision, by the weight eta", "section 4.1, Figure 4b"


def verdicts(results: Results) -> list[Verdict]:
    """The best eta, and that both ends are worse."""
    claim = "Of the weights 0.05 to 0.0001 of the intermediate variables, 0.0005 is the best."
    return [sweeping.best(results, VALUES, "eta", 5e-4, claim, WHERE, SEEDS), _middle(results)]


def _middle(results: Results) -> Verdict:
    claim = "Result supervision must dominate, but the intermediate variables must not weigh too little."
    records = results.keyed(VALUES)
    if len(records) < len(VALUES):
        return not_yet(claim, WHERE)
    scores = {eta: score(record.own["model"]) for eta, record in records.items()}
    best, (noise, told) = min(scores.values()), luck(results, SEEDS)
    if best == math.inf:
        return Verdict(claim, WHERE, f"All runs diverged ({length(records)}).", "not reproducible as stated")
    heavy, light = (scores[eta] / best for eta in (max(VALUES), min(VALUES)))
    text = (
        f"The mean error is {heavy:.2f} times the best at eta = {max(VALUES):g} and {light:.2f} times at "
        f"{min(VALUES):g} ({length(records)}); {told}."
    )
    if none := results.keyed({**VALUES, 0.0: RESULT}).get(0.0):
        text += f" Without them, by result supervision, it is {score(none.own['model']) / best:.2f} times the best."
    return Verdict(claim, WHERE, text, "holds" if min(heavy, light) > noise else "differs")


ARTEFACT = Artefact(
    name="fig-eta",
    title=TITLE,
    paper="Figure 4b",
    runs=tuple(dict.fromkeys((*VALUES.values(), *SEEDS, RESULT))),
    draw=partial(sweeping.draw, values=VALUES, symbol="eta"),
    sheets=partial(sweeping.sheets, values=VALUES, symbol="eta", title=TITLE),
    verdicts=verdicts,
)
