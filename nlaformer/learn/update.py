"""Clipping, the divergence test and Adam over a stack's flat parameters: three kernels (Triton).

``twins.Update`` is the same in plain torch, and says what is computed.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from nlaformer.learn.flat import BLOCK
from nlaformer.learn.twins import Moments, Outcome, Rates


@triton.jit
def _squares_kernel(G, PARTS, size, BLOCK: tl.constexpr):
    e = tl.program_id(1).to(tl.int64)
    g = tl.load(G + e * size + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(PARTS + e * tl.num_programs(0) + tl.program_id(0), tl.sum(g * g, 0))


@triton.jit
def _decide_kernel(
    PARTS, WATCHING, CLIP, LOSS, INTERMEDIATE, ALIVE, FACTOR, REPORT, blocks: tl.constexpr, CHUNK: tl.constexpr
):
    e = tl.program_id(0)
    own = tl.zeros((CHUNK,), tl.float32)
    watched = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, blocks, CHUNK):
        block = start + tl.arange(0, CHUNK)
        part = tl.load(PARTS + e * blocks + block, mask=block < blocks, other=0.0)
        watching = tl.load(WATCHING + block, mask=block < blocks, other=0) != 0
        own += tl.where(watching, 0.0, part)
        watched += tl.where(watching, part, 0.0)
    norm = tl.sqrt(tl.sum(own, 0))
    probe_norm = tl.sqrt(tl.sum(watched, 0))
    clip = tl.load(CLIP + e)
    tl.store(FACTOR + 2 * e, tl.minimum(clip / (norm + 1e-6), 1.0))
    tl.store(FACTOR + 2 * e + 1, tl.minimum(clip / (probe_norm + 1e-6), 1.0))
    loss = tl.load(LOSS + e)
    alive = tl.load(ALIVE + e) != 0
    tl.store(REPORT + 3 * e, loss, mask=alive)  # a frozen member's report stays that of the step that froze it
    tl.store(REPORT + 3 * e + 1, tl.load(INTERMEDIATE + e), mask=alive)
    tl.store(REPORT + 3 * e + 2, norm, mask=alive)
    finite = (tl.abs(loss) < float("inf")) & (norm < float("inf"))  # false for NaN too
    tl.store(ALIVE + e, (alive & finite).to(tl.int32))


@triton.jit
def _adam_kernel(
    P, G, MEAN, SQUARE, ALIVE, FACTOR, WATCHING, SCALE, RATE, CORRECTION, WITHIN, size, models, beta1, beta2, epsilon,
    BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    e = tl.program_id(1).to(tl.int64)
    here = e * size + block * BLOCK + tl.arange(0, BLOCK)
    within = tl.load(WITHIN)
    rate = tl.load(RATE + within * models + e) * tl.load(SCALE + block) / tl.load(CORRECTION + 2 * within)
    g = tl.load(G + here) * tl.load(FACTOR + 2 * e + tl.load(WATCHING + block))
    mean = tl.load(MEAN + here)
    mean += (1 - beta1) * (g - mean)
    square = beta2 * tl.load(SQUARE + here) + (1 - beta2) * g * g
    root = tl.sqrt(square / tl.load(CORRECTION + 2 * within + 1)) + epsilon
    alive = tl.load(ALIVE + e) != 0
    tl.store(P + here, tl.load(P + here) - rate * mean / root, mask=alive)
    tl.store(MEAN + here, mean, mask=alive)
    tl.store(SQUARE + here, square, mask=alive)


class TritonUpdate:
    """The three kernels on the tensors of an engine; arguments as in ``twins.Update``."""

    def __init__(self, watching: Tensor, lr_scale: Tensor, clip: Tensor, betas: tuple[float, float], epsilon: float):
        self.watching, self.lr_scale, self.clip = watching, lr_scale, clip
        self.betas, self.epsilon = betas, epsilon
        self.parts = clip.new_empty(len(clip), len(watching))
        self.factor = clip.new_empty(len(clip), 2)

    def __call__(self, moments: Moments, gradient: Tensor, outcome: Outcome, rates: Rates) -> None:
        (E, size), blocks = gradient.shape, len(self.watching)
        _squares_kernel[(blocks, E)](gradient, self.parts, size, BLOCK)
        _decide_kernel[(E,)](
            self.parts, self.watching, self.clip, outcome.loss, outcome.intermediate, outcome.alive, self.factor,
            outcome.report, blocks, 1024,
        )  # fmt: skip
        _adam_kernel[(blocks, E)](
            moments.weight, gradient, moments.mean, moments.square, outcome.alive, self.factor, self.watching,
            self.lr_scale, rates.rate, rates.correction, rates.within, size, E, *self.betas, self.epsilon, BLOCK,
        )  # fmt: skip
