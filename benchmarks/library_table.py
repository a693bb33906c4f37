"""The figures of the library as a section of docs/algorithms.md, from what ``benchmarks.library --json`` wrote.

python -m benchmarks.library_table benchmarks/results/library.json                             # print it
python -m benchmarks.library_table benchmarks/results/library.json --into docs/algorithms.md   # put it in place
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.command import read
from benchmarks.sections import deliver
from nlaformer.arrays import DTYPES
from nlaformer.compiler.library import GROUPS, record
from nlaformer.compiler.library.measuring import GOALS, Measured
from nlaformer.provenance import in_words

HEADING = "## Measured"
_EXPLAINED = """\
*One step*: the largest deviation of a value of `start`, `step` or `finish` from the program's own on the same input,
relative to the terms of its last operation and over what the program itself amplifies, while the residual exceeds 1e-6
of its start; the worst of all problems. *End to end*: a backward error of the whole run, the
relative error of every step that, propagated by the program, gives the deviation of the run from the program's own; the
worst of all sizes. *Seconds*: to compile it at the largest n, without the verification. Layers, heads and FFN width are
those of a loop, the heads of all its layers together. Every instruction stands in the first layer that its operands
allow, so no block has more layers than its longest chain of instructions. `nlaformer algorithms NAME` measures 8
problems."""


def section(rows: list[Measured], where: dict[str, Any]) -> str:
    """The section: how it was measured, a table for each group, and the values that miss 1e-10."""
    double = [row for row in rows if row.dtype == "float64"]
    found = {(row.name, row.n, row.dtype): row for row in rows}
    sizes = sorted({row.n for row in double})
    names = list(dict.fromkeys(row.name for row in double))
    missed = [row for row in double if row.worst > GOALS[DTYPES[row.dtype]]]
    kept = len(names) - len({row.name for row in missed})
    measured = ", ".join(map(str, sizes))
    first = f"`python -m benchmarks.library`: {rows[0].systems} problems for each n = {measured}. {in_words(where)}."
    counts = f"{kept} of {len(names)} algorithms stay within 1e-10 in every value of every problem, in float64."
    lines = [HEADING, "", f"{first} {_EXPLAINED}", "", counts]
    for group, records in GROUPS.items():
        present = [entry.name for entry in records if entry.name in names]
        if present:
            lines += ["", f"### {group[0].upper()}{group[1:]}", "", *_table(present, sizes, found)]
    return "\n".join([*lines, *_misses(missed)]) + "\n"


def _table(names: list[str], sizes: list[int], found: dict[tuple[str, int, str], Measured]) -> list[str]:
    steps = [f"one step, n = {n}" for n in sizes]
    headings = ["algorithm", "what it is for", "iterations", "layers", "heads", "FFN width", "start layers", "seconds"]
    headings += [*steps, "end to end", "float32, one step"]
    lines = [_line(headings), _line([":--", ":--", *["--:"] * (len(headings) - 2)])]
    for name in names:
        double = [found[name, n, "float64"] for n in sizes]
        single = [found[name, n, "float32"].worst for n in sizes if (name, n, "float32") in found]
        last = double[-1]
        costs = (last.iterations, last.layers, last.heads, last.ffn_width, last.start_layers)
        cells = [f"`{name}`", record(name).purpose.replace("|", "\\|"), *(f"{cost:,}" for cost in costs)]
        cells.append(f"{last.seconds:.1f}")
        cells += [*(f"{row.worst:.0e}" for row in double), f"{max(row.end for row in double):.0e}"]
        lines.append(_line([*cells, f"{max(single):.0e}" if single else "-"]))
    return lines


def _misses(missed: list[Measured]) -> list[str]:
    if not missed:
        return []
    lines = ["", "### Values that miss 1e-10", "", _line(["algorithm", "n", "value", "one step"])]
    lines.append(_line([":--", "--:", ":--", "--:"]))
    for row in missed:
        worst = max(row.step, key=lambda value: row.step[value])
        lines.append(_line([f"`{row.name}`", str(row.n), worst, f"{row.worst:.1e}"]))
    return lines


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", type=Path, help="the file of benchmarks.library --json")
    parser.add_argument("--into", type=Path, help="the document whose section is replaced")
    options = parser.parse_args(given)
    document = read(options.numbers)
    rows = [Measured.read(row) for row in document["algorithms"]]
    deliver(section(rows, document["provenance"]), HEADING, options.into)


if __name__ == "__main__":
    main()
