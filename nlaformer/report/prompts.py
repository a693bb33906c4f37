"""The token matrix P before, between and after the layers of a model, register by register."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nlaformer.report.figure import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["prompt_figure"]

_EXPONENT = "exponent"  # the register of a power of two, which is not on the scale of the data


def prompt_figure(
    states: Sequence[tuple[str, np.ndarray]], registers: Sequence[tuple[str, int]], sink: bool, title: str
) -> Figure:
    """Draw token matrices (rows, tokens), each with its title, in one scale of colours.

    ``registers`` gives the names and heights of the rows from the top; ``sink`` says whether the first column is one.
    A register named "exponent" is written as a number.
    """
    from matplotlib.figure import Figure

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
    figure = Figure(figsize=(1.6 + across * width, 0.3 + down * height), layout="constrained")
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
