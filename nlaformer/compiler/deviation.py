"""How far a value of the weights is from the program's own, and how far it may be.

Every value that a program returns (by ``start``, each state of each ``step``, the answer of ``finish``) is compared
with one call of the program from the *same* input: the state decoded from the weights goes through the evaluator, so
that nothing a method amplifies over its steps counts, and nothing that it damps is hidden. The measure is

    deviation = |found - wanted| / |sum of the absolute terms of the value's last operation|

|u| + |v| for u + v, sum |u_i v_i| for dot(u, v), |A| |v| for A v: what the rounding of that operation is relative to.

*Allowed* is a tolerance (1e-6, in float32 1e-2) times what the program itself amplifies: its largest response to eight
perturbations of its inputs and states by 1e-8 of each entry, at most 1e4 (in float32 10). What the rounding of the
program's own arithmetic explains is allowed too: its largest change when they are perturbed by 16 units in the last
place.

*Settled.* Where the residual is below 1e-6 (in float32 1e-3) of its first or of its own terms, it vouches for the
answer, and states are what is left of a cancellation. A step does not vouch for itself: the residual must have been so
small before it, or be so in the program's own step. From there the change that perturbations of 1e-10 (1e-4) make is
allowed, however large that is; and states made of a vector that has fallen as far as the residual, a quotient of two of
its squares, say, are not judged; vectors and matrices are where they explode. Where the step began so, states are
measured relative to the largest value that they had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nlaformer.compiler.expression import Expression, Part, size
from nlaformer.compiler.graph import AXES, Node, reachable
from nlaformer.compiler.trace import ANSWER, TracedProgram

START, STEP = "start ", "step "  # before the name of a state, in the outputs of a program's expression
_PERTURBATION, _PERTURBATIONS = 1e-8, 8
_ROUNDINGS = 16
# A logarithm of -200 stands for 0, and one of -100 for its root, times what a step makes of them.
_ZERO, _ROOT_OF_ZERO = math.exp(-190.0), math.exp(-90.0)


def values_of(traced: TracedProgram) -> Expression:
    """What start, step and finish return, each by name, in one expression."""
    start = {START + name: node for name, node in traced.start.items()}
    step = {STEP + name: node for name, node in traced.step.items()}
    return Expression.of(without_networks({**start, **step, ANSWER: traced.answer}))


def without_networks(values: Mapping[str, Node]) -> dict[str, Node]:
    """Those values that no learned part has a share in; its network is in the weights, and nowhere else."""
    return {k: node for k, node in values.items() if all(below.op != "learned" for below in reachable([node]))}


@dataclass(frozen=True)
class Tolerance:
    """What a step may deviate by: ``plain`` times the response of the program, of which ``most`` counts.

    What perturbations of ``rounding`` change is allowed beyond that and, once the residual has fallen below the part
    ``settled``, what those of ``noise`` do.
    """

    plain: float
    most: float
    rounding: float
    settled: float
    noise: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Tolerance:
        rounding = _ROUNDINGS * torch.finfo(dtype).eps
        if dtype == torch.float64:
            return cls(1e-6, 1e4, rounding, settled=1e-6, noise=1e-10)
        return cls(1e-2, 10.0, rounding, settled=1e-3, noise=1e-4)


@dataclass(frozen=True)
class Deviation:
    """Of one value from the program's own at each time, (systems, times) each.

    Attributes
    ----------
    error : the deviation, infinite where the value is not finite
    allowed : the largest error that passes
    lost : where the program's own value is not finite
    """

    error: Tensor
    allowed: Tensor
    lost: Tensor

    @property
    def wrong(self) -> Tensor:
        return (self.error > self.allowed) & ~self.lost


@dataclass(frozen=True)
class Found:
    """What a run found, in float64: inputs (systems, 1, ...), states and answer (systems, T + 1, ...).

    Attributes
    ----------
    inputs, states : by name
    answer : what ``finish`` returned after the start and after every step
    dtype : in which the weights computed
    units : by name, the power of two by which the weights' own value was multiplied, (systems,)
    settled : where the residual is small, (systems, T + 1)
    """

    inputs: Mapping[str, Tensor]
    states: Mapping[str, Tensor]
    answer: Tensor
    dtype: torch.dtype
    units: Mapping[str, Tensor]
    settled: Tensor

    def pick(self, systems: Tensor) -> Found:
        """Some of the systems."""
        inputs, states, units = (
            {name: value[systems] for name, value in values.items()}
            for values in (self.inputs, self.states, self.units)
        )
        return Found(inputs, states, self.answer[systems], self.dtype, units, self.settled[systems])

    def of(self, name: str) -> Tensor:
        """The values that an output of the program's expression has to be compared with."""
        if name == ANSWER:
            return self.answer
        state = self.states[name.removeprefix(START).removeprefix(STEP)]
        return state[:, :1] if name.startswith(START) else state[:, 1:]

    def settled_at(self, name: str) -> Tensor:
        """Where the residual is small when the values of an output are made; the answer is always judged."""
        if name == ANSWER:
            return torch.zeros_like(self.settled)
        return self.settled[:, :1] if name.startswith(START) else self.settled[:, 1:]

    def without_zeros(self) -> Found:
        """Scalars that stand for 0 in the weights as 0: a quotient of two of them is one of zeros."""
        states = {
            name: torch.where(value.abs() <= _ZERO * self.units[name][:, None], 0.0, value)
            if value.dim() == 2
            else value
            for name, value in self.states.items()
        }
        return replace(self, states=states)


def own_nodes(program: Expression, found: Found, parts: Mapping[str, Part] | None = None) -> list[Tensor]:
    """Every value of the program on what was found, for all systems and times; what ``own_value`` reads."""
    return program.results({**found.inputs, **found.without_zeros().states}, parts) if program.outputs else []


def deviations(
    program: Expression,
    found: Found,
    parts: Mapping[str, Part] | None = None,
    tolerance: Tolerance | None = None,
    nodes: Sequence[Tensor] | None = None,
) -> dict[str, Deviation]:
    """The deviation of every output of a program: ``start x``, ``step x`` and ``finish()``.

    ``program`` has all of them as outputs. ``nodes`` are its own where they are known; they are evaluated once for all
    systems and times. The systems in which a value exceeds the tolerance are evaluated eight times more, perturbed.
    """
    if not program.outputs:  # the paper's form: its states are not all of the program's
        return {}
    tolerance = tolerance or Tolerance.of(found.dtype)
    nodes = own_nodes(program, found, parts) if nodes is None else nodes
    found, result = found.without_zeros(), {}
    for name in program.outputs:
        result[name] = _deviation(program, name, nodes, found, tolerance)
    doubtful = torch.stack([d.wrong.any(-1) for d in result.values()]).any(0)
    if not bool(doubtful.any()):
        return result
    systems = torch.nonzero(doubtful).flatten()
    for name, allowed in _allowed(program, found.pick(systems), parts, tolerance).items():
        everywhere = result[name].allowed.clone()
        everywhere[systems] = allowed
        result[name] = Deviation(result[name].error, everywhere, result[name].lost)
    return result


def _allowed(
    program: Expression, found: Found, parts: Mapping[str, Part] | None, tolerance: Tolerance
) -> dict[str, Tensor]:
    """The largest error that passes, for every output; (systems, times)."""
    amounts = {_PERTURBATION, tolerance.rounding, *([tolerance.noise] if bool(found.settled.any()) else [])}
    changes = {amount: _changes(program, found, parts, amount) for amount in amounts}
    allowed = {}
    for name, change in changes[_PERTURBATION].items():
        amplified = tolerance.plain * (change / _PERTURBATION).clamp(1.0, tolerance.most)
        noise = changes[tolerance.rounding][name]
        # A change without bound, as of 0 / 0, is the end of what can be judged, but only where the residual vouches.
        noise = torch.where(torch.isfinite(noise), noise, 0.0)
        if tolerance.noise in changes:
            noise = torch.where(found.settled_at(name), changes[tolerance.noise][name], noise)
        # Beyond 1 nothing of the value is left to compare; it must still not exceed its terms.
        allowed[name] = torch.maximum(amplified, noise.clamp(max=2.0))
    return allowed


def own_value(program: Expression, name: str, nodes: Sequence[Tensor], found: Found) -> tuple[Tensor, Tensor]:
    """An output at its times, and the absolute terms of its last operation."""
    (systems, times), n = found.answer.shape[:2], next(iter(found.inputs.values())).shape[-1]
    number = program.outputs[name]
    shape = (systems, 1 if name.startswith(START) else times, *[n] * AXES[program.kinds[name]])
    value, terms = (value.expand(shape) for value in (nodes[number], program.terms(number, nodes)))
    return (value[:, :-1], terms[:, :-1]) if name.startswith(STEP) else (value, terms)


def _deviation(
    program: Expression, name: str, nodes: Sequence[Tensor], found: Found, tolerance: Tolerance
) -> Deviation:
    kind, value = program.kinds[name], found.of(name)
    wanted, terms = own_value(program, name, nodes, found)
    distance, scale, length = size(value - wanted, kind), size(terms, kind), size(value, kind)
    lost = ~(torch.isfinite(size(wanted, kind)) & torch.isfinite(scale))
    state = name.removeprefix(START).removeprefix(STEP)
    if name.startswith(STEP) and bool(found.settled.any()):
        sizes = size(found.states[state], kind)
        largest = torch.cummax(torch.where(torch.isfinite(sizes), sizes, 0.0), -1).values[:, :-1]
        settled = found.settled_at(name)
        scale = torch.where(found.settled[:, :-1], torch.maximum(scale, largest), scale)
        noise = settled & _made_of_noise(program, name, nodes, found, tolerance.settled)
        if kind != "scalar":  # a quotient of noise is of any size, but what explodes is wrong whatever it is made of
            explodes = ~lost & (distance * tolerance.settled > scale)
            noise = noise & ~explodes
        distance, lost = torch.where(noise, 0.0, distance), lost & ~noise
    # Compared with 0 there is no relative deviation: what stands for 0 in the weights passes, and what underflows.
    numbers = torch.finfo(found.dtype)
    smallest = torch.where(scale == 0, _ROOT_OF_ZERO, numbers.tiny)
    nothing = found.units[state][:, None] * smallest + numbers.tiny
    error = torch.where(distance <= nothing, 0.0, distance / scale)
    error = torch.where(torch.isfinite(length), error.nan_to_num(torch.inf, torch.inf), torch.inf)
    return Deviation(error, torch.full_like(error, tolerance.plain), lost)


def _made_of_noise(program: Expression, name: str, nodes: Sequence[Tensor], found: Found, part: float) -> Tensor:
    """Whether a vector that a step is made of is below a part of what it was; (systems, T).

    A state, as the step finds it, is compared with its largest value so far; every other value with the terms that
    cancel in it: one that the step is made of, or that the program's own step makes of such a state. The weights clear
    a state together with those that share its scale.
    """
    systems, times = found.settled.shape
    noise = torch.zeros_like(found.settled[:, 1:])
    numbers = program.below(name)
    states = {program.nodes[number][2] for number in numbers if program.nodes[number][0] == "state"}
    made = (STEP + state for state in states)
    for number in numbers.union(*(program.below(output) for output in made if output in program.outputs)):
        op, _, extra, kind = program.nodes[number]
        if kind == "scalar":
            continue
        if op == "state":
            sizes = size(found.states[extra], kind)
            noise = noise | (sizes < part * torch.cummax(sizes, -1).values)[:, :-1]
        else:
            small = size(nodes[number], kind) < part * size(program.terms(number, nodes), kind)
            noise = noise | small.expand(systems, times)[:, :-1]
    return noise


def _changes(program: Expression, found: Found, parts: Mapping[str, Part] | None, amount: float) -> dict[str, Tensor]:
    """The largest change of every output, relative to its terms, when inputs and states are perturbed by an amount."""
    noise = torch.Generator().manual_seed(0)
    values = {**found.inputs, **found.states}
    nodes = program.results(values, parts)
    changes: dict[str, Tensor] = {}
    for _ in range(_PERTURBATIONS):
        factors = {name: 1 + amount * _signs(value, noise) for name, value in values.items()}
        moved = program.results({name: value * factors[name] for name, value in values.items()}, parts)
        for name, kind in program.kinds.items():
            (wanted, terms), (other, _) = (own_value(program, name, results, found) for results in (nodes, moved))
            change = size(other - wanted, kind) / size(terms, kind)
            # A change that is not finite is the largest that there is.
            change = change.nan_to_num(torch.inf, torch.inf)
            changes[name] = torch.maximum(changes.get(name, change), change)
    return changes


def _signs(value: Tensor, noise: torch.Generator) -> Tensor:
    """Plus and minus 1 at random; the same for every system, so that a batch is judged as its systems alone."""
    signs = torch.randint(2, value.shape[1:], generator=noise, dtype=torch.int8) * 2 - 1
    return signs.to(value)
