"""Softmax attention of short sequences, several side by side in a tile, and its gradient."""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
from __future__ import annotations

import torch
from torch import Tensor

from nlaformer.learn.cuda.launch import Launch, attention_rows, jit, parts_of, strides, tl, triton
from nlaformer.learn.cuda.products import inverse_scale, inverse_scale_reference
from nlaformer.transformer import attention


@jit
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


@jit
def _attend_kernel(
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


def attend(launch: Launch, qkv: Tensor, heads: int, tokens: int, causal: bool, out: Tensor) -> None:
    """Softmax attention from the rows of Q, K and V side by side."""
    if not launch.triton:
        Q, K, V = _split(qkv, 3, heads, tokens)
        out.copy_(_join(attention(Q, K, V, causal)))
        return
    E, R, d = out.shape
    block = attention_rows(tokens)
    _attend_kernel[(heads, triton.cdiv(R, block // tokens * tokens), E)](
        qkv, out, R, qkv.stride(0), out.stride(0),
        d, d // heads, tokens, causal, block, launch.precision, num_warps=4,
    )  # fmt: skip


@jit
def _attend_backward_kernel(
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


def attend_backward(
    launch: Launch, qkv: Tensor, G: Tensor, squares: Tensor | None, heads: int, tokens: int, causal: bool,
    out: Tensor, dots: Tensor | None,
) -> None:  # fmt: skip
    """The gradient of qkv over s, and its dots with qkv, for each head."""
    if not launch.triton:
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
            gradient = gradient * inverse_scale_reference(squares, G.shape[2], launch.epsilon)
        out.copy_(gradient)
        return
    E, R, d = G.shape
    block = attention_rows(tokens)
    _attend_backward_kernel[(heads, triton.cdiv(R, block // tokens * tokens), E)](
        qkv, G, squares, out, dots, R, launch.epsilon, qkv.stride(0), G.stride(0), *strides(squares, out, dots),
        d, d // heads, tokens, causal, parts_of(squares), block, launch.precision, num_warps=4,
    )  # fmt: skip


def _split(X: Tensor, count: int, heads: int, tokens: int) -> tuple[Tensor, ...]:
    """(E, R, count*d) as ``count`` tensors (E, B, head, token, width)."""
    return X.unflatten(1, (-1, tokens)).unflatten(3, (count, heads, -1)).permute(3, 0, 1, 4, 2, 5).unbind(0)


def _join(X: Tensor) -> Tensor:
    """(E, B, head, token, width) as (E, R, d)."""
    return X.transpose(2, 3).flatten(3).flatten(1, 2)
