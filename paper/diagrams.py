"""The paper's three diagrams: a layer, the blocks, the probes; drawn from a model, so every shape is a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from paper.artefact import Artefact
from paper.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nlaformer.transformer import Layer


def _transformer(results: Results) -> Figure:
    from nlaformer.report.architecture import named_solver
    from nlaformer.report.diagram import layer_figure

    solver, name = named_solver()
    layer = cast("Layer", solver.blocks.loop[0])
    title = f"One layer, eq. (1): the loop's of {name}"
    return layer_figure(layer, solver.config.d, solver.layout.tokens, title)


def _structure(results: Results) -> Figure:
    from nlaformer.report.architecture import named_solver, structure_figure

    return structure_figure(*named_solver())


def _probe(results: Results) -> Figure:
    from nlaformer.report.architecture import named_solver, probe_figure

    return probe_figure(*named_solver())


TRANSFORMER = Artefact("fig-transformer", "The components of a transformer layer", "Figure 1", draw=_transformer)
STRUCTURE = Artefact("fig-structure", "The pre, loop and post blocks", "Figure 2", draw=_structure)
PROBE = Artefact("fig-probe", "The probe mechanism", "Figure 3", draw=_probe)
