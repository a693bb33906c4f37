"""The token matrix P: named rows ("registers") over columns ("tokens").

A ``Layout`` says which rows belong to which name; nothing outside this file does arithmetic on row numbers. Column 1
(index 0) of most prompts is the *sink*: it holds zeros in every data row and absorbs surplus attention. The position
rows hold the unit vectors e_1, ..., e_{n+1}, the sink's first.

Inputs are scaled by exact powers of two into the compact set on which the weights are accurate, and the result is
scaled back, so that accuracy does not depend on the magnitude of the input.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Named rows over tokens.

    Parameters
    ----------
    registers : tuple of (name, number of rows)
    tokens : number of columns, the sink included
    sink : whether column 0 is a sink and data starts at column 1

    Examples
    --------
    >>> layout = Layout((("A", 2), ("work", 2), ("position", 3)), tokens=3)
    >>> layout.rows, list(layout["work"])
    (7, [2, 3])
    """

    registers: tuple[tuple[str, int], ...]
    tokens: int
    sink: bool = True

    @functools.cached_property
    def rows(self) -> int:
        return sum(height for _, height in self.registers)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.registers)

    def __getitem__(self, name: str) -> range:
        """The row numbers of a register."""
        if name not in self._places:
            raise KeyError(f"no register {name!r}; there are {', '.join(self.names)}")
        return self._places[name]

    @functools.cached_property
    def _places(self) -> dict[str, range]:
        """The row numbers by name; of registers with the same name, those of the first."""
        stops = itertools.accumulate(height for _, height in self.registers)
        places: dict[str, range] = {}
        for (name, height), stop in zip(self.registers, stops, strict=True):
            places.setdefault(name, range(stop - height, stop))
        return places

    @property
    def data_tokens(self) -> slice:
        """The columns that hold data: all but the sink."""
        return slice(1 if self.sink else 0, self.tokens)

    def empty(self, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """A prompt of zeros with the position rows, if there are any, in place.

        It is stored token by token, the order in which the forward pass reads it.
        """
        P = torch.zeros(*batch, self.tokens, self.rows, dtype=dtype, device=device).mT
        if "position" in self.names:
            position = self["position"]
            P[..., position.start : position.stop, :] = torch.eye(self.tokens, dtype=dtype, device=device)
        return P

    def write(self, P: Tensor, name: str, value: Tensor, tokens: slice | None = None) -> None:
        """Put ``value`` (..., height, tokens) into a register, in place."""
        rows = self[name]
        P[..., rows.start : rows.stop, self.data_tokens if tokens is None else tokens] = value

    def read(self, P: Tensor, name: str, tokens: slice | None = None) -> Tensor:
        """The contents of a register: (..., height, tokens)."""
        rows = self[name]
        return P[..., rows.start : rows.stop, self.data_tokens if tokens is None else tokens]


def exponent(magnitude: Tensor) -> Tensor:
    """The integer e for which 2^e is nearest to a magnitude in ratio: magnitude / 2^e lies in [2^-1/2, 2^1/2).

    0 for a magnitude of zero.

    >>> exponent(torch.tensor([1.0, 1.5, 0.0, 3e-320], dtype=torch.float64)).tolist()
    [0, 1, 0, -1061]
    """
    mantissa, e = torch.frexp(magnitude)  # magnitude = mantissa 2^e, mantissa in [1/2, 1)
    return torch.where((mantissa > 0) & (mantissa < 2**-0.5), e - 1, e)


def scale(X: Tensor, e: Tensor) -> Tensor:
    """X times 2^e, exactly (unless the result leaves the range of the dtype). ``e`` broadcasts against X.

    In four factors: 2^e itself need not be representable where the product is.

    >>> scale(torch.tensor(3e-320, dtype=torch.float64), torch.tensor(1064)).item()
    5.9296875
    """
    for k in range(4):
        X = X * _power_of_two(torch.div(e + k, 4, rounding_mode="floor"), X.dtype)
    return X


def _power_of_two(e: Tensor, dtype: torch.dtype) -> Tensor:
    """2^e from its bits: torch's own pow and ldexp go through float32 for integer exponents."""
    if dtype == torch.float64:
        return ((e.to(torch.int64) + 1023) << 52).view(torch.float64)
    return ((e.to(torch.int32) + 127) << 23).view(torch.float32)
