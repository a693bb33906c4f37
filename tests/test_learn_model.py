"""The model: what it computes at each iterate, its three configurations, stacks, files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer import problems
from nlaformer.arrays import threads_for
from nlaformer.errors import DomainError, DTypeError, OptionError, ShapeError
from nlaformer.learn.model import initial, member, stack
from nlaformer.learn.recipes import Config

TINY = Config(n=3, T=4, d=8, heads=2, batch=4, steps=4, warmup=1)
SHAPES = {
    "paper": TINY,
    "literal": TINY.replace(norm="none", output_scale=0.02),
    "looped": TINY.replace(inject=True, pre_layers=0, post_layers=0),
    "deep": TINY.replace(shared=False, loop_layers=2),
    "causal": TINY.replace(causal=True, pre_layers=2),
}


def systems(count=5, n=3, seed=0):
    A, b, _ = problems.SPD(n=n).sample(count, seed, dtype=torch.float32)
    return A, b


def awake(config):
    """A model whose probes are not zero, so that outputs tell models apart."""
    model = initial(config)
    generator = torch.Generator().manual_seed(99)
    for probe in (model.probe_x, model.probe_rd):
        probe.weight.data = torch.randn(probe.weight.shape, generator=generator)
    return model


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_every_architecture_gives_one_iterate_per_pass(config):
    x, rd = awake(config)(*systems())
    assert x.shape == (5, config.T + 1, 3) and rd.shape == (5, config.T + 1, 6)
    assert all(not torch.equal(x[:, t], x[:, t + 1]) for t in range(config.T))


def test_iterates_are_the_prompt_through_pre_loops_and_post():
    model = awake(TINY)
    A, b = systems(1)
    P = torch.zeros(4, 4)
    P[:3, 1:], P[3, 1:] = A[0].T, b[0]  # [0 | a_i ; b_i]
    X = P.T @ model.read_in.weight.T + model.positions
    expected = []
    for layer in (model.blocks.pre[0], *[model.blocks.loop[0]] * (TINY.T - 1), model.blocks.post[0]):
        X = layer(X)
        expected.append(model.probe_x.weight @ X[-1])
    torch.testing.assert_close(model(A, b)[0][0], torch.stack(expected), rtol=1e-5, atol=1e-5)


def test_the_looped_transformer_adds_the_prompt_in_every_loop():
    model = awake(SHAPES["looped"])
    A, b = systems(1)
    P = torch.zeros(4, 4)
    P[:3, 1:], P[3, 1:] = A[0].T, b[0]
    embedded = P.T @ model.read_in.weight.T + model.positions
    z = torch.zeros_like(embedded)
    expected = [model.probe_x.weight @ z[-1]]
    for _ in range(TINY.T):
        z = model.blocks.loop[0](z + embedded)
        expected.append(model.probe_x.weight @ z[-1])
    torch.testing.assert_close(model(A, b)[0][0], torch.stack(expected), rtol=1e-5, atol=1e-5)


def test_every_loop_of_the_deep_transformer_has_its_own_weights():
    model = initial(SHAPES["deep"])
    assert len(model.blocks.loop) == 2 * (TINY.T - 1)
    assert len({id(p) for p in model.parameters()}) == len(list(model.parameters()))
    with pytest.raises(OptionError, match="3 unshared"):
        model.iterates(*systems(), iterations=9)


def test_truncation_cuts_the_gradient_and_leaves_the_iterates_unchanged():
    model = awake(SHAPES["looped"])
    A, b = systems()
    whole, _ = model(A, b)
    cut, _ = model(A, b, gradient_from=3)
    assert torch.equal(whole, cut)
    early = torch.autograd.grad(cut[:, :3].sum(), list(model.blocks.parameters()), materialize_grads=True)
    late = torch.autograd.grad(model(A, b, gradient_from=3)[0][:, 3:].sum(), list(model.blocks.parameters()))
    assert all(not gradient.any() for gradient in early) and any(gradient.any() for gradient in late)


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_a_stack_computes_what_its_members_compute(config):
    models = [awake(config.replace(seed=seed)) for seed in range(3)]
    A, b = systems(6)
    together = stack(models)
    x, rd = together(A.reshape(3, 2, 3, 3), b.reshape(3, 2, 3))
    for k, model in enumerate(models):
        alone = model(A[2 * k : 2 * k + 2], b[2 * k : 2 * k + 2])
        torch.testing.assert_close(x[k], alone[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(rd[k], alone[1], rtol=1e-5, atol=1e-5)
        same = member(together, k).state_dict()
        assert all(torch.equal(tensor, same[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_saving_and_loading_keeps_every_bit(config, tmp_path):
    model = awake(config)
    loaded = nf.load(model.save(tmp_path))
    assert loaded.config == config
    A, b = systems()
    assert torch.equal(model.iterates(A, b), loaded.iterates(A, b))


def test_iterates_take_numpy_and_torch_and_any_batch():
    model = awake(TINY)
    A, b = (value.double() for value in systems(6))
    flat = model.iterates(A, b)
    assert flat.dtype == torch.float64 and flat.shape == (6, 5, 3)
    folded = model.iterates(A.numpy().reshape(2, 3, 3, 3), b.numpy().reshape(2, 3, 3))
    assert isinstance(folded, np.ndarray)
    np.testing.assert_allclose(folded.reshape(6, 5, 3), flat, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model.iterates(A[0].numpy(), b[0].numpy()), flat[0], rtol=1e-5, atol=1e-5)
    broadcast = model.iterates(A[0], b)  # one matrix, six right-hand sides
    torch.testing.assert_close(broadcast[0], flat[0], rtol=1e-5, atol=1e-5)


def test_more_loops_than_in_training_extend_the_iterates():
    model = awake(TINY)
    A, b = systems()
    longer, trained = model.iterates(A, b, iterations=9), model.iterates(A, b)
    assert longer.shape[-2] == 10
    torch.testing.assert_close(longer[:, : TINY.T], trained[:, : TINY.T])  # the last one comes out of the post block
    assert model.iterates(A, b, iterations=0).shape[-2] == 1


def test_systems_of_other_shapes_are_refused():
    model = initial(TINY)
    with pytest.raises(ShapeError, match="3 unknowns"):
        model.iterates(np.eye(4), np.ones(4))
    with pytest.raises(OptionError, match="iterations is -1"):
        model.iterates(np.eye(3), np.ones(3), iterations=-1)
    for A, b in ((torch.eye(4), torch.ones(4)), (torch.eye(3), torch.ones(4)), (torch.ones(2, 3, 3), torch.ones(3))):
        with pytest.raises(ShapeError, match=r"A \(..., 3, 3\) and b \(..., 3\)"):
            model(A, b)


def test_saving_a_stack_is_refused(tmp_path):
    with pytest.raises(OptionError, match="member"):
        stack([initial(TINY), initial(TINY)]).save(tmp_path)


def test_the_literal_layer_starts_near_the_identity():
    model, loud = initial(SHAPES["literal"]), initial(SHAPES["literal"].replace(output_scale=1.0))
    A, b = systems(64)
    start = model.features(A, b)
    assert start[:, -1].norm() < 2 * start[:, 0].norm()
    assert loud.features(A, b)[:, -1].norm() > 10 * loud.features(A, b)[:, 0].norm()


def test_iterates_keep_the_kind_of_b_and_a_wrong_precision_is_named():
    model = initial(Config(n=3, T=2, d=8, heads=2))
    A, b = np.eye(3), np.ones(3)
    assert isinstance(model.iterates(A.tolist(), b.tolist()), list)
    assert model.iterates(A, b).dtype == np.float64
    for given in ((A, b), (torch.eye(3, dtype=torch.float64), torch.ones(3))):
        with pytest.raises(DTypeError, match=r"torch\.float32.*model\.iterates"):
            model(*given)


@pytest.mark.parametrize("post", [0, 1])
def test_zero_iterations_give_the_first_iterate(post):
    model = initial(nf.recipe("quickstart", n=3, T=4, d=8, heads=2, post_layers=post))
    torch.nn.init.normal_(model.probe_x.weight)
    A, b = torch.eye(3).expand(2, 3, 3), torch.ones(2, 3)
    torch.testing.assert_close(model.iterates(A, b, iterations=0), model.iterates(A, b)[:, :1])
    assert [t for t, _ in model.states(A, b, 0)][-1] == 0
    for wrong in (-1, 2.5, "3"):
        with pytest.raises(OptionError, match="iterations"):
            model.features(A, b, wrong)


def test_entries_beyond_the_models_precision_are_refused():
    model = initial(nf.recipe("quickstart", n=3, T=4, d=8, heads=2))
    with pytest.raises(DomainError, match=r"A .*torch\.float32"):
        model.iterates(1e40 * np.eye(3), np.ones(3), normalize=False)


def _threads_during_iterates(monkeypatch, count):
    model, seen = initial(TINY), []
    original = type(model).features

    def watching(self, *arguments):
        seen.append(torch.get_num_threads())
        return original(self, *arguments)

    monkeypatch.setattr(type(model), "features", watching)
    monkeypatch.setattr("nlaformer.arrays._ENTRIES_FOR_ALL_THREADS", model.entries(10))
    model.iterates(torch.eye(TINY.n).expand(count, -1, -1), torch.ones(TINY.n))
    return seen


def test_few_systems_are_solved_on_one_thread_and_many_on_all(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert _threads_during_iterates(monkeypatch, 9) == [1]
        assert _threads_during_iterates(monkeypatch, 10) == [3]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_nested_choices_of_threads_are_undone_in_order():
    before = torch.get_num_threads()
    with threads_for(wanted=3):
        with threads_for(entries=1), threads_for(entries=1e12):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
