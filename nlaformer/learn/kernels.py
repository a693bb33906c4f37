"""The layer of eq. (1), forward and backward, in the fewest passes over memory (Triton).

The gains of the RMS normalizations are folded into the weights that follow them once per step, W' = W diag(gain), so
that a normalized product is a row scale, and its backward needs no normalized tensor and no sum over rows of d:

    y  = W' p / s(p),  s(p)^2 = mean p^2 + epsilon          every product leaves the squares of what it wrote
    g  = dy / s                                             stored instead of dy: dW' = sum over tokens of g p^T
    dp = W'^T g - p (dy . y) / (d s^2)                      because  y . dy = (p/s) . W'^T dy

A layer is then five kernels forward (W_QKV, attention, W_O, W_1, W_2) and five backward, and one product per weight at
the end of the backward pass. ``twins.py`` holds the same functions in plain torch, with what each one computes; the
two are interchangeable.

Tensors are (E, R, columns): models, rows (batch x token), columns; the last two axes are contiguous. Partial sums
(``squares``, ``dots``, ``sums``) have an axis for the tiles that wrote them; no atomics, so a step is reproducible.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from nlaformer.learn.tiles import Tile, attention_rows, gradient_parts, tile_for


@triton.jit
def _after_the_kernel_before(OVERLAP: tl.constexpr):
    """Start while the kernel before is still finishing, wait here for what it wrote, and let the next one start."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _product(
    X, W, stride_x, stride_n, stride_k, rows, columns, R,
    K: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The tile (rows, columns) of X W^T in float32."""
    inner = tl.arange(0, BLOCK_K)
    x = X + tl.minimum(rows, R - 1)[:, None] * stride_x + inner[None, :]
    w = W + columns[None, :] * stride_n + inner[:, None] * stride_k
    total = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    for _ in range(K // BLOCK_K):
        total = tl.dot(tl.load(x), tl.load(w), total, input_precision=PRECISION)
        x += BLOCK_K
        w += BLOCK_K * stride_k
    return total


@triton.jit
def _sum_parts(parts, rows, R, PARTS: tl.constexpr):
    """Row sums that several tiles left in (PARTS, R)."""
    total = tl.load(parts + rows, mask=rows < R, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * R + rows, mask=rows < R, other=0.0)
    return total


@triton.jit
def _inverse_scale(squares, rows, R, d, epsilon, PARTS: tl.constexpr):
    """1 / s(p) of each row."""
    return tl.rsqrt(_sum_parts(squares, rows, R, PARTS) / d + epsilon)


@triton.jit
def _project_kernel(
    X, W, OUT, SQUARES, BIAS, R, epsilon,
    stride_xe, stride_xr, stride_we, stride_wn, stride_wk, stride_oe, stride_or, stride_se, stride_be,
    N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, RELU: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    _after_the_kernel_before(OVERLAP)
    e = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) // (N // BLOCK_N) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.program_id(0) % (N // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    y = _product(
        X + e * stride_xe, W + e * stride_we, stride_xr, stride_wn, stride_wk, rows, columns, R,
        K, BLOCK_R, BLOCK_N, BLOCK_K, PRECISION,
    )  # fmt: skip
    if PARTS > 0:
        y *= _inverse_scale(SQUARES + e * stride_se, rows, R, K, epsilon, PARTS)[:, None]
    if HAS_BIAS:
        y += tl.load(BIAS + e * stride_be + columns)[None, :]
    if RELU:
        y = tl.maximum(y, 0.0)
    out = OUT + e * stride_oe + rows[:, None] * stride_or + columns[None, :]
    tl.store(out, y.to(OUT.dtype.element_ty), mask=(rows < R)[:, None])


@triton.jit
def _add_projected_kernel(
    X, W, BIAS, STREAM, STREAM_OUT, OUT, SQUARES, FEATURES, INJECT, R,
    stride_xe, stride_xr, stride_we, stride_wn, stride_wk, stride_be, stride_pe, stride_qe, stride_oe, stride_se,
    stride_fe, stride_ie, stride_fb,
    N: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, TWO_STREAMS: tl.constexpr, FEATURE_EVERY: tl.constexpr,
    HAS_INJECT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    _after_the_kernel_before(OVERLAP)
    e = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) % (N // BLOCK_N)
    rows = tl.program_id(0) // (N // BLOCK_N) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    y = _product(
        X + e * stride_xe, W + e * stride_we, stride_xr, stride_wn, stride_wk, rows, columns, R,
        K, BLOCK_R, BLOCK_N, BLOCK_K, PRECISION,
    )  # fmt: skip
    inside = (rows < R)[:, None]
    here = rows[:, None] * N + columns[None, :]
    if HAS_BIAS:
        y += tl.load(BIAS + e * stride_be + columns)[None, :]
    y += tl.load(STREAM + e * stride_pe + here, mask=inside, other=0.0)
    if FEATURE_EVERY > 0:
        chosen = (rows < R) & (rows % FEATURE_EVERY == FEATURE_EVERY - 1)
        feature = FEATURES + e * stride_fe + (rows // FEATURE_EVERY)[:, None] * stride_fb + columns[None, :]
        tl.store(feature, y, mask=chosen[:, None])
    if HAS_INJECT:
        y += tl.load(INJECT + e * stride_ie + here, mask=inside, other=0.0)
    tl.store(OUT + e * stride_oe + here, y.to(OUT.dtype.element_ty), mask=inside)
    if TWO_STREAMS:
        tl.store(STREAM_OUT + e * stride_qe + here, y, mask=inside)
    tl.store(SQUARES + e * stride_se + tile * R + rows, tl.sum(y * y, 1), mask=rows < R)


@triton.jit
def _relu_backward_kernel(
    G, W, HIDDEN, BIAS, SQUARES, OUT, DOTS, SUMS, R, d, epsilon,
    stride_ge, stride_gr, stride_we, stride_wn, stride_wk, stride_he, stride_be, stride_se, stride_oe, stride_de,
    stride_ue,
    N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    _after_the_kernel_before(OVERLAP)
    e = tl.program_id(1).to(tl.int64)
    tile_r = tl.program_id(0) // (N // BLOCK_N)
    tile_n = tl.program_id(0) % (N // BLOCK_N)
    rows = tile_r * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    g = _product(
        G + e * stride_ge, W + e * stride_we, stride_gr, stride_wn, stride_wk, rows, columns, R,
        K, BLOCK_R, BLOCK_N, BLOCK_K, PRECISION,
    )  # fmt: skip
    inside = (rows < R)[:, None]
    here = rows[:, None] * N + columns[None, :]
    hidden = tl.load(HIDDEN + e * stride_he + here, mask=inside, other=0.0).to(tl.float32)
    g = tl.where(hidden > 0, g, 0.0)  # rows past the end have hidden = 0
    tl.store(SUMS + e * stride_ue + tile_r * N + columns, tl.sum(g, 0))
    if PARTS > 0:
        bias = tl.load(BIAS + e * stride_be + columns)
        dots = tl.sum(g * (hidden - bias[None, :]), 1)
        tl.store(DOTS + e * stride_de + tile_n * R + rows, dots, mask=rows < R)
        g *= _inverse_scale(SQUARES + e * stride_se, rows, R, d, epsilon, PARTS)[:, None]
    tl.store(OUT + e * stride_oe + here, g.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward_kernel(
    G, W, P, SQUARES, DOTS, STREAM, STREAM_OUT, OUT, SUMS, FEATURES, R, epsilon,
    stride_ge, stride_gr, stride_we, stride_wn, stride_wk, stride_pe, stride_se, stride_de, stride_re, stride_qe,
    stride_oe, stride_ue, stride_fe, stride_fb,
    N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, DOT_PARTS: tl.constexpr, TWO_STREAMS: tl.constexpr,
    HAS_SUMS: tl.constexpr, FEATURE_EVERY: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    _after_the_kernel_before(OVERLAP)
    e = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) // (N // BLOCK_N)
    rows = tile * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.program_id(0) % (N // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    g = _product(
        G + e * stride_ge, W + e * stride_we, stride_gr, stride_wn, stride_wk, rows, columns, R,
        K, BLOCK_R, BLOCK_N, BLOCK_K, PRECISION,
    )  # fmt: skip
    inside = (rows < R)[:, None]
    here = rows[:, None] * N + columns[None, :]
    if PARTS > 0:
        scale = _inverse_scale(SQUARES + e * stride_se, rows, R, N, epsilon, PARTS)
        along = _sum_parts(DOTS + e * stride_de, rows, R, DOT_PARTS) * scale * scale / N
        p = tl.load(P + e * stride_pe + here, mask=inside, other=0.0).to(tl.float32)
        g -= p * along[:, None]
    g += tl.load(STREAM + e * stride_re + here, mask=inside, other=0.0)
    if FEATURE_EVERY > 0:
        chosen = (rows < R) & (rows % FEATURE_EVERY == FEATURE_EVERY - 1)
        feature = FEATURES + e * stride_fe + (rows // FEATURE_EVERY)[:, None] * stride_fb + columns[None, :]
        g += tl.load(feature, mask=chosen[:, None], other=0.0)
    if HAS_SUMS:
        tl.store(SUMS + e * stride_ue + tile * N + columns, tl.sum(tl.where(inside, g, 0.0), 0))
    tl.store(OUT + e * stride_oe + here, g.to(OUT.dtype.element_ty), mask=inside)
    if TWO_STREAMS:
        tl.store(STREAM_OUT + e * stride_qe + here, g, mask=inside)


@triton.jit
def _weights(q, k, CAUSAL: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """Softmax over the keys of the same sequence; a tile holds several sequences one after the other."""
    i = tl.arange(0, BLOCK)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    same = (i // TOKENS)[:, None] == (i // TOKENS)[None, :]
    if CAUSAL:
        same = same & (i[None, :] <= i[:, None])
    scores = tl.where(same, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _attend_kernel(
    QKV, OUT, R, stride_e, stride_oe,
    D: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    _after_the_kernel_before(OVERLAP)
    e = tl.program_id(2).to(tl.int64)
    local = tl.arange(0, BLOCK)
    rows = tl.program_id(1) * (BLOCK // TOKENS * TOKENS) + local
    columns = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = ((local < BLOCK // TOKENS * TOKENS) & (rows < R))[:, None]
    here = QKV + e * stride_e + rows[:, None] * (3 * D) + columns[None, :]
    q = tl.load(here, mask=inside, other=0.0)
    k = tl.load(here + D, mask=inside, other=0.0)
    v = tl.load(here + 2 * D, mask=inside, other=0.0)
    weights = _weights(q, k, CAUSAL, TOKENS, BLOCK, PRECISION)
    mixed = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    out = OUT + e * stride_oe + rows[:, None] * D + columns[None, :]
    tl.store(out, mixed.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def _attend_backward_kernel(
    QKV, G, SQUARES, OUT, DOTS, R, epsilon, stride_e, stride_ge, stride_se, stride_oe, stride_de,
    D: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, CAUSAL: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    _after_the_kernel_before(OVERLAP)
    e = tl.program_id(2).to(tl.int64)
    head = tl.program_id(0)
    local = tl.arange(0, BLOCK)
    rows = tl.program_id(1) * (BLOCK // TOKENS * TOKENS) + local
    columns = head * WIDTH + tl.arange(0, WIDTH)
    used = (local < BLOCK // TOKENS * TOKENS) & (rows < R)
    inside = used[:, None]
    here = rows[:, None] * (3 * D) + columns[None, :]
    q = tl.load(QKV + e * stride_e + here, mask=inside, other=0.0)
    k = tl.load(QKV + e * stride_e + here + D, mask=inside, other=0.0)
    v = tl.load(QKV + e * stride_e + here + 2 * D, mask=inside, other=0.0)
    g = tl.load(G + e * stride_ge + rows[:, None] * D + columns[None, :], mask=inside, other=0.0)
    weights = _weights(q, k, CAUSAL, TOKENS, BLOCK, PRECISION)
    dv = tl.dot(tl.trans(weights.to(g.dtype)), g, input_precision=PRECISION)
    dweights = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    dscores = weights * (dweights - tl.sum(dweights * weights, 1)[:, None])
    dscores = dscores.to(q.dtype)
    dq = tl.dot(dscores, k, input_precision=PRECISION)
    dk = tl.dot(tl.trans(dscores), q, input_precision=PRECISION)
    if PARTS > 0:
        dots = tl.sum(dq * q.to(tl.float32) + dk * k.to(tl.float32) + dv * v.to(tl.float32), 1)
        tl.store(DOTS + e * stride_de + head * R + rows, dots, mask=used)
        scale = _inverse_scale(SQUARES + e * stride_se, rows, R, D, epsilon, PARTS)[:, None]
        dq *= scale
        dk *= scale
        dv *= scale
    out = OUT + e * stride_oe + here
    tl.store(out, dq.to(OUT.dtype.element_ty), mask=inside)
    tl.store(out + D, dk.to(OUT.dtype.element_ty), mask=inside)
    tl.store(out + 2 * D, dv.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def _collect_kernel(
    FOLDED, W, GAIN, OUT, GAIN_OUT, N, stride_fe, stride_we, stride_ge, stride_oe, stride_qe,
    K: tl.constexpr, PARTS: tl.constexpr, HAS_GAIN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    _after_the_kernel_before(OVERLAP)
    e = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    here = rows[:, None] * K + columns[None, :]
    inside = (rows < N)[:, None]
    folded = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for part in range(PARTS):
        folded += tl.load(FOLDED + (e * PARTS + part) * stride_fe + here, mask=inside, other=0.0)
    if HAS_GAIN:
        w = tl.load(W + e * stride_we + here, mask=inside, other=0.0)
        tl.store(GAIN_OUT + e * stride_qe + tl.program_id(1) * K + columns, tl.sum(folded * w, 0))
        folded *= tl.load(GAIN + e * stride_ge + columns)[None, :]
    tl.store(OUT + e * stride_oe + here, folded, mask=inside)


class TritonKernels:
    """The kernels; ``precision`` is "ieee" or "tf32" for float32 tensors, ``tiles`` replaces those of ``tiles.py``."""

    overlap = True  # Hopper can start a kernel while the one before it drains

    def __init__(self, epsilon: float, precision: str = "ieee", tiles: Mapping[str, Tile] | None = None):
        self.epsilon, self.precision, self.tiles = epsilon, precision, tiles or {}
        overlap = self.overlap and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
        self.launch = {"OVERLAP": True, "launch_pdl": True} if overlap else {"OVERLAP": False}

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
        _project_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
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
        _add_projected_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
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
        _relu_backward_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
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
        _norm_backward_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
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
        _attend_kernel[(heads, triton.cdiv(R, block // tokens * tokens), E)](
            qkv,
            out,
            R,
            qkv.stride(0),
            out.stride(0),
            d,
            d // heads,
            tokens,
            causal,
            block,
            self.precision,
            num_warps=4,
            **self.launch,
        )

    def attend_backward(
        self, qkv: Tensor, G: Tensor, squares: Tensor | None, heads: int, tokens: int, causal: bool,
        out: Tensor, dots: Tensor | None,
    ) -> None:  # fmt: skip
        E, R, d = G.shape
        block = attention_rows(tokens)
        _attend_backward_kernel[(heads, triton.cdiv(R, block // tokens * tokens), E)](
            qkv, G, squares, out, dots, R, self.epsilon, qkv.stride(0), G.stride(0), *_lead(squares, out, dots),
            d, d // heads, tokens, causal, _parts(squares), block, self.precision, num_warps=4, **self.launch,
        )  # fmt: skip

    def weight_gradient(
        self, G: Tensor, X: Tensor, W: Tensor, gain: Tensor | None, out: Tensor, gain_out: Tensor | None
    ) -> None:
        E, N, K = W.shape
        parts = gradient_parts(E, N, K, G.shape[1] * G.shape[2])
        g, x = (tensor.view(E * parts, -1, tensor.shape[3]) for tensor in (G, X))
        folded = _product_in(out.dtype, g.mT, x)  # (E*parts, N, K)
        block = 32
        partial = None if gain is None else out.new_empty(E, triton.cdiv(N, block), K)
        block_k = min(K & -K, 64)
        _collect_kernel[(K // block_k, triton.cdiv(N, block), E)](
            folded, W, gain, out, partial, N, folded.stride(0), *_lead(W, gain, out, partial),
            K, parts, gain is not None, block, block_k, num_warps=4, **self.launch,
        )  # fmt: skip
        if partial is not None:
            torch.sum(partial, 1, out=gain_out)

    def _meta(self, tile: Tile) -> dict[str, object]:
        return {
            "BLOCK_R": tile.rows, "BLOCK_N": tile.columns, "BLOCK_K": tile.inner,
            "num_warps": tile.warps, "num_stages": tile.stages, "PRECISION": self.precision,
        } | self.launch  # fmt: skip


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
