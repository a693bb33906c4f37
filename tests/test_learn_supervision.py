"""The losses, against the paper's formulas written out."""

from __future__ import annotations

import pytest
import torch

from nlaformer.learn import supervision
from nlaformer.learn.data import Stream
from nlaformer.learn.engine import PlainEngine
from nlaformer.learn.model import initial, stack
from nlaformer.learn.optimizer import clip
from nlaformer.learn.recipes import Config

T, N, BATCH = 4, 3, 5
BASE = Config(n=N, T=T, d=8, heads=2, batch=BATCH, chunk=2, steps=4, warmup=1)


@pytest.fixture
def trajectory():
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(1, BATCH, *shape, generator=generator, dtype=torch.float64)

    return draw(T + 1, N), draw(T + 1, 2 * N), draw(T + 1, N), draw(T + 1, 2 * N), draw(N)


def value(config, trajectory):
    return supervision.loss(supervision.distances(*trajectory), supervision.objective([config])).item()


def by_hand(trajectory, first, step=0.0, solution=0.0, eta=0.0):
    x, rd, x_teacher, rd_teacher, x_true = (tensor[0] for tensor in trajectory)
    total = 0.0
    for system in range(BATCH):
        for t in range(first, T + 1):
            total += step * ((x[system, t] - x_teacher[system, t]) ** 2).sum()
            total += solution * ((x[system, t] - x_true[system]) ** 2).sum()
            total += eta * ((rd[system, t] - rd_teacher[system, t]) ** 2).sum()
    return float(total) / (BATCH * N * (T - first + 1))


def test_each_loss_equals_its_formula_in_the_paper(trajectory):
    for changes, expected in (
        ({"supervision": "result"}, by_hand(trajectory, 0, step=1)),
        ({"supervision": "joint", "eta": 0.3}, by_hand(trajectory, 0, step=1, eta=0.3)),
        ({"supervision": "step+solution", "lambda": 7}, by_hand(trajectory, 0, step=1, solution=7)),
        ({"supervision": "step+solution", "lambda": 7, "window": 2}, by_hand(trajectory, 3, step=1, solution=7)),
        ({"supervision": "step+solution", "lambda": 0, "window": T + 1}, by_hand(trajectory, 0, step=1)),
        ({"supervision": "solution"}, by_hand(trajectory, 0, solution=1)),
    ):
        assert value(BASE.replace(**changes), trajectory) == pytest.approx(expected, rel=1e-6)


FLOOR = 0.01
FLOORS = torch.tensor([1.0] + T * [FLOOR], dtype=torch.float64)  # iterate 0 is known in advance


@pytest.mark.parametrize("power", [0.0, 1e-3, 0.5, 0.9])
def test_the_loss_with_a_power_is_the_mean_of_that_power_of_the_errors(power, trajectory):
    error = supervision.distances(*trajectory)[0, 0] + FLOORS
    expected = error.log() if power == 0 else (error**power - 1) / power
    config = BASE.replace(supervision="result", power=power, floor=FLOOR)
    assert value(config, trajectory) == pytest.approx(float(expected.mean()), rel=1e-6)
    windowed = config.replace(window=2)
    assert value(windowed, trajectory) == pytest.approx(float(expected[-2:].mean()), rel=1e-6)


@pytest.mark.parametrize("power", [0.0, 1e-3, 0.5, 0.9, 1.0])
def test_a_power_scales_the_gradient_of_each_iterate_by_its_error(power, trajectory):
    config = BASE.replace(supervision="result")
    raised = {"power": power, "floor": FLOOR} if power < 1 else {"power": power}
    x = trajectory[0].clone().requires_grad_()
    squared = supervision.distances(x, *trajectory[1:])
    powered, plain = (
        torch.autograd.grad(supervision.loss(squared, supervision.objective([c])).sum(), x, retain_graph=True)[0]
        for c in (config.replace(**raised), config)
    )
    slope = (squared[0, 0].detach() + FLOORS) ** (power - 1)  # (T+1,)
    torch.testing.assert_close(powered, plain * slope.unsqueeze(-1), rtol=1e-5, atol=1e-8)


def test_power_one_has_a_finite_gradient_beside_members_with_other_powers():
    squared = torch.zeros(3, 3, T + 1, requires_grad=True)
    configs = [BASE.replace(power=0.0), BASE, BASE.replace(power=0.5)]
    total = supervision.loss(squared, supervision.objective(configs)).sum()
    (gradient,) = torch.autograd.grad(total, squared)
    assert torch.isfinite(gradient).all() and gradient[1, 0].eq(1 / (T + 1)).all()


def test_an_exact_iterate_zero_does_not_dominate_the_gradient_of_the_logarithm():
    squared = torch.full((1, 3, T + 1), 1e-3)
    squared[:, :, 0] = 0.0
    config = BASE.replace(supervision="result", power=0.0, floor=1e-8)
    squared.requires_grad_()
    (gradient,) = torch.autograd.grad(supervision.loss(squared, supervision.objective([config])).sum(), squared)
    assert (gradient[0, 0, 0] < 0.01 * gradient[0, 0, 1:]).all()


def test_the_losses_of_a_stack_equal_those_of_its_members(trajectory):
    configs = [
        BASE.replace(supervision="joint", eta=0.1),
        BASE.replace(supervision="step+solution", window=3),
        BASE.replace(supervision="solution", power=0.0),
    ]
    squared = supervision.distances(*trajectory).expand(3, -1, -1)
    together = supervision.loss(squared, supervision.objective(configs))
    assert together.tolist() == pytest.approx([value(config, trajectory) for config in configs], rel=1e-6)


def test_a_detached_probe_has_a_gradient_and_gives_the_model_none():
    for kind, shapes in (("result", False), ("joint", True)):
        config = BASE.replace(supervision=kind)
        model = stack([initial(config)])
        model.probe_rd.weight.data.normal_(generator=torch.Generator().manual_seed(1))
        A, b, _, _, rd_teacher = (tensor.unsqueeze(0) for tensor in Stream(config).batch(0))
        _, rd = model(A, b, supervision.objective([config]).attached)
        error = (rd - rd_teacher).square().sum()
        gradients = torch.autograd.grad(error, list(model.parameters()), materialize_grads=True)
        named = dict(zip(dict(model.named_parameters()), gradients, strict=True))
        assert named["probe_rd.weight"].any()
        assert bool(named["read_in.weight"].any()) == shapes


def test_the_probe_is_clipped_apart_from_the_model():
    """Clipping it together with the model would: its error is by far the largest at the start."""
    gradients = {"blocks.W": torch.tensor([3.0, 4.0]), "probe_rd.weight": torch.tensor([300.0, 400.0])}
    clipped, norm = clip(gradients, 1.0)
    assert norm.item() == pytest.approx(5.0)
    assert clipped["blocks.W"].norm().item() == pytest.approx(1.0, rel=1e-5)
    assert clipped["probe_rd.weight"].norm().item() == pytest.approx(1.0, rel=1e-5)
    small, _ = clip({"blocks.W": torch.tensor([0.3]), "probe_rd.weight": torch.tensor([0.1])}, 1.0)
    assert small["blocks.W"].item() == pytest.approx(0.3)


TRAINED = BASE.replace(d=16, batch=32, steps=150, warmup=10, lr=3e-3, chunk=32)


@pytest.mark.parametrize(
    "changes",
    [
        {"inject": True, "pre_layers": 0, "post_layers": 0},
        {"inject": True, "pre_layers": 0, "post_layers": 0, "truncate": True, "window": 3},
        {"shared": False},
        {"norm": "none", "output_scale": 0.02, "clip": 0.1},
        {"causal": True},
        {"T": 1},
    ],
    ids=["looped", "truncated", "deep", "literal", "causal", "one step"],
)
def test_training_lowers_the_loss_of_every_architecture(changes):
    engine = PlainEngine([TRAINED.replace(supervision="solution", **changes)])
    engine.step(0)
    before = engine.report().loss.item()
    for number in range(1, 100):
        engine.step(number)
    engine.step(0)
    assert engine.report().loss.item() < 0.8 * before


def test_training_lowers_every_loss():
    kinds = [{"supervision": "result"}, {"supervision": "joint"}, {"supervision": "step+solution", "teacher": "pcg"},
             {"supervision": "solution", "power": 0.0}, {"supervision": "result", "power": 0.5}]  # fmt: skip
    configs = [TRAINED.replace(**kind) for kind in kinds]
    engine = PlainEngine(configs)
    engine.step(0)
    before = engine.report()
    for number in range(1, 150):
        engine.step(number)
    engine.step(0)  # the same systems again
    after = engine.report()
    plain = torch.tensor([config.power == 1 for config in configs])
    assert (after.loss[plain] < 0.6 * before.loss[plain]).all()
    assert (after.loss[~plain] < before.loss[~plain] - 0.3).all()
    assert (after.intermediate < 0.95 * before.intermediate).all()
