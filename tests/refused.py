"""What users write and the compiler refuses, with a part of its advice, and the line that follows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special

from nlaformer.program.refusals import OTHERWISE
from tests.systems import StartsAtB

N = 6


def program_of(expression):
    class Once(StartsAtB):
        def step(self, x):
            return dict(x=x)

        def finish(self, A, b, x):
            return expression(A, b, x)

    return Once()


def shifted(x):
    w = np.exp(x - np.max(x))
    return w / np.sum(w)


def halved(x):
    while x @ x > 1:
        x = x / 2
    return x


def halved_four_times(x):
    for _ in range(4):
        x = x + (x / 2 - x) * np.maximum(np.sign(x @ x - 1), 0)
    return x


def with_entry(w, x):
    w[0] = x[1]
    return w


def with_sum(w, x):
    w += x
    return w


def small_sine(v):
    return v - v**3 / 6 + v**5 / 120


def arctan(v):
    for _ in range(4):
        v = v / (1 + np.sqrt(1 + v * v))
    return 16 * (v - v**3 / 3 + v**5 / 5 - v**7 / 7 + v**9 / 9)


def in_order(v):
    v, n = v.copy(), len(v)
    for k in range(n):
        for i in range(k % 2, n - 1, 2):
            v[i], v[i + 1] = np.minimum(v[i], v[i + 1]), np.maximum(v[i], v[i + 1])
    return v


def at_largest(v):
    return np.maximum(np.sign(v - np.max(v) + 1e-9 * np.max(np.abs(v))), 0)


def forward(L, b):
    x = np.zeros_like(b)
    for i in range(len(b)):
        x[i] = (b[i] - L[i, :i] @ x[:i]) / L[i, i]
    return x


def backward(U, b):
    x = np.zeros_like(b)
    for i in reversed(range(len(b))):
        x[i] = (b[i] - U[i, i + 1 :] @ x[i + 1 :]) / U[i, i]
    return x


def convolved(v, w):
    m = len(w)
    return sum(w[k] * np.concatenate([np.zeros(k), v, np.zeros(m - 1 - k)]) for k in range(m))


# What a user writes, a part of the advice, and the line that follows it.
WRITTEN = {
    "softmax": (lambda A, b, x: scipy.special.softmax(x), "np.exp(v - np.max(v))", lambda A, b, x: shifted(x)),
    "logsumexp": (
        lambda A, b, x: x + scipy.special.logsumexp(x),
        "np.max(v) + np.log(np.sum(w))",
        lambda A, b, x: x + np.max(x) + np.log(np.sum(np.exp(x - np.max(x)))),
    ),
    "where": (
        lambda A, b, x: np.where(x > b / 2, x, A @ x),
        "np.sign(u - v)",
        lambda A, b, x: A @ x + (x - A @ x) * np.maximum(np.sign(x - b / 2), 0),
    ),
    "if": (
        lambda A, b, x: x if x[0] > 0 else -x,
        "np.where(u > v, s, t)",
        lambda A, b, x: np.where(x[0] > 0, x, -x),
    ),
    "if two may be equal": (
        lambda A, b, x: x if b @ x > x @ x else -x,
        "u > v + 1e-9",
        lambda A, b, x: np.where(b @ x > x @ x + 1e-9, x, -x),
    ),
    "while": (
        lambda A, b, x: halved(x),
        "a for with a fixed number of passes",
        lambda A, b, x: halved_four_times(x),
    ),
    "a mask by data": (lambda A, b, x: x * (x > 0), "np.maximum", lambda A, b, x: np.maximum(x, 0)),
    "a new axis": (lambda A, b, x: x[:, None] * A, "(A.T * v).T", lambda A, b, x: (A.T * x).T),
    "keepdims": (
        lambda A, b, x: A - A.mean(axis=1, keepdims=True),
        "(A.T - v).T",
        lambda A, b, x: (A.T - A.mean(axis=1)).T,
    ),
    "keepdims in a quotient": (
        lambda A, b, x: A / np.sum(A, axis=1, keepdims=True),
        "/",
        lambda A, b, x: (A.T / np.sum(A, axis=1)).T,
    ),
    "arctan": (lambda A, b, x: np.arctan(3 * x), "v**9 / 9", lambda A, b, x: arctan(3 * x)),
    "sin": (lambda A, b, x: np.sin(x / 400), "v**5 / 120", lambda A, b, x: small_sine(x / 400)),
    "sort": (lambda A, b, x: np.sort(x), "np.minimum(v[i], v[i + 1])", lambda A, b, x: in_order(x)),
    "sorted": (lambda A, b, x: np.array(sorted(x)), "np.minimum(v[i], v[i + 1])", lambda A, b, x: in_order(x)),
    "median": (
        lambda A, b, x: np.median(x) * x,
        "v[n // 2 - 1]",
        lambda A, b, x: (in_order(x)[N // 2] + in_order(x)[N // 2 - 1]) / 2 * x,
    ),
    "argmax": (lambda A, b, x: A[np.argmax(x)], "e @ A", lambda A, b, x: at_largest(x) @ A),
    "argmax of negative entries": (
        lambda A, b, x: x[np.argmax(-np.abs(x))] * x,
        "e @ w",
        lambda A, b, x: at_largest(-np.abs(x)) @ x * x,
    ),
    "argmin": (lambda A, b, x: A[np.argmin(x)], "take -v", lambda A, b, x: at_largest(-x) @ A),
    "a lower triangle": (
        lambda A, b, x: scipy.linalg.solve_triangular(A, x, lower=True),
        "L[i, :i] @ x[:i]",
        lambda A, b, x: forward(A, x),
    ),
    "an upper triangle": (
        lambda A, b, x: scipy.linalg.solve_triangular(A, x),
        "U[i, i + 1 :] @ x[i + 1 :]",
        lambda A, b, x: backward(A, x),
    ),
    "convolve": (
        lambda A, b, x: np.convolve(x, [1.0, 2.0, 3.0], "same"),
        "np.concatenate([np.zeros(k), v, np.zeros(m - 1 - k)])",
        lambda A, b, x: convolved(x, [1.0, 2.0, 3.0])[1:-1],
    ),
    "convolve two": (
        lambda A, b, x: np.convolve(x, A[0])[3 : 3 + N],
        "rows at most",
        lambda A, b, x: convolved(x, A[0])[3 : 3 + N],
    ),
    "a norm of another order": (
        lambda A, b, x: np.linalg.norm(x, 3) * x,
        "np.sum(np.abs(v) ** p) ** (1 / p)",
        lambda A, b, x: np.sum(np.abs(x) ** 3) ** (1 / 3) * x,
    ),
    "isnan": (lambda A, b, x: np.isnan(x) + x, "omit", lambda A, b, x: x),
    "einsum": (lambda A, b, x: np.einsum("ij,j->i", A, x), "@", lambda A, b, x: A @ x),
    "prod": (
        lambda A, b, x: np.prod(np.abs(x)) * x,
        "np.exp(np.sum(np.log(v)))",
        lambda A, b, x: np.exp(np.sum(np.log(np.abs(x)))) * x,
    ),
    "average": (
        lambda A, b, x: np.average(x, weights=np.arange(1.0, N + 1)) * b,
        "np.sum(w * v)",
        lambda A, b, x: np.sum(np.arange(1.0, N + 1) * x) / np.sum(np.arange(1.0, N + 1)) * b,
    ),
    "a cube": (lambda A, b, x: math.pow(x[0], 3) * x, "**", lambda A, b, x: x[0] ** 3 * x),
    "a distance": (
        lambda A, b, x: math.dist(x, 2 * b) * x,
        "np.linalg.norm(u - v)",
        lambda A, b, x: np.linalg.norm(x - 2 * b) * x,
    ),
    "fsum": (lambda A, b, x: math.fsum(x) * x, "np.sum(v)", lambda A, b, x: np.sum(x) * x),
    "tanh": (lambda A, b, x: math.tanh(x[1]) * x, "np.tanh", lambda A, b, x: np.tanh(x[1]) * x),
    "the larger": (lambda A, b, x: max(x[0], 0.5) * x, "np.maximum(u, v)", lambda A, b, x: np.maximum(x[0], 0.5) * x),
    "the largest": (lambda A, b, x: max(x) * x, "np.max(v)", lambda A, b, x: np.max(x) * x),
    "the smallest": (lambda A, b, x: min(x) * x, "np.min(v)", lambda A, b, x: np.min(x) * x),
    "cumprod": (
        lambda A, b, x: np.cumprod(np.abs(x)),
        "np.exp(np.cumsum(np.log(v)))",
        lambda A, b, x: np.exp(np.cumsum(np.log(np.abs(x)))),
    ),
    "cumsum of a matrix": (
        lambda A, b, x: np.cumsum(A, axis=0),
        "np.tril(np.ones_like(A)) @ A",
        lambda A, b, x: np.tril(np.ones_like(A)) @ A,
    ),
    "a NumPy number": (lambda A, b, x: np.float64(x @ x) * x, "Omit np.float64", lambda A, b, x: x @ x * x),
    "float": (lambda A, b, x: float(x @ x) * x, "Omit float", lambda A, b, x: x @ x * x),
    "math.sqrt": (lambda A, b, x: math.sqrt(x @ x) * x, "np.sqrt", lambda A, b, x: np.sqrt(x @ x) * x),
    "heaviside": (
        lambda A, b, x: np.heaviside(x - x[0], 0.25),
        "np.maximum(np.sign(v), 0) + h * (1 - np.abs(np.sign(v)))",
        lambda A, b, x: np.maximum(np.sign(x - x[0]), 0) + 0.25 * (1 - np.abs(np.sign(x - x[0]))),
    ),
    "a root": (
        lambda A, b, x: np.sqrt(A @ A[0]),
        "np.sqrt(np.maximum(v, 0))",
        lambda A, b, x: np.sqrt(np.maximum(A @ A[0], 0)),
    ),
    "copysign": (lambda A, b, x: np.copysign(b, x), "np.sign(v)", lambda A, b, x: np.abs(b) * np.sign(x)),
    "cbrt": (lambda A, b, x: np.cbrt(x), "(1 / 3)", lambda A, b, x: np.sign(x) * np.abs(x) ** (1 / 3)),
    "ptp": (lambda A, b, x: np.ptp(x) * x, "np.min(v)", lambda A, b, x: (np.max(x) - np.min(x)) * x),
    "differences": (
        lambda A, b, x: np.subtract.outer(x, b),
        "np.outer",
        lambda A, b, x: np.outer(x, np.ones_like(b)) - np.outer(np.ones_like(x), b),
    ),
    "an entry among numbers": (
        lambda A, b, x: with_entry(np.arange(1.0, N + 1), x),
        "np.array(w)",
        lambda A, b, x: with_entry(np.array(np.arange(1.0, N + 1)), x),
    ),
    "numbers changed in place": (
        lambda A, b, x: with_sum(np.arange(1.0, N + 1), x),
        "np.array(w)",
        lambda A, b, x: with_sum(np.array(np.arange(1.0, N + 1)), x),
    ),
    "wrong shapes": (lambda A, b, x: (x @ b) @ x, "write *", lambda A, b, x: x @ b * x),
}

# What is taken as it stands, since program/ traces it; the others are refused.
TAKEN = {
    name: WRITTEN[name]
    for name in (
        *("where", "a mask by data", "a new axis", "keepdims", "keepdims in a quotient", "arctan", "sin", "convolve"),
        *("prod", "cumprod", "cumsum of a matrix", "heaviside", "copysign", "ptp", "differences"),
    )
}
FOLLOWED = {name: lines for name, lines in WRITTEN.items() if name not in TAKEN}

# What has no line that computes the same; with a part of the advice, or None where it is taken by now.
NO_COUNTERPART: list[tuple[Callable[..., Any], str | None]] = [
    (lambda A, b, x: np.linalg.solve(A, b), "cgnr"),
    (lambda A, b, x: np.linalg.inv(A) @ b, "newton_schulz"),
    (lambda A, b, x: np.linalg.qr(A)[0] @ b, "gram_schmidt"),
    (lambda A, b, x: np.linalg.eigh(A)[0], "subspace_iteration"),
    (lambda A, b, x: scipy.linalg.expm(A) @ x, "matrix_exponential"),
    (lambda A, b, x: scipy.linalg.cholesky(A) @ x, "scipy.linalg.cholesky"),
    (lambda A, b, x: scipy.linalg.solve_triangular(A, x), "scipy.linalg.solve_triangular"),
    (lambda A, b, x: np.linalg.norm(A, 2) * x, "singular_vectors"),
    (lambda A, b, x: np.arcsin(x), OTHERWISE),
    (lambda A, b, x: int(x[0]) * x, "known only when the weights run"),
    (lambda A, b, x: math.sin(x[0]) * x, "math.sin"),
    (lambda A, b, x: x[int(x[0])] * x, "int(...)"),
    (lambda A, b, x: x[x[0]] * x, "np.roll"),
    (lambda A, b, x: sum(x[0] for _ in range(x[0])) * x, "range(...)"),
    (lambda A, b, x: np.arange(9.0)[x[0]] * x, "needed here"),
    (lambda A, b, x: A @ np.ones(3), "(3,)"),
    (lambda A, b, x: np.reshape(A, N * N).__setitem__(0, 1.0) or A @ x, None),
    (lambda A, b, x: A[:, 0].ravel().__setitem__(0, 1.0) or A @ x, None),
    (lambda A, b, x: x[1:].fill(0.5) or x, None),
    (lambda A, b, x: np.sum(A, axis=2) * x, "a matrix has the axes 0 and 1"),
    (lambda A, b, x: np.var(x, where=np.arange(N) > 1) * x, "np.var(v, axis, ddof, correction)"),
    (lambda A, b, x: np.log(b - 2 * A @ x), "the logarithm, or a power that is not whole, of a value whose sign"),
    (lambda A, b, x: np.sqrt((b - x)[0]) * x, "the root of a value whose sign is not known; write np.sqrt("),
]
