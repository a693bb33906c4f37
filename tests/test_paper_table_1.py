"""The measured Table 1: the measurement can be trusted, and it shows what it is said to show."""

from __future__ import annotations

import pytest

from nlaformer.console import to_markdown
from nlaformer.express.construction import Cost
from nlaformer.express.theorem import RECORDS
from paper import loop_transformer, measured
from paper.results import Results

MATRIX = ("vector_transpose", "outer_product", "matrix_transpose", "transposed_matmul", "matmul", "matvec")


SOME = ("matmul", "row_shift")


@pytest.fixture(scope="module")
def rows() -> list[measured.Row]:
    return measured.measure_all(n=6)


@pytest.fixture(scope="module")
def by_name(rows: list[measured.Row]) -> dict[str, measured.Row]:
    return {row["operation"]: row for row in rows if row["form"] == "accurate"}


# --- the measurement ---


def test_growth_of_a_known_power():
    assert measured.growth(lambda n: Cost(n, n * n, 1, 1, 0)) == pytest.approx(3.0)


# --- what it shows ---


def test_every_operation_of_the_paper_has_a_row_and_both_forms_of_multiply_and_divide(rows):
    assert {row["operation"] for row in rows} == {name for name, record in RECORDS.items() if record.printed}
    assert sorted(row["operation"] for row in rows if row["form"] == "ffn") == ["divide", "multiply"]
    without = {row["operation"] for row in rows if row["form"] == "accurate" and row["loop_transformer"] is None}
    assert without == {"pointwise"}


def test_errors_are_below_their_bounds(rows):
    for row in rows:
        for dtype, found in row["accuracy"].items():
            assert found["error"] <= found["bound"], (row["operation"], dtype)


def test_entries_grow_as_the_paper_says(by_name):
    for name in MATRIX:
        assert 1.9 <= by_name[name]["growth"] <= 2.1, name
        assert 2.75 <= by_name[name]["loop_transformer"]["growth"] <= 3.1, name
    for name in ("add", "subtract", "column_shift", "row_shift"):
        assert 0.95 <= by_name[name]["growth"] <= 1.05, name


def test_the_papers_heads_are_measured_where_something_is_linearized(by_name):
    without = {name for name, row in by_name.items() if not row["paper_scheme"]}
    assert without == {"add", "subtract", "divide", "row_shift"}
    matmul = by_name["matmul"]
    assert matmul["paper_scheme"]["float64"]["error"] > 10 * matmul["accuracy"]["float64"]["error"]


def test_printed_values_are_the_papers():
    printed = {name: record.printed for name, record in RECORDS.items() if record.printed is not None}
    assert {name for name, values in printed.items() if values.size == "n^2"} == {*MATRIX, "inner_product"}
    assert {name for name, values in printed.items() if values.layers == "2"} == {"matmul", "matvec"}
    assert {name for name, values in printed.items() if values.loop_layers} == set(loop_transformer.names())


def test_the_committed_table_is_what_the_operations_give(rows):
    """Costs and growth as committed, and of errors the order of magnitude: rounding depends on the machine."""
    committed = Results().document(measured.OPERATIONS)["rows"]
    assert [(row["operation"], row["form"]) for row in committed] == [(row["operation"], row["form"]) for row in rows]
    for row in committed:
        again = measured.measure_row(row["operation"], row["n"], row["form"]) if row["operation"] in SOME else row
        assert again["cost"] == row["cost"] and again["printed"] == row["printed"]
        error, then = (found["accuracy"]["float64"]["error"] for found in (again, row))
        assert error == then or 0.5 < error / then < 2


# --- how it is shown ---


def test_sheets_hold_the_numbers_of_the_rows(rows, by_name):
    size, float64, float32, loop, block = measured.sheets(rows)
    matmul = by_name["matmul"]
    line = next(line for line in size.lines if line[0] == "matmul")
    cost = matmul["cost"]
    assert line[1:3] == (f"{cost['rows']} x {cost['tokens']}", str(cost["entries"]))
    assert line[4] == "1 (2)"
    line = next(line for line in float32.lines if line[0] == "matmul")
    assert float(line[1]) == pytest.approx(matmul["accuracy"]["float32"]["error"], rel=0.05)
    assert next(line for line in loop.lines if line[0] == "matmul")[4] == "7 (10)"
    assert next(line for line in block.lines if line[0] == "matmul")[4] == "4"
    assert [line[0] for line in size.lines] == [line[0] for line in float64.lines]


def test_sheets_are_rectangular_in_markdown(rows):
    for sheet in measured.sheets(rows):
        lines = [line for line in to_markdown(sheet).splitlines() if line.startswith("|")]
        assert len(lines) == len(sheet.lines) + 2
        assert len({line.count("|") for line in lines}) == 1


def test_a_bound_of_the_size_of_the_result_is_marked(rows):
    float64, float32 = measured.sheets(rows)[1:3]
    marked = {line[0] for line in float32.lines if line[2].startswith("*")}
    assert marked == {measured._label(row) for row in rows if row["accuracy"]["float32"]["bound"] > 0.1} != set()
    assert "*" in float32.note
    assert "*" not in "".join(line[2] for line in float64.lines) + float64.note
