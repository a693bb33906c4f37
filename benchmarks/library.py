"""Every algorithm of the library against its own program, on the problems that it is meant for.

    python -m benchmarks.library                                          # n = 4, 12 and 20, float64 and float32
    python -m benchmarks.library --json benchmarks/results/library.json   # and keep the numbers
    python -m benchmarks.library --store                                  # and what `nlaformer algorithms` prints
    python -m benchmarks.library cg minres --sizes 4                      # some of them
    python -m benchmarks.library --jobs 16                                # in processes; the numbers are the same

64 problems of each size. ``nlaformer/compiler/library/measuring.py`` says what is measured. The goal is 1e-10 for every
value of a step in float64; in float32 it is 1e-3, and what it reaches is printed beside it. Seconds: to compile it.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import processes
from nlaformer.arrays import DTYPES
from nlaformer.compiler.library import GROUPS, algorithms
from nlaformer.compiler.library.measuring import GOALS, STORE, Measured, measure
from nlaformer.console import Sheet, print_sheets, to_json
from nlaformer.provenance import in_words, provenance

SIZES = (4, 12, 20)


def sheets(rows: list[Measured]) -> list[Sheet]:
    """A table for each group: a line for each algorithm, its sizes side by side."""
    found = {(row.name, row.n, row.dtype): row for row in rows}
    sizes = sorted({row.n for row in rows})
    costs = ("layers", "heads", "pre\nlayers", "width", "seconds")
    steps = tuple(f"one step\nn = {n}" for n in sizes)
    headings = ("algorithm", *costs, *steps, "end to end", "float32\none step")

    def line(name: str) -> tuple[str, ...]:
        double = [found[name, n, "float64"] for n in sizes]
        single = [row for n in sizes if (row := found.get((name, n, "float32"))) is not None]
        last = double[-1]
        costs = (f"{count:,}" for count in (last.layers, last.heads, last.start_layers, last.ffn_width))
        steps = (_mark(row) for row in double)
        return (
            name,
            *costs,
            f"{last.seconds:.1f}",
            *steps,
            f"{max(row.end for row in double):.0e}",
            max(map(_mark, single), default="-"),
        )

    present = {row.name for row in rows}
    groups = {group: [each.name for each in records if each.name in present] for group, records in GROUPS.items()}
    return [Sheet(group, headings, tuple(map(line, names))) for group, names in groups.items() if names]


def _mark(row: Measured) -> str:
    """The largest deviation of a step; with the value that misses the goal, where one does."""
    worst = max(row.step, key=lambda value: row.step[value])
    return f"{row.worst:.0e}" + (f" ({worst})" if row.worst > GOALS[DTYPES[row.dtype]] else "")


def _measure(name: str, dtype: str, n: int, systems: int) -> Measured:
    return measure(name, n, systems, dtype=DTYPES[dtype])


def main(given: list[str] | None = None) -> list[Measured]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="algorithms; default: all")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--systems", type=int, default=64)
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--store", action="store_true", help="keep n = 20, float64 for `nlaformer algorithms`")
    processes.add_options(parser)
    options = parser.parse_args(given)
    if "float64" not in options.dtypes:
        parser.error("the tables compare float32 with float64; measure both")
    if options.store and (options.names or 20 not in options.sizes):
        parser.error("--store keeps all algorithms, n = 20, float64; measure these")
    torch.set_num_threads(1)
    where, rows = provenance(options.commit), []
    cases = list(itertools.product(options.names or algorithms(), options.dtypes, options.sizes, [options.systems]))
    for row in processes.map_in_order(options.jobs, _measure, *zip(*cases, strict=True)):
        rows.append(row)
        print(f"{row.name}, n = {row.n}, {row.dtype}: {_mark(row)}, end to end {row.end:.0e}", flush=True)
    print_sheets(sheets(rows), markdown=True)
    print(f"\n{in_words(where)}")
    if options.json is not None:
        _write(options.json, rows, where)
    if options.store:
        _write(STORE, [row for row in rows if row.n == 20 and row.dtype == "float64"], where)
    return rows


def _write(path: Path, rows: list[Measured], where: dict[str, Any]) -> None:
    lines = ",\n".join(to_json(asdict(row)) for row in rows)
    path.write_text(f'{{"provenance": {json.dumps(where)},\n"algorithms": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
