"""The command ``demo``: what the package does, in two minutes, section by section.

A section is a function that runs something, prints it and says in plain sentences what it shows.
"""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import typer

from nlaformer.console import Sheet, console, print_sheets


def demo() -> None:
    """Show what there is, with real runs; about two minutes."""
    for section in SECTIONS:
        section()


def operations() -> None:
    """The measured Table 1 and what it shows."""
    from nlaformer.express import table, verify

    _heading("Operations: the paper's Table 1, measured")
    rows = verify.measure_all(n=20)
    print_sheets(table.sheets(rows))
    for sentence in table.findings(rows):
        _say(sentence)


def python() -> None:
    """The first lines a user types, run."""
    _heading("In Python")
    source = textwrap.dedent(inspect.getsource(example).partition("\n")[2].partition("return")[0])
    print(textwrap.indent(source + "print(multiply.cost)", "    ") + "\n")
    found = example()
    print(f"    {found['cost']}")
    _say(f"The largest error of an entry is {found['error']:.1e}, the largest proven bound {found['bound']:.1e}.")


def example() -> dict[str, Any]:
    import numpy as np

    import nlaformer as nf

    A, B = np.random.default_rng(0).normal(size=(2, 20, 20))
    multiply = nf.operation("matmul", n=20)
    error = np.abs(multiply(A, B) - A @ B).max()
    bound = multiply.error_bound(A, B).max()
    return {"cost": str(multiply.cost), "error": float(error), "bound": float(bound)}


def learning() -> None:
    """The quickstart model trained before the user's eyes, and its iterates beside CG's."""
    import tempfile

    import nlaformer as nf
    from nlaformer.learn.evaluate import evaluate, findings

    _heading("Learning: a transformer that solves linear systems")
    config = nf.recipe("quickstart")
    _say(f"Training the recipe quickstart: {config.steps} steps, systems of {config.n} unknowns, on the CPU.")
    with tempfile.TemporaryDirectory() as folder:
        solver = nf.train(config, out=folder, device="cpu").solver
    own = evaluate(solver)[0]
    lines = tuple((f"t = {t}", f"{own.model[t]:.2g}", f"{own.cg[t]:.2g}") for t in range(1, config.T + 1))
    title = f"Squared relative error on {own.count} systems not seen in training"
    print()
    print_sheets([Sheet(title, ("iterate", "learned", "CG"), lines)])
    _say(findings(own))


SECTIONS = [operations, python, learning]


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(demo)


def _heading(title: str) -> None:
    console().print(f"\n{title}\n{'=' * len(title)}", style="bold")


def _say(sentence: str) -> None:
    print()
    console().print(sentence)
