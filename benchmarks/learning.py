"""What the recipes learn, and in how many steps: train stacks of the paper's configuration and record the errors.

    python -m benchmarks.learning --json benchmarks/results/learning.json  # all plans, about 12 minutes on an H200
    python -m benchmarks.learning --plan losses-20k --runs runs/learning   # one plan; a killed one is resumed
    python -m benchmarks.learning --smoke                                  # the same code, seconds on a CPU

Every line is one model: n = 20, T = 20, d = 256, 8 heads, batch 64, sigma 1.2; the seeds are given below.
Errors are mean squared relative errors over 512 systems not used in training. ``learning_table.py`` makes a table of
the file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import nlaformer as nf
from nlaformer.learn.evaluate import evaluate
from nlaformer.learn.recipes import Config
from nlaformer.provenance import provenance


def plans() -> dict[str, dict[str, Config]]:
    """The stacks: each a table of lines, trained as one program."""
    named = {name: nf.recipe(name) for name in ("cg-imitation", "cg-joint", "cg-accelerated", "pcg-accelerated")}
    paper = {name: config.replace(power=1.0) for name, config in named.items()}  # the paper's losses as they are
    return {
        "losses-20k": {
            "result, paper's loss": paper["cg-imitation"],
            "joint, paper's loss": paper["cg-joint"],
            "joint, paper's loss, seed 1": paper["cg-joint"].replace(seed=1),
            "step + 10 solution, paper's loss": paper["cg-accelerated"],
            "step + 10 solution of PCG, paper's loss": paper["pcg-accelerated"],
            **named,
        },
        "pre-layers-20k": {line: config.replace(pre_layers=2) for line, config in _pre_layers(named).items()},
        "pre-layer-20k": _pre_layers(named, seeds=(2,), powers=(0.0,)),
        "recipes-30k": {name: config.replace(steps=30_000) for name, config in named.items()},
    }


def _pre_layers(
    named: dict[str, Config], seeds: Sequence[int] = (0, 1, 2), powers: Sequence[float] = (0.0, 0.5)
) -> dict[str, Config]:
    """The lines that compare one and two layers of the pre block, 20,000 steps each."""
    lines = {f"joint, seed {seed}": named["cg-joint"].replace(seed=seed) for seed in seeds}
    lines |= {f"result, power {power}": named["cg-imitation"].replace(power=power) for power in powers}
    return lines | {name: named[name].replace(window=20) for name in ("cg-accelerated", "pcg-accelerated")}


def run(name: str, lines: dict[str, Config], folder: Path, count: int) -> list[dict[str, Any]]:
    """Train a plan, or resume it, and evaluate its members."""
    finished = nf.train(list(lines.values()), out=folder / name, checkpoint_every=lines_every(lines))
    rows = []
    for line, result in zip(lines, finished, strict=True):
        solver = result.model.to("cuda" if torch.cuda.is_available() else "cpu")
        evaluations = [row.to_json() for row in evaluate(solver, count=count)]
        rows.append(
            {
                "plan": name,
                "line": line,
                "config": result.config.to_json(),
                "diverged": result.diverged,
                "evaluations": evaluations,
            }
        )
        own = evaluations[0]
        errors = "  ".join(
            f"{own['model'][t]:.1e}" for t in (1, 2, 4, 8, len(own["model"]) - 1) if t < len(own["model"])
        )
        print(f"{name:12s} {line:40s} t=1,2,4,8,T: {errors}  discrepancy {own['discrepancy']:.3f}", flush=True)
    return rows


def lines_every(lines: dict[str, Config]) -> int:
    """Steps between checkpoints: a tenth of the run."""
    return max(next(iter(lines.values())).steps // 10, 1)


def small(config: Config) -> Config:
    """The same line at a size that a CPU trains in a second."""
    return config.replace(n=4, T=4, d=16, heads=2, window=None, batch=8, steps=20, warmup=2, chunk=4)


def main() -> None:
    """Run the chosen plans and write their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = plans()
    parser.add_argument("--plan", action="append", choices=sorted(known), help="may be repeated; default: all")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"), help="where checkpoints go")
    parser.add_argument("--json", type=Path, help="write the figures with their provenance")
    parser.add_argument("--commit", help="the commit that is measured, where there is no checkout to read it from")
    parser.add_argument("--smoke", action="store_true", help="tiny models: does it run?")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measure(arguments, {name: known[name] for name in arguments.plan or known}, Path(scratch))


def measure(arguments: argparse.Namespace, chosen: dict[str, dict[str, Config]], scratch: Path) -> None:
    """Train the plans one after another; a smoke run leaves no checkpoints behind."""
    rows, where = [], provenance(arguments.commit)
    for name, plan in chosen.items():
        lines = {line: small(config) if arguments.smoke else config for line, config in plan.items()}
        folder = scratch if arguments.smoke else arguments.runs
        rows += run(name, lines, folder, count=16 if arguments.smoke else 512)
        if arguments.json is not None:  # after every plan, so that an interruption loses one plan at most
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(written(where, rows))


def written(where: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The document as JSON, a line for each model, its numbers with six digits: small files, readable differences.

    >>> print(written({"commit": "abc"}, [{"error": 0.123456789, "power": 1e-06}]).rstrip())
    {"provenance": {"commit": "abc"},
    "rows": [
    {"error": 0.123457, "power": 1e-06}
    ]}
    """
    short = json.loads(json.dumps(rows), parse_float=lambda digits: float(f"{float(digits):.6g}"))
    lines = ",\n".join(map(json.dumps, short))
    return f'{{"provenance": {json.dumps(where)},\n"rows": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    main()
