"""What a solve returns: the answer, how it ended, and what was measured."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias

import numpy as np

from nlaformer.arrays import ArrayT, FloatArray, IntArray, ObjectArray

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


@dataclass(frozen=True, eq=False)
class SolveResult(Generic[ArrayT]):
    """The answer with its certificate; unpacks as ``x, info`` like SciPy's.

    For a single right-hand side, the numbers per system are plain numbers and ``status`` is a ``Status``; for several
    they are arrays in the shape of the batch.

    Attributes
    ----------
    x : the answer, in the kind and precision of the input; without convergence, the iterate of the smallest residual
    x64 : the answer before it was rounded to that precision, float64
    status : how it ended
    detail : what is known beyond the status, a sentence or nothing
    iterations : steps taken: applications of the model whose answer was used, and steps of the classical method
    residuals : |b - A x_k| from k = 0 on, (..., K + 1), NaN after a system has ended; the running values of the
        method, except the last of a system that converged, which is recomputed. For least squares, here and below, it
        is |A^T (b - A x_k)|
    residual_norm : |b - A x| of the returned x, recomputed
    residual_bound : proven to be no less than the exact |b - A x|; for a LinearOperator its products are taken
        as exact, since their rounding errors are not known
    tolerance : max(rtol |b|, atol), for least squares max(rtol |A^T b|, atol), which the bound must not exceed
    matvecs : products with A and A^T outside the model, those of the certificate included
    method : what was done, in words
    model : what the model contributed, or None without one
    setup_seconds, model_seconds, classical_seconds : where the time went; set-up is reading the input and loading a
        model
    trajectory : x_k, r_k, d_k of every step if requested, each (..., K + 1, n)
    least_squares : whether |b - A x| was minimized, so that the residual is that of optimality, A^T (b - A x)
    """

    x: ArrayT
    x64: ArrayT
    status: Status | ObjectArray
    detail: str | ObjectArray
    iterations: Counts
    residuals: FloatArray
    residual_norm: Numbers
    residual_bound: Numbers
    tolerance: Numbers
    matvecs: Counts
    method: str
    model: Contribution | None
    setup_seconds: float
    model_seconds: float
    classical_seconds: float
    trajectory: KeptSteps[ArrayT] | None = None
    least_squares: bool = False

    @property
    def converged(self) -> bool:
        """Whether every system converged."""
        return all(status is Status.CONVERGED for status in self._statuses)

    @property
    def info(self) -> Counts:
        """As in SciPy: 0 converged, above 0 the iterations without convergence, below 0 a breakdown."""
        counts = np.atleast_1d(self.iterations).ravel()
        values = [INFO.get(s, max(int(k), 1)) for s, k in zip(self._statuses, counts, strict=True)]
        return values[0] if isinstance(self.status, Status) else np.reshape(values, np.shape(self.status))

    @property
    def seconds(self) -> float:
        """The whole time."""
        return self.setup_seconds + self.model_seconds + self.classical_seconds

    def __iter__(self) -> Iterator[ArrayT | Counts]:
        return iter((self.x, self.info))

    def __str__(self) -> str:
        return in_lines(self._lines)

    @property
    def _lines(self) -> dict[str, str]:
        products = "with A and A^T" if self.least_squares else "with A"
        work = f"{counted(self.iterations, 'iteration')}, {counted(self.matvecs, 'product')} {products}"
        parts = {"set-up": self.setup_seconds, "model": self.model_seconds, "classical": self.classical_seconds}
        time = f"{self.seconds:.3g} s: " + ", ".join(f"{name} {seconds:.3g} s" for name, seconds in parts.items())
        lines = measured(self, self._status_line(), work, time)
        return lines | {"residual": f"{_OPTIMALITY}: {lines['residual']}"} if self.least_squares else lines

    def __repr__(self) -> str:
        return f"<SolveResult: {self._status_line()}>"

    @property
    def finding(self) -> str:
        """How it ended, after how many products with A, with which residual."""
        from nlaformer.report.curves import outcome

        names = [status.name for status in self._statuses]
        return outcome(names or ["no systems"], np.ravel(self.residual_norm).tolist(), counted(self.matvecs, "product"))

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
        level = (
            ("tolerance" if known.size == 1 else "median tolerance", float(np.median(known))) if known.size else None
        )
        return history_figure(self.residuals, self.finding, self._drawn, level=level)

    @property
    def _drawn(self) -> str:
        return f"norm of the residual{f' {_OPTIMALITY}' if self.least_squares else ''}"

    def _repr_html_(self) -> str:
        from nlaformer.report.html import panel, rows, spark

        told = [rows(self._lines)]
        if isinstance(self.status, Status):
            told.append(spark(np.ravel(self.residuals).tolist(), f"{self._drawn} by iteration, logarithmic"))
        return panel(f"Solve: {self.finding}", *told)

    def explain(self) -> str:
        """Why systems did not converge: a line for a single one, else a count and each status that occurs."""
        message = self._status_line()
        if not isinstance(self.status, Status):
            seen = set(self._statuses) - {Status.CONVERGED}
            message += "".join(f"\n{status}" for status in Status if status in seen)
        return message

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


def measured(result: Any, status: str, work: str, time: str) -> dict[str, str]:
    """What is told of a SolveResult and of an Outcome, by name."""
    norm, bound, limit = (_span(v) for v in (result.residual_norm, result.residual_bound, result.tolerance))
    return {
        "status": status,
        "residual": f"{norm}, at most {bound} by the certificate; tolerance {limit}",
        "method": result.method,
        "work": work,
        "model": str(result.model or "none"),
        "time": time,
    }


def in_lines(rows: Mapping[str, str]) -> str:
    """Names and values in aligned lines."""
    return "\n".join(f"{name:<10}{value}" for name, value in rows.items())


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
