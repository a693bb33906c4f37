"""A loop-transformer that runs: a prompt of codes, pointers and flags, a model, places for operands and result.

``loop_computer`` builds machines out of the layers of ``loop_instructions``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nlaformer.arrays import common_kind, give
from nlaformer.arrays import operands as take
from nlaformer.errors import DomainError, ShapeError
from nlaformer.express.cost import Cost
from nlaformer.express.loop_instructions import code
from nlaformer.express.operation import column, each, row, spread
from nlaformer.prompt import Layout, scale
from nlaformer.transformer import NLAFormer


@dataclass(frozen=True)
class Slot:
    """An operand: its shape, its place in the prompt, and how it is brought into the compact set.

    ``lift`` makes it a block (..., rows, tokens), which is divided by the power of two with the ``exponent`` of the
    block; that times ``sign`` is the operand's share of the result's. Without an exponent nothing is scaled.
    """

    shape: tuple[int, ...]
    register: str
    tokens: slice
    lift: Callable[[Tensor], Tensor]
    exponent: Callable[[Tensor], Tensor] | None = None
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
        """The result, in the kind of array that came in; leading dimensions are batch dimensions."""
        tensors = self._tensors(operands)
        result = self._run(tensors)
        parts = result if isinstance(result, tuple) else (result,)
        if "exponent" not in self.layout.names and any(bool(part.isnan().any()) for part in parts):
            # A sum beyond the range is infinite in the scratchpad, which makes NaN of all that attention weighs with 0.
            halves = self._run([tensor / 2 for tensor in tensors])
            result = each(lambda part, half: torch.where(part.isnan(), 2 * half, part), result, halves)
        return each(lambda part: give(part, common_kind(operands)), result)

    def _run(self, operands: Sequence[Tensor]) -> Any:
        P = self.prompt(*operands)
        with torch.no_grad():
            pieces = self.model.pieces(*P.shape[-2:], P.reshape(-1, *P.shape[-2:]))
            return self.read(torch.cat([self.model(piece, self.passes) for (piece,) in pieces]).reshape(P.shape))

    def prompt(self, *operands: Any) -> Tensor:
        """The token matrix P, (..., rows, tokens), with the operands in their places."""
        blocks = [slot.lift(tensor) for slot, tensor in zip(self.slots, self._tensors(operands), strict=True)]
        batch = blocks[0].shape[:-2]
        P = self.constants.expand(*batch, -1, -1).clone()
        total = torch.zeros(batch, dtype=torch.int32)
        for block, slot in zip(blocks, self.slots, strict=True):
            if slot.exponent is not None:
                e = slot.exponent(block)
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
        return scale(result, spread(e, result))

    def _tensors(self, operands: Sequence[Any]) -> list[Tensor]:
        """The operands, checked, as tensors of one batch shape."""
        if len(operands) != len(self.slots):
            raise ShapeError(f"{self.name} takes {len(self.slots)} operand(s); {len(operands)} were given")
        given = {f"operand {k}": value for k, value in enumerate(operands, start=1)}
        shapes = {name: slot.shape for name, slot in zip(given, self.slots, strict=True)}
        tensors = take(self.name, given, shapes, self.constants.dtype, self.constants.device)
        return [tensor.detach() for tensor in tensors.values()]


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


# --- operands as blocks ----------------------------------------------------------------------------------------


def padded_row(value: Tensor) -> Tensor:
    """A vector as the first row of a matrix of zeros."""
    return functional.pad(row(value), (0, 0, 0, value.shape[-1] - 1))


def padded_column(value: Tensor) -> Tensor:
    """A vector as the first column of a matrix of zeros."""
    return functional.pad(column(value), (0, value.shape[-1] - 1))
