"""Figure 7: NLAFormer against CG and Jacobi-PCG at sigma 1, 1.2 and 1.4, taught by CG and taught by PCG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nlaformer.console import Sheet
from nlaformer.study import plan
from nlaformer.study.artefact import BEYOND, Artefact, Judgement, Verdict, not_yet
from nlaformer.study.filing import THRESHOLDS
from nlaformer.study.reading import bare, counted, fewer, iterations, length, listed, overtaken, percent, short
from nlaformer.study.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    (teacher, sigma): plan.name_of(plan.accelerated(teacher, sigma=(sigma,)))
    for teacher in plan.TEACHERS
    for sigma in plan.SIGMAS
}
PAPER = plan.name_of(plan.paper_accelerated("cg"))
SEEDS = {teacher: plan.seeds_of(plan.accelerated(teacher)) for teacher in plan.TEACHERS}
SEEDS_AT = 1.2  # the sigma at which there is more than one
WHERE, ROBUST = "section 4.2, Figure 7", "section 4.2, Parameter Analysis"
REACHED = 0.99  # of the systems, before a mean count says anything
STRONG = 1 / 3  # of a teacher's iterations saved
LABELS = {"cg": "NLAFormer, taught by CG", "pcg": "NLAFormer, taught by PCG"}


def found(results: Results) -> dict[tuple[str, float], dict[str, Any]]:
    """The evaluations that are there, by teacher and sigma."""
    return {key: record.own for key, record in results.keyed(NAMES).items()}


def draw(results: Results) -> Figure | None:
    """One panel for each sigma."""
    from nlaformer.report.figure import band, errors, panels, reference, tidy

    if not (rows := found(results)):
        return None
    figure, grid = panels(3, width=3.5, height=3.6)
    for sigma, axes in zip(plan.SIGMAS, grid, strict=True):
        here = {teacher: own for (teacher, value), own in rows.items() if value == sigma}
        seeds = 1
        for which, teacher in enumerate(plan.TEACHERS):
            if teacher in here:
                others = _others(results, teacher) if sigma == SEEDS_AT else []
                seeds = max(seeds, 1 + len(others))
                band(axes, [own["model"] for own in (here[teacher], *others)], LABELS[teacher], which)
        if here:
            own = next(iter(here.values()))
            reference(axes, own["cg"], "CG")
            reference(axes, own["pcg"], "PCG", ":")
        errors(axes)
        first = sigma == plan.SIGMAS[0]
        title = f"sigma = {sigma:g}" + (f", {seeds} seeds" if seeds > 1 else "")
        tidy(axes, title, "iteration t", "squared relative error" if first else "")
    next(axes for axes in grid if axes.lines).legend(frameon=False, fontsize=7.5)
    figure.suptitle(f"Mean of 512 systems, {_length(results)}", fontsize=10)
    return figure


def sheets(results: Results) -> list[Sheet]:
    """Iterations to each threshold, on the mean error and as a mean over the systems."""
    if not (rows := found(results)):
        return []
    lines: list[tuple[str, ...]] = []
    for sigma in plan.SIGMAS:
        here = [(teacher, own) for (teacher, value), own in rows.items() if value == sigma]
        if here:
            own = here[0][1]
            lines += [_line(f"{name.upper()}", sigma, own, name) for name in ("cg", "pcg")]
            lines += [_line(LABELS[teacher], sigma, own, "model") for teacher, own in here]
    headings = ("method", "sigma", "iterations to", "mean over the systems", "error at T")
    note = (
        f"{_length(results)}. Iterations to a squared relative error of 1e-1, 1e-2, 1e-3, 1e-4: "
        "of the mean over 512 systems, and counted for each system (T + 1 where it is not reached) and averaged."
    )
    return [Sheet("NLAFormer against CG and PCG", headings, tuple(lines), note)]


def _line(label: str, sigma: float, own: dict[str, Any], method: str) -> tuple[str, ...]:
    means = " ".join(f"{count:.1f}" for count in own["counts"][method]["mean"])
    return label, f"{sigma:g}", counted(own[method]), means, short(own[method][-1])


def verdicts(results: Results) -> list[Verdict]:
    """Against CG, against PCG, one teacher against the other, and how all that depends on the systems."""
    judges = (_against_cg, _against_pcg, _teachers, _robust, _condition, _overtaken)
    return [judge(results) for judge in judges]


def _against_cg(results: Results) -> Verdict:
    claim = "Taught by CG, NLAFormer needs up to nearly 50% fewer iterations than CG."
    rows = found(results)
    if not all(("cg", sigma) in rows for sigma in plan.SIGMAS):
        return not_yet(claim, WHERE)
    savings = {sigma: fewer(rows["cg", sigma]["model"], rows["cg", sigma]["cg"]) for sigma in plan.SIGMAS}
    best = max(saving.get(THRESHOLDS[-1], 0.0) for saving in savings.values())
    text = f"{_by_sigma(savings)} ({_length(results)}; fewer iterations to 1e-1, ..., 1e-4; judged at 1e-4)."
    text += _from_seeds(results, "cg")
    if (paper := results.run(PAPER)) is not None:
        text += f" With the paper's loss at sigma 1.2: {counted(paper.own['model'])} for {counted(paper.own['cg'])}."
    judgement: Judgement = "holds more strongly" if best >= 0.55 else "holds" if best >= 0.4 else "differs"
    return Verdict(claim, WHERE, text, judgement)


def _against_pcg(results: Results) -> Verdict:
    claim = "PCG requires more than 50% additional iterations to match NLAFormer taught by PCG."
    rows = found(results)
    if not all(("pcg", sigma) in rows for sigma in plan.SIGMAS):
        return not_yet(claim, WHERE)
    more: dict[float, dict[float, float]] = {}
    for sigma in plan.SIGMAS:
        own = rows["pcg", sigma]
        counts = {bound: (iterations(own["model"], bound), iterations(own["pcg"], bound)) for bound in THRESHOLDS}
        # Where PCG gets and its pupil never does, PCG needs none of its iterations to match it.
        more[sigma] = {bound: pcg / ours - 1 if ours else -1.0 for bound, (ours, pcg) in counts.items() if pcg}
    shares = [share for row in more.values() for share in row.values()]
    above = sum(share > 0.5 for share in shares)
    text = f"Additional iterations of PCG: {_by_sigma(more)} ({_length(results)}; to 1e-1, ..., 1e-4); {above} of " \
           f"{len(shares)} above 50%."  # fmt: skip
    text += _from_seeds(results, "pcg")
    judgement: Judgement = "holds" if shares and above == len(shares) else "differs"
    return Verdict(claim, WHERE, text, judgement)


def _teachers(results: Results) -> Verdict:
    """Counted system by system, and judged at 1e-3 and 1e-4: to 1e-1 and 1e-2 both need one or two iterations."""
    claim = "Taught by PCG, NLAFormer needs about 30% fewer iterations than taught by CG."
    rows = found(results)
    if len(rows) < len(NAMES):
        return not_yet(claim, WHERE)
    savings: dict[float, list[float]] = {bound: [] for bound in THRESHOLDS}
    for sigma in plan.SIGMAS:
        pcg, cg = (rows[teacher, sigma]["counts"]["model"] for teacher in ("pcg", "cg"))
        for k, bound in enumerate(THRESHOLDS):
            if cg["reached"][k] > REACHED:  # a system that PCG's pupil does not solve counts with T + 1 iterations
                savings[bound].append(1 - pcg["mean"][k] / cg["mean"][k])
    judged = [share for bound in THRESHOLDS[2:] for share in savings[bound]]
    average = sum(judged) / len(judged) if judged else 0.0
    said = [f"to {bare(bound)} {', '.join(map(percent, shares)) or '-'}" for bound, shares in savings.items()]
    text = (
        f"Fewer iterations, counted system by system, at sigma 1, 1.2 and 1.4: {'; '.join(said)}; to 1e-3 and 1e-4 "
        f"{percent(average)} on average, before that both need one or two iterations ({_length(results)})."
    )
    judgement: Judgement = "holds" if 0.2 <= average <= 0.4 else "holds more strongly" if average > 0.4 else "differs"
    return Verdict(claim, WHERE, text, judgement)


def _robust(results: Results) -> Verdict:
    claim = "NLAFormer maintains a strong performance at every sigma."
    rows = found(results)
    if len(rows) < len(NAMES):
        return not_yet(claim, ROBUST)
    parts, least = [], []
    for teacher in plan.TEACHERS:
        own = [rows[teacher, sigma] for sigma in plan.SIGMAS]
        counts = [f"{counted(row['model'])} for {counted(row[teacher])}" for row in own]
        parts.append(f"taught by {teacher.upper()} {listed(counts)}")
        savings = [fewer(row["model"], row[teacher]) for row in own]
        least += [min(saving.values()) if len(saving) == len(THRESHOLDS) else 0.0 for saving in savings]
    text = (
        f"Iterations to 1e-1 ... 1e-4 for those of its teacher, at sigma 1, 1.2 and 1.4: {'; '.join(parts)}. "
        f"Everywhere at least {percent(min(least))} fewer ({_length(results)}; a model for each sigma)."
    )
    return Verdict(claim, ROBUST, text, "holds" if min(least) >= STRONG else "differs")


def _condition(results: Results) -> Verdict:
    """By how much the iterations grow from the best conditioned quarter of the systems to the worst."""
    claim = "CG's iteration count varies strongly with the conditioning of the matrix, NLAFormer's does not."
    rows = found(results)
    if not all(("cg", sigma) in rows for sigma in plan.SIGMAS):
        return not_yet(claim, ROBUST)
    parts: list[str] = []
    growths: dict[str, list[float]] = {"cg": [], "model": []}
    for sigma in plan.SIGMAS:
        own = rows["cg", sigma]
        here = {method: _growth(own["counts"], method) for method in growths}
        for method, growth in here.items():
            growths[method] += growth
        said = {method: ", ".join(percent(share) for share in growth) for method, growth in here.items()}
        condition = f"condition {own['condition'][0]:.0f} to {own['condition'][-1]:.0f}"
        parts.append(f"sigma {sigma:g} ({condition}): CG {said['cg']}, NLAFormer {said['model']}")
    if not growths["model"]:
        return Verdict(claim, ROBUST, f"It gets to none of the thresholds ({_length(results)}).", "differs")
    means = {method: sum(growth) / len(growth) for method, growth in growths.items()}
    text = (
        "From the best conditioned quarter of the systems to the worst, mean iterations to 1e-1, ..., 1e-4 grow by: "
        f"{'; '.join(parts)}. On average CG {percent(means['cg'])}, NLAFormer {percent(means['model'])} "
        f"({_length(results)})."
    )
    return Verdict(claim, ROBUST, text, "holds" if means["model"] <= 0.5 * means["cg"] else "differs")


def _overtaken(results: Results) -> Verdict:
    """The iterate from which on the teacher is ahead of its pupil."""
    claim = "NLAFormer stays ahead of its teacher however many iterations are made (the paper does not say)."
    rows = found(results)
    if len(rows) < len(NAMES):
        return not_yet(claim, BEYOND)
    passed = {key: overtaken(own["model"], own[key[0]]) for key, own in rows.items()}
    parts = [
        f"{teacher.upper()} overtakes at t = "
        + listed([str(passed[teacher, sigma] or "-") for sigma in plan.SIGMAS])
        + f", where its pupil stays near {listed([short(min(rows[teacher, sigma]['model'])) for sigma in plan.SIGMAS])}"
        for teacher in plan.TEACHERS
    ]
    text = f"At sigma 1, 1.2 and 1.4 {'; '.join(parts)} ({_length(results)})."
    return Verdict(claim, BEYOND, text, "differs" if any(passed.values()) else "holds")


def _growth(counts: dict[str, Any], method: str) -> list[float]:
    """The growth from the first quarter to the last, by the thresholds that nearly all systems get to with both."""
    quarters = counts[method]["by_condition"]
    reached = [min(both) > REACHED for both in zip(counts["cg"]["reached"], counts["model"]["reached"], strict=True)]
    return [worst / best - 1 for best, worst, there in zip(quarters[0], quarters[-1], reached, strict=True) if there]


def _by_sigma(shares: dict[float, dict[float, float]]) -> str:
    return "; ".join(
        f"sigma {sigma:g}: {', '.join(percent(row[bound]) if bound in row else '-' for bound in THRESHOLDS)}"
        for sigma, row in shares.items()
    )


def _from_seeds(results: Results, teacher: str) -> str:
    """What all seeds come to where there are others than the first: a sentence."""
    if not (others := _others(results, teacher)):
        return ""
    rows = [found(results)[teacher, SEEDS_AT], *others]
    counts = f"{counted(*(row['model'] for row in rows))} for {counted(rows[0][teacher])}"
    return f" From {len(rows)} seeds at sigma {SEEDS_AT:g}: {counts}."


def _others(results: Results, teacher: str) -> list[dict[str, Any]]:
    """The evaluations of the seeds beside the one in every panel."""
    others = SEEDS[teacher][1:]
    records = results.together((*NAMES.values(), *others))
    return [records[name].own for name in others if name in records]


def _length(results: Results) -> str:
    return length(results.together(NAMES.values()))


ARTEFACT = Artefact(
    name="fig-sigma",
    title="NLAFormer against CG and PCG at sigma 1, 1.2 and 1.4",
    paper="Figure 7",
    runs=tuple(dict.fromkeys((*NAMES.values(), *SEEDS["cg"], *SEEDS["pcg"], PAPER))),
    draw=draw,
    sheets=sheets,
    verdicts=verdicts,
)
