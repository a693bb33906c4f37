"""The bundled models: their cards are made from their runs, and fresh systems give the figures on them."""

from __future__ import annotations

from pathlib import Path

import pytest

import nlaformer as nf
from nlaformer import pretrained
from nlaformer.learn.evaluate import judge, trial
from nlaformer.study import bundled, bundling
from nlaformer.study.plan import BUNDLED, SIGMAS
from nlaformer.study.reading import at
from nlaformer.study.results import Results

RESULTS = Results(Path(__file__).parent.parent / "results")
FRESH = 20_261_116  # a seed nobody has used


def record_of(name):
    """The run a bundled model came from: that of its config."""
    return RESULTS.lengths(f"bundled-{name}")[nf.load(name).config.steps]


def test_all_or_none_are_here():
    assert set(pretrained.names()) in (set(), set(BUNDLED))


@pytest.mark.parametrize("name", pretrained.names())
def test_the_card_is_made_from_the_run(name):
    fresh = RESULTS.file(bundled.FILE) or {"models": {}, "count": 0}
    made = bundling.card(name, record_of(name), fresh["models"].get(name), fresh["count"])
    assert (pretrained.HOME / name / "README.md").read_text() == made


@pytest.mark.parametrize(("name", "sigma"), list(zip(pretrained.names(), (*SIGMAS, 1.2), strict=False)))
def test_fresh_systems_give_the_committed_errors(name, sigma):
    """Means of 64 and of 512 systems within five standard errors of their difference, medians within a half."""
    solver, kept = nf.load(name), at(record_of(name), sigma)
    fresh = judge(solver, trial("fresh", nf.problems.SPD(n=20, sigma=(sigma,)).sample(64, FRESH), solver.config.T))
    for t in (1, 2, 4, 8, 20):
        assert 2 / 3 < fresh.median["model"][t] / kept["median"]["model"][t] < 3 / 2, t
        allowed = 5 * (fresh.standard_error[t] ** 2 + kept["standard_error"][t] ** 2) ** 0.5
        assert abs(fresh.model[t] - kept["model"][t]) <= allowed, t
