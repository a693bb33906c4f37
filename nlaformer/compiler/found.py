"""What a run found beside what the program makes of it: every value of one call of start, step or finish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nlaformer.compiler.expression import Expression, size
from nlaformer.compiler.graph import AXES, Node, reachable
from nlaformer.compiler.instructions import STANDS_FOR_ZERO
from nlaformer.compiler.trace import ANSWER, TracedProgram

START, STEP = "start ", "step "  # before the name of a state, in the outputs of a program's expression
RUN = "run "  # before the name of a state or of the answer, against the program's own run
ROUNDINGS = 16  # in the last place, of what a program is given
PERTURBATION = 1e-8  # of each entry: what a program makes of it is its response


def values_of(traced: TracedProgram) -> Expression:
    """What start, step and finish return, each by name, in one expression."""
    return Expression.of(without_networks(_returned(traced)))


def lines_of(traced: TracedProgram) -> dict[str, str]:
    """The lines of the user's class that compute them; none of what is returned as it was given."""
    computed = {name: node for name, node in _returned(traced).items() if node.op not in ("input", "state")}
    return {name: str(node.place) for name, node in computed.items()}


def _returned(traced: TracedProgram) -> dict[str, Node]:
    start = {START + name: node for name, node in traced.start.items()}
    step = {STEP + name: node for name, node in traced.step.items()}
    return {**start, **step, ANSWER: traced.answer}


def without_networks(values: Mapping[str, Node]) -> dict[str, Node]:
    """Those values that no learned part has a share in; its network is in the weights, and nowhere else."""
    return {k: node for k, node in values.items() if all(below.op != "learned" for below in reachable([node]))}


def state_of(name: str) -> str:
    """The state that an output of the program's expression is."""
    return name.removeprefix(START).removeprefix(STEP).removeprefix(RUN)


def sizes(values: Tensor) -> Tensor:
    """The norms of values (systems, times, ...)."""
    return size(values, ("scalar", "vector", "matrix")[values.dim() - 2])


@dataclass(frozen=True)
class Found:
    """What a run found, in float64: inputs (systems, 1, ...), states and answer (systems, T + 1, ...).

    Attributes
    ----------
    inputs, states : by name
    answer : what ``finish`` returned after the start and after every step
    dtype : in which the weights computed
    units : by name, the power of two by which the weights' own value was multiplied, (systems,)
    settled : where the residual has fallen and vouches for the answer (``deviation.py``), (systems, T + 1)
    """

    inputs: Mapping[str, Tensor]
    states: Mapping[str, Tensor]
    answer: Tensor
    dtype: torch.dtype
    units: Mapping[str, Tensor]
    settled: Tensor

    @classmethod
    def of_run(
        cls, inputs: Mapping[str, Tensor], values: Mapping[str, Tensor], units: Mapping[str, Tensor] | None = None
    ) -> Found:
        """Of inputs (systems, ...) and every state and, under ``ANSWER``, the answer, (systems, T + 1, ...)."""
        exact = {name: value.double() for name, value in values.items()}
        answer = exact.pop(ANSWER)
        if units is None:  # no weights made them
            units = dict.fromkeys(values, torch.ones(len(answer), dtype=torch.float64, device=answer.device))
        # Iterations are one more batch dimension, so the inputs get an axis of length one for it.
        given = {name: value.double()[:, None] for name, value in inputs.items()}
        settled = torch.zeros(answer.shape[:2], dtype=torch.bool, device=answer.device)
        return cls(given, exact, answer, values[ANSWER].dtype, units, settled)

    def pick(self, systems: Tensor) -> Found:
        """Some of the systems."""
        inputs, states, units = (
            {name: value[systems] for name, value in values.items()}
            for values in (self.inputs, self.states, self.units)
        )
        return Found(inputs, states, self.answer[systems], self.dtype, units, self.settled[systems])

    def of(self, name: str) -> Tensor:
        """The values that an output of the program's expression has to be compared with."""
        return self.answer if name == ANSWER else self.made(name, self.states[state_of(name)])

    def settled_at(self, name: str) -> Tensor:
        """Where a run is settled when the values of an output are made; the answer is always judged."""
        return torch.zeros_like(self.settled) if name == ANSWER else self.made(name, self.settled)

    def made(self, name: str, values: Tensor) -> Tensor:
        """Of values at all times those at which start, or a step, makes an output."""
        return values[:, :1] if name.startswith(START) else values[:, 1:]

    def negligible(self, name: str) -> Tensor:
        """The size of a state that counts as 0: 16 roundings of its largest, and 0 until settled; (systems, T + 1)."""
        largest = torch.cummax(sizes(self.states[name]).nan_to_num(0.0, 0.0), -1).values
        return torch.where(self.settled, ROUNDINGS * torch.finfo(self.dtype).eps * largest, 0.0)

    def without_negligible(self) -> Found:
        """States of which nothing is left as 0."""
        gone = {name: sizes(self.states[name]) <= self.negligible(name) for name in self.states}
        return self._cleared({k: gone[k].reshape(*gone[k].shape, *[1] * (v.dim() - 2)) for k, v in self.states.items()})

    def without_zeros(self) -> Found:
        """Scalars that may stand for 0 in the weights as 0, and what underflows: a quotient of them is one of zeros."""
        tiny = torch.finfo(self.dtype).tiny
        least = {k: self.units[k] * (STANDS_FOR_ZERO if v.dim() == 2 else 0.0) + tiny for k, v in self.states.items()}
        return self._cleared({k: v.abs() <= least[k].reshape(-1, *[1] * (v.dim() - 1)) for k, v in self.states.items()})

    def _cleared(self, where: Mapping[str, Tensor]) -> Found:
        return replace(self, states={name: torch.where(where[name], 0.0, v) for name, v in self.states.items()})


def own_nodes(program: Expression, found: Found) -> list[Tensor]:
    """Every value of the program on what was found, for all systems and times; what ``own_value`` reads."""
    return program.results({**found.inputs, **found.states}) if program.outputs else []


def own_value(program: Expression, name: str, nodes: Sequence[Tensor], found: Found) -> tuple[Tensor, Tensor]:
    """An output at its times, and the absolute terms of its last operation."""
    (systems, times), n = found.answer.shape[:2], next(iter(found.inputs.values())).shape[-1]
    number = program.outputs[name]
    shape = (systems, 1 if name.startswith(START) else times, *[n] * AXES[program.kinds[name]])
    value, terms = (value.expand(shape) for value in (nodes[number], program.terms(number, nodes)))
    return (value[:, :-1], terms[:, :-1]) if name.startswith(STEP) else (value, terms)
