"""The commands ``report ...``: the paper's diagrams with the sizes of a real model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from nlaformer.errors import OptionError

if TYPE_CHECKING:
    from nlaformer.compiler.algorithm import Algorithm
    from nlaformer.learn.model import Solver
    from nlaformer.report.diagrams import LayerShape, Structure
    from nlaformer.transformer import Layer

report = typer.Typer(help="Diagrams with the sizes of a real model.", no_args_is_help=True)

_Model = Annotated[
    str | None, typer.Argument(help="The folder or name of a model; default: cg-imitation before training.")
]
_Out = Annotated[Path, typer.Option(help="The PNG or SVG file to write.")]


@report.command()
def layer(
    out: _Out = Path("layer.png"),
    name: Annotated[
        str, typer.Option("--operation", help="The operation whose first layer is drawn.")
    ] = "matrix_transpose",
    n: Annotated[int, typer.Option("--n", help="Its size.")] = 20,
) -> None:
    """A layer, equation (1), drawn with the sizes of a real one."""
    from nlaformer.cli.operations import build
    from nlaformer.report.diagrams import layer_figure
    from nlaformer.report.figure import save

    op = build(name, n)
    title = f"One layer, eq. (1): the first of {op.name}, n = {op.n}"
    figure = layer_figure(layer_shape(cast("Layer", op.model.pre[0])), op.layout.rows, op.layout.tokens, title)
    print(f"The first layer of {name}, n = {n}: {save(figure, out)}")


@report.command()
def structure(model: _Model = None, out: _Out = Path("structure.png")) -> None:
    """The pre, loop and post blocks of a trained or compiled model."""
    from nlaformer.report.diagrams import structure_figure
    from nlaformer.report.figure import save

    found = named_model(model)
    print(f"The blocks of {_title(found)}: {save(structure_figure(structure_of(found), _title(found)), out)}")


@report.command()
def probes(model: _Model = None, out: _Out = Path("probes.png")) -> None:
    """The two probes of a trained model."""
    from nlaformer.report.diagrams import probe_figure
    from nlaformer.report.figure import save

    found = named_solver(model)
    figure = probe_figure(structure_of(found), found.config.n, found.probe_rd.shape[0], _title(found))
    print(f"The probes of {_title(found)}: {save(figure, out)}")


def named_solver(path: str | None = None) -> Solver:
    """The trained model of that path or name; without one, cg-imitation before training."""
    from nlaformer.learn.model import initial
    from nlaformer.learn.models import load_solver
    from nlaformer.learn.recipes import recipe

    return initial(recipe("cg-imitation")) if path is None else load_solver(path)


def named_model(path: str | None = None) -> Solver | Algorithm:
    """The same, but a compiled algorithm is accepted too."""
    import nlaformer as nf
    from nlaformer.compiler.algorithm import Algorithm
    from nlaformer.learn.model import Solver

    model = named_solver() if path is None else nf.load(path)
    if isinstance(model, Solver | Algorithm):
        return model
    raise OptionError(f"{path} holds {model!r}, which has no blocks to draw; report layer draws an operation")


def _title(model: Solver | Algorithm) -> str:
    """The name and size of a model."""
    from nlaformer.learn.model import Solver

    return f"{model.config.recipe if isinstance(model, Solver) else model.name}, n = {model.config.n}"


def structure_of(model: Solver | Algorithm) -> Structure:
    """The sizes of a model, as the diagrams take them."""
    from nlaformer.learn.model import Solver
    from nlaformer.report.diagrams import Structure

    transformer = model.blocks if isinstance(model, Solver) else model.model
    blocks = {key: [layer_shape(one) for one in getattr(transformer, key)] for key in ("pre", "loop", "post")}
    sizes = {"width": model.config.d, "T": model.config.T} if isinstance(model, Solver) else {}
    registers, tokens = model.layout.registers, model.layout.tokens
    return Structure(registers, tokens, blocks, transformer.inject, transformer.unshared, **sizes)


def layer_shape(layer: Layer) -> LayerShape:
    """The sizes of a layer, as the diagrams take them."""
    from nlaformer.report.diagrams import LayerShape

    heads, rows = (0, 0) if layer.heads is None else (layer.heads.count, layer.heads.W_Q.shape[0])
    width = 0 if layer.ffn is None else layer.ffn.width
    return LayerShape(heads, rows // max(heads, 1), width, normalized=layer.gain_1 is not None)
