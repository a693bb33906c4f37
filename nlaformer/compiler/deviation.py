"""How far a value of the weights is from the program's own, and how far it may be.

Every value that a program returns (by ``start``, each state of each ``step``, the answer of ``finish``) is compared
with one call of the program from the *same* input: the state decoded from the weights goes through the evaluator, so
that nothing a method amplifies over its steps counts, and nothing that it damps is hidden. The measure is

    deviation = |found - wanted| / |sum of the absolute terms of the value's last operation|

|u| + |v| for u + v, sum |u_i v_i| for dot(u, v), |A| |v| for A v: what the rounding of that operation is relative to.

*Allowed* is a tolerance (1e-6, in float32 1e-2) times what the program itself amplifies: its largest response to eight
perturbations of its inputs and states by 1e-8 of each entry, at most 1e4 (in float32 10). What the rounding of the
program's own arithmetic explains is allowed too: its largest change when they are perturbed by 16 units in the last
place. A value that is 0 in the program has no terms; it may be what operations make that lose 1e-12 (in float32 1e-5)
of the norms of theirs.

*Settled.* Where the residual is below 1e-6 (in float32 1e-3) of its first or of its own terms, it vouches for the
answer, and states may be what is left of a cancellation. A step does not vouch for itself: the residual must have been
so small before it, or be so in the program's own step. From there only what perturbations move is noise (``noise.py``):
a state may differ by what it changes when the operations of its step and of the step before lose 1e-10 (1e-4) of their
terms, and is not judged where that is a tenth of it. What has only become small keeps its digits, and is judged, down
to 16 roundings of the largest that it was: there nothing is left of a state, and a quotient of two such states, which
may not be finite in the program, is one of zeros. The weights may also have stopped: a value is right, too, if the
program's own step makes it of 0 for every state that is noise, with 0/0 = 0.

*Lost.* A value of one call that is not finite is the program's own doing only where its own run is not finite either.
Elsewhere it is the state of the weights that led there. It is wrong, unless the weights have stopped: then a quotient
of noise by 0 is 0.

What is allowed here may still be wrong in the end, where the program makes it large: ``ends.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nlaformer.compiler.expression import Expression, size
from nlaformer.compiler.found import PERTURBATION, ROUNDINGS, STEP, Found, own_nodes, own_value, state_of
from nlaformer.compiler.instructions import STANDS_FOR_ROOT
from nlaformer.compiler.noise import NOISE, Perturbed


@dataclass(frozen=True)
class Tolerance:
    """What a step may deviate by: ``plain`` times the response of the program, of which ``most`` counts.

    What perturbations of ``rounding`` change is allowed beyond that and, once the residual has fallen to the part
    ``fallen`` of its first, what operations change that lose the part ``noise`` of their terms. The weights of products
    themselves lose less than the part ``loss``.
    """

    plain: float
    most: float
    rounding: float
    fallen: float
    noise: float
    loss: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Tolerance:
        rounding = ROUNDINGS * torch.finfo(dtype).eps
        if dtype == torch.float64:
            return cls(1e-6, 1e4, rounding, fallen=1e-6, noise=1e-10, loss=1e-12)
        return cls(1e-2, 10.0, rounding, fallen=1e-3, noise=1e-4, loss=1e-5)


@dataclass(frozen=True)
class Deviation:
    """Of one value from the program's own at each time, (systems, times) each.

    Attributes
    ----------
    error : the deviation, infinite where the value is not finite
    allowed : the largest error that passes
    lost : where the program's own value is not finite, so that there is nothing to compare with
    """

    error: Tensor
    allowed: Tensor
    lost: Tensor

    @property
    def wrong(self) -> Tensor:
        return (self.error > self.allowed) & ~self.lost

    @property
    def failed(self) -> Tensor:
        return self.wrong | self.lost

    def or_else(self, other: Deviation, where: Tensor) -> Deviation:
        """Another deviation where it may take this one's place, and passes."""
        where = where & ~other.failed
        return self._merged(other, lambda here, there: torch.where(where, there, here))

    def pick(self, systems: Tensor) -> Deviation:
        """Some of the systems."""
        return Deviation(self.error[systems], self.allowed[systems], self.lost[systems])

    def with_systems(self, systems: Tensor, other: Deviation) -> Deviation:
        """Another deviation in some of the systems."""
        return self._merged(other, lambda here, there: here.index_copy(0, systems, there))

    def _merged(self, other: Deviation, merge: Callable[[Tensor, Tensor], Tensor]) -> Deviation:
        pairs = ((self.error, other.error), (self.allowed, other.allowed), (self.lost, other.lost))
        return Deviation(*(merge(here, there) for here, there in pairs))


def deviations(
    program: Expression,
    found: Found,
    tolerance: Tolerance,
    nodes: Sequence[Tensor] | None = None,
    finite: Tensor | None = None,
) -> dict[str, Deviation]:
    """The deviation of every output of a program: ``start x``, ``step x`` and ``finish()``.

    ``program`` has all of them as outputs. ``nodes`` are its own on what was found, without zeros, where they are
    known; they are evaluated once for all systems and times. The systems in which a value exceeds the tolerance are
    evaluated again, perturbed. ``finite`` are the systems (systems,) in which the program's own run is.
    """
    if not program.outputs:  # the paper's form: its states are not all of the program's
        return {}
    zeros = found.without_zeros()
    result = _deviations(program, zeros, tolerance, own_nodes(program, zeros) if nodes is None else nodes)
    failed = any(bool(deviation.failed.any()) for deviation in result.values())
    if failed and any(bool((zeros.states[name] != value).any()) for name, value in found.states.items()):
        # What may stand for 0 may also be itself: a value is right if it is in one of the readings.
        other = _deviations(program, found, tolerance, own_nodes(program, found))
        result = {name: deviation.or_else(other[name], deviation.failed) for name, deviation in result.items()}
    if any(bool(deviation.lost.any()) for deviation in result.values()):
        # After convergence, a quotient of what is left of two states is one of zeros.
        left = found.without_negligible()
        nodes = own_nodes(program, left)
        for name, deviation in result.items():
            of_zeros = _Measured.of(program, name, nodes, left).within(tolerance)
            result[name] = deviation.or_else(of_zeros, deviation.lost)
    return result if finite is None else _of_finite(program, zeros, tolerance, result, finite)


def _of_finite(
    program: Expression, found: Found, tolerance: Tolerance, result: dict[str, Deviation], finite: Tensor
) -> dict[str, Deviation]:
    """The deviations where values are not finite in systems in which the program's own run is."""
    lost = torch.stack([deviation.lost.any(-1) for deviation in result.values()]).any(0)
    systems = torch.nonzero(lost & finite).flatten()
    if not len(systems):
        return result
    stopped = Perturbed.of(program, found.pick(systems)).after_stop(tolerance.noise)
    allowances = _Allowances.of(stopped, tolerance)
    for name in program.outputs:
        here = result[name].pick(systems)
        here = here.or_else(allowances.judge(name, tolerance), here.lost & stopped.found.settled_at(name))
        wrong = Deviation(here.error.masked_fill(here.lost, torch.inf), here.allowed, torch.zeros_like(here.lost))
        result[name] = result[name].with_systems(systems, wrong)
    return result


def _deviations(
    program: Expression, found: Found, tolerance: Tolerance, nodes: Sequence[Tensor]
) -> dict[str, Deviation]:
    """The same for one reading of what was found."""
    result = {name: _Measured.of(program, name, nodes, found).within(tolerance) for name in program.outputs}
    failed = ((d.wrong | d.lost & found.settled_at(name)).any(-1) for name, d in result.items())
    systems = torch.nonzero(torch.stack(list(failed)).any(0)).flatten()
    if not len(systems):
        return result
    perturbed = Perturbed.of(program, found.pick(systems))
    allowances = _Allowances.of(perturbed, tolerance)
    nodes = perturbed.stopped(allowances.noise, tolerance.noise)
    for name in program.outputs:
        deviation = allowances.judge(name, tolerance)
        stopped = _Measured.of(program, name, nodes, perturbed.found).within(tolerance)
        deviation = deviation.or_else(stopped, deviation.failed & perturbed.found.settled_at(name))
        result[name] = result[name].with_systems(systems, deviation)
    return result


@dataclass(frozen=True)
class _Measured:
    """An output beside what it should be, at its own times: 1 of start, T of step, T + 1 of finish.

    Attributes
    ----------
    value, wanted : the two
    distance, scale : from each other, and what that is relative to; (systems, times)
    negligible : a distance that counts as 0: what stands for 0 in the weights, what underflows, what rounding leaves
    """

    kind: str
    value: Tensor
    wanted: Tensor
    distance: Tensor
    scale: Tensor
    negligible: Tensor

    @classmethod
    def of(cls, program: Expression, name: str, nodes: Sequence[Tensor], found: Found) -> _Measured:
        kind, value = program.kinds[name], found.of(name)
        wanted, terms = own_value(program, name, nodes, found)
        scale = size(terms, kind)
        tiny = torch.finfo(found.dtype).tiny
        smallest = torch.where(scale == 0, STANDS_FOR_ROOT, tiny)
        negligible = found.units[state_of(name)][:, None] * smallest + tiny
        if name.startswith(STEP):
            of_state = found.negligible(state_of(name))  # settled before the step, or after it
            negligible = torch.maximum(negligible, torch.maximum(of_state[:, :-1], of_state[:, 1:]))
        return cls(kind, value, wanted, size(value - wanted, kind), scale, negligible)

    @property
    def lost(self) -> Tensor:
        return ~(torch.isfinite(size(self.wanted, self.kind)) & torch.isfinite(self.scale))

    def error(self, negligible: Tensor) -> Tensor:
        """The distance relative to the scale, 0 where it is ``negligible``; infinite where the value is not finite."""
        error = torch.where(self.distance <= negligible, 0.0, self.distance / self.scale)
        finite = torch.isfinite(size(self.value, self.kind))
        return torch.where(finite, error.nan_to_num(torch.inf, torch.inf), torch.inf)

    def within(self, tolerance: Tolerance) -> Deviation:
        """The deviation of a program that amplifies nothing."""
        error = self.error(self.negligible)
        return Deviation(error, torch.full_like(error, tolerance.plain), self.lost)


@dataclass(frozen=True)
class _Allowances:
    """What perturbations of a program's inputs, by 1e-8 and in the last places, and of its operations change.

    Attributes
    ----------
    amplified, rounded, noise, of_zero : by output, (systems, times); ``of_zero`` where a value is compared with 0
    """

    found: Found
    measured: Mapping[str, _Measured]
    amplified: Mapping[str, Tensor]
    rounded: Mapping[str, Tensor]
    noise: Mapping[str, Tensor]
    of_zero: Mapping[str, Tensor]

    @classmethod
    def of(cls, perturbed: Perturbed, tolerance: Tolerance) -> _Allowances:
        program, found = perturbed.program, perturbed.found
        measured = {name: _Measured.of(program, name, perturbed.nodes, found) for name in program.outputs}
        not_zero = any(bool(((m.scale == 0) & (m.distance > m.negligible)).any()) for m in measured.values())
        amplified, rounded = map(perturbed.by_input, (PERTURBATION, tolerance.rounding))
        noise = perturbed.by_operations(tolerance.noise)
        of_zero = perturbed.by_operations(tolerance.loss, of_norm=True) if not_zero else noise
        return cls(found, measured, amplified, rounded, noise, of_zero)

    def judge(self, name: str, tolerance: Tolerance) -> Deviation:
        """The deviation of an output, and what is allowed."""
        measured, scale = self.measured[name], self.measured[name].scale
        amplified, rounded = (
            (change[name] / scale).nan_to_num(torch.inf, torch.inf) for change in (self.amplified, self.rounded)
        )
        # A change without bound, as of 0 / 0, is the end of what can be judged, but only where the residual vouches.
        # From 1 on nothing of the value is left to compare; it must still not exceed its terms.
        rounded = torch.where(torch.isfinite(rounded), rounded, 0.0)
        rounded = torch.where(rounded >= 1.0, 2.0 * (1.0 + tolerance.plain), rounded)
        amplified = tolerance.plain * (amplified / PERTURBATION).clamp(1.0, tolerance.most)
        of_zero = torch.where((scale == 0) & torch.isfinite(self.of_zero[name]), self.of_zero[name], 0.0)
        noise = torch.where(self.noise[name] < NOISE * scale, self.noise[name], torch.inf)
        noise = torch.where(self.found.settled_at(name), torch.maximum(noise, of_zero), of_zero)
        error = measured.error(torch.maximum(measured.negligible, noise))
        return Deviation(error, torch.maximum(amplified, rounded), measured.lost)
