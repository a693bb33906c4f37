"""Products with A of a solve that a model guides, with the switch on, beside those of CG, on one family."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

import nlaformer as nf
from nlaformer.problems import Family

SEED = 9_100_000  # of the systems. The rule of the switch was chosen on other systems of the same families
COUNT = 2048
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
    rtol: float = 1e-10,
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
