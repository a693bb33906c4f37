"""A part of benchmarks/solve_attacks.py: adversarial calls of nf.solve, nf.eigenpair and nf.solve_nonlinear."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.solve_attacks import attack

ROOT = Path(__file__).parent.parent


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_attack_makes_a_solver_lie_or_lose_what_it_solves_without_a_model() -> None:
    tally = attack(calls=300, seed=20)
    assert tally.lies == [] and tally.losses == []
    assert set(tally.calls) == {"square", "least", "eigenpair", "nonlinear"} and min(tally.calls.values()) > 30
    assert tally.statuses["CONVERGED"] > 60 and tally.compared > 40 and tally.refused > 0


def test_the_filed_attack_is_of_twenty_thousand_calls_and_the_page_has_its_counts() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "solve_attacks.json").read_text())["found"]
    calls, page = sum(found["calls"].values()), (ROOT / "docs" / "solve.md").read_text()
    assert calls >= 20_000 and found["lies"] == [] and found["losses"] == []
    for count in (calls, found["statuses"]["CONVERGED"], found["compared"]):
        assert f"{count:,}" in page


def test_the_table_of_the_benchmarks_is_that_of_the_filed_attack() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "solve_attacks.json").read_text())["found"]
    page = (ROOT / "benchmarks" / "README.md").read_text()
    lines = page[page.index("### Attacks on the other solvers") :].splitlines()
    head, _, row = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in [line for line in lines if line[:1] == "|"][:3]
    )
    counts = {"calls": sum(found["calls"].values()), "of these wrong": len(found["lies"]), "refused": found["refused"]}
    wanted = counts | found["statuses"]
    assert dict(zip(head, row, strict=True)) == {name: f"{count:,}" for name, count in wanted.items()}
