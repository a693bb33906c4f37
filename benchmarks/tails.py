"""Tails of the bundled solvers: the largest squared relative errors of the last iterate, of very many fresh systems.

    python -m benchmarks.tails --count 65536                                        # minutes on two cores
    python -m benchmarks.tails --device cuda --count 2097152 --out benchmarks/results/tails.json

Systems of the family at sigma 1.2, in float64, drawn on the device. For each solver the mean, the median, quantiles,
the largest error, and how many systems end above 1e-4, 1e-2 and 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import nlaformer as nf
from benchmarks.command import write
from nlaformer.console import Sheet, print_sheets
from nlaformer.learn.evaluate import squared_relative_errors
from nlaformer.learn.models import load_solver
from nlaformer.provenance import in_words, provenance

MODELS = ("cg-imitation", "cg-joint", "cg-accelerated", "pcg-accelerated")
QUANTILES = (0.5, 0.99, 0.999, 0.9999, 0.99999)
LEVELS = (1e-4, 1e-2, 1.0)
SIGMA, SEED, PART = 1.2, 20_261_131, 65_536  # fixed before any result was seen


def measure(name: str, count: int, device: torch.device) -> dict[str, Any]:
    """One solver on fresh systems, part by part."""
    model, family = load_solver(name).to(device), nf.problems.SPD(n=20, sigma=(SIGMA,))
    draws, last = torch.Generator(device).manual_seed(SEED), []
    for part in range(-(-count // PART)):
        A, b, x = family.stream(min(PART, count - part * PART), draws, torch.float64)
        with torch.no_grad():
            iterates = model.iterates(A, b)
        last.append(squared_relative_errors(iterates[:, -1:], x)[:, 0].cpu())
    errors = torch.cat(last).double().sort().values
    return {
        "name": name,
        "mean": float(errors.mean()),
        "quantiles": [float(errors[min(int(q * count), count - 1)]) for q in QUANTILES],
        "largest": float(errors[-1]),
        "above": [int((~(errors <= level)).sum()) for level in LEVELS],
    }


def main(given: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=PART, help="systems of each solver")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commit", help="the commit that is measured, where the files have no history with them")
    parser.add_argument("--out", type=Path, help="file of the result")
    options = parser.parse_args(given)
    rows = [measure(name, options.count, torch.device(options.device)) for name in MODELS]
    headings = (
        "solver",
        "mean",
        *(f"{q:.3%}" for q in QUANTILES),
        "largest",
        *(f"above {level:g}" for level in LEVELS),
    )
    lines = [
        (row["name"], *(f"{v:.2e}" for v in (row["mean"], *row["quantiles"], row["largest"])), *map(str, row["above"]))
        for row in rows
    ]
    print_sheets([Sheet(f"{options.count:,} systems", headings, tuple(lines))])
    where = provenance() | ({"commit": options.commit} if options.commit else {})
    print(in_words(where))
    if options.out is not None:
        kept = {"count": options.count, "sigma": SIGMA, "seed": SEED, "quantiles": QUANTILES, "levels": LEVELS}
        write(options.out, kept | {"rows": rows, "provenance": where})
    return rows


if __name__ == "__main__":
    main()
