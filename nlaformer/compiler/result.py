"""Runs: what they take, what they return, how they ended; and the plain run of a program, on arrays, no transformer.

The plain run (``run_program``) is the reference of the compiled one (``Algorithm.run``). Both check their inputs and
judge their iterates with the functions of this module.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import (
    ArrayT,
    ObjectArray,
    check_memory,
    common_kind,
    full_precision,
    give,
    operands,
    to_tensor,
    whole,
)
from nlaformer.compiler.expression import EMPTY, Expression, size
from nlaformer.compiler.graph import AXES, KINDS
from nlaformer.compiler.inputs import padded, size_of
from nlaformer.compiler.reference import Reference
from nlaformer.compiler.trace import ANSWER, TracedProgram, refuse, refuse_changes, refuse_open_parts
from nlaformer.errors import ShapeError

# The values of a program after its start and after each of so many steps.
_Iteration = Callable[[Mapping[str, Tensor], int], Iterable[dict[str, Tensor]]]


class RunStatus(enum.Enum):
    """How a run ended; the value is a sentence to print."""

    CONVERGED = "converged: the residual fell to the accuracy of the arithmetic"
    RUNNING = "not converged yet: the residual was still falling when the iterations ran out; ask for more iterations"
    STAGNATED = (
        "stagnated: the residual stopped falling before it was small; the system may be singular or too badly "
        "conditioned for this method, or a constant of the program does not suit it"
    )
    NOT_POSITIVE = (
        "not positive: a value the program takes to be positive was not, so the answer must not be used; for the "
        "conjugate gradient family this means that A is not symmetric positive definite"
    )
    INACCURATE = (
        "inaccurate: a step of the transformer differed from the program's own, because a value left the range the "
        "weights were made for; the answer must not be used. Keep the values of the program near 1; where a program "
        "keeps A from being scaled, a smaller bound= of nf.compile gives its values more digits"
    )
    DIVERGED = "diverged: the residual grew beyond where it started; the answer must not be used"
    NONFINITE = "not finite: the iteration left the range of the numbers; the answer must not be used"
    FINISHED = "finished: this program has no residual to judge by; compare the last iterates"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Run(Generic[ArrayT]):
    """The iterates of a program, compiled or plain.

    Attributes
    ----------
    x : (..., T + 1, n), the answers; the start's comes first
    state : every state by name, (..., T + 1[, n[, n]])
    residual_norms : (..., T + 1), or None where the program has no residual
    status : a RunStatus, or an object array of them in the shape of the batch
    """

    x: ArrayT
    state: dict[str, ArrayT]
    residual_norms: ArrayT | None
    status: RunStatus | ObjectArray

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(np.shape(value))}" for name, value in {"x": self.x, **self.state}.items())
        return f"<run: {shapes}; {self.status}>"


def run_program(traced: TracedProgram, given: Mapping[str, Any], iterations: int) -> Run[Any]:
    """The traced program on NumPy or torch arrays, all systems at once: the reference, no transformer."""
    refuse(traced.program, traced.problems)
    refuse_changes(traced)
    refuse_open_parts(traced)
    program = Reference.of(traced)
    given = padded(program.name, given, program.inputs, size_of(given, program.inputs), traced.program.rectangular)
    inputs = take_any_size(program.name, program.inputs, given)
    return run_reference(program, inputs, iterations, array_library(*given.values()))


@full_precision()
def run_reference(
    program: Reference,
    inputs: dict[str, Tensor],
    iterations: int,
    library: str,
    iterate: _Iteration | None = None,
    pieces: Callable[..., Iterable[tuple[Tensor, ...]]] | None = None,
) -> Run[Any]:
    """A program as data on tensors of one batch shape, judged; in the caller's library.

    ``iterate`` stands for the program's own where its learned parts are filled in. ``pieces`` splits tensors along
    their first axis into systems that are computed at once; by default, all are.
    """
    batch, flat = flatten(inputs, program.inputs)
    count = check_iterations(iterations, program.kinds.values(), flat)
    split = [tuple(flat.values())] if pieces is None else pieces(*flat.values())
    iterate = iterate or program.iterate
    found = [_iterates(program, dict(zip(flat, piece, strict=True)), count, iterate) for piece in split]
    values = {name: torch.cat([piece[name] for piece in found]) for name in found[0]}
    values = {name: value.reshape(*batch, *value.shape[1:]) for name, value in values.items()}
    checks = Checks(program.residual or None, program.scale or None)
    return judged_run(values, program.kinds[ANSWER], inputs, checks, library, values.pop("broken promises").cpu())


def _iterates(program: Reference, inputs: dict[str, Tensor], count: int, iterate: _Iteration) -> dict[str, Tensor]:
    """Every state and the answer, (systems, T + 1, ...), and at which iterates promises were broken."""
    like = next(iter(inputs.values()))
    records: dict[str, list[Tensor]] = {name: [] for name in program.kinds}
    broken = torch.zeros(like.shape[0], count + 1, dtype=torch.bool, device=like.device)
    for t, values in enumerate(iterate(inputs, count)):
        for name, record in records.items():
            record.append(values[name])
        for name, kind in program.promises.items():
            if name in values:  # of the step that led here: it counts with the state which that step started from
                broken[:, max(t - 1, 0)] |= values[name] < 0 if kind == "scalar" else (values[name] < 0).any(-1)
    # A state may be set to a constant, which has no axis of systems.
    shapes = {name: record[0].shape for name, record in records.items()}
    found = {name: torch.stack([v.expand(shapes[name]) for v in record], 1) for name, record in records.items()}
    return found | {"broken promises": broken}


def array_library(*given: Any) -> str:
    """The library of the results, torch or numpy; lists get NumPy arrays."""
    return "torch" if common_kind(given) == "torch" else "numpy"


def take_any_size(
    name: str, needs: Mapping[str, str], given: Mapping[str, Any], dtype: torch.dtype | None = None, device: Any = None
) -> dict[str, Tensor]:
    """The inputs, in the size they came in; unless said otherwise, in the wider precision and on the device too."""
    tensors = {key: to_tensor(key, value) for key, value in given.items() if value is not None}
    n = size_of(tensors, needs) or 1
    arrays = [tensor for key, tensor in tensors.items() if not isinstance(given[key], float)]  # a number has no dtype
    floating = {tensor.dtype for tensor in arrays if tensor.is_floating_point()}
    dtype = dtype or (torch.float32 if floating == {torch.float32} else torch.float64)
    tensors = {key: t.to(dtype) if t.dtype in (torch.float32, torch.float64) else t for key, t in tensors.items()}
    devices = [device, *(value.device for value in given.values() if isinstance(value, Tensor)), torch.device("cpu")]
    return take_inputs(name, needs, tensors, n, dtype, next(found for found in devices if found is not None))


def take_inputs(
    owner: str, needs: Mapping[str, str], given: Mapping[str, Any], n: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """The inputs a program needs, by name and kind, as tensors of one batch shape; x0 is 0 where it is not given."""
    given = {name: value for name, value in given.items() if value is not None}
    if extra := [name for name in given if name not in needs]:
        raise ShapeError(f"{owner} takes {', '.join(needs)}; {extra[0]} was given too. Omit it")
    # Zeros need something to take their shape from.
    optional = {"x0"} if len(needs) > 1 else set()
    if missing := [name for name in needs if name not in given and name not in optional]:
        raise ShapeError(f"{owner} needs {', '.join(missing)}; run({', '.join(needs)})")
    shapes = {name: (n,) * AXES[kind] for name, kind in needs.items()}
    tensors = operands(owner, given, shapes, dtype, device)
    if "x0" in needs and "x0" not in tensors:
        name, like = next(iter(tensors.items()))
        batch = like.shape[: like.dim() - len(shapes[name])]
        tensors["x0"] = torch.zeros(*batch, n, dtype=dtype, device=device)
    return {name: tensors[name] for name in needs}


def flatten(
    inputs: Mapping[str, Tensor], kinds: Mapping[str, str] = KINDS
) -> tuple[tuple[int, ...], dict[str, Tensor]]:
    """The leading dimensions that all inputs share, and the inputs with a single one."""
    name, value = next(iter(inputs.items()))
    batch = tuple(value.shape[: value.dim() - AXES[kinds[name]]])
    return batch, {name: value.reshape(math.prod(batch), *value.shape[len(batch) :]) for name, value in inputs.items()}


def check_iterations(iterations: Any, kinds: Iterable[str], flat: Mapping[str, Tensor]) -> int:
    """The number of iterations, if every iterate of states of these kinds can be kept."""
    count = whole("iterations", iterations, 0)
    like = next(iter(flat.values()))
    entries = len(like) * sum(like.shape[-1] ** AXES[kind] for kind in kinds)
    remedy = ". Ask for fewer, and give the last x as x0 to continue"
    needed = (count + 1) * entries * like.element_size()
    check_memory(f"iterations is {count:,}: keeping every iterate", needed, like.device, remedy)
    return count


@dataclass(frozen=True)
class Checks:
    """What a run is judged by: its residual and the scale of it, the promises, and each state's step."""

    residual: Expression | None = None
    scale: Expression | None = None
    promises: Expression = EMPTY
    steps: Expression = EMPTY


def judged_run(
    values: dict[str, Tensor],
    kind: str,
    inputs: dict[str, Tensor],
    checks: Checks,
    library: str,
    broken: Tensor | None = None,
) -> Run[Any]:
    """Measure the residuals, judge how the run ended, and return everything as arrays of the caller's library.

    ``values`` has every state and, under ``ANSWER``, the answer, which is of a kind; ``broken`` tells at which iterates
    promises were broken (..., T + 1), where that has been judged already.
    """
    answer, states = values[ANSWER], {name: value for name, value in values.items() if name != ANSWER}
    shape = answer.shape[: answer.dim() - AXES[kind]]  # (..., T + 1)
    # Iterations are one more batch dimension, so the inputs get an axis of length one for it.
    lifted = {name: value.unsqueeze(len(shape) - 1) for name, value in inputs.items()}
    values = lifted | values
    norms, goal = _residual_norms(checks, values, shape)
    finite = torch.isfinite(answer).reshape(*shape, math.prod(answer.shape[len(shape) :])).all(-1)[..., -1].cpu()
    broken = torch.zeros(shape, dtype=torch.bool) if broken is None else broken
    for name, value in checks.promises(values).items():
        wrong = value < 0 if checks.promises.kinds[name] == "scalar" else (value < 0).any(-1)
        broken = broken | wrong.expand(shape).cpu()
    strayed = has_strayed(checks.steps, states, lifted, answer.dtype).expand(shape[:-1]).cpu().numpy()
    status = _judge(norms, goal, finite, broken, strayed)
    return Run(
        give(answer, library),
        {name: give(value, library) for name, value in states.items()},
        None if norms is None else give(norms, library),
        status if status.ndim else status[()],
    )


def _residual_norms(checks: Checks, values: dict[str, Tensor], shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor]:
    """The norm of each residual, None without one, and what it is compared with, (..., T + 1) both."""
    if checks.residual is None:
        return None, values[ANSWER]

    def norm_of(expression: Expression, values: dict[str, Tensor]) -> Tensor:
        (kind,) = expression.kinds.values()
        return size(expression.value(values), kind).expand(shape)

    norms = norm_of(checks.residual, values)
    if checks.scale is not None:
        scale = norm_of(checks.scale, values)
        return norms, torch.where(scale > 0, scale, torch.nan)  # compared with 0, nothing has converged
    # Compared with the residual of x = 0, |b|: a start far away must not lower the bar.
    zero = norm_of(checks.residual, values | {ANSWER: torch.zeros_like(values[ANSWER])})
    return norms, torch.where(zero > 0, zero, norms[..., :1])


def step_tolerance(dtype: torch.dtype) -> float:
    """How far a step may differ from the program's own, relative to the values it moves."""
    return 1e-6 if dtype == torch.float64 else 1e-2


def has_strayed(steps: Expression, states: dict[str, Tensor], inputs: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Whether any step of a system differs from the program's own step from the same state; (...).

    Relative to the largest value of the state so far: digits that a state loses as it decays show in the residual.
    """
    tolerance, kinds = step_tolerance(dtype), steps.kinds
    found = torch.tensor(False)
    time = {name: -1 - AXES[kind] for name, kind in kinds.items()}
    count = {name: states[name].shape[axis] - 1 for name, axis in time.items()}
    before = inputs | {name: states[name].narrow(axis, 0, count[name]) for name, axis in time.items()}
    for name, wanted in steps(before).items():
        after = states[name].narrow(time[name], 1, count[name])
        wanted = wanted.expand(after.shape)
        largest = torch.maximum(size(before[name], kinds[name]), size(wanted, kinds[name]))
        scale = torch.cummax(largest.nan_to_num(0.0), -1).values
        # A difference of NaN, as from 0 / 0 after convergence, does not count.
        found = found | (size(after - wanted, kinds[name]) > tolerance * scale).any(-1)
    return found


def _judge(norms: Tensor | None, goal: Tensor, finite: Tensor, broken: Tensor, strayed: np.ndarray) -> np.ndarray:
    """A status for each system from its residual norms and what they are compared with, (..., T + 1) both."""
    status = np.full(finite.shape, RunStatus.FINISHED, dtype=object)
    small = torch.zeros_like(broken)
    if norms is not None:
        norms, goal = norms.cpu(), goal.cpu()
        small = norms <= (1e-10 if norms.dtype == torch.float64 else 1e-4) * goal
        quarter = max(1, norms.shape[-1] // 4)
        best = norms[..., :-quarter].amin(-1) if norms.shape[-1] > quarter else norms[..., 0]
        falling = norms[..., -quarter:].amin(-1) < 0.9 * best
        status[...] = RunStatus.STAGNATED
        status[falling.numpy() | (norms.shape[-1] == 1)] = RunStatus.RUNNING
        status[(norms[..., -1] > 10 * torch.fmax(goal[..., -1], norms[..., 0])).numpy()] = RunStatus.DIVERGED
        finite = finite & torch.isfinite(norms[..., -1])
    # A promise broken after convergence is rounding noise.
    before = torch.cumsum(small, -1) == 0
    status[strayed] = RunStatus.INACCURATE
    status[small[..., -1].numpy()] = RunStatus.CONVERGED
    status[(broken & before).any(-1).numpy()] = RunStatus.NOT_POSITIVE
    status[~finite.numpy()] = RunStatus.NONFINITE
    return status
