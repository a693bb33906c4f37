"""Beyond the paper: the bundled models, one for all three sigmas, in the numbers of their runs and on fresh systems.

The errors are heavy-tailed. In some thousand systems there is one that a model solves a hundred times worse than the
others, and it moves the mean; medians and quantiles hardly change. So the fresh systems, which no run has seen, are
many, and their worst is kept.
"""

from __future__ import annotations

from typing import Any

from nlaformer.console import Sheet
from nlaformer.study import plan
from nlaformer.study.artefact import Artefact
from nlaformer.study.reading import at, counted, short
from nlaformer.study.results import Results

FILE = "bundled-fresh.json"
RUNS = {name: f"bundled-{name}" for name in plan.BUNDLED}
FRESH = 20_261_115  # a seed nobody has trained or evaluated with
COUNT, PIECE = 4096, 256


def measure(results: Results, small: bool) -> None:
    """The errors of the bundled models on fresh systems of all three sigmas."""
    import torch

    from nlaformer import load, pretrained
    from nlaformer.learn.evaluate import squared_relative_errors
    from nlaformer.problems import SPD

    count, models = 8 if small else COUNT, {}
    A, b, x = SPD(n=20, sigma=plan.SIGMAS).sample(count, FRESH)
    for name in pretrained.names():
        solver = load(name)
        pieces = zip(*(tensor.split(PIECE) for tensor in (A, b, x)), strict=True)
        errors = torch.cat([squared_relative_errors(solver.iterates(A, b), x) for A, b, x in pieces])
        models[name] = {
            "mean": errors.mean(0).tolist(),
            "median": errors.quantile(0.5, 0).tolist(),
            "upper": errors.quantile(0.9, 0).tolist(),
            "largest": errors.amax(0).tolist(),
            "config": solver.config.to_json(),
        }
    about: dict[str, Any] = {"command": ARTEFACT.command(), "count": count, "seed": FRESH, "sigma": plan.SIGMAS}
    results.write(FILE, about | {"models": models})


def sheets(results: Results) -> list[Sheet]:
    """The bundled models at the paper's three sigmas."""
    lines = []
    for name, run in RUNS.items():
        lengths = results.lengths(run)
        if not lengths:
            continue
        record = lengths[max(lengths)]
        steps = f"{record.config.steps // 1000}k" + (" more" if record.config.start else "")
        for sigma in plan.SIGMAS:
            row = at(record, sigma)
            counts = [counted(row[method]) for method in ("model", "cg", "pcg")]
            last = f"{short(row['model'][-1])} +- {short(row['standard_error'][-1])}"
            lines.append((name, steps, f"{sigma:g}", *counts, last))
    if not lines:
        return []
    headings = ("model", "steps", "sigma", "iterations to", "CG", "PCG", "error at T")
    note = "One model for all three sigmas. Iterations to 1e-1, 1e-2, 1e-3, 1e-4. +-: one standard error of the mean."
    return [Sheet("The bundled models", headings, tuple(lines), note), *_fresh(results)]


def _fresh(results: Results) -> list[Sheet]:
    """The last iterate on fresh systems."""
    document = results.file(FILE)
    if document is None or not document["models"]:
        return []
    lines = tuple(
        (name, *(short(row[kind][-1]) for kind in ("mean", "median", "upper", "largest")))
        for name, row in document["models"].items()
    )
    title = f"The last iterate on {document['count']:,} fresh systems, sigma 1, 1.2 and 1.4 mixed"
    return [Sheet(title, ("model", "mean", "median", "90% quantile", "largest"), lines)]


ARTEFACT = Artefact(
    name="table-bundled",
    title="The bundled models",
    paper="beyond the paper",
    runs=(*RUNS.values(), *plan.onward()),
    files=(FILE,),
    measure=measure,
    sheets=sheets,
)
