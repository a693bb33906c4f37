"""The picture of a compiled algorithm: its error and its program's over the iterations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nlaformer.compiler import measure
from nlaformer.report.figure import CURVES, INK, panels, save, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nlaformer.compiler.algorithm import Algorithm

_COMPILED, _PAPER, *_ = CURVES


def draw_convergence(compiled: Algorithm, name: str, path: Path, iterations: int = 60) -> Path:
    """Relative errors of the transformer and of NumPy; for cg the paper's one-layer form too."""
    inputs = measure.systems(compiled.n, name)
    curves = measure.converge(compiled, name, inputs, iterations)
    figure, (axes,) = panels(1, width=7.2, height=4.2)
    layers = compiled.cost.loop.layers
    _curve(axes, curves.found, _COMPILED, f"transformer, {layers} layer{'s' if layers > 1 else ''} an iteration", 2.2)
    if name == "cg":
        for scheme, style in (("antisymmetric", "-"), ("paper", ":")):
            paper = _paper_form(compiled, inputs, iterations, scheme)
            _curve(axes, paper, _PAPER, f"Lemma 3.2, exact FFN, {scheme} heads", 1.4, style)
    _curve(axes, curves.reference, INK, "NumPy", 1.0, "--")
    axes.set_yscale("log")
    axes.set_ylim(1e-16, 10)
    axes.set_xlim(0, iterations)
    title = f"{name}, n = {compiled.n}: median and range over {measure.SYSTEMS} systems"
    tidy(axes, title, "iteration", "relative error |x_t - x| / |x|")
    axes.legend(frameon=False, fontsize=9)
    return save(figure, path)


def _curve(axes: Axes, errors: np.ndarray, colour: str, label: str, width: float, style: str = "-") -> None:
    errors = np.maximum(errors, 1e-17)
    axes.plot(np.median(errors, axis=0), color=colour, label=label, linewidth=width, linestyle=style)
    if style == "-":
        axes.fill_between(range(errors.shape[1]), errors.min(0), errors.max(0), color=colour, alpha=0.12, linewidth=0)


def _paper_form(compiled: Algorithm, inputs: dict[str, np.ndarray], iterations: int, scheme: str) -> np.ndarray:
    import nlaformer as nf

    form = nf.algorithm("cg", compiled.n, form="paper", scheme=scheme, dtype=compiled.dtype, verify=False)
    return measure.converge(form, "cg", inputs, iterations).found
