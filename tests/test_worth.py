"""benchmarks/worth.py and benchmarks/literature.py: what they measure and leave out, and that claims point to rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nlaformer as nf
from benchmarks import literature, worth, worth_page
from benchmarks.worth_methods import BY_HAND, GUIDED, PRECONDITIONER, Bench, residual
from nlaformer import problems
from nlaformer.learn.models import untrained
from nlaformer.problems.conjugate import last_iterate, pcg

ROOT = Path(__file__).parent.parent
PAGE, TASKS = ROOT / "docs" / "when.md", ROOT / "docs" / "tasks.md"
RESULTS = ROOT / "benchmarks" / "results"
FILED = [RESULTS / f"worth-{name}.json" for name in ("cpu", "h200") if (RESULTS / f"worth-{name}.json").exists()]


@pytest.fixture(scope="module")
def bench() -> Bench:
    models: list[Any] = [nf.load(name) for name in (PRECONDITIONER, GUIDED)]
    return Bench("cpu", models)


@pytest.fixture(scope="module")
def rows(bench: Bench) -> list[worth.Row]:
    plan = worth.Plan({"spd": (20, 24), "grid": (16,)}, batches=(2,), sides=(1, 3), rounds=1)
    return worth.measure(bench, plan)


def _measured(rows: list[worth.Row], **wanted: Any) -> Iterator[worth.Row]:
    for row in rows:
        if not row.left_out and all(getattr(row, name) == value for name, value in wanted.items()):
            yield row


def test_every_answer_meets_the_tolerance_and_every_missing_figure_has_a_reason(rows: list[worth.Row]) -> None:
    assert len(rows) == 2 * (2 * 11 + 13)
    assert all(row.failed == 0 and (row.seconds or 0) > 0 for row in _measured(rows))
    assert {row.method for row in rows if row.left_out} <= {GUIDED, "AMG"}  # its own size alone; PyAMG may be absent
    assert all(row.against_cholesky == 1 for row in _measured(rows, method="Cholesky"))


def test_a_preconditioner_is_called_once_for_a_block_and_a_guide_in_every_iteration(rows: list[worth.Row]) -> None:
    for row in _measured(rows, method=PRECONDITIONER):
        assert row.calls == (1 if row.n <= 20 else 2) / row.sides
    for row in _measured(rows, method=GUIDED, form="fixed", family="spd"):
        assert row.calls == row.iterations
    assert all(row.calls == 0 for row in _measured(rows, method=BY_HAND))


def test_the_work_of_cg_is_that_of_its_products(rows: list[worth.Row]) -> None:
    for row in _measured(rows, method="CG"):
        assert row.products is not None and row.iterations is not None
        assert row.flops == pytest.approx(2 * row.n**2 * row.products + 10 * row.n * row.iterations)


def test_what_would_take_too_long_is_left_out_with_more_right_hand_sides(bench: Bench) -> None:
    plan = worth.Plan({"spd": (20,)}, batches=(1,), sides=(1, 2, 4), rounds=0, longest=0.0)
    found = worth.measure(bench, plan)
    assert all(not row.left_out for row in found if row.sides == 1)
    assert all(row.left_out.startswith("time") for row in found if row.sides > 1)


def test_too_few_fixed_iterations_are_raised_until_the_tolerance_is_met(bench: Bench) -> None:
    bench.needed["spd", 20, "CG"] = 12
    A = problems.SPD(n=20).sample(1, seed=5).A
    B = A @ torch.ones(1, 20, 1, dtype=torch.float64)
    row = worth.Row("", "spd", 20, 1, 1, "CG", "fixed")
    answer, _ = worth._run(bench, row, A, B)
    assert answer.most > 12 and float(residual(A, B, answer.x).max()) <= 1e-8


def test_the_last_iterate_is_that_of_the_trajectory_for_each_right_hand_side() -> None:
    A = problems.SPD(n=6).sample(3, seed=2).A
    b = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = last_iterate(A[:, None], b, 3, M="jacobi")
    for k in range(4):
        torch.testing.assert_close(found[:, k], pcg(A, b[:, k], 3).x[:, -1])


def test_a_learned_preconditioner_reads_each_matrix_once_however_many_right_hand_sides() -> None:
    model = nf.load("learned-preconditioner")
    written, shown = model.preconditioner, []
    model.preconditioner = lambda A: shown.append(len(A)) or written(A)  # type: ignore[method-assign, func-returns-value]
    A = problems.SPD(n=20).sample(3, seed=1).A
    B = torch.randn(3, 20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = nf.solve(A, B, M=model, rtol=1e-8)
    assert shown == [3]
    for k in range(3):  # and each right-hand side gets the one of its own matrix
        alone = nf.solve(A[k], B[k], M=model, rtol=1e-8)
        assert alone.iterations.tolist() == together.iterations[k].tolist()


# The pages --------------------------------------------------------------------------------------------------------


def test_the_tables_of_the_page_are_those_of_the_filed_rows() -> None:
    documents = [json.loads(path.read_text()) for path in FILED]
    assert documents and worth_page.section(documents) in PAGE.read_text()


def test_every_row_that_a_page_names_was_measured() -> None:
    known = {row["cell"] for path in FILED for row in json.loads(path.read_text())["rows"] if not row["left_out"]}
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        by_hand = page.read_text().partition(worth_page.HEADING)[0]
        assert set(re.findall(r"`((?:cpu|cuda)-[\w-]+)`", by_hand)) <= known, page


def test_the_page_begins_with_where_not_to_use_it() -> None:
    assert re.findall(r"^## (.*)$", PAGE.read_text(), flags=re.MULTILINE)[0].startswith("Where not")


def test_every_filed_answer_met_the_tolerance() -> None:
    for path in FILED:
        assert not any(row["failed"] for row in json.loads(path.read_text())["rows"]), path


def test_the_chart_is_drawn_from_the_filed_rows() -> None:
    documents = [json.loads(path.read_text()) for path in FILED]
    figure = worth_page.draw(documents)
    assert worth_page.finding(documents) in figure.get_suptitle()


def test_the_literatures_problems_are_consistent_and_their_error_is_the_mean_square() -> None:
    A, b, x = literature.Gaussian(n=6, columns=2).sample(2, seed=0)
    torch.testing.assert_close((A @ x[..., None])[..., 0], b)
    assert not A[..., 2:].any() and literature.error(np.array([[1.0, 3.0, 9.0]]), np.array([[0.0, 1.0]])) == 2.5


def test_the_literatures_programs_solve_least_squares() -> None:
    A, b, x = (part.numpy() for part in literature.Gaussian(n=8, columns=2).sample(3, seed=1))
    for program, loops in literature.METHODS.values():
        found = program.run(A, b, iterations=loops[-1]).x[:, -1]
        assert literature.error(found, x) < 1e-12, program.name


def test_a_trained_model_joins_the_literatures_table() -> None:
    settings: dict[str, Any] = {"family": literature.Gaussian(n=8, columns=2), "d": 8, "heads": 2}
    A, b, x = (part.numpy() for part in literature.Gaussian(n=8, columns=2).sample(3, seed=1))
    found = literature._errors(
        untrained(nf.recipe("guided-cgls", program_options={"rank": 2}, **settings)), A, b, x[..., :2], (0, 8)
    )
    assert found["errors"]["0"] == pytest.approx(float((x[..., :2] ** 2).mean()))
    assert found["errors"]["8"] < found["errors"]["0"]


def test_the_literatures_table_is_that_of_the_filed_figures() -> None:
    assert literature.section(json.loads((RESULTS / "literature.json").read_text())) in TASKS.read_text()
