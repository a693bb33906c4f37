"""The pictures of ``python -m paper diagram``: the paper's with the sizes of real models, and its form of CG."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import nlaformer as nf
from nlaformer.cli.algorithms import draw_convergence
from nlaformer.cli.operations import build
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.errors import OptionError
from nlaformer.learn.model import Solver, initial
from nlaformer.learn.models import load_solver
from nlaformer.learn.recipes import recipe
from nlaformer.report.figure import save
from nlaformer.transformer import Layer
from paper.diagrams import LayerShape, Structure, layer_figure, probe_figure, structure_figure
from paper.paper_form import paper_cg

WHAT = ("layer", "structure", "probes", "convergence")


def draw_diagram(what: str, model: str | None, operation: str, n: int, out: Path) -> str:
    """Draw one of ``WHAT``, and say what it shows.

    ``layer`` is the first layer of an operation; ``structure`` and ``probes`` are of a model, cg-imitation before
    training if none is named; ``convergence`` is CG, compiled, in the paper's forms and in NumPy.
    """
    if model is not None and what not in ("structure", "probes"):
        raise OptionError(f"diagram {what} takes no model; {model} was given")
    if what == "layer":
        op = build(operation, n)
        title = f"One layer, eq. (1): the first of {op.name}, n = {op.n}"
        figure = layer_figure(layer_shape(cast(Layer, op.model.pre[0])), op.layout.rows, op.layout.tokens, title)
        return f"The first layer of {operation}, n = {n}: {save(figure, out)}"
    if what == "structure":
        found = named_model(model)
        return f"The blocks of {_title(found)}: {save(structure_figure(structure_of(found), _title(found)), out)}"
    if what == "probes":
        solver = named_solver(model)
        figure = probe_figure(structure_of(solver), solver.config.n, solver.probe_rd.shape[0], _title(solver))
        return f"The probes of {_title(solver)}: {save(figure, out)}"
    forms = {
        look: (f"Lemma 3.2, exact FFN, {scheme} heads", paper_cg(n, scheme=scheme, verify=False))
        for scheme, look in (("antisymmetric", "paper"), ("paper", "paper heads"))
    }
    return f"Convergence of CG: {draw_convergence(nf.algorithm('cg', n, verify=False), 'cg', out, forms)}"


def named_solver(path: str | None = None) -> Solver:
    """The trained model of that path or name; without one, cg-imitation before training."""
    return initial(recipe("cg-imitation")) if path is None else load_solver(path)


def named_model(path: str | None = None) -> Solver | Algorithm:
    """The same, but a compiled algorithm is accepted too."""
    model = named_solver() if path is None else nf.load(path)
    if isinstance(model, Solver | Algorithm):
        return model
    raise OptionError(f"{path} holds {model!r}, which has no blocks to draw; diagram layer draws an operation")


def _title(model: Solver | Algorithm) -> str:
    """The name and size of a model."""
    return f"{model.config.recipe if isinstance(model, Solver) else model.name}, n = {model.config.n}"


def structure_of(model: Solver | Algorithm) -> Structure:
    """The sizes of a model, as the diagrams take them."""
    transformer = model.blocks if isinstance(model, Solver) else model.model
    blocks = {key: [layer_shape(one) for one in getattr(transformer, key)] for key in ("pre", "loop", "post")}
    sizes = {"width": model.config.d, "T": model.config.T} if isinstance(model, Solver) else {}
    registers, tokens = model.layout.registers, model.layout.tokens
    return Structure(registers, tokens, blocks, transformer.inject, transformer.unshared, **sizes)


def layer_shape(layer: Layer) -> LayerShape:
    """The sizes of a layer, as the diagrams take them."""
    heads, rows = (0, 0) if layer.heads is None else (layer.heads.count, layer.heads.W_Q.shape[0])
    width = 0 if layer.ffn is None else layer.ffn.width
    return LayerShape(heads, rows // max(heads, 1), width, normalized=layer.gain_1 is not None)
