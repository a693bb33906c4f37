"""Evaluation of programs with learned parts: their errors beside those of classical methods, iteration by iteration.

What an error is and which methods are the rivals is the family's own (``Family.error``, ``Family.rivals``); by default
squared relative errors ||x_t - x||^2 / ||x||^2 beside the classical methods for its matrices: where they are symmetric
positive definite CG, PCG with the diagonal (Jacobi), and PCG with a diagonal plus rank one by hand. Means and medians
over the problems, on every sigma of the training by itself and on families it was not trained on, up to four times the
T of the training. An iteration is a product with A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nlaformer import problems
from nlaformer.console import Sheet, to_text
from nlaformer.errors import OptionError, shown
from nlaformer.learn.config import Config
from nlaformer.learn.evaluate import SEED, THRESHOLDS, iterations_to
from nlaformer.learn.programs import TrainedProgram
from nlaformer.problems import Family, Systems
from nlaformer.program.data import ANSWER, ProgramGraph
from nlaformer.program.expression import Expression
from nlaformer.program.tensors import size
from nlaformer.report.html import panel, table, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEYOND = 4  # times the iterations of the training
_AT_ONCE = 1024  # systems
_ENTRIES = 2**27  # of matrices, a gigabyte
_RESIDUAL = 1e-6
FAILED = 1e-6  # an error above this after all iterations is a failure


@dataclass(frozen=True)
class Comparison:
    """Errors of x_0, x_1, ... on one set of problems by method: the model, "learned" if it was trained, then rivals."""

    label: str
    count: int
    T: int
    """Iterations of the training, of a model that was trained; the curves may go on."""
    mean: dict[str, tuple[float, ...]]
    median: dict[str, tuple[float, ...]]
    largest: dict[str, tuple[float, ...]]
    to_residual: dict[str, float]
    """Mean iterations to |b - A x_t| <= 1e-6 |b|, or what else the program's residual is; a problem that does not get
    there counts with all of them. Empty where the model has no residual of its own."""
    measure: str
    """What an error is, in words."""
    failures: dict[str, int]
    """Problems whose last error is above 1e-6 or not a number."""

    @property
    def rival(self) -> str:
        """The method to beat."""
        return list(self.mean)[1]

    def plot(self) -> Figure:
        """Draw the mean error of every iterate beside those of the rivals; a matplotlib figure."""
        from nlaformer.report.curves import errors_figure

        return errors_figure(self.mean, summary(self), f"{self.measure}, mean of {self.count:,}", trained=self.T)

    def __repr__(self) -> str:
        return f"<Comparison {self.label}, mean of {self.count:,}: {summary(self)}>"

    def __str__(self) -> str:
        sheet = self._sheet
        return "\n".join((sheet.title, to_text(sheet, width=120), sheet.note))

    def _repr_html_(self) -> str:
        sheet = self._sheet
        return panel(sheet.title, table(sheet.headings, sheet.lines), tag("div", sheet.note))

    @property
    def _sheet(self) -> Sheet:
        """The iterations of every method to some of the thresholds."""
        counts = self.iterations_to()
        reached = [k for k in range(len(THRESHOLDS)) if any(found[k] is not None for found in counts.values())]
        shown = sorted({*reached[::2], *reached[-1:]})
        headings = ("iterations to", *(f"{THRESHOLDS[k]:.0e}" for k in shown), "failures")
        lines = (
            (name, *("-" if found[k] is None else str(found[k]) for k in shown), f"{self.failures[name]:,}")
            for name, found in counts.items()
        )
        title = f"{self.measure.capitalize()}, mean of {self.count:,}: {self.label}"
        return Sheet(title, headings, tuple(lines), summary(self))

    def iterations_to(self, of: str = "mean") -> dict[str, list[int | None]]:
        """The first iterate of each method at or below 1e-1, ..., 1e-14; None if there is none."""
        return iterations_to(getattr(self, of), THRESHOLDS)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        counts = {of: self.iterations_to(of) for of in ("mean", "median")}
        return asdict(self) | {"thresholds": THRESHOLDS, "iterations_to": counts}


@torch.no_grad()
def compare(
    model: TrainedProgram, label: str, systems: Systems, iterations: int | None = None, family: Family | None = None
) -> Comparison:
    """A model beside the rivals of a family on given problems, on the model's device.

    Without a family, errors and rivals are those of symmetric positive definite systems.
    """
    systems = Systems(*(value.to(model.device, torch.float64) for value in systems))
    A, b, _ = systems
    T, family = model.config.T, problems.SPD() if family is None else family
    count = BEYOND * T if iterations is None else iterations
    pieces = zip(A.split(_AT_ONCE), b.split(_AT_ONCE), strict=True)
    runs = {"learned": torch.cat([model(A_k, b_k, iterations=count) for A_k, b_k in pieces])}
    return measured(label, systems, runs, family, T, model.graph(A.shape[-1]))


def measured(
    label: str,
    systems: Systems,
    model: dict[str, Tensor],
    family: Family,
    T: int,
    program: ProgramGraph | None = None,
) -> Comparison:
    """The iterates of a model, under its name, beside as many of each of the rivals of a family."""
    A, b, _ = systems
    ((_, own),) = model.items()
    count = own.shape[-2] - 1
    runs = model | family.rival_iterates(A, b, count)
    errors = {
        name: family.checked_error(found, Systems(*(value.clone() for value in systems))).cpu()
        for name, found in runs.items()
    }
    statistics: dict[str, Callable[[Tensor], Tensor]] = {
        "mean": lambda error: error.mean(0),
        "median": lambda error: error.median(0).values,
        "largest": lambda error: error.amax(0),
    }
    return Comparison(
        label,
        len(A),
        T,
        **{of: {name: tuple(take(e).tolist()) for name, e in errors.items()} for of, take in statistics.items()},
        to_residual={}
        if program is None or program.residual is None
        else {name: _mean_iterations(program, A, b, x) for name, x in runs.items()},
        measure=family.measure,
        failures={name: int((~(error[:, -1] <= FAILED)).sum()) for name, error in errors.items()},
    )


def _mean_iterations(program: ProgramGraph, A: Tensor, b: Tensor, x: Tensor) -> float:
    """Mean iterations until the residual is small beside its scale or, without one, beside the residual of 0."""
    counts = []
    at_once = max(_ENTRIES // (x.shape[1] * A.shape[-1] ** 2), 1)  # the products copy a matrix for every iterate
    for A_k, b_k, x_k in zip(*(value.split(at_once) for value in (A, b, x)), strict=True):
        values = {"A": A_k[:, None], "b": b_k[:, None], ANSWER: x_k}
        at_zero = _size(program.residual_value, values | {ANSWER: torch.zeros_like(x_k)})
        beside = _size(program.scale_value, values) if program.scale is not None else at_zero
        reached = _size(program.residual_value, values) <= _RESIDUAL * beside
        counts.append(torch.where(reached.any(1), reached.int().argmax(1), x.shape[1] - 1))
    return float(torch.cat(counts).double().mean())


def _size(expression: Expression, values: dict[str, Tensor]) -> Tensor:
    ((name, value),) = expression(values).items()
    return size(value, expression.outputs[name].ndim)


def evaluate_program(
    model: TrainedProgram, count: int = 512, seed: int = SEED, say: Callable[[str], None] = lambda label: None
) -> list[Comparison]:
    """A model on its own family, every sigma by itself, then on families it was not trained on.

    Examples
    --------
    >>> import nlaformer as nf
    >>> from nlaformer.learn.models import untrained
    >>> rows = evaluate_program(untrained(nf.recipe("guided-quickstart")), count=4)
    >>> rows[0].label, sorted(rows[0].mean)[:2]
    ('spd, sigma 1.2', ['CG', 'PCG, Jacobi'])
    """
    rows = []
    others = model.config.make_family().others()
    if not isinstance(others, Mapping) or not all(isinstance(family, Family) for family in others.values()):
        raise OptionError(f"{model.config.family}.others gave {shown(others)}; expected families by name")
    for label, family in (*own_families(model.config), *others.items()):
        say(label)
        rows.append(compare(model, label, family.sample(count, seed), family=family))
    return rows


def own_families(config: Config) -> Iterator[tuple[str, Family]]:
    """The family of the training; of several sigmas, each by itself."""
    if config.family != "spd":
        yield config.family, config.make_family()
    else:
        for sigma in config.sigma:
            yield f"spd, sigma {sigma:g}", problems.SPD(n=config.n, sigma=(sigma,))


def summary(own: Comparison) -> str:
    """How the model's iterations compare with its rival's, in one sentence."""
    counts, rival = own.iterations_to(), own.rival
    pairs = [
        (mine, theirs)
        for mine, theirs in zip(counts[next(iter(own.mean))], counts[rival], strict=True)
        if mine is not None and theirs
    ]
    if not pairs:
        return f"No {own.measure} of 1e-01 or below is reached by both it and {rival}."
    share = [mine / theirs for mine, theirs in pairs]
    ends = dict.fromkeys(f"{round(100 * value)}%" for value in (min(share), max(share)))
    levels = "of 1e-01" if len(pairs) == 1 else f"from 1e-01 to {THRESHOLDS[len(pairs) - 1]:.0e}"
    return f"It takes {' to '.join(ends)} of the iterations of {rival} to a {own.measure} {levels}."
