"""The paper's diagram of one layer, eq. (1), with the shapes of a real layer written into it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from nlaformer.express.operation import Operation
from nlaformer.report.figure import BLUE, FAINT, GREEN, GREY, INK, ORANGE, save
from nlaformer.transformer import FFN, Heads, Layer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The line along which P travels, and the one above it, of the residuals.
_MIDDLE, _ABOVE = 24.0, 43.5
_FIRST_SUM, _SECOND_SUM = 61.0, 88.6


def draw_layer(op: Operation, path: Path) -> Path:
    """Draw the first layer of an operation and return where it was written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.5))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, 100), ylim=(0, 50))
    axis.axis("off")
    rows, tokens, layer = op.layout.rows, op.layout.tokens, cast(Layer, op.model.pre[0])
    _text(axis, 50, 47.5, f"One layer, eq. (1): the first of {op.name}, n = {op.n}", size=13)
    _box(axis, 6, _MIDDLE, 9, 9, GREY, "P", f"{rows} x {tokens}")
    _attention(axis, layer.heads, rows, tokens)
    _feed_forward(axis, layer.ffn, tokens)
    _box(axis, 95.2, _MIDDLE, 8, 9, GREY, "TF(P)", f"{rows} x {tokens}")
    for start, stop in ((12.5, _FIRST_SUM), (_FIRST_SUM + 3.2, _SECOND_SUM)):
        _arrow(axis, (start, _MIDDLE), (start, _ABOVE), (stop, _ABOVE), (stop, _MIDDLE + 1.6))
    for place in (_FIRST_SUM, _SECOND_SUM):
        _plus(axis, place)
    _arrow(axis, (_SECOND_SUM + 1.4, _MIDDLE), (91.2, _MIDDLE))
    return save(figure, path)


def _attention(axis: Axes, heads: Heads | None, rows: int, tokens: int) -> None:
    """Queries and keys make the scores, the softmax mixes the values; the sum over heads is added to P."""
    _arrow(axis, (10.5, _MIDDLE), (15.5, _MIDDLE))
    _arrow(axis, (57, _MIDDLE), (_FIRST_SUM - 1.4, _MIDDLE))
    if heads is None:
        _frame(axis, 15.5, 57, "no attention heads: adds zero")
        return
    count, inner = heads.count, heads.W_Q.shape[0] // heads.count
    _frame(axis, 15.5, 57, f"multi-head attention: {count} head" + "s, summed" * (count > 1))
    for y, letter, height in ((33, "Q", inner), (24, "K", inner), (15, "V", rows)):
        _box(axis, 24, y, 13, 6.6, BLUE, f"$\\mathbf{{W}}_{letter}\\,\\mathbf{{P}}$", f"{height} x {tokens}")
        _arrow(axis, (15.5, _MIDDLE), (16.3, _MIDDLE), (16.3, y), (17.5, y))
    _box(axis, 39, 28.5, 11, 9, ORANGE, "softmax", f"{tokens} x {tokens}, over keys")
    _box(axis, 51, _MIDDLE - 4, 9, 9, BLUE, "mix values", f"{rows} x {tokens}")
    _arrow(axis, (30.5, 33), (32, 33), (32, 29.5), (33.5, 29.5))
    _arrow(axis, (30.5, 24), (32, 24), (32, 27.5), (33.5, 27.5))
    _arrow(axis, (44.5, 28.5), (51, 28.5), (51, _MIDDLE + 0.5))
    _arrow(axis, (30.5, 15), (44, 15), (44, _MIDDLE - 4), (46.5, _MIDDLE - 4))
    _arrow(axis, (55.5, _MIDDLE - 4), (56.3, _MIDDLE - 4), (56.3, _MIDDLE), (57, _MIDDLE), head=False)


def _feed_forward(axis: Axes, ffn: FFN | None, tokens: int) -> None:
    """Two linear maps with a ReLU between, the same for every column."""
    _arrow(axis, (_FIRST_SUM + 1.4, _MIDDLE), (66.5, _MIDDLE))
    _arrow(axis, (85.5, _MIDDLE), (_SECOND_SUM - 1.4, _MIDDLE))
    if ffn is None:
        _frame(axis, 66.5, 85.5, "no FFN: adds zero")
        return
    width, rows = ffn.W_1.shape
    _frame(axis, 66.5, 85.5, f"feed-forward network,\nwidth {width}")
    _box(axis, 76, 32, 15, 6.6, GREEN, "$\\mathbf{W}_1\\,\\cdot + \\mathbf{b}_1$", f"{width} x {tokens}")
    _box(axis, 76, 24, 15, 5, ORANGE, "ReLU", "")
    _box(axis, 76, 15.6, 15, 6.6, GREEN, "$\\mathbf{W}_2\\,\\cdot + \\mathbf{b}_2$", f"{rows} x {tokens}")
    _arrow(axis, (66.5, _MIDDLE), (67.3, _MIDDLE), (67.3, 32), (68.5, 32))
    _arrow(axis, (76, 28.7), (76, 26.5))
    _arrow(axis, (76, 21.5), (76, 18.9))
    _arrow(axis, (83.5, 15.6), (84.7, 15.6), (84.7, _MIDDLE), (85.5, _MIDDLE), head=False)


# --- shapes ------------------------------------------------------------------------------------------------------


def _box(axis: Axes, x: float, y: float, width: float, height: float, colour: str, name: str, shape: str) -> None:
    """A box with a name and, smaller, a shape in it; (x, y) is its middle."""
    from matplotlib.patches import FancyBboxPatch

    corner = (x - width / 2, y - height / 2)
    axis.add_patch(FancyBboxPatch(corner, width, height, "round,pad=0,rounding_size=0.8", fc=colour, ec=INK, lw=1))
    _text(axis, x, y + 1.3 if shape else y, name, size=11)
    _text(axis, x, y - 1.6, shape, size=8.5)


def _frame(axis: Axes, left: float, right: float, title: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    frame = FancyBboxPatch(
        (left, 9), right - left, 31, "round,pad=0,rounding_size=1", fc="none", ec=FAINT, lw=1, ls="--"
    )
    axis.add_patch(frame)
    axis.text((left + right) / 2, 8, title, ha="center", va="top", fontsize=10.5, color=INK)


def _plus(axis: Axes, x: float) -> None:
    axis.plot([x], [_MIDDLE], "o", markersize=17, markerfacecolor="white", markeredgecolor=INK)
    _text(axis, x, _MIDDLE, "+", size=14)


def _arrow(axis: Axes, *points: tuple[float, float], head: bool = True) -> None:
    """A line through points, with an arrow head on its last piece."""
    axis.plot([x for x, _ in points], [y for _, y in points], color=INK, linewidth=1.1, solid_capstyle="butt")
    if head:
        axis.annotate(
            "",
            points[-1],
            points[-2],
            arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.1, "shrinkA": 0, "shrinkB": 0},
        )


def _text(axis: Axes, x: float, y: float, words: str, size: float) -> None:
    axis.text(x, y, words, ha="center", va="center", fontsize=size, color=INK)
