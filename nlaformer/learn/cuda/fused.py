"""The engine of solvers on CUDA: the whole step of a whole stack by kernels of its own, captured in a CUDA graph.

A step (``graph.py``) reads the systems in, runs all passes (``unrolled.py``), takes the loss and its gradient on the
features, and runs the backward passes.

The products of the blocks run in the config's precision, bf16, tf32, bf16x3 (Triton's sum of three products of bf16:
digits between those of tf32 and of float32; the products that end in a weight's gradient in tf32) or float32.
Everything else is float32: the residual stream, softmax, norms, read-in, probes, loss, and the weights Adam changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nlaformer.learn.config import Config
from nlaformer.learn.cuda.ends import ReadIn, weight_gradient
from nlaformer.learn.cuda.graph import GraphEngine, products
from nlaformer.learn.cuda.launch import Launch, unsupported
from nlaformer.learn.cuda.unrolled import Unrolled
from nlaformer.learn.cuda.update import LossGradient, loss_gradient
from nlaformer.learn.model import Solver

# How Triton multiplies float32, by the config's precision; the operands of bf16 are no float32.
OPERANDS = {"float32": "ieee", "bf16x3": "bf16x3", "tf32": "tf32", "bf16": "ieee"}


def fused_engine(configs: Sequence[Config], device: torch.device | str) -> FusedEngine | None:
    """The engine of a stack on a CUDA device; None if its kernels cannot run the shape."""
    config = configs[0]
    pairs = config.make_teacher().entries(config.n) == 2 * config.n  # as r and d are
    if not pairs or unsupported(config.d, config.heads, config.ffn_width, config.n + 1) is not None:
        return None
    return FusedEngine(configs, device)


class FusedEngine(GraphEngine):
    """A stack of solvers in training as one program.

    On a CPU the same program runs in plain torch, and with ``triton=True`` under Triton's interpreter: for tests.
    """

    model: Solver

    def __init__(self, configs: Sequence[Config], device: torch.device | str = "cuda", triton: bool | None = None):
        triton = torch.device(device).type == "cuda" if triton is None else triton
        config = configs[0]
        epsilon = torch.finfo(torch.float32).eps  # torch's own choice for a norm of float32
        super().__init__(configs, device, Launch(epsilon, triton, OPERANDS[config.precision]))
        self.unrolled = self._unrolled(config)
        views, d_views = self.flat.views(self.moments.weight), self.flat.views(self.gradient)
        self.read_in = ReadIn(
            self.launch, views["read_in.weight"], views["positions"], d_views["read_in.weight"], d_views["positions"],
            config.batch,
        )  # fmt: skip

    def _unrolled(self, config: Config) -> Unrolled:
        bf16 = config.precision == "bf16" and self.device.type == "cuda"
        return Unrolled(
            self.launch, self.model.blocks, config.loops, config.batch, config.n + 1,
            self.flat.layers(self.moments.weight, self.model, config.loops),
            self.flat.layers(self.gradient, self.model, config.loops),
            torch.bfloat16 if bf16 else torch.float32, config.first if config.truncate else 0,
        )  # fmt: skip

    def gradients(self) -> None:
        """The loss and the gradient of the current step."""
        batch = self.pool.take(self.rates.within)
        with torch.no_grad():
            self.read_in.forward(batch.A, batch.b, *self.unrolled.input)
            with products(self.configs[0].precision):
                features = self.unrolled.forward()  # (E, B, T+1, d)
            x, rd = self.model.probe_x(features), self.model.probe_rd(features)
            found = loss_gradient(self.launch, x, rd, batch, self.objective)
            d_features = self._probe_gradients(features, found)
            with products(self.configs[0].precision):
                d_X = self.unrolled.backward(d_features)
            self.read_in.backward(d_X)
        torch.sum(found.loss, 1, out=self.outcome.loss)
        torch.mean(found.intermediate, 1, out=self.outcome.intermediate)

    def _probe_gradients(self, features: Tensor, found: LossGradient) -> Tensor:
        """Through the probes: fills their gradients, returns that of the features."""
        views = self.flat.views(self.gradient)
        seen = features.flatten(1, 2)  # (E, B*(T+1), d)
        d_x, d_rd, d_shaping = (tensor.flatten(1, 2) for tensor in found[:3])
        for name, d_read in (("probe_x.weight", d_x), ("probe_rd.weight", d_rd)):
            d_weight = views[name]
            weight_gradient(self.launch, d_read.unsqueeze(1), seen.unsqueeze(1), d_weight, None, d_weight, None)
        d_seen = torch.baddbmm(d_x @ self.model.probe_x.weight, d_shaping, self.model.probe_rd.weight)
        return d_seen.view_as(features)
