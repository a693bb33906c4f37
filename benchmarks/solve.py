"""Solvers compared: iterations, products with A, failures and time to a relative residual, with and without a model.

    python -m benchmarks.solve --out benchmarks/results      # seven minutes; --quick: half a minute

The systems are of the family that the models were trained for, and of others. Every x is judged by one rule, whatever
its method reports: |b - A x| <= rtol |b|, recomputed in float64. *Failed* counts the systems that miss; *unnoticed*
those of them that the method called converged. Time is wall time for the whole batch, the model included; methods take
turns, medians and ratios are of one run. Exit code 1: the acceptance figure, the last table, misses its goal.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import command
from benchmarks.peers import LEARNED, Method, Outcome, classical, learned
from nlaformer import problems
from nlaformer.console import Sheet
from nlaformer.learn.models import load_solver
from nlaformer.solvers.proposers import iterations_per_call

TOLERANCES = (1e-3, 1e-6, 1e-9, 1e-12)
MODELS = ("cg-accelerated", "pcg-accelerated")
BUDGET = 2.0  # seconds; what has taken longer is not timed again
GOAL = 0.5  # products outside the model over the iterations of CG, at most
SEED = 20_251_115  # of the systems; training draws from other streams
ACCEPTANCE_RTOL = 1e-6
HOW = (
    "Iterations/products with A, means, to each relative residual (PyAMG's cycles apply A too, uncounted); calls of "
    "the model, wall time with the model and its ratio to CG's, all to 1e-06; systems that missed, of all four "
    "tolerances together (in brackets: without the method saying so)."
)


@dataclass(frozen=True)
class Case:
    """A family of systems; ``trained_for`` where the bundled models were trained on it."""

    label: str
    family: problems.Family
    trained_for: bool = False


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    cases: tuple[Case, ...]
    models: tuple[str, ...]
    systems: int
    rounds: int  # in which a method is timed, unless it is slow
    accepted: int  # systems of the acceptance figure


@dataclass(frozen=True)
class NormalRightHandSides(problems.SPD):
    """The paper's matrices with standard normal b, which is what the command line draws; in training b = A x."""

    def systems(self, draw: Any, count: int) -> problems.Systems:
        A, b = self.matrices(draw, count), draw.normal("b", count, self.n)
        return problems.Systems(A, b, torch.linalg.solve(A, b))


PAPER = Case("the paper's family, sigma 1.0, 1.2, 1.4", problems.SPD(n=20, sigma=(1.0, 1.2, 1.4)), True)
OTHERS = (
    Case("the paper's family, b normal", NormalRightHandSides(n=20, sigma=(1.0, 1.2, 1.4))),
    Case("the paper's family, sigma 1.8", problems.SPD(n=20, sigma=(1.8,))),
    Case("the paper's family, smaller", problems.SPD(n=12)),
    Case("the paper's family, larger", problems.SPD(n=40)),
    Case("Poisson in 1-D, random coefficients", problems.Poisson1D(n=20)),
    Case("RBF kernel", problems.RBFKernel(n=20)),
    Case("graph Laplacian", problems.GraphLaplacian(n=20)),
    Case("condition 1e2, random eigenvectors", problems.PrescribedSpectrum(n=20, cond=1e2)),
    Case("condition 1e6, random eigenvectors", problems.PrescribedSpectrum(n=20, cond=1e6)),
)
FULL = Plan((PAPER, *OTHERS), MODELS, systems=16, rounds=3, accepted=1024)
QUICK = Plan((PAPER, OTHERS[4]), MODELS[1:], systems=4, rounds=1, accepted=32)


@dataclass(frozen=True)
class Measurement:
    """One method on one family to one tolerance; means over the systems, median seconds for all of them."""

    label: str
    n: int
    systems: int
    trained_for: bool
    method: str
    model: str | None
    rtol: float
    installed: bool
    iterations: float | None = None
    matvecs: float | None = None
    applications: float | None = None
    loops: float | None = None
    failed: int | None = None
    unnoticed: int | None = None
    seconds: float | None = None
    against_cg: float | None = None  # seconds over those of CG

    @property
    def title(self) -> str:
        return f"{self.method} {self.model}" if self.model else self.method


def run(plan: Plan) -> Iterator[list[Measurement]]:
    """The measurements of one case after another; the last are those of the acceptance figure."""
    solvers = {name: load_solver(name) for name in plan.models}
    ours = [learned(method, name, solver) for name, solver in solvers.items() for method in LEARNED]
    loops = {name: iterations_per_call(solver.config) for name, solver in solvers.items()}
    for case in plan.cases:
        yield measure(case, [*classical(), *ours], plan.systems, TOLERANCES, plan.rounds, loops)
    candidates = [classical()[0], *(method for method in ours if method.name in ("flexible", "refine"))]
    yield measure(PAPER, candidates, plan.accepted, (ACCEPTANCE_RTOL,), 1, loops)


def measure(
    case: Case, methods: Sequence[Method], systems: int, tolerances: Sequence[float], rounds: int, loops: dict[str, int]
) -> list[Measurement]:
    """All methods, which take turns, to every tolerance; CG comes first."""
    A, b = (part.numpy() for part in case.family.sample(systems, SEED)[:2])
    present = [method for method in methods if method.installed]
    for method in present:
        method.solve(A[:1], b[:1], 1e-3)  # what a method does only once is not timed
    found = []
    for rtol in tolerances:
        outcomes: dict[str, Outcome] = {}
        times: dict[str, list[float]] = {method.label: [] for method in present}
        for method in present * rounds:
            if sum(times[method.label]) < BUDGET:
                begun = time.perf_counter()
                outcomes[method.label] = method.solve(A, b, rtol)
                times[method.label].append(time.perf_counter() - begun)
        for method in methods:
            head = (case.label, case.family.n, systems, case.trained_for, method.name, method.model, rtol)
            if not method.installed:
                found.append(Measurement(*head, installed=False))
                continue
            counts = _counts(outcomes[method.label], A, b, rtol)
            if method.model:
                counts["loops"] = counts["applications"] * loops[method.model]
            seconds, own = (statistics.median(times[label]) for label in (method.label, methods[0].label))
            found.append(Measurement(*head, installed=True, **counts, seconds=seconds, against_cg=seconds / own))
    return found


def _counts(outcome: Outcome, A: np.ndarray, b: np.ndarray, rtol: float) -> dict[str, Any]:
    residual = np.linalg.norm(b - np.einsum("mij,mj->mi", A, outcome.x), axis=-1)
    missed = ~(residual <= rtol * np.linalg.norm(b, axis=-1))  # NaN misses
    means = {
        name: None if (values := getattr(outcome, name)) is None else float(np.mean(values))
        for name in ("iterations", "matvecs", "applications")
    }
    return means | {"failed": int(missed.sum()), "unnoticed": int((missed & outcome.claims).sum())}


# Tables -----------------------------------------------------------------------------------------------------------


def as_data(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Plain dictionaries."""
    return [asdict(found) for found in measurements]


def verdict(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """The acceptance figure: the best learned method's products outside the model against CG's iterations."""
    cg, *ours = measurements
    best = min(ours, key=lambda found: (found.failed, found.matvecs))
    assert cg.iterations is not None and best.matvecs is not None
    ratio = best.matvecs / cg.iterations
    return {
        "method": best.method,
        "model": best.model,
        "systems": best.systems,
        "rtol": best.rtol,
        "matvecs": best.matvecs,
        "applications": best.applications,
        "loops": best.loops,
        "failed": best.failed,
        "cg_iterations": cg.iterations,
        "ratio": ratio,
        "goal": GOAL,
        "met": ratio <= GOAL and best.failed == 0,
    }


def acceptance_sheet(measurements: Sequence[Measurement]) -> Sheet:
    """The acceptance figure as a table, with the verdict in a sentence."""
    found, cg = verdict(measurements), measurements[0]
    assert cg.iterations is not None
    lines = tuple(
        (
            m.title,
            _number(m.iterations),
            _number(m.matvecs),
            f"{m.matvecs / cg.iterations:.2f}" if m.matvecs is not None else "-",
            _number(m.applications),
            _number(m.loops),
            f"{m.systems - (m.failed or 0):,}",
            _time(m.seconds),
        )
        for m in measurements
    )
    headings = ("method", "iterations", "products\nwith A", "over CG's\niterations", "model\ncalls", "its\nloops",
                "converged", "time")  # fmt: skip
    note = (
        f"Best: {found['method']} with {found['model']}, {found['matvecs']:.2f} products with A outside the model "
        f"(its certificate's included) for CG's {found['cg_iterations']:.2f} iterations, {found['ratio']:.2f} of them; "
        f"the goal, at most {GOAL} with every system converged, is {'met' if found['met'] else 'missed'}. A call of "
        "the model is not free: it loops its block that many times."
    )
    title = f"Acceptance: the paper's family, n = {cg.n}, a batch of {cg.systems:,}, rtol {cg.rtol:.0e}"
    return Sheet(title, headings, lines, note)


def sheets(families: Sequence[Sequence[Measurement]], acceptance: Sequence[Measurement]) -> list[Sheet]:
    """Every family as a table, the first with the note on how to read them, and the acceptance figure."""
    return [*(sheet(family, HOW if k == 0 else "") for k, family in enumerate(families)), acceptance_sheet(acceptance)]


def sheet(measurements: Sequence[Measurement], note: str = "") -> Sheet:
    """One family as a table, a line for each method."""
    first = measurements[0]
    rows: dict[str, list[Measurement]] = {}
    for found in measurements:
        rows.setdefault(found.title, []).append(found)
    known = "trained for" if first.trained_for else "not trained for"
    tolerances = tuple(f"to\n{m.rtol:.0e}" for m in rows[first.title])
    return Sheet(
        f"{first.label}, n = {first.n}: {first.systems} systems, {known}",
        ("method", *tolerances, "calls", "time", "x CG", "failed"),
        tuple((title, *_cells(row)) for title, row in rows.items()),
        note,
    )


def _cells(row: Sequence[Measurement]) -> tuple[str, ...]:
    if not row[0].installed:
        return (*["not installed", *["-"] * (len(row) - 1)], "-", "-", "-", "-")
    counts = (f"{_number(m.iterations)}/{_number(m.matvecs)}" if m.iterations is not None else "-" for m in row)
    at = next((m for m in row if m.rtol == ACCEPTANCE_RTOL), row[0])
    failed, unnoticed = (sum(getattr(m, name) or 0 for m in row) for name in ("failed", "unnoticed"))
    ratio = "-" if at.against_cg is None else f"{at.against_cg:.2f}" if at.against_cg < 10 else f"{at.against_cg:,.0f}"
    missed = f"{failed} ({unnoticed})" if failed else "0"
    return (*counts, _number(at.applications), _time(at.seconds), ratio, missed)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


# The command ------------------------------------------------------------------------------------------------------


def document(quick: bool) -> command.Measured:
    """Every measurement and the acceptance figure, as plain data and as tables."""
    *families, acceptance = _announced(run(QUICK if quick else FULL))
    found = {
        "measurements": as_data([measurement for family in families for measurement in family]),
        "acceptance": {"verdict": verdict(acceptance), "measurements": as_data(acceptance)},
    }
    return found, sheets(families, acceptance)


def _announced(families: Iterable[list[Measurement]]) -> Iterator[list[Measurement]]:
    """Name each family on standard error when it is done, since all of them take minutes."""
    begun = time.monotonic()
    for family in families:
        first = family[0]
        print(f"{time.monotonic() - begun:.0f} s: {first.label}, {first.systems:,} systems", file=sys.stderr)
        yield family


def main(arguments: Sequence[str] | None = None) -> int:
    quick = "two families, few systems, one model: half a minute"
    found = command.run("solve", "Work, failures and time of the solvers beside others.", quick, document, arguments)
    return 0 if found["acceptance"]["verdict"]["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
