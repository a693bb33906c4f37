"""The paper's diagrams, drawn from plain sizes: a layer, the three blocks of an NLAFormer, and its probes.

A caller reads the sizes from a real model and passes them as ``LayerShape`` and ``Structure``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nlaformer.report.figure import BLUE, FAINT, GREEN, GREY, INK, ORANGE, blank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The line along which P travels, and the one above it, of the residuals; bottom and top of the frames.
_MIDDLE, _ABOVE = 24.0, 43.5
_BOTTOM, _TOP = 9.0, 40.0
_FIRST_SUM, _SECOND_SUM = 61.0, 88.6
_LINE = 19.5  # the same for the blocks
_SYMBOLS = {"pre": "TF_{pre}", "loop": "TF_{loop}", "post": "TF_{post}"}
_MOST_REGISTERS = 12


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one layer; zero heads or an FFN of width zero means that the layer has none."""

    heads: int
    head_rows: int
    """Rows of W_Q P and W_K P of one head."""
    ffn_width: int
    normalized: bool


@dataclass(frozen=True)
class Structure:
    """Sizes of a whole model.

    A trained model also has a read-in to ``width`` rows and a fixed number ``T`` of iterations; a compiled one has
    neither.
    """

    registers: tuple[tuple[str, int], ...]
    tokens: int
    blocks: Mapping[str, Sequence[LayerShape]]
    """The layers of "pre", "loop" and "post"."""
    inject: bool = False
    unshared: int = 0
    """Number of loop blocks with weights of their own; 0 where all passes share one block."""
    width: int | None = None
    T: int | None = None

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.registers)


def layer_figure(layer: LayerShape, rows: int, tokens: int, title: str) -> Figure:
    """Draw eq. (1): a layer on a token matrix P of ``rows`` x ``tokens``."""
    figure, axis = _canvas(11, 5.5, title)
    _box(axis, 6, _MIDDLE, 9, 9, GREY, "P", f"{rows} x {tokens}")
    _attention(axis, layer, rows, tokens)
    _feed_forward(axis, layer, rows, tokens)
    _box(axis, 95.2, _MIDDLE, 8, 9, GREY, "TF(P)", f"{rows} x {tokens}")
    for start, stop in ((12.5, _FIRST_SUM), (_FIRST_SUM + 3.2, _SECOND_SUM)):
        _arrow(axis, (start, _MIDDLE), (start, _ABOVE), (stop, _ABOVE), (stop, _MIDDLE + 1.6))
    for place in (_FIRST_SUM, _SECOND_SUM):
        axis.plot([place], [_MIDDLE], "o", markersize=17, markerfacecolor="white", markeredgecolor=INK)
        _text(axis, place, _MIDDLE, "+", size=14)
    _arrow(axis, (_SECOND_SUM + 1.4, _MIDDLE), (91.2, _MIDDLE))
    return figure


def _attention(axis: Axes, layer: LayerShape, rows: int, tokens: int) -> None:
    """Queries and keys make the scores, the softmax mixes the values; the sum over heads is added to P."""
    _arrow(axis, (10.5, _MIDDLE), (15.5, _MIDDLE))
    _arrow(axis, (57, _MIDDLE), (_FIRST_SUM - 1.4, _MIDDLE))
    if not layer.heads:
        _frame(axis, 15.5, 57, "no attention heads: adds zero")
        return
    note, inner = " of P, RMS-normalized" * layer.normalized, layer.head_rows
    title = f"multi-head attention{note}: {layer.heads} head" + "s, summed" * (layer.heads > 1)
    _frame(axis, 15.5, 57, title)
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


def _feed_forward(axis: Axes, layer: LayerShape, rows: int, tokens: int) -> None:
    """Two linear maps with a ReLU between, the same for every column."""
    _arrow(axis, (_FIRST_SUM + 1.4, _MIDDLE), (66.5, _MIDDLE))
    _arrow(axis, (85.5, _MIDDLE), (_SECOND_SUM - 1.4, _MIDDLE))
    if not layer.ffn_width:
        _frame(axis, 66.5, 85.5, "no FFN: adds zero")
        return
    width, note = layer.ffn_width, "\non its RMS-normalized input" * layer.normalized
    _frame(axis, 66.5, 85.5, f"feed-forward network,\nwidth {width}{note}")
    _box(axis, 76, 32, 15, 6.6, GREEN, "$\\mathbf{W}_1\\,\\cdot + \\mathbf{b}_1$", f"{width} x {tokens}")
    _box(axis, 76, 24, 15, 5, ORANGE, "ReLU")
    _box(axis, 76, 15.6, 15, 6.6, GREEN, "$\\mathbf{W}_2\\,\\cdot + \\mathbf{b}_2$", f"{rows} x {tokens}")
    _arrow(axis, (66.5, _MIDDLE), (67.3, _MIDDLE), (67.3, 32), (68.5, 32))
    _arrow(axis, (76, 28.7), (76, 26.5))
    _arrow(axis, (76, 21.5), (76, 18.9))
    _arrow(axis, (83.5, 15.6), (84.7, 15.6), (84.7, _MIDDLE), (85.5, _MIDDLE), head=False)


def structure_figure(model: Structure, name: str) -> Figure:
    """Draw the pre, loop and post blocks of section 3, and which iterate is read after which block."""
    figure, axis = _canvas(12, 4.6, f"NLAFormer, section 3: {name}")
    _prompt(axis, model)
    left, start = 15.0, 10.5
    if model.width is not None:
        _box(axis, 20, _LINE, 10, 8, GREEN, "read-in", f"{model.width} x {model.rows}\n+ positions")
        _arrow(axis, (10.5, _LINE), (15, _LINE))
        left = start = 25.0
    present = [key for key in _SYMBOLS if model.blocks[key]]
    step = (96 - left) / len(present)
    for k, key in enumerate(present):
        x = left + (k + 0.5) * step + 1
        _block(axis, x, step - 7, key, model)
        _arrow(axis, (start, _LINE), (x - (step - 7) / 2, _LINE))
        start = x + (step - 7) / 2
        _text(axis, x, 10.4, _read_after(key, model), size=9.5)
    _arrow(axis, (start, _LINE), (start + 4, _LINE))
    if model.inject:
        _text(axis, 58, 4.4, "the prompt is added to the input of every pass", size=9.5)
    return figure


def probe_figure(model: Structure, n: int, in_rows: int, name: str) -> Figure:
    """Draw the two linear probes, of ``n`` and ``in_rows`` rows, that read the last token at every iterate."""
    figure, axis = _canvas(12, 6.0, f"Probe mechanism: {name}")
    d, T, tokens = model.width, model.T, model.tokens
    high, states = 36.0, (18.0, 44.0, 78.0)
    first = _SYMBOLS["pre"] if model.blocks["pre"] else "read-in"
    last = _SYMBOLS["post"] if model.blocks["post"] else _SYMBOLS["loop"]
    for x, label in zip(states, ("0", "1", "T"), strict=True):
        _state(axis, x, high, tokens, f"$t = {label}$" + f" = {T}" * (label == "T"), f"{d} x {tokens}")
    for x, symbol in zip((8.0, 31.0, 68.0), (first, "TF_{loop}", last), strict=True):
        _box(axis, x, high, 8, 5.5, BLUE, f"${symbol}$" if "_" in symbol else symbol)
    _text(axis, 56, high, ". . .", size=16)
    for start, stop in ((12, 13.4), (22.6, 27), (35, 39.4), (48.6, 53.5), (59, 64), (72, 73.4)):
        _arrow(axis, (start, high), (stop, high))
    _arrow(axis, (1.5, high), (4, high))
    for x in states:
        corner = x + 4.0
        _arrow(axis, (corner, high - 5.6), (corner, 25), (x - 5.5, 25), (x - 5.5, 22.4))
        _arrow(axis, (corner, 25), (x + 7.5, 25), (x + 7.5, 22.4))
        _box(axis, x - 5.5, 19, 11, 6.6, GREEN, "$\\mathbf{W}_x$", f"{n} x {d}")
        _box(axis, x + 7.5, 19, 11, 6.6, ORANGE, "$\\mathbf{W}_{in}$", f"{in_rows} x {d}")
        _arrow(axis, (x - 5.5, 15.7), (x - 5.5, 12.6))
        _arrow(axis, (x + 7.5, 15.7), (x + 7.5, 12.6))
        _text(axis, x - 5.5, 10.9, "NLAF$_x^t$", size=11)
        _text(axis, x + 7.5, 10.9, "NLAF$_{in}^t$", size=11)
        _text(axis, x - 5.5, 8.2, f"$\\mathbf{{x}}_t$, {n} entries", size=9)
        _text(axis, x + 7.5, 8.2, f"$(\\mathbf{{r}}_t, \\mathbf{{d}}_t)$, {in_rows} entries", size=9)
    _text(axis, 50, 3.4, "The same two linear maps at every iterate; both read the last token (shaded).", size=10)
    return figure


def _prompt(axis: Axes, model: Structure) -> None:
    """The token matrix with the names of its registers; those with more rows are drawn higher."""
    from matplotlib.patches import Rectangle

    registers = model.registers
    shown = registers if len(registers) <= _MOST_REGISTERS else registers[: _MOST_REGISTERS - 1]
    parts = [(f"{name}: {_count(rows, 'row')}", rows) for name, rows in shown]
    if len(shown) < len(registers):
        parts.append((f"{len(registers) - len(shown)} more", 1))
    heights = [max(rows**0.5, 1.4) for _, rows in parts]
    scale, top = 22 / max(sum(heights), 6.0), _LINE + 11
    size = 9 if len(parts) < 6 else 7
    total = scale * sum(heights)
    y = _LINE + total / 2
    for (label, _), height in zip(parts, heights, strict=True):
        y -= scale * height
        axis.add_patch(Rectangle((2, y), 8.5, scale * height, fc=GREY, ec=INK, lw=0.8))
        _text(axis, 6.25, y + scale * height / 2, label, size=size)
    _text(axis, 6.25, top + 1.6, "P", size=12)
    _text(axis, 6.25, _LINE - total / 2 - 1.8, f"{model.rows} x {model.tokens}", size=8.5)


def _block(axis: Axes, x: float, width: float, key: str, model: Structure) -> None:
    """A block with its layers in words, and the arrow back of a loop."""
    layers, loop = model.blocks[key], key == "loop"
    each = len(layers) // model.unshared if loop and model.unshared else len(layers)
    heads, widths = sorted({layer.heads for layer in layers}), sorted({layer.ffn_width for layer in layers})
    words = f"{_count(each, 'layer')}\n{_range(heads)} heads\nFFN width {_range(widths)}"
    _box(axis, x, _LINE, width, 13, BLUE, f"${_SYMBOLS[key]}$", words)
    if loop:
        over, side = _LINE + 10.5, width / 2 - 1.5
        _arrow(axis, (x + side, _LINE + 6.5), (x + side, over), (x - side, over), (x - side, _LINE + 6.5))
        shared = "weights of their own" if model.unshared else "the same weights"
        passes = "an iteration a pass" if model.T is None else _count(_last_loop(model), "pass", "passes")
        _text(axis, x, over + 1.6, f"{passes}, {shared}", size=9.5)


def _read_after(key: str, model: Structure) -> str:
    if model.T is None:
        return {"pre": "the start", "loop": "one step of the program", "post": "the answer"}[key]
    loop = f"NLAF$^t$, t = 1, ..., {_last_loop(model)}"
    return {"pre": "NLAF$^0$", "loop": loop, "post": f"NLAF$^{{{model.T}}}$"}[key]


def _last_loop(model: Structure) -> int:
    """The last iterate that the loop block computes; the post block, if there is one, computes x_T."""
    assert model.T is not None
    return model.T - bool(model.blocks["post"])


def _state(axis: Axes, x: float, y: float, tokens: int, label: str, shape: str) -> None:
    """A token matrix as columns, the last one shaded."""
    from matplotlib.patches import Rectangle

    shown = min(tokens, 7)
    width = 9.2 / shown
    for k in range(shown):
        colour = ORANGE if k == shown - 1 else GREY
        axis.add_patch(Rectangle((x - 4.6 + k * width, y - 5.5), width, 11, fc=colour, ec=INK, lw=0.7))
    _text(axis, x, y + 7.2, f"{label},  {shape}", size=9)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _range(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _canvas(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """A figure without axes, 100 units wide, with a title at its top."""
    figure = blank(width, height)
    axis = figure.add_axes((0, 0, 1, 1))
    top = 100 * height / width
    axis.set(xlim=(0, 100), ylim=(0, top))
    axis.axis("off")
    _text(axis, 50, top - 2.5, title, size=13)
    return figure, axis


def _box(axis: Axes, x: float, y: float, width: float, height: float, colour: str, name: str, shape: str = "") -> None:
    """A box with a name and, smaller, a shape in it; (x, y) is its middle."""
    from matplotlib.patches import FancyBboxPatch

    corner = (x - width / 2, y - height / 2)
    axis.add_patch(FancyBboxPatch(corner, width, height, "round,pad=0,rounding_size=0.8", fc=colour, ec=INK, lw=1))
    lines = shape.count("\n")
    _text(axis, x, y + 1.3 + 0.8 * lines if shape else y, name, size=11)
    _text(axis, x, y - 1.6 - 0.1 * lines, shape, size=8.5)


def _frame(axis: Axes, left: float, right: float, title: str) -> None:
    """A dashed line around a part, with its title below."""
    from matplotlib.patches import FancyBboxPatch

    corner, size, style = (left, _BOTTOM), (right - left, _TOP - _BOTTOM), "round,pad=0,rounding_size=1"
    axis.add_patch(FancyBboxPatch(corner, *size, style, fc="none", ec=FAINT, lw=1, ls="--"))
    axis.text((left + right) / 2, _BOTTOM - 1, title, ha="center", va="top", fontsize=10.5, color=INK)


def _arrow(axis: Axes, *points: tuple[float, float], head: bool = True) -> None:
    """A line through points, with an arrow head on its last piece."""
    axis.plot([x for x, _ in points], [y for _, y in points], color=INK, linewidth=1.1, solid_capstyle="butt")
    if head:
        style = {"arrowstyle": "-|>", "color": INK, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", points[-1], points[-2], arrowprops=style)


def _text(axis: Axes, x: float, y: float, words: str, size: float) -> None:
    """Words centred at a point."""
    axis.text(x, y, words, ha="center", va="center", fontsize=size, color=INK)
