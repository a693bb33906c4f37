"""Figure 6: step and solution supervision with different weights lambda of the solution."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from nlaformer.study import plan, sweeping
from nlaformer.study.artefact import Artefact, Verdict, not_yet
from nlaformer.study.reading import length, listed, score, short
from nlaformer.study.results import Results

SWEEP = {weight: plan.name_of(plan.paper_accelerated("cg", lambda_=weight)) for weight in plan.ALL_LAMBDAS}
VALUES = {weight: SWEEP[weight] for weight in plan.LAMBDAS}  # the paper's
SEEDS = plan.names(plan.paper_accelerated("cg", seed) for seed in plan.SEEDS)
TITLE, WHERE = "Step and solution supervision, by the weight lambda", "section 4.2, Figure 6"


def verdicts(results: Results) -> list[Verdict]:
    """The best lambda, and the trend that leads to it."""
    claim = "Of the weights 0.5 to 13 of the solution, 10 is the best."
    return [sweeping.best(results, VALUES, "lambda", 10.0, claim, WHERE, SEEDS), _trend(results)]


def _trend(results: Results) -> Verdict:
    claim = "A larger weight of the solution accelerates convergence, an excessive one degrades it."
    records = results.keyed(SWEEP)
    if not VALUES.keys() <= records.keys():
        return not_yet(claim, WHERE)
    weights = sorted(VALUES)
    scores = {weight: score(records[weight].own["model"]) for weight in sorted(records)}
    falls = [scores[more] < scores[less] for less, more in pairwise(weights)]
    text = (
        f"From {weights[0]:g} to {weights[-1]:g} the mean error falls in {sum(falls)} of {len(falls)} steps, from "
        f"{short(scores[weights[0]])} to {short(scores[weights[-1]])} ({length(records)})."
    )
    if beyond := [f"{short(scores[weight])} at {weight:g}" for weight in scores if weight not in VALUES]:
        text += f" Beyond the paper's weights it is {listed(beyond)}."
    return Verdict(claim, WHERE, text, "holds" if all(falls[:-1]) and not falls[-1] else "differs")


ARTEFACT = Artefact(
    name="fig-lambda",
    title=TITLE,
    paper="Figure 6",
    runs=tuple(SWEEP.values()),
    draw=partial(sweeping.draw, values=SWEEP, symbol="lambda"),
    sheets=partial(sweeping.sheets, values=SWEEP, symbol="lambda", title=TITLE),
    verdicts=verdicts,
)
