"""The progress of a long solve: a changing line on a terminal, plain lines elsewhere; nothing for a short one."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
from rich.console import Console

from nlaformer.learn.progress import stages

__all__ = ["SolveProgress"]

_PATIENCE = 2.0  # seconds before the first message
_SECONDS = 5.0  # between plain lines
_SECONDS_OF_LINE = 0.5  # between changes of the line on a terminal


class SolveProgress(ExitStack):
    """The callback of a solve.

    A residual is computed only when it is shown; it is that of the system that is furthest behind.
    """

    def __init__(self, A: Any, b: Any, rtol: float, atol: float, console: Console | None = None) -> None:
        super().__init__()
        self.console = console or Console(stderr=True)
        self._A, self._vectors = A, b.ndim < A.ndim
        self._b = b[..., None] if self._vectors else b
        with np.errstate(all="ignore"):  # squares of huge numbers overflow; then the residual shown is infinite or NaN
            size = np.linalg.norm(self._b, axis=-2)
            self._unit = np.where(size > 0, size, 1.0)
            self._wanted = float(np.min(np.maximum(rtol * size, atol) / self._unit))
        self._iteration, self._due = 0, time.monotonic() + _PATIENCE
        self._say: Callable[[str], None] | None = None

    def __call__(self, x: Any) -> None:
        """Called after every iteration with its x."""
        self._iteration += 1
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (_SECONDS_OF_LINE if self.console.is_terminal else _SECONDS)
        if self._say is None:
            self._say = self.enter_context(stages(self.console))
        residual = self._residual(x)
        self._say(f"iteration {self._iteration:,}, relative residual {residual:.1e} of {self._wanted:.1e} wanted")

    def _residual(self, x: Any) -> float:
        product = self._A @ (x[..., None] if self._vectors else x)
        with np.errstate(all="ignore"):
            return float(np.max(np.linalg.norm(self._b - product, axis=-2) / self._unit))
