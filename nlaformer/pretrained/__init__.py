"""The bundled models: trained weights inside the package, with a card (README.md) for each.

The card says how the model was trained, how accurate it is and where it fails.
"""

from __future__ import annotations

import os
from pathlib import Path

from nlaformer.errors import FileError, did_you_mean

HOME = Path(__file__).parent


def names() -> tuple[str, ...]:
    """The names of the bundled models."""
    return tuple(sorted(path.parent.name for path in HOME.glob("*/config.json")))


def locate(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The path itself if it exists or has several parts, else the folder of the bundled model of that name."""
    if not isinstance(path, str) or not path or Path(path).name != path or os.path.exists(path):
        return path
    if path not in names():
        raise missing(path)
    return HOME / path


def missing(path: str) -> FileError:
    """The error for a path that is neither a folder nor a bundled name; it suggests the nearest name."""
    known = names()
    return FileError(
        f"there is no folder {path!r}, and no bundled model of that name; {did_you_mean(path, known)}"
        f"bundled: {', '.join(known) or 'none'}"
    )
