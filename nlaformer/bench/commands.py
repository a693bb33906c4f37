"""The commands ``bench ...``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nlaformer.console import output_folder, print_json, print_sheets, to_markdown

benchmarks = typer.Typer(help="Measure time and memory.", no_args_is_help=True)


@benchmarks.callback()
def _group() -> None:
    """Measure time and memory."""


@benchmarks.command()
def operations(
    quick: Annotated[bool, typer.Option("--quick", help="Three operations, three sizes.")] = False,
    threads: Annotated[int, typer.Option(help="Threads torch may use.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for operations.md and operations.json.")] = None,
) -> None:
    """Time and peak memory of the operations against torch's own, n = 20 to 512, single and batched."""
    import torch

    from nlaformer.bench import operations as bench
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
        replace_file(out / "operations.md", f"{to_markdown(bench.sheet(found))}\n\n{in_words(where)}\n".encode())
    if as_json:
        print_json(document)
        return
    print_sheets([bench.sheet(found)])
    print(in_words(where))


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.add_typer(benchmarks, name="bench")
