"""Configs: typed settings, all problems at once, what a stack must share."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import nlaformer as nf
from benchmarks import learning
from nlaformer.errors import OptionError, UnknownNameError
from nlaformer.learn.config import Config
from nlaformer.learn.stacks import check_stack


@pytest.mark.parametrize("name", list(nf.recipes()))
def test_every_recipe_is_valid_and_survives_json_and_its_repr(name):
    config = nf.recipe(name).validate()
    assert config.recipe == name
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert eval(repr(config), {"Config": Config().replace}) == config and len(repr(config)) < 300


def test_settings_take_the_type_of_their_field():
    settings = ["steps=2e4", "lr=3e-4", "sigma=1.0,1.4", "causal=yes", "window=none", "lambda=7", "ffn=12"]
    config = Config().set(["supervision=step+solution", *settings])
    assert (config.steps, config.lr, config.sigma, config.causal, config.window) == (
        20_000,
        3e-4,
        (1.0, 1.4),
        True,
        None,
    )
    assert (config.lambda_, config.ffn) == (7.0, 12)


def test_every_line_of_the_learning_benchmark_can_be_trained_in_full_and_small():
    for lines in learning.plans().values():
        for config in lines.values():
            assert config.complaints() == learning.small(config).complaints() == []
        check_stack([learning.small(config) for config in lines.values()])


def test_a_misspelt_setting_gets_a_suggestion():
    with pytest.raises(UnknownNameError, match="'warmup'"):
        Config().set(["warmpu=10"])
    with pytest.raises(UnknownNameError, match="'cg-joint'"):
        nf.recipe("cg-jiont")


@pytest.mark.parametrize(
    "setting", ["steps=many", "steps=1.5", "causal=perhaps", "norm=layer", "lr=fast", "sigma=a,b", "supervision=joined"]
)
def test_a_value_of_the_wrong_type_is_refused(setting):
    with pytest.raises(OptionError, match=setting.partition("=")[0]):
        Config().set([setting])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", "20"), ("n", np.float64(8)), ("causal", 1), ("steps", True), ("norm", np.zeros(2)),
        ("sigma", "1.2"), ("sigma", None), ("sigma", [1.2, True]), ("lr", 10**400), ("lr", np.bool_(True)),
        ("sigma", b"1"), ("sigma", {1.0: 2}), ("sigma", np.ones((1, 1))),
    ],
)  # fmt: skip
def test_replace_refuses_values_of_the_wrong_type(name, value):
    with pytest.raises(OptionError, match=f"{name}="):
        Config().replace(**{name: value})
    assert Config().replace(sigma=1).sigma == (1.0,)


@pytest.mark.parametrize("name", ["lr", "n", "seed", "shared", "norm", "sigma", "window"])
def test_numbers_too_long_to_print_are_refused(name):
    for value in (10**5000, -(10**5000), [10**5000]):
        with pytest.raises(OptionError, match=f"{name}=a value of type "):
            Config().replace(**{name: value})


def test_numbers_of_numpy_become_pythons_own():
    config = nf.recipe("quickstart", n=np.int64(16), lr=np.float32(0.5), sigma=np.array([1, 2]), ffn=np.int32(12))
    assert config == nf.recipe("quickstart", n=16, lr=0.5, sigma=(1.0, 2.0), ffn=12)
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_arrays_without_axes_are_numbers_and_those_with_one_are_lists():
    for make in (np.array, torch.tensor):
        config = nf.recipe("quickstart", n=make(16), lr=make(0.5), sigma=make([1.0, 1.5]), ffn=make(12))
        assert config == nf.recipe("quickstart", n=16, lr=0.5, sigma=(1.0, 1.5), ffn=12)


@pytest.mark.parametrize("document", [None, {}, [], "n", 3, {1: 2}])
def test_from_json_refuses_what_to_json_cannot_give(document):
    with pytest.raises(OptionError, match="to_json"):
        Config.from_json(document)
    with pytest.raises(UnknownNameError, match="'self'"):
        Config.from_json({"self": 1})


def test_validate_lists_all_complaints_at_once():
    config = Config().replace(d=30, heads=8, window=40, sigma=(-1.0,), family="spdd", batch=0, warmup=30_000, beta2=1.0)
    with pytest.raises(OptionError) as caught:
        config.replace(power=1.5).validate()
    for word in (
        "heads=8",
        "window=40",
        "sigma=(-1.0,)",
        "'spdd'",
        "batch=0",
        "warmup=30000",
        "beta2=1.0",
        "power=1.5",
    ):
        assert word in str(caught.value)


def test_nan_in_a_config_is_a_complaint():
    nan = float("nan")
    assert len(Config().replace(supervision="joint", lr=nan, eta=nan, power=nan, sigma=(nan,)).complaints()) == 4


@pytest.mark.parametrize("changes", [{"lr": math.inf}, {"eta": math.inf}, {"sigma": (math.inf,)}, {"seed": 2**63}])
def test_infinite_values_and_too_large_seeds_are_one_complaint_each(changes):
    assert len(Config(supervision="joint").replace(**changes).complaints()) == 1
    assert Config(seed=2**63 - 1).complaints() == []


def test_truncation_without_injection_is_refused():
    with pytest.raises(OptionError, match="inject"):
        Config(truncate=True, window=5).validate()


def test_truncation_before_a_window_of_all_iterates_is_refused():
    config = Config(T=8, inject=True)
    with pytest.raises(OptionError, match="truncate"):
        config.replace(truncate=True, window=9)
    assert config.replace(truncate=True, window=8).truncate


def test_a_bad_config_is_refused_before_its_folder_is_made(tmp_path):
    with pytest.raises(OptionError, match="d=30"):
        nf.train(nf.recipe("quickstart", d=30), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("field", ["T", "n", "d", "batch", "chunk", "pre_layers", "ffn"])
def test_a_run_beyond_the_memory_is_refused_before_its_folder_is_made(field, tmp_path):
    with pytest.raises(OptionError, match="memory"):
        nf.train(nf.recipe("quickstart", **{field: 10**12}), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_stack_names_every_field_that_must_agree():
    check_stack([Config(lr=1e-3, seed=1), Config(lr=1e-4, seed=2, sigma=(1.0,), teacher="pcg", window=3, power=0.5)])
    with pytest.raises(OptionError) as caught:
        check_stack([Config(), Config(d=128, batch=32, lr=1e-4)])
    assert "d: 256, 128" in str(caught.value) and "batch: 64, 32" in str(caught.value) and "lr" not in str(caught.value)
