"""Every table and figure of the study, in the paper's order."""

from __future__ import annotations

from nlaformer.errors import unknown_name
from nlaformer.study.artefact import Artefact

ARTEFACTS: tuple[Artefact, ...] = ()


def artefact(name: str) -> Artefact:
    """An artefact by its name."""
    known = {entry.name: entry for entry in ARTEFACTS}
    if name not in known:
        raise unknown_name("table or figure", name, known)
    return known[name]
