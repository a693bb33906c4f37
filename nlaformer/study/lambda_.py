"""Figure 6: step and solution supervision with different weights lambda of the solution."""

from __future__ import annotations

from functools import partial

from nlaformer.study import plan, sweeping
from nlaformer.study.artefact import Artefact, Judgement, Verdict, not_yet
from nlaformer.study.reading import length, listed, luck, score, short
from nlaformer.study.results import Results

SWEEP = {weight: plan.name_of(plan.paper_accelerated("cg", lambda_=weight)) for weight in plan.ALL_LAMBDAS}
VALUES = {weight: SWEEP[weight] for weight in plan.LAMBDAS}  # the paper's
SEEDS = plan.seeds_of(plan.paper_accelerated("cg"))
BEST = 10.0  # the paper's
TITLE, WHERE = "Step and solution supervision, by the weight lambda", "section 4.2, Figure 6"


def verdicts(results: Results) -> list[Verdict]:
    """The best lambda, and the trend that leads to it."""
    claim = "Of the weights 0.5 to 13 of the solution, 10 is the best."
    return [sweeping.best(results, VALUES, "lambda", BEST, claim, WHERE, SEEDS), _trend(results)]


def _trend(results: Results) -> Verdict:
    """Two halves: 10 is better than the least weight, and one beyond the best is worse; both by more than luck."""
    claim = "A larger weight of the solution accelerates convergence, an excessive one degrades it."
    records = results.keyed(SWEEP)
    if not VALUES.keys() <= records.keys():
        return not_yet(claim, WHERE)
    scores = {weight: score(records[weight].own["model"]) for weight in sorted(records)}
    noise, told = luck(results, SEEDS)
    accelerates = scores[min(VALUES)] > noise * scores[BEST]
    ours = min(scores, key=lambda weight: scores[weight])
    degrading = [weight for weight in scores if weight > ours and scores[weight] > noise * scores[ours]]
    said = listed([f"{short(value)} at {weight:g}" for weight, value in scores.items()])
    ends = [records[weight].own["model"][-1] for weight in scores]
    text = (
        f"Mean error {said} ({length(records)}); {told}. Beyond {ours:g}, the best, it degrades by more than that "
        f"at {listed([f'{weight:g}' for weight in degrading]) or 'none'}. The last error hardly depends on the weight: "
        f"{short(min(ends))} to {short(max(ends))}."
    )
    judgement: Judgement = "holds" if degrading else "not reproducible as stated"
    return Verdict(claim, WHERE, text, judgement if accelerates else "differs")


ARTEFACT = Artefact(
    name="fig-lambda",
    title=TITLE,
    paper="Figure 6",
    runs=tuple(dict.fromkeys((*SWEEP.values(), *SEEDS))),
    draw=partial(sweeping.draw, values=SWEEP, symbol="lambda"),
    sheets=partial(sweeping.sheets, values=SWEEP, symbol="lambda", title=TITLE),
    verdicts=verdicts,
)
