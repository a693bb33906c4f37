"""What the commands share: exit codes, tables for the terminal or for Markdown, JSON, the folder for output files."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlaformer.errors import FileError, NLAFormerError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Sheet:
    """One table as text: a title, headings, lines of cells, and a note on how to read it.

    The first column is aligned left, the others right; with ``words``, all of them left.
    """

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""
    words: bool = False


_NARROWEST = 20  # columns; a terminal that claims fewer, COLUMNS=0 say, does not know


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit code; our own errors, and files that cannot be used, are one line and code 2.

    A reader that closes the pipe early, such as head, is not an error, and neither is a closed standard output.
    """
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed before the start
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except NLAFormerError as error:
        return _complain(name, str(error))
    except SystemExit as exit:
        if not isinstance(exit.__context__, BrokenPipeError):  # which others made exit code 1
            raise
        _forget_output()
        return 0
    except BrokenPipeError:
        _forget_output()
        return 0
    except OSError as error:
        if error.filename is not None:  # for example, a name that is too long
            return _complain(name, f"cannot use {error.filename!s:.200}: {error.strerror or error}")
        _forget_output()
        return _complain(name, f"cannot write the output: {error.strerror or error}")


def _complain(name: str, message: str) -> int:
    print(f"{name}: {message}", file=sys.stderr)
    return 2


def _forget_output() -> None:
    """Discard what is still buffered: writing it would fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> Console:
    """Standard output. Where it is not a terminal, rich writes plain text, eighty columns wide."""
    from rich.console import Console

    out = Console(highlight=False, markup=False, emoji=False)
    if out.width < _NARROWEST:
        out.width = 80
    return out


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    print(to_json(document, indent=1))


def to_json(document: Any, indent: int | None = None) -> str:
    """Plain data as JSON, which has no NaN: what is not finite becomes null.

    >>> to_json({"errors": [0.5, float("nan")]})
    '{"errors": [0.5, null]}'
    """
    return json.dumps(_finite(document), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(text: str, style: str = "", indent: int = 0) -> None:
    """Text on standard output, each of its lines folded to the width; what follows a fold is indented."""
    out = console()
    for line in text.split("\n"):
        folded = textwrap.fill(line, max(out.width, 2 * indent), subsequent_indent=" " * indent)
        out.print(folded, style=style, soft_wrap=True)


def print_sheets(sheets: Iterable[Sheet], markdown: bool = False) -> None:
    """Tables on standard output."""
    if markdown:
        print("\n\n".join(to_markdown(sheet) for sheet in sheets))
        return
    out = console()
    for sheet in sheets:
        say(sheet.title, style="bold")
        print(to_text(sheet, out.width, "─" if out.encoding.startswith("utf") else "-"))
        if sheet.note:
            say(sheet.note, style="dim")
        print()


def to_text(sheet: Sheet, width: int = 80, rule: str = "-") -> str:
    """A table for the terminal, no line of which exceeds the width.

    Two spaces stand between columns, one where two are too wide. Words are folded; columns of numbers that do not fit
    beside each other are stacked, and the first column is repeated.

    >>> print(to_text(Sheet("Sizes", ("name", "entries"), (("add", "60"), ("matmul", "1,722")))))
    name    entries
    ---------------
    add          60
    matmul    1,722
    """
    columns = zip(sheet.headings, *sheet.lines, strict=True)
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= width or sheet.words else 1
    stacked: list[list[int]] = [[0]]
    for k in range(1, len(widths)):
        if len(stacked[-1]) > 1 and not sheet.words and sum(widths[j] + gap for j in stacked[-1]) + widths[k] > width:
            stacked.append([0])
        stacked[-1].append(k)
    return "\n\n".join(_table(sheet, chosen, width, gap, rule) for chosen in stacked)


def _table(sheet: Sheet, chosen: list[int], width: int, gap: int, rule: str) -> str:
    """Some columns side by side, folded to the width."""
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table

    ruled = Box(f"    \n    \n {rule}{rule} \n" + "    \n" * 5, ascii=True)  # a line below the headings, no other
    table = Table(
        box=ruled, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0), show_header=any(sheet.headings)
    )
    for k in chosen:
        table.add_column(sheet.headings[k], justify="left" if k == 0 or sheet.words else "right", overflow="fold")
    for line in sheet.lines:
        table.add_row(*(line[k] for k in chosen))
    out = Console(width=width, color_system=None, highlight=False, markup=False, emoji=False)
    with out.capture() as captured:
        out.print(table)
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def to_markdown(sheet: Sheet) -> str:
    """A table for a document.

    >>> print(to_markdown(Sheet("Sizes", ("name", "entries"), (("add", "60"),))))
    **Sizes**
    <BLANKLINE>
    | name | entries |
    | :-- | --: |
    | add | 60 |
    """
    rule = (":--", *[":--" if sheet.words else "--:"] * (len(sheet.headings) - 1))
    headings = tuple(heading.replace("-\n", "-").replace("\n", " ") for heading in sheet.headings)
    body = ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *sheet.lines)]
    return "\n".join([f"**{sheet.title}**", "", *body, *(["", sheet.note] if sheet.note else [])])


def output_folder(path: Path) -> Path:
    """The folder that a user named, created if its parent exists: a longer missing path is likely a typo."""
    if os.path.isdir(path):  # Path's own raises for a name that is too long
        return path
    if os.path.exists(path) or not os.path.isdir(path.parent):
        missing = "is not a folder" if os.path.exists(path) else f"cannot be made: there is no folder {path.parent}"
        raise FileError(f"the folder {path} {missing}; name one that exists, or make it")
    try:
        path.mkdir()
    except OSError as error:
        raise FileError(f"cannot make the folder {path}: {error.strerror or error}") from error
    return path
