"""Curves over the iterations: how a compiled algorithm converges, and how the methods of a solve compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nlaformer.report.figure import CURVES, FAINT, INK, curve, panels, reference, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Curve", "convergence_figure", "residual_figure"]

_LOOKS = {"compiled": (CURVES[0], 2.2, "-"), "paper": (CURVES[1], 1.4, "-"), "paper heads": (CURVES[1], 1.4, ":"),
          "reference": (INK, 1.0, "--")}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """Relative errors of one method, (systems, iterations + 1), and how its curve looks: a key of ``_LOOKS``."""

    label: str
    errors: np.ndarray
    look: str


def convergence_figure(curves: Sequence[Curve], title: str) -> Figure:
    """Draw the median over the systems for each method, and the range as a band where the line is solid."""
    figure, (axes,) = panels(1, width=7.2, height=4.2)
    for drawn in curves:
        colour, width, style = _LOOKS[drawn.look]
        errors = np.maximum(drawn.errors, 1e-17)
        axes.plot(np.median(errors, axis=0), color=colour, label=drawn.label, linewidth=width, linestyle=style)
        if style == "-":
            steps = range(errors.shape[1])
            axes.fill_between(steps, errors.min(0), errors.max(0), color=colour, alpha=0.12, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(1e-16, 10)
    axes.set_xlim(0, curves[0].errors.shape[1] - 1)
    tidy(axes, title, "iteration", "relative error |x_t - x| / |x|")
    axes.legend(frameon=False, fontsize=9)
    return figure


def residual_figure(
    classical: Mapping[str, np.ndarray], learned: Mapping[str, np.ndarray], tolerance: np.ndarray, title: str
) -> Figure:
    """Draw |b - A x_k| / |b| over k for every method; of several systems the median.

    Residual norms are (..., K + 1), NaN after the last iteration of a system, which then keeps its last value.
    ``tolerance`` is (...): the residual norm at which a system has converged.
    """
    figure, (axes,) = panels(1, width=5.6, height=3.6)
    for k, (name, residuals) in enumerate(classical.items()):
        reference(axes, _median(residuals), name, ":" if k else "--")
    for k, (name, residuals) in enumerate(learned.items()):
        curve(axes, _median(residuals), name, k)
    start = _relative(next(iter(classical.values())))[1]
    wanted = float(np.median(np.ravel(tolerance) / start))
    if wanted > 0:
        axes.axhline(wanted, color=FAINT, linewidth=0.8)
    tidy(axes, title, "iteration", "|b - A x| / |b|")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.legend(fontsize=8, frameon=False)
    return figure


def _median(residuals: np.ndarray) -> list[float]:
    rows = _relative(residuals)[0]
    for k in range(1, rows.shape[1]):
        rows[:, k] = np.where(np.isnan(rows[:, k]), rows[:, k - 1], rows[:, k])
    values = np.median(rows, axis=0)
    # Zero has no logarithm; a curve that reaches it ends below everything else.
    least = values[values > 0].min(initial=1.0)
    return [float(max(value, least / 10)) for value in values]


def _relative(residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The residual norms over |b|, which is that of x = 0, (systems, K + 1); and what they were divided by."""
    rows = np.array(residuals, dtype=np.float64).reshape(-1, np.shape(residuals)[-1])
    start = np.where(rows[:, :1] > 0, rows[:, :1], 1.0)
    return rows / start, start[:, 0]
