"""The table of algorithms: what each costs, how closely it follows its program, how fast it converges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.library import algorithm, algorithms, program
from nlaformer.compiler.verify import _held as hold
from nlaformer.console import Sheet
from nlaformer.problems.spd import random_spd

ITERATIONS = 200
SYSTEMS = 8
SEED = 11
LEVELS = (1e-6, 1e-12)


@dataclass(frozen=True)
class Convergence:
    """Relative errors |x_t - x| / |x|, (systems, T + 1), of the transformer and of its program, and their deviation."""

    found: np.ndarray
    reference: np.ndarray
    deviation: np.ndarray


@dataclass(frozen=True)
class Row:
    """One algorithm: layers of an iteration, heads of all of them, sizes, deviations, and iterations to each level."""

    name: str
    n: int
    layers: int
    start_layers: int
    heads: int
    ffn_width: int
    rows: int
    first_deviation: float
    largest_deviation: float
    last_deviation: float
    error: float
    reference_error: float
    iterations: dict[str, int | None]
    reference_iterations: dict[str, int | None]


def systems(n: int, name: str = "cg", count: int = SYSTEMS, seed: int = SEED) -> dict[str, np.ndarray]:
    """Inputs from the paper's family, sigma = 1.2; for cgnr made nonsymmetric."""
    A = random_spd(n, count, 1.2, seed)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, n))
    if name == "cgnr":
        A = A + 0.1 * rng.standard_normal(A.shape)
    given = {"A": A, "b": (A @ x[..., None])[..., 0]}
    return {key: given[key] for key in _INPUTS.get(name, ("A", "b"))}


_INPUTS: dict[str, Sequence[str]] = {"power": ("A",), "newton_schulz": ("A",), "scalar_newton": ("b",)}


def converge(compiled: Algorithm, name: str, inputs: dict[str, np.ndarray], iterations: int) -> Convergence:
    """Run a compiled algorithm and its program on the same systems."""
    found = compiled.run(
        **{key: value.astype(compiled.config.dtype) for key, value in inputs.items()}, iterations=iterations
    )
    reference = hold(program(name).run(**inputs, iterations=iterations).x)
    wanted = _EXACT.get(name, _solution)(inputs, reference)

    def flat(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(wanted), -1, wanted[0].size).astype(np.float64)

    def relative(difference: np.ndarray) -> np.ndarray:
        return np.linalg.norm(difference, axis=-1) / np.linalg.norm(flat(wanted), axis=-1)

    x, theirs = flat(found.x), flat(reference)
    return Convergence(relative(x - flat(wanted)), relative(theirs - flat(wanted)), relative(x - theirs))


def _solution(inputs: dict[str, np.ndarray], iterates: np.ndarray) -> np.ndarray:
    return np.linalg.solve(inputs["A"], inputs["b"][..., None])[..., 0]


def _eigenvector(inputs: dict[str, np.ndarray], iterates: np.ndarray) -> np.ndarray:
    vectors = np.linalg.eigh(inputs["A"])[1][..., -1]
    return vectors * np.sign((vectors * iterates[:, -1]).sum(-1, keepdims=True))


_EXACT: dict[str, Callable[[dict[str, np.ndarray], np.ndarray], np.ndarray]] = {
    "power": _eigenvector,
    "newton_schulz": lambda inputs, iterates: np.linalg.inv(inputs["A"]),
    "scalar_newton": lambda inputs, iterates: iterates[:, -1],
}


def measure(name: str, n: int = 20, dtype: torch.dtype = torch.float64, iterations: int = ITERATIONS) -> Row:
    """Compile one algorithm and run it against its program."""
    compiled = algorithm(name, n, dtype=dtype, verify=False)
    curves = converge(compiled, name, systems(n, name), iterations)
    deviation = curves.deviation.max(0)
    loop = compiled.cost.loop
    return Row(
        name,
        n,
        layers=loop.layers,
        start_layers=compiled.cost.pre.layers,
        heads=sum(layer.heads.count for layer in compiled.model.loop if layer.heads is not None),  # type: ignore[union-attr, misc]
        ffn_width=loop.ffn_width,
        rows=loop.rows,
        first_deviation=float(deviation[1]),
        largest_deviation=float(deviation.max()),
        last_deviation=float(deviation[-1]),
        error=float(curves.found[:, -1].max()),
        reference_error=float(curves.reference[:, -1].max()),
        iterations={f"{level:g}": iterations_to(curves.found, level) for level in LEVELS},
        reference_iterations={f"{level:g}": iterations_to(curves.reference, level) for level in LEVELS},
    )


def measure_all(n: int = 20, dtype: torch.dtype = torch.float64) -> list[Row]:
    return [measure(name, n, dtype) for name in algorithms()]


def iterations_to(errors: np.ndarray, level: float) -> int | None:
    """The first iteration at which the median error is at or below a level; None if there is none.

    >>> iterations_to(np.array([[1.0, 0.1, 0.01]]), 0.05)
    2
    """
    below = np.median(errors, axis=0) <= level
    return int(below.argmax()) if below.any() else None


def as_data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Plain dictionaries."""
    return [asdict(row) for row in rows]


def sheet(rows: Sequence[Row]) -> Sheet:
    """The table."""

    def count(row: Row, level: float) -> str:
        mine, theirs = row.iterations[f"{level:g}"], row.reference_iterations[f"{level:g}"]
        return f"{'-' if mine is None else mine} ({'-' if theirs is None else theirs})"

    headings = (
        "algorithm",
        "layers",
        "heads,\nall layers",
        "FFN\nwidth",
        "deviation\n1 step",
        "deviation\nlargest",
        "deviation\nlast",
    )
    return Sheet(
        f"Algorithms as looped transformers, n = {rows[0].n}",
        (*headings, "error\nat the end", "to 1e-6\n(NumPy)", "to 1e-12\n(NumPy)"),
        tuple(
            (
                row.name,
                str(row.layers),
                str(row.heads),
                f"{row.ffn_width:,}",
                f"{row.first_deviation:.0e}",
                f"{row.largest_deviation:.0e}",
                f"{row.last_deviation:.0e}",
                f"{row.error:.0e} ({row.reference_error:.0e})",
                count(row, 1e-6),
                count(row, 1e-12),
            )
            for row in rows
        ),
        f"Layers and heads: of one iteration. Deviation: |x_t - x_t of the program in NumPy| / |x|, worst of {SYSTEMS} "
        f"systems of the paper's family (sigma = 1.2), over {ITERATIONS} iterations. Error: |x_t - x| / |x|, and the "
        "iterations until its median falls below a level; in brackets NumPy's. The conjugate gradient family amplifies "
        "rounding on its way, NumPy's own too, and converges all the same; the last deviation is the one that stays.",
    )
