"""The command ``algorithms``: the library by group, or one algorithm in detail."""

from __future__ import annotations

import ast
import inspect
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlaformer.cli.options import Folder, Json, Markdown, check_options
from nlaformer.console import Sheet, console, print_json, print_sheets, say
from nlaformer.errors import look_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nlaformer.compiler.algorithm import Algorithm
    from nlaformer.compiler.library.measuring import Comparison, Measured
    from nlaformer.program.language import Program

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

    kind, size = look_up("dtype", dtype or "float64", DTYPES), 20 if n is None else n
    if name is not None:
        _detail(name, size, kind, as_json, markdown, (out or Path()) if show else None)
        return
    if n is None and dtype is None:
        rows, where = stored()
    else:
        from nlaformer.compiler.library import algorithms as names
        from nlaformer.provenance import provenance

        rows, where = [measure(each, size, _COUNT, _SEED, kind) for each in names()], provenance()
    if as_json:
        print_json({"algorithms": [asdict(row) for row in rows], "provenance": where})
    else:
        print_sheets(_sheets(rows), markdown)


def _sheets(rows: list[Measured]) -> list[Sheet]:
    """A table for each group."""
    from nlaformer.compiler.library import GROUPS

    found = {row.name: row for row in rows}
    first = rows[0]
    headings = ("algorithm", "what it is for", "layers", "all heads", "one step", "end to end")
    sheets = []
    for group, records in GROUPS.items():
        lines = tuple(
            (each.name, each.purpose, str(row.layers), str(row.heads), f"{row.worst:.0e}", f"{row.end:.0e}")
            for each in records
            if (row := found.get(each.name)) is not None
        )
        sheets.append(Sheet(f"{group} (the worst of {first.systems} problems)", headings, lines, words=True))
    note = (
        f"n = {first.n}, {first.dtype}, the worst of {first.systems} problems of the kind each is meant for. Layers "
        "and heads: of one iteration, the heads of all its layers. One step: the largest deviation of a value from "
        "the program's own on the same input. End to end: a backward error, that of every step which "
        "gives the deviation of a whole run. "
        "nlaformer algorithms NAME shows the program, the schedule and the deviations of every value."
    )
    return [*sheets[:-1], Sheet(sheets[-1].title, headings, sheets[-1].lines, note, words=True)]


def _detail(name: str, n: int, kind: Any, as_json: bool, markdown: bool, folder: Path | None) -> None:
    """One algorithm: its program, cost, schedule and deviations."""
    from nlaformer.compiler.library import algorithm, record
    from nlaformer.compiler.library.measuring import measure_compiled
    from nlaformer.provenance import provenance

    entry = record(name)
    before = time.perf_counter()
    compiled = algorithm(name, n, dtype=kind, verify=False)
    seconds = time.perf_counter() - before
    picture = None if folder is None else draw_convergence(compiled, name, folder / f"{name}-n{n}.png")
    row = measure_compiled(entry, compiled, seconds, systems=_COUNT, seed=_SEED)
    source = _source(entry.program)
    blocks = {
        _BLOCKS[key]: cost | {"heads_of_all_layers": _heads(getattr(compiled.model, key))}
        for key, cost in asdict(compiled.cost).items()
    }
    if as_json:
        document = {"algorithms": [asdict(row)], "program": source, "cost": blocks, "schedule": compiled.schedule()}
        drawn = {} if picture is None else {"picture": str(picture)}
        print_json(document | drawn | {"provenance": provenance()})
        return
    lines = tuple(
        (block, *(f"{c[key]:,}" for key in ("layers", "heads_of_all_layers", "heads", "ffn_width")))
        for block, c in blocks.items()
    )
    title = f"{name}, n = {n}: {compiled.layout.rows} rows x {compiled.layout.tokens} tokens"
    print(source, end="\n\n")  # never folded: it is code
    costs = Sheet(title, ("block", "layers", "heads, all layers", "heads, largest layer", "FFN width"), lines)
    print_sheets([costs, _deviations(row)], markdown)
    say(compiled.schedule(console().width), indent=2)
    if picture is not None:
        print(f"\nConvergence against NumPy: {picture}")


def _source(program: type[Program]) -> str:
    """The lines of a program, after those of its module that they need: they run as they are."""
    text = inspect.getsource(sys.modules[program.__module__])
    statements = ast.parse(text).body
    wanted = {"annotations", program.__name__}
    for statement in reversed(statements):  # a name stands above what uses it
        if wanted & _bound(statement):
            wanted |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    found = []
    for statement in statements:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            statement.names = [alias for alias in statement.names if (alias.asname or alias.name) in wanted]
            found += [ast.unparse(statement)] if statement.names else []
        elif wanted & _bound(statement):
            apart = "\n\n" if isinstance(statement, (ast.ClassDef, ast.FunctionDef)) else ""
            found.append(f"{apart}{ast.get_source_segment(text, statement)}")
    return "\n".join(found)


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement of a module binds."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name for alias in statement.names}
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
        return {statement.name}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _heads(layers: Any) -> int:
    return sum(layer.heads.count for layer in layers if layer.heads is not None)


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
        "1e-6 of its start. End to end: a backward error, that of every step which gives the deviation "
        "of a whole run."
    )
    title = "Deviation from the program in NumPy"
    return Sheet(title, ("value", f"worst of {row.systems} problems"), tuple(lines), note)


def _converge(compiled: Algorithm, name: str) -> Comparison:
    from nlaformer.compiler.library import example, record
    from nlaformer.compiler.library.measuring import converge

    inputs, exact = example(name, compiled.n, _COUNT, _SEED)
    entry = record(name)
    return converge(compiled, entry.program(), inputs, exact, entry.iterations(compiled.n))


def draw_convergence(
    compiled: Algorithm, name: str, path: Path, others: Mapping[str, tuple[str, Algorithm]] | None = None
) -> Path:
    """The errors of the transformer and of NumPy; ``others`` are further ones by their look, with their labels."""
    from nlaformer.report.figure import convergence_figure, save

    layers, found = compiled.cost.loop.layers, _converge(compiled, name)
    curves = [(f"transformer, {layers} layer{'s' * (layers > 1)} an iteration", found.found, "compiled")]
    curves += [(label, _converge(other, name).found, look) for look, (label, other) in (others or {}).items()]
    curves.append(("NumPy", found.reference, "reference"))
    title = f"{name}, n = {compiled.n}: median and range over {_COUNT} systems"
    return save(convergence_figure(curves, title), path)
