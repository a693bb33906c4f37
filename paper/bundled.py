"""The bundled models: measured on fresh systems, and bundled with a card made from the numbers of their runs.

No run has seen the fresh systems, 4,096 at each of the paper's three sigmas. There are so many because errors are
heavy-tailed: among some thousand systems a model solves one a hundred times worse than the others. That moves the mean,
not the median and the quantiles. The file of results holds the config and the fingerprint of every model measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nlaformer import pretrained
from nlaformer.console import Sheet, to_markdown
from nlaformer.errors import FileError
from nlaformer.io import copy, fingerprint, replace_file
from nlaformer.learn.evaluate import THRESHOLDS, squared_deviations, squared_relative_errors
from nlaformer.learn.model import load_solver
from nlaformer.learn.recipes import Config, description
from nlaformer.learn.teachers import trajectory
from nlaformer.problems import SPD
from nlaformer.provenance import in_words
from nlaformer.report.figure import CURVES, curve, panels, reference, tidy
from paper import plan
from paper.curves import counted, errors, listed, overtaken, positive, short, with_error
from paper.results import Record, Results, restored

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

FILE = "bundled-fresh"
RUNS = tuple(name for name in plan.runs() if name.startswith("bundled-"))
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
        """Curves over the iterates: mean, standard_error (of the mean), median, upper (90% quantile), largest.

        Of models also deviation, the mean of ||x^_t - x_t||^2 / ||x||^2, with the iterates x_t of their teacher.
        """
        entry = (self.document["methods"] | self.document["models"])[method]
        return restored(entry["sigma"][str(sigma)])


def fresh(results: Results) -> Fresh:
    """What was measured."""
    return Fresh(results.document(FILE))


# --- measuring ---


def measure(results: Results, small: bool) -> None:
    """Solve the fresh systems with every bundled model, with CG and with PCG; some minutes on two cores."""
    count = _SMALL_COUNT if small else _COUNT
    solvers = {name: load_solver(pretrained.HOME / name) for name in pretrained.names()}
    methods: dict[str, Any] = {name: {"sigma": {}} for name in plan.TEACHERS}
    models: dict[str, Any] = {
        name: {"config": solver.config.to_json(), "weights": fingerprint(pretrained.HOME / name), "sigma": {}}
        for name, solver in solvers.items()
    }
    for sigma in plan.SIGMAS:
        A, b, x = SPD(n=20, sigma=(sigma,)).sample(count, _SEED)
        taught = {teacher: trajectory(teacher, A, b, 20).x for teacher in plan.TEACHERS}
        for teacher, iterates in taught.items():
            methods[teacher]["sigma"][str(sigma)] = _curves(squared_relative_errors(iterates, x))
        for name, solver in solvers.items():
            iterates = solver.iterates(A, b)
            deviation = squared_deviations(iterates, taught[solver.config.teacher], x).mean(0).tolist()
            row = _curves(squared_relative_errors(iterates, x)) | {"deviation": deviation}
            models[name]["sigma"][str(sigma)] = row
    about = {"command": "python -m paper run table-bundled", "count": count, "seed": _SEED, "sigma": plan.SIGMAS}
    results.write(FILE, about | {"methods": methods, "models": models})


def _curves(errors: Tensor) -> dict[str, list[float]]:
    """Statistics over the systems, at every iterate."""
    return {
        "mean": errors.mean(0).tolist(),
        "standard_error": (errors.std(0, correction=0) / len(errors) ** 0.5).tolist(),
        "median": errors.quantile(0.5, 0).tolist(),
        "upper": errors.quantile(0.9, 0).tolist(),
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
        errors(axes, lowest=1e-9)
        tidy(axes, f"sigma {sigma:g}", "iteration t", "squared relative error" if axes is every[0] else "")
    every[0].legend(frameon=False, fontsize=7, loc="upper right")
    title = f"The bundled models on {measured.count:,} fresh systems each: means; median to 90% quantile shaded"
    figure.suptitle(title, fontsize=10)
    return figure


def tables(results: Results) -> list[Sheet]:
    """How fast, how far, how near to the teacher, whether the runs agree, and all runs on the way."""
    measured = fresh(results)
    return [
        _iterations(measured),
        _last_iterate(measured),
        _distance(measured),
        _agreement(measured, results),
        _training(results),
    ]


def _iterations(measured: Fresh) -> Sheet:
    methods = {teacher: teacher.upper() for teacher in plan.TEACHERS} | {name: name for name in measured.configs}
    lines = tuple(
        (label, f"{sigma:g}", *(counted(measured.at(method, sigma)[kind], bounds=THRESHOLDS) for kind in _KINDS))
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
        record, last = results.run(plan.BUNDLED[name]), config.T
        steps = plan.thousands(config.steps) + (" more" if config.start else "")
        for sigma in plan.SIGMAS:
            filed, new = record.at(sigma), measured.at(name, sigma)
            lines.append(
                (name, steps, f"{sigma:g}", with_error(filed["model"][last], filed["standard_error"][last]),
                 with_error(new["mean"][last], new["standard_error"][last]),
                 *(f"{apart(measured, name, record, sigma, t):.1f}" for t in (last, 2)))
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
    """Bundle every model whose run is finished and whose weights are in the folder of the runs."""
    found, measured = {}, fresh(results) if results.has(FILE) else None
    for name, run in plan.BUNDLED.items():
        weights = folder / plan.WEIGHTS / run
        if results.has_run(run) and results.run(run).document["state"] == "finished" and weights.exists():
            if load_solver(weights).config != results.run(run).config:
                raise FileError(f"{weights} was trained with another config than the results of {run}")
            if fingerprint(weights) != results.run(run).document["weights"]:
                raise FileError(f"the numbers of {run} are of other weights than those in {weights}")
            # The card is made before anything is replaced: missing numbers then leave the bundled model as it is.
            found[home / name] = weights, card(name, results.run(run), measured)
    if not found:
        raise FileError(
            f"no finished run of {listed(list(plan.BUNDLED.values()))} has its weights in {folder / plan.WEIGHTS}"
        )
    for place, (weights, text) in found.items():
        copy(weights, place)
        replace_file(place / "README.md", text.encode())
    return list(found)


def card(name: str, record: Record, measured: Fresh | None = None) -> str:
    """A model's card: what it is, how it was trained, how accurate it is (also on fresh systems), where it fails."""
    config = record.config
    further = f"Made by the recipe `{name}` (docs/learn.md) and trained further with the settings below."
    return "\n\n".join(
        [
            f"# {name}",
            f"{description(name) if config.start is None else further} Systems of {config.n} unknowns, "
            f'T = {config.T} iterates. `nf.load("{name}").iterates(A, b)` gives x_0, ..., x_{config.T}.',
            f"## Training\n\n{_how_trained(record)}",
            f"## Accuracy\n\n{to_markdown(_accuracy(record))}\n\n{to_markdown(_spread(record))}",
            f"## Where it fails\n\n{_limits(record)}{_tail(name, record, measured)}\n\n"
            f"{to_markdown(_elsewhere(record))}",
            f"Written by `python -m paper promote` from `paper/results/runs/{record.name}.json`.\n",
        ]
    )


def _how_trained(record: Record) -> str:
    """The trainings that led to the model, and the last of them."""
    config, trained = record.config, record.document["trained"]
    machine = in_words(record.document["provenance"])
    before = ""
    if config.start is not None:
        runs = [f"{run.config.steps:,} steps (`{run.name}`)" for run in plan.lineage(record.name)]
        before = (
            f"Trained in {len(runs)} runs, {listed(runs)}; paper/results/runs has their numbers and configs. The last: "
        )
    weights = {"step+solution": f" with lambda {config.lambda_:g}", "joint": f" with eta {config.eta:g}"}
    return (
        f"{before}{config.steps:,} steps of {config.batch} fresh systems of the paper's family, sigma "
        f"{listed([f'{sigma:g}' for sigma in config.sigma])} in equal parts; supervision {config.supervision}"
        f"{weights.get(config.supervision, '')}, teacher {config.teacher.upper()}, power {config.power:g}, Adam with a "
        f"peak learning rate of {config.lr:g}, seed {config.seed}. {record.document['seconds']:.0f} s in a stack of "
        f"{len(record.document['stack'])} on {trained['device']} in {trained['arithmetic']} ({machine}). The whole "
        "config is in config.json."
    )


def _accuracy(record: Record) -> Sheet:
    """The mean at every iterate, of the model, CG and PCG, at the paper's three sigmas."""
    rows = [record.at(sigma) for sigma in plan.SIGMAS]
    headings = ["t"]
    for sigma in plan.SIGMAS:
        headings += [f"sigma {sigma:g}: learned", "CG", "PCG"]
    lines = tuple(
        (str(t), *(short(row[method][t]) for row in rows for method in ("model", "cg", "pcg")))
        for t in range(len(rows[0]["model"]))
    )
    return Sheet(f"Squared relative error, mean of {rows[0]['count']} systems", tuple(headings), lines)


def _spread(record: Record) -> Sheet:
    """How the last iterate's error is spread over the systems, and the iterations to each threshold."""
    lines = tuple(
        (f"{sigma:g}", with_error(row["model"][-1], row["standard_error"][-1]), short(row["median"]["model"][-1]),
         short(row["upper"]["model"][-1]), *(counted(row[method]) for method in ("model", "cg", "pcg")))
        for sigma in plan.SIGMAS
        for row in [record.at(sigma)]
    )  # fmt: skip
    headings = ("sigma", "mean at T", "median", "90% quantile", "iterations to", "CG", "PCG")
    note = (
        "Iterations until the mean error is at most 1e-1, 1e-2, 1e-3, 1e-4; on other systems they may differ by one "
        "(paper/tables/table-bundled.md). +-: one standard error of the mean."
    )
    return Sheet("The last iterate and the iterations to get there", headings, lines, note)


def _limits(record: Record) -> str:
    """The floor, more loops, other systems."""
    own, T = record.own, record.config.T
    worst = sorted(_others(record), key=lambda pair: pair[1]["model"][-1], reverse=True)[:2]
    ends = listed([f"{short(row['model'][-1])} on *{label}*" for label, row in worst])
    return (
        f"It does not converge: over the sigmas of its training the mean squared error ends at "
        f"{short(own['model'][-1])}, that of CG at {short(own['cg'][-1])}. Looped {2 * T} times instead of {T}, it "
        f"ends at {short(own['loops'][-1])}. On systems unlike those of its training nothing is guaranteed: its last "
        f"error is {ends}."
    )


def _tail(name: str, record: Record, measured: Fresh | None) -> str:
    """What the fresh systems show, where they were solved with these weights."""
    if measured is None or measured.configs.get(name) != record.config:
        return ""
    rows = [measured.at(name, sigma) for sigma in plan.SIGMAS]
    median, mean, largest = (listed([short(row[kind][-1]) for row in rows]) for kind in ("median", "mean", "largest"))
    return (
        f" Its errors are heavy-tailed: over {measured.count:,} fresh systems at each of sigma "
        f"{listed([f'{sigma:g}' for sigma in plan.SIGMAS])} the last iterate has medians of {median}, means of {mean} "
        f"and worst cases of {largest}."
    )


def _elsewhere(record: Record) -> Sheet:
    lines = tuple(
        (label, *(f"{short(row['model'][t])} / {short(row['cg'][t])}" for t in (1, 2, len(row["model"]) - 1)))
        for label, row in _others(record)
    )
    return Sheet("Out of distribution: learned / CG", ("systems", "t = 1", "t = 2", f"t = {record.config.T}"), lines)


def _others(record: Record) -> list[tuple[str, dict[str, Any]]]:
    """The evaluations on systems unlike those of the training."""
    own = {record.document["own"], *(f"spd, sigma {sigma}" for sigma in record.config.sigma)}
    return [(label, row) for label, row in record.evaluations.items() if label not in own]
