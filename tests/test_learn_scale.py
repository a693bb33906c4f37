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
USUAL = Config(n=20, T=3, d=8, heads=2, sigma=(1.0, 1.2, 1.4))


def awake(config: Config = TINY) -> nf.Solver:
    model = initial(config)
    torch.nn.init.normal_(model.probe_x.weight, generator=torch.Generator().manual_seed(0))
    return model


def typical(count: int, seed: int = 1, config: Config = TINY) -> tuple[torch.Tensor, torch.Tensor]:
    A, b, _ = problems.SPD(n=config.n, sigma=config.sigma).sample(count, seed)
    return A, b


def test_inside_the_range_of_training_every_bit_is_that_of_the_raw_model():
    model, (A, b) = awake(USUAL), typical(512, config=USUAL)
    assert torch.equal(model.iterates(A, b), model.iterates(A, b, normalize=False))


@pytest.mark.parametrize("i", [1, -1, 20, -20, 300, -1000])
def test_a_power_of_two_of_a_system_of_the_family_is_solved_like_itself_to_the_last_bit(i: int):
    model, (A, b) = awake(USUAL), typical(64, config=USUAL)
    size = (A - torch.diag_embed(A.diagonal(dim1=-2, dim2=-1))).flatten(1).norm(dim=-1).log2()
    known = familiar(USUAL).size
    A, b = (value[(known.low <= size) & (size <= known.high)] for value in (A, b))
    assert len(A) > 60
    assert torch.equal(model.iterates(A * 2.0**i, b * 2.0**i), model.iterates(A, b))
    x, f = model.iterates(A, b * 2.0**i), familiar(USUAL).scaling(A, b * 2.0**i)[1]
    assert torch.equal(f, f.round())
    assert torch.equal(x, model.iterates(A, b * 2.0 ** (i - f)[:, None], normalize=False) * 2.0 ** f[:, None, None])


@pytest.mark.parametrize("factor", [3.0, 1 / 3, 1e6, 0.6e-7])
def test_any_multiple_is_shown_at_an_ordinary_size_and_length(factor: float):
    A, b = typical(64, config=USUAL)
    known = familiar(USUAL)
    for A_k, b_k in ((A * factor, b * factor), (A * factor, b), (A, b * factor)):
        e, f = known.scaling(A_k, b_k)
        shown = A_k * 2.0 ** -e[:, None, None], b_k * 2.0 ** -(e + f)[:, None]
        again = known.scaling(*shown)
        assert all((exponent == 0).all() for exponent in again)


@pytest.mark.parametrize("name", ["cg-accelerated", "pcg-accelerated"])
def test_bundled_models_solve_multiples_of_their_systems(name: str):
    model = nf.load(name)
    A, b, x = problems.SPD(n=20, sigma=(1.4,)).sample(24, seed=3)
    for of_A, of_b in ((2.0, 2.0), (3.0, 3.0), (1e-6, 1e-6), (8.0, 1.0), (1.0, 4.0), (1.0, -1e3)):
        last = model.iterates(A * of_A, b * of_b, iterations=8)[:, -1] * (of_A / of_b)
        errors = (last - x).square().sum(-1) / x.square().sum(-1)
        assert errors.max() < 1e-4, (of_A, of_b)


@pytest.mark.parametrize(
    "A",
    [1e6 * np.eye(6), np.diag([1.0, 0, 1, 1, 1, 1]), -np.eye(6), np.ones((6, 6)) - np.eye(6)],
    ids=["diagonal", "singular", "negative", "no diagonal"],
)
def test_matrices_without_a_usual_size_have_iterates_that_scale_with_b(A: np.ndarray):
    model, b = awake(), typical(1)[1][0].numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfamiliarWarning)
        large, small = model.iterates(A, b * 2.0**100), model.iterates(A, b * 2.0**-100)
        assert np.isfinite(model.iterates(A, 0 * b)).all()
    assert np.isfinite(large).all()
    np.testing.assert_array_equal(large, small * 2.0**200)


def test_systems_of_a_batch_are_scaled_one_by_one_and_zeros_have_finite_iterates():
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
