"""The figures of docs/tasks.md on the recipes that were trained, made from what ``benchmarks/outlook.py`` wrote.

Each stands under its own heading, below what is written by hand on the recipe.

python -m benchmarks.outlook_page
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nlaformer as nf
from benchmarks.command import read
from benchmarks.outlook import ASKED, COUNT, finding, table
from benchmarks.outlook_solve import SOLVERS
from benchmarks.sections import deliver
from nlaformer.learn.methods import METHODS, method
from nlaformer.program.ir import reachable
from nlaformer.provenance import in_words

BEHIND = "## Trained models behind the solvers"
ROOT = Path(__file__).parents[1]
# A model that no recipe of today trains: the program has changed since.
TRAINED_AT = {"guided-eigen": "556acfb"}
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "tasks.md"


def heading(name: str) -> str:
    """The heading of the figures of a file."""
    return f"### Measured: {name}"


def section(document: dict[str, Any], name: str) -> str:
    """The section: command, figure, table, what no mean shows, and other families; ``name`` is the file's."""
    config = _configs(document)[0]
    recipe, seeds = config["recipe"], ",".join(str(one["seed"]) for one in _configs(document))
    folder = f"runs/{name}"
    kept = [held for found in document["models"].values() for held in found["kept"].values()]
    at = TRAINED_AT.get(name)
    settings = "" if at else _settings(config)  # as that commit has it
    commands = (
        f"nlaformer sweep {recipe} --vary seed={seeds}{settings} --out {folder}{f'   # at commit {at}' if at else ''}\n"
        f"python -m benchmarks.outlook {folder}/*{_options(document)} --out benchmarks/results/{name}.json\n"
        f"python -m benchmarks.outlook --read benchmarks/results/{name}.json --figure docs/figures/{name}.svg"
    )
    if "added" in document:
        own = f"benchmarks/results/{name}.json"
        needs = (
            "   # with PyAMG installed" if any("multigrid" in rival for rival in document["added"]["rivals"]) else ""
        )
        commands += f"\npython -m benchmarks.outlook --read {own} --rivals --out {own}{needs}"
    parts = [
        heading(name),
        f"```\n{commands}\n```",
        f"![{finding(document)}](figures/{name}.svg)",
        f"{finding(document)}. {_lines(document)}: {sum(kept)} of {len(kept)} hold. Iterations until the mean of "
        f"{document['count']:,} problems that no training has seen is at most this:",
        table(document),
        f"{_beside(document)} {_medians(document)}",
        f"At T, and on families that it was not trained on, of {_elsewhere_count(document)} problems each:",
        _elsewhere(document),
        f"{_training(document)} {in_words(document['provenance'])}{_added(document)}",
    ]
    return "\n\n".join(parts) + "\n"


def _lines(document: Mapping[str, Any]) -> str:
    """What is asked of each model, which ``benchmarks.outlook`` judges line by line."""
    asked, rows = ASKED[_configs(document)[0]["program"]], _rows(document)
    share = {1 / 2: "half", 2 / 3: "two thirds"}[asked.share]
    errors = [f"1e-{k}" for k in range(asked.first, asked.last + 1)]
    each = f"to each of {', '.join(errors)}" if len(errors) > 1 else f"to {errors[0]}"
    count = len(errors) + 1
    return (
        f"{count} lines are asked of each of the {len(rows)} models, at most {share} of the iterations of "
        f"{list(rows[0]['mean'])[1]} {each}, and at 4T an error no larger than at T"
    )


def _added(document: Mapping[str, Any]) -> str:
    """Where rivals come from that were measured later, on the same problems."""
    if "added" not in document:
        return ""
    names = " and ".join(document["added"]["rivals"])
    return f". {names}, later, on the same problems: {in_words(document['added']['provenance'])}"


def _settings(config: Mapping[str, Any]) -> str:
    """What differs from the recipe as it is now."""
    default: dict[str, Any] = nf.recipe(config["recipe"]).to_json()
    changed = {key: config.get(key) for key in ("n", "T", "batch", "steps") if config.get(key) != default.get(key)}
    parameters = inspect.signature(METHODS[config["program"]]).parameters
    without = {key: parameters[key].default for key in parameters}
    given, usual = (without | (found.get("program_options") or {}) for found in (config, default))
    changed |= {f"program.{key}": given[key] for key in sorted(given) if given[key] != usual[key]}
    return "".join(f" --set {key}={json.dumps(value)}" for key, value in changed.items())


def _options(document: Mapping[str, Any]) -> str:
    """Options of the evaluation that are not the usual ones."""
    config, last = _configs(document)[0], len(_rows(document)[0]["mean"]["learned"]) - 1
    count = "" if document["count"] == COUNT else f" --count {document['count']}"
    return count + ("" if last >= ASKED[config["program"]].iterations else f" --iterations {last}")


def _configs(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [found["config"] for found in document["models"].values()]


def _rows(document: Mapping[str, Any], place: int = 0) -> list[dict[str, Any]]:
    """Of every model the figures of one family."""
    return [list(found["families"].values())[place] for found in document["models"].values()]


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0e}", f"{max(values):.0e}"
    return low if low == high else f"{low} to {high}"


def _beside(document: Mapping[str, Any]) -> str:
    """The share of every rival's iterations, over the errors that are asked for."""
    rows, asked = _rows(document), ASKED[_configs(document)[0]["program"]]
    found = []
    for rival in list(rows[0]["mean"])[1:]:
        pairs = [
            (row["iterations_to"]["mean"]["learned"][k], row["iterations_to"]["mean"][rival][k])
            for row in rows
            for k in range(asked.first - 1, asked.last)
        ]
        shares = [mine / theirs for mine, theirs in pairs if mine is not None and theirs is not None]
        if shares:
            found.append(f"{min(shares):.0%} to {max(shares):.0%} of {rival}")
    return f"Of the iterations, where both get there: {'; '.join(found)}."


def _medians(document: Mapping[str, Any]) -> str:
    """Medians beside means, and the error beyond the T of the training."""
    rows = _rows(document)
    T = rows[0]["T"]
    at = ", ".join(
        f"{_range([row['median']['learned'][t] for row in rows])} at t = {t}" for t in (T // 2, T, 2 * T, 4 * T)
    )
    means = [_range([row["mean"]["learned"][t] for row in rows]) for t in (T, 4 * T)]
    return f"T = {T} in training. Medians: {at}. The mean is {means[0]} at T and {means[1]} at 4T."


def _elsewhere_count(document: Mapping[str, Any]) -> int:
    return int(_rows(document, 1)[0]["count"])


def _elsewhere(document: Mapping[str, Any]) -> str:
    """The mean at T, the median there, and failures at the end, beside the rivals', in Markdown."""
    first = next(iter(document["models"].values()))["families"]
    rivals = list(next(iter(first.values()))["mean"])[1:]
    T = _rows(document)[0]["T"]
    last = len(_rows(document)[0]["mean"]["learned"]) - 1
    head = ["family", f"mean at T = {T}", "median", *rivals, f"failures at t = {last}", *(f"of {r}" for r in rivals)]
    lines = [head, [":--", *["---:"] * (len(head) - 1)]]
    for place, label in enumerate(first):
        rows = _rows(document, place)
        failures = sorted({row["failures"]["learned"] for row in rows})
        lines.append(
            [
                label,
                _range([row["mean"]["learned"][T] for row in rows]),
                _range([row["median"]["learned"][T] for row in rows]),
                *(f"{rows[0]['mean'][rival][T]:.0e}" for rival in rivals),
                str(failures[0]) if len(failures) == 1 else f"{failures[0]} to {failures[-1]}",
                *(str(rows[0]["failures"][rival]) for rival in rivals),
            ]
        )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _training(document: Mapping[str, Any]) -> str:
    trained = [found.get("training") for found in document["models"].values()]
    if not all(trained):
        return ""
    members = len(trained)
    seconds = max(one["seconds_in_all"] for one in trained if one)
    return f"Training: {seconds:.0f} s for {members} models together, beside other work, {trained[0]['device']}."


TRAINED = (
    "guided-gcr",
    "guided-nonlinear",
    "guided-cgls",
    "guided-eigen",
    "guided-diffusion",
    "guided-diffusion-16",
    "learned-preconditioner-diffusion",
    "learned-preconditioner-diffusion-16",
)


_RULES = (
    "`nf.solve`, `nf.solve_nonlinear` and `nf.eigenpair` with the trained models, on the families of the training and "
    "on those that they were not trained on. *Lost* is a problem that converges without the model and not with it, "
    "*wrong* one whose residual, computed again, is above the tolerance. *Work* is the median of products with A (of "
    "least squares with A and its transpose), or values of F, outside the model; it is no measure of time. *Calls* "
    "are those of the network, and *inside* the products with A that the model makes by itself, both at most: they "
    "follow from the work, since the solver judges every answer by a product. A model of `guided-cgls`, "
    "`guided-nonlinear` or `guided-eigen` runs its whole method before it answers, T loops, so that what it saves "
    "outside it may spend inside; a learned preconditioner is asked once, and the others only propose. `--count` and "
    "`--single`, for problems that are solved one by one, say how many problems there are. On `convection` the model "
    "alone fails on most problems: GMRES takes over."
)


def _inside(name: str, row: Mapping[str, Any], work: float) -> list[str]:
    """The most calls of the network, and products with A inside the model, of a problem with some work outside."""
    recipe = name.split(",")[0]
    config = _configs(read(RESULTS / f"{recipe}.json"))[0]
    solver, T = SOLVERS[config["program"]], config["T"]
    calls = row.get("calls of the model, median", solver.most_calls(work))
    if not solver.runs:
        return [f"{calls:g}", "0"]
    program = method(config["program"]).graph(4)
    start, step = (
        sum(node.op == "matmul" and node.ndim == 1 for node in reachable(part.values()))
        for part in (program.start, program.step)
    )
    return [f"{T * calls:g}", f"{calls * (start + T * step):g}"]


def behind(document: Mapping[str, Any]) -> str:
    """The section on the certified solvers, from what ``benchmarks/outlook_solve.py`` wrote."""
    heads = "model, family, problems, converged, without the model, lost, wrong, work, calls, inside, work without"
    lines = [heads.split(", ")]
    lines.append([":--", ":--", *["---:"] * 9])
    for model, rows in document["models"].items():
        for family, row in rows.items():
            ends, work = row["statuses"], row["products or values outside the model, median"]
            counts = [row["problems"], *(one.get("CONVERGED", 0) for one in ends.values()), row["lost"], row["wrong"]]
            guided, plain = (f"{value:g}" for value in work.values())
            inside = _inside(model, row, work["with the model"])
            lines.append([model, family, *map(str, counts), guided, *inside, plain])
    return (
        "\n\n".join(
            [
                BEHIND,
                "```\npython -m benchmarks.outlook_solve runs/guided-*/seed=* "
                "runs/learned-preconditioner-diffusion*/seed=* --out benchmarks/results/outlook_solve.json\n```",
                f"To a tolerance of {document['rtol']:g}. {_RULES}",
                "\n".join("| " + " | ".join(cells) + " |" for cells in lines),
                in_words(document["provenance"]),
            ]
        )
        + "\n"
    )


def main() -> None:
    """Put every section into its place."""
    for name in TRAINED:
        document = read(RESULTS / f"{name}.json")
        deliver(section(document, name), heading(name), PAGE)
    deliver(behind(read(RESULTS / "outlook_solve.json")), BEHIND, PAGE)


if __name__ == "__main__":
    main()
