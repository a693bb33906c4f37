r"""When a learned method is worth it: work and time beside batched Cholesky, CG, IC(0) and AMG, to one tolerance.

    python -m benchmarks.worth --out benchmarks/results/worth-cpu.json                  # many minutes, one thread
    python -m benchmarks.worth --device cuda --out benchmarks/results/worth-h200.json
    python -m benchmarks.worth --read benchmarks/results/worth-*.json \
        --figure docs/figures/worth.svg --into docs/when.md

A cell is a family, n, a number of matrices and of right-hand sides for each. All methods solve it in float64 to
|b - A x| <= 1e-8 |b|, recomputed from x. Each iterative method is run in two forms: *solve*, by nf.solve, nf.cg or
nf.pcg with all that these do (checks, statuses, a certificate), and *fixed*, by ``problems.conjugate.last_iterate``
with the iterations that its worst right-hand side needs, or, for guided-cg, by calling the model; one residual is
computed afterwards, as for Cholesky. Set-up is in every time. The methods of a cell take turns; times are medians, on
the CPU of the processor time of one thread, which other work on the machine disturbs least. The bundled models are in
every cell; ``--models`` adds trained ones of learned-preconditioner-diffusion and guided-diffusion to those of grids.

Work is counted for one right-hand side: iterations, products with A, calls of a network (for the unknowns of
its training; larger systems are shown to it in diagonal blocks, a call each), and floating-point operations by these
rules: n^3/3 and 2 n^2 for Cholesky, 2 n^2 for a product, 10 n for the vectors of an iteration, n, (2 + 4 k) n and 2 n^2
for Jacobi, rank k and IC(0), 20 n^2 to set up rank one by hand, and what torch counts in a call of the network. Set-up
is divided among the right-hand sides of a matrix.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nlaformer as nf
from benchmarks import worth_page
from benchmarks.command import read, write
from benchmarks.sections import deliver
from benchmarks.worth_methods import BUNDLED, BY_HAND, DIRECT, LEARNED, RTOL, Answer, Bench, forms, residual
from nlaformer.arrays import memory
from nlaformer.problems import SPD, Family, Poisson2D
from nlaformer.provenance import provenance, versions
from nlaformer.report.figure import save

SEED = 8_200_000  # of the systems; training draws from other streams
FAMILIES: dict[str, Callable[[int], Family]] = {
    "spd": lambda n: SPD(n=n, sigma=(1.0, 1.2, 1.4)),  # that of the models' training, at n = 20
    "grid": lambda n: Poisson2D(n=n),  # diffusion: sparse, where IC(0) and AMG are at home
}
RIVALS = {
    "spd": ("Cholesky", "CG", "Jacobi", BY_HAND),
    "grid": ("Cholesky", "sparse LU", "AMG", "CG", "Jacobi", "IC(0)"),
}
_PROBE = 32  # matrices of a batch that are solved first, to see how long all would take
_DISTINCT = 2**22  # entries of the matrices of a batch that are drawn; a larger batch repeats them
_SHARE = 0.4  # of the memory that a cell may take
_RAISES = 12  # of the iterations of the fixed form by a tenth, from those of solve, which keeps more conjugate
_RAISES_GUIDED = 3  # a network that needs many more has stalled


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    sizes: dict[str, tuple[int, ...]]
    batches: tuple[int, ...] = (1, 1024)
    sides: tuple[int, ...] = (1, 10, 100, 1000)
    rounds: int = 5
    budget: float = 0.3  # seconds of one method in one cell; what has taken longer is not timed again
    longest: float = 4.0  # seconds; what would take longer is left out


FULL = Plan({"spd": (20, 64, 256, 1024), "grid": (16, 64, 256, 1024)})
SMALL = Plan({"spd": (20, 40), "grid": (16,)}, batches=(1, 3), sides=(1, 2), rounds=1)


@dataclass(frozen=True)
class Row:
    """One method in one cell; means over the right-hand sides, median seconds for all of them together."""

    cell: str
    family: str
    n: int
    batch: int
    sides: int
    method: str
    form: str
    left_out: str = ""  # why there are no figures
    iterations: float | None = None
    products: float | None = None
    calls: float | None = None
    flops: float | None = None
    setup: float | None = None
    seconds: float | None = None
    repeats: int = 0
    failed: int = 0
    against_cholesky: float | None = None


def measure(bench: Bench, plan: Plan, minutes: float = math.inf) -> list[Row]:
    """Every cell of a plan, printed as they come; those that begin after so many minutes are left out."""
    end = time.perf_counter() + 60 * minutes
    order = [(family, n) for family, sizes in plan.sizes.items() for n in sizes]
    found = [  # single matrices first, which take the least time
        row for batch in plan.batches for family, n in order for row in _matrices(bench, plan, family, n, batch, end)
    ]
    return sorted(found, key=lambda row: (order.index((row.family, row.n)), row.batch, row.sides))


def _matrices(bench: Bench, plan: Plan, family: str, n: int, batch: int, end: float) -> list[Row]:
    """The cells of one number of matrices, with more and more right-hand sides."""
    found: list[Row] = []
    before: list[Row] = []  # with fewer right-hand sides
    A: Tensor | None = None
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
    for sides in plan.sides:
        blank = Row(f"{bench.device.type}-{family}-{n}-{batch}-{sides}", family, n, batch, sides, "", "")
        methods = (*RIVALS[family], *bench.learned(family))
        rows = [replace(blank, method=m, form=f) for m in methods for f in forms(m)]
        needed = _bytes(n, batch, sides)
        if needed > _SHARE * memory(bench.device):
            before = [replace(row, left_out=f"memory: {needed / 1e9:,.0f} GB") for row in rows]
        elif time.perf_counter() > end:
            before = [replace(row, left_out="time: that of the whole run is over") for row in rows]
        else:
            if A is None:
                drawn = FAMILIES[family](n).sample(max(1, min(max(plan.batches), _DISTINCT // n**2)), SEED).A
                A = drawn.to(bench.device).repeat(math.ceil(batch / len(drawn)), 1, 1)[:batch]
            before = _cell(bench, plan, rows, A, before)
        found += before
        _print(before)
    return found


def _bytes(n: int, batch: int, sides: int) -> float:
    """What a solve takes: some copies of A and some tens of vectors."""
    return 8.0 * (5 * batch * n**2 + 40 * batch * sides * n)


def _cell(bench: Bench, plan: Plan, rows: list[Row], A: Tensor, before: list[Row]) -> list[Row]:
    """One cell: every method once, which gives the counts, then in turns; ``before`` has fewer right-hand sides."""
    n, sides = rows[0].n, rows[0].sides
    generator = torch.Generator(bench.device).manual_seed(SEED)
    B = A @ torch.randn(len(A), n, sides, dtype=torch.float64, device=bench.device, generator=generator)
    answers: dict[int, Answer] = {}
    times: dict[int, list[float]] = {}
    for k, row in enumerate(rows):
        try:
            reason = _left_out(bench, plan, row, before[k] if before else None, A, B)
            if not reason:
                if (row.method, row.form) not in bench.warm:  # what is done only once, such as loading kernels
                    bench.warm.add((row.method, row.form))
                    _timed(bench, row, A[:1], B[:1])
                answers[k], spent = _run(bench, row, A, B)
                times[k] = [spent]
                if row.form == "fixed" and (missed := _failed(A, B, answers[k])):
                    reason = f"tolerance: {missed} right-hand sides miss it in {answers[k].most} iterations"
                    del answers[k], times[k]
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            reason = "memory: it ran out"
        rows[k] = replace(row, left_out=reason)
    seconds = _in_turns(bench, plan, rows, times, A, B)
    for k, answer in answers.items():
        counted: dict[str, Any] = {}
        if rows[k].method not in DIRECT:
            counted = {name: getattr(answer, name) for name in ("iterations", "products", "calls")}
        rows[k] = replace(
            rows[k],
            **counted,
            flops=bench.work(rows[k].method, answer),
            setup=min(answer.setup, seconds[k]),
            seconds=seconds[k],
            repeats=len(times[k]),
            failed=_failed(A, B, answer),
            against_cholesky=seconds[k] / seconds[0] if 0 in seconds else None,
        )
    return rows


def _in_turns(
    bench: Bench, plan: Plan, rows: list[Row], times: dict[int, list[float]], A: Tensor, B: Tensor
) -> dict[int, float]:
    """The median time of every method. Its first run is a warm-up, unless it is all there is time for."""
    for _ in range(plan.rounds):
        for k, own in times.items():
            if sum(own) < plan.budget:
                own.append(_timed(bench, rows[k], A, B)[1])
    for k, own in times.items():
        times[k] = own[1:] or own
    return {k: statistics.median(own) for k, own in times.items()}


def _left_out(bench: Bench, plan: Plan, row: Row, before: Row | None, A: Tensor, B: Tensor) -> str:
    """Why a method is not run in a cell, or nothing."""
    if row.method == "AMG" and importlib.util.find_spec("pyamg") is None:
        return "PyAMG is not installed"
    if row.form == "fixed" and bench.guides(row.method) and row.n > bench.models[row.method].config.n:
        return f"the model alone takes at most {bench.models[row.method].config.n} unknowns"
    if before is not None and before.left_out:
        return before.left_out
    key = row.family, row.n, row.method
    if row.form == "fixed" and row.method not in DIRECT and key not in bench.needed:
        return "the iterations it needs are not known"
    if before is not None:
        assert before.seconds is not None and before.setup is not None
        expected = before.setup + (before.seconds - before.setup) * row.sides / before.sides
    elif row.batch > _PROBE:
        _timed(bench, row, A[:1], B[:1])  # what is done only once
        expected = _timed(bench, row, A[:_PROBE], B[:_PROBE])[1] * row.batch / _PROBE
    else:
        return ""
    return f"time: about {expected:.0f} s" if expected > plan.longest else ""


def _run(bench: Bench, row: Row, A: Tensor, B: Tensor) -> tuple[Answer, float]:
    """Run a method; a fixed number of iterations that is not enough for the worst right-hand side is raised."""
    answer, seconds = _timed(bench, row, A, B)
    key = row.family, row.n, row.method
    raises = 0 if row.form != "fixed" else _RAISES_GUIDED if bench.guides(row.method) else _RAISES
    for _ in range(raises):
        if not _failed(A, B, answer):
            break
        bench.needed[key] += math.ceil(bench.needed[key] / 10)
        answer, seconds = _timed(bench, row, A, B)
    return answer, seconds


def _timed(bench: Bench, row: Row, A: Tensor, B: Tensor) -> tuple[Answer, float]:
    bench.wait()
    begun = bench.clock()
    answer = bench.run(row.family, row.method, row.form, A, B)
    bench.wait()
    return answer, bench.clock() - begun


def _failed(A: Tensor, B: Tensor, answer: Answer) -> int:
    return int((~(residual(A, B, answer.x) <= RTOL)).sum())


def _print(rows: list[Row]) -> None:
    """A cell on two lines: the times over Cholesky's, and what was left out."""
    measured = [f"{row.method}/{row.form} {row.against_cholesky:.3g}" for row in rows if row.against_cholesky]
    dropped = {row.left_out for row in rows if row.left_out}
    print(
        f"{rows[0].cell}: {', '.join(measured)}" + (f"; left out: {'; '.join(sorted(dropped))}" if dropped else ""),
        flush=True,
    )


def main(given: Sequence[str] | None = None) -> int:
    """Measure and write, or read and draw; 1 if an answer misses the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worth", description=__doc__)
    parser.add_argument("--out", type=Path, help="write all rows to this file")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU beside a GPU; alone it has one")
    parser.add_argument("--small", action="store_true", help="a few small cells, in seconds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no cell after this time")
    parser.add_argument("--models", nargs="+", default=[], help=f"beside the bundled: {' or '.join(LEARNED[2:])}")
    parser.add_argument("--commit", help="the commit that is measured, where the files have no history with them")
    parser.add_argument("--read", nargs="+", type=Path, help="measure nothing; read what was written before")
    parser.add_argument("--figure", type=Path, help="draw the break-even chart to this file")
    parser.add_argument("--into", type=Path, help="the page whose section of tables is replaced")
    chosen = parser.parse_args(given)
    if chosen.read:
        documents = [read(path) for path in chosen.read]
    else:
        documents = [_measured(chosen)]
        if chosen.out:
            write(chosen.out, documents[0])
    if chosen.figure:
        save(worth_page.draw(documents), chosen.figure)
    if chosen.into or not chosen.figure:
        deliver(worth_page.section(documents), worth_page.HEADING, chosen.into)
    return int(any(row["failed"] for document in documents for row in document["rows"]))


def _measured(chosen: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1 if chosen.device == "cpu" else chosen.threads)
    where = provenance(chosen.commit) | {"load": os.getloadavg()[0], "pyamg": versions(("pyamg",))["pyamg"]}
    models: list[Any] = [nf.load(name) for name in (*BUNDLED, *chosen.models)]
    bench, begun = Bench(chosen.device, models), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyAMG's on small grids
        rows = measure(bench, SMALL if chosen.small else FULL, chosen.minutes)
    return {
        "provenance": where | {"load_after": os.getloadavg()[0]},
        "device": chosen.device,
        "rtol": RTOL,
        "seed": SEED,
        "network_flops": bench.flops,
        "unknowns": {name: model.config.n for name, model in bench.models.items()},
        "seconds": time.perf_counter() - begun,
        "rows": [asdict(row) for row in rows],
    }


if __name__ == "__main__":
    raise SystemExit(main())
