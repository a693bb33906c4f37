"""A trained program as one transformer, beside the program itself: do their iterates agree, and how far do they get?

    python -m benchmarks.compiled_whole                      # the bundled guided-cg
    python -m benchmarks.compiled_whole runs/guided-cg --out whole.json

``nf.compile(model)`` on 256 systems of the paper's family that no training has seen (n = 20, sigma 1.2), beside the
program as ``nf.load`` gives it, whose network computes in float32, and beside the same with its network in float64, as
the transformer has it. They agree where |x_t - x_t'| <= 1e-8 |x| + 1e-2 |x_t - x| for t <= 10. Then how many of the
systems reach a relative error of 1e-12 within 25 iterations, in the program and in the transformer; and what the same
weights do in float32.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nlaformer as nf
from benchmarks.command import write
from nlaformer.learn.models import load_model
from nlaformer.learn.programs import TrainedProgram
from nlaformer.provenance import in_words, provenance

SEED = 8_100_000  # of the systems
COUNT = 256
_ITERATIONS, _COMPARED = 25, 10
_GOAL = 1e-12


def measure(model: TrainedProgram, count: int) -> dict[str, Any]:
    """The figures of one model, as JSON takes them."""
    A, b, x = nf.problems.SPD(n=model.config.n, sigma=(1.2,)).sample(count, SEED)
    size = x.norm(dim=-1, keepdim=True)
    compiled = nf.compile(model)
    loaded = model.run(A, b, iterations=_ITERATIONS).x
    own = copy.deepcopy(model).double().run(A, b, iterations=_ITERATIONS).x
    double = compiled.run(A, b, iterations=_ITERATIONS).x
    single = nf.compile(model, dtype="float32", verify=False).run(A.float(), b.float(), iterations=_ITERATIONS).x

    def relative(iterates: Tensor) -> Tensor:
        return (iterates.double() - x[:, None]).norm(dim=-1) / size  # (count, t)

    apart, error = (double - own).norm(dim=-1) / size, relative(own)
    allowed = (1e-8 + 1e-2 * error)[:, : _COMPARED + 1]
    reached = {name: relative(run).amin(-1) <= _GOAL for name, run in (("program", own), ("transformer", double))}
    return {
        "systems": count,
        "layers": [compiled.cost.pre.layers, compiled.cost.loop.layers],
        "agree": int((apart[:, : _COMPARED + 1] <= allowed).all(-1).sum()),
        "largest_of_allowed": float((apart[:, : _COMPARED + 1] / allowed).max()),
        "largest_difference": {
            "float64": float(apart.max()),
            "as loaded": float(((double - loaded).norm(dim=-1) / size).max()),
        },
        "reached": {name: int(found.sum()) for name, found in reached.items()},
        "reached_by_both": int((reached["program"] & reached["transformer"]).sum()),
        "median_at_10": {name: _median(relative(run)) for name, run in (("program", own), ("float32", single))},
    }


def _median(error: Tensor) -> float:
    return float(error[:, _COMPARED].median())


def main(given: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="guided-cg", help="a run, a saved model or a bundled name")
    parser.add_argument("--count", type=int, default=COUNT, help="systems")
    parser.add_argument("--out", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(given)
    model = load_model(chosen.folder)
    if not isinstance(model, TrainedProgram):
        parser.error(f"{chosen.folder} holds no program with learned parts")
    where = provenance()
    with torch.no_grad():
        found = measure(model, chosen.count)
    print(json.dumps(found, indent=1))
    print(in_words(where))
    if chosen.out:
        write(chosen.out, {"provenance": where, "seed": SEED, "found": found})
    return found


if __name__ == "__main__":
    main()
