"""The rule: a compiled run is right where it cannot be told from the program itself, run with p-bit operations.

The program's graph is run once in float64, which gives v, and 24 times with every operation rounded stochastically to p
bits (Monte Carlo arithmetic: Parker 1997). An operation is rounded on the grid of the absolute terms that it sums, so
that a cancellation loses digits as it would in p bits; what only moves or selects entries stays exact, and so do whole
numbers. For every state and the answer at every step t, norm-wise,

    spread_t = the largest distance of the 24 runs from v_t
    digits_t = min over t - 2 <= s <= t of -log10(spread_s / |v_s|)
    bar_t    = max(2^-p |v_t|, 2^-(p + 10) max over s <= t of |v_s|, min(spread_t, |v_t| / 120))

p is 33, and 10 for weights in float32. A value without digits counts as one for two more steps, in which the runs may
agree by chance. With fewer than 1.5 digits it is *undetermined*. Elsewhere a value w_t of the weights is *wrong* where
|w_t - v_t| > 30 bar_t. What is not finite is wrong wherever v and all runs are finite; where neither v nor any of the
runs is, the program itself has lost it.

Where runs may follow different orbits their distances are heavy-tailed, and 24 of them show less than there is. A
system on which a value is wrong is therefore judged again, by 480 runs: what is called wrong is beyond all of them.

The judge evaluates the graph alone. It shares nothing with the weights, and the draws are the same for every system, so
that a system gets the same verdict alone and in a batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nlaformer.program.data import ProgramGraph
from nlaformer.program.expression import Expression
from nlaformer.program.primitives import PRIMITIVES
from nlaformer.program.rounding import SELECTING
from nlaformer.program.tensors import size

MOST_DIGITS = 16.0
_EXPONENT = 0x7FF0000000000000  # the bits of a float64 that hold its exponent
_ENTRIES_AT_ONCE = 2**20  # of a value, in all runs

Values = Mapping[str, Tensor]
_Rounded = Callable[[int, Sequence[Tensor]], Tensor]


@dataclass(frozen=True)
class Rule:
    """The constants for weights of one precision.

    Attributes
    ----------
    bits : p
    runs : of the program with p-bit operations
    more : so many of them judge a system on which a value is wrong
    bars : beyond which a value is wrong
    least : digits of a value that is judged
    below : so many bits below p is what weights may lose of the largest value so far
    most : of a value, which is the most that a spread excuses
    window : so many steps more a value without digits counts as one
    """

    bits: int
    runs: int = 24
    more: int = 480
    bars: float = 30.0
    least: float = 1.5
    below: int = 10
    most: float = 0.25
    window: int = 2


RULES = {torch.float64: Rule(33), torch.float32: Rule(10)}


def _values(
    program: ProgramGraph, inputs: Values, count: int, rounder: Callable[[Expression], _Rounded] | None = None
) -> Iterator[Values]:
    """The states and the answer after start and after each step, (systems, runs, ...); inputs (systems, 1, ...)."""
    systems = len(next(iter(inputs.values())))
    methods = (program.first_values, program.next_values, program.last_values)
    rounding = {id(each): rounder and rounder(each) for each in methods}
    shapes = {name: node.shape for name, node in program.values.items()}

    def called(method: Expression, given: Values) -> dict[str, Tensor]:
        results = method.results(given, rounded=rounding[id(method)])
        own = {name: results[method.numbers[node]] for name, node in method.outputs.items() if name in shapes}
        return {name: _widened(value, systems, shapes[name]) for name, value in own.items()}

    states = called(program.first_values, inputs)
    yield states | called(program.last_values, {**inputs, **states})
    for _ in range(count):
        states = called(program.next_values, {**inputs, **states})
        yield states | called(program.last_values, {**inputs, **states})


def _widened(value: Tensor, systems: int, shape: Sequence[int]) -> Tensor:
    """A value that may be a constant, with its axes of systems and runs."""
    runs = value.shape[1] if value.dim() == len(shape) + 2 else 1
    return value.expand(systems, runs, *shape)


def _stochastic(bits: int, runs: int, draws: torch.Generator) -> Callable[[Expression], _Rounded]:
    """What rounds the operations of an expression to p bits, up or down at random."""

    def rounder(expression: Expression) -> _Rounded:
        def rounded(number: int, results: Sequence[Tensor]) -> Tensor:
            value, node = results[number], expression.nodes[number]
            terms_of = PRIMITIVES[node.op].rounding
            if terms_of is None or terms_of in SELECTING:
                return value
            entries = value.shape[value.dim() - node.ndim :]
            chances = torch.rand(1, runs, *entries, generator=draws, dtype=torch.float64).to(value.device)
            return on_grid(value, expression.terms(number, results), chances, bits)

        return rounded

    return rounder


def on_grid(value: Tensor, terms: Tensor, chances: Tensor, bits: int) -> Tensor:
    """A value rounded to the grid of its terms, up where the fraction that is cut off exceeds 1 - chance."""
    power = (terms.contiguous().view(torch.int64) & _EXPONENT).view(torch.float64)  # 2^floor(log2(terms)), exactly
    grid = power * 2.0 ** (1 - bits)
    found = torch.floor(value / grid + chances) * grid
    return torch.where(torch.isfinite(found), found, value)  # terms of 0, or beyond the range of the numbers


@dataclass(frozen=True)
class Band:
    """What a program determines of one value, (systems, T + 1, ...).

    Attributes
    ----------
    own : the program's own value in float64
    spread : the largest distance of the runs with p-bit operations, (systems, T + 1); infinite if one is not finite
    lost : where neither it nor any of the runs is finite, (systems, T + 1)
    axes : of the value: 0, 1 or 2
    rule : the constants
    unit : what a value that was always 0 is measured by, (systems,)
    """

    own: Tensor
    spread: Tensor
    lost: Tensor
    axes: int
    rule: Rule
    unit: Tensor

    @functools.cached_property
    def sizes(self) -> Tensor:
        return size(self.own, self.axes)

    @functools.cached_property
    def digits(self) -> Tensor:
        """The significant digits that the program determines, 0 to 16; (systems, T + 1)."""
        lost = self.spread / torch.where(self.spread > 0, self.sizes, 1.0)
        lost = torch.nn.functional.pad(lost.nan_to_num(1.0, 1.0), (self.rule.window, 0))
        return torch.log10(lost.unfold(1, self.rule.window + 1, 1).amax(-1).clamp(10.0**-MOST_DIGITS, 1.0)).abs()

    @property
    def judged(self) -> Tensor:
        """Where enough digits are left, (systems, T + 1)."""
        return self.digits >= self.rule.least

    @property
    def bar(self) -> Tensor:
        sizes = self.sizes.nan_to_num(0.0, 0.0)
        largest = torch.cummax(sizes, 1).values
        largest = torch.where(largest > 0, largest, self.unit[:, None])
        spread = torch.minimum(self.spread, self.rule.most / self.rule.bars * sizes)
        least = torch.maximum(2.0**-self.rule.bits * sizes, 2.0 ** -(self.rule.bits + self.rule.below) * largest)
        return torch.maximum(spread, least)

    def bars_off(self, found: Tensor) -> Tensor:
        """How many bars a value is off, 0 where it is undetermined; (systems, T + 1)."""
        distance = size(found.to(self.own) - self.own, self.axes)
        off = torch.where(self.judged, distance / self.bar, 0.0)
        finite = torch.isfinite(self.spread) & torch.isfinite(self.sizes)
        return torch.where(torch.isfinite(distance), off, torch.inf).where(finite, 0.0)

    def wrong(self, found: Tensor) -> Tensor:
        """Where a value is not one that the program could give in p bits, (systems, T + 1)."""
        return self.bars_off(found) > self.rule.bars


def bands(
    program: ProgramGraph,
    inputs: Values,
    count: int,
    rule: Rule,
    found: Values | None = None,
    known: Tensor | None = None,
    seed: int = 0,
) -> dict[str, Band]:
    """What a program determines of every state and of its answer, float64; as far as it takes to judge ``found``.

    Inputs are (systems, ...), the values found (systems, T + 1, ...); those that are to be judged are ``known``.
    """
    own = _by_runs(program, inputs, count, rule, rule.runs, 2 * seed)
    if found is None:
        return own
    wrong = torch.stack([band.wrong(found[name]) for name, band in own.items()]).any(0)
    wrong = (wrong if known is None else wrong & known).any(1)
    if not wrong.any():
        return own
    again = _by_runs(program, {k: v[wrong] for k, v in inputs.items()}, count, rule, rule.more, 2 * seed + 1)
    for name, band in own.items():
        band.spread[wrong], band.lost[wrong] = again[name].spread, again[name].lost
    return {name: replace(band) for name, band in own.items()}  # without the digits of 24 runs


def _by_runs(program: ProgramGraph, inputs: Values, count: int, rule: Rule, runs: int, seed: int) -> dict[str, Band]:
    """What so many runs say, together or in parts as memory allows."""
    systems = len(next(iter(inputs.values())))
    fitting = _ENTRIES_AT_ONCE // max(node.size for node in program.values.values())
    runs_at_once = min(runs, max(rule.runs, fitting))
    at_once = max(1, fitting // runs_at_once)
    parts: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in program.values}
    for first in range(0, max(systems, 1), at_once):
        given = {k: v[first : first + at_once, None] for k, v in inputs.items()}
        draws = torch.Generator().manual_seed(seed)  # the same for every system
        roundings = [
            _stochastic(rule.bits, min(runs_at_once, runs - done), draws) for done in range(0, runs, runs_at_once)
        ]
        pieces = [_apart(program, given, count, rounding) for rounding in roundings]
        for name, part in parts.items():
            part.append(together([piece[name] for piece in pieces]))
    unit = torch.stack([v.flatten(1).abs().amax(1) if v.dim() > 1 else v.abs() for v in inputs.values()]).amax(0)
    unit = torch.where(unit > 0, unit, 1.0)
    found = {}
    for name, node in program.values.items():
        own, spread, lost = (torch.cat(each) for each in zip(*parts[name], strict=True))
        found[name] = Band(own, spread, lost, node.ndim, rule, unit)
    return found


def together(pieces: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor, Tensor]:
    """The own values, the spread, and what is lost, of several draws of the runs."""
    owns, spreads, losses = zip(*pieces, strict=True)
    return owns[0], torch.stack(spreads).amax(0), torch.stack(losses).all(0)


def _apart(
    program: ProgramGraph, given: Values, count: int, rounding: Callable[[Expression], _Rounded]
) -> dict[str, tuple[Tensor, ...]]:
    """The own values of some systems, how far the runs of one rounding are from them, and where all are lost."""
    found: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in program.values}
    runs = _values(program, given, count), _values(program, given, count, rounding)
    for own, moved in zip(*runs, strict=True):
        for name, node in program.values.items():
            spread = size(moved[name] - own[name], node.ndim).amax(1).nan_to_num(torch.inf, torch.inf)
            finite = torch.isfinite(size(moved[name], node.ndim)).any(1)
            finite = finite | torch.isfinite(size(own[name], node.ndim))[:, 0]
            found[name].append((own[name][:, 0], spread, ~finite))
    return {name: tuple(torch.stack(each, 1) for each in zip(*values, strict=True)) for name, values in found.items()}
