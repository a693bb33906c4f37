"""The problems of the statistical algorithms: random data and, where there is one, the exact answer."""

from __future__ import annotations

import numpy as np

from nlaformer.compiler.library.families import Drawn, apply, least_squares, spectrum
from nlaformer.compiler.library.records import Arrays


def _probabilities(n: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Matrices of transitions: positive, each row with the sum 1."""
    P = rng.uniform(0.1, 1.0, (count, n, n))
    return P / P.sum(-1, keepdims=True)


def measurements(n: int, count: int, seed: int) -> Drawn:
    """A stable linear system and n noisy measurements of it; the answer conditions all of them at once."""
    rng = np.random.default_rng(seed)
    A = 0.7 * rng.standard_normal((count, n, n)) / np.sqrt(n)
    Q = spectrum(rng.uniform(0.2, 1.0, (count, n)), rng)
    h, noise = rng.standard_normal((count, n)) / np.sqrt(n), rng.uniform(0.2, 1.0, count)
    z = rng.standard_normal((count, n))
    return {"A": A, "z": z, "h": h, "Q": Q, "noise": noise}, _posterior(A, z, h, Q, noise)


def _posterior(A: np.ndarray, z: np.ndarray, h: np.ndarray, Q: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The mean of the last state given all measurements: x_0 ~ N(0, Q), x_k = A x_{k-1} + N(0, Q), z_k = h^T x_k."""
    n = A.shape[-1]
    covariances, P = [], Q  # of x_k with itself
    for _ in range(n):
        P = A @ P @ A.mT + Q
        covariances.append(P)
    rows = [h]  # h^T A^k
    for _ in range(n):
        rows.append(apply(A.mT, rows[-1]))
    among, last = np.zeros((len(z), n, n)), np.zeros((len(z), n, n))
    for i in range(n):
        for j in range(i, n):
            among[:, i, j] = among[:, j, i] = (rows[j - i] * apply(covariances[i], h)).sum(-1)
        last[:, :, i] = apply(np.linalg.matrix_power(A, n - 1 - i) @ covariances[i], h)
    return apply(last, np.linalg.solve(among + noise[:, None, None] * np.eye(n), z[..., None])[..., 0])


def row_by_row(n: int, count: int, seed: int) -> Drawn:
    """Least squares with the penalty |A|² / 100 that recursive least squares starts from."""
    inputs, _ = least_squares(n, count, seed)
    A, b = inputs["A"], inputs["b"]
    penalty = (A * A).sum((1, 2)) / 100
    return inputs, np.linalg.solve(A.mT @ A + penalty[:, None, None] * np.eye(n), (A.mT @ b[..., None]))[..., 0]


def penalized(n: int, count: int, seed: int) -> Drawn:
    """Least squares with a penalty."""
    inputs, _ = least_squares(n, count, seed)
    A, b = inputs["A"], inputs["b"]
    penalty = np.random.default_rng(seed + 1).uniform(0.1, 1.0, count)
    matrix = A.mT @ A + penalty[:, None, None] * np.eye(n)
    return inputs | {"penalty": penalty}, np.linalg.solve(matrix, (A.mT @ b[..., None]))[..., 0]


def graphs(n: int, count: int, seed: int) -> Drawn:
    """Random graphs, each page with a link at least: A_ij = 1 for a link from j to i."""
    rng = np.random.default_rng(seed)
    A = (rng.uniform(size=(count, n, n)) < 0.4).astype(float)
    A = np.maximum(A, np.roll(np.eye(n), 1, axis=0))
    surfer = 0.85 * A / A.sum(1, keepdims=True)
    x = np.linalg.solve(np.eye(n) - surfer, np.full((count, n, 1), 0.15 / n))
    return {"A": A}, x[..., 0]


def transports(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """Kernels of random costs and two distributions."""
    rng = np.random.default_rng(seed)
    b, c = rng.uniform(0.5, 1.5, (2, count, n))
    kernel = np.exp(-rng.uniform(0.0, 2.0, (count, n, n)))
    return {"A": kernel, "b": b / b.sum(-1, keepdims=True), "c": c / c.sum(-1, keepdims=True)}, None


def two_groups(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """Samples of two normal distributions around -1 and 1."""
    rng = np.random.default_rng(seed)
    return {"b": np.where(np.arange(n) % 2, 1.0, -1.0) + 0.5 * rng.standard_normal((count, n))}, None


def hidden_chains(n: int, count: int, seed: int) -> Drawn:
    """Transitions A and likelihoods C of n sights; the answer after all of them."""
    rng = np.random.default_rng(seed)
    A, C = _probabilities(n, count, rng), rng.uniform(0.1, 1.0, (count, n, n))
    x = np.full((count, n), 1.0 / n)
    for k in range(n):
        x = apply(A.mT, x) * C[:, :, k]
    return {"A": A, "C": C}, x / x.sum(-1, keepdims=True)


def decisions(n: int, count: int, seed: int) -> Drawn:
    """Two actions with transitions A and C and rewards b and c; the answer by Howard's iteration over policies."""
    rng = np.random.default_rng(seed)
    A, C = _probabilities(n, count, rng), _probabilities(n, count, rng)
    b, c = rng.standard_normal((2, count, n))
    x = np.zeros((count, n))
    for _ in range(2 * n + 5):
        first = b + 0.5 * apply(A, x) >= c + 0.5 * apply(C, x)
        P, reward = np.where(first[..., None], A, C), np.where(first, b, c)
        x = np.linalg.solve(np.eye(n) - 0.5 * P, reward[..., None])[..., 0]
    return {"A": A, "b": b, "C": C, "c": c}, x


def spins(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """Couplings below the critical strength, and fields."""
    rng = np.random.default_rng(seed)
    return {"A": spectrum(rng.uniform(-0.8, 0.8, (count, n)), rng), "b": rng.standard_normal((count, n))}, None


def vibrations(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """Stiffness matrices and initial displacements."""
    rng = np.random.default_rng(seed)
    return {"A": spectrum(rng.uniform(0.5, 2.0, (count, n)), rng), "x0": rng.standard_normal((count, n))}, None


def rings(n: int, count: int, seed: int) -> Drawn:
    """Sources on a ring whose sum is 0, and the temperatures they lead to."""
    b = np.random.default_rng(seed).standard_normal((count, n)) / n
    b = b - b.mean(-1, keepdims=True)
    eye = np.eye(n)
    flow = 0.25 * (2 * eye - np.roll(eye, 1, axis=0) - np.roll(eye, -1, axis=0))
    return {"b": b}, apply(np.linalg.pinv(flow), b)


def polynomials(n: int, count: int, seed: int) -> Drawn:
    """A matrix of spectral norm 1, n coefficients c, and a vector v."""
    rng = np.random.default_rng(seed)
    A = spectrum(rng.uniform(-1.0, 1.0, (count, n)), rng)
    c, v = rng.standard_normal((2, count, n))
    values, vectors = np.linalg.eigh(A)
    p = np.array([np.polyval(*pair) for pair in zip(c, values, strict=True)])
    return {"A": A, "c": c, "v": v}, apply(vectors, p * apply(vectors.mT, v))
