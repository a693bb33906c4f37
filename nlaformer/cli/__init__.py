"""The command line: one module per group of commands.

Exit codes: 0 done, 1 the answer is "no", 2 the user's mistake, 130 interrupted. Only typer is loaded here; a command
imports what it needs when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

import nlaformer
from nlaformer.cli import algorithms, demo, explore, info, learn, microscope, operations, solve
from nlaformer.console import run_command
from nlaformer.errors import OptionError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(demo.demo)
app.command()(operations.operations)
app.command()(algorithms.algorithms)
app.command(cls=learn.WithKeys)(learn.train)
app.command(cls=learn.WithKeys)(learn.sweep)
app.command()(learn.evaluate)
app.command()(solve.solve)
app.command()(microscope.microscope)
app.command()(explore.explore)
app.command()(info.info)

_MOVED = {
    "reproduce": "python -m paper", "probe": "python -m paper probe", "bench": "python -m benchmarks.NAME",
    "report": "python -m paper diagram",
}  # fmt: skip


def _pointer(name: str) -> Callable[[], None]:
    def command() -> None:
        raise OptionError(f"{name} has moved: run {_MOVED[name]} in a checkout of the repository")

    return command


for _name in _MOVED:
    _anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command(_name, hidden=True, context_settings=_anything)(_pointer(_name))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"nlaformer {nlaformer.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Write, learn and use numerical linear algebra as transformers."""


def main() -> None:
    """Run a command and end the process with its exit code."""
    sys.exit(run_command("nlaformer", lambda: app(prog_name="nlaformer") or 0))
