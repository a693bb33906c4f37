"""The golden table: what is kept is what the package draws, and what is not equal is told."""

import pytest

import nlaformer as nf
from tests import golden

FEW = [
    "library/cg/8/float64", "library/kalman/8/float32", "textbook/Broyden/float64", "expression/divide",
    "refused/where", "training/learned-preconditioner",
]  # fmt: skip


def differing(names):
    kept = golden.read()
    return [line for name, case in golden.draw(names).items() for line in golden.differences(name, kept[name], case)]


def test_a_few_cases_are_what_is_kept():
    assert differing(FEW) == []


@pytest.mark.long
def test_every_case_is_what_is_kept():
    assert differing([]) == []


def test_every_case_is_kept_and_no_other():
    assert list(golden.read()) == [name for name, _, _ in golden.cases()]


def test_a_library_of_less_accurate_weights_differs(monkeypatch):
    original = nf.algorithm
    monkeypatch.setattr(nf, "algorithm", lambda *given, **options: original(*given, order=2, **options))
    told = differing(["library/richardson/8/float64", "library/steepest_descent/8/float64"])
    assert any("loop was" in line for line in told) and any("step was" in line for line in told)


KEPT = {
    "taken": "yes", "graph": [0.0, 1e-16], "loop": [7, 23, 3126], "step": [1e-12, 2e-12], "hard": "C RS R",
    "losses": [2.0, 1.0],
}  # fmt: skip
CHANGED = {
    "refused": {"taken": "CompileError"},
    "a wrong graph": {"graph": [2e-13, 3e-13]},
    "a further layer": {"loop": [8, 23, 3126]},
    "a larger error": {"step": [5e-12, 5e-12]},
    "a smaller error": {"step": [1e-13, 2e-13]},
    "another status": {"hard": "C RS S"},
    "a run less": {"hard": "C RS"},
    "another loss": {"losses": [2.0, 1.01]},
    "a new entry": {"more": 1},
}
ROUNDING = {
    "a verification at the edge": {"taken": "warned yes"},
    "errors of rounding": {"graph": [1e-15, 5e-15]},
    "a range that meets it": {"step": [3e-12, 9e-12]},
    "a status at the edge": {"hard": "CR R R"},
    "a loss": {"losses": [2.0001, 1.0]},
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_change_is_told_of_its_entry_alone(name):
    (line,) = golden.differences("library/cg/8/float64", KEPT, KEPT | CHANGED[name])
    assert next(iter(CHANGED[name])) in line


@pytest.mark.parametrize("name", ROUNDING)
def test_what_rounding_changes_is_not_told(name):
    assert golden.differences("library/cg/8/float64", KEPT, KEPT | ROUNDING[name]) == []


def test_what_another_processor_draws_is_added():
    other = {"taken": "warned", "graph": [1e-15, 1e-15], "step": [5e-13, 1e-12], "hard": "R R R"}
    both = golden.joined(KEPT, KEPT | other)
    assert both["taken"] == "warned yes" and both["hard"] == "CR RS R" and both["graph"] == [0.0, 1e-15]
    assert both["step"] == [5e-13, 2e-12] and both["loop"] == KEPT["loop"]


def test_comparing_prints_what_differs_and_ends_with_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(golden, "PATH", tmp_path / "golden.json")
    golden.write({"refused/median": {"taken": "yes"}, "refused/gone": {"taken": "yes"}})
    assert golden.main(["compare", "refused/median"]) == 1
    assert "refused/median: taken was yes, is CompileError" in capsys.readouterr().out
    assert golden.main(["draw", "refused/median"]) == 0 == golden.main(["compare", "refused/median"])
    assert golden.main(["compare", "refused/gone"]) == 1
