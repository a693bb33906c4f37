"""The command ``operations``: the measured Table 1, or one operation in detail."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nlaformer.console import Sheet, check_format, output_folder, print_json, print_sheets
from nlaformer.errors import OptionError, unknown_name

if TYPE_CHECKING:
    from nlaformer.express.operation import Operation
    from paper.table_1_measured import Row

DTYPES = {"float64": ("float64",), "float32": ("float32",), "both": ("float64", "float32")}

Name = Annotated[str | None, typer.Argument(help="One operation in detail; without it, the table of all.")]
Size = Annotated[int, typer.Option("--n", help="Length of the vectors, size of the matrices.")]
Order = Annotated[int, typer.Option(help="1, 2 or 3: 2, 4 or 6 heads.")]
DType = Annotated[str, typer.Option("--dtype", help="float64, float32 or both.")]
Scheme = Annotated[str, typer.Option(help="antisymmetric (heads +c and -c) or paper (c and 0).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the tables in Markdown.")]
Show = Annotated[bool, typer.Option("--show", help="Draw P before, between and after the layers (PNG).")]
Out = Annotated[Path | None, typer.Option(help="Folder for the drawing; default: the current one.")]


def operations(
    name: Name = None,
    n: Size = 20,
    order: Order = 1,
    dtype: DType = "both",
    scheme: Scheme = "antisymmetric",
    as_json: Json = False,
    markdown: Markdown = False,
    show: Show = False,
    out: Out = None,
) -> None:
    """The operations as transformers, measured: the paper's Table 1.

    Size, layers, heads, error and proven bound of each. The loop-transformer stands beside it, built and run up to
    n = 32 and counted beyond, and so do the values the paper prints.
    """
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    check_format(as_json, markdown)
    if name is None and show:
        raise OptionError("--show draws one operation; name it: nlaformer operations matmul --show")
    if out is not None and not show:
        raise OptionError("--out goes with --show")
    if name is None:
        _table(n, order, scheme, DTYPES[dtype], as_json, markdown)
    else:
        _detail(name, n, order, scheme, DTYPES[dtype], as_json, markdown, (out or Path()) if show else None)


def _table(n: int, order: int, scheme: str, dtypes: tuple[str, ...], as_json: bool, markdown: bool) -> None:
    from nlaformer.provenance import in_words, provenance
    from paper import table_1 as table
    from paper import table_1_measured as verify

    rows = verify.measure_all(n, order, scheme, dtypes)
    if as_json:
        about = {"n": n, "order": order, "scheme": scheme, "seeds": verify.SEEDS, "growth_sizes": verify.GROWTH_SIZES}
        print_json({**about, "operations": table.as_data(rows), "provenance": provenance()})
    else:
        print_sheets(table.sheets(rows), markdown)
        if markdown:
            print(f"\n{in_words(provenance())}.")


def _detail(
    name: str,
    n: int,
    order: int,
    scheme: str,
    dtypes: tuple[str, ...],
    as_json: bool,
    markdown: bool,
    folder: Path | None,
) -> None:
    from paper import table_1 as table
    from paper import table_1_measured as verify

    if folder is not None:
        output_folder(folder)
    row = verify.measure(name, n, order, scheme, dtypes)
    ops = {dtype: verify.build(name, n, order, scheme, dtype) for dtype in dtypes}
    picture = None if folder is None else _draw(ops[dtypes[0]], folder)
    if as_json:
        about = {"order": order, "scheme": scheme, "registers": dict(next(iter(ops.values())).layout.registers)}
        call = asdict(table.CALLS[name])
        constants = {dtype: _constants(op) for dtype, op in ops.items()}
        print_json(
            table.as_data([row])[0]
            | about
            | {"signature": call, "constants": constants, "picture": picture and str(picture)}
        )
        return
    print_sheets([_properties(row, ops, order, scheme), _registers(ops[dtypes[0]])], markdown)
    if picture is not None:
        print(f"P before, between and after the layers: {picture}")


def _properties(row: Row, ops: dict[str, Operation], order: int, scheme: str) -> Sheet:
    """What there is to know about one operation, in two columns."""
    from paper.table_1 import CALLS, PRINTED, says_nothing

    call, printed = CALLS[row.name], PRINTED[row.name]
    lines = [
        ("call", f"{call.call} with {call.operands}"),
        ("result", call.result),
        ("prompt", f"{row.cost.rows} rows x {row.cost.tokens} tokens = {row.cost.entries:,} entries"),
        ("entries grow like", f"n^{row.growth:.2f} (the paper: {printed.size})"),
        ("layers", f"{row.cost.layers} (the paper: {printed.layers})"),
        ("heads", f"{row.cost.heads} (the paper: {printed.heads})"),
        ("FFN width", f"{row.cost.ffn_width:,}"),
        ("order, scheme", f"{order}, {scheme}"),
    ]
    for dtype, op in ops.items():
        constants = _constants(op)
        if constants is not None:
            lines.append((f"{dtype}: C, c", f"{constants['C']:g}, {constants['c']:.4g}"))
        measured = row.accuracy[dtype]
        doubt = " (of the size of the result: says nothing)" if says_nothing(measured.bound) else ""
        lines.append((f"{dtype}: relative error", f"{measured.error:.2e}, proven bound {measured.bound:.2e}{doubt}"))
        if dtype in row.paper_scheme:
            lines.append((f"{dtype}: the paper's heads", f"{row.paper_scheme[dtype].error:.2e}"))
    if row.loop is not None:
        lines.append(("loop-transformer", str(row.loop.cost)))
        lines.append(("its block alone", str(row.loop.block_cost)))
    return Sheet(f"{row.name}, n = {row.n}", ("", ""), tuple(lines), words=True)


def _registers(op: Operation) -> Sheet:
    lines = tuple(
        (name, f"{op.layout[name].start + 1} to {op.layout[name].stop}" if height > 1 else str(op.layout[name].stop))
        for name, height in op.layout.registers
    )
    sink = "column 1 is the sink" if op.layout.sink else "no sink"
    return Sheet(f"The prompt's registers ({op.layout.tokens} tokens, {sink})", ("register", "rows of P"), lines)


def _constants(op: Operation) -> dict[str, float] | None:
    return None if op.linearization is None else {"C": op.linearization.C, "c": op.linearization.c}


def _draw(op: Operation, folder: Path) -> Path:
    from nlaformer.report.prompts import draw_prompts, file_name
    from paper import table_1_measured as verify

    operands = [operand[0] for operand in verify.draw(op.name, op.n, op.options.dtype)]
    return draw_prompts(op, operands, folder / file_name(op))


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(operations)
