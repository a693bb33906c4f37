"""Does the certificate ever lie? Many solves over families, conditions, sizes, precisions and models, good and bad.

    python -m benchmarks.solve_stress --solves 120000 --json benchmarks/results/solve_stress.json     # two minutes

Every system that ``nf.solve`` calls CONVERGED is judged again by code that shares nothing with it: NumPy's residual in
float64 in two orders of summation, and the residual in extended precision (np.longdouble; on x86 that is 64 bits). A
miss of any of the three is a lie. For method="auto" the same systems are solved without a model as well: whatever CG
solves (GMRES, where A is not symmetric), "auto" must solve too (systems on which CG takes more than n steps are left
out); and a call that used no answer of the model must return CG's answers bit for bit with at most two products with A
more. Exits with 1 on a lie or a broken promise.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nlaformer as nf
from benchmarks.command import write
from nlaformer import problems
from nlaformer.provenance import provenance
from nlaformer.solvers.guided import POLICIES

Model = Callable[[Any, Any], Any]


def corrupted(rng: np.random.Generator) -> dict[str, Model]:
    """Functions that take the place of a model, from exact to malicious."""

    def exact(A: Any, b: Any) -> Any:
        return np.linalg.solve(A, b[..., None])[..., 0]

    def noisy(size: float) -> Model:
        return lambda A, b: exact(A, b) * (1 + size * rng.standard_normal(b.shape))

    def sometimes(A: Any, b: Any) -> Any:
        x = exact(A, b)
        x[rng.random(len(x)) < 0.5] = np.nan
        return x

    def vandal(A: Any, b: Any) -> Any:
        x = exact(A, b)
        A[...], b[...] = np.eye(b.shape[-1]), 1.0
        return x

    return {
        "exact": exact,
        "constant": lambda A, b: np.ones_like(b),
        "zero": lambda A, b: np.zeros_like(b),
        "nan": lambda A, b: np.full_like(b, np.nan),
        "infinite": lambda A, b: np.full_like(b, np.inf),
        "huge": lambda A, b: 1e200 * b,
        "sign-flipped": lambda A, b: -exact(A, b),
        "random": lambda A, b: rng.standard_normal(b.shape),
        "identity": lambda A, b: b,
        "noise 1e-1": noisy(1e-1),
        "noise 1e-4": noisy(1e-4),
        "sometimes nan": sometimes,
        "vandal": vandal,
        "raises": lambda A, b: 1 / 0,
        "wrong shape": lambda A, b: b[..., :-1],
    }


@dataclass(frozen=True)
class Batch:
    """Systems that are solved in one call."""

    family: str
    A: np.ndarray  # (m, n, n)
    b: np.ndarray  # (m, n)
    options: dict[str, Any]
    model: str


@dataclass
class Tally:
    """What was found."""

    solves: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    lies: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    erratic: int = 0  # systems on which CG took more than n steps, left out of the comparison
    unlucky: int = 0  # solved in float64 as by CG, but CG's answer happened to round to float32 better
    compared: int = 0
    used: int = 0
    dearer: Counter[str] = field(default_factory=Counter)  # answers that paid, but more than two products over CG
    saved: int = 0


def systems(rng: np.random.Generator, family: str, m: int, n: int) -> tuple[np.ndarray, str]:
    """Matrices (m, n, n) of a family, and how to call them."""
    seed = int(rng.integers(2**31))
    if family == "spectrum":
        cond = 10.0 ** rng.uniform(0, 14)
        return problems.PrescribedSpectrum(n=n, cond=cond).sample(m, seed).A.numpy(), f"condition {cond:.0e}"
    if family in ("indefinite", "negative", "singular", "clustered"):
        eigenvalues = {
            "indefinite": rng.standard_normal(n),
            "negative": -(10.0 ** rng.uniform(0, 3, n)),
            "singular": np.where(np.arange(n) == 0, 0.0, 10.0 ** rng.uniform(-3, 3, n)),
            "clustered": np.where(np.arange(n) < n / 2, 1.0, 1e8) * (1 + 1e-6 * rng.random(n)),
        }[family]
        return problems.PrescribedSpectrum(n=n, eigenvalues=tuple(eigenvalues)).sample(m, seed).A.numpy(), family
    if family == "graded":
        d = 10.0 ** rng.uniform(-7, 7, (m, n))
        A = problems.SPD(n=n).sample(m, seed).A.numpy()
        return A * d[:, :, None] * d[:, None, :], family
    if family == "non-symmetric":
        return rng.standard_normal((m, n, n)) + n * np.eye(n), family
    if family == "hilbert":
        i = np.arange(n)
        return np.broadcast_to(1 / (1.0 + i[:, None] + i), (m, n, n)).copy(), family
    return problems.family(family, n=n).sample(m, seed).A.numpy(), family


FAMILIES = (
    *("spd", "spectrum", "spectrum", "spectrum", "poisson-1d", "rbf", "graph-laplacian", "clustered", "graded"),
    *("hilbert", "indefinite", "negative", "singular", "non-symmetric"),
)


def batches(rng: np.random.Generator, names: list[str]) -> Iterator[Batch]:
    """Batches without end."""
    for k in itertools.count():
        family, model = FAMILIES[k % len(FAMILIES)], names[int(rng.integers(len(names)))]
        n = int(np.floor(np.exp(rng.uniform(0, np.log(201)))))
        m = int(np.clip(400_000 // n**2, 8, 400))
        A, label = systems(rng, family, m, n)
        x = rng.standard_normal((m, n))
        b = np.einsum("mij,mj->mi", A, x) if rng.random() < 0.6 else x * 10.0 ** rng.uniform(-3, 3, (m, 1))
        A, b = A * 10.0 ** rng.uniform(-12, 12), b * 10.0 ** rng.uniform(-12, 12)
        if rng.random() < 0.4:
            with np.errstate(over="ignore"):
                A, b = A.astype(np.float32), b.astype(np.float32)
        learned = model != "none"
        options = dict(
            rtol=float(10.0 ** rng.uniform(-15, -1)),
            atol=0.0 if rng.random() < 0.8 else float(np.abs(b).max() * 10.0 ** rng.uniform(-9, -1)),
            maxiter=int(rng.choice([n // 2 + 1, n + 2, 3 * n])),
            method=str(rng.choice([*POLICIES], p=[0.7, 0.1, 0.1, 0.1]) if learned else rng.choice(["cg", "pcg"])),
        )
        if rng.random() < 0.2:
            options["x0"] = (rng.standard_normal((m, n)) * 10.0 ** rng.uniform(-6, 6)).astype(b.dtype)
        yield Batch(label, A, b, options, model)


def misses(batch: Batch, x: np.ndarray) -> np.ndarray:
    """Which systems' answers miss the rule in at least one of three evaluations; (m,) bool."""
    A, b, x = (v.astype(np.float64) for v in (batch.A, batch.b, x))
    long = [v.astype(np.longdouble) for v in (A, b, x)]
    limit = np.maximum(batch.options["rtol"] * np.sqrt((long[1] ** 2).sum(-1)), batch.options["atol"])
    found = np.zeros(len(b), dtype=bool)
    for r in (
        b - (A @ x[..., None])[..., 0],
        b - (A[:, :, ::-1] * x[:, None, ::-1]).sum(-1),
        long[1] - (long[0] * long[2][:, None, :]).sum(-1),
    ):
        norm = np.sqrt((r.astype(np.longdouble) ** 2).sum(-1))
        found |= ~(norm <= limit)
    return found


def examine(batch: Batch, model: Any, tally: Tally) -> None:
    """Solve a batch and judge what comes back."""
    extra = {} if model is None else {"model": model}
    with np.errstate(all="ignore"):
        result: Any = nf.solve(batch.A, batch.b, check="ignore", **extra, **batch.options)
    assert result.x.dtype == batch.b.dtype and result.x.shape == batch.b.shape
    converged = np.array([status is nf.Status.CONVERGED for status in result.status])
    options = {name: value for name, value in batch.options.items() if name != "x0"}
    words = f"{batch.family}, n = {batch.b.shape[-1]}, {batch.b.dtype}, model {batch.model}, {options}"
    for k in (converged & misses(batch, result.x)).nonzero()[0]:
        tally.lies.append(f"system {k}: {words}")
    exact = np.array([status is nf.Status.PRECISION for status in result.status])
    for k in (exact & misses(batch, result.x64)).nonzero()[0]:
        tally.lies.append(f"system {k}, x64: {words}")
    tally.solves += len(converged)
    tally.statuses.update(status.name for status in result.status)
    tally.families[batch.family.partition(" ")[0]] += len(converged)
    tally.models[batch.model] += len(converged)
    if batch.options["method"] == "auto":
        plain = {name: value for name, value in batch.options.items() if name != "method"}
        own: Any = nf.solve(batch.A, batch.b, check="ignore", **plain)
        solved = np.array([status is nf.Status.CONVERGED for status in own.status])
        extra_work = np.where(solved & converged, result.matvecs - own.matvecs, 0)
        tally.compared += len(solved)
        unlucky = solved & exact
        tally.unlucky += int(unlucky.sum())
        # Beyond n steps rounding errors lead CG, and its bits change with the systems that share a call.
        erratic = own.iterations > batch.b.shape[-1]
        tally.erratic += int(erratic.sum())
        used = result.model.accepted > 0
        tally.used += int(used.sum())
        kind = batch.family.partition(" ")[0]
        tally.dearer[f"{batch.model} on {kind}"] += int((used & ~erratic & (extra_work > 2)).sum())
        tally.saved += int(-extra_work[used].sum())
        lost = solved & ~converged & ~unlucky & ~erratic
        if not used.any():
            lost |= (result.x != own.x).any(-1) & np.isfinite(own.x).all(-1) | (result.matvecs > own.matvecs + 2)
        for k in lost.nonzero()[0]:
            ends = f"{own.status[k].name} in {own.matvecs[k]} -> {result.status[k].name} in {result.matvecs[k]}"
            tally.losses.append(f"system {k}: {ends}: {words}")


def stress(solves: int, seed: int, trained: Any = None, report: Callable[[Tally], None] | None = None) -> Tally:
    """At least so many solves."""
    rng = np.random.default_rng(seed)
    models: dict[str, Any] = {"none": None, **corrupted(rng)}
    if trained is not None:
        models["trained"] = trained
    tally = Tally()
    for batch in batches(rng, list(models)):
        examine(batch, models[batch.model], tally)
        if report is not None:
            report(tally)
        if tally.solves >= solves:
            return tally
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--solves", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="a trained model, what nf.load takes")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    begun = shown = time.perf_counter()

    def report(tally: Tally) -> None:
        nonlocal shown
        if time.perf_counter() - shown > 20:
            shown = time.perf_counter()
            print(f"{tally.solves:,} solves, {shown - begun:.0f} s, {len(tally.lies)} lies, {len(tally.losses)} losses")

    trained = nf.load(arguments.model) if arguments.model else None
    tally = stress(arguments.solves, arguments.seed, trained, report)
    seconds = time.perf_counter() - begun
    dearer = {name: count for name, count in tally.dearer.items() if count}
    print(f"{tally.solves:,} solves in {seconds:.0f} s: {dict(tally.statuses)}")
    print(f"CONVERGED that misses the rule: {len(tally.lies)} of {tally.statuses['CONVERGED']:,}")
    print(f"answers used for {tally.used:,} systems: {tally.saved:,} products saved; more than two lost: {dearer or 0}")
    print(
        f'"auto" against CG on {tally.compared - tally.erratic:,} systems: {len(tally.losses)} worse; '
        f"{tally.unlucky} lost by rounding to float32 alone"
    )
    for line in (*tally.lies[:20], *tally.losses[:20]):
        print("  " + line)
    if arguments.json:
        found = {**vars(tally), "dearer": dearer, "seed": arguments.seed, "seconds": round(seconds)}
        write(arguments.json, {"found": found, "provenance": provenance()})
    sys.exit(1 if tally.lies or tally.losses else 0)


if __name__ == "__main__":
    main()
