"""The paper's diagram of a layer, eq. (1), with the shapes of a real one written into it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from nlaformer.express.operation import Operation
from nlaformer.report.figure import BLUE, GREEN, GREY, ORANGE, save
from nlaformer.report.shapes import arrow, box, canvas, frame, plus
from nlaformer.transformer import FFN, Heads, Layer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The line along which P travels, and the one above it, of the residuals; bottom and top of the frames.
_MIDDLE, _ABOVE = 24.0, 43.5
_BOTTOM, _TOP = 9.0, 40.0
_FIRST_SUM, _SECOND_SUM = 61.0, 88.6


def draw_layer(op: Operation, path: Path) -> Path:
    """Draw the first layer of an operation and return where it was written."""
    title = f"One layer, eq. (1): the first of {op.name}, n = {op.n}"
    return save(layer_figure(cast(Layer, op.model.pre[0]), op.layout.rows, op.layout.tokens, title), path)


def layer_figure(layer: Layer, rows: int, tokens: int, title: str) -> Figure:
    """A layer on a token matrix P of so many rows and tokens."""
    figure, axis = canvas(11, 5.5, title)
    box(axis, 6, _MIDDLE, 9, 9, GREY, "P", f"{rows} x {tokens}")
    first = "" if layer.gain_1 is None else " of P, RMS-normalized"
    second = "" if layer.gain_2 is None else "\non its RMS-normalized input"
    _attention(axis, layer.heads, rows, tokens, first)
    _feed_forward(axis, layer.ffn, tokens, second)
    box(axis, 95.2, _MIDDLE, 8, 9, GREY, "TF(P)", f"{rows} x {tokens}")
    for start, stop in ((12.5, _FIRST_SUM), (_FIRST_SUM + 3.2, _SECOND_SUM)):
        arrow(axis, (start, _MIDDLE), (start, _ABOVE), (stop, _ABOVE), (stop, _MIDDLE + 1.6))
    for place in (_FIRST_SUM, _SECOND_SUM):
        plus(axis, place, _MIDDLE)
    arrow(axis, (_SECOND_SUM + 1.4, _MIDDLE), (91.2, _MIDDLE))
    return figure


def _attention(axis: Axes, heads: Heads | None, rows: int, tokens: int, note: str) -> None:
    """Queries and keys make the scores, the softmax mixes the values; the sum over heads is added to P."""
    arrow(axis, (10.5, _MIDDLE), (15.5, _MIDDLE))
    arrow(axis, (57, _MIDDLE), (_FIRST_SUM - 1.4, _MIDDLE))
    if heads is None:
        frame(axis, 15.5, 57, _BOTTOM, _TOP, "no attention heads: adds zero")
        return
    count, inner = heads.count, heads.W_Q.shape[0] // heads.count
    title = f"multi-head attention{note}: {count} head" + "s, summed" * (count > 1)
    frame(axis, 15.5, 57, _BOTTOM, _TOP, title)
    for y, letter, height in ((33, "Q", inner), (24, "K", inner), (15, "V", rows)):
        box(axis, 24, y, 13, 6.6, BLUE, f"$\\mathbf{{W}}_{letter}\\,\\mathbf{{P}}$", f"{height} x {tokens}")
        arrow(axis, (15.5, _MIDDLE), (16.3, _MIDDLE), (16.3, y), (17.5, y))
    box(axis, 39, 28.5, 11, 9, ORANGE, "softmax", f"{tokens} x {tokens}, over keys")
    box(axis, 51, _MIDDLE - 4, 9, 9, BLUE, "mix values", f"{rows} x {tokens}")
    arrow(axis, (30.5, 33), (32, 33), (32, 29.5), (33.5, 29.5))
    arrow(axis, (30.5, 24), (32, 24), (32, 27.5), (33.5, 27.5))
    arrow(axis, (44.5, 28.5), (51, 28.5), (51, _MIDDLE + 0.5))
    arrow(axis, (30.5, 15), (44, 15), (44, _MIDDLE - 4), (46.5, _MIDDLE - 4))
    arrow(axis, (55.5, _MIDDLE - 4), (56.3, _MIDDLE - 4), (56.3, _MIDDLE), (57, _MIDDLE), head=False)


def _feed_forward(axis: Axes, ffn: FFN | None, tokens: int, note: str) -> None:
    """Two linear maps with a ReLU between, the same for every column."""
    arrow(axis, (_FIRST_SUM + 1.4, _MIDDLE), (66.5, _MIDDLE))
    arrow(axis, (85.5, _MIDDLE), (_SECOND_SUM - 1.4, _MIDDLE))
    if ffn is None:
        frame(axis, 66.5, 85.5, _BOTTOM, _TOP, "no FFN: adds zero")
        return
    width, rows = ffn.W_1.shape
    frame(axis, 66.5, 85.5, _BOTTOM, _TOP, f"feed-forward network,\nwidth {width}{note}")
    box(axis, 76, 32, 15, 6.6, GREEN, "$\\mathbf{W}_1\\,\\cdot + \\mathbf{b}_1$", f"{width} x {tokens}")
    box(axis, 76, 24, 15, 5, ORANGE, "ReLU")
    box(axis, 76, 15.6, 15, 6.6, GREEN, "$\\mathbf{W}_2\\,\\cdot + \\mathbf{b}_2$", f"{rows} x {tokens}")
    arrow(axis, (66.5, _MIDDLE), (67.3, _MIDDLE), (67.3, 32), (68.5, 32))
    arrow(axis, (76, 28.7), (76, 26.5))
    arrow(axis, (76, 21.5), (76, 18.9))
    arrow(axis, (83.5, 15.6), (84.7, 15.6), (84.7, _MIDDLE), (85.5, _MIDDLE), head=False)
