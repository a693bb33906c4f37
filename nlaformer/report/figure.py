"""What all pictures share: colours, axes, and writing a figure to a file. No pyplot: figures are plain objects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlaformer.errors import FileError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "CURVES",
    "FAINT",
    "GREEN",
    "GREY",
    "INK",
    "MARKERS",
    "ORANGE",
    "curve",
    "panels",
    "reference",
    "save",
    "tidy",
]

INK, FAINT = "#222222", "#8a8f98"
BLUE, ORANGE, GREEN, GREY = "#dbe7f5", "#fbe3cc", "#dcefdc", "#eef0f2"
# The colours of Okabe and Ito, which remain distinct with colour blindness. Curves also differ in their markers.
CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P")
# Without dates, versions and random names, a file changes only if its picture does.
_PLAIN = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
_STYLE: dict[Any, Any] = {"svg.hashsalt": "nlaformer", "svg.fonttype": "none"}


def panels(count: int, width: float = 3.4, height: float = 3.0, share: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` axes side by side, with one scale unless ``share`` is false."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(width * count, 5.2), height), layout="constrained")
    grid = figure.subplots(1, count, squeeze=False, sharey=share)
    return figure, list(grid[0])


def tidy(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """The look of all axes: a faint grid, no frame, labels that say what is measured."""
    axes.set_title(title, color=INK, fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    if x.startswith("iteration"):
        axes.locator_params(axis="x", integer=True, nbins=8)
    axes.grid(color=FAINT, alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def curve(axes: Axes, values: Sequence[float], label: str, which: int, start: int = 0, style: str = "-") -> None:
    """A learned curve over the iterations, in the colour and with the marker of its number."""
    axes.plot(
        range(start, start + len(values)), values, color=CURVES[which % 6], marker=MARKERS[which % 6], markersize=3.2,
        markevery=max(len(values) // 20, 1), linewidth=1.5, linestyle=style, label=label,
    )  # fmt: skip


def reference(axes: Axes, values: Sequence[float], label: str, style: str = "--") -> None:
    """A classical method, for comparison: dark and dashed."""
    axes.plot(values, color=INK, linewidth=1.1, linestyle=style, label=label)


def save(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write a figure as PNG or SVG into a folder that exists."""
    from matplotlib import rc_context

    kind = path.suffix.lower()
    if kind not in _PLAIN:
        raise FileError(f"pictures are written as PNG or SVG; {path} does not end in .png or .svg")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    try:
        with rc_context(_STYLE):
            figure.savefig(path, dpi=dpi, facecolor="white", metadata=_PLAIN[kind])
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    return path
