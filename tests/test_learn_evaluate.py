"""Evaluation: the paper's quantities, computed by hand."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.learn import teachers
from nlaformer.learn.evaluate import SEED, Evaluation, evaluate, findings, measure
from nlaformer.learn.model import initial
from nlaformer.learn.recipes import Config

CONFIG = Config(n=4, T=6, d=16, heads=2)


@pytest.fixture(scope="module")
def solver():
    model = initial(CONFIG)
    model.probe_x.weight.data.normal_(std=0.1)
    model.probe_rd.weight.data.normal_(std=0.1)
    return model


def test_errors_and_discrepancy_equal_the_papers_formulas(solver):
    systems = nf.problems.SPD(n=4).sample(7, 1)
    row = measure(solver, "label", systems)
    A, b, x = (tensor.numpy() for tensor in systems)
    iterates = solver.iterates(A, b)
    cg = teachers.cg(A, b, 6)
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


def test_iterations_to_a_threshold_are_the_first_below_it():
    row = Evaluation("", 1, (1.0, 0.2, 0.1, 0.02), (1.0, 0.5, 0.009, 0.02), (1.0, 1e-7, 1.0, 1.0), (0.0,) * 4, 0.0)
    assert row.iterations_to() == {"model": [2] + [None] * 5, "cg": [2, 2] + [None] * 4, "pcg": [1] * 6}


@pytest.mark.parametrize(
    ("model", "teachers", "numbers"),
    [
        ((1.0, 0.6, 0.5), (1.0, 0.5, 0.1), ["1", "1", "0.5", "0.1"]),  # behind from t = 1, stalls from t = 1 at 0.5
        ((1.0, 0.1, 0.01), (1.0, 0.2, 0.1), ["2", "10"]),  # ahead up to t = 2, by a factor of 10
        ((1.0, 0.1, 1e-5), (1.0, 0.3, 0.0333), ["2", "3,300"]),
        ((1.0, 0.1, 1.2), (1.0, 0.2, 0.1), ["1.2", "0"]),  # worse than x = 0
    ],
)
def test_the_summary_gives_the_lead_over_the_teacher_and_the_last_error(model, teachers, numbers):
    rest = {"intermediate": (0.0,) * 3, "discrepancy": 0.0}
    for teacher in ("cg", "pcg"):
        other = {"cg": (9.0,) * 3, "pcg": (9.0,) * 3} | {teacher: teachers}
        assert re.findall(r"\d[\d.,]*\d|\d", findings(Evaluation("", 1, model, **other, **rest), teacher)) == numbers


def test_unfamiliar_systems_come_after_the_own_family(solver):
    rows = evaluate(solver, count=8)
    labels = [row.label for row in rows]
    assert labels[0] == "spd, sigma 1.2" and "spd, sigma 1.4" in labels and "A and b times 2" in labels
    assert "poisson-2d" in labels  # four unknowns are a square
    assert all(row.count == 8 and len(row.model) == 7 for row in rows)
    assert rows == evaluate(solver, count=8, seed=SEED)
    json.dumps([row.to_json() for row in rows], allow_nan=False)


def test_scaling_a_system_leaves_the_errors_of_cg_unchanged(solver):
    rows = {row.label: row for row in evaluate(solver, count=8)}
    assert rows["A and b times 2"].cg == pytest.approx(rows["spd, sigma 1.2"].cg, rel=1e-6, abs=1e-20)


def test_a_small_evaluation_runs_on_one_thread_whatever_torch_uses(solver):
    before, seen = torch.get_num_threads(), []
    try:
        torch.set_num_threads(3)
        evaluate(solver, count=2, say=lambda label: seen.append(torch.get_num_threads()))
        assert set(seen) == {1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
