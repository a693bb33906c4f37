"""What all pictures share: colours, and writing a figure to a file. No pyplot: figures are plain objects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nlaformer.errors import FileError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT = "#222222", "#8a8f98"
BLUE, ORANGE, GREEN, GREY = "#dbe7f5", "#fbe3cc", "#dcefdc", "#eef0f2"


def save(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write a figure as PNG into a folder that exists."""
    if path.suffix.lower() != ".png":
        raise FileError(f"pictures are written as PNG; {path} does not end in .png")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    try:
        figure.savefig(path, dpi=dpi, facecolor="white", metadata={"Software": None})
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    return path
