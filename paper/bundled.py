"""The bundled models: measured on fresh systems as a user calls them, and their weights bundled.

No run has seen the fresh systems, 4,096 at each of the paper's three sigmas. There are so many because errors are
heavy-tailed: among some thousand systems a model solves one a hundred times worse than the others. That moves the mean,
not the median and the quantiles. The file of results holds the config and the fingerprint of every model measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from nlaformer import pretrained
from nlaformer.console import Sheet
from nlaformer.errors import FileError
from nlaformer.io import copy, fingerprint
from nlaformer.learn.evaluate import WITHIN_REACH, evaluate, squared_deviations, squared_relative_errors
from nlaformer.learn.models import load_solver
from nlaformer.learn.recipes import Config
from nlaformer.learn.teachers import teacher as taught_by
from nlaformer.problems import SPD
from nlaformer.report.figure import CURVES, curve, panels, reference, tidy
from paper import plan
from paper.curves import counted, error_scale, iterations, overtaken, positive, short, with_error
from paper.results import Record, Results, restored

FILE = "bundled-fresh"
RUNS = tuple(name for name in plan.exploratory() if name.startswith("bundled-"))
_SEED = 20_261_115  # used for nothing else
_COUNT, _SMALL_COUNT = 4096, 8  # systems at each sigma
_SIGMA = 1.2  # of the table of the runs
_KINDS = {"mean": "mean", "median": "median", "upper": "90% quantile"}


@dataclass(frozen=True)
class Fresh:
    """What was measured on the fresh systems, of the models, of "cg" and of "pcg"."""

    document: dict[str, Any]

    @property
    def count(self) -> int:
        """The number of systems at each sigma."""
        return self.document["count"]

    @property
    def configs(self) -> dict[str, Config]:
        """The models that were measured, by name."""
        return {name: Config.from_json(entry["config"]) for name, entry in self.document["models"].items()}

    def at(self, method: str, sigma: float) -> dict[str, list[float]]:
        """Curves over the iterates: mean, standard_error (of the mean), median, upper and extreme (quantiles of 90% and
        99.9%), largest.

        Of models also deviation, the mean of ||x^_t - x_t||^2 / ||x||^2, with the iterates x_t of their teacher.
        """
        entry = (self.document["methods"] | self.document["models"])[method]
        return restored(entry["sigma"][str(sigma)])

    def elsewhere(self, model: str) -> dict[str, dict[str, list[float]]]:
        """Mean errors of a model, and of CG, on its own family and on others, by label."""
        return restored(self.document["models"][model]["elsewhere"])


def fresh(results: Results) -> Fresh:
    """What was measured."""
    return Fresh(results.document(FILE))


# --- measuring ---


def measure(small: bool) -> dict[str, Any]:
    """Solve the fresh systems with every bundled model, with CG and with PCG; some minutes on two cores."""
    count = _SMALL_COUNT if small else _COUNT
    solvers = {name: load_solver(pretrained.HOME / name) for name in plan.BUNDLED}
    methods: dict[str, Any] = {name: {"sigma": {}} for name in plan.TEACHERS}
    models: dict[str, Any] = {
        name: {
            "config": solver.config.to_json(),
            "weights": fingerprint(pretrained.HOME / name),
            "elsewhere": {row.label: {"model": row.model, "cg": row.cg} for row in evaluate(solver, min(count, 512))},
            "sigma": {},
        }
        for name, solver in solvers.items()
    }
    for sigma in plan.SIGMAS:
        A, b, x = SPD(n=20, sigma=(sigma,)).sample(count, _SEED)
        taught = {teacher: taught_by(teacher)(A, b, 20)[0] for teacher in plan.TEACHERS}
        for teacher, iterates in taught.items():
            methods[teacher]["sigma"][str(sigma)] = _curves(squared_relative_errors(iterates, x))
        for name, solver in solvers.items():
            iterates = solver.iterates(A, b)
            deviation = squared_deviations(iterates, taught[solver.config.teacher], x).mean(0).tolist()
            row = _curves(squared_relative_errors(iterates, x)) | {"deviation": deviation}
            models[name]["sigma"][str(sigma)] = row
    return {"count": count, "seed": _SEED, "sigma": plan.SIGMAS, "methods": methods, "models": models}


def _curves(errors: Tensor) -> dict[str, list[float]]:
    """Statistics over the systems, at every iterate."""
    return {
        "mean": errors.mean(0).tolist(),
        "standard_error": (errors.std(0, correction=0) / len(errors) ** 0.5).tolist(),
        "median": errors.quantile(0.5, 0).tolist(),
        "upper": errors.quantile(0.9, 0).tolist(),
        "extreme": errors.quantile(0.999, 0).tolist(),
        "largest": errors.amax(0).tolist(),
    }


# --- figure and tables ---


def figure(results: Results) -> Figure:
    """The models, CG and PCG on fresh systems, a panel for each sigma."""
    measured = fresh(results)
    figure, every = panels(len(plan.SIGMAS), width=3.6, height=3.6)
    for sigma, axes in zip(plan.SIGMAS, every, strict=True):
        for which, name in enumerate(measured.configs):
            row = measured.at(name, sigma)
            curve(axes, row["mean"], name, which)
            iterates, color = range(len(row["mean"])), CURVES[which]
            axes.fill_between(iterates, row["median"], row["upper"], color=color, alpha=0.15, linewidth=0)
        for teacher, style in zip(plan.TEACHERS, ("--", ":"), strict=True):
            reference(axes, measured.at(teacher, sigma)["mean"], teacher.upper(), style)
        error_scale(axes, lowest=1e-9)
        counts = [iterations(measured.at(method, sigma)["mean"], 1e-4) for method in ("cg-accelerated", "cg")]
        title = "sigma {:g}: 1e-4 at t = {:g}, CG at t = {:g}".format(sigma, *counts)
        tidy(axes, title, "iteration t", "squared relative error" if axes is every[0] else "")
    every[0].legend(frameon=False, fontsize=7, loc="upper right")
    title = f"The bundled models on {measured.count:,} fresh systems each: means; median to 90% quantile shaded"
    figure.suptitle(title, fontsize=10)
    return figure


def tables(results: Results) -> list[Sheet]:
    """How fast, how far, how near to the teacher, whether the runs agree, and all runs on the way."""
    measured = fresh(results)
    own = [table(measured) for table in (_iterations, _last_iterate, _distance)]
    return [*own, _agreement(measured, results), _training(results)]


def _iterations(measured: Fresh) -> Sheet:
    methods = {teacher: teacher.upper() for teacher in plan.TEACHERS} | {name: name for name in measured.configs}
    lines = tuple(
        (label, f"{sigma:g}", *(counted(measured.at(method, sigma)[kind], bounds=WITHIN_REACH) for kind in _KINDS))
        for sigma in plan.SIGMAS
        for method, label in methods.items()
    )
    note = "A dash: not within T. The quantile is the error that nine systems in ten do not exceed."
    title = f"Iterations to 1e-1, 1e-2, ..., 1e-6 on {measured.count:,} fresh systems at each sigma"
    return Sheet(title, ("method", "sigma", *(f"on the {name}" for name in _KINDS.values())), lines, note)


def _last_iterate(measured: Fresh) -> Sheet:
    lines = tuple(
        (name, f"{sigma:g}", with_error(row["mean"][-1], row["standard_error"][-1]),
         *(short(row[kind][-1]) for kind in ("median", "upper", "largest")),
         short(overtaken(row["mean"], measured.at(config.teacher, sigma)["mean"]), "g"))
        for name, config in measured.configs.items()
        for sigma in plan.SIGMAS
        for row in [measured.at(name, sigma)]
    )  # fmt: skip
    note = "+-: one standard error of the mean. Overtaken: the first t at which the teacher's mean error is smaller."
    headings = ("model", "sigma", "mean", "median", "90% quantile", "largest", "overtaken at")
    return Sheet("The last iterate's error", headings, lines, note)


def _distance(measured: Fresh) -> Sheet:
    """Of the models that imitate their teacher."""
    lines = tuple(
        (name, f"{sigma:g}", short(sum(curve[1:]) / len(curve[1:])), short(max(curve)), str(curve.index(max(curve))))
        for name, config in measured.configs.items()
        if config.supervision != "step+solution"
        for sigma in plan.SIGMAS
        for curve in [measured.at(name, sigma)["deviation"]]
    )
    headings = ("model", "sigma", "average over t = 1, ..., T", "largest", "at t")
    return Sheet("Squared distance from CG's own iterates, |x^_t - x_t|^2 / |x|^2, mean", headings, lines)


def apart(measured: Fresh, name: str, record: Record, sigma: float, t: int) -> float:
    """The mean errors of a model on its run's systems and on fresh ones: difference in combined standard errors."""
    filed, new = record.at(sigma), measured.at(name, sigma)
    combined = math.hypot(filed["standard_error"][t], new["standard_error"][t])
    return abs(filed["model"][t] - new["mean"][t]) / positive(combined)


def _agreement(measured: Fresh, results: Results) -> Sheet:
    lines = []
    for name, config in measured.configs.items():
        record = results.run(plan.BUNDLED[name])
        steps = plan.thousands(config.steps) + (" more" if config.start else "")
        for sigma in plan.SIGMAS:
            filed, new = record.at(sigma), measured.at(name, sigma)
            lines.append(
                (name, steps, f"{sigma:g}", with_error(filed["model"][-1], filed["standard_error"][-1]),
                 with_error(new["mean"][-1], new["standard_error"][-1]),
                 *(f"{apart(measured, name, record, sigma, t):.1f}" for t in (-1, 2)))
            )  # fmt: skip
    headings = ("model", "steps", "sigma", "mean at T, run", "fresh", "apart", "at t = 2")
    note = "Apart: the difference of the means in combined standard errors, at T and at t = 2."
    return Sheet("The last iterate on the systems of the run, and on fresh ones", headings, tuple(lines), note)


def _training(results: Results) -> Sheet:
    """Every run on the way to the bundled models."""
    lines = []
    for record in map(results.run, RUNS):
        config, row = record.config, record.at(_SIGMA)
        accelerating = config.supervision == "step+solution"
        weight, distance = (f"{config.lambda_:g}", "-") if accelerating else ("-", short(max(row["deviation"])))
        lines.append(
            (record.name, plan.planned(record.name).after or "-", f"{config.steps:,}",
             f"{config.lr * config.final_lr:.0e}", record.arithmetic, f"{config.power:g}", weight,
             *(short(row["model"][t]) for t in (2, 4, -1)), distance)
        )  # fmt: skip
    headings = ("run", "starts from", "steps", "last rate", "in", "power", "lambda", "t = 2", "t = 4", "T", "from CG")
    note = (
        f"Mean squared errors at sigma {_SIGMA:g}, 512 systems. From CG: the largest mean squared distance from its "
        "own iterate, of those that imitate it."
    )
    return Sheet("The runs behind them", headings, tuple(lines), note)


# --- bundling ---


def promote(folder: Path, results: Results, home: Path = pretrained.HOME) -> list[Path]:
    """Copy the weights of every finished bundled run in a folder of runs into the package; return their cards.

    The cards are written by hand.
    """
    found = {}
    for name, run in plan.BUNDLED.items():
        weights = folder / plan.WEIGHTS / run
        if results.has_run(run) and results.run(run).document["state"] == "finished" and weights.exists():
            if load_solver(weights).config != results.run(run).config:
                raise FileError(f"{weights} was trained with another config than the results of {run}")
            if fingerprint(weights) != results.run(run).document["weights"]:
                raise FileError(f"the numbers of {run} are of other weights than those in {weights}")
            found[home / name] = weights
    if not found:
        raise FileError(f"no finished run of {', '.join(plan.BUNDLED.values())} has weights in {folder / plan.WEIGHTS}")
    for place, weights in found.items():
        copy(weights, place)
    return [place / "README.md" for place in found]
