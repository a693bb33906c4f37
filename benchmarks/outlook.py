"""Learned methods for other problems than symmetric systems, beside their rivals, and whether they keep what is asked.

    python -m benchmarks.outlook runs/guided-gcr/seed=* --out guided-gcr.json --figure guided-gcr.svg
    python -m benchmarks.outlook --read guided-gcr.json --figure guided-gcr.svg
    python -m benchmarks.outlook --read guided-diffusion.json --rivals --out guided-diffusion.json

For every model: mean and median errors of 2,048 problems that no training has seen, iteration by iteration beside the
rivals of its family, the failures, the error at four times the T of the training; then the same on families that it was
not trained on. An iteration is a product with A. A GPU is used where there is one. ``--rivals`` adds the rivals that a
file lacks, as multigrid where PyAMG was not installed, on the same problems; it takes no model.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nlaformer as nf
from benchmarks.command import print_comparisons, read, write
from nlaformer.learn import compare
from nlaformer.learn.checkpoint import MANIFEST, read_manifest
from nlaformer.learn.compare import Comparison
from nlaformer.learn.config import Config
from nlaformer.learn.evaluate import iterations_to
from nlaformer.learn.models import load_model
from nlaformer.learn.programs import TrainedProgram
from nlaformer.problems import Family, Systems
from nlaformer.provenance import provenance
from nlaformer.report.figure import FAINT, curve, panels, reference, save, tidy

SEED = 8_100_000  # of the problems; the families' `stream`, which trains, has other numbers altogether
COUNT = 2048
_AT_ONCE = 256  # problems
_FEWER = 4  # by so much fewer problems of each family that it was not trained on


@dataclass(frozen=True)
class Asked:
    """At most this share of the rival's iterations, to the errors 10^-first, ..., 10^-last; and what is aimed at."""

    share: float
    first: int
    last: int
    aim: int
    iterations: int = 40


ASKED = {
    "guided-gcr": Asked(1 / 2, 2, 6, aim=10),
    "guided-nonlinear": Asked(1 / 2, 2, 6, aim=10),
    "guided-cgls": Asked(1 / 2, 2, 6, aim=10),
    "guided-cg": Asked(1 / 2, 2, 6, aim=10, iterations=120),  # on grids
    "learned-pcg": Asked(1 / 2, 2, 6, aim=10, iterations=120),
    "guided-eigen": Asked(2 / 3, 8, 8, aim=10),
}


def measure(model: TrainedProgram, count: int, most: int | None = None) -> dict[str, Any]:
    """Everything about one model, as JSON takes it; ``most`` bounds the iterations, which go to 4T at least."""
    asked = ASKED[str(model.config.program)]
    family = model.config.make_family()
    iterations = max(min(asked.iterations, most or asked.iterations), compare.BEYOND * model.config.T)

    def row(label: str, family: Any, count: int) -> Comparison:
        return compare.compare(model, label, family.sample(count, SEED), iterations, family)

    own = row(model.config.family, family, count)
    fewer = max(count // _FEWER, 1)
    rows = [own, *(row(label, other, fewer) for label, other in family.others().items())]
    kept, aims = _judged(own, asked)
    return {
        "config": model.config.to_json(),
        "kept": kept,
        "aims": aims,
        "families": {row.label: row.to_json() for row in rows},
    }


def _judged(own: Comparison, asked: Asked) -> tuple[dict[str, bool], dict[str, bool]]:
    """Whether each line that is asked for holds, and each that is aimed at."""
    counts = own.iterations_to()
    lines = {}
    for k in range(asked.first, asked.aim + 1):
        mine, theirs = counts["learned"][k - 1], counts[own.rival][k - 1]
        text = f"1e-{k} in {mine}, {own.rival} in {theirs}"
        lines[k, text] = mine is not None and (theirs is None or mine <= asked.share * theirs)
    last, beyond = (own.mean["learned"][t] for t in (own.T, compare.BEYOND * own.T))
    kept = {text: held for (k, text), held in lines.items() if k <= asked.last}
    kept[f"error {last:.1e} at T = {own.T}, {beyond:.1e} at 4T"] = beyond <= last
    return kept, {text: held for (k, text), held in lines.items() if k > asked.last}


def finding(document: dict[str, Any]) -> str:
    """What the models of one recipe do, in one sentence: the title of their figure."""
    shares, missed, late = [], [], 0
    for found in document["models"].values():
        own = next(iter(found["families"].values()))
        asked = ASKED[found["config"]["program"]]
        rival, counts = list(own["mean"])[1], own["iterations_to"]["mean"]
        mine, theirs = (counts[name][asked.first - 1 : asked.last] for name in ("learned", rival))
        missed += [k for k, count in enumerate(mine, asked.first) if count is None]
        late += None in mine
        shares += [
            own / other for own, other in zip(mine, theirs, strict=True) if own is not None and other is not None
        ]
    recipe, n = found["config"]["recipe"], found["config"]["n"]
    recipe += "" if n == nf.recipe(recipe).n else f" with n = {n}"
    short = f"not reach {' and '.join(f'1e-{k}' for k in sorted(set(missed)))} in the mean"
    if not shares:
        return f"{recipe} does {short}"
    low, high = (f"{round(100 * value)}%" for value in (min(shares), max(shares)))
    lines = f"1e-{asked.first} ... 1e-{asked.last}" if asked.first < asked.last else f"1e-{asked.last}"
    part = low if low == high else f"{low} to {high}"
    others = f"; {late} of {len(document['models'])} models {'does' if late == 1 else 'do'} {short}" if missed else ""
    return f"{recipe}: {part} of the iterations of {rival} to {lines}{others}"


def add_rivals(document: dict[str, Any]) -> list[str]:
    """Measure the rivals that the families have and a file lacks, on the problems of the file; their names.

    The rival to beat is measured once more: where its curve is another one, these are other problems.
    """
    rows = [found["families"] for found in document["models"].values()]
    config = Config.from_json(next(iter(document["models"].values()))["config"])
    own, added = config.make_family(), set()
    for label, family in {config.family: own, **own.others()}.items():
        first = rows[0][label]
        known, methods = list(first["mean"])[1], family.rivals()
        systems, last = family.sample(first["count"], document["seed"]), len(first["mean"]["learned"]) - 1
        missing = [name for name in methods if name not in first["mean"]]
        for name in [known, *missing]:
            errors = _errors(family, methods[name], systems, last)
            curves = {"mean": errors.mean(0), "median": errors.median(0).values, "largest": errors.amax(0)}
            if name == known:
                filed = torch.tensor(first["mean"][known], dtype=torch.float64)
                if bool(((curves["mean"] - filed).abs() > 1e-3 * filed)[filed > 1e-10].any()):
                    raise SystemExit(f"{label}: the filed errors of {known} are not those of these problems")
                continue
            added.add(name)
            for row in (families[label] for families in rows):
                for of, curve_of in curves.items():
                    row[of][name] = curve_of.tolist()
                row["failures"][name] = int((~(errors[:, -1] <= compare.FAILED)).sum())
                for of in row["iterations_to"]:
                    row["iterations_to"][of] |= iterations_to({name: row[of][name]}, row["thresholds"])
    return sorted(added)


def _errors(family: Family, rival: Any, systems: Systems, iterations: int) -> Tensor:
    """The errors of every iterate of a rival, (count, iterations + 1), a few problems at a time."""
    pieces = zip(*(value.split(_AT_ONCE) for value in systems), strict=True)
    return torch.cat([family.error(rival(A, b, iterations), Systems(A, b, x)) for A, b, x in pieces])


def table(document: dict[str, Any]) -> str:
    """Iterations to each error in the mean, of every model and of the rivals, and the failures, in Markdown."""
    rows = {Path(folder).name: next(iter(found["families"].values())) for folder, found in document["models"].items()}
    first = next(iter(rows.values()))
    last = len(first["mean"]["learned"]) - 1
    places = (1, 2, 4, 6, 8, 10, 12)
    head = ["", *(f"1e-{k}" for k in places), f"failures of {first['count']:,} at t = {last}"]

    def line(name: str, row: dict[str, Any], method: str) -> list[str]:
        counts = row["iterations_to"]["mean"][method]
        return [name, *(str(counts[k - 1] or "-") for k in places), str(row["failures"][method])]

    body = [line(f"learned, {name}", row, "learned") for name, row in rows.items()]
    body += [line(name, first, name) for name in list(first["mean"])[1:]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---", *["---:"] * (len(head) - 1)], *body))


def draw(document: dict[str, Any]) -> Any:
    """The mean errors of every model of one recipe and of the rivals, over the iterations."""
    figure, (axes,) = panels(1, width=6.4, height=3.8)
    rows = [next(iter(found["families"].values())) for found in document["models"].values()]
    for k, (folder, row) in enumerate(zip(document["models"], rows, strict=True)):
        curve(axes, _visible(row["mean"]["learned"]), Path(folder).name, k)
    for (name, values), style in zip(list(rows[0]["mean"].items())[1:], ("--", ":", "-.", (0, (1, 3))), strict=False):
        reference(axes, _visible(values), name, style)  # type: ignore[arg-type]
    axes.axvline(rows[0]["T"], color=FAINT, linewidth=0.8)
    axes.annotate("T", (rows[0]["T"], 1.0), xycoords=("data", "axes fraction"), fontsize=8, color=FAINT)
    tidy(axes, textwrap.fill(finding(document), 72), "iteration, a product with A", f"{rows[0]['measure']}, mean")
    axes.set_yscale("log")
    axes.set_ylim(1e-16, 3.0)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _visible(values: Sequence[float]) -> list[float]:
    return [max(value, 1e-17) for value in values]


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 if something that is asked for does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outlook", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of runs, or of saved models")
    parser.add_argument("--read", type=Path, help="draw and judge what was written to this file instead")
    parser.add_argument("--rivals", action="store_true", help="with --read, measure the rivals that the file lacks")
    parser.add_argument("--figure", type=Path, help="draw the curves of the models, all of one recipe, to this file")
    parser.add_argument("--out", type=Path, help="write all figures to this file")
    parser.add_argument("--count", type=int, default=COUNT, help="problems of the family of the training")
    parser.add_argument("--iterations", type=int, help="no more than these; at least four times those of the training")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="the commit that is measured, where the files have no history with them")
    chosen = parser.parse_args(given)
    if bool(chosen.folders) == bool(chosen.read):
        parser.error("give folders to measure, or --read and a file")
    if chosen.rivals and not chosen.read:
        parser.error("--rivals adds to a file; give it with --read")
    document = read(chosen.read) if chosen.read else _measured(parser, chosen)
    if chosen.rivals and (added := add_rivals(document)):
        document["added"] = {"rivals": added, "provenance": provenance(chosen.commit)}
    if chosen.out:
        write(chosen.out, document)
    if chosen.figure:
        save(draw(document), chosen.figure)
    print(f"{table(document)}\n{finding(document)}")
    claims = [held for found in document["models"].values() for held in found["kept"].values()]
    print(f"{sum(claims)} of {len(claims)} hold")
    return 0 if all(claims) else 1


def _measured(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> dict[str, Any]:
    """The figures of all folders, printed as they come."""
    models: dict[str, Any] = {}
    for folder in chosen.folders:
        model = load_model(folder).to(chosen.device)
        if not isinstance(model, TrainedProgram) or model.config.program not in ASKED:
            parser.error(f"{folder} holds none of {', '.join(ASKED)}")
        models[str(folder)] = found = measure(model, chosen.count, chosen.iterations)
        if (folder / MANIFEST).exists():
            about = read_manifest(folder)
            found["training"] = {key: about.get(key) for key in ("seconds_in_all", "device", "engine", "processes")}
        print_comparisons(str(folder), found["families"], found["kept"], found["aims"])
    return {"provenance": provenance(chosen.commit), "seed": SEED, "count": chosen.count, "models": models}


if __name__ == "__main__":
    raise SystemExit(main())
