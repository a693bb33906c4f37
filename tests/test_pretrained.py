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


def test_all_or_none_are_here():
    assert set(pretrained.names()) in (set(), set(BUNDLED))


@pytest.mark.parametrize("name", pretrained.names())
def test_the_card_is_made_from_the_run(name):
    made = bundling.card(name, record_of(name), fresh.read(RESULTS))
    assert (pretrained.HOME / name / "README.md").read_text() == made


def test_the_fresh_systems_were_solved_with_the_models_that_are_bundled():
    """Else results/bundled-fresh.json is of other weights: remove it and run ``nlaformer reproduce table-bundled``."""
    measured = fresh.read(RESULTS)
    configs = {} if measured is None else measured.configs
    assert configs == {name: nf.load(name).config for name in pretrained.names()}


@pytest.mark.parametrize("name", pretrained.names())
def test_the_numbers_are_of_these_weights(name):
    weights = fingerprint(pretrained.HOME / name)
    assert record_of(name).name == BUNDLED[name] and record_of(name).document["weights"] == weights
    assert RESULTS.file(fresh.FILE)["models"][name]["weights"] == weights


def test_the_readme_quotes_the_fresh_systems():
    measured = fresh.read(RESULTS)
    model, cg = (measured.at(method, 1.2)["mean"] for method in ("cg-accelerated", "cg"))
    own, theirs = (listed(counted(curve, bounds=THRESHOLDS).split()) for curve in (model, cg))
    quoted = (
        f"cg-accelerated needs {own} iterations where CG needs {theirs}; it ends at {short(model[-1])}, and CG "
        f"overtakes it at t = {overtaken(model, cg)} ({measured.count:,} fresh systems at sigma 1.2;"
    )
    assert quoted in " ".join((RESULTS.folder.parent / "README.md").read_text().split())


def test_the_controls_are_of_the_models_that_are_bundled():
    """Else remove results/controls.json and run ``nlaformer reproduce controls``."""
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
