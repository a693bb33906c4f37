"""Products with A of a solve that a model guides, with the switch on, beside those of CG, on other families too.

    python -m benchmarks.foreign learned-preconditioner --out benchmarks/results/foreign.json

The first model is filed under "families", further ones, such as runs with other seeds, under "runs" by their config's
seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nlaformer as nf
from benchmarks.command import write
from nlaformer import problems
from nlaformer.learn import compare
from nlaformer.learn.models import load_model
from nlaformer.problems import Family
from nlaformer.provenance import provenance

SEED = 9_100_000  # of the systems. The rule of the switch was chosen on other systems of the same families
COUNT = 2048
RTOL = 1e-10
ALLOWED = 0.25  # more products than CG, in the mean of a family


@dataclass(frozen=True)
class Products:
    """Products with A to a tolerance, those of the certificate included, over the systems of one family.

    Attributes
    ----------
    mean, worst : with the model
    cg_mean, cg_worst : by CG
    more : the mean over CG's, minus 1
    most_more : the most products that a single system took beyond CG's
    by_model : the share of all iterations that the model made
    failures : systems that did not converge
    """

    family: str
    count: int
    mean: float
    worst: int
    cg_mean: float
    cg_worst: int
    more: float
    most_more: int
    by_model: float
    failures: int

    @property
    def kept(self) -> bool:
        """Whether every system converged, with few enough products."""
        return not self.failures and self.more <= ALLOWED

    def __str__(self) -> str:
        return (
            f"{self.family}: {self.mean:.1f} products with A, at most {self.worst}; CG {self.cg_mean:.1f}, at most "
            f"{self.cg_worst}; {100 * self.more:+.0f}%, a system {self.most_more:+d} at most; "
            f"{100 * self.by_model:.0f}% of the steps by the model; {self.failures} of {self.count:,} failed"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    model: Any,
    name: str,
    family: Family,
    count: int = COUNT,
    seed: int = SEED,
    rtol: float = RTOL,
    device: torch.device | str = "cpu",
) -> Products:
    """One model, a guide or a preconditioner, on systems of one family."""
    A, b, _ = family.sample(count, seed, device=device)
    guided = nf.solve(A, b, model=model, rtol=rtol, check="ignore")
    plain = nf.cg(A, b, rtol=rtol, check="ignore")
    products, own = (np.asarray(result.matvecs) for result in (guided, plain))
    assert guided.model is not None
    return Products(
        family=name,
        count=count,
        mean=float(products.mean()),
        worst=int(products.max()),
        cg_mean=float(own.mean()),
        cg_worst=int(own.max()),
        more=float(products.mean() / own.mean() - 1),
        most_more=int((products - own).max()),
        by_model=float(np.sum(guided.model.accepted) / np.sum(guided.iterations)),
        failures=sum(status is not nf.Status.CONVERGED for status in np.ravel(guided.status)),  # type: ignore[arg-type]
    )


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 if a system fails or a family takes too many products."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.foreign", description=__doc__)
    parser.add_argument("models", nargs="+", help="a bundled model, then folders of runs")
    parser.add_argument("--count", type=int, default=COUNT, help="systems of each family")
    parser.add_argument("--out", type=Path, help="write all figures to this file")
    chosen = parser.parse_args(given)
    found: dict[str, list[Products]] = {}
    for name in chosen.models:
        model = load_model(name)
        key = str(model.config.seed) if found else name
        families = {**dict(compare.own_families(model.config)), **problems.unlike(model.config.n)}
        for label, family in families.items():
            found.setdefault(key, []).append(row := measure(model, label, family, chosen.count))
            print(f"{key}: {row}", flush=True)
    (first, own), *others = found.items()
    document = {"provenance": provenance(), "model": f"{first} (bundled)", "seed": SEED, "rtol": RTOL}
    document |= {"families": [row.to_json() for row in own]}
    document |= {"runs": {key: [row.to_json() for row in rows] for key, rows in others}} if others else {}
    if chosen.out:
        write(chosen.out, document)
    return 0 if all(row.kept for rows in found.values() for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
