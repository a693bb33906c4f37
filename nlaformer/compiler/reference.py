"""What a run returns, how it ended, and the reference: the program itself on plain arrays."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.compiler.expression import Expression, size
from nlaformer.compiler.language import Program
from nlaformer.compiler.tracing import parameters, trace
from nlaformer.errors import OptionError, ShapeError


class RunStatus(enum.Enum):
    """How a run ended; the value is the sentence for people."""

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
        "weights were made for; the answer must not be used. Keep the values of the program near 1"
    )
    DIVERGED = "diverged: the residual grew beyond where it started; the answer must not be used"
    NONFINITE = "not finite: the iteration left the range of the numbers; the answer must not be used"
    FINISHED = "finished: this program has no residual to judge by; compare the last iterates"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Run:
    """The iterates of a program.

    Attributes
    ----------
    x : (..., T + 1, n), the answers; the start's comes first
    state : every state by name, (..., T + 1[, n[, n]])
    residual_norms : (..., T + 1), or None where the program has no residual
    status : a RunStatus, or an object array of them in the shape of the batch
    """

    x: Any
    state: dict[str, Any]
    residual_norms: Any
    status: Any

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in {"x": self.x, **self.state}.items())
        return f"<run: {shapes}; {self.status}>"


def run_reference(program: Program, A: Any, b: Any, x0: Any, iterations: int) -> Run:
    """The program on NumPy or torch arrays, one system at a time: nothing between the user's lines and the numbers."""
    check_iterations(iterations)
    traced = trace(program)
    given = {"A": A, "b": b, "x0": x0}
    inputs = {name: given[name] for name in traced.needs if given[name] is not None}
    if "x0" in traced.needs and x0 is None:
        inputs["x0"] = _zeros(inputs)
    missing = [name for name in traced.needs if name not in inputs]
    if missing:
        raise ShapeError(f"{program.name} needs {', '.join(missing)}; give {', '.join(traced.needs)}")
    use_torch = any(isinstance(value, Tensor) for value in inputs.values())
    arrays = {name: value if use_torch else np.asarray(value) for name, value in inputs.items()}
    axes = {"A": 2, "b": 1, "x0": 1}
    batch = np.broadcast_shapes(*(tuple(v.shape[: v.ndim - axes[k]]) for k, v in arrays.items()))
    library = torch if use_torch else np
    flat = {
        k: library.broadcast_to(v, batch + tuple(v.shape[v.ndim - axes[k] :])).reshape(
            (-1, *v.shape[v.ndim - axes[k] :])
        )
        for k, v in arrays.items()
    }
    runs = [_single(program, {k: v[i] for k, v in flat.items()}, iterations) for i in range(int(np.prod(batch)))]

    def gather(parts: Sequence[Any]) -> Tensor:
        stacked = torch.stack([torch.stack([_as_tensor(value) for value in part]) for part in parts])
        return stacked.reshape(*batch, *stacked.shape[1:])

    states = {name: gather([[s[name] for s in run[0]] for run in runs]) for name in traced.state}
    answer = gather([run[1] for run in runs])
    tensors = {name: _as_tensor(value) for name, value in arrays.items()}
    residual = None if traced.residual is None else Expression.of(traced.residual)
    return finish_run(answer, traced.answer.kind, states, tensors, Checks(residual), use_torch)


def _single(program: Program, inputs: dict[str, Any], iterations: int) -> tuple[list[dict[str, Any]], list[Any]]:
    def call(method: Any, known: dict[str, Any]) -> Any:
        return method(**{name: known[name] for name in parameters(method)})

    with np.errstate(all="ignore"):
        states = [call(program.start, inputs)]
        for _ in range(iterations):
            states.append(call(program.step, inputs | states[-1]))
        return states, [call(program.finish, inputs | state) for state in states]


@dataclass(frozen=True)
class Checks:
    """What a run is judged by: its residual, the promises, and each state's step."""

    residual: Expression | None = None
    promises: tuple[Expression, ...] = ()
    steps: dict[str, Expression] = field(default_factory=dict)


def finish_run(
    answer: Tensor, kind: str, states: dict[str, Tensor], inputs: dict[str, Tensor], checks: Checks, use_torch: bool
) -> Run:
    """Measure the residuals, judge how the run ended, and hand everything out in the caller's kind of array."""
    axis = _time_axis(kind)
    batch, count = answer.shape[: answer.dim() + axis], answer.shape[axis]
    # Iterations are one more batch dimension, so the inputs get an axis of length one for it.
    lifted = {name: value.unsqueeze(-3 if name == "A" else -2) for name, value in inputs.items()}
    known = {"A": lifted.get("A"), "b": lifted.get("b"), "x0": lifted.get("x0")} | states
    values = {name: value for name, value in known.items() if value is not None}
    norms, residual = None, checks.residual
    finite = torch.isfinite(answer).reshape(*batch, count, -1).all(-1)
    if residual is not None:
        norms = size(residual(values | {"answer": answer}), residual.kind).expand(*batch, count)
        zero = size(residual(values | {"answer": torch.zeros_like(answer)}), residual.kind).expand(*batch, count)
        # Converged means small beside the residual of x = 0, |b|: a start far away must not lower the bar.
        goal = torch.where(zero[..., 0] > 0, zero[..., 0], norms[..., 0])
    broken = torch.zeros(*batch, count, dtype=torch.bool)
    for promise in checks.promises:
        value = promise(values)
        wrong = value < 0 if promise.kind == "scalar" else (value < 0).any(-1)
        broken = broken | wrong.expand(*batch, count).cpu()
    strayed = _strayed(checks.steps, states, lifted, answer.dtype).expand(batch).cpu().numpy()
    if norms is None:
        status = np.full(batch, RunStatus.FINISHED, dtype=object)
        status[strayed] = RunStatus.INACCURATE
        status[~finite[..., -1].cpu().numpy()] = RunStatus.NONFINITE
    else:
        status = _judge(norms.cpu(), goal.cpu(), finite.cpu(), broken, strayed, answer.dtype)

    def give(value: Tensor) -> Any:
        return value if use_torch else value.cpu().numpy()

    return Run(
        give(answer),
        {name: give(value) for name, value in states.items()},
        None if norms is None else give(norms),
        status if batch else status[()],
    )


def _strayed(
    steps: dict[str, Expression], states: dict[str, Tensor], inputs: dict[str, Tensor], dtype: torch.dtype
) -> Tensor:
    """Whether any step of a system differs from the program's own step from the same state; (...).

    Relative to the largest the state has been: the digits a value loses as it decays are the business of the residual.
    """
    tolerance = 1e-6 if dtype == torch.float64 else 1e-2
    found = torch.tensor(False)
    before = dict(inputs)
    for name, step in steps.items():
        before[name] = states[name].narrow(_time_axis(step.kind), 0, _steps(states[name], step.kind))
    for name, step in steps.items():
        axis, value = _time_axis(step.kind), states[name]
        after = value.narrow(axis, 1, _steps(value, step.kind))
        wanted = step(before).expand(after.shape)
        largest = torch.maximum(size(before[name], step.kind), size(wanted, step.kind))
        scale = torch.cummax(largest.nan_to_num(0.0), -1).values
        # 0 / 0 after convergence is no judge.
        found = found | (size(after - wanted, step.kind) > tolerance * scale).any(-1)
    return found


def _time_axis(kind: str) -> int:
    return -1 - {"scalar": 0, "vector": 1, "matrix": 2}[kind]


def _steps(value: Tensor, kind: str) -> int:
    return value.shape[_time_axis(kind)] - 1


def _judge(
    norms: Tensor, goal: Tensor, finite: Tensor, broken: Tensor, strayed: np.ndarray, dtype: torch.dtype
) -> np.ndarray:
    """A status for each system from its residual norms (..., T + 1)."""
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    small = norms <= tolerance * goal[..., None]
    last = norms[..., -1]
    # A promise broken after convergence is rounding noise.
    before = torch.cumsum(small, -1) == 0
    quarter = max(1, norms.shape[-1] // 4)
    best = norms[..., :-quarter].amin(-1) if norms.shape[-1] > quarter else norms[..., 0]
    falling = norms[..., -quarter:].amin(-1) < 0.9 * best
    status = np.full(norms.shape[:-1], RunStatus.STAGNATED, dtype=object)
    status[falling.numpy() | (norms.shape[-1] == 1)] = RunStatus.RUNNING
    status[(last > 10 * torch.maximum(goal, norms[..., 0])).numpy()] = RunStatus.DIVERGED
    status[strayed] = RunStatus.INACCURATE
    status[small[..., -1].numpy()] = RunStatus.CONVERGED
    status[(broken & before).any(-1).numpy()] = RunStatus.NOT_POSITIVE
    status[(~(finite[..., -1] & torch.isfinite(last))).numpy()] = RunStatus.NONFINITE
    return status


def _as_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def check_iterations(iterations: int) -> None:
    if isinstance(iterations, bool) or not isinstance(iterations, (int, np.integer)) or iterations < 0:
        raise OptionError(f"iterations is {iterations!r}; expected a whole number, 0 or more")


def _zeros(inputs: dict[str, Any]) -> Any:
    """x0 = 0 in the shape of b, or of a row of A."""
    like = inputs["b"] if "b" in inputs else inputs["A"][..., 0, :]
    return torch.zeros_like(like) if isinstance(like, Tensor) else np.zeros_like(np.asarray(like))
