"""A search that a model may lead for a while: what the searches of ``nf.eigenpair`` and ``nf.solve_nonlinear`` share.

The model runs first, from the start, while each run halves the residual. Then the classical method goes on from there,
and, should that not converge although an answer of the model was used, once more from the start, as if there had been
no model. What is returned is the point of the smallest residual of both searches, or the one that converged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from nlaformer.solvers.result import Status
from nlaformer.solvers.runner import Runner


class Search:
    """Where a search stands, and how it ended. ``limit`` is the most steps of the classical method."""

    def __init__(self, limit: int) -> None:
        self.limit, self.steps = limit, 0
        self.norms: list[float] = []  # of the residuals, from the start on
        self.status: Status | None = None
        self.detail = ""
        self._again = False  # whether there was a search with a model before this one

    def run(self, runner: Runner | None) -> None:
        """Search until the certificate holds, or the search ends without."""
        raise NotImplementedError

    def here(self) -> Tensor:
        """The point from which a model runs, (n,) in float64."""
        raise NotImplementedError

    def near(self) -> bool:
        """Whether the residual is so small that no model is needed."""
        raise NotImplementedError

    def take(self, answer: Tensor) -> str:
        """Go on from the answer of a model, as one step; returns why not, or nothing."""
        raise NotImplementedError

    def follow(self, runner: Runner) -> None:
        """Let a model run while each run halves the residual, as often as the classical method may step at most.

        Its runs do not count against that limit.
        """
        most = self.limit
        while runner.applications < most and not self.near():
            answer, before = runner.ask(self.here()), self.norms[-1]
            if answer is None:
                return
            if reason := self.take(answer):
                runner.refused[reason] += 1
                return
            self.limit += 1
            if not runner.pays(before, self.norms[-1]):
                return

    def join(self, fresh: Search) -> bool:
        """Count the steps of a search that began again with one's own; whether its point is the better one."""
        better = fresh.status is Status.CONVERGED or min(fresh.norms) < min(self.norms)
        self.steps = fresh.steps = self.steps + fresh.steps
        self.norms = fresh.norms = self.norms + fresh.norms[1:]
        fresh._again = True
        return better

    def end(self, status: Status, detail: str = "") -> None:
        """Give the search its status; the first one counts."""
        if self.status is None:
            self.status, self.detail = status, detail

    def in_words(self, own: str, runner: Runner | None) -> str:
        """What found the point that is returned; ``own`` is the classical method."""
        if runner is None:
            return own
        if not runner.applications:
            return f"{own}; the model was not asked"
        if not runner.accepted:
            return f"{own}; no answer of the model was used"
        if self._again:
            return f"{own} from the start, after runs of the model that did not lead to the answer"
        found = self.steps if self.status is Status.CONVERGED else self.norms.index(min(self.norms))
        return "runs of the model" if found <= runner.accepted else f"runs of the model, then {own}"


SearchT = TypeVar("SearchT", bound=Search)


def search_with(runner: Runner | None, begin: Callable[[], SearchT]) -> SearchT:
    """The search that found the best point: with the model, or, where that did not converge, without."""
    search = begin()
    search.run(runner)
    if runner is None or not runner.accepted or search.status is Status.CONVERGED:
        return search
    fresh = begin()
    fresh.run(None)
    return fresh if search.join(fresh) else search
