"""A user's own lines on arrays, beside the graph that was traced from them: start, every step and finish.

What a graph cannot hold shows here: hidden state, random numbers, an array changed in place under two names, a branch
on the kind of a value. Lines and graph both compute in float64, so the lines must be what the graph gives in operations
of 40 bits (``digits.py``). Where NumPy divides 0 by 0, which is 0 in a graph, nothing is compared from there on.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.compiler.digits import RULES, Band, Rule, bands
from nlaformer.compiler.ends import Methods
from nlaformer.compiler.graph import AXES, KINDS
from nlaformer.compiler.trace import ANSWER, TracedProgram, parameters, trace_program
from nlaformer.errors import CompileError
from nlaformer.program.inputs import padded_to
from nlaformer.program.language import Program

if TYPE_CHECKING:
    from nlaformer.compiler.result import Record

_RULE = Rule(40)


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
    def of(cls, traced: TracedProgram, inputs: Mapping[str, np.ndarray], n: int, steps: int) -> Lines:
        """Of inputs (systems, ...), which may be rectangular; the values are padded to n."""
        kinds = {name: node.kind for name, node in traced.state.items()} | {ANSWER: traced.answer.kind}
        systems = len(next(iter(inputs.values())))
        shapes = {name: (systems, steps + 1, *[n] * AXES[kind]) for name, kind in kinds.items()}
        values = {name: torch.full(shape, torch.nan, dtype=torch.float64) for name, shape in shapes.items()}
        for system in range(systems):
            given = {name: value[system].astype("float64") for name, value in inputs.items()}
            with_lines = _records(traced, kinds, given)
            try:
                for step, record in zip(range(steps + 1), with_lines, strict=False):
                    for name, value in record.items():
                        values[name][system, step] = padded_to(n, value, value.ndim)
            except ArithmeticError:  # as of a Python number divided by 0
                pass
        finite = [torch.isfinite(value).flatten(2).all(-1) if value.dim() > 2 else torch.isfinite(value)
                  for value in values.values()]  # fmt: skip
        lost = ~torch.stack(finite).all(0)
        times = torch.arange(steps + 1, dtype=torch.float64)
        return cls(values, torch.where(lost, times, math.inf).amin(-1))

    def beside(self, own: Mapping[str, Band]) -> tuple[str, int] | None:
        """The value that first differs from the graph's, and its step; 0 / 0 is NaN in NumPy and 0 in a graph."""
        first: tuple[int, str] | None = None
        for name, band in own.items():
            value = self.values[name]
            known = (torch.arange(value.shape[1]) < self.lost[:, None]).reshape(
                *value.shape[:2], *[1] * (value.dim() - 2)
            )
            wrong = band.stands_out(torch.where(known, value, band.own)).any(0)
            if bool(wrong.any()) and (first is None or int(wrong.nonzero()[0]) < first[0]):
                first = (int(wrong.nonzero()[0]), name)
        return None if first is None else (first[1], first[0])


def _records(traced: TracedProgram, kinds: Mapping[str, str], inputs: dict[str, Any]) -> Iterator[dict[str, Tensor]]:
    """The states and the answer after start and after every step of the user's own lines, one system."""
    program, sides = traced.program, {side for value in inputs.values() for side in value.shape}
    arrays = "NumPy arrays"
    if traced.uses_torch:  # whose functions take tensors alone
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
        if array.ndim != AXES[kinds[name]] or not sides.issuperset(array.shape):
            what = "finish" if name == ANSWER else f"the state {name!r}"
            raise CompileError(
                f"{program.name}: {what} has the shape {array.shape} on {arrays}; as traced it is a {kinds[name]}"
            )
        return torch.from_numpy(array.copy())

    state = call("start", inputs)
    while True:
        record = {**state, ANSWER: call("finish", inputs | state)}
        yield {name: tensor(name, value) for name, value in record.items()}
        state = call("step", inputs | state)


def judge_lines(traced: TracedProgram, inputs: Mapping[str, np.ndarray], n: int, steps: int) -> Lines:
    """The lines on these systems; CompileError where they do not compute what was traced, or see padding."""

    def differs(given: Mapping[str, np.ndarray]) -> tuple[Lines, str]:
        with contextlib.redirect_stdout(io.StringIO()):  # what a step prints, it has printed while it was traced
            lines = Lines.of(traced, given, n, steps)
        square = {k: padded_to(n, torch.from_numpy(v.astype("float64")), v.ndim - 1) for k, v in given.items()}
        first = lines.beside(bands(Methods.traced(traced), square, steps, _RULE))
        if first is None:
            return lines, ""
        what = "its answer" if first[0] == ANSWER else f"the state {first[0]!r}"
        return lines, f"{what} after {f'step {first[1]}' if first[1] else 'the start'}"

    name = traced.program.name
    lines, found = differs(inputs)
    if found:
        raise CompileError(
            f"{name}: on arrays its own lines differ from what was traced: {found}. Either they are not the same each "
            "time, as with random numbers or a counter that is no state (return what changes as a state), or they "
            "change an array in place that has two names: with y = x, x += d changes y too; write x = x + d. Or they "
            "decide by the kind of a value, as isinstance and match do, which tracing does not see"
        )
    if not traced.program.rectangular or "A" not in inputs or inputs.keys() - KINDS.keys() or n < 3:
        return lines  # of a further input it is not known which side it has
    for m, k in ((n, n - 1), (n - 1, n)):
        parts = {"A": np.s_[:, :m, :k], "b": np.s_[:, :m], "x0": np.s_[:, :k]}
        try:
            _, found = differs({key: value[parts[key]] for key, value in inputs.items()})
        except CompileError:  # its lines are for the other shape
            continue
        if found:
            raise CompileError(
                f"{name}: its own lines see the zeros with which rectangular data is padded: {found} is another one "
                f"for a matrix of {m} x {k} than for the same one padded to {n} x {n}. What is not 0 at 0 (np.exp, "
                "np.ones_like) sees them, and so do means, lengths, shifts, the last entry. Write it without these, or "
                "pad the data yourself and omit rectangular = True"
            )
    return lines


@dataclass(frozen=True)
class Check:
    """A run beside the program's own lines on the same data; ``bool`` of it is whether nothing differs.

    Attributes
    ----------
    bars : by how many bars each value of the run is off, 0 where nothing is compared, (..., T + 1)
    allowed : so many are
    lost : the first step after which the lines give a number that is not finite, infinity for none; (...)
    """

    name: str
    bars: dict[str, np.ndarray]
    allowed: float
    lost: np.ndarray

    def __bool__(self) -> bool:
        return not any((bars > self.allowed).any() for bars in self.bars.values())

    def __str__(self) -> str:
        first = [(int((bars > self.allowed).any(tuple(range(bars.ndim - 1))).argmax()), name)
                 for name, bars in self.bars.items() if (bars > self.allowed).any()]  # fmt: skip
        if not first:
            lost = f" until they are not finite (step {int(self.lost.min())})" if np.isfinite(self.lost).any() else ""
            return f"{self.name}: the run is what the program's own lines give{lost}"
        step, name = min(first)
        what = "the answer" if name == ANSWER else f"the state {name}"
        worst = float(self.bars[name][..., step].max())
        return (
            f"{self.name}: {what} after {f'step {step}' if step else 'start'} is not what the program's own lines "
            f"give: it is {worst:.1e} bars off, {self.allowed:.0f} are allowed"
        )


def checked(program: Program, record: Record) -> Check:
    """A run beside the lines of its program, on its own data."""
    inputs = {name: value.double().cpu() for name, value in record.inputs.items()}
    n, steps = next(v.shape[-1] for v in inputs.values() if v.dim() > 1), record.values[ANSWER].shape[1] - 1
    traced, rule = trace_program(program, n), RULES[record.dtype]
    lines = Lines.of(traced, {name: value.numpy() for name, value in inputs.items()}, n, steps)
    bars = {}
    for name, band in bands(Methods.traced(traced), inputs, steps, rule).items():
        off = replace(band, own=lines.values[name]).bars_off(record.values[name].double().cpu())
        bars[name] = off.reshape(*record.batch, steps + 1).numpy()
    return Check(program.name, bars, rule.bars, lines.lost.reshape(record.batch).numpy())
