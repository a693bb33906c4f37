"""The loop-transformer of the paper's Table 1, built and run rather than quoted.

This is the baseline, not a construction of ours: it is in the manner of Giannou et al. 2023
(``loop_transformer_machine`` has the layers, and says what is theirs and what is ours). There are two computers, each
a scratchpad beside a memory:

*Matrices.* One layout for all operations on n x n matrices: a scratchpad of n blocks of n columns, three memory
blocks of n columns (two operands, the result), pointers to blocks. Vectors are padded with zeros: a^T as the first
row, b as the first column of a matrix. A transpose needs the n^2 columns, hence O(n^3) entries; A B transposes A and
takes A^T B. a^T b, a b^T and A b are A B of padded matrices, which is how the paper counts them.

*Elements.* Vectors lie along the columns of the memory, the scratchpad is one column with three pointers. An
operation reads two elements, computes, writes one, and advances its pointers; a loop of n passes. A shift reads two
columns and writes them back exchanged: columns as a whole in one pass, rows in n.

Two costs. ``cost`` is the computer's, reads and writes included. ``block_cost`` is the function block's alone, its
operands already in place, with no more rows and columns than it needs. Layers, ours beside those the paper prints:

==================  ==========  ======================  ===========
operation           block       with reads and writes   the paper's
==================  ==========  ======================  ===========
add, subtract       n           4n                      12n
multiply            n           4n                      12n
divide              4n          7n                      12n
column_shift        4           4                       4
row_shift           4n          4n                      4n
vector_transpose    3           5                       4
inner_product       4           7                       6
outer_product       4           7                       6
matrix_transpose    3           5                       4
transposed_matmul   1           4                       6
matmul              4           7                       10
matvec              4           7                       6
==================  ==========  ======================  ===========

The paper also transposes B for A^T B, where the block here multiplies at once; that block alone needs only n + 1
columns, O(n^2) entries, while the computer it runs on has O(n^3).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nlaformer.arrays import whole
from nlaformer.errors import OptionError, look_up
from nlaformer.express.construction import Cost, column, largest_exponent, norm_exponent, row
from nlaformer.express.heads import select
from nlaformer.prompt import Layout
from nlaformer.transformer import Layer, NLAFormer
from paper import loop_transformer_machine as instruct
from paper.loop_transformer_machine import Machine, Slot, bits, codes, flag, flags

# Attention takes every pair of columns, so with more columns than this the cost is counted and nothing is run.
_LARGEST = 5000

# What an operation on matrices takes, and what part of the resulting matrix it returns.
_MATRICES: dict[str, tuple[tuple[str, ...], Callable[[Tensor], Tensor]]] = {
    "vector_transpose": (("row",), lambda R: R[..., :, :1]),
    "inner_product": (("row", "column"), lambda R: R[..., 0, 0]),
    "outer_product": (("column", "row"), lambda R: R),
    "matrix_transpose": (("matrix",), lambda R: R),
    "transposed_matmul": (("matrix", "matrix"), lambda R: R),
    "matmul": (("matrix", "matrix"), lambda R: R),
    "matvec": (("matrix", "column"), lambda R: R[..., :, 0]),
}
# How an operand becomes a matrix: vectors are padded with zeros.
_LIFT: dict[str, Callable[[Tensor], Tensor]] = {
    "matrix": lambda value: value,
    "row": lambda value: functional.pad(row(value), (0, 0, 0, value.shape[-1] - 1)),
    "column": lambda value: functional.pad(column(value), (0, value.shape[-1] - 1)),
}
_POINTERS = ("left pointer", "right pointer", "result pointer")
_ELEMENTS = ("add", "subtract", "multiply", "divide")
_SHIFTS = ("column_shift", "row_shift")
_DIVISION = ("modulus", "log", "ratio", "sign", "signed")


def names() -> tuple[str, ...]:
    """The operations, in the order of Table 1."""
    return (*_ELEMENTS, *_SHIFTS, *_MATRICES)


def build(name: str, n: int = 8, dtype: torch.dtype = torch.float64) -> Machine:
    """The loop-transformer for an operation on vectors of length n or n x n matrices.

    Examples
    --------
    >>> import numpy as np
    >>> transpose = build("matrix_transpose", n=2)
    >>> transpose(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[1., 3.],
           [2., 4.]])
    >>> print(transpose.cost)
    28 rows x 11 tokens = 308 entries; 5 layers, 1 head, FFN width 12
    >>> print(transpose.block_cost)
    11 rows x 5 tokens = 55 entries; 3 layers, 1 head, FFN width 12
    """
    if dtype not in (torch.float64, torch.float32):
        raise OptionError(f"dtype is {dtype}; the loop-transformer is built in torch.float64 or torch.float32")
    machine = _machine(name, n, dtype)
    tokens = machine.layout.tokens
    if tokens > _LARGEST:
        raise OptionError(f"{name} with n={n} has {tokens:,} tokens; it runs up to {_LARGEST:,}: see count()")
    return machine


def count(name: str, n: int) -> tuple[Cost, Cost]:
    """``cost`` and ``block_cost``, also for sizes beyond those that can run: weights are small, prompts are not.

    >>> print(count("matrix_transpose", 512)[0])
    2103 rows x 263681 tokens = 554,521,143 entries; 5 layers, 1 head, FFN width 3072
    """
    machine = _machine(name, n, torch.float64)
    return machine.cost, machine.block_cost


def _machine(name: str, n: int, dtype: torch.dtype) -> Machine:
    look_up("operation of the loop-transformer", name, dict.fromkeys(names()))
    n = whole("n", n, 1)
    if name in _MATRICES:
        return replace(_matrices(name, n, dtype, memory=True), block=_matrices(name, n, dtype, memory=False))
    return replace(_elements(name, n, dtype), block=None if name in _SHIFTS else _element(name, dtype))


def _matrices(name: str, n: int, dtype: torch.dtype, memory: bool) -> Machine:
    """A program for matrices on the computer, or without memory as the function block alone."""
    kinds, part = _MATRICES[name]
    multiplies, transposes = len(kinds) == 2, name != "transposed_matmul"
    answer = "work" if multiplies else "data"
    layout = _matrix_layout(n, memory, multiplies, transposes)
    if memory:
        places = [("data", _block(n, n)), ("data", _block(n, n + 1)), ("data", _block(n, n + 2))]
    else:
        places = [("data", _block(n, 0)), ("right", _block(n, 0)), (answer, _block(n, 0))]

    pointers = {p: [*layout[p], *layout["inner"]] for p in _POINTERS if memory}
    address = [*layout["block"], *layout["inner"]] if memory else []
    layers: list[Layer] = []
    if memory:
        layers += [instruct.read(layout, pointers["left pointer"], address, "data")]
    if transposes:
        layers += instruct.transpose(layout, n)
    if memory and multiplies:
        layers += [instruct.read(layout, pointers["right pointer"], address, "right")]
    if multiplies:
        # Rows and columns have norm about 1; so have a and b as a whole in a b^T.
        typical = 1 / n if name == "outer_product" else n**-0.5
        layers += [instruct.product(layout, "data", "right", select(layout["unit"]), "work", typical, dtype)]
    if memory:
        layers += [instruct.write(layout, pointers["result pointer"], address, select(layout[answer]))]

    def norm(block: Tensor) -> Tensor:
        """Of the largest row or column: inner products are then at most about 1, transposed or not."""
        return norm_exponent(block, -1, -2)

    return Machine(
        name,
        NLAFormer(pre=layers).to(dtype),
        layout,
        dtype,
        functools.partial(_matrix_constants, layout, n),
        tuple(
            Slot((n, n) if kind == "matrix" else (n,), *place, _LIFT[kind], norm)
            for kind, place in zip(kinds, places[:2], strict=False)
        ),
        lambda P: part(layout.read(P, *places[2])),
    )


def _matrix_layout(n: int, memory: bool, multiplies: bool, transposes: bool) -> Layout:
    """The computer's rows and columns; without memory, those the function block uses."""
    b = bits(n + 3 if memory else n)
    registers = [("data", n), ("work", n)]
    if memory or multiplies:
        registers += [("right", n), ("unit", n)]
    if memory or transposes:
        registers += [("element", 1), ("block", b), ("inner", b)]
    if memory:
        registers += [(pointer, b) for pointer in _POINTERS]
    registers += [("one", 1), ("sink", 1), ("idle", 1), ("exponent", 1)]
    blocks = n + 3 if memory else n if transposes else 1
    return Layout(tuple(registers), tokens=1 + blocks * n)


def _matrix_constants(layout: Layout, n: int) -> Tensor:
    """Flags, the codes of block and column, e_j in column j of the scratchpad's first block, and its pointers."""
    P = flags(layout, scratchpad=n)
    if "unit" in layout.names:
        layout.write(P, "unit", torch.eye(n), _block(n, 0))
    if "block" in layout.names:
        columns = range(layout.tokens - 1)
        layout.write(P, "block", codes([k // n for k in columns], len(layout["block"])))
        layout.write(P, "inner", codes([k % n for k in columns], len(layout["inner"])))
    if "left pointer" in layout.names:
        for k, pointer in enumerate(_POINTERS):
            layout.write(P, pointer, codes([n + k], len(layout[pointer])), _block(n, 0))
    return P


def _block(n: int, index: int) -> slice:
    """The columns of a block, scratchpad or memory."""
    return slice(1 + index * n, 1 + (index + 1) * n)


def _elements(name: str, n: int, dtype: torch.dtype) -> Machine:
    """Pointwise + - * / and shifts: each pass of a loop reads a column of two vectors, computes and writes."""
    shifts = name in _SHIFTS
    height, length = (n, 1) if name == "column_shift" else (1, n)
    pointers = _POINTERS[:2] if shifts else _POINTERS
    L = max(2, bits(len(pointers) * length))
    scratch = _scratch(name, height)
    registers = (("data", height), ("address", L), *((pointer, L) for pointer in pointers), *scratch)
    layout = Layout(registers, tokens=2 + len(pointers) * length)
    rows = [layout[pointer] for pointer in pointers]
    used = [register for register, _ in scratch if register not in ("one", "sink", "idle", "exponent")]
    after = [*instruct.clear(layout, *used), *(unit for pointer in rows for unit in instruct.advance(pointer))]
    layers = [
        instruct.read(layout, rows[0], layout["address"], "left"),
        instruct.read(layout, rows[1], layout["address"], "right"),
    ]
    if shifts:
        # A write adds, so what is written is the difference to what stands there.
        pairs = list(zip(layout["left"], layout["right"], strict=True))
        layers += [instruct.write(layout, rows[0], layout["address"], [{b: 1.0, a: -1.0} for a, b in pairs])]
        answer = [{a: 1.0, b: -1.0} for a, b in pairs]
    else:
        layers += _function(name, layout, dtype)
        answer = select(layout["out"])
    layers += [instruct.write(layout, rows[-1], layout["address"], answer, after)]
    places = [slice(2 + k * length, 2 + (k + 1) * length) for k in range(len(pointers))]

    def result(P: Tensor) -> Any:
        first, second, *third = (layout.read(P, "data", place).flatten(-2) for place in places)
        return (first, second) if shifts else third[0]

    return Machine(
        name,
        NLAFormer(loop=layers).to(dtype),
        layout,
        dtype,
        functools.partial(_element_constants, layout, length),
        _element_slots(name, n, ("data", places[0]), ("data", places[1])),
        result,
        passes=length,
    )


def _element(name: str, dtype: torch.dtype) -> Machine:
    """The function block for one element, which stands in the scratchpad already."""
    layout = Layout(_scratch(name), tokens=2)
    return Machine(
        name,
        NLAFormer(pre=_function(name, layout, dtype)).to(dtype),
        layout,
        dtype,
        functools.partial(flags, layout, scratchpad=1),
        _element_slots(name, 1, ("left", slice(1, 2)), ("right", slice(1, 2))),
        lambda P: layout.read(P, "out")[..., 0, :],
    )


def _function(name: str, layout: Layout, dtype: torch.dtype) -> list[Layer]:
    """The function block: out from left and right."""
    if name == "multiply":
        return [instruct.product(layout, "left", "right", [flag(layout, one=1.0, idle=-1.0)], "out", 0.5, dtype)]
    if name == "divide":
        return instruct.divide(layout, dtype)
    return [instruct.add(layout, 1.0 if name == "add" else -1.0)]


def _scratch(name: str, height: int = 1) -> tuple[tuple[str, int], ...]:
    """The registers of the scratchpad."""
    both = (("left", height), ("right", height))
    if name in _SHIFTS:
        return (*both, ("one", 1), ("sink", 1))
    inside = ("out", *(_DIVISION if name == "divide" else ()), "one", "sink", "idle")
    scaled = ("exponent",) if name in ("multiply", "divide") else ()
    return (*both, *((register, 1) for register in (*inside, *scaled)))


def _element_slots(name: str, n: int, left: tuple[str, slice], right: tuple[str, slice]) -> tuple[Slot, ...]:
    """Sums and shifts need no scaling; products and quotients are scaled by the largest entry."""
    exponent = largest_exponent if name in ("multiply", "divide") else None
    lift = column if name == "column_shift" else row
    return Slot((n,), *left, lift, exponent), Slot((n,), *right, lift, exponent, divisor=name == "divide")


def _element_constants(layout: Layout, length: int) -> Tensor:
    """Flags, the addresses of the memory, and in the scratchpad a pointer to the head of each vector."""
    P = flags(layout, scratchpad=1)
    L = len(layout["address"])
    layout.write(P, "address", codes(range(layout.tokens - 2), L), slice(2, None))
    for k, pointer in enumerate(name for name in _POINTERS if name in layout.names):
        layout.write(P, pointer, codes([k * length], L), slice(1, 2))
    return P
