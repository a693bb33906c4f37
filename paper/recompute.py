"""Five headline numbers once more, from the bundled weights alone: nothing of nlaformer is used.

python -m paper.recompute [SYSTEMS]

NumPy evaluates the saved layers, scikit-learn makes the matrices, CG and the error are written out here. Each number
stands beside the filed one (results/bundled-fresh.json), with the difference in standard errors of both.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from sklearn.datasets import make_spd_matrix

ROOT = Path(__file__).parents[1]
SEED, SIGMA, N, T = 4321, 1.2, 20, 20
HEADLINES = (  # model, iterate, what is measured
    ("cg", 10, "error"),
    ("cg-imitation", 6, "error"),
    ("cg-imitation", 2, "distance from CG"),
    ("cg-accelerated", 4, "error"),
    ("pcg-accelerated", 4, "error"),
)


def systems(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SEED)
    A = np.stack([make_spd_matrix(N, random_state=int(rng.integers(2**31))) for _ in range(count)])
    A += np.exp(SIGMA * rng.standard_normal((count, N)))[:, :, None] * np.eye(N)
    x = rng.standard_normal((count, N))
    return A, np.einsum("cij,cj->ci", A, x), x


def conjugate_gradients(A: np.ndarray, b: np.ndarray) -> Iterator[np.ndarray]:
    x, r = np.zeros_like(b), b.copy()
    d, rho = r, (r * r).sum(-1, keepdims=True)
    yield x
    for _ in range(T):
        q = np.einsum("cij,cj->ci", A, d)
        alpha = rho / (d * q).sum(-1, keepdims=True)
        x, r = x + alpha * d, r - alpha * q
        rho, before = (r * r).sum(-1, keepdims=True), rho
        d = r + rho / before * d
        yield x


def layer(P: np.ndarray, weights: dict[str, np.ndarray], name: str, heads: int) -> np.ndarray:
    """Eq. (1) with RMS normalization before each half; P is (system, token, row)."""

    def normal(X: np.ndarray, gain: str) -> np.ndarray:
        mean = (X * X).mean(-1, keepdims=True) + np.finfo(np.float32).eps
        return X / np.sqrt(mean) * weights[f"{name}.{gain}"]

    def split(which: str) -> np.ndarray:
        found = X @ weights[f"{name}.heads.{which}.weight"].T
        return found.reshape(*found.shape[:-1], heads, -1).swapaxes(1, 2)

    X = normal(P, "gain_1")
    Q, K, V = (split(which) for which in ("W_Q", "W_K", "W_U"))
    scores = Q @ K.swapaxes(-1, -2)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (scores / scores.sum(-1, keepdims=True) @ V).swapaxes(1, 2)
    P = P + mixed.reshape(P.shape) @ weights[f"{name}.heads.W_O.weight"].T
    hidden = normal(P, "gain_2") @ weights[f"{name}.ffn.W_1.weight"].T + weights[f"{name}.ffn.b_1"]
    return P + np.maximum(hidden, 0) @ weights[f"{name}.ffn.W_2.weight"].T + weights[f"{name}.ffn.b_2"]


def iterates(model: str, A: np.ndarray, b: np.ndarray) -> Iterator[np.ndarray]:
    folder = ROOT / "nlaformer" / "pretrained" / model
    heads = json.loads((folder / "config.json").read_text())["config"]["heads"]
    weights = load_file(folder / "model.safetensors")
    tokens = np.zeros((len(b), N + 1, N + 1), np.float32)  # the sink, then one token [a_i ; b_i] for each equation
    tokens[:, 1:, :N], tokens[:, 1:, N] = A, b
    P = tokens @ weights["extra.read_in"].T + weights["extra.positions"]
    for block in ["pre", *["loop"] * (T - 1), "post"]:
        P = layer(P, weights, f"{block}.0", heads)
        yield P[:, -1] @ weights["extra.probe_x"].T


def recompute(count: int) -> list[dict[str, Any]]:
    filed = json.loads((ROOT / "paper" / "results" / "bundled-fresh.json").read_text())
    A, b, x = systems(count)
    cg = list(conjugate_gradients(A, b))
    found = []
    for model, t, what in HEADLINES:
        x_t = cg[t] if model == "cg" else next(x for k, x in enumerate(iterates(model, A, b)) if k == t)
        gap = x_t - (x if what == "error" else cg[t])
        errors = (gap**2).sum(-1) / (x**2).sum(-1)
        theirs = filed["methods" if model == "cg" else "models"][model]["sigma"][f"{SIGMA}"]
        known = theirs["mean" if what == "error" else "deviation"][t]
        own_error = errors.std() / math.sqrt(count)
        # The spread of a distance is not filed; the filed sample's is taken to be ours.
        both = math.hypot(own_error, own_error * math.sqrt(count / filed["count"]))
        found.append({"model": model, "t": t, "what": what, "ours": errors.mean(), "filed": known,
                      "standard_errors": (errors.mean() - known) / both})  # fmt: skip
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m paper.recompute", description="Headline numbers once more.")
    parser.add_argument("systems", nargs="?", type=int, default=4096, help="how many are drawn, 32 or more")
    given = parser.parse_args()
    if given.systems < 32:
        parser.error(f"{given.systems} systems are too few for a standard error; give 32 or more")
    line = "{model:16} t = {t:<3} {what:17} {ours:.4g}, filed {filed:.4g}: {standard_errors:+.1f} standard errors"
    for row in recompute(given.systems):
        print(line.format(**row))
