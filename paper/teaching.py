"""What the teacher contributes, on fresh seeds: fig-teacher, for note.md and H9 to H11 of claims.md.

The minimizer of the loss "step + lambda solution" is ahead of its teacher by (1 + lambda)^2 at every iterate, whoever
the teacher is. Steepest descent, the wrong teacher of protocol.md, is so slow that its pupils meet no floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from nlaformer.console import Sheet
from nlaformer.learn.evaluate import squared_relative_errors
from nlaformer.report.figure import curve, panels, reference, tidy
from paper import plan
from paper.curves import Curve, band, geometric_mean, span
from paper.hypotheses import DESCENT
from paper.quantities import crossing, errors, interval, lead, mean_error, typical
from paper.results import Record, Results
from paper.run import TEST_COUNT, TEST_SEED

FILE = "steepest-descent"
_WRONG, _ROTATED = "lambda = 10, steepest descent", "lambda = 10, rotated"
_KINDS = {f"lambda = {weight}": f"cg-accelerated-lambda{weight}" for weight in (1, 7, 10, 13, 30)}
_KINDS |= {"solution only": "solution-only", _WRONG: DESCENT, _ROTATED: "cg-accelerated-lambda10-rotated"}
_DRAWN = ("lambda = 1", "lambda = 10", "lambda = 30", "solution only")
RUNS = tuple(name for kind in _KINDS.values() for name in plan.confirmatory_kinds()[kind])


def measure(results: Results, small: bool) -> None:
    """The mean errors of steepest descent on the test systems of protocol.md."""
    run = plan.confirmatory()[f"{DESCENT}-seed100"]
    config = (plan.small(run) if small else run).config
    A, b, x = config.make_family().sample(64 if small else TEST_COUNT, TEST_SEED)
    iterates, _ = config.make_teacher()(A, b, config.T)
    means = squared_relative_errors(iterates, x).mean(0).tolist()
    results.write(FILE, {"command": "python -m paper run fig-teacher", "count": len(x), "mean": means})


def numbers(results: Results) -> dict[str, Any]:
    """How far steepest descent's pupils are ahead of it, over (1 + lambda)^2: over t = 2..6, and at single iterates."""
    records, teacher = _seeds(results, _WRONG), _steepest_descent(results)
    single = [geometric_mean([e / errors(r)[t] / _law(r) for r in records]) for t, e in enumerate(teacher)]
    return {
        "end": teacher[-1],
        "lead": interval(_leads_over_law(records, teacher)),
        "first": single[1],
        "iterates": [min(single[2:]), max(single[2:])],
    }


def _seeds(results: Results, label: str) -> list[Record]:
    return [results.run(name) for name in plan.confirmatory_kinds()[_KINDS[label]]]


def _steepest_descent(results: Results) -> list[float]:
    return list(results.document(FILE)["mean"])


def _law(record: Record) -> float:
    return (1 + record.config.lambda_) ** 2


def _leads_over_law(records: Sequence[Record], teacher: Curve) -> list[float]:
    """The lead of each run over its teacher, a geometric mean over t = 2..6, divided by (1 + lambda)^2."""
    return [typical(teacher) / typical(errors(record)) / _law(record) for record in records]


def figure(results: Results) -> Figure:
    """CG, and steepest descent, beside the models that they taught; rotated systems, means and medians."""
    drawn, (axes, wrong, rotated) = panels(3, width=3.6, height=3.6)
    for k, label in enumerate(_DRAWN):
        records = _seeds(results, label)
        band(axes, [record.own["model"] for record in records], label, k)
    reference(axes, records[0].own["cg"], "CG")
    tidy(axes, "Taught by CG and shown the solution\nmeans of the systems, one seed, the range", "iteration")
    records, teacher = _seeds(results, _WRONG), _steepest_descent(results)
    band(wrong, [record.own["model"] for record in records], "lambda = 10", 1)
    reference(wrong, teacher, "steepest descent")
    reference(wrong, [error / _law(records[0]) for error in teacher], "its error / (1 + lambda)^2", ":")
    tidy(wrong, "Taught by steepest descent\nmeans of the systems, one seed, the range", "iteration")
    for k, record in enumerate(_seeds(results, _ROTATED)):
        curve(rotated, record.own["median"]["model"], f"seed {record.config.seed}", k)
        curve(rotated, record.own["model"], "", k, style=":")
    reference(rotated, record.own["median"]["cg"], "CG")
    tidy(rotated, "Rotated systems, lambda = 10\nmedians, and dotted the means", "iteration")
    axes.set_ylabel("squared relative error", fontsize=9)
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 50)
    for each in (axes, wrong, rotated):
        each.legend(frameon=False, fontsize=8, loc="lower left")
    return drawn


def table(results: Results) -> list[Sheet]:
    """G, the leads over CG and over the teacher, and the iterations to 1e-4, with their intervals."""
    lines = []
    for label in _KINDS:
        records = _seeds(results, label)
        teacher = _steepest_descent(results) if label == _WRONG else errors(records[0], "cg")
        alone = records[0].config.supervision == "solution"
        lines.append((
            label,
            str(len(records)),
            _interval([mean_error(record) for record in records]),
            _interval([lead(record) for record in records]),
            "-" if alone else _interval(_leads_over_law(records, teacher)),
            _interval([crossing(errors(record), 1e-4) for record in records]),
        ))  # fmt: skip
    titles = (
        "taught by CG, unless said",
        "seeds",
        "G",
        "lead over CG",
        "over its teacher / (1 + lambda)^2",
        "tau(1e-4)",
    )
    single = span(numbers(results)["iterates"], ".3g")
    note = (
        "Intervals of protocol.md; where 1e-4 is not reached, T = 20 counts. Steepest descent's pupils are ahead of it "
        f"by {single} times (1 + lambda)^2 at each iterate from t = 2 to T (means over the seeds)."
    )
    return [Sheet("The lead over the teacher by the weight of the solution, fresh seeds", titles, tuple(lines), note)]


def _interval(values: Sequence[float]) -> str:
    return span(interval(values), ".3g")
