"""The parameters of a stack in one tensor, and what stands around the passes: loss, clipping, Adam.

The flat tensor is (E, size), so that clipping and Adam are a pass over memory each. Every parameter starts at a
multiple of ``BLOCK``; a block belongs to one parameter, and what Adam must know about it (its learning-rate factor, its
clipping group) is a number per block. The gaps stay zero.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.learn.cuda.launch import Launch, jit, tl, triton
from nlaformer.learn.cuda.unrolled import LayerTensors, layer_passes
from nlaformer.learn.data import Batch
from nlaformer.learn.model import Solver, lr_scale
from nlaformer.learn.models import Model
from nlaformer.learn.optimizer import ADAM_EPSILON, CLIP_EPSILON, adam
from nlaformer.learn.supervision import Objective, distances, loss_terms, probe_loss
from nlaformer.transformer import Layer

BLOCK = 1024


class Flat:
    """Where each parameter of a stack lies in the flat tensor.

    Examples
    --------
    >>> import nlaformer as nf
    >>> from nlaformer.learn.model import initial, stack
    >>> flat = Flat(stack([initial(nf.recipe("quickstart"))]))
    >>> flat.size % BLOCK, flat.views(torch.zeros(1, flat.size))["positions"].shape
    (0, torch.Size([1, 9, 64]))
    """

    def __init__(self, model: Model):
        self.shapes = {name: p.shape for name, p in model.named_parameters()}  # (E, ...)
        self.starts: dict[str, int] = {}
        scale, watching = [], []
        blocks = 0
        for name, shape in self.shapes.items():
            self.starts[name] = blocks * BLOCK
            count = -(-shape[1:].numel() // BLOCK)
            scale += [lr_scale(name, model.config)] * count
            watching += [name.startswith("probe_rd")] * count
            blocks += count
        self.size = blocks * BLOCK
        device = next(model.parameters()).device
        self.lr_scale = torch.tensor(scale, device=device)  # (blocks,)
        self.watching = torch.tensor(watching, dtype=torch.int32, device=device)  # (blocks,) 1: the (r, d) probe

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters, or whatever lies like them, by name."""
        return {name: self._view(flat, self.starts[name], shape) for name, shape in self.shapes.items()}

    def layers(self, flat: Tensor, solver: Solver, loops: int) -> list[LayerTensors]:
        """The parameters of every layer in the order of ``layer_passes``, W_Q, W_K and W_U as one view."""
        names = {id(module): name for name, module in solver.named_modules() if isinstance(module, Layer)}
        views, found = self.views(flat), []
        for layer in layer_passes(solver.blocks, loops)[0]:
            prefix = f"{names[id(layer)]}."
            view = {name.removeprefix(prefix): own for name, own in views.items() if name.startswith(prefix)}
            E, d, _ = view["heads.W_Q.weight"].shape
            qkv = self._view(flat, self.starts[f"{prefix}heads.W_Q.weight"], torch.Size((E, 3 * d, d)))
            W_O, W_1, W_2 = (view[f"{name}.weight"] for name in ("heads.W_O", "ffn.W_1", "ffn.W_2"))
            gains = (view.get("gain_1"), view.get("gain_2"))
            found.append(LayerTensors(qkv, W_O, W_1, W_2, view["ffn.b_1"], view["ffn.b_2"], *gains))
        return found

    def _view(self, flat: Tensor, start: int, shape: torch.Size) -> Tensor:
        return flat[:, start : start + shape[1:].numel()].view(shape)


class LossGradient(NamedTuple):
    """The loss at every iterate, and its gradient at what the probes read."""

    d_x: Tensor  # (E, B, T+1, n)
    d_rd: Tensor  # (E, B, T+1, 2n)
    d_rd_shaping: Tensor  # the same where the (r, d) probe shapes the model, zero where it only watches
    loss: Tensor  # (E, T+1): the terms of the loss
    intermediate: Tensor  # (E, T+1): the squared distance of the (r, d) probe


@jit
def _gaps(X, X_TEACHER, X_TRUE, RD, RD_TEACHER, x_inside, rd_inside):
    """Of some rows of one iterate: to the teacher's x, to the solution, to the teacher's (r, d)."""
    x = tl.load(X, mask=x_inside, other=0.0)
    step = x - tl.load(X_TEACHER, mask=x_inside, other=0.0)
    solution = x - tl.load(X_TRUE, mask=x_inside, other=0.0)
    rd = tl.load(RD, mask=rd_inside, other=0.0) - tl.load(RD_TEACHER, mask=rd_inside, other=0.0)
    return step, solution, rd


@jit
def _loss_kernel(
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
        step, solution, rd = _gaps(
            X + here * n + column, X_TEACHER + here * n + column, X_TRUE + (e * B + row) * n + column,
            RD + here * 2 * n + pair, RD_TEACHER + here * 2 * n + pair, x_inside, rd_inside,
        )  # fmt: skip
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
        step, solution, rd = _gaps(
            X + here * n + column, X_TEACHER + here * n + column, X_TRUE + (e * B + row) * n + column,
            RD + here * 2 * n + pair, RD_TEACHER + here * 2 * n + pair, x_inside, rd_inside,
        )  # fmt: skip
        d_x = slope * (step_mix * step + solution_mix * solution)
        tl.store(D_X + here * n + column, d_x, mask=x_inside)
        tl.store(D_RD + here * 2 * n + pair, rd_slope * rd, mask=rd_inside)
        tl.store(D_SHAPING + here * 2 * n + pair, shaping * rd, mask=rd_inside)


def loss_gradient(launch: Launch, x: Tensor, rd: Tensor, batch: Batch, objective: Objective) -> LossGradient:
    """The loss and its gradient in one kernel, a program for each iterate of each model."""
    if not launch.triton:
        return loss_gradient_reference(x, rd, batch, objective)
    E, B, T_1, n = x.shape
    found = LossGradient(*(torch.empty_like(y) for y in (x, rd, rd)), *(x.new_empty(E, T_1) for _ in range(2)))
    attached = objective.attached.view(torch.uint8)
    block = triton.next_power_of_2(n)
    _loss_kernel[(T_1, E)](
        x, rd, batch.x, batch.rd, batch.x_true, objective.mix, objective.window, attached,
        objective.power, objective.floor, *found, B, n, min(64, max(1, 2048 // block)), block,
    )  # fmt: skip
    return found


def loss_gradient_reference(x: Tensor, rd: Tensor, batch: Batch, objective: Objective) -> LossGradient:
    """The same by autograd through the losses of ``supervision``."""
    with torch.enable_grad():
        x, rd = x.detach().requires_grad_(), rd.detach().requires_grad_()
        squared = distances(x, rd, batch.x, batch.rd, batch.x_true)  # (E, 3, T+1)
        terms = loss_terms(squared, objective)
        total = terms.sum() + probe_loss(squared, objective).sum()
        d_x, d_rd = torch.autograd.grad(total, (x, rd))
    return LossGradient(d_x, d_rd, d_rd * objective.attached, terms.detach(), squared[:, 2].detach())


class Moments(NamedTuple):
    """What Adam changes: flat tensors (E, size)."""

    weight: Tensor
    mean: Tensor
    square: Tensor


class Outcome(NamedTuple):
    """Of a step, for every member; ``alive`` and ``report`` are written."""

    loss: Tensor  # (E,)
    intermediate: Tensor  # (E,)
    alive: Tensor  # (E,) int32: 1 until the loss or the gradient is not finite
    report: Tensor  # (E, 3): loss, intermediate, gradient norm of the last step that was alive before it


class Rates(NamedTuple):
    """Learning rates and Adam's bias corrections of a chunk of steps, and the step within it."""

    rate: Tensor  # (chunk, E)
    correction: Tensor  # (chunk, 2): 1 - beta1^count, 1 - beta2^count
    within: Tensor  # (1,) int64


@jit
def _squares_kernel(G, PARTS, size, BLOCK: tl.constexpr):
    e = tl.program_id(1).to(tl.int64)
    g = tl.load(G + e * size + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(PARTS + e * tl.num_programs(0) + tl.program_id(0), tl.sum(g * g, 0))


@jit
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


@jit
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


class Update:
    """Clipping, the divergence test and Adam on flat parameters.

    ``clip`` (E,) is the largest norm of a gradient.
    """

    def __init__(self, launch: Launch, flat: Flat, clip: Tensor, betas: tuple[float, float]):
        self.launch, self.clip, self.betas = launch, clip, betas
        self.watching, self.lr_scale = flat.watching, flat.lr_scale
        self.parts = clip.new_empty(len(clip), len(flat.watching))
        self.factor = clip.new_empty(len(clip), 2)

    def __call__(self, moments: Moments, gradient: Tensor, outcome: Outcome, rates: Rates) -> None:
        """One step in three kernels."""
        if not self.launch.triton:
            return self._in_plain_torch(moments, gradient, outcome, rates)
        (E, size), blocks = gradient.shape, len(self.watching)
        _squares_kernel[(blocks, E)](gradient, self.parts, size, BLOCK)
        _decide_kernel[(E,)](
            self.parts, self.watching, self.clip, outcome.loss, outcome.intermediate, outcome.alive, self.factor,
            outcome.report, blocks, 1024,
        )  # fmt: skip
        _adam_kernel[(blocks, E)](
            moments.weight, gradient, moments.mean, moments.square, outcome.alive, self.factor, self.watching,
            self.lr_scale, rates.rate, rates.correction, rates.within, size, E, *self.betas, ADAM_EPSILON, BLOCK,
        )  # fmt: skip

    def _in_plain_torch(self, moments: Moments, gradient: Tensor, outcome: Outcome, rates: Rates) -> None:
        blocks = (len(self.watching), -1)
        parts = gradient.unflatten(1, blocks)  # (E, blocks, BLOCK)
        squares = parts.square().sum(2)
        # Without a selection or a number, which the device would have to report: this may be captured in a graph.
        norms = torch.stack([(squares * (self.watching == group)).sum(1).sqrt() for group in (0, 1)], 1)  # (E, 2)
        factor = (self.clip.unsqueeze(1) / (norms + CLIP_EPSILON)).clamp(max=1.0)
        alive = outcome.alive > 0
        latest = torch.stack([outcome.loss, outcome.intermediate, norms[:, 0]], 1)
        outcome.report.copy_(torch.where(alive.unsqueeze(1), latest, outcome.report))
        alive = alive & outcome.loss.isfinite() & norms[:, 0].isfinite()
        outcome.alive.copy_(alive)
        rate = rates.rate.index_select(0, rates.within).mT  # (E, 1)
        first, second = rates.correction.index_select(0, rates.within)[0].unbind()
        weight, mean, square = (tensor.unflatten(1, blocks).clone() for tensor in moments)  # (E, blocks, BLOCK)
        clipped = parts * factor[:, self.watching].unsqueeze(2)
        adam(weight, clipped, mean, square, (rate * self.lr_scale).unsqueeze(2), self.betas, (first, second))
        for old, new in zip(moments, (weight, mean, square), strict=True):
            old.copy_(torch.where(alive.unsqueeze(1), new.flatten(1), old))
