"""The bundled models: trained weights inside the package, a folder and a card for each.

``nf.load("cg-accelerated")`` finds them by name. Each README.md says how its model was trained, how accurate it is and
where it fails; it is made from the numbers of its run by ``nlaformer reproduce promote``.
"""

from __future__ import annotations

from pathlib import Path

HOME = Path(__file__).parent


def names() -> tuple[str, ...]:
    """The bundled models that are here."""
    return tuple(sorted(path.parent.name for path in HOME.glob("*/config.json")))


def folder(name: str) -> Path | None:
    """The folder of a bundled model; None if there is none of this name."""
    return HOME / name if name in names() else None
