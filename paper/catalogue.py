"""Every table and figure of the study, in the paper's order, then what goes beyond it."""

from __future__ import annotations

from nlaformer.errors import unknown_name
from paper import (
    architectures,
    bundled,
    compiled,
    controls,
    diagrams,
    dimension,
    discrepancy,
    eta,
    headline,
    imitation,
    lambda_,
    lead,
    learned_operations,
    learning_rate,
    loops,
    operations,
    sigma,
    systems,
    window,
)
from paper.artefact import Artefact

ARTEFACTS: tuple[Artefact, ...] = (
    diagrams.TRANSFORMER,
    operations.ARTEFACT,
    compiled.ARTEFACT,
    diagrams.STRUCTURE,
    diagrams.PROBE,
    systems.ARTEFACT,
    discrepancy.FIRST_SETTING,
    learning_rate.ARTEFACT,
    eta.ARTEFACT,
    imitation.ERROR,
    imitation.INTERMEDIATE,
    discrepancy.SECOND_SETTING,
    lambda_.ARTEFACT,
    sigma.ARTEFACT,
    dimension.ARTEFACT,
    window.ARTEFACT,
    architectures.ARTEFACT,
    loops.ARTEFACT,
    lead.ARTEFACT,
    headline.RUNS,
    bundled.ARTEFACT,
    controls.ARTEFACT,
    learned_operations.ARTEFACT,
)


def artefact(name: str) -> Artefact:
    """An artefact by its name."""
    known = {entry.name: entry for entry in ARTEFACTS}
    if name not in known:
        raise unknown_name("table or figure", name, known)
    return known[name]
