"""The numbers of claims.md, note.md, docs/what-it-learned.md and the model cards by their keys.

They are computed from paper/results, those of programs with learned parts and of their rivals from benchmarks/results.
A value is a number or a list of numbers. Errors of learned iterates are squared and relative, means over the systems of
an evaluation. The mean error of a curve is the geometric mean over t = 1, ..., T.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise, product
from statistics import fmean, median
from typing import Any

from nlaformer.learn.evaluate import WITHIN_REACH
from nlaformer.learn.recipes import Config
from paper import bundled, cards, hypotheses, ledger, microscope, plan, teaching
from paper.acceleration import ETA, LAMBDA, LEAD, lead_curve
from paper.curves import extremes, geometric_mean, iteration_counts, iterations, law, mean_error, overtaken, typical
from paper.hypotheses import Numbers
from paper.imitation import ANNEALED, late_errors
from paper.note_figures import note_numbers
from paper.plan import SIGMAS, TEACHERS
from paper.quantities import prediction_factor, silent_discrepancy
from paper.results import Results

RESULTS = Results()
RESULT, JOINT, CG, PCG = plan.imitation(), plan.joint(), *map(plan.accelerated, TEACHERS)
OURS: dict[tuple[str, float], Config] = {(config.teacher, config.sigma[0]): config for config in plan.over_sigma()}


@cache
def numbers() -> Numbers:
    """Every number by its key, such as "operations.matmul.layers"; of a list also the least and the most."""
    groups: dict[str, Numbers] = {
        "operations": _operations(), "compiled": _compiled(), "systems": _systems(),
        "runs": _runs(), "elsewhere": _elsewhere(), "discrepancy": _discrepancy(), "intermediate": _intermediate(),
        "eta": _eta(), "lambda": _lambda(), "sigma": _sigma(), "dimension": _dimension(), "window": _window(),
        "architectures": _architectures(), "loops": _loops(), "seeds": _seeds(), "rate": _rate(),
        "larger_lambda": _larger_lambda(), "bundled": _bundled(), "cards": cards.bundled_models(RESULTS),
        "learned_parts": cards.learned_parts(), "controls": _controls(), "learned_operations": _learned_operations(),
        "note": note_numbers(RESULTS), "microscope": microscope.numbers(RESULTS), "teaching": teaching.numbers(RESULTS),
        "ledger": ledger.progress(RESULTS), **hypotheses.numbers(RESULTS),
    }  # fmt: skip
    found = {
        f"{name}.{key}": value
        for name, group in groups.items()
        for key, value in group.items()
        if not isinstance(value, str | bool)  # outcomes of the protocol
    }
    lists = {key: value for key, value in found.items() if isinstance(value, list)}
    return found | {f"{k}.{end.__name__}": end(v) for k, v in lists.items() for end in (min, max)}


# --- reading runs and curves ---


def _of(config: Config) -> list[dict[str, Any]]:
    """The evaluations of a run on the systems it was trained on, one for each of its seeds."""
    return [RESULTS.run(name).own for name in plan.seeds_of(config)]


def _first(config: Config) -> float:
    """The mean error of a run from seed 0."""
    return mean_error(_of(config)[0]["model"])


def _score(config: Config) -> float:
    """The mean error of a run, the geometric mean of its seeds."""
    return geometric_mean([mean_error(row["model"]) for row in _of(config)])


def _luck(config: Config, comparisons: int = 1, single: bool = False) -> float:
    """The factor by which the mean error of one more run may differ from those of a run's seeds by luck."""
    return prediction_factor([mean_error(row["model"]) for row in _of(config)], comparisons, single)


# --- sections 2 and 3, and the systems ---


def _operations() -> Numbers:
    """Table 1: what each operation costs, and how many are within what is printed, in one of their forms."""
    rows = RESULTS.document("operations")["rows"]
    found: Numbers = {}
    for row in rows:
        key = row["operation"] if row["form"] == "accurate" else f"{row['operation']}.{row['form']}"
        found |= {f"{key}.{field}": row["cost"][field] for field in ("entries", "layers", "heads")}
        found |= {f"{key}.growth": row["growth"], f"{key}.error": row["accuracy"]["float64"]["error"]}
        if loop := row["loop_transformer"]:
            found |= {f"{key}.loop.{field}": loop["cost"][field] for field in ("entries", "layers")}
            found |= {f"{key}.loop.growth": loop["growth"], f"{key}.loop.block": loop["block_cost"]["layers"]}
    both = [row for row in rows if row["loop_transformer"]]
    named = {row["operation"] for row in both}  # the operations of Table 1
    within = [(row, _within(row)) for row in rows if row["operation"] in named]
    for key in ("size", "layers", "heads"):
        found[f"{key}.some_form"] = len({row["operation"] for row, fits in within if fits[key]})
    found["all.some_form"] = len({row["operation"] for row, fits in within if all(fits.values())})
    costs = [(row["cost"], row["loop_transformer"]["cost"]) for row in both]
    found["count"] = len(both)
    found["smaller_input"] = sum(ours["entries"] < theirs["entries"] for ours, theirs in costs)
    found["fewer_layers"] = sum(ours["layers"] < theirs["layers"] for ours, theirs in costs)
    printed = [(row["n"], row["loop_transformer"], row["loop_transformer"]["printed"]) for row in both]
    found["loop.layers_as_printed"] = sum(loop["cost"]["layers"] == _layers(p["layers"], n) for n, loop, p in printed)
    found["loop.sizes_as_printed"] = sum(abs(loop["growth"] - _order(p["entries"])) <= 0.25 for _, loop, p in printed)
    pairs = [row for row in rows if row["paper_scheme"] and row["cost"]["heads"] == 2]
    theirs, ours = ([row[k]["float64"]["error"] for row in pairs] for k in ("paper_scheme", "accuracy"))
    found |= {"paper_heads": extremes(theirs), "our_heads": extremes(ours)}
    return found | {"gain": extremes(a / b for a, b in zip(theirs, ours, strict=True))}


def _within(row: Numbers) -> dict[str, bool]:
    """Whether an operation is within what Table 1 and Theorem 2.1 print."""
    cost, printed = row["cost"], row["printed"]
    counts = {key: cost[key] <= int(printed[key]) for key in ("layers", "heads")}
    return counts | {"size": row["growth"] <= _order(printed["entries"]) + 0.25}


def _order(printed: str) -> int:
    """The exponent of what Table 1 prints; a logarithm counts nothing."""
    return {"O(n)": 1, "O(n log n)": 1, "O(n^2)": 2, "O(n^3)": 3}[printed]


def _layers(printed: str, n: int) -> int:
    return int(printed.removesuffix("n")) * (n if printed.endswith("n") else 1)


def _compiled() -> Numbers:
    """Theorem 3.1, the library of programs, the time of an iteration over NumPy's, the FFN of Lemma 3.2 as fitted."""
    (cg,) = RESULTS.document("conjugate-gradients")["algorithms"]
    found = {f"cg.{field}": cg[field] for field in ("layers", "start_layers", "error", "reference_error")}
    found |= {f"cg.{kind}": cg[kind]["1e-06"] for kind in ("iterations", "reference_iterations")}
    library = [row for row in RESULTS.document("algorithms/table")["algorithms"] if row["name"] != "cg"]
    found |= {"library.count": len(library), "library.layers": extremes(row["layers"] for row in library)}
    found["library.deviation"] = max(row["last_deviation"] for row in library)
    speeds, fits = (RESULTS.document(f"algorithms/{name}")["measurements"] for name in ("speed", "fit"))
    found["cg.slower"] = extremes(row["seconds"] / row["numpy_seconds"] for row in speeds)
    return found | {f"fit.n{row['n']}.width{row['width']}": row["median"] for row in fits}


def _systems() -> Numbers:
    document = RESULTS.document("systems")
    condition, smallest, sigmas = document["condition"], document["smallest_eigenvalue"], [f"{s:g}" for s in SIGMAS]
    found = {f"condition.{key}.most_systems": [row[0], row[-1]] for key, row in condition.items()}
    found |= {"condition.without": condition["without"][1], "condition": [condition[s][1] for s in sigmas]}
    return found | {"count": document["count"], "smallest_eigenvalue": [smallest[s] for s in sigmas]}


# --- section 4 ---


def _runs() -> Numbers:
    """What the runs with the paper's loss come to."""
    found: Numbers = {"result.systems": _of(RESULT)[0]["count"], "result.steps": RESULT.steps}
    for key, config in {"result": RESULT, "cg": CG}.items():
        found[f"{key}.iterations.1e-4"] = extremes(iterations(row["model"], 1e-4) for row in _of(config))
    found["result.last_error"] = extremes(row["model"][-1] for row in _of(RESULT))
    found["cg.overtaken"] = max(overtaken(row["model"], row["cg"]) for row in _of(CG))
    found["pcg.iterations"] = iteration_counts(_of(PCG)[0]["model"])
    for t in (1, 6, 11):
        ratios = (row["deviation"][t] / row["cg"][t] for row in (*_of(RESULT), *_of(JOINT)))
        found[f"imitating.deviation_over_cg_error.{t}"] = extremes(ratios)
    for teacher in TEACHERS:
        theirs = iteration_counts(_of(CG)[0][teacher])
        found |= {f"{teacher}_itself.iterations": theirs, f"{teacher}_itself.iterations.1e-4": theirs[-1]}
    return found


def _elsewhere() -> Numbers:
    """Last errors on other systems of models trained at sigma 1.2 to be faster than CG."""
    labels = {"sigma1.4": "spd, sigma 1.4", "sigma1.8": "spd, sigma 1.8", "doubled": "A and b times 2"}
    runs = [RESULTS.run(name).evaluations for name in plan.seeds_of(CG)]
    return {key: extremes(run[label]["model"][-1] for run in runs) for key, label in labels.items()}


def _discrepancy() -> Numbers:
    """Tables 2 and 3, beside the zero predictor, the start of the runs and an untrained model with a random probe."""
    random = fmean(RESULTS.document("untrained")["discrepancy"])
    first = RESULTS.run(plan.name_of(JOINT))
    found: Numbers = {"random": random, "zero": silent_discrepancy(first)}
    found["zero.shifted"] = fmean(first.own["silence"][1 : JOINT.n])
    runs = [RESULTS.run(name) for config in (RESULT, JOINT, CG) for name in plan.seeds_of(config)]
    found["begin"] = fmean(run.history["discrepancy"][0] for run in runs)
    for key, config in {"result": RESULT, "joint": JOINT, "cg": CG}.items():
        ends = [row["discrepancy"] for row in _of(config)]
        found[key] = extremes(ends)
        found[f"{key}.shifted"] = extremes(fmean(row["intermediate"][1:20]) for row in _of(config))
    return found


def _intermediate() -> Numbers:
    """Figure 5b: where the worst joint seed is closer than the best of result, and than the zero predictor."""
    joint, result = (list(zip(*(row["intermediate"] for row in _of(run)), strict=True)) for run in (JOINT, RESULT))
    found: Numbers = {"iterates": len(joint), "joint.2": extremes(joint[2]), "result.2": extremes(result[2])}
    found["closer"] = sum(max(ours) < min(theirs) for ours, theirs in zip(joint, result, strict=True))
    silence = _of(JOINT)[0]["silence"]
    return found | {"beats_zero": sum(max(ours) < nothing for ours, nothing in zip(joint, silence, strict=True))}


def _eta() -> Numbers:
    """Figure 4b: mean errors relative to that at the paper's choice."""
    ratios = {eta: mean_error(run.own["model"]) / _score(JOINT) for eta, run in RESULTS.runs(ETA).items()}
    others = [ratio for eta, ratio in ratios.items() if eta not in (0.05, 0.0005)]
    found: Numbers = {"none": _score(RESULT) / _score(JOINT), "others": extremes(others)}
    return found | {f"{eta:g}": ratio for eta, ratio in ratios.items()} | {"luck": _luck(JOINT, len(ETA) - 1)}


def _lambda() -> Numbers:
    """Figure 6, and the lead over CG beside (1 + lambda)^2, what the minimizer of the loss has."""
    ratios = {weight: typical(lead_curve(run)) / law(weight) for weight, run in RESULTS.runs(LAMBDA).items()}
    found: Numbers = {f"{weight:g}.lead_over_law": ratio for weight, ratio in ratios.items()}
    found |= {f"{weight:g}.mean_error": _score(plan.accelerated(lambda_=weight)) for weight in LAMBDA}
    found["law"] = extremes(ratios[weight] for weight in plan.LAMBDAS)  # the paper's; we also have 30 and 100
    return found | {"luck": _luck(CG, len(plan.LAMBDAS) - 1), "luck.single": _luck(CG, single=True)}


def _sigma() -> Numbers:
    """Figure 7, our loss: iterations saved, of seeds the least; one teacher against the other; conditioning."""
    saved: dict[tuple[str, float], list[float]] = {}
    for (teacher, s), config in OURS.items():
        most = [max(counts) for counts in zip(*(iteration_counts(row["model"]) for row in _of(config)), strict=True)]
        theirs = iteration_counts(_of(config)[0][teacher])
        saved[teacher, s] = [1 - ours / count for ours, count in zip(most, theirs, strict=True)]
    found: Numbers = {"cg.saved.1e-4": [saved["cg", s][-1] for s in SIGMAS]}
    found["saved"] = extremes(share for shares in saved.values() for share in shares)
    found["pcg.additional"] = extremes(1 / (1 - share) - 1 for s in SIGMAS for share in saved["pcg", s])
    for teacher in TEACHERS:
        rows = [row for s in SIGMAS for row in _of(OURS[teacher, s])]
        found[f"{teacher}.overtaken"] = extremes(overtaken(row["model"], row[teacher]) for row in rows)
    means = {
        key: [fmean(column) for column in zip(*(row["counts"]["model"]["mean"] for row in _of(config)), strict=True)]
        for key, config in OURS.items()
    }
    fewer = [[1 - p / c for p, c in zip(means["pcg", s], means["cg", s], strict=True)] for s in SIGMAS]
    tight = [share for row in fewer for share in row[2:]]  # to 1e-3 and 1e-4
    found |= {"teachers.tight": extremes(tight), "teachers.tight.mean": fmean(tight)}
    found |= {"teachers.loose": extremes(share for row in fewer for share in row[:2])}
    for method in ("cg", "model"):
        quarters = [row["counts"][method]["by_condition"] for s in SIGMAS for row in _of(OURS["cg", s])]
        ends = [pair for quarter in quarters for pair in zip(quarter[0], quarter[-1], strict=True)]
        found[f"condition.{method}.iterations"] = fmean(worst - best for best, worst in ends)
        found[f"condition.{method}.share"] = fmean(worst / best - 1 for best, worst in ends)
    return found


def _dimension() -> Numbers:
    """Figures 8 and 9, first rows: what the mean error is divided by where the embedding dimension doubles."""
    rows = [[_first(config.replace(d=d, heads=d // 32)) for d in plan.DIMENSIONS] for config in OURS.values()]
    steps = [less / more for row in rows for less, more in pairwise(row)]
    return {"factor": extremes(steps), "steps": len(steps), "better": sum(step > 1 for step in steps)}


def _window() -> Numbers:
    """Figures 8 and 9, second rows: a window of 15 beside the full one, over its iterates 6 to 20 and over all."""
    shorter, short, full = (
        [_of(config.replace(window=window))[0]["model"] for config in OURS.values()] for window in plan.WINDOWS
    )
    pairs = list(zip(short, full, strict=True))
    return {
        "whole": extremes(mean_error(ours) / mean_error(theirs) for ours, theirs in pairs),
        "late": extremes(mean_error(ours[5:]) / mean_error(theirs[5:]) for ours, theirs in pairs),
        "runs": len(pairs),
        "K15.1e-1": extremes(iteration_counts(curve)[0] for curve in short),
        "full.1e-1": extremes(iteration_counts(curve)[0] for curve in full),
        "K15.lost": sum(curve[-1] >= 1 for curve in short),
        "K10.lost": sum(curve[-1] >= 1 for curve in shorter),
    }


def _architectures() -> Numbers:
    configs = {(task.split()[0], name): config for (task, name), config in plan.over_architecture().items()}
    found = {f"{task}.{name}": _score(config) for (task, name), config in configs.items()}
    luck = {f"{task}.luck": _luck(configs[task, "nlaformer"], 4) for task in ("imitating", "faster")}
    return found | luck  # of four comparisons: two rivals in two tasks


# --- ours, beyond the paper ---


def _loops() -> Numbers:
    """The error at 2T over the error at T, and both where it grows most."""
    rows = [row for config in (RESULT, JOINT, OURS["cg", 1.2], OURS["pcg", 1.2]) for row in _of(config)]
    ends = sorted(((row["model"][-1], row["loops"][-1]) for row in rows), key=lambda pair: pair[1] / pair[0])
    growth = [last / first for first, last in ends]
    found: Numbers = {"runs": len(rows), "growing": sum(factor > 1 for factor in growth), "growth": extremes(growth)}
    return found | {"worst": list(ends[-1])}


def _seeds() -> Numbers:
    """The largest factor between the mean errors of seeds."""
    kinds = plan.from_seed(0)
    seen = [extremes(mean_error(row["model"]) for row in _of(config)) for config in kinds]
    return {"factor": max(most / least for least, most in seen), "kinds": len(kinds)}


def _rate() -> Numbers:
    """The learning rate: a constant one, and what falling below 6e-5 brings."""
    usual = (RESULT, JOINT, CG)
    constant = [_first(flat) / _first(falling) for flat, falling in zip(plan.constant_rate(), usual, strict=True)]
    gains = []
    for run in RESULTS.runs(ANNEALED).values():
        errors = [error for rate, error in late_errors(run) if rate <= 6e-5]
        gains.append(errors[0] / errors[-1])
    return {"constant": extremes(constant), "falling": extremes(gains)}


def _larger_lambda() -> Numbers:
    """A short training with lambda = 100 after one with 10, beside as many steps with 10; the digits of polishing."""
    stages = {"before": "lambda = 10", "control": "control", "after": "lambda = 100"}
    found: Numbers = {
        f"{teacher}.{key}": typical(lead_curve(RESULTS.run(LEAD[teacher, stage])))
        for teacher, (key, stage) in product(TEACHERS, stages.items())
    }
    found["steps"] = RESULTS.run(LEAD["cg", "lambda = 100"]).config.steps
    polished = {"bf16x3": "lr0.0002", "tf32": "tf32"}
    runs = {key: RESULTS.run(f"bundled-cg-accelerated-polished-{run}") for key, run in polished.items()}
    return found | {key: run.at(1.2)["model"][-1] for key, run in runs.items()}


def _bundled() -> Numbers:
    """The bundled models on fresh systems, their teachers, and the runs they come from."""
    fresh = bundled.fresh(RESULTS)
    at = {(name, s): fresh.at(name, s) for name in (*TEACHERS, *fresh.configs) for s in SIGMAS}
    counts = {key: iteration_counts(row["mean"], WITHIN_REACH) for key, row in at.items()}
    found: Numbers = {"count": fresh.count} | {f"{name}.{s:g}.iterations": c for (name, s), c in counts.items()}
    for name in fresh.configs:
        found |= {f"{name}.error.{t}": [at[name, s]["mean"][t] for s in SIGMAS] for t in (2, 4, 20)}
    for teacher, share in {"cg": 1 / 2, "pcg": 2 / 3}.items():
        name = f"{teacher}-accelerated"
        pairs = [pair for s in SIGMAS for pair in zip(counts[name, s], counts[teacher, s], strict=True)]
        found[f"{name}.missed"] = sum(ours > math.ceil(share * theirs) for ours, theirs in pairs)
    found["cg-imitation.1.2.last_error"] = at["cg-imitation", 1.2]["mean"][-1]
    imitation = at["cg-imitation", 1.2]["deviation"]
    found |= {"cg-imitation.deviation": max(imitation), "cg-imitation.deviation.mean": fmean(imitation[1:])}
    apart = [
        bundled.apart(fresh, name, RESULTS.run(plan.BUNDLED[name]), s, t)
        for name, s, t in product(fresh.configs, SIGMAS, (2, 20))
    ]
    return found | {"apart": max(apart), "agree": sum(each <= 3 for each in apart), "compared": len(apart)}


def _controls() -> Numbers:
    """The discrepancy of cg-imitation and cg-accelerated, by the run's own probe and by one that was fitted afterwards.

    And what a linear probe reads in the tokens of cg-imitation, its gain over random weights and the input.
    """
    models = RESULTS.document("controls")["models"]
    probes = [models[name]["discrepancy"] for name in ("cg-imitation", "cg-accelerated")]
    found: Numbers = {source: probes[0][source]["one"] for source in ("zero", "untrained")}
    for key, source in {"own": "own probe", "fitted": "trained"}.items():
        found[key] = [row[source]["one"] for row in probes]
    found["gain"] = [1 - fitted / min(found["zero"], found["untrained"]) for fitted in found["fitted"]]
    tokens = models["cg-imitation"]["own_token"]
    for key, vector in {"r": "r of CG", "d": "d of CG", "chebyshev": "d of Chebyshev"}.items():
        columns = (tokens[source][vector][1:3] for source in ("trained", "untrained", "products"))  # t = 2 and 4
        found[f"tokens.{key}"] = [trained - max(others) for trained, *others in zip(*columns, strict=True)]
    return found


def _learned_operations() -> Numbers:
    """Operations learned from random weights in one layer of two heads, beside the paper's constructed heads."""
    document = RESULTS.document("learned-operations")
    rows = [row for row in document["learned"] if row["variant"] == "eq. (1), two heads"]
    errors = {row["operation"]: median(row["errors"]) for row in rows}
    built = {row["operation"]: row["errors"]["paper's pair"] for row in document["constructed"]}
    reached = [name for name, error in errors.items() if error <= max(10 * built[name], 1e-6)]
    found: Numbers = {"errors": extremes(errors.values()), "paper_heads": max(built.values())}
    return found | {"reached": len(reached), "count": len(errors)}
