"""What a certified computation returns beside its answer, and how the lack of convergence is reported."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nlaformer.arrays import FloatArray
from nlaformer.errors import ConvergenceError, ConvergenceWarning, OptionError, unknown_name
from nlaformer.solvers.result import INFO, Contribution, SolveResult, Status, counted, in_lines, measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CHECKS = ("warn", "raise", "ignore")


def check_reporting(check: Any, callback: Any) -> None:
    """Refuse a way to report that does not exist, and a callback that cannot be called."""
    if check not in _CHECKS:
        raise unknown_name("check", check, _CHECKS)
    if callback is not None and not callable(callback):
        raise OptionError(f"callback is a {type(callback).__name__}; expected a function of the iterate")


def warn_or_raise(result: Outcome | SolveResult, check: str, above: int) -> None:
    """Report that something did not converge; the user's line is so many calls above."""
    if result.converged or check == "ignore":
        return
    if check == "raise":
        raise ConvergenceError(result.explain(), result)
    warnings.warn(result.explain(), ConvergenceWarning, stacklevel=above + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """How a computation ended, and what was measured.

    Attributes
    ----------
    status : how it ended
    detail : what is known beyond the status, a sentence or nothing
    iterations : steps taken, those of the model included
    residuals : the norm of the residual from the start on, (iterations + 1,)
    residual_norm : that of the returned answer, recomputed
    residual_bound : proven to be no less than the exact one
    tolerance : what the bound must not exceed
    evaluations : products with A, or values of F, outside the model, those of the certificate included
    method : what was done, in words
    model : what the model contributed, or None without one
    seconds : the whole time
    """

    status: Status
    detail: str
    iterations: int
    residuals: FloatArray
    residual_norm: float
    residual_bound: float
    tolerance: float
    evaluations: int
    method: str
    model: Contribution | None
    seconds: float

    @property
    def converged(self) -> bool:
        """Whether the certificate holds."""
        return self.status is Status.CONVERGED

    @property
    def info(self) -> int:
        """0 converged, above 0 the iterations without convergence, below 0 a breakdown."""
        return INFO.get(self.status, max(self.iterations, 1))

    def explain(self) -> str:
        """The status, with what is known beyond it."""
        return f"{self.status} ({self.detail})" if self.detail else str(self.status)

    @property
    def finding(self) -> str:
        """How it ended, after how many evaluations, with which residual."""
        from nlaformer.report.curves import outcome

        return outcome([self.status.name], [self.residual_norm], counted(self.evaluations, "evaluation"))

    def plot(self) -> Figure:
        """Draw the residuals over the iterations, and the tolerance; a matplotlib figure."""
        from nlaformer.report.curves import history_figure

        return history_figure(self.residuals, self.finding, "norm of the residual", level=("tolerance", self.tolerance))

    def _repr_html_(self) -> str:
        from nlaformer.report.html import panel, rows, spark

        curve = spark(self.residuals.tolist(), "norm of the residual by iteration, logarithmic")
        return panel(f"{type(self).__name__}: {self.finding}", rows(self._lines), curve)

    def __str__(self) -> str:
        return in_lines(self._lines)

    @property
    def _lines(self) -> dict[str, str]:
        work = f"{counted(self.iterations, 'iteration')}, {counted(self.evaluations, 'evaluation')}"
        return measured(self, self.explain(), work, f"{self.seconds:.3g} s")
