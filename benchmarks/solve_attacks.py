"""Does nf.solve for any A, nf.eigenpair or nf.solve_nonlinear ever call something converged that is not?

    python -m benchmarks.solve_attacks --calls 20000 --json benchmarks/results/solve_attacks.json     # minutes

Systems that are singular, defective, indefinite, graded, clustered, of any scale, in both precisions, as matrices and
as operators that saturate or are not linear; equations without roots, with NaN, with singular Jacobians; models from
exact to malicious. Every CONVERGED is judged by code that shares nothing with the package: NumPy's evaluation in
float64 in two orders of summation, and one in extended precision. A miss of any of them is a lie; of least squares
with b orthogonal to all columns, up to rounding errors, zero is an answer. A call with a model is made without it as
well: where the classical method converges, it must converge too. Exits with 1 on a lie or a loss.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator

import nlaformer as nf
from benchmarks.command import write
from nlaformer.provenance import provenance

_LONG = np.longdouble
Array = np.ndarray


@dataclass
class Tally:
    """What was found."""

    calls: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    refused: int = 0  # calls that ended with an error of the package, as they should
    lies: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    compared: int = 0


def norm(v: Array) -> Any:
    """The 2-norm in extended precision, whose range is far beyond float64's."""
    return np.sqrt((v.astype(_LONG) ** 2).sum())


def products(A: Array, x: Array) -> list[Array]:
    """A x in float64, in two orders of summation, and in extended precision."""
    A, x = A.astype(np.float64), x.astype(np.float64)
    with np.errstate(all="ignore"):
        return [A @ x, (A[:, ::-1] * x[::-1]).sum(-1), (A.astype(_LONG) * x.astype(_LONG)).sum(-1)]


# Linear systems and least squares


def square(rng: np.random.Generator, n: int) -> tuple[str, Array]:
    """A square matrix of one of many kinds."""
    G = rng.standard_normal((n, n))
    kinds: dict[str, Callable[[], Array]] = {
        "gaussian": lambda: G,
        "shifted": lambda: G + 2 * np.sqrt(n) * np.eye(n),
        "singular": lambda: G @ np.diag(np.arange(n) > 0) @ rng.standard_normal((n, n)),
        "zero": lambda: np.zeros((n, n)),
        "indefinite": lambda: G + G.T,
        "skew": lambda: G - G.T,
        "shift": lambda: np.roll(np.eye(n), 1, 0),
        "defective": lambda: rng.normal() * np.eye(n) + np.eye(n, k=1),
        "nilpotent": lambda: np.eye(n, k=1),
        "triangular": lambda: np.triu(G),
        "graded": lambda: G * 10.0 ** rng.uniform(-8, 8, (n, 1)) * 10.0 ** rng.uniform(-8, 8, n),
        "hilbert": lambda: 1 / (1.0 + np.arange(n)[:, None] + np.arange(n)),
        "nearly singular": lambda: np.outer(G[0], G[-1]) + 1e-13 * G,
        "nan": lambda: np.where(np.arange(n) == 0, np.nan, G),
        "any exponent": lambda: _any_exponent(rng, G.shape) * np.sign(G),
    }
    name = str(rng.choice(list(kinds)))
    return name, kinds[name]()


def rectangular(rng: np.random.Generator, rows: int, n: int) -> tuple[str, Array]:
    """A rectangular matrix of one of many kinds."""
    G = rng.standard_normal((rows, n))
    kinds: dict[str, Callable[[], Array]] = {
        "gaussian": lambda: G,
        "rank one": lambda: np.outer(G[:, 0], G[0]),
        "zero": lambda: np.zeros((rows, n)),
        "zero column": lambda: np.where(np.arange(n) == 0, 0.0, G),
        "collinear": lambda: np.outer(G[:, 0], np.ones(n)) + 1e-9 * G,
        "graded": lambda: G * 10.0 ** rng.uniform(-6, 6, n),
        "vandermonde": lambda: np.linspace(0, 1, rows)[:, None] ** np.arange(n),
        "infinite": lambda: np.where(np.arange(n) == 0, np.inf, G),
        "any exponent": lambda: _any_exponent(rng, (rows, 1)) * np.sign(G),
        "zero rows": lambda: np.where(np.arange(rows)[:, None] < rows / 2, G, 0.0),
    }
    name = str(rng.choice(list(kinds)))
    return name, kinds[name]()


def _any_exponent(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers of which no scaling keeps all."""
    return np.ldexp(1.0, rng.integers(-1000, 1000, shape))


def operator(rng: np.random.Generator, A: Array, b: Array) -> tuple[str, Any]:
    """A as one of several operators, some of which are none."""
    size = float(np.abs(A[np.isfinite(A)]).max(initial=0.0) * np.abs(b[np.isfinite(b)]).max(initial=0.0)) or 1.0
    bends: dict[str, Callable[[Array], Array]] = {
        "exact": lambda y: y,
        "single": lambda y: y.astype(np.float32).astype(float),
        "saturating": lambda y: np.clip(y, -0.1 * size, 0.1 * size),
        "affine": lambda y: y + 1e-3 * size,
        "nan": lambda y: y * np.nan,
        "noisy": lambda y: y * (1 + 1e-4 * rng.standard_normal(y.shape)),
    }
    name = str(rng.choice(list(bends)))
    bend = bends[name]
    flipped = rng.random() < 0.1  # an rmatvec that is not the transpose
    back = (lambda y: bend(A[::-1].T @ y)) if flipped else (lambda y: bend(A.T @ y))
    return name, LinearOperator(A.shape, matvec=lambda v: bend(A @ v.ravel()), rmatvec=back, dtype=float)


def answers(rng: np.random.Generator) -> dict[str, Any]:
    """Functions (A, b) -> x from exact to malicious; none most often."""

    def exact(A: Any, b: Any) -> Any:
        return np.linalg.lstsq(A, b, rcond=None)[0]

    def vandal(A: Any, b: Any) -> Any:
        x = exact(A, b)
        A[...], b[...] = 1.0, 1.0
        return x

    return {
        "exact": exact,
        "vandal": vandal,
        "near": lambda A, b: exact(A, b) * (1 + 0.1 * rng.standard_normal(A.shape[1])),
        "random": lambda A, b: rng.standard_normal(A.shape[1]),
        "nan": lambda A, b: np.full(A.shape[1], np.nan),
        "huge": lambda A, b: np.full(A.shape[1], 1e200),
        "raises": lambda A, b: 1 / 0,
        "wrong shape": lambda A, b: b[:-1],
    }


def attack_linear(rng: np.random.Generator, tally: Tally, least_squares: bool) -> None:
    """One call of nf.solve."""
    n, rows = int(rng.integers(1, 13)), int(rng.integers(1, 17))
    kind, A = rectangular(rng, rows, n) if least_squares else square(rng, n)
    rows = len(A)
    with np.errstate(all="ignore"):
        b = A @ rng.standard_normal(n) if rng.random() < 0.5 else rng.standard_normal(rows)
        scale = 10.0 ** float(rng.choice([0, 0, 0, 8, -8, 100, -100, 290, -290]))
        A, b = A * scale, b * 10.0 ** float(rng.choice([0, 0, -8, 100, -290, 290]))
        if rng.random() < 0.1:
            b = b * _any_exponent(rng, b.shape)
        if rng.random() < 0.3:
            A, b = A.astype(np.float32), b.astype(np.float32)
        if least_squares and rng.random() < 0.1 and np.isfinite(A).all() and np.isfinite(b).all() and _unit(A) > 1e-200:
            Q, _ = np.linalg.qr((A / _unit(A)).astype(float))
            b = (b - Q @ (Q.T @ b)).astype(b.dtype)  # orthogonal to all columns, up to rounding
    options: dict[str, Any] = dict(
        rtol=float(10.0 ** rng.uniform(-16, -1)),
        atol=0.0 if rng.random() < 0.8 else float(10.0 ** rng.uniform(-300, 10)),
        method="cgls" if least_squares else str(rng.choice(["gmres", "auto"])),
        maxiter=int(rng.choice([1, n, 10 * n])),
    )
    if rng.random() < 0.2:
        options["x0"] = rng.standard_normal(n) * 10.0 ** rng.uniform(-10, 10)
    if rng.random() < 0.2:
        options["M"] = (
            "jacobi"
            if rng.random() < 0.5
            else lambda r: r * (1 + rng.random()) * 10.0 ** float(rng.choice([-200, 0, 200]))
        )
    if rng.random() < 0.05:
        b = b[:-1]  # a wrong shape
    given: Any = A
    form = str(rng.choice(["dense", "sparse", "operator"], p=[0.6, 0.2, 0.2]))
    if form == "sparse":
        given = csr_array(A)
    elif form == "operator" and options.get("M") != "jacobi":
        kind, given = operator(rng, A.astype(float), b)
        options["method"] = "cgls" if least_squares else "gmres"
    words = f"{'least squares' if least_squares else 'square'} {A.shape}, {kind}, {form}, {b.dtype}, {options}"
    result = _called(tally, words, lambda: nf.solve(given, b, check="ignore", **options))
    if result is None:
        return
    if result.converged:
        x = np.asarray(result.x, dtype=np.float64)
        if isinstance(given, LinearOperator):
            found = [(given.matvec(x), given.rmatvec)] if kind not in ("noisy",) else []
        else:
            found = [(Ax, None) for Ax in products(A, x)]
        if least_squares and not x.any() and not isinstance(given, LinearOperator) and _orthogonal(A, b):
            found = []  # zero is the answer
        for Ax, back in found:
            if _linear_misses(A, b, Ax, back, options, least_squares):
                tally.lies.append(words)
                break
    fixed = form != "operator" and not callable(options.get("M"))  # M above is another one in every call
    if fixed and (options["method"] == "auto" or rows != n) and rng.random() < 0.5:
        options["method"] = "auto"
        own, model = _drawn(rng, answers(rng))
        helped = _called(tally, words, lambda: nf.solve(given, b, check="ignore", model=model, **options))
        _compare(tally, f"{words}, model {own}", result, helped)


def _orthogonal(A: Array, b: Array) -> bool:
    """Whether A^T b is no more than what rounding errors are likely to make of it, twice, in every component."""
    A, b = A.astype(_LONG), b.astype(_LONG)
    likely = 10 * np.sqrt(max(A.shape)) * 2.0**-53 * (np.abs(A.T) * np.abs(b)).sum(-1)
    return bool((np.abs((A.T * b).sum(-1)) <= likely).all())


def _linear_misses(A: Array, b: Array, Ax: Array, back: Any, options: Any, least_squares: bool) -> bool:
    r = b.astype(_LONG) - Ax.astype(_LONG) if Ax.dtype == _LONG else (b.astype(float) - Ax)
    if not least_squares:
        return not norm(r) <= max(_LONG(options["rtol"]) * norm(b), _LONG(options["atol"])) * (1 + 1e-15)
    if back is None:
        gradients = [g.astype(_LONG) for g in products(A.T, np.asarray(r, dtype=float))]
        goal = norm((A.T.astype(_LONG) * b.astype(_LONG)).sum(-1))
    else:
        gradients, goal = [back(np.asarray(r, dtype=float)).astype(_LONG)], norm(back(b.astype(float)))
    return any(
        not norm(g) <= max(_LONG(options["rtol"]) * goal, _LONG(options["atol"])) * (1 + 1e-15) for g in gradients
    )


# Eigenpairs


def symmetric(rng: np.random.Generator, n: int) -> tuple[str, Array]:
    """A symmetric matrix of one of many kinds, and some that are not."""
    G = rng.standard_normal((n, n))
    Q = np.linalg.qr(G)[0]
    spectra: dict[str, Array] = {
        "spread": rng.standard_normal(n),
        "clustered": 1.0 + 10.0 ** rng.uniform(-15, -3, n),
        "two clusters": np.where(np.arange(n) < n / 2, 1.0, 2.0) + 1e-12 * rng.random(n),
        "multiple": np.ones(n),
        "singular": np.where(np.arange(n) < n / 2, 0.0, 1.0),
        "graded": 10.0 ** rng.uniform(-15, 15, n),
        "rank one": np.where(np.arange(n) == 0, 1.0, 0.0),
    }
    others = {"zero": np.zeros((n, n)), "diagonal": np.diag(rng.standard_normal(n)), "defective": np.eye(n, k=1)}
    others |= {"gaussian": G, "nan": np.full((n, n), np.nan)}
    name = str(rng.choice([*spectra, *others]))
    A = others[name] if name in others else (Q * spectra[name]) @ Q.T
    return name, A if name in ("defective", "gaussian") else np.tril(A) + np.tril(A, -1).T


def attack_eigen(rng: np.random.Generator, tally: Tally) -> None:
    """One call of nf.eigenpair."""
    n = int(rng.integers(1, 16))
    kind, A = symmetric(rng, n)
    with np.errstate(all="ignore"):
        A = A * 10.0 ** float(rng.choice([0, 0, 0, 8, -8, 280, -280]))
        A = A.astype(np.float32) if rng.random() < 0.3 else A
    options: dict[str, Any] = dict(
        rtol=float(10.0 ** rng.uniform(-16, -1)),
        atol=0.0 if rng.random() < 0.8 else float(10.0 ** rng.uniform(-300, 10)),
        which=str(rng.choice(["smallest", "largest"])),
        maxiter=int(rng.choice([1, n, 100])),
    )
    if rng.random() < 0.3:
        options["x0"] = np.eye(n)[0] if rng.random() < 0.5 else rng.standard_normal(n) * 10.0 ** rng.uniform(-200, 200)
    if rng.random() < 0.2:
        options["M"] = lambda r: r * 10.0 ** float(rng.choice([-200, 0, 200]))
    given: Any = A
    form = str(rng.choice(["dense", "sparse", "operator"], p=[0.6, 0.2, 0.2]))
    if form == "sparse":
        given = csr_array(A)
    elif form == "operator":
        kind, given = operator(rng, A.astype(float), np.ones(n))
    words = f"eigenpair {A.shape}, {kind}, {form}, {A.dtype}, {options}"
    result = _called(tally, words, lambda: nf.eigenpair(given, check="ignore", **options))
    if result is None:
        return
    v, theta = np.asarray(result.vector, dtype=np.float64), result.value
    if result.converged and kind != "noisy":
        images = [given.matvec(v)] if form == "operator" else products(A, v)
        limit = max(_LONG(options["rtol"]) * _size(A, form), _LONG(options["atol"])) * norm(v)
        misses = [not norm(w.astype(_LONG) - _LONG(theta) * v.astype(_LONG)) <= limit * (1 + 1e-12) for w in images]
        if any(misses) or (form != "operator" and not np.array_equal(A, A.T)):
            tally.lies.append(words)
    if form != "operator" and np.array_equal(A, A.T) and np.isfinite(theta):
        _check_enclosure(tally, words, A, result.enclosure)
    if form != "operator" and "M" not in options and rng.random() < 0.5:  # M above is another one in every call
        inverse = np.linalg.pinv(np.nan_to_num(A.astype(float)) / _unit(A))
        models = {
            "inverse": lambda A, v: inverse @ v,
            "random": lambda A, v: rng.standard_normal(n),
            "nan": lambda A, v: v * np.nan,
            "zero": lambda A, v: 0 * v,
            "raises": lambda A, v: 1 / 0,
            "huge": lambda A, v: 1e300 * v,
        }
        own, model = _drawn(rng, models)
        helped = _called(tally, words, lambda: nf.eigenpair(given, check="ignore", model=model, **options))
        _compare(tally, f"{words}, model {own}", result, helped)


def _unit(A: Array) -> float:
    return float(np.abs(A[np.isfinite(A)]).max(initial=0.0)) or 1.0


def _size(A: Array, form: str) -> Any:
    """The 2-norm of A; of an operator that is not A, more than it can be."""
    unit = _unit(A)
    size = np.linalg.norm(np.nan_to_num(A.astype(float) / unit), 2)
    return _LONG(size) * _LONG(unit) * (1 + 1e-12) * (10 if form == "operator" else 1)


def _check_enclosure(tally: Tally, words: str, A: Array, enclosure: tuple[float, float]) -> None:
    """An eigenvalue must lie within; NumPy's eigenvalues err by a multiple of the unit of rounding."""
    unit = _unit(A)
    values = np.linalg.eigvalsh(A.astype(float) / unit)
    slack = 1e-14 * len(A) * max(float(np.abs(values).max()), 1e-300)
    low, high = (bound / unit for bound in enclosure)
    if not np.any((low - slack <= values) & (values <= high + slack)):
        tally.lies.append(f"enclosure: {words}")


# Nonlinear systems


class Cubic(nf.Program):
    """A x + x^3 = b."""

    def start(self, x0: Any) -> dict[str, Any]:
        return dict(x=x0)

    def step(self, A: Any, b: Any, x: Any) -> dict[str, Any]:
        return dict(x=x + 0.1 * (b - A @ x - x * x * x))

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A @ x + x * x * x - b


class Underflow(Cubic):
    """exp(A x - b), with factors that cancel but underflow on the way."""

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return nf.exp(A @ x - b) * 1e-300 * 1e-300 * 1e300 * 1e300


class Logistic(Cubic):
    """A x + exp(x) / (1 + x^2) = b."""

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A @ x + nf.exp(x) / (1.0 + x * x) - b


def functions(rng: np.random.Generator, n: int) -> dict[str, Callable[[Array], Array]]:
    """Equations with and without roots."""
    A, b, s = rng.standard_normal((n, n)), rng.standard_normal(n), 10.0 ** float(rng.choice([0, 8, -8, 250, -250]))
    return {
        "linear": lambda x: s * (A @ x - b),
        "cubic": lambda x: s * (x**3 + x - b),
        "no root": lambda x: s * (x**2 + 1),
        "double root": lambda x: s * (x - b) ** 2,
        "singular": lambda x: s * (np.outer(b, b) @ x - b + 1),
        "exponential": lambda x: s * np.exp(x),
        "saturating": lambda x: np.tanh(x - 30 * b),
        "step": lambda x: np.sign(x - b) + 0.5,
        "rounded": lambda x: np.round(x - b, 3),
        "constant": lambda x: np.ones_like(x),
        "nan": lambda x: x * np.nan,
        "nan to the left": lambda x: np.sqrt(x - b) - 1,
        "nan to the right": lambda x: np.where(x > b, np.nan, x - b - 1),
        "pole": lambda x: 1 / (x - b),
        "overflow": lambda x: np.exp(x**2) - 2,
        "noisy": lambda x: x - b + 1e-6 * rng.standard_normal(n),
        "single": lambda x: (x**3 - b).astype(np.float32).astype(x.dtype),
        "wrong shape": lambda x: np.append(x, 1.0),
        "complex": lambda x: x * 1j,
    }


def attack_nonlinear(rng: np.random.Generator, tally: Tally) -> None:
    """One call of nf.solve_nonlinear."""
    n = int(rng.integers(1, 7))
    x0 = rng.standard_normal(n) * 10.0 ** float(rng.choice([0, 0, 3, -3, 100]))
    x0 = x0.astype(np.float32) if rng.random() < 0.3 and np.abs(x0).max() < 1e30 else x0
    options: dict[str, Any] = dict(
        rtol=float(10.0 ** rng.uniform(-16, -1)),
        atol=0.0 if rng.random() < 0.8 else float(10.0 ** rng.uniform(-30, 0)),
        maxiter=int(rng.choice([0, 2, 40])),
    )
    evaluate: Callable[[Array], list[Array]]
    if rng.random() < 0.3:
        program = (Cubic(), Logistic(), Underflow())[rng.integers(3)]
        A, b = rng.standard_normal((n, n)) * 10.0 ** float(rng.choice([0, 5, -5])), rng.standard_normal(n)
        F: Any = program
        options |= dict(A=A, b=b)
        kind = program.name

        def evaluate(x: Array) -> list[Array]:
            x = x.astype(np.float64)
            if kind == "Underflow":  # in extended precision alone: float64 has no value of it
                return [np.exp(products(A, x)[-1] - b)]
            rest = (lambda v: v * v * v) if kind == "Cubic" else (lambda v: np.exp(v) / (1 + v * v))
            return [Ax.astype(y.dtype) + rest(y) - b for Ax in products(A, x) for y in (x, x.astype(_LONG))]
    else:
        chosen = functions(rng, n)
        kind = str(rng.choice(list(chosen)))
        F = chosen[kind]

        def evaluate(x: Array) -> list[Array]:
            return [F(x)]

    words = f"nonlinear {n}, {kind}, {x0.dtype}, {options}, x0 {x0}"
    result = _called(tally, words, lambda: nf.solve_nonlinear(F, x0, check="ignore", **options))
    if result is None:
        return
    with np.errstate(all="ignore"):
        if result.converged and kind != "noisy":
            start = max(norm(f) for f in evaluate(x0))
            limit = max(_LONG(options["rtol"]) * start, _LONG(options["atol"])) * (1 + 1e-14)
            if any(not norm(f) <= limit for f in evaluate(np.asarray(result.x))):
                tally.lies.append(words)
        if rng.random() < 0.5 and kind != "noisy":
            models = {
                "fixed point": lambda x: x - 0.1 * np.nan_to_num(evaluate(x)[0]).astype(float),
                "random": lambda x: rng.standard_normal(n),
                "nan": lambda x: x * np.nan,
                "raises": lambda x: 1 / 0,
                "huge": lambda x: 1e300 + 0 * x,
            }
            own, model = _drawn(rng, models)
            helped = _called(tally, words, lambda: nf.solve_nonlinear(F, x0, check="ignore", model=model, **options))
            _compare(tally, f"{words}, model {own}", result, helped)


# Counting


def _drawn(rng: np.random.Generator, models: dict[str, Any]) -> tuple[str, Any]:
    name = str(rng.choice(list(models)))
    return name, models[name]


def _called(tally: Tally, words: str, call: Callable[[], Any]) -> Any:
    """A call that must end with a result or an error of the package."""
    tally.calls[words.partition(" ")[0]] += 1
    try:
        with np.errstate(all="ignore"):
            result = call()
    except nf.errors.NLAFormerError:
        tally.refused += 1
        return None
    tally.statuses[result.status.name] += 1
    return result


def _compare(tally: Tally, words: str, plain: Any, helped: Any) -> None:
    """What converges without a model must converge with one."""
    if helped is None:
        return
    tally.compared += 1
    if plain.converged and not helped.converged and helped.status is not nf.Status.PRECISION:
        tally.losses.append(f"{helped.status.name}: {words}")


def attack(calls: int, seed: int, report: Callable[[Tally], None] | None = None) -> Tally:
    """At least so many calls."""
    rng, tally = np.random.default_rng(seed), Tally()
    while sum(tally.calls.values()) < calls:
        attack_linear(rng, tally, least_squares=False)
        attack_linear(rng, tally, least_squares=True)
        attack_eigen(rng, tally)
        attack_nonlinear(rng, tally)
        if report is not None:
            report(tally)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)
    begun, where = time.perf_counter(), provenance()  # of the code that is loaded now
    shown = begun

    def report(tally: Tally) -> None:
        nonlocal shown
        if time.perf_counter() - shown > 20:
            shown = time.perf_counter()
            count = sum(tally.calls.values())
            print(
                f"{count:,} calls, {shown - begun:.0f} s, {len(tally.lies)} lies, {len(tally.losses)} losses",
                flush=True,
            )

    tally = attack(arguments.calls, arguments.seed, report)
    seconds = round(time.perf_counter() - begun)
    print(f"{sum(tally.calls.values()):,} calls in {seconds} s: {dict(tally.calls)}")
    print(f"statuses: {dict(tally.statuses)}; refused with an error: {tally.refused:,}")
    print(f"CONVERGED that misses its rule: {len(tally.lies)} of {tally.statuses['CONVERGED']:,}")
    print(f"with a model against without, {tally.compared:,} calls: {len(tally.losses)} lost")
    for line in (*tally.lies[:20], *tally.losses[:20]):
        print("  " + line)
    if arguments.json:
        found = {**vars(tally), "seed": arguments.seed, "seconds": seconds}
        write(arguments.json, {"found": found, "provenance": where})
    sys.exit(1 if tally.lies or tally.losses else 0)


if __name__ == "__main__":
    main()
