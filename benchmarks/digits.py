"""The digits that programs of the library determine, whether a value of their weights stands out, and what that costs.

    python -m benchmarks.digits                                          # n = 8, float64: cost beside a run's, digits
    python -m benchmarks.digits --n 20 --draws 20 --seed 6002 --out rows.jsonl    # with 20 seeds of the rounding
    python -m benchmarks.digits --condition 1e6                          # symmetric A of condition 1e2, 1e4 and 1e6
    python -m benchmarks.digits cg minres --dtype float32

Twelve problems of each algorithm, 24 iterations at most. CPU seconds: of the run, its status, its digits. A system
*stands out* if a value of the weights does (``nlaformer/compiler/digits.py``), for some seeds of the rounding or for
all; the factor is how far a system's farthest value is beyond the runs of all seeds, the least of those that stand out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nlaformer.compiler.digits import RULES, Band, bands
from nlaformer.compiler.expression import size
from nlaformer.compiler.library import algorithm, algorithms, record
from nlaformer.compiler.result import Run
from nlaformer.compiler.trace import ANSWER
from nlaformer.console import Sheet, print_sheets
from nlaformer.provenance import in_words, provenance

_SYSTEMS, _ITERATIONS = 12, 24


@dataclass(frozen=True)
class Row:
    """An algorithm: CPU seconds, shares of values and answers, numbers of systems."""

    name: str
    run: float
    status: float
    digits: float
    undetermined: float
    without: float
    some: int
    all: int
    factor: float | None


def problems(name: str, n: int, seed: int, condition: float | None) -> dict[str, np.ndarray] | None:
    """Inputs of the kind an algorithm is meant for; with symmetric A of a condition, None where it has none."""
    inputs = {key: np.asarray(value) for key, value in record(name).problems(n, _SYSTEMS, seed)[0].items()}
    if condition is None:
        return inputs
    A = inputs.get("A")
    if A is None or np.abs(A - A.swapaxes(1, 2)).max() > 1e-12 * np.abs(A).max():
        return None
    rng, graded = np.random.default_rng(seed + 1000), np.empty_like(A)
    for k in range(len(A)):
        c, Q = condition ** ((k % 3 + 1) / 3), np.linalg.qr(rng.standard_normal((n, n)))[0]
        own = np.geomspace(1.0, c, n) if k % 2 else np.append(np.ones(n - 1), c) * rng.uniform(0.9, 1.1, n)
        graded[k] = (Q * own) @ Q.T
        graded[k] *= np.linalg.norm(A[k]) / np.linalg.norm(graded[k])
    return inputs | {"A": (graded + graded.swapaxes(1, 2)) / 2}


def measure(name: str, n: int, dtype: str, seed: int, draws: int, bits: int, condition: float | None) -> Row | None:
    """One algorithm."""
    inputs, entry = problems(name, n, seed, condition), record(name)
    if inputs is None:
        return None
    compiled = algorithm(name, n, dtype=dtype, verify=False)
    given, count = {key: v.astype(dtype) for key, v in inputs.items()}, min(_ITERATIONS, entry.iterations(n))
    run, of_run = _timed(lambda: compiled.run(**given, iterations=count))
    _, of_status = _timed(lambda: run.status)
    _, of_digits = _timed(lambda: run.digits)
    rule = RULES[compiled.dtype] if not bits else replace(RULES[compiled.dtype], bits=bits)
    found = [_bands(run, rule, draw) for draw in range(draws)]
    out = torch.stack([_standing_out(run, each) for each in found])
    shares = [float((~band.judged).double().mean()) for each in found for band in each.values()]
    without = [float((each[ANSWER].digits[:, -1] < 1).double().mean()) for each in found]
    factors = [_beyond(run, found, system) for system in out.any(0).nonzero().flatten().tolist()]
    return Row(
        name, of_run, of_status, of_digits, float(np.mean(shares)), float(np.mean(without)), int(out.any(0).sum()),
        int(out.all(0).sum()), min(factors, default=None),
    )  # fmt: skip


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    before = time.process_time()
    return call(), time.process_time() - before


def _bands(run: Run[Any], rule: Any, draw: int) -> dict[str, Band]:
    record, inputs = run.record, {name: value.double() for name, value in run.record.inputs.items()}
    assert record.methods is not None
    return bands(record.methods, inputs, record.values[ANSWER].shape[1] - 1, rule, draw)


def _standing_out(run: Run[Any], found: dict[str, Band]) -> torch.Tensor:
    """The systems with a value that does."""
    return torch.stack([band.stands_out(run.record.values[key]).any(-1) for key, band in found.items()]).any(0)


def _beyond(run: Run[Any], found: list[dict[str, Band]], system: int) -> float:
    """How far the farthest value of a system that stands out is beyond the farthest of all runs."""
    factors = [0.0]
    for key, band in found[0].items():
        value = run.record.values[key].double()
        farthest = torch.stack([each[key].spread for each in found]).amax(0)[system]
        where = torch.stack([each[key].stands_out(value) for each in found]).any(0)[system]
        factors += (size(value - band.own, band.kind)[system] / farthest)[where].tolist()
    return max(factors)


def main(given: list[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="algorithms; default: all")
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--seed", type=int, default=11, help="of the problems")
    parser.add_argument("--draws", type=int, default=1, help="seeds of the rounding")
    parser.add_argument("--bits", type=int, default=0, help="of an operation; by default those of the rule")
    parser.add_argument("--condition", type=float, help="the largest, of symmetric A in place of the algorithm's own")
    parser.add_argument("--out", type=Path, help="file for a line of JSON for each algorithm")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    rows = []
    for name in options.names or algorithms():
        row = measure(
            name, options.n, options.dtype, options.seed, options.draws, options.bits, options.condition
        )  # fmt: skip
        if row is None:
            continue
        rows.append(row)
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(vars(options) | {"out": str(options.out)} | asdict(row)) + "\n")
    print_sheets([sheet(rows, f"n = {options.n}, {options.dtype}")])
    print(in_words(provenance()))
    return rows


def sheet(rows: list[Row], title: str) -> Sheet:
    """A line for each algorithm, and their sum."""
    headings = ("algorithm", "run", "status", "digits", "undetermined", "x without", "stands out", "for all", "factor")
    lines = [_line(row) for row in rows]
    total = [sum(getattr(row, key) for row in rows) for key in ("run", "status", "digits")]
    shares = (
        [f"{np.mean([getattr(row, key) for row in rows]):.1%}" for key in ("undetermined", "without")] if rows else []
    )
    counts = [str(sum(getattr(row, key) for row in rows)) for key in ("some", "all")]
    lines.append(("all", *(f"{seconds:.1f}" for seconds in total), *shares, *counts, ""))
    return Sheet(title, headings, tuple(lines))


def _line(row: Row) -> tuple[str, ...]:
    factor = "" if row.factor is None else f"{row.factor:.0f}"
    seconds = (f"{row.run:.2f}", f"{row.status:.2f}", f"{row.digits:.2f}")
    return (row.name, *seconds, f"{row.undetermined:.0%}", f"{row.without:.0%}", str(row.some), str(row.all), factor)


if __name__ == "__main__":
    main()
