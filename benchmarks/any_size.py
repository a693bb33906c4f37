"""Weights for every n: CG on a million unknowns beside NumPy and SciPy, and the library on random patterns.

    python -m benchmarks.any_size --accuracy 1000 --out benchmarks/results/any_size_accuracy.json  # 10 minutes
    python -m benchmarks.any_size --literal 1000 --out benchmarks/results/any_size_literal.json    # 5 minutes
    python -m benchmarks.any_size --time 1000 316 --out benchmarks/results/any_size_time.json      # 5 minutes
    python -m benchmarks.any_size --patterns 50 --out benchmarks/results/any_size_patterns.json    # 10 minutes

*Accuracy*: |x_t - y_t| / |y_t| after 100 iterations, where y_t is that of CG in extended precision (80 bits), for the
weights, gathered, and for CG in NumPy; M x M Poisson, a cube of about as many unknowns, M x M with coefficients that
jump by 1e3. *Time*: CPU time of an iteration over that of an iteration of SciPy's CG, alternating, one thread.
*Literal*: every layer of the start and of one iteration, the softmax over all tokens for ten queries: the largest
difference from gathered heads, relative to the largest entry of its row (of a logarithm, or 1).
*Patterns*: symmetric matrices of random patterns, made diagonally dominant, n drawn from 30 to 3,000, six iterations:
how many runs have a value that is not the program's own (``run.diagnose``); at n = 30 also the largest distance of
gathered from dense attention, over all iterates, relative to the largest entry.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sl
import torch

import nlaformer as nf
from benchmarks.command import write
from nlaformer.compiler.anysize.gather import Matrices, Pass
from nlaformer.compiler.anysize.plan import plan
from nlaformer.compiler.anysize.reading import Reader
from nlaformer.console import Sheet, print_sheets
from nlaformer.provenance import in_words, provenance

_PROGRAMS = (
    "cg", "cg_fused", "pcg", "conjugate_residual", "minimal_residual", "minres", "cgnr", "cgls", "lsqr", "craig",
    "bicg", "bicgstab", "gmres", "richardson", "jacobi", "cimmino", "chebyshev", "anderson", "gradient_descent",
    "steepest_descent", "barzilai_borwein", "heavy_ball", "nesterov", "runge_kutta", "power", "deflated_power",
    "subspace_iteration", "singular_vectors",
)  # fmt: skip
_SLOTS = 32


def laplacian(sides: tuple[int, ...]) -> sp.csr_array:
    """Poisson's equation by finite differences, with Dirichlet's condition."""
    n = int(np.prod(sides))
    A = sp.csr_array((n, n))
    for axis, side in enumerate(sides):
        D = sp.diags_array([-np.ones(side - 1), 2 * np.ones(side), -np.ones(side - 1)], offsets=[-1, 0, 1])
        before, after = int(np.prod(sides[:axis])), int(np.prod(sides[axis + 1 :]))
        A = A + sp.kron(sp.kron(sp.eye_array(before), D), sp.eye_array(after))
    return sp.csr_array(A)


def jumping(m: int) -> sp.csr_array:
    """Diffusion by finite volumes; the coefficient jumps by 1e3 between 20 x 20 blocks and varies in them."""
    rng = np.random.default_rng(3)
    block = -(-m // 20)
    k = np.kron(np.where(rng.random((20, 20)) < 0.5, 1e3, 1.0), np.ones((block, block)))[:m, :m]
    k = k * rng.uniform(0.5, 2.0, (m, m))
    number = np.arange(m * m).reshape(m, m)
    parts = []
    for one, other in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[1:], np.s_[:-1])):
        weight = (2 * k[one] * k[other] / (k[one] + k[other])).ravel()
        row, column = number[one].ravel(), number[other].ravel()
        parts.append(
            sp.coo_array((-np.tile(weight, 2), (np.r_[row, column], np.r_[column, row])), shape=(m * m, m * m))
        )
    A = sp.csr_array(parts[0] + parts[1])
    own = -A.sum(axis=1).reshape(m, m)
    own[[0, -1]] += 2 * k[[0, -1]]
    own[:, [0, -1]] += 2 * k[:, [0, -1]]
    return sp.csr_array(A + sp.diags_array(own.ravel()))


def cg(A: Any, b: np.ndarray, count: int) -> np.ndarray:
    """Conjugate gradients in the precision of b."""
    x, r = np.zeros_like(b), b.copy()
    d, rho = r.copy(), b @ b
    for _ in range(count):
        q = A @ d
        alpha = rho / (d @ q)
        x, r = x + alpha * d, r - alpha * q
        rho, before = r @ r, rho
        d = r + rho / before * d
    return x


def right_hand_sides(n: int) -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    point = np.zeros(n)
    point[n // 3] = 1.0
    yield "normal", rng.standard_normal(n)
    yield "point source", point
    yield "Cauchy", rng.standard_cauchy(n)
    yield "ones", np.ones(n)


def accuracy(m: int) -> list[dict[str, Any]]:
    """100 iterations of CG beside extended precision."""
    weights = nf.algorithm("cg", n="any", slots=7)
    cube = round(m ** (2 / 3))
    cases = {
        "2-D Poisson": lambda: laplacian((m, m)),
        "3-D Poisson": lambda: laplacian((cube,) * 3),
        "2-D, jumps of 1e3": lambda: jumping(m),
    }
    found = []
    for matrix, make in cases.items():
        A = make()
        extended = A.astype(np.longdouble)
        for name, b in right_hand_sides(A.shape[0]):
            exact = cg(extended, b.astype(np.longdouble), 100)
            ours, numpy = weights.run(A, b, iterations=100, keep="last").x[-1], cg(A, b, 100)
            size = np.linalg.norm(exact)
            distance = {
                who: float(np.linalg.norm(x - exact) / size) for who, x in (("NumPy", numpy), ("weights", ours))
            }
            found.append({"matrix": matrix, "n": A.shape[0], "b": name, **distance})
            print(found[-1], flush=True)
    return found


def literal(m: int) -> list[dict[str, Any]]:
    """One iteration of CG over all tokens, by the softmax as it stands, for ten queries; beside gathered heads."""
    weights, A = nf.algorithm("cg", n="any", slots=5), sp.csr_array(laplacian((m, m)) / 8)  # which no run scales
    n, b = m * m, np.random.default_rng(0).standard_normal(m * m)
    layout, names = weights.layout(n), [row.name for row in weights.lowered.machine.rows[1:]]
    matrices = Matrices(weights.slots_of({"A": A}), weights.gains)
    X, reader = weights.prompt(A, b).mT.numpy(), Reader(layout)
    sample = np.r_[0, 1, 2, n, np.random.default_rng(1).integers(3, n, 6)]
    found: list[dict[str, Any]] = []
    for block in ("pre", "loop"):
        for layer, words in zip(getattr(weights.model, block), weights.config.attends[block], strict=True):
            held = {layout[name][0]: X[1:, layout[name][0]].copy() for name in names}
            rows: dict[int, Any] = {}
            for row, entry in held.items():
                if entry.any():
                    rows[row] = float(entry[0]) if (entry == entry[0]).all() else entry
            kinds = {row: isinstance(value, float) for row, value in rows.items()}
            after = Pass(plan([reader.layer(layer, words)], kinds, layout["one"][0]), n, matrices).run(rows)
            queried = one_layer(layer, X, sample)
            worst = 0.0
            for name in names:
                row = layout[name][0]
                value = np.broadcast_to(after.get(row, 0.0), n)
                size = max(float(np.abs(value).max()), 1.0 if "log" in name else 1e-300)
                worst = max(worst, float(np.abs(queried[1:, row] - value[sample[1:] - 1]).max() / size))
                X[1:, row] = value
            found.append({"block": block, "layer": len(found) + 1, "n": n, "largest difference": worst})
            print(found[-1], "sink", float(np.abs(queried[0, 1:]).max()), flush=True)
    return found


def one_layer(layer: Any, X: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """Attention of some queries over all tokens, head by head, and the FFN."""
    out = X[sample].copy()
    if layer.heads is not None:
        count = layer.heads.count
        weights = (layer.heads.W_Q, layer.heads.W_K, layer.heads.W_U)
        Q, K, U = (W.dense().unflatten(0, (count, -1)).numpy() for W in weights)
        out_of = layer.heads.W_O.dense().unflatten(1, (count, -1)).numpy()
        for h in range(count):
            score = X[sample] @ Q[h].T @ _read(K[h], X)
            score = torch.softmax(torch.from_numpy(score), -1).numpy()
            out += score @ _read(U[h], X).T @ out_of[:, h].T
    if layer.ffn is not None:
        Y = torch.from_numpy(out)
        out = layer.ffn.added_to(Y, Y).detach().numpy()
    return out


def _read(W: np.ndarray, X: np.ndarray) -> np.ndarray:
    """W X^T, from the rows that W reads."""
    used = np.flatnonzero(W.any(0))
    return W[:, used] @ X[:, used].T


def timed(m: int) -> dict[str, Any]:
    """The time of an iteration, the weights' and SciPy's in turns; and whether both need as many to 1e-8."""
    A, weights = laplacian((m, m)), nf.algorithm("cg", n="any", slots=5)
    b = np.random.default_rng(0).standard_normal(m * m)
    few, many = 5, 5 + max(20, 2 * 10**7 // m**2)
    times: dict[str, list[float]] = {"weights": [], "SciPy": []}
    for _ in range(5):
        for who in times:
            spent = []
            for count in (few, many):
                begun = time.process_time()
                if who == "weights":
                    weights.run(A, b, iterations=count, keep="last")
                else:
                    sl.cg(A, b, rtol=0.0, maxiter=count)
                spent.append(time.process_time() - begun)
            times[who].append((spent[1] - spent[0]) / (many - few))
    ratios = sorted(w / s for w, s in zip(times["weights"], times["SciPy"], strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    counted: list[np.ndarray] = []
    sl.cg(A, b, rtol=1e-8, callback=counted.append)
    count, goal = len(counted), 1e-8 * np.linalg.norm(b)
    del counted
    late = weights.run(A, b, iterations=-(-count * 101 // 100), keep="last").x[-1]
    early = weights.run(A, b, iterations=count * 99 // 100, keep="last").x[-1]
    residual = {"1 % later": late, "1 % earlier": early}
    return {
        "n": m * m,
        "ratio": ratios[2],
        "least": ratios[0],
        "most": ratios[-1],
        "SciPy ms": 1e3 * float(np.median(times["SciPy"])),
        "peak GB": peak,
        "SciPy's iterations to 1e-8": count,
        **{f"|b - A x| / goal, {when}": float(np.linalg.norm(b - A @ x) / goal) for when, x in residual.items()},
    }


def pattern(n: int, rng: np.random.Generator) -> sp.csr_array:
    """A symmetric matrix of a random pattern, diagonally dominant."""
    A = sp.random_array((n, n), density=rng.uniform(1, 4) / n, rng=rng, data_sampler=rng.standard_normal)
    A = sp.csr_array(A + A.T)
    return sp.csr_array(A + rng.uniform(1.05, 1.5) * abs(A).sum(axis=1).max() * sp.eye_array(n))


def patterns(count: int) -> list[dict[str, Any]]:
    """The library on random patterns."""
    found = []
    for name in _PROGRAMS:
        weights = nf.algorithm(name, n="any", slots=_SLOTS)
        rng, wrong, apart = np.random.default_rng(7), 0, 0.0
        inputs = weights.traced.graph.inputs
        for k in range(count):
            n = 30 if k < 5 else round(float(np.exp(rng.uniform(np.log(30), np.log(3000)))))
            A = pattern(n, rng)
            given = {key: {"A": A, "b": rng.standard_normal(n)}[key] for key in ("A", "b") if key in inputs}
            run = weights.run(**given, iterations=6)
            wrong += not run.diagnose()
            if n == 30:
                dense = weights.run(**given, iterations=6, attention="dense")
                apart = max(apart, float(np.abs(run.x - dense.x).max() / np.abs(dense.x).max()))
        found.append({"program": name, "patterns": count, "wrong": wrong, "gathered from dense": apart})
        print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accuracy", type=int, metavar="M", help="side of the grid")
    parser.add_argument("--literal", type=int, metavar="M", help="side of the grid")
    parser.add_argument("--time", type=int, nargs="+", metavar="M", help="sides of grids")
    parser.add_argument("--patterns", type=int, metavar="COUNT", help="random patterns for each program")
    parser.add_argument("--out", type=Path, help="file for the numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.accuracy:
        found = accuracy(options.accuracy)
    elif options.literal:
        found = literal(options.literal)
    elif options.time:
        found = [timed(m) for m in options.time]
    else:
        found = patterns(options.patterns or 5)
    lines = tuple(tuple(f"{v:.3g}" if isinstance(v, float) else str(v) for v in case.values()) for case in found)
    print_sheets([Sheet("Weights for every n", tuple(found[0]), lines)], markdown=True)
    where = provenance()
    print(f"\n{in_words(where)}")
    if options.out is not None:
        write(options.out, {"measurements": found, "provenance": where})


if __name__ == "__main__":
    main()
