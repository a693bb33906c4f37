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

__all__ = ["layer_shape", "named_model", "named_solver", "report", "structure_of", "title"]

report = typer.Typer(help="Diagrams with the sizes of a real model.", no_args_is_help=True)

Model = Annotated[
    str | None, typer.Argument(help="The folder or name of a model; default: cg-imitation before training.")
]


@report.command()
def layer(
    out: Annotated[Path, typer.Option(help="The PNG or SVG file to write.")] = Path("layer.png"),
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
def structure(
    model: Model = None,
    out: Annotated[Path, typer.Option(help="The PNG or SVG file to write.")] = Path("structure.png"),
) -> None:
    """The pre, loop and post blocks of a trained or compiled model."""
    from nlaformer.report.diagrams import structure_figure
    from nlaformer.report.figure import save

    found = named_model(model)
    print(f"The blocks of {title(found)}: {save(structure_figure(structure_of(found), title(found)), out)}")


@report.command()
def probes(
    model: Model = None,
    out: Annotated[Path, typer.Option(help="The PNG or SVG file to write.")] = Path("probes.png"),
) -> None:
    """The two probes of a trained model."""
    from nlaformer.report.diagrams import probe_figure
    from nlaformer.report.figure import save

    found = named_solver(model)
    figure = probe_figure(structure_of(found), found.config.n, found.probe_rd.shape[0], title(found))
    print(f"The probes of {title(found)}: {save(figure, out)}")


def named_solver(path: str | None = None) -> Solver:
    """The trained model of that path or name; without one, cg-imitation before training."""
    from nlaformer.learn.model import initial, load_solver
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


def title(model: Solver | Algorithm) -> str:
    """The name and size of a model."""
    from nlaformer.learn.model import Solver

    name, n = (model.config.recipe, model.config.n) if isinstance(model, Solver) else (model.name, model.n)
    return f"{name}, n = {n}"


def structure_of(model: Solver | Algorithm) -> Structure:
    """The sizes of a model, as the diagrams take them."""
    from nlaformer.learn.model import Solver
    from nlaformer.report.diagrams import Structure

    trained = model if isinstance(model, Solver) else None
    transformer = model.blocks if isinstance(model, Solver) else model.model
    return Structure(
        registers=model.layout.registers,
        tokens=model.layout.tokens,
        blocks={key: [layer_shape(one) for one in getattr(transformer, key)] for key in ("pre", "loop", "post")},
        inject=transformer.inject,
        unshared=transformer.unshared,
        width=None if trained is None else trained.read_in.shape[0],
        T=None if trained is None else trained.config.T,
    )


def layer_shape(layer: Layer) -> LayerShape:
    """The sizes of a layer, as the diagrams take them."""
    from nlaformer.report.diagrams import LayerShape

    heads = 0 if layer.heads is None else layer.heads.count
    return LayerShape(
        heads=heads,
        head_rows=0 if layer.heads is None else layer.heads.W_Q.shape[0] // heads,
        ffn_width=0 if layer.ffn is None else layer.ffn.width,
        normalized=layer.gain_1 is not None,
    )
