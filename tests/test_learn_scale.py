"""Models that know their scale: exact scaling outside the magnitudes of training, the very model inside, warnings."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer import pretrained, problems
from nlaformer.errors import DomainError, UnfamiliarWarning
from nlaformer.learn.model import initial
from nlaformer.learn.recipes import Config
from nlaformer.learn.scale import familiar

TINY = Config(n=6, T=3, d=8, heads=2)


def awake() -> nf.Solver:
    model = initial(TINY)
    torch.nn.init.normal_(model.probe_x.weight, generator=torch.Generator().manual_seed(0))
    return model


def typical(count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    A, b, _ = problems.SPD(n=6, sigma=(1.2,)).sample(count, seed)
    return A, b


def test_inside_the_range_of_training_every_bit_is_that_of_the_raw_model():
    model, (A, b) = awake(), typical(512)
    e, f = familiar(TINY).scaling(A, b)
    inside = (e == 0) & (f == 0)
    assert inside.double().mean() > 0.98
    same = model.iterates(A, b)[inside] == model.iterates(A, b, normalize=False)[inside]
    assert same.all()


@pytest.mark.parametrize(("i", "j"), [(9, -40), (-300, 80), (700, 650), (-1000, 20), (0, 6)])
def test_far_outside_iterates_scale_with_b_and_inversely_with_A_to_the_last_bit(i: int, j: int):
    model, (A, b) = awake(), typical(8)
    known = familiar(TINY)
    size, length = A.flatten(1).norm(dim=-1).log2(), b.norm(dim=-1).log2() - A.flatten(1).norm(dim=-1).log2()
    e, f = (size - known.size.middle).round(), (length - known.length.middle).round()
    middle = model.iterates(A * 2.0 ** -e[:, None, None], b * 2.0 ** -(e + f)[:, None], normalize=False)
    if i:
        expected = middle * 2.0 ** (f - i + j)[:, None, None]
        assert torch.equal(model.iterates(A * 2.0**i, b * 2.0**j), expected)
    else:  # A inside its range stays as it is
        shown = model.iterates(A, b * 2.0 ** -f[:, None], normalize=False)
        assert torch.equal(model.iterates(A, b * 2.0**j), shown * 2.0 ** (f + j)[:, None, None])


def test_systems_of_a_batch_are_scaled_one_by_one_and_zeros_stay_zeros():
    model, (A, b) = awake(), typical(3)
    A = A * torch.tensor([1.0, 1e6, 1e-6], dtype=A.dtype)[:, None, None]
    together = model.iterates(A, b)
    for k in range(3):
        torch.testing.assert_close(together[k], model.iterates(A[k], b[k]), rtol=1e-5, atol=0.0)
    many = model.iterates(A[1], torch.stack([b[1], 0 * b[1]]))  # one matrix, several right-hand sides
    torch.testing.assert_close(many[0], together[1], rtol=1e-5, atol=0.0)
    assert torch.isfinite(many).all()


def test_entries_beyond_float32_are_refused_by_the_raw_model_alone():
    model, (A, b) = awake(), typical(1)
    assert torch.isfinite(model.iterates(1e40 * A, b)).all()
    with pytest.raises(DomainError, match=r"torch\.float32"):
        model.iterates(1e40 * A, b, normalize=False)


def test_systems_unlike_the_training_get_a_warning_at_the_users_line_and_others_none():
    model, (A, b) = awake(), typical(256)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.iterates(A, b)
        model.iterates(1e9 * A, b)  # another scale is not another kind
        model.iterates(torch.eye(6, dtype=A.dtype), b[0], normalize=False)
    for strange in (torch.eye(6, dtype=A.dtype), -A[0], problems.RBFKernel(n=6).sample(1, 0).A[0]):
        with pytest.warns(UnfamiliarWarning) as caught:
            model.iterates(strange, b[0])
        assert caught[0].filename == __file__


@pytest.mark.parametrize("name", pretrained.names())
def test_bundled_models_do_not_diverge_on_the_system_of_the_readme(name: str):
    A, B = np.random.default_rng(0).normal(size=(2, 20, 20))
    S, b = A @ A.T + 20 * np.eye(20), B[0]
    x, model = np.linalg.solve(S, b), nf.load(name)
    if not isinstance(model, nf.Solver):
        pytest.skip("not a purely learned model")
    with pytest.warns(UnfamiliarWarning):
        errors = np.linalg.norm(model.iterates(S, b) - x, axis=-1) / np.linalg.norm(x)
    assert errors[-1] < 0.01
    assert np.linalg.norm(model.iterates(S, b, normalize=False)[-1] - x) > 10 * np.linalg.norm(x)


def test_a_family_that_is_not_here_leaves_the_model_as_it_is(monkeypatch: pytest.MonkeyPatch):
    def absent(config: Config) -> problems.Family:
        raise nf.errors.OptionError("not here")

    monkeypatch.setattr(Config, "make_family", absent)
    familiar.cache_clear()
    model, (A, b) = awake(), typical(4)
    assert torch.equal(model.iterates(1e6 * A, b), model.iterates(1e6 * A, b, normalize=False))
    familiar.cache_clear()
