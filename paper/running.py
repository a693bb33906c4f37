"""Training the study's runs: stack after stack, within a budget of minutes, each filed as soon as it is finished.

A folder holds one subfolder per run, and ``stack.json`` while a stack is under way: whatever stopped the process, the
next one goes on with that stack. The weights of runs that are to be bundled are kept in its subfolder ``weights``.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from nlaformer import pretrained
from nlaformer.arrays import threads_for
from nlaformer.errors import FileError
from nlaformer.io import WEIGHTS_FILE, copy, fingerprint, locked_folder, replace_file
from nlaformer.learn import trainer
from nlaformer.learn.engine import make_engine
from nlaformer.learn.model import load_solver
from nlaformer.learn.progress import duration
from nlaformer.learn.ranks import pick_device
from nlaformer.learn.recipes import Config, shape_of
from nlaformer.learn.runs import MANIFEST, read_manifest
from paper.filing import Examiner, file_run
from paper.plan import BUNDLED, WEIGHTS, Planned, stacks
from paper.results import RUNS, Results

RESERVE = 45.0  # seconds for saving a stack, or for its evaluation, before the budget is spent
STACK = "stack.json"
_CHECKPOINTS, _VALIDATIONS = 5, 40  # in a run
_MORE = 1.1  # what they add to the time of the steps
_BESIDE = 2  # a stack's own share of a step's time on a GPU, in members
_APART = 1000  # steps between validations at least: they take time


def missing(wanted: Iterable[Planned], results: Results) -> list[Planned]:
    """The runs whose numbers are not there yet."""
    return [run for run in wanted if not (results.folder / RUNS / f"{run.name}.json").exists()]


def carry_out(
    wanted: Iterable[Planned],
    folder: Path,
    results: Results,
    deadline: float = math.inf,
    speeds: Speeds | None = None,
    say: Callable[[str], None] = print,
) -> list[Planned]:
    """Make the runs that are missing, the most valuable that fit before a deadline first; gives those still missing.

    The deadline is one of ``time.monotonic``; ``speeds`` names the device.
    """
    wanted, speeds = list(wanted), speeds or Speeds()
    where, examiner = speeds.device, Examiner()
    if math.isfinite(deadline):
        deadline -= min(RESERVE, 0.15 * max(deadline - time.monotonic(), 0))
    if not missing(wanted, results):
        return []
    with locked_folder(folder):
        _fetch_beginnings(missing(wanted, results), results)
        while due := missing(wanted, results):
            if deadline <= time.monotonic():
                say(f"The time is up; {len(due)} runs are still to be made. The same command goes on.")
                return due
            stack = _under_way(folder, wanted, due) or fitting(_ready(due, results), deadline, speeds, say)
            _check_beginnings(stack, results)
            replace_file(folder / STACK, json.dumps([run.name for run in stack]).encode())
            say(f"Training {len(stack)} of {len(due)} runs to make: " + ", ".join(run.name for run in stack))
            begun = time.monotonic()
            left = max(deadline - begun, 1e-3)  # choosing took some of it
            if not _train(stack, folder, left / 60, where):
                say(f"Not finished after {duration(time.monotonic() - begun)}: step {_step(stack, folder)}. Saved.")
                continue
            say(f"Trained in {duration(time.monotonic() - begun)}; evaluating.")
            _keep_weights(stack, folder)  # before their numbers: a run whose numbers are there is done with
            for run in missing(stack, results):
                record = file_run(run, folder / run.name, stack, results, examiner, where)
                say(f"  {run.name}: {record.summary()}")
            (folder / STACK).unlink()
    return []


def _fetch_beginnings(due: Sequence[Planned], results: Results) -> None:
    """Weights that runs begin with and that are not there: from the bundled models, where they are the ones filed."""
    bundled = {run: pretrained.HOME / name for name, run in BUNDLED.items()}
    for run in due:
        if run.config.start is None or run.begins_with not in bundled or Path(run.config.start).exists():
            continue
        record, home = results.run(run.begins_with), bundled[run.begins_with]
        if record is not None and home.exists() and record.document.get("weights") == fingerprint(home):
            copy(home, Path(run.config.start))


def _ready(due: Sequence[Planned], results: Results) -> list[Planned]:
    """The runs that can be made now: those that begin with the weights of another need these."""
    ready = [run for run in due if run.config.start is None or Path(run.config.start).exists()]
    if not ready:
        run = due[0]
        raise FileError(
            f"{run.name} begins with the weights of {run.begins_with}, and there is no {run.config.start}; remove "
            f"{results.folder / RUNS / f'{run.begins_with}.json'} to make that run again"
        )
    return ready


def _check_beginnings(stack: Sequence[Planned], results: Results) -> None:
    """Refuse to begin with weights that are not those of the numbers filed: the run would not be what it says."""
    for run in stack:
        record = None if run.begins_with is None else results.run(run.begins_with)
        start = Path(run.config.start or "")
        if record is None or not (start / WEIGHTS_FILE).exists():  # a run that goes on needs them no more
            continue
        if record.document.get("weights") not in (None, fingerprint(start)):  # the first runs were filed without
            raise FileError(
                f"{run.name} begins with the weights of {record.name}, and those in {start} are not the ones of its "
                f"numbers; put the right ones there, or remove {results.folder / RUNS / f'{record.name}.json'}"
            )


def _under_way(folder: Path, wanted: Sequence[Planned], due: Sequence[Planned]) -> list[Planned]:
    """The stack that was under way when the process before stopped, if its runs are wanted and not all filed."""
    path = folder / STACK
    if not path.exists():
        return []
    try:
        names = [str(name) for name in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"{path} is damaged ({error}); remove it to start its stack again") from error
    known = {run.name: run for run in wanted}
    stack = [known[name] for name in names] if all(name in known for name in names) else []
    return stack if any(run in due for run in stack) else []


def _train(stack: Sequence[Planned], folder: Path, minutes: float, device: torch.device) -> bool:
    """Train a stack, or go on with it; whether it has come to its end."""
    folders = [folder / run.name for run in stack]
    if all(_finished(run, place) for run, place in zip(stack, folders, strict=True)):
        return True
    steps = stack[0].config.steps
    runs = trainer.train_into(
        [run.config for run in stack],
        folders,
        trainer.RunOptions(
            device=device,
            checkpoint_every=max(steps // _CHECKPOINTS, 1),
            validate_every=max(steps // _VALIDATIONS, min(_APART, steps // _CHECKPOINTS), 1),
            minutes=None if math.isinf(minutes) else minutes,
        ),
    )
    return all(run.steps == steps or run.diverged for run in runs)


def _finished(run: Planned, folder: Path) -> bool:
    """Whether a run is there to be filed; one of another config is not it, and the trainer refuses its folder."""
    ended = (folder / MANIFEST).exists() and read_manifest(folder)["state"] in ("finished", "diverged")
    return ended and load_solver(folder).config == run.config


def _step(stack: Sequence[Planned], folder: Path) -> str:
    done = read_manifest(folder / stack[0].name)["steps"]
    return f"{done} of {stack[0].config.steps}"


def _keep_weights(stack: Sequence[Planned], folder: Path) -> None:
    """A copy of the models that are to be bundled, without the checkpoints around them."""
    for run in stack:
        if run.keep:
            copy(folder / run.name, folder / WEIGHTS / run.name)


class Speeds:
    """How long stacks take on a device: a few steps of each are run and timed, once for a shape and a size."""

    def __init__(self, device: str | None = None):
        self.device = pick_device(device)
        self.one_by_one = self.device.type == "cpu"  # members train one after another: one of them tells
        self._known: dict[str, float] = {}

    def seconds(self, stack: Sequence[Planned]) -> float:
        """How long the training of a stack takes."""
        configs = [run.config.replace(start=None) for run in stack]  # whose weights are perhaps not there yet
        timed = configs[:1] if self.one_by_one else configs
        key = repr((len(timed), shape_of(configs[0])))
        if key not in self._known:
            self._known[key] = _seconds_per_step(timed, self.device)
        return _MORE * self._known[key] * configs[0].steps * len(configs) / len(timed)

    def count(self, stack: Sequence[Planned], left: float) -> int:
        """How many runs of a stack, trained as one, take no more than the seconds left."""
        share, beside = left / self.seconds(stack), 0 if self.one_by_one else _BESIDE
        return len(stack) if share >= 1 else max(int(share * (len(stack) + beside)) - beside, 0)


def fitting(
    due: Sequence[Planned], deadline: float, speeds: Speeds, say: Callable[[str], None] = print
) -> list[Planned]:
    """The most valuable stack that can be finished before a deadline, with as many of its runs as can.

    Where none can, the most valuable one, on a CPU its first run: it is begun now and goes on another time.
    """
    candidates = stacks(due)
    if not math.isfinite(deadline):
        return candidates[0]
    for stack in candidates:
        left = deadline - time.monotonic()  # timing takes time too
        if left <= 0:
            break
        if count := speeds.count(stack, left):
            return stack[:count]
    say("No run can be finished in that time: one is begun, and the same command goes on with it.")
    return candidates[0][:1] if speeds.one_by_one else candidates[0]


def _seconds_per_step(configs: Sequence[Config], device: torch.device, timed: int = 20, longest: float = 5.0) -> float:
    """Wall clock per step of the very stack, the first steps (compilation, the first systems) left out."""
    with threads_for(wanted=configs[0].threads):
        engine = make_engine(configs, device)
        engine.step(0)
        engine.report()  # waits for the device
        begun, done = time.monotonic(), 0
        while done < timed and (done == 0 or time.monotonic() - begun < longest):
            done += 1
            engine.step(done)
        engine.report()
        return (time.monotonic() - begun) / done
