"""Figure 4a, the trend of the learning rate: the paper gives a picture without numbers or words, ours is a formula.

Beyond the paper: what it brings to anneal further than the first runs did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paper import plan
from paper.artefact import BEYOND, Artefact, Verdict, not_yet
from paper.reading import bare, length, listed, short
from paper.results import Record, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS = plan.names([plan.joint(), plan.joint(lr=1e-3, final_lr=1.0)])
LABELS = dict(zip(RUNS, ("ours: warm-up, then a cosine", "constant after the warm-up"), strict=True))
ANNEALED = {name: f"bundled-{name}-150k" for name in ("cg-imitation", "cg-accelerated", "pcg-accelerated")}
LATE = 2 / 3  # of a run: from here on its learning rate falls a hundredfold
FIRST_END = 6e-5  # the learning rate at which the first runs ended
GAIN = 1.5  # a smaller factor is no gain worth a claim

EPOCHS = 700_000  # the paper's; its word for steps


def draw(results: Results) -> Figure | None:
    """The learning rates of the runs, a function of config and step; and the error over the rate as it falls."""
    from nlaformer.learn.optimizer import learning_rate
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
        tidy(every[1], "The last third of 150k steps", "learning rate of Adam", "error at T")
    for axes in every:
        axes.legend(frameon=False, fontsize=8)
    return figure


def _annealed(results: Results) -> dict[str, Record]:
    """The runs that are there, with something to draw a line through."""
    return {name: record for name, record in results.there(ANNEALED).items() if len(late(record)) > 1}


def late(record: Record) -> list[tuple[float, float]]:
    """Learning rate and mean squared error of the last iterate at the validations of the last third of a run."""
    from nlaformer.learn.optimizer import learning_rate

    history, config = record.history, record.config
    if history["final_error"][-1:] == [None]:  # it did not end well: what came before does not tell
        return []
    return [
        (learning_rate(config, step - 1), error)
        for step, error in zip(history["step"], history["final_error"], strict=True)
        if step >= LATE * config.steps and error  # none where it was not finite
    ]


def verdicts(results: Results) -> list[Verdict]:
    """There is nothing of the paper's to compare with; and what the rate does."""
    return [
        Verdict(
            "The learning rate follows the curve of Figure 4a.",
            "section 4.1, Figure 4a",
            "The paper shows a picture and gives neither numbers nor a rule. In the runs of its figures we warm up for "
            "1,000 steps to 3e-3 and follow a cosine down to 2% of it; the recipes for imitation and acceleration now "
            "go down to 0.2%.",
            "not reproducible as stated",
        ),
        _longest(results),
        _annealing(results),
    ]


def _longest(results: Results) -> Verdict:
    """The paper's 700k epochs, as far as we have come: every run on the way has a schedule of its own."""
    claim, where = "The adjusted learning rate is designed for stable convergence over 700k epochs.", "section 4.1"
    parts, steps, stable = [], [], True
    for name in ("cg-accelerated", "pcg-accelerated"):
        records = [results.run(run.name) for run in plan.lineage(plan.BUNDLED[name])]
        known = [record for record in records if record is not None]
        if len(known) < len(records):
            return not_yet(claim, where)
        steps.append(sum(record.config.steps for record in known))
        stable = stable and all(record.document["state"] == "finished" for record in known)
        ends = ", ".join(short(record.own["model"][-1]) for record in known)
        parts.append(f"{name} {steps[-1]:,} steps in {len(known)} runs ({ends})")
    found = f"Our longest trainings, with the last error after each of their runs: {listed(parts)}."
    if not stable:
        return Verdict(claim, where, f"{found} Not all of them finished.", "differs")
    return Verdict(claim, where, found, "holds" if min(steps) >= EPOCHS else "not reproducible as stated")


def _annealing(results: Results) -> Verdict:
    claim = (
        f"Training on while the rate falls below {bare(FIRST_END)}, where the first runs ended, lowers the last error."
    )
    where = BEYOND
    if len(annealed := _annealed(results)) < len(ANNEALED):
        return not_yet(claim, where)
    parts, gains = [], []
    for name, record in annealed.items():
        points = late(record)
        before, after = max((point for point in points if point[0] <= FIRST_END), default=points[-1]), points[-1]
        gains.append(before[1] / after[1])
        parts.append(f"{name} {short(before[1])} at {short(before[0])} and {short(after[1])} at {short(after[0])}")
    found = (
        f"Mean error at T and learning rate on the way, and at the end of {length(annealed)}: {listed(parts)} (on the "
        "systems of the validation; as the rate falls the steps pass, and which of the two it is cannot be told)."
    )
    return Verdict(claim, where, found, "holds" if min(gains) > GAIN else "differs")


ARTEFACT = Artefact(
    name="fig-learning-rate",
    title="The learning rate in the course of training",
    paper="Figure 4a",
    runs=(*RUNS, *ANNEALED.values()),
    draw=draw,
    verdicts=verdicts,
)
