"""Evaluation of programs with learned parts: their errors beside those of classical methods, iteration by iteration.

Errors are squared relative errors ||x_t - x||^2 / ||x||^2; means and medians over the systems, on every sigma of the
training by itself and on families it was not trained on, up to four times the T of the training. The classical methods
have the same products with A: CG, PCG with the diagonal (Jacobi), and PCG with a diagonal plus rank one by hand.

That last one is what any claim on the paper's family must face, since its A is nearly diagonal plus rank one. Writing
A = E + diag(a) with E zero on the diagonal, four power iterations on E + diag(u^2) fit u u^T to E, where u^2 is the
current guess of the diagonal that u u^T has; they start from the largest row of E. M = (diag(a - u^2) + u u^T)^-1 then
follows from the formula of Sherman and Morrison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from nlaformer import problems
from nlaformer.learn import teachers
from nlaformer.learn.config import Config
from nlaformer.learn.evaluate import SEED, squared_relative_errors
from nlaformer.learn.programs import TrainedProgram
from nlaformer.problems import Family, Systems

THRESHOLDS = tuple(10.0**-k for k in range(1, 15))
BEYOND = 4  # times the iterations of the training
_AT_ONCE = 1024  # systems
_RESIDUAL = 1e-6
_POWER_ITERATIONS = 4
_LEAST = 0.1  # of a_ii stays in the diagonal, so that M is positive definite


def by_hand(A: Tensor) -> tuple[Tensor, Tensor]:
    """D and u, each (..., n), for the preconditioner (diag(D) + u u^T)^-1 of A (..., n, n).

    >>> u, diagonal = torch.linspace(1, 2, 10).double(), torch.arange(1.0, 11.0).double()
    >>> D, found = by_hand(torch.outer(u, u) + torch.diag(diagonal))
    >>> torch.allclose(D, diagonal, rtol=1e-2), torch.allclose(found.abs(), u, rtol=1e-2)
    (True, True)
    """
    a = A.diagonal(dim1=-2, dim2=-1)
    E = A - torch.diag_embed(a)
    largest = E.square().sum(-1).argmax(-1)[..., None, None].expand(*E.shape[:-2], 1, E.shape[-1])
    u = _rescaled(E, E.gather(-2, largest).squeeze(-2))
    for _ in range(_POWER_ITERATIONS):
        u = _rescaled(E + torch.diag_embed(u.square()), u)
    return torch.maximum(a - u.square(), _LEAST * a), u


def _rescaled(B: Tensor, u: Tensor) -> Tensor:
    """The direction of B u with the square root of u's Rayleigh quotient as its length; 0 where that is negative."""
    w = (B @ u[..., None])[..., 0]
    quotient = (u * w).sum(-1, keepdim=True) / u.square().sum(-1, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)
    length = w.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)
    return w / length * quotient.clamp(min=0.0).sqrt()


def _by_hand(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    D, u = by_hand(A)
    w = u / D
    scale = 1 + (u * w).sum(-1, keepdim=True)
    return teachers.pcg(A, b, iterations, M=lambda r: r / D - w * (w * r).sum(-1, keepdim=True) / scale).x


CLASSICAL: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "CG": lambda A, b, iterations: teachers.cg(A, b, iterations).x,
    "PCG, Jacobi": lambda A, b, iterations: teachers.pcg(A, b, iterations).x,
    "PCG, diagonal + rank 1 by hand": _by_hand,
}


@dataclass(frozen=True)
class Comparison:
    """Squared relative errors of x_0, x_1, ... on one set of systems, by method; the model's is "learned"."""

    label: str
    count: int
    T: int
    """Iterations of the training; the curves go on to four times as many."""
    mean: dict[str, tuple[float, ...]]
    median: dict[str, tuple[float, ...]]
    largest: dict[str, tuple[float, ...]]
    to_residual: dict[str, float]
    """Mean iterations to |b - A x_t| <= 1e-6 |b|; a system that does not get there counts with all of them."""

    def iterations_to(self, of: str = "mean") -> dict[str, list[int | None]]:
        """The first iterate of each method at or below 1e-1, ..., 1e-14; None if there is none."""
        curves: dict[str, tuple[float, ...]] = getattr(self, of)
        return {
            name: [next((t for t, error in enumerate(curve) if error <= bound), None) for bound in THRESHOLDS]
            for name, curve in curves.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        counts = {of: self.iterations_to(of) for of in ("mean", "median")}
        return asdict(self) | {"thresholds": THRESHOLDS, "iterations_to": counts}


@torch.no_grad()
def compare(model: TrainedProgram, label: str, systems: Systems, iterations: int | None = None) -> Comparison:
    """A model beside the classical methods on given systems, on the model's device."""
    A, b, x = (value.to(model.device, torch.float64) for value in systems)
    T = model.config.T
    count = BEYOND * T if iterations is None else iterations
    pieces = zip(A.split(_AT_ONCE), b.split(_AT_ONCE), strict=True)
    runs = {"learned": torch.cat([model(A_k, b_k, iterations=count) for A_k, b_k in pieces])}
    runs |= {name: method(A, b, count) for name, method in CLASSICAL.items()}
    errors = {name: squared_relative_errors(found, x).cpu() for name, found in runs.items()}
    statistics: dict[str, Callable[[Tensor], Tensor]] = {
        "mean": lambda error: error.mean(0),
        "median": lambda error: error.median(0).values,
        "largest": lambda error: error.amax(0),
    }
    return Comparison(
        label,
        len(x),
        T,
        **{of: {name: tuple(take(e).tolist()) for name, e in errors.items()} for of, take in statistics.items()},
        to_residual={name: _mean_iterations(A, b, found) for name, found in runs.items()},
    )


def _mean_iterations(A: Tensor, b: Tensor, x: Tensor) -> float:
    residual = b[:, None] - x @ A.mT  # (count, T+1, n)
    reached = residual.norm(dim=-1) <= _RESIDUAL * b.norm(dim=-1, keepdim=True)
    return float(torch.where(reached.any(1), reached.int().argmax(1), x.shape[1] - 1).double().mean())


def evaluate_program(
    model: TrainedProgram, count: int = 512, seed: int = SEED, say: Callable[[str], None] = lambda label: None
) -> list[Comparison]:
    """A model on its own family, every sigma by itself, then on families it was not trained on.

    Examples
    --------
    >>> import nlaformer as nf
    >>> from nlaformer.learn.models import untrained
    >>> rows = evaluate_program(untrained(nf.recipe("guided-quickstart")), count=4)
    >>> rows[0].label, sorted(rows[0].mean)[:2]
    ('spd, sigma 1.2', ['CG', 'PCG, Jacobi'])
    """
    rows = []
    for label, family in (*own_families(model.config), *other_families(model.config.n)):
        say(label)
        rows.append(compare(model, label, family.sample(count, seed)))
    return rows


def own_families(config: Config) -> Iterator[tuple[str, Family]]:
    """The family of the training; of several sigmas, each by itself."""
    if config.family != "spd":
        yield config.family, config.make_family()
    else:
        for sigma in config.sigma:
            yield f"spd, sigma {sigma:g}", problems.SPD(n=config.n, sigma=(sigma,))


def other_families(n: int) -> Iterator[tuple[str, Family]]:
    """Families unlike the paper's, of any size."""
    yield "spd, sigma 2", problems.SPD(n=n, sigma=(2.0,))
    yield "rotated", problems.RotatedSPD(n=n)
    yield "wishart", problems.Wishart(n=n)
    yield "graph-laplacian", problems.GraphLaplacian(n=n)
    yield "rbf, ridge 1e-3", problems.RBFKernel(n=n, ridge=1e-3)
    yield "poisson-1d", problems.Poisson1D(n=n)
    yield "two-clusters", problems.TwoClusters(n=n)


def summary(own: Comparison) -> str:
    """How the model's iterations compare with CG's, in one sentence."""
    counts = own.iterations_to()
    pairs = [
        (mine, theirs)
        for mine, theirs in zip(counts["learned"], counts["CG"], strict=True)
        if mine is not None and theirs
    ]
    if not pairs:
        return "It reaches none of the errors that CG reaches: it has learned nothing yet."
    share = [mine / theirs for mine, theirs in pairs]
    bound = THRESHOLDS[len(pairs) - 1]
    least, most = (f"{round(100 * value)}%" for value in (min(share), max(share)))
    return f"It takes {least} to {most} of CG's iterations to squared errors from 1e-01 to {bound:.0e}."
