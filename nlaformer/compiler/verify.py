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
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nlaformer.compiler.expression import Expression
from nlaformer.compiler.language import Program
from nlaformer.compiler.result import RunStatus, has_strayed, step_tolerance
from nlaformer.errors import CompileError

if TYPE_CHECKING:
    from nlaformer.compiler.algorithm import Algorithm

ITERATIONS = 12
LOST = 1e-2  # a deviation at the end that is worth a warning


def random_systems(n: int, count: int, sigma: float = 1.2, seed: int = 0) -> np.ndarray:
    """The paper's family: scikit-learn's make_spd_matrix plus a diagonal of lognormal(0, sigma); (count, n, n)."""
    from sklearn.datasets import make_spd_matrix

    rng = np.random.default_rng(seed)
    matrices = [
        make_spd_matrix(n, random_state=int(rng.integers(2**31))) + np.diag(rng.lognormal(0.0, sigma, n))
        for _ in range(count)
    ]
    return np.stack(matrices)


def hard_systems(n: int) -> dict[str, np.ndarray]:
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


def verify(program: Program, algorithm: Algorithm, iterations: int = ITERATIONS) -> dict[str, Any]:
    """The deviations found, as plain data."""
    n, plan = algorithm.n, algorithm.plan
    rng = np.random.default_rng(2)
    random, hard = random_systems(n, 3), hard_systems(n)
    if keeps_scale(algorithm):
        hard = {name: A for name, A in hard.items() if np.linalg.norm(A) <= plan.bound}
        random *= min(1.0, 0.99 * plan.bound / np.linalg.norm(random, axis=(1, 2)).max())
    families = {"random": random} | {name: A[None] for name, A in hard.items()}
    report: dict[str, Any] = {"iterations": iterations, "systems": {}}
    for name, A in families.items():
        b = rng.standard_normal((len(A), n))
        given = {"A": A, "b": b, "x0": b if plan.inputs == ["x0"] else 0 * b}
        inputs = {key: value.astype(plan.dtype) for key, value in given.items() if key in plan.inputs}
        if name == "random":
            judge_trace(program, plan.steps, inputs)
        report["systems"][name] = deviations(program, algorithm, inputs, iterations)
    return report


def keeps_scale(algorithm: Algorithm) -> bool:
    """Whether the program has constants that keep A from being scaled."""
    return "A" in algorithm.plan.inputs and "A" not in algorithm.plan.scaled


def judge_trace(program: Program, steps: dict[str, Any], inputs: dict[str, Any]) -> None:
    """Refuse a program of which the first step on arrays is not what its step was when it was traced."""
    run = program.run(**inputs, iterations=1)
    states, lifted = ({k: torch.from_numpy(v) for k, v in values.items()} for values in (run.state, inputs))
    lifted = {name: value[:, None] for name, value in lifted.items()}
    traced = {name: Expression(tuple(nodes)) for name, nodes in steps.items()}
    if bool(has_strayed(traced, states, lifted, next(iter(states.values())).dtype).any()):
        raise CompileError(
            f"{program.name}: its step on arrays differs from its step as it was traced. Either it is not the same "
            "each time, as with random numbers, or it changes an array in place that has two names: with y = x, "
            "x += d changes y too; write x = x + d"
        )


def judge_first_steps(algorithm: Algorithm) -> None:
    """Refuse weights of which one step is not one step of the program; warn if it is so on the hard systems alone.

    Where A is not scaled, weights for a large bound leave few digits to values far below it: warn if they are lost.
    """
    systems, tolerance = algorithm.verification["systems"], step_tolerance(algorithm.dtype)
    wrong = {name: found["first"] for name, found in systems.items() if found["first"] > tolerance}
    remedy = ""
    if keeps_scale(algorithm):
        remedy = (
            f"; a constant, or a state that starts as one, keeps A from being scaled: give it the unit of its place "
            f"with nf.norm(A), or compile with a bound= nearer to your matrices' norms ({algorithm.plan.bound:g} now)"
        )
    if not wrong:
        if remedy and (lost := systems["random"]["last"]) > LOST:
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


def deviations(program: Program, algorithm: Algorithm, inputs: dict[str, Any], iterations: int) -> dict[str, float]:
    """The deviation of the answer after the first, at the worst and after the last iteration."""
    exact = {key: value.astype("float64") for key, value in inputs.items()}
    reference = program.run(**exact, iterations=iterations).x
    run = algorithm.run(**inputs, iterations=iterations)
    reference, found = (x.reshape(len(x), iterations + 1, -1).astype("float64") for x in (reference, run.x))
    judged = np.isfinite(reference[:, :2]).all((1, 2)) & (run.status != RunStatus.NOT_POSITIVE)
    reference = hold(reference)
    with np.errstate(all="ignore"):
        scale = np.maximum.accumulate(np.linalg.norm(reference, axis=-1), axis=-1)
        deviation = np.linalg.norm(found - reference, axis=-1) / np.where(scale > 0, scale, 1.0)
    deviation = np.where(np.isfinite(deviation), deviation, np.inf)
    return {
        "first": float(deviation[judged, :2].max(initial=0.0)),
        "largest": float(deviation.max()),
        "last": float(deviation[:, -1].max()),
    }


def hold(x: np.ndarray) -> np.ndarray:
    """The iterates, the last finite one kept: 0 / 0 after exact convergence is NumPy's answer, not the method's."""
    x = x.copy()
    for t in range(1, x.shape[1]):
        lost = ~np.isfinite(x[:, t]).reshape(len(x), -1).all(-1)
        x[lost, t] = x[lost, t - 1]
    return x
