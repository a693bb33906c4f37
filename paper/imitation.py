"""Section 4.1 and Table 3: how closely result and joint supervision follow CG, in its iterates and in its r and d.

The paper's discrepancy of the intermediate variables, 1/n sum_{t=2}^n 1/(n-1) ||NLAF_in^t - (r_t, d_t)||^2, starts at
46 and ends at 0.19 to 0.51. Its start depends on the probe's initial weights: ours are zero, and the zero predictor
scores what (r_t, d_t) themselves weigh, 0.27 at sigma 1.2, for they vanish as CG converges. So the tables also give the
start of an untrained model whose probe has PyTorch's usual random weights, and the score of the zero predictor.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure

from nlaformer.console import Sheet
from nlaformer.learn.evaluate import SEED, judge, trial
from nlaformer.learn.model import initial
from nlaformer.learn.optimizer import learning_rate
from nlaformer.problems import SPD
from nlaformer.report.figure import CURVES, INK, MARKERS, panels, reference, tidy
from paper import plan
from paper.curves import band, counted, error_scale, length, short, span
from paper.quantities import silent_discrepancy
from paper.results import Record, Results

KINDS: dict[str, tuple[str, ...]] = {
    "result": plan.seeds_of(plan.imitation()),
    "joint": plan.seeds_of(plan.joint()),
    "result, our recipe": plan.seeds_of(plan.our_imitation()),
}
FIRST_SETTING = {kind: KINDS[kind] for kind in ("joint", "result")}
SECOND_SETTING = {
    "step + solution": plan.seeds_of(plan.accelerated("cg")),
    "step + solution, our recipe": plan.seeds_of(plan.our_accelerated("cg")),
}
UNTRAINED = "untrained"
RATES = {
    "ours: warm-up, then a cosine": plan.name_of(plan.joint()),
    "constant after the warm-up": plan.name_of(plan.joint(lr=1e-3, final_lr=1.0)),
}
ANNEALED = {name: f"bundled-{name}-150k" for name in ("cg-imitation", "cg-accelerated", "pcg-accelerated")}
_LATE = 2 / 3  # of a run: from here on its learning rate falls a hundredfold


# --- Figure 5 ---


def error_figure(results: Results) -> Figure:
    """The squared relative error over the iterations, and the distance from CG's own iterate."""
    kinds = results.kinds(KINDS)
    figure, (left, right) = panels(2, width=4.6, height=3.7, share=False)
    for which, (kind, records) in enumerate(kinds.items()):
        band(left, [record.own["model"] for record in records], kind, which)
        band(right, [record.own["deviation"] for record in records], kind, which)
    everyone = [record.own for records in kinds.values() for record in records]
    cg = everyone[0]["cg"]
    reference(left, cg, "CG")
    error_scale(left, lowest=1e-7)
    together = next((t for t in range(len(cg)) for own in everyone if own["model"][t] > 2 * cg[t]), len(cg)) - 1
    ends, farthest = [own["model"][-1] for own in everyone], max(max(own["deviation"]) for own in everyone)
    tidy(left, f"CG's error up to t = {together}, {span(ends, '.1g')} in the end", "iteration t",
         "squared relative error (mean)")  # fmt: skip
    right.set(yscale="log", ylim=(5e-6, 2e-2))
    right.minorticks_off()
    tidy(right, f"At most {short(farthest, '.1g')} of |x|^2 from CG's own iterate", "iteration t",
         "squared distance / |x|^2 (mean)")  # fmt: skip
    left.legend(frameon=False, fontsize=8)
    figure.suptitle(f"Result and joint supervision, {length(*kinds.values())}", fontsize=10)
    return figure


def intermediate_figure(results: Results) -> Figure:
    """The error of r and d over the iterations, and that of the zero predictor."""
    kinds = results.kinds(KINDS)
    figure, (axes,) = panels(1, width=6.4, height=3.8)
    for which, (kind, records) in enumerate(kinds.items()):
        band(axes, [record.own["intermediate"] for record in records], kind, which)
    reference(axes, kinds["result"][0].own["silence"], "zero predictor", ":")
    axes.set_yscale("log")
    ends = ", ".join(f"{kind} {short(fmean(r.own['intermediate'][-1] for r in kinds[kind]))}" for kind in FIRST_SETTING)
    title = f"r and d at the end: {ends}; zero predictor {short(kinds['result'][0].own['silence'][-1])}"
    tidy(axes, f"{title}\n{length(*kinds.values())}", "iteration t", "|NLAF_in - (r_t, d_t)|^2 / n (mean)")
    axes.legend(frameon=False, fontsize=8)
    return figure


def imitation_table(results: Results) -> list[Sheet]:
    """A line for each run."""
    kinds = results.kinds(KINDS)
    cg = kinds["result"][0].own["cg"]
    lines: list[tuple[str, ...]] = [("CG itself", "", counted(cg), short(cg[-1]), "0", "0")]
    for kind, records in kinds.items():
        for record in records:
            own = record.own
            lines.append((kind, str(record.config.seed), counted(own["model"]), short(own["model"][-1]),
                          short(max(own["deviation"])), f"{own['discrepancy']:.3f}"))  # fmt: skip
    headings = ("supervision", "seed", "iterations to", "error at T", "worst distance", "discrepancy")
    note = (
        f"{length(*kinds.values())}. Iterations to a mean squared relative error of 1e-1, 1e-2, 1e-3, 1e-4. "
        "Worst distance: the largest mean of |x^_t - x_t|^2 / |x|^2 over t, with CG's iterate x_t."
    )
    return [Sheet("Imitation of CG", headings, tuple(lines), note)]


# --- Tables 2 and 3 ---


def measure_untrained(small: bool) -> dict[str, Any]:
    """The discrepancy of untrained models whose probe has the weights of a new torch.nn.Linear."""
    count, found = 16 if small else 512, []
    config = plan.small(plan.planned(KINDS["joint"][0])).config if small else plan.joint()
    given = trial("", SPD(n=config.n).sample(count, SEED), config.T)
    for seed in range(5):
        solver = initial(config.replace(seed=seed))
        bound, generator = config.d**-0.5, torch.Generator().manual_seed(seed)
        weight = torch.empty_like(solver.probe_rd.weight).uniform_(-bound, bound, generator=generator)
        solver.probe_rd.weight.data.copy_(weight)
        found.append(judge(solver, given).discrepancy)
    return {"config": config.to_json(), "count": count, "discrepancy": found}


def discrepancy_figure(results: Results) -> Figure:
    """The discrepancy during training, and that of the zero predictor."""
    names = {kind: seeds[0] for kind, seeds in (FIRST_SETTING | SECOND_SETTING).items() if kind in plan.PRINTED}
    records = results.runs(names)
    figure, (axes,) = panels(1, width=6.4, height=3.8)
    for which, (kind, record) in enumerate(records.items()):
        history, color = record.history, CURVES[which]
        axes.plot(history["step"], history["discrepancy"], color=color, marker=MARKERS[which], markersize=3, label=kind)
        axes.axhline(plan.PRINTED[kind][1], color=color, linewidth=0.8, linestyle=(0, (1, 3)))
    nothing = silent_discrepancy(records["joint"])
    axes.axhline(nothing, color=INK, linestyle=":", label="zero predictor")
    axes.set_yscale("log")
    ends = ", ".join(f"{kind} {short(record.own['discrepancy'])}" for kind, record in records.items())
    title = f"In the end {ends}; zero predictor {short(nothing)}\nthinly dotted: the paper's, after 100k"
    tidy(axes, title, "training step", "discrepancy of (r, d)")
    axes.legend(frameon=False, fontsize=8)
    return figure


def discrepancy_table(results: Results, setting: dict[str, tuple[str, ...]]) -> list[Sheet]:
    """Start, end and percentage, and the paper's."""
    untrained = results.document(UNTRAINED)["discrepancy"]
    start, kinds, lines = fmean(untrained), results.kinds(setting), []
    for kind, records in kinds.items():
        theirs_start, theirs = plan.PRINTED[kind.partition(",")[0]]
        ours = [record.own["discrepancy"] for record in records]
        printed = f"{theirs_start:.2f} to {theirs:.4f}, {1 - theirs / theirs_start:.1%}"
        lines.append((kind, str(len(records)), short(start), span(ours, ".4f"), f"{1 - max(ours) / start:.1%}",
                      f"{silent_discrepancy(records[0]):.4f}", printed))  # fmt: skip
    headings = ("supervision", "seeds", "start, random probe", "trained", "falls by", "zero predictor", "the paper's")
    note = (
        f"{length(*kinds.values())}. The fall is that of the seed that ends highest. The zero predictor: r_t = d_t = 0."
    )
    return [Sheet("Discrepancy of (r, d)", headings, tuple(lines), note)]


# --- Figure 4a ---


def learning_rate_figure(results: Results) -> Figure:
    """The learning rates of the runs, functions of config and step; and the error as the rate falls."""
    found, annealed = results.runs(RATES), results.runs(ANNEALED)
    figure, (left, right) = panels(2, width=4.6, share=False)
    for which, (label, record) in enumerate(found.items()):
        config = record.config
        steps = sorted({*range(0, config.steps, max(config.steps // 200, 1)), config.warmup, config.steps - 1})
        left.plot(steps, [learning_rate(config, step) for step in steps], color=CURVES[which], label=label)
    tidy(left, f"Learning rate, {length(found.values())}", "training step", "learning rate of Adam")
    for which, (name, record) in enumerate(annealed.items()):
        rates, ends = zip(*late_errors(record), strict=True)
        right.loglog(rates, ends, color=CURVES[which], marker=MARKERS[which], linestyle="none", label=name)
    last = [late_errors(record)[-1][1] for record in annealed.values() if late_errors(record)]
    title = f"150k steps end at {span(last)}" if last else "The last third of 150k steps"
    tidy(right, title, "learning rate of Adam", "error at T")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)
    return figure


def late_errors(record: Record) -> list[tuple[float, float]]:
    """Learning rate and mean squared error of the last iterate at the validations of the last third of a run."""
    config, validations = record.config, zip(record.history["step"], record.history["final_error"], strict=True)
    return [
        (learning_rate(config, step - 1), error)
        for step, error in validations
        if step >= _LATE * config.steps and math.isfinite(error)
    ]
