"""Runs filed with numbers made up, to bring a verdict about."""

from __future__ import annotations

from nlaformer.learn.evaluate import own_label
from nlaformer.study import plan

CG = [1.0, 0.7, 0.3, 0.12, 0.05, 0.02, 0.005, 0.002, 5e-4, 1e-4, *[1e-5] * 11]
FLAT = [1.0] * 21


def put(results, config, model=FLAT, name=None, arithmetic="bf16", **own):
    """A run with a curve of errors; everything else is plain."""
    counts = {"mean": [1.0] * 4, "reached": [1.0] * 4, "by_condition": [[1.0] * 4] * 4}
    row = {"model": model, "cg": CG, "pcg": CG, "deviation": [1e-3] * 21, "discrepancy": 0.1, "silence": [0.3] * 21,
           "intermediate": [0.1] * 21, "counts": dict.fromkeys(("model", "cg", "pcg"), counts),
           "condition": [10, 20, 30, 40]}  # fmt: skip
    label = own_label(config)
    document = {"config": config.to_json(), "own": label, "evaluations": {label: row | own},
                "trained": {"arithmetic": arithmetic}}  # fmt: skip
    results.write(f"runs/{name or plan.name_of(config)}.json", document)


def judgements(verdicts):
    return [verdict.judgement for verdict in verdicts]


def scaled(factor):
    return [1.0] + [factor] * 20


def accelerate(results, cg, pcg):
    for teacher, factor in (("cg", cg), ("pcg", pcg)):
        for value in plan.SIGMAS:
            put(results, plan.accelerated(teacher, sigma=(value,)), faster(factor))


def faster(factor):
    return [CG[min(round(t * factor), 20)] for t in range(21)]
