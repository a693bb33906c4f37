"""The paper's three diagrams: a layer, the blocks, the probes; drawn from a model, so every shape is a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from paper.artefact import Artefact
from paper.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nlaformer.transformer import Layer


def _transformer(results: Results) -> Figure:
    from nlaformer.cli.report import layer_shape, named_solver, title
    from nlaformer.report.diagrams import layer_figure

    solver = named_solver()
    layer = layer_shape(cast("Layer", solver.blocks.loop[0]))
    words = f"One layer, eq. (1): the loop's of {title(solver)}"
    return layer_figure(layer, solver.config.d, solver.layout.tokens, words)


def _structure(results: Results) -> Figure:
    from nlaformer.cli.report import named_solver, structure_of, title
    from nlaformer.report.diagrams import structure_figure

    solver = named_solver()
    return structure_figure(structure_of(solver), title(solver))


def _probe(results: Results) -> Figure:
    from nlaformer.cli.report import named_solver, structure_of, title
    from nlaformer.report.diagrams import probe_figure

    solver = named_solver()
    return probe_figure(structure_of(solver), solver.config.n, solver.probe_rd.shape[0], title(solver))


TRANSFORMER = Artefact("fig-transformer", "The components of a transformer layer", "Figure 1", draw=_transformer)
STRUCTURE = Artefact("fig-structure", "The pre, loop and post blocks", "Figure 2", draw=_structure)
PROBE = Artefact("fig-probe", "The probe mechanism", "Figure 3", draw=_probe)
