"""nf.solve with nothing chosen: the choices of ``automatic``, one after the other, until the certificate holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from nlaformer.solvers.automatic import Choice, choices
from nlaformer.solvers.parse import Problem
from nlaformer.solvers.preconditioners import Applied, Identity, Preconditioner, entries
from nlaformer.solvers.result import Status, counted
from nlaformer.solvers.state import SolveState

LEFT = (Status.MAXITER, Status.STAGNATED, Status.NOT_SPD, Status.NONFINITE)
_IN_WORDS = {"cg": "conjugate gradients", "bicgstab": "BiCGStab"}  # others are called by their initials
_DIRECT = {
    "cholesky": "Cholesky factorization",
    "lu": "LU factorization",
    "qr": "QR factorization",
    "splu": "SuperLU",
}


class Chosen:
    """The methods that are tried on a problem, and what they came to."""

    def __init__(self, problem: Problem) -> None:
        self.problem = replace(problem, complaint=[""] * problem.lanes)  # any square matrix has a method
        self._choices = choices(entries(problem), symmetric=not problem.minimal[0])
        self._deciding, self._why, self.tried = 0.0, "", list[str]()

    @staticmethod
    def may(problem: Problem) -> bool:
        """Whether there is something to choose: one matrix whose entries are known."""
        on_cpu = problem.form.device is None or str(problem.form.device) == "cpu"
        return on_cpu and all(problem.form.list(problem.finite)) and entries(problem) is not None

    def run(self, state: SolveState, iterate: Callable[[str, Preconditioner], None]) -> None:
        """Take all lanes to their ends; ``iterate`` runs a method with its M on those that go on."""
        definite, spent = True, [lane.iterations + state.maxiter for lane in state.lanes]
        while lanes := state.going():
            choice, before = self._next(), _steps(state)
            state.problem = replace(state.problem, minimal=[choice.method != "cg"] * len(state.lanes))
            for k in lanes:
                lane = state.lanes[k]
                lane.limit = min(spent[k], lane.iterations + (choice.limit or state.maxiter))
            method = choice.method if state.form.alone or choice.method != "bicgstab" else "gmres"
            try:
                iterate(method, Identity() if choice.M is None else Applied(choice.M))
            finally:
                self.tried.append(_in_words(method, choice, _steps(state) - before))
            failed = [k for k in lanes if state.lanes[k].status in LEFT]
            if definite and any(state.lanes[k].status is Status.NOT_SPD for k in failed):
                definite, self._choices = False, choices(entries(state.problem), symmetric=True, definite=False)
            elif choice.limit is None:
                return
            state.reopen([k for k in failed if state.lanes[k].iterations < spent[k]])

    def in_words(self) -> str:
        """What was done, why, and what it cost to decide."""
        if not self.tried:
            return "none was needed"
        return f"{', then '.join(self.tried)}; chosen in {self._deciding:.2g} s because {self._why}"

    def _next(self) -> Choice:
        begun = time.perf_counter()
        found = next(self._choices)
        self._deciding += time.perf_counter() - begun - found.setup_seconds
        self._why = found.why
        return found


def _steps(state: SolveState) -> int:
    """The iterations that were taken."""
    return max(lane.iterations for lane in state.lanes)


def _in_words(method: str, choice: Choice, iterations: int) -> str:
    steps, M = f"{counted(iterations, 'iteration')} of {_IN_WORDS.get(method, method.upper())}", choice.M
    if M is None:
        return steps
    if M.name in _DIRECT:
        return f"{_DIRECT[M.name]}, {steps}"
    return f'{steps} with M="{M.name}"{f" ({M.told})" if M.told else ""}'
