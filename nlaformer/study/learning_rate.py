"""Figure 4a, the trend of the learning rate: the paper gives a picture without numbers or words, ours is a formula.

Beyond the paper: the error at which a training ends falls with the learning rate that it ends with.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nlaformer.study import plan
from nlaformer.study.artefact import Artefact, Verdict, not_yet
from nlaformer.study.reading import length, listed, short
from nlaformer.study.results import Record, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS = plan.names([plan.joint(), plan.joint(lr=1e-3, final_lr=1.0)])
LABELS = dict(zip(RUNS, ("ours: warm-up, then a cosine", "constant after the warm-up"), strict=True))
ANNEALED = {name: f"bundled-{name}-150k" for name in ("cg-imitation", "cg-accelerated", "pcg-accelerated")}
LATE = 2 / 3  # of a run: from here on its learning rate falls a hundredfold


def draw(results: Results) -> Figure | None:
    """The learning rates of the runs, a function of config and step; and the error over the rate as it falls."""
    from nlaformer.learn.engine import learning_rate
    from nlaformer.report.figure import CURVES, MARKERS, panels, tidy

    found, annealed = results.together(RUNS), _annealed(results)
    if not found:
        return None
    figure, every = panels(2 if annealed else 1, width=4.6, share=False)
    for which, (name, record) in enumerate(found.items()):
        config = record.config
        steps = sorted({*range(0, config.steps, max(config.steps // 200, 1)), config.warmup, config.steps - 1})
        rates = [learning_rate(config, step) for step in steps]
        every[0].plot(steps, rates, color=CURVES[which], label=LABELS[name])
    tidy(every[0], f"Learning rate, {length(found)}", "training step", "learning rate of Adam")
    for which, (name, record) in enumerate(annealed.items()):
        falling, errors = zip(*late(record), strict=True)
        every[1].loglog(falling, errors, color=CURVES[which], marker=MARKERS[which], linestyle="none", label=name)
    if annealed:
        tidy(every[1], "The last third of the bundled models' training", "learning rate of Adam", "error at T")
    for axes in every:
        axes.legend(frameon=False, fontsize=8)
    return figure


def _annealed(results: Results) -> dict[str, Record]:
    """The runs that are there, with something to draw a line through."""
    found = {name: results.run(run) for name, run in ANNEALED.items()}
    return {name: record for name, record in found.items() if record is not None and len(late(record)) > 1}


def late(record: Record) -> list[tuple[float, float]]:
    """Learning rate and mean squared error of the last iterate at the validations of the last third of a run."""
    from nlaformer.learn.engine import learning_rate

    history, config = record.history, record.config
    return [
        (learning_rate(config, step - 1), error)
        for step, error in zip(history["step"], history["final_error"], strict=True)
        if step >= LATE * config.steps and error  # none where it was not finite
    ]


def exponent(points: list[tuple[float, float]]) -> float:
    """The p of error = c rate^p, by least squares.

    >>> round(exponent([(1e-3, 4e-4), (1e-4, 4e-5), (1e-5, 4e-6)]), 6)
    1.0
    """
    logs = [(math.log(rate), math.log(error)) for rate, error in points]
    mean_x, mean_y = (sum(column) / len(logs) for column in zip(*logs, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def verdicts(results: Results) -> list[Verdict]:
    """There is nothing of the paper's to compare with; and what the rate does."""
    return [
        Verdict(
            "The learning rate follows the curve of Figure 4a.",
            "section 4.1, Figure 4a",
            "The paper shows a picture and gives neither numbers nor a rule. We warm up for 1,000 steps to 3e-3 and "
            "follow a cosine down to 2% of it.",
            "not reproducible as stated",
        ),
        _floor(results),
    ]


def _floor(results: Results) -> Verdict:
    claim = "The accuracy at which a training ends is set by its last learning rate (our finding)."
    where = "beyond the paper"
    if len(annealed := _annealed(results)) < len(ANNEALED):
        return not_yet(claim, where)
    parts, exponents = [], []
    for name, record in annealed.items():
        points = late(record)
        exponents.append(exponent(points))
        (first, before), (last, after) = points[0], points[-1]
        parts.append(
            f"{name} from {short(before)} at {short(first)} to {short(after)} at {short(last)}, like "
            f"rate^{exponents[-1]:.2f}"
        )
    found = f"In the last third of 150,000 steps the mean error at T falls with the rate: {listed(parts)}."
    return Verdict(claim, where, found, "holds" if min(exponents) > 0.5 else "differs")


ARTEFACT = Artefact(
    name="fig-learning-rate",
    title="The learning rate in the course of training",
    paper="Figure 4a",
    runs=(*RUNS, *ANNEALED.values()),
    draw=draw,
    verdicts=verdicts,
)
