"""What is measured, on plain tensors: iterates (count, T + 1, n), matrices (count, n, n), solutions (count, n).

All errors, defects and distances are squared and relative to the solution, |e|^2 / |x|^2; only the ratios of the rule
(``naming``) are not squared.

- Krylov spaces K_m = span(b, A b, ..., A^(m-1) b). CG's x_t is the best of K_t in the norm of A, so an iterate that is
  better lies outside. The effective products m(t) are the least m whose K_m holds x_t but for a hundredth of its
  squared error (median).
- The error operator E_t of one matrix, x_t = (I - E_t) x, by least squares over many right-hand sides. In A's
  eigenbasis its diagonal is the spectral filter, 1 - E_ii, and the share of its energy off the diagonal is 0 for every
  polynomial in A. Methods that are not linear in b, such as CG, have a small share, since E_t is then a mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BANDS = 6  # groups of eigenvalues, from low to high, over which a filter is averaged
MULTIPLES = (1, 2, 3, 4)  # m / t of the Krylov spaces that distances are measured from
_HELD = 0.01  # share of the squared error that may lie outside K_m(t)


@dataclass(frozen=True)
class Spread:
    """A squared relative quantity over the systems, by iterate."""

    mean: tuple[float, ...]
    median: tuple[float, ...]
    failures: tuple[float, ...]
    """Share of the systems above 1, which is the error of x = 0, or not finite."""

    @classmethod
    def of(cls, squared: Tensor) -> Spread:
        """The spread of (count, iterates)."""
        known = torch.where(squared.isfinite(), squared, math.inf)
        return cls(numbers(known.mean(0)), numbers(middle(known)), numbers((known > 1).double().mean(0)))


@dataclass(frozen=True)
class Krylov:
    """Mean squared distances of x_t from K_m, m = t, 2t, 3t, 4t, and those of the solution; by t = 1, ..., T."""

    distance: tuple[tuple[float, ...], ...]
    solution: tuple[tuple[float, ...], ...]
    products: tuple[int | None, ...]
    """m(t); None where even the whole Krylov space does not hold x_t."""


@dataclass(frozen=True)
class ErrorOperator:
    """The error operator in A's eigenbasis, means over the matrices, at ``iterates``; NaN where one is not finite."""

    iterates: tuple[int, ...]
    off_diagonal: tuple[float, ...]
    filter: tuple[tuple[float, ...], ...]
    """Means of 1 - E_ii over six groups of eigenvalues, from low to high."""


def numbers(values: Tensor) -> tuple[float, ...]:
    """A vector as plain numbers."""
    return tuple(float(value) for value in values)


def middle(values: Tensor) -> Tensor:
    """The median over the first axis, the lower one of two; what is not a number counts as infinite."""
    return torch.where(values.isnan(), math.inf, values).median(0).values


def krylov_basis(A: Tensor, b: Tensor) -> Tensor:
    """Orthonormal vectors v_1, ..., v_n as rows, (count, n, n), the first m of which span K_m; zero where K_m ends."""
    basis, v = b.new_zeros(b.shape[0], b.shape[1], b.shape[1]), b
    for k in range(b.shape[1]):
        before = v.norm(dim=-1, keepdim=True)
        for _ in range(2):  # twice is enough
            v = v - (basis.mT @ (basis @ v[..., None]))[..., 0]
        size = v.norm(dim=-1, keepdim=True)
        v = torch.where(size > 1e-12 * before, v / size, 0.0)
        basis[:, k] = v
        v = (A @ v[..., None])[..., 0]
    return basis


def krylov(basis: Tensor, iterates: Tensor, x: Tensor) -> Krylov:
    """The distances of iterates and of solutions from the Krylov spaces of their systems."""
    n, T = x.shape[-1], iterates.shape[1] - 1
    outside, outside_x = (_outside(basis, v) for v in (iterates, x[:, None]))  # (count, iterates, n + 1)
    held = middle(outside / (iterates - x[:, None]).square().sum(-1, keepdim=True)) <= _HELD  # (T + 1, n + 1)
    size = x.square().sum(-1)[:, None, None]
    mean, mean_x = (outside / size).mean(0), (outside_x / size).mean(0)[0]
    return Krylov(
        tuple(tuple(float(mean[t, min(k * t, n)]) for k in MULTIPLES) for t in range(1, T + 1)),
        tuple(tuple(float(mean_x[min(k * t, n)]) for k in MULTIPLES) for t in range(1, T + 1)),
        tuple(next((m for m in range(n + 1) if held[t, m]), None) for t in range(1, T + 1)),
    )


def _outside(basis: Tensor, v: Tensor) -> Tensor:
    """Squared lengths of what remains of vectors (count, k, n) outside K_0, ..., K_n: (count, k, n + 1)."""
    coordinates = v @ basis.mT
    rest = v - coordinates @ basis  # outside every K_m
    tail = coordinates.square().flip(-1).cumsum(-1).flip(-1)  # inside, but beyond the first m
    tail = torch.cat([tail, torch.zeros_like(tail[..., :1])], -1)
    return tail + rest.square().sum(-1, keepdim=True)


def error_operator(A: Tensor, x: Tensor, iterates: Tensor, at: Sequence[int]) -> ErrorOperator:
    """Of matrices (k, n, n) with many solutions each, (k, count, n), from the iterates (k, count, T + 1, n)."""
    vectors = torch.linalg.eigh(A).eigenvectors  # ascending eigenvalues
    off, filters = [], []
    for t in at:
        finite = iterates[:, :, t].isfinite().all((-2, -1))[:, None, None]  # or LAPACK refuses all of them
        kept = torch.linalg.lstsq(x, torch.where(finite, iterates[:, :, t], 0.0)).solution.mT  # I - E
        kept = torch.where(finite, kept, math.nan)
        E = vectors.mT @ (torch.eye(A.shape[-1], dtype=A.dtype) - kept) @ vectors
        diagonal = E.diagonal(dim1=-2, dim2=-1)
        off.append(float((1 - diagonal.square().sum(-1) / E.square().sum((-2, -1))).mean()))
        filters.append(tuple(float(band.mean()) for band in (1 - diagonal).mean(0).tensor_split(BANDS)))
    return ErrorOperator(tuple(at), tuple(off), tuple(filters))


def iterations_of_same_error(errors: Sequence[float], reference: Sequence[float]) -> tuple[float | None, ...]:
    """For each error of a curve the iteration, between whole ones, at which a reference curve has it."""
    found: list[float | None] = []
    for error in errors:
        below = next((t for t, value in enumerate(reference) if value <= error), None)
        if below is None or not error > 0:
            found.append(None)
        elif below == 0:
            found.append(0.0)
        else:
            high, low = (math.log(max(reference[t], 1e-300)) for t in (below - 1, below))
            found.append(below - (math.log(error) - low) / (high - low))
    return tuple(found)
