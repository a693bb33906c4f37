"""The numbers of docs/what-it-learned.md: what ``nlaformer microscope MODEL --sigma 1.2 --json`` printed, by key.

A key is the path to a number in the document, such as "cg-imitation.errors.model.mean.t4". A list of numbers has a key
of its own, one with ".shown" for t = 1, 2, 4, 6, 8, and one for each entry. Documents of short programs
(``--extract``) have keys that begin with the model and "programs".
"""

from __future__ import annotations

import re
from statistics import fmean
from typing import Any

from paper.results import Results

MODELS = ("cg-imitation", "cg-joint", "cg-accelerated", "pcg-accelerated", "guided-cg")
FOLDER = "microscope"
SHOWN = (1, 2, 4, 6, 8)
# Subjects of the tables that the page does not speak of; the documents have them.
_LEFT_OUT = {"provenance", "conjugate_residual", "steepest_descent", "minimal_residual", "richardson", "chebyshev",
             "newton_schulz"}  # fmt: skip
# Lists that begin with t = 1; all others begin with t = 0, or have no t.
_FROM_ONE = {"ratio", "deviation", "relative_deviation", "distance", "solution", "products", "r2", "error_share",
             "step_r2", "solution_r2", "compiled_r2"}  # fmt: skip


def numbers(results: Results) -> dict[str, Any]:
    """Every number of the models' documents by its key, the mean deviation from CG, and differences of filters."""
    found: dict[str, Any] = {}
    for name in MODELS:
        _add(found, name, results.document(f"{FOLDER}/{name}"))
        _add(found, f"{name}.programs", results.document(f"{FOLDER}/{name}-programs"))
        found[f"{name}.mean_deviation"] = fmean(found[f"{name}.explanations.cg.deviation"])
        for other in ("cg", "fixed-polynomial"):
            found[f"{name}.filter_difference.{other}"] = _difference(found, name, other)
    return found


def _difference(found: dict[str, Any], name: str, other: str) -> float:
    """The largest difference between the spectral filters of a model and of a candidate."""
    filters = (
        [value for k in range(len(SHOWN)) for value in found[f"{name}.operators.{of}.filter.t{k}"]]
        for of in ("model", other)
    )
    return max(abs(ours - theirs) for ours, theirs in zip(*filters, strict=True))


def _add(found: dict[str, Any], key: str, value: Any) -> None:
    """Put a value and everything in it under its key."""
    if isinstance(value, dict):
        for name, entry in value.items():
            if name not in _LEFT_OUT:
                label = re.sub(r"\W+", "-", name)
                _add(found, f"{key}.{label}", entry)
    elif isinstance(value, list):
        first = int(key.rpartition(".")[2] in _FROM_ONE)
        if value and all(isinstance(entry, int | float) for entry in value):
            found[key] = value
            if len(value) > SHOWN[-1] - first:
                found[f"{key}.shown"] = [value[t - first] for t in SHOWN]
        for k, entry in enumerate(value):
            named = entry.get("candidate") or entry.get("name") if isinstance(entry, dict) else None
            _add(found, f"{key}.{named or f't{k + first}'}".replace(" ", "-"), entry)
    elif isinstance(value, int | float):
        found[key] = value
