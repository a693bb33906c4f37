"""A part of benchmarks/solve_attacks.py: adversarial calls of nf.solve, nf.eigenpair and nf.solve_nonlinear."""

from __future__ import annotations

import pytest

from benchmarks.solve_attacks import attack


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_attack_makes_a_solver_lie_or_lose_what_it_solves_without_a_model() -> None:
    tally = attack(calls=300, seed=20)
    assert tally.lies == [] and tally.losses == []
    assert set(tally.calls) == {"square", "least", "eigenpair", "nonlinear"} and min(tally.calls.values()) > 30
    assert tally.statuses["CONVERGED"] > 60 and tally.compared > 40 and tally.refused > 0
