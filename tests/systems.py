"""Linear systems for the tests of the compiler."""

from __future__ import annotations

import numpy as np

from nlaformer.problems.spd import random_spd


def family(n: int, count: int, sigma: float, seed: int = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, b and the solution x of systems of the paper's family."""
    A = random_spd(n, count, sigma, seed)
    x = np.random.default_rng(seed).standard_normal((count, n))
    return A, (A @ x[..., None])[..., 0], x


def with_eigenvalues(eigenvalues: np.ndarray, seed: int = 3) -> np.ndarray:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    n = len(eigenvalues)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]
    A = (Q * eigenvalues) @ Q.T
    return (A + A.T) / 2


def relative_error(x: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|x_t - x| / |x| for iterates (..., T + 1, n)."""
    return np.linalg.norm(x - exact[..., None, :], axis=-1) / np.linalg.norm(exact, axis=-1)[..., None]
