"""The command ``operations``: the measured Table 1, or one operation in detail."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from nlaformer.console import Sheet, check_format, output_folder, print_json, print_sheets
from nlaformer.errors import OptionError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from torch import Tensor

    from nlaformer.express.operation import Operation
    from nlaformer.transformer import Layer, NLAFormer
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
    from nlaformer.express import accuracy
    from nlaformer.provenance import in_words, provenance
    from paper import table_1 as table
    from paper import table_1_measured as verify

    rows = verify.measure_all(n, order, scheme, dtypes)
    if as_json:
        about = {"n": n, "order": order, "scheme": scheme, "seeds": accuracy.SEEDS, "growth_sizes": verify.GROWTH_SIZES}
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
    from nlaformer.express import accuracy
    from nlaformer.express.theorem import RECORDS
    from paper import table_1 as table
    from paper import table_1_measured as verify

    if folder is not None:
        output_folder(folder)
    row = verify.measure(name, n, order, scheme, dtypes)
    ops = {dtype: verify.build(name, n, order, scheme, dtype) for dtype in dtypes}
    picture = None
    if folder is not None:
        operands = [operand[0] for operand in accuracy.draw(name, n, dtypes[0])]
        picture = draw_prompts(ops[dtypes[0]], operands, folder / file_name(ops[dtypes[0]]))
    if as_json:
        about = {"order": order, "scheme": scheme, "registers": dict(next(iter(ops.values())).layout.registers)}
        record = RECORDS[name]
        call = {"call": record.call, "operands": record.arguments, "result": record.result}
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
    from nlaformer.express.theorem import RECORDS
    from paper.table_1 import says_nothing

    record = RECORDS[row.name]

    def beside(what: str) -> str:
        return "" if record.printed is None else f" (the paper: {getattr(record.printed, what)})"

    lines = [
        ("call", f"{record.call} with {record.arguments}"),
        ("result", record.result),
        ("prompt", f"{row.cost.rows} rows x {row.cost.tokens} tokens = {row.cost.entries:,} entries"),
        ("entries grow like", f"n^{row.growth:.2f}{beside('size')}"),
        ("layers", f"{row.cost.layers}{beside('layers')}"),
        ("heads", f"{row.cost.heads}{beside('heads')}"),
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


def draw_prompts(op: Operation, operands: Sequence[np.ndarray], path: Path) -> Path:
    """Draw P for one call of an operation, without batch dimensions, and return the path."""
    import torch

    from nlaformer.report.figure import save
    from nlaformer.report.prompts import prompt_figure

    states = [(label, P.numpy()) for label, P in half_steps(op.model, torch.as_tensor(op.prompt(*operands)))]
    title = ", ".join([op.name, f"n = {op.n}", *_unusual(op)])
    return save(prompt_figure(states, op.layout.registers, op.layout.sink, title), path)


def file_name(op: Operation) -> str:
    """The name of an operation's picture; operations with different options get different names."""
    return "-".join([op.name, f"n{op.n}", *(word.replace(" ", "") for word in _unusual(op))]) + ".png"


def _unusual(op: Operation) -> list[str]:
    """The options that are not the default."""
    options = op.options
    return [
        *([f"order {options.order}"] if options.order != 1 else []),
        *([options.dtype] if options.dtype != "float64" else []),
        *([f"scheme {options.scheme}"] if options.scheme != "antisymmetric" else []),
    ]


def half_steps(model: NLAFormer, P: Tensor) -> Iterator[tuple[str, Tensor]]:
    """P, and P after the attention and after the FFN of every layer of the pre block, each with a title."""
    import torch

    from nlaformer.transformer import Layer

    yield "P", P
    with torch.no_grad():
        after = itertools.islice(model.states(P), 1, None)
        for layer, state in zip(cast("Iterable[Layer]", model.pre), after, strict=True):
            if layer.heads is not None:
                half = Layer(heads=layer.heads)(P.mT).mT if layer.ffn is not None else state.P
                yield f"after the attention\nof layer {state.layer + 1}", half
            if layer.ffn is not None:
                yield f"after the FFN\nof layer {state.layer + 1}", state.P
            P = state.P
