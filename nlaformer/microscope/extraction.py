"""From a model to a short program: CG, PCG and the programs of ``short_programs``, constants fitted to its iterates.

With the model's x_t, the program's p_t and the solutions x, over systems that nothing was fitted on,

    R^2(t) = 1 - sum |x_t - p_t|^2 / sum |x_t - mean x_t|^2,
    share of the error(t) = 1 - sum |x_t - p_t|^2 / sum |x_t - x|^2,
    R^2 of the step(t) = 1 - sum |x_t - q_t|^2 / sum |x_t - x_(t-1)|^2,

where q_t is one step of the program from the model's own x_(t-1). The solution itself has a large R^2 where the model
is accurate, and explains none of its error: that is the control. The constants minimize the sum of the squared
deviations for t = 1, ..., ``until``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor

from nlaformer.compiler import library
from nlaformer.compiler.compiling import compile
from nlaformer.compiler.language import Program
from nlaformer.microscope.measures import numbers
from nlaformer.microscope.short_programs import DiagonalRefinement, Momentum, RankOneRefinement
from nlaformer.microscope.subject import program_method, subject
from nlaformer.problems import Family, Systems

SEED = 18_100_000
UNTIL = 6
_METHODS = ("start", "step")


@dataclass(frozen=True)
class Fit:
    """A program fitted to a model; the numbers by iterate are those of t = 1, ..., ``until``."""

    name: str
    constants: dict[str, float]
    lines: int
    r2: tuple[float, ...]
    error_share: tuple[float, ...]
    step_r2: tuple[float, ...]
    program: Program = field(repr=False)
    """With these constants, to be run or compiled."""

    def to_json(self) -> dict[str, object]:
        """The numbers as plain data."""
        return {key: value for key, value in vars(self).items() if key != "program"}


@dataclass(frozen=True)
class Extraction:
    """The programs fitted to a model, the best first."""

    model: str
    n: int
    family: str
    seed: int
    count: int
    fits: tuple[Fit, ...]
    solution_r2: tuple[float, ...]
    """The control: R^2 of the solution, which explains nothing of the model's error."""
    compiled_r2: tuple[float, ...]
    """R^2 of the best program as a compiled transformer."""

    def to_json(self) -> dict[str, object]:
        """The numbers as plain data."""
        own = {key: value for key, value in vars(self).items() if key != "fits"}
        return own | {"fits": [fit.to_json() for fit in self.fits]}


def extract(
    model: object,
    family: Family | None = None,
    *,
    programs: Sequence[Program] | None = None,
    until: int = UNTIL,
    count: int = 256,
    seed: int = SEED,
    say: Callable[[str], None] = lambda name: None,
) -> Extraction:
    """Short programs that predict a model's iterates, with fitted constants; the best one is compiled and compared.

    Parameters
    ----------
    model, family : as in ``nf.microscope``
    programs : programs whose float attributes are the constants to fit; by default CG, PCG and three short ones
    until : the last iterate that is fitted, at most T
    count : systems, half of them for the fit and all of another draw for the numbers
    seed : of the systems
    say : called with the name of each program before it is fitted

    Examples
    --------
    >>> import nlaformer as nf
    >>> class Damped(nf.Program):
    ...     omega = 0.02
    ...
    ...     def start(self, x0):
    ...         return dict(x=x0)
    ...
    ...     def step(self, A, b, x):
    ...         return dict(x=x + self.omega * (b - A @ x))
    >>> slow = type("Slow", (Damped,), {"omega": 0.05})()
    >>> found = nf.extract(slow, nf.problems.SPD(n=4), programs=[Damped()], until=3, count=8)
    >>> round(found.fits[0].constants["omega"], 6)
    0.05
    """
    of = subject(model, family, None)
    until = min(until, of.T)
    fitting, fresh = of.family.sample(max(count // 2, 1), seed), of.family.sample(count, seed + 1)
    wanted, held_out = (of.iterates(each.A, each.b, until) for each in (fitting, fresh))
    fits = []
    for template in _programs() if programs is None else programs:
        say(template.name)
        fitted = _fitted(template, fitting, wanted)
        fits.append(_judged(fitted, fresh, held_out))
    fits.sort(key=lambda fit: -sum(fit.r2))
    say("compiling the best")
    transformer = compile(fits[0].program, of.family.n, verify=False)
    compiled = program_method(transformer)(fresh.A, fresh.b, until)
    return Extraction(
        of.name,
        of.family.n,
        repr(of.family),
        seed,
        count,
        tuple(fits),
        solution_r2=_r2(fresh.x[:, None], held_out),
        compiled_r2=_r2(compiled, held_out),
    )


def _programs() -> tuple[Program, ...]:
    return library.program("cg"), library.program("pcg"), Momentum(), DiagonalRefinement(), RankOneRefinement()


def constants(program: Program) -> dict[str, float]:
    """The float attributes of a program's class by name."""
    return {name: value for name, value in vars(type(program)).items() if isinstance(value, float)}


def _with(program: Program, values: dict[str, float]) -> Program:
    """The same program with other constants."""
    kind = type(program)
    found = type(kind.__name__, (kind,), {**values, "__module__": kind.__module__})()
    assert isinstance(found, Program)
    return found


def _fitted(template: Program, systems: Systems, wanted: Tensor) -> Program:
    start, until = constants(template), wanted.shape[1] - 1

    def residuals(values: np.ndarray) -> np.ndarray:
        program = _with(template, dict(zip(start, values.tolist(), strict=True)))
        found = program_method(program)(systems.A, systems.b, until)
        difference = torch.nan_to_num(found - wanted, nan=1e6, posinf=1e6, neginf=-1e6)
        return np.asarray(difference[:, 1:].clamp(-1e6, 1e6).flatten())

    if not start:
        return template
    found = least_squares(residuals, np.array(list(start.values())), diff_step=1e-4, max_nfev=40)
    return _with(template, dict(zip(start, found.x.tolist(), strict=True)))


def _judged(program: Program, systems: Systems, wanted: Tensor) -> Fit:
    found = program_method(program)(systems.A, systems.b, wanted.shape[1] - 1)
    deviation, error = ((wanted - other)[:, 1:].square().sum((0, 2)) for other in (found, systems.x[:, None]))
    share = numbers(1 - deviation / error)
    step = _steps(program, systems, wanted)
    return Fit(program.name, constants(program), lines(program), _r2(found, wanted), share, step, program)


def _steps(program: Program, systems: Systems, wanted: Tensor) -> tuple[float, ...]:
    """How well one step of the program, started at each of the model's iterates, gives the next."""
    found = []
    for before, after in zip(wanted.unbind(1)[:-1], wanted.unbind(1)[1:], strict=True):
        next_one = program.run(systems.A, systems.b, x0=before, iterations=1).x[:, 1]
        found.append(float(1 - (after - next_one).square().sum() / (after - before).square().sum()))
    return tuple(found)


def _r2(found: Tensor, wanted: Tensor) -> tuple[float, ...]:
    spread = (wanted - wanted.mean(0))[:, 1:].square().sum((0, 2))
    return numbers(1 - (wanted - found)[:, 1:].square().sum((0, 2)) / spread)


def lines(program: Program) -> int:
    """The lines of code in a program's methods, without their headings."""
    codes = [getattr(type(program), name).__code__ for name in _METHODS]
    return sum(len({line for *_, line in code.co_lines()} - {None, code.co_firstlineno}) for code in codes)
