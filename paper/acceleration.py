"""Section 4.2, faster than the teacher, and what we add: the lead, the architectures, more loops, all kinds of runs.

The runs over one parameter are here too: eta (Figure 4b), lambda (Figure 6), embedding size and window (Figures 8 and
9). A window K supervises the last K iterates only, from T - K + 1 on.

The loss |x^_t - x_t|^2 + lambda |x^_t - x|^2 is least at x^_t = (x_t + lambda x) / (1 + lambda), whose squared error is
the teacher's divided by (1 + lambda)^2. A network that follows its teacher exactly has that lead; one that cannot may
have a larger one, for what it does not know of x_t does not pull it back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nlaformer.console import Sheet
from nlaformer.learn.evaluate import plain_factor, worse_than_zero
from nlaformer.report.figure import CURVES, FAINT, curve, panels, reference, tidy
from paper import plan
from paper.curves import (
    LEAD_ITERATES,
    OUTCOME,
    Curve,
    band,
    counted,
    error_scale,
    extremes,
    iterations,
    law,
    length,
    outcome,
    positive,
    shades,
    short,
    span,
    typical,
)
from paper.results import Record, Results

# --- runs over one parameter ---

Sweep = Mapping[float, str]
"""Names of runs by the value of the parameter."""
Grid = Mapping[tuple[str, float, int], str]
"""Names of runs by teacher, sigma and the value of the parameter."""

ETA: Sweep = {eta: plan.name_of(plan.joint(eta=eta)) for eta in plan.ETAS}
LAMBDA: Sweep = {weight: plan.name_of(plan.accelerated("cg", lambda_=weight)) for weight in plan.ALL_LAMBDAS}
DIMENSION: Grid = {(c.teacher, c.sigma[0], c.d): plan.name_of(c) for c in plan.over_dimension()}
WINDOW: Grid = {(c.teacher, c.sigma[0], c.window or c.T): plan.name_of(c) for c in plan.over_window()}
_NOTE = (
    "Mean error: the geometric mean of the squared relative errors of x_1 to x_T. Iterations to 1e-1, 1e-2, 1e-3, 1e-4"
)


def sweep_figure(results: Results, sweep: Sweep, symbol: str) -> Figure:
    """The squared relative error over the iterations, a shade for each value, and CG's; and the last error by value."""
    records = dict(sorted(results.runs(sweep).items()))
    figure, (left, right) = panels(2, width=4.6, height=3.7, share=False)
    for (value, record), shade in zip(records.items(), shades(len(records)), strict=True):
        left.plot(record.own["model"], color=shade, linewidth=1.3, label=f"{value:g}")
        right.plot(value, record.own["model"][-1], "o", color=shade, markersize=6)
    first = next(iter(records.values()))
    reference(left, first.own["cg"], "CG")
    error_scale(left, lowest=1e-6)
    title = f"Iterations to 1e-3: {_iterations_cell(records, 1e-3)}; CG's {iterations(first.own['cg'], 1e-3):g}"
    tidy(left, title, "iteration t", "squared relative error (mean)")
    left.legend(frameon=False, fontsize=7.5, ncols=2, title=symbol, title_fontsize=8)
    right.set(xscale="log", yscale="log", xlim=(min(records) / 2, max(records) * 2), ylim=(1e-6, 1e-3))
    ends = [record.own["model"][-1] for record in records.values()]
    right.minorticks_off()
    tidy(right, f"Error at t = {first.config.T}: {span(ends)}", symbol, "squared relative error (mean)")
    figure.suptitle(f"By the weight {symbol}: {length(records.values())}", fontsize=10)
    return figure


def _iterations_cell(records: Mapping[Any, Record], bound: float) -> str:
    """The least and the largest number of iterations to a bound."""
    found = [iterations(record.own["model"], bound) for record in records.values()]
    if math.isinf(min(found, default=math.inf)):
        return "not reached"
    return f"{min(found):g} or more, not all" if math.isinf(max(found)) else span(found, "g")


def sweep_table(results: Results, sweep: Sweep, symbol: str, title: str) -> list[Sheet]:
    """A line for each value."""
    records = results.runs(sweep)
    lines = tuple(
        (f"{value:g}", *outcome([record]), short(record.own["discrepancy"]))
        for value, record in sorted(records.items(), reverse=True)
    )
    headings = (symbol, *OUTCOME, "discrepancy")
    return [Sheet(title, headings, lines, f"{length(records.values())}. {_NOTE}, a dash where it is not reached.")]


def grid_figure(results: Results, grid: Grid, symbol: str, title: str) -> Figure:
    """A row of panels for each teacher, a panel for each sigma, a curve for each value; the numbers above them."""
    records = results.runs(grid)
    figure = Figure(figsize=(9.6, 6.4), layout="constrained")
    rows = figure.subplots(2, 3, sharex=True, sharey=True)
    values = sorted({value for *_, value in grid})
    for teacher, row in zip(plan.TEACHERS, rows, strict=True):
        for sigma, axes in zip(plan.SIGMAS, row, strict=True):
            for which, value in enumerate(values):
                own = records[teacher, sigma, value].own
                curve(axes, own["model"], f"{symbol} = {value}: {_reached(records, value)}", which)
                if worse_than_zero(own["model"]):
                    axes.text(
                        0.5, 0.95, f"{symbol} = {value} is above", fontsize=8, ha="center", transform=axes.transAxes
                    )
            reference(axes, own[teacher], "the teacher")
            error_scale(axes, lowest=1e-6)
            tidy(axes, f"taught by {teacher.upper()}, sigma = {sigma:g}", "iteration t" if teacher == "pcg" else "",
                 "squared relative error" if sigma == plan.SIGMAS[0] else "")  # fmt: skip
    about = f"{title}, and iterations to 1e-4: mean of 512 systems, {length(records.values())}"
    shown = rows[0, 0].get_legend_handles_labels()
    figure.legend(*shown, frameon=False, fontsize=9, loc="outside upper center", ncols=2, title=about)
    return figure


def _reached(records: Mapping[tuple[str, float, int], Record], value: int) -> str:
    """The iterations to a squared error of 1e-4 with a value, over teachers and sigmas, and how many runs failed."""
    runs = {key: record for key, record in records.items() if key[-1] == value}
    whole = {key: record for key, record in runs.items() if not worse_than_zero(record.own["model"])}
    return _iterations_cell(whole, 1e-4) + (
        f"; {len(runs) - len(whole)} of {len(runs)} worse than x = 0" if len(whole) < len(runs) else ""
    )


def grid_table(results: Results, grid: Grid, symbol: str, title: str) -> list[Sheet]:
    """A line for each run."""
    records = results.runs(grid)
    lines = tuple(
        (teacher.upper(), f"{sigma:g}", str(value), *outcome([record]))
        for (teacher, sigma, value), record in sorted(records.items())
    )
    headings = ("teacher", "sigma", symbol, *OUTCOME)
    return [Sheet(title, headings, lines, f"{length(records.values())}. {_NOTE}.")]


# --- Figure 7: three sigmas, two teachers ---

SIGMA = {(c.teacher, c.sigma[0]): plan.seeds_of(c) for c in plan.over_sigma()}  # three seeds at 1.2, else one
_PUPILS = {teacher: f"NLAFormer, taught by {teacher.upper()}" for teacher in plan.TEACHERS}


def sigma_figure(results: Results) -> Figure:
    """One panel for each sigma."""
    kinds = results.kinds(SIGMA)
    figure, grid = panels(3, width=3.5, height=3.6)
    for sigma, axes in zip(plan.SIGMAS, grid, strict=True):
        for which, teacher in enumerate(plan.TEACHERS):
            band(axes, [record.own["model"] for record in kinds[teacher, sigma]], _PUPILS[teacher], which)
        own = kinds["cg", sigma][0].own
        reference(axes, own["cg"], "CG")
        reference(axes, own["pcg"], "PCG", ":")
        error_scale(axes)
        pupils = {(teacher, run.name): run for teacher in plan.TEACHERS for run in kinds[teacher, sigma]}
        theirs = ", ".join(f"{iterations(own[teacher], 1e-4):g}" for teacher in plan.TEACHERS)
        title = f"sigma = {sigma:g}: 1e-4 at t = {_iterations_cell(pupils, 1e-4)}\n(CG, PCG: {theirs})"
        tidy(axes, title, "iteration t", "squared relative error" if sigma == plan.SIGMAS[0] else "")
    grid[0].legend(frameon=False, fontsize=7.5)
    figure.suptitle(f"Mean of 512 systems, {length(*kinds.values())}", fontsize=10)
    return figure


def sigma_table(results: Results) -> list[Sheet]:
    """Iterations to each threshold, on the mean error and as a mean over the systems."""
    kinds = results.kinds(SIGMA)
    lines: list[tuple[str, ...]] = []
    for sigma in plan.SIGMAS:
        rows = {teacher: [record.own for record in kinds[teacher, sigma]] for teacher in plan.TEACHERS}
        lines += [_sigma_line(method.upper(), sigma, rows["cg"][:1], method) for method in plan.TEACHERS]
        lines += [_sigma_line(_PUPILS[teacher], sigma, seeds, "model") for teacher, seeds in rows.items()]
    headings = ("method", "sigma", "iterations to", "mean over the systems", "error at T")
    note = (
        f"{length(*kinds.values())}. Iterations to a squared relative error of 1e-1, 1e-2, 1e-3, 1e-4: of the mean "
        "over 512 systems, and counted for each system (T + 1 where it is not reached) and averaged. Of several "
        "seeds, the range."
    )
    return [Sheet("NLAFormer against CG and PCG", headings, tuple(lines), note)]


def _sigma_line(label: str, sigma: float, rows: Sequence[dict[str, Any]], method: str) -> tuple[str, ...]:
    means = zip(*(row["counts"][method]["mean"] for row in rows), strict=True)
    counts = " ".join("..".join(dict.fromkeys(f"{count:.1f}" for count in extremes(seeds))) for seeds in means)
    curves = [row[method] for row in rows]
    return label, f"{sigma:g}", counted(*curves), counts, span([curve[-1] for curve in curves])


# --- how far ahead of the teacher ---

_LEAD_SIGMA = 1.2
_LAST_DRAWN = 14  # soon after, CG overtakes them all
_STAGES = {"lambda = 10": "150k", "control": "lambda10", "lambda = 100": "lambda100", "as bundled": "polished-lr0.0002"}
"""On the way to the accelerated models; the control was trained as long as "lambda = 100" with lambda = 10."""
LEAD = {
    (teacher, stage): f"bundled-{teacher}-accelerated-{suffix}"
    for teacher in plan.TEACHERS
    for stage, suffix in _STAGES.items()
}


def lead_curve(record: Record) -> Curve:
    """The teacher's mean squared error over the pupil's, at every iterate."""
    row = record.at(_LEAD_SIGMA)
    return [theirs / positive(own) for own, theirs in zip(row["model"], row[record.config.teacher], strict=True)]


def lead_figure(results: Results) -> Figure:
    """The lead over the iterations, a panel for each teacher; and by lambda."""
    models, sweep = results.runs(LEAD), results.runs(LAMBDA)
    figure, (*pupils, right) = panels(3, width=3.7, height=3.7, share=False)
    for teacher, axes in zip(plan.TEACHERS, pupils, strict=True):
        largest = {}
        for which, stage in enumerate(_STAGES):
            found = lead_curve(models[teacher, stage])[1:]
            curve(axes, found, stage, which, start=1)
            largest[stage] = max(found)
        _draw_minimizers(axes, [models[teacher, stage].config.lambda_ for stage in _STAGES])
        first, last = (plain_factor(largest[stage]) for stage in (next(iter(_STAGES)), list(_STAGES)[-1]))
        title = f"{teacher.upper()}'s pupil: lambda = 10 leads by up to {first},\nas bundled by up to {last}"
        tidy(axes, title, "iteration t", "teacher's squared error / pupil's" if teacher == plan.TEACHERS[0] else "")
    pupils[0].legend(frameon=False, fontsize=7.5, loc="lower left")
    weights = sorted(sweep)
    right.plot(weights, list(map(law, weights)), color=FAINT, linestyle=":", label="(1 + lambda)^2")
    mean = f"geometric mean over t = {LEAD_ITERATES[0]}, ..., {LEAD_ITERATES[-1]}"
    leads = [typical(lead_curve(sweep[weight])) for weight in weights]
    right.plot(weights, leads, marker="o", linestyle="none", color=CURVES[0], label=mean)
    right.set(xscale="log", yscale="log")
    within = [weight for weight, lead in zip(weights, leads, strict=True) if 0.8 < lead / law(weight) < 1.25]
    title = (
        f"Lead about (1 + lambda)^2\nfor lambda = {min(within):g} to {max(within):g}" if within else "Lead by lambda"
    )
    tidy(right, title, "lambda", "CG's squared error / pupil's")
    right.legend(frameon=False, fontsize=7.5)
    how = f"left, on the way to the bundled models; right, the paper's loss, {length(sweep.values())}"
    figure.suptitle(f"sigma {_LEAD_SIGMA:g}: {how}", fontsize=10)
    return figure


def _draw_minimizers(axes: Axes, weights: Sequence[float]) -> None:
    """The leads that the minimizers of the losses have, and the scale of the picture."""
    for weight in sorted(set(weights)):
        axes.axhline(law(weight), color=FAINT, linewidth=1, linestyle=":")
        axes.annotate(f"(1 + {weight:g})^2", (_LAST_DRAWN, law(weight)), xytext=(0, 3),
                      textcoords="offset points", fontsize=7, ha="right")  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlim(0.5, _LAST_DRAWN + 0.5)
    axes.set_ylim(0.3, 3e4)


def lead_table(results: Results) -> list[Sheet]:
    """The lead at single iterates and that of the minimizer."""
    records = {f"{teacher.upper()}'s pupil, {stage}": run for (teacher, stage), run in results.runs(LEAD).items()}
    records |= {
        f"CG's pupil, lambda = {weight:g}, power 1": run for weight, run in sorted(results.runs(LAMBDA).items())
    }
    shown = [t for t in (1, 2, 3, 4, 5, 6, 8, 10) if t <= min(record.config.T for record in records.values())]
    lines = tuple(
        (label, f"{law(record.config.lambda_):,g}", f"{typical(lead) / law(record.config.lambda_):.2g}",
         *(plain_factor(lead[t]) for t in shown))
        for label, record in records.items()
        for lead in [lead_curve(record)]
    )  # fmt: skip
    headings = ("model", "(1 + lambda)^2", "lead over it", *(f"t = {t}" for t in shown))
    note = (
        "The teacher's mean squared error over the pupil's, 512 systems; *lead over it*: their geometric mean over "
        "t = 2..6, divided by (1 + lambda)^2."
    )
    return [Sheet(f"How far ahead of its teacher, sigma {_LEAD_SIGMA:g}", headings, lines, note)]


# --- architectures ---

ARCHITECTURES = {key: plan.seeds_of(config) for key, config in plan.over_architecture().items()}
_TASKS = tuple(dict.fromkeys(task for task, _ in ARCHITECTURES))
_LABELS = {
    "nlaformer": "pre, loop, post (NLAFormer)",
    "looped": "looped, prompt injected (Yang et al.)",
    "deep": "deep, no weights shared",
}


def architectures_figure(results: Results) -> Figure:
    """A panel for each task."""
    kinds = results.kinds(ARCHITECTURES)
    figure, grid = panels(2, width=4.4, height=3.6)
    for task, axes in zip(_TASKS, grid, strict=True):
        for which, (architecture, label) in enumerate(_LABELS.items()):
            band(axes, [record.own["model"] for record in kinds[task, architecture]], label, which)
        reference(axes, kinds[task, "nlaformer"][0].own["cg"], "CG")
        error_scale(axes)
        firsts = [kinds[task, architecture][0] for architecture in _LABELS]
        found = f"{task}: {span([record.own['model'][-1] for record in firsts])} at the end"
        tidy(axes, f"{found}\n{length(firsts)}", "iteration t", "squared relative error" if task == _TASKS[0] else "")
        axes.legend(frameon=False, fontsize=7.5)
    return figure


def architectures_table(results: Results) -> list[Sheet]:
    """A line for each task and architecture."""
    firsts = {key: seeds[:1] for key, seeds in results.kinds(ARCHITECTURES).items()}
    lines = tuple((task, label, *outcome(firsts[task, key])) for task in _TASKS for key, label in _LABELS.items())
    headings = ("task", "architecture", *OUTCOME)
    note = f"{length(*firsts.values())}, seed 0. Iterations to 1e-1, 1e-2, 1e-3, 1e-4."
    return [Sheet("Architectures", headings, lines, note)]


# --- more loops ---

LOOPS = {
    "result": plan.seeds_of(plan.imitation()),
    "joint": plan.seeds_of(plan.joint()),
    "faster, taught by CG": plan.seeds_of(plan.our_accelerated("cg")),
    "faster, taught by PCG": plan.seeds_of(plan.our_accelerated("pcg")),
    "looped, prompt injected": ARCHITECTURES["faster than CG", "looped"],
}


def loops_figure(results: Results) -> Figure:
    """The error over twice the iterations of training."""
    kinds = results.kinds(LOOPS)
    figure, (axes,) = panels(1, width=6.4, height=3.9)
    for which, (kind, records) in enumerate(kinds.items()):
        band(axes, [record.own["loops"] for record in records], kind, which)
    first = kinds["result"][0]
    reference(axes, first.own["cg"], "CG")
    axes.axvline(first.config.T, color=FAINT, linewidth=1)
    axes.annotate("T of training", (first.config.T, 1.2), xytext=(4, 0), textcoords="offset points", fontsize=8)
    error_scale(axes)
    T = first.config.T
    at = {t: span([run.own["loops"][t] for runs in kinds.values() for run in runs]) for t in (T, 2 * T)}
    title = f"From {at[T]} at t = {T} to {at[2 * T]} at t = {2 * T}\n{length(*kinds.values())}"
    tidy(axes, title, "iteration t", "squared relative error (mean)")
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def loops_table(results: Results) -> list[Sheet]:
    """The error at T, on the way and at 2T."""
    kinds = results.kinds(LOOPS)
    T = kinds["result"][0].config.T
    places = (T + 1, 3 * T // 2, 2 * T - 1, 2 * T)
    lines = tuple(
        (kind, str(run.config.seed), short(run.own["model"][-1]), *(short(run.own["loops"][t]) for t in places))
        for kind, runs in kinds.items()
        for run in runs
    )
    headings = ("model", "seed", f"x_{T} in training", *(f"t = {t}" for t in places))
    note = f"{length(*kinds.values())}. The last iterate leaves through the post block, where there is one."
    return [Sheet("Looped beyond T", headings, lines, note)]


# --- all kinds of runs ---

KINDS_OF_RUNS = {label: plan.seeds_of(config) for label, config in plan.kinds().items()} | {
    f"{label}, power 1, constant 1e-3": (name,)
    for label, name in zip(("result", "joint", "faster than CG"), map(plan.name_of, plan.constant_rate()), strict=True)
}


def runs_table(results: Results) -> list[Sheet]:
    """A line for each kind, over its seeds."""
    lines = tuple(
        (label, length(records), str(len(records)), *outcome(records), span([r.own["discrepancy"] for r in records]))
        for label, records in results.kinds(KINDS_OF_RUNS).items()
    )
    headings = ("run", "steps", "seeds", *OUTCOME, "discrepancy")
    note = (
        "Our recipes weigh the iterates by a power below 1. Mean error: geometric, over x_1 to x_T. Iterations to "
        "1e-1, 1e-2, 1e-3, 1e-4."
    )
    return [Sheet("Every kind of run at sigma 1.2", headings, lines, note)]
