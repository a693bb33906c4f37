"""The kernels' twins in plain torch: what each function of ``kernels.py`` computes, on any device, in any dtype.

The tests hold these against autograd through ``transformer.py``, and the Triton kernels against these. Here a sum of
parts has a single part.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.learn.data import Batch
from nlaformer.learn.supervision import Objective, distances, raised
from nlaformer.transformer import attention


class Twins:
    """The kernels of a layer in plain torch; arguments as in ``kernels.TritonKernels``."""

    def __init__(self, epsilon: float):
        self.epsilon = epsilon

    def row_parts(self, name: str, X: Tensor, columns: int) -> int:
        """How many tiles of product ``name`` share a row: the parts of its squares or dots."""
        return 1

    def column_parts(self, name: str, X: Tensor, columns: int) -> int:
        """How many tiles of product ``name`` share a column: the parts of its sums."""
        return 1

    def transposed(self, W: Tensor) -> Tensor:
        """Where W^T is read from: a view of W, or a tensor of its own."""
        return W.mT

    def project(
        self, name: str, X: Tensor, W: Tensor, out: Tensor,
        squares: Tensor | None = None, bias: Tensor | None = None, relu: bool = False,
    ) -> None:  # fmt: skip
        """ReLU(W X / s + bias), each part if asked for."""
        y = X @ W.mT  # (E, R, N)
        if squares is not None:
            y = y * self._inverse_scale(squares, X.shape[2])
        if bias is not None:
            y = y + bias.unsqueeze(1)
        out.copy_(torch.relu(y) if relu else y)

    def add_projected(
        self, name: str, X: Tensor, W: Tensor, bias: Tensor | None, stream: Tensor, stream_out: Tensor, out: Tensor,
        squares: Tensor, features: Tensor | None = None, tokens: int = 0, inject: Tensor | None = None,
    ) -> None:  # fmt: skip
        """stream_out = out = stream + W X + bias, and its squares; features = its last token; then inject is added."""
        y = (X @ W.mT).to(stream.dtype) + stream
        if bias is not None:
            y = y + bias.unsqueeze(1)
        if features is not None:
            features.copy_(y[:, tokens - 1 :: tokens])
        if inject is not None:
            y = y + inject
        stream_out.copy_(y)
        out.copy_(y)
        squares.copy_(y.square().sum(2).unsqueeze(1))

    def relu_backward(
        self, name: str, G: Tensor, W: Tensor, hidden: Tensor, bias: Tensor, squares: Tensor | None,
        out: Tensor, dots: Tensor | None, sums: Tensor,
    ) -> None:  # fmt: skip
        """With g = W G where hidden > 0: its sums over the rows, its dots with W_1 p / s = hidden - bias, and g / s."""
        g = torch.where(hidden > 0, G @ W.mT, 0.0).to(bias.dtype)
        sums.copy_(g.sum(1, keepdim=True))
        if squares is not None and dots is not None:
            dots.copy_((g * (hidden - bias.unsqueeze(1))).sum(2).unsqueeze(1))
            g = g * self._inverse_scale(squares, G.shape[2])
        out.copy_(g)

    def norm_backward(
        self, name: str, G: Tensor, W: Tensor, P: Tensor, squares: Tensor | None, dots: Tensor | None,
        stream: Tensor, stream_out: Tensor, out: Tensor, sums: Tensor | None = None,
        features: Tensor | None = None, tokens: int = 0,
    ) -> None:  # fmt: skip
        """stream_out = out = stream + W G - P dots / (d s^2), plus features at the last tokens; its sums over rows."""
        g = (G @ W.mT).to(stream.dtype) + stream
        if squares is not None and dots is not None:
            d = P.shape[2]
            g = g - P * dots.sum(1).unsqueeze(2) * self._inverse_scale(squares, d).square() / d
        if features is not None:
            g[:, tokens - 1 :: tokens] += features
        if sums is not None:
            sums.copy_(g.sum(1, keepdim=True))
        stream_out.copy_(g)
        out.copy_(g)

    def attend(self, qkv: Tensor, heads: int, tokens: int, causal: bool, out: Tensor) -> None:
        """Softmax attention from the rows of Q, K and V side by side."""
        Q, K, V = _split(qkv, 3, heads, tokens)
        out.copy_(_join(attention(Q, K, V, causal)))

    def attend_backward(
        self, qkv: Tensor, G: Tensor, squares: Tensor | None, heads: int, tokens: int, causal: bool,
        out: Tensor, dots: Tensor | None,
    ) -> None:  # fmt: skip
        """The gradient of qkv over s, and its dots with qkv, for each head."""
        Q, K, V = _split(qkv, 3, heads, tokens)
        (g,) = _split(G, 1, heads, tokens)
        identity = torch.eye(tokens, dtype=qkv.dtype, device=qkv.device).expand(*Q.shape[:3], -1, -1)
        weights = attention(Q, K, identity, causal)  # (E, B, head, query, key)
        dweights = g @ V.mT
        dscores = weights * (dweights - (weights * dweights).sum(-1, keepdim=True))
        parts = dscores @ K, dscores.mT @ Q, weights.mT @ g
        gradient = torch.cat([_join(part) for part in parts], 2)
        if squares is not None and dots is not None:
            products = (gradient * qkv).unflatten(2, (3, heads, -1)).sum((2, 4))  # (E, R, head)
            dots.copy_(products.mT)
            gradient = gradient * self._inverse_scale(squares, G.shape[2])
        out.copy_(gradient)

    def weight_gradient(
        self, G: Tensor, X: Tensor, W: Tensor, gain: Tensor | None, out: Tensor, gain_out: Tensor | None
    ) -> None:
        """Sum over passes and rows of G X^T, the gradient of W diag(gain), handed on to W and to the gain.

        G (E, passes, R, out) and X (E, passes, R, in).
        """
        folded = (G.flatten(1, 2).mT @ X.flatten(1, 2)).to(out.dtype)
        if gain is None or gain_out is None:
            out.copy_(folded)
        else:
            out.copy_(folded * gain.unsqueeze(1))
            gain_out.copy_((folded * W).sum(1))

    def column_sums(self, X: Tensor, out: Tensor) -> None:
        """The sums of X (E, rows, columns) over the rows."""
        torch.sum(X, 1, out=out)

    def fold(self, W: Tensor, gain: Tensor | None, out: Tensor, transposed: Tensor) -> None:
        """W diag(gain) as the products take it, and its transpose where that is a tensor of its own."""
        out.copy_(W if gain is None else W * gain.unsqueeze(1))
        if transposed.data_ptr() != out.data_ptr():
            transposed.copy_(out.mT)

    def read_in(
        self, A: Tensor, b: Tensor, W: Tensor, positions: Tensor, prompt: Tensor, stream: Tensor, out: Tensor,
        squares: Tensor,
    ) -> None:  # fmt: skip
        """The prompt [0 | a_i ; b_i] into the first columns of ``prompt``; stream = out = W prompt + positions."""
        n = b.shape[2]
        rows = torch.cat([A, b.unsqueeze(3)], 3)  # (E, B, n, n+1)
        rows = torch.cat([torch.zeros_like(rows[:, :, :1]), rows], 2)  # (E, B, token, n+1)
        prompt[:, :, : n + 1] = rows.flatten(1, 2)
        X = (rows @ W.unsqueeze(1).mT + positions.unsqueeze(1)).flatten(1, 2)
        stream.copy_(X)
        out.copy_(X)
        squares.copy_(X.square().sum(2))

    def spread(self, features: Tensor, tokens: int, stream: Tensor, out: Tensor, sums: Tensor) -> None:
        """The features (E, B, d) at the last tokens, zero elsewhere, as stream and out; their sums over the rows."""
        out.zero_()[:, tokens - 1 :: tokens] = features.to(out.dtype)
        stream.zero_()[:, tokens - 1 :: tokens] = features
        sums.copy_(features.sum(1, keepdim=True))

    def _inverse_scale(self, squares: Tensor, d: int) -> Tensor:
        return torch.rsqrt(squares.sum(1) / d + self.epsilon).unsqueeze(2)  # (E, R, 1)


def _split(X: Tensor, count: int, heads: int, tokens: int) -> tuple[Tensor, ...]:
    """(E, R, count*d) as ``count`` tensors (E, B, head, token, width)."""
    return X.unflatten(1, (-1, tokens)).unflatten(3, (count, heads, -1)).permute(3, 0, 1, 4, 2, 5).unbind(0)


def _join(X: Tensor) -> Tensor:
    """(E, B, head, token, width) as (E, R, d)."""
    return X.transpose(2, 3).flatten(3).flatten(1, 2)


class Graded(NamedTuple):
    """The loss at every iterate, and its gradient at what the probes read."""

    d_x: Tensor  # (E, B, T+1, n)
    d_rd: Tensor  # (E, B, T+1, 2n)
    d_rd_shaping: Tensor  # the same where the (r, d) probe shapes the model, zero where it only watches
    loss: Tensor  # (E, T+1): the terms of the loss
    intermediate: Tensor  # (E, T+1): the squared distance of the (r, d) probe


def graded(x: Tensor, rd: Tensor, batch: Batch, objective: Objective) -> Graded:
    """The derivative of ``supervision.loss`` plus ``supervision.probe_loss``, written out."""
    squared = distances(x, rd, batch.x, batch.rd, batch.x_true)  # (E, 3, T+1)
    iterate = (objective.mix.unsqueeze(-1) * squared).sum(1)  # (E, T+1): l_t
    slope = objective.window * (iterate + objective.floor) ** (objective.power - 1)
    value = objective.window * raised(iterate, objective)
    B, T_1, n = x.shape[1:]
    step, solution, intermediate = (2 / (n * B) * slope * objective.mix[:, k, None] for k in range(3))
    attached = objective.attached.flatten(1)  # (E, 1)
    intermediate = torch.where(attached, intermediate, 2 / (n * B * T_1))

    def per_iterate(weight: Tensor) -> Tensor:
        return weight[:, None, :, None]

    d_x = per_iterate(step) * (x - batch.x) + per_iterate(solution) * (x - batch.x_true.unsqueeze(2))
    d_rd = per_iterate(intermediate) * (rd - batch.rd)
    return Graded(d_x, d_rd, d_rd * objective.attached, value, squared[:, 2])


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


class Update:
    """Clipping, the divergence test and Adam on flat parameters, as ``engine.PlainEngine`` does them one by one."""

    def __init__(self, watching: Tensor, lr_scale: Tensor, clip: Tensor, betas: tuple[float, float], epsilon: float):
        self.watching, self.lr_scale, self.clip = watching, lr_scale, clip
        self.betas, self.epsilon = betas, epsilon

    def __call__(self, moments: Moments, gradient: Tensor, outcome: Outcome, rates: Rates) -> None:
        parts = gradient.unflatten(1, (len(self.watching), -1))  # (E, blocks, BLOCK)
        squares = parts.square().sum(2)
        norms = torch.stack([squares[:, self.watching == group].sum(1).sqrt() for group in (0, 1)], 1)  # (E, 2)
        factor = (self.clip.unsqueeze(1) / (norms + 1e-6)).clamp(max=1.0)
        alive = outcome.alive > 0
        latest = torch.stack([outcome.loss, outcome.intermediate, norms[:, 0]], 1)
        outcome.report.copy_(torch.where(alive.unsqueeze(1), latest, outcome.report))
        alive = alive & outcome.loss.isfinite() & norms[:, 0].isfinite()
        outcome.alive.copy_(alive)
        beta1, beta2 = self.betas
        rate, (first, second) = rates.rate[rates.within].mT, rates.correction[rates.within[0]]
        g = (parts * factor[:, self.watching].unsqueeze(2)).flatten(1)
        mean = moments.mean + (1 - beta1) * (g - moments.mean)
        square = beta2 * moments.square + (1 - beta2) * g * g
        step = (mean / ((square / second).sqrt() + self.epsilon)).unflatten(1, (len(self.watching), -1))
        weight = moments.weight - (step * (rate * self.lr_scale / first).unsqueeze(2)).flatten(1)
        for old, new in zip(moments, (weight, mean, square), strict=True):
            old.copy_(torch.where(alive.unsqueeze(1), new, old))
