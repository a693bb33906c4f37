"""A section of a document that a script makes: printed, or put in its place."""

from __future__ import annotations

import re
from pathlib import Path


def deliver(text: str, heading: str, into: Path | None) -> None:
    """Print a section, or put it into a document in place of the one with its heading."""
    if into is None:
        print(text, end="")
    else:
        into.write_text(put(text, heading, into.read_text() if into.exists() else ""))


def put(text: str, heading: str, into: str) -> str:
    """Replace the section in a document, or append it."""
    place = re.compile(rf"^{re.escape(heading)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if place.search(into):
        return place.sub(lambda match: text + ("\n" if match.end() < len(into) else ""), into)
    return f"{into.rstrip()}\n\n{text}" if into.strip() else f"# Benchmarks\n\n{text}"
