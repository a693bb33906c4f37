"""The user's own lines on arrays, beside the graph that was traced from them.

What a graph cannot hold shows here: hidden state, random numbers, an array changed in place under two names, a branch
on the kind of a value.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.errors import CompileError
from nlaformer.program.data import ANSWER, ProgramGraph
from nlaformer.program.inputs import padded_to
from nlaformer.program.judge import RULES, bands
from nlaformer.program.language import Program
from nlaformer.program.status import Diagnosis, Record
from nlaformer.program.trace import parameters, trace


@dataclass(frozen=True)
class Lines:
    """What the user's own lines give on systems, one after the other.

    Attributes
    ----------
    values : every state and the answer, (systems, T + 1, ...); NaN from where the lines fail
    lost : the first step after which a value is not finite, infinity for none; (systems,)
    """

    values: dict[str, Tensor]
    lost: Tensor

    @classmethod
    def of(cls, program: Program, graph: ProgramGraph, inputs: Mapping[str, np.ndarray], steps: int) -> Lines:
        """Of inputs (systems, ...), which may be rectangular; the values are padded to n."""
        systems = len(next(iter(inputs.values())))
        shapes = {name: (systems, steps + 1, *node.shape) for name, node in graph.values.items()}
        values = {name: torch.full(shape, torch.nan, dtype=torch.float64) for name, shape in shapes.items()}
        for system in range(systems):
            given = {name: value[system].astype("float64") for name, value in inputs.items()}
            with_lines = _records(program, graph, given)
            try:
                for step, record in zip(range(steps + 1), with_lines, strict=False):
                    for name, value in record.items():
                        values[name][system, step] = (
                            padded_to(graph.n, value, value.ndim) if value.shape != shapes[name][2:] else value
                        )
            except ArithmeticError:  # as of a Python number divided by 0
                pass
        finite = [torch.isfinite(value).flatten(2).all(-1) if value.dim() > 2 else torch.isfinite(value)
                  for value in values.values()]  # fmt: skip
        lost = ~torch.stack(finite).all(0)
        times = torch.arange(steps + 1, dtype=torch.float64)
        return cls(values, torch.where(lost, times, math.inf).amin(-1))

    def beside(self, graph: ProgramGraph, inputs: Mapping[str, Tensor]) -> tuple[str, int] | None:
        """The value that first differs from the graph's, and its step; 0 / 0 is NaN in NumPy and 0 in a graph."""
        steps = self.values[ANSWER].shape[1] - 1
        known = torch.arange(steps + 1) < self.lost[:, None]
        own = bands(graph, inputs, steps, RULES[torch.float64], self.values, known)
        wrong = {name: (band.wrong(self.values[name]) & known).any(0) for name, band in own.items()}
        first = {name: int(each.nonzero()[0]) for name, each in wrong.items() if each.any()}
        return min(first.items(), key=lambda found: found[1], default=None)


def _records(program: Program, graph: ProgramGraph, inputs: dict[str, Any]) -> Iterator[dict[str, Tensor]]:
    """The states and the answer after start and after every step of the user's own lines, one system."""
    sides, arrays = {side for value in inputs.values() for side in value.shape}, "NumPy arrays"
    if graph.uses_torch:  # whose functions take tensors alone
        arrays, inputs = "tensors", {name: torch.as_tensor(value) for name, value in inputs.items()}

    def call(method: str, known: dict[str, Any]) -> Any:
        found = getattr(program, method)
        try:
            # Copies, so that x += d does not change the state before the step; numbers stay numbers.
            with np.errstate(all="ignore"):
                return found(**{name: copy.deepcopy(known[name]) for name in parameters(found)})
        except ArithmeticError:
            raise
        except Exception as error:
            raise CompileError(
                f"{program.name}: {method} can be traced, but fails on {arrays}: {type(error).__name__}: {error}"
            ) from error

    def tensor(name: str, value: Any) -> Tensor:
        array = np.asarray(value, dtype="float64")
        node = graph.values[name]
        if array.shape != node.shape and (array.ndim != node.ndim or not sides.issuperset(array.shape)):
            what = "finish" if name == ANSWER else f"the state {name!r}"
            raise CompileError(
                f"{program.name}: {what} has the shape {array.shape} on {arrays}; as traced it is a {node.kind}"
            )
        return torch.from_numpy(array.copy())

    state = call("start", inputs)
    while True:
        record = {**state, ANSWER: call("finish", inputs | state)}
        yield {name: tensor(name, value) for name, value in record.items()}
        state = call("step", inputs | state)


def beside_lines(record: Record, program: Program) -> Diagnosis:
    """A run beside the user's own lines, on the data of the run."""
    inputs = {name: value.cpu().numpy() for name, value in record.inputs.items()}
    n, steps = next(value.shape[-1] for value in inputs.values() if value.ndim > 1), record.answer.shape[1] - 1
    graph = trace(program, n)
    lines = Lines.of(program, graph, inputs, steps)
    own = bands(graph, record.inputs, steps, RULES[record.dtype], record.values)
    found = replace(record, of_weights=True, graph=graph)
    # The bands of the graph around what the lines give.
    vars(found)["bands"] = {name: replace(band, own=lines.values[name].to(band.own)) for name, band in own.items()}
    return found.diagnosis()
