"""The fused engine against the plain one: as one program in plain torch everywhere, captured and in Triton on CUDA."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch

import nlaformer as nf
from nlaformer.learn.cuda import graph as graph_module
from nlaformer.learn.cuda.fused import OPERANDS, FusedEngine
from nlaformer.learn.engine import Engine, PlainEngine, make_engine
from nlaformer.learn.recipes import Config

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]
SMALL = nf.recipe("quickstart", n=4, T=5, d=32, heads=2, batch=6, chunk=4, warmup=5, steps=40, precision="float32")
MEMBERS = [
    SMALL,
    SMALL.replace(seed=1, supervision="joint", lr=3e-3),
    SMALL.replace(seed=2, supervision="solution", power=0.0, window=3),
    SMALL.replace(seed=3, supervision="result", power=0.5),
]
DEEP = [SMALL.replace(shared=False, norm="none", output_scale=0.02)]
CASES = {
    "stack": MEMBERS,
    "injected and truncated": [SMALL.replace(inject=True, truncate=True, window=3)],
    "loop alone": [SMALL.replace(pre_layers=0, post_layers=0, causal=True)],
}
TOLERANCE = 2e-5  # float32, after a few steps of Adam, which divides rounding errors by small gradients


def run(engine: Engine, steps: int, first: int = 0) -> Engine:
    for number in range(first, first + steps):
        engine.step(number)
    return engine


def distance(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    names = [name for name in expected if name != "alive"]
    pair = [torch.cat([tensors[name].double().flatten() for name in names]) for tensors in (found, expected)]
    return float((pair[0] - pair[1]).norm() / pair[1].norm())


def assert_same(fused: Engine, plain: Engine) -> None:
    assert distance(fused.state(), plain.state()) < TOLERANCE
    for found, expected in zip(fused.report(), plain.report(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("configs", CASES.values(), ids=CASES)
def test_ten_steps_of_the_fused_engine_equal_those_of_the_plain_one(configs: list[nf.Config], device: str) -> None:
    assert_same(run(FusedEngine(configs, device), 10), run(PlainEngine(configs, device), 10))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("configs", [*CASES.values(), DEEP], ids=[*CASES, "deep without norms"])
def test_each_step_of_the_fused_engine_equals_that_of_the_plain_one(configs: list[nf.Config], device: str) -> None:
    """From the same weights every time.

    A gradient jumps where a ReLU unit switches. Deep without norms, a unit within float32's rounding of its kink is
    met every few steps, and engines that each go their own way then part: on an H200 one unit of 23,040 at step 8
    took the fused engine to 5.1e-5 from the plain one, and on a CPU two units at step 5 take both to 1.9e-5 from
    float64.
    """
    fused, plain = FusedEngine(configs, device), PlainEngine(configs, device)
    for number in range(10):
        fused.load(plain.state())
        fused.step(number)
        plain.step(number)
        assert_same(fused, plain)


@pytest.mark.skipif(not INTERPRETED, reason="needs Triton with TRITON_INTERPRET=1")
def test_two_steps_of_the_interpreted_kernels_equal_those_of_the_plain_engine() -> None:
    configs = CASES["loop alone"]
    assert_same(run(FusedEngine(configs, "cpu", triton=True), 2), run(PlainEngine(configs), 2))


@pytest.mark.parametrize("device", DEVICES)
def test_a_member_of_a_stack_trains_as_it_would_alone(device: str) -> None:
    together = run(FusedEngine(MEMBERS, device), 6).state()
    for k, config in enumerate(MEMBERS):
        alone = run(FusedEngine([config], device), 6).state()
        assert distance({name: tensor[k : k + 1] for name, tensor in together.items()}, alone) < TOLERANCE


@pytest.mark.parametrize("device", DEVICES)
def test_a_member_that_diverges_is_frozen_and_the_others_train_on(device: str) -> None:
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
def test_an_engine_that_loads_a_state_resumes_bit_for_bit(device: str) -> None:
    """At the last step of a chunk of 4: the runs that warm up a capture must not read beyond the chunk."""
    whole = run(FusedEngine(MEMBERS, device), 7)
    first = run(FusedEngine(MEMBERS, device), 3)
    second = FusedEngine(MEMBERS, device)
    second.load(first.state())
    run(second, 4, first=3)
    expected = whole.state()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in second.state().items())


def test_make_engine_gives_the_plain_engine_on_a_cpu() -> None:
    assert isinstance(make_engine([SMALL], "cpu"), PlainEngine)


def test_the_rest_of_the_library_imports_one_name_from_learn_cuda() -> None:
    library = Path(nf.__file__).parent
    lines = [
        line.strip()
        for file in library.rglob("*.py")
        if file.parent != library / "learn" / "cuda"
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(r"import.*\bcuda\b|learn\.cuda", line) and "torch" not in line
    ]
    assert lines == ["from nlaformer.learn.cuda import engine_for"]


@needs_cuda
def test_make_engine_gives_the_fused_engine_on_cuda_for_shapes_it_can_run() -> None:
    assert isinstance(make_engine([SMALL], "cuda"), FusedEngine)
    assert isinstance(make_engine([SMALL.replace(d=24)], "cuda"), PlainEngine)


@needs_cuda
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16x3", 1e-4), ("tf32", 3e-3), ("bf16", 3e-2)])
def test_the_loss_in_lower_precision_stays_near_float32(precision: str, tolerance: float) -> None:
    exact = run(PlainEngine(MEMBERS, "cuda"), 10).report()
    found = run(FusedEngine([c.replace(precision=precision) for c in MEMBERS], "cuda"), 10).report()
    torch.testing.assert_close(found.loss, exact.loss, rtol=tolerance, atol=tolerance)


def test_every_precision_of_a_config_names_its_products() -> None:
    assert set(OPERANDS) == set(get_args(get_type_hints(Config)["precision"]))
    assert OPERANDS["bf16x3"] == "bf16x3" and OPERANDS["tf32"] == "tf32" and OPERANDS["float32"] == "ieee"


def test_no_garbage_is_collected_during_a_capture() -> None:
    with graph_module.capturing():
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("device", DEVICES)
def test_a_closed_engine_holds_no_graph(device: str) -> None:
    engine = FusedEngine([SMALL], device)
    engine.step(0)
    engine.close()
    engine.close()
    assert engine.graph is None


@needs_cuda
def test_a_capture_survives_the_garbage_of_another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection in the midst of a capture, with an engine in the garbage, invalidates the capture."""
    original, previous = FusedEngine._run, []

    def run_with_garbage(self: FusedEngine) -> None:
        if torch.cuda.is_current_stream_capturing() and previous:
            cycle = [previous.pop()]
            cycle.append(cycle)
            del cycle
            [[] for _ in range(100_000)]  # enough objects for a collection
        original(self)

    monkeypatch.setattr(FusedEngine, "_run", run_with_garbage)
    for seed in range(20):
        engine = run(FusedEngine([SMALL.replace(seed=seed)], "cuda"), 3)
        assert bool(engine.report().loss.isfinite())
        previous.append(engine)
    assert len(previous) == 1


@needs_cuda
def test_engines_in_reference_cycles_are_freed_while_others_are_built() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    try:
        for seed in range(20):
            engine = run(FusedEngine([SMALL.replace(seed=seed)], "cuda"), 5)  # the thread draws the next chunk
            assert bool(engine.report().loss.isfinite())
            cycle = [engine]
            cycle.append(cycle)  # type: ignore[arg-type]
    finally:
        gc.set_threshold(*thresholds)
