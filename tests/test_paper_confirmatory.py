"""The tests of paper/protocol.md on numbers whose outcome is known, and the age of the protocol."""

from __future__ import annotations

import math
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from paper import plan
from paper.hypotheses import numbers
from paper.ledger import tables
from paper.quantities import compare, holm, interval
from paper.results import Record, Results
from paper.teaching import from_minimizer
from paper.verdicts import RULES, verdicts

ROOT = Path(__file__).parents[1]
_STABLE = {"joint.spread": 1.5, "accelerated.spread": 1.5}


def _seeds(ratio: float, spread: float, seed: int = 0, count: int = 5) -> list[float]:
    return list(ratio * np.exp(spread * np.random.default_rng(seed).standard_normal(count)))


def test_a_clear_difference_is_found_in_its_direction():
    less, more = _seeds(1.0, 0.02, 1), _seeds(2.0, 0.02, 2)
    found = compare({"less": (less, more), "more": (more, less)})
    assert (found["less"].outcome, found["more"].outcome) == ("better", "worse")
    assert found["less"].ratio == pytest.approx(0.5, rel=0.1)
    assert found["less"].low < found["less"].ratio < found["less"].high


def test_a_small_difference_with_little_spread_is_equal_even_where_it_is_significant():
    one, other = _seeds(1.0, 0.002, 1), _seeds(1.03, 0.002, 2)
    assert stats.ttest_ind(np.log(one), np.log(other), equal_var=False).pvalue < 0.001
    assert compare({"both": (one, other)})["both"].outcome == "equal"


def test_equal_and_undecided_are_told_apart():
    assert compare({"both": (_seeds(1.0, 0.5, 1), _seeds(1.0, 0.5, 2))})["both"].outcome == "undecided"


def test_the_p_value_of_a_single_comparison_is_welchs_within_holms_family_of_two():
    one, other = _seeds(1.0, 0.2, 1), _seeds(1.5, 0.1, 2)
    plain = stats.ttest_ind(np.log(one), np.log(other), equal_var=False).pvalue
    assert compare({"both": (one, other)})["both"].p_differs == pytest.approx(2 * plain)


def test_adjusted_p_values_never_fall_below_the_raw_ones_and_keep_their_order():
    raw = dict(enumerate(np.random.default_rng(3).uniform(size=9)))
    adjusted = holm(raw)
    assert all(adjusted[k] >= raw[k] for k in raw)
    assert sorted(raw, key=raw.__getitem__) == sorted(raw, key=lambda k: (adjusted[k], raw[k]))


def test_what_is_undecided_stays_undecided_in_a_larger_family():
    outcomes = set()
    for seed in range(100):
        one, other, third = (_seeds(ratio, 0.2, 3 * seed + k) for k, ratio in enumerate((1.0, 1.3, 3.0)))
        alone = compare({"both": (one, other)})["both"].outcome
        together = compare({"both": (one, other), "third": (one, third)})["both"].outcome
        outcomes.add(alone)
        assert alone != "undecided" or together == "undecided"
    assert len(outcomes) > 1


def test_an_interval_of_95_percent_holds_the_mean_in_95_of_100_draws():
    inside = 0
    for seed in range(400):
        low, high = interval(_seeds(1.0, 0.3, seed))
        inside += low <= 1.0 <= high
    assert 0.91 < inside / 400 < 0.99


def test_a_hypothesis_without_all_its_runs_has_no_numbers(tmp_path):
    assert numbers(Results(tmp_path)) == {}
    assert set(verdicts({}).values()) == {"not run"}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def test_the_protocol_is_older_than_every_run_it_covers():
    try:
        if _git("rev-parse", "--is-shallow-repository") == "true":
            pytest.skip("a shallow clone does not hold the protocol's commit")
        (first, *later) = reversed(_git("log", "--format=%H", "--", "paper/protocol.md").splitlines())
    except (OSError, subprocess.CalledProcessError, ValueError):
        pytest.skip("no history here: not a checkout with git")
    assert not later, "the protocol was changed after it was written"
    results = Results()
    filed = [results.run(name).document for name in plan.confirmatory() if results.has_run(name)]
    assert filed
    written = datetime.fromisoformat(_git("log", "-1", "--format=%cI", first))
    for document in filed:
        commit = document["provenance"]["commit"].split()[0]
        _git("merge-base", "--is-ancestor", first, commit)  # raises where it is not
        ended = datetime.fromisoformat(document["trained"]["written"])
        assert ended - timedelta(seconds=document["seconds"]) > written, document["name"]


def test_the_ledger_counts_the_filed_runs():
    assert tables(Results()) in (ROOT / "paper" / "ledger.md").read_text(encoding="utf-8")


def test_headline_numbers_agree_with_an_evaluation_that_uses_nothing_of_the_package():
    from paper.recompute import recompute

    found = recompute(192)
    assert len(found) == 5
    assert max(abs(row["standard_errors"]) for row in found) < 5  # errors of single systems have a heavy tail


@pytest.mark.parametrize(
    ("name", "given", "verdict"),
    [
        ("h1", {"result": 9, "joint": 12, "cg.0.01": 5.5, "cg.0.0001": 9.2}, "holds in part"),
        ("h1", {"result": 5, "joint": 12, "cg.0.01": 5.5, "cg.0.0001": 9.2}, "differs"),
        ("h2.2", {"result.relative": [0.8, 0.95]}, "undecided"),
        ("h3.1", {"0.05.outcome": "better", "0.0001.outcome": "equal"}, "holds in part"),
        ("h3.1", {"0.05.outcome": "better", "0.0001.outcome": "worse"}, "differs"),
        ("h3.1", {"0.05.outcome": "better", "0.0001.outcome": "undecided"}, "undecided"),
        (
            "h3.2",
            {"0.05.outcome": "better", "0.0001.outcome": "undecided", "result.outcome": "equal"},
            "holds in part",
        ),
        ("h4.2", {"13.outcome": "equal", "30.outcome": "worse"}, "differs"),
        ("h4.2", {"13.outcome": "undecided", "30.outcome": "worse"}, "undecided"),
        ("h5.1", {"1.cg": [0.5, 0.54], "1.2.cg": [0.6, 0.7], "1.4.cg": [0.6, 1.1]}, "undecided"),
        ("h5.1", {"1.cg": [0.5, 0.54], "1.2.cg": [0.6, 0.7], "1.4.cg": [0.6, 0.9]}, "holds"),
        ("h5.3", {"saved": [0.19, 0.35]}, "undecided"),
        ("h9", {f"{weight}": [0.9, 1.2] for weight in (1, 7, 10)} | {"13": [0.9, 1.6]}, "holds in part"),
        ("h10.2", {"descent.outcome": "better"}, "holds"),
        ("h10.2", {"descent.outcome": "equal"}, "differs"),
        ("h11", {"lead": [1.2, 2.5]}, "undecided"),
        ("h12", {"trained": 2, "runs": 3}, "holds in part"),
        ("h12", {"trained": 3, "runs": 3}, "holds"),
        ("h14", {"joint.finite": True, "joint.spread": 1.5}, "not run"),  # the other run is not filed
        ("h14", {"joint.finite": True, "joint.spread": 2.5}, "differs"),
        ("h14", {f"{kind}.finite": True for kind in ("joint", "accelerated")} | _STABLE, "holds"),
        ("h14", {"joint.finite": True, "accelerated.finite": False} | _STABLE, "differs"),
    ],
)
def test_a_verdict_follows_from_its_rule(name, given, verdict):
    assert RULES[name](given) == verdict


def _record(name: str, *errors: float) -> Record:
    return Record(name, {"own": "here", "evaluations": {"here": {"model": [1.0, *errors], "failures": 0.0}}})


@pytest.mark.parametrize(
    ("curves", "verdict"),
    [
        ([(0.1, 0.1), (0.2, 0.1), (0.3, 0.1)], "holds"),
        ([(0.1, 0.1), (0.2, 7.0), (0.3, 0.1)], "holds in part"),  # the second fails, with G below 1
        ([(0.1, 0.1), (9.0, 9.0), (math.inf, math.nan)], "holds in part"),
        ([(1.0, 1.0), (9.0, 9.0), (0.5, 1.0)], "undecided"),  # the protocol names no verdict for none of three
    ],
)
def test_literal_layers_that_failed_are_counted_once(tmp_path, monkeypatch, curves, verdict):
    literal = [_record(f"result-literal-seed{100 + k}", *curve) for k, curve in enumerate(curves)]
    normal = [_record(f"result-seed{100 + k}", 0.1 + k / 100, 0.1) for k in range(5)]
    results = _filed(tmp_path, monkeypatch, *literal, *normal)
    assert verdicts({"h12": numbers(results)["h12"]})["h12"] == verdict


def _filed(folder: Path, monkeypatch: pytest.MonkeyPatch, *records: Record) -> Results:
    """Results that hold these runs and no others."""
    results, known = Results(folder), {record.name: record for record in records}
    monkeypatch.setattr(results, "has_run", known.__contains__)
    monkeypatch.setattr(results, "run", known.__getitem__)
    return results


@pytest.mark.parametrize(
    ("state", "validations", "verdict"),
    [
        ("finished", {0: 1.0, 60: 0.2, 95: 0.1, 100: 0.1}, "not run"),  # stable, and the other run is not filed
        ("finished", {0: 1.0, 60: 0.2, 95: 0.1, 100: 0.3}, "differs"),
        ("diverged", {0: 1.0, 60: None}, "differs"),  # it ended before the last tenth
    ],
)
def test_a_long_run_that_diverged_or_rose_at_the_end_is_unstable(tmp_path, monkeypatch, state, validations, verdict):
    history = {"step": list(validations), "final_error": list(validations.values())}
    curves = {"here": {"model": [1.0, 0.1, 0.1]}}
    long, short = (
        Record(name, {"own": "here", "evaluations": curves, "state": state, "history": history,
                      "config": plan.planned(name).config.replace(steps=100).to_json()})
        for name in ("joint-eta0.0005-700k-seed100", "joint-eta0.0005-seed100")
    )  # fmt: skip
    found = numbers(_filed(tmp_path, monkeypatch, long, short))
    assert verdicts(found)["h14"] == verdict


def test_a_mistake_in_a_hypothesis_is_no_missing_run(tmp_path, monkeypatch):
    results = _filed(tmp_path, monkeypatch, *(_record(f"result-tf32-seed{100 + k}", 0.1) for k in range(3)))
    monkeypatch.setattr(results, "has_run", lambda name: True)
    with pytest.raises(KeyError):
        numbers(results)


def test_the_distance_from_the_minimizer_of_the_loss_is_that_of_the_vectors():
    config = plan.accelerated(lambda_=7.0)
    rng = np.random.default_rng(0)
    teacher, found, x = rng.normal(size=(3, 64, 5))  # of 64 systems
    norm = (x**2).sum(1)

    def mean(error):
        return float(((error**2).sum(1) / norm).mean())

    least = (teacher + 7 * x) / 8
    own = {"model": [mean(found - x)], "deviation": [mean(found - teacher)]}
    record = Record("", {"own": "here", "evaluations": {"here": own}, "config": config.to_json()})
    (distance,) = from_minimizer(record, [mean(teacher - x)])
    assert distance == pytest.approx(mean(found - least) / mean(least - x))
