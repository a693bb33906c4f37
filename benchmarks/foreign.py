"""Products with A on families that a guided model was not trained on, beside those of CG.

``measure`` runs one model on one family; ``FAMILIES`` are the seven of the acceptance, all of n unknowns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import nlaformer as nf
from nlaformer import problems
from nlaformer.problems.base import Family

SEED = 9_000_000  # of the systems; neither training nor the rule of the switch has seen them
FAMILIES: dict[str, Callable[[int], Family]] = {
    "sigma 2": lambda n: problems.SPD(n=n, sigma=(2.0,)),
    "rotated": lambda n: problems.RotatedSPD(n=n),
    "Wishart": lambda n: problems.Wishart(n=n),
    "graph Laplacian": lambda n: problems.GraphLaplacian(n=n),
    "RBF + 1e-3 I": lambda n: problems.RBFKernel(n=n, ridge=1e-3),
    "Poisson in 1-D": lambda n: problems.Poisson1D(n=n),
    "two clusters": lambda n: problems.TwoClusters(n=n),
}


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


def measure(
    model: Any, name: str, family: Family, count: int = 2048, seed: int = SEED, rtol: float = 1e-10, **options: Any
) -> Products:
    """One model, guiding or as the preconditioner, on systems of one family."""
    A, b, _ = family.sample(count, seed)
    guided = nf.solve(A, b, model=model, rtol=rtol, check="ignore", **options)
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
        failures=sum(status is not nf.Status.CONVERGED for status in guided.status.flat),  # type: ignore[union-attr]
    )
