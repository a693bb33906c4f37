"""The command ``algorithms``: the library by group, or one algorithm in detail."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlaformer.cli.options import Folder, Json, Markdown, check_options
from nlaformer.console import Sheet, console, print_json, print_sheets, say
from nlaformer.errors import look_up

if TYPE_CHECKING:
    from nlaformer.compiler.algorithm import Algorithm
    from nlaformer.compiler.language import Program
    from nlaformer.compiler.library.measuring import Measured
    from nlaformer.compiler.verify import Comparison

_COUNT, _SEED = 8, 11
_BLOCKS = {"pre": "pre (start)", "loop": "loop (one step)", "post": "post (finish)"}


def algorithms(
    name: Annotated[str | None, typer.Argument(help="One algorithm in detail; without it, all of them.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Size of the systems, by default 20; measures anew.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float64 or float32; measures anew.")] = None,
    as_json: Json = False,
    markdown: Markdown = False,
    show: Annotated[bool, typer.Option("--show", help="Draw the convergence (PNG).")] = False,
    out: Folder = None,
) -> None:
    """Iterative methods as looped transformers, measured.

    All of them by group, with what each is for, its cost and its deviation from the same program in NumPy. One of them
    with its program, the cost of each block, the schedule and the deviation of every value.
    """
    check_options("algorithms cg", name, as_json, markdown, show, out)
    from nlaformer.arrays import DTYPES
    from nlaformer.compiler.library.measuring import measure, stored

    kind = look_up("dtype", dtype or "float64", DTYPES)
    if name is not None:
        _detail(name, n or 20, kind, as_json, markdown, (out or Path()) if show else None)
        return
    if n is None and dtype is None:
        rows, where = stored()
    else:
        from nlaformer.compiler.library import algorithms as names
        from nlaformer.provenance import provenance

        rows, where = [measure(each, n or 20, _COUNT, _SEED, kind) for each in names()], provenance()
    if as_json:
        print_json({"algorithms": [asdict(row) for row in rows], "provenance": where})
    else:
        print_sheets(_sheets(rows), markdown)


def _sheets(rows: list[Measured]) -> list[Sheet]:
    """A table for each group."""
    from nlaformer.compiler.library import GROUPS

    found = {row.name: row for row in rows}
    headings = ("algorithm", "what it is for", "layers", "heads", "one step", "end to end")
    sheets = []
    for group, records in GROUPS.items():
        lines = tuple(
            (each.name, each.purpose, str(row.layers), str(row.heads), f"{row.worst:.0e}", f"{row.end:.0e}")
            for each in records
            if (row := found.get(each.name)) is not None
        )
        sheets.append(Sheet(group, headings, lines, words=True))
    first = rows[0]
    note = (
        f"n = {first.n}, {first.dtype}, the worst of {first.systems} problems of the kind each is meant for. Layers "
        "and heads: of one iteration. One step: the largest deviation of a value from the program's own on the same "
        "input. End to end: the error of every step that would explain how far a whole run is from the program's. "
        "nlaformer algorithms NAME shows the program, the schedule and the deviations of every value."
    )
    return [*sheets[:-1], Sheet(sheets[-1].title, headings, sheets[-1].lines, note, words=True)]


def _detail(name: str, n: int, kind: Any, as_json: bool, markdown: bool, folder: Path | None) -> None:
    """One algorithm: its program, cost, schedule and deviations."""
    from nlaformer.compiler.library import algorithm, record
    from nlaformer.compiler.library.measuring import measure_compiled
    from nlaformer.provenance import provenance

    entry = record(name)
    compiled = algorithm(name, n, dtype=kind, verify=False)
    picture = None if folder is None else _draw(compiled, name, folder / f"{name}-n{n}.png")
    row = measure_compiled(entry, compiled, systems=_COUNT, seed=_SEED)
    source = _source(entry.program)
    blocks = {_BLOCKS[key]: cost for key, cost in asdict(compiled.cost).items()}
    if as_json:
        document = {"algorithms": [asdict(row)], "program": source, "cost": blocks, "schedule": compiled.schedule()}
        drawn = {} if picture is None else {"picture": str(picture)}
        print_json(document | drawn | {"provenance": provenance()})
        return
    lines = tuple((block, str(c["layers"]), str(c["heads"]), f"{c['ffn_width']:,}") for block, c in blocks.items())
    title = f"{name}, n = {n}: {compiled.layout.rows} rows x {compiled.layout.tokens} tokens"
    note = "Heads and FFN width: the largest of the block's layers."
    for line in source.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 8)
        print("\n".join(textwrap.wrap(line, console().width, subsequent_indent=indent, drop_whitespace=False)) or "")
    print()
    costs = Sheet(title, ("block", "layers", "heads", "FFN width"), lines, note)
    print_sheets([costs, _deviations(row)], markdown)
    say(compiled.schedule(console().width), indent=2)
    if picture is not None:
        print(f"\nConvergence against NumPy: {picture}")


def _source(program: type[Program]) -> str:
    """The lines of a program, and before them those of a class whose methods it takes over."""
    module = inspect.getmodule(program)
    names = {getattr(program, method).__qualname__.partition(".")[0] for method in ("start", "step")}
    others = [getattr(module, name) for name in sorted(names - {program.__name__})]
    return "\n\n".join(inspect.getsource(each).rstrip() for each in (*others, program))


def _deviations(row: Measured) -> Sheet:
    """The deviation of every value of one algorithm."""
    lines = [(value, f"{deviation:.0e}") for value, deviation in row.step.items()]
    lines += [("end to end", f"{row.end:.0e}"), ("last answer", f"{row.last:.0e}")]
    if row.error is not None:
        lines += [("error of the last answer", f"{row.error:.0e}"), ("error of NumPy's", f"{row.reference_error:.0e}")]
    ended = ", ".join(f"{count} {status.lower()}" for status, count in row.status.items())
    note = (
        f"The worst of {row.systems} problems over {row.iterations} iterations ({ended}). Each value against one call "
        "of the program on the same input, relative to the terms of its last operation, while the residual exceeds "
        "1e-6 of its start. End to end: the error of every step that would explain the deviation of a whole "
        "run."
    )
    return Sheet("Deviation from the program in NumPy", ("value", "deviation"), tuple(lines), note)


def _converge(compiled: Algorithm, name: str) -> Comparison:
    from nlaformer.compiler.library import example, record
    from nlaformer.compiler.verify import converge

    inputs, exact = example(name, compiled.n, _COUNT, _SEED)
    entry = record(name)
    return converge(compiled, entry.program(), inputs, exact, entry.iterations(compiled.n))


def _draw(compiled: Algorithm, name: str, path: Path) -> Path:
    """The errors of the transformer and of NumPy; for cg those of the paper's one-layer form too."""
    import nlaformer as nf
    from nlaformer.report.figure import convergence_figure, save

    layers, found = compiled.cost.loop.layers, _converge(compiled, name)
    curves = [(f"transformer, {layers} layer{'s' * (layers > 1)} an iteration", found.found, "compiled")]
    for scheme, look in (("antisymmetric", "paper"), ("paper", "paper heads")) if name == "cg" else ():
        form = nf.algorithm("cg", compiled.n, form="paper", scheme=scheme, dtype=compiled.dtype, verify=False)
        curves.append((f"Lemma 3.2, exact FFN, {scheme} heads", _converge(form, name).found, look))
    curves.append(("NumPy", found.reference, "reference"))
    title = f"{name}, n = {compiled.n}: median and range over {_COUNT} systems"
    return save(convergence_figure(curves, title), path)
