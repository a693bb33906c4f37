"""The token matrix P before, between and after the layers of an operation, register by register."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from nlaformer.express.operation import Operation
from nlaformer.prompt import Layout
from nlaformer.report.figure import FAINT, INK, save
from nlaformer.transformer import Layer, NLAFormer

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_prompts(op: Operation, operands: Sequence[Any], path: Path) -> Path:
    """Draw P for one call of an operation, without batch dimensions, and return where it was written."""
    from matplotlib.figure import Figure

    P = torch.as_tensor(op.prompt(*operands))
    with torch.no_grad():
        states = list(half_steps(op.model, P))
    largest = max(float(_entries(op.layout, state).abs().max()) for _, state in states)
    across = min(len(states), 4)
    down = -(-len(states) // across)
    height = min(12.0, 2.2 + 0.09 * op.layout.rows)
    width = min(4.0, 1.3 + height * op.layout.tokens / op.layout.rows)
    figure = Figure(figsize=(1.6 + across * width, 0.3 + down * height), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    for axis in axes.flat[len(states) :]:
        axis.axis("off")
    for k, (axis, (title, state)) in enumerate(zip(axes.flat, states, strict=False)):
        image = axis.imshow(
            _drawn(op.layout, state), cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest"
        )
        axis.set_title(title, fontsize=10, color=INK)
        _rule(axis, op.layout, named=k % across == 0)
        _write_exponent(axis, op.layout, state)
    figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
    figure.suptitle(f"{describe(op)}: {op.layout.rows} rows x {op.layout.tokens} tokens", color=INK)
    return save(figure, path)


def describe(op: Operation) -> str:
    """Name, size and every option that is not the default.

    >>> from nlaformer import operation
    >>> describe(operation("matmul", n=5, scheme="paper"))
    'matmul, n = 5, scheme paper'
    """
    return ", ".join([op.name, f"n = {op.n}", *_unusual(op)])


def file_name(op: Operation) -> str:
    """A name for a picture of an operation; no two operations that a command can draw share one.

    >>> from nlaformer import operation
    >>> file_name(operation("matmul", n=5, order=3, dtype=torch.float32))
    'matmul-n5-order3-float32.png'
    """
    return "-".join([op.name, f"n{op.n}", *(word.replace(" ", "") for word in _unusual(op))]) + ".png"


def half_steps(model: NLAFormer, P: Tensor) -> Iterator[tuple[str, Tensor]]:
    """P, and P after the attention and after the FFN of every layer of the pre block, each with a title."""
    yield "P", P
    X = P.mT
    for k, layer in enumerate(cast(Iterable[Layer], model.pre), start=1):
        for part, half in (("attention", Layer(heads=layer.heads)), ("FFN", Layer(ffn=layer.ffn))):
            if half.heads is not None or half.ffn is not None:
                X = half(X)
                yield f"after the {part}\nof layer {k}", X.mT


def _unusual(op: Operation) -> list[str]:
    options = op.options
    return [
        *([f"order {options.order}"] if options.order != 1 else []),
        *([options.dtype] if options.dtype != "float64" else []),
        *([f"scheme {options.scheme}"] if options.scheme != "antisymmetric" else []),
    ]


def _entries(layout: Layout, P: Tensor) -> Tensor:
    """Everything but the powers of two, which are not on the scale of the data."""
    rows = [row for name in layout.names if name != "exponent" for row in layout[name]]
    return P[rows]


def _drawn(layout: Layout, P: Tensor) -> np.ndarray:
    """P without its powers of two, whose colour would be off the scale."""
    P = P.clone()
    if "exponent" in layout.names:
        layout.write(P, "exponent", torch.zeros(()), slice(0, layout.tokens))
    return P.numpy()


def _write_exponent(axis: Axes, layout: Layout, P: Tensor) -> None:
    if "exponent" in layout.names:
        e = int(layout.read(P, "exponent", slice(0, 1)))
        axis.text(-0.3, layout["exponent"].start, f"{e}", fontsize=7, color=INK, va="center_baseline", ha="left")


def _rule(axis: Axes, layout: Layout, named: bool) -> None:
    """Lines between registers and after the sink, names on the left, no other ticks."""
    starts = [layout[name].start for name in layout.names]
    for start in starts[1:]:
        axis.axhline(start - 0.5, color=FAINT, linewidth=0.7)
    if layout.sink:
        axis.axvline(0.5, color=FAINT, linewidth=0.7, linestyle=":")
        axis.set_xticks([0, layout.tokens - 1], ["sink", str(layout.tokens)], fontsize=8)
    else:
        axis.set_xticks([0, layout.tokens - 1], ["1", str(layout.tokens)], fontsize=8)
    middles = [(layout[name].start + layout[name].stop - 1) / 2 for name in layout.names]
    axis.set_yticks(middles, layout.names if named else [""] * len(middles), fontsize=9)
    axis.tick_params(length=0)
