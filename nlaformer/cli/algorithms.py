"""The command ``algorithms``: the table of all, or one in detail."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlaformer.console import Sheet, check_format, console, output_folder, print_json, print_sheets
from nlaformer.errors import OptionError, unknown_name

if TYPE_CHECKING:
    import torch

    from nlaformer.compiler.algorithm import Algorithm
    from nlaformer.compiler.verify import Convergence as Curves
    from nlaformer.express.construction import Cost
    from nlaformer.report.curves import Convergence

__all__ = ["algorithms"]

Name = Annotated[str | None, typer.Argument(help="One algorithm in detail; without it, the table of all.")]
Size = Annotated[int, typer.Option("--n", help="Size of the systems.")]
DType = Annotated[str, typer.Option("--dtype", help="float64 or float32.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")]
Show = Annotated[bool, typer.Option("--show", help="Draw the convergence (PNG).")]
Out = Annotated[Path | None, typer.Option(help="Folder for the drawing; default: the current one.")]

SYSTEMS, SEED, ITERATIONS = 8, 11, 60
_BLOCKS = "Heads and FFN width: the largest of the block's layers."


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

    Layers, heads, deviation from the same program in NumPy, error after 60 iterations. For one algorithm also the cost
    of each block and the schedule: what each layer computes.
    """
    if dtype not in ("float64", "float32"):
        raise unknown_name("dtype", dtype, ("float64", "float32"))
    check_format(as_json, markdown)
    if show and name is None:
        raise OptionError("--show draws one algorithm; name it: nlaformer algorithms cg --show")
    if out is not None and not show:
        raise OptionError("--out goes with --show")
    import torch

    kind = torch.float64 if dtype == "float64" else torch.float32
    if name is None:
        _table(n, kind, as_json, markdown)
    else:
        # The folder is made before anything is measured.
        _detail(name, n, kind, as_json, markdown, output_folder(out or Path()) if show else None)


def _table(n: int, dtype: torch.dtype, as_json: bool, markdown: bool) -> None:
    import nlaformer as nf

    rows = [_check(name, nf.algorithm(name, n, dtype=dtype, verify=False)) for name in nf.algorithms()]
    if as_json:
        print_json(_document(rows, n, dtype))
    else:
        print_sheets([_sheet(rows, n)], markdown)


def _detail(name: str, n: int, dtype: torch.dtype, as_json: bool, markdown: bool, folder: Path | None) -> None:
    import nlaformer as nf

    compiled = nf.algorithm(name, n, dtype=dtype, verify=False)
    row = _check(name, compiled)
    picture = None if folder is None else _draw(compiled, name, folder / f"{name}-n{n}.png")
    if as_json:
        costs = {block: asdict(cost) for block, cost in _costs(compiled)}
        document = _document([row], n, dtype) | {"cost": costs, "schedule": compiled.schedule()}
        print_json(document | ({} if picture is None else {"picture": str(picture)}))
        return
    lines = tuple((block, str(cost.layers), str(cost.heads), f"{cost.ffn_width:,}") for block, cost in _costs(compiled))
    size = f"{compiled.layout.rows} rows x {compiled.layout.tokens} tokens"
    blocks = Sheet(f"{name}, n = {n}: {size}", ("block", "layers", "heads", "FFN width"), lines, _BLOCKS)
    print_sheets([blocks, _sheet([row], n)], markdown)
    width = console().width
    for line in compiled.schedule(width).splitlines():
        print(line if len(line) <= width else textwrap.fill(line, width, subsequent_indent="  "))
    if picture is not None:
        print(f"\nConvergence against NumPy: {picture}")


def _costs(compiled: Algorithm) -> list[tuple[str, Cost]]:
    cost = compiled.cost
    return [("pre (start)", cost.pre), ("loop (one step)", cost.loop), ("post (finish)", cost.post)]


def _check(name: str, compiled: Algorithm) -> dict[str, Any]:
    """What an algorithm costs, how closely it follows its program and how far it comes."""
    curves = _converge(compiled, name)
    deviation, loop = curves.deviation.max(0), compiled.cost.loop
    return {
        "name": name,
        "layers": loop.layers,
        "heads": compiled.loop_heads,
        "ffn_width": loop.ffn_width,
        "rows": loop.rows,
        "first_deviation": float(deviation[1]),
        "largest_deviation": float(deviation.max()),
        "last_deviation": float(deviation[-1]),
        "error": float(curves.found[:, -1].max()),
        "reference_error": float(curves.reference[:, -1].max()),
    }


def _converge(compiled: Algorithm, name: str) -> Curves:
    from nlaformer.compiler.library import example, program
    from nlaformer.compiler.verify import converge

    inputs, exact = example(name, compiled.n, SYSTEMS, SEED)
    return converge(compiled, program(name), inputs, exact, ITERATIONS)


def _sheet(rows: list[dict[str, Any]], n: int) -> Sheet:
    costs = ("layers", "heads,\nall layers", "FFN\nwidth")
    found = ("deviation\n1 step", "deviation\nlargest", "deviation\nlast", "error\n(NumPy)")
    lines = tuple(
        (
            row["name"],
            str(row["layers"]),
            str(row["heads"]),
            f"{row['ffn_width']:,}",
            *(f"{row[f'{which}_deviation']:.0e}" for which in ("first", "largest", "last")),
            f"{row['error']:.0e} ({row['reference_error']:.0e})",
        )
        for row in rows
    )
    note = (
        f"Layers and heads: of one iteration. Deviation: |x_t - x_t of the program in NumPy| / |x|, worst of {SYSTEMS} "
        f"systems of the paper's family (sigma = 1.2), over {ITERATIONS} iterations. Error: |x_t - x| / |x| after the "
        "last; NumPy's in brackets. The conjugate gradient family amplifies rounding on its way, NumPy's own too, and "
        "converges all the same."
    )
    return Sheet(f"Algorithms as looped transformers, n = {n}", ("algorithm", *costs, *found), lines, note)


def _document(rows: list[dict[str, Any]], n: int, dtype: torch.dtype) -> dict[str, Any]:
    from nlaformer.provenance import provenance

    about = {"n": n, "dtype": str(dtype).removeprefix("torch."), "systems": SYSTEMS, "seed": SEED}
    return {**about, "iterations": ITERATIONS, "algorithms": rows, "provenance": provenance()}


def _draw(compiled: Algorithm, name: str, path: Path) -> Path:
    from nlaformer.report.curves import convergence_figure
    from nlaformer.report.figure import save

    title = f"{name}, n = {compiled.n}: median and range over {SYSTEMS} systems"
    return save(convergence_figure(_convergence(compiled, name), title), path)


def _convergence(compiled: Algorithm, name: str) -> list[Convergence]:
    """The errors of the transformer and of NumPy; for cg those of the paper's one-layer form too."""
    import nlaformer as nf
    from nlaformer.report.curves import Convergence

    found = _converge(compiled, name)
    layers = compiled.cost.loop.layers
    label = f"transformer, {layers} layer{'s' if layers > 1 else ''} an iteration"
    curves = [Convergence(label, found.found, "compiled")]
    for scheme, look in (("antisymmetric", "paper"), ("paper", "paper heads")) if name == "cg" else ():
        form = nf.algorithm("cg", compiled.n, form="paper", scheme=scheme, dtype=compiled.dtype, verify=False)
        curves.append(Convergence(f"Lemma 3.2, exact FFN, {scheme} heads", _converge(form, name).found, look))
    return [*curves, Convergence("NumPy", found.reference, "reference")]
