"""Figure 5: how closely result and joint supervision follow CG, in its iterates (a) and its r and d (b)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nlaformer.console import Sheet
from paper import plan
from paper.artefact import Artefact, Verdict, not_yet
from paper.filing import THRESHOLDS
from paper.reading import counted, iterations, length, short, span
from paper.results import Record, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: dict[str, tuple[str, ...]] = {
    "result": plan.seeds_of(plan.imitation()),
    "joint": plan.seeds_of(plan.joint()),
    "result, our recipe": plan.seeds_of(plan.our_imitation()),
}
RUNS = tuple(name for names in KINDS.values() for name in names)
A, B = "section 4.1, Figure 5a", "section 4.1, Figure 5b"


def draw_error(results: Results) -> Figure | None:
    """The squared relative error over the iterations, and the distance from CG's own iterate."""
    from nlaformer.report.figure import band, errors, panels, reference, tidy

    if not (kinds := results.kinds(KINDS)):
        return None
    figure, (left, right) = panels(2, width=4.4, height=3.6)
    for which, (kind, records) in enumerate(kinds.items()):
        band(left, [record.own["model"] for record in records], kind, which)
        band(right, [record.own["deviation"] for record in records], kind, which)
    reference(left, next(iter(kinds.values()))[0].own["cg"], "CG")
    errors(left)
    tidy(left, f"Error of the iterates, {length(kinds)}", "iteration t", "squared relative error (mean)")
    tidy(right, "Distance from CG's own iterate", "iteration t", "|NLAF_x - x_t|^2 / |x|^2 (mean)")
    left.legend(frameon=False, fontsize=8)
    return figure


def draw_intermediate(results: Results) -> Figure | None:
    """The error of r and d over the iterations, beside that of a probe that says 0."""
    from nlaformer.report.figure import band, panels, reference, tidy

    if not (kinds := results.kinds(KINDS)):
        return None
    figure, (axes,) = panels(1, width=5.6, height=3.8)
    for which, (kind, records) in enumerate(kinds.items()):
        band(axes, [record.own["intermediate"] for record in records], kind, which)
    reference(axes, next(iter(kinds.values()))[0].own["silence"], "a probe that always says 0", ":")
    axes.set_yscale("log")
    tidy(axes, f"Error of r and d, {length(kinds)}", "iteration t", "|NLAF_in - (r_t, d_t)|^2 / n (mean)")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _seeds(runs: Sequence[Any]) -> str:
    return f"{len(runs)} seeds" if len(runs) > 1 else "one seed"


def sheets(results: Results) -> list[Sheet]:
    """A line for each run."""
    if not (kinds := results.kinds(KINDS)):
        return []
    cg = next(iter(kinds.values()))[0].own["cg"]
    lines: list[tuple[str, ...]] = [("CG itself", "", counted(cg), short(cg[-1]), "0", "0")]
    for kind, records in kinds.items():
        lines += [_line(kind, record) for record in records]
    headings = ("supervision", "seed", "iterations to", "error at T", "worst distance", "discrepancy")
    note = (
        f"{length(kinds)}. Iterations to a mean squared relative error of 1e-1, 1e-2, 1e-3, 1e-4. Worst distance: the "
        "largest mean of |x^_t - x_t|^2 / |x|^2 over t, x_t being CG's iterate."
    )
    return [Sheet("Imitation of CG", headings, tuple(lines), note)]


def _line(kind: str, record: Record) -> tuple[str, ...]:
    own = record.own
    return (kind, str(record.config.seed), counted(own["model"]), short(own["model"][-1]), short(max(own["deviation"])),
            f"{own['discrepancy']:.3f}")  # fmt: skip


def error_verdicts(results: Results) -> list[Verdict]:
    """Whether both kinds of supervision follow CG."""
    claim = "NLAFormer mimics CG's iterations under both kinds of supervision."
    kinds = results.kinds(KINDS)
    if not all(kind in kinds for kind in ("result", "joint")):
        return [not_yet(claim, A)]
    apart, parts = [], []
    judged = {kind: kinds[kind] for kind in ("result", "joint")}
    for kind, records in judged.items():
        rows = [record.own for record in records]
        apart += [_apart(own) for own in rows]
        parts.append(f"{kind} needs {counted(*(own['model'] for own in rows))}, ends at "
                     f"{span([own['model'][-1] for own in rows])} and is at most "
                     f"{short(max(max(own['deviation']) for own in rows))} from CG's iterate "
                     f"({_seeds(rows)})")  # fmt: skip
    cg = judged["joint"][0].own["cg"]
    text = (
        f"To 1e-1 ... 1e-4 CG needs {counted(cg)} iterations, and ends at {short(cg[-1])}; "
        f"{'; '.join(parts)} ({length(judged)})."
    )
    return [Verdict(claim, A, text, "holds" if all(gap is not None and gap <= 1 for gap in apart) else "differs")]


def _apart(own: dict[str, Any]) -> int | None:
    """The largest difference between the model's and CG's iterations to a threshold; None if one is not reached."""
    gaps = []
    for bound in THRESHOLDS:
        theirs, ours = iterations(own["cg"], bound), iterations(own["model"], bound)
        if theirs is not None:
            if ours is None:
                return None
            gaps.append(abs(ours - theirs))
    return max(gaps, default=0)


def intermediate_verdicts(results: Results) -> list[Verdict]:
    """Whether joint supervision brings r and d closer, iteration by iteration."""
    claim = "Joint supervision significantly enhances the alignment with CG's r and d."
    kinds = results.kinds(KINDS)
    if not all(kind in kinds for kind in ("result", "joint")):
        return [not_yet(claim, B)]
    judged = {kind: kinds[kind] for kind in ("result", "joint")}
    # By iterate, the seeds' errors; joint is closer where the worst of its seeds is closer than the best of the others.
    result, joint = (
        list(zip(*(record.own["intermediate"] for record in records), strict=True)) for records in judged.values()
    )
    silent = kinds["joint"][0].own["silence"]
    better = sum(max(ours) < min(other) for ours, other in zip(joint, result, strict=True))
    seen = sum(max(ours) < nothing for ours, nothing in zip(joint, silent, strict=True))
    middle = len(joint) // 2
    text = (
        f"Joint is closer at {better} of {len(joint)} iterates, from every seed; at t = 1, 2, {middle}: "
        + ", ".join(f"{span(joint[t])} for {span(result[t])}" for t in (1, 2, middle))
        + f". It beats a probe that says 0 at {seen} of them ({length(judged)}; {_seeds(joint[0])})."
    )
    return [Verdict(claim, B, text, "holds" if better >= 0.9 * len(joint) else "differs")]


ERROR = Artefact(
    name="fig-supervision",
    title="Squared relative error per iteration, result and joint supervision against CG",
    paper="Figure 5a",
    runs=RUNS,
    draw=draw_error,
    sheets=sheets,
    verdicts=error_verdicts,
)
INTERMEDIATE = Artefact(
    name="fig-intermediate",
    title="Error of the intermediate variables per iteration",
    paper="Figure 5b",
    runs=RUNS,
    draw=draw_intermediate,
    verdicts=intermediate_verdicts,
)
