"""From a model to a short program: CG, PCG and the programs of ``short_programs``, constants fitted to its iterates.

With the model's x_t, the program's p_t and the solutions x, over systems that nothing was fitted on,

    R^2(t) = 1 - sum |x_t - p_t|^2 / sum |x_t - mean x_t|^2,
    share of the error(t) = 1 - sum |x_t - p_t|^2 / sum |x_t - x|^2,
    R^2 of the step(t) = 1 - sum |x_t - q_t|^2 / sum |x_t - x_(t-1)|^2,

where q_t is one step of the program from the model's own x_(t-1). The solution itself has a large R^2 where the model
is accurate, and explains none of its error: that is one control. The other is the same fit to the network before its
training (``untrained``): what a program explains there is the architecture's, not what was learned. A negative share
says that the program is further from the model's iterate than the solution is. The constants minimize the sum of the
squared deviations for t = 1, ..., ``until``.
"""

from __future__ import annotations

import copy
import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor

from nlaformer.arrays import whole
from nlaformer.compiler import library
from nlaformer.compiler.compiling import compile
from nlaformer.errors import DomainError, OptionError, shown
from nlaformer.microscope.measures import numbers
from nlaformer.microscope.short_programs import DiagonalRefinement, Momentum, RankOneRefinement
from nlaformer.microscope.subject import Subject, asked, program_method, subject
from nlaformer.microscope.untrained import untrained
from nlaformer.problems import Family, Systems
from nlaformer.program.language import Program
from nlaformer.report.html import panel, table, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    @property
    def source(self) -> str:
        """The text of the program's class; ``constants`` take the place of the numbers in it."""
        return textwrap.dedent(inspect.getsource(type(self.program))).rstrip()

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
    before_training: tuple[Fit, ...]
    """The same programs fitted to the network before its training; empty where the model is no trained network."""

    @property
    def finding(self) -> str:
        """The best program with its least R^2, and that of the control."""
        best, until = self.fits[0], len(self.solution_r2)
        return (
            f"{best.name} ({best.lines} lines): R^2 at least {min(best.r2):.4f} for t <= {until}, "
            f"the solution {min(self.solution_r2):.4f}"
        )

    def __str__(self) -> str:
        known = ", ".join(f"{name} = {value:.4g}" for name, value in self.fits[0].constants.items())
        return f"{self.model}: {self.finding}" + f"; {known}" * bool(known)

    def plot(self) -> Figure:
        """Draw 1 - R^2 of every program by iterate, beside that of the solution, which explains nothing.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from nlaformer.report.curves import errors_figure

        curves = {fit.name: fit.r2 for fit in self.fits} | {"the solution": self.solution_r2}
        missing = {name: [1 - value for value in r2] for name, r2 in curves.items()}
        return errors_figure(missing, self.finding, "1 - R^2 of the model's iterates", start=1)

    def _repr_html_(self) -> str:
        headings = ("program", "lines", *(f"t = {t}" for t in range(1, len(self.solution_r2) + 1)))
        lines = [(fit.name, str(fit.lines), *(f"{value:.4f}" for value in fit.r2)) for fit in self.fits]
        lines.append(("the solution", "", *(f"{value:.4f}" for value in self.solution_r2)))
        title = f"Short programs fitted to {self.model}: R^2 of the iterates"
        return panel(title, table(headings, lines), tag("div", self.finding))

    def to_json(self) -> dict[str, object]:
        """The numbers as plain data."""
        lists = {"fits": self.fits, "before_training": self.before_training}
        return {**vars(self), **{name: [fit.to_json() for fit in fits] for name, fits in lists.items()}}


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
    until : the last iterate that is fitted; T where T is less
    count : systems of the numbers; half as many others are fitted on
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
    until = min(whole("until", until, 1), of.T)
    size = whole("count", count, 2)
    fitting, fresh = of.family.sample(size // 2, seed), of.family.sample(size, seed + 1)
    templates = _programs() if programs is None else programs
    if not isinstance(templates, list | tuple) or not templates or not all(isinstance(p, Program) for p in templates):
        raise OptionError(f"programs is {shown(programs)}; expected one or more nf.Program in a list")
    fits = _fits(of, templates, fitting, fresh, until, say)
    held_out = of.iterates(fresh.A, fresh.b, until)
    say("compiling the best")
    transformer = compile(fits[0].program, of.family.n, verify=False)
    compiled = program_method(transformer)(fresh.A, fresh.b, until)
    before: tuple[Fit, ...] = ()
    if of.model is not None:
        before = _fits(untrained(of, fitting), templates, fitting, fresh, until, lambda name: say(f"{name}, untrained"))
    return Extraction(
        of.name,
        of.family.n,
        repr(of.family),
        seed,
        count,
        fits,
        solution_r2=_r2(fresh.x[:, None], held_out),
        compiled_r2=_r2(compiled, held_out),
        before_training=before,
    )


def _fits(
    of: Subject, templates: Sequence[Program], fitting: Systems, fresh: Systems, until: int, say: Callable[[str], None]
) -> tuple[Fit, ...]:
    """Every program fitted to a subject on one set of systems and judged on another, the best first."""
    wanted, held_out = (of.iterates(each.A, each.b, until) for each in (fitting, fresh))
    if not bool(wanted.isfinite().all() & held_out.isfinite().all()):
        raise DomainError(
            f"{of.name} gives iterates with NaN or infinity up to t = {until}; no program is fitted to those"
        )
    found = []
    for template in templates:
        say(template.name)
        found.append(_judged(_fitted(template, fitting, wanted), fresh, held_out))
    return tuple(sorted(found, key=lambda fit: -sum(fit.r2)))


def _programs() -> tuple[Program, ...]:
    return library.program("cg"), library.program("pcg"), Momentum(), DiagonalRefinement(), RankOneRefinement()


def constants(program: Program) -> dict[str, float]:
    """The float attributes of a program by name, those of its classes first, then its own."""
    kinds = [kind for kind in reversed(type(program).__mro__) if issubclass(kind, Program)]
    known = {name: value for kind in (*kinds, program) for name, value in vars(kind).items()}
    return {name: value for name, value in known.items() if isinstance(value, float)}


def _with(program: Program, values: dict[str, float]) -> Program:
    """The same program with other constants."""
    found = copy.copy(program)
    for name, value in values.items():
        setattr(found, name, value)
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
    """How well one step of the program, started at each of the model's iterates, gives the next; NaN without an x0."""
    if not {"b", "x0"} <= asked(program):
        return (math.nan,) * (wanted.shape[1] - 1)
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
