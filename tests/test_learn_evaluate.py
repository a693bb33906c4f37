"""Evaluation: the paper's quantities, computed by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

import nlaformer as nf
from nlaformer.console import print_sheets
from nlaformer.learn import teachers as krylov
from nlaformer.learn.evaluate import SEED, Evaluation, evaluate, findings, measure, tables
from nlaformer.learn.model import initial
from nlaformer.learn.recipes import Config

CONFIG = Config(n=4, T=6, d=16, heads=2)


@pytest.fixture(scope="module")
def solver():
    model = initial(CONFIG)
    model.probe_x.weight.data.normal_(std=0.1)
    model.probe_rd.weight.data.normal_(std=0.1)
    return model


def test_errors_and_discrepancy_are_the_papers(solver):
    systems = nf.problems.SPD(n=4).sample(7, 1)
    row = measure(solver, "label", systems)
    A, b, x = (tensor.numpy() for tensor in systems)
    iterates = solver.iterates(A, b)
    cg = krylov.cg(A, b, 6)
    _, seen = solver(*(tensor.float() for tensor in systems[:2]))
    for t in range(7):
        assert row.model[t] == pytest.approx(np.mean(((iterates[:, t] - x) ** 2).sum(-1) / (x**2).sum(-1)), rel=1e-5)
        squared = ((iterates[:, t] - x) ** 2).sum(-1) / (x**2).sum(-1)
        assert row.median["model"][t] == pytest.approx(np.median(squared), rel=1e-5)
        assert row.upper["model"][t] == pytest.approx(np.quantile(squared, 0.9), rel=1e-5)
        assert row.standard_error[t] == pytest.approx(squared.std() / 7**0.5, rel=1e-4, abs=1e-7)
        gap = ((iterates[:, t] - cg.x[:, t].numpy()) ** 2).sum(-1) / (x**2).sum(-1)
        assert row.deviation[t] == pytest.approx(gap.mean(), rel=1e-5)
        size = (np.concatenate([cg.r, cg.d], -1)[:, t] ** 2).sum(-1).mean() / 4
        assert row.silence[t] == pytest.approx(size, rel=1e-5)
    gaps = np.concatenate([cg.r, cg.d], -1) - seen.detach().numpy()
    by_hand = sum((gaps[:, t] ** 2).sum(-1) for t in range(2, 5)).mean() / (4 * (4 - 1))
    assert row.discrepancy == pytest.approx(by_hand, rel=1e-5)


def test_iterations_to_a_threshold():
    row = Evaluation("", 1, (1.0, 0.2, 0.1, 0.02), (1.0, 0.5, 0.009, 0.02), (1.0, 1e-7, 1.0, 1.0), (0.0,) * 4, 0.0)
    assert row.iterations_to() == {"model": [2] + [None] * 5, "cg": [2, 2] + [None] * 4, "pcg": [1] * 6}


def test_a_sentence_says_where_the_model_stands():
    def said(model, cg):
        return findings(Evaluation("", 1, model, cg, cg, (0.0,) * len(cg), 0.0))

    assert (
        said((1.0, 0.6, 0.5), (1.0, 0.5, 0.1))
        == "Behind CG from t = 1 on; from t = 1 on the error stays near 0.5, CG reaches 0.1."
    )
    assert said((1.0, 0.1, 0.01), (1.0, 0.2, 0.1)) == "Ahead of CG up to t = 2, by a factor of 10 at most."
    assert said((1.0, 0.1, 1.2), (1.0, 0.2, 0.1)).startswith("Its last error, 1.2, is above that of x = 0")
    own = Evaluation("", 1, (1.0, 0.1, 1e-5), (1.0,) * 3, (1.0, 0.3, 0.0333), (0.0,) * 3, 0.0)
    assert findings(own, "pcg") == "Ahead of PCG up to t = 2, by a factor of 3,300 at most."


def test_unfamiliar_systems_come_after_the_own(solver):
    rows = evaluate(solver, count=8)
    labels = [row.label for row in rows]
    assert labels[0] == "spd, sigma 1.2" and "spd, sigma 1.4" in labels and "A and b times 2" in labels
    assert "poisson-2d" in labels  # four unknowns are a square
    assert all(row.count == 8 and len(row.model) == 7 for row in rows)
    assert rows == evaluate(solver, count=8, seed=SEED)
    json.dumps([row.to_json() for row in rows], allow_nan=False)


def test_scaling_leaves_cg_alone_and_shows_in_the_table(solver, capsys):
    rows = {row.label: row for row in evaluate(solver, count=8)}
    assert rows["A and b times 2"].cg == pytest.approx(rows["spd, sigma 1.2"].cg, rel=1e-6, abs=1e-20)
    print_sheets(tables(list(rows.values())))
    text = capsys.readouterr().out
    assert "Squared relative error" in text and "graph-laplacian" in text and "Discrepancy" in text
