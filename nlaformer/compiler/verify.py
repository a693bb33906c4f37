"""Verification: a compiled algorithm against its own program on random and on hard systems, from 0 and from other x0.

Two comparisons over 12 steps, each a CompileError where it fails, and both by the rule of ``judge.py``:

*Lines.* The user's own lines on arrays against the graph that was traced from them. What a graph cannot hold shows
here: hidden state, random numbers, an array changed in place under two names, a branch on the kind of a value. Lines
and graph both compute in float64, so that p is 40.

*Weights.* Every state and the answer of a run of the weights against the graph; of a trained program, whose networks no
graph has, the answer against the model's own runs on inputs perturbed by 2^-p.

Where the program's own value is not finite, or a promise is broken, there is nothing to compare. A system on which the
user's own lines divide 0 by 0, as a quasi-Newton method does on the identity, says nothing about the weights from
there on; it is named in the report. A program that does so on every system is refused.

Kept with the artefact: how far the answer is from the program's own, relative to its largest so far, after the first
step (``first``), at the worst (``largest``) and after the last (``last``), and by how many ``bars`` any value is off.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.errors import CompileError
from nlaformer.problems.spd import random_spd
from nlaformer.program.data import ANSWER, ProgramGraph
from nlaformer.program.inputs import padded_to
from nlaformer.program.ir import reachable
from nlaformer.program.judge import RULES, Band, Rule, bands
from nlaformer.program.language import KINDS, Program
from nlaformer.program.lines import Lines
from nlaformer.program.run import Run
from nlaformer.program.source import warn
from nlaformer.program.status import Record, RunStatus
from nlaformer.program.tensors import size

if TYPE_CHECKING:
    from nlaformer.compiler.algorithm import Algorithm

RANDOM, YOURS = "random", "your systems"  # that a program must be right on: drawn, or given by a user
_ITERATIONS = 12
_GRADED, _SUDDEN = "condition 1e4", "two eigenvalues"  # where weights lose digits that a program keeps
# Functions that keep digits at a small v which the sums in the weights do not, and the sums.
_PLAIN = {"log1p": "np.log(1 + v)", "expm1": "np.exp(v) - 1", "sinh": "(np.exp(v) - np.exp(-v)) / 2"}
_APART = 1e-2  # a deviation that is worth a warning where nothing is determined
_GROWN = 10.0
_COPIES = 8  # perturbed runs of a trained program


# --- the user's own lines ---


def refuse_other_lines(program: Program, graph: ProgramGraph, inputs: Mapping[str, np.ndarray], steps: int) -> Lines:
    """The lines on these systems; CompileError where they do not compute what was traced, or see padding."""

    def differs(given: Mapping[str, np.ndarray]) -> tuple[Lines, str]:
        with contextlib.redirect_stdout(io.StringIO()):  # what a step prints, it has printed while it was traced
            lines = Lines.of(program, graph, given, steps)
        square = {k: padded_to(graph.n, torch.from_numpy(v.astype("float64")), v.ndim - 1) for k, v in given.items()}
        first = lines.beside(graph, square)
        if first is None:
            return lines, ""
        what = "its answer" if first[0] == ANSWER else f"the state {first[0]!r}"
        return lines, f"{what} after {f'step {first[1]}' if first[1] else 'the start'}"

    name, n = program.name, graph.n
    lines, found = differs(inputs)
    if found:
        raise CompileError(
            f"{name}: on arrays its own lines differ from what was traced: {found}. Either they are not the same each "
            "time, as with random numbers or a counter that is no state (return what changes as a state), or they "
            "change an array in place that has two names: with y = x, x += d changes y too; write x = x + d. Or they "
            "decide by the kind of a value, as isinstance and match do, which tracing does not see"
        )
    if not graph.rectangular or "A" not in inputs or inputs.keys() - KINDS.keys() or n < 3:
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


# --- systems ---


def _hard_systems(n: int) -> dict[str, np.ndarray]:
    """Sudden convergence, a model problem, a condition number of 1e4, a large scale."""
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((n, n)))[0]
    graded = (Q * np.geomspace(1.0, 1e4, n)) @ Q.T
    return {
        "identity": np.eye(n),
        _SUDDEN: (Q * np.where(np.arange(n) % 2, 1.0, 5.0)) @ Q.T,
        "Laplacian": 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1),
        _GRADED: (graded + graded.T) / 2,
        "scaled by 1e6": 1e6 * (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)),
    }


@dataclass(frozen=True)
class _Systems:
    """Inputs of a verification, (systems, ...), and the family of each system."""

    inputs: dict[str, np.ndarray]
    families: np.ndarray


def _draw(algorithm: Algorithm) -> _Systems:
    """Three random systems and two of each hard matrix; x0 is 0 in the first of them."""
    n, config, graph = algorithm.n, algorithm.config, algorithm.config.program
    rng = np.random.default_rng(2)
    random, hard = random_spd(n, 3), _hard_systems(n)
    if _keeps_scale(algorithm):
        hard = {name: A for name, A in hard.items() if np.linalg.norm(A) <= config.bound}
        random *= min(1.0, 0.99 * config.bound / np.linalg.norm(random, axis=(1, 2)).max())
    A = np.concatenate([random, *(np.stack([M, M]) for M in hard.values())])
    families = np.array([RANDOM] * 3 + [name for name in hard for _ in range(2)])
    drawn = {name: rng.standard_normal((len(A), *node.shape)) for name, node in graph.inputs.items()}
    if "A" in drawn:
        drawn["A"] = A
    if "x0" in drawn and len(drawn) > 1:
        drawn["x0"][np.unique(families, return_index=True)[1]] = 0.0  # the first system of each family
    for promise in (node.args[0] for node in graph.promises.values() if node.op == "positive"):
        if promise.op != "input":
            continue
        drawn[promise.extra] = np.abs(drawn[promise.extra])
    return _Systems({name: value.astype(config.dtype) for name, value in drawn.items()}, families)


def _of_kind(algorithm: Algorithm, given: Mapping[str, np.ndarray], family: str) -> _Systems:
    """Systems that someone else drew."""
    inputs = {name: value.astype(algorithm.config.dtype) for name, value in given.items()}
    if "x0" in algorithm.config.kinds and "x0" not in inputs:
        count, n = next(value.shape[:2] for value in inputs.values() if value.ndim > 1)
        x0 = 0.5 * np.random.default_rng(2).standard_normal((count, n))
        x0[: count // 2] = 0.0
        inputs["x0"] = x0.astype(algorithm.config.dtype)
    return _Systems(inputs, np.array([family] * len(next(iter(inputs.values())))))


# --- weights ---


def with_verification(
    algorithm: Algorithm,
    given: Mapping[str, np.ndarray] | None = None,
    iterations: int = _ITERATIONS,
    family: str = RANDOM,
) -> Algorithm:
    """The algorithm with its deviations on random and hard systems; CompileError where a value is not the program's.

    ``given`` has the inputs of other systems by name, of a ``family`` that the program is meant for.
    """
    systems = _draw(algorithm) if given is None else _of_kind(algorithm, given, family)
    program, graph = algorithm.program, algorithm.config.program
    if program is None:
        raise RuntimeError("the user's own lines are not known")
    lines = refuse_other_lines(program, graph, systems.inputs, iterations)
    run = algorithm.run(**systems.inputs, iterations=iterations)
    record, times = run.record, torch.arange(iterations + 1)
    _refuse_lost(graph.name, run, lines)
    # In the user's own lines 0 / 0 is not finite; they count after their first step, and where something is wrong.
    suspicious = torch.isfinite(record.first_wrong) | (lines.lost <= 1)
    compared = (times <= record.until[:, None]) & (~suspicious[:, None] | (times < lines.lost[:, None]))
    # The states of the paper's own form are not all of the program's: its answers alone are compared.
    known = record.bands or {ANSWER: bands(graph, record.inputs, iterations, RULES[algorithm.dtype])[ANSWER]}
    notes = _judged(algorithm, systems, record, compared, strict=set(systems.families) - {_GRADED, _SUDDEN})
    notes = notes or _nothing_compared(algorithm, systems, run)
    return _reporting(algorithm, systems, known, record, compared, notes)


def compared_with_run(
    algorithm: Algorithm,
    run: Callable[..., Run[Any]],
    given: Mapping[str, np.ndarray] | None,
) -> Algorithm:
    """The algorithm with its deviations from the run of a trained program; CompileError where the weights are wrong.

    A network may amplify perturbations without end. Where it leaves its answer undetermined, a run that is far from the
    model's own is a note and a warning.
    """
    systems = _draw(algorithm) if given is None else _of_kind(algorithm, given, YOURS)
    record, rule = algorithm.run(**systems.inputs, iterations=_ITERATIONS).record, RULES[algorithm.dtype]
    own, *moved = (run(**each, iterations=_ITERATIONS).record.answer for each in _perturbed(systems.inputs, rule))
    spread = torch.stack([size(each - own, 1) for each in moved]).amax(0).nan_to_num(math.inf, math.inf)
    lost, unit = ~torch.isfinite(size(own, 1)), torch.ones(len(own), dtype=torch.float64)
    band = Band(own, spread, lost, 1, rule, unit)
    vars(record)["bands"] = {ANSWER: band}
    compared = torch.ones(spread.shape, dtype=torch.bool)
    notes = _judged(algorithm, systems, record, compared, strict={RANDOM, YOURS})
    deviation = torch.where(band.judged, 0.0, _relative(record.answer, band))
    if not notes and bool((deviation > _APART).any()):
        system, step = (int(k) for k in np.unravel_index(int(deviation.argmax()), deviation.shape))
        where = f"a system of the verification ({systems.families[system]}) at step {step}"
        inputs = f"where 2^-{rule.bits} of the inputs changes it by as much"
        notes = [f"on {where} its run is {float(deviation.max()):.1e} from the model's own, {inputs}"]
        warn(f"{algorithm.name}: {notes[0]}. There run the model itself")
    return _reporting(algorithm, systems, {ANSWER: band}, record, compared, notes)


def _perturbed(inputs: Mapping[str, np.ndarray], rule: Rule) -> Iterator[dict[str, np.ndarray]]:
    """The inputs in float64 as they are, then perturbed."""
    noise = np.random.default_rng(3)
    yield (given := {name: value.astype("float64") for name, value in inputs.items()})
    for _ in range(_COPIES):
        yield {k: v * (1 + 2.0**-rule.bits * noise.choice([-1.0, 1.0], v.shape)) for k, v in given.items()}


def _judged(algorithm: Algorithm, systems: _Systems, record: Record, compared: Tensor, strict: set[str]) -> list[str]:
    """Refuse weights with a wrong value; a note and a warning where it says little about other systems.

    That is after the first step on systems that are not ``strict``, or in float32, and where values have grown tenfold
    by then: the program diverges on a system that was not made for it, and leaves every range.
    """
    strays, notes = record.diagnosis().strays, []
    if not strays:
        return []
    given = torch.stack([v.flatten(1).norm(dim=1) if v.dim() > 1 else v.abs() for v in record.inputs.values()]).amax(0)
    sizes = torch.stack([band.sizes for band in record.bands.values()])
    grown = (sizes > _GROWN * torch.maximum(given, sizes[..., :2].amax(-1))[..., None]).any(0)
    for stray in strays:
        (system,) = stray.system
        if not compared[system, stray.step]:
            continue
        family = str(systems.families[system])
        message = f"on a system of the verification ({family}) {stray}"
        diverges = bool(grown[system, : stray.step + 1].any())
        lasting = algorithm.dtype == torch.float64 and family in strict and not diverges
        if stray.step <= 1 or lasting:
            raise CompileError(f"{algorithm.name}: {message}. {_remedy(algorithm)}")
        notes.append(message)
    if notes:
        warn(f"{algorithm.name}: {notes[0]}. A run like that ends inaccurate and says so")
    return notes[:1]


def _reporting(
    algorithm: Algorithm,
    systems: _Systems,
    known: Mapping[str, Band],
    record: Record,
    compared: Tensor,
    notes: list[str],
) -> Algorithm:
    """The algorithm with a report of its verification."""
    deviation, report = torch.where(compared, _relative(record.answer, known[ANSWER]), 0.0), {}
    off = torch.stack([torch.where(compared, each, 0.0) for each in record.bars_off.values()]) if record.bands else None
    for family in dict.fromkeys(systems.families):
        own = torch.from_numpy(systems.families == family)
        found: dict[str, Any] = {} if compared[own].all() else {"lost": int(compared[own].sum(-1).min())}
        if compared[own].any():
            first, largest, last = (
                float(part.max()) for part in (deviation[own, :2], deviation[own], deviation[own, -1])
            )
            found |= {"first": first, "largest": largest, "last": last}
            found |= {} if off is None else {"bars": float(off[:, own].max())}
        report[str(family)] = found
    config, verified = algorithm.config, {"iterations": record.answer.shape[1] - 1, "systems": report}
    config = replace(config, verification=config.verification | verified, warnings=config.warnings + notes)
    return type(algorithm)(config, algorithm.model, algorithm.program)


def _relative(found: Tensor, band: Band) -> Tensor:
    """The distance from the program's own, relative to its largest so far, (systems, T + 1)."""
    largest = torch.cummax(band.sizes.nan_to_num(0.0, 0.0), 1).values
    distance = size(found - band.own, band.axes)
    return (distance / torch.where(largest > 0, largest, 1.0)).nan_to_num(math.inf, math.inf)


def _refuse_lost(name: str, run: Run[Any], lines: Lines) -> None:
    """Refuse a program whose own lines are not finite after one step on every system that keeps its promises."""
    kept = torch.tensor([status is not RunStatus.NOT_POSITIVE for status in run.record.status])
    if bool(kept.any()) and bool((lines.lost[kept] <= 1).all()):
        raise CompileError(
            f"{name}: on every system of the verification its own lines give numbers that are not "
            f"finite in start or in the first step ({run.diagnose().lost or 'as in 0 / 0'}), so that nothing can be "
            "compared. Keep that operation finite; or, if the program is meant for other systems than random positive "
            "definite ones, give some to nf.compile, as verify=dict(A=A, b=b)"
        )


def _nothing_compared(algorithm: Algorithm, systems: _Systems, run: Run[Any]) -> list[str]:
    """A note and a warning where on all random systems the program's values are not finite or break a promise."""
    first = systems.families[0]
    statuses = set(run.record.status[systems.families == first].tolist())
    if not statuses <= {RunStatus.NONFINITE, RunStatus.NOT_POSITIVE}:
        return []
    broken = "its residual is not finite" if RunStatus.NONFINITE in statuses else "a value taken to be positive is not"
    note = f"{run.diagnose().lost or broken}, on all systems of the verification ({first})"
    warn(f"{algorithm.name}: {note}. From there on nothing was compared")
    return [note]


def _remedy(algorithm: Algorithm) -> str:
    text, program = "Keep the values of the program near 1", algorithm.config.program
    used = {node.op for node in reachable((*program.start.values(), *program.step.values(), program.answer))}
    if lost := [f"np.{name}(v) as {plain}" for name, plain in _PLAIN.items() if name in used]:
        text += f"; the weights compute {', '.join(lost)}, with fewer digits at a small v: write that if it will do"
    if "divide" in used:
        text += "; divide last, as in 1 / np.outer(w, w) for np.outer(1 / w, 1 / w)"
    return text + (
        "; or verify it on systems that it is meant for, as verify=dict(A=A, b=b); or take the weights as they are "
        "with verify=False, and heed the status of every run"
    )


def _keeps_scale(algorithm: Algorithm) -> bool:
    """Whether the program has constants that keep A from being scaled."""
    return "A" in algorithm.config.kinds and "A" not in algorithm.config.scaled
