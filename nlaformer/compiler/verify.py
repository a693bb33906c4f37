"""Verification: a compiled algorithm against its own program on random and on hard systems, from 0 and from other x0.

Three comparisons, each a CompileError where it fails:

*Lines.* The graph that was traced against the user's own lines on arrays (``lines.py``): start, 12 steps and finish.

*Values.* Every value of a run of 12 steps against one call of the program on the same input, in the measure of
``deviation.py``; the error names the value, the step and the instructions that make it.

*End to end.* The same run against the program's own run (``ends.py``).

Where the program's own value is not finite, or a promise is broken, there is nothing to compare. A system on which the
user's own lines divide 0 by 0, as a quasi-Newton method does on the identity, says nothing about the weights from
there on; it is named in the report. A program that does so on every system is refused.

The deviations are kept with the artefact: of the values (``step``), and of the answer end to end after the first step
(``first``), at the worst (``largest``) and after the last (``last``). What decides are those of values and of runs over
what the program amplifies, ``judged``, where they are judged at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.compiler.deviation import Tolerance
from nlaformer.compiler.diagnose import Diagnosis, Stray
from nlaformer.compiler.ends import End, Methods, OwnValues, ends_of, held
from nlaformer.compiler.found import PERTURBATION, RUN, STEP
from nlaformer.compiler.graph import AXES
from nlaformer.compiler.judge import RunStatus
from nlaformer.compiler.lines import Lines, judge_lines
from nlaformer.compiler.places import warn
from nlaformer.compiler.result import Run
from nlaformer.compiler.trace import ANSWER, TracedProgram
from nlaformer.errors import CompileError
from nlaformer.problems.spd import random_spd
from nlaformer.program.language import Program

if TYPE_CHECKING:
    from nlaformer.compiler.algorithm import Algorithm

RANDOM, YOURS = "random", "your systems"  # that a program must be right on: drawn, or given by a user
_ITERATIONS = 12
_GROWN = 10.0
_GRADED = "condition 1e4"
# Functions that keep digits at a small v which the sums in the weights do not, and the sums.
_PLAIN = {"log1p": "np.log(1 + v)", "expm1": "np.exp(v) - 1", "sinh": "(np.exp(v) - np.exp(-v)) / 2"}
_LOST = 1e-2  # a deviation at the end that is worth a warning
_COPIES = 3  # perturbed runs of a trained program


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
    # NumPy computes 0 / 0 after exact convergence.
    reference = held(torch.from_numpy(program.run(**inputs, iterations=iterations).x)).numpy()
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
    hard: frozenset[str] = frozenset()


def with_verification(
    algorithm: Algorithm,
    traced: TracedProgram,
    given: Mapping[str, np.ndarray] | None = None,
    iterations: int = _ITERATIONS,
    family: str = RANDOM,
) -> Algorithm:
    """The algorithm with its deviations on random and hard systems; CompileError where a value is not the program's.

    ``given`` has the inputs of other systems by name, of a ``family`` that the program is meant for.
    """
    systems = _draw(algorithm, traced) if given is None else _of_kind(algorithm, given, family)
    lines = judge_lines(traced, systems.inputs, algorithm.n, iterations)
    run = algorithm.run(**systems.inputs, iterations=iterations)
    _refuse_lost(traced, run, lines)
    inputs = {name: _double(value) for name, value in systems.inputs.items()}
    values = {name: _double(value) for name, value in {**run.state, ANSWER: run.x}.items()}
    ends = ends_of(Methods.traced(traced), inputs, values, Tolerance.of(algorithm.dtype))
    assert run.evidence is not None  # there is some of every run of weights
    diagnosis, settled = run.diagnose(), run.evidence.found.settled.numpy()
    compared = _compared(lines, diagnosis, run.evidence.until.numpy(), iterations)
    trial = _Trial(algorithm, systems, run, diagnosis, ends, settled, compared)
    notes = _judge_values(trial) or _nothing_compared(trial)
    report = {str(name): _report(trial, systems.families == name) for name in dict.fromkeys(systems.families)}
    return _reporting(algorithm, iterations, report, notes)


def _reporting(algorithm: Algorithm, iterations: int, report: Mapping[str, Any], notes: list[str]) -> Algorithm:
    """The algorithm with a report of its verification."""
    config, verified = algorithm.config, {"iterations": iterations, "systems": report}
    config = replace(config, verification=config.verification | verified, warnings=config.warnings + notes)
    return type(algorithm)(config, algorithm.model, algorithm.program)


@dataclass(frozen=True)
class _Trial:
    """A run of the verification and what was found out about it.

    ``settled`` is that of what was found, ``compared`` where the run says something; (systems, T + 1).
    """

    algorithm: Algorithm
    systems: _Systems
    run: Run[Any]
    diagnosis: Diagnosis
    ends: Mapping[str, End]
    settled: np.ndarray
    compared: np.ndarray

    @property
    def tolerance(self) -> Tolerance:
        return Tolerance.of(self.algorithm.dtype)

    def excess(self, end: End) -> np.ndarray:
        """The deviation of a run over what its program amplifies, NaN where nothing is judged; (systems, T + 1)."""
        deviation = end.judged(self.tolerance)
        excess: np.ndarray = (self.tolerance.plain * deviation.error / deviation.allowed).numpy()
        return np.where(self.compared & torch.isfinite(deviation.allowed).numpy() & ~self.settled, excess, np.nan)


def _compared(lines: Lines, diagnosis: Diagnosis, until: np.ndarray, iterations: int) -> np.ndarray:
    """When a run says something: ``until`` the program's values are not finite, or a promise is broken.

    In the user's own lines 0 / 0 is not finite either; they count after their first step, and where something is wrong.
    """
    lost = lines.lost.numpy()
    wrong = [stray.system[0] for stray in diagnosis.strays] + np.flatnonzero(lost <= 1).tolist()
    times = np.arange(iterations + 1)
    compared: np.ndarray = times <= until[:, None]
    compared[wrong] &= times < lost[wrong][:, None]
    return compared


def _report(trial: _Trial, own: np.ndarray) -> dict[str, Any]:
    """The deviations of the systems of a family."""
    compared = trial.compared[own]
    found: dict[str, Any] = {} if compared.all() else {"lost": int(compared.sum(-1).min())}
    if not compared.any():
        return found
    step = judged = 0.0
    for name, deviation in trial.diagnosis.deviation.items():
        if name.startswith(RUN):
            continue
        counts = compared[:, 1:] if name.startswith(STEP) else compared[:, : deviation.shape[1]]
        error = np.where(counts, deviation[own], 0.0)
        step = max(step, float(error.max(initial=0.0)))
        judged = max(judged, float((error / trial.diagnosis.allowed[name][own]).max(initial=0.0)))
    deviation = np.where(compared, trial.ends[ANSWER].deviation.numpy()[own], 0.0)
    ends = np.array([trial.excess(end)[own] for end in trial.ends.values()])
    ends = ends[np.isfinite(ends)]
    decides = {"step": trial.tolerance.plain * judged} | ({"end": float(ends.max())} if ends.size else {})
    return found | {
        "step": step,
        "first": float(deviation[:, :2].max()),
        "largest": float(deviation.max()),
        "last": float(deviation[:, -1].max()),
        "judged": decides,
    }


def compared_with_run(
    algorithm: Algorithm,
    traced: TracedProgram,
    run: Callable[..., Run[Any]],
    given: Mapping[str, np.ndarray] | None,
) -> Algorithm:
    """The algorithm with its deviations from the run of a trained program; CompileError where the weights are wrong.

    A network may amplify perturbations without end. Where the model makes more than ``Tolerance.most`` of those of its
    inputs, on the ill-conditioned system, and in float32 after the first step or on hard systems, a run that parts from
    the model's own is a note and a warning. That is milder than ``with_verification`` on purpose: a graph has every
    value and is excused on hard systems alone; of a network there is the answer alone, and it may part on any system.
    """
    systems = _draw(algorithm, traced) if given is None else _of_kind(algorithm, given, YOURS)
    tolerance = Tolerance.of(algorithm.dtype)
    found = _double(algorithm.run(**systems.inputs, iterations=_ITERATIONS).x)
    model, *moved = (_double(run(**given, iterations=_ITERATIONS).x) for given in _perturbed(systems.inputs))
    measured = OwnValues.of(model, torch.ones(1))
    deviation, response = measured.deviation(found).numpy(), measured.response(moved, PERTURBATION).numpy()
    tame = response <= tolerance.most
    parted = deviation > tolerance.plain * np.where(tame, np.maximum(response, 1.0), 1.0)
    wrong = parted & tame & (systems.families != _GRADED)[:, None]
    if algorithm.dtype != torch.float64:
        wrong &= np.isin(systems.families, (RANDOM, YOURS))[:, None] & (np.arange(wrong.shape[1]) <= 1)
    report, notes = {}, []
    for name in dict.fromkeys(systems.families):
        members = systems.families == name
        own, largest = deviation[members], float(deviation[members].max())
        report[str(name)] = {"first": float(own[:, :2].max()), "largest": largest, "last": float(own[:, -1].max())}
        if not parted[members].any():
            continue
        step = int(parted[members].any(0).argmax())
        report[str(name)] |= {"parted": step}
        message = f"on systems of the verification ({name}) its run is up to {largest:.1e} from the model's own"
        if wrong[members].any():
            remedy = "Take the weights as they are with verify=False, or run the model itself"
            raise CompileError(f"{algorithm.name}: from step {step} on, {message}. {remedy}")
        amplified = f"which makes {response[members, step].max():.0e} of a perturbation"
        notes.append(f"{message} from step {step} on, {amplified}")
    if notes:
        remedy = "There run the model itself" + ("" if algorithm.dtype == torch.float64 else ", or compile in float64")
        warn(f"{algorithm.name}: {notes[0]}. {remedy}")
    return _reporting(algorithm, _ITERATIONS, report, notes)


def _perturbed(inputs: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """The inputs in float64 as they are, then perturbed."""
    noise = np.random.default_rng(3)
    yield (given := {name: value.astype("float64") for name, value in inputs.items()})
    for _ in range(_COPIES):
        yield {k: v * (1 + PERTURBATION * noise.choice([-1.0, 1.0], v.shape)) for k, v in given.items()}


def _judge_values(trial: _Trial) -> list[str]:
    """Refuse weights with a wrong value; a note and a warning where it says little about other systems.

    That is after the first step on the ill-conditioned system, or in float32; where two runs of the program itself have
    parted on a hard system (it amplifies perturbations by more than ``Tolerance.most``), so that its values are
    accidents of rounding; where it has converged before; and where values have grown tenfold after the first step: it
    diverges on a system that was not made for it, and leaves every range.
    """
    notes = []
    algorithm, systems = trial.algorithm, trial.systems
    strict = algorithm.dtype == torch.float64
    for stray in trial.diagnosis.strays:
        (system,) = stray.system
        if not trial.compared[system, stray.step]:
            continue
        family = systems.families[system]
        message = f"on a system of the verification ({family}) {stray}"
        parted = any(end.response[system, stray.step] > trial.tolerance.most for end in trial.ends.values())
        lasting = (stray.step <= 1 or (strict and family != _GRADED)) and not (parted and family in systems.hard)
        if lasting and not _is_beyond(trial, stray):
            raise CompileError(f"{algorithm.name}: {message}. {_remedy(algorithm)}")
        notes.append(message)
    if notes:
        warn(f"{algorithm.name}: {notes[0]}. A run like that ends inaccurate and says so")
    return notes[:1]


def _refuse_lost(traced: TracedProgram, run: Run[Any], lines: Lines) -> None:
    """Refuse a program whose own lines are not finite after one step on every system that keeps its promises."""
    statuses = enumerate(np.asarray(run.status).tolist())
    kept = [system for system, status in statuses if status is not RunStatus.NOT_POSITIVE]
    if kept and bool((lines.lost[kept] <= 1).all()):
        raise CompileError(
            f"{traced.program.name}: on every system of the verification its own lines give numbers that are not "
            f"finite in start or in the first step ({run.diagnose().lost or 'as in 0 / 0'}), so that nothing can be "
            "compared. Keep that operation finite; or, if the program is meant for other systems than random positive "
            "definite ones, give some to nf.compile, as verify=dict(A=A, b=b)"
        )


def _nothing_compared(trial: _Trial) -> list[str]:
    """A note and a warning where on all random systems the program's values are not finite or break a promise."""
    algorithm, systems = trial.algorithm, trial.systems
    random = ~np.isin(systems.families, list(systems.hard))
    statuses = set(np.asarray(trial.run.status)[random].tolist())
    if not statuses <= {RunStatus.NONFINITE, RunStatus.NOT_POSITIVE}:
        return []
    broken = "its residual is not finite" if RunStatus.NONFINITE in statuses else "a value taken to be positive is not"
    note = f"{trial.diagnosis.lost or broken}, on all systems of the verification ({systems.families[0]})"
    warn(f"{algorithm.name}: {note}. From there on nothing was compared")
    return [note]


def _is_beyond(trial: _Trial, stray: Stray) -> bool:
    """Whether a run had converged before a stray, or a state was ten times what it and the inputs were at first."""
    (system,) = stray.system
    before = max(stray.step - 1, 0)
    given = max(float(np.linalg.norm(value[system])) for value in trial.systems.inputs.values())
    sizes = [[float(np.linalg.norm(value)) for value in values[system]] for values in trial.run.state.values()]
    grown = any(size[before] > _GROWN * max(given, *size[:2]) for size in sizes)
    return grown or bool(trial.settled[system, : stray.step].any())


def warn_of_lost_digits(algorithm: Algorithm) -> None:
    """Where A is not scaled, weights for a large bound leave few digits to values far below it: warn of lost ones."""
    found = algorithm.verification["systems"]
    family = next(iter(found))  # random ones, or the user's own
    lost = found[family].get("last", 0.0)
    if _keeps_scale(algorithm) and lost > _LOST:
        warn(
            f"{algorithm.name}: after {algorithm.verification['iterations']} steps ({family} systems) the weights' "
            f"answer is {lost:.0e} from the program's. {_remedy(algorithm)}"
        )


def _remedy(algorithm: Algorithm) -> str:
    text = "Keep the values of the program near 1"
    used = {op for op, *_ in algorithm.config.program.get("nodes", ())}
    if lost := [f"np.{name}(v) as {plain}" for name, plain in _PLAIN.items() if name in used]:
        text += f"; the weights compute {', '.join(lost)}, with fewer digits at a small v: write that if it will do"
    if "divide" in used:
        text += "; divide last, as in 1 / np.outer(w, w) for np.outer(1 / w, 1 / w)"
    if _keeps_scale(algorithm):
        text += (
            "; constants keep A from being scaled: compile with the largest norm of your matrices as bound= (now "
            f"{algorithm.config.bound:.10g}), or make the constants relative to A, as a step size 0.1 / nf.norm(A)"
        )
    return text + (
        "; or verify it on systems that it is meant for, as verify=dict(A=A, b=b); or take the weights as they are "
        "with verify=False, and heed the status of every run"
    )


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
    families = np.array([RANDOM] * 3 + [name for name in hard for _ in range(2)])
    drawn = {name: rng.standard_normal((len(A), *[n] * AXES[node.kind])) for name, node in traced.inputs.items()}
    if "A" in drawn:
        drawn["A"] = A
    if "x0" in drawn and len(drawn) > 1:
        drawn["x0"][np.unique(families, return_index=True)[1]] = 0.0  # the first system of each family
    for promise in (node.args[0] for node in traced.nodes if node.op == "positive" and node.args[0].op == "input"):
        drawn[promise.extra] = np.abs(drawn[promise.extra])
    return _Systems({name: value.astype(config.dtype) for name, value in drawn.items()}, families, frozenset(hard))


def _of_kind(algorithm: Algorithm, given: Mapping[str, np.ndarray], family: str) -> _Systems:
    """Systems that someone else drew."""
    inputs = {name: value.astype(algorithm.config.dtype) for name, value in given.items()}
    if "x0" in algorithm.config.inputs and "x0" not in inputs:
        count, n = next(value.shape[:2] for value in inputs.values() if value.ndim > 1)
        x0 = 0.5 * np.random.default_rng(2).standard_normal((count, n))
        x0[: count // 2] = 0.0
        inputs["x0"] = x0.astype(algorithm.config.dtype)
    return _Systems(inputs, np.array([family] * len(next(iter(inputs.values())))))


def _double(value: np.ndarray) -> Tensor:
    return torch.from_numpy(value.astype("float64"))
