"""Beyond the paper: the bundled models, one for all three sigmas, on fresh systems and in the numbers of their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlaformer.console import Sheet
from nlaformer.learn.evaluate import THRESHOLDS
from paper import fresh, goals, plan
from paper.artefact import BEYOND, Artefact, Verdict, not_yet
from paper.fresh import Fresh
from paper.reading import at, counted, length, overtaken, short, with_error
from paper.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS = (*(f"bundled-{name}" for name in plan.BUNDLED), *plan.onward(), *plan.ahead(), *plan.polished())
SIGMA = 1.2
DIGITS = 2.0  # the factor by which fewer digits are to cost
KINDS = {"mean": "mean", "median": "median", "upper": "90% quantile"}


def draw(results: Results) -> Figure | None:
    """The models beside CG and PCG on fresh systems, a panel for each sigma."""
    from nlaformer.report.figure import CURVES, curve, errors, panels, reference, tidy

    if (measured := fresh.read(results)) is None:
        return None
    figure, every = panels(len(plan.SIGMAS), width=3.6, height=3.6)
    for sigma, axes in zip(plan.SIGMAS, every, strict=True):
        for which, name in enumerate(measured.configs):
            row = measured.at(name, sigma)
            curve(axes, row["mean"], name, which)
            iterates, color = range(len(row["mean"])), CURVES[which]
            axes.fill_between(iterates, row["median"], row["upper"], color=color, alpha=0.15, linewidth=0)
        for teacher, style in zip(plan.TEACHERS, ("--", ":"), strict=True):
            reference(axes, measured.at(teacher, sigma)["mean"], teacher.upper(), style)
        errors(axes, lowest=1e-9)
        tidy(axes, f"sigma {sigma:g}", "iteration t", "squared relative error" if axes is every[0] else "")
    every[0].legend(frameon=False, fontsize=7, loc="upper right")
    title = f"The bundled models on {measured.count:,} fresh systems each: means; median to 90% quantile shaded"
    figure.suptitle(title, fontsize=10)
    return figure


def sheets(results: Results) -> list[Sheet]:
    """How fast, how far, how near to the teacher, and whether the runs said so before."""
    made = [_training(results)]
    if (measured := fresh.read(results)) is not None:
        made = [_iterations(measured), _last(measured), _deviation(measured), _runs(measured, results), *made]
    return [sheet for sheet in made if sheet.lines]


def _iterations(measured: Fresh) -> Sheet:
    """Every method, sigma by sigma."""
    lines = tuple(
        (label, f"{sigma:g}", *(counted(measured.at(method, sigma)[kind], bounds=THRESHOLDS) for kind in KINDS))
        for sigma in plan.SIGMAS
        for method, label in _labels(measured).items()
    )
    note = "A dash: not within T. The quantile is the error that nine systems in ten do not exceed."
    title = f"Iterations to 1e-1, 1e-2, ..., 1e-6 on {measured.count:,} fresh systems at each sigma"
    return Sheet(title, ("method", "sigma", *(f"on the {name}" for name in KINDS.values())), lines, note)


def _labels(measured: Fresh) -> dict[str, str]:
    """The methods, CG and PCG before the models."""
    return {teacher: teacher.upper() for teacher in plan.TEACHERS} | {name: name for name in measured.configs}


def _last(measured: Fresh) -> Sheet:
    lines = tuple(
        (name, f"{sigma:g}", with_error(row["mean"][-1], row["standard_error"][-1]),
         *(short(row[kind][-1]) for kind in ("median", "upper", "largest")),
         str(overtaken(row["mean"], measured.at(measured.configs[name].teacher, sigma)["mean"]) or "-"))
        for name in measured.configs
        for sigma in plan.SIGMAS
        for row in [measured.at(name, sigma)]
    )  # fmt: skip
    note = "+-: one standard error of the mean. Overtaken: the first t at which the teacher's mean error is smaller."
    headings = ("model", "sigma", "mean", "median", "90% quantile", "largest", "overtaken at")
    return Sheet("The last iterate's error", headings, lines, note)


def _deviation(measured: Fresh) -> Sheet:
    """Of the models that are to do what their teacher does; the others are meant to be elsewhere."""
    lines = tuple(
        (name, f"{sigma:g}", short(sum(curve[1:]) / len(curve[1:])), short(max(curve)), str(curve.index(max(curve))))
        for name, config in measured.configs.items()
        if config.supervision != "step+solution"
        for sigma in plan.SIGMAS
        for curve in [measured.at(name, sigma)["deviation"]]
    )
    headings = ("model", "sigma", "average over t = 1, ..., T", "largest", "at t")
    return Sheet("Squared distance from CG's own iterates, |x^_t - x_t|^2 / |x|^2, mean", headings, lines)


def _runs(measured: Fresh, results: Results) -> Sheet:
    """The last iterate's mean on the systems of the run and on the fresh ones."""
    lines: list[tuple[str, ...]] = []
    for name, config in measured.configs.items():
        if (record := results.of_config(f"bundled-{name}", config)) is None:
            continue
        steps = plan.thousands(config.steps) + (" more" if config.start else "")
        apart = {(pair.sigma, pair.t): f"{pair.apart:.1f}" for pair in goals.comparisons(measured, name, record)}
        for sigma in plan.SIGMAS:
            filed, new = at(record, sigma), measured.at(name, sigma)
            last = len(new["mean"]) - 1
            lines.append(
                (name, steps, f"{sigma:g}", with_error(filed["model"][last], filed["standard_error"][last]),
                 with_error(new["mean"][last], new["standard_error"][last]), apart[sigma, last], apart[sigma, 2])
            )  # fmt: skip
    headings = ("model", "steps", "sigma", "mean at T, run", "fresh", "apart", "at t = 2")
    note = "Apart: the difference of the means in combined standard errors, at T and at t = 2."
    return Sheet("The last iterate on the systems of the run, and on fresh ones", headings, tuple(lines), note)


def _training(results: Results) -> Sheet:
    """Every run on the way to the bundled models."""
    lines = []
    for record in filter(None, map(results.run, RUNS)):
        config, row = record.config, at(record, SIGMA)
        ahead = config.supervision == "step+solution"
        weight, apart = (f"{config.lambda_:g}", "-") if ahead else ("-", short(max(row["deviation"])))
        errors = [short(row["model"][t]) for t in (2, 4, -1)]
        lines.append(
            (record.name, plan.begun_with(config) or "-", f"{config.steps:,}", f"{config.lr * config.final_lr:.0e}",
             record.arithmetic, f"{config.power:g}", weight, *errors, apart)
        )  # fmt: skip
    headings = ("run", "begins with", "steps", "last rate", "in", "power", "lambda", "t = 2", "t = 4", "T", "from CG")
    note = (
        f"Mean squared errors at sigma {SIGMA:g}, 512 systems. From CG: the largest mean squared distance from its own "
        "iterate, of those that imitate it."
    )
    return Sheet("The runs behind them", headings, tuple(lines), note)


def verdicts(results: Results) -> list[Verdict]:
    """The goals, and what the last step towards them owed its gain to."""
    return [*goals.verdicts(results), _digits(results)]


def _digits(results: Results) -> Verdict:
    claim = f"The polishing needs its digits: the same training in tf32 ends at more than {DIGITS:g} times the error."
    bundled = plan.BUNDLED["cg-accelerated"]
    names = (str(plan.planned(bundled).begins_with), bundled, "bundled-cg-accelerated-polished-tf32")
    records = list(filter(None, map(results.run, names)))
    if len(records) < len(names):
        return not_yet(claim, BEYOND)
    used = [record.arithmetic for record in records[1:]]
    if used[0] == used[1]:  # on a CPU
        return Verdict(claim, BEYOND, f"Both were trained in {used[0]}.", "not reproducible as stated")
    before, fine, coarse = (at(record, SIGMA)["model"][-1] for record in records)
    found = (
        f"The last error of cg-accelerated at sigma {SIGMA:g} goes from {short(before)} to {short(fine)} in "
        f"{used[0]} and to {short(coarse)} in {used[1]} ({length(records[1:])})."
    )
    return Verdict(claim, BEYOND, found, "holds" if fine < before and coarse > DIGITS * fine else "differs")


ARTEFACT = Artefact(
    name=fresh.ARTEFACT_NAME,
    title="The bundled models",
    paper=BEYOND,
    runs=RUNS,
    files=(fresh.FILE,),
    measure=fresh.measure,
    draw=draw,
    sheets=sheets,
    verdicts=verdicts,
)
