"""The progress of a long solve: a bar on a terminal, plain lines elsewhere; nothing for a short one."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any, Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_PATIENCE = 2.0  # seconds before the first message
_SECONDS = 5.0  # between plain lines
_SECONDS_OF_BAR = 0.5  # between updates of the bar


class SolveProgress:
    """The callback of a solve. The bar measures digits of the residual, not iterations.

    A residual is computed only when it is shown; it is that of the system that is furthest behind.
    """

    def __init__(self, A: Any, b: Any, rtol: float, atol: float, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._A, self._b = A, b
        self._columns = b.ndim == A.ndim
        axis = -2 if self._columns else -1
        with np.errstate(all="ignore"):  # squares of huge numbers overflow; then the residual shown is infinite or NaN
            size = np.linalg.norm(b, axis=axis)
            self._axis, self._unit = axis, np.where(size > 0, size, 1.0)
            self._wanted = float(np.min(np.maximum(rtol * size, atol) / self._unit))
        self._iteration, self._spoken = 0, time.monotonic()
        self._begun = self._spoken
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, x: Any) -> None:
        """Called after every iteration with its x."""
        self._iteration += 1
        now = time.monotonic()
        pause = _SECONDS_OF_BAR if self._bar is not None else _SECONDS
        due = now - self._begun >= _PATIENCE if self._spoken == self._begun else now - self._spoken >= pause
        if due:
            self._spoken = now
            self._show(self._residual(x))

    def _residual(self, x: Any) -> float:
        plain = self._columns or self._A.ndim == 2
        product = self._A @ x if plain else (self._A @ x[..., None])[..., 0]
        with np.errstate(all="ignore"):
            return float(np.max(np.linalg.norm(self._b - product, axis=self._axis) / self._unit))

    def _show(self, residual: float) -> None:
        note = f"iteration {self._iteration:,}, relative residual {residual:.1e} of {self._wanted:.1e} wanted"
        if not self.console.is_terminal:
            self.console.print(note, highlight=False, markup=False, soft_wrap=True)
            return
        if self._bar is None:
            self._bar = Progress(
                BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"), console=self.console, transient=True
            )
            total = -math.log10(self._wanted) if 0 < self._wanted < 1 else None
            self._task = self._bar.add_task(note, total=total)
            self._bar.start()
        self._bar.update(self._task, description=note, completed=max(-math.log10(residual), 0.0) if residual else None)
