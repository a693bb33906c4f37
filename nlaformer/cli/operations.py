"""The command ``operations``: cost, error and proven bound of every operation, or one of them in detail."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from nlaformer.console import Sheet, check_format, output_folder, print_json, print_sheets
from nlaformer.errors import OptionError, look_up, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from torch import Tensor

    from nlaformer.express.operation import Operation
    from nlaformer.transformer import Layer, NLAFormer

__all__ = ["build", "draw_prompts", "file_name", "half_steps", "measure_all", "operations", "sheets"]

DTYPES = {"float64": ("float64",), "float32": ("float32",), "both": ("float64", "float32")}
LARGEST = 1024  # the reference in extended precision takes n^3 steps without BLAS: minutes at this n

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
    """The operations as transformers: cost, error and proven bound.

    Errors are measured on random operands against NumPy in extended precision. With a name: how the operation is
    called, its constants and the registers of its prompt.
    """
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    check_format(as_json, markdown)
    if name is None and show:
        raise OptionError("--show draws one operation; name it: nlaformer operations matmul --show")
    if out is not None and not show:
        raise OptionError("--out goes with --show")
    options: dict[str, Any] = {"order": order, "scheme": scheme}
    if name is None:
        _table(n, DTYPES[dtype], options, as_json, markdown)
    else:
        _detail(name, n, DTYPES[dtype], options, as_json, markdown, (out or Path()) if show else None)


def _table(n: int, dtypes: tuple[str, ...], options: dict[str, Any], as_json: bool, markdown: bool) -> None:
    from nlaformer.express.accuracy import SEEDS
    from nlaformer.provenance import in_words, provenance

    rows = measure_all(n, dtypes, options)
    if as_json:
        print_json({"n": n, **options, "seeds": SEEDS, "operations": rows, "provenance": provenance()})
        return
    print_sheets(sheets(rows), markdown)
    if markdown:
        print(f"\n{in_words(provenance())}.")


def _detail(
    name: str, n: int, dtypes: tuple[str, ...], options: dict[str, Any], as_json: bool, markdown: bool,
    folder: Path | None,
) -> None:  # fmt: skip
    from nlaformer.express import accuracy
    from nlaformer.express.theorem import RECORDS

    if folder is not None:
        output_folder(folder)
    ops = {dtype: build(name, n, dtype, **options) for dtype in dtypes}
    row, op = _measured(ops), ops[dtypes[0]]
    picture = None
    if folder is not None:
        operands = [operand[0] for operand in accuracy.draw(name, n, dtypes[0])]
        picture = draw_prompts(op, operands, folder / file_name(op))
    if as_json:
        record = RECORDS[name]
        about = {
            "signature": {"call": record.call, "operands": record.arguments, "result": record.result},
            "registers": dict(op.layout.registers),
            "constants": {key: _constants(ops[key]) for key in ops},
            "picture": picture and str(picture),
        }
        print_json(row | options | about)
        return
    print_sheets([_properties(row, ops, options), _registers(op)], markdown)
    if picture is not None:
        print(f"P before, between and after the layers: {picture}")


# --- measuring --------------------------------------------------------------------------------------------------------


def measure_all(n: int, dtypes: Sequence[str], options: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Every operation in each of its forms: cost, error and bound, as plain data."""
    from nlaformer.express.theorem import RECORDS

    forms = [(name, form) for name, record in RECORDS.items() for form in record.forms]
    return [
        _measured({dtype: build(name, n, dtype, form=form, **(options or {})) for dtype in dtypes})
        for name, form in forms
    ]


def build(name: str, n: int, dtype: str = "float64", **options: Any) -> Operation:
    """An operation for a command; ``pointwise`` is built from the example of its record."""
    import torch

    import nlaformer as nf
    from nlaformer.express.theorem import RECORDS

    record = look_up("operation", name, RECORDS)
    if n > LARGEST:
        raise OptionError(f"n is {n}; the commands measure up to n = {LARGEST}; for more, nf.operation in Python")
    return nf.operation(name, n, dtype=getattr(torch, dtype), f=record.f, **options)


def _measured(ops: dict[str, Operation]) -> dict[str, Any]:
    from nlaformer.express.accuracy import accuracy

    op = next(iter(ops.values()))
    found = {dtype: asdict(accuracy(op.name, op.n, ops[dtype], dtype)) for dtype in ops}
    cost = asdict(op.cost) | {"entries": op.cost.entries}
    return {"operation": op.name, "form": op.options.form, "n": op.n, "cost": cost, "accuracy": found}


# --- tables -----------------------------------------------------------------------------------------------------------


def sheets(rows: Sequence[dict[str, Any]]) -> list[Sheet]:
    """The tables of all operations: cost, and error with its bound."""
    from nlaformer.express.accuracy import SEEDS

    n, dtypes = rows[0]["n"], list(rows[0]["accuracy"])
    costs, numbers = [], []
    for row in rows:
        cost = row["cost"]
        name = row["operation"] if row["form"] == "accurate" else f"{row['operation']}, {row['form']}"
        size = (f"{cost['rows']} x {cost['tokens']}", f"{cost['entries']:,}")
        costs.append((name, *size, str(cost["layers"]), str(cost["heads"]), f"{cost['ffn_width']:,}"))
        found = [row["accuracy"][dtype][key] for dtype in dtypes for key in ("error", "bound")]
        numbers.append((name, *(f"{number:.1e}" for number in found)))
    return [
        Sheet(
            f"Operations as transformers, n = {n}: cost",
            ("operation", "rows x\ntokens", "entries", "layers", "heads", "FFN\nwidth"),
            tuple(costs),
            "ffn: the paper's single FFN. pointwise is f(a, b) = a b + b / 3. Beside the values that the paper prints, "
            "and the loop-transformer: python -m paper draw table-operations, in a checkout.",
        ),
        Sheet(
            f"Operations as transformers, n = {n}: relative error and proven bound",
            ("operation", *(f"{dtype}\n{key}" for dtype in dtypes for key in ("error", "bound"))),
            tuple(numbers),
            f"Medians over {len(SEEDS)} seeds, in the Frobenius norm relative to the result (inner_product: to "
            "|a| |b|). A bound near 1 or above says nothing.",
        ),
    ]


def _properties(row: dict[str, Any], ops: dict[str, Operation], options: dict[str, Any]) -> Sheet:
    """What there is to know about one operation, in two columns."""
    from nlaformer.express.theorem import RECORDS

    op = next(iter(ops.values()))
    cost, record = op.cost, RECORDS[op.name]
    printed = record.printed
    lines = [
        ("call", f"{record.call} with {record.arguments}"),
        ("result", record.result),
        ("prompt", f"{cost.rows} rows x {cost.tokens} tokens = {cost.entries:,} entries"),
        ("layers", f"{cost.layers} (the paper: {printed.layers})" if printed else str(cost.layers)),
        ("heads", f"{cost.heads} (the paper: {printed.heads})" if printed else str(cost.heads)),
        ("FFN width", f"{cost.ffn_width:,}"),
        ("order, scheme", f"{options['order']}, {options['scheme']}"),
    ]
    for dtype in ops:
        constants, found = _constants(ops[dtype]), row["accuracy"][dtype]
        if constants is not None:
            lines.append((f"{dtype}: C, c", f"{constants['C']:g}, {constants['c']:.4g}"))
        lines.append((f"{dtype}: relative error", f"{found['error']:.2e}, proven bound {found['bound']:.2e}"))
    return Sheet(f"{op.name}, n = {op.n}", ("", ""), tuple(lines), words=True)


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
