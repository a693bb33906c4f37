"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nlaformer.console import output_folder
from nlaformer.errors import OptionError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the tables in Markdown.")]
Folder = Annotated[Path | None, typer.Option(help="Folder for the drawing; default: the current one.")]


def check_options(example: str, name: str | None, as_json: bool, markdown: bool, show: bool, out: Path | None) -> None:
    """Refuse options of a table that contradict each other; make the folder of a drawing before anything is measured.

    ``example`` is a call of the command that draws.
    """
    if as_json and markdown:
        raise OptionError("--json and --markdown were both given; choose one")
    if show and name is None:
        raise OptionError(f"--show draws one of them; name it: nlaformer {example} --show")
    if out is not None and not show:
        raise OptionError("--out goes with --show")
    if out is not None:
        output_folder(out)
