"""How the kernels of this folder are launched: by Triton with tiles measured on an H200, or as plain torch.

Every kernel stands before the function that launches it. The function begins with the same in plain torch, which runs
on any device, in any dtype, and says what is computed; its ``Launch`` decides between the two. Triton is needed for
the kernels only: without it ``jit`` leaves them as they are.

Tensors are (E, R, columns): models, rows (batch x token), columns; the last two axes are contiguous. Partial sums
(``squares``, ``dots``, ``sums``) have an axis for the tiles that wrote them: one in plain torch. No kernel uses
atomics, so a step is reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl

    jit: Callable[..., Any] = triton.jit
except ModuleNotFoundError:
    triton = tl = None

    def jit(kernel: Any) -> Any:
        """A kernel without Triton: never launched."""
        return kernel


class Tile(NamedTuple):
    """A program computes (rows x columns) of a product, ``inner`` at a time, with ``warps`` and ``stages`` of loads."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


# The tiles of a layer's products, forward and backward. Few rows need small tiles: every multiprocessor must get one.
_MANY = 4096  # rows of the whole stack from which the large tiles pay
_TILES = {  # many rows in 16 and in 32 bits, few rows in 16 and in 32 bits
    "qkv": (Tile(64, 128, 64, 4, 2), Tile(128, 128, 32, 8, 3), Tile(64, 128, 64, 4, 3), Tile(64, 128, 32, 4, 3)),
    "W_O": (Tile(64, 64, 64, 4, 3), Tile(64, 64, 64, 4, 2), Tile(64, 64, 64, 4, 4), Tile(64, 64, 64, 4, 3)),
    "W_1": (Tile(64, 128, 64, 4, 2), Tile(64, 128, 32, 4, 3), Tile(64, 128, 64, 4, 3), Tile(64, 64, 32, 4, 4)),
    "W_2": (Tile(64, 128, 64, 8, 4), Tile(64, 128, 64, 4, 4), Tile(64, 64, 128, 4, 3), Tile(64, 64, 64, 4, 4)),
    "d_hidden": (Tile(128, 128, 64, 4, 3), Tile(64, 64, 32, 4, 3), Tile(64, 64, 64, 4, 4), Tile(64, 64, 32, 4, 4)),
    "d_U": (Tile(64, 64, 64, 4, 4), Tile(128, 128, 32, 4, 3), Tile(64, 64, 64, 4, 4), Tile(64, 64, 64, 4, 4)),
    "d_mixed": (Tile(64, 128, 64, 4, 3), Tile(64, 128, 32, 4, 3), Tile(64, 64, 64, 4, 4), Tile(64, 64, 32, 4, 4)),
    "d_P": (Tile(64, 64, 64, 4, 4), Tile(64, 64, 32, 4, 4), Tile(64, 64, 64, 4, 4), Tile(64, 64, 64, 4, 4)),
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """Triton or plain torch, and what all kernels of a model share."""

    epsilon: float  # of the RMS normalizations
    triton: bool  # whether kernels run; else plain torch does
    precision: str = "ieee"  # how Triton multiplies float32: "ieee", "bf16x3" or "tf32"
    tiles: Mapping[str, Tile] = field(default_factory=dict)  # by product, instead of those of the table above

    def tile(self, name: str, X: Tensor, columns: int) -> Tile:
        """The tile of product ``name``, of X (E, R, inner) with a weight of so many columns."""
        if name in self.tiles:
            return self.tiles[name]
        return tile_for(name, X.shape[0] * X.shape[1], columns, X.shape[2], X.dtype)

    def row_parts(self, name: str, X: Tensor, columns: int) -> int:
        """How many tiles of product ``name`` share a row: the parts of its squares or dots."""
        return columns // self.tile(name, X, columns).columns if self.triton else 1

    def column_parts(self, name: str, X: Tensor, columns: int) -> int:
        """How many tiles of product ``name`` share a column: the parts of its sums."""
        return -(-X.shape[1] // self.tile(name, X, columns).rows) if self.triton else 1

    def transposed(self, W: Tensor) -> Tensor:
        """Where W^T is read from: a view of W, or a tensor of its own.

        Tensor cores take 32-bit operands with the inner axis contiguous only.
        """
        if not self.triton or W.element_size() == 2:
            return W.mT
        return torch.empty_like(W.mT, memory_format=torch.contiguous_format)

    def meta(self, tile: Tile) -> dict[str, object]:
        """What Triton is told at the launch of a product."""
        return {
            "BLOCK_R": tile.rows, "BLOCK_N": tile.columns, "BLOCK_K": tile.inner,
            "num_warps": tile.warps, "num_stages": tile.stages, "PRECISION": self.precision,
        }  # fmt: skip


def strides(*tensors: Tensor | None) -> tuple[int, ...]:
    """The stride over models of each tensor."""
    return tuple(0 if tensor is None else tensor.stride(0) for tensor in tensors)


def parts_of(tensor: Tensor | None) -> int:
    """The parts of a partial sum (E, parts, R); 0 where there is none."""
    return 0 if tensor is None else tensor.shape[1]


def tile_for(name: str, rows: int, columns: int, inner: int, dtype: torch.dtype) -> Tile:
    """The tile for product ``name`` of (rows x inner) with (inner x columns); ``rows`` counts the whole stack."""
    tile = _TILES[name][(0 if rows >= _MANY else 2) + (dtype.itemsize == 4)]
    return tile._replace(columns=divisor(columns, tile.columns), inner=divisor(inner, tile.inner))


def attention_rows(tokens: int) -> int:
    """Rows of an attention tile: 64, several sequences side by side, or one longer sequence."""
    return max(64, 1 << (tokens - 1).bit_length())


def gradient_parts(models: int, out: int, into: int, rows: int) -> int:
    """Into how many sums over rows a weight's gradient is split, so that every multiprocessor has work."""
    tiles = models * -(-out // 128) * -(-into // 128)
    parts = 1
    while tiles * parts < 256 and rows % (2 * parts) == 0 and rows >= 512 * parts:
        parts *= 2
    return parts


def unsupported(d: int, heads: int, width: int, tokens: int) -> str | None:
    """Why the kernels cannot run a shape, or None if they can.

    Examples
    --------
    >>> unsupported(d=256, heads=8, width=1024, tokens=21)
    >>> unsupported(d=48, heads=2, width=64, tokens=5)
    'd=48 and the FFN width 64 must be multiples of 32'
    """
    if d % 32 or width % 32:
        return f"d={d} and the FFN width {width} must be multiples of 32"
    head = d // heads
    if head < 16 or head & (head - 1):
        return f"a head is d/heads={head} wide and must be a power of two, at least 16"
    if attention_rows(tokens) * max(head, 32) > 128 * 64:
        return f"{tokens} tokens with heads {head} wide do not fit the registers of one program"
    return None


def divisor(size: int, most: int) -> int:
    """The largest power of two that divides ``size`` and is at most ``most``."""
    return min(size & -size, most)
