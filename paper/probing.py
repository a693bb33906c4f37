"""Linear probes: which vectors of which method can be read from a solver's state.

At every iterate t a ridge regression maps the state to a vector of some method at its own iterate t. It is fitted on
one set of systems, its penalty is chosen on a second, and it is scored on a third. The score is R^2, the fraction of
the vector's variance that it explains. Vectors are scaled to length one, because otherwise a few systems with large
right-hand sides would dominate; the paper's discrepancy uses the vectors as they are.

The same probe is fitted to states without training: those of a network with random weights, the input, and the input
with the products that the first step of any of the methods forms.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.compiler.library import program
from nlaformer.learn import teachers
from nlaformer.learn.model import Solver
from nlaformer.problems import Systems

_PENALTIES = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e2, 1e4)
_AT_ONCE = 256  # systems that run through a network together


@dataclass(frozen=True)
class Sizes:
    """Numbers of systems to fit a probe, to choose its penalty and to score it, and their seed."""

    train: int = 2048
    validation: int = 512
    test: int = 1024
    seed: int = 8_000_000

    @property
    def count(self) -> int:
        return self.train + self.validation + self.test


# --- the vectors ---

_PROGRAMS = {
    "steepest descent": "steepest_descent",
    "Richardson": "richardson",
    "Chebyshev": "chebyshev",
    "Newton-Schulz": "newton_schulz",
}


def quantities(systems: Systems, T: int) -> dict[str, Tensor]:
    """The residual r, the direction d where there is one, and the iterate x of every method, (count, T+1, n) each.

    The iterate of Newton-Schulz is X_t b, where X_t approximates the inverse of A.

    >>> from nlaformer import problems
    >>> held = quantities(problems.SPD(n=3).sample(5, seed=0), T=4)
    >>> held["r of CG"].shape, sorted(name for name in held if name.startswith("d"))
    (torch.Size([5, 5, 3]), ['d of CG', 'd of Chebyshev', 'd of PCG'])
    """
    A, b, x = systems
    held: dict[str, Tensor] = {}
    for method, path in (("CG", teachers.cg(A, b, T)), ("PCG", teachers.pcg(A, b, T))):
        held |= {f"r of {method}": path.r, f"d of {method}": path.d, f"x of {method}": path.x}
    for method, name in _PROGRAMS.items():
        inverting = name == "newton_schulz"
        run = program(name).run(A, None if inverting else b, iterations=T)
        iterates = (run.x @ b[:, None, :, None])[..., 0] if inverting else run.x
        held |= {f"r of {method}": b[:, None] - iterates @ A.mT, f"x of {method}": iterates}
        if "d" in run.state:
            held[f"d of {method}"] = run.state["d"]
    return held | {"the solution": x[:, None].expand(-1, T + 1, -1)}


# --- the states ---


@torch.no_grad()
def hidden(solver: Solver, systems: Systems, own: Sequence[int] = ()) -> tuple[Tensor, dict[int, Tensor]]:
    """The states of a solver: of the last token, which the paper's probes read, (count, T+1, d); and at the iterates
    in ``own`` those of the tokens of the equations, (n, count, d) each.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    solver = copy.deepcopy(solver).to(device)  # the caller's stays where it is
    last, tokens = [], {t: [] for t in own}  # type: ignore[var-annotated]
    for A, b in zip(systems.A.split(_AT_ONCE), systems.b.split(_AT_ONCE), strict=True):
        states = dict(solver.states(A.to(solver.positions), b.to(solver.positions)))
        last.append(torch.stack([P[..., -1] for P in states.values()], 1).cpu())
        for t in own:
            tokens[t].append(states[t][..., solver.layout.data_tokens].permute(2, 0, 1).cpu())
    return torch.cat(last), {t: torch.cat(parts, 1) for t, parts in tokens.items()}


def inputs(systems: Systems) -> Tensor:
    """The input, b and the upper triangle of A, each scaled to length one: (count, n + n (n+1)/2)."""
    A, b, _ = systems
    row, column = torch.triu_indices(A.shape[-1], A.shape[-1])
    return torch.cat([over_length(b), over_length(A[:, row, column])], -1)


def products(systems: Systems) -> Tensor:
    """The input and the products of a first step, A b, diag(A) b and b / diag(A), each scaled to length one."""
    return torch.cat([inputs(systems), *_formed(systems)], -1)


def own_products(systems: Systems) -> Tensor:
    """The same for each equation: its row of A, and its entries of b and of the products, (n, count, n+4)."""
    vectors = torch.stack([over_length(systems.b), *_formed(systems)], -1)  # (count, n, 4)
    return torch.cat([systems.A, vectors], -1).transpose(0, 1)


def _formed(systems: Systems) -> list[Tensor]:
    A, b, _ = systems
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    return [over_length(vector) for vector in ((A @ b[..., None])[..., 0], diagonal * b, b / diagonal)]


def over_length(X: Tensor) -> Tensor:
    """Vectors along the last axis scaled to length one; 0 stays 0."""
    return torch.nn.functional.normalize(X, dim=-1, eps=1e-300)


# --- the probe ---


class Scores(NamedTuple):
    """Sums of squares over the test systems and the entries of each of m vectors, (..., m)."""

    left: Tensor  # the residual of the probe
    total: Tensor  # the deviation of the vector from its mean

    @property
    def r2(self) -> Tensor:
        """R^2; NaN for a vector that never varies, such as the first iterate 0."""
        return torch.where(self.total > 0, 1 - self.left / self.total, torch.nan)


def probe(X: Tensor, Y: Tensor, sizes: Sizes) -> Scores:
    """Fit ridge regressions from X (..., count, p) to Y (..., count, m, n); score the best for each of the m vectors.

    The best on the validation systems, over penalties and over X as it is or scaled to length one: states, like the
    entries of the paper's A, may vary over orders of magnitude.

    >>> X = torch.randn(900, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> Y = torch.stack([X[:, :2], X[:, :2].flip(0)], 1)  # a part of X, and the same part of other systems
    >>> [abs(round(value, 1)) for value in probe(X, Y, Sizes(500, 200, 200)).r2.tolist()]
    [1.0, 0.0]
    """
    X, Y = X.double(), Y - Y[..., : sizes.train, :, :].mean(-3, keepdim=True)
    forms = [_ridge(form, Y, sizes) for form in (X, over_length(X))]
    chosen, left = (torch.stack(squares) for squares in zip(*forms, strict=True))  # (forms, ..., m)
    best = left.gather(0, chosen.argmin(0, keepdim=True))[0]
    return Scores(best, Y[..., -sizes.test :, :, :].square().sum((-3, -1)))


def _ridge(X: Tensor, Y: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The residuals on the validation systems, with the penalty that is best there, and on the test systems."""
    fitted = X[..., : sizes.train, :]
    X = (X - fitted.mean(-2, keepdim=True)) / (fitted.std(-2, keepdim=True) + 1e-300)
    X_train, Y_train = X[..., : sizes.train, :], Y[..., : sizes.train, :, :].flatten(-2)
    spectrum, V = torch.linalg.eigh(X_train.mT @ X_train / sizes.train)
    moments = V.mT @ (X_train.mT @ Y_train) / sizes.train  # (..., p, m n)
    unseen = X[..., sizes.train :, :] @ V
    X_choose, X_test = unseen[..., : sizes.validation, :], unseen[..., sizes.validation :, :]
    Y_choose, Y_test = Y[..., sizes.train : -sizes.test, :, :], Y[..., -sizes.test :, :, :]

    def left(X: Tensor, Y: Tensor, penalty: Tensor) -> Tensor:
        each = penalty.repeat_interleave(Y.shape[-1], -1)  # the same for every entry of a vector
        found = X @ (moments / (spectrum.clamp(min=0)[..., None] + each[..., None, :]))
        return (found.unflatten(-1, Y.shape[-2:]) - Y).square().sum((-3, -1))  # (..., m)

    penalties = torch.tensor(_PENALTIES, dtype=X.dtype)
    tried = torch.stack([left(X_choose, Y_choose, penalty.expand(Y.shape[-2])) for penalty in penalties])
    least, which = tried.min(0)
    return least, left(X_test, Y_test, penalties[which])


def unit(held: dict[str, Tensor]) -> Tensor:
    """All vectors, scaled to length one: (T+1, count, m, n)."""
    return over_length(torch.stack(list(held.values()), -2)).transpose(0, 1)
