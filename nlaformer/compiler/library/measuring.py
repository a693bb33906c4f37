"""How closely a compiled algorithm of the library follows its program, on the problems that it is meant for.

*A step.* Every value that ``start``, ``step`` and ``finish`` return is compared with one call of the program on the
same input, in the measure of ``deviation.py``: relative to the absolute terms of its last operation, over what the
program itself amplifies. It counts while the residual exceeds 1e-6 of its start.

*End to end.* The answers of a whole run are compared with the program's own, relative to the largest so far. Methods
like CG amplify every rounding on their way, NumPy's too. So each deviation is divided by what the program makes of an
error of 1e-10 (in float32 1e-3) in every state of every step: the result is the error of a step that would explain it.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.deviation import Tolerance, deviations
from nlaformer.compiler.expression import size
from nlaformer.compiler.library import algorithm, record
from nlaformer.compiler.library.records import Arrays, Record
from nlaformer.compiler.reference import Reference
from nlaformer.compiler.result import Run
from nlaformer.compiler.trace import ANSWER, trace_program
from nlaformer.program.language import Program

_PERTURBATIONS = 4
# What a step may deviate by: what double precision reaches, and what is left of it in single precision.
GOALS = {torch.float64: 1e-10, torch.float32: 1e-3}


@dataclass(frozen=True)
class Measured:
    """An algorithm of the library, measured.

    Attributes
    ----------
    name, n, dtype, systems, iterations : what was run
    layers, heads, ffn_width, rows : of one iteration, the heads of all its layers
    start_layers : of the pre block
    seconds : to compile it, without verification
    step : the largest deviation of each value from one call of the program
    end : the largest error of every step that would explain how far the answers are from the program's own
    last : the deviation of the last answer from the program's own
    error, reference_error : of the last answer and the program's own, relative to the exact one; None without one
    status : how many runs ended how
    """

    name: str
    n: int
    dtype: str
    systems: int
    iterations: int
    layers: int
    heads: int
    ffn_width: int
    rows: int
    start_layers: int
    seconds: float
    step: dict[str, float]
    end: float
    last: float
    error: float | None
    reference_error: float | None
    status: dict[str, int]

    @classmethod
    def read(cls, row: dict[str, Any]) -> Measured:
        """A row of a file, in which null stands for what is not finite."""
        step = {name: math.inf if value is None else value for name, value in row["step"].items()}
        return cls(**(row | {"step": step}))

    @property
    def worst(self) -> float:
        """The largest deviation of a step."""
        return max(self.step.values())


STORE = Path(__file__).with_name("measured.json")


def stored() -> tuple[list[Measured], dict[str, Any]]:
    """What ``python -m benchmarks.library --store`` measured, n = 20 in float64, and where."""
    document = json.loads(STORE.read_text(encoding="utf-8"))
    return [Measured.read(row) for row in document["algorithms"]], document["provenance"]


def measure(
    name: str, n: int = 20, systems: int = 64, seed: int = 11, dtype: torch.dtype = torch.float64,
    iterations: int | None = None,
) -> Measured:  # fmt: skip
    """Compile an algorithm, run it on problems that it is meant for, and compare it with its program."""
    before = time.perf_counter()
    compiled = algorithm(name, n, dtype=dtype, verify=False)
    seconds = time.perf_counter() - before
    return measure_compiled(record(name), compiled, seconds, systems, seed, iterations)


def measure_compiled(
    entry: Record, compiled: Algorithm, seconds: float = 0.0, systems: int = 64, seed: int = 11,
    iterations: int | None = None,
) -> Measured:  # fmt: skip
    """The same for weights that exist; ``iterations`` at most."""
    inputs, exact = entry.problems(compiled.n, systems, seed)
    given = {name: value.astype(compiled.config.dtype) for name, value in inputs.items()}
    count = min(entry.iterations(compiled.n), iterations or 10**9)
    run = compiled.run(**given, iterations=count)
    reference = entry.program().run(**_as_double(given), iterations=count)
    end, last = _end_to_end(entry.program(), given, run, GOALS[compiled.dtype])
    loop = compiled.cost.loop
    return Measured(
        entry.name, compiled.n, compiled.config.dtype, systems, count,
        loop.layers, compiled.loop_heads, loop.ffn_width, loop.rows, compiled.cost.pre.layers, seconds,
        _steps(run, compiled.dtype), end, last, _error(run.x, exact), _error(reference.x, exact),
        dict(Counter(status.name for status in np.asarray(run.status).tolist())),
    )  # fmt: skip


def _as_double(inputs: Arrays) -> Arrays:
    return {name: value.astype("float64") for name, value in inputs.items()}


def _steps(run: Run[Any], dtype: torch.dtype) -> dict[str, float]:
    """The largest deviation of every value, over what the program amplifies, until the residual is small."""
    evidence = run.evidence
    assert evidence is not None
    tolerance = replace(Tolerance.of(dtype), plain=GOALS[dtype])
    found = deviations(evidence.program, evidence.found, tolerance)
    worst = {}
    for name, deviation in found.items():
        counts = ~evidence.found.settled[:, : deviation.error.shape[1]] & ~deviation.lost
        excess = torch.where(counts, deviation.error / deviation.allowed, 0.0)
        worst[name] = GOALS[dtype] * float(excess.max()) if excess.numel() else 0.0
    return worst


def _end_to_end(program: Program, given: Arrays, run: Run[Any], goal: float) -> tuple[float, float]:
    """The error of every step that explains the deviations, the largest over systems and times; the last deviation."""
    found = _rows(run.x)
    iterations = found.shape[1] - 1
    wanted = _iterates(program, given, iterations, 0.0)
    with np.errstate(all="ignore"):
        scale = np.maximum.accumulate(np.linalg.norm(wanted, axis=-1), axis=-1)
        scale = np.where(scale > 0, scale, 1.0)
        deviation = np.linalg.norm(found - wanted, axis=-1) / scale
        response = np.ones_like(deviation)
        for seed in range(_PERTURBATIONS):
            moved = _iterates(program, given, iterations, goal, seed) - wanted
            response = np.fmax(response, np.linalg.norm(moved, axis=-1) / scale / goal)
    deviation = np.where(np.isfinite(deviation), deviation, np.inf)
    return float((deviation / response).max()), float(deviation[:, -1].max())


def _iterates(program: Program, given: Arrays, iterations: int, noise: float, seed: int = 0) -> np.ndarray:
    """The program's own answers, (systems, T + 1, entries), with errors of a relative size in every state."""
    generator = torch.Generator().manual_seed(seed)
    inputs = {name: torch.from_numpy(value.astype("float64")) for name, value in given.items()}
    n = next(value.shape[-1] for value in inputs.values() if value.dim() > 1)
    reference = Reference.of(trace_program(program, n))
    count = len(next(iter(inputs.values())))
    inputs = {name: inputs.get(name, torch.zeros(count, n, dtype=torch.float64)) for name in reference.inputs}
    answers, states = [], dict[str, torch.Tensor]()
    for t in range(iterations + 1):
        values = reference.next(inputs, states) if t else reference.first(inputs)
        states = reference.carried(values)
        for name, value in states.items():
            signs = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.float64) * 2 - 1
            length = size(value, reference.step.kinds[name]).reshape(-1, *[1] * (value.dim() - 1))
            states[name] = value + (noise / value[0].numel() ** 0.5) * length * signs
        answers.append(reference.finish(inputs | states)[ANSWER].reshape(count, -1))
    return _rows(torch.stack(answers, 1).numpy())


def _rows(x: np.ndarray) -> np.ndarray:
    """The answers as rows of doubles, the last finite one kept."""
    x = x.reshape(len(x), x.shape[1], -1).astype("float64")
    for t in range(1, x.shape[1]):
        lost = ~np.isfinite(x[:, t]).all(-1)
        x[lost, t] = x[lost, t - 1]
    return x


def _error(x: np.ndarray, exact: np.ndarray | None) -> float | None:
    if exact is None:
        return None
    last, exact = _rows(x)[:, -1], exact.reshape(len(exact), -1)
    return float((np.linalg.norm(last - exact, axis=-1) / np.linalg.norm(exact, axis=-1)).max())
