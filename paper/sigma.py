"""Figure 7: NLAFormer against CG and Jacobi-PCG at sigma 1, 1.2 and 1.4, taught by CG and taught by PCG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from nlaformer.console import Sheet
from paper import plan
from paper.artefact import BEYOND, Artefact, Judgement, Verdict, not_yet
from paper.filing import THRESHOLDS
from paper.reading import bare, counted, fewer, iterations, length, listed, overtaken, percent, short, span
from paper.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    (teacher, sigma): plan.seeds_of(plan.accelerated(teacher, sigma=(sigma,)))
    for teacher in plan.TEACHERS
    for sigma in plan.SIGMAS
}  # three seeds at sigma 1.2, one at the others
PAPER = {teacher: plan.seeds_of(plan.paper_accelerated(teacher)) for teacher in plan.TEACHERS}
WHERE, ROBUST = "section 4.2, Figure 7", "section 4.2, Parameter Analysis"
REACHED = 0.99  # of the systems, before a mean count says anything
STRONG = 1 / 3  # of a teacher's iterations saved
LABELS = {"cg": "NLAFormer, taught by CG", "pcg": "NLAFormer, taught by PCG"}
Row = dict[str, Any]


def found(results: Results) -> dict[tuple[str, float], list[Row]]:
    """The evaluations that are there by teacher and sigma, one for each seed."""
    return {key: [record.own for record in records] for key, records in results.kinds(NAMES).items()}


def draw(results: Results) -> Figure | None:
    """One panel for each sigma."""
    from nlaformer.report.figure import band, errors, panels, reference, tidy

    if not (rows := found(results)):
        return None
    figure, grid = panels(3, width=3.5, height=3.6)
    for sigma, axes in zip(plan.SIGMAS, grid, strict=True):
        here = {teacher: seeds for (teacher, value), seeds in rows.items() if value == sigma}
        for which, teacher in enumerate(plan.TEACHERS):
            if teacher in here:
                band(axes, [own["model"] for own in here[teacher]], LABELS[teacher], which)
        if here:
            own = next(iter(here.values()))[0]
            reference(axes, own["cg"], "CG")
            reference(axes, own["pcg"], "PCG", ":")
        errors(axes)
        most = max(map(len, here.values()), default=1)
        title = f"sigma = {sigma:g}" + (f", {most} seeds" if most > 1 else "")
        tidy(axes, title, "iteration t", "squared relative error" if sigma == plan.SIGMAS[0] else "")
    next(axes for axes in grid if axes.lines).legend(frameon=False, fontsize=7.5)
    figure.suptitle(f"Mean of 512 systems, {_length(results)}", fontsize=10)
    return figure


def sheets(results: Results) -> list[Sheet]:
    """Iterations to each threshold, on the mean error and as a mean over the systems."""
    if not (rows := found(results)):
        return []
    lines: list[tuple[str, ...]] = []
    for sigma in plan.SIGMAS:
        here = [(teacher, seeds) for (teacher, value), seeds in rows.items() if value == sigma]
        if here:
            lines += [_line(f"{name.upper()}", sigma, here[0][1][:1], name) for name in ("cg", "pcg")]
            lines += [_line(LABELS[teacher], sigma, seeds, "model") for teacher, seeds in here]
    headings = ("method", "sigma", "iterations to", "mean over the systems", "error at T")
    note = (
        f"{_length(results)}. Iterations to a squared relative error of 1e-1, 1e-2, 1e-3, 1e-4: "
        "of the mean over 512 systems, and counted for each system (T + 1 where it is not reached) and averaged. Where "
        "there is more than one seed, their range."
    )
    return [Sheet("NLAFormer against CG and PCG", headings, tuple(lines), note)]


def _line(label: str, sigma: float, rows: Sequence[Row], method: str) -> tuple[str, ...]:
    means = zip(*(row["counts"][method]["mean"] for row in rows), strict=True)
    counts = " ".join("..".join(dict.fromkeys(f"{count:.1f}" for count in (min(seeds), max(seeds)))) for seeds in means)
    curves = [row[method] for row in rows]
    return label, f"{sigma:g}", counted(*curves), counts, span([curve[-1] for curve in curves])


def verdicts(results: Results) -> list[Verdict]:
    """Against CG, against PCG, one teacher against the other, and how all that depends on the systems."""
    judges = (_against_cg, _against_pcg, _teachers, _robust, _condition, _overtaken)
    return [judge(results) for judge in judges]


def _against_cg(results: Results) -> Verdict:
    claim = "Taught by CG, NLAFormer needs up to nearly 50% fewer iterations than CG."
    rows = found(results)
    if not all(("cg", sigma) in rows for sigma in plan.SIGMAS):
        return not_yet(claim, WHERE)
    savings = {sigma: _least([fewer(own["model"], own["cg"]) for own in rows["cg", sigma]]) for sigma in plan.SIGMAS}
    best = max(saving.get(THRESHOLDS[-1], 0.0) for saving in savings.values())
    text = (
        f"{_by_sigma(savings)} ({_length(results)}; fewer iterations to 1e-1, ..., 1e-4, of seeds the least; judged at "
        f"1e-4).{_from_seeds(results, 'cg')}"
    )
    judgement: Judgement = "holds more strongly" if best >= 0.55 else "holds" if best >= 0.4 else "differs"
    return Verdict(claim, WHERE, text, judgement)


def _against_pcg(results: Results) -> Verdict:
    claim = "PCG requires more than 50% additional iterations to match NLAFormer taught by PCG."
    rows = found(results)
    if not all(("pcg", sigma) in rows for sigma in plan.SIGMAS):
        return not_yet(claim, WHERE)
    more = {sigma: _least([_additional(own) for own in rows["pcg", sigma]]) for sigma in plan.SIGMAS}
    shares = [share for row in more.values() for share in row.values()]
    above = sum(share > 0.5 for share in shares)
    text = (
        f"Additional iterations of PCG: {_by_sigma(more)} ({_length(results)}; to 1e-1, ..., 1e-4, of seeds the "
        f"least); {above} of {len(shares)} above 50%.{_from_seeds(results, 'pcg')}"
    )
    judgement: Judgement = "holds" if shares and above == len(shares) else "differs"
    return Verdict(claim, WHERE, text, judgement)


def _additional(own: Row) -> dict[float, float]:
    """By threshold, the share of iterations that PCG needs beyond its pupil's."""
    counts = {bound: (iterations(own["model"], bound), iterations(own["pcg"], bound)) for bound in THRESHOLDS}
    # Where PCG gets and its pupil never does, PCG needs none of its iterations to match it.
    return {bound: pcg / ours - 1 if ours else -1.0 for bound, (ours, pcg) in counts.items() if pcg}


def _least(shares: Sequence[dict[float, float]]) -> dict[float, float]:
    """By threshold, the least of several seeds, where all of them have one."""
    return {bound: min(seed[bound] for seed in shares) for bound in shares[0] if all(bound in seed for seed in shares)}


def _teachers(results: Results) -> Verdict:
    """Counted system by system, and judged at 1e-3 and 1e-4: to 1e-1 and 1e-2 both need one or two iterations."""
    claim = "Taught by PCG, NLAFormer needs about 30% fewer iterations than taught by CG."
    rows = found(results)
    if len(rows) < len(NAMES):
        return not_yet(claim, WHERE)
    savings: dict[float, list[float]] = {bound: [] for bound in THRESHOLDS}
    for sigma in plan.SIGMAS:
        pcg, cg = ([own["counts"]["model"] for own in rows[teacher, sigma]] for teacher in ("pcg", "cg"))
        for k, bound in enumerate(THRESHOLDS):
            # A system that PCG's pupil does not solve counts with T + 1 iterations.
            if min(seed["reached"][k] for seed in cg) > REACHED:
                theirs, ours = (fmean(seed["mean"][k] for seed in seeds) for seeds in (cg, pcg))
                savings[bound].append(1 - ours / theirs)
    averages = [fmean(shares) if shares else 0.0 for shares in savings.values()]
    judged = [share for bound in THRESHOLDS[2:] for share in savings[bound]]
    average = fmean(judged) if judged else 0.0
    said = [f"to {bare(bound)} {', '.join(map(percent, shares)) or '-'}" for bound, shares in savings.items()]
    text = (
        f"Fewer iterations, counted system by system, at sigma 1, 1.2 and 1.4: {'; '.join(said)}. To 1e-3 and 1e-4, by "
        f"which it is judged, {percent(average)} on average; to 1e-1 and 1e-2 both need one or two iterations, and "
        f"with these it is {percent(fmean(averages))} ({_length(results)})."
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
        every = [rows[teacher, sigma] for sigma in plan.SIGMAS]
        counts = [f"{counted(*(own['model'] for own in seeds))} for {counted(seeds[0][teacher])}" for seeds in every]
        parts.append(f"taught by {teacher.upper()} {listed(counts)}")
        savings = [fewer(own["model"], own[teacher]) for seeds in every for own in seeds]
        least += [min(saving.values()) if len(saving) == len(THRESHOLDS) else 0.0 for saving in savings]
    text = (
        f"Iterations to 1e-1 ... 1e-4 for those of its teacher, at sigma 1, 1.2 and 1.4: {'; '.join(parts)}. "
        f"Everywhere at least {percent(min(least))} fewer ({_length(results)}; a model for each sigma)."
    )
    return Verdict(claim, ROBUST, text, "holds" if min(least) >= STRONG else "differs")


def _condition(results: Results) -> Verdict:
    """How the iterations grow from the best conditioned quarter of the systems to the worst: in number, in share."""
    claim = "CG's iteration count varies strongly with the conditioning of the matrix, NLAFormer's does not."
    rows = found(results)
    if not all(("cg", sigma) in rows for sigma in plan.SIGMAS):
        return not_yet(claim, ROBUST)
    parts: list[str] = []
    growths: dict[str, list[tuple[float, float]]] = {"cg": [], "model": []}
    for sigma in plan.SIGMAS:
        seeds = rows["cg", sigma]
        for method in growths:
            growths[method] += [pair for own in seeds for pair in _growth(own["counts"], method)]
        said = {method: ", ".join(percent(share) for _, share in _growth(seeds[0]["counts"], method))
                for method in growths}  # fmt: skip
        condition = f"condition {seeds[0]['condition'][0]:.0f} to {seeds[0]['condition'][-1]:.0f}"
        parts.append(f"sigma {sigma:g} ({condition}): CG {said['cg']}, NLAFormer {said['model']}")
    if not growths["model"]:
        return Verdict(claim, ROBUST, f"It gets to none of the thresholds ({_length(results)}).", "differs")
    more, share = ({method: fmean(pair[k] for pair in pairs) for method, pairs in growths.items()} for k in (0, 1))
    text = (
        "From the best conditioned quarter of the systems to the worst, mean iterations to 1e-1, ..., 1e-4 grow by: "
        f"{'; '.join(parts)}. On average CG {percent(share['cg'])}, NLAFormer {percent(share['model'])}; in iterations "
        f"{short(more['cg'])} and {short(more['model'])}, for it makes fewer ({_length(results)})."
    )
    steadier = [growth["model"] <= 0.5 * growth["cg"] for growth in (more, share)]
    judgement: Judgement = "not reproducible as stated" if any(steadier) else "differs"
    return Verdict(claim, ROBUST, text, "holds" if all(steadier) else judgement)


def _overtaken(results: Results) -> Verdict:
    """The iterate from which on the teacher is ahead of its pupil."""
    claim = "NLAFormer stays ahead of its teacher however many iterations are made (the paper does not say)."
    rows = found(results)
    if len(rows) < len(NAMES):
        return not_yet(claim, BEYOND)
    passed = {key: [overtaken(own["model"], own[key[0]]) for own in seeds] for key, seeds in rows.items()}
    parts = [
        f"{teacher.upper()} overtakes at t = "
        + listed(["..".join(dict.fromkeys(str(t or "-") for t in _ends(passed[teacher, s]))) for s in plan.SIGMAS])
        + ", and its pupil comes down to "
        + listed([span([min(own["model"]) for own in rows[teacher, sigma]]) for sigma in plan.SIGMAS])
        for teacher in plan.TEACHERS
    ]
    text = f"At sigma 1, 1.2 and 1.4 {'; '.join(parts)} ({_length(results)})."
    return Verdict(claim, BEYOND, text, "differs" if any(map(any, passed.values())) else "holds")


def _ends(times: Sequence[int | None]) -> list[int | None]:
    """The earliest time and the latest, None being never."""
    ordered = sorted(times, key=lambda t: math.inf if t is None else t)
    return [ordered[0], ordered[-1]]


def _growth(counts: Row, method: str) -> list[tuple[float, float]]:
    """From the first quarter to the last, in number and in share; by threshold, where nearly all systems get there."""
    quarters = counts[method]["by_condition"]
    reached = [min(both) > REACHED for both in zip(counts["cg"]["reached"], counts["model"]["reached"], strict=True)]
    return [
        (worst - best, worst / best - 1)
        for best, worst, there in zip(quarters[0], quarters[-1], reached, strict=True)
        if there and best > 0
    ]


def _by_sigma(shares: dict[float, dict[float, float]]) -> str:
    return "; ".join(
        f"sigma {sigma:g}: {', '.join(percent(row[bound]) if bound in row else '-' for bound in THRESHOLDS)}"
        for sigma, row in shares.items()
    )


def _from_seeds(results: Results, teacher: str) -> str:
    """What single seeds come to at sigma 1.2, with our loss and with the paper's: sentences."""
    said = ""
    kinds = {"Our loss": NAMES[teacher, 1.2], "The paper's": PAPER[teacher]}
    for kind, names in kinds.items():
        if rows := [record.own for record in results.together(names).values()]:
            seeds = f"{len(rows)} seeds" if len(rows) > 1 else "one seed"
            counts = f"{counted(*(row['model'] for row in rows))} for {counted(rows[0][teacher])}"
            said += f" {kind} at sigma 1.2, {seeds}: {counts}."
    return said


def _length(results: Results) -> str:
    records = results.kinds(NAMES)
    return length(records)


ARTEFACT = Artefact(
    name="fig-sigma",
    title="NLAFormer against CG and PCG at sigma 1, 1.2 and 1.4",
    paper="Figure 7",
    runs=tuple(name for names in (*NAMES.values(), *PAPER.values()) for name in names),
    draw=draw,
    sheets=sheets,
    verdicts=verdicts,
)
