"""Tile shapes of the Triton kernels: which block of a product one program computes, measured on an H200."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Tile(NamedTuple):
    """A program computes (rows x columns) of a product, ``inner`` at a time, with ``warps`` and ``stages`` of loads."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


# The products of a layer, forward and backward, by bytes of a number. Few rows need small tiles, so that every
# multiprocessor gets one.
_MANY = 4096  # rows of the whole stack from which the large tiles pay
_LARGE = {
    2: {
        "qkv": Tile(64, 128, 64, 4, 2),
        "W_O": Tile(64, 64, 64, 4, 3),
        "W_1": Tile(64, 128, 64, 4, 2),
        "W_2": Tile(64, 128, 64, 8, 4),
        "d_hidden": Tile(128, 128, 64, 4, 3),
        "d_U": Tile(64, 64, 64, 4, 4),
        "d_mixed": Tile(64, 128, 64, 4, 3),
        "d_P": Tile(64, 64, 64, 4, 4),
    },
    4: {
        "qkv": Tile(128, 128, 32, 8, 3),
        "W_O": Tile(64, 64, 64, 4, 2),
        "W_1": Tile(64, 128, 32, 4, 3),
        "W_2": Tile(64, 128, 64, 4, 4),
        "d_hidden": Tile(64, 64, 32, 4, 3),
        "d_U": Tile(128, 128, 32, 4, 3),
        "d_mixed": Tile(64, 128, 32, 4, 3),
        "d_P": Tile(64, 64, 32, 4, 4),
    },
}
_SMALL = {
    2: {
        "qkv": Tile(64, 128, 64, 4, 3),
        "W_O": Tile(64, 64, 64, 4, 4),
        "W_1": Tile(64, 128, 64, 4, 3),
        "W_2": Tile(64, 64, 128, 4, 3),
        "d_hidden": Tile(64, 64, 64, 4, 4),
        "d_U": Tile(64, 64, 64, 4, 4),
        "d_mixed": Tile(64, 64, 64, 4, 4),
        "d_P": Tile(64, 64, 64, 4, 4),
    },
    4: {
        "qkv": Tile(64, 128, 32, 4, 3),
        "W_O": Tile(64, 64, 64, 4, 3),
        "W_1": Tile(64, 64, 32, 4, 4),
        "W_2": Tile(64, 64, 64, 4, 4),
        "d_hidden": Tile(64, 64, 32, 4, 4),
        "d_U": Tile(64, 64, 64, 4, 4),
        "d_mixed": Tile(64, 64, 32, 4, 4),
        "d_P": Tile(64, 64, 64, 4, 4),
    },
}


def tile_for(name: str, rows: int, columns: int, inner: int, dtype: torch.dtype) -> Tile:
    """The tile for product ``name`` of (rows x inner) with (inner x columns); ``rows`` counts the whole stack.

    Examples
    --------
    >>> import torch
    >>> tile_for("qkv", rows=1344, columns=768, inner=256, dtype=torch.bfloat16).columns
    128
    """
    tile = (_LARGE if rows >= _MANY else _SMALL)[dtype.itemsize][name]
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
