"""The commands ``bench ...``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlaformer.console import Sheet, output_folder, print_json, print_sheets, to_markdown

if TYPE_CHECKING:
    from benchmarks.solve import Measurement

benchmarks = typer.Typer(help="Measure time and memory.", no_args_is_help=True)


@benchmarks.command()
def operations(
    quick: Annotated[bool, typer.Option("--quick", help="Three operations, three sizes.")] = False,
    threads: Annotated[int, typer.Option(help="Threads torch may use.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for operations.md and operations.json.")] = None,
) -> None:
    """Time and peak memory of the operations beside torch's own.

    n = 20 to 512, single and batched; four minutes.
    """
    import torch

    from benchmarks import operations as bench
    from nlaformer.io import replace_file
    from nlaformer.provenance import in_words, provenance

    if out is not None:
        output_folder(out)
    torch.set_num_threads(threads)
    cases = bench.QUICK_CASES if quick else bench.CASES
    found = [bench.measure(name, n, batch) for name in bench.names(quick) for n, batch in cases]
    where = provenance()
    document = {"measurements": bench.as_data(found), "provenance": where}
    if out is not None:
        replace_file(out / "operations.json", (json.dumps(document, indent=1) + "\n").encode())
        replace_file(out / "operations.md", _page("operations", [bench.sheet(found)], where))
    if as_json:
        print_json(document)
        return
    print_sheets([bench.sheet(found)])
    print(in_words(where))


@benchmarks.command()
def solve(
    quick: Annotated[
        bool, typer.Option("--quick", help="Two families, few systems, one model: half a minute.")
    ] = False,
    threads: Annotated[int, typer.Option(help="Threads torch may use.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for solve.md and solve.json.")] = None,
) -> None:
    """Work, failures and time of the solvers beside others.

    With and without a model. Exit code 1 if the acceptance figure, the section at the end, misses its goal.
    """
    import torch

    from benchmarks import solve as bench
    from nlaformer.io import replace_file
    from nlaformer.provenance import in_words, provenance

    if out is not None:
        output_folder(out)
    torch.set_num_threads(threads)
    where = provenance()  # of the code that is loaded now: a checkout may change within minutes
    *families, acceptance = _said(bench.run(bench.QUICK if quick else bench.FULL))
    sheets = bench.sheets(families, acceptance)
    found = bench.verdict(acceptance)
    measurements = bench.as_data([measurement for family in families for measurement in family])
    document = {
        "measurements": measurements,
        "acceptance": {"verdict": found, "measurements": bench.as_data(acceptance)},
        "provenance": where,
    }
    if out is not None:
        replace_file(out / "solve.json", (json.dumps(document, indent=1) + "\n").encode())
        replace_file(out / "solve.md", _page("solve", sheets, where))
    if as_json:
        print_json(document)
    else:
        print_sheets(sheets)
        print(in_words(where))
    if not found["met"]:
        raise typer.Exit(1)


def _page(name: str, sheets: Iterable[Sheet], where: dict[str, Any]) -> bytes:
    """What ``--out`` writes for people: how it was made, the tables, where it ran."""
    from nlaformer.provenance import in_words

    head = f"# The benchmark `{name}`\n\nMade by `nlaformer bench {name} --out benchmarks`; see [README.md](README.md)."
    return ("\n\n".join([head, *map(to_markdown, sheets), in_words(where)]) + "\n").encode()


def _said(families: Iterable[list[Measurement]]) -> Iterator[list[Measurement]]:
    """The families of a benchmark that takes minutes, each announced on standard error when it is done."""
    begun = time.monotonic()
    for family in families:
        first = family[0]
        print(f"{time.monotonic() - begun:.0f} s: {first.label}, {first.systems:,} systems", file=sys.stderr)
        yield family


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.add_typer(benchmarks, name="bench")
