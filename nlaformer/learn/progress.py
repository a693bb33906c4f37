"""What a person sees during training: a bar on a terminal, plain lines elsewhere, nothing if nobody asked."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS = 5.0  # between plain lines


class Display:
    """Loss, speed and time left."""

    def __init__(self, title: str, steps: int, start: int, shown: bool, console: Console | None = None):
        self.console = console or Console(stderr=True)
        self.title, self.steps, self.start, self.shown = title, steps, start, shown
        self._begun = time.monotonic()
        self._spoken = self._begun
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self.shown and self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=self.console)
            self._task = self._bar.add_task(self.title, total=self.steps, completed=self.start, note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, message: str) -> None:
        """A message that stays."""
        if self.shown:
            self.console.print(message, highlight=False, markup=False)

    def update(self, step: int, loss: float) -> None:
        """The state after a step."""
        now = time.monotonic()
        speed = (step - self.start) / max(now - self._begun, 1e-9)
        note = f"loss {loss:.4g}, {speed:.3g} steps/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, note=note)
        elif self.shown and (now - self._spoken >= _SECONDS or step == self.steps):
            self._spoken = now
            left = (self.steps - step) / max(speed, 1e-9)
            self.say(f"{self.title}: step {step}/{self.steps}, {note}, {left:.0f} s left")
