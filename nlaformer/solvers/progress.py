"""What a long solve says on a terminal: iterations, residual, products a second, time left."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nlaformer.solvers.iteration import Iteration

_FIRST = 2.0  # seconds before the first line
_PAUSE = 0.5  # between lines; steps are taken in pieces of about that time


class Progress:
    """A line on the terminal that is replaced by the next one; nothing where standard error is no terminal.

    Between two pieces of steps nothing is computed: a line costs what the pieces cost, however long they are.
    """

    def __init__(self) -> None:
        self._shown = sys.stderr is not None and sys.stderr.isatty()
        self._begun = self._before = time.perf_counter()
        self._piece, self._taken, self._width = 0, 0, 0
        self._first: tuple[float, float] | None = None  # when, and how many digits were missing then

    def steps(self, iteration: Iteration) -> int:
        """How many steps to take before asking again; says where the solve stands, if it is time to."""
        if not self._shown:
            return 2**60
        now = time.perf_counter()
        self._taken += self._piece
        pace = self._piece / max(now - self._before, 1e-9)
        self._piece, self._before = max(1, min(8 * self._piece, int(pace * _PAUSE))), now
        if now - self._begun > _FIRST:
            self._say(iteration, now)
        return self._piece

    def close(self) -> None:
        """Remove the line."""
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
            self._width = 0

    def _say(self, iteration: Iteration, now: float) -> None:
        state, form = iteration.state, iteration.form
        lanes = [state.lanes[lane] for lane in iteration.lanes]
        share, norm, goal = max(
            (norm / lane.tolerance if lane.tolerance else math.inf, norm, lane.tolerance)
            for norm, lane in zip(form.list(iteration.norm), lanes, strict=True)
        )
        count = max(lane.iterations for lane in lanes) + len(iteration.norms)
        products = max(lane.matvecs for lane in lanes) + iteration.products
        seconds = now - self._begun
        missing = math.log10(share) if 1 < share < math.inf else 0.0
        self._first = self._first or (now, missing)
        gained, waited = self._first[1] - missing, now - self._first[0]
        left = f", about {missing * waited / gained:,.0f} s left" if gained > 0 and missing > 0 else ""
        several = f"{len(lanes):,} systems, " if len(lanes) > 1 else ""
        pace = f"{products / seconds:,.3g} products/s"
        text = f"{several}iteration {count:,}, residual {norm:.1e} for {goal:.1e}, {pace}{left}"
        print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = max(self._width, len(text))
