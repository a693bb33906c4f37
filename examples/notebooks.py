"""The notebooks of this folder are made from its scripts: ``make notebooks``, or ``python -m examples.notebooks``.

A script is the source. ``# %%`` starts a cell of code, ``# %% [markdown]`` one of text, whose lines are comments;
editors know the format. A notebook is written without outputs: running it gives them. ``--check`` writes nothing and
fails if a notebook is not what its script gives.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
_CELL, _TEXT = "# %%", " [markdown]"


def scripts() -> list[Path]:
    """The scripts that are notebooks too."""
    return sorted(path for path in FOLDER.glob("*.py") if path.read_text(encoding="utf-8").startswith(_CELL))


def notebook(script: str) -> str:
    """The notebook of a script, as JSON."""
    _, *parts = f"\n{script}".split(f"\n{_CELL}")
    cells = [_cell(number, *part.split("\n", 1)) for number, part in enumerate(parts)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, kind: str, body: str) -> dict[str, Any]:
    lines = body.strip("\n").split("\n")
    if kind == _TEXT:
        lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
    cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
    cell["source"] = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
    if kind == _TEXT:
        return {"cell_type": "markdown", **cell}
    return {"cell_type": "code", "execution_count": None, "outputs": [], **cell}


def outdated() -> list[Path]:
    """The notebooks that are not what their scripts give."""
    return [made for path in scripts() if _text(made := path.with_suffix(".ipynb")) != notebook(_text(path))]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main() -> None:
    stale = outdated()
    if "--check" in sys.argv[1:]:
        if stale:
            sys.exit(f"not what the scripts give: {', '.join(path.name for path in stale)}; make notebooks")
        return
    for path in stale:
        path.write_text(notebook(_text(path.with_suffix(".py"))), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
