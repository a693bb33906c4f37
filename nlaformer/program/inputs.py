"""What a run is given: A, b, x0 and the further inputs that a program declares, in one size n.

All vectors and matrices of a program have one size. Rectangular data, where the class says ``rectangular = True``, is
padded with zeros to the larger one: an m x k matrix A becomes [A 0] or [A; 0], a vector of length m or k gets zeros at
its end. Products, sums, norms, differences and products entry by entry do not see the zeros; what is not zero at zero
does (``np.exp``, ``np.ones_like``, ``np.mean``). The answer has length n too: of a least-squares problem take
``run.x[..., :k]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.errors import ShapeError
from nlaformer.program.ir import AXES


def size_of(given: Mapping[str, Any], kinds: Mapping[str, str]) -> int | None:
    """The n of some inputs, of rectangular ones the larger side; None where they do not tell, which others report."""
    shapes = _shapes(given, kinds)
    sides = [side for name, shape in shapes.items() for side in shape[::-1][: AXES[kinds[name]]]]
    if any(_is_rectangular(shape, kinds[name]) for name, shape in shapes.items()):
        return max(sides)
    return sides[0] if sides else None


def padded(
    owner: str, given: Mapping[str, Any], kinds: Mapping[str, str], n: int | None, allowed: bool
) -> dict[str, Any]:
    """The inputs, with zeros at their ends where a matrix among them is rectangular, if that is allowed."""
    shapes = _shapes(given, kinds)
    rectangular = {name: shape[-2:] for name, shape in shapes.items() if _is_rectangular(shape, kinds[name])}
    for name, shape in rectangular.items():
        if not allowed:
            raise ShapeError(
                f"{owner}: {name} has shape {shapes[name]}; expected (..., {n}, {n}). A program that says "
                "rectangular = True takes rectangular matrices, padded with zeros"
            )
        if n is None or max(shape) > n:
            raise ShapeError(
                f"{owner}: {name} is {shape[0]} x {shape[1]}; it is padded with zeros to n x n, but n is {n}. "
                f"Compile with n={max(shape)}"
            )
    sides = {side for shape in rectangular.values() for side in shape}
    result = dict(given)
    for name, shape in shapes.items():
        own = shape[len(shape) - AXES[kinds[name]] :]
        if n is not None and own and set(own) <= sides and set(own) != {n}:
            result[name] = padded_to(n, given[name], len(own))
    return result


def _shapes(given: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """The shapes of what is given, matrices first; without what is no array of its kind, which others report."""
    shapes = {}
    for name in sorted((name for name in given if name in kinds), key=lambda name: -AXES[kinds[name]]):
        try:
            shape = tuple(np.shape(given[name]))
        except (ValueError, RuntimeError):  # lists of unequal lengths, nested tensors
            continue
        if given[name] is not None and len(shape) >= AXES[kinds[name]]:
            shapes[name] = shape
    return shapes


def _is_rectangular(shape: tuple[int, ...], kind: str) -> bool:
    return kind == "matrix" and shape[-1] != shape[-2]


def padded_to(n: int, value: Any, axes: int) -> Any:
    """An array with zeros at the ends of its last axes, up to n."""
    if isinstance(value, Tensor):
        more = [n - side for side in value.shape[value.ndim - axes :]]
        return torch.nn.functional.pad(value, [k for side in reversed(more) for k in (0, side)])
    array = np.asarray(value)
    kept = array.ndim - axes
    array = np.pad(array, [(0, 0)] * kept + [(0, n - side) for side in array.shape[kept:]])
    return array if isinstance(value, np.ndarray) else array.tolist()  # a list has no dtype of its own
