"""The README's results that a CPU can recompute, by the calls that a reader would type.

    python -m benchmarks.published      # some minutes on one core; exit code 1 if a row does not hold

The systems come from scikit-learn's generator and NumPy's; CG and the error are written out here. Counts may differ by
one from what the README says, other numbers by a factor of two.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from sklearn.datasets import make_spd_matrix

import nlaformer as nf

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SEED, COUNT, N, SIGMA = 2_026_119, 1024, 20, 1.2
LEVELS = [10.0**-k for k in range(1, 13)]
NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"


def systems(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SEED)
    A = np.stack([make_spd_matrix(N, random_state=int(rng.integers(2**31))) for _ in range(count)])
    A += np.exp(SIGMA * rng.standard_normal((count, N)))[:, :, None] * np.eye(N)
    x = rng.standard_normal((count, N))
    return A, np.einsum("cij,cj->ci", A, x), x


def conjugate_gradients(A: np.ndarray, b: np.ndarray, iterations: int) -> np.ndarray:
    x, r = np.zeros_like(b), b.copy()
    d, rho, found = r, (r * r).sum(-1, keepdims=True), [x]
    for _ in range(iterations):
        q = np.einsum("cij,cj->ci", A, d)
        alpha = rho / (d * q).sum(-1, keepdims=True)
        x, r = x + alpha * d, r - alpha * q
        rho, before = (r * r).sum(-1, keepdims=True), rho
        d = r + rho / before * d
        found.append(x)
    return np.stack(found, 1)


def mean_errors(iterates: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (((iterates - x[:, None]) ** 2).sum(-1) / (x**2).sum(-1)[:, None]).mean(0)


def first_below(curve: np.ndarray, levels: list[float]) -> list[float]:
    return [float(np.argmax(curve <= level)) if (curve <= level).any() else np.inf for level in levels]


def measured() -> Iterator[tuple[str, list[float]]]:
    """How a row of the README begins, and the numbers of its second column, in order, as far as they are measured."""
    load, rng, errors = cast(Any, nf.load), np.random.default_rng(SEED), []
    product, paper = (nf.operation("matmul", n=N, scheme=scheme) for scheme in ("antisymmetric", "paper"))
    for _ in range(5):
        left, right = rng.normal(size=(2, N, N))
        gaps = [
            product(left, right) - left @ right,
            product.error_bound(left, right),
            paper(left, right) - left @ right,
        ]
        errors.append([np.abs(gap).max() / np.abs(left @ right).max() for gap in gaps])
    yield "A B as a transformer", [*np.median(errors, axis=0)]
    yield "A^T: entries of the prompt", [nf.operation("matrix_transpose", n=N).cost.entries]
    A, b, x = systems(COUNT)
    cg = nf.algorithm("cg", n=N)
    runs = cg.run(A[:256], b[:256], iterations=200).x, conjugate_gradients(A[:256], b[:256], 40)
    ends = [np.linalg.norm(run[:, -1] - x[:256], axis=-1) / np.linalg.norm(x[:256], axis=-1) for run in runs]
    yield "CG compiled", [cg.cost.loop.layers, *(end.max() for end in ends)]
    classical = mean_errors(conjugate_gradients(A, b, 40), x)
    learned = mean_errors(load("cg-accelerated").iterates(A, b), x)
    yield "cg-accelerated: iterations", [*first_below(learned, LEVELS[:6]), *first_below(classical, LEVELS[:6])]
    yield "the same: last error", [learned[-1], next(t for t in range(2, 21) if classical[t] < learned[t])]
    guided = mean_errors(load("guided-cg").run(A[:256], b[:256], iterations=12).x, x[:256])
    yield "guided-cg: iterations", [*first_below(guided, LEVELS), *first_below(classical, LEVELS)]
    written = mean_errors(load("learned-preconditioner").run(A, b, iterations=10).x, x)
    yield "learned-preconditioner", [*written[[5, 10]], *classical[[5, 10]]]
    results = nf.solve(A, b, model="cg-accelerated", rtol=1e-6), nf.cg(A, b, rtol=1e-6)
    yield "products with A", [float(np.mean(result.matvecs)) for result in results]
    yield "wrong certificates", [sum(wrong(result, A, b) for result in results)]


def wrong(result: nf.SolveResult, A: np.ndarray, b: np.ndarray) -> int:
    """How many residuals, in extended precision, are above what the result claims of them."""
    wide = b - np.einsum("cij,cj->ci", A.astype(np.longdouble), result.x.astype(np.longdouble))
    claimed = np.minimum(result.residual_bound, 1e-6 * np.linalg.norm(b, axis=-1)) * (1 + 1e-12)
    return int(((np.sqrt((wide**2).sum(-1)) > claimed) & (np.asarray(result.info) == 0)).sum())


def published(begins: str) -> list[tuple[float, float]]:
    """The numbers in the second column of a row; "3 to 4" is a range."""
    (cell,) = re.findall(rf"^\| {re.escape(begins)}[^|]*\|([^|]*)\|", README, flags=re.MULTILINE)
    pairs = re.findall(rf"(?<![\w^.])({NUMBER})(?: to ({NUMBER}))?", cell.replace(",", "").replace("  ", " "))
    return [(float(low), float(high or low)) for low, high in pairs]


def agree(stated: tuple[float, float], found: float) -> bool:
    low, high = stated
    counted = low.is_integer() and high.is_integer()
    return low - (low > 0) <= found <= high + (low > 0) if counted else low / 2 <= found <= high * 2  # a 0 is a 0


def main() -> int:
    failed = 0
    for begins, found in measured():
        stated = published(begins)[: len(found)]
        holds = len(stated) == len(found) and all(map(agree, stated, found))
        failed += not holds
        words = ", ".join(f"{low:g}" if low == high else f"{low:g} to {high:g}" for low, high in stated)
        print(f"{begins}\n  published {words}\n  measured  {', '.join(f'{value:.3g}' for value in found)}")
        print(f"  {'holds' if holds else 'DOES NOT HOLD'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
