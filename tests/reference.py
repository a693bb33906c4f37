"""What the tests compare with: every operation in NumPy's extended precision, and random operands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

import nlaformer as nf
from nlaformer.express.accuracy import relative
from nlaformer.express.construction import each
from nlaformer.express.theorem import RECORDS

# All but pointwise, which is built from a function and has tests of its own.
OPERATIONS = tuple(name for name, record in RECORDS.items() if record.f is None)
# Largest relative error of the operations with a target of their own; all others, and any that is added, are held to
# the targets of the linearized softmax.
OWN_TARGETS = {
    "add": 1e-15,
    "subtract": 1e-15,
    "row_shift": 1e-15,
    "column_shift": 1e-15,
    "multiply": 1e-9,
    "divide": 1e-12,
}
ATTENTION = tuple(name for name in OPERATIONS if name not in OWN_TARGETS)


def exact(name: str, *operands: np.ndarray, extended: bool = True) -> np.ndarray:
    """The result in extended precision (80 bits), or in float64 where that is precise enough and speed matters."""
    return one_array(RECORDS[name].reference(*(x.astype(np.longdouble if extended else np.float64) for x in operands)))


def draw(name: str, n: int, rng: np.random.Generator, dtype: torch.dtype = torch.float64, batch: tuple = ()) -> list:
    """Operands with N(0, 1) entries."""
    kind = np.float64 if dtype == torch.float64 else np.float32
    return [rng.normal(size=(*batch, *shape)).astype(kind) for shape in RECORDS[name].shapes(n).values()]


def one_array(result: Any) -> np.ndarray:
    """A result, or a pair of results, as one array."""
    return np.stack(result) if isinstance(result, tuple) else np.asarray(result)


def relative_errors(op: nf.Operation, operands: list[np.ndarray]) -> np.ndarray:
    """Frobenius error of each system of a batch, relative to what the operation's record says."""
    wanted = RECORDS[op.name].reference(*(x.astype(np.float64) for x in operands))
    error = each(lambda found, right: found.astype(np.float64) - right, op(*operands), wanted)
    return relative(op.name, error, wanted, operands).astype(np.float64)


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
