"""Training the runs of the plan: stack after stack within a budget of time, each filed as soon as it is finished.

A folder holds a subfolder for each run, and ``stack.json`` while a stack is being trained: whatever stopped the
process, the next one resumes that stack. Weights that are kept are copied to its subfolder ``weights``. Exploratory
runs are evaluated on many sets of systems, confirmatory runs on the test systems of protocol.md.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nlaformer import pretrained
from nlaformer.errors import FileError
from nlaformer.io import WEIGHTS_FILE, copy, fingerprint, locked_folder, make_folder, replace_file
from nlaformer.learn import evaluate, trainer
from nlaformer.learn.checkpoint import MANIFEST, read_manifest, read_metrics
from nlaformer.learn.evaluate import Trial
from nlaformer.learn.model import Solver
from nlaformer.learn.models import load_solver
from nlaformer.learn.progress import duration
from nlaformer.learn.ranks import pick_device
from nlaformer.learn.recipes import Config
from nlaformer.problems import Family
from paper.curves import FIRST_THRESHOLDS
from paper.plan import BUNDLED, SIGMAS, STACK, WEIGHTS, Planned, stacks
from paper.quantities import crossings
from paper.results import RUNS, Record, Results

STACK_FILE = "stack.json"
_RESERVE = 45.0  # seconds to save or to evaluate a stack before the budget is spent
_CHECKPOINTS, _VALIDATIONS = 5, 40  # in a run
_VALIDATION_GAP = 1000  # steps between validations at least
_COUNT = 512  # systems of an evaluation, the paper's number
TEST_SEED, TEST_COUNT = 8_100_000, 4096  # the test systems of protocol.md


def missing(wanted: Iterable[Planned], results: Results) -> list[Planned]:
    """The runs whose numbers are not there yet."""
    return [run for run in wanted if not results.has_run(run.name)]


def make(
    wanted: Iterable[Planned],
    folder: Path,
    results: Results,
    deadline: float = math.inf,
    device: str | None = None,
    say: Callable[[str], None] = print,
    most: int = STACK,
) -> list[Planned]:
    """Make the missing runs, the most valuable first, until a deadline of ``time.monotonic``; return those missing.

    At most so many train together, as one stack.
    """
    wanted, where = list(wanted), pick_device(device)
    if math.isfinite(deadline):
        deadline -= min(_RESERVE, 0.15 * max(deadline - time.monotonic(), 0))
    if not missing(wanted, results):
        return []
    make_folder(results.folder / RUNS)  # a place that cannot be written is found before the training
    with locked_folder(folder):
        _fetch_bundled(missing(wanted, results), folder, results)
        while due := missing(wanted, results):
            if deadline <= time.monotonic():
                say(f"Out of time, runs missing: {len(due)}. The same command resumes.")
                return due
            stack = _interrupted(folder, wanted, due) or stacks(_ready(due, folder, results), most)[0]
            _check_start(stack, folder, results)
            replace_file(folder / STACK_FILE, json.dumps([run.name for run in stack]).encode())
            say(f"Training {len(stack)} of {len(due)} missing runs: " + ", ".join(run.name for run in stack))
            begun = time.monotonic()
            if not _train(stack, folder, max(deadline - begun, 1e-3) / 60, where):
                done = read_manifest(folder / stack[0].name)["steps"]
                say(f"Saved after {duration(time.monotonic() - begun)}, step {done} of {stack[0].config.steps}.")
                continue
            say(f"Trained in {duration(time.monotonic() - begun)}; evaluating.")
            for run in stack:  # before the numbers are filed: then the run counts as done
                if run.keep:
                    copy(folder / run.name, folder / WEIGHTS / run.name)
            for run in missing(stack, results):
                record = file_run(run, folder / run.name, [member.name for member in stack], results, where)
                say(f"  {run.name}: {record.document['state']}, last error {record.own['model'][-1]:.3g}")
            (folder / STACK_FILE).unlink()
    return []


def _train(stack: Sequence[Planned], folder: Path, minutes: float, device: torch.device) -> bool:
    """Train a stack, or resume it; whether it is finished."""
    folders, configs = [folder / run.name for run in stack], [run.config_in(folder) for run in stack]
    if all(map(_finished, folders, configs)):
        return True
    steps = configs[0].steps
    runs = trainer.train_into(
        configs,
        folders,
        trainer.RunOptions(
            device=device,
            checkpoint_every=max(steps // _CHECKPOINTS, 1),
            validate_every=max(steps // _VALIDATIONS, min(_VALIDATION_GAP, steps // _CHECKPOINTS), 1),
            minutes=None if math.isinf(minutes) else minutes,
        ),
    )
    return all(run.steps == steps or run.diverged for run in runs)


def _finished(folder: Path, config: Config) -> bool:
    """Whether a folder holds the finished run of this config; the trainer refuses a folder of another."""
    ended = (folder / MANIFEST).exists() and read_manifest(folder)["state"] in ("finished", "diverged")
    return ended and load_solver(folder).config == config


def _interrupted(folder: Path, wanted: Sequence[Planned], due: Sequence[Planned]) -> list[Planned]:
    """The stack that was being trained when the last process stopped, if its runs are wanted and not all filed."""
    path = folder / STACK_FILE
    if not path.exists():
        return []
    try:
        names = json.loads(path.read_text())
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("expected a list of names")
        if len(set(names)) < len(names):
            raise ValueError("it names a run twice")
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is damaged ({error}); remove it to start its stack again") from error
    known = {run.name: run for run in wanted}
    stack = [known[name] for name in names] if all(name in known for name in names) else []
    if len(stacks(stack, len(stack))) > 1:
        raise FileError(f"{path} names runs that cannot train together; remove it to start them again")
    return stack if any(run in due for run in stack) else []


# --- runs that start from the weights of another ---


def _fetch_bundled(due: Sequence[Planned], folder: Path, results: Results) -> None:
    """Copy weights that runs start from out of the bundled models, where those are the ones that were filed."""
    for name, parent in BUNDLED.items():
        home, start = pretrained.HOME / name, folder / WEIGHTS / parent
        wanted = any(run.after == parent for run in due) and not start.exists() and results.has_run(parent)
        if wanted and results.run(parent).document["weights"] == fingerprint(home):
            copy(home, start)


def _ready(due: Sequence[Planned], folder: Path, results: Results) -> list[Planned]:
    """The runs that can be made now: those that start from the weights of another need these."""
    ready = [run for run in due if run.after is None or (folder / WEIGHTS / run.after).exists()]
    if not ready:
        run = due[0]
        raise FileError(
            f"{run.name} starts from the weights of {run.after}, and there is no {folder / WEIGHTS / str(run.after)}; "
            f"remove {results.folder / RUNS / f'{run.after}.json'} to make that run again"
        )
    return ready


def _check_start(stack: Sequence[Planned], folder: Path, results: Results) -> None:
    """Refuse to start from weights other than those whose numbers are filed."""
    for run in stack:
        start = folder / WEIGHTS / str(run.after)  # a run that is resumed does not need them
        if run.after is None or not results.has_run(run.after) or not (start / WEIGHTS_FILE).exists():
            continue
        if results.run(run.after).document["weights"] != fingerprint(start):
            raise FileError(
                f"{run.name} starts from the weights of {run.after}, and those in {start} are not the ones of its "
                f"numbers; put the right ones there, or remove {results.folder / RUNS / f'{run.after}.json'}"
            )


# --- what is filed ---


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
            "trained": {key: manifest[key] for key in ("device", "engine", "arithmetic", "commit", "written")}
            | ({"commit": results.commit} if results.commit else {}),  # where the history is not that of the files
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


def examine(solver: Solver) -> dict[str, dict[str, Any]]:
    """The evaluations by label: complete on its own systems and at the paper's sigmas, short elsewhere.

    A complete one has the mean errors over 2T iterations as "loops".
    """
    config = solver.config
    complete = {evaluate.own_label(config), *(f"spd, sigma {sigma}" for sigma in SIGMAS)}
    found = {}
    for given in _trials(config.family, config.sigma, config.n, config.T):
        row = evaluate.judge(solver, given).to_json()
        if given.label in complete:
            if config.shared:  # its loop can be repeated
                A, b, x = given.systems
                errors = evaluate.squared_relative_errors(solver.iterates(A, b, 2 * config.T), x)
                row["loops"] = errors.mean(0).tolist()
            found[given.label] = row | _counts(solver, given)
        else:
            found[given.label] = {name: row[name] for name in ("count", "model", "cg", "pcg", "discrepancy")}
    return found


@cache
def _trials(family: str, sigma: tuple[float, ...], n: int, T: int) -> list[Trial]:
    """The systems for models of one family and size, with the iterates of CG and PCG on them."""
    config = Config(family=family, sigma=sigma, n=n, T=T)
    return [evaluate.trial(label, systems, T) for label, systems in evaluate.sets(config, _COUNT)]


def _counts(solver: Solver, given: Trial) -> dict[str, Any]:
    """Iterations to each threshold by system, T + 1 where T do not suffice; quarters: best conditioned first."""
    A, b, x = given.systems
    condition = torch.linalg.cond(A)
    quarters = condition.argsort().tensor_split(4)
    found: dict[str, Any] = {"condition": [condition[quarter].median().item() for quarter in quarters], "counts": {}}
    for name, iterates in (("model", solver.iterates(A, b)), ("cg", given.cg.x), ("pcg", given.pcg.x)):
        errors = evaluate.squared_relative_errors(iterates, x)
        below = errors.unsqueeze(-1) <= torch.tensor(FIRST_THRESHOLDS, dtype=errors.dtype)  # (count, T+1, threshold)
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
    given, quarters = _test_systems(config.make_family(), evaluate.own_label(config), config.T)
    A, b, x = given.systems
    iterates = {"model": solver.iterates(A, b), "cg": given.cg.x}
    errors = {name: evaluate.squared_relative_errors(found, x) for name, found in iterates.items()}  # (count, T+1)
    return evaluate.judge(solver, given).to_json() | {
        "failures": float((~(errors["model"][:, -1] < 1)).double().mean()),
        "crossing": {name: [crossings(e[q]).mean().item() for q in quarters] for name, e in errors.items()},
    }


@cache
def _test_systems(family: Family, label: str, T: int) -> tuple[Trial, Sequence[Tensor]]:
    """The test systems of protocol.md, with CG and PCG, and their quarters from the best conditioned to the worst."""
    given = evaluate.trial(label, family.sample(TEST_COUNT, TEST_SEED), T)
    return given, torch.linalg.cond(given.systems.A).argsort().tensor_split(4)
