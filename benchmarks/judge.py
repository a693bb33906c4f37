"""The judge of compiled runs on the library: what it says of sound weights and of damaged ones, and what it costs.

    python -m benchmarks.judge --jobs 2 --out benchmarks/results/judge.json   # an hour on two cores
    python -m benchmarks.judge cg minres --draws 2 --mutants 1                # some algorithms, minutes
    python -m benchmarks.judge --read benchmarks/results/judge.json           # the tables again

Twelve problems of each algorithm and size in both precisions, 24 iterations at most: of the kind that it is meant for
(*own*), and with symmetric A of condition 1e2, 1e4 and 1e6 in its place (*hard*). The rounding is drawn with 20 seeds.
A system is *flagged* if a value of the weights is wrong for some seed, and *depends on the seed* if it is not for all.
The factor is how far the farthest value of a flagged system is beyond the runs of all seeds, 480 of them; the table has
the least.

*Mutants*: one nonzero weight of the loop times 1 + delta, on the problems of its own. One *matters* if it moves a value
that the program determines by 1e-6 of its largest so far, and has *no effect* if it moves none by 1e-9.
CPU seconds: of the run, its status, its digits.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import processes
from benchmarks.command import read, write
from nlaformer.arrays import DTYPES
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.library import algorithm, algorithms, record
from nlaformer.console import Sheet, print_sheets
from nlaformer.program.data import ANSWER
from nlaformer.program.judge import RULES, Band, bands
from nlaformer.program.run import Run
from nlaformer.program.tensors import size
from nlaformer.provenance import in_words, provenance

_SYSTEMS, _ITERATIONS = 12, 24
_SIZES = (8, 20)
_DELTAS = (1e-3, 1e-5, 1e-7)
_CONDITION = 1e6
_MATTERS, _NO_EFFECT = 1e-6, 1e-9
_KINDS = ("matters", "little effect", "no effect")
_SET = ("n", "precision", "problems")


@dataclass(frozen=True)
class Row:
    """An algorithm on one set of problems: CPU seconds, shares of values and of answers, numbers of systems.

    ``mutants`` counts what becomes of mutants, as "1e-05, matters, named".
    """

    name: str
    n: int
    dtype: str
    hard: bool
    run: float
    status: float
    digits: float
    undetermined: float
    without: float
    systems: int
    flagged: int
    depending: int
    factor: float | None
    mutants: dict[str, int]

    @property
    def beyond(self) -> str:
        """The factor, where all runs agree infinite."""
        return "no run differs" if self.factor is None or self.factor > 1e300 else f"{self.factor:.3g}"


def problems(name: str, n: int, seed: int, hard: bool) -> dict[str, np.ndarray] | None:
    """Inputs of the kind an algorithm is meant for; or with symmetric A of a condition, None where it has none."""
    inputs = {key: np.asarray(value) for key, value in record(name).problems(n, _SYSTEMS, seed)[0].items()}
    if not hard:
        return inputs
    A = inputs.get("A")
    if A is None or np.abs(A - A.swapaxes(1, 2)).max() > 1e-12 * np.abs(A).max():
        return None
    rng, graded = np.random.default_rng(seed + 1000), np.empty_like(A)
    for k in range(len(A)):
        c, Q = _CONDITION ** ((k % 3 + 1) / 3), np.linalg.qr(rng.standard_normal((n, n)))[0]
        own = np.geomspace(1.0, c, n) if k % 2 else np.append(np.ones(n - 1), c) * rng.uniform(0.9, 1.1, n)
        graded[k] = (Q * own) @ Q.T
        graded[k] *= np.linalg.norm(A[k]) / np.linalg.norm(graded[k])
    return inputs | {"A": (graded + graded.swapaxes(1, 2)) / 2}


def measure(name: str, n: int, dtype: str, hard: bool, seed: int, draws: int, mutants: int) -> Row | None:
    """One algorithm on one set of problems."""
    np.seterr(all="ignore")
    inputs = problems(name, n, seed, hard)
    if inputs is None:
        return None
    compiled = algorithm(name, n, dtype=DTYPES[dtype], verify=False)
    given, count = {key: v.astype(dtype) for key, v in inputs.items()}, min(_ITERATIONS, record(name).iterations(n))
    run, of_run = _timed(lambda: compiled.run(**given, iterations=count))
    _, of_status = _timed(lambda: run.status)
    _, of_digits = _timed(lambda: run.digits)
    found = [_bands(run, draw) for draw in range(draws)]
    wrong = torch.stack([_wrong(run, each) for each in found])
    some, every = wrong.any(0), wrong.all(0)
    shares = [float((~band.judged).double().mean()) for each in found for band in each.values()]
    without = [float((each[ANSWER].digits[:, -1] < 1).double().mean()) for each in found]
    factors = [_beyond(run, found, system) for system in some.nonzero().flatten().tolist()]
    damaged = {} if hard else _mutants(compiled, given, count, run, found[0], mutants)
    return Row(
        name, n, dtype, hard, of_run, of_status, of_digits, float(np.mean(shares)), float(np.mean(without)), len(some),
        int(some.sum()), int((some & ~every).sum()), min(factors, default=None), damaged,
    )  # fmt: skip


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    before = time.process_time()
    return call(), time.process_time() - before


def _bands(run: Run[Any], draw: int = 0) -> dict[str, Band]:
    record = run.record
    return bands(record.graph, record.inputs, record.answer.shape[1] - 1, RULES[record.dtype], record.values, seed=draw)


def _wrong(run: Run[Any], found: dict[str, Band]) -> torch.Tensor:
    """The systems with a value that is."""
    return torch.stack([band.wrong(run.record.values[key]).any(-1) for key, band in found.items()]).any(0)


def _beyond(run: Run[Any], found: list[dict[str, Band]], system: int) -> float:
    """How far the farthest value of a flagged system is beyond the farthest of all runs."""
    factors = [0.0]
    for key, band in found[0].items():
        value = run.record.values[key]
        farthest = torch.stack([each[key].spread for each in found]).amax(0)[system]
        where = torch.stack([each[key].wrong(value) for each in found]).any(0)[system]
        factors += (size(value - band.own, band.axes)[system] / farthest).nan_to_num(torch.inf, 1e308)[where].tolist()
    return max(factors)


def _mutants(
    compiled: Algorithm, given: dict[str, np.ndarray], count: int, run: Run[Any], own: dict[str, Band], mutants: int
) -> dict[str, int]:
    """What becomes of so many mutants for each delta."""
    outcomes = Counter[str]()
    for delta, seed in product(_DELTAS, range(mutants)):
        mutant = type(compiled)(compiled.config, copy.deepcopy(compiled.model), compiled.program)
        if not _damage(mutant, delta, np.random.default_rng([seed, *compiled.name.encode()])):
            continue
        damaged = mutant.run(**given, iterations=count)
        values = damaged.record.values
        moved, determined = 0.0, 0.0
        for key, band in own.items():
            largest = torch.cummax(band.sizes.nan_to_num(0.0, 0.0), 1).values
            largest = torch.where(largest > 0, largest, band.unit[:, None])
            effect = size(values[key] - run.record.values[key], band.axes) / largest
            effect = effect.nan_to_num(torch.inf, torch.inf).where(torch.isfinite(band.sizes), 0.0)
            moved, determined = (
                max(so_far, float(each.max()))
                for so_far, each in ((moved, effect), (determined, torch.where(band.judged, effect, 0.0)))
            )
        named = bool(_wrong(damaged, _bands(damaged)).any())
        kind = _KINDS[2] if moved < _NO_EFFECT else _KINDS[0] if determined >= _MATTERS else _KINDS[1]
        outcomes[f"{delta:.0e}, {kind}, {'named' if named else 'not named'}"] += 1
    return dict(outcomes)


def _damage(mutant: Algorithm, delta: float, rng: np.random.Generator) -> bool:
    """Multiply a nonzero weight of the loop by 1 + delta, if it has one."""
    tensors = [*mutant.model.loop.buffers(), *mutant.model.loop.parameters()]
    floating = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.count_nonzero()]
    if not floating:
        return False
    with torch.no_grad():
        flat = floating[rng.integers(len(floating))].view(-1)
        nonzero = flat.nonzero().flatten()
        flat[nonzero[rng.integers(len(nonzero))]] *= 1 + delta
    return True


def main(given: list[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="algorithms; default: all")
    parser.add_argument("--seed", type=int, default=7002, help="of the problems")
    parser.add_argument("--draws", type=int, default=20, help="seeds of the rounding")
    parser.add_argument("--mutants", type=int, default=5, help="of each algorithm, for each delta, n = 8 in float64")
    parser.add_argument("--out", type=Path, help="file of the result")
    parser.add_argument("--read", type=Path, help="print the tables of a file")
    processes.add_options(parser)
    options = parser.parse_args(given)
    if options.read is not None:
        document = read(options.read)
        rows = [Row(**row) for row in document["rows"]]
        print_sheets(list(sheets(rows)))
        print(in_words(document["provenance"]))
        return rows
    torch.set_num_threads(1)
    cases = list(product(_SIZES, DTYPES, (False, True), options.names or algorithms()))
    columns = [
        (name, n, dtype, hard, options.seed, options.draws, options.mutants * (n == 8 and dtype == "float64"))
        for n, dtype, hard, name in cases
    ]
    rows = [row for row in processes.map_in_order(options.jobs, measure, *zip(*columns, strict=True)) if row]
    print_sheets(list(sheets(rows)))
    where = provenance() | ({"commit": options.commit} if options.commit else {})
    print(in_words(where))
    if options.out is not None:
        options_kept = {key: getattr(options, key) for key in ("seed", "draws", "mutants")}
        write(options.out, options_kept | {"rows": [asdict(row) for row in rows], "provenance": where})
    return rows


def sheets(rows: list[Row]) -> Iterator[Sheet]:
    """What is flagged and what is lost by set of problems, the flagged algorithms, the cost, the mutants."""
    sets: dict[tuple[int, str, bool], list[Row]] = {}
    for row in rows:
        sets.setdefault((row.n, row.dtype, row.hard), []).append(row)
    counted = ("systems", "flagged", "depend on the seed", "undetermined", "x without a digit")
    yield Sheet("Sound weights", (*_SET, *counted), tuple(_line(key, own) for key, own in sets.items()))
    flagged = (
        (row.name, *_set(row.n, row.dtype, row.hard), f"{row.flagged} of {row.systems}", str(row.depending), row.beyond)
        for row in rows
        if row.flagged
    )
    yield Sheet("Flagged", ("algorithm", *_SET, "flagged", "depend on the seed", "beyond all runs"), tuple(flagged))
    costs = (
        (*_set(*key), *(f"{sum(getattr(row, field) for row in own):.1f}" for field in ("run", "status", "digits")))
        for key, own in sets.items()
    )
    yield Sheet("CPU seconds of all algorithms", (*_SET, "run", "status", "digits"), tuple(costs))
    outcomes = sum((Counter(row.mutants) for row in rows), Counter[str]())
    damaged = []
    for delta in _DELTAS:
        named, other = ([outcomes[f"{delta:.0e}, {kind}, {how}"] for kind in _KINDS] for how in ("named", "not named"))
        damaged.append((f"{delta:.0e}", *(f"{a} of {a + b}" for a, b in zip(named, other, strict=True))))
    yield Sheet("Mutants named, n = 8, float64", ("delta", *_KINDS), tuple(damaged))


def _line(key: tuple[int, str, bool], rows: list[Row]) -> tuple[str, ...]:
    counts = (str(sum(getattr(row, field) for row in rows)) for field in ("systems", "flagged", "depending"))
    shares = (f"{np.mean([getattr(row, field) for row in rows]):.1%}" for field in ("undetermined", "without"))
    return (*_set(*key), *counts, *shares)


def _set(n: int, dtype: str, hard: bool) -> tuple[str, str, str]:
    return str(n), dtype, "hard" if hard else "own"


if __name__ == "__main__":
    main()
