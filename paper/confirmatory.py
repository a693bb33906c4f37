"""The quantities and tests of paper/protocol.md, computed from the filed runs; paper/verdicts.py has its rules.

A hypothesis whose runs are not all filed has no numbers. The p-values of one hypothesis, of differences and of
equivalences together, are adjusted by Holm's method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

import torch
from scipy import stats

from paper import plan
from paper.curves import geometric_mean, overtaken
from paper.results import Record, Results, restored
from paper.run import crossings

__all__ = ["Comparison", "compare", "interval", "ledger", "numbers"]

LEVEL, MARGIN = 0.05, math.log(1.1)
Curve = Sequence[float]
Numbers = dict[str, Any]


# --- quantities of a run ---


def errors(record: Record, who: str = "model") -> list[float]:
    """e_0, ..., e_T: a value that is not finite or exceeds 1 counts as 1."""
    return [error if error <= 1 else 1.0 for error in record.own[who]]


def mean_error(record: Record) -> float:
    """G, the geometric mean of e_1, ..., e_T."""
    return geometric_mean(errors(record)[1:])


def crossing(curve: Curve, level: float) -> float:
    """tau: where log e_t, interpolated in t, first falls to a level; T where it never does.

    >>> crossing([1.0, 1e-2, 1e-4], 1e-3), crossing([1.0, 1.0], 0.5)
    (1.5, 1.0)
    """
    return float(crossings(torch.tensor(curve, dtype=torch.float64), level))


def horizon(record: Record, limit: float = 0.1) -> int:
    """The largest t with D_s <= limit for all s = 1..t, D the deviation relative to the teacher's own error."""
    teacher = record.own[record.config.teacher]
    within = [d <= limit * e for d, e in zip(record.own["deviation"][1:], teacher[1:], strict=True)]
    return within.index(False) if False in within else len(within)


def lead(record: Record, over: str = "cg") -> float:
    """L, the geometric mean over t = 2..6 of CG's error over the run's."""
    theirs, own = errors(record, over), errors(record)
    return geometric_mean([theirs[t] for t in range(2, 7)]) / geometric_mean([own[t] for t in range(2, 7)])


def silent_discrepancy(record: Record) -> float:
    """Delta_0, the discrepancy of the zero predictor."""
    n = record.config.n
    return sum(record.own["silence"][2:]) / (n - 1)


def growth(record: Record) -> float:
    """How much tau(1e-3) grows from the best conditioned quarter of the systems to the worst, over CG's growth."""
    own, cg = (record.own["crossing"][who] for who in ("model", "cg"))
    return (own[-1] - own[0]) / (cg[-1] - cg[0])


def failed(record: Record) -> bool:
    """Whether a run failed: e_T = 1."""
    return errors(record)[-1] == 1


def ledger(results: Results) -> str:
    """The tables of the ledger: the runs by group, and what the protocol reports of every kind of run."""
    groups = ["| group | planned | done | failed |", "|---|---|---|---|"]
    kinds = [
        "| group | kind | seeds | G, mean | G, 95% interval | median e_T | failures |",
        "|---|---|---|---|---|---|---|",
    ]
    for group in sorted({str(run.group) for run in plan.confirmatory().values()}):
        names = [run.name for run in plan.confirmatory().values() if run.group == group]
        done = [results.run(name) for name in names if results.has_run(name)]
        groups.append(f"| {group} | {len(names)} | {len(done)} | {sum(map(failed, done))} |")
        for kind in dict.fromkeys(record.name.rpartition("-seed")[0] for record in done):
            records = [record for record in done if record.name.rpartition("-seed")[0] == kind]
            scores = [mean_error(record) for record in records]
            ends = [record.own["median"]["model"][-1] for record in records]
            cells = [group, kind, f"{len(records)}", _short(geometric_mean(scores)), _ends(scores)]
            cells += [_short(geometric_mean(ends)), f"{fmean(record.own['failures'] for record in records):.2%}"]
            kinds.append(f"| {' | '.join(cells)} |")
    return "\n".join([*groups, "", *kinds])


def progress(results: Results) -> Numbers:
    """The runs planned and done, the test systems of each, and the largest G over the least among seeds of a kind."""
    done = [results.run(name) for name in plan.confirmatory() if results.has_run(name)]
    systems = {record.own["count"] for record in done}
    found: Numbers = {"planned": len(plan.confirmatory()), "done": len(done), "systems": max(systems, default=0)}
    scores: dict[str, list[float]] = {}
    for record in done:
        scores.setdefault(record.name.rpartition("-seed")[0], []).append(mean_error(record))
    spread = {kind: max(own) / min(own) for kind, own in scores.items()}
    found |= {"kinds": len(spread), "spread.above_1.5": sum(factor > 1.5 for factor in spread.values())}
    return found | {f"spread.{kind}": factor for kind, factor in spread.items()}


def _ends(values: Sequence[float]) -> str:
    return " to ".join(map(_short, interval(values))) if len(values) > 1 else "-"


def _short(value: float) -> str:
    """Three digits; near 1, where two values may differ in later ones, three decimals."""
    return f"{value:.3f}" if abs(value - 1) < 0.1 else f"{value:.3g}"


# --- tests over the seeds ---


@dataclass(frozen=True)
class Comparison:
    """A quantity of one group of seeds over that of another, and the adjusted p-values of "differs" and "equal"."""

    ratio: float
    low: float
    high: float
    p_differs: float
    p_equal: float

    @property
    def outcome(self) -> str:
        """The word of the protocol, for a quantity of which less is better."""
        if self.p_equal < LEVEL:
            return "equal"
        if self.p_differs < LEVEL:
            return "better" if self.ratio < 1 else "worse"
        return "undecided"


def compare(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> dict[str, Comparison]:
    """The comparisons of one hypothesis, by name: Welch's tests of the logarithms, adjusted by Holm's method."""
    logs = {name: ([math.log(q) for q in one], [math.log(q) for q in other]) for name, (one, other) in pairs.items()}
    tests = {name: stats.ttest_ind(one, other, equal_var=False) for name, (one, other) in logs.items()}
    raw: dict[tuple[str, str], float] = {}
    for name, (one, other) in logs.items():
        raw[name, "differs"] = float(tests[name].pvalue)
        sides = [(MARGIN, "less"), (-MARGIN, "greater")]
        raw[name, "equal"] = max(
            float(stats.ttest_ind([q - m for q in one], other, equal_var=False, alternative=side).pvalue)
            for m, side in sides
        )
    adjusted = holm(raw)
    found = {}
    for name, (one, other) in logs.items():
        low, high = tests[name].confidence_interval(1 - LEVEL)
        found[name] = Comparison(
            math.exp(fmean(one) - fmean(other)),
            math.exp(low),
            math.exp(high),
            adjusted[name, "differs"],
            adjusted[name, "equal"],
        )
    return found


def holm(p: Mapping[Any, float]) -> dict[Any, float]:
    """P-values adjusted by Holm's method; a test that could not be made (NaN) decides nothing.

    >>> {name: round(value, 6) for name, value in holm({"a": 0.01, "b": 0.04, "c": 0.03}).items()}
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    ordered = sorted((1.0 if math.isnan(value) else value, k, name) for k, (name, value) in enumerate(p.items()))
    found, largest = {}, 0.0
    for rank, (value, _, name) in enumerate(ordered):
        largest = max(largest, min(1.0, value * (len(ordered) - rank)))
        found[name] = largest
    return found


def interval(values: Sequence[float], logarithm: bool = True) -> list[float]:
    """Student's interval of 95% over the seeds, of the logarithms unless a value may be negative; infinite values: all.

    >>> interval([0.1, float("inf")])
    [0.0, inf]
    """
    if math.inf in values:  # of a run that diverged
        return [0.0 if logarithm else -math.inf, math.inf]
    logs = [math.log(value) for value in values] if logarithm else list(values)
    half = float(stats.t.ppf(1 - LEVEL / 2, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs))
    ends = [fmean(logs) - half, fmean(logs) + half]
    return [math.exp(end) for end in ends] if logarithm else ends


# --- hypotheses ---


def numbers(results: Results | None = None) -> Numbers:
    """The numbers of every hypothesis whose runs are filed, by keys such as "h3.0.05.ratio"."""
    known = Results() if results is None else results
    found: Numbers = {}
    for name, hypothesis in _HYPOTHESES:
        try:
            part = hypothesis(lambda kind, seeds=None: _runs(known, kind, seeds))
        except LookupError:  # runs that are not filed yet
            continue
        found |= {f"{name}.{key}": value for key, value in part.items()}
    return found


_Find = Callable[..., list[Record]]


def _runs(results: Results, kind: str, seeds: int | None) -> list[Record]:
    """The runs of a kind, from seed 100 on: as many as planned, or as many as asked for."""
    names = [name for name in plan.confirmatory() if name.rpartition("-seed")[0] == kind][:seeds]
    missing = [name for name in names if not results.has_run(name)]
    if missing or not names:
        raise LookupError(f"{kind}: {', '.join(missing) or 'not planned'}")
    return [results.run(name) for name in names]


def _scores(records: Sequence[Record]) -> list[float]:
    return [mean_error(record) for record in records]


def _compared(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Numbers:
    found: Numbers = {}
    for name, each in compare(pairs).items():
        found |= {f"{name}.ratio": each.ratio, f"{name}.interval": [each.low, each.high]}
        found |= {f"{name}.p_differs": each.p_differs, f"{name}.p_equal": each.p_equal, f"{name}.outcome": each.outcome}
    return found


RESULT, JOINT, LAMBDA_10 = "result", "joint-eta0.0005", "cg-accelerated-lambda10"


def _h1(runs: _Find) -> Numbers:
    """The horizons, which decide; beside them the error's way to 1e-4, and how far the next iterate is from CG's."""
    found: Numbers = {f"cg.{level:g}": crossing(runs(RESULT)[0].own["cg"], level) for level in (1e-2, 1e-4)}
    for name, kind in (("result", RESULT), ("joint", JOINT)):
        found[name] = median(map(horizon, runs(kind)))
        found[f"{name}.iterations"] = interval([crossing(errors(record), 1e-4) for record in runs(kind)])
        found[f"{name}.next"] = median(record.own["deviation"][6] / record.own["cg"][6] for record in runs(kind))
    return found


def _h2(runs: _Find) -> Numbers:
    kinds = {"joint": runs(JOINT), "result": runs(RESULT)}
    joint, result = ([record.own["discrepancy"] for record in records] for records in kinds.values())
    found = _discrepancies("joint", kinds["joint"]) | _discrepancies("result", kinds["result"])
    return found | _compared({"joint_result": (joint, result)})


def _h2_accelerated(runs: _Find) -> Numbers:
    return _discrepancies("accelerated", runs(LAMBDA_10))


def _discrepancies(name: str, records: Sequence[Record]) -> Numbers:
    """The intervals of Delta and of Delta / Delta_0; Delta_0 itself. Beside them ratios of sums from t = 0 and 1."""
    own, zero = ([f(record) for record in records] for f in (lambda r: r.own["discrepancy"], silent_discrepancy))
    relative = [delta / nothing for delta, nothing in zip(own, zero, strict=True)]
    found: Numbers = {f"{name}.interval": interval(own), f"{name}.relative": interval(relative)}
    for first in (0, 1):
        sums = [(sum(r.own["intermediate"][first:]), sum(r.own["silence"][first:])) for r in records]
        found[f"{name}.relative.from_{first}"] = interval([delta / nothing for delta, nothing in sums])
    silence = records[0].own["silence"]
    return found | {f"{name}.zero": fmean(zero), f"{name}.zero.first_two": sum(silence[:2]) / sum(silence)}


def _h3(runs: _Find) -> Numbers:
    own = _scores(runs(JOINT))
    return _compared(
        {
            "0.05": (own, _scores(runs("joint-eta0.05"))),
            "0.0001": (own, _scores(runs("joint-eta0.0001"))),
            "result": (own, _scores(runs(RESULT))),
        }
    )


def _h4(runs: _Find) -> Numbers:
    """The comparisons; beside them G at 10 over G at 13, seed by seed."""
    own = _scores(runs(LAMBDA_10))
    others = {weight: _scores(runs(f"cg-accelerated-lambda{weight}")) for weight in (1, 7, 13, 30)}
    paired = [ten / more for ten, more in zip(own, others[13], strict=True)]
    found = _compared({f"{weight}": (own, scores) for weight, scores in others.items()})
    return found | {"13.paired": [min(paired), max(paired)]}


def _h5(runs: _Find) -> Numbers:
    found: Numbers = {}
    saved: list[list[float]] = []
    for sigma in ("1", "1.2", "1.4"):
        cg_taught = runs(LAMBDA_10) if sigma == "1.2" else runs(f"{LAMBDA_10}-sigma{sigma}")
        pcg_taught = runs(f"pcg-accelerated-lambda10-sigma{sigma}")
        tau = {name: [crossing(errors(r), 1e-4) for r in records] for name, records in
               (("cg", cg_taught), ("pcg", pcg_taught))}  # fmt: skip
        classical = {who: crossing(cg_taught[0].own[who], 1e-4) for who in ("cg", "pcg")}
        found[f"{sigma}.cg"] = interval([t / classical["cg"] for t in tau["cg"]])
        found[f"{sigma}.pcg"] = interval([classical["pcg"] / t for t in tau["pcg"]])
        for name, records in (("cg", cg_taught), ("pcg", pcg_taught)):
            overtakes = [overtaken(errors(record), record.own[name]) for record in records]
            found[f"{sigma}.{name}.overtaken"] = [min(overtakes), max(overtakes)]
        saved.append([1 - p / c for p, c in zip(tau["pcg"], tau["cg"], strict=False)])
    found |= {"saved": interval([fmean(column) for column in zip(*saved, strict=True)], logarithm=False)}
    found["saved.by_sigma"] = [fmean(row) for row in saved]
    return found | {"margin": 0.55 - min(found[f"{sigma}.cg"][1] for sigma in ("1", "1.2", "1.4"))}


def _h6(runs: _Find) -> Numbers:
    """The ratios of G; beside them the runs that failed, and the ratios before the window and in it."""
    full = runs(LAMBDA_10, 3)
    found: Numbers = {}
    for window in (10, 15):
        records = runs(f"cg-accelerated-K{window}")
        part = _compared({"ratio": (_scores(records), _scores(full))})
        found |= {f"{window}.{key}": value for key, value in part.items()}
        found[f"{window}.failed"] = sum(map(failed, records))
        found[f"{window}.trained"] = _scores([record for record in records if not failed(record)])
        first = full[0].config.T - window + 1  # of the window
        for name, times in (("before", slice(1, first)), ("within", slice(first, None))):
            short, whole = (geometric_mean([e for r in each for e in errors(r)[times]]) for each in (records, full))
            found[f"{window}.{name}"] = short / whole
    return found


def _h7(runs: _Find) -> Numbers:
    scores = {256: _scores(runs(LAMBDA_10, 3))} | {d: _scores(runs(f"cg-accelerated-d{d}")) for d in (64, 128)}
    return _compared({"256_128": (scores[256], scores[128]), "128_64": (scores[128], scores[64])})


def _h8(runs: _Find) -> Numbers:
    """The growth over CG's, which decides; beside it that at each sigma, and that of each method relative to its start.

    The start is the best conditioned quarter, or, for the growth of tau(1e-4) over the sigmas, sigma = 1.
    """
    groups = [runs(kind, 3) for kind in (f"{LAMBDA_10}-sigma1", LAMBDA_10, f"{LAMBDA_10}-sigma1.4")]
    records = [record for group in groups for record in group]
    found: Numbers = {"growth": interval([growth(record) for record in records], logarithm=False)}
    found["growth.by_sigma"] = [fmean(map(growth, group)) for group in groups]
    found["growth.1.4"] = [end(map(growth, groups[-1])) for end in (min, max)]
    for who in ("model", "cg"):
        first, *_, last = (fmean(crossing(errors(record, who), 1e-4) for record in group) for group in groups)
        found[f"{who}.over_sigma"] = last / first - 1
    for who in ("model", "cg"):
        shares = [record.own["crossing"][who][-1] / record.own["crossing"][who][0] - 1 for record in records]
        found[f"{who}.share"] = [min(shares), max(shares)]
    return found


def _h9(runs: _Find) -> Numbers:
    found: Numbers = {}
    for weight in (1, 7, 10, 13):
        found[f"{weight}"] = interval([lead(r) / (1 + weight) ** 2 for r in runs(f"cg-accelerated-lambda{weight}")])
    return found


def _h9_beside(runs: _Find) -> Numbers:
    """The lead over the law at lambda = 30, and of PCG's pupils over PCG; means over the seeds at single iterates."""
    found: Numbers = {"30": interval([lead(record) / 31**2 for record in runs("cg-accelerated-lambda30")])}
    pupils = [record for sigma in ("1", "1.2", "1.4") for record in runs(f"pcg-accelerated-lambda10-sigma{sigma}")]
    found["pcg"] = interval([lead(record, "pcg") / 11**2 for record in pupils])

    def at(weight: int, t: int) -> float:
        records = runs(f"cg-accelerated-lambda{weight}")
        return geometric_mean([errors(r, "cg")[t] / errors(r)[t] for r in records]) / (1 + weight) ** 2

    for name, times in (("t1", (1,)), ("t2_6", range(2, 7)), ("t7", (7,))):
        ratios = [at(weight, t) for weight in (7, 10, 13) for t in times]
        found[f"iterates.{name}"] = [min(ratios), max(ratios)]
    return found


def _h10(runs: _Find) -> Numbers:
    own = _scores(runs(LAMBDA_10))
    others = {"solution": "solution-only", "descent": "descent-accelerated-lambda10"}
    return _compared({name: (own, _scores(runs(kind))) for name, kind in others.items()})


def _h10_beside(runs: _Find) -> Numbers:
    """Solution only by itself, where the other comparison of its family may be missing; its lead, and tau to 1e-4."""
    alone = runs("solution-only")
    compared = compare({"alone": (_scores(runs(LAMBDA_10)), _scores(alone))})["alone"]
    found: Numbers = {"alone.ratio": compared.ratio, "alone.interval": [compared.low, compared.high]}
    for name, kind in (("alone", "solution-only"), ("10", LAMBDA_10)):
        found[f"{name}.iterations"] = interval([crossing(errors(record), 1e-4) for record in runs(kind)])
    return found | {"alone.lead": interval(list(map(lead, alone)))}


def _h11(runs: _Find) -> Numbers:
    """The lead, which decides; beside it that of the medians and at single iterates, and what the means hide."""
    records = runs(f"{LAMBDA_10}-rotated")
    leads = list(map(lead, records))
    early = [errors(record, "cg")[t] / errors(record)[t] for record in records for t in (2, 3)]
    medians = [
        geometric_mean([record.own["median"]["cg"][t] / record.own["median"]["model"][t] for t in range(2, 7)])
        for record in records
    ]
    return {
        "lead": interval(leads),
        "leads": leads,
        "medians": [min(medians), max(medians)],
        "early": [min(early), max(early)],
        "failed": sum(map(failed, records)),
        "lost": [round(record.own["failures"] * record.own["count"]) for record in records],
        "end": [record.own["median"]["model"][-1] for record in records],
    }


def _h12(runs: _Find) -> Numbers:
    records = runs("result-literal")
    found: Numbers = {"failed": sum(map(failed, records)), "scores": _scores(records), "runs": len(records)}
    found["trained"] = sum(mean_error(record) < 1 and not failed(record) for record in records)
    return found | _compared({"result": (found["scores"], _scores(runs(RESULT)))})


def _h12_beside(runs: _Find) -> Numbers:
    """How the literal layers end: systems at an error of 1 or more, iterates above 1, G without the cap at 1."""
    rows = [record.own for record in runs("result-literal")]
    return {
        "failures": [row["failures"] for row in rows],
        "above": [sum(error > 1 for error in row["model"][1:]) for row in rows],
        "uncapped": [geometric_mean(row["model"][1:]) for row in rows],
    }


def _h13(runs: _Find) -> Numbers:
    own = _scores(runs(RESULT))
    return _compared({f"{heads}": (_scores(runs(f"result-heads{heads}")), own) for heads in (2, 4)})


def _h14(name: str, kind: str) -> Callable[[_Find], Numbers]:
    """The largest validation error at T in the last tenth of the steps over the least; G over that of 100,000 steps."""

    def hypothesis(runs: _Find) -> Numbers:
        ((long,), (short,)) = runs(f"{kind}-700k"), runs(kind, 1)
        history = restored(long.document["history"])
        validations = list(zip(history["step"], history["final_error"], strict=True))
        at_end = [error for step, error in validations if step > 0.9 * long.config.steps]
        return {
            f"{name}.spread": max(at_end) / min(history["final_error"]),
            f"{name}.finite": long.document["state"] == "finished",
            f"{name}.gain": mean_error(long) / mean_error(short),
        }

    return hypothesis


def _h15(runs: _Find) -> Numbers:
    return _compared({"tf32": (_scores(runs("result-tf32")), _scores(runs(RESULT)))})


def _h16(runs: _Find) -> Numbers:
    """G of the other reading, and the prediction interval of one more seed of lambda = 10."""
    logs = [math.log(score) for score in _scores(runs(LAMBDA_10))]
    half = float(stats.t.ppf(1 - LEVEL / 2, len(logs) - 1)) * stdev(logs) * math.sqrt(1 + 1 / len(logs))
    (other,) = _scores(runs(f"{LAMBDA_10}-sqrt"))
    return {"score": other, "prediction": [math.exp(fmean(logs) - half), math.exp(fmean(logs) + half)]}


_HYPOTHESES: tuple[tuple[str, Callable[[_Find], Numbers]], ...] = (
    ("h1", _h1), ("h2", _h2), ("h2", _h2_accelerated), ("h3", _h3), ("h4", _h4), ("h5", _h5), ("h6", _h6), ("h7", _h7),
    ("h8", _h8), ("h9", _h9), ("h9", _h9_beside), ("h10", _h10), ("h10", _h10_beside), ("h11", _h11), ("h12", _h12),
    ("h12", _h12_beside), ("h13", _h13), ("h14", _h14("joint", JOINT)), ("h14", _h14("accelerated", LAMBDA_10)),
    ("h15", _h15), ("h16", _h16),
)  # fmt: skip
