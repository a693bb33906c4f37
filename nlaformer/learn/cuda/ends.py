"""Before the passes and after them: weights made ready, the prompt read in, gradients added up."""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
from __future__ import annotations

import torch
from torch import Tensor

from nlaformer.learn.cuda.launch import Launch, divisor, gradient_parts, jit, strides, tl, triton


@jit
def _fold_kernel(
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


def fold(launch: Launch, W: Tensor, gain: Tensor | None, out: Tensor, transposed: Tensor) -> None:
    """W diag(gain) as the products take it, and its transpose where that is a tensor of its own."""
    turned = None if transposed.data_ptr() == out.data_ptr() else transposed
    if not launch.triton:
        out.copy_(W if gain is None else W * gain.unsqueeze(1))
        if turned is not None:
            turned.copy_(out.mT)
        return
    E, N, K = W.shape
    block_k = divisor(K, 64)
    _fold_kernel[(K // block_k, triton.cdiv(N, 32), E)](
        W, gain, out, turned, N, *strides(W, gain, out, turned),
        K, gain is not None, turned is not None, 32, block_k, num_warps=4,
    )  # fmt: skip


@jit
def _read_in_kernel(
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


def read_in(
    launch: Launch, A: Tensor, b: Tensor, W: Tensor, positions: Tensor, prompt: Tensor, stream: Tensor, out: Tensor,
    squares: Tensor,
) -> None:  # fmt: skip
    """The prompt [0 | a_i ; b_i] into the first columns of ``prompt``; stream = out = W prompt + positions."""
    if not launch.triton:
        rows = torch.cat([A, b.unsqueeze(3)], 3)  # (E, B, n, n+1)
        rows = torch.cat([torch.zeros_like(rows[:, :, :1]), rows], 2)  # (E, B, token, n+1)
        prompt[:, :, : rows.shape[3]] = rows.flatten(1, 2)
        X = (rows @ W.unsqueeze(1).mT + positions.unsqueeze(1)).flatten(1, 2)
        stream.copy_(X)
        out.copy_(X)
        squares.copy_(X.square().sum(2))
        return
    E, R, d = out.shape
    n, block = b.shape[2], 16
    _read_in_kernel[(triton.cdiv(R, block), E)](
        A, b, W, positions, prompt, stream, out, squares, R, *strides(W, positions, prompt, stream, out, squares),
        n, d, prompt.shape[2], out.dtype != stream.dtype, block, divisor(d, 64), max(16, 1 << n.bit_length()),
        num_warps=4,
    )  # fmt: skip


class ReadIn:
    """The read-in of ``model.Solver.tokens`` for a stack, and its gradient, over buffers that stay where they are.

    X = W [0 | a_i ; b_i] + positions is one product with [W positions^T], of the prompt with the unit vector of its
    token under every column. The gradients of W (E, d, n+1) and of the positions (E, token, d) are then one product.
    """

    def __init__(
        self, launch: Launch, weight: Tensor, positions: Tensor, d_weight: Tensor, d_positions: Tensor, batch: int
    ):
        self.launch, self.weight, self.positions = launch, weight, positions
        self.d_weight, self.d_positions = d_weight, d_positions
        (E, d, height), tokens = weight.shape, positions.shape[1]
        columns = -(-(height + tokens) // 16) * 16  # tensor cores and wide loads need multiples of 16
        prompt = weight.new_zeros(E, batch, tokens, columns)
        prompt[..., height : height + tokens] = torch.eye(tokens, dtype=weight.dtype, device=weight.device)
        self.prompt = prompt.flatten(1, 2)  # (E, R, columns)
        self.gradient = weight.new_empty(E, d, columns)

    def forward(self, A: Tensor, b: Tensor, stream: Tensor, out: Tensor, squares: Tensor) -> None:
        """Write X (E, R, d) as the stream and as what the products read, and the squares (E, R) of its rows."""
        read_in(self.launch, A, b, self.weight, self.positions, self.prompt, stream, out, squares)

    def backward(self, d_X: Tensor) -> None:
        """Fill the gradients, for that of X (E, R, d)."""
        height, tokens = self.weight.shape[2], self.positions.shape[1]
        gradient = self.gradient
        weight_gradient(self.launch, d_X.unsqueeze(1), self.prompt.unsqueeze(1), gradient, None, gradient, None)
        self.d_weight.copy_(gradient[:, :, :height])
        self.d_positions.copy_(gradient[:, :, height : height + tokens].mT)


@jit
def _spread_kernel(
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


def spread(launch: Launch, features: Tensor, tokens: int, stream: Tensor, out: Tensor, sums: Tensor) -> None:
    """The features (E, B, d) at the last tokens, zero elsewhere, as stream and out; their sums over the rows."""
    if not launch.triton:
        out.zero_()[:, tokens - 1 :: tokens] = features.to(out.dtype)
        stream.zero_()[:, tokens - 1 :: tokens] = features
        sums.copy_(features.sum(1, keepdim=True))
        return
    E, R, d = out.shape
    parts, block = sums.shape[1], divisor(d, 64)
    _spread_kernel[(d // block, parts, E)](
        features, stream, out, sums, R, features.stride(0), features.stride(1), *strides(stream, out, sums),
        d, tokens, out.dtype != stream.dtype, triton.next_power_of_2(triton.cdiv(R, parts)), block,
        num_warps=4,
    )  # fmt: skip


@jit
def _collect_kernel(
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


def weight_gradient(
    launch: Launch, G: Tensor, X: Tensor, W: Tensor, gain: Tensor | None, out: Tensor, gain_out: Tensor | None
) -> None:
    """Sum over passes and rows of G X^T, the gradient of W diag(gain), handed on to W and to the gain.

    G (E, passes, R, out) and X (E, passes, R, in).
    """
    if not launch.triton:
        folded = (G.flatten(1, 2).mT @ X.flatten(1, 2)).to(out.dtype)
        out.copy_(folded if gain is None else folded * gain.unsqueeze(1))
        if gain_out is not None:
            gain_out.copy_((folded * W).sum(1))
        return
    E, N, K = W.shape
    parts = gradient_parts(E, N, K, G.shape[1] * G.shape[2])
    g, x = (tensor.view(E * parts, -1, tensor.shape[3]) for tensor in (G, X))
    folded = _product_in(out.dtype, g.mT, x)  # (E*parts, N, K)
    block, block_k = 8, divisor(K, 64)
    partial = None if gain is None else out.new_empty(E, triton.cdiv(N, block), K)
    _collect_kernel[(K // block_k, triton.cdiv(N, block), E)](
        folded, W, gain, out, partial, N, folded.stride(0), *strides(W, gain, out, partial),
        K, parts, gain is not None, block, block_k, num_warps=4,
    )  # fmt: skip
    if partial is not None and gain_out is not None:
        column_sums(launch, partial, gain_out)


def _product_in(dtype: torch.dtype, X: Tensor, Y: Tensor) -> Tensor:
    """A batched product whose result is wider than its operands; torch has it on CUDA only."""
    if X.dtype == dtype or not X.is_cuda:
        return X.to(dtype) @ Y.to(dtype)
    return torch.bmm(X, Y, out_dtype=dtype)


@jit
def _column_sums_kernel(
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


def column_sums(launch: Launch, X: Tensor, out: Tensor) -> None:
    """The sums of X (E, rows, columns) over the rows."""
    if not launch.triton:
        torch.sum(X, 1, out=out)
        return
    E, R, N = X.shape
    block = divisor(N, 32)
    _column_sums_kernel[(N // block, E)](X, out, *strides(X, out), R, N, 64, block, num_warps=4)
