"""The layer of eq. (1), forward and backward, in the fewest passes over memory (Triton).

The gains of the RMS normalizations are folded into the weights that follow them once per step, W' = W diag(gain), so
that a normalized product is a row scale, and its backward needs no normalized tensor and no sum over rows of d:

    y  = W' p / s(p),  s(p)^2 = mean p^2 + epsilon          every product leaves the squares of what it wrote
    g  = dy / s                                             stored instead of dy: dW' = sum over tokens of g p^T
    dp = W'^T g - p (dy . y) / (d s^2)                      because  y . dy = (p/s) . W'^T dy

A layer is then five kernels forward (W_QKV, attention, W_O, W_1, W_2) and five backward, and one product per weight at
the end of the backward pass. The kernels are in ``triton_products.py``, ``triton_attention.py`` and ``triton_ends.py``;
here is how they are launched. ``twins.py`` holds the same functions in plain torch, with what each one computes; the
two are interchangeable.

Tensors are (E, R, columns): models, rows (batch x token), columns; the last two axes are contiguous. Partial sums
(``squares``, ``dots``, ``sums``) have an axis for the tiles that wrote them; no atomics, so a step is reproducible.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
from torch import Tensor

from nlaformer.learn.cuda.tiles import Tile, attention_rows, divisor, gradient_parts, tile_for
from nlaformer.learn.cuda.triton_attention import attend_backward_kernel, attend_kernel
from nlaformer.learn.cuda.triton_ends import (
    collect_kernel,
    column_sums_kernel,
    fold_kernel,
    read_in_kernel,
    spread_kernel,
)
from nlaformer.learn.cuda.triton_products import (
    add_projected_kernel,
    norm_backward_kernel,
    project_kernel,
    relu_backward_kernel,
)


class TritonKernels:
    """The kernels; ``precision`` of float32 is "ieee", "bf16x3" or "tf32"; ``tiles`` replaces those of ``tiles.py``."""

    def __init__(self, epsilon: float, precision: str = "ieee", tiles: Mapping[str, Tile] | None = None):
        self.epsilon, self.precision, self.tiles = epsilon, precision, tiles or {}

    def tile(self, name: str, X: Tensor, columns: int) -> Tile:
        """The tile of product ``name``, of X (E, R, inner) with a weight of so many columns."""
        if name in self.tiles:
            return self.tiles[name]
        return tile_for(name, X.shape[0] * X.shape[1], columns, X.shape[2], X.dtype)

    def row_parts(self, name: str, X: Tensor, columns: int) -> int:
        return columns // self.tile(name, X, columns).columns

    def column_parts(self, name: str, X: Tensor, columns: int) -> int:
        return triton.cdiv(X.shape[1], self.tile(name, X, columns).rows)

    def transposed(self, W: Tensor) -> Tensor:
        """Where W^T is read from: tensor cores take 32-bit operands with the inner axis contiguous only."""
        return W.mT if W.element_size() == 2 else torch.empty_like(W.mT, memory_format=torch.contiguous_format)

    def project(
        self, name: str, X: Tensor, W: Tensor, out: Tensor,
        squares: Tensor | None = None, bias: Tensor | None = None, relu: bool = False,
    ) -> None:  # fmt: skip
        (E, R, K), N = X.shape, W.shape[1]
        tile = self.tile(name, X, N)
        project_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
            X, W, out, squares, bias, R, self.epsilon,
            X.stride(0), X.stride(1), *W.stride(), out.stride(0), out.stride(1), *_lead(squares, bias),
            N, K, _parts(squares), bias is not None, relu, **self._meta(tile),
        )  # fmt: skip

    def add_projected(
        self, name: str, X: Tensor, W: Tensor, bias: Tensor | None, stream: Tensor, stream_out: Tensor, out: Tensor,
        squares: Tensor, features: Tensor | None = None, tokens: int = 0, inject: Tensor | None = None,
    ) -> None:  # fmt: skip
        (E, R, K), N = X.shape, W.shape[1]
        tile = self.tile(name, X, N)
        add_projected_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
            X, W, bias, stream, stream_out, out, squares, features, inject, R,
            X.stride(0), X.stride(1), *W.stride(), *_lead(bias, stream, stream_out, out, squares, features, inject),
            0 if features is None else features.stride(1),
            N, K, bias is not None, out.dtype != stream.dtype, 0 if features is None else tokens, inject is not None,
            **self._meta(tile),
        )  # fmt: skip

    def relu_backward(
        self, name: str, G: Tensor, W: Tensor, hidden: Tensor, bias: Tensor, squares: Tensor | None,
        out: Tensor, dots: Tensor | None, sums: Tensor,
    ) -> None:  # fmt: skip
        (E, R, K), N = G.shape, W.shape[1]
        tile = self.tile(name, G, N)
        relu_backward_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
            G, W, hidden, bias, squares, out, dots, sums, R, K, self.epsilon,
            G.stride(0), G.stride(1), *W.stride(), *_lead(hidden, bias, squares, out, dots, sums),
            N, K, _parts(squares), **self._meta(tile),
        )  # fmt: skip

    def norm_backward(
        self, name: str, G: Tensor, W: Tensor, P: Tensor, squares: Tensor | None, dots: Tensor | None,
        stream: Tensor, stream_out: Tensor, out: Tensor, sums: Tensor | None = None,
        features: Tensor | None = None, tokens: int = 0,
    ) -> None:  # fmt: skip
        (E, R, K), N = G.shape, W.shape[1]
        tile = self.tile(name, G, N)
        norm_backward_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
            G, W, P, squares, dots, stream, stream_out, out, sums, features, R, self.epsilon,
            G.stride(0), G.stride(1), *W.stride(),
            *_lead(P, squares, dots, stream, stream_out, out, sums, features),
            0 if features is None else features.stride(1),
            N, K, _parts(squares), _parts(dots), out.dtype != stream.dtype, sums is not None,
            0 if features is None else tokens, **self._meta(tile),
        )  # fmt: skip

    def attend(self, qkv: Tensor, heads: int, tokens: int, causal: bool, out: Tensor) -> None:
        E, R, d = out.shape
        block = attention_rows(tokens)
        attend_kernel[(heads, triton.cdiv(R, block // tokens * tokens), E)](
            qkv, out, R, qkv.stride(0), out.stride(0),
            d, d // heads, tokens, causal, block, self.precision, num_warps=4,
        )  # fmt: skip

    def attend_backward(
        self, qkv: Tensor, G: Tensor, squares: Tensor | None, heads: int, tokens: int, causal: bool,
        out: Tensor, dots: Tensor | None,
    ) -> None:  # fmt: skip
        E, R, d = G.shape
        block = attention_rows(tokens)
        attend_backward_kernel[(heads, triton.cdiv(R, block // tokens * tokens), E)](
            qkv, G, squares, out, dots, R, self.epsilon, qkv.stride(0), G.stride(0), *_lead(squares, out, dots),
            d, d // heads, tokens, causal, _parts(squares), block, self.precision, num_warps=4,
        )  # fmt: skip

    def weight_gradient(
        self, G: Tensor, X: Tensor, W: Tensor, gain: Tensor | None, out: Tensor, gain_out: Tensor | None
    ) -> None:
        E, N, K = W.shape
        parts = gradient_parts(E, N, K, G.shape[1] * G.shape[2])
        g, x = (tensor.view(E * parts, -1, tensor.shape[3]) for tensor in (G, X))
        folded = _product_in(out.dtype, g.mT, x)  # (E*parts, N, K)
        block, block_k = 8, divisor(K, 64)
        partial = None if gain is None else out.new_empty(E, triton.cdiv(N, block), K)
        collect_kernel[(K // block_k, triton.cdiv(N, block), E)](
            folded, W, gain, out, partial, N, folded.stride(0), *_lead(W, gain, out, partial),
            K, parts, gain is not None, block, block_k, num_warps=4,
        )  # fmt: skip
        if partial is not None and gain_out is not None:
            self.column_sums(partial, gain_out)

    def column_sums(self, X: Tensor, out: Tensor) -> None:
        E, R, N = X.shape
        block = divisor(N, 32)
        column_sums_kernel[(N // block, E)](X, out, *_lead(X, out), R, N, 64, block, num_warps=4)

    def fold(self, W: Tensor, gain: Tensor | None, out: Tensor, transposed: Tensor) -> None:
        E, N, K = W.shape
        turned = None if transposed.data_ptr() == out.data_ptr() else transposed
        block_k = divisor(K, 64)
        fold_kernel[(K // block_k, triton.cdiv(N, 32), E)](
            W, gain, out, turned, N, *_lead(W, gain, out, turned),
            K, gain is not None, turned is not None, 32, block_k, num_warps=4,
        )  # fmt: skip

    def read_in(
        self, A: Tensor, b: Tensor, W: Tensor, positions: Tensor, prompt: Tensor, stream: Tensor, out: Tensor,
        squares: Tensor,
    ) -> None:  # fmt: skip
        E, R, d = out.shape
        n, rows = b.shape[2], 16
        read_in_kernel[(triton.cdiv(R, rows), E)](
            A, b, W, positions, prompt, stream, out, squares, R, *_lead(W, positions, prompt, stream, out, squares),
            n, d, prompt.shape[2], out.dtype != stream.dtype, rows, divisor(d, 64), max(16, 1 << n.bit_length()),
            num_warps=4,
        )  # fmt: skip

    def spread(self, features: Tensor, tokens: int, stream: Tensor, out: Tensor, sums: Tensor) -> None:
        E, R, d = out.shape
        parts, block = sums.shape[1], divisor(d, 64)
        spread_kernel[(d // block, parts, E)](
            features, stream, out, sums, R, features.stride(0), features.stride(1), *_lead(stream, out, sums),
            d, tokens, out.dtype != stream.dtype, triton.next_power_of_2(triton.cdiv(R, parts)), block,
            num_warps=4,
        )  # fmt: skip

    def _meta(self, tile: Tile) -> dict[str, object]:
        return {
            "BLOCK_R": tile.rows, "BLOCK_N": tile.columns, "BLOCK_K": tile.inner,
            "num_warps": tile.warps, "num_stages": tile.stages, "PRECISION": self.precision,
        }  # fmt: skip


def _product_in(dtype: torch.dtype, X: Tensor, Y: Tensor) -> Tensor:
    """A batched product whose result is wider than its operands; torch has it on CUDA only."""
    if X.dtype == dtype or not X.is_cuda:
        return X.to(dtype) @ Y.to(dtype)
    return torch.bmm(X, Y, out_dtype=dtype)


def _lead(*tensors: Tensor | None) -> tuple[int, ...]:
    """The stride over models of each tensor."""
    return tuple(0 if tensor is None else tensor.stride(0) for tensor in tensors)


def _parts(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.shape[1]
