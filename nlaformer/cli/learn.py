"""The commands ``train``, ``sweep`` and ``evaluate``; torch is imported when one of them runs."""

from __future__ import annotations

import inspect
import itertools
import math
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from nlaformer.cli.options import Json
from nlaformer.console import Sheet, print_json, print_sheets
from nlaformer.errors import FileError, OptionError

if TYPE_CHECKING:
    from nlaformer.learn.compare import Comparison
    from nlaformer.learn.config import Config
    from nlaformer.learn.evaluate import Evaluation
    from nlaformer.learn.model import Solver
    from nlaformer.learn.models import Model
    from nlaformer.learn.training_run import TrainingRun

_COUNT, _SEED = 512, 7_000_000  # the defaults of learn.evaluate, which loads torch


class WithKeys(TyperCommand):
    """A command whose help ends with the keys of ``--set``: the fields of ``Config`` and their meaning in short."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Keys of --set and --vary"):
            formatter.write_dl(list(keys().items()))


def keys() -> dict[str, str]:
    """The fields of ``Config`` that a command may set: the choices, and the first clause of the description."""
    from nlaformer.learn.config import Config

    found = {}
    entry = re.compile(r"^(\w+) : (.*)\n((?: {4}.*\n)+)", flags=re.MULTILINE)
    for name, kind, text in entry.findall(inspect.getdoc(Config) or ""):
        choices = ", ".join(re.findall(r'"([^"]+)"', kind))
        short = re.split(r";|\.(?= |$)", " ".join(text.split()))[0] + "."
        found[name.removesuffix("_")] = f"{choices}. {short}" if choices else short
    del found["recipe"]
    return found


Name = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe: quickstart, cg-imitation, cg-joint, ...")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the recipe; repeatable. The keys are below."),
]
Out = Annotated[str | None, typer.Option(help="Folder of the run; default runs/RECIPE. A run found there is resumed.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: cuda where there is one.")]
CheckpointEvery = Annotated[
    int | None, typer.Option(help="Steps between checkpoints; default: a twentieth of the run.")
]
LogEvery = Annotated[int | None, typer.Option(help="Steps between lines of metrics.jsonl.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard's event files.")]


def train(
    recipe: Name,
    settings: Settings = None,
    out: Out = None,
    device: Device = None,
    checkpoint_every: CheckpointEvery = None,
    log_every: LogEvery = None,
    tensorboard: TensorBoard = False,
    as_json: Json = False,
) -> None:
    """Train a model and evaluate it. The same command again resumes.

    Under torchrun, the processes share every batch.
    """
    from nlaformer.learn import trainer
    from nlaformer.learn.recipes import recipe as named

    run = trainer.train(
        named(recipe).set(settings or []),
        Path("runs") / recipe if out is None else out,
        device=device,
        checkpoint_every=checkpoint_every,
        log_every=log_every,
        tensorboard=tensorboard,
    )
    if _speaks():
        _show_evaluation(run.model, _COUNT, _SEED, as_json, {"folder": str(run.folder), "diverged": run.diverged})
        if not as_json:
            print(f"The model is in {run.folder}. Next: nlaformer evaluate {run.folder}")
            print(f'In Python: nf.load("{run.folder}").iterates(A, b)')
    if run.diverged:
        raise typer.Exit(1)


def sweep(
    recipe: Name,
    vary: Annotated[
        list[str], typer.Option("--vary", metavar="KEY=A,B,...", help="A field and its values; repeatable.")
    ],
    settings: Settings = None,
    out: Out = None,
    device: Device = None,
    checkpoint_every: CheckpointEvery = None,
    log_every: LogEvery = None,
    tensorboard: TensorBoard = False,
    as_json: Json = False,
) -> None:
    """Train every combination of the varied fields.

    Configs of one shape train together, as one program. A mixture of sigmas is one value: --vary
    sigma=1.0,1.0+1.2+1.4 makes two. Under torchrun, the processes share the members.
    """
    from nlaformer.learn import trainer
    from nlaformer.learn.recipes import recipe as named

    options = trainer.RunOptions(
        device=device, checkpoint_every=checkpoint_every, log_every=log_every, tensorboard=tensorboard
    )
    configs = _grid(named(recipe), settings or [], vary)
    folder = Path("runs") / f"{recipe}-sweep" if out is None else out
    runs = trainer.sweep(configs, folder, options)
    if _speaks():
        _show_sweep(runs, as_json)
    if any(run.diverged for run in runs):
        raise typer.Exit(1)


def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The folder of a run, such as runs/quickstart, or a bundled model.")
    ],
    count: Annotated[int, typer.Option(help="Systems per evaluation.", min=1)] = _COUNT,
    seed: Annotated[int, typer.Option(help="Seed of the evaluation systems.", min=0)] = _SEED,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the errors on systems like those of the training to this .svg or .png.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Squared relative error of each iterate beside CG and PCG.

    On systems like those of the training, and on others. For a program with learned parts, also the iterations to each
    error, per sigma, up to four times as many as in training.
    """
    from nlaformer.learn.checkpoint import MANIFEST, model_step, read_manifest
    from nlaformer.learn.models import load_model
    from nlaformer.solvers.files import check_output

    if plot is not None:
        check_output(plot, (".svg", ".png"))
    _must_exist(model)
    solver = load_model(model)
    step, steps = model_step(model), solver.config.steps
    if step is not None and step < steps and not as_json:
        lost = (Path(model) / MANIFEST).exists() and read_manifest(Path(model))["state"] == "diverged"
        print(f"This run {'diverged' if lost else 'is not finished'}: the model is that of step {step} of {steps}.\n")
    _show_evaluation(solver, count, seed, as_json, {"model": model, "step": step, "steps": steps}, plot)


def _must_exist(model: str) -> None:
    """Refuse a name that is neither a folder nor a bundled model; a recipe that was not trained gets a hint."""
    from nlaformer import pretrained
    from nlaformer.learn.recipes import recipes

    if Path(model).exists() or model in pretrained.names():
        return
    usual = Path("runs") / model
    if usual.exists():
        raise FileError(f"there is no folder {model!r}; did you mean {usual}?")
    if model in recipes():
        raise FileError(f"there is no folder {model!r}; train it first: nlaformer train {model}, which makes {usual}")
    raise pretrained.missing(model)


def _grid(config: Config, settings: list[str], vary: list[str]) -> list[Config]:
    """Every combination of the varied fields, with the settings that all of them share."""
    axes: list[list[str]] = []
    for entry in vary:
        key, separator, values = entry.partition("=")
        if not separator or not values:
            raise OptionError(f"--vary takes key=value,value,..., given {entry!r}")
        axes.append([f"{key}={value}" for value in values.split(",")])
    return [config.set([*settings, *varied]) for varied in itertools.product(*axes)]


def _speaks() -> bool:
    """Whether this process prints: under torchrun, the first one does."""
    return os.environ.get("RANK", "0") == "0"


def _show_evaluation(
    model: Model, count: int, seed: int, as_json: bool, about: dict[str, Any], plot: Path | None = None
) -> None:
    from nlaformer.learn.compare import evaluate_program
    from nlaformer.learn.model import Solver
    from nlaformer.learn.progress import stages
    from nlaformer.report.figure import save

    rows: list[Any]
    if isinstance(model, Solver):
        rows = _measured(model, count, seed, shown=not as_json)
        sheets = [_other_sheet(rows[1:])]
    else:
        with stages() as say:
            rows = list(evaluate_program(model, count, seed, lambda label: say(f"Solving {count} systems: {label}")))
        sheets = _comparison_sheets(rows)
    if plot is not None:
        own = rows[0].plot(model.config.teacher) if isinstance(model, Solver) else rows[0].plot()
        about["plot"] = str(save(own, plot))
    if as_json:
        print_json(about | {"evaluations": [row.to_json() for row in rows]})
    else:
        print_sheets(sheets)
        if plot is not None:
            print(f"Drawn: {plot}")


def _measured(solver: Solver, count: int, seed: int, shown: bool) -> list[Evaluation]:
    """The evaluations of a solver; those on its own family are printed at once, since the others take a while."""
    from nlaformer.arrays import threads_for
    from nlaformer.learn.evaluate import measure, sets
    from nlaformer.learn.progress import stages

    rows: list[Evaluation] = []
    for label, systems in sets(solver.config, count, seed):
        with stages() as say, threads_for(solver.entries(count)):  # closed before printing: a terminal shows one thing
            say(f"Solving {count} systems: {label}")
            rows.append(measure(solver, label, systems))
        if len(rows) == 1 and shown:
            print_sheets(_own_sheets(rows[0], solver.config.teacher))
            sys.stdout.flush()
    return rows


def _comparison_sheets(rows: list[Comparison]) -> list[Sheet]:
    """Errors by iterate and iterations to each threshold on the first systems, then the iterations on all others."""
    from nlaformer.learn.compare import BEYOND, FAILED, summary
    from nlaformer.learn.evaluate import THRESHOLDS

    own, T = rows[0], rows[0].T
    iterates = [t for t in range(len(own.mean["learned"])) if t <= T or t in (2 * T, 4 * T)]
    errors = tuple((str(t), *(f"{curve[t]:.2g}" for curve in own.mean.values())) for t in iterates)
    bounds = ("1e-1", *(f"1e-{k}" for k in range(2, len(THRESHOLDS) + 1, 2)))
    places = (0, *range(1, len(THRESHOLDS), 2))

    def reached(row: Comparison, of: str, name: str) -> tuple[str, ...]:
        found = row.iterations_to(of)[name]
        return tuple("-" if found[k] is None else str(found[k]) for k in places)

    counts = [(f"{name}, {of}", *reached(own, of, name)) for of in ("mean", "median") for name in own.mean]
    elsewhere = [
        (f"{row.label}, {name}", *reached(row, "mean", name), str(row.failures[name]))
        for row in rows[1:]
        for name in ("learned", row.rival)
    ]
    title = f"{own.measure.capitalize()}, mean of {own.count} systems ({own.label}); trained for T = {T}"
    failed = ", ".join(f"{name} {number}" for name, number in own.failures.items())
    failures = f"Above {FAILED:.0e} after {BEYOND * T} iterations, of {own.count} systems: {failed}."
    sheets = [
        Sheet(title, ("t", *own.mean), errors, summary(own)),
        Sheet(f"Iterations to a {own.measure} of ({own.label})", ("", *bounds), tuple(counts), failures),
    ]
    others = [Sheet("Other systems, iterations to a mean of", ("systems", *bounds, "failures"), tuple(elsewhere))]
    return sheets + (others if elsewhere else [])


def _own_sheets(own: Evaluation, teacher: str) -> list[Sheet]:
    """Errors by iterate, and iterations to each threshold, on systems like those of the training."""
    from nlaformer.learn.evaluate import WITHIN_REACH, findings

    curves = {"learned": own.model, "CG": own.cg, "PCG": own.pcg}
    iterates = enumerate(zip(*curves.values(), strict=True))
    errors = tuple((str(t), *(f"{value:.2g}" for value in values)) for t, values in iterates)
    counts = zip(curves, own.iterations_to().values(), strict=True)
    reached = tuple((name, *("-" if t is None else str(t) for t in found)) for name, found in counts)
    discrepancy = f"Discrepancy of (r, d) from the teacher's, as the paper defines it: {own.discrepancy:.4g}."
    title = f"Squared relative error, mean of {own.count} systems ({own.label})"
    bounds = tuple(f"{bound:.0e}" for bound in WITHIN_REACH)
    return [
        Sheet(title, ("t", *curves), errors, findings(own, teacher)),
        Sheet("Iterations to a squared relative error of", ("", *bounds), reached, discrepancy),
    ]


def _other_sheet(others: list[Evaluation]) -> Sheet:
    """Errors out of distribution."""
    last = len(others[0].model) - 1
    shown = [t for t in (1, 3) if t < last] + [last]
    elsewhere = tuple((row.label, *(f"{row.model[t]:.2g} / {row.cg[t]:.2g}" for t in shown)) for row in others)
    return Sheet("Other systems: learned / CG", ("systems", *(f"t = {t}" for t in shown)), elsewhere)


def _show_sweep(runs: list[TrainingRun], as_json: bool) -> None:
    from nlaformer.learn.checkpoint import read_metrics
    from nlaformer.learn.evaluate import worse_than_zero

    nothing: dict[str, Any] = {"squared_relative_error": [None], "discrepancy": None}  # where the metrics were removed
    measured = [[line["validation"] for line in read_metrics(run.folder) if "validation" in line] for run in runs]
    ends = [lines[-1] if lines else nothing for lines in measured]
    if as_json:
        rows = [{"folder": str(r.folder), "diverged": r.diverged, **end} for r, end in zip(runs, ends, strict=True)]
        print_json({"runs": rows})
        return
    headings = ("member", "t = 1", "t = 2", "t = 4", "last", "(r, d) discrepancy", "")
    lines = []
    for run, end in zip(runs, ends, strict=True):
        errors = [math.nan if value is None else value for value in end["squared_relative_error"]]
        values = [*(errors[t] if t < len(errors) else math.nan for t in (1, 2, 4, -1)), end.get("discrepancy")]
        numbers = ("-" if value is None or math.isnan(value) else f"{value:.2g}" for value in values)
        known = end is not nothing
        remark = "diverged" if run.diverged else "worse than x = 0" if known and worse_than_zero(errors) else ""
        lines.append((run.folder.name, *numbers, remark))
    print_sheets([Sheet("Squared relative error at the end of training", headings, tuple(lines))])
