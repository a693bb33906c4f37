"""The paper's family of symmetric positive definite systems (section 4).

"A symmetric positive definite matrix, generated using standard scikit-learn libraries" is ``make_spd_matrix``:
with G uniform in [0, 1)^{n x n}, the singular vectors U of G^T G and u uniform in [0, 1)^n it computes
``U @ (1.0 + np.diag(u)) @ U.T``. The 1.0 is added to *every* entry, not to the diagonal, so that

    A = (U 1)(U 1)^T + U diag(u) U^T + diag(exp(sigma z)),    z ~ N(0, I),

the last term being the paper's log-normal diagonal with "variance sigma", which we take as NumPy's ``sigma``.

The vector U 1 depends on the signs of the singular vectors, which LAPACK leaves open and which differ between its
builds. We draw them at random. With scikit-learn they are LAPACK's, which is the same but for a slight preference
in row and column 0 of A; without the diagonal, the spectrum does not depend on them at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from nlaformer.problems.base import Draws, Family, sigmas, symmetric, whole


@dataclass(frozen=True)
class SPD(Family):
    """scikit-learn's ``make_spd_matrix`` plus a log-normal diagonal.

    Parameters
    ----------
    n : the size of the systems
    sigma : of the log-normal diagonal; of several, each system takes one at random

    Examples
    --------
    >>> family = SPD(n=3, sigma=(1.0, 1.4))
    >>> A, b, x = family.sample(count=5, seed=0)
    >>> A.shape, bool(torch.allclose(A @ x[..., None], b[..., None]))
    (torch.Size([5, 3, 3]), True)
    >>> batch = family.stream(64, torch.Generator("cpu").manual_seed(0))  # for training, on the generator's device
    >>> batch.A.dtype
    torch.float32
    """

    name: ClassVar[str] = "spd"
    n: int = whole(20, least=1)
    sigma: tuple[float, ...] = sigmas(1.2)

    def matrices(self, draw: Draws, count: int) -> Tensor:
        U = _singular_vectors(draw.uniform("G", count, self.n, self.n), draw.uniform("sign", count, self.n))
        u = draw.uniform("u", count, self.n)
        # A product of one factor with itself stays symmetric and semidefinite however coarsely it is rounded.
        S = torch.cat([U.sum(-1, keepdim=True), U * u.sqrt()[:, None, :]], -1)  # (count, n, n+1)
        chance = draw.uniform("sigma", count, 1)
        sigmas = torch.tensor(self.sigma, dtype=chance.dtype, device=chance.device)
        sigma = sigmas[(chance * len(sigmas)).long()]  # (count, 1)
        diagonal = torch.exp(sigma * draw.normal("diagonal", count, self.n))
        return symmetric(S @ S.mT + torch.diag_embed(diagonal))


def _singular_vectors(G: Tensor, chance: Tensor) -> Tensor:
    """The singular vectors of G^T G as columns, each with the sign that ``chance`` gives it."""
    U = torch.linalg.eigh(G.mT @ G).eigenvectors  # (count, n, n)
    # Whichever sign LAPACK chose, a column's sum is made positive first; only then is the random sign applied.
    negative = (U.sum(-2) < 0) != (chance < 0.5)
    return torch.where(negative[:, None, :], -U, U)


def random_spd(n: int, count: int, sigma: float = 1.2, seed: int = 0) -> np.ndarray:
    """Matrices of the same family by scikit-learn's own generator, (count, n, n), float64.

    ``SPD`` is the family to use. These draws define what the compiler's weights were verified on and measured with.
    """
    from sklearn.datasets import make_spd_matrix

    rng = np.random.default_rng(seed)
    matrices = [
        make_spd_matrix(n, random_state=int(rng.integers(2**31))) + np.diag(rng.lognormal(0.0, sigma, n))
        for _ in range(count)
    ]
    return np.stack(matrices)
