"""Pictures of arrays: curves over the iterations, token matrices, and what all pictures share.

Without pyplot: figures are plain objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nlaformer.errors import FileError, MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#222222", "#8a8f98"
BLUE, ORANGE, GREEN, GREY = "#dbe7f5", "#fbe3cc", "#dcefdc", "#eef0f2"
# The colours of Okabe and Ito, which remain distinct with colour blindness. Curves also differ in their markers.
CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P")
# Without dates, versions and random names, a file changes only if its picture does.
PLAIN = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
STYLE: dict[Any, Any] = {"svg.hashsalt": "nlaformer", "svg.fonttype": "none"}
_LOOKS = {"compiled": (CURVES[0], 2.2, "-"), "paper": (CURVES[1], 1.4, "-"), "paper heads": (CURVES[1], 1.4, ":"),
          "reference": (INK, 1.0, "--")}  # fmt: skip
_EXPONENT = "exponent"  # the register of a power of two, which is not on the scale of the data


def blank(width: float, height: float, **options: Any) -> Figure:
    """An empty figure, in inches; notebooks show it."""
    try:
        from nlaformer.report.picture import Picture
    except ImportError as error:
        raise MissingPackageError(f"pictures need matplotlib: pip install matplotlib ({error})") from error
    return Picture(figsize=(width, height), **options)


def panels(count: int, width: float = 3.4, height: float = 3.0, share: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` axes side by side, with one scale unless ``share`` is false."""
    figure = blank(max(width * count, 5.2), height, layout="constrained")
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
    if kind not in PLAIN:
        raise FileError(f"pictures are written as PNG or SVG; {path} does not end in .png or .svg")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    try:
        with rc_context(STYLE):
            figure.savefig(path, dpi=dpi, facecolor="white", metadata=PLAIN[kind])
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def convergence_figure(curves: Sequence[tuple[str, np.ndarray, str]], title: str) -> Figure:
    """Draw how methods converge: the median over the systems, and the range as a band where the line is solid.

    Each method is a label, relative errors (systems, iterations + 1), and a key of ``_LOOKS``.
    """
    figure, (axes,) = panels(1, width=7.2, height=4.2)
    for label, found, look in curves:
        colour, width, style = _LOOKS[look]
        errors = np.maximum(found, 1e-17)
        axes.plot(np.median(errors, axis=0), color=colour, label=label, linewidth=width, linestyle=style)
        if style == "-":
            steps = range(errors.shape[1])
            axes.fill_between(steps, errors.min(0), errors.max(0), color=colour, alpha=0.12, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(1e-16, 10)
    axes.set_xlim(0, found.shape[1] - 1)
    tidy(axes, title, "iteration", "relative error |x_t - x| / |x|")
    axes.legend(frameon=False, fontsize=9)
    return figure


def residual_figure(
    classical: Mapping[str, np.ndarray], learned: Mapping[str, np.ndarray], tolerance: np.ndarray, title: str
) -> Figure:
    """Draw |b - A x_k| / |b| over k for every method; of several systems the median. The title compares two of them.

    Residual norms are (..., K + 1), NaN after the last iteration of a system, which then keeps its last value.
    ``tolerance`` is (...): the residual norm at which a system has converged.
    """
    start = _relative(next(iter(classical.values())))[1]
    wanted = float(np.median(np.ravel(tolerance) / start))
    figure, (axes,) = panels(1, width=7.4, height=3.8)
    counts: dict[str, str] = {}
    for k, (names, values) in enumerate(_distinct(learned).items()):
        counts[names] = _first(values, wanted)
        curve(axes, values, f"{names}: {counts[names]}", k)
    best = sorted((int(count), names) for names, count in counts.items() if count.isdigit())[:1]
    for k, (names, values) in enumerate(_distinct(classical).items()):
        counts[names] = _first(values, wanted)
        reference(axes, values, f"{names}: {counts[names]}", ":" if k else "--")
    compared = [*(names for _, names in best), *_distinct(classical)][:2]
    title += "\nIterations to the tolerance: " + "; ".join(f"{names} {counts[names]}" for names in compared)
    if wanted > 0:
        axes.axhline(wanted, color=FAINT, linewidth=0.8, label="tolerance")
    tidy(axes, title, "iteration", "|b - A x| / |b|")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), title_fontsize=8,
                title="method: iterations", alignment="left")  # fmt: skip
    return figure


def _distinct(curves: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """The medians of several methods; those of methods that took the same steps once, under all their names."""
    found: dict[str, list[float]] = {}
    for name, residuals in curves.items():
        values = _median(residuals)
        same = next((names for names, known in found.items() if np.array_equal(known, values)), None)
        if same is not None:
            found = {f"{same}, {name}" if names == same else names: known for names, known in found.items()}
        else:
            found[name] = values
    return found


def _first(values: Sequence[float], wanted: float) -> str:
    """The first iteration at which a curve is not above a tolerance."""
    return next((str(k) for k, value in enumerate(values) if value <= wanted), "not reached")


def _median(residuals: np.ndarray) -> list[float]:
    values = np.median(held(_relative(residuals)[0]), axis=0)
    # Zero has no logarithm; a curve that reaches it ends below everything else.
    least = values[values > 0].min(initial=1.0)
    return [float(max(value, least / 10)) for value in values]


def held(systems: np.ndarray) -> np.ndarray:
    """Every NaN replaced by the value before it; one at the start stays."""
    for k in range(1, systems.shape[1]):
        systems[:, k] = np.where(np.isnan(systems[:, k]), systems[:, k - 1], systems[:, k])
    return systems


def _relative(residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The residual norms over |b|, which is that of x = 0, (systems, K + 1); and what they were divided by."""
    rows = np.array(residuals, dtype=np.float64).reshape(-1, np.shape(residuals)[-1])
    start = np.where(rows[:, :1] > 0, rows[:, :1], 1.0)
    return rows / start, start[:, 0]


def prompt_figure(
    states: Sequence[tuple[str, np.ndarray]], registers: Sequence[tuple[str, int]], sink: bool, title: str
) -> Figure:
    """Draw token matrices (rows, tokens), each with its title, in one scale of colours.

    ``registers`` gives the names and heights of the rows from the top; ``sink`` says whether the first column is one.
    A register named "exponent" is written as a number.
    """
    names = [name for name, _ in registers]
    starts = np.cumsum([0, *(height for _, height in registers)])
    power = int(starts[names.index(_EXPONENT)]) if _EXPONENT in names else None
    pictures = [P.copy() for _, P in states]
    if power is not None:
        for picture in pictures:
            picture[power] = 0
    largest = max(float(np.abs(picture).max()) for picture in pictures)
    (rows, tokens), across = pictures[0].shape, min(len(states), 4)
    down = -(-len(states) // across)
    height = min(12.0, 2.2 + 0.09 * rows)
    width = min(4.0, 1.3 + height * tokens / rows)
    figure = blank(1.6 + across * width, 0.3 + down * height, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    for axis in axes.flat[len(states) :]:
        axis.axis("off")
    for k, (axis, picture, (label, P)) in enumerate(zip(axes.flat, pictures, states, strict=False)):
        image = axis.imshow(picture, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
        axis.set_title(label, fontsize=10, color=INK)
        _rule(axis, starts, names if k % across == 0 else [""] * len(names), tokens, sink)
        if power is not None:
            number = f"{int(P[power, 0])}"
            axis.text(-0.3, power, number, fontsize=7, color=INK, va="center_baseline", ha="left")
    figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
    figure.suptitle(f"{title}: {rows} rows x {tokens} tokens", color=INK)
    return figure


def _rule(axis: Axes, starts: np.ndarray, names: Sequence[str], tokens: int, sink: bool) -> None:
    """Lines between registers and after the sink, names on the left, no other ticks."""
    for start in starts[1:-1]:
        axis.axhline(start - 0.5, color=FAINT, linewidth=0.7)
    if sink:
        axis.axvline(0.5, color=FAINT, linewidth=0.7, linestyle=":")
    axis.set_xticks([0, tokens - 1], ["sink" if sink else "1", str(tokens)], fontsize=8)
    axis.set_yticks([(start + stop - 1) / 2 for start, stop in pairwise(starts)], names, fontsize=9)
    axis.tick_params(length=0)
