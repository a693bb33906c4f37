"""What a certified computation returns beside its answer, and how the lack of convergence is reported."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeAlias

import numpy as np

from nlaformer.arrays import ArrayT, FloatArray, IntArray, ObjectArray
from nlaformer.errors import ConvergenceError, ConvergenceWarning, OptionError, unknown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of a single system a plain number, of several an array in the shape of the batch.
Counts: TypeAlias = int | IntArray
Numbers: TypeAlias = float | FloatArray


class Status(enum.Enum):
    """How a solve ended; the value is the sentence a user reads. Only CONVERGED is a success."""

    CONVERGED = "converged: the residual, recomputed in float64 from the returned answer, is within the tolerance"
    MAXITER = "iterations ran out: the residual is still above the tolerance; raise maxiter, or give a preconditioner M"
    STAGNATED = (
        "stagnated: the residual stopped falling above the tolerance; either (a) the matrix, or the Jacobian, is "
        "singular or nearly so, or (b) the tolerance is below what float64 can reach or prove: raise rtol or atol"
    )
    PRECISION = (
        "precision: the float64 answer, result.x64 (vector64 of an eigenpair), meets the tolerance, but rounded to the "
        "precision of the input it does not: use that, give float64 input, or raise rtol"
    )
    NOT_SPD = (
        "not symmetric positive definite: the matrix (or the preconditioner) is not what conjugate gradients need, so "
        'the answer must not be used; use method="gmres", or a direct solver'
    )
    NOT_LINEAR = (
        "not linear: the LinearOperator is not the same matrix in all its products, so the answer must not be used; "
        "check its matvec, and its rmatvec where A is not square"
    )
    NOT_SYMMETRIC = (
        "not symmetric: an eigenvalue is enclosed for symmetric matrices alone, so the answer must not be used; if A "
        "is symmetric up to rounding, pass (A + A.T) / 2"
    )
    INTERRUPTED = "interrupted: the answer is the iterate of the smallest residual so far, above the tolerance"
    NONFINITE = "not finite: the input holds NaN or infinity, or the answer leaves the range of the numbers"

    def __str__(self) -> str:
        return self.value


_OPTIMALITY = "of optimality, A^T (b - A x)"  # what a residual is for least squares
INFO = {
    Status.CONVERGED: 0,
    Status.NOT_SPD: -1,
    Status.NONFINITE: -2,
    Status.NOT_LINEAR: -3,
    Status.NOT_SYMMETRIC: -4,
}


@dataclass(frozen=True, eq=False)
class Contribution:
    """What the model did for each system, in the shape of the batch.

    Attributes
    ----------
    applications : how often the model was asked
    accepted : how many of its answers were used
    reduction : the residual where its part ended over the residual where it began; 1 if no answer was used
    reasons : why answers were refused, a sentence for each reason, most frequent first
    """

    applications: Counts
    accepted: Counts
    reduction: Numbers
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        asked, used = int(np.sum(self.applications)), int(np.sum(self.accepted))
        helped = np.asarray(self.reduction)[np.asarray(self.accepted) > 0]
        share = np.exp(np.log(helped).mean()) if len(helped) and helped.min() > 0 else None
        digits = "" if share is None else f", residual brought to {share:.1e} of its start"
        refused = f"; refused: {self.reasons[0]}" if self.reasons else ""
        return f"{used:,} of {asked:,} answers used{digits}{refused}"


class KeptSteps(NamedTuple, Generic[ArrayT]):
    """x_k, r_k and d_k of every step, each (..., K + 1, n), in the kind of array of the input."""

    x: ArrayT
    r: ArrayT
    d: ArrayT


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """How a computation ended, and what was measured.

    For a single system, the numbers per system are plain numbers and ``status`` is a ``Status``; for several they are
    arrays in the shape of the batch.

    Attributes
    ----------
    status : how it ended
    detail : what is known beyond the status, a sentence or nothing
    iterations : steps taken, those of the model included
    residuals : the norm of the residual from the start on, (..., iterations + 1), NaN after a system has ended
    residual_norm : that of the returned answer, recomputed
    residual_bound : proven to be no less than the exact one
    tolerance : what the bound must not exceed
    evaluations : products with A, or values of F, outside the model, those of the certificate included
    method : what was done, in words
    model : what the model contributed, or None without one
    seconds : the whole time
    """

    status: Status | ObjectArray
    detail: str | ObjectArray
    iterations: Counts
    residuals: FloatArray
    residual_norm: Numbers
    residual_bound: Numbers
    tolerance: Numbers
    evaluations: Counts
    method: str
    model: Contribution | None
    seconds: float

    _evaluation: ClassVar[str] = "evaluation"

    @property
    def converged(self) -> bool:
        """Whether the certificate holds, of every system."""
        return all(status is Status.CONVERGED for status in self._statuses)

    @property
    def info(self) -> Counts:
        """As in SciPy: 0 converged, above 0 the iterations without convergence, below 0 a breakdown."""
        counts = np.atleast_1d(self.iterations).ravel()
        values = [INFO.get(s, max(int(k), 1)) for s, k in zip(self._statuses, counts, strict=True)]
        return values[0] if isinstance(self.status, Status) else np.reshape(values, np.shape(self.status))

    @property
    def finding(self) -> str:
        """How it ended, after how many evaluations, with which residual."""
        from nlaformer.report.curves import outcome

        names = [status.name for status in self._statuses] or ["no systems"]
        return outcome(names, np.ravel(self.residual_norm).tolist(), counted(self.evaluations, self._evaluation))

    def explain(self) -> str:
        """Why systems did not converge: a line for a single one, else a count and each status that occurs."""
        message = self._status_line()
        if not isinstance(self.status, Status):
            seen = set(self._statuses) - {Status.CONVERGED}
            message += "".join(f"\n{status}" for status in Status if status in seen)
        return message

    def plot(self) -> Figure:
        """Draw the residuals over the iterations, and the tolerance; of several systems the median and the range.

        Returns
        -------
        matplotlib.figure.Figure : notebooks show it, ``savefig`` writes it

        Examples
        --------
        >>> import numpy as np, nlaformer as nf
        >>> result = nf.solve(np.diag([1.0, 2.0]), np.ones(2))
        >>> result.plot().axes[0].get_title() == result.finding
        True
        """
        from nlaformer.report.curves import history_figure

        known = np.ravel(self.tolerance)
        name = "tolerance" if known.size == 1 else "median tolerance"
        level = (name, float(np.median(known))) if known.size else None
        return history_figure(self.residuals, self.finding, self._drawn, level=level)

    def __str__(self) -> str:
        return "\n".join(f"{name:<10}{value}" for name, value in self._lines.items())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._status_line()}>"

    def _repr_html_(self) -> str:
        from nlaformer.report.html import panel, rows, spark

        told = [rows(self._lines)]
        if isinstance(self.status, Status):
            told.append(spark(np.ravel(self.residuals).tolist(), f"{self._drawn} by iteration, logarithmic"))
        return panel(f"{type(self).__name__}: {self.finding}", *told)

    @property
    def _lines(self) -> dict[str, str]:
        """What is told, by name."""
        norm, bound, limit = (_span(v) for v in (self.residual_norm, self.residual_bound, self.tolerance))
        work = f"{counted(self.iterations, 'iteration')}, {counted(self.evaluations, self._evaluation)}"
        return {
            "status": self._status_line(),
            "residual": f"{norm}, at most {bound} by the certificate; tolerance {limit}",
            "method": self.method,
            "work": work,
            "model": str(self.model or "none"),
            "time": f"{self.seconds:.3g} s",
        }

    @property
    def _drawn(self) -> str:
        return "norm of the residual"

    @property
    def _statuses(self) -> list[Status]:
        return [self.status] if isinstance(self.status, Status) else list(np.ravel(self.status))

    def _status_line(self) -> str:
        if isinstance(self.status, Status):
            return f"{self.status} ({self.detail})" if self.detail else str(self.status)
        found = self._statuses
        counts = {status: found.count(status) for status in Status if status in found}
        words = (f"{count:,} {str(status).partition(':')[0]}" for status, count in counts.items())
        return f"{len(found):,} systems: " + ", ".join(words)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SolveResult(Outcome, Generic[ArrayT]):
    """The answer of a linear system with its certificate; unpacks as ``x, info`` like SciPy's.

    The residual is |b - A x|; of least squares it is |A^T (b - A x)|. Of a LinearOperator, products are taken as exact.
    ``residuals`` are the running values of the method, except the last of a system that converged, which is recomputed;
    ``evaluations`` are products with A and A^T.

    Attributes
    ----------
    x : the answer, in the kind and precision of the input; without convergence, the iterate of the smallest residual
    x64 : the answer before it was rounded to that precision, float64
    setup_seconds, model_seconds, classical_seconds : where the time went; set-up is reading the input and loading a
        model
    trajectory : x_k, r_k, d_k of every step if requested, each (..., K + 1, n)
    least_squares : whether |b - A x| was minimized, so that the residual is that of optimality
    """

    x: ArrayT
    x64: ArrayT
    setup_seconds: float
    model_seconds: float
    classical_seconds: float
    trajectory: KeptSteps[ArrayT] | None = None
    least_squares: bool = False

    _evaluation: ClassVar[str] = "product"

    @property
    def matvecs(self) -> Counts:
        """Products with A and A^T outside the model, those of the certificate included."""
        return self.evaluations

    def __iter__(self) -> Iterator[ArrayT | Counts]:
        return iter((self.x, self.info))

    @property
    def _lines(self) -> dict[str, str]:
        lines = super()._lines
        parts = {"set-up": self.setup_seconds, "model": self.model_seconds, "classical": self.classical_seconds}
        lines["time"] += ": " + ", ".join(f"{name} {seconds:.3g} s" for name, seconds in parts.items())
        lines["work"] += " with A and A^T" if self.least_squares else " with A"
        if self.least_squares:
            lines["residual"] = f"{_OPTIMALITY}: {lines['residual']}"
        return lines

    @property
    def _drawn(self) -> str:
        return f"norm of the residual{f' {_OPTIMALITY}' if self.least_squares else ''}"


def counted(values: Counts, what: str) -> str:
    """A number of things in words.

    >>> counted(1, "step"), counted(2, "step")
    ('1 step', '2 steps')
    """
    text = _span(values)
    return f"{text} {what}" if text == "1" else f"{text} {what}s"


def _span(values: Counts | Numbers) -> str:
    """A number, or the smallest and largest of several; NaN stands for systems that have none."""
    known = np.ravel(values)[~np.isnan(np.ravel(values))]
    low, high = (known.min(), known.max()) if known.size else (np.nan, np.nan)
    shown = [f"{v:,}" if isinstance(v, (int, np.integer)) else f"{v:.2e}" for v in (low, high)]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"


_CHECKS = ("warn", "raise", "ignore")


def check_reporting(check: Any, callback: Any) -> None:
    """Refuse a way to report that does not exist, and a callback that cannot be called."""
    if check not in _CHECKS:
        raise unknown_name("check", check, _CHECKS)
    if callback is not None and not callable(callback):
        raise OptionError(f"callback is a {type(callback).__name__}; expected a function of the iterate")


def warn_or_raise(result: Outcome, check: str, above: int) -> None:
    """Report that something did not converge; the user's line is so many calls above."""
    if result.converged or check == "ignore":
        return
    if check == "raise":
        raise ConvergenceError(result.explain(), result)
    warnings.warn(result.explain(), ConvergenceWarning, stacklevel=above + 1)
