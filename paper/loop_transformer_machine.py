r"""The machine of ``loop_transformer``: a prompt of codes, pointers and flags, and the instructions it runs.

In the manner of Giannou et al. 2023, *Looped transformers as programmable computers*. Theirs: columns addressed by
binary codes of +-1, a scratchpad, memory, pointers that are such codes, reading and writing by attention that compares
a pointer with all addresses, advancing a pointer by a ReLU network, transposing by spreading a matrix over n^2
columns, multiplying by linearizing the softmax. Ours: the weights. Their lemmas are known to us in outline only, so
layouts, widths and layer counts are those of this reconstruction; ``theorem.Printed`` has what the paper prints.

Every prompt has the rows ``one`` (1 in every column), ``sink`` (1 in column 0, which holds no data) and, where an
instruction works in the scratchpad alone, ``idle`` (1 in every column outside it).

Comparing codes. Two codes of L bits have the scalar product L if they are equal and at most L - 2 if not. Scores are
that product times OFF, and the sink scores OFF (L - 1): a query takes the column whose code it names, weight 1, or,
if there is none, the sink, which holds nothing. Neighbouring scores are OFF apart and e^-OFF is zero in floating
point, so a copy is exact.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any

import torch
from torch import Tensor

from nlaformer.arrays import common_kind, give
from nlaformer.arrays import operands as take
from nlaformer.errors import DomainError, ShapeError
from nlaformer.express.construction import Cost, each, spread
from nlaformer.express.heads import OFF, Form, Head, Unit, add_form, assemble, piecewise_linear, replace, select, times
from nlaformer.prompt import Layout, scale
from nlaformer.transformer import Layer, NLAFormer

# Added to the sink's score outside the scratchpad, so that nothing else is seen from there.
_AWAY = 2 * OFF
# Gates are closed by this much; entries in the scratchpad are at most 2^(1/2).
_GATE = 2.0
# Smaller divisors are refused; the largest is at most 2^(1/2) after scaling.
_MINIMUM = 2.0**-20
# Knots of the logarithm over [_MINIMUM, 2^(1/2)], and of its correction near 1.
_LOGARITHM, _CORRECTION = 1024, 64


@dataclass(frozen=True)
class Slot:
    """An operand: its shape, its place in the prompt, and how it is brought into the compact set.

    ``lift`` makes it a block (..., rows, tokens), which is divided by the power of two with the ``exponent`` of the
    block. The result is multiplied by it, or divided for a ``divisor``. Without an exponent nothing is scaled.
    """

    shape: tuple[int, ...]
    register: str
    tokens: slice
    lift: Callable[[Tensor], Tensor]
    exponent: Callable[[Tensor], Tensor] | None = None
    divisor: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Machine:
    """A loop-transformer for one operation; call it with the operands. Made by ``loop_transformer.build``.

    The model runs ``passes`` loops. ``block`` is the function block alone, which every pass calls once; the shifts
    have none. ``prepare`` makes the prompt without operands.
    """

    name: str
    model: NLAFormer
    layout: Layout
    dtype: torch.dtype
    prepare: Callable[[], Tensor]
    slots: tuple[Slot, ...]
    result: Callable[[Tensor], Any]
    passes: int = 0
    block: Machine | None = None

    def __repr__(self) -> str:
        return f"<loop-transformer {self.name!r}: {self.cost}>"

    @functools.cached_property
    def constants(self) -> Tensor:
        """The prompt without operands. Made when it is used: a machine too large to run has a cost all the same."""
        return self.prepare().to(self.dtype)

    @property
    def cost(self) -> Cost:
        """What the computer costs, reads and writes included."""
        return Cost.of(self.model, self.layout.rows, self.layout.tokens, self.passes)

    @property
    def block_cost(self) -> Cost:
        """What the function block costs, its operands in place. A shift is nothing but reads and writes."""
        if self.block is None:
            return self.cost
        return replaced(self.block.cost, layers=max(self.passes, 1) * self.block.cost.layers)

    def __call__(self, *operands: Any) -> Any:
        """The result, in the kind of array that came in; leading dimensions are batch dimensions."""
        tensors = self._tensors(operands)
        result = self._run(tensors)
        parts = result if isinstance(result, tuple) else (result,)
        if "exponent" not in self.layout.names and any(bool(part.isnan().any()) for part in parts):
            # A sum beyond the range is infinite in the scratchpad; attention multiplies it by 0, which gives NaN.
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
                total = total - e if slot.divisor else total + e
            if slot.divisor and bool((block.abs() < _MINIMUM).any()):
                raise DomainError(
                    f"{self.name}: a divisor is {float(block.abs().amin()):.3g} after scaling; "
                    f"expected {_MINIMUM:.3g} or more"
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
        tensors = take(self.name, given, shapes, self.dtype, torch.device("cpu"))
        return [tensor.detach() for tensor in tensors.values()]


def code(index: int, bits: int) -> list[float]:
    """The binary code of an index, +-1, lowest bit first.

    >>> code(4, bits=3)
    [-1.0, -1.0, 1.0]
    """
    return [1.0 if index >> bit & 1 else -1.0 for bit in range(bits)]


def bits(addresses: int) -> int:
    """Bits enough for this many addresses, one at least."""
    return max(1, (addresses - 1).bit_length())


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


def read(layout: Layout, pointer: Sequence[int], address: Sequence[int], target: str) -> Layer:
    """Copy the data of the column a pointer names into ``target`` of the column that holds the pointer."""
    data = select(layout["data"])
    return assemble(layout, [_compare(layout, select(pointer), select(address), data, layout[target])])


def write(
    layout: Layout, pointer: Sequence[int], address: Sequence[int], value: Sequence[Form], units: Sequence[Unit] = ()
) -> Layer:
    """Add forms of the scratchpad to the data of the column its pointer names; read with query and key exchanged."""
    return assemble(layout, [_compare(layout, select(address), select(pointer), value, layout["data"])], units)


def advance(pointer: Sequence[int]) -> list[Unit]:
    """Add one to a pointer. Two units per bit; nothing happens in columns where the pointer is zero.

    Bit k flips if all lower bits are +1. With s their sum, ReLU(s + b_k - k) is 1 if they and b_k are all +1, and
    ReLU(s - b_k - k) is 1 if they are and b_k is -1; both are 0 otherwise.
    """
    units = []
    for k, bit in enumerate(pointer):
        lower = dict.fromkeys(pointer[:k], 1.0)
        units += [Unit({**lower, bit: 1.0}, -k, {bit: -2.0}), Unit({**lower, bit: -1.0}, -k, {bit: 2.0})]
    return units


def clear(layout: Layout, *registers: str) -> list[Unit]:
    """Empty registers in every column. Two units per row."""
    return [unit for register in registers for row in layout[register] for unit in replace(row)]


def transpose(layout: Layout, n: int) -> list[Layer]:
    """Data of the scratchpad's first n columns, transposed; three layers (the lemma has four), one head.

    The scratchpad has n blocks of n columns, column j of block i with the codes of i and j.

    1. Every block copies the first; in column j of block i a gate on the code of i keeps row i: the element A_ij.
    2. A gate on the code of j puts the element into row j.
    3. Column i of the first block collects block i: sum_j A_ij e_j, the i-th row.
    """
    (element,), (idle,) = layout["element"], layout["idle"]
    data, work, block, inner = (layout[name] for name in ("data", "work", "block", "inner"))
    first = flag(layout, one=-1.0)  # code(0) is -1 in every bit
    copy = _compare(layout, [first] * len(block) + select(inner), select([*block, *inner]), select(data), work)
    pick = [unit for r in range(n) for unit in _gate(work[r], block, r, element)]
    empty = [
        Unit({row: sign, idle: -_GATE}, 0.0, {row: -sign})  # memory, outside the scratchpad, keeps its data
        for row in data
        for sign in (1.0, -1.0)
    ]
    spread = [unit for r in range(n) for unit in _gate(element, inner, r, work[r])]
    # The softmax averages over the n columns of a block.
    collect = _compare(layout, select(inner), select(block), select(work), data, gain=n, idle=_AWAY)
    return [
        assemble(layout, [copy], [*pick, *clear(layout, "work"), *empty]),
        assemble(layout, [], [*spread, *clear(layout, "element")]),
        assemble(layout, [collect], clear(layout, "work")),
    ]


def product(
    layout: Layout, left: str, right: str, unit: Sequence[Form], target: str, typical: float, dtype: torch.dtype
) -> Layer:
    """Add left_i . right_j to row i of target in column j of the scratchpad; ``unit`` is e_i in column i. One head.

    Let the T - 1 columns beside the sink have scores c s and the sink C; only the scratchpad has values. The
    weights times e^C + T - 1 are then 1 + c s + c^2 s^2 / 2 + ..., up to a relative c e^-C sum_k s_k. The head
    divides by c and the FFN takes off the 1/c (one head, as reported of the lemma, which has two layers; the paper's
    own operations use a second head). What is wrong is c s^2 / 2, and the rounding of c s - C divided by c; c balances
    the two for a ``typical`` s. The spacing of numbers doubles at 32, so C stands below it, high enough that T e^-C
    is nothing in float32.
    """
    C = 31.0
    rounding = C * torch.finfo(dtype).eps / 4
    c = math.sqrt(2 * rounding) / typical
    head = Head(
        query=[*(times(form, c) for form in select(layout[right])), flag(layout, one=C, idle=_AWAY)],
        key=[*select(layout[left]), flag(layout, sink=1.0)],
        value=unit,
        target=layout[target],
        gain=(math.exp(C) + layout.tokens - 1) / c,
    )
    return assemble(
        layout, [head], [Unit(flag(layout, one=1.0, idle=-1.0), 0.0, dict.fromkeys(layout[target], -1 / c))]
    )


def divide(layout: Layout, dtype: torch.dtype) -> list[Layer]:
    """The quotient out = left / right, for |right| in [_MINIMUM, 2^(1/2)]; four layers, one head. Ours.

    1. modulus = |right|.
    2. log = an interpolant of log(modulus), low by at most h^2 / 8 for knots h apart in the logarithm.
    3. Attention gives (ratio, sign) = (modulus, right) e^-log, which is (1, +-1) up to that error; the FFN adds
       log(ratio), now over a narrow interval, to log, and gives left the sign: signed = left sgn(sign).
    4. out = signed e^-log by attention.
    """
    (left,), (right,), (modulus,), (log,) = (layout[name] for name in ("left", "right", "modulus", "log"))
    (ratio,), (sign,), (signed,), (idle,) = (layout[name] for name in ("ratio", "sign", "signed", "idle"))
    step = math.log(2**0.5 / _MINIMUM) / (_LOGARITHM - 1)
    low = step**2 / 8
    wide = [_MINIMUM * math.exp(k * step) for k in range(_LOGARITHM)]
    narrow = [1 + low * (3 * k / (_CORRECTION - 1) - 1) for k in range(_CORRECTION)]

    def logarithm(row: int, knots: list[float]) -> list[Unit]:
        return piecewise_linear({row: 1.0}, knots, [math.log(t) for t in knots], {log: 1.0}, sink=idle)

    signs = [
        Unit({**x, sign: s * _GATE}, 0.0, {signed: s * weight})
        for s in (1, -1)
        for x, weight in (({left: 1.0}, 1), ({}, -1))
    ]
    return [
        assemble(layout, [], [Unit({right: s}, 0.0, {modulus: 1.0}) for s in (1.0, -1.0)]),
        assemble(layout, [], logarithm(modulus, wide)),
        assemble(
            layout, [_exponential(layout, [modulus, right], [ratio, sign], dtype)], [*logarithm(ratio, narrow), *signs]
        ),
        assemble(layout, [_exponential(layout, [signed], layout["out"], dtype)]),
    ]


def add(layout: Layout, sign: float) -> Layer:
    """The sum out = left + right, or with ``sign=-1`` the difference: an FFN of width 2, exact."""
    (left,), (right,), (out,) = layout["left"], layout["right"], layout["out"]
    return assemble(layout, [], add_form({left: 1.0, right: sign}, out))


def _compare(
    layout: Layout,
    query: Sequence[Form],
    key: Sequence[Form],
    value: Sequence[Form],
    target: Sequence[int],
    gain: float = 1.0,
    **outside: float,
) -> Head:
    """Hard attention: take the value where the key is the query's code, nothing if it is nowhere."""
    sink = flag(layout, one=OFF * (len(query) - 1), **outside)
    return Head([*(times(form, OFF) for form in query), sink], [*key, flag(layout, sink=1.0)], value, target, gain)


def _exponential(layout: Layout, source: Sequence[int], target: Sequence[int], dtype: torch.dtype) -> Head:
    """Add source e^-log to target in the scratchpad: a column weighs e^(-log - C), the sink takes the rest."""
    (log,) = layout["log"]
    C = 60.0 if dtype == torch.float64 else 31.0  # e^-log can be 1 / _MINIMUM, far below e^C
    return Head(
        query=[flag(layout, one=1.0), flag(layout, one=C, idle=_AWAY)],
        key=[{log: -1.0}, flag(layout, sink=1.0)],
        value=select(source),
        target=target,
        gain=math.exp(C),
    )


def _gate(source: int, address: Sequence[int], index: int, target: int) -> list[Unit]:
    """Add source to target where the address is the code of ``index``, rounded as source + _GATE L. Width 2."""
    match = {row: _GATE * bit for row, bit in zip(address, code(index, len(address)), strict=True)}
    return [Unit({**match, source: s}, -_GATE * len(address), {target: s}) for s in (1.0, -1.0)]


def flag(layout: Layout, **weights: float) -> Form:
    """A form over the flags ``one``, ``sink`` and ``idle``; ``one=1, idle=-1`` is 1 in the scratchpad's columns."""
    return {layout[name][0]: weight for name, weight in weights.items()}
