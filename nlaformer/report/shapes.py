"""Boxes, arrows and words: what the diagrams are drawn with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlaformer.report.figure import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def canvas(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """A figure without axes, 100 units wide and in proportion high, with a title at its top."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axis = figure.add_axes((0, 0, 1, 1))
    top = 100 * height / width
    axis.set(xlim=(0, 100), ylim=(0, top))
    axis.axis("off")
    text(axis, 50, top - 2.5, title, size=13)
    return figure, axis


def box(axis: Axes, x: float, y: float, width: float, height: float, colour: str, name: str, shape: str = "") -> None:
    """A box with a name and, smaller, a shape in it; (x, y) is its middle."""
    from matplotlib.patches import FancyBboxPatch

    corner = (x - width / 2, y - height / 2)
    axis.add_patch(FancyBboxPatch(corner, width, height, "round,pad=0,rounding_size=0.8", fc=colour, ec=INK, lw=1))
    lines = shape.count("\n")
    text(axis, x, y + 1.3 + 0.8 * lines if shape else y, name, size=11)
    text(axis, x, y - 1.6 - 0.1 * lines, shape, size=8.5)


def frame(axis: Axes, left: float, right: float, bottom: float, top: float, title: str) -> None:
    """A broken line around a part, with its title below."""
    from matplotlib.patches import FancyBboxPatch

    corner, style = (left, bottom), "round,pad=0,rounding_size=1"
    axis.add_patch(FancyBboxPatch(corner, right - left, top - bottom, style, fc="none", ec=FAINT, lw=1, ls="--"))
    axis.text((left + right) / 2, bottom - 1, title, ha="center", va="top", fontsize=10.5, color=INK)


def plus(axis: Axes, x: float, y: float) -> None:
    """A sum."""
    axis.plot([x], [y], "o", markersize=17, markerfacecolor="white", markeredgecolor=INK)
    text(axis, x, y, "+", size=14)


def arrow(axis: Axes, *points: tuple[float, float], head: bool = True) -> None:
    """A line through points, with an arrow head on its last piece."""
    axis.plot([x for x, _ in points], [y for _, y in points], color=INK, linewidth=1.1, solid_capstyle="butt")
    if head:
        style = {"arrowstyle": "-|>", "color": INK, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", points[-1], points[-2], arrowprops=style)


def text(axis: Axes, x: float, y: float, words: str, size: float) -> None:
    """Words about a point."""
    axis.text(x, y, words, ha="center", va="center", fontsize=size, color=INK)
