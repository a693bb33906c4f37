"""Linear systems for the tests of the compiler, and a method with a part that is left open."""

from __future__ import annotations

from typing import Any

import numpy as np

import nlaformer as nf
from nlaformer.problems.spd import random_spd

SAYS = {nf.RunStatus.INACCURATE, nf.RunStatus.NOT_POSITIVE, nf.RunStatus.NONFINITE}  # the answer must not be used


class StartsAtB(nf.Program):
    """A program whose state x starts as b; tests give it a step."""

    def start(self, b: Any) -> dict[str, Any]:
        return dict(x=b)


def family(n: int, count: int, sigma: float, seed: int = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, b and the solution x of systems of the paper's family."""
    A = random_spd(n, count, sigma, seed)
    x = np.random.default_rng(seed).standard_normal((count, n))
    return A, (A @ x[..., None])[..., 0], x


def mixed_signs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A and b of mixed signs; A is not symmetric."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, n)), rng.standard_normal(n)


def with_eigenvalues(eigenvalues: np.ndarray, seed: int = 3) -> np.ndarray:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    n = len(eigenvalues)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]
    A = (Q * eigenvalues) @ Q.T
    return (A + A.T) / 2


def relative_error(x: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|x_t - x| / |x| for iterates (..., T + 1, n)."""
    return np.linalg.norm(x - exact[..., None, :], axis=-1) / np.linalg.norm(exact, axis=-1)[..., None]


class ProposedCG(nf.Program):
    """Flexible conjugate gradients along whatever a network proposes."""

    positive_definite = True
    propose = nf.Learned("vector", memory=True)

    def start(self, A: Any, b: Any, x0: Any) -> dict[str, Any]:
        return dict(x=x0, r=b - A @ x0, d=nf.zeros_like(b), q=nf.zeros_like(b))

    def step(self, A: Any, x: Any, r: Any, d: Any, q: Any) -> dict[str, Any]:
        c = self.propose(A, r / nf.norm(r))
        d = c - (nf.dot(c, q) / nf.dot(d, q)) * d
        q = A @ d
        alpha = nf.dot(r, d) / nf.dot(d, q)
        return dict(x=x + alpha * d, r=r - alpha * q, d=d, q=q)
