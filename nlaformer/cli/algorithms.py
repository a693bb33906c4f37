"""The command ``algorithms``: the table of all, or one in detail."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlaformer.cli.options import Folder, Json, Markdown, check_options
from nlaformer.console import Sheet, console, print_json, print_sheets, say
from nlaformer.errors import look_up

if TYPE_CHECKING:
    from nlaformer.compiler.algorithm import Algorithm
    from nlaformer.compiler.verify import Comparison

_COUNT, _SEED, _STEPS = 8, 11, 60
_BLOCKS = {"pre": "pre (start)", "loop": "loop (one step)", "post": "post (finish)"}


def algorithms(
    name: Annotated[str | None, typer.Argument(help="One algorithm in detail; without it, the table of all.")] = None,
    n: Annotated[int, typer.Option("--n", help="Size of the systems.")] = 20,
    dtype: Annotated[str, typer.Option("--dtype", help="float64 or float32.")] = "float64",
    as_json: Json = False,
    markdown: Markdown = False,
    show: Annotated[bool, typer.Option("--show", help="Draw the convergence (PNG).")] = False,
    out: Folder = None,
) -> None:
    """Iterative methods as looped transformers, measured.

    Layers, heads, deviation from the same program in NumPy, error after 60 iterations. For one algorithm also the cost
    of each block and the schedule: what each layer computes.
    """
    check_options("algorithms cg", name, as_json, markdown, show, out)
    import nlaformer as nf
    from nlaformer.arrays import DTYPES
    from nlaformer.provenance import provenance

    kind = look_up("dtype", dtype, DTYPES)
    rows = []
    for each in nf.algorithms() if name is None else (name,):
        compiled = nf.algorithm(each, n, dtype=kind, verify=False)
        curves = _converge(compiled, each)
        rows.append(measured(each, compiled, curves))
    document = {"n": n, "dtype": dtype, "systems": _COUNT, "seed": _SEED, "iterations": _STEPS, "algorithms": rows}
    document["provenance"] = provenance()
    if name is not None:
        _detail(compiled, name, curves, document, as_json, markdown, (out or Path()) if show else None)
    elif as_json:
        print_json(document)
    else:
        print_sheets([_sheet(rows, n)], markdown)


def _detail(
    compiled: Algorithm, name: str, curves: Comparison, document: dict[str, Any], as_json: bool, markdown: bool,
    folder: Path | None,
) -> None:  # fmt: skip
    picture = None if folder is None else _draw(compiled, name, curves, folder / f"{name}-n{compiled.n}.png")
    blocks = {_BLOCKS[key]: cost for key, cost in asdict(compiled.cost).items()}
    if as_json:
        drawn = {} if picture is None else {"picture": str(picture)}
        print_json(document | {"cost": blocks, "schedule": compiled.schedule()} | drawn)
        return
    lines = tuple((block, str(c["layers"]), str(c["heads"]), f"{c['ffn_width']:,}") for block, c in blocks.items())
    title = f"{name}, n = {compiled.n}: {compiled.layout.rows} rows x {compiled.layout.tokens} tokens"
    note = "Heads and FFN width: the largest of the block's layers."
    sheet = Sheet(title, ("block", "layers", "heads", "FFN width"), lines, note)
    print_sheets([sheet, _sheet(document["algorithms"], compiled.n)], markdown)
    say(compiled.schedule(console().width), indent=2)
    if picture is not None:
        print(f"\nConvergence against NumPy: {picture}")


def _converge(compiled: Algorithm, name: str) -> Comparison:
    from nlaformer.compiler.library import example, program
    from nlaformer.compiler.verify import converge

    inputs, exact = example(name, compiled.n, _COUNT, _SEED)
    return converge(compiled, program(name), inputs, exact, _STEPS)


def measured(name: str, compiled: Algorithm, curves: Comparison) -> dict[str, Any]:
    """What an algorithm costs, how closely it follows its program and how far it comes."""
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


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """The cells of an algorithm's line: name, costs, deviations, errors."""
    costs = (row["name"], str(row["layers"]), str(row["heads"]), f"{row['ffn_width']:,}")
    deviations = (f"{row[f'{which}_deviation']:.0e}" for which in ("first", "largest", "last"))
    return (*costs, *deviations, f"{row['error']:.0e} ({row['reference_error']:.0e})")


def _sheet(rows: list[dict[str, Any]], n: int) -> Sheet:
    costs = ("layers", "heads,\nall layers", "FFN\nwidth")
    found = ("deviation\n1 step", "deviation\nlargest", "deviation\nlast", "error\n(NumPy)")
    note = (
        f"Layers and heads: of one iteration. Deviation: |x_t - x_t of the program in NumPy| / |x|, worst of {_COUNT} "
        f"systems of the paper's family (sigma = 1.2), over {_STEPS} iterations. Error: |x_t - x| / |x| after the "
        "last; NumPy's in brackets. The conjugate gradient family amplifies rounding on its way, NumPy's own too, and "
        "converges all the same."
    )
    title = f"Algorithms as looped transformers, n = {n}"
    return Sheet(title, ("algorithm", *costs, *found), tuple(map(cells, rows)), note)


def _draw(compiled: Algorithm, name: str, found: Comparison, path: Path) -> Path:
    """The errors of the transformer and of NumPy; for cg those of the paper's one-layer form too."""
    import nlaformer as nf
    from nlaformer.report.figure import convergence_figure, save

    layers = compiled.cost.loop.layers
    curves = [(f"transformer, {layers} layer{'s' * (layers > 1)} an iteration", found.found, "compiled")]
    for scheme, look in (("antisymmetric", "paper"), ("paper", "paper heads")) if name == "cg" else ():
        form = nf.algorithm("cg", compiled.n, form="paper", scheme=scheme, dtype=compiled.dtype, verify=False)
        curves.append((f"Lemma 3.2, exact FFN, {scheme} heads", _converge(form, name).found, look))
    curves.append(("NumPy", found.reference, "reference"))
    title = f"{name}, n = {compiled.n}: median and range over {_COUNT} systems"
    return save(convergence_figure(curves, title), path)
