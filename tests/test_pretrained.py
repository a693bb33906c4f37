"""The bundled models: their cards are made from their runs, and fresh systems give the figures on them."""

from __future__ import annotations

from pathlib import Path

import pytest

import nlaformer as nf
from nlaformer import pretrained
from nlaformer.io import fingerprint
from nlaformer.learn.evaluate import THRESHOLDS, judge, trial
from nlaformer.learn.recipes import Config
from paper import bundling, controls, fresh
from paper.plan import BUNDLED, SIGMAS
from paper.reading import at, counted, listed, overtaken, short
from paper.results import Results

RESULTS = Results(Path(__file__).parent.parent / "paper" / "results")
FRESH = 20_261_116  # a seed nobody has used


def record_of(name):
    """The run a bundled model came from: that of its config."""
    return RESULTS.of_config(f"bundled-{name}", nf.load(name).config)


def test_all_bundled_models_are_here_or_none():
    assert set(pretrained.names()) in (set(), set(BUNDLED))


@pytest.mark.parametrize("name", pretrained.names())
def test_the_card_is_made_from_the_run(name):
    made = bundling.card(name, record_of(name), fresh.read(RESULTS))
    assert (pretrained.HOME / name / "README.md").read_text() == made


def test_the_results_on_fresh_systems_are_of_the_bundled_models():
    """If not, remove bundled-fresh.json from the results and measure again."""
    measured = fresh.read(RESULTS)
    configs = {} if measured is None else measured.configs
    assert configs == {name: nf.load(name).config for name in pretrained.names()}


@pytest.mark.parametrize("name", pretrained.names())
def test_the_filed_numbers_are_of_the_bundled_weights(name):
    weights = fingerprint(pretrained.HOME / name)
    assert record_of(name).name == BUNDLED[name] and record_of(name).document["weights"] == weights
    assert RESULTS.file(fresh.FILE)["models"][name]["weights"] == weights


def test_the_numbers_of_the_readme_are_those_on_fresh_systems():
    measured = fresh.read(RESULTS)
    model, cg = (measured.at(method, 1.2)["mean"] for method in ("cg-accelerated", "cg"))
    own, theirs = (listed(counted(curve, bounds=THRESHOLDS).split()) for curve in (model, cg))
    readme = " ".join((Path(__file__).parent.parent / "README.md").read_text().split())
    for number in (own, theirs, short(model[-1]), f"t = {overtaken(model, cg)}", f"{measured.count:,}"):
        assert number in readme


def test_the_controls_are_of_the_bundled_models():
    """If not, remove controls.json from the results and measure again."""
    probed = RESULTS.file(controls.FILE)["models"]
    assert {name: Config.from_json(entry["config"]) for name, entry in probed.items()} == {
        name: nf.load(name).config for name in pretrained.names()
    }


@pytest.mark.parametrize(("name", "sigma"), list(zip(pretrained.names(), (*SIGMAS, 1.2), strict=False)))
def test_fresh_systems_give_the_committed_errors(name, sigma):
    """Means of 64 and of 512 systems within five standard errors of their difference, medians within a half."""
    solver, kept = nf.load(name), at(record_of(name), sigma)
    again = judge(solver, trial("fresh", nf.problems.SPD(n=20, sigma=(sigma,)).sample(64, FRESH), solver.config.T))
    for t in (1, 2, 4, 8, 20):
        assert 2 / 3 < again.median["model"][t] / kept["median"]["model"][t] < 3 / 2, t
        allowed = 5 * (again.standard_error[t] ** 2 + kept["standard_error"][t] ** 2) ** 0.5
        assert abs(again.model[t] - kept["model"][t]) <= allowed, t
