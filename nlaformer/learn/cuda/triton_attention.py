"""Softmax attention of short sequences, several side by side in a tile, and its gradient (Triton)."""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
from __future__ import annotations

import triton
import triton.language as tl

from nlaformer.learn.cuda.triton_products import inverse_scale


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
def attend_kernel(
    QKV, OUT, R, stride_e, stride_oe,
    D: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
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
def attend_backward_kernel(
    QKV, G, SQUARES, OUT, DOTS, R, epsilon, stride_e, stride_ge, stride_se, stride_oe, stride_de,
    D: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, CAUSAL: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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
        scale = inverse_scale(SQUARES + e * stride_se, rows, R, D, epsilon, PARTS)[:, None]
        dq *= scale
        dk *= scale
        dv *= scale
    out = OUT + e * stride_oe + here
    tl.store(out, dq.to(OUT.dtype.element_ty), mask=inside)
    tl.store(out + D, dk.to(OUT.dtype.element_ty), mask=inside)
    tl.store(out + 2 * D, dv.to(OUT.dtype.element_ty), mask=inside)
