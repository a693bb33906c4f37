"""The door: arrays of any kind in, tensors inside, the same kind out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.errors import DTypeError, OptionError


def kind_of(value: Any) -> str:
    """What a result should be: torch, numpy or list."""
    if isinstance(value, Tensor):
        return "torch"
    return "numpy" if isinstance(value, (np.ndarray, np.generic)) else "list"


def to_tensor(name: str, value: Any) -> Tensor:
    """Numbers in any rectangular array as a dense tensor, or a DTypeError."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.device.type == "meta":
            raise DTypeError(f"{name} is a {value.layout} tensor on {value.device}; expected an ordinary dense one")
        return value
    if np.ma.isMaskedArray(value) and np.ma.getmaskarray(value).any():
        raise DTypeError(f"{name} has masked entries; fill them first")
    try:
        array = np.asarray(value)
    except Exception as error:  # whatever an object's own conversion raises
        raise DTypeError(f"{name} cannot be read as an array of numbers: {error}") from error
    if array.dtype.kind not in "biufc":
        raise DTypeError(f"{name} holds {array.dtype} values; expected numbers in a rectangular array")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        # torch takes neither negative strides nor, without a warning, memory it may not write to.
        return torch.from_numpy(array if array.flags.c_contiguous and array.flags.writeable else array.copy())
    except TypeError as error:
        raise DTypeError(f"{name} holds {array.dtype} values; convert them to float64 or float32") from error


def give(tensor: Tensor, kind: str) -> Any:
    """The tensor in the kind of array the caller uses."""
    if kind == "torch":
        return tensor
    array = tensor.cpu().numpy()
    return array if kind == "numpy" else array.tolist()


def all_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite; NaN and infinity survive aminmax, which is ten times as quick as isfinite."""
    return not tensor.numel() or all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))


def usable_device(device: torch.device | str) -> torch.device:
    """A device that torch can compute on here, or an OptionError."""
    try:
        found = torch.device(device)
        torch.zeros(1, device=found)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        raise OptionError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return found
