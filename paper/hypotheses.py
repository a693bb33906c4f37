"""The numbers of every hypothesis of paper/protocol.md, from the filed runs; paper/verdicts.py has its rules.

What takes runs that are not filed yet has no numbers. What a function names as *beside* no rule asks for: it was added
after the runs were seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import truediv
from statistics import fmean, median
from typing import Any

from paper import plan
from paper.curves import LEAD_ITERATES, extremes, geometric_mean, law, overtaken, typical
from paper.quantities import (
    capped_mean_error,
    compare,
    crossing,
    errors,
    failed,
    growth,
    horizon,
    interval,
    lead,
    prediction_factor,
    silent_discrepancy,
)
from paper.results import Record, Results

Numbers = dict[str, Any]
SIGMAS = tuple(f"{sigma:g}" for sigma in plan.SIGMAS)


def numbers(results: Results | None = None) -> dict[str, Numbers]:
    """The numbers of every hypothesis that has some, such as those of "h3" by keys such as "0.05.ratio"."""
    known = Results() if results is None else results
    found: dict[str, Numbers] = {}
    for name, hypothesis in _HYPOTHESES:
        try:
            part = hypothesis(lambda kind, seeds=None: _runs(known, kind, seeds))
        except _NotFiledError:
            continue
        found.setdefault(name, {}).update(part)
    return found


class _NotFiledError(Exception):
    """A run is not filed yet."""


_Find = Callable[..., list[Record]]


def _runs(results: Results, kind: str, seeds: int | None) -> list[Record]:
    """The runs of a kind, from seed 100 on: as many as planned, or as many as asked for."""
    names = plan.confirmatory_kinds()[kind][:seeds]
    if not all(map(results.has_run, names)):
        raise _NotFiledError
    return [results.run(name) for name in names]


def _scores(records: Sequence[Record]) -> list[float]:
    return [capped_mean_error(record) for record in records]


def _compared(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Numbers:
    found: Numbers = {}
    for name, each in compare(pairs).items():
        found |= {f"{name}.ratio": each.ratio, f"{name}.interval": [each.low, each.high]}
        found[f"{name}.outcome"] = each.outcome
    return found


RESULT, JOINT, LAMBDA_10 = "result", "joint-eta0.0005", "cg-accelerated-lambda10"
DESCENT = "descent-accelerated-lambda10"


def _h1(runs: _Find) -> Numbers:
    """The horizons, which decide; beside them the error's way to 1e-4, and how far the next iterate is from CG's."""
    kinds = {"result": runs(RESULT), "joint": runs(JOINT)}
    found: Numbers = {f"cg.{level:g}": crossing(kinds["result"][0].own["cg"], level) for level in (1e-2, 1e-4)}
    for name, records in kinds.items():
        found[name] = median(map(horizon, records))
        found[f"{name}.iterations"] = interval([crossing(errors(record), 1e-4) for record in records])
        found[f"{name}.next"] = median(record.own["deviation"][6] / record.own["cg"][6] for record in records)
    return found


def _h2(runs: _Find) -> Numbers:
    joint, result = ([record.own["discrepancy"] for record in runs(kind)] for kind in (JOINT, RESULT))
    found = _compared({"joint_result": (joint, result)})
    for name, kind in (("joint", JOINT), ("result", RESULT), ("accelerated", LAMBDA_10)):
        found |= _discrepancies(name, runs(kind))
    return found


def _discrepancies(name: str, records: Sequence[Record]) -> Numbers:
    """The intervals of Delta and of Delta / Delta_0; Delta_0 itself. Beside them ratios of sums from t = 0 and 1."""
    own, zero = ([f(record) for record in records] for f in (lambda r: r.own["discrepancy"], silent_discrepancy))
    relative = [delta / nothing for delta, nothing in zip(own, zero, strict=True)]
    found: Numbers = {f"{name}.discrepancy": interval(own), f"{name}.relative": interval(relative)}
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
    return found | {"13.paired": extremes(paired)}


def _h5(runs: _Find) -> Numbers:
    found: Numbers = {}
    saved: list[list[float]] = []
    for sigma in SIGMAS:
        cg_taught = runs(LAMBDA_10) if sigma == "1.2" else runs(f"{LAMBDA_10}-sigma{sigma}")
        pcg_taught = runs(f"pcg-accelerated-lambda10-sigma{sigma}")
        tau = {name: [crossing(errors(r), 1e-4) for r in records] for name, records in
               (("cg", cg_taught), ("pcg", pcg_taught))}  # fmt: skip
        classical = {who: crossing(cg_taught[0].own[who], 1e-4) for who in ("cg", "pcg")}
        found[f"{sigma}.cg"] = interval([t / classical["cg"] for t in tau["cg"]])
        found[f"{sigma}.pcg"] = interval([classical["pcg"] / t for t in tau["pcg"]])
        for name, records in (("cg", cg_taught), ("pcg", pcg_taught)):
            overtakes = [overtaken(errors(record), record.own[name]) for record in records]
            found[f"{sigma}.{name}.overtaken"] = extremes(overtakes)
        saved.append([1 - p / c for p, c in zip(tau["pcg"], tau["cg"], strict=False)])
    found |= {"saved": interval([fmean(column) for column in zip(*saved, strict=True)], logarithm=False)}
    found["saved.by_sigma"] = [fmean(row) for row in saved]
    return found | {"margin": 0.55 - min(found[f"{sigma}.cg"][1] for sigma in SIGMAS)}


def _h6(runs: _Find) -> Numbers:
    """The ratios of G; beside them the runs that failed, and the ratios before the window and in it."""
    full = runs(LAMBDA_10, 3)
    found: Numbers = {}
    for window in (10, 15):
        records = runs(f"cg-accelerated-K{window}")
        found |= _compared({f"{window}": (_scores(records), _scores(full))})
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
    found["growth.1.4"] = extremes(map(growth, groups[-1]))
    for who in ("model", "cg"):
        first, *_, last = (fmean(crossing(errors(record, who), 1e-4) for record in group) for group in groups)
        found[f"{who}.over_sigma"] = last / first - 1
    for who in ("model", "cg"):
        shares = [record.own["crossing"][who][-1] / record.own["crossing"][who][0] - 1 for record in records]
        found[f"{who}.share"] = extremes(shares)
    return found


def _h9(runs: _Find) -> Numbers:
    found: Numbers = {}
    for weight in (1, 7, 10, 13):
        found[f"{weight}"] = interval([lead(r) / law(weight) for r in runs(f"cg-accelerated-lambda{weight}")])
    return found | _h9_beside(runs)


def _h9_beside(runs: _Find) -> Numbers:
    """The lead over the law at lambda = 30, and of PCG's pupils over PCG; means over the seeds at single iterates."""
    found: Numbers = {"30": interval([lead(record) / law(30) for record in runs("cg-accelerated-lambda30")])}
    pupils = [record for sigma in SIGMAS for record in runs(f"pcg-accelerated-lambda10-sigma{sigma}")]
    found["pcg"] = interval([lead(record, "pcg") / law(10) for record in pupils])

    def at(weight: int, t: int) -> float:
        records = runs(f"cg-accelerated-lambda{weight}")
        return geometric_mean([errors(r, "cg")[t] / errors(r)[t] for r in records]) / law(weight)

    for name, times in (("t1", (1,)), ("t2_6", LEAD_ITERATES), ("t7", (7,))):
        ratios = [at(weight, t) for weight in (7, 10, 13) for t in times]
        found[f"iterates.{name}"] = extremes(ratios)
    found["iterates.10.6"] = at(10, 6)
    return found


def _h10(runs: _Find) -> Numbers:
    own = _scores(runs(LAMBDA_10))
    others = {"solution": "solution-only", "descent": DESCENT}
    return _compared({name: (own, _scores(runs(kind))) for name, kind in others.items()}) | _h10_beside(runs)


def _h10_beside(runs: _Find) -> Numbers:
    """Leads over CG and tau to 1e-4; of solution only also the errors of lambda = 10 over its errors, and its probe.

    The errors: at t = 2..6, means of the seeds, and in the end.
    """
    ten, alone, descent = runs(LAMBDA_10), runs("solution-only"), runs(DESCENT)
    found: Numbers = {}
    paired = list(zip(ten, alone, strict=True))
    for name, values in (
        ("paired", [capped_mean_error(one) / capped_mean_error(other) for one, other in paired]),
        ("end", [errors(one)[-1] / errors(other)[-1] for one, other in paired]),
    ):
        found[f"alone.{name}"] = extremes(values)
    found["alone.iterates"] = [
        geometric_mean([errors(one)[t] / errors(other)[t] for one, other in paired]) for t in LEAD_ITERATES
    ]
    for name, records in (("alone", alone), ("10", ten), ("descent", descent)):
        found[f"{name}.iterations"] = interval([crossing(errors(record), 1e-4) for record in records])
        found[f"{name}.lead"] = interval(list(map(lead, records)))
    return found | _discrepancies("alone.probe", alone)


def _h11(runs: _Find) -> Numbers:
    """The lead, which decides; beside it what the means hide, and the same of systems that are not rotated."""
    rotated, plain = runs(f"{LAMBDA_10}-rotated"), runs(LAMBDA_10)
    leads = list(map(lead, rotated))
    found: Numbers = {
        "lead": interval(leads),
        "leads": leads,
        "failed": sum(map(failed, rotated)),
        "lost": [round(record.own["failures"] * record.own["count"]) for record in rotated],
        "overtaken": [overtaken(errors(record), record.own["cg"]) for record in rotated],
        "least": [min(errors(record)) for record in rotated],
    }
    found["without"] = math.ceil(max(map(_lead_without_the_lost, rotated)))
    for name, records in (("rotated", rotated), ("plain", plain)):
        medians = [record.own["median"] for record in records]
        for key, values in (
            ("medians", [typical(each["cg"]) / typical(each["model"]) for each in medians]),
            ("second", [errors(record, "cg")[2] / errors(record)[2] for record in records]),
            ("tail", [errors(r)[2] / each["model"][2] for r, each in zip(records, medians, strict=True)]),
        ):
            found[f"{name}.{key}"] = extremes(values)
    return found


def _lead_without_the_lost(record: Record) -> float:
    """A bound of the lead at t = 2 on the systems that do not end at an error of 1 or more.

    By Cauchy and Schwarz a mean of N errors, without k of them, is lower by at most sqrt(k N / (N - k)) of its
    standard errors; CG's may rise by N / (N - k).
    """
    share = record.own["failures"]
    lower = math.sqrt(share * record.own["count"] / (1 - share)) * record.own["standard_error"][2]
    return errors(record, "cg")[2] / (1 - share) / (errors(record)[2] - lower)


def _h12(runs: _Find) -> Numbers:
    records = runs("result-literal")
    found: Numbers = {"failed": sum(map(failed, records)), "scores": _scores(records), "runs": len(records)}
    found["trained"] = sum(capped_mean_error(record) < 1 and not failed(record) for record in records)
    return found | _compared({"result": (found["scores"], _scores(runs(RESULT)))}) | _h12_beside(records)


def _h12_beside(records: Sequence[Record]) -> Numbers:
    """How the literal layers end: systems at an error of 1 or more, iterates above 1, G without the cap at 1."""
    rows = [record.own for record in records]
    return {
        "failures": [row["failures"] for row in rows],
        "above": [sum(error > 1 for error in row["model"][1:]) for row in rows],
        "uncapped": [geometric_mean(row["model"][1:]) for row in rows],
    }


def _h13(runs: _Find) -> Numbers:
    own = _scores(runs(RESULT))
    return _compared({f"{heads}": (_scores(runs(f"result-heads{heads}")), own) for heads in (2, 4)})


def _h14(name: str, kind: str) -> Callable[[_Find], Numbers]:
    """The largest validation error at T in the last tenth of the steps over the least; G over that of 100,000 steps.

    Beside them the largest rise above the least so far, and how many errors of the last tenth there are.
    """

    def hypothesis(runs: _Find) -> Numbers:
        ((long,), (short,)) = runs(f"{kind}-700k"), runs(kind, 1)
        found = long.history["final_error"]
        at_end = [e for step, e in zip(long.history["step"], found, strict=True) if step > 0.9 * long.config.steps]
        return {
            f"{name}.spread": max(at_end, default=math.inf) / min(found),  # none: it diverged before
            f"{name}.finite": long.document["state"] == "finished",
            f"{name}.gain": capped_mean_error(long) / capped_mean_error(short),
            f"{name}.rise": max(map(truediv, found, accumulate(found, min))),
            f"{name}.checks": len(at_end),
        }

    return hypothesis


def _h15(runs: _Find) -> Numbers:
    return _compared({"tf32": (_scores(runs("result-tf32")), _scores(runs(RESULT)))})


def _h16(runs: _Find) -> Numbers:
    """G of the other reading, and the prediction interval of one more seed of lambda = 10; beside them G elsewhere.

    Elsewhere: at sigma = 1 and 1.4.
    """
    scores = _scores(runs(LAMBDA_10))
    (other,) = _scores(runs(f"{LAMBDA_10}-sqrt"))
    mean, factor = geometric_mean(scores), prediction_factor(scores)
    low, high = mean / factor, mean * factor
    found: Numbers = {"score": other, "prediction": [low, high]}
    found["outcome"] = "inside" if low <= other <= high else "outside"
    elsewhere = [score for sigma in ("1", "1.4") for score in _scores(runs(f"{LAMBDA_10}-sigma{sigma}"))]
    found |= {"elsewhere": extremes(elsewhere), "elsewhere.runs": len(elsewhere)}
    return found | {"elsewhere.inside": sum(low <= score <= high for score in elsewhere)}


_HYPOTHESES: tuple[tuple[str, Callable[[_Find], Numbers]], ...] = (
    ("h1", _h1), ("h2", _h2), ("h3", _h3), ("h4", _h4), ("h5", _h5), ("h6", _h6), ("h7", _h7),
    ("h8", _h8), ("h9", _h9), ("h10", _h10), ("h11", _h11), ("h12", _h12), ("h13", _h13),
    ("h14", _h14("joint", JOINT)), ("h14", _h14("accelerated", LAMBDA_10)), ("h15", _h15), ("h16", _h16),
)  # fmt: skip
