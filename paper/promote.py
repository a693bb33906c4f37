"""Bundling a trained model: its weights into the package, and a card made from the numbers of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nlaformer import pretrained
from nlaformer.console import Sheet, to_markdown
from nlaformer.errors import FileError
from nlaformer.io import copy, fingerprint, replace_file
from nlaformer.learn.model import load_solver
from nlaformer.learn.recipes import description
from nlaformer.provenance import in_words
from paper import bundled
from paper.bundled import Fresh
from paper.curves import counted, listed, short, with_error
from paper.plan import BUNDLED, SIGMAS, WEIGHTS, lineage
from paper.results import Record, Results


def promote(folder: Path, results: Results, home: Path = pretrained.HOME) -> list[Path]:
    """Bundle every model whose run is finished and whose weights are in the folder of the runs."""
    found, measured = {}, bundled.fresh(results) if results.has(bundled.FILE) else None
    for name, run in BUNDLED.items():
        weights = folder / WEIGHTS / run
        if results.has_run(run) and results.run(run).document["state"] == "finished" and weights.exists():
            if load_solver(weights).config != results.run(run).config:
                raise FileError(f"{weights} was trained with another config than the results of {run}")
            if fingerprint(weights) != results.run(run).document["weights"]:
                raise FileError(f"the numbers of {run} are of other weights than those in {weights}")
            # The card is made before anything is replaced: missing numbers then leave the bundled model as it is.
            found[home / name] = weights, card(name, results.run(run), measured)
    if not found:
        raise FileError(f"no finished run of {listed(list(BUNDLED.values()))} has its weights in {folder / WEIGHTS}")
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
            f"## Training\n\n{_training(record)}",
            f"## Accuracy\n\n{to_markdown(_accuracy(record))}\n\n{to_markdown(_spread(record))}",
            f"## Where it fails\n\n{_limits(record)}{_tail(name, record, measured)}\n\n"
            f"{to_markdown(_elsewhere(record))}",
            f"Written by `python -m paper promote` from `paper/results/runs/{record.name}.json`.\n",
        ]
    )


def _training(record: Record) -> str:
    """The trainings that led to the model, and the last of them."""
    config, trained = record.config, record.document["trained"]
    machine = in_words(record.document["provenance"])
    before = ""
    if config.start is not None:
        runs = [f"{run.config.steps:,} steps (`{run.name}`)" for run in lineage(record.name)]
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
    rows = [record.at(sigma) for sigma in SIGMAS]
    headings = ["t"]
    for sigma in SIGMAS:
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
        for sigma in SIGMAS
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
    rows = [measured.at(name, sigma) for sigma in SIGMAS]
    median, mean, largest = (listed([short(row[kind][-1]) for row in rows]) for kind in ("median", "mean", "largest"))
    return (
        f" Its errors are heavy-tailed: over {measured.count:,} fresh systems at each of sigma "
        f"{listed([f'{sigma:g}' for sigma in SIGMAS])} the last iterate has medians of {median}, means of {mean} and "
        f"worst cases of {largest}."
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
