"""Where the rows of a machine stand in P, and heads in these rows.

P has the registers A (token j holds row j of A), one, position, and those that the program asked for; column 1 is the
sink and stays zero in all of them. The heads are those of ``express.heads``; all of them keep the sink zero.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch

from nlaformer.compiler.machine.forms import OFF, Forms, Head, Ints, nothing, select, stack
from nlaformer.compiler.machine.rows import EYE, ONE, Machine, Plan
from nlaformer.compiler.machine.schedule import Schedule
from nlaformer.compiler.terms import Combination
from nlaformer.express.linearize import Linearization
from nlaformer.prompt import Layout

# Sink scores of exponential heads. Exponents are rounded to the grid of their distance from it, which doubles beyond 64
# (float32: 32); values up to e^19 (e^7) above keep their accuracy.
_CEILING = {torch.float64: 56.0, torch.float32: 24.0}


class Writer:
    """Rows of the machine to rows of P, combinations of them to forms, and heads on forms."""

    def __init__(self, plan: Plan, schedule: Schedule):
        self.plan, self.machine = plan, plan.machine
        machine, self.target, self.n = plan.machine, plan.machine.target, plan.machine.n
        self.names = _names(machine, schedule)
        registers = [("one", 1), ("position", self.n + 1)]
        for number, name in self.names.items():
            if number != ONE:
                registers.insert(0 if name == "A" else len(registers), (name, machine.rows[number].height))
        self.layout = Layout(tuple(registers), tokens=self.n + 1)
        self.one, self.sink = self.layout["one"][0], self.layout["position"][0]
        self.positions = np.arange(self.sink, self.sink + self.n + 1)  # of all tokens, the sink's first
        self.ceiling = _CEILING[self.target.dtype]

    # --- forms ---

    def rows(self, number: int) -> Ints:
        """The rows of P of a row of the machine."""
        if number == EYE:  # the position rows of the data tokens
            return self.positions[1:]
        return np.asarray(self.layout[self.names[number]], np.int64)

    def forms(self, source: Combination, height: int = 1) -> Forms:
        """A combination as one form for each of its rows, at least ``height``, a single row repeated."""
        parts = [(self._one(number), c) for number, c in source]
        height = max([height, *(part.count for part, _ in parts)])
        result = nothing(height)
        for part, c in parts:
            result = result + (part.copies(height) if part.count == 1 < height else part) * c
        return result

    def _one(self, number: int) -> Forms:
        view = self.machine.rows[number].view
        if not view:
            return select(self.rows(number))
        kept = np.array([k for k, part in enumerate(view) if part], np.int64)
        rows = np.array([self.rows(part[0])[part[1]] for part in view if part], np.int64)
        return Forms(len(view), kept, rows, np.ones(len(kept)))

    @functools.cached_property
    def ones(self) -> Forms:
        return select([self.one])

    @functools.cached_property
    def everywhere(self) -> Forms:
        return self.ones + select([self.sink])

    @functools.cached_property
    def own(self) -> Forms:
        return select(self.positions[1:])

    @functools.cached_property
    def others(self) -> Forms:
        """Keys under which a data token scores 0 with itself and -OFF with every other data token.

        The key is OFF (e_i - 1) rather than OFF e_i with OFF taken off afterwards: the token's own score is then an
        exact zero, and what is added to it is not rounded to the grid of OFF.
        """
        return select(self.positions[1:], OFF) + self.ones.copies(self.n) * -OFF

    def _sink(self, value: float) -> Forms:
        return select([self.sink], value)

    # --- heads ---

    def linear(self, lin: Linearization, key: Forms, query: Forms, value: Forms, target: Ints) -> list[Head]:
        """target_j += sum_i value_i (key_i . query_j), by linearizing the softmax (see ``linearize``).

        The sink attends to itself alone. Where it saw all tokens alike the heads would cancel there, but for a
        rounding: a logarithm of 0 is steep, and a head that multiplies by an exponential reads the sink with a large
        factor.
        """
        keys = stack(key, self._sink(lin.C))
        alone = self.ones + self._sink(OFF)
        return [Head(stack(query * (m * lin.c), alone), keys, value, target, gain) for m, gain in lin.heads]

    def linear_in_token(self, lin: Linearization, left: Forms, right: Forms, value: Forms, target: Ints) -> list[Head]:
        """target_j += value_j (left_j . right_j), token by token; ``lin`` is ``linearize.design_product``'s."""
        keys = stack(self.others, right, self._sink(1.0))
        return [
            Head(stack(self.own, left * (m * lin.c), self._sink(OFF)), keys, value, target, gain)
            for m, gain in lin.heads
        ]

    def exponential(self, exponent: Forms, value: Forms, target: Ints) -> Head:
        """target_j += value_j e^{exponent_j} for exponents well below the ceiling, token by token."""
        return self.below(stack(self.own, exponent), stack(self.others, self.ones), value, target, self.ceiling)

    def pick_exponential(self, source: int, exponent: Forms, value: Forms, target: Ints) -> Head:
        """target_j += (value e^{exponent}) at token ``source``, the same in every data token j to the last bit."""
        hidden = np.delete(self.positions, [0, source])
        key = exponent + Forms(1, np.zeros(len(hidden), np.int64), hidden, np.full(len(hidden), -OFF))
        return self.below(self.ones, key, value, target, self.ceiling)

    def below(self, query: Forms, key: Forms, value: Forms, target: Ints, ceiling: float, gain: float = 1.0) -> Head:
        """target_j += gain sum_i e^{key_i . query_j} value_i, for scores well below ``ceiling``.

        The sink has score ``ceiling`` and takes nearly all attention: the weight of a token that is seen alone is
        e^{score - ceiling} / (1 + e^{score - ceiling}). The sink's own column attends to the sink alone, however large
        the scores, so that it stays zero.
        """
        query = stack(query, self.everywhere, self._sink(OFF))
        return Head(query, stack(key, self._sink(ceiling), self._sink(1.0)), value, target, gain * math.exp(ceiling))

    def pick(self, tokens: Ints, value: Forms, target: Ints) -> Head:
        """target_j += value at token ``tokens[j]``, counted from the sink, which is 0: hard attention, exact."""
        readers = Forms(self.n + 1, np.asarray(tokens, np.int64), self.positions, np.full(self.n + 1, OFF))
        return Head(readers, select(self.positions), value, target)

    def first(self, value: Forms, target: Ints) -> Head:
        """target_j += value at the first data token."""
        return self.pick(np.array([0] + [1] * self.n), value, target)

    def peak(self, value: Forms, target: Ints, sharpness: float) -> Head:
        """target_j += about the largest value_i over the data tokens, in every data token.

        The mean by the weights e^{sharpness value_i}; it is at most log(n) / sharpness below the largest.
        """
        keys = stack(value * sharpness + self._sink(-OFF), self._sink(1.0))
        return Head(stack(self.ones, self._sink(OFF)), keys, value, target)

    def total(self, value: Forms, target: Ints) -> Head:
        """target_j += sum_i value_i over all tokens, in every data token: uniform attention."""
        return Head(self._sink(OFF), self._sink(1.0), value, target, gain=float(self.n + 1))


def _names(machine: Machine, schedule: Schedule) -> dict[int, str]:
    """The name in P of each row that is written or given."""
    placed = [each for block in schedule.layers.values() for layer in block for each in layer]
    written = {number for each in placed for number in each.written}
    names: dict[int, str] = {ONE: "one"}
    taken = {"one", "position"}
    for number, row in enumerate(machine.rows):
        given = row.block == "input" and number not in schedule.unread
        if number in (ONE, EYE) or row.view or not (number in written or given):
            continue
        name, copy = row.name, 2
        while name in taken:
            name, copy = f"{row.name} ({copy})", copy + 1
        taken.add(name)
        names[number] = name
    return names
