"""Compiled algorithms against the same programs in NumPy: cost and convergence, time and memory, accuracy.

    python benchmarks/algorithms.py                  # CG: time and memory, a few minutes on one core
    python benchmarks/algorithms.py --table          # twelve algorithms: cost, deviation and convergence
    python benchmarks/algorithms.py --accuracy       # 256 systems for each sigma of the paper, 60 and 600 iterations

*Time.* NumPy's CG (batched matrix products, one step for all systems at once) and the transformer take turns in one
process; the time of an iteration is the difference between runs of 5 and of 25 iterations, so that set-up, pre block
and read-out do not count. *Memory.* The most that is allocated at once during a run of 5 iterations: torch's allocator
for the transformer, tracemalloc for NumPy. ``--json FILE`` keeps the numbers with their provenance.
"""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nlaformer as nf
from benchmarks.command import write
from benchmarks.operations import interleaved, peak_bytes
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.library import example, program
from nlaformer.compiler.library.measuring import Comparison, converge
from nlaformer.console import Sheet, print_sheets
from nlaformer.problems.spd import random_spd
from nlaformer.provenance import in_words, provenance

# The table of algorithms: iterations of a run, systems, their seed, and the levels of error that are timed.
ITERATIONS = 200
SYSTEMS = 8
SEED = 11
LEVELS = (1e-6, 1e-12)
TABLE = (
    "cg", "cg_fused", "pcg", "conjugate_residual", "cgnr", "steepest_descent", "richardson", "heavy_ball", "chebyshev",
    "power", "newton_schulz", "scalar_newton",
)  # fmt: skip
CASES = ((20, None), (20, 1024), (64, None), (128, None), (128, 32))
SHORT, LONG = 5, 25


def numpy_cg(A: np.ndarray, b: np.ndarray, iterations: int) -> np.ndarray:
    """CG for a batch of systems, all at once."""
    x, r, d = np.zeros_like(b), b, b
    rho = (r * r).sum(-1, keepdims=True)
    for _ in range(iterations):
        q = (A @ d[..., None])[..., 0]
        alpha = rho / (d * q).sum(-1, keepdims=True)
        x, r = x + alpha * d, r - alpha * q
        rho, before = (r * r).sum(-1, keepdims=True), rho
        d = r + rho / before * d
    return x


def time_case(n: int, batch: int | None, budget: float) -> dict[str, Any]:
    """One case: seconds of an iteration and peak bytes, NumPy and transformer."""
    drawn, _ = example("cg", n)
    A, b = (drawn[name][np.arange(batch or 1) % 8] for name in ("A", "b"))
    if batch is None:
        A, b = A[0], b[0]
    cg = nf.algorithm("cg", n, verify=False)
    runs: list[Callable[[], Any]] = []
    for iterations in (SHORT, LONG):
        runs += [partial(numpy_cg, A, b, iterations), partial(cg.run, A, b, iterations=iterations)]
    short, mine_short, long, mine_long = interleaved(runs, budget)
    tracemalloc.start()
    numpy_cg(A, b, SHORT)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "n": n,
        "batch": batch,
        "numpy_seconds": (long - short) / (LONG - SHORT),
        "seconds": (mine_long - mine_short) / (LONG - SHORT),
        "start_seconds": mine_short - SHORT * (mine_long - mine_short) / (LONG - SHORT),
        "numpy_bytes": memory,
        "bytes": peak_bytes(lambda: cg.run(A, b, iterations=SHORT)),
    }


def speed(budget: float) -> tuple[Sheet, list[dict[str, Any]]]:
    found = [time_case(n, batch, budget) for n, batch in CASES]
    lines = tuple(
        (
            f"{row['n']}",
            str(row["batch"] or "-"),
            f"{row['numpy_seconds'] * 1e3:.3f} ms",
            f"{row['seconds'] * 1e3:.2f} ms",
            f"{row['seconds'] / row['numpy_seconds']:.0f} x",
            f"{row['start_seconds'] * 1e3:.0f} ms",
            f"{row['numpy_bytes'] / 1e6:.2f} MB",
            f"{row['bytes'] / 1e6:.0f} MB",
        )
        for row in found
    )
    headings = ("n", "batch", "NumPy,\niteration", "transformer,\niteration", "ratio", "its start", "memory\nNumPy")
    return Sheet("CG: an iteration of the transformer against NumPy", (*headings, "memory\ntransformer"), lines), found


def measure(name: str, n: int = 20, iterations: int = ITERATIONS, systems: int = SYSTEMS) -> dict[str, Any]:
    """Compile one algorithm and run it against its program: cost, deviations, errors, iterations to each level."""
    compiled = nf.algorithm(name, n, verify=False)
    inputs, exact = example(name, n, systems, SEED)
    curves = converge(compiled, program(name), inputs, exact, iterations)
    return measured(name, compiled, curves) | {
        "n": n,
        "start_layers": compiled.cost.pre.layers,
        "iterations": {f"{level:g}": iterations_to(curves.found, level) for level in LEVELS},
        "reference_iterations": {f"{level:g}": iterations_to(curves.reference, level) for level in LEVELS},
    }


def measured(name: str, compiled: Algorithm, curves: Comparison) -> dict[str, Any]:
    """What an algorithm costs, how closely it follows its program and how far it comes."""
    deviation, loop = curves.deviation.max(0), compiled.cost.loop
    return {
        "name": name,
        "layers": loop.layers,
        "heads": compiled.loop_heads,
        "ffn_width": loop.ffn_width,
        "rows": loop.rows,
        "first_deviation": float(deviation[1]),
        "largest_deviation": float(deviation.max()),
        "last_deviation": float(deviation[-1]),
        "error": float(curves.found[:, -1].max()),
        "reference_error": float(curves.reference[:, -1].max()),
    }


def iterations_to(errors: np.ndarray, level: float) -> int | None:
    """The first iteration at which the median error is at or below a level; None if there is none."""
    below = np.median(errors, axis=0) <= level
    return int(below.argmax()) if below.any() else None


def table() -> tuple[Sheet, list[dict[str, Any]]]:
    """The algorithms of the guide, n = 20, float64."""
    found = [measure(name) for name in TABLE]
    return table_sheet(found), found


def table_sheet(rows: list[dict[str, Any]]) -> Sheet:
    def count(row: dict[str, Any], level: str) -> str:
        mine, theirs = row["iterations"][level], row["reference_iterations"][level]
        return f"{'-' if mine is None else mine} ({'-' if theirs is None else theirs})"

    costs = ("layers", "heads,\nall layers", "FFN\nwidth")
    deviations = ("deviation\n1 step", "deviation\nlargest", "deviation\nlast")
    errors = ("error\nat the end", "to 1e-6\n(NumPy)", "to 1e-12\n(NumPy)")

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        costs = (row["name"], str(row["layers"]), str(row["heads"]), f"{row['ffn_width']:,}")
        deviations = (f"{row[f'{which}_deviation']:.0e}" for which in ("first", "largest", "last"))
        return (*costs, *deviations, f"{row['error']:.0e} ({row['reference_error']:.0e})")

    lines = tuple((*cells(row), count(row, "1e-06"), count(row, "1e-12")) for row in rows)
    note = (
        f"Layers and heads: of one iteration. Deviation: |x_t - x_t of the program in NumPy| / |x|, worst of {SYSTEMS} "
        f"systems of the paper's family (sigma = 1.2), over {ITERATIONS} iterations. Error: |x_t - x| / |x|, and the "
        "iterations until its median falls below a level; NumPy's in brackets. The conjugate gradient family amplifies "
        "rounding on its way, NumPy's own too, and converges all the same; the last deviation is the one that stays."
    )
    title = f"Algorithms as looped transformers, n = {rows[0]['n']}"
    return Sheet(title, ("algorithm", *costs, *deviations, *errors), lines, note)


def accuracy() -> tuple[Sheet, list[dict[str, Any]]]:
    """The paper's family, n = 20, one weight set."""
    cg = nf.algorithm("cg", 20, verify=False)
    found = []
    for sigma in (1.0, 1.2, 1.4):
        A = random_spd(20, 256, sigma, seed=23)
        x = np.random.default_rng(23).standard_normal((256, 20))
        b = (A @ x[..., None])[..., 0]
        size = np.linalg.norm(x, axis=-1)
        run, reference = cg.run(A, b, iterations=60), program("cg").run(A, b, iterations=5)
        error = np.linalg.norm(run.x - x[:, None], axis=-1) / size[:, None]
        deviation = np.linalg.norm(run.x[:, 5] - reference.x[:, 5], axis=-1) / size
        later = np.linalg.norm(cg.run(A, b, iterations=600).x[:, 60:] - x[:, None], axis=-1) / size[:, None]
        found.append(
            {
                "sigma": sigma,
                "median_30": float(np.median(error[:, 30])),
                "max_30": float(error[:, 30].max()),
                "max_60": float(error[:, 60].max()),
                "max_60_to_600": float(later.max()),
                "median_deviation_5": float(np.median(deviation)),
            }
        )
    lines = tuple(
        tuple(f"{value:.1e}" if key != "sigma" else f"{value}" for key, value in row.items()) for row in found
    )
    headings = ("sigma", "t = 30\nmedian", "t = 30\nlargest", "t = 60\nlargest", "t = 60 .. 600\nlargest")
    title = "Compiled CG, n = 20, float64, 256 systems: |x_t - x| / |x|, and its distance from NumPy's CG at t = 5"
    return Sheet(title, (*headings, "from CG, t = 5\nmedian"), lines), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for what in ("table", "accuracy"):
        parser.add_argument(f"--{what}", action="store_true")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of repeated runs for each case")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.table:
        sheet, found = table()
    else:
        sheet, found = accuracy() if options.accuracy else speed(options.budget)
    print_sheets([sheet], markdown=True)
    where = provenance()
    print(f"\n{in_words(where)}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {"measurements": found, "provenance": where}
        if options.table:
            about = {"n": 20, "dtype": "float64", "systems": SYSTEMS, "seed": SEED}
            document = {**about, "algorithms": found, "provenance": where}
        write(options.json, document)


if __name__ == "__main__":
    main()
