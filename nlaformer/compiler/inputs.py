"""What a run is given: A, b, x0 and a number of iterations, checked alike for the transformer and for the reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nlaformer.arrays import memory, operands, whole
from nlaformer.errors import OptionError, ShapeError

AXES = {"scalar": 0, "vector": 1, "matrix": 2}
KINDS = {"A": "matrix", "b": "vector", "x0": "vector"}


def take_inputs(
    owner: str, needs: Sequence[str], given: Mapping[str, Any], n: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """The inputs a program needs as tensors of one batch shape; x0 is 0 where it is not given."""
    given = {name: value for name, value in given.items() if value is not None}
    if extra := [name for name in given if name not in needs]:
        raise ShapeError(f"{owner} takes {', '.join(needs)}; {extra[0]} was given too. Leave it away")
    # Zeros need something to take their shape from.
    optional = {"x0"} if len(needs) > 1 else set()
    if missing := [name for name in needs if name not in given and name not in optional]:
        raise ShapeError(f"{owner} needs {', '.join(missing)}; run({', '.join(needs)})")
    shapes = {name: (n,) * AXES[kind] for name, kind in KINDS.items()}
    tensors = operands(owner, given, shapes, dtype, device)
    if "x0" in needs and "x0" not in tensors:
        tensors["x0"] = torch.zeros_like(tensors["b"] if "b" in tensors else tensors["A"][..., 0, :])
    return tensors


def batch_of(inputs: Mapping[str, Tensor]) -> tuple[int, ...]:
    """The leading dimensions that all inputs share."""
    name, value = next(iter(inputs.items()))
    return tuple(value.shape[: value.dim() - AXES[KINDS[name]]])


def flatten(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One batch dimension."""
    batch = batch_of(inputs)
    return {name: value.reshape(math.prod(batch), *value.shape[len(batch) :]) for name, value in inputs.items()}


def check_iterations(iterations: Any, kinds: Iterable[str], inputs: Mapping[str, Tensor]) -> int:
    """The number of iterations, if every iterate of states of these kinds can be kept."""
    count = whole("iterations", iterations, 0)
    like = next(iter(inputs.values()))
    entries = math.prod(batch_of(inputs)) * sum(like.shape[-1] ** AXES[kind] for kind in kinds)
    needed, available = (count + 1) * entries * like.element_size(), memory(like.device)
    if needed > available:
        raise OptionError(
            f"iterations is {count:,}: every iterate is kept, which would take {needed / 1e9:,.0f} GB; there are "
            f"{available / 1e9:,.0f} GB. Ask for fewer, and give the last x as x0 to go on"
        )
    return count
