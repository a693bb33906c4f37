"""The paper's diagrams of an NLAFormer, eq. (TFstructure), and of its probes, drawn from a real model.

Every number in them is read from the weights: layers, heads and widths of the blocks, passes of the loop, rows and
tokens of the prompt, sizes of the probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from nlaformer.errors import OptionError
from nlaformer.prompt import Layout
from nlaformer.report.figure import BLUE, GREEN, GREY, INK, ORANGE
from nlaformer.report.shapes import arrow, box, canvas, text
from nlaformer.transformer import Layer, NLAFormer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nlaformer.compiler.algorithm import Algorithm
    from nlaformer.learn.model import Solver

_BLOCKS = (("pre", "TF_{pre}"), ("loop", "TF_{loop}"), ("post", "TF_{post}"))
_MIDDLE = 19.5
_MOST_REGISTERS = 12


def named_solver(path: str | None = None) -> tuple[Solver, str]:
    """The trained model of that path or name and what to call it; without one, cg-imitation before training."""
    from nlaformer.learn.model import initial, load_solver
    from nlaformer.learn.recipes import recipe

    solver = initial(recipe("cg-imitation")) if path is None else load_solver(path)
    return solver, _title(solver)


def named_model(path: str | None = None) -> tuple[Solver | Algorithm, str]:
    """The same for what has blocks, a compiled algorithm as well."""
    from nlaformer.compiler.algorithm import Algorithm
    from nlaformer.learn.model import Solver
    from nlaformer.loading import load

    if path is None:
        return named_solver()
    model = load(path)
    if isinstance(model, Solver | Algorithm):
        return model, _title(model)
    raise OptionError(f"{path} holds {model!r}, which has no blocks to draw; report layer draws an operation")


def _title(model: Solver | Algorithm) -> str:
    from nlaformer.learn.model import Solver

    name, n = (model.config.recipe, model.config.n) if isinstance(model, Solver) else (model.name, model.n)
    return f"{name}, n = {n}"


def structure_figure(model: Solver | Algorithm, name: str) -> Figure:
    """The blocks of a trained solver or a compiled algorithm, and which iterate is read after which."""
    blocks, layout, solver = _parts(model)
    figure, axis = canvas(12, 4.6, f"NLAFormer, eq. (TFstructure): {name}")
    _prompt(axis, layout)
    left = 15.0
    if solver is not None:
        d = solver.read_in.shape[0]
        box(axis, 20, _MIDDLE, 10, 8, GREEN, "read-in", f"{d} x {layout.rows}\n+ positions")
        arrow(axis, (10.5, _MIDDLE), (15, _MIDDLE))
        left = 25.0
    start = left if solver is not None else 10.5
    present = [(key, symbol) for key, symbol in _BLOCKS if len(getattr(blocks, key))]
    step = (96 - left) / len(present)
    for k, (key, symbol) in enumerate(present):
        x = left + (k + 0.5) * step + 1
        layers = cast(Sequence[Layer], getattr(blocks, key))
        passes = solver.config.loops if solver is not None else None
        _block(axis, x, step - 7, key, symbol, layers, blocks, passes)
        arrow(axis, (start, _MIDDLE), (x - (step - 7) / 2, _MIDDLE))
        start = x + (step - 7) / 2
        text(axis, x, 10.4, _read_after(key, bool(len(blocks.post)), solver), size=9.5)
    arrow(axis, (start, _MIDDLE), (start + 4, _MIDDLE))
    if blocks.inject:
        text(axis, 58, 4.4, "the prompt is added to the input of every pass", size=9.5)
    return figure


def probe_figure(solver: Solver, name: str) -> Figure:
    """The two linear probes that read the last token at every iterate."""
    figure, axis = canvas(12, 6.0, f"Probe mechanism: {name}")
    (n, d), (in_rows, _), T = solver.probe_x.shape, solver.probe_rd.shape, solver.config.T
    tokens, (high, states) = solver.layout.tokens, (36.0, (18.0, 44.0, 78.0))
    first = "TF_{pre}" if len(solver.blocks.pre) else "read-in"
    last = "TF_{post}" if len(solver.blocks.post) else "TF_{loop}"
    for x, label in zip(states, ("0", "1", "T"), strict=True):
        _state(axis, x, high, tokens, f"$t = {label}$" + f" = {T}" * (label == "T"), f"{d} x {tokens}")
    for x, symbol in zip((8.0, 31.0, 68.0), (first, "TF_{loop}", last), strict=True):
        box(axis, x, high, 8, 5.5, BLUE, f"${symbol}$" if "_" in symbol else symbol)
    text(axis, 56, high, ". . .", size=16)
    for start, stop in ((12, 13.4), (22.6, 27), (35, 39.4), (48.6, 53.5), (59, 64), (72, 73.4)):
        arrow(axis, (start, high), (stop, high))
    arrow(axis, (1.5, high), (4, high))
    for x in states:
        corner = x + 4.0
        arrow(axis, (corner, high - 5.6), (corner, 25), (x - 5.5, 25), (x - 5.5, 22.4))
        arrow(axis, (corner, 25), (x + 7.5, 25), (x + 7.5, 22.4))
        box(axis, x - 5.5, 19, 11, 6.6, GREEN, "$\\mathbf{W}_x$", f"{n} x {d}")
        box(axis, x + 7.5, 19, 11, 6.6, ORANGE, "$\\mathbf{W}_{in}$", f"{in_rows} x {d}")
        arrow(axis, (x - 5.5, 15.7), (x - 5.5, 12.6))
        arrow(axis, (x + 7.5, 15.7), (x + 7.5, 12.6))
        text(axis, x - 5.5, 10.9, "NLAF$_x^t$", size=11)
        text(axis, x + 7.5, 10.9, "NLAF$_{in}^t$", size=11)
        text(axis, x - 5.5, 8.2, f"$\\mathbf{{x}}_t$, {n} entries", size=9)
        text(axis, x + 7.5, 8.2, f"$(\\mathbf{{r}}_t, \\mathbf{{d}}_t)$, {in_rows} entries", size=9)
    text(axis, 50, 3.4, "The same two linear maps at every iterate; both read the last token (shaded).", size=10)
    return figure


def _parts(model: Solver | Algorithm) -> tuple[NLAFormer, Layout, Solver | None]:
    from nlaformer.learn.model import Solver

    if isinstance(model, Solver):
        return model.blocks, model.layout, model
    return model.model, model.layout, None


def _prompt(axis: Axes, layout: Layout) -> None:
    """The token matrix with the names of its registers, the higher ones drawn higher."""
    from matplotlib.patches import Rectangle

    shown = layout.registers if len(layout.registers) <= _MOST_REGISTERS else layout.registers[: _MOST_REGISTERS - 1]
    parts = [(f"{name}: {_count(rows, 'row')}", rows) for name, rows in shown]
    if len(shown) < len(layout.registers):
        parts.append((f"{len(layout.registers) - len(shown)} more", 1))
    heights = [max(rows**0.5, 1.4) for _, rows in parts]
    scale, top = 22 / max(sum(heights), 6.0), _MIDDLE + 11
    size = 9 if len(parts) < 6 else 7
    total = scale * sum(heights)
    y = _MIDDLE + total / 2
    for (label, _), height in zip(parts, heights, strict=True):
        y -= scale * height
        axis.add_patch(Rectangle((2, y), 8.5, scale * height, fc=GREY, ec=INK, lw=0.8))
        text(axis, 6.25, y + scale * height / 2, label, size=size)
    text(axis, 6.25, top + 1.6, "P", size=12)
    text(axis, 6.25, _MIDDLE - total / 2 - 1.8, f"{layout.rows} x {layout.tokens}", size=8.5)


def _block(
    axis: Axes, x: float, width: float, key: str, symbol: str, layers: Sequence[Layer], blocks: NLAFormer,
    passes: int | None,
) -> None:  # fmt: skip
    """A block with its layers in words, and the arrow back of a loop."""
    each = len(layers) // blocks.unshared if key == "loop" and blocks.unshared else len(layers)
    heads = sorted({0 if layer.heads is None else layer.heads.count for layer in layers})
    widths = sorted({0 if layer.ffn is None else layer.ffn.width for layer in layers})
    words = f"{_count(each, 'layer')}\n{_range(heads)} heads\nFFN width {_range(widths)}"
    box(axis, x, _MIDDLE, width, 13, BLUE, f"${symbol}$", words)
    if key == "loop":
        over = _MIDDLE + 10.5
        arrow(axis, (x + width / 2 - 1.5, _MIDDLE + 6.5), (x + width / 2 - 1.5, over), (x - width / 2 + 1.5, over),
              (x - width / 2 + 1.5, _MIDDLE + 6.5))  # fmt: skip
        shared = "weights of their own" if blocks.unshared else "the same weights"
        many = "an iteration a pass" if passes is None else _count(passes, "pass", "passes")
        text(axis, x, over + 1.6, f"{many}, {shared}", size=9.5)


def _read_after(key: str, post: bool, solver: Solver | None) -> str:
    if solver is None:
        return {"pre": "the start", "loop": "one step of the program", "post": "the answer"}[key]
    T = solver.config.T
    last = T - 1 if post else T
    return {"pre": "NLAF$^0$", "loop": f"NLAF$^t$, t = 1, ..., {last}", "post": f"NLAF$^{{{T}}}$"}[key]


def _state(axis: Axes, x: float, y: float, tokens: int, label: str, shape: str) -> None:
    """A token matrix as columns, the last one shaded."""
    from matplotlib.patches import Rectangle

    shown = min(tokens, 7)
    width = 9.2 / shown
    for k in range(shown):
        colour = ORANGE if k == shown - 1 else GREY
        axis.add_patch(Rectangle((x - 4.6 + k * width, y - 5.5), width, 11, fc=colour, ec=INK, lw=0.7))
    text(axis, x, y + 7.2, f"{label},  {shape}", size=9)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _range(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
