"""A training step by torch.compile against the kernels of ``nlaformer/learn/cuda``: time, and error of the gradient.

    python -m benchmarks.compiled_step [--json FILE] [--commit COMMIT]
    python -m benchmarks.compiled_step --smoke       # a tiny model on the CPU: does the script run?

The model and the figures are those of ``train_step.py``. Both steps are captured in a CUDA graph, draw their systems
and end in the same clipping and Adam. The contenders of the kernels:

*layers*: autograd through layers that are compiled whole. In bf16 the products alone take bf16, and write float32 where
they are added to the residual stream, as the kernels do; attention is torch's own.
*narrow*: the same, with products that write bf16 everywhere: fewer bytes, and a larger error.
*autotuned*: *layers* with products that torch.compile has tuned.
*passes*: the written-out passes of ``unrolled.py``, every part in plain torch and compiled.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.command import write
from benchmarks.train_step import PAPER, SMOKE, Setup, gradient_row, timing
from nlaformer.learn import supervision
from nlaformer.learn.config import Config
from nlaformer.learn.cuda import unrolled
from nlaformer.learn.cuda.fused import FusedEngine
from nlaformer.learn.cuda.graph import GraphEngine
from nlaformer.learn.cuda.launch import Launch
from nlaformer.learn.cuda.unrolled import LayerTensors, Unrolled, layer_passes
from nlaformer.learn.model import Solver
from nlaformer.provenance import provenance
from nlaformer.transformer import rms_norm

WIDE = True  # whether products of bf16 write float32 where it is added to float32; else bf16, which is converted
CASES = [("bf16", 8), ("tf32", 8), ("bf16", 1), ("tf32", 1), ("bf16", 16), ("tf32", 16)]
PARTS = ("project", "attend", "add_projected", "relu_backward", "norm_backward", "attend_backward",
         "weight_gradient", "column_sums", "fold", "spread")  # fmt: skip


def product(X: Tensor, Y: Tensor, dtype: torch.dtype) -> Tensor:
    """X Y, accumulated and written in a type that may be wider than that of the operands."""
    if X.dtype == dtype:
        return X @ Y  # in a compiled autograd.Function torch 2.11 loses the gradient of what .to() returns as it is
    return torch.bmm(X, Y, out_dtype=dtype) if WIDE and X.is_cuda else (X @ Y).to(dtype)


class Product(torch.autograd.Function):
    """X W^T with operands in the precision of ``low``, which holds W in it; the gradient of W in that of W."""

    @staticmethod
    def forward(context: Any, X: Tensor, W: Tensor, low: Tensor, dtype: torch.dtype) -> Tensor:
        x = X.to(low.dtype)
        context.save_for_backward(x, low)
        context.types = X.dtype, W.dtype
        return product(x, low.mT, dtype)

    @staticmethod
    def backward(context: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        x, low = context.saved_tensors
        g = given[0].to(low.dtype)
        return product(g, low, context.types[0]), product(g.mT, x, context.types[1]), None, None


def layer(P: Tensor, w: LayerTensors, low: Sequence[Tensor], heads: int, tokens: int) -> tuple[Tensor, Tensor]:
    """A layer with norms on the stream P (E, R, d) in float32, and its last tokens; ``low`` is w's matrices."""
    if w.gain_1 is None or w.gain_2 is None:
        raise ValueError("the benchmark's layers have norms")
    multiply, narrow, wide = Product.apply, low[0].dtype, P.dtype
    E, R, d = P.shape
    qkv = multiply(rms_norm(P, w.gain_1), w.qkv, low[0], narrow)
    Q, K, V = qkv.view(E * R // tokens, tokens, 3, heads, d // heads).permute(2, 0, 3, 1, 4).unbind(0)
    mixed = functional.scaled_dot_product_attention(Q, K, V, scale=1.0).transpose(1, 2).reshape(E, R, d)
    U = P + multiply(mixed, w.W_O, low[1], wide)
    hidden = torch.relu(multiply(rms_norm(U, w.gain_2), w.W_1, low[2], narrow) + w.b_1.unsqueeze(1))
    out = U + multiply(hidden, w.W_2, low[3], wide) + w.b_2.unsqueeze(1)
    return out, out[:, tokens - 1 :: tokens]


def loss(x: Tensor, rd: Tensor, batch: Any, objective: supervision.Objective) -> tuple[Tensor, Tensor, Tensor]:
    """What is differentiated, the loss of every member, and its intermediate error."""
    squared = supervision.distances(x, rd, batch.x, batch.rd, batch.x_true)
    own = supervision.loss(squared, objective)
    return (own + supervision.probe_loss(squared, objective)).sum(), own, squared[:, 2].mean(1)


class CompiledLayers(GraphEngine):
    """A stack of solvers in training by autograd through compiled layers."""

    model: Solver

    def __init__(self, configs: Sequence[Config], device: torch.device | str = "cuda", mode: str = "default"):
        on_cuda = torch.device(device).type == "cuda"
        super().__init__(configs, device, Launch(torch.finfo(torch.float32).eps, on_cuda))
        config, self.passes = configs[0], layer_passes(self.model.blocks, configs[0].loops)[1]
        self.operands = torch.bfloat16 if config.precision == "bf16" and on_cuda else torch.float32
        weights, self.filled = (self.flat.layers(t, self.model, config.loops) for t in (self.moments[0], self.gradient))
        self.weights = [LayerTensors(*(t.detach().requires_grad_() for t in w if t is not None)) for w in weights]
        self.ends = [name for name, _ in self.model.named_parameters() if not name.startswith("blocks.")]
        compiled = partial(torch.compile, dynamic=False, fullgraph=True, mode=mode)
        self.layer, self.loss = compiled(layer), compiled(loss)

    def gradients(self) -> None:
        """The loss and the gradient of the current step."""
        batch, config = self.pool.take(self.rates.within), self.configs[0]
        low = [[W.detach().to(self.operands) for W in w[:4]] for w in self.weights]
        P, features = self.model.tokens(batch.A, batch.b).flatten(1, 2), []
        for each in self.passes:
            P, last = self.layer(P, self.weights[each.layer], low[each.layer], config.heads, config.n + 1)
            if each.ends:
                features.append(last)
        X = torch.stack(features, 2)  # (E, B, T+1, d)
        rd = self.model.probe_rd(torch.where(self.objective.attached, X, X.detach()))
        total, own, intermediate = self.loss(self.model.probe_x(X), rd, batch, self.objective)
        parameters, views = dict(self.model.named_parameters()), self.flat.views(self.gradient)
        leaves = [parameters[name] for name in self.ends] + [t for w in self.weights for t in w if t is not None]
        places = [views[name] for name in self.ends] + [t for w in self.filled for t in w if t is not None]
        for place, found in zip(places, torch.autograd.grad(total, leaves), strict=True):
            place.copy_(found)
        self.outcome.loss.copy_(own.detach())
        self.outcome.intermediate.copy_(intermediate.detach())


class CompiledPasses(FusedEngine):
    """The fused engine with the passes through the layers in plain torch; ``compiled_parts`` compiles their parts."""

    def _unrolled(self, config: Config) -> Unrolled:
        own, self.launch = self.launch, replace(self.launch, triton=False)
        try:
            return super()._unrolled(config)
        finally:
            self.launch = own


@contextmanager
def compiled_parts() -> Iterator[None]:
    """While it lasts, the parts that ``unrolled.py`` calls are compiled."""
    own = {name: getattr(unrolled, name) for name in PARTS}
    try:
        for name, part in own.items():
            setattr(unrolled, name, torch.compile(part, dynamic=False))
        yield
    finally:
        for name, part in own.items():
            setattr(unrolled, name, part)


@contextmanager
def matrix_precision(name: str) -> Iterator[None]:
    """Products of float32 by the setting that torch.compile reads without complaint."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def measure(setup: Setup, make: Callable[..., Any], precision: str, E: int) -> dict[str, float]:
    """Times of one contender and stack; for one model the errors of its gradient, too."""
    row = timing(setup, precision, E, make)
    if E == 1:
        engine = make(setup.configs(1, precision, supervision="joint", warmup=10), setup.device)
        for number in range(min(30, setup.steps)):
            engine.step(number)
        row |= {name: value for name, value in gradient_row(engine, "step").items() if "step from float64" in name}
        engine.close()
    return row


def contenders(smoke: bool) -> list[tuple[tuple[str, int], str, Callable[..., Any]]]:
    """What is measured, the deciding cases first."""
    both: tuple[tuple[str, Callable[..., Any]], ...] = (("kernels", FusedEngine), ("layers", CompiledLayers))
    if smoke:
        return [(CASES[2], name, make) for name, make in (*both, ("passes", CompiledPasses))]
    autotuned = partial(CompiledLayers, mode="max-autotune-no-cudagraphs")
    found = [(case, name, make) for case in CASES[:4] for name, make in both]
    found += [(case, "narrow", CompiledLayers) for case in (CASES[0], CASES[2])]
    found += [(case, "passes", CompiledPasses) for case in (CASES[0], CASES[2])]
    found += [(case, name, make) for case in CASES[4:] for name, make in both]
    found += [(case, "autotuned", autotuned) for case in (CASES[0], CASES[2], CASES[1])]
    return found + [(case, "passes", CompiledPasses) for case in (CASES[1], CASES[3])]


def one(setup: Setup, name: str, make: Callable[..., Any], precision: str, E: int) -> dict[str, float]:
    """A contender on a case, compiled anew."""
    global WIDE
    torch._dynamo.reset()
    WIDE = name != "narrow"
    parts = compiled_parts() if name == "passes" else nullcontext()
    with matrix_precision("highest" if name == "kernels" else "high"), parts:
        return measure(setup, make, precision, E)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--commit", help="the commit that is measured, where the files have no history with them")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no contender after so many")
    chosen = parser.parse_args(arguments)
    deadline = time.monotonic() + chosen.seconds
    torch._dynamo.config.recompile_limit = 64
    found: dict[str, Any] = {"provenance": provenance(chosen.commit)}
    for (precision, E), name, make in contenders(chosen.smoke):
        label, begun = f"{name} {precision} E={E}", time.monotonic()
        try:
            if begun > deadline:
                raise TimeoutError("not run: out of time")
            found[label] = one(SMOKE if chosen.smoke else PAPER, name, make, precision, E)
        except Exception as problem:
            traceback.print_exc()
            found[label] = {"error": f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0][:200]}"}
        row = ", ".join(
            f"{key} {value if isinstance(value, str) else f'{value:.4g}'}" for key, value in found[label].items()
        )
        print(f"{label}: {row} ({time.monotonic() - begun:.0f} s)", flush=True)
        if chosen.json:
            write(chosen.json, found)


if __name__ == "__main__":
    main()
