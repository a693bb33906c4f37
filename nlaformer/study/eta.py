"""Figure 4b: joint supervision with different weights eta of the intermediate variables."""

from __future__ import annotations

from functools import partial

from nlaformer.study import plan, sweeping
from nlaformer.study.artefact import Artefact, Verdict
from nlaformer.study.results import Results

VALUES = {eta: plan.name_of(plan.joint(eta=eta)) for eta in plan.ETAS}
SEEDS = plan.names(plan.joint(seed=seed) for seed in plan.SEEDS)
TITLE, WHERE = "Joint supervision, by the weight eta", "section 4.1, Figure 4b"


def verdicts(results: Results) -> list[Verdict]:
    """The best eta."""
    claim = "Of the weights 0.05 to 0.0001 of the intermediate variables, 0.0005 is the best."
    return [sweeping.best(results, VALUES, "eta", 5e-4, claim, WHERE, SEEDS)]


ARTEFACT = Artefact(
    name="fig-eta",
    title=TITLE,
    paper="Figure 4b",
    runs=tuple(VALUES.values()),
    draw=partial(sweeping.draw, values=VALUES, symbol="eta", title=TITLE),
    sheets=partial(sweeping.sheets, values=VALUES, symbol="eta", title=TITLE),
    verdicts=verdicts,
)
