"""benchmarks/solve.py: all methods are judged by one rule, and the committed acceptance figure meets its goal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import nlaformer as nf
from benchmarks import peers
from benchmarks import solve as bench
from nlaformer import problems

SMALL = bench.Case("small", problems.SPD(n=7))
INSTALLED = [method for method in peers.classical() if method.installed]


def systems(n: int = 7, count: int = 5) -> tuple[np.ndarray, np.ndarray]:
    A, b, _ = problems.SPD(n=n).sample(count, 3)
    return A.numpy(), b.numpy()


@pytest.mark.parametrize("method", INSTALLED, ids=[method.name for method in INSTALLED])
def test_every_method_solves_the_same_systems(method: peers.Method):
    A, b = systems()
    outcome = method.solve(A, b, 1e-10)
    expected = np.linalg.solve(A, b[..., None])[..., 0]
    assert outcome.claims.all() and outcome.x.shape == b.shape
    assert np.abs(outcome.x - expected).max() < 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("name", peers.LEARNED)
def test_a_learned_method_counts_its_calls(name: str):
    A, b = systems()
    teacher = peers.learned(name, "exact", lambda A, b: np.linalg.solve(A, b[..., None])[..., 0])
    outcome = teacher.solve(A, b, 1e-8)
    assert outcome.claims.all() and (outcome.applications >= 1).all() and (outcome.matvecs < 6).all()


def test_our_cg_and_scipys_take_the_same_number_of_iterations():
    A, b = systems(n=20)  # to 1e-3: later on the rounding errors of either lead it its own way
    ours, theirs = (method.solve(A, b, 1e-3) for method in INSTALLED if method.name in ("CG", "SciPy cg"))
    assert np.abs(ours.iterations - theirs.iterations).max() <= 1
    assert (ours.matvecs == ours.iterations + 1).all()  # the certificate's


def test_a_method_that_only_claims_to_have_converged_is_caught():
    def liar(A: np.ndarray, b: np.ndarray, rtol: float) -> peers.Outcome:
        return peers.Outcome(np.zeros_like(b), np.ones(len(b), dtype=bool), np.ones(len(b)), np.ones(len(b)))

    def honest(A: np.ndarray, b: np.ndarray, rtol: float) -> peers.Outcome:
        return peers.Outcome(np.full_like(b, np.nan), np.zeros(len(b), dtype=bool))

    found = bench.measure(
        SMALL, [INSTALLED[0], peers.Method("liar", liar), peers.Method("honest", honest)], 4, (1e-6,), 1, {}
    )
    assert [(m.failed, m.unnoticed) for m in found] == [(0, 0), (4, 4), (4, 0)]
    lines = {line[0]: line for line in bench.sheet(found).lines}
    assert (lines["CG"][-1], lines["liar"][-1], lines["honest"][-1]) == ("0", "4 (4)", "4 (0)")


def test_a_peer_that_is_not_installed_has_a_row_without_numbers():
    absent = peers.Method("a peer", lambda A, b, rtol: pytest.fail("it is not here"), package="no_such_package")
    found = bench.measure(SMALL, [INSTALLED[0], absent], 2, (1e-3, 1e-6), 1, {})
    assert not found[1].installed and found[1].seconds is None
    table = bench.sheet(found)
    assert table.lines[1][:2] == ("a peer", "not installed") and len(table.lines[1]) == len(table.headings)


def measurement(method: str, matvecs: float, failed: int = 0, model: str | None = "m") -> bench.Measurement:
    return bench.Measurement(
        "label", 20, 8, True, method, model, 1e-6, True, matvecs - 1, matvecs, 2.0, 40.0, failed, 0, 1.0, 10.0
    )


def test_the_verdict_takes_the_best_method_that_solves_everything():
    cg = measurement("CG", 17, model=None)
    found = bench.verdict([cg, measurement("a", 5), measurement("b", 4), measurement("c", 2, failed=1)])
    assert (found["method"], found["ratio"], found["met"]) == ("b", 0.25, True)
    assert not bench.verdict([cg, measurement("a", 9)])["met"]
    assert not bench.verdict([cg, measurement("a", 2, failed=1)])["met"]
    note = bench.acceptance_sheet([cg, measurement("a", 9)]).note
    assert "9.00" in note and f"{9 / 16:.2f}" in note


def test_a_slow_method_is_timed_once(monkeypatch: pytest.MonkeyPatch):
    calls = {"CG": 0, "slow": 0}

    def counted(name: str) -> peers.Method:
        def solve(A: np.ndarray, b: np.ndarray, rtol: float) -> peers.Outcome:
            calls[name] += 1
            return INSTALLED[0].solve(A, b, rtol)

        return peers.Method(name, solve)

    clock = iter(np.arange(0, 1000, 1.0))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(bench, "BUDGET", 0.5)
    bench.measure(SMALL, [counted("CG"), counted("slow")], 2, (1e-3,), 3, {})
    assert calls == {"CG": 2, "slow": 2}  # once before the clock runs


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run ``python -m benchmarks.solve`` with a plan of a second: exit code, standard output, standard error."""
    monkeypatch.setattr(bench, "QUICK", replace(bench.QUICK, cases=(bench.PAPER,), systems=1, accepted=2))
    threads = torch.get_num_threads()

    def command(*arguments: str) -> tuple[int, str, str]:
        try:
            code = bench.main(["--quick", *arguments])
        except SystemExit as exit:
            code = exit.code
        said = capsys.readouterr()
        return code, said.out, said.err

    yield command
    torch.set_num_threads(threads)


def test_the_command_writes_its_tables_with_provenance(run, tmp_path: Path):
    code, out, err = run("--json", "--out", str(tmp_path))
    found = json.loads(out)
    assert code == 0 and json.loads((tmp_path / "solve.json").read_text()) == found
    methods = {(m["method"], m["model"]) for m in found["measurements"]}
    assert {(name, "pcg-accelerated") for name in peers.LEARNED} < methods and ("CG", None) in methods
    assert {m["rtol"] for m in found["measurements"]} == set(bench.TOLERANCES)
    assert found["acceptance"]["verdict"]["met"] and found["acceptance"]["verdict"]["ratio"] < 0.5
    assert found["provenance"]["versions"]["nlaformer"] == nf.__version__
    written = (tmp_path / "solve.md").read_text()
    assert "**Acceptance: the paper's family, n = 20, a batch of 2, rtol 1e-06**" in written
    assert "the paper's family" in err


def test_a_missed_goal_is_exit_code_1(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench, "GOAL", 0.01)
    monkeypatch.setattr(bench, "TOLERANCES", (1e-3,))
    code, out, _ = run()
    assert code == 1 and "0.01" in out


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bench, "run", lambda plan: pytest.fail("measured before it knew where to write"))
    (tmp_path / "file").write_text("in the way")
    code, _, err = run("--out", str(tmp_path / "file"))
    assert code == 2 and str(tmp_path / "file") in err


def test_the_committed_figures_meet_the_goal():
    path = Path(__file__).parents[1] / "benchmarks" / "results" / "solve.json"
    found = json.loads(path.read_text())["acceptance"]["verdict"]
    assert (found["systems"], found["rtol"], found["failed"]) == (1024, 1e-6, 0)
    assert found["met"] and found["ratio"] == found["matvecs"] / found["cg_iterations"] <= 0.5


def test_the_documents_quote_the_committed_figures():
    root = Path(__file__).parents[1]
    committed = json.loads((root / "benchmarks" / "results" / "solve.json").read_text())
    guide = (root / "docs" / "solve.md").read_text(encoding="utf-8")
    found: dict = {}
    for m in committed["measurements"]:
        if m["rtol"] == 1e-6:
            found.setdefault(f"{m['label']}, n = {m['n']}", {})[(m["method"], m["model"])] = m["matvecs"]
    columns = [
        ("CG", None),
        ("flexible", "cg-accelerated"),
        ("flexible", "pcg-accelerated"),
        ("auto", "cg-accelerated"),
    ]
    for label, row in found.items():
        assert f"| {label} | {' | '.join(f'{row[column]:.1f}' for column in columns)} |" in guide
    verdict = committed["acceptance"]["verdict"]
    for text in (guide, (root / "benchmarks" / "README.md").read_text(encoding="utf-8")):
        assert f"{verdict['matvecs']:.2f}" in text and f"{verdict['cg_iterations']:.2f}" in text
