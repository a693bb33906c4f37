"""The kernels' twins in plain torch: what each function of ``kernels.py`` computes, on any device, in any dtype.

The tests hold these against autograd through ``transformer.py``, and the Triton kernels against these. Here a sum of
parts has a single part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nlaformer.transformer import attention


class Twins:
    """The kernels of a layer in plain torch; arguments as in ``kernels.TritonKernels``."""

    def __init__(self, epsilon: float):
        self.epsilon = epsilon

    def square_parts(self, X: Tensor, columns: int) -> int:
        """How many tiles of ``add_projected`` share a row."""
        return 1

    def dot_parts(self, X: Tensor, columns: int) -> int:
        """How many tiles of ``relu_backward`` share a row."""
        return 1

    def sum_parts(self, name: str, X: Tensor, columns: int) -> int:
        """How many tiles of the backward product ``name`` share a column."""
        return 1

    def project(
        self, name: str, X: Tensor, W: Tensor, out: Tensor,
        squares: Tensor | None = None, bias: Tensor | None = None, relu: bool = False,
    ) -> None:  # fmt: skip
        """out = ReLU(W X / s + bias), each part if asked for."""
        y = X @ W.mT  # (E, R, N)
        if squares is not None:
            y = y * self._inverse_scale(squares, X.shape[2])
        if bias is not None:
            y = y + bias.unsqueeze(1)
        out.copy_(torch.relu(y) if relu else y)

    def add_projected(
        self, X: Tensor, W: Tensor, bias: Tensor | None, stream: Tensor, stream_out: Tensor, out: Tensor,
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
        self, G: Tensor, W: Tensor, hidden: Tensor, bias: Tensor, squares: Tensor | None,
        out: Tensor, dots: Tensor | None, sums: Tensor,
    ) -> None:  # fmt: skip
        """g = W G where hidden > 0; sums over the rows, dots with W_1 p / s = hidden - bias, out = g / s."""
        g = torch.where(hidden > 0, G @ W.mT, 0.0).to(bias.dtype)
        sums.copy_(g.sum(1, keepdim=True))
        if squares is not None and dots is not None:
            dots.copy_((g * (hidden - bias.unsqueeze(1))).sum(2).unsqueeze(1))
            g = g * self._inverse_scale(squares, G.shape[2])
        out.copy_(g)

    def norm_backward(
        self, G: Tensor, W: Tensor, P: Tensor, squares: Tensor | None, dots: Tensor | None,
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
        out.copy_(_join(attention(*_split(qkv, 3, heads, tokens), causal)))

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
        """out = sum over passes and rows of G X^T for the folded weight W diag(gain), handed on to W and to the gain.

        G (E, passes, R, out) and X (E, passes, R, in).
        """
        folded = (G.flatten(1, 2).mT @ X.flatten(1, 2)).to(out.dtype)
        if gain is None or gain_out is None:
            out.copy_(folded)
        else:
            out.copy_(folded * gain.unsqueeze(1))
            gain_out.copy_((folded * W).sum(1))

    def _inverse_scale(self, squares: Tensor, d: int) -> Tensor:
        return torch.rsqrt(squares.sum(1) / d + self.epsilon).unsqueeze(2)  # (E, R, 1)


def _split(X: Tensor, count: int, heads: int, tokens: int) -> tuple[Tensor, ...]:
    """(E, R, count*d) as ``count`` tensors (E, B, head, token, width)."""
    return X.unflatten(1, (-1, tokens)).unflatten(3, (count, heads, -1)).permute(3, 0, 1, 4, 2, 5).unbind(0)


def _join(X: Tensor) -> Tensor:
    """(E, B, head, token, width) as (E, R, d)."""
    return X.transpose(2, 3).flatten(3).flatten(1, 2)
