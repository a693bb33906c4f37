"""Families of problems, most of them linear systems A x = b: batched, seeded, on any device.

``SPD`` is the paper's family; the gallery has others. Each is a small frozen object with
``sample(count, seed, device, dtype)`` for evaluation and ``stream(count, generator, dtype)`` for training.
"""

from __future__ import annotations

from typing import Any

from nlaformer.errors import look_up
from nlaformer.problems.base import Family, Rival, Systems, refuse
from nlaformer.problems.eigen import SmallestEigenpair
from nlaformer.problems.gallery import GraphLaplacian, Poisson1D, Poisson2D, RBFKernel
from nlaformer.problems.least_squares import LeastSquares
from nlaformer.problems.matrix_market import MatrixMarket, from_matrix_market, read_matrix_market
from nlaformer.problems.nonlinear import Cubic
from nlaformer.problems.nonsymmetric import Convection, Nonsymmetric
from nlaformer.problems.random_matrices import PrescribedSpectrum, RotatedSPD, TwoClusters, Wishart
from nlaformer.problems.spd import SPD

__all__ = [
    "SPD",
    "Convection",
    "Cubic",
    "Family",
    "GraphLaplacian",
    "LeastSquares",
    "MatrixMarket",
    "Nonsymmetric",
    "Poisson1D",
    "Poisson2D",
    "PrescribedSpectrum",
    "RBFKernel",
    "Rival",
    "RotatedSPD",
    "SmallestEigenpair",
    "Systems",
    "TwoClusters",
    "Wishart",
    "complaints",
    "families",
    "family",
    "from_matrix_market",
    "read_matrix_market",
    "unlike",
]

_KINDS: tuple[type[Family], ...] = (
    SPD,
    Poisson1D,
    Poisson2D,
    RBFKernel,
    GraphLaplacian,
    PrescribedSpectrum,
    TwoClusters,
    Wishart,
    RotatedSPD,
    Nonsymmetric,
    Convection,
    Cubic,
    LeastSquares,
    SmallestEigenpair,
    MatrixMarket,
)
FAMILIES = {kind.name: kind for kind in _KINDS}


def families() -> tuple[str, ...]:
    """The names that ``family`` takes.

    >>> families()[:3]
    ('spd', 'poisson-1d', 'poisson-2d')
    """
    return tuple(FAMILIES)


def family(name: str, **options: Any) -> Family:
    """A family by its name.

    Raises
    ------
    UnknownNameError : there is no family of that name
    OptionError : options that do not exist or make no sense, all listed at once

    Examples
    --------
    >>> family("spd", n=8, sigma=1.4)
    SPD(n=8, sigma=(1.4,))
    >>> family("spd", n=0, sigme=-1)
    Traceback (most recent call last):
    nlaformer.errors.OptionError: spd: 2 problems
    - n must be a whole number from 1 on, not 0
    - there is no option named 'sigme'; did you mean 'sigma'? known: n, sigma
    """
    refuse(name, complaints(name, **options))
    return FAMILIES[name](**options)


def unlike(n: int) -> dict[str, Family]:
    """Families of symmetric positive definite systems unlike the paper's, of any size, by name.

    >>> list(unlike(4))[:3]
    ['spd, sigma 2', 'rotated', 'wishart']
    """
    return {
        "spd, sigma 2": SPD(n=n, sigma=(2.0,)),
        "rotated": RotatedSPD(n=n),
        "wishart": Wishart(n=n),
        "graph-laplacian": GraphLaplacian(n=n),
        "rbf, ridge 1e-3": RBFKernel(n=n, ridge=1e-3),
        "poisson-1d": Poisson1D(n=n),
        "two-clusters": TwoClusters(n=n),
    }


def complaints(name: str, **options: Any) -> list[str]:
    """The errors in the options of a family, one sentence each.

    >>> complaints("poisson-2d", n=20)
    ['n must be a square number, such as 16 or 25, not 20']
    """
    return look_up("family", name, FAMILIES).complaints(options)
