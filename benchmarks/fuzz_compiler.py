"""Random programs against the compiler: each is right in every value, or refused, or its run says what is wrong.

    python -m benchmarks.fuzz_compiler --jobs 2 --out benchmarks/results      # 3,150 programs, over 20,000 runs
    python -m benchmarks.fuzz_compiler --programs 200                         # what make test does

Every value of a run (what start, each step and finish return) is compared with one call of the program's own source in
NumPy, float64, on the values that the weights had before: relative to the absolute terms of the value's last operation,
with an allowance for what the program amplifies (eight perturbations of 1e-8, at most 1e4) and for what NumPy's own
rounding is, measured against extended precision and by perturbations in the last places. The run as a whole is compared
with the program's own run in NumPy, too (``fuzz_ends.py``). Nothing of the compiler's evaluator is used. A run *passes
in silence* if its status is not INACCURATE, NOT_POSITIVE or NONFINITE; then it must be right end to end. What is wrong
in a step alone is listed apart, with what becomes of it: the program damps it, or determines nothing there.
CONVERGED must be true of the residual in NumPy.
"""

from __future__ import annotations

import argparse
import collections
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nlaformer as nf
from benchmarks import processes
from benchmarks.fuzz_ends import deviations
from benchmarks.fuzz_programs import Generator, Written
from benchmarks.fuzz_rules import RULES
from nlaformer.console import output_folder
from nlaformer.errors import CompileError, NLAFormerError
from nlaformer.io import replace_file
from nlaformer.provenance import in_words, provenance

ITERATIONS = 6
_PART = 25  # programs of one process at a time
_SAYS = {nf.RunStatus.INACCURATE, nf.RunStatus.NOT_POSITIVE, nf.RunStatus.NONFINITE}
# Units in the last place. The weights hold a state as a mantissa and the logarithm of a scale; what is decoded of them,
# and given to NumPy here, is theirs to a few roundings. Where these change a value of NumPy altogether, as that of
# np.sum(z) * z where z adds up to 0, it is an accident of rounding and no value to compare with.
_LAST_PLACES = 16
_DIGITS = 1.5  # with fewer a value is undetermined
_MARGIN = 3.0  # between the allowance of the compiler's check and that of this one: both draw perturbations
_EXTENDED = np.longdouble
_FOLDED = {"zeros", "constant vector", "constant matrix"}  # factors that a graph knows


@dataclass
class Count:
    """What happened; the lists hold what must be empty."""

    numbers: collections.Counter[str] = field(default_factory=collections.Counter)
    operations: collections.Counter[str] = field(default_factory=collections.Counter)
    reasons: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)  # wrong in a step alone

    def fail(self, kind: str, seed: int, written: Written, about: Any) -> None:
        self.numbers[kind] += 1
        self.failures.append({"kind": kind, "seed": seed, "about": str(about)[:600], "source": written.source})

    def add(self, other: Count) -> None:
        for mine, theirs in ((self.numbers, other.numbers), (self.operations, other.operations)):
            mine.update(theirs)
        self.reasons.update(other.reasons)
        self.failures += other.failures
        self.steps += other.steps


def attack(seed: int, count: Count) -> None:
    """One program: compile it, run it on seven systems, judge every value."""
    generator = Generator(seed)
    written = generator.draw()
    dtype = "float32" if seed % 10 == 9 else "float64"
    count.numbers["programs"] += 1
    algorithm = _compiled(seed, written, dtype, count)
    if algorithm is None:
        return
    count.operations.update(written.operations)
    systems = _systems(generator.rng, written.inputs, dtype)
    count.numbers["runs"] += len(systems)
    try:
        batch = {name: np.stack([given[name] for given in systems]) for name in systems[0]}
        for given, one in zip(systems, _run(algorithm, batch), strict=True):
            _judge(seed, written, given, one, dtype, count)
        return
    except NLAFormerError:
        pass  # one of them is refused: each alone
    except Exception as error:
        count.fail("raw exceptions", seed, written, f"{type(error).__name__}: {error}")
        return
    for given in systems:
        try:
            (one,) = _run(algorithm, {name: value[None] for name, value in given.items()})
        except NLAFormerError as error:
            count.numbers["runs refused"] += 1
            count.reasons[type(error).__name__] += 1
            continue
        _judge(seed, written, given, one, dtype, count)


@dataclass(frozen=True)
class One:
    """The run of one system."""

    status: nf.RunStatus
    state: dict[str, np.ndarray]
    x: np.ndarray
    digits: dict[str, np.ndarray]


def _run(algorithm: nf.Algorithm, batch: dict[str, np.ndarray]) -> list[One]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = algorithm.run(**batch, iterations=ITERATIONS)
    return [
        One(
            status,
            {name: value[k] for name, value in run.state.items()},
            run.x[k],
            {name: value[k] for name, value in run.digits.items()},
        )
        for k, status in enumerate(np.asarray(run.status).tolist())
    ]


def _compiled(seed: int, written: Written, dtype: str, count: Count) -> nf.Algorithm | None:
    """The weights; those that the verification refuses are run too, since every run checks itself."""
    for verify in (True, False):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                algorithm = nf.compile(written.program(), n=3, dtype=getattr(torch, dtype), verify=verify)
            count.numbers["verified" if verify else "refused by the verification"] += 1
            return algorithm
        except CompileError as error:
            reason = str(error)
        except Exception as error:
            count.fail("raw exceptions", seed, written, f"{type(error).__name__}: {error}")
            return None
    count.numbers["refused"] += 1
    count.reasons[reason.splitlines()[-1].strip()[:60]] += 1
    return None


def _systems(rng: np.random.Generator, names: list[str], dtype: str) -> list[dict[str, Any]]:
    """Ordinary, with zeros, nonsymmetric, negative, large, tiny, singular."""
    M = rng.standard_normal((3, 3))
    spd, b, x0 = M @ M.T + 0.5 * np.eye(3), rng.standard_normal(3), rng.standard_normal(3)
    zeros = np.array([1.0, 0.0, -2.0])
    drawn = [
        (spd, b, 0 * x0),
        (spd, b, x0),
        (rng.standard_normal((3, 3)), b * zeros, x0 * zeros[::-1]),
        (np.eye(3), -np.abs(b), np.abs(x0)),
        (100 * spd, 50 * b, 20 * x0),
        (1e-7 * spd, 1e-7 * b, 1e-7 * x0),
        (np.diag([1.0, 0.0, -1.0]), np.array([0.0, 0.0, 1.0]), np.ones(3)),
    ]
    cast = [{"A": A, "b": b, "x0": x0} for A, b, x0 in drawn]
    return [{name: given[name].astype(dtype) for name in names} for given in cast]


def _judge(seed: int, written: Written, given: dict[str, Any], run: One, dtype: str, count: Count) -> None:
    """Compare every value with NumPy, and the status with what was found."""
    with np.errstate(all="ignore"):
        judge = Judge(written, {k: v.astype("float64") for k, v in given.items()}, run, dtype)
        wrong, vague = judge.first_wrong(), judge.vague
        apart = {} if vague else judge.apart()
        converged_in_truth = judge.has_converged()
    says = run.status in _SAYS
    count.numbers[run.status.name] += 1
    undetermined = any(bool((digits < _DIGITS).any()) for digits in run.digits.values())
    count.numbers["runs with a value that is undetermined"] += undetermined
    if vague:
        count.numbers["runs with the sign of almost 0"] += 1
    elif (wrong or apart) and not says and judge.nonfinite and _FOLDED & written.operations:
        count.numbers["0 times what is not finite"] += 1  # NaN in NumPy, 0 in the graph
    elif apart and not says and not judge.determined(apart, run.digits):
        count.numbers["wrong where nothing is determined"] += 1
    elif apart and not says:
        count.fail(f"silent: {run.status.name}", seed, written, f"{given}: {apart}; {wrong}")
    elif wrong and not says:
        count.numbers["wrong in a step alone" + ", with a value that is undetermined" * undetermined] += 1
        end = {name: float(excess.max()) for name, excess in judge.excess.items()}
        count.steps.append({"seed": seed, "about": wrong[:300], "end to end": end, "undetermined": undetermined})
    elif run.status is nf.RunStatus.CONVERGED and not converged_in_truth:
        count.fail("false CONVERGED", seed, written, given)
    elif run.status is nf.RunStatus.INACCURATE and not wrong and not apart:
        count.numbers["INACCURATE within the margin"] += 1
    elif run.status is nf.RunStatus.NONFINITE and not (judge.nonfinite or judge.overflows()):
        count.fail("NONFINITE of finite values", seed, written, f"{given}")
    else:
        count.numbers["said to be wrong" if wrong or apart else "right"] += 1


class Judge:
    """One run, value by value, in NumPy."""

    def __init__(self, written: Written, given: dict[str, Any], run: One, dtype: str):
        self.written, self.given = written, given
        self.own = written.in_numpy()
        self.numpy = self.own.start.__globals__["np"]
        self.plain, self.most, self.settled_at = (1e-6, 1e4, 1e-6) if dtype == "float64" else (1e-2, 10.0, 1e-3)
        self.bits = 33 if dtype == "float64" else 10
        self.tiny = 1e-38 if dtype == "float64" else 1e-28
        self.least = 1e-290 if dtype == "float64" else 1e-36  # float32 holds no digits of what is below 1e-38
        self.loss, self.inner_loss = (1e-10, 1e-12) if dtype == "float64" else (1e-4, 1e-5)
        self.last_places = _LAST_PLACES * float(np.finfo(dtype).eps)
        self.rng = np.random.default_rng(0)
        self.vague = self.nonfinite_inside = False
        self.excess: dict[str, np.ndarray] = {}
        self.states = {name: np.asarray(value, "float64") for name, value in run.state.items()}
        self.answers = np.asarray(run.x, "float64")
        self.norms, self.terms = self._residuals()
        self.nonfinite = self.norms is not None and not np.isfinite(self.norms[-1])

    def _call(self, method: str, values: dict[str, Any], precision: Any = float) -> dict[str, Any]:
        """What a method makes of copies: it may change its arguments."""
        self.numpy.precision = precision
        found = getattr(self.own, method)(
            **{name: np.array(values[name], precision, subok=True) for name in self._asks(method)}
        )
        return found if isinstance(found, dict) else {"answer": found}

    def _asks(self, method: str) -> list[str]:
        return self.written.asks[method.removeprefix("terms_of_")]

    def values_at(self, t: int) -> dict[str, Any]:
        return self.given | {name: value[t] for name, value in self.states.items()}

    def first_wrong(self) -> str:
        """A sentence about the first value that is not the program's, or nothing."""
        for t in range(ITERATIONS + 1):
            before = self.given if t == 0 else self.values_at(t - 1)
            found = {name: value[t] for name, value in self.states.items()}
            calls = [("start" if t == 0 else "step", before, found)]
            if "finish" in self.written.asks:
                calls.append(("finish", self.values_at(t), {"answer": self.answers[t]}))
            for method, values, got in calls:
                # -inf inside, as log(0), may leave the result finite: max(x, log(0)) is x.
                with np.errstate(divide="call", over="call", invalid="call", call=self._note_nonfinite):
                    try:
                        wanted, terms = self._call(method, values), self._call(f"terms_of_{method}", values)
                    except ArithmeticError:  # Python's own numbers raise where NumPy's become infinite
                        self.nonfinite = True
                        return f"{method} {t}: a number overflows"
                self.vague |= self.numpy.vague
                if self.vague:
                    return ""
                self.nonfinite |= not all(np.isfinite(value).all() for value in (*wanted.values(), *terms.values()))
                for name, value in got.items():
                    if method == "step" and self._is_settled(t - 1):  # a step does not vouch for itself
                        continue
                    if not self._agrees(method, name, values, value, wanted[name], terms[name]):
                        size = np.abs(np.asarray(terms[name], "float64")).max()
                        return f"{method} {t}, {name}: {value} for {wanted[name]} (terms {size:.1e})"
        return ""

    def apart(self) -> dict[str, float]:
        """The values that are wrong end to end, with how often what is allowed fits into how far they are off."""

        def call(method: str, values: dict[str, Any], precision: Any) -> dict[str, Any]:
            if method == "finish" and "finish" not in self.written.asks:
                return {}
            return self._call(method, values, precision)

        found = {**self.states, "answer": self.answers}
        try:
            self.excess = deviations(call, self.given, found, self.plain, self.most, self.bits)
        except ArithmeticError:  # Python's own numbers raise where NumPy's become infinite
            return {}
        return {name: float(excess.max()) for name, excess in self.excess.items() if (excess > 1).any()}

    def determined(self, apart: dict[str, float], digits: dict[str, np.ndarray]) -> bool:
        """Whether the run says of one of the values that it has digits, where it is wrong end to end."""
        names = {name: "finish()" if name == "answer" else name for name in apart}
        return any(bool((digits[names[name]][self.excess[name] > 1] >= _DIGITS).any()) for name in apart)

    def overflows(self) -> bool:
        """Whether the program's own run leaves the finite numbers, if only inside; what is wrong may come before."""
        with np.errstate(all="ignore", divide="call", over="call", invalid="call", call=self._note_nonfinite):
            values = self.given | self._call("start", self.given)
            for _ in range(ITERATIONS):
                values |= self._call("step", values)
                if "finish" in self.written.asks:
                    self._call("finish", values)
        return self.nonfinite_inside

    def _note_nonfinite(self, *_: object) -> None:
        self.nonfinite_inside = True

    def _agrees(self, method: str, name: str, values: dict[str, Any], found: Any, wanted: Any, terms: Any) -> bool:
        wanted, terms = np.asarray(wanted, "float64"), np.asarray(terms, "float64")
        if not np.isfinite(wanted).all():
            self.nonfinite = True
            return False
        terms = np.where(np.isfinite(terms), terms, np.abs(wanted))  # of an infinite value that was cut off
        distance, scale = _norm(found - wanted), _norm(terms)
        if not np.isfinite(distance):
            self.nonfinite = True
            return False
        if distance <= max(self.plain * scale, self.least, self.tiny * (scale == 0)):
            return True
        if scale == 0:
            return distance <= _MARGIN * self._left_of(method, name, values, wanted)
        response = last_places = 0.0
        for _ in range(8):
            change = self._change(method, name, values, wanted, 1e-8) / (1e-8 * scale)
            response = max(response, change if np.isfinite(change) else self.most)
            change = self._change(method, name, values, wanted, self.last_places)
            last_places = max(last_places, change if change < scale else scale * np.isfinite(change))
        exact = self._call(method, values, _EXTENDED)[name]
        rounding = _norm(exact - wanted)
        amplified = self.plain * float(np.clip(response, 1.0, self.most)) * scale
        allowed = max(amplified, 1e3 * rounding, last_places)
        return bool(distance <= _MARGIN * allowed)

    def _change(self, method: str, name: str, values: dict[str, Any], wanted: Any, amount: float) -> float:
        """By how much a value changes when all entries of inputs and states are perturbed by a part of themselves."""
        moved = {k: v * (1 + amount * self.rng.choice([-1.0, 1.0], np.shape(v))) for k, v in values.items()}
        return _norm(self._call(method, moved)[name] - wanted)

    def _left_of(self, method: str, name: str, values: dict[str, Any], wanted: Any) -> float:
        """What may be left of a value that is 0.

        A part of 1; its change when all inputs and states lose one of theirs; and, up to the plain tolerance of the
        largest of these, its change when all sums and products inside do.
        """
        changes, largest = [self.loss], max(1.0, *(float(np.abs(v).max()) for v in values.values()))
        for _ in range(8):
            moved = {
                k: v + self.loss * np.abs(v).max() * self.rng.choice([-1.0, 1.0], np.shape(v))
                for k, v in values.items()
            }
            changes.append(_norm(self._call(method, moved)[name] - wanted))
            self.numpy.loss = self.inner_loss
            changes.append(min(_norm(self._call(method, values)[name] - wanted), self.plain * largest))
            self.numpy.loss = 0.0
        return max(change for change in changes if np.isfinite(change))

    def _residuals(self) -> tuple[Any, Any]:
        """The norm of every residual in NumPy, None without one, and of its terms."""
        written, given = self.written, self.given
        with np.errstate(all="ignore"):
            if written.residual:
                own = [self.own.residual(given["b"], x) for x in self.answers]
                return np.linalg.norm(own, axis=-1), np.linalg.norm(np.abs(self.answers) + np.abs(given["b"]), axis=-1)
            if {"A", "b"} <= set(given) and written.answer == "v":
                products = self.answers @ given["A"].T
                terms = np.abs(products) + np.abs(given["b"])
                return np.linalg.norm(given["b"] - products, axis=-1), np.linalg.norm(terms, axis=-1)
        return None, None

    def _is_settled(self, t: int) -> bool:
        if self.norms is None:
            return False
        start = max(x for x in (self.norms[0], self.terms[t], 0.0) if np.isfinite(x))
        return bool(start > 0 and self.norms[t] <= self.settled_at * start)

    def has_converged(self) -> bool:
        if self.norms is None:
            return False
        zero = 0 * self.answers[0]
        at_zero = self.own.residual(self.given["b"], zero) if self.written.residual else self.given["b"]
        scales = (np.linalg.norm(at_zero), self.norms[0], np.linalg.norm(self.given["b"]))
        goal = next((scale for scale in scales if np.isfinite(scale) and scale > 0), 0.0)
        return bool(self.norms[-1] <= (1e-10 if self.plain < 1e-3 else 1e-4) * goal * (1 + 1e-6) + 1e-300)


def _norm(value: Any) -> float:
    """The norm, of numbers whose squares overflow too."""
    flat = np.abs(np.asarray(value, "float64")).ravel()
    largest = float(flat.max())
    return largest * float(np.linalg.norm(flat / largest)) if 0 < largest < np.inf else largest


def run(programs: int, first: int = 0) -> Count:
    """Attack with as many programs, of the seeds from the first on."""
    torch.set_num_threads(1)
    count = Count()
    for seed in range(first, first + programs):
        attack(seed, count)
    return count


def run_in_parts(programs: int, first: int, jobs: int) -> Count:
    """The same in several processes, with a line for every part."""
    firsts = range(first, first + programs, _PART)
    sizes = [min(_PART, first + programs - start) for start in firsts]
    total = Count()
    for part in processes.map_in_order(jobs, run, sizes, firsts):
        total.add(part)
        for failure in part.failures:
            print(failure["seed"], failure["kind"], failure["about"])
        done = total.numbers["programs"], "programs,", total.numbers["runs"], "runs,", len(total.failures), "failures"
        print(*done, flush=True)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=3150)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--out", type=Path, help="folder for fuzz_compiler.json")
    processes.add_options(parser)
    options = parser.parse_args()
    if options.out is not None:
        output_folder(options.out)  # before any work
    torch.set_num_threads(1)
    where = provenance(options.commit)
    count = run_in_parts(options.programs, options.seed, options.jobs)
    missing = sorted({rule.name for rule in RULES} - count.operations.keys())
    document = {
        "programs": options.programs,
        "seed": options.seed,
        "iterations": ITERATIONS,
        "counts": dict(sorted(count.numbers.items())),
        "operations in compiled programs": dict(count.operations.most_common()),
        "operations in none": missing,
        "reasons of refusals": dict(count.reasons.most_common(12)),
        "failures": count.failures,
        "wrong in a step alone": count.steps,
        "provenance": where,
    }
    if options.out is not None:
        replace_file(options.out / "fuzz_compiler.json", (json.dumps(document, indent=1) + "\n").encode())
    print(json.dumps({key: document[key] for key in ("counts", "operations in none")}, indent=1))
    print(in_words(where))


if __name__ == "__main__":
    main()
