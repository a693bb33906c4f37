"""Verification: a compiled algorithm against its own program on random and on hard systems, from 0 and from other x0.

Three comparisons, each a CompileError where it fails:

*Lines.* The graph that was traced against the user's own lines on arrays: start, four steps and finish. What a graph
cannot hold shows here: hidden state, random numbers, an array changed in place under two names.

*Values.* Every value of a run of 12 steps against one call of the program on the same input, in the measure of
``deviation.py``; the error names the value, the step and the instructions that make it.

*End to end.* The same run against the program's own run, wherever that does not amplify perturbations of its inputs and
states, before every step, by more than 1e4 (in float32 10). Deviations are relative to the largest value so far.

Where the program's own value is not finite, or a promise is broken, there is nothing to compare. The deviations are
kept with the artefact: of the values (``step``), and of the answer end to end after the first step (``first``), at the
worst (``largest``) and after the last (``last``).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.compiler.deviation import START, STEP, Found, Tolerance, deviations, values_of
from nlaformer.compiler.diagnose import Stray
from nlaformer.compiler.expression import Expression
from nlaformer.compiler.graph import AXES
from nlaformer.compiler.judge import Checks, RunStatus, with_settled
from nlaformer.compiler.language import Program
from nlaformer.compiler.result import Run
from nlaformer.compiler.trace import ANSWER, TracedProgram, parameters
from nlaformer.errors import CompileError
from nlaformer.problems.spd import random_spd

if TYPE_CHECKING:
    from nlaformer.compiler.algorithm import Algorithm

_ITERATIONS = 12
_LINES = 4  # steps of the user's own lines
_GROWN = 10.0
_GRADED = "condition 1e4"
_LOST = 1e-2  # a deviation at the end that is worth a warning
_PERTURBATION, _PERTURBATIONS = 1e-8, 8


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
        _GRADED: (graded + graded.T) / 2,
        "scaled by 1e6": 1e6 * (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)),
    }


@dataclass(frozen=True)
class _Systems:
    """Inputs of a verification, (systems, ...), and the family of each system."""

    inputs: dict[str, np.ndarray]
    families: np.ndarray


def with_verification(
    algorithm: Algorithm,
    traced: TracedProgram,
    given: Mapping[str, np.ndarray] | None = None,
    iterations: int = _ITERATIONS,
) -> Algorithm:
    """The algorithm with its deviations on random and hard systems; CompileError where a value is not the program's.

    ``given`` has the inputs of other systems by name, of a kind that the program is meant for.
    """
    systems = _draw(algorithm, traced) if given is None else _of_kind(algorithm, given)
    _judge_lines(traced, {name: value[:3] for name, value in systems.inputs.items()}, algorithm.checks)
    run = algorithm.run(**systems.inputs, iterations=iterations)
    ends = _end_to_end(traced, systems.inputs, run)
    diagnosis = run.diagnose()
    notes = _judge_values(algorithm, systems, run, ends) or _nothing_compared(algorithm, systems, run)
    if algorithm.config.program:
        notes += _judge_ends(algorithm, systems, run, ends)
    found = {}
    for name in dict.fromkeys(systems.families):
        own = systems.families == name
        step = max((float(d[own].max(initial=0.0)) for d in diagnosis.deviation.values()), default=0.0)
        deviation = ends[ANSWER].deviation[own]
        found[str(name)] = {
            "step": step,
            "first": float(deviation[:, :2].max()),
            "largest": float(deviation.max()),
            "last": float(deviation[:, -1].max()),
        }
    config = algorithm.config
    report = config.verification | {"iterations": iterations, "systems": found}
    return type(algorithm)(replace(config, verification=report, warnings=config.warnings + notes), algorithm.model)


def compared_with_run(algorithm: Algorithm, traced: TracedProgram, run: Callable[..., Run[Any]]) -> Algorithm:
    """The algorithm with its deviations from the run of a trained program; CompileError where the first step is wrong.

    What a network makes of a perturbation is not known, so that later steps are reported and not judged.
    """
    systems = _draw(algorithm, traced)
    given = {name: value.astype("float64") for name, value in systems.inputs.items()}
    found = algorithm.run(**systems.inputs, iterations=_ITERATIONS).x.astype("float64")
    end = _end(found, np.stack([run(**given, iterations=_ITERATIONS).x] * 2))
    report = {
        str(name): {
            "first": float(deviation[:, :2].max()),
            "largest": float(deviation.max()),
            "last": float(deviation[:, -1].max()),
        }
        for name in dict.fromkeys(systems.families)
        for deviation in [end.deviation[systems.families == name]]
    }
    if report["random"]["first"] > Tolerance.of(algorithm.dtype).plain:
        raise CompileError(
            f"{algorithm.name}: after one step on random systems the answer is {report['random']['first']:.1e} from "
            "the model's own. Take the weights as they are with verify=False, or run the model itself"
        )
    verification = {"iterations": _ITERATIONS, "systems": report}
    return type(algorithm)(replace(algorithm.config, verification=verification), algorithm.model)


def _judge_values(algorithm: Algorithm, systems: _Systems, run: Run[Any], ends: Mapping[str, _End]) -> list[str]:
    """Refuse weights with a wrong value; a note and a warning where it says little about other systems.

    That is after the first step on the ill-conditioned system, or in float32; where two runs of the program itself have
    parted on a hard system (it amplifies perturbations by more than ``Tolerance.most``), so that its values are
    accidents of rounding; where it has converged before; and where values have grown tenfold after the first step: it
    diverges on a system that was not made for it, and leaves every range.
    """
    notes = []
    strict = algorithm.dtype == torch.float64
    for stray in run.diagnose().strays:
        (system,) = stray.system
        family = systems.families[system]
        message = f"on a system of the verification ({family}) {stray}"
        parted = max(end.response[system, stray.step] for end in ends.values()) > Tolerance.of(algorithm.dtype).most
        lasting = (stray.step <= 1 or (strict and family != _GRADED)) and not (parted and family != "random")
        if lasting and not _is_beyond(run, systems, stray):
            raise CompileError(f"{algorithm.name}: {message}. {_remedy(algorithm)}")
        notes.append(message)
    if notes:
        warnings.warn(f"{algorithm.name}: {notes[0]}. A run like that ends inaccurate and says so", stacklevel=5)
    return notes[:1]


def _nothing_compared(algorithm: Algorithm, systems: _Systems, run: Run[Any]) -> list[str]:
    """A note and a warning where the program's own values are not finite on any of the random systems."""
    if any(status is not RunStatus.NONFINITE for status in np.asarray(run.status)[systems.families == "random"]):
        return []
    note = f"{run.diagnose().lost or 'its residual is not finite'}, on all random systems of the verification"
    warnings.warn(f"{algorithm.name}: {note}. From there on nothing was compared", stacklevel=5)
    return [note]


def _is_beyond(run: Run[Any], systems: _Systems, stray: Stray) -> bool:
    """Whether a run had converged before a stray, or a state was ten times what it and the inputs were at first."""
    (system,) = stray.system
    before = max(stray.step - 1, 0)
    given = max(float(np.linalg.norm(value[system])) for value in systems.inputs.values())
    sizes = [[float(np.linalg.norm(value)) for value in values[system]] for values in run.state.values()]
    grown = any(size[before] > _GROWN * max(given, *size[:2]) for size in sizes)
    return grown or (run.evidence is not None and bool(run.evidence.found.settled[system, : stray.step].any()))


def _judge_ends(algorithm: Algorithm, systems: _Systems, run: Run[Any], ends: Mapping[str, _End]) -> list[str]:
    """Refuse weights whose run is not the program's; what came before has told which value is wrong, if one is.

    On the ill-conditioned system it is a note again.
    """
    notes = []
    tolerance = Tolerance.of(algorithm.dtype)
    unlike = (RunStatus.NOT_POSITIVE, RunStatus.NONFINITE, RunStatus.INACCURATE)
    judged = np.array([[status not in unlike] for status in np.asarray(run.status).tolist()])
    if run.evidence is not None:
        judged = judged & ~run.evidence.found.settled.numpy()
    for name, end in ends.items():
        wrong = judged & (end.response <= tolerance.most)
        wrong &= end.deviation > tolerance.plain * np.maximum(end.response, 1.0)
        for system, step in np.argwhere(wrong):
            what = "the answer" if name == ANSWER else f"the state {name}"
            family = systems.families[system]
            message = (
                f"{what} after {step} steps on a system of the verification ({family}) is "
                f"{end.deviation[system, step]:.1e} from that of its program's run, although each step is within its "
                "tolerance"
            )
            if family != _GRADED:
                raise CompileError(f"{algorithm.name}: {message}. {_remedy(algorithm)}")
            notes.append(message)
    return notes[:1]


def warn_of_lost_digits(algorithm: Algorithm) -> None:
    """Where A is not scaled, weights for a large bound leave few digits to values far below it: warn of lost ones."""
    lost = algorithm.verification["systems"]["random"]["last"]
    if _keeps_scale(algorithm) and lost > _LOST:
        warnings.warn(
            f"{algorithm.name}: after {algorithm.verification['iterations']} steps on random systems the weights' "
            f"answer is {lost:.0e} from the program's. {_remedy(algorithm)}",
            stacklevel=4,
        )


def _remedy(algorithm: Algorithm) -> str:
    text = "Keep the values of the program near 1"
    if _keeps_scale(algorithm):
        text += (
            f"; a constant, or a state that starts as one, keeps A from being scaled: give it the unit of its place "
            f"with nf.norm(A), or compile with a bound= nearer to your matrices' norms ({algorithm.config.bound:g} now)"
        )
    return text + "; or take the weights as they are with verify=False, and heed the status of every run"


def _keeps_scale(algorithm: Algorithm) -> bool:
    """Whether the program has constants that keep A from being scaled."""
    return "A" in algorithm.config.inputs and "A" not in algorithm.config.scaled


def _draw(algorithm: Algorithm, traced: TracedProgram) -> _Systems:
    """Three random systems and two of each hard matrix; x0 is 0 in the first of them."""
    n, config = algorithm.n, algorithm.config
    rng = np.random.default_rng(2)
    random, hard = random_spd(n, 3), _hard_systems(n)
    if _keeps_scale(algorithm):
        hard = {name: A for name, A in hard.items() if np.linalg.norm(A) <= config.bound}
        random *= min(1.0, 0.99 * config.bound / np.linalg.norm(random, axis=(1, 2)).max())
    A = np.concatenate([random, *(np.stack([M, M]) for M in hard.values())])
    families = np.array(["random"] * 3 + [name for name in hard for _ in range(2)])
    first = np.array([k == 0 or families[k - 1] != families[k] for k in range(len(families))])
    shapes = {"scalar": (), "vector": (n,), "matrix": (n, n)}
    drawn = {name: rng.standard_normal((len(A), *shapes[node.kind])) for name, node in traced.inputs.items()}
    if "A" in drawn:
        drawn["A"] = A
    if "x0" in drawn and len(drawn) > 1:
        drawn["x0"][first] = 0.0
    return _Systems({name: value.astype(config.dtype) for name, value in drawn.items()}, families)


def _of_kind(algorithm: Algorithm, given: Mapping[str, np.ndarray]) -> _Systems:
    """Systems that someone else drew."""
    inputs = {name: value.astype(algorithm.config.dtype) for name, value in given.items()}
    if "x0" in algorithm.config.inputs and "x0" not in inputs:
        count, n = next(value.shape[:2] for value in inputs.values() if value.ndim > 1)
        x0 = 0.5 * np.random.default_rng(2).standard_normal((count, n))
        x0[: count // 2] = 0.0
        inputs["x0"] = x0.astype(algorithm.config.dtype)
    return _Systems(inputs, np.array(["random"] * len(next(iter(inputs.values())))))


def _judge_lines(traced: TracedProgram, inputs: Mapping[str, np.ndarray], checks: Checks) -> None:
    """Refuse a program whose own lines on arrays do not compute what was traced."""
    exact = {name: value.astype("float64") for name, value in inputs.items()}
    count = len(next(iter(exact.values())))
    runs = [_lines(traced, {name: value[i] for name, value in exact.items()}) for i in range(count)]
    values = {name: torch.stack([torch.stack([state[name] for state in run]) for run in runs]) for name in runs[0][0]}
    answer = values.pop(ANSWER)
    ones = torch.ones(count, dtype=torch.float64)
    found = Found(
        {name: torch.from_numpy(value[:, None]) for name, value in exact.items()},
        values,
        answer,
        torch.float64,
        dict.fromkeys((*values, ANSWER), ones),
        torch.zeros(answer.shape[:2], dtype=torch.bool),
    )
    found = with_settled(found, checks)[0]  # past convergence, both round what is left in their own ways
    tolerance = replace(Tolerance.of(torch.float64), plain=1e-10)
    for name, deviation in deviations(values_of(traced), found, tolerance=tolerance).items():
        # 0 / 0 is NaN in NumPy and 0 in the weights.
        wrong = (deviation.wrong & torch.isfinite(deviation.error)).any(0)
        if bool(wrong.any()):
            step = int(wrong.nonzero()[0]) + name.startswith(STEP)
            method = "finish" if name == ANSWER else name.split()[0]
            what = "its answer" if name == ANSWER else f"the state {name.removeprefix(START).removeprefix(STEP)!r}"
            raise CompileError(
                f"{traced.program.name}: {method} on arrays differs from what was traced: {what} after "
                f"{f'step {step}' if step else 'the start'}. Either it is not the same each time, as with random "
                "numbers or a counter that is no state (return what changes as a state), or it changes an array in "
                "place that has two names: with y = x, x += d changes y too; write x = x + d"
            )


def _lines(traced: TracedProgram, inputs: dict[str, Any]) -> list[dict[str, Tensor]]:
    """The states and the answer after start and after each of a few steps of the user's own lines, one system."""
    program, n = traced.program, next(iter(inputs.values())).shape[-1]
    kinds = {name: node.kind for name, node in traced.state.items()} | {ANSWER: traced.answer.kind}
    arrays = "NumPy arrays"
    if traced.uses_torch:  # whose functions take tensors alone
        arrays, inputs = "tensors", {name: torch.as_tensor(value) for name, value in inputs.items()}

    def call(method: str, known: dict[str, Any]) -> Any:
        found = getattr(program, method)
        try:
            # Copies, so that x += d does not change the state before the step; numbers stay numbers.
            return found(**{name: copy.deepcopy(known[name]) for name in parameters(found)})
        except Exception as error:
            raise CompileError(
                f"{program.name}: {method} can be traced, but fails on {arrays}: {type(error).__name__}: {error}"
            ) from error

    def tensor(name: str, value: Any) -> Tensor:
        array = np.asarray(value, dtype="float64")
        if array.shape != (n,) * AXES[kinds[name]]:
            what = "finish" if name == ANSWER else f"the state {name!r}"
            raise CompileError(
                f"{program.name}: {what} has the shape {array.shape} on {arrays}; as traced it is a {kinds[name]}"
            )
        return torch.from_numpy(array.copy())

    with np.errstate(all="ignore"):
        states = [call("start", inputs)]
        for _ in range(_LINES):
            states.append(call("step", inputs | states[-1]))
        records = [{**state, ANSWER: call("finish", inputs | state)} for state in states]
    return [{name: tensor(name, value) for name, value in record.items()} for record in records]


@dataclass(frozen=True)
class _End:
    """Of one value: its deviation from the program's own run, and what that amplifies, (systems, T + 1) both."""

    deviation: np.ndarray
    response: np.ndarray


def _end_to_end(traced: TracedProgram, inputs: Mapping[str, np.ndarray], run: Run[Any]) -> dict[str, _End]:
    """Every state and the answer against the program's own run, and that against itself, perturbed in every step."""
    noise = np.random.default_rng(3)
    copies = _PERTURBATIONS + 1  # the first stays as it is
    n = next(value.shape[-1] for value in inputs.values() if value.ndim > 1)
    found: dict[str, np.ndarray] = {**run.state, ANSWER: run.x}
    kinds = {name: node.kind for name, node in {**traced.state, ANSWER: traced.answer}.items()}  # the run may lack some

    def perturbed(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        factors = {k: 1 + _PERTURBATION * noise.choice([-1.0, 1.0], v.shape) for k, v in values.items()}
        return {k: torch.cat([v[:1], v[1:] * torch.from_numpy(factors[k][1:])]) for k, v in values.items()}

    def full(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sizes = {name: (n,) * AXES[kinds[name]] for name in values}
        return {name: value.expand(copies, len(run.x), *sizes[name]) for name, value in values.items()}

    start, step, answer = map(Expression.of, (traced.start, traced.step, {ANSWER: traced.answer}))
    given = {k: torch.from_numpy(v.astype("float64")).expand(copies, *v.shape) for k, v in inputs.items()}
    state, records = full(start(perturbed(given))), []
    for t in range(run.x.shape[1]):
        state = full(step(perturbed(given | state))) if t else state
        records.append(state | full(answer(perturbed(given | state))))
    reference = {name: torch.stack([record[name] for record in records], 2).numpy() for name in found}
    return {name: _end(value, reference[name]) for name, value in found.items()}


def _end(found: np.ndarray, reference: np.ndarray) -> _End:
    plain, *perturbed = (_held(x.reshape(*x.shape[:2], -1)) for x in reference)
    with np.errstate(all="ignore"):
        scale = np.maximum.accumulate(np.linalg.norm(plain, axis=-1), axis=-1)
        scale = np.where(scale > 0, scale, 1.0)
        deviation = np.linalg.norm(found.reshape(plain.shape).astype("float64") - plain, axis=-1) / scale
        moved = np.max([np.linalg.norm(other - plain, axis=-1) for other in perturbed], axis=0)
        response = moved / (_PERTURBATION * scale)
    # What was amplified once may be damped again, but two runs of the program have parted there.
    response = np.maximum.accumulate(np.where(np.isfinite(response), response, np.inf), axis=-1)
    return _End(np.where(np.isfinite(deviation), deviation, np.inf), response)


def _held(x: np.ndarray) -> np.ndarray:
    """The iterates, with the last finite one kept: NumPy computes 0 / 0 after exact convergence."""
    x = x.copy()
    for t in range(1, x.shape[1]):
        lost = ~np.isfinite(x[:, t]).reshape(len(x), -1).all(-1)
        x[lost, t] = x[lost, t - 1]
    return x
