"""Expressions and lines of NumPy and torch that the language takes; each is the answer of a program."""

from __future__ import annotations

import numpy as np
import scipy.special
import torch

import nlaformer as nf

N = 5
WEIGHTS = np.array([0.5, -1.0, 2.0, 0.25, 1.5])
COUPLING = np.random.default_rng(5).standard_normal((N, N))


def program_of(expression):
    class Once(nf.Program):
        def start(self, b):
            return dict(x=0.5 * b + 0.25)

        def step(self, x):
            return dict(x=x)

        def finish(self, A, b, x):
            return expression(A, b, x)

    return Once()


# Every name of NumPy, in the spellings of a user; v = |x| + 1/10 where the sign must be known.
UFUNCS = {
    "add": lambda A, b, x: np.add(b, x),
    "subtract": lambda A, b, x: np.subtract(1.0, x) + np.subtract(b, x),
    "multiply": lambda A, b, x: np.multiply(A, A.T),
    "divide": lambda A, b, x: np.divide(b, x) + np.true_divide(2.0, x),
    "matmul": lambda A, b, x: np.matmul(A, x),
    "negative": lambda A, b, x: np.negative(x),
    "positive": lambda A, b, x: np.positive(x),
    "absolute": lambda A, b, x: np.abs(x) + np.absolute(b) + np.fabs(x) + abs(x),
    "absolute of a matrix": lambda A, b, x: np.abs(A),
    "sqrt": lambda A, b, x: np.sqrt(np.abs(x)),
    "exp": lambda A, b, x: np.exp(x) + np.expm1(b) + np.exp2(x),
    "exp of a matrix": lambda A, b, x: np.exp(-A),
    "log": lambda A, b, x: np.log(np.abs(x) + 0.1) + np.log1p(x * x) + np.log2(x * x + 1) + np.log10(x * x + 1),
    "logaddexp": lambda A, b, x: np.logaddexp(b, x) + np.logaddexp(0, x),
    "hypot": lambda A, b, x: np.hypot(b, x),
    "square": lambda A, b, x: np.square(x),
    "reciprocal": lambda A, b, x: np.reciprocal(x),
    "power": lambda A, b, x: np.power(x, 3) + x**2 + x**-2 + x**1 + np.float_power(x, 4) + x**11 + x**0,
    "power of a matrix": lambda A, b, x: A**2,
    "root": lambda A, b, x: (x * x) ** 0.5 + (x * x) ** 1.5 + (x * x) ** -0.5 + (x * x) ** 0.3,
    "exponent": lambda A, b, x: 2.0**x + np.power(2, b) + np.exp(b) ** x,
    "maximum": lambda A, b, x: np.maximum(b, x) + np.maximum(x, 0) + np.maximum(0.5, b) + np.fmax(b, x),
    "maximum of matrices": lambda A, b, x: np.maximum(A, A.T),
    "minimum": lambda A, b, x: np.minimum(b, x) + np.minimum(x, 0) + np.fmin(x, 1),
    "sign": lambda A, b, x: np.sign(x),
    "tanh": lambda A, b, x: np.tanh(x) + np.sinh(b) + np.cosh(x),
    "expit": lambda A, b, x: scipy.special.expit(x),
}
FUNCTIONS_OF_NUMPY = {
    "dot of vectors": lambda A, b, x: np.dot(b, x) + b.dot(x) + b @ x + x.T @ b,
    "dot of matrices": lambda A, b, x: np.dot(A, A) + A.dot(A.T),
    "dot of matrix and vector": lambda A, b, x: np.dot(A, x) + A.dot(b) + np.dot(x, A) + x @ A + np.dot(2.0, x),
    "vdot": lambda A, b, x: np.vdot(b, x) * np.vdot(A, A.T),
    "inner": lambda A, b, x: np.inner(b, x) * np.inner(A, A),
    "outer": lambda A, b, x: np.outer(b, x) + np.outer(x, WEIGHTS),
    "norm": lambda A, b, x: np.linalg.norm(x) * x + np.linalg.norm(A) + np.linalg.norm(b, 1) + np.linalg.norm(b, ord=2),
    "norms along an axis": lambda A, b, x: np.linalg.norm(A, 1, 0) + np.linalg.norm(A, np.inf, axis=1) / x,
    "norms, axes exchanged": lambda A, b, x: np.linalg.norm(A, 1, (1, 0)) * x + np.linalg.norm(A, np.inf, (0, 1)),
    "flips": lambda A, b, x: np.flip(A, (0, 1)) @ x + np.flip(A, (1,)) @ b + np.flip(A, 0) @ x + np.flip(A) @ b,
    "rolls of both axes": lambda A, b, x: np.roll(A, 2, axis=(0, 1)) + np.roll(A, 1, (1,)),
    "largest of rows": lambda A, b, x: np.max(A, axis=1) + A.min(axis=0) * x + np.amax(A, (0, 1)),
    "variances": lambda A, b, x: np.var(A, axis=1, ddof=1) + A.std(axis=0) * x + np.var(x, ddof=2) + np.std(A, ddof=1),
    "differences": lambda A, b, x: np.diff(A)[1:, 0] @ np.diff(x) + x,
    "reduce": lambda A, b, x: np.add.reduce(A) + np.add.reduce(A, axis=None) + np.inner(x @ b, A) @ x,
    "norm, fro": lambda A, b, x: np.linalg.norm(A, "fro") * x + np.linalg.norm(A, ord="fro"),
    "norm, inf and 1": lambda A, b, x: np.linalg.norm(x, np.inf) * x + np.linalg.norm(A, 1) + np.linalg.norm(A, np.inf),
    "matrix_power": lambda A, b, x: np.linalg.matrix_power(A, 3),
    "largest and smallest": lambda A, b, x: np.max(x) * b + x.min() + np.max(np.abs(A)) * x + np.amin(b) + A.max(),
    "amax": lambda A, b, x: np.amax(x, axis=0) * x,
    "sum": lambda A, b, x: np.sum(x) + x.sum() + A.sum() + np.sum(A) + np.sum(x, axis=0),
    "sums of rows and columns": lambda A, b, x: A.sum(axis=0) + A.sum(1) + np.sum(A, axis=-1),
    "mean": lambda A, b, x: np.mean(x) + x.mean() + A.mean(),
    "means of rows and columns": lambda A, b, x: A.mean(axis=0) + np.mean(A, axis=1),
    "var and std": lambda A, b, x: np.var(x) + x.var() + np.std(x) + x.std(),
    "trace": lambda A, b, x: np.trace(A) + A.trace() + np.trace(A.T),
    "diag": lambda A, b, x: np.diag(A) + A.diagonal() + np.diag(A.T) + np.diag(np.diag(b)) + np.diag(np.outer(b, x)),
    "diagonals beside": lambda A, b, x: np.append(np.diag(A, 1), x[:1]) + np.append(np.diag(A @ A, -2), np.diag(A, -3)),
    "diagonal matrix": lambda A, b, x: np.diag(x) + np.diag(WEIGHTS) @ A,
    "tril": lambda A, b, x: np.tril(A) + np.tril(A.T, -1) + np.tril(A @ A, k=2),
    "triu": lambda A, b, x: np.triu(A) + np.triu(A, 1),
    "roll": lambda A, b, x: np.roll(x, 1) + np.roll(np.roll(b, -2), 7),
    "roll of a matrix": lambda A, b, x: np.roll(A, 1, axis=0) + np.roll(A, -2, axis=1),
    "transpose": lambda A, b, x: np.transpose(A) + A.transpose() + (A @ A).T + np.outer(b, x).T.T,
    "likes": lambda A, b, x: x + np.zeros_like(x) + np.ones_like(b) + np.full_like(x, 3.0),
    "like matrices": lambda A, b, x: A + np.ones_like(A) + np.zeros_like(A) + nf.identity_like(A),
    "clip": lambda A, b, x: np.clip(x, -0.5, 0.5) + x.clip(b, None) + np.clip(x, None, b) + x.clip(0, 1),
    "copy": lambda A, b, x: np.copy(x) + x.copy() + x.astype(float) + x.ravel() + np.ravel(b) + x.flatten(),
    "item": lambda A, b, x: (x @ b).item() * x,
    "norms of rows": lambda A, b, x: np.linalg.norm(A, axis=1) + np.linalg.norm(A, 2, 0),
    "methods of ufuncs": lambda A, b, x: np.add.reduce(x) * np.multiply.outer(b, x) @ x,
    "entries": lambda A, b, x: x[0] * b + A[1, 2] * x + A[-1][0],
    "rows and columns": lambda A, b, x: A[0] + A[:, 1] + A[2, :] * x[-1] + A.T[3] + np.outer(x, b)[1],
    "size": lambda A, b, x: x / len(x) + b / A.shape[0] + x.size + A.size + np.ndim(x) + np.eye(np.size(b)) @ x,
    "shape": lambda A, b, x: x / np.shape(x)[0] + b / A.shape[1] + np.zeros(x.shape) + np.ones(A.shape) @ x,
}
ARITHMETIC = {
    "broadcasting, a number": lambda A, b, x: (A + 1.0) - (2.0 - A) + 3.0 * A + A / 4 + 1 / (A * A + 1),
    "broadcasting, a vector": lambda A, b, x: (A + x) + (b - A) + A * x + x * A + A / x + x / A,
    "a traced scalar": lambda A, b, x: (x @ b) * A + A / (x @ x) + (A + x @ b) + (x + x @ b) / (b @ b),
    "matrices entry by entry": lambda A, b, x: A * A.T + A / (1 + A * A),
    "constants": lambda A, b, x: WEIGHTS * x + COUPLING @ x + x @ COUPLING + x / WEIGHTS + WEIGHTS - x,
    "constant matrices": lambda A, b, x: COUPLING @ A + A @ COUPLING.T + COUPLING * A + np.eye(N) + np.ones((N, N)) - A,
    "nf": lambda A, b, x: nf.relu(x) + nf.maximum(b, x) + nf.minimum(b, 0.5) + nf.sign(x) + nf.outer(b, x) @ x,
    "nf.dot of matrices": lambda A, b, x: nf.dot(A, A.T) * nf.norm(A) * nf.norm(A @ A) * x,
    "masks and lists": lambda A, b, x: x * (WEIGHTS > 0) + [1, 2, 3, 4, 5] * b + (N > 2) * x,
    "a for loop": lambda A, b, x: sum((0.5**k * np.linalg.matrix_power(A, k) @ x for k in range(1, 4)), x),
}

IN_TORCH = {
    "relu": lambda A, b, x: torch.relu(x) + torch.nn.functional.relu(b),
    "norm": lambda A, b, x: torch.linalg.norm(x) * torch.norm(A) * torch.norm(x) * x,
    "norms": lambda A, b, x: torch.linalg.vector_norm(x) * torch.linalg.matrix_norm(A) * x,
    "products": lambda A, b, x: torch.dot(b, x) * torch.mv(A, x) + torch.outer(b, x) @ torch.matmul(A, x),
    "matrices": lambda A, b, x: torch.mm(A, A.T) + torch.tril(A) + torch.triu(A.T, 1) + torch.diag(x) + torch.t(A),
    "pointwise": lambda A, b, x: torch.abs(x) + torch.exp(-b) + torch.sqrt(x * x) + torch.sign(x) + torch.sigmoid(b),
    "more": lambda A, b, x: torch.maximum(b, x) + torch.minimum(b, x) + torch.clamp(x, -0.5, 0.5) + torch.square(x),
    "parts": lambda A, b, x: torch.sum(x) + torch.mean(b) + torch.trace(A) + torch.diag(A) + torch.roll(x, 1),
    "softplus": lambda A, b, x: torch.nn.functional.softplus(x) + x.detach(),
    "spread": lambda A, b, x: torch.var(x) * b + torch.std(x, correction=0) + torch.std(A, dim=1) + torch.var(x, False),
    "norms of entries": lambda A, b, x: torch.norm(A, p=1) * x + torch.norm(A, float("inf")) + torch.norm(A, dim=1),
    "vector norms": lambda A, b, x: torch.linalg.vector_norm(A, 1) * x + torch.linalg.norm(A, 1),
    "orders": lambda A, b, x: (
        torch.flip(A, [1]) @ x + torch.flip(A, [0, 1]) @ b + torch.roll(A, 1, 1) @ torch.flip(x, [0])
    ),
    "rows with rows": lambda A, b, x: torch.linalg.vecdot(A, A) + torch.sum(A, dim=0) + torch.amax(A, dim=1),
    "likes": lambda A, b, x: torch.zeros_like(x) + torch.ones_like(b) + x.clone() + x.abs() + torch.clamp(b, min=0.1),
}


def in_place(A, b, x):
    y = x
    y += b
    y *= 2
    z = x[:]
    z -= 1.0
    return x + y - 3 * z


def views(A, b, x):
    T, d = A.T, np.diag(A)
    A += np.outer(b, x)
    T[:] = 2.0 * T
    np.fill_diagonal(A, x)
    return A @ x + T @ b + d


def copies(A, b, x):
    y, z, w = x.copy(), +x, x * 1.0
    x += b
    x /= 2
    x **= 2
    y[...] = y - x
    np.copyto(z, y)
    np.add(z, x, out=w)
    return x + 2 * y + 3 * z + 4 * w


def other_names(A, b, x):
    y, z = x.ravel(), np.ravel(b)
    y[0] = 0.2
    b[1] = 0.3
    w = x.flatten()
    w[2] = 9.0
    return x + y * z + np.ravel(x + b) + w


def scalars(A, b, x):
    s = x @ b
    t = s
    s += 1.0  # a NumPy scalar cannot change: t is what it was
    x[:] = t
    return x + s * b


def entries(A, b, x):
    row, column, first = A[1], A[:, 2], x[0]
    x[1] = x[0] + b[2]
    x[-1] += 2.0
    A[1, 1] = x[1]
    A[0] = b
    A[:, 3] *= 0.5
    row -= x
    column[:] = 1.0
    return x + A @ b + row + column + first


def gauss_seidel(A, b, x):
    for i in range(len(b)):
        x[i] += (b[i] - A[i] @ x) / A[i, i]
    return x


def entries_again(A, b, x):
    x[1] = 1e9
    x[1] = b[0]  # nothing of the large number is left
    x[2] = x[1]
    A[:, 1] = x
    A[0, 1] = x[2]
    A[:, 1] += A[0, 1]
    A[2] = b
    return x + A @ b + A[:, 1] + A[2, 1] + A[0]


CHANGED = [in_place, views, copies, other_names, scalars, entries, gauss_seidel, entries_again]


def lu_factorization(A, b, x):
    n = len(b)
    L, U = np.eye(n), np.zeros((n, n))
    for i in range(n):
        for j in range(i, n):
            U[i, j] = A[i, j] - sum(L[i, k] * U[k, j] for k in range(i))
        for j in range(i + 1, n):
            L[j, i] = (A[j, i] - sum(L[j, k] * U[k, i] for k in range(i))) / U[i, i]
    return L + U


def substitution(A, b, x):
    y = np.zeros(len(b))
    for i in range(len(b)):
        y[i] = (b[i] - A[i] @ y) / (1 + A[i, i] ** 2)
    return y


def orthogonal_columns(A, b, x):
    n, k = len(b), 3
    Q, R = np.zeros((n, k)), np.zeros((k, k))
    for j in range(k):
        v = A[:, j].copy()
        for i in range(j):
            R[i, j] = Q[:, i] @ A[:, j]
            v = v - R[i, j] * Q[:, i]
        R[j, j] = np.linalg.norm(v)
        Q[:, j] = v / R[j, j]
    return Q[:, 2] * R[0, 1] + R[2, 2] * Q[:, 0]


def rows_and_lists(A, b, x):
    M = np.ones((len(b), len(b)))
    M[0], M[:, 2], M[1, 1] = x, b, x @ b
    y = np.array([x[0], 2.0, b[1], x @ x, 0.0])
    z = np.full(shape=len(b), fill_value=x @ b) + np.eye(len(b))[::-1] @ x
    w = np.empty(len(b))
    w[:] = np.asarray(x)
    np.add(w, b, out=w)
    return M @ y + z + w + np.array([x, b, x, b, b]) @ x


def other_sizes(A, b, x):
    alpha, scaled = np.zeros(2), np.ones(3)
    alpha[0], alpha[1] = x @ b, b @ b
    alpha /= b @ b
    scaled[1:] = alpha * 2.0
    alpha[0] = 1.0  # of scaled nothing changes
    V = np.zeros((len(b), 2))
    V[:, 0], V[:, 1] = x, b
    view = V[:, 0]
    V[:, 0] = 2 * b
    return view * scaled[1] + V[:, 1] * scaled[2] + np.sum(alpha) * x + V @ alpha


def slices(A, b, x):
    d = x[1:] - b[:-1]
    x[1:-1] += 0.5 * (d[1:] - d[:-1])
    x[::2] = 1.0
    y = np.concatenate([x[2:], [3.0], x[:1]])
    y[[0, 3]] *= x[[3, 0]]
    return y + np.linalg.norm(d) * np.append(np.maximum(d, 0), d[1:].max()) + x[np.arange(len(x)) > 1] @ b[2:]


def slices_of_matrices(A, b, x):
    A[1:, 1:] -= np.outer(A[1:, 0], A[0, 1:]) / (1 + A[0, 0] ** 2)
    A[:2] = 2.0 * A[1:3]
    for i in range(len(b)):
        x[i] = (b[i] - A[i, :i] @ x[:i]) / (1 + A[i, i] ** 2)
    return x + A[:, 1:3] @ x[:2] + A[:, :2].sum(axis=1) + A @ A[:, 2:] @ b[2:]


def slices_are_views(A, b, x):
    tail, corner = x[1:], A[:2, :2]
    x[1] = 7.0
    tail += b[1:]
    tail[-1] = 2.0
    A[0, 0] = x[1]
    corner *= 3.0
    reverse = x[::-1]
    reverse[0] = tail[0]
    return x * tail[0] + A @ b + reverse


def slices_of_length_n_are_views(A, b, x):
    everything, row, column = A[0:, 0:], A[1, 0:], A[0:, 2]
    A[1, 1] = x[0]
    row += b
    everything *= 0.5
    column[:] = x
    return A @ b + row * column[1] + everything.T @ x


def orders(A, b, x):
    return x[::-1] + b[[1, 0, 2, 4, 3]] + A[::-1] @ b + A[:, ::-1] @ x + np.flip(x) + np.flip(A) @ b + np.cumsum(x)


def other_shapes_are_views(A, b, x):
    square = np.reshape(x[:-1], (2, 2))
    square[0, 1] = b[0]
    column = np.reshape(x, (N, 1))
    column[0, 0] = 0.5
    x[2] = 0.75
    np.transpose(A[1:, :2])[0, 1] = b[1]
    np.ravel(A[:2])[3] = 0.1
    np.squeeze(A[1:2])[0] = 0.4
    x[::2].ravel()[0] = 9.0
    above, below = np.diag(A, 1), x[1:3]
    A[0, 1], x[1] = 0.6, 0.7
    return A @ x + column[2, 0] + square[1, 0] + above[0] + below.copy()[0]


def functions_of_slices(A, b, x):
    d, bound = x[1:] - b[:-1], np.linalg.norm(b)
    clipped = np.clip(d, -0.5 * bound, b[1:] ** 2) + np.clip(d, -0.1, 0.1)
    np.clip(x[:2], 0, 0.1, out=x[:2])
    rows = np.max(A[1:, 1:], axis=1) + np.mean(A[1:], axis=1) + np.linalg.norm(A[:-1, 1:], axis=1)
    return np.append(clipped + rows, np.min(d) + np.mean(d) + np.vdot(d, d)) + x


def columns_in_place(A, b, x):
    V = np.zeros((len(b), 2))
    V[:, 0] += x
    V[:, 1] -= A @ x
    V *= 2.0
    first = V[:, 0]
    first += b
    np.copyto(V[:, 1], V[:, 1] + first)
    W = np.column_stack([x, b])
    return V @ (W.T @ x) + (V.T @ W)[0, 1] * b + A @ V @ np.array([1.0, 2.0]) + np.diff(x) @ np.diff(b)


def loops_over_entries(A, b, x):
    total = sum(s * t for s, t in zip(x, b, strict=True))
    for i, row in enumerate(A):
        x[i] = row @ b + total
    first, *others = x
    return x * first + others[-1] + np.vstack([x, b]).sum(axis=0) + np.hstack([x, b])[::2]


FILLED = [
    *(lu_factorization, substitution, orthogonal_columns, rows_and_lists, other_sizes, slices, slices_of_matrices),
    *(slices_are_views, slices_of_length_n_are_views, orders, columns_in_place, loops_over_entries),
    *(other_shapes_are_views, functions_of_slices),
]
