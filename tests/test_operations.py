"""The operations: accuracy, cost, batches and kinds of arrays, through the public interface."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import nlaformer as nf
from benchmarks.operations import own_function
from nlaformer.cli import app
from nlaformer.console import Sheet, to_markdown
from nlaformer.express import accuracy, theorem
from nlaformer.express.theorem import RECORDS, Record
from paper import measured
from tests.reference import ATTENTION, OPERATIONS, OWN_TARGETS, draw, exact, one_array, relative_errors

SEEDS = 20
# (order, dtype): largest median and largest error over the seeds, for n >= 20.
TARGETS = {
    (1, torch.float64): (1e-9, 5e-9),
    (3, torch.float64): (1e-11, 5e-11),
    (1, torch.float32): (5e-4, 1e-3),
}


def batch_of(name: str, n: int, dtype: torch.dtype = torch.float64) -> list[np.ndarray]:
    """Twenty seeds, one system each, as a batch."""
    systems = [draw(name, n, np.random.default_rng(seed), dtype) for seed in range(SEEDS)]
    return [np.stack(operand) for operand in zip(*systems, strict=True)]


@pytest.mark.parametrize("n", [20, 64, 256, 512])
@pytest.mark.parametrize(("order", "dtype"), TARGETS, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_operations_reach_their_accuracy(name, order, dtype, n):
    errors = relative_errors(nf.operation(name, n=n, order=order, dtype=dtype), batch_of(name, n, dtype))
    median, largest = TARGETS[order, dtype]
    assert np.median(errors) <= median
    assert errors.max() <= largest


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_operations_are_accurate_for_small_n(name, n):
    """No target is set below n = 20, where a small result may stand beside large operands; the median holds."""
    assert np.median(relative_errors(nf.operation(name, n=n), batch_of(name, n))) <= 1e-9


@pytest.mark.parametrize("factors", [(1e8, 1.0), (1.0, 1e-8), (1e8, 1e-8), (1e-8, 1e-8), (1e8, 1e8)])
@pytest.mark.parametrize("name", ATTENTION)
def test_accuracy_does_not_depend_on_the_magnitude_of_the_operands(name, factors):
    operands = [x * factor for x, factor in zip(batch_of(name, 20), factors, strict=False)]
    errors = relative_errors(nf.operation(name, n=20), operands)
    assert np.median(errors) <= 1e-9
    assert errors.max() <= 5e-9


@pytest.mark.parametrize("n", [2, 5, 20, 64, 256, 512])
@pytest.mark.parametrize(
    ("name", "target"),
    OWN_TARGETS.items(),
)
def test_pointwise_operations_and_shifts_reach_their_accuracy(name, target, n):
    assert relative_errors(nf.operation(name, n=n), batch_of(name, n)).max() <= target


@pytest.mark.parametrize("name", [*ATTENTION, "column_shift", "multiply"])
def test_the_papers_pair_of_heads_runs_and_is_far_less_accurate(name):
    operands = batch_of(name, 20)
    paper = relative_errors(nf.operation(name, n=20, scheme="paper"), operands)
    ours = relative_errors(nf.operation(name, n=20), operands)
    assert np.median(paper) <= 1e-5
    assert np.median(paper) >= 30 * np.median(ours)


# Layers and heads of the theorem; accurate products and quotients as the project promises them.
THEOREM = {
    **dict.fromkeys(["add", "subtract", "row_shift"], (1, 1)),
    **dict.fromkeys(["column_shift", "vector_transpose", "inner_product", "outer_product"], (1, 2)),
    **dict.fromkeys(["matrix_transpose", "transposed_matmul", "matmul", "matvec"], (1, 2)),
    "multiply": (1, 2),
    "divide": (3, 1),
    "pointwise": (1, 2),
}


@pytest.mark.parametrize("name", THEOREM)
def test_cost_is_never_above_the_theorem(name):
    layers, heads = THEOREM[name]
    cost = nf.operation(name, n=12, f=RECORDS[name].f).cost
    assert cost.layers <= layers
    assert cost.heads <= heads


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "A" in RECORDS[name].operands])
def test_entries_grow_with_the_square_of_n(name):
    sizes = np.array([16, 32, 64, 128])
    entries = [nf.operation(name, n=int(n)).cost.entries for n in sizes]
    slope = np.polyfit(np.log(sizes), np.log(entries), 1)[0]
    assert 1.9 <= slope <= 2.1


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_batch_equals_its_systems_one_by_one(name):
    op = nf.operation(name, n=5)
    operands = draw(name, 5, np.random.default_rng(3), batch=(2, 3))
    together = one_array(op(*operands))
    pair = name.endswith("shift")
    for i in np.ndindex(2, 3):
        alone = one_array(op(*(x[i] for x in operands)))
        np.testing.assert_allclose(together[(slice(None), *i)] if pair else together[i], alone, rtol=1e-8, atol=1e-8)


def test_batch_dimensions_broadcast():
    op = nf.operation("matvec", n=4)
    rng = np.random.default_rng(4)
    A, b = rng.normal(size=(4, 4)), rng.normal(size=(3, 4))
    np.testing.assert_allclose(op(A, b), b @ A.T, rtol=1e-7, atol=1e-8)
    assert op(A, b[:0]).shape == (0, 4)


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_of_the_kind_of_array_given(name):
    op = nf.operation(name, n=3)
    operands = draw(name, 3, np.random.default_rng(5))
    array, tensor = op(*operands), op(*map(torch.from_numpy, operands))
    listed = op(*(x.tolist() for x in operands))
    pair = (array, tensor, listed) if isinstance(array, tuple) else ((array,), (tensor,), (listed,))
    for a, t, one in zip(*pair, strict=True):
        assert isinstance(a, (np.ndarray, np.generic))
        assert isinstance(t, torch.Tensor)
        assert isinstance(one, (list, float))
        np.testing.assert_array_equal(a, t.numpy())
        np.testing.assert_array_equal(a, np.asarray(one))
    assert one_array(array).shape == exact(name, *operands).shape


def test_prompt_model_and_read_give_the_same_result_as_the_call():
    op = nf.operation("transposed_matmul", n=6)
    A, B = np.random.default_rng(6).normal(size=(2, 6, 6)) * 1e5
    P = op.model(torch.from_numpy(op.prompt(A, B)))
    assert tuple(P.shape) == (op.cost.rows, op.cost.tokens)
    np.testing.assert_array_equal(op.read(P.numpy()), op(A, B))


def test_names_are_listed_as_a_tuple():
    assert nf.operations() == tuple(RECORDS)


@pytest.mark.parametrize("name", RECORDS)
def test_records_name_the_operands_that_the_construction_takes(name):
    op = nf.operation(name, n=3, f=RECORDS[name].f)
    taken = {operand.name: operand.shape(3) for operand in op._construction.operands}
    assert taken == RECORDS[name].shapes(3)


def test_a_record_is_all_that_a_new_operation_needs(monkeypatch, tmp_path):
    """Its result, bound and file, its row in Table 1, its benchmark and the command line follow from the record."""
    sum_of_two = Record(theorem.add, ("a", "b"), lambda a, b: a + b, "a + b, (n,)")
    monkeypatch.setitem(RECORDS, "sum_of_two", sum_of_two)
    assert "sum_of_two" in nf.operations()
    op = nf.load(nf.operation("sum_of_two", n=4).save(tmp_path))
    found = accuracy.accuracy("sum_of_two", 4, op)
    assert 0 < found.error <= found.bound < 1e-14
    row = measured.measure_row("sum_of_two", 4)
    assert row["loop_transformer"] is None and row["printed"] is None
    sizes = measured.sheets([measured.measure_row("add", 4), row])[0]
    assert [line[0] for line in sizes.lines] == ["add", "sum_of_two"]
    assert own_function("sum_of_two")(torch.ones(4), torch.ones(4)).tolist() == [2.0] * 4
    shown = CliRunner().invoke(app, ["operations", "sum_of_two", "--n", "4"])
    assert shown.exit_code == 0 and "op(a, b)" in shown.output


# --- the records ---


@pytest.mark.parametrize("name", nf.operations())
def test_operations_are_called_as_their_records_say(name):
    op, n = nf.operation(name, n=4, f=RECORDS[name].f), 4
    record = RECORDS[name]
    shapes = re.findall(r"\w \(([^)]*)\)", record.arguments)
    assert [_shape(shape, n) for shape in shapes] == [operand.shape[1:] for operand in accuracy.draw(name, n)]
    result = op(*(operand[0] for operand in accuracy.draw(name, n)))
    results = result if isinstance(result, tuple) else (result,)
    promised = re.findall(r"(?:, |and )\(((?:n,|n, n|n, 1)?)\)", record.result)
    assert [_shape(shape, n) for shape in promised] == [np.shape(part) for part in results]


def _shape(text, n):
    return tuple(n if part.strip() == "n" else int(part) for part in text.split(",") if part.strip())


def test_the_documentation_holds_the_table_of_calls():
    lines = tuple((name, record.call, record.arguments, record.result) for name, record in RECORDS.items())
    calls = Sheet("Calls", ("name", "call", "arguments and shapes", "result"), lines, words=True)
    text = (Path(nf.__file__).parent.parent / "docs" / "operations.md").read_text()
    assert to_markdown(calls).partition("\n\n")[2] in text


def test_an_operation_has_the_constants_of_its_weights():
    lin = nf.operation("matmul", n=6).linearization
    assert lin is not None and lin.C > 0 and 0 < lin.c < 1
    key = nf.operation("matmul", n=6).model.pre[0].dense()["heads"][0]["W_K"]
    assert torch.isclose(key.max(), torch.tensor(lin.C, dtype=torch.float64))
    assert nf.operation("add", n=6).linearization is None


# --- how accuracy is measured ---


def test_reference_is_more_precise_than_float64():
    a, b = np.array([1.0, 2.0**-60]), np.array([1.0, 1.0])
    if np.finfo(np.longdouble).eps < np.finfo(np.float64).eps:
        assert accuracy.reference("inner_product", a, b) != np.longdouble(1)
    a, b = (np.random.default_rng(0).normal(size=(2, 50)),) * 2
    assert float(accuracy.reference("inner_product", a, b)[0]) == pytest.approx(math.fsum(a[0] ** 2), rel=1e-15)


@pytest.mark.parametrize("name", nf.operations())
def test_accuracy_finds_a_transformer_that_is_one_percent_wrong(name):
    """A measurement that could not see a wrong result would prove nothing."""

    def wrong(*operands):
        right = accuracy.reference(name, *operands)
        return tuple(1.01 * part for part in right) if isinstance(right, tuple) else 1.01 * right

    expected = 0.01
    if name == "inner_product":
        a, b = accuracy.draw(name, 7)
        expected *= np.median(np.abs((a * b).sum(-1)) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)))
    assert accuracy.accuracy(name, 7, wrong).error == pytest.approx(expected, rel=1e-10)


def test_an_inner_product_that_vanishes_has_a_finite_error():
    operands = [np.array([[1.0, 1.0]]), np.array([[1.0, -1.0]])]
    exact = accuracy.reference("inner_product", *operands)
    assert accuracy.relative("inner_product", np.array([1e-3]), exact, operands)[0] == pytest.approx(5e-4)


def test_draws_depend_on_the_seed_and_nothing_else():
    first, again = accuracy.draw("divide", 9), accuracy.draw("divide", 9)
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))
    assert len({row.tobytes() for row in first[0]}) == len(accuracy.SEEDS)
    size = np.abs(first[1])
    assert (size >= 0.1 * size.max(-1, keepdims=True)).all()
