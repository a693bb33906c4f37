"""Tables 2 and 3: the discrepancy of the intermediate variables before and after training.

The paper's discrepancy, 1/n sum_{t=2}^n 1/(n-1) ||NLAF_in^t - (r_t, d_t)||^2, starts at 46 and ends at 0.19 to 0.51.
Where it starts is a matter of the probe's initial weights: ours are zero, and a probe that says nothing scores what
(r_t, d_t) themselves weigh, 0.27 at sigma 1.2, for they vanish as CG converges. So beside the paper's percentage we
give the start of an untrained model whose probe has PyTorch's usual random weights, and the score of silence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from nlaformer.console import Sheet
from paper import plan
from paper.artefact import Artefact, Verdict, not_yet
from paper.reading import Luck, length, listed, percent, positive, short, span
from paper.results import Record, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = "untrained.json"
SEEDS = {
    "joint": plan.seeds_of(plan.joint()),
    "result": plan.seeds_of(plan.imitation()),
    "step + solution": plan.seeds_of(plan.paper_accelerated("cg")),
    "step + solution, our recipe": plan.seeds_of(plan.accelerated("cg")),
}
FIRST_KINDS, SECOND_KINDS = ("joint", "result"), ("step + solution", "step + solution, our recipe")
PAPER = {"joint": (46.8370, 0.1920), "result": (45.9350, 0.5058), "step + solution": (46.1199, 0.4355)}
EXPLAINED = 0.5  # of the silent probe's discrepancy, at most, where a probe is said to see (r, d)
FIRST, SECOND = "section 4.1, Table 2", "section 4.2, Table 3"


def measure(results: Results, small: bool) -> None:
    """The discrepancy of untrained models whose probe has the weights of a fresh torch.nn.Linear."""
    import torch

    from nlaformer.learn.evaluate import SEED, judge, trial
    from nlaformer.learn.model import initial
    from nlaformer.problems import SPD

    count, found = 16 if small else 512, []
    config = plan.joint()
    config = plan.small(plan.planned(plan.name_of(config))).config if small else config
    given = trial("", SPD(n=config.n).sample(count, SEED), config.T)
    for seed in range(5):
        solver = initial(config.replace(seed=seed))
        bound = config.d**-0.5
        random = torch.empty_like(solver.probe_rd.weight).uniform_(
            -bound, bound, generator=torch.Generator().manual_seed(seed)
        )
        solver.probe_rd.weight.data.copy_(random)
        found.append(judge(solver, given).discrepancy)
    document = {"command": "nlaformer reproduce table-first-setting", "config": config.to_json(), "count": count}
    results.write(FILE, document | {"discrepancy": found})


def draw(results: Results) -> Figure | None:
    """The discrepancy in the course of training, beside that of a probe that always says 0."""
    from nlaformer.report.figure import CURVES, INK, MARKERS, panels, tidy

    names = {label: SEEDS[label][0] for label in PAPER}
    records = results.together(names.values())
    if not records:
        return None
    figure, (axes,) = panels(1, width=5.6, height=3.8)
    for which, (label, name) in enumerate(names.items()):
        if name in records:
            history = records[name].history
            axes.plot(history["step"], history["discrepancy"], color=CURVES[which], marker=MARKERS[which],
                      markersize=3, label=label)  # fmt: skip
            axes.axhline(PAPER[label][1], color=CURVES[which], linewidth=0.8, linestyle=(0, (1, 3)))
    axes.axhline(silence(next(iter(records.values()))), color=INK, linestyle=":", label="a probe that always says 0")
    axes.set_yscale("log")
    tidy(axes, "Discrepancy of (r, d); thinly dotted: the paper's, after 100k", "training step", "discrepancy")
    axes.legend(frameon=False, fontsize=8)
    return figure


def silence(record: Record, first: int = 2) -> float:
    """The discrepancy of a probe that always says 0: the paper's mean over t = 2, ..., n, or over n - 1 others."""
    return _window(record, "silence", first)


def found(results: Results, kinds: Sequence[str]) -> dict[str, list[Record]]:
    """The runs that are there by kind, one for each seed."""
    return results.kinds({kind: SEEDS[kind] for kind in kinds})


def sheets(results: Results, kinds: Sequence[str], title: str) -> list[Sheet]:
    """Start, end and percentage, beside the paper's."""
    start, known = _start(results), found(results, kinds)
    if not known:
        return []
    lines = []
    for kind, records in known.items():
        theirs_start, theirs = PAPER[kind.partition(",")[0]]
        ours = _ends(records)
        fall = "-" if start is None else percent_precisely(1 - max(ours) / start)
        printed = f"{theirs_start:.2f} to {theirs:.4f}, {percent_precisely(1 - theirs / theirs_start)}"
        lines.append((kind, str(len(records)), short(start), span(ours, ".4f"), fall, f"{silence(records[0]):.4f}",
                      printed))  # fmt: skip
    headings = ("supervision", "seeds", "start, random probe", "trained", "falls by", "silent probe", "the paper's")
    note = (
        f"{length(known)}. The fall is that of the seed that ends highest. A silent probe says r_t = d_t = 0 whatever "
        "it is shown."
    )
    return [Sheet(title, headings, tuple(lines), note)]


def _ends(records: Sequence[Record]) -> list[float]:
    return [record.own["discrepancy"] for record in records]


def percent_precisely(share: float) -> str:
    """A share with one decimal.

    >>> percent_precisely(0.9959)
    '99.6%'
    """
    return f"{100 * share:.1f}%" if math.isfinite(share) else "-"


def _start(results: Results) -> float | None:
    """The mean discrepancy of untrained models with a random probe."""
    document = results.file(FILE)
    return None if document is None else sum(document["discrepancy"]) / len(document["discrepancy"])


def _falls(results: Results, claim: str, where: str, kinds: Sequence[str]) -> Verdict:
    """The percentage by which the discrepancy falls, from an untrained model with a random probe."""
    known, start = found(results, kinds), _start(results)
    if len(known) < len(kinds) or start is None:
        return not_yet(claim, where)
    parts, ends, falls = [], [], []
    for kind, records in known.items():
        (theirs_start, theirs), ours = PAPER[kind], _ends(records)
        ends.append(_no_higher(ours, theirs))
        falls.append(1 - max(ours) / start >= 1 - theirs / theirs_start - 0.005)
        fall = percent_precisely(1 - max(ours) / start) + (" or more" if len(ours) > 1 else "")
        printed = f"the paper's {theirs_start:.2f} to {theirs:.4f} is {percent_precisely(1 - theirs / theirs_start)}"
        parts.append(f"{kind} from {short(start)} to {_by_seed(ours)}, by {fall} ({printed})")
    text = f"{'; '.join(parts)} ({length(known)}; start: untrained, random probe)."
    if all(falls):
        return Verdict(claim, where, text, "holds")
    if all(ends):
        said = (
            "It ends no higher than the paper's, as far as seeds can tell; where it starts is a matter of the probe's "
            "initial weights."
        )
        return Verdict(claim, where, f"{text} {said}", "not reproducible as stated")
    return Verdict(claim, where, text, "differs")


def _no_higher(ours: Sequence[float], theirs: float) -> bool:
    """Whether a single run of theirs may be one of ours, or ends higher."""
    if not all(map(math.isfinite, ours)):
        return False
    luck = Luck(tuple(map(positive, ours)))
    return luck.mean <= theirs * (luck.factor() if len(ours) > 1 else 1.0)


def _by_seed(values: Sequence[float]) -> str:
    return listed([short(value, ".3f") for value in values])


def _aligned(results: Results, claim: str, where: str, kind: str) -> Verdict:
    """Whether the probe, without supervision of its own, sees more of (r, d) than silence does."""
    if not (known := found(results, [kind])):
        return not_yet(claim, where)
    records = known[kind]
    printed, shifted = ([_window(record, "intermediate", first) for record in records] for first in (2, 1))
    silent = [silence(records[0], first) for first in (2, 1)]
    text = (
        f"The discrepancy ends at {_by_seed(printed)} ({length(known)}; by seed), and a probe that always says 0 "
        f"scores {silent[0]:.3f}, for (r, d) vanish as CG converges: means over t = 2, ..., n as printed. Should the "
        f"paper count from x_1 on, these are {_by_seed(shifted)}, and {silent[1]:.3f}. "
    )
    shares = [max(ours) / nothing for ours, nothing in zip((printed, shifted), silent, strict=True)]
    if max(shares) < EXPLAINED:
        return Verdict(claim, where, f"{text}The probe sees {percent(1 - max(shares))} of them or more.", "holds")
    if min(shares) >= 1:
        return Verdict(claim, where, f"{text}By neither count has the claim support.", "differs")
    sees = f"The probe sees {percent(1 - min(shares))} of them at best, by the seed that sees least."
    return Verdict(claim, where, text + sees, "not reproducible as stated")


def _window(record: Record, kind: str, first: int) -> float:
    """The mean of an error over n - 1 iterates."""
    terms = record.own[kind][first : first + record.config.n - 1]
    return sum(terms) / len(terms)


def first_verdicts(results: Results) -> list[Verdict]:
    """The numbers of Table 2, joint against result, and what the fall shows."""
    falls = "The discrepancy falls by 99.7% under joint and 98.0% under result supervision in 100k steps."
    aligned = "Under result supervision the intermediate variables align with CG's although nobody asks them to."
    return [
        _falls(results, falls, FIRST, FIRST_KINDS),
        _joint_better(results),
        _aligned(results, aligned, FIRST, "result"),
    ]


def _joint_better(results: Results) -> Verdict:
    claim = "Joint supervision aligns the intermediate variables better than result supervision."
    known = found(results, FIRST_KINDS)
    if len(known) < len(FIRST_KINDS):
        return not_yet(claim, FIRST)
    joint, result = (_ends(known[kind]) for kind in FIRST_KINDS)
    text = f"By seed, joint {_by_seed(joint)}, result {_by_seed(result)} ({length(known)}; the paper: 0.192 and 0.506)."
    return Verdict(claim, FIRST, text, "holds" if max(joint) < min(result) else "differs")


def second_verdicts(results: Results) -> list[Verdict]:
    """The numbers of Table 3, and what they show."""
    falls = "In the second setting the discrepancy falls by 99% in 100k epochs, from 46.12 to 0.4355."
    aligned = "In the second setting the intermediate variables still tend to CG's."
    kind = SECOND_KINDS[0]
    return [_falls(results, falls, SECOND, [kind]), _aligned(results, aligned, SECOND, kind)]


def _runs(kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for kind in kinds for name in SEEDS[kind])


FIRST_SETTING = Artefact(
    name="table-first-setting",
    title="Discrepancy before and after training, joint and result supervision",
    paper="Table 2",
    runs=_runs(FIRST_KINDS),
    files=(FILE,),
    measure=measure,
    draw=draw,
    sheets=partial(sheets, kinds=FIRST_KINDS, title="Discrepancy, first setting"),
    verdicts=first_verdicts,
)
SECOND_SETTING = Artefact(
    name="table-second-setting",
    title="Discrepancy before and after training, step and solution supervision",
    paper="Table 3",
    runs=_runs(SECOND_KINDS),
    files=(FILE,),
    measure=measure,
    sheets=partial(sheets, kinds=SECOND_KINDS, title="Discrepancy, second setting"),
    verdicts=second_verdicts,
)
