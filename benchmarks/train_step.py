"""One training step on one GPU: is it right, and how long does it take?

    python -m benchmarks.train_step [--json FILE] [--commit COMMIT] [--only SECTION ...]
    python -m benchmarks.train_step --smoke          # a tiny model on the CPU: does the script run?

The paper's configuration: n=20, T=20 (pre block, 19 loops, post block), d=256, 8 heads, FFN width 1024, batch 64.
Sections: machine, gradients, losses, stack, data, eager, compiled, time, profile; and autotuned, which runs only if
asked for. Every section runs on its own; one that fails prints its traceback and the others go on.
``train_step_table.py`` makes a table of the file.
"""

from __future__ import annotations

import argparse
import copy
import gc
import platform
import statistics
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import nlaformer as nf
from benchmarks.command import write
from nlaformer.learn import supervision
from nlaformer.learn.cuda.fused import OPERANDS, FusedEngine
from nlaformer.learn.cuda.graph import GraphEngine
from nlaformer.learn.data import draw_chunk
from nlaformer.learn.engine import PlainEngine
from nlaformer.learn.model import lr_scale
from nlaformer.learn.optimizer import adam, clip
from nlaformer.provenance import provenance
from nlaformer.transformer import FFN, Layer

FLOPS = 127e9  # per model and step: counted from the products of the 21 layers, forward and backward
PEAK = 790e12  # measured: a large bf16 product on one H200
PRECISIONS = tuple(OPERANDS)
CASES = [("bf16", 8), ("tf32", 8), ("bf16", 1), ("tf32", 1), ("float32", 1), ("bf16", 16),
         ("bf16x3", 1), ("bf16x3", 4)]  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """Where to run and what: the paper's model on CUDA, or a tiny one on the CPU."""

    device: str = "cuda"
    changes: tuple[tuple[str, Any], ...] = ()
    steps: int = 100
    repeats: int = 20

    def configs(self, count: int, precision: str, **changes: Any) -> list[Any]:
        """Configs of one shape, which differ in their seeds."""
        paper = {"power": 1.0, "lr": 1e-3}  # the loss whose figures compare across commits, whatever the recipe's is
        base = nf.recipe("cg-imitation", **(paper | {"precision": precision} | dict(self.changes) | changes))
        return [base.replace(seed=k) for k in range(count)]

    def wait(self) -> None:
        """Until the device has finished."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def milliseconds(self, run: Callable[[], object], repeats: int | None = None, warmup: int = 5) -> float:
        """The median over calls, by CUDA events; on a CPU by the clock."""
        repeats = min(self.repeats, repeats or self.repeats)
        for _ in range(warmup):
            run()
        if self.device != "cuda":
            marks = [time.perf_counter()]
            for _ in range(repeats):
                run()
                marks.append(time.perf_counter())
            return statistics.median(1000 * (b - a) for a, b in pairwise(marks))
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in pairwise(events))


PAPER = Setup(repeats=50)
TINY = {"n": 4, "T": 3, "d": 32, "heads": 2, "batch": 4, "chunk": 8, "steps": 500, "warmup": 2}
SMOKE = Setup("cpu", tuple(TINY.items()), steps=3, repeats=3)


def perturb(engine: FusedEngine | PlainEngine, seed: int = 0) -> None:
    """Move every weight off its start: the probes begin at zero, where most gradients vanish."""
    state = engine.state()
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in state.items():
        if name.startswith("weight."):
            state[name] = tensor + 0.02 * torch.randn(tensor.shape[1:], generator=generator)
    engine.load(state)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def machine(setup: Setup) -> dict[str, Any]:
    """What it runs on."""
    if setup.device != "cuda":
        return {"device": platform.processor() or platform.machine(), "torch": torch.__version__}
    import triton

    properties = torch.cuda.get_device_properties(0)
    found = {
        "device": properties.name, "multiprocessors": properties.multi_processor_count, "torch": torch.__version__,
        "triton": triton.__version__, "cuda": torch.version.cuda, "python": platform.python_version(),
    }  # fmt: skip
    print(" ".join(f"{key}={value}" for key, value in found.items()))
    return found


def replay(engine: GraphEngine) -> None:
    """The captured step, on the first systems of the pool."""
    engine.rates.within.zero_()
    if engine.graph is not None:
        engine.graph.replay()
    else:  # on a CPU
        engine._run()


def reference_gradients(engine: GraphEngine, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """The gradients of the engine's current step by autograd through the definition, and which ReLU units are on."""
    model = copy.deepcopy(engine.model).to(dtype)
    on: list[torch.Tensor] = []
    for module in model.modules():
        if isinstance(module, FFN):
            bias = module.b_1
            module.W_1.register_forward_hook(lambda _, __, out, bias=bias: on.append(out + bias.unsqueeze(-2) > 0))
    batch = [tensor.to(dtype) for tensor in engine.pool.take(engine.rates.within)]
    objective = supervision.Objective(*(t.to(dtype) if t.is_floating_point() else t for t in engine.objective))
    x, rd = model(batch[0], batch[1], objective.attached)
    squared = supervision.distances(x, rd, batch[3], batch[4], batch[2])
    total = (supervision.loss(squared, objective) + supervision.probe_loss(squared, objective)).sum()
    found = torch.autograd.grad(total, list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), found, strict=True)), on


def gradient_row(engine: GraphEngine, name: str = "fused") -> dict[str, float]:
    """The gradient of the current step by an engine of this name: distances from eager float32 and from float64."""
    engine.gradients()
    views = engine.flat.views(engine.gradient)
    (single, on), (double, exactly_on) = (
        reference_gradients(engine, dtype) for dtype in (torch.float32, torch.float64)
    )
    fused, eager, exact = (
        torch.cat([tensors[p].flatten().double() for p in double]) for tensors in (views, single, double)
    )
    return {
        f"{name} from eager float32": relative(fused, eager),
        f"{name} from float64": relative(fused, exact),
        "eager float32 from float64": relative(eager, exact),
        f"worst parameter, {name} from float64": max(relative(views[p], double[p]) for p in double),
        "ReLU units that switch": sum(int((a != b).sum()) for a, b in zip(on, exactly_on, strict=True)),
    }


def gradients(setup: Setup, draws: int = 8) -> dict[str, Any]:
    """Gradients against autograd through the definition, in float32 and in float64.

    After a few steps (at the start the probes are zero, and so are nearly all gradients), and in float32 at random
    weights too. A gradient jumps where a ReLU switches, and of the 29 million units of a step a few always lie within
    float32's rounding of their kink: the units that eager float32 and float64 see differently are counted, and the
    random weights get a batch of 4, where most draws have none.
    """
    found: dict[str, Any] = {}
    for precision in PRECISIONS:
        engine = FusedEngine(setup.configs(1, precision, supervision="joint", warmup=10), setup.device)
        for number in range(min(30, setup.steps)):
            engine.step(number)
        found[precision] = gradient_row(engine)
    engine = FusedEngine(setup.configs(1, "float32", supervision="joint", batch=4), setup.device)
    engine.pool.load(0)
    start = engine.state()
    for seed in range(draws):
        engine.load(start)
        perturb(engine, seed)
        found[f"float32, draw {seed}"] = gradient_row(engine)
    for name, row in found.items():
        print(f"{name:16s} " + ", ".join(f"{what} {value:.1e}" for what, value in row.items()))
    return found


def losses(setup: Setup) -> dict[str, Any]:
    """Losses over the first steps, warm-up included, against the eager float32 engine."""
    plain, steps = PlainEngine(setup.configs(1, "float32"), setup.device), setup.steps
    fast = {precision: FusedEngine(setup.configs(1, precision), setup.device) for precision in PRECISIONS}
    paths = defaultdict(list)
    engines: dict[str, PlainEngine | FusedEngine] = {"eager": plain, **fast}
    for number in range(steps):
        for name, engine in engines.items():
            engine.step(number)
            paths[name].append(float(engine.report().loss))
    found = {}
    for name in fast:
        gap = max(abs(a - b) / abs(b) for a, b in zip(paths[name], paths["eager"], strict=True))
        found[name] = gap
        print(f"{name:8s} loss over {steps} steps: largest relative difference from eager float32 {gap:.1e}")
    print(f"eager loss: first {paths['eager'][0]:.4f}, last {paths['eager'][-1]:.4f}")
    return found | {"eager": paths["eager"]}


def stack(setup: Setup) -> dict[str, Any]:
    """A member of a stack against the same config trained alone."""
    found, steps = {}, min(20, setup.steps)
    for precision in ("float32", "bf16"):
        together = setup.configs(3, precision, steps=1000, warmup=10)
        together[1] = together[1].replace(supervision="joint", lr=3e-4)
        together[2] = together[2].replace(supervision="step+solution", power=0.0, sigma=(1.0, 1.4))
        engine = FusedEngine(together, setup.device)
        for number in range(steps):
            engine.step(number)
        states = engine.state()
        for k, config in enumerate(together):
            alone = FusedEngine([config], setup.device)
            for number in range(steps):
                alone.step(number)
            weights = {name: tensor for name, tensor in alone.state().items() if name.startswith("weight.")}
            pair = [torch.cat([t.flatten() for t in tensors]) for tensors in
                    ([states[name][k] for name in weights], list(weights.values()))]  # fmt: skip
            loss = [float(e.report().loss[i]) for e, i in ((engine, k), (alone, 0))]
            found[f"{precision} member {k}"] = {"weights": relative(*pair), "loss": abs(loss[0] / loss[1] - 1)}
            print(
                f"{precision:8s} member {k}: weights after {steps} steps {relative(*pair):.1e}, "
                f"loss {loss[0]:.6f} {loss[1]:.6f}"
            )
    return found


def data(setup: Setup) -> dict[str, Any]:
    """Drawing a chunk of steps on the device."""
    config = setup.configs(1, "bf16")[0]
    draw_chunk(config, 0, setup.device)
    setup.wait()
    begun = time.perf_counter()
    for index in range(4):
        draw_chunk(config, index, setup.device)
    setup.wait()
    found = {"ms_per_chunk": 250 * (time.perf_counter() - begun), "steps_per_chunk": config.chunk}
    print(f"a chunk of {config.chunk} steps for one member: {found['ms_per_chunk']:.2f} ms")
    return found


def eager(setup: Setup) -> dict[str, Any]:
    """The plain engine, one model."""
    engine = PlainEngine(setup.configs(1, "float32"), setup.device)
    numbers = iter(range(1000))
    ms = setup.milliseconds(lambda: engine.step(next(numbers)), 20)
    print(f"eager float32, one model: {ms:.2f} ms a step")
    return {"ms": ms}


def compiled(setup: Setup, mode: str = "default") -> dict[str, Any]:
    """The plain engine's step under torch.compile and captured in a CUDA graph, one model."""
    found: dict[str, Any] = {}
    allowed = torch.backends.cuda.matmul.allow_tf32
    for precision in ("float32", "tf32"):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch._dynamo.reset()
        begun = time.perf_counter()
        try:
            step, loss = compiled_step(setup, mode)  # holds what the captured graph reads
            run = captured(setup, step)
            built = time.perf_counter() - begun
            ms = setup.milliseconds(run)
            found[precision] = {"ms": ms, "build_s": built, "loss with the probe's": float(loss)}
            print(f"torch.compile ({mode}) + CUDA graph, {precision}: {ms:.2f} ms a step, built in {built:.0f} s")
        except Exception as problem:
            traceback.print_exc()
            found[precision] = {"error": f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0][:200]}"}
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed
    return found


def autotuned(setup: Setup) -> dict[str, Any]:
    """The same with products that torch.compile has tuned; this may take minutes."""
    return compiled(setup, "max-autotune-no-cudagraphs")


def compiled_step(setup: Setup, mode: str) -> tuple[Callable[[], None], torch.Tensor]:
    """Forward, loss, backward, clipping and Adam on one batch; and where the step leaves its loss.

    Layers, loss and update are compiled one by one: 21 layers as one graph take minutes to compile, and the captured
    graph leaves nothing between the parts.
    """
    (config,) = setup.configs(1, "float32")
    member = PlainEngine([config], setup.device).members[0]
    parameters, objective, betas = member.parameters, member.objective, (config.beta1, config.beta2)
    A, b, x_true, x_teacher, rd_teacher = (tensor.unsqueeze(0).clone() for tensor in member.stream.batch(0))
    count = torch.zeros((), device=setup.device)
    found = torch.zeros((), device=setup.device)

    @torch.compile(mode=mode, fullgraph=True)
    def loss(x: torch.Tensor, rd: torch.Tensor) -> torch.Tensor:
        squared = supervision.distances(x, rd, x_teacher, rd_teacher, x_true)
        return (supervision.loss(squared, objective) + supervision.probe_loss(squared, objective)).sum()

    @torch.compile(mode=mode, fullgraph=True)
    def update(gradients: dict[str, torch.Tensor]) -> None:
        clipped, _ = clip(gradients, config.clip)
        count.add_(1)
        corrections = (1 - betas[0] ** count, 1 - betas[1] ** count)
        for name, weight in parameters.items():
            rate = config.lr * lr_scale(name, config)
            adam(weight, clipped[name], member.mean[name], member.square[name], rate, betas, corrections)

    def step() -> None:
        x, rd = member.model(A, b, objective.attached)
        value = loss(x, rd)
        gradients = torch.autograd.grad(value, list(parameters.values()), materialize_grads=True)
        update(dict(zip(parameters, gradients, strict=True)))
        found.copy_(value.detach())

    for module in member.model.modules():
        if isinstance(module, Layer):
            module.compile(mode=mode, fullgraph=True)
    return step, found


def captured(setup: Setup, step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph; on a CPU as it is."""
    if setup.device != "cuda":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def timing(setup: Setup, precision: str, E: int, make: Callable[..., GraphEngine] = FusedEngine) -> dict[str, float]:
    """Of one precision and stack. Memory is what this engine adds at most, whatever others have left behind."""
    gc.collect()
    torch.cuda.empty_cache()
    if setup.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before, begun = torch.cuda.memory_allocated(), time.perf_counter()
    engine = make(setup.configs(E, precision), setup.device)
    engine.step(0)
    setup.wait()
    built = time.perf_counter() - begun
    steps, replays = (64, 20) if precision == "float32" else (128, 50)
    for number in range(1, min(64, setup.steps)):
        engine.step(number)
    setup.wait()
    begun = time.perf_counter()
    for number in range(64, 64 + min(steps, setup.steps * 2)):
        engine.step(number)
    setup.wait()
    whole = 1000 * (time.perf_counter() - begun) / min(steps, setup.steps * 2)
    ms = setup.milliseconds(lambda: replay(engine), replays)
    return {
        "ms_per_step": ms, "ms_per_model": ms / E, "share_of_floor": FLOPS * E / PEAK / (ms / 1000),
        "ms_with_data": whole, "build_s": built, "memory_gb": (torch.cuda.max_memory_allocated() - before) / 1e9,
    }  # fmt: skip


def timings(setup: Setup) -> dict[str, Any]:
    """The captured step, and the same with its data, for every precision and stack."""
    found = {}
    print("precision    E   ms/step  ms/model   floor  with data  build s    GB")
    for precision, E in CASES:
        try:
            row = found[f"{precision} E={E}"] = timing(setup, precision, E)
            print(f"{precision:10s}{E:4d}{row['ms_per_step']:10.3f}{row['ms_per_model']:10.3f}"
                  f"{row['share_of_floor']:8.1%}{row['ms_with_data']:11.3f}{row['build_s']:9.1f}"
                  f"{row['memory_gb']:6.1f}", flush=True)  # fmt: skip
        except Exception:
            traceback.print_exc()
    return found


def profile(setup: Setup) -> dict[str, Any]:
    """Where a step's time goes, by kernel."""
    found: dict[str, Any] = {}
    if setup.device != "cuda":
        return found
    for precision, E in (("bf16", 8), ("bf16", 1), ("tf32", 8)):
        try:
            engine = FusedEngine(setup.configs(E, precision), setup.device)
            engine.step(0)
            replays = 5
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
                for _ in range(replays):
                    replay(engine)
                torch.cuda.synchronize()
            totals: dict[str, list[float]] = defaultdict(list)
            for event in recorded.events():
                if event.device_type != torch.autograd.DeviceType.CPU:
                    totals[event.name].append(event.time_range.elapsed_us())
            rows = sorted(((sum(t) / replays, len(t) / replays, name) for name, t in totals.items()), reverse=True)
            found[f"{precision} E={E}"] = rows[:40]
            print(
                f"{precision} E={E}: {sum(r[0] for r in rows) / 1000:.3f} ms in {sum(r[1] for r in rows):.0f} kernels"
            )
            for us, count, name in rows[:18]:
                print(f"  {us:9.1f} us {count:6.0f} x {us / count:7.2f}  {name[:90]}")
        except Exception:
            traceback.print_exc()
    return found


SECTIONS: dict[str, Callable[[Setup], dict[str, Any]]] = {
    "machine": machine, "gradients": gradients, "losses": losses, "stack": stack, "data": data,
    "eager": eager, "compiled": compiled, "time": timings, "profile": profile, "autotuned": autotuned,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--commit", help="the commit that is measured, where the files have no history with them")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on the CPU")
    default = [name for name in SECTIONS if name != "autotuned"]
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=default)
    chosen = parser.parse_args(arguments)
    setup = SMOKE if chosen.smoke else PAPER
    found: dict[str, Any] = {"provenance": provenance(chosen.commit)}
    for name in chosen.only:
        begun = time.perf_counter()
        print(f"== {name}", flush=True)
        try:
            found[name] = SECTIONS[name](setup)
        except Exception:
            traceback.print_exc()
            found[name] = {"failed": traceback.format_exc()}
        torch.cuda.empty_cache()
        print(f"   ({time.perf_counter() - begun:.1f} s)", flush=True)
        if chosen.json:
            write(chosen.json, found)


if __name__ == "__main__":
    main()
