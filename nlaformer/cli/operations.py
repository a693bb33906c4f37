"""The command ``operations``: cost, error and proven bound of every operation, or one of them in detail."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlaformer.cli.options import Folder, Json, Markdown, check_options
from nlaformer.console import Sheet, print_json, print_sheets
from nlaformer.errors import OptionError, look_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from nlaformer.express.operation import Operation

_DTYPES = {"float64": ("float64",), "float32": ("float32",), "both": ("float64", "float32")}
_LARGEST = 1024  # the reference in extended precision takes n^3 steps without BLAS: minutes at this n


def operations(
    name: Annotated[str | None, typer.Argument(help="One operation in detail; without it, the table of all.")] = None,
    n: Annotated[int, typer.Option("--n", help="Length of the vectors, size of the matrices.")] = 20,
    order: Annotated[int, typer.Option(help="1, 2 or 3: 2, 4 or 6 heads.")] = 1,
    dtype: Annotated[str, typer.Option("--dtype", help="float64, float32 or both.")] = "both",
    scheme: Annotated[str, typer.Option(help="antisymmetric (heads +c and -c) or paper (c and 0).")] = "antisymmetric",
    as_json: Json = False,
    markdown: Markdown = False,
    show: Annotated[bool, typer.Option("--show", help="Draw P before, between and after the layers (PNG).")] = False,
    out: Folder = None,
) -> None:
    """The operations as transformers: cost, error and proven bound.

    Errors are measured on random operands against NumPy in extended precision. With a name: how the operation is
    called, its constants and the registers of its prompt.
    """
    dtypes, options = look_up("dtype", dtype, _DTYPES), {"order": order, "scheme": scheme}
    check_options("operations matmul", name, as_json, markdown, show, out)
    if name is None:
        _table(n, dtypes, options, as_json, markdown)
        return
    from nlaformer.express.accuracy import draw

    ops = {dtype: build(name, n, dtype, **options) for dtype in dtypes}
    op, document = ops[dtypes[0]], _measured(ops) | options | _about(ops)
    if show:
        operands = [operand[0] for operand in draw(name, n, dtypes[0])]
        document["picture"] = str(draw_prompts(op, operands, (out or Path()) / file_name(op)))
    if as_json:
        print_json(document)
        return
    print_sheets([_properties(document), _registers(op)], markdown)
    if show:
        print(f"P before, between and after the layers: {document['picture']}")


def _table(n: int, dtypes: tuple[str, ...], options: dict[str, Any], as_json: bool, markdown: bool) -> None:
    from nlaformer.express.accuracy import SEEDS
    from nlaformer.provenance import in_words, provenance

    rows = measure_all(n, dtypes, **options)
    if as_json:
        print_json({"n": n, **options, "seeds": SEEDS, "operations": rows, "provenance": provenance()})
        return
    print_sheets(sheets(rows), markdown)
    if markdown:
        print(f"\n{in_words(provenance())}.")


def measure_all(n: int, dtypes: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    """Every operation in each of its forms: cost, error and bound, as plain data."""
    from nlaformer.express.theorem import RECORDS

    forms = [(name, form) for name, record in RECORDS.items() for form in record.forms]
    return [_measured({dtype: build(name, n, dtype, form=form, **options) for dtype in dtypes}) for name, form in forms]


def build(name: str, n: int, dtype: str = "float64", **options: Any) -> Operation:
    """An operation for a command; ``pointwise`` is built from the example of its record."""
    import nlaformer as nf
    from nlaformer.arrays import DTYPES
    from nlaformer.express.theorem import RECORDS

    record = look_up("operation", name, RECORDS)
    if n > _LARGEST:
        raise OptionError(f"n is {n}; the commands measure up to n = {_LARGEST}; for more, nf.operation in Python")
    return nf.operation(name, n, dtype=DTYPES[dtype], f=record.f, **options)


def _measured(ops: dict[str, Operation]) -> dict[str, Any]:
    from nlaformer.express.accuracy import accuracy

    op = next(iter(ops.values()))
    found = {dtype: asdict(accuracy(op.name, op.n, ops[dtype], dtype)) for dtype in ops}
    cost = asdict(op.cost) | {"entries": op.cost.entries}
    return {"operation": op.name, "form": op.options.form, "n": op.n, "cost": cost, "accuracy": found}


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


def _properties(document: dict[str, Any]) -> Sheet:
    """What there is to know about one operation, in two columns."""
    from nlaformer.express.theorem import RECORDS

    cost, signature, printed = document["cost"], document["signature"], RECORDS[document["operation"]].printed
    lines = [
        ("call", f"{signature['call']} with {signature['operands']}"),
        ("result", signature["result"]),
        ("prompt", f"{cost['rows']} rows x {cost['tokens']} tokens = {cost['entries']:,} entries"),
        ("layers", str(cost["layers"]) + (f" (the paper: {printed.layers})" if printed else "")),
        ("heads", str(cost["heads"]) + (f" (the paper: {printed.heads})" if printed else "")),
        ("FFN width", f"{cost['ffn_width']:,}"),
        ("order, scheme", f"{document['order']}, {document['scheme']}"),
    ]
    for dtype, found in document["accuracy"].items():
        if constants := document["constants"][dtype]:
            lines.append((f"{dtype}: C, c", f"{constants['C']:g}, {constants['c']:.4g}"))
        lines.append((f"{dtype}: relative error", f"{found['error']:.2e}, proven bound {found['bound']:.2e}"))
    return Sheet(f"{document['operation']}, n = {document['n']}", ("", ""), tuple(lines), words=True)


def _registers(op: Operation) -> Sheet:
    lines = tuple(
        (name, f"{op.layout[name].start + 1} to {op.layout[name].stop}" if height > 1 else str(op.layout[name].stop))
        for name, height in op.layout.registers
    )
    sink = "column 1 is the sink" if op.layout.sink else "no sink"
    return Sheet(f"The prompt's registers ({op.layout.tokens} tokens, {sink})", ("register", "rows of P"), lines)


def _about(ops: dict[str, Operation]) -> dict[str, Any]:
    """How an operation is called, its registers and its constants, as plain data."""
    from nlaformer.express.theorem import RECORDS

    op = next(iter(ops.values()))
    record, chosen = RECORDS[op.name], {dtype: each.linearization for dtype, each in ops.items()}
    return {
        "signature": {"call": record.call, "operands": record.arguments, "result": record.result},
        "registers": dict(op.layout.registers),
        "constants": {dtype: found and {"C": found.C, "c": found.c} for dtype, found in chosen.items()},
        "picture": None,
    }


def draw_prompts(op: Operation, operands: Sequence[np.ndarray], path: Path) -> Path:
    """Draw P for one call of an operation, without batch dimensions, and return the path."""
    import torch

    from nlaformer.report.figure import prompt_figure, save

    with torch.no_grad():
        first, *others = (state.P.numpy() for state in op.model.states(torch.as_tensor(op.prompt(*operands))))
    states = [("P", first), *((f"after layer {k}", P) for k, P in enumerate(others, start=1))]
    title = ", ".join([op.name, f"n = {op.n}", *_unusual(op)])
    return save(prompt_figure(states, op.layout.registers, op.layout.sink, title), path)


def file_name(op: Operation) -> str:
    """The name of an operation's picture; operations with different options get different names."""
    return "-".join([op.name, f"n{op.n}", *(word.replace(" ", "") for word in _unusual(op))]) + ".png"


def _unusual(op: Operation) -> list[str]:
    """The options that are not the default."""
    words = (f"order {op.options.order}", op.options.dtype, f"scheme {op.options.scheme}")
    return [word for word in words if word not in ("order 1", "float64", "scheme antisymmetric")]
