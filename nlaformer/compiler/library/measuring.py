"""How closely a compiled algorithm of the library follows its program, on the problems that it is meant for.

*A step.* Every value that ``start``, ``step`` and ``finish`` return is compared with one call of the program on the
same input, relative to the absolute terms of its last operation (|u| + |v| for u + v), over what the program itself
amplifies. The rule by which runs are judged (``judge.py``) does not see errors this small. It counts while the
residual exceeds 1e-6 of its start.

*End to end.* The answers of a whole run are compared with the program's own, relative to the largest so far. Methods
like CG amplify every rounding on their way, NumPy's too. So each deviation is divided by what the program makes of an
error of 1e-10 (in float32 1e-3) in every state of every step: the result is the error of a step that would explain it.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.library import algorithm, record
from nlaformer.compiler.library.records import Arrays, Record
from nlaformer.program.data import ANSWER
from nlaformer.program.expression import Expression
from nlaformer.program.language import Program
from nlaformer.program.run import Run
from nlaformer.program.tensors import size

_PERTURBATIONS = 4
_DRAWS, _PERTURBATION = 8, 1e-8  # of inputs and states, by which is measured what a call amplifies
_MOST = {torch.float64: 1e4, torch.float32: 10.0}  # that counts
_SMALL = {torch.float64: 1e-6, torch.float32: 1e-3}  # a residual beside its first: then states are what rounding left
# What a step may deviate by: what double precision reaches, and what is left of it in single precision.
GOALS = {torch.float64: 1e-10, torch.float32: 1e-3}


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
    reference = _rows(program.run(**inputs, iterations=iterations).x)
    shape = (len(exact), -1, exact[0].size)
    x, reference, exact = (value.reshape(shape).astype(np.float64) for value in (x, reference, exact))

    def relative(difference: np.ndarray) -> np.ndarray:
        return np.linalg.norm(difference, axis=-1) / np.linalg.norm(exact, axis=-1)

    return Comparison(relative(x - exact), relative(reference - exact), relative(x - reference))


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
    record, program = run.record, run.record.graph
    given = {name: value[:, None] for name, value in record.inputs.items()}
    before, after = ({k: v[:, part] for k, v in record.values.items()} for part in (np.s_[:-1], np.s_[1:]))
    first = {name: value[:, :1] for name, value in record.values.items()}
    counts = torch.ones(record.answer.shape[:2], dtype=torch.bool)
    if record.residuals is not None:
        norms = record.residuals[0]
        counts = norms > _SMALL[dtype] * norms[:, :1]
    calls = (
        ("start ", Expression(program.start), given, first, counts[:, :1]),
        ("step ", Expression(program.step), given | before, after, counts[:, 1:]),
        ("", program.last_values, {**given, **record.values}, record.values, counts),
    )
    return {
        prefix + name: _deviation(method, name, values, found[name], counted, dtype)
        for prefix, method, values, found, counted in calls
        for name in method.outputs
    }


def _deviation(
    method: Expression, name: str, values: Mapping[str, Tensor], found: Tensor, counts: Tensor, dtype: torch.dtype
) -> float:
    """Of one value from one call of the program on the same values, relative to its terms and to what it amplifies."""
    node = method.outputs[name]
    number, axes = method.numbers[node], node.ndim
    results, draws, response = method.results(values), torch.Generator().manual_seed(0), torch.ones(())
    terms = size(method.terms(number, results), axes)
    for _ in range(_DRAWS):
        signs = {k: torch.randint(2, v.shape, generator=draws, dtype=torch.float64) * 2 - 1 for k, v in values.items()}
        moved = method.results({k: v * (1 + _PERTURBATION * signs[k]) for k, v in values.items()})[number]
        response = torch.fmax(response, size(moved - results[number], axes) / terms / _PERTURBATION)
    distance = size(found - results[number], axes)
    error = torch.where(distance > 0, distance / terms / response.clamp(max=_MOST[dtype]), 0.0)
    known = torch.isfinite(size(results[number], axes)) & counts
    return float(torch.where(known, error.nan_to_num(math.inf, math.inf), 0.0).max()) if error.numel() else 0.0


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
    reference = program.graph(n)
    count = len(next(iter(inputs.values())))
    inputs = {name: inputs.get(name, torch.zeros(count, n, dtype=torch.float64)) for name in reference.inputs}
    answers, states = [], dict[str, torch.Tensor]()
    for t in range(iterations + 1):
        values = reference.next(inputs, states) if t else reference.first(inputs)
        states = reference.carried(values)
        for name, value in states.items():
            signs = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.float64) * 2 - 1
            length = size(value, reference.step[name].ndim).reshape(-1, *[1] * (value.dim() - 1))
            states[name] = value + (noise / value[0].numel() ** 0.5) * length * signs
        answers.append(reference.last_values(inputs | states)[ANSWER].reshape(count, -1))
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
