"""The command ``demo``: what the package does, in a minute, section by section.

A section is a function that runs something, prints it and says in plain sentences what it shows.
"""

from __future__ import annotations

import inspect
import textwrap
from typing import TYPE_CHECKING, Any

import typer

from nlaformer.console import console, print_sheets

if TYPE_CHECKING:
    from nlaformer.express.verify import Row


def demo() -> None:
    """Show what there is, with real runs; under a minute."""
    for section in SECTIONS:
        section()


def operations() -> None:
    """The measured Table 1 and what it shows."""
    from nlaformer.express import table, verify

    _heading("Operations: the paper's Table 1, measured")
    rows = verify.measure_all(n=20)
    print_sheets(table.sheets(rows))
    for sentence in findings(rows):
        _say(sentence)


def findings(rows: list[Row]) -> list[str]:
    """What a measured table shows, in sentences made from its numbers."""
    by_name = {row.name: row for row in rows}
    matmul, transpose = by_name["matmul"], by_name["matrix_transpose"]
    worst = max(rows, key=lambda row: row.accuracy["float64"].error)
    below = all(found.error <= (found.bound or 0) for row in rows for found in row.accuracy.values())
    gains = sorted(
        theirs.error / row.accuracy[dtype].error
        for row in rows
        for dtype, theirs in row.paper_scheme.items()
        if dtype == "float64" and row.cost.heads > 1
    )
    sentences = [
        f"Each line is an ordinary softmax transformer whose weights were written down, not trained, and run on random "
        f"data. The least accurate in float64 is {worst.name}, wrong by {worst.accuracy['float64'].error:.0e}; "
        + ("no error exceeds its proven bound." if below else "SOME ERROR EXCEEDS ITS BOUND, which is a bug."),
        f"Two heads at +c and -c, instead of the paper's c and 0, cost the same and are {gains[0]:.0f} to "
        f"{gains[-1]:,.0f} times as accurate in float64.",
        f"matmul takes {matmul.cost.layers} layer where the paper uses 2.",
    ]
    if matmul.loop is not None and transpose.loop is not None:
        sentences.append(
            f"The paper's comparison holds: for a matrix transpose the loop-transformer needs "
            f"{transpose.loop.cost.entries:,} entries where this one needs {transpose.cost.entries:,}; they grow like "
            f"n^{transpose.loop.growth:.1f} against n^{transpose.growth:.1f}. What the table's printed layers count is "
            f"the machine with its reads and writes; its matmul alone has {matmul.loop.block_cost.layers} layers."
        )
    return sentences


def python() -> None:
    """The first lines a user types, run."""
    _heading("In Python")
    source = textwrap.dedent(inspect.getsource(example).partition("\n")[2].partition("return")[0])
    print(textwrap.indent(source.rstrip(), "    ") + "\n")
    found = example()
    print(f"    {found['repr']}")
    _say(
        f"The largest error of an entry is {found['error']:.1e}; the bound proven for this call is {found['bound']:.1e}."
    )


def example() -> dict[str, Any]:
    import numpy as np

    import nlaformer as nf

    A, B = np.random.default_rng(0).normal(size=(2, 20, 20))
    multiply = nf.operation("matmul", n=20)
    error = np.abs(multiply(A, B) - A @ B).max()
    bound = multiply.error_bound(A, B).max()
    return {"repr": repr(multiply), "error": float(error), "bound": float(bound)}


SECTIONS = [operations, python]


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(demo)


def _heading(title: str) -> None:
    console().print(f"\n{title}\n{'=' * len(title)}", style="bold")


def _say(sentence: str) -> None:
    print()
    console().print(sentence)
