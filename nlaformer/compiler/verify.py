"""Verification: a compiled algorithm against its own program on random and on hard systems.

Deviations are |x_t - x_t^ref| / max_{s <= t} |x_s^ref|, the largest over the systems: after the first step (is one
step compiled right?), the largest over all steps (methods like CG amplify any rounding), and after the last (what
stays). The rule of ``nf.compile``: the first step must agree to 1e-6 (float64) or 1e-2 (float32), the tolerance of
``RunStatus.INACCURATE``, wherever the program itself stays finite and keeps its promises. On the random systems, which
are well conditioned, anything else is a CompileError; on the hard ones, which amplify rounding in a single step, a
warning. Later deviations are kept and shown, not judged: they belong to the method.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nlaformer.compiler.expression import Expression
from nlaformer.compiler.language import Program
from nlaformer.compiler.result import RunStatus, has_strayed, run_program, step_tolerance
from nlaformer.compiler.trace import TracedProgram, parameters
from nlaformer.errors import CompileError
from nlaformer.problems.spd import random_spd

if TYPE_CHECKING:
    from nlaformer.compiler.algorithm import Algorithm

_ITERATIONS = 12
_LOST = 1e-2  # a deviation at the end that is worth a warning


@dataclass(frozen=True)
class Comparison:
    """Relative errors |x_t - x| / |x| of a compiled algorithm and of its program, and their deviation from each other.

    Arrays (systems, T + 1); the deviation is relative to |x| too.
    """

    found: np.ndarray
    reference: np.ndarray
    deviation: np.ndarray


def converge(
    algorithm: Algorithm, program: Program, inputs: dict[str, np.ndarray], exact: np.ndarray, iterations: int
) -> Comparison:
    """Run a compiled algorithm and its program on the same systems, whose exact answers are known."""
    given = {name: value.astype(algorithm.config.dtype) for name, value in inputs.items()}
    x = algorithm.run(**given, iterations=iterations).x
    reference = _held(program.run(**inputs, iterations=iterations).x)
    shape = (len(exact), -1, exact[0].size)
    x, reference, exact = (value.reshape(shape).astype(np.float64) for value in (x, reference, exact))

    def relative(difference: np.ndarray) -> np.ndarray:
        return np.linalg.norm(difference, axis=-1) / np.linalg.norm(exact, axis=-1)

    return Comparison(relative(x - exact), relative(reference - exact), relative(x - reference))


def _hard_systems(n: int) -> dict[str, np.ndarray]:
    """Sudden convergence, a model problem, a condition number of 1e4, a large scale."""
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((n, n)))[0]
    graded = (Q * np.geomspace(1.0, 1e4, n)) @ Q.T
    return {
        "identity": np.eye(n),
        "two eigenvalues": (Q * np.where(np.arange(n) % 2, 1.0, 5.0)) @ Q.T,
        "Laplacian": 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1),
        "condition 1e4": (graded + graded.T) / 2,
        "scaled by 1e6": 1e6 * (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)),
    }


def with_verification(algorithm: Algorithm, traced: TracedProgram) -> Algorithm:
    """The algorithm with the deviations found on random and hard systems in its configuration."""
    n, config = algorithm.n, algorithm.config
    rng = np.random.default_rng(2)
    random, hard = random_spd(n, 3), _hard_systems(n)
    if _keeps_scale(algorithm):
        hard = {name: A for name, A in hard.items() if np.linalg.norm(A) <= config.bound}
        random *= min(1.0, 0.99 * config.bound / np.linalg.norm(random, axis=(1, 2)).max())
    families = {"random": random} | {name: A[None] for name, A in hard.items()}
    found: dict[str, Any] = {}
    for name, A in families.items():
        b = rng.standard_normal((len(A), n))
        given = {"A": A, "b": b, "x0": b if config.inputs == ["x0"] else 0 * b}
        inputs = {key: value.astype(config.dtype) for key, value in given.items() if key in config.inputs}
        if name == "random":
            _judge_trace(traced, {key: value.astype("float64") for key, value in inputs.items()})
        found[name] = _deviations(traced, algorithm, inputs)
    report = config.verification | {"iterations": _ITERATIONS, "systems": found}
    return type(algorithm)(replace(config, verification=report), algorithm.model)


def _keeps_scale(algorithm: Algorithm) -> bool:
    """Whether the program has constants that keep A from being scaled."""
    return "A" in algorithm.config.inputs and "A" not in algorithm.config.scaled


def _judge_trace(traced: TracedProgram, inputs: dict[str, Any]) -> None:
    """Refuse a program whose first step on arrays is not its traced step."""
    systems = range(len(next(iter(inputs.values()))))
    runs = [_first_step(traced.program, {name: value[i] for name, value in inputs.items()}) for i in systems]
    states = {
        name: torch.stack([torch.stack([torch.from_numpy(np.array(state[name])) for state in run]) for run in runs])
        for name in traced.state
    }
    lifted = {name: torch.from_numpy(value[:, None]) for name, value in inputs.items()}
    if bool(has_strayed(Expression.of(traced.step), states, lifted, next(iter(lifted.values())).dtype).any()):
        raise CompileError(
            f"{traced.program.name}: its step on arrays differs from its traced step. Either it is not the same each "
            "time, as with random numbers, or it changes an array in place that has two names: with y = x, "
            "x += d changes y too; write x = x + d"
        )


def _first_step(program: Program, inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """The state after start and after a step of the user's own lines, on the arrays of one system."""

    def call(method: Any, known: dict[str, Any]) -> Any:
        # Copies, so that x += d does not change the state before the step; numbers stay numbers.
        return method(**{name: +known[name] for name in parameters(method)})

    with np.errstate(all="ignore"):
        start = call(program.start, inputs)
        return [start, call(program.step, inputs | start)]


def judge_first_steps(algorithm: Algorithm) -> None:
    """Refuse weights whose first step is not the program's; only warn if that happens on hard systems alone.

    Where A is not scaled, weights for a large bound leave few digits to values far below it: warn if they are lost.
    """
    systems, tolerance = algorithm.verification["systems"], step_tolerance(algorithm.dtype)
    wrong = {name: found["first"] for name, found in systems.items() if found["first"] > tolerance}
    remedy = ""
    if _keeps_scale(algorithm):
        remedy = (
            f"; a constant, or a state that starts as one, keeps A from being scaled: give it the unit of its place "
            f"with nf.norm(A), or compile with a bound= nearer to your matrices' norms ({algorithm.config.bound:g} now)"
        )
    if not wrong:
        if remedy and (lost := systems["random"]["last"]) > _LOST:
            warnings.warn(
                f"{algorithm.name}: after {algorithm.verification['iterations']} steps on random systems the weights' "
                f"answer is {lost:.0e} from the program's{remedy}",
                stacklevel=3,
            )
        return
    found = ", ".join(f"{deviation:.0e} ({name})" for name, deviation in wrong.items())
    message = (
        f"{algorithm.name}: one step of the weights differs from one step of the program by {found}, relative to the "
        f"answer; at most {tolerance:.0e} is expected. Its values leave the range the weights were "
        f"made for: keep them near 1{remedy}"
    )
    if "random" in wrong:
        raise CompileError(f"{message}; or take the weights as they are with verify=False")
    warnings.warn(message, stacklevel=3)


def _deviations(traced: TracedProgram, algorithm: Algorithm, inputs: dict[str, Any]) -> dict[str, float]:
    """The deviation of the answer after the first, at the worst and after the last iteration."""
    exact = {key: value.astype("float64") for key, value in inputs.items()}
    reference = run_program(traced, exact, _ITERATIONS).x
    run = algorithm.run(**inputs, iterations=_ITERATIONS)
    reference, found = (x.reshape(len(x), _ITERATIONS + 1, -1).astype("float64") for x in (reference, run.x))
    judged = np.isfinite(reference[:, :2]).all((1, 2)) & (run.status != RunStatus.NOT_POSITIVE)
    reference = _held(reference)
    with np.errstate(all="ignore"):
        scale = np.maximum.accumulate(np.linalg.norm(reference, axis=-1), axis=-1)
        deviation = np.linalg.norm(found - reference, axis=-1) / np.where(scale > 0, scale, 1.0)
    deviation = np.where(np.isfinite(deviation), deviation, np.inf)
    return {
        "first": float(deviation[judged, :2].max(initial=0.0)),
        "largest": float(deviation.max()),
        "last": float(deviation[:, -1].max()),
    }


def _held(x: np.ndarray) -> np.ndarray:
    """The iterates, with the last finite one kept: NumPy computes 0 / 0 after exact convergence."""
    x = x.copy()
    for t in range(1, x.shape[1]):
        lost = ~np.isfinite(x[:, t]).reshape(len(x), -1).all(-1)
        x[lost, t] = x[lost, t - 1]
    return x
