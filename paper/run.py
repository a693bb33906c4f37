"""Training the runs of the plan: stack after stack within a budget of time, each filed as soon as it is finished.

A folder holds a subfolder for each run, and ``stack.json`` while a stack is being trained: whatever stopped the
process, the next one resumes that stack. Weights that are kept are copied to its subfolder ``weights``.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from nlaformer import pretrained
from nlaformer.errors import FileError
from nlaformer.io import WEIGHTS_FILE, copy, fingerprint, locked_folder, replace_file
from nlaformer.learn import trainer
from nlaformer.learn.checkpoint import MANIFEST, read_manifest
from nlaformer.learn.model import load_solver
from nlaformer.learn.progress import duration
from nlaformer.learn.ranks import pick_device
from nlaformer.learn.recipes import Config
from paper.examine import file_run
from paper.plan import BUNDLED, WEIGHTS, Planned, stacks
from paper.results import RUNS, Results

STACK_FILE = "stack.json"
_RESERVE = 45.0  # seconds to save or to evaluate a stack before the budget is spent
_CHECKPOINTS, _VALIDATIONS = 5, 40  # in a run
_VALIDATION_GAP = 1000  # steps between validations at least


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
) -> list[Planned]:
    """Make the missing runs, the most valuable first, until a deadline of ``time.monotonic``; return those missing."""
    wanted, where = list(wanted), pick_device(device)
    if math.isfinite(deadline):
        deadline -= min(_RESERVE, 0.15 * max(deadline - time.monotonic(), 0))
    if not missing(wanted, results):
        return []
    with locked_folder(folder):
        _fetch_bundled(missing(wanted, results), folder, results)
        while due := missing(wanted, results):
            if deadline <= time.monotonic():
                say(f"Out of time: {len(due)} runs are missing. The same command resumes.")
                return due
            stack = _interrupted(folder, wanted, due) or stacks(_ready(due, folder, results))[0]
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
        names = [str(name) for name in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"{path} is damaged ({error}); remove it to start its stack again") from error
    known = {run.name: run for run in wanted}
    stack = [known[name] for name in names] if all(name in known for name in names) else []
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
