"""Figure 6: step and solution supervision with different weights lambda of the solution."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from nlaformer.study import plan, sweeping
from nlaformer.study.artefact import Artefact, Verdict, not_yet
from nlaformer.study.reading import length, score, short
from nlaformer.study.results import Results

VALUES = {weight: plan.name_of(plan.paper_accelerated("cg", lambda_=weight)) for weight in plan.LAMBDAS}
SEEDS = plan.names(plan.paper_accelerated("cg", seed) for seed in plan.SEEDS)
TITLE, WHERE = "Step and solution supervision, by the weight lambda", "section 4.2, Figure 6"


def verdicts(results: Results) -> list[Verdict]:
    """The best lambda, and the trend that leads to it."""
    claim = "Of the weights 0.5 to 13 of the solution, 10 is the best."
    return [sweeping.best(results, VALUES, "lambda", 10.0, claim, WHERE, SEEDS), _trend(results)]


def _trend(results: Results) -> Verdict:
    claim = "A larger weight of the solution accelerates convergence, an excessive one degrades it."
    records = results.keyed(VALUES)
    if len(records) < len(VALUES):
        return not_yet(claim, WHERE)
    scores = [score(records[weight].own["model"]) for weight in sorted(VALUES)]
    rising = sum(later < earlier for earlier, later in pairwise(scores[:-1]))
    degrades = scores[-1] > scores[-2]
    text = (
        f"From 0.5 to 10 the mean error falls in {rising} of {len(scores) - 2} steps, from {short(scores[0])} to "
        f"{short(scores[-2])}; at 13 it is {short(scores[-1])} ({length(records)})."
    )
    return Verdict(claim, WHERE, text, "holds" if rising == len(scores) - 2 and degrades else "differs")


ARTEFACT = Artefact(
    name="fig-lambda",
    title=TITLE,
    paper="Figure 6",
    runs=tuple(VALUES.values()),
    draw=partial(sweeping.draw, values=VALUES, symbol="lambda", title=TITLE),
    sheets=partial(sweeping.sheets, values=VALUES, symbol="lambda", title=TITLE),
    verdicts=verdicts,
)
