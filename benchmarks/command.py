"""What the benchmarks that write a page share: their options, their files and what they print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nlaformer.console import Sheet, output_folder, print_json, print_sheets, to_markdown
from nlaformer.errors import NLAFormerError
from nlaformer.io import replace_file
from nlaformer.provenance import changed_since, in_words, loaded_files, provenance

Measured = tuple[dict[str, Any], Sequence[Sheet]]


def write(path: Path, document: Any, digits: int = 7) -> Path:
    """Write what was measured: on one line, with so many digits of every number, which is half the room.

    Its provenance names the files of the checkout that are loaded, unless it names others.
    """
    document = {**document, "provenance": {"files": loaded_files(), **document["provenance"]}}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(rounded(document, digits), separators=(",", ":")) + "\n").encode())
    return path


def read(path: Path) -> dict[str, Any]:
    """What was written; says on standard error which code it depends on has changed since."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    changed = changed_since(document["provenance"])
    if changed is None:
        print(f"{path}: whether its code has changed since cannot be told without the history", file=sys.stderr)
    elif changed:
        some = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        print(f"{path}: its code has changed since, {some}", file=sys.stderr)
    return document


def rounded(value: Any, digits: int) -> Any:
    """The same with so many digits of every number that is not whole.

    >>> rounded({"error": [1.23456789e-9, 2048]}, 6)
    {'error': [1.23457e-09, 2048]}
    """
    if isinstance(value, Mapping):
        return {name: rounded(each, digits) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def run(
    name: str, description: str, quick: str, measure: Callable[[bool], Measured], given: Sequence[str] | None = None
) -> dict[str, Any]:
    """Read the options, measure, write NAME.json and NAME.md where asked for, and print; returns what was measured.

    ``measure`` is called with the option --quick and returns a document and its tables.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--threads", type=int, default=1, help="threads torch may use; default: 1")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--out", type=Path, help=f"folder for {name}.md and {name}.json")
    options = parser.parse_args(given)
    try:
        if options.out is not None:
            output_folder(options.out)  # before any work
        torch.set_num_threads(options.threads)
        where = provenance()  # of the code that is loaded now: a checkout may change within minutes
        found, sheets = measure(options.quick)
        document = found | {"provenance": where | {"files": loaded_files()}}
        if options.out is not None:
            write(options.out / f"{name}.json", document, digits=17)  # all of them, as they are printed
            replace_file(options.out / f"{name}.md", _page(name, sheets, where))
    except NLAFormerError as error:
        parser.error(str(error))
    if options.json:
        print_json(document)
    else:
        print_sheets(sheets)
        print(in_words(where))
    return found


def print_comparisons(
    name: str, rows: Mapping[str, Any], kept: Mapping[str, bool], aims: Mapping[str, bool] | None = None
) -> None:
    """The figures of one model for reading: ``Comparison.to_json`` by family, and which claims hold."""
    print(f"== {name}", flush=True)
    for label, row in rows.items():
        last = len(row["mean"]["learned"]) - 1
        shown = [t for t in (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 64, 120) if t <= last]
        print(f"{label}: {row['measure']} at t = {', '.join(map(str, shown))}; T = {row['T']}")
        for method in row["mean"]:
            for of in ("mean", "median") if method == "learned" else ("mean",):
                errors = " ".join(f"{row[of][method][t]:.0e}" for t in shown)
                print(f"  {method + ', ' + of:38s} {errors}")
        print(f"  failures of {row['count']} at t = {last}: {json.dumps(row['failures'])}")
        print(f"  iterations to a residual of 1e-6: {json.dumps(row['to_residual'])}")
    for claim, held in kept.items():
        print(f"  {'kept  ' if held else 'BROKEN'} {claim}")
    for claim, held in (aims or {}).items():
        print(f"  {'aim   ' if held else 'missed'} {claim}")


def _page(name: str, sheets: Sequence[Sheet], where: dict[str, Any]) -> bytes:
    """How the numbers were made, the tables, and where it ran."""
    made = f"Made by `python -m benchmarks.{name} --out benchmarks/results`; see [README.md](../README.md)."
    head = f"# The benchmark `{name}`\n\n{made}"
    return ("\n\n".join([head, *map(to_markdown, sheets), in_words(where)]) + "\n").encode()
