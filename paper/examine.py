"""What is filed of a finished run: its evaluations beside CG and PCG, and its validations.

Exploratory runs are evaluated on many sets of systems, confirmatory runs on the test systems of protocol.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nlaformer.io import fingerprint
from nlaformer.learn import evaluate
from nlaformer.learn.checkpoint import read_manifest, read_metrics
from nlaformer.learn.evaluate import Trial
from nlaformer.learn.model import Solver, load_solver
from nlaformer.learn.recipes import Config
from paper.curves import THRESHOLDS
from paper.plan import SIGMAS, Planned
from paper.results import RUNS, Record, Results

_COUNT = 512  # systems of an evaluation, the paper's number
_CONFIRMATORY_SEED, _CONFIRMATORY_COUNT = 8_100_000, 4096  # the test systems of protocol.md


def examine(solver: Solver) -> dict[str, dict[str, Any]]:
    """The evaluations by label: complete on its own systems and at the paper's sigmas, short elsewhere."""
    config = solver.config
    complete = {evaluate.own_label(config), *(f"spd, sigma {sigma}" for sigma in SIGMAS)}
    found = {}
    for given in _trials(config.family, config.sigma, config.n, config.T):
        row = evaluate.judge(solver, given).to_json()
        if given.label in complete:
            found[given.label] = row | _more_loops(solver, given) | _counts(solver, given)
        else:
            found[given.label] = {name: row[name] for name in ("count", "model", "cg", "pcg", "discrepancy")}
    return found


@cache
def _trials(family: str, sigma: tuple[float, ...], n: int, T: int) -> list[Trial]:
    """The systems for models of one family and size, with the iterates of CG and PCG on them."""
    config = Config(family=family, sigma=sigma, n=n, T=T)
    return [evaluate.trial(label, systems, T) for label, systems in evaluate.sets(config, _COUNT)]


def _more_loops(solver: Solver, given: Trial) -> dict[str, list[float]]:
    """Mean squared relative errors over 2T iterations, of models whose loop can be repeated."""
    if not solver.config.shared:
        return {}
    A, b, x = given.systems
    errors = evaluate.squared_relative_errors(solver.iterates(A, b, 2 * solver.config.T), x)
    return {"loops": errors.mean(0).tolist()}


def _counts(solver: Solver, given: Trial) -> dict[str, Any]:
    """The iterations that each system needs, T + 1 where T do not suffice: over all, and by quarters of its condition.

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


def confirm(solver: Solver) -> dict[str, Any]:
    """What protocol.md asks of a run, on its test systems: an evaluation, the failures, and the growth of tau."""
    config = solver.config
    systems = config.make_family().sample(_CONFIRMATORY_COUNT, _CONFIRMATORY_SEED)
    given = evaluate.trial(evaluate.own_label(config), systems, config.T)
    A, b, x = systems
    iterates = {"model": solver.iterates(A, b), "cg": given.cg.x}
    errors = {name: evaluate.squared_relative_errors(found, x) for name, found in iterates.items()}  # (count, T+1)
    quarters = torch.linalg.cond(A).argsort().tensor_split(4)  # from the best conditioned systems to the worst
    return evaluate.judge(solver, given).to_json() | {
        "failures": float((~(errors["model"][:, -1] < 1)).double().mean()),
        "crossing": {name: [crossings(e[q]).mean().item() for q in quarters] for name, e in errors.items()},
    }


def crossings(errors: Tensor, threshold: float = 1e-3) -> Tensor:
    """Tau of every system: where log e_t, interpolated in t, first falls to a threshold; T where it never does.

    >>> crossings(torch.tensor([[1.0, 1e-2, 1e-4], [1.0, 1.0, 1.0]])).tolist()
    [1.5, 2.0]
    """
    T = errors.shape[-1] - 1
    logs = torch.where(errors.isfinite(), errors, 1.0).clamp(min=1e-300).log()
    level = torch.tensor(threshold, dtype=logs.dtype).log()
    reached = logs <= level
    t = reached.int().argmax(-1).clamp(min=1)
    before, after = (logs.gather(-1, k.unsqueeze(-1)).squeeze(-1) for k in (t - 1, t))
    found = torch.where(reached[..., 0], 0.0, t - 1 + (level - before) / (after - before))
    return torch.where(reached.any(-1), found, float(T))


def file_run(run: Planned, folder: Path, stack: Sequence[str], results: Results, device: torch.device) -> Record:
    """Evaluate a finished run, which was trained in a stack, and file its numbers."""
    manifest = read_manifest(folder)
    solver: Solver = load_solver(folder).to(device)
    own = evaluate.own_label(solver.config)
    validations = [line for line in read_metrics(folder) if "validation" in line]
    results.write(
        f"{RUNS}/{run.name}",
        {
            "name": run.name,
            **({"group": run.group} if run.group else {}),
            "config": solver.config.to_json(),
            "state": manifest["state"],
            "steps": manifest["steps"],
            "seconds": manifest["seconds_in_all"],
            "stack": list(stack),
            "trained": {key: manifest[key] for key in ("device", "engine", "arithmetic", "commit", "written")},
            "history": {
                "step": [line["step"] for line in validations],
                "discrepancy": [line["validation"]["discrepancy"] for line in validations],
                "final_error": [line["validation"]["squared_relative_error"][-1] for line in validations],
            },
            "weights": fingerprint(folder),
            "own": own,
            "evaluations": {own: confirm(solver)} if run.group else examine(solver),
        },
    )
    return results.run(run.name)
