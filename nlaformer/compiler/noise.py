"""What the program itself makes of perturbations: the largest change of every value in eight draws.

*Of its input*: every entry of the inputs and states is perturbed by a part of itself.

*Of its operations*: every operation loses a part of its terms (of u and of v in u + v), and so did the step before, in
what it left in the states, if the residual was small then already. A sum that cancels changes by more than is left of
it, and so does all that is made of it; a value that has only become small, d <- d / 10, keeps its digits, and so do
d / |d| and a quotient of two of its squares. Where entries of a vector need not be exact to a part of themselves, the
loss is one of the norm.

*Stopped.* Where an inner product falls into its own rounding, the weights take the states that vanish with it to 0 (the
trip of ``instructions.py``), so that x stays where it is. They are noise in the program's own step, and what it makes
of 0 in their place is as right as what it makes of them. Where a vector stays, as r does in A^T r, what the program
divides next by that 0 is noise, and the method starts again: the quotient is 0, as 0/0 is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nlaformer.compiler.expression import Expression, size
from nlaformer.compiler.found import START, STEP, Found, own_nodes, own_value, state_of
from nlaformer.compiler.graph import AXES, REARRANGING
from nlaformer.compiler.trace import ANSWER

NOISE = 0.1  # a value of which perturbations change such a part has no digits
_DRAWS, _STEPS = 8, 2
# Operations that lose nothing.
_EXACT = REARRANGING | {"constant", "zeros", "ones", "identity", "positive", "relu"}


@dataclass(frozen=True)
class Perturbed:
    """A program on what was found, to be perturbed; changes are by output, (systems, times) each.

    Attributes
    ----------
    nodes : every value of the program
    halted : of quotients by their number, where they are 0 although their numerator is not
    """

    program: Expression
    found: Found
    nodes: Sequence[Tensor]
    halted: Mapping[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Expression, found: Found) -> Perturbed:
        return cls(program, found, own_nodes(program, found))

    def by_input(self, amount: float) -> dict[str, Tensor]:
        """The changes when each entry of inputs and states is perturbed by an amount."""
        draws, changes = torch.Generator().manual_seed(0), dict[str, Tensor]()
        values = {**self.found.inputs, **self.found.states}
        for _ in range(_DRAWS):
            factors = {name: 1 + amount * _signs(value, draws) for name, value in values.items()}
            moved = self._results({name: value * factors[name] for name, value in values.items()})
            self._enlarge(changes, moved)
        return changes

    def by_operations(self, amount: float, of_norm: bool = False) -> dict[str, Tensor]:
        """The changes when each operation of two steps loses an amount of its terms, or of their norm."""
        changes = dict[str, Tensor]()
        for moved in self._losing(amount, of_norm):
            self._enlarge(changes, moved)
        return changes

    def _losing(self, amount: float, of_norm: bool = False) -> Iterator[list[Tensor]]:
        """Every value of the program where its operations lose an amount, in each draw."""
        draws, found, program = torch.Generator().manual_seed(0), self.found, self.program

        def less(value: Tensor, terms: Tensor, axes: int) -> Tensor:
            if of_norm and axes:
                terms = terms.square().sum(tuple(range(-axes, 0)), keepdim=True).sqrt()
            return value + amount * torch.where(torch.isfinite(terms), terms, 0.0) * _signs(value, draws)

        def rounded(number: int, results: Sequence[Tensor]) -> Tensor:
            op, _, _, kind = program.nodes[number]
            value = self._halt(number, results)
            return value if op in _EXACT else less(value, program.terms(number, results), AXES[kind])

        for _ in range(_DRAWS):
            off = {name: torch.zeros_like(value) for name, value in found.states.items()}
            for _ in range(_STEPS):
                given = {name: less(value, value, value.dim() - 2) for name, value in found.inputs.items()}
                given |= {k: less(value + off[k], value, value.dim() - 2) for k, value in found.states.items()}
                moved = program.results(given, rounded=rounded)
                for name in program.outputs.keys() - {ANSWER}:
                    change = self._change(name, moved).nan_to_num(0.0, 0.0, 0.0)
                    found.made(name, off[state_of(name)])[...] = change * _widened(
                        found.settled_at(name), change.dim() - 2
                    )
            yield moved

    def stopped(self, noise: Mapping[str, Tensor], amount: float) -> list[Tensor]:
        """Every value of the program with 0 for those that are noise, and for 0/0."""
        found, program = self.found, self.program
        noisy = self._noisy(amount)

        def without_noise(name: str, value: Tensor) -> Tensor:
            sizes, is_noise = size(value, program.kinds[STEP + name]), torch.zeros_like(found.settled)
            for output in (START + name, STEP + name):
                found.made(output, is_noise)[...] = noise[output] >= NOISE * found.made(output, sizes)
            return torch.where(_widened(is_noise & found.settled, value.dim() - 2), 0.0, value)

        def cleared(number: int, results: Sequence[Tensor]) -> Tensor:
            return torch.where(_widened(noisy[number], AXES[program.nodes[number][3]]), 0.0, results[number])

        judged = {name for name in found.states if {START + name, STEP + name} <= program.outputs.keys()}
        states = {name: without_noise(name, v) if name in judged else v for name, v in found.states.items()}
        return program.results({**found.inputs, **states}, rounded=cleared)

    def after_stop(self, amount: float) -> Perturbed:
        """The same program where quotients of noise by 0 are 0."""
        noisy, halted = self._noisy(amount), dict[int, Tensor]()
        for number, (op, arguments, _, kind) in enumerate(self.program.nodes):
            if op == "divide" and noisy[arguments[0]].dim():  # a constant is no noise
                missing = AXES[kind] - AXES[self.program.nodes[arguments[1]][3]]
                is_zero = _widened(self.nodes[arguments[1]] == 0, missing)
                halted[number] = is_zero & _widened(noisy[arguments[0]], AXES[kind])
        made = replace(self, halted=halted)
        return replace(made, nodes=made._results({**self.found.inputs, **self.found.states}))

    def _results(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        return self.program.results(values, rounded=self._halt if self.halted else None)

    def _halt(self, number: int, results: Sequence[Tensor]) -> Tensor:
        return torch.where(self.halted[number], 0.0, results[number]) if number in self.halted else results[number]

    def _noisy(self, amount: float) -> list[Tensor]:
        """Of each value, where the residual is small and operations that lose an amount change a tenth of it."""
        kinds = [kind for *_, kind in self.program.nodes]
        sizes = [size(value, kind) for value, kind in zip(self.nodes, kinds, strict=True)]
        changes = [torch.zeros_like(own) for own in sizes]
        for moved in self._losing(amount):
            for k, (value, own) in enumerate(zip(moved, self.nodes, strict=True)):
                change = size(value - own, kinds[k]).nan_to_num(torch.inf, torch.inf)
                changes[k] = torch.maximum(changes[k], change)
        settled = self.found.settled
        return [
            (v >= NOISE * own) & (settled[:, : own.shape[1]] if own.dim() == 2 else False)  # a constant is no noise
            for v, own in zip(changes, sizes, strict=True)
        ]

    def _change(self, name: str, moved: Sequence[Tensor]) -> Tensor:
        there, here = (own_value(self.program, name, nodes, self.found)[0] for nodes in (moved, self.nodes))
        return there - here

    def _enlarge(self, changes: dict[str, Tensor], moved: Sequence[Tensor]) -> None:
        """The larger of the changes so far and of those of another draw."""
        for name, kind in self.program.kinds.items():
            # A change that is not finite is the largest that there is.
            change = size(self._change(name, moved), kind).nan_to_num(torch.inf, torch.inf)
            changes[name] = torch.maximum(changes.get(name, change), change)


def _widened(values: Tensor, axes: int) -> Tensor:
    """Values with axes of length one at their end."""
    return values[(..., *[None] * axes)]


def _signs(value: Tensor, draws: torch.Generator) -> Tensor:
    """Plus and minus 1 at random; the same for every system, so that a batch is judged as its systems alone."""
    signs = torch.randint(2, value.shape[1:], generator=draws, dtype=torch.int8) * 2 - 1
    return signs.to(value)
