"""The residual against the iterations, one curve for every method that can solve the system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nlaformer.report.figure import FAINT, curve, panels, reference, tidy
from nlaformer.solvers.methods import POLICIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nlaformer.solvers.result import SolveResult

_LARGEST = 8  # times the model's size


def compare(A: Any, b: Any, model: Any, **options: Any) -> dict[str, SolveResult]:
    """Solve by every method: CG, PCG (by the diagonal unless there is an M), and those that use a model.

    Systems of many times the model's size, which it would see block by block at every call, are left to "auto".
    """
    import nlaformer as nf

    M = options.pop("M", None)
    found = {
        "CG": nf.cg(A, b, check="ignore", **options),
        "PCG": nf.pcg(A, b, M="jacobi" if M is None else M, check="ignore", **options),
    }
    small = model is not None and A.shape[-1] <= _LARGEST * model.config.n
    for method in () if model is None else POLICIES if small else ("auto",):
        found[method] = nf.solve(A, b, model=model, method=method, M=M, check="ignore", **options)
    return found


def residual_figure(results: dict[str, SolveResult], title: str) -> Figure:
    """|b - A x_k| / |b| over k; of several systems the median, where one that has ended stays at its last value."""
    figure, (axes,) = panels(1, width=5.6, height=3.6)
    learned = [name for name in results if name in POLICIES]
    for name, result in results.items():
        values = _median(result)
        if name in learned:
            curve(axes, values, name, learned.index(name))
        else:
            reference(axes, values, name, "--" if name == "CG" else ":")
    wanted = float(np.median([_relative(result)[1] for result in results.values()]))
    if wanted > 0:
        axes.axhline(wanted, color=FAINT, linewidth=0.8)
    tidy(axes, title, "iteration", "|b - A x| / |b|")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.legend(fontsize=8, frameon=False)
    return figure


def _median(result: SolveResult) -> list[float]:
    rows = _relative(result)[0]
    for k in range(1, rows.shape[1]):
        rows[:, k] = np.where(np.isnan(rows[:, k]), rows[:, k - 1], rows[:, k])
    values = np.median(rows, axis=0)
    # Zero has no logarithm; a curve that reaches it ends below everything else.
    least = values[values > 0].min(initial=1.0)
    return [float(max(value, least / 10)) for value in values]


def _relative(result: SolveResult) -> tuple[np.ndarray, float]:
    """The residuals and the tolerance over |b|, which is the residual of x = 0: (systems, K + 1)."""
    rows = np.array(result.residuals, dtype=np.float64).reshape(-1, np.shape(result.residuals)[-1])
    begun = np.where(rows[:, :1] > 0, rows[:, :1], 1.0)
    return rows / begun, float(np.median(np.ravel(result.tolerance) / begun[:, 0]))
