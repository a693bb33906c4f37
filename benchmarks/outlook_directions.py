"""How many products guided-eigen can save at all: exact matrices in place of a network.

    python -m benchmarks.outlook_directions

The preconditioner of a step is the inverse of B - s lambda, where lambda is the smallest eigenvalue of B. B is A
itself, or the nearest diagonal plus k columns that alternating projections find; s is how much of lambda is subtracted.
Directions are how many are kept: a proposal is conjugate to all of them, and the iterate is the Ritz vector with each
in turn, with one the latest alone. Prints products to mean errors in Markdown, and those of Lanczos's method.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nlaformer.problems import SmallestEigenpair, Systems
from nlaformer.problems.eigen import lanczos
from nlaformer.problems.vectors import divided, dot, product

_ERRORS = (2, 4, 6, 8, 10)
_SEED, _COUNT, _MOST, _PROJECTIONS = 5, 256, 30, 60
_SIGMA = (1.0, 1.2, 1.4)  # as in the training


def nearest(A: Tensor, columns: int) -> Tensor:
    """A diagonal plus columns close to A, with A's own diagonal."""
    a = A.diagonal(dim1=-2, dim2=-1)
    diagonal = a / 2
    for _ in range(_PROJECTIONS):
        values, vectors = torch.linalg.eigh(A - torch.diag_embed(diagonal))
        U = vectors[..., -columns:] * values[..., None, -columns:].clamp(min=0).sqrt()
        diagonal = torch.maximum(a - U.square().sum(-1), 0.02 * a)
    return torch.diag_embed(diagonal) + U @ U.mT


def iterates(A: Tensor, b: Tensor, M: Tensor, directions: int) -> Tensor:
    """The iterates of the method with one preconditioner for all steps, (count, iterations + 1, n)."""
    x = divided(b, b.norm(dim=-1, keepdim=True))
    p = product(A, x)
    kept: list[tuple[Tensor, Tensor]] = []
    found = [x]
    for _ in range(_MOST):
        rho = dot(x, p)
        c = product(M, rho * x - p)
        c = c - dot(x, c) * x
        for d, q in kept:
            d, q = d - dot(x, d) * x, q - dot(x, d) * p
            c = c - divided(dot(c, q - rho * d), dot(d, q - rho * d)) * d
        c = divided(c, c.norm(dim=-1, keepdim=True))
        kept = [(c, product(A, c)), *kept][:directions]
        for d, q in kept:
            x, p = _ritz(x, p, d, q)
        found.append(x)
    return torch.stack(found, 1)


def _ritz(x: Tensor, p: Tensor, d: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The Ritz vector of the smaller Ritz value in the span of x and d, and its product with A."""
    d, q = d - dot(x, d) * x, q - dot(x, d) * p
    size = d.norm(dim=-1, keepdim=True)
    d, q = divided(d, size), divided(q, size)
    g, half = dot(d, p), (dot(d, q) - dot(x, p)) / 2
    first = half + torch.hypot(half, g)
    length = torch.hypot(first, g)
    return tuple(torch.where(length > 0, divided(first * v - g * w, length), v) for v, w in ((x, d), (p, q)))  # type: ignore[return-value]


def counts(family: SmallestEigenpair, systems: Systems, found: Tensor) -> list[int | None]:
    """Products to each mean error."""
    error = family.error(found, systems).mean(0).tolist()
    return [next((t for t, value in enumerate(error) if value <= 10.0**-k), None) for k in _ERRORS]


def main() -> None:
    """Print the table."""
    family = SmallestEigenpair(n=20, sigma=_SIGMA)
    systems = family.sample(_COUNT, _SEED)
    A, b, _ = systems
    print("| B | subtracted | directions | " + " | ".join(f"1e-{k}" for k in _ERRORS) + " |")
    print("| :-- | ---: | ---: |" + " ---: |" * len(_ERRORS))
    print("| Lanczos | | | " + " | ".join(map(str, counts(family, systems, lanczos(A, b, _MOST)))) + " |")
    for name, B in (("A", A), *((f"diagonal + {k} columns", nearest(A, k)) for k in (1, 4, 8))):
        smallest = torch.linalg.eigvalsh(B)[:, :1, None]
        for share in (0.0, 0.5, 0.9):
            M = torch.linalg.inv(B - share * smallest * torch.eye(family.n, dtype=B.dtype))
            for directions in (1, 4, 6):
                row = counts(family, systems, iterates(A, b, M, directions))
                print(f"| {name} | {share} | {directions} | " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
