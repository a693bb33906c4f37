"""Figure 6: step and solution supervision with different weights lambda of the solution."""

from __future__ import annotations

from functools import partial

from paper import plan, sweeping
from paper.artefact import Artefact, Verdict, not_yet
from paper.reading import decided, length, listed, short, span
from paper.results import Results

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
    records, scores, luck = sweeping.compare(results, SWEEP, BEST, SEEDS)
    if not VALUES.keys() <= scores.keys():
        return not_yet(claim, WHERE)
    scores = dict(sorted(scores.items()))
    accelerates = decided(scores[BEST], [scores[min(VALUES)]], luck.factor())
    ours = min(scores, key=lambda weight: scores[weight])
    beyond = [weight for weight in scores if weight > ours]
    noise = luck.factor(max(len(beyond), 1), runs=1)  # one run beside another
    degrading = [f"{weight:g}" for weight in beyond if scores[weight] > noise * scores[ours]]
    ends = span([record.own["model"][-1] for record in records.values()])
    text = (
        f"Mean error {listed([f'{short(value)} at {weight:g}' for weight, value in scores.items()])} "
        f"({length(records)}); {luck.told(max(len(beyond), 1), runs=1)}. The best is {ours:g}; of the weights "
        f"beyond it, {listed(degrading) or 'none'} degrades it by more than that. The last errors: {ends}."
    )
    undecided = accelerates == "holds" and not degrading
    return Verdict(claim, WHERE, text, "not reproducible as stated" if undecided else accelerates)


ARTEFACT = Artefact(
    name="fig-lambda",
    title=TITLE,
    paper="Figure 6",
    runs=tuple(dict.fromkeys((*SWEEP.values(), *SEEDS))),
    draw=partial(sweeping.draw, values=SWEEP, symbol="lambda"),
    sheets=partial(sweeping.sheets, values=SWEEP, symbol="lambda", title=TITLE),
    verdicts=verdicts,
)
