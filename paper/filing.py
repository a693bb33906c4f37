"""What is kept of a finished run: its evaluations beside CG and PCG, and its history thinned out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nlaformer.io import fingerprint
from nlaformer.learn import evaluate
from nlaformer.learn.evaluate import Trial
from nlaformer.learn.model import Solver, load_solver
from nlaformer.learn.recipes import Config
from nlaformer.learn.runs import read_manifest, read_metrics
from paper.plan import SIGMAS, Planned
from paper.results import RUNS, Record, Results

THRESHOLDS = evaluate.THRESHOLDS[:4]
COUNT = 512  # systems per evaluation, the paper's number
CURVES = 12  # of the error over the iterates, in the course of training
POINTS = 50  # of the learning rate and the loss


class Examiner:
    """Evaluates solvers; the systems and what CG and PCG make of them are worked out once."""

    def __init__(self, count: int = COUNT):
        self.count = count
        self._known: dict[tuple[Any, ...], Trial] = {}

    def examine(self, solver: Solver) -> dict[str, dict[str, Any]]:
        """The evaluations by label; in full on its own systems and at the paper's three sigmas, short elsewhere."""
        config = solver.config
        full = {evaluate.own_label(config), *(f"spd, sigma {sigma}" for sigma in SIGMAS)}
        found = {}
        for label, systems in evaluate.sets(config, self.count):
            scaled = config.sigma if "times" in label else ()
            key = (label, scaled, config.n, config.T)
            if key not in self._known:
                self._known[key] = evaluate.trial(label, systems, config.T)
            row = evaluate.judge(solver, self._known[key]).to_json()
            if label in full:
                found[label] = row | _more_loops(solver, self._known[key]) | _counts(solver, self._known[key])
            else:
                found[label] = {name: row[name] for name in ("count", "model", "cg", "pcg", "discrepancy")}
        return found


def _more_loops(solver: Solver, given: Trial) -> dict[str, list[float]]:
    """Mean squared relative errors in 2T iterations; a model that is spelt out cannot loop on."""
    if not solver.config.shared:
        return {}
    A, b, x = given.systems
    errors = evaluate.squared_relative_errors(solver.iterates(A, b, 2 * solver.config.T), x)
    return {"loops": errors.mean(0).tolist()}


def _counts(solver: Solver, given: Trial) -> dict[str, Any]:
    """The iterations each system needs, T + 1 where they do not suffice: over all, and by quarters of its condition.

    The thresholds are 1e-1, ..., 1e-4; the quarters go from the best conditioned systems to the worst.
    """
    A, b, x = given.systems
    condition = torch.linalg.cond(A)
    quarters = condition.argsort().tensor_split(4)
    found: dict[str, Any] = {"condition": [condition[quarter].median().item() for quarter in quarters], "counts": {}}
    for name, iterates in (("model", solver.iterates(A, b)), ("cg", given.cg.x), ("pcg", given.pcg.x)):
        errors = evaluate.squared_relative_errors(iterates, x)
        below = errors.unsqueeze(-1) <= torch.tensor(THRESHOLDS, dtype=errors.dtype)  # (count, T+1, threshold)
        first = torch.where(below.any(1), below.int().argmax(1), errors.shape[1]).double()  # (count, threshold)
        found["counts"][name] = {
            "mean": first.mean(0).tolist(),
            "deviation": first.std(0, correction=0).tolist(),
            "reached": below.any(1).double().mean(0).tolist(),
            "by_condition": [first[quarter].mean(0).tolist() for quarter in quarters],
        }
    return found


def file_run(
    run: Planned, folder: Path, stack: Sequence[Planned], results: Results, examiner: Examiner, device: torch.device
) -> Record:
    """Evaluate a finished run, which was trained in a stack, and keep its numbers."""
    manifest = read_manifest(folder)
    solver: Solver = load_solver(folder).to(device)
    document = {
        "name": run.name,
        "config": run.config.to_json(),
        "state": manifest["state"],
        "steps": manifest["steps"],
        "seconds": manifest["seconds_in_all"],
        "stack": [member.name for member in stack],
        "trained": {name: manifest[name] for name in ("device", "engine", "arithmetic", "commit", "written")},
        "history": history(read_metrics(folder), run.config),
        "weights": fingerprint(folder),
        "own": evaluate.own_label(run.config),
        "evaluations": examiner.examine(solver),
    }
    results.write(f"{RUNS}/{run.name}.json", document)
    return Record(run.name, document)


def history(lines: Sequence[dict[str, Any]], config: Config) -> dict[str, Any]:
    """A run's metrics as columns: validations, some of their curves of errors, loss and learning rate."""
    validations = [line for line in lines if "validation" in line]
    curves = _spread(validations, CURVES, config.steps)
    training = _every(lines := [line for line in lines if "loss" in line], math.ceil(len(lines) / POINTS))
    return {
        "step": [line["step"] for line in validations],
        "discrepancy": [line["validation"]["discrepancy"] for line in validations],
        "final_error": [line["validation"]["squared_relative_error"][-1] for line in validations],
        "curves": {
            "step": [line["step"] for line in curves],
            "squared_relative_error": [line["validation"]["squared_relative_error"] for line in curves],
        },
        "training": {name: [line[name] for line in training] for name in ("step", "loss", "lr")},
    }


def _spread(lines: Sequence[dict[str, Any]], count: int, steps: int) -> list[dict[str, Any]]:
    """At most so many lines, the first and the last among them, denser at the beginning."""
    wanted = [steps * (k / (count - 1)) ** 2 for k in range(count)]
    nearest = {min(range(len(lines)), key=lambda k: abs(lines[k]["step"] - step)) for step in wanted} if lines else ()
    return [lines[k] for k in sorted(nearest)]


def _every(lines: Sequence[dict[str, Any]], stride: int) -> list[dict[str, Any]]:
    """Every so many lines, and the last."""
    return [line for k, line in enumerate(lines) if k % max(stride, 1) == 0 or k == len(lines) - 1]
