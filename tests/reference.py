"""What the tests compare with: every operation in NumPy's extended precision, and random operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

import nlaformer as nf

# Operands: v a vector, m a matrix.
OPERANDS = {
    "add": "vv",
    "subtract": "vv",
    "multiply": "vv",
    "divide": "vv",
    "column_shift": "vv",
    "row_shift": "vv",
    "vector_transpose": "v",
    "inner_product": "vv",
    "outer_product": "vv",
    "matrix_transpose": "m",
    "transposed_matmul": "mm",
    "matmul": "mm",
    "matvec": "mv",
}
# Those whose error comes from the linearized softmax.
ATTENTION = tuple(OPERANDS)[6:]

_FORMULA: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "column_shift": lambda a, b: np.stack([b, a]),
    "row_shift": lambda a, b: np.stack([b, a]),
    "vector_transpose": lambda a: a[..., :, None],
    "inner_product": lambda a, b: (a * b).sum(-1),
    "outer_product": lambda a, b: a[..., :, None] * b[..., None, :],
    "matrix_transpose": lambda A: np.swapaxes(A, -1, -2),
    "transposed_matmul": lambda A, B: np.swapaxes(A, -1, -2) @ B,
    "matmul": lambda A, B: A @ B,
    "matvec": lambda A, b: (A @ b[..., None])[..., 0],
}


def exact(name: str, *operands: np.ndarray, extended: bool = True) -> np.ndarray:
    """The result in extended precision (80 bits), or in float64 where that is precise enough and speed matters."""
    return _FORMULA[name](*(x.astype(np.longdouble if extended else np.float64) for x in operands))


def draw(name: str, n: int, rng: np.random.Generator, dtype: torch.dtype = torch.float64, batch: tuple = ()) -> list:
    """Operands with N(0, 1) entries."""
    kind = np.float64 if dtype == torch.float64 else np.float32
    shapes = {"v": (n,), "m": (n, n)}
    return [rng.normal(size=(*batch, *shapes[letter])).astype(kind) for letter in OPERANDS[name]]


def one_array(result: Any) -> np.ndarray:
    """A result, or a pair of results, as one array."""
    return np.stack(result) if isinstance(result, tuple) else np.asarray(result)


def relative_errors(op: nf.Operation, operands: list[np.ndarray]) -> np.ndarray:
    """Frobenius error of each system of a batch, relative to the result (inner product: to |a||b|)."""
    error = one_array(op(*operands)).astype(np.float64) - exact(op.name, *operands, extended=False)
    wanted = exact(op.name, *operands, extended=False)
    if op.name in ("column_shift", "row_shift"):
        error, wanted = np.moveaxis(error, 0, 1), np.moveaxis(wanted, 0, 1)
    if op.name == "inner_product":
        a, b = operands
        return np.abs(error) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))
    flat = error.reshape(len(error), -1)
    return np.linalg.norm(flat, axis=1) / np.linalg.norm(wanted.reshape(len(error), -1), axis=1)


def dense_layers(block: Iterable[Any]) -> list[dict[str, Any]]:
    """The paper's matrices of every layer of a block, as NumPy arrays."""

    def array(value: Any) -> Any:
        return [{k: v.numpy() for k, v in head.items()} for head in value] if isinstance(value, list) else value.numpy()

    return [{name: array(value) for name, value in layer.dense().items()} for layer in block]


def equation_one(P: np.ndarray, layers: list[dict[str, Any]]) -> np.ndarray:
    """Eq. (1) of the paper in plain NumPy: P is (rows, tokens), each layer holds the paper's dense matrices."""
    for layer in layers:
        U = P.copy()
        for head in layer["heads"]:
            Z = P.T @ head["W_K"].T @ head["W_Q"] @ P
            weights = np.exp(Z - Z.max(0))
            U += head["W_V"] @ P @ (weights / weights.sum(0))
        P = U
        if "W_1" in layer:
            P = U + layer["W_2"] @ np.maximum(layer["W_1"] @ U + layer["b_1"][:, None], 0) + layer["b_2"][:, None]
    return P
