"""The products of a layer with what surrounds them in their epilogues: norms, residuals, ReLU (Triton).

``kernels.py`` launches them and ``twins.py`` says what each one computes.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
from __future__ import annotations

import triton
import triton.language as tl


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
def inverse_scale(squares, rows, R, d, epsilon, PARTS: tl.constexpr):
    """1 / s(p) of each row."""
    return tl.rsqrt(_sum_parts(squares, rows, R, PARTS) / d + epsilon)


@triton.jit
def project_kernel(
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


@triton.jit
def add_projected_kernel(
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


@triton.jit
def relu_backward_kernel(
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


@triton.jit
def norm_backward_kernel(
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
