"""The fused engine against the plain one: as one program in plain torch everywhere, captured and in Triton on CUDA."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import torch

import nlaformer as nf
from nlaformer.learn.cuda.fused import OPERANDS, FusedEngine
from nlaformer.learn.engine import Engine, PlainEngine, make_engine
from nlaformer.learn.recipes import Config

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]
SMALL = nf.recipe("quickstart", n=4, T=5, d=32, heads=2, batch=6, chunk=4, warmup=5, steps=40, precision="float32")
STACK = [
    SMALL,
    SMALL.replace(seed=1, supervision="joint", lr=3e-3),
    SMALL.replace(seed=2, supervision="solution", power=0.0, window=3),
    SMALL.replace(seed=3, supervision="result", power=0.5),
]
TOLERANCE = 2e-5  # float32, after a few steps of Adam, which divides rounding errors by small gradients


def run(engine: Engine, steps: int, first: int = 0) -> Engine:
    for number in range(first, first + steps):
        engine.step(number)
    return engine


def distance(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    names = [name for name in expected if name != "alive"]
    pair = [torch.cat([tensors[name].double().flatten() for name in names]) for tensors in (found, expected)]
    return float((pair[0] - pair[1]).norm() / pair[1].norm())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "configs",
    [
        STACK,
        [SMALL.replace(inject=True, truncate=True, window=3)],
        [SMALL.replace(shared=False, norm="none", output_scale=0.02)],
        [SMALL.replace(pre_layers=0, post_layers=0, causal=True)],
    ],
    ids=["stack", "injected and truncated", "deep without norms", "loop alone"],
)
def test_fused_engine_trains_as_the_plain_one(configs: list[nf.Config], device: str) -> None:
    plain, fused = (run(engine, 10) for engine in (PlainEngine(configs, device), FusedEngine(configs, device)))
    assert distance(fused.state(), plain.state()) < TOLERANCE
    for found, expected in zip(fused.report(), plain.report(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_member_is_what_it_would_be_alone(device: str) -> None:
    together = run(FusedEngine(STACK, device), 6).state()
    for k, config in enumerate(STACK):
        alone = run(FusedEngine([config], device), 6).state()
        assert distance({name: tensor[k : k + 1] for name, tensor in together.items()}, alone) < TOLERANCE


@pytest.mark.parametrize("device", DEVICES)
def test_a_member_that_diverges_is_frozen_and_the_others_go_on(device: str) -> None:
    configs = [SMALL, SMALL.replace(lr=1e30, warmup=0)]
    engine = run(FusedEngine(configs, device), 2)
    frozen, report = engine.state(), engine.report()
    assert report.alive.tolist() == [True, False] and not report.loss[1].isfinite()
    run(engine, 4, first=2)
    after = engine.state()
    assert all(torch.equal(after[name][1], frozen[name][1]) for name in frozen)
    alone = run(FusedEngine([SMALL], device), 6).state()
    assert distance({name: tensor[:1] for name, tensor in after.items()}, alone) < TOLERANCE


@pytest.mark.parametrize("device", DEVICES)
def test_a_loaded_state_goes_on_as_if_never_interrupted(device: str) -> None:
    whole = run(FusedEngine(STACK, device), 7)
    first = run(FusedEngine(STACK, device), 3)
    second = FusedEngine(STACK, device)
    second.load(first.state())
    run(second, 4, first=3)
    expected = whole.state()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in second.state().items())


def test_the_cpu_gets_the_plain_engine() -> None:
    assert isinstance(make_engine([SMALL], "cpu"), PlainEngine)


@needs_cuda
def test_cuda_gets_the_fused_engine_for_shapes_it_can_run() -> None:
    assert isinstance(make_engine([SMALL], "cuda"), FusedEngine)
    assert isinstance(make_engine([SMALL.replace(d=24)], "cuda"), PlainEngine)


@needs_cuda
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16x3", 1e-4), ("tf32", 3e-3), ("bf16", 3e-2)])
def test_lower_precision_stays_near_float32(precision: str, tolerance: float) -> None:
    exact = run(PlainEngine(STACK, "cuda"), 10).report()
    found = run(FusedEngine([c.replace(precision=precision) for c in STACK], "cuda"), 10).report()
    torch.testing.assert_close(found.loss, exact.loss, rtol=tolerance, atol=tolerance)


def test_every_precision_has_products_of_its_own() -> None:
    assert set(OPERANDS) == set(get_args(get_type_hints(Config)["precision"]))
    assert OPERANDS["bf16x3"] == "bf16x3" and OPERANDS["tf32"] == "tf32" and OPERANDS["float32"] == "ieee"
