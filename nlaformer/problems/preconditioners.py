"""Classical preconditioners of systems on grids: what a learned method for diffusion faces beside Jacobi's.

IC(0) is the incomplete Cholesky factorization A ~ L L^T with the entries of A's own lower triangle and no others
(Meijerink and van der Vorst 1977), of all systems at once: they share a pattern. The multigrid method is PyAMG's, a
V-cycle of smoothed aggregation, one system after the other on the CPU; it is there where PyAMG is installed.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from nlaformer.problems.base import Rival
from nlaformer.problems.conjugate import CLASSICAL, pcg


def incomplete_cholesky(A: Tensor) -> Tensor:
    """The factor L of IC(0), (count, n, n), for positive definite A (count, n, n) that vanish in the same places.

    >>> A = torch.tensor([[[4.0, 2.0, 0.0], [2.0, 5.0, 2.0], [0.0, 2.0, 5.0]]]).double()
    >>> torch.allclose(incomplete_cholesky(A), torch.linalg.cholesky(A))  # no fill-in, so it is complete
    True
    """
    device, A = A.device, A.cpu()  # many small steps, each of which a GPU would wait for
    L, pattern = A.double().tril().clone(), (A != 0).any(0)
    for k in range(A.shape[-1]):
        L[:, k, k] = L[:, k, k].sqrt()
        below = k + 1 + pattern[k + 1 :, k].nonzero()[:, 0]
        L[:, below, k] = L[:, below, k] / L[:, k, k, None]
        for i in below.tolist():
            rows = below[(below >= i) & pattern[below, i]]
            L[:, rows, i] = L[:, rows, i] - L[:, rows, k] * L[:, i, k, None]
    return L.to(device)


def _incomplete(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    L = incomplete_cholesky(A)

    def solve(r: Tensor) -> Tensor:
        half = torch.linalg.solve_triangular(L, r[..., None], upper=False)
        return torch.linalg.solve_triangular(L.mT, half, upper=True)[..., 0]

    return pcg(A, b, iterations, M=solve).x


def _multigrid(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    import pyamg
    from scipy.sparse import csr_matrix

    cycles = [
        pyamg.smoothed_aggregation_solver(csr_matrix(matrix), max_coarse=4).aspreconditioner()
        for matrix in A.cpu().double().numpy()
    ]

    def cycle(r: Tensor) -> Tensor:
        vectors = r.cpu().numpy()
        done = np.stack([M.matvec(v) if np.any(v) else v for M, v in zip(cycles, vectors, strict=True)])
        return torch.from_numpy(done).to(r)

    return pcg(A, b, iterations, M=cycle).x


def on_grids() -> dict[str, Rival]:
    """Conjugate gradients with Jacobi's preconditioner, none, IC(0) and, where PyAMG is installed, multigrid."""
    found: dict[str, Rival] = {name: CLASSICAL[name] for name in ("PCG, Jacobi", "CG")}
    return found | {"PCG, IC(0)": _incomplete} | ({"PCG, multigrid": _multigrid} if find_spec("pyamg") else {})
