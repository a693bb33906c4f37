"""The tables and figures, in a checkout: ``python -m paper COMMAND``; ``--help`` lists the commands.

Exit codes: 0 done, 1 numbers are missing, 2 a mistake, 130 interrupted.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nlaformer.console import Sheet, print_json, print_sheets, run_command
from nlaformer.errors import OptionError, UnknownNameError, did_you_mean, shown
from nlaformer.learn.models import load_solver
from nlaformer.learn.trainer import seconds_of
from paper import controls, hypotheses, ledger, plan
from paper.artefacts import ARTEFACTS, Artefact, artefact, draw
from paper.bundled import promote
from paper.results import FOLDER, HOME, Results, older, rounded
from paper.run import make, missing
from paper.shapes import WHAT, draw_diagram
from paper.verdicts import NOT_RUN, verdicts

_RUNS = Path("runs/paper")
say = partial(print, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = _parser().parse_args(arguments)
    try:
        return run_command("paper", lambda: _dispatch(given))
    except KeyboardInterrupt:
        return 130


def _dispatch(given: argparse.Namespace) -> int:
    if given.command == "probe":
        return _probe(given.models, given.count, given.json)
    if given.command == "diagram":
        out = given.out or Path(f"{given.what}.png")
        say(draw_diagram(given.what, given.model, given.operation, given.n, out))
        return 0
    if given.command == "ledger":
        ledger.write()
        return 0
    if given.command == "verdicts":
        found = verdicts(hypotheses.numbers(Results(planned=plan.config_of)))
        rows = tuple((name.upper(), verdict) for name, verdict in found.items())
        note = "The numbers behind them: paper/claims.md."
        print_sheets([Sheet("The hypotheses of protocol.md", ("", "verdict"), rows, note, words=True), _older()])
        return 1 if NOT_RUN in found.values() else 0
    if given.command == "promote":
        for card in promote(given.runs or _RUNS, Results(given.results or FOLDER, planned=plan.config_of)):
            say(f"{card.parent}: new weights. Revise {card} by hand.")
        return 0
    home = Path("runs/small") if given.small else HOME
    planned = partial(plan.config_of, tiny=given.small)
    results = Results(given.results or home / "results", getattr(given, "commit", None), planned)
    if given.results and (given.command != "run" or given.results.exists()) and not given.results.is_dir():
        raise OptionError(f"--results is {given.results}, and there is no folder of that name")
    if given.command == "list":
        return _list(results)
    if given.command == "draw":
        return _draw(given.name, results, given.out or results.folder.parent)
    folder = given.runs or (home / "runs" if given.small else _RUNS)
    return _run(given, folder, results)


def _older() -> Sheet:
    """Which results are older than code that they depend on."""
    lines = tuple(
        (f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0],
         "cannot be told without the history" if changed is None else f"{changed[0]} and {len(changed) - 1} more")
        for changed, names in older(Results()).items()
    )  # fmt: skip
    note = "Each file of results names its commit and its code; git diff COMMIT -- FILES shows what has changed."
    return Sheet("Results older than code that they depend on", ("results", "changed since"), lines, note, words=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paper", description="The paper's tables and figures.")
    commands = parser.add_subparsers(dest="command", required=True)
    common, small = (argparse.ArgumentParser(add_help=False) for _ in range(2))
    common.add_argument("--results", type=Path, help="folder of the numbers; default paper/results")
    small.add_argument("--small", action="store_true", help="tiny models in runs/small, minutes on a CPU")
    commands.add_parser("list", parents=[common, small], help="tables and figures, and which numbers are there")
    running = commands.add_parser("run", parents=[common, small], help="train and measure what is missing")
    running.add_argument(
        "names",
        nargs="+",
        help="tables, figures or training runs; next: training runs by rank; confirmatory-a, ... -i, -p: groups; all",
    )
    running.add_argument("--only", default="", help="beginnings of names of training runs, separated by commas")
    running.add_argument("--minutes", type=float, help="stop training before this many; the same command resumes")
    running.add_argument(
        "--stack",
        type=int,
        default=plan.STACK,
        help="runs that train together, at most; a stack that was interrupted resumes as it was",
    )
    running.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    running.add_argument("--commit", help="the commit of the files, where they come without their history")
    drawing = commands.add_parser("draw", parents=[common, small], help="figures and tables from the numbers")
    drawing.add_argument("name", help="a table or a figure; all")
    drawing.add_argument("--out", type=Path, help="folder of figures/ and tables/; default that of the results, paper")
    promoting = commands.add_parser("promote", parents=[common], help="bundle the weights of finished runs")
    for command in (running, promoting):
        command.add_argument("--runs", type=Path, help="folder of checkpoints and weights; default runs/paper")
    commands.add_parser("ledger", help="count the confirmatory runs that are filed, in paper/ledger.md")
    commands.add_parser("verdicts", help="what the rules of protocol.md say of the confirmatory runs that are filed")
    probing = commands.add_parser("probe", help="what a linear probe reads in the states of trained models")
    probing.add_argument("models", nargs="+", help="folders or names of trained models")
    probing.add_argument("--count", type=int, default=2048, help="systems to fit the probes to; half as many test them")
    probing.add_argument("--json", action="store_true", help="print one JSON document")
    picturing = commands.add_parser("diagram", help="a layer, a model's blocks or probes, CG's convergence: a picture")
    picturing.add_argument("what", choices=WHAT)
    picturing.add_argument("model", nargs="?", help="folder or name of a model; default: cg-imitation before training")
    picturing.add_argument("--operation", default="matrix_transpose", help="whose first layer is drawn")
    picturing.add_argument("--n", type=int, default=20, help="size of the operation or of CG")
    picturing.add_argument("--out", type=Path, help="the PNG or SVG file to write")
    return parser


def _list(results: Results) -> int:
    gone = [len(entry.missing(results)) for entry in ARTEFACTS]
    lines = tuple(
        (entry.name, entry.paper, f"{count} missing" if count else "all there", entry.title)
        for entry, count in zip(ARTEFACTS, gone, strict=True)
    )
    known = {"training runs": plan.exploratory(), "runs of protocol.md": plan.confirmatory()}
    there = (f"{len(r) - len(missing(r.values(), results))} of the {len(r)} {name}" for name, r in known.items())
    note = f"{' and '.join(there)} are there."
    print_sheets([Sheet("Tables and figures", ("name", "in the paper", "numbers", "what"), lines, note, words=True)])
    return 0


def _run(given: argparse.Namespace, folder: Path, results: Results) -> int:
    deadline = time.monotonic() + seconds_of(given.minutes)
    _check(given, results)
    asked = [_asked(name) for name in given.names]
    names = _chosen(given, [name for _, runs in asked for name in runs])
    for entry in (entry for chosen, _ in asked for entry in chosen):
        if entry.file and entry.measure and not results.has(entry.file):
            say(f"{entry.name}: measuring")
            command = {"command": f"python -m paper run {entry.name}"}
            results.write(entry.file, command | entry.measure(given.small))
    if given.small:  # tiny models start from random weights
        wanted = [plan.small(plan.planned(name)) for name in names]
    else:
        wanted = list(dict.fromkeys(run for name in names for run in plan.lineage(name)))
    left = make(wanted, folder, results, deadline, given.device, say, given.stack)
    if not left:
        only = f", only {given.only}" if given.only else ""
        say(f"Nothing is missing of {', '.join(given.names)}{only}.")
    return 1 if left else 0


def _check(given: argparse.Namespace, results: Results) -> None:
    """Refuse options of ``run`` that cannot be meant."""
    if given.stack < 1:
        raise OptionError(f"--stack is {given.stack}; expected a whole number from 1 on")
    if given.commit is not None and not re.fullmatch("[0-9a-f]{7,40}", given.commit):
        raise OptionError(f"--commit is {shown(given.commit)}; expected 7 to 40 digits of a commit, as git prints them")
    if given.small and results.folder.resolve() == FOLDER.resolve():
        raise OptionError(f"--small: tiny models are not filed in {results.folder}; omit --results, or give another")


def _chosen(given: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """The runs asked for, each once; of these the ones that --only names."""
    beginnings = tuple(part.strip() for part in given.only.split(",") if part.strip())
    found = [name for name in dict.fromkeys(names) if not given.only or name.startswith(beginnings)]
    if given.only and not found:
        raise OptionError(f"--only {given.only}: no training run of {', '.join(given.names)} begins so")
    return found


def _asked(name: str) -> tuple[Sequence[Artefact], list[str]]:
    """The artefacts to measure and the runs to train, by the name given to ``run``."""
    groups = {"next": list(plan.exploratory())}
    for run in plan.confirmatory().values():
        groups.setdefault(f"confirmatory-{run.group}", []).append(run.name)
        groups[run.name] = [run.name]
    groups |= {run: [run] for run in plan.exploratory()}
    if name in groups:
        return (), groups[name]
    known = [*groups, *(entry.name for entry in ARTEFACTS), "all"]
    if name not in known:
        raise UnknownNameError(
            f"there is no table, figure, training run or group named {shown(name)}; {did_you_mean(name, known)}"
            "python -m paper list names the tables and figures, python -m paper run --help the groups"
        )
    chosen = ARTEFACTS if name == "all" else (artefact(name),)
    return chosen, [run for entry in chosen for run in entry.runs]


def _draw(name: str, results: Results, out: Path) -> int:
    incomplete = False
    for entry in ARTEFACTS if name == "all" else (artefact(name),):
        if gone := entry.missing(results):
            say(f"{entry.name}: {len(gone)} missing, {', '.join(gone[:3])}{' ...' if len(gone) > 3 else ''}")
            incomplete = True
            continue
        for path in draw(entry, results, out):
            say(path)
    return 1 if incomplete else 0


def _probe(models: list[str], count: int, as_json: bool) -> int:
    if count < 64:
        raise OptionError(f"--count is {count}; a probe needs at least 64 systems")
    short = [Path(name).name for name in models]
    names = short if len(set(short)) == len(set(models)) else models  # a/run and b/run are two models
    solvers = {name: load_solver(model) for name, model in zip(names, models, strict=True)}
    found = controls.document(solvers, controls.Sizes(count, count // 4, count // 2))
    if as_json:
        print_json(rounded(found))
    else:
        print_sheets(controls.sheets(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
