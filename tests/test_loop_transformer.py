"""The loop-transformer baseline: every row of Table 1 runs, costs what is counted, and is an ordinary transformer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.errors import DomainError, DTypeError, OptionError, ShapeError, UnknownNameError
from nlaformer.express.theorem import RECORDS
from paper import loop_transformer
from paper.loop_transformer_machine import Machine, bits
from tests.reference import dense_layers, equation_one, exact

MATRICES = [name for name in loop_transformer.names() if RECORDS[name].printed.loop_size == "n^3"]
LINEARIZED = {"multiply", "inner_product", "outer_product", "transposed_matmul", "matmul", "matvec"}
DTYPES = [torch.float64, torch.float32]
SIZES = [2, 3, 5, 8, 16]


def tolerance(name: str, n: int, dtype: torch.dtype) -> float:
    """Relative error allowed: a linearized softmax costs sqrt(C eps), a gate rounds to the length of its code."""
    eps = torch.finfo(dtype).eps
    if name in LINEARIZED:
        return 6 * math.sqrt(31 * eps / 2)
    if name == "divide":
        return 5e-13 + 64 * eps
    if name.endswith("transpose"):
        return 8 * bits(n + 3) * eps
    return 2 * eps


def operands(name: str, machine: Machine, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    dtype = machine.constants.numpy().dtype
    values = [generator.standard_normal(slot.shape) for slot in machine.slots]
    if name == "divide":
        values[1] += 0.05 * np.sign(values[1])
    return [value.astype(dtype) for value in values]


def error(name: str, result: object, values: list[np.ndarray]) -> float:
    """Relative to the Frobenius norm of the result; of an inner product, to |a| |b|."""
    wide = [value.astype(np.float64) for value in values]
    wanted = exact(name, *wide, extended=False)
    size = np.prod([np.linalg.norm(v) for v in wide]) if name == "inner_product" else np.linalg.norm(wanted)
    assert np.shape(result) == np.shape(wanted)
    return float(np.linalg.norm(np.asarray(result) - wanted) / size)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", loop_transformer.names())
def test_loop_transformer_computes_every_row_of_table_1(name, n, dtype):
    machine = loop_transformer.build(name, n, dtype)
    for seed in range(3):
        values = operands(name, machine, seed)
        result = machine(*values)
        assert np.asarray(result).dtype == values[0].dtype
        assert error(name, result, values) < tolerance(name, n, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["matrix_transpose", "transposed_matmul", "matmul"])
def test_loop_transformer_is_accurate_for_matrices_of_size_32(name, dtype):
    machine = loop_transformer.build(name, 32, dtype)
    values = operands(name, machine, seed=0)
    assert error(name, machine(*values), values) < tolerance(name, 32, dtype)


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("name", loop_transformer.names())
def test_the_function_block_alone_computes_the_same(name, n):
    machine = loop_transformer.build(name, n)
    if machine.block is None:
        assert machine.block_cost == machine.cost
        return
    values = operands(name, machine, seed=n)
    if machine.passes:
        result = np.concatenate([machine.block(*(value[k : k + 1] for value in values)) for k in range(machine.passes)])
    else:
        result = machine.block(*values)
    assert error(name, result, values) < tolerance(name, n, torch.float64)


@pytest.mark.parametrize("n", [1, *SIZES, 32])
@pytest.mark.parametrize("name", loop_transformer.names())
def test_the_counted_cost_is_that_of_the_machine_and_its_prompt(name, n):
    machine = loop_transformer.build(name, n)
    assert (machine.cost, machine.block_cost) == loop_transformer.count(name, n)
    assert machine.prompt(*operands(name, machine, 0)).shape == (machine.cost.rows, machine.cost.tokens)


@pytest.mark.parametrize("name", loop_transformer.names())
def test_loop_transformer_takes_and_returns_what_our_operation_does(name):
    machine, operation = loop_transformer.build(name, 6), nf.operation(name, n=6)
    values = operands(name, machine, seed=4)
    theirs, ours = machine(*values), operation(*values)
    assert np.shape(theirs) == np.shape(ours)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5)


def growth(name: str) -> np.ndarray:
    """The power of n with which entries grow: those of the computer, those of the block."""
    sizes = [16, 32, 64, 128, 256, 512]
    entries = [[cost.entries for cost in loop_transformer.count(name, n)] for n in sizes]
    return np.polyfit(np.log(sizes), np.log(entries), 1)[0]


def test_entries_grow_like_the_cube_for_matrices():
    for name in MATRICES:
        computer, block = growth(name)
        assert 2.8 < computer < 3.0
        # A^T B alone needs no transpose, and so no n^2 columns.
        expected = 2 if name == "transposed_matmul" else 3
        assert expected - 0.15 < block < expected + 0.05
    for name in set(loop_transformer.names()) - set(MATRICES):
        assert growth(name)[0] < 1.25


def test_layers_grow_as_the_docstring_says():
    for n in (2, 9):
        layers = {name: [cost.layers for cost in loop_transformer.count(name, n)] for name in loop_transformer.names()}
        assert layers["add"] == layers["subtract"] == layers["multiply"] == [4 * n, n]
        assert layers["divide"] == [7 * n, 4 * n]
        assert layers["column_shift"] == [4, 4]
        assert layers["row_shift"] == [4 * n, 4 * n]
        assert layers["vector_transpose"] == layers["matrix_transpose"] == [5, 3]
        assert layers["transposed_matmul"] == [4, 1]
        for name in ("inner_product", "outer_product", "matmul", "matvec"):
            assert layers[name] == [7, 4]


def test_n_may_be_a_numpy_integer():
    assert loop_transformer.count("matmul", np.int64(3)) == loop_transformer.count("matmul", 3)
    assert loop_transformer.build("add", np.int64(2)).cost == loop_transformer.count("add", 2)[0]


def test_names_are_those_of_table_1():
    listed = [name for name, record in RECORDS.items() if record.printed and record.printed.loop_layers]
    assert list(loop_transformer.names()) == listed


# --- how it works -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", loop_transformer.names())
def test_the_weights_are_an_ordinary_transformer(name):
    machine = loop_transformer.build(name, 3)
    values = operands(name, machine, seed=1)
    P = machine.prompt(*values).numpy()
    for block, repeats in ((machine.model.pre, 1), (machine.model.loop, machine.passes)):
        P = equation_one(P, dense_layers(block) * repeats)
    result = machine.read(torch.from_numpy(P))
    assert error(name, result, values) < tolerance(name, 3, torch.float64)


def test_a_read_copies_bit_for_bit_whatever_else_is_in_memory():
    machine = loop_transformer.build("row_shift", 5)
    a, b = np.array([1e-300, 1.0, -1e300, 1 / 3, 0.0]), np.full(5, 1e307)
    passes = [state for state in machine.model.states(machine.prompt(a, b), loops=5) if state.block == "loop"]
    for k in range(5):
        after_first_read = passes[4 * k].P
        assert float(machine.layout.read(after_first_read, "left", slice(1, 2))) == a[k]


def test_pointers_advance_by_one_a_pass():
    machine = loop_transformer.build("add", 11)
    states = list(machine.model.states(machine.prompt(np.zeros(11), np.zeros(11)), loops=11))
    for k, state in enumerate(states[::4]):
        for start, pointer in ((0, "left pointer"), (11, "right pointer"), (22, "result pointer")):
            rows = machine.layout.read(state.P, pointer, slice(None))
            address = sum(2**bit for bit, value in enumerate(rows[:, 1]) if value > 0)
            # After the last pass a pointer may stand one beyond the memory, or wrap around.
            assert address == (start + k) % 2 ** len(rows)
            assert set(rows[:, 1].tolist()) <= {1.0, -1.0}
            assert rows[:, 2:].abs().max() == 0


@pytest.mark.parametrize("name", ["multiply", "divide", "transposed_matmul", "matmul"])
def test_memory_keeps_its_operands(name):
    machine = loop_transformer.build(name, 4)
    P = machine.prompt(*operands(name, machine, seed=2))
    Q = machine.model(P, machine.passes)
    for slot in machine.slots:
        before, after = (machine.layout.read(X, slot.register, slot.tokens) for X in (P, Q))
        assert torch.equal(before, after)


# --- what it takes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", loop_transformer.names())
def test_a_batch_equals_its_systems_one_by_one(name):
    machine = loop_transformer.build(name, 3)
    values = [operands(name, machine, seed) for seed in range(4)]
    together = machine(*(np.stack(column).reshape(2, 2, *column[0].shape) for column in zip(*values, strict=True)))
    parts = together if isinstance(together, tuple) else (together,)
    for k, single in enumerate(machine(*value) for value in values):
        for part, expected in zip(parts, single if isinstance(single, tuple) else (single,), strict=True):
            np.testing.assert_allclose(part.reshape(4, *expected.shape)[k], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1e-70, 1e-8, 1e8, 1e70])
@pytest.mark.parametrize("name", loop_transformer.names())
def test_the_magnitude_of_the_operands_does_not_matter(name, size):
    machine = loop_transformer.build(name, 4)
    values = [size * value for value in operands(name, machine, seed=3)]
    assert error(name, machine(*values), values) < tolerance(name, 4, torch.float64)


@pytest.mark.parametrize("name", ["add", "subtract", "column_shift", "row_shift"])
def test_an_overflowing_sum_leaves_other_entries_intact(name):
    a, b = np.array([[1e308, 1.0, -1e308], [1.0, 2.0, 3.0]]), np.array([[1e308, 3.0, 1e308], [4.0, 5.0, 6.0]])
    found = loop_transformer.build(name, 3)(a, b)
    wanted = (b, a) if name.endswith("shift") else nf.operation(name, n=3)(a, b)
    np.testing.assert_array_equal(found, wanted)


def test_loop_transformer_returns_the_kind_of_array_given():
    machine = loop_transformer.build("add", 2)
    one, other, total = torch.tensor([1, 2]), torch.tensor([3.0, 4.0]).double(), torch.tensor([4.0, 6.0]).double()
    assert torch.equal(machine(one, other), total)
    np.testing.assert_array_equal(machine(one.numpy(), other.numpy()), total.numpy())
    assert machine([1, 2], [3, 4]) == [4.0, 6.0]


def test_loop_transformer_refuses_bad_input():
    machine = loop_transformer.build("divide", 2)
    good = np.ones(2)
    with pytest.raises(ShapeError, match=r"expected \(\.\.\., 2\)"):
        machine(np.ones(3), good)
    with pytest.raises(ShapeError, match="2 operand"):
        machine(good)
    with pytest.raises(ShapeError, match=r"\(2, 2\).*\(3, 2\)"):
        machine(np.ones((2, 2)), np.ones((3, 2)))
    with pytest.raises(DTypeError, match="complex"):
        machine(good, good * 1j)
    with pytest.raises(DTypeError, match=r"operand 2 is float32.*float64"):
        machine(good, good.astype(np.float32))
    with pytest.raises(DTypeError, match="operand 2"):
        machine(good, ["a", "b"])
    with pytest.raises(DomainError, match="NaN"):
        machine(good, np.array([1.0, np.nan]))
    with pytest.raises(DomainError, match="divisor"):
        machine(good, np.array([1.0, 1e-7]))
    with pytest.raises(UnknownNameError, match="matmul"):
        loop_transformer.build("matmull", 2)
    with pytest.raises(UnknownNameError, match=r"named \[\]"):
        loop_transformer.count([], 3)
    for n in (0, True, 2.0):
        with pytest.raises(OptionError, match="n is"):
            loop_transformer.count("matmul", n)
    with pytest.raises(OptionError, match="n=128"):
        loop_transformer.build("matmul", 128)
    with pytest.raises(OptionError, match="float16"):
        loop_transformer.build("matmul", 2, torch.float16)
