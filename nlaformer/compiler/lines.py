"""A user's own lines on arrays, beside the graph that was traced from them: start, a few steps and finish.

What a graph cannot hold shows here: hidden state, random numbers, an array changed in place under two names. And where
NumPy divides 0 by 0, which is 0 in a graph, a system says nothing about weights.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.compiler.deviation import Tolerance, deviations
from nlaformer.compiler.found import STEP, Found, own_nodes, state_of, values_of
from nlaformer.compiler.graph import AXES, KINDS
from nlaformer.compiler.inputs import padded_to
from nlaformer.compiler.judge import Checks, with_settled
from nlaformer.compiler.noise import NOISE
from nlaformer.compiler.trace import ANSWER, TracedProgram, parameters
from nlaformer.errors import CompileError

_STEPS = 4


def judge_lines(traced: TracedProgram, inputs: Mapping[str, np.ndarray], checks: Checks) -> None:
    """Refuse a program whose own lines on arrays do not compute what was traced, or that sees padding."""
    exact = {name: value.astype("float64") for name, value in inputs.items()}
    name, n = traced.program.name, next(iter(exact.values())).shape[-1]
    if differs := _first_difference(traced, n, exact, checks):
        raise CompileError(
            f"{name}: {differs[0]} on arrays differs from what was traced: {differs[1]}. Either it is not the same "
            "each time, as with random numbers or a counter that is no state (return what changes as a state), or it "
            "changes an array in place that has two names: with y = x, x += d changes y too; write x = x + d. Or the "
            "program amplifies rounding errors on these systems; give it others that it is meant for, verify=dict(A=A)"
        )
    if not traced.program.rectangular or "A" not in exact or exact.keys() - KINDS.keys() or n < 3:
        return  # of a further input it is not known which side it has
    for m, k in ((n, n - 1), (n - 1, n)):
        parts = {"A": np.s_[:, :m, :k], "b": np.s_[:, :m], "x0": np.s_[:, :k]}
        try:
            differs = _first_difference(traced, n, {name: v[parts[name]] for name, v in exact.items()}, checks)
        except CompileError:  # its lines are for the other shape
            continue
        if differs:
            raise CompileError(
                f"{name}: {differs[0]} sees the zeros with which rectangular data is padded: {differs[1]} is another "
                f"one for a matrix of {m} x {k} than for the same one padded to {n} x {n}. What is not 0 at 0 (np.exp, "
                "np.ones_like) sees them, and so do means, lengths, shifts, the last entry. Write it without these, or "
                "pad the data yourself and omit rectangular = True"
            )


def _first_difference(
    traced: TracedProgram, n: int, exact: dict[str, np.ndarray], checks: Checks
) -> tuple[str, str] | None:
    """The method and the value, in words, that differ first between the user's lines and the graph; None if none do.

    Of rectangular systems the lines take the data as it is, and the graph takes it padded to n; so are the values.
    """
    systems = [{name: value[i] for name, value in exact.items()} for i in range(len(next(iter(exact.values()))))]
    runs = [list(itertools.islice(_records(traced, system), _STEPS + 1)) for system in systems]
    values = {
        name: torch.stack(
            [torch.stack([padded_to(n, record[name], record[name].ndim) for record in run]) for run in runs]
        )
        for name in runs[0][0]
    }
    inputs = {name: padded_to(n, torch.from_numpy(value), value.ndim - 1) for name, value in exact.items()}
    found = Found.of_run(inputs, values)
    program = values_of(traced)
    nodes = own_nodes(program, found.without_zeros())
    # Past convergence, both round what is left in their own ways.
    found = with_settled(found, replace(checks, program=program), nodes).found
    tolerance = replace(Tolerance.of(torch.float64), plain=1e-10)
    for name, deviation in deviations(program, found, tolerance, nodes).items():
        # 0 / 0 is NaN in NumPy and 0 in the weights. What rounding changes by a tenth has no digits to compare, as the
        # vector that Lanczos' method normalizes when it is complete.
        wrong = (deviation.wrong & torch.isfinite(deviation.error) & (deviation.allowed < NOISE)).any(0)
        if bool(wrong.any()):
            step = int(wrong.nonzero()[0]) + name.startswith(STEP)
            what = "its answer" if name == ANSWER else f"the state {state_of(name)!r}"
            method = "finish" if name == ANSWER else name.split()[0]
            return method, f"{what} after {f'step {step}' if step else 'the start'}"
    return None


def first_lost(traced: TracedProgram, inputs: Mapping[str, np.ndarray], steps: int) -> float:
    """The step in which the user's own lines first give a number that is not finite, or fail; infinity for none.

    0 is the start; the inputs are those of one system.
    """
    records = _records(traced, {name: value.astype("float64") for name, value in inputs.items()})
    for step in range(steps + 1):
        try:
            if not all(bool(torch.isfinite(value).all()) for value in next(records).values()):
                return step
        except CompileError:  # as of a Python number divided by 0
            return step
    return math.inf


def _records(traced: TracedProgram, inputs: dict[str, Any]) -> Iterator[dict[str, Tensor]]:
    """The states and the answer after start and after every step of the user's own lines, one system."""
    program, sides = traced.program, {side for value in inputs.values() for side in value.shape}
    kinds = {name: node.kind for name, node in traced.state.items()} | {ANSWER: traced.answer.kind}
    arrays = "NumPy arrays"
    if traced.uses_torch:  # whose functions take tensors alone
        arrays, inputs = "tensors", {name: torch.as_tensor(value) for name, value in inputs.items()}

    def call(method: str, known: dict[str, Any]) -> Any:
        found = getattr(program, method)
        try:
            # Copies, so that x += d does not change the state before the step; numbers stay numbers.
            with np.errstate(all="ignore"):
                return found(**{name: copy.deepcopy(known[name]) for name in parameters(found)})
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
