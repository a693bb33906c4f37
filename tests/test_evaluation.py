"""nf.evaluate: errors computed by hand, for every kind of model and of systems; and the command that draws them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.errors import NLAFormerError
from nlaformer.learn.evaluate import measure
from nlaformer.learn.model import initial
from nlaformer.learn.models import untrained
from tests.command import run_command

TINY = {"n": 4, "T": 5, "d": 8, "heads": 2}
SYSTEMS = nf.problems.SPD(n=4).sample(6, seed=1)


def _errors(iterates, x) -> np.ndarray:
    iterates, x = np.asarray(iterates), np.asarray(x)
    return ((iterates - x[:, None]) ** 2).sum(-1) / (x**2).sum(-1)[:, None]


def test_the_errors_of_an_algorithm_are_those_of_its_run():
    cg = nf.algorithm("cg", n=4, verify=False)
    found = nf.evaluate(cg, SYSTEMS, iterations=3)
    errors = _errors(cg.run(SYSTEMS.A, SYSTEMS.b, iterations=3).x, SYSTEMS.x)
    assert found.mean["ConjugateGradient"] == pytest.approx(errors.mean(0).tolist(), rel=1e-9)
    assert found.largest["ConjugateGradient"] == pytest.approx(errors.max(0).tolist(), rel=1e-9)
    assert found.mean["CG"] == pytest.approx(found.mean["ConjugateGradient"], rel=1e-6, abs=1e-20)
    assert found.count == 6 and all(len(curve) == 4 for curve in found.mean.values())


@pytest.mark.parametrize("make", [lambda: initial(nf.recipe("quickstart", **TINY)),
                                  lambda: untrained(nf.recipe("guided-quickstart", **TINY))])  # fmt: skip
def test_a_trained_model_is_evaluated_on_its_own_family_by_default(make):
    model = make()
    found = nf.evaluate(model, count=6, seed=1)
    drawn = model.config.make_family().sample(6, seed=1)
    assert found.mean["learned"] == pytest.approx(_errors(model.iterates(*drawn[:2]), drawn.x).mean(0), rel=1e-6)
    assert found.T == 5 and len(found.mean["learned"]) == 6
    longer = nf.evaluate(model, count=6, seed=1, iterations=7)
    assert longer.T == 5 and len(longer.mean["CG"]) == len(longer.mean["learned"]) == 8
    if isinstance(model, nf.Solver):  # the same as of the command
        assert found.mean["CG"] == pytest.approx(measure(model, "", drawn).cg, rel=1e-6, abs=1e-18)


def test_arrays_of_any_kind_are_systems_and_the_answer_is_computed_where_it_is_not_given():
    def halves(A, b):
        x = np.linalg.solve(A, b[..., None])[..., 0]
        return np.stack([np.zeros_like(x), x / 2, x], 1)

    given = SYSTEMS.A.numpy(), SYSTEMS.b.numpy()
    for systems in (
        given,
        (*given, SYSTEMS.x.numpy()),
        SYSTEMS,
        (torch.as_tensor(given[0]), torch.as_tensor(given[1])),
    ):
        found = nf.evaluate(halves, systems)
        assert found.mean["halves"] == pytest.approx((1, 0.25, 0), abs=1e-12)
    assert nf.evaluate(halves, (given[0][0], given[1][0])).count == 1
    assert nf.evaluate(halves, (given[0][0], given[1])).count == 6


def test_systems_that_are_not_definite_meet_methods_for_them():
    A, b, x = nf.problems.Nonsymmetric(n=4).sample(3, seed=0)
    found = nf.evaluate(nf.algorithm("richardson", n=4, verify=False), (A, b, x), iterations=4)
    assert "CG" not in found.mean and set(found.mean) > set(nf.problems.Nonsymmetric(n=4).rivals())


@pytest.mark.parametrize(
    "systems",
    [
        "spd",
        (np.eye(4),),
        (np.ones((4, 3)), np.ones(4)),
        (np.eye(4), np.ones(3)),
        (np.eye(4), np.zeros(4)),
        (np.zeros((4, 4)), np.ones(4)),
        (np.full((4, 4), np.nan), np.ones(4)),
        (np.ones((2, 4, 4)), np.ones((3, 4))),
        3,
    ],
)
def test_what_is_no_system_is_refused(systems):
    with pytest.raises(NLAFormerError):
        nf.evaluate(nf.algorithm("cg", n=4, verify=False), systems)


def test_the_command_draws_what_it_prints(tmp_path: Path, monkeypatch, capsys):
    initial(nf.recipe("quickstart", **TINY)).save(tmp_path / "model")
    picture, model = tmp_path / "errors.svg", str(tmp_path / "model")
    code, told = run_command(monkeypatch, capsys, "evaluate", model, "--count", "4", "--plot", str(picture), "--json")
    assert code == 0 and json.loads(told.out)["plot"] == str(picture)
    text = picture.read_text(encoding="utf-8")
    assert ">PCG<" in text and ">learned<" in text
    code, told = run_command(monkeypatch, capsys, "evaluate", model, "--plot", str(tmp_path / "no" / "a.png"))
    assert code == 2 and not told.out
