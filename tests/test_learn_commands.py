"""The commands train, sweep and evaluate, as a user types them."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from nlaformer.cli import app
from nlaformer.errors import NLAFormerError
from nlaformer.learn.model import initial
from nlaformer.learn.recipes import recipe

SETTINGS = {"n": 3, "T": 3, "d": 8, "heads": 2, "batch": 4, "steps": 6, "warmup": 1}
TINY = ["--device=cpu", *(f"--set={key}={value}" for key, value in SETTINGS.items())]


@pytest.fixture
def command():
    def run(*arguments, code=0):
        outcome = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert outcome.exit_code == code, outcome.output
        return outcome

    return run


def test_a_model_that_is_not_finite_is_evaluated_all_the_same(command, tmp_path):
    model = initial(recipe("quickstart", n=3, T=3, d=8, heads=2))
    with torch.no_grad():
        model.probe_x.weight.fill_(torch.nan)
    model.save(tmp_path)
    found = json.loads(command("evaluate", tmp_path, "--json").stdout, parse_constant=pytest.fail)
    assert found["evaluations"][0]["model"] == [None] * 4
    assert "not finite" in command("evaluate", tmp_path).stdout


def test_train_then_evaluate(command, tmp_path):
    trained = command("train", "quickstart", *TINY, "--out", tmp_path / "run")
    assert "Squared relative error" in trained.stdout and "step 6/6" in trained.stderr
    assert "step 4/6" in trained.stderr, "the speed shows after the first steps"
    assert f"nlaformer evaluate {tmp_path / 'run'}" in trained.stdout
    again = command("train", "quickstart", *TINY, "--out", tmp_path / "run", "--json")
    document = json.loads(again.stdout)
    assert len(document["evaluations"][0]["model"]) == 4 and not document["diverged"]
    evaluated = json.loads(command("evaluate", tmp_path / "run", "--count", 512, "--json").stdout)
    assert evaluated["evaluations"] == document["evaluations"] and evaluated["step"] == evaluated["steps"] == 6


def test_evaluate_names_every_family_on_standard_error_and_in_the_table(command, tmp_path):
    initial(recipe("quickstart", n=3, T=3, d=8, heads=2)).save(tmp_path)
    outcome = command("evaluate", tmp_path, "--count", 4)
    for label in ("spd, sigma 1.2", "b times 4", "graph-laplacian"):
        assert label in outcome.stderr and label in outcome.stdout


def test_evaluating_a_recipe_hints_at_its_folder(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "nlaformer train quickstart" in str(command("evaluate", "quickstart", code=1).exception)
    (tmp_path / "runs" / "quickstart").mkdir(parents=True)
    assert "did you mean runs/quickstart" in str(command("evaluate", "quickstart", code=1).exception)


def test_sweep_trains_every_combination(command, tmp_path):
    vary = ["--vary", "lr=1e-3,1e-4", "--vary", "sigma=1.0,1.0+1.4", "--vary", "d=8,16"]
    outcome = command("sweep", "quickstart", *TINY, *vary, "--out", tmp_path, "--json")
    runs = json.loads(outcome.stdout)["runs"]
    assert len(runs) == 8 and len({run["folder"] for run in runs}) == 8
    assert (tmp_path / "sigma=1.0+1.4,d=16,lr=0.0001" / "model.safetensors").exists()
    assert "t = 2" in command("sweep", "quickstart", *TINY, *vary, "--out", tmp_path).stdout


def test_a_run_that_ends_worse_than_zero_is_named(command, tmp_path):
    hasty = ["--set=clip=1e9", "--set=warmup=0", "--out", tmp_path]
    shown = command("sweep", "quickstart", *TINY, *hasty, "--vary", "lr=1e-5,30").stdout
    good, bad = (line for line in shown.splitlines() if "lr=" in line)
    assert "worse than x = 0" in bad and "worse than x = 0" not in good


def test_a_sweep_whose_metrics_were_removed_is_shown_without(command, tmp_path):
    again = ["sweep", "quickstart", *TINY, "--vary", "seed=0,1", "--out", tmp_path]
    command(*again)
    (tmp_path / "seed=0" / "metrics.jsonl").unlink()
    first = next(line for line in command(*again).stdout.splitlines() if "seed=0" in line)
    assert first.split()[1:] == ["-"] * 5


def test_a_sweep_may_vary_the_number_of_iterations(command, tmp_path):
    shown = command("sweep", "quickstart", *TINY, "--out", tmp_path, "--vary", "T=3,1").stdout
    three, one = (line.split() for line in shown.splitlines() if "T=" in line)
    assert three[3] == "-" and three[4] != "-"  # no x_4, but a last one
    assert one[2] == one[3] == "-" and one[1] == one[4]


def test_mistakes_are_refused_with_all_that_is_wrong(command, tmp_path):
    outcome = command("train", "quickstart", "--set", "d=30", "--set", "sigma=-1", "--out", tmp_path / "run", code=1)
    assert isinstance(outcome.exception, NLAFormerError)
    assert "d=30" in str(outcome.exception) and "sigma=(-1.0,)" in str(outcome.exception)
    assert "did you mean 'lr'" in str(command("train", "quickstart", "--set", "lrr=1", code=1).exception)
    assert "did you mean 'quickstart'" in str(command("train", "quickstrat", code=1).exception)


def test_a_run_that_diverges_answers_no(command, tmp_path):
    wild = ["--set", "lr=1e30", "--set", "warmup=0", "--set", "clip=1e30"]
    command("train", "quickstart", *TINY, *wild, "--out", tmp_path / "run", code=1)
