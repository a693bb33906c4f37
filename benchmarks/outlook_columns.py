"""How much k columns can save on a grid, if they are the best ones: exact eigenvectors in place of a network.

    python -m benchmarks.outlook_columns

With S = W A W, W the inverse root of A's diagonal, the preconditioner M = W (1 + V (1/L - 1) V^T) W has k eigenpairs
(L, V) of S exactly right and leaves the others to Jacobi's method. With the largest L it has the form that "diagonal +
rank k" gives, with the smallest that of "diagonal + coarse k". Prints iterations of PCG to mean squared errors, in
Markdown; then products with A of ``nf.solve`` with such an M in the place of a learned one, which is watched, and
without the switch to CG.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import nlaformer as nf
from nlaformer.problems import Poisson2D, Systems
from nlaformer.problems.conjugate import pcg

_ERRORS = (2, 3, 4, 5, 6)
_SEED, _MOST, _RTOL = 5, 80, 1e-9


def counts(family: Poisson2D, systems: Systems, columns: int, smallest: bool) -> list[int | None]:
    """Iterations to 1e-2, ..., 1e-6 with k exact columns; 0 is Jacobi's method."""
    A = systems.A.double()
    w = A.diagonal(dim1=-2, dim2=-1).rsqrt()
    values, vectors = torch.linalg.eigh(w[..., None] * A * w[..., None, :])
    chosen = slice(0, columns) if smallest else slice(values.shape[-1] - columns, None)
    V, change = vectors[..., chosen], 1 / values[..., chosen] - 1

    def apply(r: Tensor) -> Tensor:
        inner = change * (V.mT @ (w * r)[..., None])[..., 0]
        return w * (w * r + (V @ inner[..., None])[..., 0])

    error = family.error(pcg(A, systems.b, _MOST, M=apply).x, systems).mean(0)
    return [next((t for t in range(_MOST + 1) if error[t] <= 10.0**-k), None) for k in _ERRORS]


class Exact:
    """Stands in for a trained model that writes a preconditioner: Jacobi's with the k smallest eigenvectors."""

    role, coarse = "preconditioner", True

    def __init__(self, n: int, columns: int) -> None:
        self.config, self._columns = SimpleNamespace(n=n), columns

    def preconditioner(self, A: Tensor) -> tuple[Tensor, Tensor]:
        w = A.diagonal(dim1=-2, dim2=-1).rsqrt()
        values, vectors = torch.linalg.eigh(w[..., None] * A * w[..., None, :])
        length = (1 / values[..., None, : self._columns] - 1).clamp(min=0).sqrt()
        return w**2, w[..., None] * vectors[..., : self._columns] * length


def behind(systems: Systems, columns: int) -> dict[str, float]:
    """Products with A of ``nf.solve``, medians."""
    A, b, _ = systems
    M = Exact(A.shape[-1], columns)
    options: dict[str, dict[str, Any]] = {
        "nf.solve": {"M": M},
        "without the switch": {"M": M, "switch": False},
        "Jacobi": {"M": "jacobi"},
        "CG": {"method": "cg"},
    }
    return {name: float(np.median(nf.solve(A, b, rtol=_RTOL, **own).matvecs)) for name, own in options.items()}


def main() -> None:
    """Print the tables."""
    print("| grid | columns | " + " | ".join(f"1e-{k}" for k in _ERRORS) + " |")
    print("| :-- | :-- |" + " ---: |" * len(_ERRORS))
    for side, count in ((8, 128), (16, 32)):
        family = Poisson2D(n=side * side)
        systems = family.sample(count, _SEED)
        for columns, smallest in ((0, True), (8, False), (16, False), (8, True), (16, True), (32, True)):
            found = counts(family, systems, columns, smallest)
            name = f"{columns}, {'smallest' if smallest else 'largest'} eigenvalues" if columns else "none: Jacobi"
            print(f"| {side} x {side} | {name} | " + " | ".join(map(str, found)) + " |", flush=True)
    print(f"\nProducts with A to {_RTOL:g}, medians")
    for side, sigma in ((8, 1.0), (16, 1.0), (16, 0.0), (16, 2.0)):
        systems = Poisson2D(n=side * side, sigma=sigma).sample(32, _SEED)
        for columns in (16, 32):
            told = ", ".join(f"{name} {value:g}" for name, value in behind(systems, columns).items())
            print(f"{side} x {side}, sigma {sigma:g}, {columns} columns: {told}", flush=True)


if __name__ == "__main__":
    main()
