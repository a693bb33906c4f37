"""The README's results that a CPU can recompute, by the calls that a reader would type.

    python -m benchmarks.published      # some minutes on one core; exit code 1 if a row does not hold

The systems come from scikit-learn's generator and NumPy's; CG and the error are written out here. Each row prints what
the README says, what was measured, and whether the two agree: whole numbers may differ by one (those of a mean by one
iteration), others by a factor of two.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import make_spd_matrix

import nlaformer as nf

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SEED, COUNT, N, SIGMA = 2_026_119, 1024, 20, 1.2
LEVELS = [10.0**-k for k in range(1, 13)]
_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"


def systems(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The paper's family: A, b, x."""
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
    """Mean squared relative errors of x_0, x_1, ..."""
    return (((iterates - x[:, None]) ** 2).sum(-1) / (x**2).sum(-1)[:, None]).mean(0)


def first_below(curve: np.ndarray, levels: list[float]) -> list[float]:
    return [float(np.argmax(curve <= level)) if (curve <= level).any() else np.inf for level in levels]


def measured() -> Iterator[tuple[str, list[float]]]:
    """How a row of the README begins, and the numbers of its second column, in order, as far as they are measured."""
    rng = np.random.default_rng(SEED)
    product, paper = (nf.operation("matmul", n=N, scheme=scheme) for scheme in ("antisymmetric", "paper"))
    errors = []
    for _ in range(5):
        left, right = rng.normal(size=(2, N, N))
        exact = left @ right
        bound = product.error_bound(left, right)
        gaps = (product(left, right) - exact, bound, paper(left, right) - exact)
        errors.append([np.abs(gap).max() / np.abs(exact).max() for gap in gaps])
    yield "A B as a transformer", list(np.median(errors, axis=0))
    yield "A^T: entries of the prompt", [nf.operation("matrix_transpose", n=N).cost.entries]

    A, b, x = systems(COUNT)
    cg = nf.algorithm("cg", n=N)
    own = conjugate_gradients(A[:256], b[:256], 40)
    ends = [np.linalg.norm(run[:, -1] - x[:256], axis=-1) for run in (cg.run(A[:256], b[:256], iterations=200).x, own)]
    size = np.linalg.norm(x[:256], axis=-1)
    yield "CG compiled", [cg.cost.loop.layers, *(float((end / size).max()) for end in ends)]

    classical = mean_errors(conjugate_gradients(A, b, 40), x)
    learned = mean_errors(nf.load("cg-accelerated").iterates(A, b), x)
    yield "cg-accelerated: iterations", [*first_below(learned, LEVELS[:6]), *first_below(classical, LEVELS[:6])]
    overtakes = float(next(t for t in range(2, 21) if classical[t] < learned[t]))
    yield "the same: last error", [learned[-1], overtakes]
    guided = mean_errors(nf.load("guided-cg").run(A[:256], b[:256], iterations=12).x, x[:256])
    yield "guided-cg: iterations", [*first_below(guided, LEVELS), *first_below(classical, LEVELS)]
    written = mean_errors(nf.load("learned-preconditioner").run(A, b, iterations=10).x, x)
    yield "learned-preconditioner", [*written[[5, 10]], *classical[[5, 10]]]

    results = nf.solve(A, b, model="cg-accelerated", rtol=1e-6), nf.cg(A, b, rtol=1e-6)
    yield "products with A", [float(np.mean(result.matvecs)) for result in results]
    yield "wrong certificates", [float(sum(wrong(result, A, b) for result in results))]


def wrong(result: nf.SolveResult, A: np.ndarray, b: np.ndarray) -> int:
    """How many residuals, in extended precision, are above the bound or the tolerance that the result claims."""
    wide = [np.asarray(v, np.longdouble) for v in (A, b, result.x)]
    residual = np.sqrt(((wide[1] - np.einsum("cij,cj->ci", wide[0], wide[2])) ** 2).sum(-1))
    claimed = np.minimum(result.residual_bound, 1e-6 * np.linalg.norm(b, axis=-1))
    return int(((residual > claimed * (1 + 1e-12)) & (np.asarray(result.info) == 0)).sum())


def published(begins: str) -> list[tuple[float, float]]:
    """The numbers in the second column of a row; "3 to 4" is a range."""
    (cell,) = re.findall(rf"^\| {re.escape(begins)}[^|]*\|([^|]*)\|", README, flags=re.MULTILINE)
    ranges = re.findall(rf"(?<![\w^.])({_NUMBER})(?: to ({_NUMBER}))?", cell)
    values = [[float(n.replace(",", "").rstrip(".")) for n in pair if n] for pair in ranges]
    return [(pair[0], pair[-1]) for pair in values]


def agree(stated: tuple[float, float], found: float) -> bool:
    low, high = stated
    if low.is_integer() and high.is_integer():
        return low - (low > 0) <= found <= high + (low > 0)  # 0 is 0
    return low / 2 <= found <= high * 2


def main() -> int:
    failed = 0
    for begins, found in measured():
        stated = published(begins)[: len(found)]
        holds = len(stated) == len(found) and all(map(agree, stated, found))
        failed += not holds
        print(f"{begins}: {'holds' if holds else 'DOES NOT HOLD'}")
        print("  published " + ", ".join(f"{low:g}" if low == high else f"{low:g} to {high:g}" for low, high in stated))
        print("  measured  " + ", ".join(f"{value:.3g}" for value in found), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
