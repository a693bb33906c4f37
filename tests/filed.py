"""Runs filed with numbers made up, to bring a verdict about."""

from __future__ import annotations

from nlaformer.learn.evaluate import own_label
from paper import plan

CG = [1.0, 0.7, 0.3, 0.12, 0.05, 0.02, 0.005, 0.002, 5e-4, 1e-4, *[1e-5] * 11]
FLAT = [1.0] * 21


def put(results, config, model=FLAT, name=None, arithmetic="bf16", state="finished", history=None, **own):
    """A run with a curve of errors; everything else is plain."""
    counts = {"mean": [1.0] * 4, "reached": [1.0] * 4, "by_condition": [[1.0] * 4] * 4}
    row = {"model": model, "cg": CG, "pcg": CG, "deviation": [1e-3] * 21, "discrepancy": 0.1, "silence": [0.3] * 21,
           "intermediate": [0.1] * 21, "counts": dict.fromkeys(("model", "cg", "pcg"), counts),
           "condition": [10, 20, 30, 40], "loops": [*model, *model[-1:] * (len(model) - 1)]}  # fmt: skip
    labels = [own_label(config), *(f"spd, sigma {sigma}" for sigma in config.sigma)]
    document = {"config": config.to_json(), "own": labels[0], "state": state, "trained": {"arithmetic": arithmetic},
                "evaluations": dict.fromkeys(labels, row | own),
                "history": history or {"step": [0], "final_error": [1.0]}}  # fmt: skip
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
