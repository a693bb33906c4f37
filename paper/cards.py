"""The numbers of the model cards by their keys: of the bundled models, and of programs with learned parts."""

from __future__ import annotations

import re

from paper import bundled, plan
from paper.curves import extremes, iteration_counts
from paper.hypotheses import Numbers
from paper.plan import SIGMAS, TEACHERS
from paper.results import BENCHMARKS, Results


def bundled_models(results: Results) -> Numbers:
    """Settings, errors by iterate, how the last is spread, other systems, as rows of the tables."""
    found: Numbers = {}
    for name, run in plan.BUNDLED.items():
        record, fresh = results.run(run), bundled.fresh(results)
        config, own, rows = record.config, record.own, {s: record.at(s) for s in SIGMAS}
        numbers = {field: getattr(config, field) for field in ("batch", "lr", "power", "lambda_", "eta", "seed")}
        numbers |= {"seconds": record.document["seconds"], "stack": len(record.document["stack"])}
        numbers |= {"systems": own["count"], "steps": [stage.config.steps for stage in plan.lineage(run)]}
        for t in range(config.T + 1):
            numbers[f"t{t}"] = [row[method][t] for row in rows.values() for method in ("model", *TEACHERS)]
        for s, row in rows.items():
            spread = [row["standard_error"][-1], row["median"]["model"][-1], row["upper"]["model"][-1]]
            counts = [count for method in ("model", *TEACHERS) for count in iteration_counts(row[method])]
            numbers[f"sigma{s:g}"] = [row["model"][-1], *spread, *counts]
        numbers |= {"end": own["model"][-1], "end.cg": own["cg"][-1], "end.loops": own["loops"][-1]}
        for label, row in fresh.elsewhere(name).items():
            numbers["on." + re.sub(r"\W+", "-", label)] = [row[m][t] for t in (1, 2, -1) for m in ("model", "cg")]
        for kind in ("median", "mean", "largest"):
            numbers[f"fresh.{kind}"] = [fresh.at(name, s)[kind][-1] for s in SIGMAS]
        found |= {f"{name}.{key}": value for key, value in numbers.items()}
    return found


def learned_parts() -> Numbers:
    """From benchmarks/results: the first of three seeds, and all three where it says so.

    Lists go over the methods: learned, CG, Jacobi, diagonal plus rank one by hand.
    """
    benchmarks = Results(BENCHMARKS)
    found: Numbers = {}
    for name in ("learned-preconditioner", "guided-cg"):
        document = benchmarks.document(name)
        first, *_ = models = list(document["models"].values())
        numbers: Numbers = {field: first["config"][field] for field in ("steps", "batch", "lr", "seed")}
        numbers |= {"systems": document["count"], "seeds": len(models), "seconds": first["training"]["seconds_in_all"]}
        numbers["kept"] = [sum(sum(model["kept"].values()) for model in models), sum(len(m["kept"]) for m in models)]
        for label, family in first["families"].items():
            row, key = family["comparison"], re.sub(r"\W+", "-", label)
            for t in (*range(1, 11), 12, 14, 20, 40):
                numbers[f"{key}.t{t}"] = [curve[t] for curve in row["mean"].values()]
            for of in ("median", "largest"):
                numbers[f"{key}.{of}"] = [row[of]["learned"][t] for t in (5, 10)]
            numbers[f"{key}.residual"] = list(row["to_residual"].values())
            for method in ("learned", "CG"):
                if None not in (iterations := row["iterations_to"]["mean"][method]):  # all thresholds were reached
                    numbers[f"{key}.iterations.{method.lower()}"] = iterations
            if (products := family.get("products")) is not None:
                numbers[f"{key}.products"] = [products[k] for k in ("mean", "cg_mean", "more", "most_more", "failures")]
            curves = [model["families"][label]["comparison"]["mean"]["learned"] for model in models]
            numbers |= {f"{key}.seeds.t{t}": extremes(curve[t] for curve in curves) for t in (5, 10)}
        found |= {f"{name}.{key}": value for key, value in numbers.items()}
    for name, family in (("guided-nonlinear", "cubic"), ("learned-preconditioner-diffusion", "poisson-2d")):
        rows = [model["families"][family]["to_residual"] for model in benchmarks.document(name)["models"].values()]
        found[f"{name}.residual"] = extremes(row["learned"] for row in rows)
        found[f"{name}.rivals"] = [count for rival, count in rows[0].items() if rival != "learned"]
    foreign = benchmarks.document("foreign")
    found["learned-preconditioner.products.systems"] = foreign["families"][0]["count"]
    for row in foreign["families"]:
        key = "learned-preconditioner.products." + re.sub(r"\W+", "-", row["family"])
        found[key] = [row[field] for field in ("mean", "cg_mean", "more", "most_more", "failures")]
    return found
