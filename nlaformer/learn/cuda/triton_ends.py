"""Before the passes and after them: weights made ready, the prompt read in, gradients added up (Triton).

``kernels.py`` launches them and ``twins.py`` says what each one computes.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fold_kernel(
    W, GAIN, OUT, TURNED, N, stride_we, stride_ge, stride_oe, stride_te,
    K: tl.constexpr, HAS_GAIN: tl.constexpr, HAS_TURNED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    inside = (rows < N)[:, None]
    here = rows[:, None] * K + columns[None, :]
    w = tl.load(W + e * stride_we + here, mask=inside, other=0.0)
    if HAS_GAIN:
        w *= tl.load(GAIN + e * stride_ge + columns)[None, :]
    tl.store(OUT + e * stride_oe + here, w.to(OUT.dtype.element_ty), mask=inside)
    if HAS_TURNED:
        there = columns[:, None] * N + rows[None, :]
        turned = tl.trans(w).to(TURNED.dtype.element_ty)
        tl.store(TURNED + e * stride_te + there, turned, mask=(rows < N)[None, :])


@triton.jit
def read_in_kernel(
    A, RIGHT, W, POSITIONS, PROMPT, STREAM, OUT, SQUARES, R,
    stride_we, stride_pe, stride_me, stride_re, stride_oe, stride_se,
    n: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, TWO_STREAMS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    entries = tl.arange(0, BLOCK_K)
    token = rows % (n + 1)
    line = (e * (R // (n + 1)) + rows // (n + 1)) * n + token - 1  # which equation of all of them
    equation = (rows < R) & (token > 0)  # token 0 is the sink, a column of zeros
    matrix = A + line[:, None] * n + entries[None, :]
    p = tl.load(matrix, mask=equation[:, None] & (entries < n)[None, :], other=0.0)
    right = tl.load(RIGHT + line, mask=equation, other=0.0)
    p = tl.where((entries == n)[None, :], right[:, None], p)
    prompt = PROMPT + e * stride_me + rows[:, None] * COLUMNS + entries[None, :]
    tl.store(prompt, p, mask=(rows < R)[:, None] & (entries <= n)[None, :])
    squares = tl.zeros((BLOCK_R,), tl.float32)
    for start in range(0, D, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D)
        weight = W + e * stride_we + columns[None, :] * (n + 1) + entries[:, None]
        w = tl.load(weight, mask=(entries <= n)[:, None], other=0.0)
        y = tl.dot(p, w, input_precision="ieee")
        y += tl.load(POSITIONS + e * stride_pe + token[:, None] * D + columns[None, :])
        here = rows[:, None] * D + columns[None, :]
        tl.store(OUT + e * stride_oe + here, y.to(OUT.dtype.element_ty), mask=(rows < R)[:, None])
        if TWO_STREAMS:
            tl.store(STREAM + e * stride_re + here, y, mask=(rows < R)[:, None])
        squares += tl.sum(y * y, 1)
    tl.store(SQUARES + e * stride_se + rows, squares, mask=rows < R)


@triton.jit
def spread_kernel(
    FEATURES, STREAM, OUT, SUMS, R, stride_fe, stride_fb, stride_re, stride_oe, stride_ue,
    D: tl.constexpr, TOKENS: tl.constexpr, TWO_STREAMS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    chosen = (rows < R) & (rows % TOKENS == TOKENS - 1)
    feature = FEATURES + e * stride_fe + (rows // TOKENS)[:, None] * stride_fb + columns[None, :]
    g = tl.load(feature, mask=chosen[:, None], other=0.0)
    here = rows[:, None] * D + columns[None, :]
    tl.store(SUMS + e * stride_ue + tl.program_id(1) * D + columns, tl.sum(g, 0))
    tl.store(OUT + e * stride_oe + here, g.to(OUT.dtype.element_ty), mask=(rows < R)[:, None])
    if TWO_STREAMS:
        tl.store(STREAM + e * stride_re + here, g, mask=(rows < R)[:, None])


@triton.jit
def collect_kernel(
    FOLDED, W, GAIN, OUT, GAIN_OUT, N, stride_fe, stride_we, stride_ge, stride_oe, stride_qe,
    K: tl.constexpr, PARTS: tl.constexpr, HAS_GAIN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    here = rows[:, None] * K + columns[None, :]
    inside = (rows < N)[:, None]
    folded = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for part in tl.range(PARTS, loop_unroll_factor=8):  # so that eight loads are under way at once
        folded += tl.load(FOLDED + (e * PARTS + part) * stride_fe + here, mask=inside, other=0.0)
    if HAS_GAIN:
        w = tl.load(W + e * stride_we + here, mask=inside, other=0.0)
        tl.store(GAIN_OUT + e * stride_qe + tl.program_id(1) * K + columns, tl.sum(folded * w, 0))
        folded *= tl.load(GAIN + e * stride_ge + columns)[None, :]
    tl.store(OUT + e * stride_oe + here, folded, mask=inside)


@triton.jit
def column_sums_kernel(
    X, OUT, stride_xe, stride_oe, R: tl.constexpr, N: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    for start in range(0, R, BLOCK_R):
        rows = start + tl.arange(0, BLOCK_R)
        here = X + e * stride_xe + rows[:, None] * N + columns[None, :]
        total += tl.load(here, mask=(rows < R)[:, None], other=0.0)
    tl.store(OUT + e * stride_oe + columns, tl.sum(total, 0))
