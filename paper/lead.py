"""Beyond the paper: how far ahead of its teacher a model gets that is shown the teacher's steps and the solution.

The loss |x^_t - x_t|^2 + lambda |x^_t - x|^2 is least at x^_t = (x_t + lambda x) / (1 + lambda), whose squared error
is the teacher's divided by (1 + lambda)^2. A network that follows its teacher exactly is that far ahead; one that
cannot may be further, for what it does not know of x_t does not pull it back.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nlaformer.console import Sheet
from nlaformer.learn.evaluate import plain_factor
from paper import plan
from paper.artefact import BEYOND, Artefact, Verdict, not_yet
from paper.lambda_ import SWEEP
from paper.reading import at, length, listed, positive, short
from paper.results import Record, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from paper.reading import Curve

SIGMA = 1.2
# At x_1 a network has had too few layers; later it meets the floor of its own accuracy.
JUDGED = range(2, 7)
LAST_DRAWN = 14  # soon after, CG overtakes them all
FACTOR = 2.0  # how near to (1 + lambda)^2 is near

# Before they let go of their teacher and after, beside a control that was trained on as long and did not.
LETTING_GO = {"lambda = 10": "150k", "control": "lambda10", "lambda = 100": "lambda100"}
STAGES = (*LETTING_GO, "as bundled")
BUNDLED = {
    (teacher, stage): f"bundled-{teacher}-accelerated-{LETTING_GO[stage]}" if stage in LETTING_GO
    else plan.BUNDLED[f"{teacher}-accelerated"]
    for teacher in plan.TEACHERS for stage in STAGES
}  # fmt: skip


def lead(record: Record) -> Curve:
    """The teacher's mean squared error over the pupil's, at every iterate."""
    row = at(record, SIGMA)
    return [theirs / positive(own) for own, theirs in zip(row["model"], row[record.config.teacher], strict=True)]


def typical(record: Record) -> float:
    """One number for it: the geometric mean over the iterates that are judged, 0 for a model that diverged."""
    ratios = lead(record)[JUDGED.start : JUDGED.stop]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if min(ratios) > 0 else 0.0


def allowed(weight: float) -> float:
    """What the loss has to give: the lead of its minimizer, for a weight lambda."""
    return (1 + weight) ** 2


def draw(results: Results) -> Figure | None:
    """The lead over the iterations, and by lambda where the sweep has been run."""
    from nlaformer.report.figure import CURVES, FAINT, curve, panels, tidy

    models, sweep = results.there(BUNDLED), results.keyed(SWEEP)
    if not models and not sweep:
        return None
    figure, every = panels(2 if sweep and models else 1, width=4.6, height=3.6, share=False)
    if models:
        axes = every[0]
        for (teacher, stage), record in models.items():
            style = "-" if teacher == "cg" else ":"
            curve(axes, lead(record)[1:], _label(teacher, stage), STAGES.index(stage), start=1, style=style)
        for weight in sorted({record.config.lambda_ for record in models.values()}):
            axes.axhline(allowed(weight), color=FAINT, linewidth=1, linestyle=":")
            axes.annotate(f"(1 + {weight:g})^2", (LAST_DRAWN, allowed(weight)), xytext=(0, 3),
                          textcoords="offset points", fontsize=7, ha="right")  # fmt: skip
        axes.set_yscale("log")
        axes.set_xlim(0.5, LAST_DRAWN + 0.5)
        axes.set_ylim(0.3, 3e4)
        tidy(
            axes,
            f"On the way to the bundled models, sigma {SIGMA:g}",
            "iteration t",
            "teacher's squared error / pupil's",
        )
        axes.legend(frameon=False, fontsize=7, loc="lower left")
    if sweep:
        axes = every[-1]
        weights = sorted(sweep)
        axes.plot(weights, [allowed(weight) for weight in weights], color=FAINT, linestyle=":",
                  label="(1 + lambda)^2")  # fmt: skip
        axes.plot(weights, [typical(sweep[weight]) for weight in weights], marker="o", linestyle="none",
                  color=CURVES[0], label=_judged())  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        tidy(axes, f"The paper's loss, {length(sweep)}", "lambda", "CG's squared error / pupil's")
        axes.legend(frameon=False, fontsize=7)
    return figure


def sheets(results: Results) -> list[Sheet]:
    """The lead at single iterates beside what lambda allows."""
    records = {_label(*key): record for key, record in results.there(BUNDLED).items()}
    records |= {
        f"CG's pupil, lambda = {weight:g}, power 1": record for weight, record in sorted(results.keyed(SWEEP).items())
    }
    if not records:
        return []
    leads = {label: lead(record) for label, record in records.items()}
    shown = [t for t in (1, 2, 3, 4, 5, 6, 8, 10) if t < min(map(len, leads.values()))]  # tiny models have T = 4
    lines = tuple(
        (label, f"{allowed(record.config.lambda_):,g}", *(plain_factor(leads[label][t]) for t in shown))
        for label, record in records.items()
    )
    headings = ("model", "(1 + lambda)^2", *(f"t = {t}" for t in shown))
    note = "The teacher's mean squared error over the pupil's, 512 systems."
    return [Sheet(f"How far ahead of its teacher, sigma {SIGMA:g}", headings, lines, note)]


def verdicts(results: Results) -> list[Verdict]:
    """Whether lambda sets the lead, and what letting go brings."""
    law = _law(results)
    return [_unaided(law), law, _letting_go(results)]


def _unaided(law: Verdict) -> Verdict:
    """The paper's own explanation beside ours."""
    claim = (
        'The improvement over CG does not arise from "explicit additional supervision regarding how to combine '
        'operators beyond CG".'
    )
    where = "section 4.2"
    if law.judgement == "not yet run":
        return not_yet(claim, where)
    found = f"No step beyond CG's is shown; but the solution is, in the loss of every iterate. {law.found}"
    return Verdict(claim, where, found, "not reproducible as stated")


def _law(results: Results) -> Verdict:
    claim = (
        f"At the paper's weights, 0.5 to 13, lambda sets the lead over CG at t = {JUDGED.start}, ..., "
        f"{JUDGED.stop - 1}: (1 + lambda)^2 (our explanation)."
    )
    records = results.keyed({weight: SWEEP[weight] for weight in sorted(plan.LAMBDAS)})
    if len(records) < len(plan.LAMBDAS):
        return not_yet(claim, BEYOND)
    ratios = {weight: typical(record) / allowed(weight) for weight, record in records.items()}
    near = [weight for weight, ratio in ratios.items() if 1 / FACTOR <= ratio <= FACTOR]
    found = (
        "The lead divided by (1 + lambda)^2 is "
        + listed([f"{short(ratio)} at {weight:g}" for weight, ratio in ratios.items()])
        + f" (sigma {SIGMA:g}, {_judged()}, {length(records)}): within a factor of {FACTOR:g} in {len(near)} of "
        f"{len(ratios)}."
    )
    if beyond := results.keyed({weight: name for weight, name in SWEEP.items() if weight not in plan.LAMBDAS}):
        leads = [
            f"{plain_factor(typical(record))} at {weight:g}, {short(typical(record) / allowed(weight))} of that"
            for weight, record in beyond.items()
        ]
        found += f" Beyond these weights the lead is {listed(leads)}."
    return Verdict(claim, BEYOND, found, "holds" if len(near) == len(ratios) else "differs")


def _letting_go(results: Results) -> Verdict:
    claim = (
        f"A short training with a greater lambda takes a model further ahead of its teacher at t = {JUDGED.start}, "
        f"..., {JUDGED.stop - 1}."
    )
    models = results.there({key: name for key, name in BUNDLED.items() if key[1] in LETTING_GO})
    if len(models) < len(plan.TEACHERS) * len(LETTING_GO):
        return not_yet(claim, BEYOND)
    parts, further = [], []
    for teacher in plan.TEACHERS:
        before, control, after = (models[teacher, stage] for stage in LETTING_GO)
        leads = [typical(record) for record in (before, control, after)]
        ends = [short(at(record, SIGMA)["model"][-1]) for record in (before, control, after)]
        parts.append(
            f"of {teacher.upper()}'s pupil from {plain_factor(leads[0])} to {plain_factor(leads[2])} (control "
            f"{plain_factor(leads[1])}), its last error from {ends[0]} to {ends[2]} (control {ends[1]})"
        )
        further.append(leads[2] > max(leads[:2]))
    found = (
        f"{after.config.steps:,} steps with lambda = {after.config.lambda_:g} after those with "
        f"{before.config.lambda_:g} take the lead {'; '.join(parts)} (sigma {SIGMA:g}, {_judged()}; "
        f"the control: as many steps with {control.config.lambda_:g})."
    )
    return Verdict(claim, BEYOND, found, "holds" if all(further) else "differs")


def _label(teacher: str, stage: str) -> str:
    return f"{teacher.upper()}'s pupil, {stage}"


def _judged() -> str:
    return f"geometric mean over t = {JUDGED.start}, ..., {JUDGED.stop - 1}"


ARTEFACT = Artefact(
    name="fig-lead",
    title="How far ahead of its teacher a model gets",
    paper=BEYOND,
    runs=(*BUNDLED.values(), *SWEEP.values()),
    draw=draw,
    sheets=sheets,
    verdicts=verdicts,
)
