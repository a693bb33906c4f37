"""Table 1, measured: what every operation costs and how accurate it is, for NLAFormer and for the loop-transformer.

The paper's table has the input size and the layers of both. Here each system has tables of its own, with the values
that the paper prints in brackets, and the errors beside the proven bounds (``nlaformer.express.accuracy``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from nlaformer.arrays import DTYPES
from nlaformer.console import Sheet
from nlaformer.express import loop_transformer
from nlaformer.express.accuracy import SEEDS, accuracy
from nlaformer.express.construction import Cost
from nlaformer.express.operation import Operation, operation
from nlaformer.express.theorem import RECORDS
from paper.results import Results

FILE = "operations"
Row = dict[str, Any]
_GROWTH_SIZES = (16, 32, 64, 128, 256, 512)
_VACUOUS = 0.1  # a relative bound above this is of the size of the result itself


# --- measuring ---


def measure(results: Results, small: bool) -> None:
    """Build, run and count every operation of the paper."""
    results.write(FILE, {"command": "python -m paper run table-operations", "rows": measure_all(4 if small else 20)})


def measure_all(n: int) -> list[Row]:
    """A row for every operation that the paper has and each of its forms."""
    papers = {name: record for name, record in RECORDS.items() if record.printed is not None}
    return [measure_row(name, n, form) for name, record in papers.items() for form in record.forms]


def measure_row(name: str, n: int, form: str = "accurate") -> Row:
    """Cost, growth of the prompt's entries, error and bound of one operation; the same of the loop-transformer.

    ``paper_scheme`` is the accuracy of the paper's own pair of heads, empty where the operation linearizes nothing.
    """

    def build(size: int, dtype: str = "float64", scheme: str = "antisymmetric") -> Operation:
        return operation(name, n=size, scheme=scheme, dtype=DTYPES[dtype], form=form, f=RECORDS[name].f)

    ours, papers = ({dtype: build(n, dtype, scheme) for dtype in DTYPES} for scheme in ("antisymmetric", "paper"))
    papers = {dtype: op for dtype, op in papers.items() if not _same_weights(ours[dtype], op)}
    printed = RECORDS[name].printed
    return {
        "operation": name,
        "form": form,
        "n": n,
        "cost": _cost(ours["float64"].cost),
        "growth": growth(lambda size: build(size).cost),
        "accuracy": {dtype: asdict(accuracy(name, n, op, dtype)) for dtype, op in ours.items()},
        "paper_scheme": {dtype: asdict(accuracy(name, n, op, dtype)) for dtype, op in papers.items()},
        "printed": printed and {"entries": f"O({printed.size})", "layers": printed.layers, "heads": printed.heads},
        "loop_transformer": measure_loop(name, n) if form == "accurate" and name in loop_transformer.names() else None,
    }


def measure_loop(name: str, n: int) -> Row:
    """The loop-transformer for one operation: with reads and writes, and its function block alone."""
    machines = {dtype: loop_transformer.build(name, n, dtype=DTYPES[dtype]) for dtype in DTYPES}
    cost, block_cost = loop_transformer.count(name, n)
    counts = {size: loop_transformer.count(name, size) for size in _GROWTH_SIZES}
    printed = RECORDS[name].printed
    return {
        "cost": _cost(cost),
        "growth": growth(lambda size: counts[size][0]),
        "block_cost": _cost(block_cost),
        "block_growth": growth(lambda size: counts[size][1]),
        "accuracy": {dtype: asdict(accuracy(name, n, machine, dtype)) for dtype, machine in machines.items()},
        "printed": printed and {"entries": f"O({printed.loop_size})", "layers": printed.loop_layers},
    }


def growth(cost: Callable[[int], Cost]) -> float:
    """The exponent p of entries ~ n^p, fitted by least squares over sizes of 16 and more.

    >>> round(growth(lambda n: operation("matmul", n=n).cost), 2)
    1.98
    """
    entries = [cost(n).entries for n in _GROWTH_SIZES]
    return float(np.polyfit(np.log(_GROWTH_SIZES), np.log(entries), 1)[0])


def _cost(cost: Cost) -> dict[str, int]:
    return asdict(cost) | {"entries": cost.entries}


def _same_weights(one: Operation, other: Operation) -> bool:
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(value, theirs[key]) for key, value in mine.items())


# --- tables ---


def tables(results: Results) -> list[Sheet]:
    """The committed Table 1."""
    return sheets(results.document(FILE)["rows"])


def sheets(rows: Sequence[Row]) -> list[Sheet]:
    """Size, accuracy in each dtype, the loop-transformer's size with reads and writes, and that of its block alone."""
    n = rows[0]["n"]
    loop = [row["loop_transformer"] | {"operation": row["operation"]} for row in rows if row["loop_transformer"]]
    block = [row | {"cost": row["block_cost"], "growth": row["block_growth"], "printed": None} for row in loop]
    ours = [
        _size(
            f"NLAFormer, n = {n}: size of prompt and transformer",
            rows,
            "In brackets: as the paper prints it. Growth is fitted over "
            f"n = {_GROWTH_SIZES[0]} to {_GROWTH_SIZES[-1]}. multiply, divide and pointwise need position rows to be "
            "accurate, hence n^2; one FFN, the paper's form, does not. pointwise is f(a, b) = a b + b / 3.",
        ),
        *(_accuracy(rows, dtype) for dtype in rows[0]["accuracy"]),
    ]
    if not loop:
        return ours
    return [
        *ours,
        _size(
            f"Loop-transformer, n = {n}, with reads and writes: built and run",
            loop,
            "In brackets: as the paper prints it. In the manner of Giannou et al. 2023.",
        ),
        _size(f"Loop-transformer, n = {n}, block only: its operands already in place", block),
    ]


def _size(title: str, rows: Sequence[Row], note: str = "") -> Sheet:
    headings = ("operation", "rows x\ntokens", "entries", "entries\ngrow like", "layers", "heads", "FFN\nwidth")
    lines = []
    for row in rows:
        cost, printed = row["cost"], row["printed"] or {}
        cells = {"entries": f"n^{abs(row['growth']):.2f}", "layers": str(cost["layers"]), "heads": str(cost["heads"])}
        with_printed = [
            f"{cell} ({printed[key].removeprefix('O(').removesuffix(')')})" if key in printed else cell
            for key, cell in cells.items()
        ]
        sizes = (f"{cost['rows']} x {cost['tokens']}", f"{cost['entries']:,}")
        lines.append((_label(row), *sizes, *with_printed, f"{cost['ffn_width']:,}"))
    return Sheet(title, headings, tuple(lines), note)


def _accuracy(rows: Sequence[Row], dtype: str) -> Sheet:
    def error(accuracy: Row) -> str:
        return f"{accuracy[dtype]['error']:.1e}" if dtype in accuracy else "-"

    lines = []
    for row in rows:
        bound, loop = row["accuracy"][dtype]["bound"], (row["loop_transformer"] or {}).get("accuracy", {})
        marked = "*" * (bound > _VACUOUS) + f"{bound:.1e}"
        lines.append((_label(row), error(row["accuracy"]), marked, error(row["paper_scheme"]), error(loop)))
    doubt = any(row["accuracy"][dtype]["bound"] > _VACUOUS for row in rows)
    return Sheet(
        f"{dtype}, n = {rows[0]['n']}: relative error (median of {len(SEEDS)} seeds) and proven bound",
        ("operation", "error", "bound", "the paper's\nheads", "loop-\ntransformer"),
        tuple(lines),
        "In the Frobenius norm, relative to the result (inner_product: to |a| |b|). The paper's heads: the pair c and "
        "0, scheme=\"paper\"; '-' where they make the same transformer. Loop-transformer: '-' where it was not run."
        + " A bound with a * is above a tenth of the result: it says nothing."
        * doubt,
    )


def _label(row: Row) -> str:
    """The operation's name, and its form where it has two."""
    return row["operation"] if row.get("form", "accurate") == "accurate" else f"{row['operation']}, one FFN"
