"""The command ``algorithms``: the table of all, or one in detail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nlaformer.console import check_format, output_folder, print_json, print_sheets
from nlaformer.errors import OptionError, unknown_name

if TYPE_CHECKING:
    import torch

    from nlaformer.compiler.algorithm import Algorithm
    from nlaformer.report.curves import Convergence

Name = Annotated[str | None, typer.Argument(help="One algorithm in detail; without it, the table of all.")]
Size = Annotated[int, typer.Option("--n", help="Size of the systems.")]
DType = Annotated[str, typer.Option("--dtype", help="float64 or float32.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")]
Show = Annotated[bool, typer.Option("--show", help="Print the schedule and draw the convergence (PNG).")]
Out = Annotated[Path | None, typer.Option(help="Folder for the drawing; default: the current one.")]


def algorithms(
    name: Name = None,
    n: Size = 20,
    dtype: DType = "float64",
    as_json: Json = False,
    markdown: Markdown = False,
    show: Show = False,
    out: Out = None,
) -> None:
    """Iterative methods as looped transformers, measured.

    Layers, heads, deviation from the same program in NumPy, iterations to converge.
    """
    if dtype not in ("float64", "float32"):
        raise unknown_name("dtype", dtype, ("float64", "float32"))
    check_format(as_json, markdown)
    if show and name is None:
        raise OptionError("--show draws one algorithm; name it: nlaformer algorithms cg --show")
    if out is not None and not show:
        raise OptionError("--out goes with --show")
    import torch

    from nlaformer.compiler import measure

    folder = out or Path()
    if show:
        output_folder(folder)  # before the minutes that measuring may take

    kind = torch.float64 if dtype == "float64" else torch.float32
    rows = measure.measure_all(n, kind) if name is None else [measure.measure(name, n, kind)]
    picture = _show(name, n, kind, folder, quiet=as_json) if name is not None and show else None
    if as_json:
        from nlaformer.provenance import provenance

        about = {"n": n, "dtype": dtype, "systems": measure.SYSTEMS, "seed": measure.SEED}
        document = {**about, "algorithms": measure.as_data(rows), "provenance": provenance()}
        print_json(document | ({} if picture is None else {"picture": str(picture)}))
        return
    print_sheets([measure.sheet(rows)], markdown)
    if picture is not None:
        print(f"Convergence against NumPy: {picture}")


def _show(name: str, n: int, dtype: torch.dtype, out: Path, quiet: bool) -> Path:
    """The schedule on standard output, the convergence as a picture."""
    import nlaformer as nf
    from nlaformer.compiler import measure
    from nlaformer.report.curves import convergence_figure
    from nlaformer.report.figure import save

    compiled = nf.algorithm(name, n, dtype=dtype)
    if not quiet:
        print(f"{compiled}\n")
    title = f"{name}, n = {n}: median and range over {measure.SYSTEMS} systems"
    return save(convergence_figure(_convergence(compiled, name), title), out / f"{name}-n{n}.png")


def _convergence(compiled: Algorithm, name: str, iterations: int = 60) -> list[Convergence]:
    """The errors of the transformer and of NumPy; for cg those of the paper's one-layer form too."""
    import nlaformer as nf
    from nlaformer.compiler import measure
    from nlaformer.report.curves import Convergence

    inputs = measure.systems(compiled.n, name)
    found = measure.converge(compiled, name, inputs, iterations)
    layers = compiled.cost.loop.layers
    label = f"transformer, {layers} layer{'s' if layers > 1 else ''} an iteration"
    curves = [Convergence(label, found.found, "compiled")]
    for scheme, look in (("antisymmetric", "paper"), ("paper", "paper heads")) if name == "cg" else ():
        form = nf.algorithm("cg", compiled.n, form="paper", scheme=scheme, dtype=compiled.dtype, verify=False)
        errors = measure.converge(form, "cg", inputs, iterations).found
        curves.append(Convergence(f"Lemma 3.2, exact FFN, {scheme} heads", errors, look))
    return [*curves, Convergence("NumPy", found.reference, "reference")]


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(algorithms)
