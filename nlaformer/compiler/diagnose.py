"""Where a run strays from its program: each value's deviation at each step, the first that is too large, its making.

``Run.diagnose`` and the verification of ``nf.compile`` both ask here, so a CompileError and the status of a user's own
run speak of the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.compiler.deviation import Deviation
from nlaformer.compiler.expression import Expression
from nlaformer.compiler.found import RUN, START, STEP, Found, state_of
from nlaformer.compiler.schedule import in_words
from nlaformer.compiler.trace import ANSWER

if TYPE_CHECKING:
    from nlaformer.compiler.config import AlgorithmConfig


@dataclass(frozen=True)
class Stray:
    """A value that is not the program's own.

    Attributes
    ----------
    value : the name of the state, or "finish()" for the answer
    step : 0 for the start, t for the t-th step
    system : its place in the batch
    deviation, allowed : relative to the absolute terms of the value's last operation
    instruction : what the weights do to make it
    run : whether it is compared with the program's own run, every call of which was near enough to the program's
    line : of the user's class, where the program computes it
    """

    value: str
    step: int
    system: tuple[int, ...]
    deviation: float
    allowed: float
    instruction: str
    run: bool = False
    line: str = ""

    def __str__(self) -> str:
        when = f"step {self.step}" if self.step else "start"
        if self.run:
            name = f"the answer after {when}" if self.value == ANSWER else f"the state {self.value} after {when}"
            text = f"{name} is {self.deviation:.1e} from that of the program's own run, {self.allowed:.0e} is allowed"
            return f"{text}, although every step is within its tolerance{self._place}"
        name = f"the answer after {when}" if self.value == ANSWER else f"the state {self.value} of {when}"
        text = f"{name} is {self.deviation:.1e} from the program's own on the same input, {self.allowed:.0e} is allowed"
        return text + (f"; the weights make it by {self.instruction}" if self.instruction else "") + self._place

    @property
    def _place(self) -> str:
        return f"; the program computes it in {self.line}" if self.line else ""


@dataclass(frozen=True)
class Diagnosis:
    """Every value's deviation from one call of the program on the same values, and from its own run; ``print`` it.

    Attributes
    ----------
    deviation, allowed : "start x" (..., 1), "step x" (..., T), "finish()" (..., T + 1) from one call of the program;
        "run x" and "run finish()" (..., T + 1) from its own run, infinity where nothing is judged
    strays : of each system that has one, the first value that deviates by more than is allowed
    lost : a sentence about the first value of the program itself that is not finite, where there is one
    """

    name: str
    deviation: dict[str, np.ndarray]
    allowed: dict[str, np.ndarray]
    strays: tuple[Stray, ...]
    lost: str = ""

    @property
    def first(self) -> Stray | None:
        """The first value of all systems that deviates by more than is allowed, or None."""
        return min(self.strays, key=lambda stray: stray.step, default=None)

    def __str__(self) -> str:
        strays = "all values are within tolerance" if self.first is None else str(self.first)
        lines = [f"{self.name}: {strays}" + (f"; {self.lost}" if self.lost else "")]
        for name, deviation in self.deviation.items():
            if not deviation.size:
                continue
            with np.errstate(invalid="ignore"):  # without bound, where nothing is judged
                excess = np.nan_to_num(deviation / self.allowed[name])
            worst = np.unravel_index(np.argmax(excess), deviation.shape)
            step = int(worst[-1]) + name.startswith(STEP)
            mark = "  <-" if deviation[worst] > self.allowed[name][worst] else ""
            where = "" if name.startswith(START) else f" (after step {step})"
            lines.append(f"  {name:16} {deviation[worst]:.1e} of {self.allowed[name][worst]:.0e}{where}{mark}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Making:
    """How weights made the values of a run.

    Attributes
    ----------
    name : of the algorithm
    units : by name, the power of two by which the weights' own value was multiplied, (systems,)
    config : of the algorithm, which has its schedule and the lines of its program
    """

    name: str
    units: Mapping[str, Tensor]
    config: AlgorithmConfig

    def instruction(self, output: str) -> str:
        """The assignments of the last layers that make an output of the program's expression."""
        config = self.config
        if output == ANSWER:
            return _made_in(config.schedule["post"], config.answer)
        if output.startswith(RUN):
            return ""
        block = "pre" if output.startswith(START) else "loop"
        return _made_in(config.schedule[block], config.state[state_of(output)])

    def line(self, output: str, step: int) -> str:
        """The line of the user's class that computes an output."""
        name = state_of(output)
        return self.config.lines.get(name if name == ANSWER else (STEP if step else START) + name, "")


@dataclass(frozen=True)
class Evidence:
    """What a diagnosis needs.

    Attributes
    ----------
    program : start, step and finish of every state, as outputs
    found : the values of the run
    batch : the shape of the systems
    until : the time after which nothing is judged: a promise was broken, or the program's own value is not finite
    deviations : of every value and run from the program's own
    """

    program: Expression
    found: Found
    batch: tuple[int, ...]
    until: Tensor
    deviations: Mapping[str, Deviation]
    making: Making

    def diagnose(self) -> Diagnosis:
        def arrays(values: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
            return {name: v.reshape(*self.batch, v.shape[1]).cpu().numpy() for name, v in values.items()}

        errors = {name: torch.where(d.lost, 0.0, d.error) for name, d in self.deviations.items()}
        allowed = {name: d.allowed for name, d in self.deviations.items()}
        return Diagnosis(self.making.name, arrays(errors), arrays(allowed), self._strays(), self._lost())

    def _lost(self) -> str:
        """Which operation of the program itself first gives a number that is not finite."""
        events = [
            (float(event_times(name, deviation.error)[column]), name, system, column)
            for name, deviation in self.deviations.items()
            for system, column in deviation.lost.nonzero().tolist()
        ]
        if not events:
            return ""
        time, name, system, column = min(events)
        one = self.found.pick(torch.tensor([system]))
        values = {**one.inputs, **{state: value[:, column : column + 1] for state, value in one.states.items()}}
        results = self.program.results(values)
        finite = [bool(torch.isfinite(value).all()) for value in results]
        for number in sorted(self.program.below(name)):
            op, arguments, _, _ = self.program.nodes[number]
            if not finite[number] and all(finite[k] for k in arguments):
                by_zero = op == "divide" and bool((results[arguments[1]] == 0).any())
                what = "divides by 0" if by_zero else "is not finite"
                when = "finish" if name == ANSWER else f"step {int(time)}" if time >= 1 else "start"
                return f"in {when} of the program itself, {self.program.spelled(number)} {what}"
        return ""

    def _strays(self) -> tuple[Stray, ...]:
        """The first stray of every system that has one; of several at one time, the one that exceeds most."""
        found = self.deviations
        first: dict[int, tuple[float, float, str, int]] = {}
        for name, deviation in found.items():
            times = event_times(name, deviation.error)
            wrong = deviation.wrong & (times <= self.until[:, None])
            for system, column in wrong.nonzero().tolist():
                excess = float(deviation.error[system, column] / deviation.allowed[system, column])
                event = (float(times[column]), -excess, name, column)
                first[system] = min(first.get(system, event), event)
        return tuple(
            Stray(
                state_of(name),
                int(time),
                tuple(int(k) for k in np.unravel_index(system, self.batch)) if self.batch else (),
                float(found[name].error[system, column]),
                float(found[name].allowed[system, column]),
                self.making.instruction(name),
                name.startswith(RUN),
                self.making.line(name, int(time)),
            )
            for system, (time, _, name, column) in sorted(first.items())
        )


def event_times(name: str, like: Tensor) -> Tensor:
    """When the values of an output are made: t for the state after step t, t + 1/2 for the answer read from it.

    The comparison with the program's own run comes after both, since these say more.
    """
    first = 1.0 if name.startswith(STEP) else 0.5 if name == ANSWER else 0.7 if name.startswith(RUN) else 0.0
    return first + torch.arange(like.shape[-1], dtype=torch.float64, device=like.device)


def _made_in(layers: Sequence[Any], place: Mapping[str, Any]) -> str:
    """The write into the rows of a value, and the instructions that make what it writes."""
    entries = [entry for layer in layers for entry in layer if not isinstance(entry, str)]  # text: the paper's form
    rows = {*place["rows"], place["scale"]}
    writes = [entry for entry in entries if entry[0] == "write" and entry[1] in rows]
    read = {name for entry in writes for source in entry[2] for name, _ in source}
    return "; ".join(in_words(entry) for entry in (*writes, *(e for e in entries if e[0] != "write" and e[1] in read)))
