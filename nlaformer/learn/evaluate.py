"""Evaluation: the iterates of a trained solver beside those of CG and PCG, on its own family and on others.

Errors are the paper's squared relative errors ||x_t - x||^2 / ||x||^2, averaged over the systems. The discrepancy of
the intermediate variables is the paper's, 1/n sum_{t=2}^n 1/(n-1) ||NLAF_in^t - (r_t, d_t)||^2; for a model with
T < n iterates, the sum ends at T and n - 1 becomes the number of its terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from nlaformer import problems
from nlaformer.arrays import threads_for
from nlaformer.errors import OptionError
from nlaformer.learn.config import Config
from nlaformer.learn.data import Batch, with_teacher
from nlaformer.learn.model import Solver
from nlaformer.learn.models import Model
from nlaformer.problems import Systems

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 7_000_000  # of the evaluation systems; training draws from `stream`, never from `sample`
THRESHOLDS = tuple(10.0**-k for k in range(1, 15))
WITHIN_REACH = THRESHOLDS[:6]  # of solvers that imitate, which compute in float32


@dataclass(frozen=True)
class Evaluation:
    """Mean squared relative errors of x_0, ..., x_T on one set of systems."""

    label: str
    count: int
    model: tuple[float, ...]
    cg: tuple[float, ...]
    pcg: tuple[float, ...]
    intermediate: tuple[float, ...]
    """1/n ||NLAF_in^t - (r_t, d_t)||^2 for t = 0, ..., T."""
    discrepancy: float
    """The paper's mean of it over t = 2, ..., n."""
    median: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Medians over the systems of "model", "cg" and "pcg"."""
    upper: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Their 90% quantiles."""
    standard_error: tuple[float, ...] = ()
    """Standard error of the model's mean."""
    deviation: tuple[float, ...] = ()
    """||x^_t - x_t||^2 / ||x||^2, the distance of the model from its teacher's iterate."""
    silence: tuple[float, ...] = ()
    """1/n ||(r_t, d_t)||^2, the intermediate error of the zero predictor."""

    def __repr__(self) -> str:
        return f"<Evaluation {self.label}, mean of {self.count:,}: {findings(self)}>"

    def iterations_to(self) -> dict[str, list[int | None]]:
        """The first iterate of each method below 1e-1, ..., 1e-6; None if there is none."""
        return iterations_to({"model": self.model, "cg": self.cg, "pcg": self.pcg}, WITHIN_REACH)

    def plot(self, teacher: str = "cg") -> Figure:
        """Draw the mean error of every iterate beside CG and PCG; a matplotlib figure."""
        from nlaformer.report.curves import errors_figure

        curves = {"learned": self.model, "CG": self.cg, "PCG": self.pcg}
        return errors_figure(curves, findings(self, teacher), f"squared relative error, mean of {self.count:,}")

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        return asdict(self) | {"iterations_to": self.iterations_to()}


def iterations_to(curves: Mapping[str, Sequence[float]], bounds: Sequence[float]) -> dict[str, list[int | None]]:
    """The first iterate at or below each bound, by method; None where a curve does not get there.

    >>> iterations_to({"cg": (1.0, 0.1, 0.02)}, THRESHOLDS[:2])
    {'cg': [1, None]}
    """
    return {
        name: [next((t for t, error in enumerate(curve) if error <= bound), None) for bound in bounds]
        for name, curve in curves.items()
    }


def evaluate(
    solver: Model, count: int = 512, seed: int = SEED, say: Callable[[str], None] = lambda label: None
) -> list[Evaluation]:
    """Evaluate a solver: on its own family first, then out of distribution; ``say`` is called with each label.

    Examples
    --------
    >>> import nlaformer as nf
    >>> from nlaformer.learn.model import initial
    >>> rows = evaluate(initial(nf.recipe("quickstart")), count=16)
    >>> rows[0].label, rows[0].model[0]
    ('spd, sigma 1.2', 1.0)
    """
    if not isinstance(solver, Solver):
        raise OptionError("a program with learned parts is evaluated by nlaformer.learn.compare.evaluate_program")
    with threads_for(solver.entries(count)):
        rows = []
        for label, systems in sets(solver.config, count, seed):
            say(label)
            rows.append(measure(solver, label, systems))
        return rows


class Trial(NamedTuple):
    """Systems with the trajectories of CG and PCG."""

    label: str
    systems: Systems
    cg: Batch
    pcg: Batch


def trial(label: str, systems: Systems, T: int) -> Trial:
    """Run CG and PCG on the systems, T iterations each."""
    return Trial(label, systems, *(with_teacher(systems, name, T) for name in ("cg", "pcg")))


def measure(solver: Solver, label: str, systems: Systems) -> Evaluation:
    """Evaluate a solver on given systems, float64."""
    return judge(solver, trial(label, systems, solver.config.T))


@torch.no_grad()
def judge(solver: Solver, given: Trial) -> Evaluation:
    """Evaluate a solver, as ``Solver.iterates`` gives its answers, where CG and PCG have run already."""
    teacher, (A, b, x) = _taught(solver.config, given), given.systems
    device = solver.positions.device
    learned, read = (value.cpu() for value in solver.readings(A.double().to(device), b.double().to(device)))
    intermediate = _intermediate(read, teacher, solver.config.n)
    errors = {
        name: squared_relative_errors(iterates, x)
        for name, iterates in (("model", learned), ("cg", given.cg.x), ("pcg", given.pcg.x))
    }
    return Evaluation(
        given.label,
        len(x),
        **{name: _numbers(error.mean(0)) for name, error in errors.items()},
        intermediate=_numbers(intermediate),
        discrepancy=_discrepancy(intermediate, solver.config.n),
        median={name: _numbers(error.quantile(0.5, 0)) for name, error in errors.items()},
        upper={name: _numbers(error.quantile(0.9, 0)) for name, error in errors.items()},
        standard_error=_numbers(errors["model"].std(0, correction=0) / len(x) ** 0.5),
        deviation=_numbers(squared_deviations(learned, teacher.x, x).mean(0)),
        silence=_numbers(teacher.rd.square().sum(-1).mean(0) / solver.config.n),
    )


def _taught(config: Config, given: Trial) -> Batch:
    """The systems with the trajectory of the config's own teacher."""
    if config.teacher in ("cg", "pcg") and config.probe is None:
        return given.cg if config.teacher == "cg" else given.pcg
    return with_teacher(given.systems, config.make_teacher(), config.T)


@torch.no_grad()
def validation(model: Model, batch: Batch) -> dict[str, Any]:
    """The short evaluation during training: the errors and, of a solver, the discrepancy from its teacher."""
    if not isinstance(model, Solver):
        iterates = model(batch.A.to(model.device), batch.b.to(model.device)).cpu()
        error = model.config.make_family().checked_error(iterates, Systems(batch.A, batch.b, batch.x_true))
        return {"squared_relative_error": _numbers(error.mean(0)), "median": _numbers(error.median(0).values)}
    with threads_for(model.entries(len(batch.A))):
        found = model(batch.A.to(model.positions), batch.b.to(model.positions))
    learned, read = (value.double().cpu() for value in found)
    intermediate = _intermediate(read, batch, model.config.n)
    error = squared_relative_errors(learned, batch.x_true).mean(0)
    return {"squared_relative_error": _numbers(error), "discrepancy": _discrepancy(intermediate, model.config.n)}


def _intermediate(read: Tensor, batch: Batch, n: int) -> Tensor:
    """1/n ||NLAF_in^t - (r_t, d_t)||^2 averaged over the systems, (T+1,)."""
    return (read - batch.rd).square().sum(-1).mean(0) / n


def _discrepancy(intermediate: Tensor, n: int) -> float:
    terms = intermediate[2 : n + 1]
    return terms.mean().item() if len(terms) else float("nan")


def squared_relative_errors(iterates: Tensor, x: Tensor) -> Tensor:
    """The paper's error of every iterate, (count, T+1), for iterates (count, T+1, n) and solutions x (count, n)."""
    return squared_deviations(iterates, x.unsqueeze(1), x)


def squared_deviations(iterates: Tensor, others: Tensor, x: Tensor) -> Tensor:
    """The squared distance of two methods' iterates, ||x^_t - x_t||^2 / ||x||^2: (count, T+1)."""
    return (iterates - others).square().sum(-1) / x.square().sum(-1, keepdim=True)


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())


def sets(config: Config, count: int, seed: int = SEED) -> Iterator[tuple[str, Systems]]:
    """The family a solver was trained on, then other spreads of its diagonal, other scales, other families."""
    systems = config.make_family().sample(count, seed)
    A, b, x = systems
    yield own_label(config), systems
    for sigma in (0.8, 1.0, 1.2, 1.4, 1.8):
        if config.family != "spd" or (sigma,) != config.sigma:
            yield f"spd, sigma {sigma}", problems.SPD(n=config.n, sigma=(sigma,)).sample(count, seed)
    yield "A and b times 2", Systems(2 * A, 2 * b, x)
    yield "b times 4", Systems(A, 4 * b, 4 * x)
    for name in problems.families():
        if not problems.FAMILIES[name].definite or name in ("spd", "matrix-market", config.family):
            continue
        if not problems.complaints(name, n=config.n):
            yield name, problems.family(name, n=config.n).sample(count, seed)


def own_label(config: Config) -> str:
    """The label of the systems that a solver was trained on."""
    return f"{config.family}, sigma {'+'.join(map(str, config.sigma))}" if config.family == "spd" else config.family


def findings(own: Evaluation, teacher: str = "cg") -> str:
    """How the learned iterates compare with their teacher's, "cg" or "pcg", in one sentence; with CG's for others.

    >>> findings(Evaluation("", 1, (1, 0.1, 0.02, 0.019), (1, 0.5, 0.1, 0.001), (1,) * 4, (0,) * 4, 0.0))
    'Ahead of CG up to t = 2, by a factor of 5 at most; from t = 2 on the error stays near 0.019, CG reaches 0.001.'
    """
    if not all(map(math.isfinite, own.model)):
        return "Some of its iterates are not finite, so it cannot be compared."
    if worse_than_zero(own.model):
        return (
            f"Its last error, {own.model[-1]:.2g}, is above that of x = 0: it has learned nothing yet, or training "
            "became unstable; a lower rate (lr), a longer warmup or another seed may help."
        )
    teacher = teacher if teacher in ("cg", "pcg") else "cg"
    theirs, name, last, end = getattr(own, teacher), teacher.upper(), len(own.model) - 1, own.model[-1]
    ahead = next((t for t in range(1, last + 1) if own.model[t] >= theirs[t]), last + 1) - 1
    stalls = next(t for t in range(last + 1) if max(own.model[t:]) <= 1.25 * end)
    text = f"Behind {name} from t = 1 on"
    if ahead > 0:
        factor = max(theirs[t] / own.model[t] for t in range(1, ahead + 1))
        text = f"Ahead of {name} up to t = {ahead}, by a factor of {plain_factor(factor)} at most"
    if stalls < last:
        text += f"; from t = {stalls} on the error stays near {end:.2g}, {name} reaches {theirs[-1]:.2g}"
    return text + "."


def worse_than_zero(errors: Sequence[float]) -> bool:
    """Whether a curve of errors ends above 1, the error of x = 0, or is not finite there.

    >>> [worse_than_zero([0.5, last]) for last in (0.1, 1.0, 1.1, math.inf, math.nan)]
    [False, False, True, True, True]
    """
    return not errors[-1] <= 1


def plain_factor(factor: float) -> str:
    """Two digits, without an exponent: 1.4, 330, 3,300."""
    return f"{float(f'{factor:.2g}'):,.0f}" if factor >= 10 else f"{factor:.2g}"
