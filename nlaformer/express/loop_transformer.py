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

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nlaformer.arrays import whole
from nlaformer.errors import OptionError, look_up
from nlaformer.express import loop_transformer_machine as instruct
from nlaformer.express.construction import Cost, column, largest_exponent, norm_exponent, row
from nlaformer.express.heads import select
from nlaformer.express.loop_transformer_machine import (
    Machine,
    Slot,
    bits,
    codes,
    flags,
    padded_column,
    padded_row,
)
from nlaformer.prompt import Layout
from nlaformer.transformer import Layer, NLAFormer

__all__ = ["LARGEST", "build", "count", "names"]

# Smaller divisors are refused; the largest is about 1 after scaling.
_MINIMUM = 2.0**-20
# Attention takes every pair of columns, so with more columns than this the cost is counted and nothing is run.
LARGEST = 5000

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
_LIFT: dict[str, Callable[[Tensor], Tensor]] = {
    "matrix": lambda value: value,
    "row": padded_row,
    "column": padded_column,
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
    n = whole("n", n, 1)
    tokens = count(name, n)[0].tokens
    if dtype not in (torch.float64, torch.float32):
        raise OptionError(f"dtype is {dtype}; the loop-transformer is built in torch.float64 or torch.float32")
    if tokens > LARGEST:
        raise OptionError(f"{name} with n={n} has {tokens:,} tokens; it runs up to {LARGEST:,}: see count()")
    if name in _MATRICES:
        return replace(_matrices(name, n, dtype, memory=True), block=_matrices(name, n, dtype, memory=False))
    if name in _SHIFTS:
        return _shift(name, n, dtype)
    return replace(_elements(name, n, dtype), block=_element(name, dtype), calls=n)


def count(name: str, n: int) -> tuple[Cost, Cost]:
    """``cost`` and ``block_cost`` by formula, without building weights: for sizes beyond those that can run.

    >>> print(count("matrix_transpose", 512)[0])
    2103 rows x 263681 tokens = 554,521,143 entries; 5 layers, 1 head, FFN width 3072
    """
    look_up("operation of the loop-transformer", name, dict.fromkeys(names()))
    n = whole("n", n, 1)
    if name in _MATRICES:
        return _count_matrices(name, n)
    if name in _SHIFTS:
        height, length = (n, 1) if name == "column_shift" else (1, n)
        L = bits(2 * length, least=2)
        cost = Cost(3 * height + 3 * L + 2, 2 * length + 2, 4 * length, heads=1, ffn_width=4 * height + 4 * L)
        return cost, cost
    return _count_elements(name, n)


# --- the computer for matrices ---------------------------------------------------------------------------------


def _matrices(name: str, n: int, dtype: torch.dtype, memory: bool) -> Machine:
    """A program for matrices on the computer, or without memory as the function block alone."""
    kinds, part = _MATRICES[name]
    layout = _matrix_layout(name, n, memory)
    if memory:
        places = [("data", _block(n, n)), ("data", _block(n, n + 1)), ("data", _block(n, n + 2))]
    else:
        places = [("data", _block(n, 0)), ("right", _block(n, 0)), (_answer(name), _block(n, 0))]
    slots = tuple(
        Slot((n, n) if kind == "matrix" else (n,), *place, _LIFT[kind], _norm_exponent)
        for kind, place in zip(kinds, places[:2], strict=False)
    )
    return Machine(
        name,
        NLAFormer(pre=_matrix_program(name, layout, n, dtype)).to(dtype),
        layout,
        _matrix_constants(layout, n).to(dtype),
        slots,
        lambda P: part(layout.read(P, *places[2])),
    )


def _matrix_program(name: str, layout: Layout, n: int, dtype: torch.dtype) -> list[Layer]:
    """Read A, transpose it unless A^T is wanted, read B, multiply, write; reads and writes only if there is memory."""
    memory = "left pointer" in layout.names
    pointers = {p: [*layout[p], *layout["inner"]] for p in _POINTERS if memory}
    address = [*layout["block"], *layout["inner"]] if memory else []
    layers = []
    if memory:
        layers += [instruct.read(layout, pointers["left pointer"], address, "data")]
    if name != "transposed_matmul":
        layers += instruct.transpose(layout, n)
    if memory and _multiplies(name):
        layers += [instruct.read(layout, pointers["right pointer"], address, "right")]
    if _multiplies(name):
        # Rows and columns have norm about 1; so have a and b as a whole in a b^T.
        typical = 1 / n if name == "outer_product" else n**-0.5
        layers += [instruct.product(layout, "data", "right", select(layout["unit"]), "work", typical, dtype)]
    if memory:
        layers += [instruct.write(layout, pointers["result pointer"], address, select(layout[_answer(name)]))]
    return layers


def _norm_exponent(block: Tensor) -> Tensor:
    """Of the largest norm of a row or column: inner products are then at most about 1, transposed or not."""
    return norm_exponent(block, -1, -2)


def _answer(name: str) -> str:
    """The register of the scratchpad in which the function block leaves its result."""
    return "work" if _multiplies(name) else "data"


def _multiplies(name: str) -> bool:
    return len(_MATRICES[name][0]) == 2


def _matrix_layout(name: str, n: int, memory: bool) -> Layout:
    """The computer's rows and columns; without memory, those the function block uses."""
    transposes, multiplies = name != "transposed_matmul", _multiplies(name)
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


def _count_matrices(name: str, n: int) -> tuple[Cost, Cost]:
    b, short = bits(n + 3), bits(n)
    computer = Cost(4 * n + 5 * b + 5, n * n + 3 * n + 1, layers=7, heads=1, ffn_width=6 * n)
    if name == "transposed_matmul":
        return replace(computer, layers=4, ffn_width=1), Cost(4 * n + 4, n + 1, layers=1, heads=1, ffn_width=1)
    if not _multiplies(name):
        return replace(computer, layers=5), Cost(2 * n + 2 * short + 5, n * n + 1, 3, heads=1, ffn_width=6 * n)
    return computer, Cost(4 * n + 2 * short + 5, n * n + 1, layers=4, heads=1, ffn_width=6 * n)


# --- the computer for elements ---------------------------------------------------------------------------------


def _elements(name: str, n: int, dtype: torch.dtype) -> Machine:
    """Pointwise + - * /: one element after another, a loop of n passes."""
    L = bits(3 * n, least=2)
    scratch = _scratch(name)
    registers = (("data", 1), ("address", L), *((pointer, L) for pointer in _POINTERS), *scratch)
    layout = Layout(registers, tokens=3 * n + 2)
    address, (p, q, r) = list(layout["address"]), (list(layout[pointer]) for pointer in _POINTERS)
    used = [register for register, _ in scratch if register not in ("one", "sink", "idle", "exponent")]
    after = [*instruct.clear(layout, *used), *(unit for pointer in (p, q, r) for unit in instruct.advance(pointer))]
    loop = [
        instruct.read(layout, p, address, "left"),
        instruct.read(layout, q, address, "right"),
        *_function(name, layout, dtype),
        instruct.write(layout, r, address, select(layout["out"]), after),
    ]
    return Machine(
        name,
        NLAFormer(loop=loop).to(dtype),
        layout,
        _element_constants(layout, n, _POINTERS).to(dtype),
        _element_slots(name, n, [("data", _vector(n, 0)), ("data", _vector(n, 1))]),
        lambda P: layout.read(P, "data", _vector(n, 2))[..., 0, :],
        passes=n,
    )


def _element(name: str, dtype: torch.dtype) -> Machine:
    """The function block for one element, which stands in the scratchpad already."""
    layout = Layout(_scratch(name), tokens=2)
    constants = flags(layout, scratchpad=1).to(dtype)
    slots = _element_slots(name, 1, [("left", slice(1, 2)), ("right", slice(1, 2))])
    model = NLAFormer(pre=_function(name, layout, dtype)).to(dtype)
    return Machine(name, model, layout, constants, slots, lambda P: layout.read(P, "out")[..., 0, :])


def _shift(name: str, n: int, dtype: torch.dtype) -> Machine:
    """Exchange two columns, or two rows element by element: two reads and two writes a pass."""
    height, length = (n, 1) if name == "column_shift" else (1, n)
    lift, part = (column, lambda X: X[..., :, 0]) if name == "column_shift" else (row, lambda X: X[..., 0, :])
    L, pointers = bits(2 * length, least=2), _POINTERS[:2]
    registers = [("data", height), ("left", height), ("right", height), ("address", L)]
    registers += [*((pointer, L) for pointer in pointers), ("one", 1), ("sink", 1)]
    layout = Layout(tuple(registers), tokens=2 * length + 2)
    address, (p, q) = list(layout["address"]), (list(layout[pointer]) for pointer in pointers)
    # A write adds, so what is written is the difference to what stands there.
    pairs = list(zip(layout["left"], layout["right"], strict=True))
    after = [*instruct.clear(layout, "left", "right"), *instruct.advance(p), *instruct.advance(q)]
    loop = [
        instruct.read(layout, p, address, "left"),
        instruct.read(layout, q, address, "right"),
        instruct.write(layout, p, address, [{right: 1.0, left: -1.0} for left, right in pairs]),
        instruct.write(layout, q, address, [{left: 1.0, right: -1.0} for left, right in pairs], after),
    ]
    places = [_vector(length, 0), _vector(length, 1)]
    return Machine(
        name,
        NLAFormer(loop=loop).to(dtype),
        layout,
        _element_constants(layout, length, pointers).to(dtype),
        tuple(Slot((n,), "data", place, lift) for place in places),
        lambda P: tuple(part(layout.read(P, "data", place)) for place in places),
        passes=length,
    )


def _function(name: str, layout: Layout, dtype: torch.dtype) -> list[Layer]:
    """The function block: out from left and right."""
    if name == "multiply":
        unit = [{layout["one"][0]: 1.0, layout["idle"][0]: -1.0}]
        return [instruct.product(layout, "left", "right", unit, "out", 0.5, dtype)]
    if name == "divide":
        return instruct.divide(layout, _MINIMUM, dtype)
    return [instruct.add(layout, 1.0 if name == "add" else -1.0)]


def _scratch(name: str) -> tuple[tuple[str, int], ...]:
    """The registers of the function block."""
    inside = ("left", "right", "out", *(_DIVISION if name == "divide" else ()), "one", "sink", "idle")
    scaled = ("exponent",) if name in ("multiply", "divide") else ()
    return tuple((register, 1) for register in (*inside, *scaled))


def _element_slots(name: str, n: int, places: Sequence[tuple[str, slice]]) -> tuple[Slot, ...]:
    """Sums need no scaling; products and quotients are scaled by the largest entry."""
    exponent = largest_exponent if name in ("multiply", "divide") else None
    (left, right), divides = places, name == "divide"
    second = Slot((n,), *right, row, exponent, -1 if divides else 1, _MINIMUM if divides else 0.0)
    return Slot((n,), *left, row, exponent), second


def _element_constants(layout: Layout, length: int, pointers: Sequence[str]) -> Tensor:
    """Flags, the addresses of the memory, and in the scratchpad a pointer to the head of each vector."""
    P = flags(layout, scratchpad=1)
    L, memory = len(layout["address"]), slice(2, layout.tokens)
    layout.write(P, "address", codes(range(layout.tokens - 2), L), memory)
    for k, pointer in enumerate(pointers):
        layout.write(P, pointer, codes([k * length], L), slice(1, 2))
    return P


def _count_elements(name: str, n: int) -> tuple[Cost, Cost]:
    L = bits(3 * n, least=2)
    rows, layers = {"multiply": (7, 1), "divide": (12, 4)}.get(name, (6, 1))
    width = {"multiply": 1, "divide": instruct.LOGARITHM}.get(name, 2)
    emptied = 8 if name == "divide" else 3
    heads = 0 if name in ("add", "subtract") else 1
    cost = Cost(rows + 1 + 4 * L, 3 * n + 2, (3 + layers) * n, heads=1, ffn_width=max(width, 2 * emptied + 6 * L))
    return cost, Cost(rows, 2, layers * n, heads, width)


def _block(n: int, index: int) -> slice:
    """The columns of a block of the computer for matrices, scratchpad or memory."""
    return slice(1 + index * n, 1 + (index + 1) * n)


def _vector(length: int, index: int) -> slice:
    """The columns of a vector in the memory of the computer for elements, after sink and scratchpad."""
    return slice(2 + index * length, 2 + (index + 1) * length)
