"""The commands ``report ...``: pictures for the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

pictures = typer.Typer(help="Pictures for the documentation.", no_args_is_help=True)


@pictures.command()
def layer(
    out: Annotated[Path, typer.Option(help="The PNG or SVG file to write.")] = Path("layer.png"),
    name: Annotated[
        str, typer.Option("--operation", help="The operation whose first layer is drawn.")
    ] = "matrix_transpose",
    n: Annotated[int, typer.Option("--n", help="Its size.")] = 20,
) -> None:
    """A layer, equation (1), drawn with the shapes of a real one."""
    from nlaformer.report.diagram import draw_layer
    from paper.table_1_measured import build

    print(f"The first layer of {name}, n = {n}: {draw_layer(build(name, n), out)}")


Model = Annotated[str | None, typer.Argument(help="A trained or compiled model; default: the shape of cg-imitation.")]


@pictures.command()
def structure(
    model: Model = None,
    out: Annotated[Path, typer.Option(help="The PNG or SVG file to write.")] = Path("structure.png"),
) -> None:
    """The pre, loop and post blocks of a model, with its own shapes."""
    from nlaformer.report.architecture import named_model, structure_figure
    from nlaformer.report.figure import save

    found, name = named_model(model)
    print(f"The blocks of {name}: {save(structure_figure(found, name), out)}")


@pictures.command()
def probes(
    model: Model = None,
    out: Annotated[Path, typer.Option(help="The PNG or SVG file to write.")] = Path("probes.png"),
) -> None:
    """The two probes of a trained model, with its own shapes."""
    from nlaformer.report.architecture import named_solver, probe_figure
    from nlaformer.report.figure import save

    found, name = named_solver(model)
    print(f"The probes of {name}: {save(probe_figure(found, name), out)}")


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.add_typer(pictures, name="report")
