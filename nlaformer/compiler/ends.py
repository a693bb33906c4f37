"""A run end to end: every state and the answer against the program's own run from the same inputs.

One call from the same input (``deviation.py``) shows where a run goes wrong. It does not show what becomes of an error
that was allowed: a counter that is 3 - 9e-16 is right, and np.sign(3 - k) of it is not that of 3.

    deviation = |found - own| / the largest |own| so far

*Response.* What the program itself makes of errors: its largest deviation from itself when its inputs and states are
perturbed by 1e-8 of each entry before every call, over 1e-8. Where that is at most 1e4 (in float32 10) a run may
deviate by 1e-6 (1e-2) times it. Beyond, two runs of the program part, and there is nothing to compare with, unless the
program's own run in single precision is the same: single precision leaves whole numbers as they are, so a program that
counts has a response of 1 to it where a perturbed counter jumps; or unless perturbations by 1e-12 (in float32 1e-5),
which the weights are right to, do not part it: a variance of numbers that are large beside it. Then a run may deviate
by the largest that is ever allowed, 1e-2 (0.1).

*After convergence* states that have fallen, as a residual has, are what rounding left, and so is what is made of them:
beta of the conjugate gradient method, a normalized direction. All others are compared still. The residual vouches for
the answer, not for a state that has no part in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nlaformer.compiler.deviation import Deviation, Tolerance, deviations
from nlaformer.compiler.expression import Expression
from nlaformer.compiler.found import PERTURBATION, RUN, START, STEP, Found, sizes, state_of
from nlaformer.compiler.graph import AXES
from nlaformer.compiler.reference import Reference
from nlaformer.compiler.trace import ANSWER, TracedProgram

_COPIES = 8  # of a system that is perturbed
_ENTRIES_AT_ONCE = {"cpu": 2**19}  # of perturbed inputs, for each thread: they then stay in the cache

_Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class Methods:
    """The methods of a program; start and step give states by name, finish the answer."""

    start: Expression
    step: Expression
    finish: Expression

    @classmethod
    def of(cls, program: Expression, states: Sequence[str]) -> Methods | None:
        """Those of the values that runs are judged by; None where a network makes some of them, or none is known."""
        names = [[method + name for name in states] for method in (START, STEP)] + [[ANSWER]]
        if not set[str]().union(*names) <= program.outputs.keys():
            return None
        own = [program.only(*method) for method in names]
        return cls(*(Expression(e.nodes, {state_of(name): k for name, k in e.outputs.items()}) for e in own))

    @classmethod
    def traced(cls, traced: TracedProgram) -> Methods:
        return cls(*map(Expression.of, (traced.start, traced.step, {ANSWER: traced.answer})))

    @classmethod
    def known(cls, program: Reference) -> Methods | None:
        """Those of a program as data; None where it has learned parts."""
        states = [name for name in program.kinds if name != ANSWER]
        return None if program.parts else cls(program.start.only(*states), program.step.only(*states), program.finish)

    def upstream(self, name: str) -> set[str]:
        """The states that a state is made of, in this step or in one before, itself too; or those of the answer."""
        found: set[str] = set()
        open_ = {name}
        while open_:
            found |= open_
            of = ((self.finish if each == ANSWER else self.step, each) for each in open_)
            open_ = {
                method.nodes[k][2] for method, each in of for k in method.below(each) if method.nodes[k][0] == "state"
            }
            open_ -= found
        return found - {ANSWER}

    def run(self, inputs: _Values, count: int, moved: Callable[[_Values], _Values] = dict) -> Iterator[_Values]:
        """The states and the answer after the start and after each step, (systems, ...).

        ``moved`` gives what a method is called with instead of inputs and states.
        """
        systems = len(next(iter(inputs.values())))
        n = next((value.shape[-1] for value in inputs.values() if value.dim() > 1), 1)

        def full(method: Expression, given: _Values) -> dict[str, Tensor]:
            shapes = {name: (systems, *[n] * AXES[kind]) for name, kind in method.kinds.items()}
            return {name: value.expand(shapes[name]) for name, value in method(moved(given)).items()}

        states = full(self.start, inputs)
        yield states | full(self.finish, {**inputs, **states})
        for _ in range(count):
            states = full(self.step, {**inputs, **states})
            yield states | full(self.finish, {**inputs, **states})


@dataclass(frozen=True)
class End:
    """Of one value, (systems, T + 1) each.

    Attributes
    ----------
    deviation : from the program's own run
    response : what the program makes of perturbations; infinite once its own run is not finite
    parted : where two runs of the program itself have so little in common that there is nothing to compare with
    """

    deviation: Tensor
    response: Tensor
    parted: Tensor

    def judged(self, tolerance: Tolerance) -> Deviation:
        """The deviation with what is allowed, infinite where the program's own runs part."""
        allowed = tolerance.plain * self.response.clamp(1.0, tolerance.most)
        return Deviation(self.deviation, torch.where(self.parted, torch.inf, allowed), torch.zeros_like(self.parted))


@dataclass(frozen=True)
class OwnValues:
    """A value in the program's own run.

    Attributes
    ----------
    values : the values, with the last finite one kept, (systems, T + 1, ...)
    lost : from the first one on that is not finite, (systems, T + 1)
    scale : the largest size so far, (systems, T + 1)
    """

    values: Tensor
    lost: Tensor
    scale: Tensor

    @classmethod
    def of(cls, values: Tensor, unit: Tensor) -> OwnValues:
        """One that is 0 is measured by the unit."""
        finite, lost = held(values), torch.cummax((~_finite(values)).int(), -1).values.bool()
        largest = torch.cummax(sizes(finite), -1).values
        return cls(finite, lost, torch.where(largest > 0, largest, unit))

    def deviation(self, found: Tensor) -> Tensor:
        return (sizes(found - self.values) / self.scale).nan_to_num(torch.inf, torch.inf)

    def fallen(self, part: float) -> Tensor:
        """Where it is, or has been, such a part of its largest size, (systems, T + 1)."""
        return torch.cummax((sizes(self.values) <= part * self.scale).int(), -1).values.bool()

    def response(self, runs: Sequence[Tensor], amount: float) -> Tensor:
        """The largest deviation so far of runs that were perturbed by an amount, over it."""
        moved = torch.stack([self.deviation(held(run.double())) for run in runs]).amax(0) / amount
        # What was amplified once may be damped again, but two runs of the program have parted there.
        return torch.where(self.lost, torch.inf, torch.cummax(moved, -1).values)


def ends_of(methods: Methods, inputs: _Values, found: _Values, tolerance: Tolerance) -> dict[str, End]:
    """The end of every value that was found; inputs are (systems, ...), values (systems, T + 1, ...)."""
    systems, count = next(iter(found.values())).shape[:2]

    def moved(amount: float) -> dict[str, Tensor]:
        """The program's own runs with inputs and states perturbed before every call, (copies x systems, ...)."""
        draws = torch.Generator().manual_seed(0)
        copies = {name: value.repeat(_COPIES, *[1] * (value.dim() - 1)) for name, value in inputs.items()}
        return stacked(
            methods.run(copies, count - 1, lambda values: {k: _perturbed(v, amount, draws) for k, v in values.items()})
        )

    own, perturbed = stacked(methods.run(inputs, count - 1)), moved(PERTURBATION)
    single = stacked(methods.run({name: value.float() for name, value in inputs.items()}, count - 1))
    lossy: dict[str, Tensor] = {}
    result = {}
    for name, value in found.items():
        measured = OwnValues.of(own[name], _unit(inputs))
        deviation, response = measured.deviation(value), measured.response(perturbed[name].split(systems), PERTURBATION)
        in_single = measured.response([single[name]], torch.finfo(torch.float32).eps)
        parted = (response > tolerance.most) & (in_single > tolerance.most)
        most = tolerance.plain * tolerance.most
        if bool((parted & (deviation > most)).any()):
            lossy = lossy or moved(tolerance.loss)
            by_losses = tolerance.loss * measured.response(lossy[name].split(systems), tolerance.loss)
            parted &= (deviation <= most) | (by_losses > 0.1 * most)
        result[name] = End(deviation, response, parted)
    return result


def compared(program: Expression, found: Found, nodes: Sequence[Tensor]) -> dict[str, Deviation]:
    """The deviation of every value from one call of the program, and of every value from the program's own run."""
    tolerance = Tolerance.of(found.dtype)
    methods = Methods.of(program, list(found.states))
    if methods is None or not len(found.answer):
        return deviations(program, found, tolerance, nodes)
    inputs = {name: value[:, 0] for name, value in found.inputs.items()}
    own, unit = stacked(methods.run(inputs, found.answer.shape[1] - 1)), _unit(inputs)
    measured = {name: OwnValues.of(value, unit) for name, value in own.items()}
    finite = ~torch.stack([value.lost[:, -1] for value in measured.values()]).any(0)
    calls = deviations(program, found, tolerance, nodes, finite)
    return calls | _ends(methods, found, measured, tolerance)


def _ends(
    methods: Methods, found: Found, measured: Mapping[str, OwnValues], tolerance: Tolerance
) -> dict[str, Deviation]:
    """The deviation of every state, ``run x``, and of the answer, ``run finish()``, from the program's own run."""
    inputs, values = {name: value[:, 0] for name, value in found.inputs.items()}, {**found.states, ANSWER: found.answer}
    errors = {name: measured[name].deviation(value) for name, value in values.items()}
    fallen = {name: found.settled & each.fallen(tolerance.fallen) for name, each in measured.items() if name != ANSWER}
    allowed = {}
    for name, error in errors.items():
        states = methods.upstream(name)  # none, of an answer that is made of inputs alone
        rounding = functools.reduce(
            torch.logical_or, (fallen[state] for state in states), torch.zeros_like(found.settled)
        )
        allowed[name] = torch.full_like(error, tolerance.plain).masked_fill(rounding, torch.inf)
    wrong = torch.stack([error > allowed[name] for name, error in errors.items()]).any(0)
    failed = torch.nonzero(wrong.any(-1)).flatten()
    for systems in failed.split(_at_once(inputs)) if len(failed) else ():
        times = 1 + int(torch.nonzero(wrong[systems])[:, 1].max())  # after these nothing more need be allowed
        picked = {name: value[systems] for name, value in inputs.items()}
        upto = {name: value[systems, :times] for name, value in values.items()}
        for name, end in ends_of(methods, picked, upto, tolerance).items():
            here = allowed[name][systems, :times]
            allowed[name][systems, :times] = torch.maximum(here, end.judged(tolerance).allowed)
    never = torch.zeros_like(found.settled)
    return {RUN + name: Deviation(error, allowed[name], never) for name, error in errors.items()}


def stacked(run: Iterator[_Values]) -> dict[str, Tensor]:
    """The values of a run, (systems, T + 1, ...)."""
    records = list(run)
    return {name: torch.stack([record[name] for record in records], 1) for name in records[0]}


def _finite(values: Tensor) -> Tensor:
    return torch.isfinite(values).reshape(*values.shape[:2], -1).all(-1)


def held(values: Tensor) -> Tensor:
    """Values (systems, T + 1, ...) with the last finite one kept."""
    times = torch.arange(values.shape[1], device=values.device)
    last = torch.cummax(torch.where(_finite(values), times, 0), -1).values
    return values.gather(1, last.reshape(*last.shape, *[1] * (values.dim() - 2)).expand_as(values))


def _unit(inputs: _Values) -> Tensor:
    """What a value that is 0 is measured by: the largest input, (systems, 1)."""
    return torch.stack([sizes(value[:, None]) for value in inputs.values()]).amax(0)


def _at_once(inputs: _Values) -> int:
    """How many systems are perturbed at once."""
    kind = next(iter(inputs.values())).device.type
    threads = torch.get_num_threads() if kind == "cpu" else 1
    entries = _COPIES * sum(value[0].numel() for value in inputs.values())
    return max(1, threads * _ENTRIES_AT_ONCE.get(kind, 2**26) // entries)


def _perturbed(copies: Tensor, amount: float, draws: torch.Generator) -> Tensor:
    """Every entry moved up or down at random for each copy of the systems; the same for every system."""
    signs = torch.randint(2, (_COPIES, 1, *copies.shape[1:]), generator=draws, dtype=torch.int8) * 2 - 1
    return (copies.unflatten(0, (_COPIES, -1)) * (1 + amount * signs.to(copies))).flatten(0, 1)
