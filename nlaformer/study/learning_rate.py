"""Figure 4a, the trend of the learning rate: the paper gives a picture without numbers or words, ours is a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlaformer.study import plan
from nlaformer.study.artefact import Artefact, Verdict
from nlaformer.study.reading import length
from nlaformer.study.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS = plan.names([plan.joint(), plan.joint(lr=1e-3, final_lr=1.0)])
LABELS = dict(zip(RUNS, ("ours: warm-up, then a cosine", "constant after the warm-up"), strict=True))


def draw(results: Results) -> Figure | None:
    """The learning rates of the runs, a function of config and step."""
    from nlaformer.learn.engine import learning_rate
    from nlaformer.report.figure import CURVES, panels, tidy

    if not (found := results.together(RUNS)):
        return None
    figure, (axes,) = panels(1, width=5.2)
    for which, (name, record) in enumerate(found.items()):
        config = record.config
        steps = sorted({*range(0, config.steps, max(config.steps // 200, 1)), config.warmup, config.steps - 1})
        rates = [learning_rate(config, step) for step in steps]
        axes.plot(steps, rates, color=CURVES[which], label=LABELS[name])
    tidy(axes, f"Learning rate, {length(found)}", "training step", "learning rate of Adam")
    axes.legend(frameon=False, fontsize=8)
    return figure


def verdicts(results: Results) -> list[Verdict]:
    """There is nothing to compare with."""
    return [
        Verdict(
            "The learning rate follows the curve of Figure 4a.",
            "section 4.1, Figure 4a",
            "The paper shows a picture and gives neither numbers nor a rule. We warm up for 1,000 steps to 3e-3 and "
            "follow a cosine down to 2% of it.",
            "not reproducible as stated",
        )
    ]


ARTEFACT = Artefact(
    name="fig-learning-rate",
    title="The learning rate in the course of training",
    paper="Figure 4a",
    runs=RUNS,
    draw=draw,
    verdicts=verdicts,
)
