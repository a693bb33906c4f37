"""The products of a layer of eq. (1), forward and backward, in the fewest passes over memory.

Norms, residuals and ReLU are computed where a product is written. The gains of the RMS normalizations are folded into
the weights that follow them once per step, W' = W diag(gain), so that a normalized product is a row scale, and its
backward needs no normalized tensor and no sum over rows of d:

    y  = W' p / s(p),  s(p)^2 = mean p^2 + epsilon          every product leaves the squares of what it wrote
    g  = dy / s                                             stored instead of dy: dW' = sum over tokens of g p^T
    dp = W'^T g - p (dy . y) / (d s^2)                      because  y . dy = (p/s) . W'^T dy

A layer is then five kernels forward (W_QKV, attention, W_O, W_1, W_2) and five backward, and one product per weight at
the end of the backward pass.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
from __future__ import annotations

import torch
from torch import Tensor

from nlaformer.learn.cuda.launch import Launch, jit, parts_of, strides, tl, triton


@jit
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


@jit
def _sum_parts(parts, rows, R, PARTS: tl.constexpr):
    """Row sums that several tiles left in (PARTS, R)."""
    total = tl.load(parts + rows, mask=rows < R, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * R + rows, mask=rows < R, other=0.0)
    return total


@jit
def inverse_scale(squares, rows, R, d, epsilon, PARTS: tl.constexpr):
    """1 / s(p) of each row."""
    return tl.rsqrt(_sum_parts(squares, rows, R, PARTS) / d + epsilon)


def inverse_scale_reference(squares: Tensor, d: int, epsilon: float) -> Tensor:
    """1 / s(p) of each row, (E, R, 1)."""
    return torch.rsqrt(squares.sum(1) / d + epsilon).unsqueeze(2)


@jit
def _project_kernel(
    X, W, OUT, SQUARES, BIAS, R, epsilon,
    stride_xe, stride_xr, stride_we, stride_wn, stride_wk, stride_oe, stride_or, stride_se, stride_be,
    N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, RELU: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) // (N // BLOCK_N) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.program_id(0) % (N // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    y = _product(
        X + e * stride_xe, W + e * stride_we, stride_xr, stride_wn, stride_wk, rows, columns, R,
        K, BLOCK_R, BLOCK_N, BLOCK_K, PRECISION,
    )  # fmt: skip
    if PARTS > 0:
        y *= inverse_scale(SQUARES + e * stride_se, rows, R, K, epsilon, PARTS)[:, None]
    if HAS_BIAS:
        y += tl.load(BIAS + e * stride_be + columns)[None, :]
    if RELU:
        y = tl.maximum(y, 0.0)
    out = OUT + e * stride_oe + rows[:, None] * stride_or + columns[None, :]
    tl.store(out, y.to(OUT.dtype.element_ty), mask=(rows < R)[:, None])


def project(
    launch: Launch, name: str, X: Tensor, W: Tensor, out: Tensor,
    squares: Tensor | None = None, bias: Tensor | None = None, relu: bool = False,
) -> None:  # fmt: skip
    """ReLU(W X / s + bias), each part if asked for."""
    if not launch.triton:
        y = X @ W.mT  # (E, R, N)
        if squares is not None:
            y = y * inverse_scale_reference(squares, X.shape[2], launch.epsilon)
        if bias is not None:
            y = y + bias.unsqueeze(1)
        out.copy_(torch.relu(y) if relu else y)
        return
    (E, R, K), N = X.shape, W.shape[1]
    tile = launch.tile(name, X, N)
    _project_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
        X, W, out, squares, bias, R, launch.epsilon,
        X.stride(0), X.stride(1), *W.stride(), out.stride(0), out.stride(1), *strides(squares, bias),
        N, K, parts_of(squares), bias is not None, relu, **launch.meta(tile),
    )  # fmt: skip


@jit
def _add_projected_kernel(
    X, W, BIAS, STREAM, STREAM_OUT, OUT, SQUARES, FEATURES, INJECT, R,
    stride_xe, stride_xr, stride_we, stride_wn, stride_wk, stride_be, stride_pe, stride_qe, stride_oe, stride_se,
    stride_fe, stride_ie, stride_fb,
    N: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, TWO_STREAMS: tl.constexpr, FEATURE_EVERY: tl.constexpr,
    HAS_INJECT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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


def add_projected(
    launch: Launch, name: str, X: Tensor, W: Tensor, bias: Tensor | None, stream: Tensor, stream_out: Tensor,
    out: Tensor, squares: Tensor, features: Tensor | None = None, tokens: int = 0, inject: Tensor | None = None,
) -> None:  # fmt: skip
    """stream_out = out = stream + W X + bias, and its squares; features = its last token; then inject is added."""
    if not launch.triton:
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
        return
    (E, R, K), N = X.shape, W.shape[1]
    tile = launch.tile(name, X, N)
    _add_projected_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
        X, W, bias, stream, stream_out, out, squares, features, inject, R,
        X.stride(0), X.stride(1), *W.stride(), *strides(bias, stream, stream_out, out, squares, features, inject),
        0 if features is None else features.stride(1),
        N, K, bias is not None, out.dtype != stream.dtype, 0 if features is None else tokens, inject is not None,
        **launch.meta(tile),
    )  # fmt: skip


@jit
def _relu_backward_kernel(
    G, W, HIDDEN, BIAS, SQUARES, OUT, DOTS, SUMS, R, d, epsilon,
    stride_ge, stride_gr, stride_we, stride_wn, stride_wk, stride_he, stride_be, stride_se, stride_oe, stride_de,
    stride_ue,
    N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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
        g *= inverse_scale(SQUARES + e * stride_se, rows, R, d, epsilon, PARTS)[:, None]
    tl.store(OUT + e * stride_oe + here, g.to(OUT.dtype.element_ty), mask=inside)


def relu_backward(
    launch: Launch, name: str, G: Tensor, W: Tensor, hidden: Tensor, bias: Tensor, squares: Tensor | None,
    out: Tensor, dots: Tensor | None, sums: Tensor,
) -> None:  # fmt: skip
    """With g = W G where hidden > 0: its sums over the rows, its dots with W_1 p / s = hidden - bias, and g / s."""
    if not launch.triton:
        g = torch.where(hidden > 0, G @ W.mT, 0.0).to(bias.dtype)
        sums.copy_(g.sum(1, keepdim=True))
        if squares is not None and dots is not None:
            dots.copy_((g * (hidden - bias.unsqueeze(1))).sum(2).unsqueeze(1))
            g = g * inverse_scale_reference(squares, G.shape[2], launch.epsilon)
        out.copy_(g)
        return
    (E, R, K), N = G.shape, W.shape[1]
    tile = launch.tile(name, G, N)
    _relu_backward_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
        G, W, hidden, bias, squares, out, dots, sums, R, K, launch.epsilon,
        G.stride(0), G.stride(1), *W.stride(), *strides(hidden, bias, squares, out, dots, sums),
        N, K, parts_of(squares), **launch.meta(tile),
    )  # fmt: skip


@jit
def _norm_backward_kernel(
    G, W, P, SQUARES, DOTS, STREAM, STREAM_OUT, OUT, SUMS, FEATURES, R, epsilon,
    stride_ge, stride_gr, stride_we, stride_wn, stride_wk, stride_pe, stride_se, stride_de, stride_re, stride_qe,
    stride_oe, stride_ue, stride_fe, stride_fb,
    N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, DOT_PARTS: tl.constexpr, TWO_STREAMS: tl.constexpr,
    HAS_SUMS: tl.constexpr, FEATURE_EVERY: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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
        scale = inverse_scale(SQUARES + e * stride_se, rows, R, N, epsilon, PARTS)
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


def norm_backward(
    launch: Launch, name: str, G: Tensor, W: Tensor, P: Tensor, squares: Tensor | None, dots: Tensor | None,
    stream: Tensor, stream_out: Tensor, out: Tensor, sums: Tensor | None = None,
    features: Tensor | None = None, tokens: int = 0,
) -> None:  # fmt: skip
    """stream_out = out = stream + W G - P dots / (d s^2), plus features at the last tokens; its sums over rows."""
    if not launch.triton:
        g = (G @ W.mT).to(stream.dtype) + stream
        if squares is not None and dots is not None:
            d = P.shape[2]
            g = g - P * dots.sum(1).unsqueeze(2) * inverse_scale_reference(squares, d, launch.epsilon).square() / d
        if features is not None:
            g[:, tokens - 1 :: tokens] += features
        if sums is not None:
            sums.copy_(g.sum(1, keepdim=True))
        stream_out.copy_(g)
        out.copy_(g)
        return
    (E, R, K), N = G.shape, W.shape[1]
    tile = launch.tile(name, G, N)
    _norm_backward_kernel[(triton.cdiv(R, tile.rows) * (N // tile.columns), E)](
        G, W, P, squares, dots, stream, stream_out, out, sums, features, R, launch.epsilon,
        G.stride(0), G.stride(1), *W.stride(),
        *strides(P, squares, dots, stream, stream_out, out, sums, features),
        0 if features is None else features.stride(1),
        N, K, parts_of(squares), parts_of(dots), out.dtype != stream.dtype, sums is not None,
        0 if features is None else tokens, **launch.meta(tile),
    )  # fmt: skip
