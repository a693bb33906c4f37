"""The commands ``reproduce``, the tables and figures from numbers kept or from runs made here, and ``probe``."""

from __future__ import annotations

import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paper.artefact import Artefact, Made
    from paper.plan import Planned
    from paper.results import Results

What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="A table or figure; list: show them; all: every one; next: the most valuable runs still missing; "
        "promote: bundle the weights of finished runs.",
    ),
]
FromResults = Annotated[bool, typer.Option("--from-results", help="Train nothing: draw from the numbers kept.")]
Minutes = Annotated[
    float | None, typer.Option(help="Stop before so many minutes have passed; the same command goes on.")
]
Small = Annotated[bool, typer.Option("--small", help="Tiny models, minutes on a CPU: does it work?")]
Runs = Annotated[Path | None, typer.Option(help="Where checkpoints go; default runs/study.")]
ResultsFolder = Annotated[Path | None, typer.Option("--results", help="Where numbers are kept; default results.")]
Docs = Annotated[Path | None, typer.Option(help="Where claims.md and figures/ go; default docs.")]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Shorter runs, kept beside the full ones under names of their own.")
]
Precision = Annotated[
    str | None, typer.Option(help="Arithmetic on CUDA instead of the plan's: float32, bf16x3, tf32, bf16.")
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: cuda where there is one.")]
Commit = Annotated[str | None, typer.Option(help="The commit that is run, where the files have no history with them.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document: with list, or with --from-results what was found.")
]

say = partial(print, flush=True)


def reproduce(
    what: What,
    from_results: FromResults = False,
    minutes: Minutes = None,
    small: Small = False,
    runs: Runs = None,
    results: ResultsFolder = None,
    docs: Docs = None,
    steps: Steps = None,
    precision: Precision = None,
    device: Device = None,
    commit: Commit = None,
    as_json: Json = False,
) -> None:
    """The paper's tables and figures, made anew.

    Train what is missing, or draw from the numbers kept (--from-results). Runs that were interrupted go on where they
    stopped. docs/claims.md says what of the paper's claims holds; the exit status of a single table or figure is 1
    where one of the paper's claims differs.
    """
    from nlaformer.errors import FileError, OptionError
    from nlaformer.learn.recipes import recipe
    from paper import plan
    from paper.catalogue import ARTEFACTS, artefact
    from paper.results import Results
    from paper.running import missing

    if precision is not None:
        recipe("quickstart", precision=precision)  # refuses what is none
    if from_results and what in ("list", "next", "promote"):
        raise OptionError(f"--from-results goes with a table, a figure or all, not with {what}")
    if as_json and what != "list" and (not from_results or what in ("next", "promote")):
        raise OptionError("--json goes with list, and with --from-results")
    home = Path("runs/small") if small else Path()
    kept = Results(results or (home if small else Path("paper")) / "results", commit)
    folder = runs or (home / "runs" if small else Path(plan.HOME))

    def shaped(names: Iterable[str]) -> list[Planned]:
        """Runs as they are asked for; beside those still to be made, the runs they begin with."""
        found, asked = {}, list(names)
        for name in asked:
            run = plan.planned(name).of_length(steps).in_precision(precision)
            found[name] = plan.small(run) if small else run.within(folder)
            if found[name].begins_with is not None and missing([found[name]], kept):
                asked.append(str(plan.planned(name).begins_with))
        return list(found.values())

    if small and not as_json:
        say("Tiny models, hardly trained: this shows that it works, and nothing else.")
    if what == "list":
        _list(kept, as_json)
    elif what == "next":
        if not missing(wanted := shaped(plan.runs()), kept):
            say(f"All {len(wanted)} runs of the plan are in {kept.folder}; nothing is left to be trained.")
        _make(wanted, folder, kept, minutes, device)
    elif what == "promote":
        if small:
            raise OptionError("tiny models are not worth bundling: promote goes without --small")
        _promote(folder, kept)
    else:
        chosen = ARTEFACTS if what == "all" else (artefact(what),)
        if from_results and not any(kept.folder.rglob("*.json")):
            raise FileError(f"there are no numbers in {kept.folder}; run this in the checkout, or give --results")
        training = {"--steps": steps, "--precision": precision, "--device": device, "--minutes": minutes}
        if from_results and (given := [name for name, value in training.items() if value is not None]):
            raise OptionError(f"{given[0]} is about training, and --from-results trains nothing")
        if not from_results:
            _measure(chosen, kept, small)
            names = dict.fromkeys(name for entry in chosen for name in entry.runs)
            _make(shaped(names), folder, kept, minutes, device, estimate=True)
        differing = _show(chosen, kept, docs or home / "docs", as_json)
        if differing and what != "all" and not small:  # all of them together answer no single question
            if not as_json:
                say("A claim of the paper differs: exit status 1.")
            raise typer.Exit(1)


def probe(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Folders or names of trained models.")],
    count: Annotated[int, typer.Option(help="Systems to fit the probes to; half as many test them.", min=64)] = 2048,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """What a linear probe reads in the states of trained models.

    CG's vectors, those of other methods, and controls.
    """
    from nlaformer.console import print_json, print_sheets
    from nlaformer.learn.model import load_solver
    from paper import controls
    from paper.probing import Sizes
    from paper.results import rounded

    short = [Path(name).name for name in models]
    names = short if len(set(short)) == len(set(models)) else models  # a/run and b/run are two models
    solvers = {name: load_solver(model) for name, model in zip(names, models, strict=True)}
    found = controls.document(solvers, Sizes(count, count // 4, count // 2))
    if as_json:
        print_json(rounded(found))
    else:
        print_sheets(controls.tables(found))


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.command()(reproduce)
    app.command()(probe)


def _make(
    wanted: list[Planned],
    folder: Path,
    kept: Results,
    minutes: float | None,
    device: str | None,
    estimate: bool = False,
) -> None:
    """Train what is missing; ahead of it, where asked for, how long that will take."""
    import time

    from nlaformer.learn.progress import duration
    from nlaformer.learn.trainer import seconds_of
    from paper import plan, running

    seconds, begun = seconds_of(minutes), time.monotonic()
    due, speeds = running.missing(wanted, kept), running.Speeds(device)
    if due and estimate:
        say(f"{len(due)} of {len(wanted)} runs are still to be made; timing a few steps of each stack.")
        total = 0.0
        for stack in plan.stacks(due):
            total += (spent := speeds.seconds(stack))
            say(f"  {len(stack)} x {stack[0].name} ...: {duration(spent)}")
        say(f"On this machine: about {duration(total)}.")
    running.carry_out(wanted, folder, kept, begun + seconds, speeds, say)


def _measure(chosen: tuple[Artefact, ...], kept: Results, small: bool) -> None:
    """Let artefacts without training runs make the files they need."""
    for entry in chosen:
        if entry.measure is not None and any(kept.file(name) is None for name in entry.files):
            say(f"{entry.name}: measuring")
            entry.measure(kept, small)


def _show(chosen: tuple[Artefact, ...], kept: Results, docs: Path, as_json: bool) -> bool:
    """Draw figures, print tables and verdicts, write the page of claims anew; whether a claim of the paper differs."""
    from nlaformer import pretrained
    from nlaformer.console import print_json
    from nlaformer.io import make_folder, replace_file
    from paper import claims
    from paper.bundling import write_cards

    make_folder(docs / "figures")
    shown = []
    for entry in chosen:
        with kept.reading(entry.name):
            shown.append(_made(entry, kept, docs / "figures"))
            if not as_json:
                _show_one(entry, kept, shown[-1])
    if as_json:
        print_json([_as_json(one) for one in shown])
    replace_file(docs / "claims.md", claims.page(kept).encode())
    if kept.folder.resolve() == pretrained.HOME.parents[1] / "paper" / "results":  # the checkout this package runs from
        with kept.reading("the cards of the bundled models"):
            write_cards(kept)
    if not as_json:
        say(f"The claims are in {docs / 'claims.md'}.")
    return any(verdict.judgement == "differs" and not verdict.ours for one in shown for verdict in one.verdicts)


def _made(entry: Artefact, kept: Results, figures: Path) -> Made:
    """Draw a figure, and put its tables and verdicts together."""
    from nlaformer.report.figure import save
    from paper.artefact import Made, picture_files

    pictures = []
    if entry.draw is not None and entry.drawable(kept) and (figure := entry.draw(kept)) is not None:
        pictures = [save(figure, path) for path in picture_files(entry, figures)]
    return Made(
        entry.name,
        list(map(str, pictures)),
        entry.missing(kept),
        entry.sheets(kept) if entry.sheets is not None else [],
        entry.verdicts(kept) if entry.verdicts is not None else [],
    )


def _as_json(made: Made) -> dict[str, Any]:
    """The same for a program."""
    from dataclasses import asdict

    verdicts = [asdict(verdict) | {"ours": verdict.ours} for verdict in made.verdicts]
    return asdict(made) | {"verdicts": verdicts}


def _show_one(entry: Artefact, kept: Results, made: Made) -> None:
    """Say where a figure is and what is missing of it, print its tables and verdicts."""
    from nlaformer.console import console, print_sheets

    told = ", ".join(filter(None, (*made.figures[:1], entry.still_missing(kept))))
    say(f"{entry.name}, {entry.title}: {told}".rstrip(": "))
    print_sheets(made.tables)
    for verdict in made.verdicts:
        sentence = f"{verdict.judgement}: {verdict.claim} {verdict.found}"
        say(textwrap.fill(sentence, console().width, initial_indent="  ", subsequent_indent="    "))


def _list(kept: Results, as_json: bool) -> None:
    """The tables and figures, and what of each is there."""
    from nlaformer.console import Sheet, print_json, print_sheets
    from paper import plan, running
    from paper.catalogue import ARTEFACTS

    rows: list[dict[str, Any]] = []
    for entry in ARTEFACTS:
        with kept.reading(entry.name):
            rows.append({"name": entry.name, "title": entry.title, "paper": entry.paper, "runs": len(entry.runs),
                         "missing": entry.missing(kept)})  # fmt: skip
    due = running.missing(plan.runs().values(), kept)
    if as_json:
        print_json({"artefacts": rows, "runs": len(plan.runs()), "missing": [run.name for run in due]})
        return
    lines = tuple(
        (
            row["name"],
            row["paper"],
            "all there" if not row["missing"] else f"{len(row['missing'])} to run",
            row["title"],
        )
        for row in rows
    )
    note = f"{len(plan.runs()) - len(due)} of the {len(plan.runs())} runs behind them are there, in full length."
    print_sheets([Sheet("Tables and figures", ("name", "in the paper", "numbers", "what"), lines, note, words=True)])


def _promote(folder: Path, kept: Results) -> None:
    """Bundle the weights of finished runs."""
    from paper.bundling import promote

    with kept.reading("promote"):
        for path in promote(folder, kept):
            say(f"{path}")
