"""The problems that the library's algorithms are meant for: random inputs and, where there is one, the exact answer.

Each function takes the size, the number of problems and a seed. Rectangular data are padded with zeros to n x n.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nlaformer.compiler.library.records import Arrays
from nlaformer.problems.spd import random_spd

Drawn = tuple[Arrays, np.ndarray]


def apply(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A x of every problem."""
    return (A @ x[..., None])[..., 0]


def solved(A: np.ndarray, b: np.ndarray) -> Drawn:
    """The systems A x = b with their solutions."""
    return {"A": A, "b": b}, np.linalg.solve(A, b[..., None])[..., 0]


def definite(n: int, count: int, seed: int) -> Drawn:
    """Symmetric positive definite systems, the paper's family with sigma = 1.2."""
    A, rng = random_spd(n, count, seed=seed), np.random.default_rng(seed)
    return solved(A, apply(A, rng.standard_normal((count, n))))


def nonsymmetric(n: int, count: int, seed: int) -> Drawn:
    """The same, disturbed by 0.1 in every entry."""
    A, rng = random_spd(n, count, seed=seed), np.random.default_rng(seed)
    x = rng.standard_normal((count, n))
    A = A + 0.1 * rng.standard_normal(A.shape)
    return solved(A, apply(A, x))


def orthogonal(n: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random orthogonal matrices."""
    return np.linalg.qr(rng.standard_normal((count, n, n)))[0]


def spectrum(eigenvalues: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Symmetric matrices with these eigenvalues, (count, n), and random eigenvectors."""
    Q = orthogonal(eigenvalues.shape[1], len(eigenvalues), rng)
    A = (Q * eigenvalues[:, None, :]) @ Q.mT
    return (A + A.mT) / 2


def indefinite(n: int, count: int, seed: int) -> Drawn:
    """Symmetric systems with eigenvalues of both signs, 1/2 to 2 in size."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(0.5, 2.0, (count, n))
    A = spectrum(size * np.where(np.arange(n) % 3 == 2, -1.0, 1.0), rng)
    return solved(A, apply(A, rng.standard_normal((count, n))))


def dominant(n: int, count: int, seed: int) -> Drawn:
    """Nonsymmetric systems whose diagonal exceeds the sum of the rest of its row."""
    rng = np.random.default_rng(seed)
    A = rng.uniform(-1.0, 1.0, (count, n, n)) / n
    A = A + np.eye(n) * rng.uniform(1.0, 2.0, (count, n, 1))
    return solved(A, apply(A, rng.standard_normal((count, n))))


def columns(n: int) -> int:
    """The columns of a tall matrix, padded to n."""
    return max(1, (3 * n) // 4)


def tall(n: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Matrices with singular values in [1/2, 2] in three quarters of the columns, 0 in the others."""
    k = columns(n)
    U, V = orthogonal(n, count, rng)[..., :k], orthogonal(k, count, rng)
    A = np.zeros((count, n, n))
    A[..., :k] = (U * rng.uniform(0.5, 2.0, (count, 1, k))) @ V
    return A


def least_squares(n: int, count: int, seed: int) -> Drawn:
    """Overdetermined systems, min |A x - b|, with noise in b."""
    rng = np.random.default_rng(seed)
    A = tall(n, count, rng)
    b = apply(A, rng.standard_normal((count, n))) + 0.3 * rng.standard_normal((count, n))
    return {"A": A, "b": b}, apply(np.linalg.pinv(A), b)


def reduction(A: np.ndarray, b: np.ndarray) -> Drawn:
    """V^T A V in Hessenberg form with b / |b| the first column of V, by Householder's reflections."""
    from scipy.linalg import hessenberg

    n, answers = A.shape[-1], []
    for matrix, vector in zip(A, b, strict=True):
        Q = np.linalg.qr(np.column_stack([vector, np.eye(n)[:, 1:]]))[0]
        H = hessenberg(Q.T @ matrix @ Q)
        signs = np.cumprod([1.0, *np.sign(np.diag(H, -1))])  # the subdiagonal is positive
        answers.append(H * signs * signs[:, None])
    return {"A": A, "b": b}, np.array(answers)


def symmetric_reduction(n: int, count: int, seed: int) -> Drawn:
    """Symmetric matrices and a vector, to be made tridiagonal."""
    return reduction(**indefinite(n, count, seed)[0])


def general_reduction(n: int, count: int, seed: int) -> Drawn:
    """Nonsymmetric matrices and a vector, to be brought to Hessenberg form."""
    return reduction(**dominant(n, count, seed)[0])


def consistent(n: int, count: int, seed: int) -> Drawn:
    """Nonsymmetric systems with singular values in [1/2, 2]."""
    rng = np.random.default_rng(seed)
    A = (orthogonal(n, count, rng) * rng.uniform(0.5, 2.0, (count, 1, n))) @ orthogonal(n, count, rng)
    return solved(A, apply(A, rng.standard_normal((count, n))))


# --- optimization ---


def moderate(n: int, count: int, seed: int) -> Drawn:
    """Definite systems with eigenvalues in [1/2, 2]."""
    rng = np.random.default_rng(seed)
    A = spectrum(rng.uniform(0.5, 2.0, (count, n)), rng)
    return solved(A, apply(A, rng.standard_normal((count, n))))


def cubic(n: int, count: int, seed: int) -> Drawn:
    """A x + x³ / 10 = b, A diagonally dominant."""
    A, x = dominant(n, count, seed)[0]["A"], np.random.default_rng(seed + 1).standard_normal((count, n))
    return {"A": A, "b": apply(A, x) + 0.1 * x**3}, x


def exponential(n: int, count: int, seed: int) -> Drawn:
    """The equations x + e^x = b; the answer by Lambert's function."""
    from scipy.special import lambertw

    b = 3 * np.random.default_rng(seed).standard_normal((count, n))
    return {"b": b}, b - lambertw(np.exp(b)).real


def trust_region(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """b, d > 0 and a radius that b / d exceeds."""
    rng = np.random.default_rng(seed)
    b, d = rng.standard_normal((count, n)), rng.uniform(0.5, 2.0, (count, n))
    return {"b": b, "d": d, "radius": 0.5 * np.linalg.norm(b / d, axis=-1)}, None


def labels(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """Data A with rows of length near 1 and noisy labels b in {0, 1}."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((count, n, n)) / np.sqrt(n)
    chance = 1 / (1 + np.exp(-3 * apply(A, rng.standard_normal((count, n)))))
    return {"A": A, "b": (rng.uniform(size=(count, n)) < chance).astype(float)}, None


def regression(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """Overdetermined systems whose b has noise."""
    return least_squares(n, count, seed)[0], None


def box(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """Definite systems, and a box that cuts off about half of the entries of the solution."""
    inputs, x = moderate(n, count, seed)
    half = np.median(np.abs(x), axis=-1, keepdims=True) * np.ones(n)
    return inputs | {"lower": -half, "upper": half}, None


def nonnegative(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """Nonnegative data."""
    rng = np.random.default_rng(seed)
    A = rng.uniform(0.0, 1.0, (count, n, n)) + 2 * np.eye(n)
    return {"A": A, "b": apply(A, rng.uniform(0.0, 1.0, (count, n)))}, None


def simplex(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """Definite quadratic functions of size 1, for probabilities."""
    rng = np.random.default_rng(seed)
    return {"A": spectrum(rng.uniform(0.5, 2.0, (count, n)), rng), "b": rng.standard_normal((count, n)) / 4}, None


# --- matrices ---


def _function_of(A: np.ndarray, f: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    values, vectors = np.linalg.eigh(A)
    return (vectors * f(values)[:, None, :]) @ vectors.mT


def inverses(n: int, count: int, seed: int) -> Drawn:
    A = random_spd(n, count, seed=seed)
    return {"A": A}, np.linalg.inv(A)


def square_roots(n: int, count: int, seed: int) -> Drawn:
    A = moderate(n, count, seed)[0]["A"]
    return {"A": A}, _function_of(A, np.sqrt)


def inverse_square_roots(n: int, count: int, seed: int) -> Drawn:
    A = moderate(n, count, seed)[0]["A"]
    return {"A": A}, _function_of(A, lambda values: 1 / np.sqrt(values))


def signs(n: int, count: int, seed: int) -> Drawn:
    A = indefinite(n, count, seed)[0]["A"]
    return {"A": A}, _function_of(A, np.sign)


def polar_factors(n: int, count: int, seed: int) -> Drawn:
    A = consistent(n, count, seed)[0]["A"]
    U, _, V = np.linalg.svd(A)
    return {"A": A}, U @ V


def exponentials(n: int, count: int, seed: int) -> Drawn:
    from scipy.linalg import expm

    A = np.random.default_rng(seed).standard_normal((count, n, n)) / n
    return {"A": A}, np.array([expm(matrix) for matrix in A])


def occupations(n: int, count: int, seed: int) -> Drawn:
    """Symmetric matrices with eigenvalues in [0, 0.4] and [0.6, 1]."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.0, 0.4, (count, n)) + 0.6 * (np.arange(n) % 2)
    A = spectrum(values, rng)
    return {"A": A}, _function_of(A, np.round)


def steady_states(n: int, count: int, seed: int) -> Drawn:
    from scipy.linalg import solve_discrete_lyapunov

    rng = np.random.default_rng(seed)
    A = rng.standard_normal((count, n, n))
    A = 0.7 * A / np.linalg.norm(A, 2, axis=(1, 2), keepdims=True)
    Q = spectrum(rng.uniform(0.5, 2.0, (count, n)), rng)
    return {"A": A, "Q": Q}, np.array([solve_discrete_lyapunov(*pair) for pair in zip(A, Q, strict=True)])


def cholesky_factors(n: int, count: int, seed: int) -> Drawn:
    A = moderate(n, count, seed)[0]["A"]
    return {"A": A}, np.linalg.cholesky(A)


def triangular_factors(n: int, count: int, seed: int) -> Drawn:
    """Matrices with dominant columns, which LAPACK factors without exchanges too."""
    from scipy.linalg import lu

    A = dominant(n, count, seed)[0]["A"].mT
    return {"A": A}, np.array([lu(matrix)[2] for matrix in A])


def eliminations(n: int, count: int, seed: int) -> Drawn:
    A = dominant(n, count, seed)[0]["A"]
    return {"A": A}, np.linalg.inv(A)


def orthonormal_factors(n: int, count: int, seed: int) -> Drawn:
    A = consistent(n, count, seed)[0]["A"]
    Q, R = np.linalg.qr(A)
    return {"A": A}, Q * np.sign(np.diagonal(R, axis1=-2, axis2=-1))[:, None, :]


# --- eigenvectors ---


def dominant_eigenvectors(n: int, count: int, seed: int) -> Drawn:
    A = random_spd(n, count, seed=seed)
    vectors = np.linalg.eigh(A)[1][..., -1]
    return {"A": A}, vectors * np.sign(vectors.sum(-1, keepdims=True))  # the power method starts from A times ones


def graded(n: int, count: int, seed: int) -> tuple[Arrays, np.ndarray]:
    """Symmetric matrices with the eigenvalues 1, 1/2, 1/4, ..., at least 1/16, a vector b, and the eigenvectors."""
    rng = np.random.default_rng(seed)
    values = np.maximum(0.5 ** np.arange(n), rng.uniform(0.01, 0.0625, (count, n)))
    A, b = spectrum(values, rng), rng.standard_normal((count, n))
    vectors = np.linalg.eigh(A)[1][..., ::-1]
    return {"A": A, "b": b}, vectors * np.sign(b[:, None, :] @ vectors)


def first_eigenvectors(n: int, count: int, seed: int) -> Drawn:
    inputs, vectors = graded(n, count, seed)
    return inputs, vectors[..., 0]


def eigenvectors(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """The same; for a second eigenvector, whose sign is open."""
    return graded(n, count, seed)[0], None


def last_eigenvectors(n: int, count: int, seed: int) -> Drawn:
    """The eigenvalue 1 and others in [2, 5]."""
    rng = np.random.default_rng(seed)
    values = np.where(np.arange(n) == 0, 1.0, rng.uniform(2.0, 5.0, (count, n)))
    A, b = spectrum(values, rng), rng.standard_normal((count, n))
    vectors = np.linalg.eigh(A)[1][..., 0]
    return {"A": A, "b": b}, vectors * np.sign((b * vectors).sum(-1, keepdims=True))


def near_eigenvectors(n: int, count: int, seed: int) -> tuple[Arrays, None]:
    """Symmetric matrices and a vector near one of their eigenvectors."""
    inputs, vectors = graded(n, count, seed)
    noise = np.random.default_rng(seed + 1).standard_normal((count, n)) / np.sqrt(n)
    return {"A": inputs["A"], "b": vectors[..., min(1, n - 1)] + 0.1 * noise}, None


def singular_vectors(n: int, count: int, seed: int) -> Drawn:
    rng = np.random.default_rng(seed)
    values = np.where(np.arange(n) == 0, 2.0, rng.uniform(0.1, 1.0, (count, n)))
    A = (orthogonal(n, count, rng) * values[:, None, :]) @ orthogonal(n, count, rng)
    b = rng.standard_normal((count, n))
    vectors = np.linalg.svd(A)[2][:, 0]
    return {"A": A, "b": b}, vectors * np.sign((b * vectors).sum(-1, keepdims=True))
