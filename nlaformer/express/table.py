"""The measured Table 1: what ``verify`` measured beside what the paper prints, for people and for programs.

The paper's table has two columns, NLAFormer and loop-transformer, and two lines for each operation, input size and
number of layers. Here each system has tables of its own, narrow enough for eighty columns, the paper's printed
values in brackets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nlaformer.console import Sheet
from nlaformer.express import loop_computer
from nlaformer.express.cost import Cost
from nlaformer.express.verify import GROWTH_SIZES, SEEDS, Accuracy, LoopRow, Row


@dataclass(frozen=True)
class Printed:
    """What the paper prints: input size and layers in its Table 1, heads in its theorem."""

    size: str
    layers: str
    heads: str


PRINTED = {
    "add": Printed("n", "1", "1"),
    "subtract": Printed("n", "1", "1"),
    "multiply": Printed("n", "1", "1"),
    "divide": Printed("n", "1", "1"),
    "pointwise": Printed("n", "1", "1"),
    "column_shift": Printed("n", "1", "2"),
    "row_shift": Printed("n", "1", "1"),
    "vector_transpose": Printed("n^2", "1", "2"),
    "inner_product": Printed("n^2", "1", "2"),
    "outer_product": Printed("n^2", "1", "2"),
    "matrix_transpose": Printed("n^2", "1", "2"),
    "transposed_matmul": Printed("n^2", "1", "2"),
    "matmul": Printed("n^2", "2", "2"),
    "matvec": Printed("n^2", "2", "2"),
}


def sheets(rows: Sequence[Row]) -> list[Sheet]:
    """The measured Table 1 as tables of text: size, accuracy in each dtype, the loop-transformer's size twice."""
    with_loop = [(row, row.loop) for row in rows if row.loop is not None]
    accuracy = [_accuracy(rows, dtype) for dtype in rows[0].accuracy]
    return [_size(rows), *accuracy, *([_loop(with_loop), _block(with_loop)] if with_loop else [])]


def as_data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The same for programs: plain dictionaries, the printed values under ``printed``."""
    return [_plain(row) for row in rows]


# --- the four tables ---------------------------------------------------------------------------------------------


def _size(rows: Sequence[Row]) -> Sheet:
    return Sheet(
        f"NLAFormer, n = {rows[0].n}: size of prompt and transformer",
        ("operation", "rows x\ntokens", "entries", "entries\ngrow like", "layers", "heads", "FFN\nwidth"),
        tuple(
            (
                row.name,
                *_prompt(row.cost),
                _beside(_power(row.growth), PRINTED[row.name].size),
                _beside(str(row.cost.layers), PRINTED[row.name].layers),
                _beside(str(row.cost.heads), PRINTED[row.name].heads),
                f"{row.cost.ffn_width:,}",
            )
            for row in rows
        ),
        "In brackets: as the paper prints it. Growth is fitted over "
        f"n = {GROWTH_SIZES[0]} to {GROWTH_SIZES[-1]}. multiply, divide and pointwise need position rows to be "
        "accurate, hence n^2. pointwise is f(a, b) = a b + b / 3.",
    )


def _accuracy(rows: Sequence[Row], dtype: str) -> Sheet:
    return Sheet(
        f"{dtype}, n = {rows[0].n}: relative error (median of {len(SEEDS)} seeds) and proven bound",
        ("operation", "error", "bound", "the paper's\nheads", "loop-\ntransformer"),
        tuple(
            (
                row.name,
                _number(row.accuracy[dtype].error),
                _number(row.accuracy[dtype].bound),
                _number(row.paper_scheme[dtype].error if dtype in row.paper_scheme else None),
                _number(row.loop.accuracy[dtype].error if row.loop and dtype in row.loop.accuracy else None),
            )
            for row in rows
        ),
        "In the Frobenius norm, relative to the result (inner_product: to |a| |b|). The paper's heads: the pair c and "
        "0, scheme=\"paper\"; '-' where nothing is linearized. Loop-transformer: '-' where it was not run.",
    )


def _loop(rows: Sequence[tuple[Row, LoopRow]]) -> Sheet:
    how = "built and run" if rows[0][1].accuracy else "counted, not run"
    return Sheet(
        f"Loop-transformer, n = {rows[0][0].n}, with reads and writes: {how}",
        ("operation", "rows x\ntokens", "entries", "entries\ngrow like", "layers", "heads", "FFN\nwidth"),
        tuple(
            (
                row.name,
                *_prompt(loop.cost),
                _beside(_power(loop.growth), loop_computer.PAPER[row.name][0].removeprefix("O(").removesuffix(")")),
                _beside(str(loop.cost.layers), loop_computer.PAPER[row.name][1]),
                str(loop.cost.heads),
                f"{loop.cost.ffn_width:,}",
            )
            for row, loop in rows
        ),
        "In brackets: as the paper prints it. In the manner of Giannou et al. 2023.",
    )


def _block(rows: Sequence[tuple[Row, LoopRow]]) -> Sheet:
    return Sheet(
        f"Loop-transformer, n = {rows[0][0].n}, block only: its operands already in place",
        ("operation", "rows x\ntokens", "entries", "entries\ngrow like", "layers", "heads", "FFN\nwidth"),
        tuple(
            (
                row.name,
                *_prompt(loop.block_cost),
                _power(loop.block_growth),
                str(loop.block_cost.layers),
                str(loop.block_cost.heads),
                f"{loop.block_cost.ffn_width:,}",
            )
            for row, loop in rows
        ),
    )


# --- cells and data ----------------------------------------------------------------------------------------------


def _prompt(cost: Cost) -> tuple[str, str]:
    return f"{cost.rows} x {cost.tokens}", f"{cost.entries:,}"


def _beside(measured: str, printed: str) -> str:
    return f"{measured} ({printed})"


def _power(exponent: float) -> str:
    return f"n^{abs(exponent):.2f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _plain(row: Row) -> dict[str, Any]:
    printed = PRINTED[row.name]
    data = {
        "operation": row.name,
        "n": row.n,
        "cost": _cost(row.cost),
        "growth": row.growth,
        "accuracy": _accuracies(row.accuracy),
        "paper_scheme": _accuracies(row.paper_scheme),
        "printed": {"entries": f"O({printed.size})", "layers": printed.layers, "heads": printed.heads},
        "loop_transformer": None,
    }
    if row.loop is not None:
        size, layers = loop_computer.PAPER[row.name]
        data["loop_transformer"] = {
            "run": bool(row.loop.accuracy),
            "cost": _cost(row.loop.cost),
            "growth": row.loop.growth,
            "block_cost": _cost(row.loop.block_cost),
            "block_growth": row.loop.block_growth,
            "accuracy": _accuracies(row.loop.accuracy),
            "printed": {"entries": size, "layers": layers},
        }
    return data


def _cost(cost: Cost) -> dict[str, int]:
    return asdict(cost) | {"entries": cost.entries}


def _accuracies(accuracy: dict[str, Accuracy]) -> dict[str, dict[str, float | None]]:
    return {dtype: asdict(measured) for dtype, measured in accuracy.items()}
