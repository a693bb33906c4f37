"""Bundling a trained model: its weights into the package, and a card made from the numbers of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nlaformer import pretrained
from nlaformer.console import Sheet, to_markdown
from nlaformer.errors import FileError
from nlaformer.io import copy, fingerprint, replace_file
from nlaformer.learn.model import load_solver
from nlaformer.learn.recipes import Config, description
from nlaformer.provenance import in_words
from paper import fresh
from paper.fresh import Fresh
from paper.plan import BUNDLED, SIGMAS, WEIGHTS, lineage
from paper.reading import at, counted, listed, short, with_error
from paper.results import Record, Results


def promote(folder: Path, results: Results, home: Path = pretrained.HOME) -> list[Path]:
    """Bundle every model whose run is finished and whose weights are in the folder of the runs."""
    found, measured = {}, fresh.read(results)
    for name, run in BUNDLED.items():
        record, weights = results.run(run), folder / WEIGHTS / run
        if record is not None and record.document["state"] == "finished" and weights.exists():
            _check(record, weights)
            # The card before anything is replaced: then it shows whether the numbers are all there.
            found[home / name] = weights, card(name, record, measured)
    if not found:
        raise FileError(f"no finished run of {listed(list(BUNDLED.values()))} has its weights in {folder / WEIGHTS}")
    for place, (weights, text) in found.items():
        copy(weights, place)
        replace_file(place / "README.md", text.encode())
    return list(found)


def _check(record: Record, weights: Path) -> None:
    """Refuse weights that are not those of the run's numbers."""
    if load_solver(weights).config != record.config:
        raise FileError(f"{weights} was trained with another config than results say of {record.name}")
    if fingerprint(weights) != record.document["weights"]:
        raise FileError(f"the numbers of {record.name} are of other weights than those in {weights}")


def write_cards(results: Results, home: Path = pretrained.HOME) -> None:
    """The cards of the bundled models, as the results are now."""
    measured = fresh.read(results)
    for name in (name for name in BUNDLED if (home / name / "config.json").exists()):
        record = results.of_config(f"bundled-{name}", load_solver(home / name).config)
        if record is not None:
            replace_file(home / name / "README.md", card(name, record, measured).encode())


def card(name: str, record: Record, measured: Fresh | None = None) -> str:
    """A model's card: what it is, how it was trained, how accurate it is (also on fresh systems), where it fails."""
    config = record.config
    failing = _limits(record) + _tail(name, record, measured)
    return "\n\n".join(
        [
            f"# {name}",
            f"{_purpose(name, config)} Systems of {config.n} unknowns, T = {config.T} iterates. "
            f'`nf.load("{name}").iterates(A, b)` gives x_0, ..., x_{config.T}.',
            f"## Training\n\n{_training(record)}",
            f"## Accuracy\n\n{to_markdown(_accuracy(record))}\n\n{to_markdown(_spread(record))}",
            f"## Where it fails\n\n{failing}\n\n{to_markdown(_elsewhere(record))}",
            f"Made by `nlaformer reproduce promote` from `results/runs/{record.name}.json`.\n",
        ]
    )


def _purpose(name: str, config: Config) -> str:
    if config.start is None:
        return description(name)
    return f"Made by the recipe `{name}` (docs/learn.md) and trained on from there with other settings, as said below."


def _training(record: Record) -> str:
    """The trainings that led to the model, and the last of them."""
    config, trained = record.config, record.document["trained"]
    machine = in_words(record.document["provenance"])
    members = len(record.document["stack"])
    before = ""
    if config.start is not None:
        runs = [f"{run.config.steps:,} steps (`{run.name}`)" for run in lineage(record.name)]
        before = (
            f"Trained in {len(runs)} runs, {listed(runs)}; results/runs has their numbers and configs. The last one: "
        )
    return (
        f"{before}{config.steps:,} steps of {config.batch} fresh systems of the paper's family, sigma "
        f"{listed([f'{sigma:g}' for sigma in config.sigma])} in equal parts; supervision {_supervision(config)}, "
        f"teacher {config.teacher.upper()}, power {config.power:g}, Adam with a peak learning rate of {config.lr:g}, "
        f"seed {config.seed}. {record.document['seconds']:.0f} s in a stack of {members} on {trained['device']} in "
        f"{trained['arithmetic']} ({machine}). The whole config is in config.json."
    )


def _supervision(config: Config) -> str:
    weights = {"step+solution": f" with lambda {config.lambda_:g}", "joint": f" with eta {config.eta:g}"}
    return config.supervision + weights.get(config.supervision, "")


def _accuracy(record: Record) -> Sheet:
    """The mean at every iterate, beside CG and PCG, at the paper's three sigmas."""
    rows = [at(record, sigma) for sigma in SIGMAS]
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
        (
            f"{sigma:g}",
            with_error(row["model"][-1], row["standard_error"][-1]),
            short(row["median"]["model"][-1]),
            short(row["upper"]["model"][-1]),
            counted(row["model"]),
            counted(row["cg"]),
            counted(row["pcg"]),
        )
        for sigma in SIGMAS
        for row in [at(record, sigma)]
    )
    headings = ("sigma", "mean at T", "median", "90% quantile", "iterations to", "CG", "PCG")
    note = (
        "Iterations until the mean error is at most 1e-1, 1e-2, 1e-3, 1e-4; on other systems they may differ by one "
        "(docs/claims.md, table-bundled). +-: one standard error of the mean."
    )
    return Sheet("The last iterate, and the way there", headings, lines, note)


def _limits(record: Record) -> str:
    """In sentences: the floor, more loops, other systems."""
    own, T = record.own, record.config.T
    sentences = [
        f"It does not converge: over the sigmas of its training the mean squared error ends at "
        f"{short(own['model'][-1])} where CG reaches {short(own['cg'][-1])}."
    ]
    if own["loops"] is not None:
        sentences.append(f"Looped {2 * T} times instead of {T}, it stands at {short(own['loops'][-1])}.")
    worst = sorted(_others(record), key=lambda pair: pair[1]["model"][-1], reverse=True)[:2]
    sentences.append(
        "On systems unlike those of its training it may do anything: its last error is "
        + listed([f"{short(row['model'][-1])} on *{label}*" for label, row in worst])
        + "."
    )
    return " ".join(sentences)


def _tail(name: str, record: Record, measured: Fresh | None) -> str:
    """What the fresh systems show, where they were solved with these weights and not with those bundled before."""
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
    headings = ("systems", "t = 1", "t = 2", f"t = {record.config.T}")
    return Sheet("Out of distribution: learned / CG", headings, lines)


def _others(record: Record) -> list[tuple[str, dict[str, Any]]]:
    """The evaluations on systems unlike those of the training."""
    own = {record.document["own"], *(f"spd, sigma {sigma}" for sigma in record.config.sigma)}
    return [(label, row) for label, row in record.evaluations.items() if label not in own]
