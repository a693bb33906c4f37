"""What the commands share: a table as text, for the terminal or a document, and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    """One table as text: a title, headings, lines of cells, and a sentence on how to read it.

    Cells stand on the right under a heading, on the left where it is empty.
    """

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""


def console() -> Console:
    """Standard output. Where it is not a terminal, rich writes plain text, eighty columns wide."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(document, indent=1))


def print_sheets(sheets: Iterable[Sheet], markdown: bool = False) -> None:
    """Tables on standard output."""
    if markdown:
        print("\n\n".join(to_markdown(sheet) for sheet in sheets))
        return
    out = console()
    for sheet in sheets:
        out.print(sheet.title, style="bold")
        out.print(to_rich(sheet))
        if sheet.note:
            out.print(sheet.note, style="dim")
        out.print()


def to_rich(sheet: Sheet) -> Table:
    """A table for the terminal, two spaces between columns; a narrow terminal folds cells and loses nothing."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.show_header = any(sheet.headings)
    for k, heading in enumerate(sheet.headings):
        table.add_column(heading, justify="right" if k and heading else "left", no_wrap=k == 0, overflow="fold")
    for line in sheet.lines:
        table.add_row(*line)
    return table


def to_markdown(sheet: Sheet) -> str:
    """A table for a document.

    >>> print(to_markdown(Sheet("Sizes", ("name", "entries"), (("add", "60"),))))
    **Sizes**
    <BLANKLINE>
    | name | entries |
    | :-- | --: |
    | add | 60 |
    """
    rule = (":--", *["--:"] * (len(sheet.headings) - 1))
    headings = tuple(heading.replace("-\n", "-").replace("\n", " ") for heading in sheet.headings)
    body = ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *sheet.lines)]
    return "\n".join([f"**{sheet.title}**", "", *body, *(["", sheet.note] if sheet.note else [])])
