"""What stands around the passes of a step: the loss with its gradient, clipping, the divergence test, Adam (Triton).

``twins.graded`` and ``twins.Update`` are the same in plain torch, and say what is computed.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nlaformer.learn.cuda.flat import BLOCK
from nlaformer.learn.cuda.twins import Graded, Moments, Outcome, Rates
from nlaformer.learn.data import Batch
from nlaformer.learn.supervision import Objective


@triton.jit
def _graded_kernel(
    X, RD, X_TEACHER, RD_TEACHER, X_TRUE, MIX, WINDOW, ATTACHED, POWER, FLOOR, D_X, D_RD, D_SHAPING, LOSS,
    INTERMEDIATE, B: tl.constexpr, n: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    t, T_1 = tl.program_id(0), tl.num_programs(0)
    e = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK_N)[None, :]
    pair = tl.arange(0, 2 * BLOCK_N)[None, :]
    step_squares = tl.zeros((BLOCK_B, BLOCK_N), tl.float32)
    solution_squares = tl.zeros((BLOCK_B, BLOCK_N), tl.float32)
    intermediate_squares = tl.zeros((BLOCK_B, 2 * BLOCK_N), tl.float32)
    for start in range(0, B, BLOCK_B):
        row = start + tl.arange(0, BLOCK_B)[:, None]
        here = (e * B + row) * T_1 + t
        x_inside = (row < B) & (column < n)
        rd_inside = (row < B) & (pair < 2 * n)
        x = tl.load(X + here * n + column, mask=x_inside, other=0.0)
        step = x - tl.load(X_TEACHER + here * n + column, mask=x_inside, other=0.0)
        solution = x - tl.load(X_TRUE + (e * B + row) * n + column, mask=x_inside, other=0.0)
        rd = tl.load(RD + here * 2 * n + pair, mask=rd_inside, other=0.0)
        rd -= tl.load(RD_TEACHER + here * 2 * n + pair, mask=rd_inside, other=0.0)
        step_squares += step * step
        solution_squares += solution * solution
        intermediate_squares += rd * rd
    scale = 1.0 / (B * n)
    intermediate = tl.sum(tl.sum(intermediate_squares, 1), 0) * scale
    step_mix, solution_mix = tl.load(MIX + 3 * e), tl.load(MIX + 3 * e + 1)
    intermediate_mix = tl.load(MIX + 3 * e + 2)
    iterate = step_mix * tl.sum(tl.sum(step_squares, 1), 0) * scale
    iterate += solution_mix * tl.sum(tl.sum(solution_squares, 1), 0) * scale + intermediate_mix * intermediate
    window = tl.load(WINDOW + e * T_1 + t)
    power = tl.load(POWER + e)
    log = tl.log(iterate + tl.load(FLOOR + e * T_1 + t))
    root = (tl.exp(power * log) - 1.0) / tl.where(power == 0.0, 1.0, power)
    raised = tl.where(power == 1.0, iterate, tl.where(power == 0.0, log, root))
    tl.store(LOSS + e * T_1 + t, window * raised)
    tl.store(INTERMEDIATE + e * T_1 + t, intermediate)
    slope = 2 * scale * window * tl.where(power == 1.0, 1.0, tl.exp((power - 1.0) * log))
    attached = tl.load(ATTACHED + e) != 0
    rd_slope = tl.where(attached, slope * intermediate_mix, 2 * scale / T_1)
    shaping = tl.where(attached, rd_slope, 0.0)
    for start in range(0, B, BLOCK_B):
        row = start + tl.arange(0, BLOCK_B)[:, None]
        here = (e * B + row) * T_1 + t
        x_inside = (row < B) & (column < n)
        rd_inside = (row < B) & (pair < 2 * n)
        x = tl.load(X + here * n + column, mask=x_inside, other=0.0)
        step = x - tl.load(X_TEACHER + here * n + column, mask=x_inside, other=0.0)
        solution = x - tl.load(X_TRUE + (e * B + row) * n + column, mask=x_inside, other=0.0)
        rd = tl.load(RD + here * 2 * n + pair, mask=rd_inside, other=0.0)
        rd -= tl.load(RD_TEACHER + here * 2 * n + pair, mask=rd_inside, other=0.0)
        d_x = slope * (step_mix * step + solution_mix * solution)
        tl.store(D_X + here * n + column, d_x, mask=x_inside)
        tl.store(D_RD + here * 2 * n + pair, rd_slope * rd, mask=rd_inside)
        tl.store(D_SHAPING + here * 2 * n + pair, shaping * rd, mask=rd_inside)


def graded(x: Tensor, rd: Tensor, batch: Batch, objective: Objective) -> Graded:
    """The loss and its gradient in one kernel, a program for each iterate of each model."""
    E, B, T_1, n = x.shape
    found = Graded(*(torch.empty_like(y) for y in (x, rd, rd)), *(x.new_empty(E, T_1) for _ in range(2)))
    attached = objective.attached.view(torch.uint8)
    block = triton.next_power_of_2(n)
    _graded_kernel[(T_1, E)](
        x, rd, batch.x, batch.rd, batch.x_true, objective.mix, objective.window, attached,
        objective.power, objective.floor, *found, B, n, min(64, max(1, 2048 // block)), block,
    )  # fmt: skip
    return found


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
