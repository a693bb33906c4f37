"""What the program itself makes of perturbations: the largest change of every value in eight draws.

*Of its input*: every entry of the inputs and states is perturbed by a part of itself.

*Of its operations*: every operation loses a part of its terms (of u and of v in u + v), and so did the step before, in
what it left in the states, if the residual was small then already. A sum that cancels changes by more than is left of
it, and so does all that is made of it; a value that has only become small, d <- d / 10, keeps its digits, and so do
d / |d| and a quotient of two of its squares. Where entries of a vector need not be exact to a part of themselves, the
loss is one of the norm.

*Stopped.* Where an inner product falls into its own rounding, the weights take the states that share its scale to 0
(the trip of ``instructions.py``), so that x stays where it is. That shows in a vector: in the program's own step it is
noise, and in the weights it is less. From there a state that is made of it may be any part of the program's own, from
0 to 1, and a scalar is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nlaformer.compiler.expression import Expression, size
from nlaformer.compiler.found import STEP, Found, own_nodes, own_value, state_of
from nlaformer.compiler.graph import AXES
from nlaformer.compiler.trace import ANSWER

NOISE = 0.1  # a value of which perturbations change such a part has no digits
_DRAWS, _STEPS = 8, 2
# Operations that lose nothing.
_EXACT = frozenset(
    {"constant", "zeros", "ones", "identity", "positive", "relu", "transpose", "diag", "diagonal", "triangle", "roll"}
)


@dataclass(frozen=True)
class Perturbed:
    """A program on what was found, to be perturbed; changes are by output, (systems, times) each."""

    program: Expression
    found: Found
    nodes: Sequence[Tensor]

    @classmethod
    def of(cls, program: Expression, found: Found) -> Perturbed:
        return cls(program, found, own_nodes(program, found))

    def by_input(self, amount: float) -> dict[str, Tensor]:
        """The changes when each entry of inputs and states is perturbed by an amount."""
        draws, changes = torch.Generator().manual_seed(0), dict[str, Tensor]()
        values = {**self.found.inputs, **self.found.states}
        for _ in range(_DRAWS):
            factors = {name: 1 + amount * _signs(value, draws) for name, value in values.items()}
            moved = self.program.results({name: value * factors[name] for name, value in values.items()})
            self._enlarge(changes, moved)
        return changes

    def by_operations(self, amount: float, of_norm: bool = False) -> dict[str, Tensor]:
        """The changes when each operation of two steps loses an amount of its terms, or of their norm."""
        draws, changes = torch.Generator().manual_seed(0), dict[str, Tensor]()
        found, program = self.found, self.program

        def less(value: Tensor, terms: Tensor, axes: int) -> Tensor:
            if of_norm and axes:
                terms = terms.square().sum(tuple(range(-axes, 0)), keepdim=True).sqrt()
            return value + amount * torch.where(torch.isfinite(terms), terms, 0.0) * _signs(value, draws)

        def rounded(number: int, results: Sequence[Tensor]) -> Tensor:
            op, _, _, kind = program.nodes[number]
            value = results[number]
            return value if op in _EXACT else less(value, program.terms(number, results), AXES[kind])

        for _ in range(_DRAWS):
            off = {name: torch.zeros_like(value) for name, value in found.states.items()}
            for _ in range(_STEPS):
                given = {name: less(value, value, value.dim() - 2) for name, value in found.inputs.items()}
                given |= {k: less(value + off[k], value, value.dim() - 2) for k, value in found.states.items()}
                moved = program.results(given, rounded=rounded)
                for name in program.outputs.keys() - {ANSWER}:
                    change = self._change(name, moved).nan_to_num(0.0, 0.0, 0.0)
                    counts = found.settled_at(name)[(..., *[None] * (change.dim() - 2))]
                    found.made(name, off[state_of(name)])[...] = change * counts
            self._enlarge(changes, moved)
        return changes

    def stopped(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of each state, where the weights have stopped it; (systems, T) each."""
        found, program, stopped = self.found, self.program, dict[str, Tensor]()
        for name, value in found.states.items():
            if value.dim() == 2 or STEP + name not in program.outputs or value.shape[1] < 2:
                continue
            own, here = (size(v, program.kinds[STEP + name]) for v in (self._own(STEP + name), value[:, 1:]))
            less = (noise[STEP + name] >= NOISE * own) & (here < NOISE * own) & found.settled[:, 1:]
            stopped[name] = torch.cummax(less.int(), -1).values.bool()
        never = torch.zeros_like(found.settled[:, 1:])
        made_of = {name: sum((stopped.get(s, never) for s in self._states_of(name)), never) for name in found.states}
        return {name: where.bool() for name, where in made_of.items()}

    def _states_of(self, name: str) -> set[str]:
        """A state and the states that it is made of, over any number of steps."""
        states, open_ = {name}, {name}
        while open_:
            outputs = (STEP + state for state in open_ if STEP + state in self.program.outputs)
            nodes = (self.program.nodes[k] for output in outputs for k in self.program.below(output))
            open_ = {extra for op, _, extra, _ in nodes if op == "state"} - states
            states |= open_
        return states

    def _own(self, name: str, nodes: Sequence[Tensor] | None = None) -> Tensor:
        return own_value(self.program, name, self.nodes if nodes is None else nodes, self.found)[0]

    def _change(self, name: str, moved: Sequence[Tensor]) -> Tensor:
        return self._own(name, moved) - self._own(name)

    def _enlarge(self, changes: dict[str, Tensor], moved: Sequence[Tensor]) -> None:
        """The larger of the changes so far and of those of another draw."""
        for name, kind in self.program.kinds.items():
            # A change that is not finite is the largest that there is.
            change = size(self._change(name, moved), kind).nan_to_num(torch.inf, torch.inf)
            changes[name] = torch.maximum(changes.get(name, change), change)


def _signs(value: Tensor, draws: torch.Generator) -> Tensor:
    """Plus and minus 1 at random; the same for every system, so that a batch is judged as its systems alone."""
    signs = torch.randint(2, value.shape[1:], generator=draws, dtype=torch.int8) * 2 - 1
    return signs.to(value)
