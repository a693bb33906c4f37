"""What the commands share: a table as text, for the terminal or a document, JSON for programs, the folder for files."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlaformer.errors import FileError, OptionError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Sheet:
    """One table as text: a title, headings, lines of cells, and a sentence on how to read it.

    The first column stands on the left, the others on the right; with ``words``, all of them on the left.
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
        out.print(sheet.title, style="bold", soft_wrap=True)
        out.print(to_text(sheet, out.width, "─" if out.encoding.startswith("utf") else "-"), soft_wrap=True)
        if sheet.note:
            out.print(textwrap.fill(sheet.note, out.width), style="dim", soft_wrap=True)
        out.print()


def to_text(sheet: Sheet, width: int = 80, rule: str = "-") -> str:
    """A table for the terminal.

    Two spaces between columns, one where two are too wide. Words in the last column are folded, numbers never: a table
    of them that is still too wide is left so.

    >>> print(to_text(Sheet("Sizes", ("name", "entries"), (("add", "60"), ("matmul", "1,722")))))
    name    entries
    ---------------
    add          60
    matmul    1,722
    """
    headings = [heading.split("\n") for heading in sheet.headings]
    height = max(len(heading) for heading in headings)
    head = [[""] * (height - len(heading)) + heading for heading in headings]
    columns = [[*top, *cells] for top, cells in zip(head, zip(*sheet.lines, strict=True), strict=True)]
    widths = [max(len(cell) for cell in column) for column in columns]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= width or sheet.words else " "
    if sheet.words:
        widths[-1] = max(20, min(widths[-1], width - sum(widths[:-1]) - 2 * (len(widths) - 1)))
    lines = []
    for cells in zip(*columns, strict=True):
        folded = textwrap.wrap(cells[-1], widths[-1]) or [""] if sheet.words else [cells[-1]]
        rows = [(*cells[:-1], folded[0]), *((*[""] * (len(cells) - 1), more) for more in folded[1:])]
        lines += [gap.join(_place(k, row[k], widths[k], sheet.words) for k in range(len(row))).rstrip() for row in rows]
    if any(sheet.headings):
        lines.insert(height, rule * max(map(len, lines)))
    else:
        del lines[:height]
    return "\n".join(lines)


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
    """The folder a user named, made if only it is missing: more missing than that is likely a slip of the pen."""
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


def _place(column: int, cell: str, width: int, words: bool) -> str:
    return cell.ljust(width) if words or column == 0 else cell.rjust(width)
