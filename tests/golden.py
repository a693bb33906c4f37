"""What the package does today, number by number: the net under every redesign.

    python -m tests.golden compare                   # draw it again, print each difference; exit code 1 if there is one
    python -m tests.golden compare library/cg        # only what starts so
    python -m tests.golden draw                      # write tests/golden.json again; its diff belongs into the commit
    python -m tests.golden widen                     # the same on another processor: add what it draws

Everything goes through public calls: what a redesign replaces inside is of no concern here. A case is a line of the
file. How its entries are drawn, and when two of them are equal:

taken : whether the program compiles, with verification: yes, warned, unverified (it does without), or the error's class
pre, loop, post : layers, heads and units (width of the FFN), summed over the block
graph : how far ``Program.run`` is from the program's own lines on NumPy's arrays, over a few steps
step : how far a state is from the program's own lines, given the run's states before the step; the worst of the systems
hard : how runs on badly conditioned systems end, a letter for each; letters of a status are in the file
losses : of a training, at every fifth step

Numbers depend on the processor by rounding. So each system is drawn three times, twice with its entries changed by one
rounding, and ``widen`` adds what other processors draw. Of an error the smallest and the largest are kept, and two such
ranges are equal where they meet once they are widened by a factor of 2; errors below 50 roundings are equal. A status
is at the edge where the drawings differ; then all its letters are kept, and two such sets are equal where they have one
in common. So it is with ``taken``. Losses are equal to 1e-3; layers, heads and units are equal where they are the same.
An error is relative to the largest norm that the state has had so far.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import nlaformer as nf
from benchmarks import processes
from nlaformer.arrays import DTYPES
from nlaformer.compiler.library import record
from nlaformer.errors import NLAFormerError
from nlaformer.provenance import provenance
from tests import expressions, refused, textbook

PATH = Path(__file__).with_name("golden.json")
SIZES, PRECISIONS = (8, 20), tuple(DTYPES)
SYSTEMS, STEPS, HARD_SYSTEMS, HARD_STEPS = 4, 6, 4, 24
LETTERS = {
    "C": "CONVERGED", "R": "RUNNING", "S": "STAGNATED", "P": "PRECISION", "-": "NOT_POSITIVE", "Y": "NOT_SYMMETRIC",
    "I": "INACCURATE", "D": "DIVERGED", "N": "NONFINITE", "F": "FINISHED",
}  # fmt: skip
RECIPES: dict[str, dict[str, Any]] = {
    "quickstart": {},
    "guided-quickstart": {},
    "learned-preconditioner": {"n": 6, "T": 4, "d": 16, "heads": 2, "batch": 8},
}
Arrays = dict[str, np.ndarray]


# --- the cases ---


def cases() -> Iterator[tuple[str, Callable[..., dict[str, Any]], tuple[Any, ...]]]:
    """The name of each case, what draws it, and its arguments."""
    for name in nf.algorithms():
        for n in SIZES:
            for dtype in PRECISIONS:
                yield f"library/{name}/{n}/{dtype}", _library, (name, n, dtype)
    for kind in textbook.PROGRAMS:
        for dtype in PRECISIONS:
            yield f"textbook/{kind.__name__}/{dtype}", _textbook, (kind.__name__, dtype)
    for name in EXPRESSIONS:
        yield f"expression/{name}", _expression, (name,)
    for name in REFUSED:
        yield f"refused/{name}", _refused, (name,)
    for name in RECIPES:
        yield f"training/{name}", _training, (name,)


EXPRESSIONS: dict[str, Callable[..., Any]] = {
    **expressions.UFUNCS, **expressions.FUNCTIONS_OF_NUMPY, **expressions.ARITHMETIC,
    **{lines.__name__: lines for lines in (*expressions.CHANGED, *expressions.FILLED)},
}  # fmt: skip
REFUSED: dict[str, Callable[..., Any]] = {
    **{name: written for name, (written, _, _) in refused.WRITTEN.items()},
    **{f"without a counterpart {k}": written for k, (written, _) in enumerate(refused.NO_COUNTERPART, 1)},
}


def _library(name: str, n: int, dtype: str) -> dict[str, Any]:
    entry = record(name)
    drawn = entry.problems(n, max(SYSTEMS, HARD_SYSTEMS), 11)[0]
    return _measured(entry.program(), drawn, dtype, lambda verify: nf.algorithm(name, n, dtype=dtype, verify=verify))


def _textbook(name: str, dtype: str) -> dict[str, Any]:
    n, program = 4, getattr(textbook, name)()
    rng = np.random.default_rng(0)
    M = rng.standard_normal((SYSTEMS, n, n))
    drawn = {"A": M @ M.mT / n + np.eye(n), "b": rng.standard_normal((SYSTEMS, n)), "x0": np.full((SYSTEMS, n), 0.5)}
    given = {name: value for name, value in drawn.items() if name in _inputs(program)}
    return _measured(program, given, dtype, lambda verify: nf.compile(program, n, dtype=dtype, verify=verify))


def _expression(name: str) -> dict[str, Any]:
    """An expression is what ``finish`` computes: one pass of the post block."""
    program, n = expressions.program_of(EXPRESSIONS[name]), expressions.N
    rng = np.random.default_rng(0)
    given = {"A": rng.standard_normal((SYSTEMS, n, n)), "b": rng.standard_normal((SYSTEMS, n))}
    return _measured(program, given, "float64", lambda verify: nf.compile(program, n, verify=verify), steps=0)


def _refused(name: str) -> dict[str, Any]:
    program = refused.program_of(REFUSED[name])
    taken, _ = _compiled(lambda verify: nf.compile(program, refused.N, verify=verify))
    return {"taken": taken}


def _training(name: str) -> dict[str, Any]:
    config = nf.recipe(name).replace(steps=30, warmup=10, seed=1, **RECIPES[name])
    with tempfile.TemporaryDirectory() as folder:
        nf.train(config, out=folder, device="cpu", progress=False, log_every=1)
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = {row["step"]: row["loss"] for row in map(json.loads, lines) if "loss" in row}
    return {"losses": [float(f"{loss:.6g}") for step, loss in losses.items() if step % 5 == 0]}


# --- what is measured of a program ---


def _measured(
    program: nf.Program, drawn: Arrays, dtype: str, compiled: Callable[[bool], Any], steps: int = STEPS
) -> dict[str, Any]:
    taken, algorithm = _compiled(compiled)
    found: dict[str, Any] = {"taken": taken}
    plain = _three_times({name: value[:SYSTEMS].astype(dtype) for name, value in drawn.items()})
    with np.errstate(all="ignore"):
        found["graph"] = _range(_graph_errors(program, plain, min(steps, 3)))
        if algorithm is None:
            return found
        found |= {block: _size(getattr(algorithm.model, block)) for block in ("pre", "loop", "post")}
        found["step"] = _range(_step_errors(program, algorithm, plain, steps))
        hard = _three_times({name: _hard(name, value[:HARD_SYSTEMS]).astype(dtype) for name, value in drawn.items()})
        statuses = np.asarray(algorithm.run(**hard, iterations=HARD_STEPS if steps else 0).status).reshape(3, -1)
    letters = {status: letter for letter, status in LETTERS.items()}
    found["hard"] = " ".join("".join(sorted({letters[status.name] for status in each})) for each in statuses.T)
    return found


def _compiled(compiled: Callable[[bool], Any]) -> tuple[str, Any]:
    """Whether it compiles, and the weights, also those that only the verification refuses."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            algorithm = compiled(True)
        return "warned" if caught else "yes", algorithm
    except NLAFormerError:
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "unverified", compiled(False)
    except NLAFormerError as error:
        return type(error).__name__, None


def _size(block: Any) -> list[int]:
    heads = sum(layer.heads.count for layer in block if layer.heads is not None)
    return [len(block), heads, sum(layer.ffn.width for layer in block if layer.ffn is not None)]


def _inputs(program: nf.Program) -> set[str]:
    return {name for method in (program.start, program.step) for name in _asked(method)} & {"A", "b", "x0"}


def _asked(method: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(method).parameters)


def _three_times(given: Arrays) -> Arrays:
    """Every system three times, the second and the third with entries changed by one rounding."""
    rng = np.random.default_rng(5)
    blocks = [given, *({name: _changed(value, rng) for name, value in given.items()} for _ in range(2))]
    return {name: np.concatenate([block[name] for block in blocks]) for name in given}


def _changed(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Every row changed by a rounding or none; of a square matrix also the columns: it remains symmetric."""
    factor = 1 + np.finfo(value.dtype).eps * rng.integers(-1, 2, value.shape[:2])
    if value.ndim == 3:
        columns = factor[:, None] if value.shape[1] == value.shape[2] else 1.0
        factor = factor[:, :, None] * columns
    return (value * factor).astype(value.dtype)


def _hard(name: str, value: np.ndarray) -> np.ndarray:
    """A matrix with the same singular vectors, symmetric if it was; singular values from 1 to 1e-6 of its largest."""
    if value.ndim < 3:
        return value
    U, s, V = np.linalg.svd(value)
    found = (U * (s[:, :1] * np.logspace(0, -6, s.shape[1]))[:, None]) @ V
    symmetric = np.allclose(value, value.mT, rtol=1e-12, atol=0)
    return (found + found.mT) / 2 if symmetric else found


def _graph_errors(program: nf.Program, given: Arrays, steps: int) -> np.ndarray:
    """Of each system, the program's run against its own lines; 1e9 where it is refused."""
    try:
        run = program.run(**given, iterations=steps)
    except NLAFormerError:
        return np.full(len(next(iter(given.values()))), 1e9)
    errors = []
    for i, inputs in enumerate(_systems(program, given)):
        state, answers = _call(program, "start", inputs, {}), []
        for t in range(steps + 1):
            state = state if t == 0 else _call(program, "step", inputs, state)
            answers.append(_finish(program, inputs, state))
        errors.append(_largest(run.x[i], answers))
    return np.array(errors)


def _step_errors(program: nf.Program, algorithm: Any, given: Arrays, steps: int) -> np.ndarray:
    """Of each system, the largest error of a state or answer, each from the run's own states before it."""
    run = algorithm.run(**given, iterations=steps)
    errors = []
    for i, inputs in enumerate(_systems(program, given)):
        states = [{name: value[i, t].astype(float) for name, value in run.state.items()} for t in range(steps + 1)]
        wanted = [_call(program, "start", inputs, {})]
        wanted += [_call(program, "step", inputs, state) for state in states[:-1]]
        pairs = ([[values[name] for values in each] for each in (states, wanted)] for name in states[0])
        worst = [_largest(*pair) for pair in pairs]
        answers = [_finish(program, inputs, state) for state in states]
        errors.append(max([*worst, _largest(run.x[i], answers)]))
    return np.array(errors)


def _systems(program: nf.Program, given: Arrays) -> Iterator[Arrays]:
    """The inputs of one system after the other, in float64; x0 is 0 where none is given."""
    n = max(value.shape[-1] for value in given.values() if value.ndim > 1)
    for i in range(len(next(iter(given.values())))):
        yield {"x0": np.zeros(n)} | {name: value[i].astype(float) for name, value in given.items()}


def _call(program: nf.Program, method: str, inputs: Arrays, state: Mapping[str, Any]) -> Any:
    """A method's own lines on arrays, NumPy's or torch's, of which it may change any."""
    function, in_torch = getattr(program, method), isinstance(program, textbook.InTorch)
    known = {name: copy.deepcopy(({**inputs, **state})[name]) for name in _asked(function)}
    if in_torch:
        import torch

        known = {name: torch.as_tensor(value) for name, value in known.items()}
    found = function(**known)
    if not in_torch:
        return found
    return {name: value.numpy() for name, value in found.items()} if isinstance(found, dict) else found.numpy()


def _finish(program: nf.Program, inputs: Arrays, state: Mapping[str, Any]) -> Any:
    return _call(program, "finish", inputs, state)


def _largest(found: Any, wanted: list[Any]) -> float:
    """The largest error over the steps, relative to the largest norm so far; where the lines give no number, none."""
    largest, scale = 0.0, 0.0
    for one, other in zip(found, wanted, strict=True):
        one, other = np.asarray(one, float), np.asarray(other, float)
        if not np.isfinite(other).all():
            break
        scale = max(scale, float(np.linalg.norm(other)))
        error = float(np.linalg.norm(one - other)) / (scale or 1.0)
        largest = max(largest, error if np.isfinite(error) else 1e9)
    return largest


def _range(errors: np.ndarray) -> list[float]:
    """The worst error of the systems, as they are drawn the first, second and third time: smallest and largest."""
    worst = errors.reshape(3, -1).max(1)
    return [float(f"{worst.min():.2g}"), float(f"{worst.max():.2g}")]


# --- comparing ---


def differences(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two drawings of a case, a line each."""
    dtype = name.rpartition("/")[2]
    floor = 50 * float(np.finfo(dtype if dtype in DTYPES else "float64").eps)
    keys = [*old, *(key for key in new if key not in old)]
    return [
        f"{name}: {key} was {old.get(key)}, is {new.get(key)}"
        for key in keys
        if not _equal(key, old.get(key), new.get(key), floor)
    ]


def _equal(key: str, old: Any, new: Any, floor: float) -> bool:
    if old is None or new is None:
        return old is new
    if key in ("graph", "step"):
        (low, high), (least, most) = ([max(floor, value) for value in pair] for pair in (old, new))
        return least <= 2 * high and low <= 2 * most
    if key == "hard":
        pairs = list(zip(old.split(), new.split(), strict=False))
        return len(old.split()) == len(new.split()) and all(set(one) & set(other) for one, other in pairs)
    if key == "taken":
        return bool(set(old.split()) & set(new.split()))
    if key == "losses":
        return len(old) == len(new) and np.allclose(old, new, rtol=1e-3, atol=0)
    return bool(old == new)


def joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a case that two processors draw."""
    found = dict(old)
    for key in ("graph", "step"):
        if key in old:
            found[key] = [min(old[key][0], new[key][0]), max(old[key][1], new[key][1])]
    if "hard" in old:
        pairs = zip(old["hard"].split(), new["hard"].split(), strict=True)
        found["hard"] = " ".join("".join(sorted({*one, *other})) for one, other in pairs)
    if "taken" in old:
        found["taken"] = " ".join(sorted({*old["taken"].split(), *new["taken"].split()}))
    return found


def draw(names: list[str], jobs: int = 1) -> dict[str, dict[str, Any]]:
    """The cases whose names start with one of these; all if there are none."""
    chosen = [name for name, _, _ in cases() if not names or any(name.startswith(each) for each in names)]
    return dict(zip(chosen, processes.map_in_order(jobs, _drawn, chosen), strict=True))


def _drawn(name: str) -> dict[str, Any]:
    return next(work(*arguments) for case, work, arguments in cases() if case == name)


def read() -> dict[str, dict[str, Any]]:
    """What is kept."""
    return dict(json.loads(PATH.read_text(encoding="utf-8"))["cases"])


def write(found: Mapping[str, Mapping[str, Any]]) -> None:
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in found.items())
    head = f'"provenance": {json.dumps(provenance())},\n"statuses": {json.dumps(LETTERS)},\n'
    PATH.write_text(f'{{{head}"cases": {{\n{lines}\n}}}}\n', encoding="utf-8")


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "compare", "widen"])
    parser.add_argument("names", nargs="*", help="beginnings of the cases' names; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="processes; default: 1")
    options = parser.parse_args(given)
    found = draw(options.names, options.jobs)
    if options.what == "draw":
        write(({} if not options.names else read()) | found)
        return 0
    if options.what == "widen":
        write(read() | {name: joined(case, found[name]) for name, case in read().items() if name in found})
        return 0
    kept = {name: case for name, case in read().items() if not options.names or name.startswith(tuple(options.names))}
    lines = [f"{name}: is not drawn any more" for name in kept if name not in found]
    for name, case in found.items():
        lines += differences(name, kept[name], case) if name in kept else [f"{name}: is new"]
    print("\n".join([*lines, f"{len(found)} cases, {len(lines)} differences"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
