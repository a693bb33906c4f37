"""A loop-transformer that runs: a prompt of codes, pointers and flags, a model, places for operands and result.

``loop_computer`` builds machines out of the layers of ``loop_instructions``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nlaformer.errors import DomainError, DTypeError, ShapeError
from nlaformer.express.cost import Cost
from nlaformer.express.loop_instructions import code
from nlaformer.prompt import Layout, exponent, scale
from nlaformer.transformer import NLAFormer


@dataclass(frozen=True)
class Slot:
    """An operand: its shape, its place in the prompt, and how it is brought into the compact set.

    ``lift`` makes it a block (..., rows, tokens); ``measure`` of the block is scaled to about 1, and the exponent of
    that power of two times ``sign`` is the operand's share of the result's. Without a measure nothing is scaled.
    """

    shape: tuple[int, ...]
    register: str
    tokens: slice
    lift: Callable[[Tensor], Tensor]
    measure: Callable[[Tensor], Tensor] | None = None
    sign: int = 1
    minimum: float = 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Machine:
    """A loop-transformer for one operation; call it with the operands. Made by ``loop_computer.build``.

    ``constants`` is the prompt without operands. The model runs ``passes`` loops. ``block`` is the function block
    alone, which the operation calls ``calls`` times; the shifts have none.
    """

    name: str
    model: NLAFormer
    layout: Layout
    constants: Tensor
    slots: tuple[Slot, ...]
    result: Callable[[Tensor], Any]
    passes: int = 0
    block: Machine | None = None
    calls: int = 1

    def __repr__(self) -> str:
        return f"<loop-transformer {self.name!r}: {self.cost}>"

    @property
    def cost(self) -> Cost:
        """What the computer costs, reads and writes included."""
        return Cost.of(self.model, self.layout.rows, self.layout.tokens, self.passes)

    @property
    def block_cost(self) -> Cost:
        """What the function block costs, its operands in place. A shift is nothing but reads and writes."""
        if self.block is None:
            return self.cost
        cost = self.block.cost
        return replace(cost, layers=self.calls * cost.layers)

    def __call__(self, *operands: Any) -> Any:
        """The result, as torch if an operand is torch, as NumPy if not. Leading dimensions are batch dimensions."""
        with torch.no_grad():
            result = self.read(self.model(self.prompt(*operands), self.passes))
        if any(isinstance(value, Tensor) for value in operands):
            return result
        return tuple(part.numpy() for part in result) if isinstance(result, tuple) else result.numpy()

    def prompt(self, *operands: Any) -> Tensor:
        """The token matrix P, (..., rows, tokens), with the operands in their places."""
        blocks = self._blocks(operands)
        batch = torch.broadcast_shapes(*(block.shape[:-2] for block in blocks))
        P = self.constants.expand(*batch, -1, -1).clone()
        total = torch.zeros(batch, dtype=torch.int32)
        for block, slot in zip(blocks, self.slots, strict=True):
            if slot.measure is not None:
                e = exponent(slot.measure(block))
                block = scale(block, -e[..., None, None])
                total = total + slot.sign * e
            if bool((block.abs() < slot.minimum).any()):
                raise DomainError(
                    f"{self.name}: a divisor is {float(block.abs().amin()):.3g} where the largest is about 1; "
                    f"the weights are made for {slot.minimum:.3g} and more"
                )
            self.layout.write(P, slot.register, block, slot.tokens)
        if "exponent" in self.layout.names:
            self.layout.write(P, "exponent", total[..., None, None].to(P.dtype), slice(0, 1))
        return P

    def read(self, P: Tensor) -> Any:
        """The result that stands in a token matrix the model returned, scaled back."""
        result = self.result(P)
        if "exponent" not in self.layout.names:
            return result
        e = self.layout.read(P, "exponent", slice(0, 1))[..., 0, 0].to(torch.int32)
        return scale(result, e.reshape(e.shape + (1,) * (result.dim() - e.dim())))

    def _blocks(self, operands: Sequence[Any]) -> list[Tensor]:
        """The operands, checked, as blocks of the prompt."""
        if len(operands) != len(self.slots):
            raise ShapeError(f"{self.name} takes {len(self.slots)} operand(s); {len(operands)} were given")
        blocks = [slot.lift(self._tensor(value, slot)) for value, slot in zip(operands, self.slots, strict=True)]
        try:
            torch.broadcast_shapes(*(block.shape[:-2] for block in blocks))
        except RuntimeError:
            given = " and ".join(str(tuple(np.shape(value))) for value in operands)
            raise ShapeError(f"{self.name}: the batch dimensions of {given} do not broadcast") from None
        return blocks

    def _tensor(self, value: Any, slot: Slot) -> Tensor:
        try:
            tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.array(value))
        except (TypeError, ValueError) as error:
            raise DTypeError(f"{self.name}: an operand cannot be read as an array of numbers: {error}") from error
        if tensor.is_complex():
            raise DTypeError(f"{self.name}: an operand is complex; pass real and imaginary parts")
        if tuple(tensor.shape[tensor.dim() - len(slot.shape) :]) != slot.shape or tensor.dim() < len(slot.shape):
            wanted = ", ".join(["...", *map(str, slot.shape)])
            raise ShapeError(f"{self.name}: an operand has shape {tuple(tensor.shape)}; expected ({wanted})")
        tensor = tensor.detach().to(self.constants)
        if not bool(torch.isfinite(tensor).all()):
            raise DomainError(f"{self.name}: an operand holds NaN or infinity, or is too large for {tensor.dtype}")
        return tensor


# --- the constant part of a prompt -----------------------------------------------------------------------------


def bits(addresses: int, least: int = 1) -> int:
    """Bits enough for this many addresses."""
    return max(least, (addresses - 1).bit_length())


def codes(indices: Sequence[int], length: int) -> Tensor:
    """The codes of indices, one to a column: (length, len(indices))."""
    return torch.tensor([code(index, length) for index in indices], dtype=torch.float64).T


def flags(layout: Layout, scratchpad: int) -> Tensor:
    """A prompt with its flags and nothing else; ``scratchpad`` active columns follow the sink."""
    P = torch.zeros(layout.rows, layout.tokens, dtype=torch.float64)
    layout.write(P, "one", torch.ones(1, 1), slice(None))
    layout.write(P, "sink", torch.ones(1, 1), slice(0, 1))
    if "idle" in layout.names:
        layout.write(P, "idle", torch.ones(1, 1), slice(None))
        layout.write(P, "idle", torch.zeros(1, 1), slice(1, 1 + scratchpad))
    return P


# --- operands as blocks, and their size ------------------------------------------------------------------------


def row(value: Tensor) -> Tensor:
    """A vector along the columns: (..., 1, n)."""
    return value[..., None, :]


def column(value: Tensor) -> Tensor:
    """A vector in one column: (..., n, 1)."""
    return value[..., :, None]


def padded_row(value: Tensor) -> Tensor:
    """A vector as the first row of a matrix of zeros."""
    return functional.pad(row(value), (0, 0, 0, value.shape[-1] - 1))


def padded_column(value: Tensor) -> Tensor:
    """A vector as the first column of a matrix of zeros."""
    return functional.pad(column(value), (0, value.shape[-1] - 1))


def largest(block: Tensor) -> Tensor:
    """The largest magnitude of an entry: (...)."""
    return block.abs().amax((-2, -1))


def largest_norm(block: Tensor) -> Tensor:
    """The largest norm of a row or column: inner products are then at most about 1, transposed or not."""
    e = exponent(largest(block))  # scaled first: squares must neither overflow nor vanish
    X = scale(block, -e[..., None, None])
    norms = [torch.linalg.vector_norm(X, dim=dim).amax(-1) for dim in (-1, -2)]
    return scale(torch.maximum(*norms), e)
