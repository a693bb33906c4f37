"""The command line, a table of contents: each room brings its own commands.

Exit codes: 0 done, 1 the answer is "no", 2 the user's mistake, 130 interrupted. Only typer is loaded here; a command
imports what it needs when it runs.
"""

from __future__ import annotations

import sys

import typer

from nlaformer import demo, information
from nlaformer.bench import commands as bench
from nlaformer.compiler import commands as compiler
from nlaformer.errors import NLAFormerError
from nlaformer.express import commands as express
from nlaformer.learn import commands as learn
from nlaformer.report import commands as report

app = typer.Typer(
    help="Write, learn and use numerical linear algebra as transformers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for room in (demo, express, compiler, learn, bench, report, information):
    room.register(app)


def main() -> None:
    """Run a command; our own errors become one line and exit code 2."""
    try:
        app(prog_name="nlaformer")
    except NLAFormerError as error:
        print(f"nlaformer: {error}", file=sys.stderr)
        sys.exit(2)
