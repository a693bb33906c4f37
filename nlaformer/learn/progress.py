"""Progress: a bar or a changing line on a terminal, a changing line in a notebook, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS = 5.0  # between plain lines
_SECONDS_OF_BAR = 0.5  # between movements of the bar, and of the line in a notebook
_FIRST = 4  # steps before the first estimate of the speed; the very first step is not counted, it includes set-up
_LONG = 600.0  # seconds above which a GPU is recommended


class TrainingProgress(ExitStack):
    """Loss, speed and time left of a training run."""

    def __init__(self, title: str, steps: int, start: int, shown: bool, on_cpu: bool):
        super().__init__()
        self.console = Console(stderr=True)
        self.title, self.steps, self.start, self.shown, self.on_cpu = title, steps, start, shown, on_cpu
        self._first_done = self._spoken = time.monotonic()
        self._bar: Progress | None = None
        self._line = NotebookLine() if self.console.is_jupyter else None
        self._silent = True

    def __enter__(self) -> Self:
        if self.shown and self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=self.console)
            self._task = bar.add_task(self.title, total=self.steps, completed=self.start, note="")
            self._bar = self.enter_context(bar)
        else:
            self.say(f"{self.title}: {self.steps - self.start} steps left")
        return self

    def say(self, message: str) -> None:
        """Print a message."""
        if self.shown:
            self.console.print(message, highlight=False, markup=False, soft_wrap=True)

    def due(self, step: int) -> bool:
        """Whether to show the state after this step: after the first few, at intervals of time, and at the end."""
        now, done = time.monotonic(), step - self.start
        if done == 1:
            self._first_done = now
            return self.shown and step == self.steps
        pause = _SECONDS if self._bar is None and self._line is None else _SECONDS_OF_BAR
        return self.shown and (done == _FIRST or step == self.steps or now - self._spoken >= pause)

    def update(self, step: int, loss: float) -> None:
        """Show the state after a step; on a CPU, first an estimate of the time of the run."""
        if self.on_cpu and self._silent and step < self.steps:
            left = self._left(step)
            advice = "; this recipe is meant for a GPU, quickstart for a CPU" if left > _LONG else ""
            self.say(f"{self.title}: on this CPU the run will take about {duration(left)}{advice}")
        self._spoken, self._silent = time.monotonic(), False
        note = f"loss {loss:.4g}, {self._speed(step):.3g} steps/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, note=note)
            return
        text = f"{self.title}: step {step}/{self.steps}, {note}, {duration(self._left(step))} left"
        if self._line is not None:
            self._line.show(text)
        else:
            self.say(text)

    def _speed(self, step: int) -> float:
        return max(step - self.start - 1, 1) / max(time.monotonic() - self._first_done, 1e-9)

    def _left(self, step: int) -> float:
        return (self.steps - step) / self._speed(step)


class NotebookLine:
    """A line in the output of a notebook's cell that is replaced by the next one."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Show the text in place of what was shown before."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)


@contextmanager
def stages(console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Give a function that shows the current stage of a longer computation."""
    console = console or Console(stderr=True)
    if console.is_jupyter:
        yield NotebookLine().show
        return
    if not console.is_terminal:
        yield lambda stage: console.print(stage, highlight=False, markup=False, soft_wrap=True)
        return
    with console.status("") as status:
        yield status.update


def duration(seconds: float) -> str:
    """Seconds in a readable unit.

    >>> duration(75.2), duration(600), duration(40000)
    ('75 s', '10 min', '11 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
