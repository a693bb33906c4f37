"""What the commands share: tables for the terminal or for Markdown, JSON, and the folder for output files."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlaformer.errors import FileError, OptionError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Sheet",
    "check_format",
    "console",
    "output_folder",
    "print_json",
    "print_sheets",
    "to_json",
    "to_markdown",
    "to_text",
]


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


def console() -> Console:
    """Standard output. Where it is not a terminal, rich writes plain text, eighty columns wide."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


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


def print_sheets(sheets: Iterable[Sheet], markdown: bool = False) -> None:
    """Tables on standard output."""
    if markdown:
        print("\n\n".join(to_markdown(sheet) for sheet in sheets))
        return
    out = console()
    for sheet in sheets:
        out.print(textwrap.fill(sheet.title, out.width), style="bold", soft_wrap=True)
        out.print(to_text(sheet, out.width, "─" if out.encoding.startswith("utf") else "-"), soft_wrap=True)
        if sheet.note:
            out.print(textwrap.fill(sheet.note, out.width), style="dim", soft_wrap=True)
        out.print()


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
    columns = list(zip(sheet.headings, *sheet.lines, strict=True))
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= width or sheet.words else " "
    if sheet.words:
        return _table(columns, _shrunk(widths, width - 2 * (len(widths) - 1)), gap, rule, words=True)
    stacked: list[list[int]] = [[]]
    widths = [min(widths[0], width // 2), *(min(each, width - width // 2 - 1) for each in widths[1:])]
    for k in range(1, len(widths)):
        if stacked[-1] and sum(widths[j] + len(gap) for j in (*stacked[-1], k)) + widths[0] > width:
            stacked.append([])
        stacked[-1].append(k)
    groups = [(0, *group) for group in stacked]
    return "\n\n".join(_table([columns[k] for k in g], [widths[k] for k in g], gap, rule, False) for g in groups)


def _table(columns: Sequence[Sequence[str]], widths: Sequence[int], gap: str, rule: str, words: bool) -> str:
    """Columns, each a heading and its cells, side by side; a cell wider than its column is folded."""
    folded = [[_folded(cell, width) for cell in column] for column, width in zip(columns, widths, strict=True)]
    lines: list[str] = []
    for row, cells in enumerate(zip(*folded, strict=True)):
        height = max(map(len, cells))
        blank = [[""] * (height - len(cell)) for cell in cells]
        # A heading stands on its rule, a cell begins on its first line.
        full = [space + cell if row == 0 else cell + space for space, cell in zip(blank, cells, strict=True)]
        lines += [_joined(line, widths, gap, words) for line in zip(*full, strict=True)]
        if row == 0:
            above = len(lines)
    if any(column[0] for column in columns):
        lines.insert(above, rule * max(map(len, lines)))
    else:
        del lines[:above]
    return "\n".join(lines)


def _joined(cells: Sequence[str], widths: Sequence[int], gap: str, words: bool) -> str:
    first, *others = zip(cells, widths, strict=True)
    placed = [cell.ljust(width) if words else cell.rjust(width) for cell, width in others]
    return gap.join([first[0].ljust(first[1]), *placed]).rstrip()


def _folded(cell: str, width: int) -> list[str]:
    parts = cell.split("\n")
    return [line for part in parts for line in (textwrap.wrap(part, width) if len(part) > width else [part])]


def _shrunk(widths: list[int], room: int) -> list[int]:
    """Widths whose sum is at most the room: the last column gives way first, the first column last."""
    widths = [*widths[:-1], max(min(widths[-1], 20), min(widths[-1], room - sum(widths[:-1])))]
    while sum(widths) > max(room, len(widths)):
        others = widths[1:] if max(widths[1:], default=0) > 8 else widths
        widths[len(widths) - len(others) + others.index(max(others))] -= 1
    return widths


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


def check_format(as_json: bool, markdown: bool) -> None:
    """Refuse to print one result in two ways."""
    if as_json and markdown:
        raise OptionError("--json and --markdown were both given; choose one")


def output_folder(path: Path) -> Path:
    """The folder that a user named, created if its parent exists: a longer missing path is likely a typo."""
    if path.is_dir():
        return path
    if path.exists() or not path.parent.is_dir():
        missing = "is not a folder" if path.exists() else f"cannot be made: there is no folder {path.parent}"
        raise FileError(f"the folder {path} {missing}; name one that exists, or make it")
    try:
        path.mkdir()
    except OSError as error:
        raise FileError(f"cannot make the folder {path}: {error.strerror or error}") from error
    return path
