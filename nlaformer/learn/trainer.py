"""The training run: resume, step, log, checkpoint, stop cleanly.

One process, or several (the same call in every process that torchrun starts)::

    nlaformer train cg-accelerated --out runs/cg
    torchrun --nproc-per-node 2 -m nlaformer train cg-accelerated --out runs/cg

A folder that holds a checkpoint of the same config is resumed. However often a run was killed, its final weights are
those of an undisturbed run (on the CPU, bit for bit).

``train`` takes what a user gives, ``train_into`` opens the folders, ``_Training`` holds the loop over the steps.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from nlaformer.arrays import check_memory, plain, threads_for, whole
from nlaformer.errors import OptionError, shown
from nlaformer.io import CONFIG_FILE, WEIGHTS_FILE, as_folder, locked_folder, remove_leftovers
from nlaformer.learn import checkpoint, evaluate
from nlaformer.learn.checkpoint import MANIFEST, Metrics, member_folders, read_manifest, write_manifest
from nlaformer.learn.config import Config
from nlaformer.learn.data import targets
from nlaformer.learn.engine import Engine, PlainEngine, make_engine
from nlaformer.learn.model import member
from nlaformer.learn.models import Model
from nlaformer.learn.progress import TrainingProgress
from nlaformer.learn.ranks import Ranks, pick_device, ranks
from nlaformer.learn.stacks import check_stack, shape_of
from nlaformer.learn.training_run import TrainingRun

_VALIDATION = 256  # systems


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is carried out; ``train`` explains each option."""

    device: str | torch.device | None = None
    checkpoint_every: int | None = None
    log_every: int | None = None
    validate_every: int | None = None
    minutes: float | None = None
    progress: bool = True
    tensorboard: bool = False

    def intervals(self, steps: int) -> tuple[int, int, int]:
        """Steps between checkpoints, lines of metrics and validations, for a run of so many steps."""
        checkpoint = _interval("checkpoint_every", self.checkpoint_every, steps // 20)
        log = _interval("log_every", self.log_every, steps // 200)
        return checkpoint, log, _interval("validate_every", self.validate_every, checkpoint)


def _interval(name: str, given: int | None, default: int) -> int:
    return max(default, 1) if given is None else whole(name, given, 1)


@overload
def train(
    config: Config,
    out: str | os.PathLike[str],
    *,
    device: str | torch.device | None = ...,
    checkpoint_every: int | None = ...,
    log_every: int | None = ...,
    validate_every: int | None = ...,
    minutes: float | None = ...,
    progress: bool = ...,
    tensorboard: bool = ...,
) -> TrainingRun: ...


@overload
def train(
    config: Sequence[Config],
    out: str | os.PathLike[str],
    *,
    device: str | torch.device | None = ...,
    checkpoint_every: int | None = ...,
    log_every: int | None = ...,
    validate_every: int | None = ...,
    minutes: float | None = ...,
    progress: bool = ...,
    tensorboard: bool = ...,
) -> list[TrainingRun]: ...


def train(
    config: Config | Sequence[Config],
    out: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    checkpoint_every: int | None = None,
    log_every: int | None = None,
    validate_every: int | None = None,
    minutes: float | None = None,
    progress: bool = True,
    tensorboard: bool = False,
) -> TrainingRun | list[TrainingRun]:
    """Train one model, or a stack of models of one shape as one program.

    Parameters
    ----------
    config : Config or list of Config
    out : the folder of the run; for a list, of one folder per member. A folder that holds a checkpoint is resumed
    device : "cpu" or "cuda"; the default is CUDA where there is one
    checkpoint_every, log_every : steps between checkpoints (default: a twentieth of the run) and lines of metrics
    validate_every : steps between validations; default: with every checkpoint. The untrained model is always validated
    minutes : stop after this time, with a checkpoint; the same call resumes. Saving takes some seconds more
    progress : show a bar, or lines where there is no terminal
    tensorboard : also write TensorBoard's event files (needs the tensorboard package)

    Returns
    -------
    TrainingRun, or a list of them; ``run.steps`` is less than ``config.steps`` where the minutes ran out

    Examples
    --------
    >>> import tempfile, nlaformer as nf
    >>> tiny = nf.recipe("quickstart", n=3, T=3, d=8, heads=2, batch=4, steps=4, warmup=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = nf.train(tiny, out=folder, device="cpu", progress=False)
    ...     nf.load(folder).config == run.config
    True
    """
    configs: list[Any] = (
        [config] if isinstance(config, Config | str) else list(config) if isinstance(config, Iterable) else []
    )
    for k, each in enumerate(configs or [config]):
        if not isinstance(each, Config):
            where = "" if each is config else f" as entry {k}"
            hint = f"; did you mean nf.recipe({each!r})?" if isinstance(each, str) else ""
            raise OptionError(
                f"train takes a config, as nf.recipe gives it, or a list; given {shown(each)}{where}{hint}"
            )
    options = RunOptions(
        device=device,
        checkpoint_every=checkpoint_every,
        log_every=log_every,
        validate_every=validate_every,
        minutes=minutes,
        progress=progress,
        tensorboard=tensorboard,
    )
    if isinstance(config, Config):
        return train_into(configs, [as_folder(out)], options)[0]
    return train_into(configs, member_folders(as_folder(out), configs), options)


def sweep(configs: Sequence[Config], out: str | os.PathLike[str], options: RunOptions) -> list[TrainingRun]:
    """Train configs of any shapes, those of one shape together; all are checked before the first step."""
    groups: dict[str, list[tuple[Config, Path]]] = {}
    for config, folder in zip(configs, member_folders(as_folder(out), configs), strict=True):
        groups.setdefault(repr(shape_of(config.validate())), []).append((config, folder))
    runs: list[TrainingRun] = []
    for members in groups.values():
        runs += train_into([config for config, _ in members], [folder for _, folder in members], options)
    return runs


def train_into(configs: Sequence[Config], folders: Sequence[Path], options: RunOptions) -> list[TrainingRun]:
    """Train a stack whose members have folders of their own."""
    deadline = time.monotonic() + seconds_of(options.minutes)
    check_stack([config.validate() for config in configs])
    every = options.intervals(configs[0].steps)
    board = _board_class() if options.tensorboard else None
    device = pick_device(options.device)
    check_memory(f"this config ({configs[0].recipe}): a member's weights and systems", _bytes(configs[0]), device)
    group = ranks(device, len(configs))
    mine = group.members(configs[0].batch)
    with threads_for(wanted=configs[0].threads), ExitStack() as held:
        if group.writes:
            for k in mine:
                held.enter_context(locked_folder(folders[k]))  # before reading what another process might be writing
        parts = checkpoint.resume(folders, configs, mine)
        group.wait()  # no rank writes before all have read
        for part in parts:
            training = _Training(configs, folders, part, group, every, options.progress)
            try:
                training.run(board, deadline)
            finally:
                training.engine.close()
    group.wait()
    return [TrainingRun.read(folder, config) for folder, config in zip(folders, configs, strict=True)]


def _bytes(config: Config) -> int:
    """The least memory of a member: weights with Adam's moments in float32, a chunk of systems in float64."""
    post = config.post_layers if config.program is None else 0
    layers = config.pre_layers + config.loop_layers * (1 if config.shared else config.loops) + post
    weights = config.d * (layers * (4 * config.d + 2 * config.ffn_width) + 5 * config.n)
    systems = config.chunk * config.batch * config.n * (config.n + 3 * (config.T + 1))  # A, and x, r, d of the teacher
    return 3 * 4 * weights + 8 * systems


def seconds_of(minutes: float | None) -> float:
    """A budget of minutes in seconds; infinity for none."""
    found = plain(minutes)
    if found is None:
        return math.inf
    if isinstance(found, bool) or not isinstance(found, int | float) or not found >= 0:
        raise OptionError(f"minutes is {shown(minutes)}; expected a number from 0 on")
    return 60 * float(min(found, 1e300))


class _Training:
    """The members of a stack that resume together in this process, and their folders."""

    def __init__(
        self,
        configs: Sequence[Config],
        folders: Sequence[Path],
        resumption: checkpoint.Resumption,
        group: Ranks,
        every: tuple[int, int, int],
        progress: bool,
    ):
        self.configs, self.folders = [configs[k] for k in resumption.members], [folders[k] for k in resumption.members]
        self.resumption, self.group, self.steps = resumption, group, self.configs[0].steps
        self.checkpoint_every, self.log_every, self.validate_every = every
        # A resumed run has its weights in the checkpoint: the model that it started from need not be there.
        own = [config.replace(start=None) for config in self.configs] if resumption.step else self.configs
        self.engine: Engine = make_engine(own, group.device, group.share)
        if states := resumption.states:
            self.engine.load({name: torch.stack([state[name] for state in states]) for name in states[0]})
        spoken = progress and group.rank == 0
        on_cpu = group.device.type == "cpu"
        self.progress = TrainingProgress(_title(self.configs), self.steps, resumption.step, spoken, on_cpu)
        self.validation = [
            targets(config, config.make_family().sample(_VALIDATION, evaluate.SEED)) for config in self.configs
        ]
        self.methods = [checkpoint.method_digests(config) for config in self.configs]
        self.metrics: list[Metrics] = []
        self.boards: list[Any] = []
        self.seconds = [_seconds_before(folder) if resumption.step else 0.0 for folder in self.folders]

    def run(self, board: Callable[[str], Any] | None, deadline: float) -> None:
        """Train to the last step or the deadline; nothing is left to do for a run that was found finished."""
        done, alive = self.resumption.step, self.engine.report().alive
        for error in self.resumption.refused:
            self.progress.say(f"refused: {error}; resuming from the generation before it")
        if done:
            self.progress.say(f"{self.progress.title}: found at step {done} of {self.steps}")
        if done == self.steps or not bool(alive.any()):
            if self.group.writes and any(_incomplete(folder) for folder in self.folders):
                for folder, model in zip(self.folders, self._models(), strict=True):
                    model.save(folder)
                self._close_folders(done, alive, 0.0, interrupted=False)
            return
        if self.group.writes:
            self._open_folders(board)
        begun, stop = time.monotonic(), ""
        if not done:
            self._validate(done)
        with self.progress, _signals() as asked:
            while done < self.steps and bool(alive.any()) and not stop:
                self.engine.step(done)
                done += 1
                if self.progress.due(done):
                    self._show(done)
                if done % self.log_every == 0 or done == self.steps:
                    alive = self._log(done, alive)
                stop = self._stop(asked, deadline)
                saves = bool(done % self.checkpoint_every == 0 or done == self.steps or stop or not alive.any())
                if saves or done % self.validate_every == 0:
                    self._validate(done, saves)
        interrupted = bool(stop) and done < self.steps and bool(alive.any())
        if self.group.writes:
            self._close_folders(done, alive, time.monotonic() - begun, interrupted)
        if interrupted:
            where = self.folders[0] if len(self.folders) == 1 else self.folders[0].parent
            self.progress.say(f"stopped at step {done}, saved in {where}; training into the same folder resumes")
            if stop == "signal":
                raise KeyboardInterrupt

    def _show(self, done: int) -> None:
        report = self.engine.report()
        living = report.loss[report.alive]
        self.progress.update(done, float(living.mean()) if len(living) else float("nan"))

    def _stop(self, asked: list[int], deadline: float) -> str:
        """The reason to stop after this step, "signal" or "time"; empty if there is none.

        Processes that share a batch must stop at the same step. They ask each other after every step: torchrun waits
        only half a minute after Ctrl-C.
        """
        signalled, late = self.group.any(bool(asked), time.monotonic() >= deadline)
        return "signal" if signalled else "time" if late else ""

    def _open_folders(self, board: Callable[[str], Any] | None) -> None:
        for folder, config, before in zip(self.folders, self.configs, self.seconds, strict=True):
            remove_leftovers(folder)
            self.metrics.append(Metrics(folder, self.resumption.step))  # fails here if the folder cannot be written
            self.boards += [board(str(folder))] if board else []
            self._write_manifest(folder, config, state="running", seconds_in_all=round(before, 3))

    def _close_folders(self, done: int, alive: Tensor, seconds: float, interrupted: bool) -> None:
        ran = {"steps": done, "steps_of_this_process": done - self.resumption.step, "seconds": round(seconds, 3)}
        for k, (folder, living) in enumerate(zip(self.folders, alive.tolist(), strict=True)):
            in_all = round(self.seconds[k] + seconds, 3)
            state = "diverged" if not living else "interrupted" if interrupted else "finished"
            self._write_manifest(folder, self.configs[k], state=state, **ran, seconds_in_all=in_all)
        for board in self.boards:
            board.close()

    def _write_manifest(self, folder: Path, config: Config, **more: Any) -> None:
        # The plain engine, which the CPU uses, computes in float32 whatever precision the config names.
        arithmetic = "float32" if isinstance(self.engine, PlainEngine) else config.precision
        engine = type(self.engine).__name__
        write_manifest(
            folder, config, self.group.device, arithmetic=arithmetic, engine=engine, processes=self.group.world, **more
        )

    def _log(self, done: int, alive_before: Tensor) -> Tensor:
        report = self.engine.report()
        for k in range(len(self.configs)):
            if not alive_before[k]:
                continue
            values = {name: float(getattr(report, name)[k]) for name in ("loss", "intermediate", "gradient_norm", "lr")}
            if self.configs[k].program is not None:
                del values["intermediate"]  # a program has no probe
            if not report.alive[k]:
                self.progress.say(f"{self.folders[k].name}: loss not finite by step {done}; this member is frozen")
            if self.metrics:
                self.metrics[k].add(step=done, **values, diverged=not bool(report.alive[k]))
            if self.boards:
                for name, value in values.items():
                    self.boards[k].add_scalar(name, value, done)
        return report.alive

    def _validate(self, done: int, saves: bool = False) -> None:
        """Record the validation errors of every member; with ``saves``, store its checkpoint and its model too."""
        if not self.group.writes:
            return
        state = self.engine.state() if saves else {}
        for k, (folder, config, model) in enumerate(zip(self.folders, self.configs, self._models(), strict=True)):
            measured = evaluate.validation(model, self.validation[k])
            self.metrics[k].add(step=done, validation=measured, saved=saves)
            if saves:  # the checkpoint first: a folder with a model and no checkpoint is refused
                own = {name: tensor[k].clone() for name, tensor in state.items()}
                checkpoint.write(folder, checkpoint.Checkpoint(done, config, own, self.methods[k]))
                model.save(folder)

    def _models(self) -> list[Model]:
        together = self.engine.model
        return [member(together, k, config) for k, config in enumerate(self.configs)]


def _incomplete(folder: Path) -> bool:
    """Whether a finished run was killed before it wrote its manifest, or has lost a file since."""
    kept = (MANIFEST, WEIGHTS_FILE, CONFIG_FILE)
    return not all((folder / name).exists() for name in kept) or "steps" not in read_manifest(folder)


def _seconds_before(folder: Path) -> float:
    """Seconds that earlier processes recorded; killed processes record none."""
    return read_manifest(folder).get("seconds_in_all", 0.0) if (folder / MANIFEST).exists() else 0.0


def _title(configs: Sequence[Config]) -> str:
    names = " ".join(dict.fromkeys(config.recipe for config in configs))
    return names if len(configs) == 1 else f"{names} (stack of {len(configs)})"


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, so that the run stops after the current step; a second one interrupts at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _board_class() -> Callable[[str], Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise OptionError("TensorBoard's files need its package: pip install 'nlaformer[tensorboard]'") from error
    return SummaryWriter
