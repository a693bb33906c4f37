"""How much k columns can save on a grid, if they are the best ones: exact eigenvectors in place of a network.

    python -m benchmarks.outlook_columns

With S = W A W, W the inverse root of A's diagonal, the preconditioner M = W (1 + V (1/L - 1) V^T) W has k eigenpairs
(L, V) of S exactly right and leaves the others to Jacobi's method. With the largest L it has the form that "diagonal +
rank k" gives, with the smallest that of "diagonal + coarse k". Prints iterations of PCG to mean squared errors, in
Markdown.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nlaformer.problems import Poisson2D, Systems
from nlaformer.problems.conjugate import pcg

_ERRORS = (2, 3, 4, 5, 6)
_SEED, _MOST = 5, 80


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


def main() -> None:
    """Print the table."""
    print("| grid | columns | " + " | ".join(f"1e-{k}" for k in _ERRORS) + " |")
    print("| :-- | :-- |" + " ---: |" * len(_ERRORS))
    for side, count in ((8, 128), (16, 32)):
        family = Poisson2D(n=side * side)
        systems = family.sample(count, _SEED)
        for columns, smallest in ((0, True), (8, False), (16, False), (8, True), (16, True), (32, True)):
            found = counts(family, systems, columns, smallest)
            name = f"{columns}, {'smallest' if smallest else 'largest'} eigenvalues" if columns else "none: Jacobi"
            print(f"| {side} x {side} | {name} | " + " | ".join(map(str, found)) + " |", flush=True)


if __name__ == "__main__":
    main()
