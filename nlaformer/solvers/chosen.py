"""nf.solve with nothing chosen: the choices of ``automatic``, one after the other, until the certificate holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from nlaformer.solvers.automatic import Choice, choices
from nlaformer.solvers.parse import Problem
from nlaformer.solvers.preconditioners import Applied, Identity, Preconditioner, entries
from nlaformer.solvers.result import Status
from nlaformer.solvers.state import SolveState

_LEFT = (Status.MAXITER, Status.STAGNATED, Status.NOT_SPD, Status.NONFINITE)
_IN_WORDS = {"cg": "conjugate gradients", "minres": "MINRES", "gmres": "GMRES", "bicgstab": "BiCGStab"}
_DIRECT = {"cholesky": "Cholesky factorization", "lu": "LU factorization", "splu": "SuperLU"}


def _steps(state: SolveState) -> int:
    """The iterations that were taken."""
    return max(lane.iterations for lane in state.lanes)


class Chosen:
    """The methods that are tried on a problem, and what they came to."""

    def __init__(self, problem: Problem) -> None:
        self._deciding, self._tried, self._definite = 0.0, list[str](), True
        self._choices = choices(entries(problem), symmetric=not any(problem.minimal))
        self._choice = self._next()
        self.problem = self._by_choice(problem)

    @staticmethod
    def may(problem: Problem) -> bool:
        """Whether there is something to choose: one matrix whose entries are known, of a square system."""
        on_cpu = problem.form.device is None or str(problem.form.device) == "cpu"
        known = problem.adjoint is None and all(problem.form.list(problem.finite))
        return bool(known and on_cpu and len(set(problem.minimal)) == 1 and entries(problem) is not None)

    def run(self, state: SolveState, iterate: Callable[[str, Preconditioner], None]) -> None:
        """Take all lanes to their ends; ``iterate`` runs a method with its M on those that go on."""
        while lanes := state.going():
            choice, before = self._choice, _steps(state)
            for lane in (state.lanes[k] for k in lanes):
                lane.limit = min(state.maxiter, before + (choice.limit or state.maxiter))
            method = choice.method if state.form.alone or choice.method != "bicgstab" else "gmres"
            iterate(method, Identity() if choice.M is None else Applied(choice.M))
            self._tell(choice, _steps(state) - before)
            failed = [k for k in lanes if state.lanes[k].status in _LEFT]
            spent = _steps(state) >= state.maxiter
            indefinite = self._definite and any(state.lanes[k].status is Status.NOT_SPD for k in failed)
            if indefinite:
                self._definite = False
                self._choices = choices(entries(state.problem), symmetric=True, definite=False)
            if not failed or spent or (choice.limit is None and not indefinite):
                return
            self._choice = self._next()
            state.problem = self._by_choice(state.problem)
            state.reopen(failed)

    def in_words(self) -> str:
        """What was done, why, and what it cost to decide."""
        done = ", then ".join(self._tried) or "none was needed"
        return f"{done}; chosen in {self._deciding:.2g} s because {self._choice.why}"

    def _next(self) -> Choice:
        begun = time.perf_counter()
        found = next(self._choices)
        self._deciding += time.perf_counter() - begun - found.setup_seconds
        return found

    def _by_choice(self, problem: Problem) -> Problem:
        count = len(problem.minimal)
        return replace(problem, minimal=[self._choice.method != "cg"] * count, complaint=[""] * count)

    def _tell(self, choice: Choice, iterations: int) -> None:
        M = choice.M
        if M is not None and M.name in _DIRECT:
            self._tried.append(f"{_DIRECT[M.name]}, {iterations} of {_IN_WORDS[choice.method]}")
            return
        with_m = "" if M is None else f' with M="{M.name}"{f" ({M.told})" if M.told else ""}'
        self._tried.append(f"{iterations} of {_IN_WORDS[choice.method]}{with_m}")
