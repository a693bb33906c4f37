r"""What a loop-transformer can do in a layer: the instructions that ``loop_computer`` is programmed with.

In the manner of Giannou et al. 2023, *Looped transformers as programmable computers*. Theirs: columns addressed by
binary codes of +-1, a scratchpad, memory, pointers that are such codes, reading and writing by attention that
compares a pointer with all addresses, advancing a pointer by a ReLU network, transposing by spreading a matrix over
n^2 columns, multiplying by linearizing the softmax. Ours: the weights. The text of their lemmas was not at hand, so
layouts, widths and layer counts below are of this reconstruction; ``loop_computer.PAPER`` has what is printed.

Every prompt has the rows ``one`` (1 in every column), ``sink`` (1 in column 0, which holds no data) and, where an
instruction works in the scratchpad alone, ``idle`` (1 in every column outside it).

Comparing codes. Two codes of L bits have the scalar product L if they are equal and at most L - 2 if not. Scores are
that product times OFF, and the sink scores OFF (L - 1): a query takes the column whose code it names, weight 1, or,
if there is none, the sink, which holds nothing. Neighbouring scores are OFF apart and e^-OFF is zero in floating
point, so a copy is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from nlaformer.express.heads import OFF, Form, Head, Unit, add_form, assemble, piecewise_linear, replace, select, times
from nlaformer.prompt import Layout
from nlaformer.transformer import Layer

# Gates are closed by this much; entries in the scratchpad are at most 2^(1/2).
_GATE = 2.0
# Knots of the logarithm over [minimum, 2^(1/2)], and of its correction near 1.
LOGARITHM, CORRECTION = 1024, 64


def code(index: int, bits: int) -> list[float]:
    """The binary code of an index, +-1, lowest bit first.

    >>> code(4, bits=3)
    [-1.0, -1.0, 1.0]
    """
    return [1.0 if index >> bit & 1 else -1.0 for bit in range(bits)]


# --- pointers --------------------------------------------------------------------------------------------------


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


# --- function blocks -------------------------------------------------------------------------------------------


def transpose(layout: Layout, n: int) -> list[Layer]:
    """Data of the scratchpad's first n columns, transposed; three layers (the lemma has four), one head.

    The scratchpad has n blocks of n columns, column j of block i with the codes of i and j.

    1. Every block copies the first; in column j of block i a gate on the code of i keeps row i: the element A_ij.
    2. A gate on the code of j puts the element into row j.
    3. Column i of the first block collects block i: sum_j A_ij e_j, the i-th row.
    """
    (element,), (idle,) = layout["element"], layout["idle"]
    data, work, block, inner = (layout[name] for name in ("data", "work", "block", "inner"))
    first = times(_one(layout), -1.0)  # code(0) is -1 in every bit
    copy = _compare(layout, [first] * len(block) + select(inner), select([*block, *inner]), select(data), work)
    pick = [unit for r in range(n) for unit in _gate(work[r], block, r, element)]
    empty = [
        Unit({row: sign, idle: -_GATE}, 0.0, {row: -sign})  # memory, outside the scratchpad, keeps its data
        for row in data
        for sign in (1.0, -1.0)
    ]
    spread = [unit for r in range(n) for unit in _gate(element, inner, r, work[r])]
    # The softmax averages over the n columns of a block.
    collect = _compare(layout, select(inner), select(block), select(work), data, gain=n, scratchpad=True)
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
        query=[*(times(form, c) for form in select(layout[right])), _sink_query(layout, C, scratchpad=True)],
        key=[*select(layout[left]), _sink(layout)],
        value=unit,
        target=layout[target],
        gain=(math.exp(C) + layout.tokens - 1) / c,
    )
    return assemble(layout, [head], [Unit(_busy(layout), 0.0, dict.fromkeys(layout[target], -1 / c))])


def divide(layout: Layout, minimum: float, dtype: torch.dtype) -> list[Layer]:
    """The quotient out = left / right, for |right| in [minimum, 2^(1/2)]; four layers, one head. Ours.

    1. modulus = |right|.
    2. log = an interpolant of log(modulus), low by at most h^2 / 8 for knots h apart in the logarithm.
    3. Attention gives (ratio, sign) = (modulus, right) e^-log, which is (1, +-1) up to that error; the FFN adds
       log(ratio), now over a narrow interval, to log, and gives left the sign: signed = left sgn(sign).
    4. out = signed e^-log by attention.
    """
    (left,), (right,), (modulus,), (log,) = (layout[name] for name in ("left", "right", "modulus", "log"))
    (ratio,), (sign,), (signed,), (idle,) = (layout[name] for name in ("ratio", "sign", "signed", "idle"))
    step = math.log(2**0.5 / minimum) / (LOGARITHM - 1)
    low = step**2 / 8
    wide = [minimum * math.exp(k * step) for k in range(LOGARITHM)]
    narrow = [1 + low * (3 * k / (CORRECTION - 1) - 1) for k in range(CORRECTION)]

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


# --- pieces ----------------------------------------------------------------------------------------------------


def _compare(
    layout: Layout,
    query: Sequence[Form],
    key: Sequence[Form],
    value: Sequence[Form],
    target: Sequence[int],
    gain: float = 1.0,
    scratchpad: bool = False,
) -> Head:
    """Hard attention: take the value where the key is the query's code, nothing if it is nowhere."""
    return Head(
        query=[*(times(form, OFF) for form in query), _sink_query(layout, OFF * (len(query) - 1), scratchpad)],
        key=[*key, _sink(layout)],
        value=value,
        target=target,
        gain=gain,
    )


def _exponential(layout: Layout, source: Sequence[int], target: Sequence[int], dtype: torch.dtype) -> Head:
    """Add source e^-log to target in the scratchpad: a column weighs e^(-log - C), the sink takes the rest."""
    (log,) = layout["log"]
    C = 60.0 if dtype == torch.float64 else 31.0  # e^-log can be 1 / minimum, far below e^C
    return Head(
        query=[_one(layout), _sink_query(layout, C, scratchpad=True)],
        key=[{log: -1.0}, _sink(layout)],
        value=select(source),
        target=target,
        gain=math.exp(C),
    )


def _gate(source: int, address: Sequence[int], index: int, target: int) -> list[Unit]:
    """Add source to target where the address is the code of ``index``, rounded as source + _GATE L. Width 2."""
    match = {row: _GATE * bit for row, bit in zip(address, code(index, len(address)), strict=True)}
    return [Unit({**match, source: s}, -_GATE * len(address), {target: s}) for s in (1.0, -1.0)]


def _one(layout: Layout) -> Form:
    return {layout["one"][0]: 1.0}


def _sink(layout: Layout) -> Form:
    return {layout["sink"][0]: 1.0}


def _busy(layout: Layout) -> Form:
    """The form that is 1 in the scratchpad's columns and 0 elsewhere."""
    return {layout["one"][0]: 1.0, layout["idle"][0]: -1.0}


def _sink_query(layout: Layout, score: float, scratchpad: bool = False) -> Form:
    """The sink's score; with ``scratchpad``, so high outside the scratchpad that nothing else is seen there."""
    return {layout["one"][0]: score, **({layout["idle"][0]: 2 * OFF} if scratchpad else {})}
