"""Figure 4b: joint supervision with different weights eta of the intermediate variables."""

from __future__ import annotations

from functools import partial

from nlaformer.study import plan, sweeping
from nlaformer.study.artefact import Artefact, Verdict, not_yet
from nlaformer.study.reading import length, score, short, spread
from nlaformer.study.results import Results

VALUES = {eta: plan.name_of(plan.joint(eta=eta)) for eta in plan.ETAS}
SEEDS = plan.names(plan.joint(seed=seed) for seed in plan.SEEDS)
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
    best, noise = min(scores.values()), spread(results, SEEDS)
    heavy, light = (scores[eta] / best for eta in (max(VALUES), min(VALUES)))
    text = (
        f"The mean error is {short(heavy)} times the best at eta = {max(VALUES):g} and {short(light)} times at "
        f"{min(VALUES):g} ({length(records)}); runs that differ by less than a factor of {noise:.2f} are alike."
    )
    return Verdict(claim, WHERE, text, "holds" if min(heavy, light) > noise else "differs")


ARTEFACT = Artefact(
    name="fig-eta",
    title=TITLE,
    paper="Figure 4b",
    runs=tuple(VALUES.values()),
    draw=partial(sweeping.draw, values=VALUES, symbol="eta", title=TITLE),
    sheets=partial(sweeping.sheets, values=VALUES, symbol="eta", title=TITLE),
    verdicts=verdicts,
)
