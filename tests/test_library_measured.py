"""Every algorithm of the library as a transformer against its own program: the fast part of ``benchmarks.library``."""

import json
from dataclasses import replace

import pytest
import torch

import nlaformer as nf
from benchmarks import library as benchmark
from benchmarks import library_table
from nlaformer.compiler.library.measuring import measure, stored

# What misses 1e-10 in a step, with a bound on what it reaches; docs/algorithms.md has the figures.
MISSES = {
    "gmres": 1e-8, "barzilai_borwein": 1e-8, "bicg": 1e-8, "newton_schulz": 1e-8,
    "cholesky": 1e-8, "recursive_least_squares": 1e-7, "cg_fused": 1e-9, "lanczos": 1e-9,
    "arnoldi": 1e-9, "stein": 1e-9,
}  # fmt: skip
LOST = {
    "bicgstab": 10.0,
    "rayleigh_quotient": 1e-8,
}  # runs of these may end inaccurate, and then say so
LARGER = ("cg", "jacobi", "kaczmarz", "ista", "admm", "matrix_sign", "lu", "power", "kalman", "pagerank")


@pytest.mark.parametrize(("name", "n"), [*((name, 4) for name in nf.algorithms()), *((name, 12) for name in LARGER)])
def test_each_value_of_a_step_is_the_programs_own_and_so_is_the_run(name, n):
    found = measure(name, n, systems=8, seed=3, iterations=12)
    if name in LOST:
        assert max(found.step.values()) <= 1e-7 or "INACCURATE" in found.status
        return
    goal = MISSES.get(name, 1e-10)
    assert max(found.step.values()) <= goal, found.step
    assert found.end <= 10 * goal
    assert not found.status.keys() & {"INACCURATE", "NONFINITE", "DIVERGED"}


def test_what_is_stored_has_every_algorithm_and_its_cost():
    rows, where = stored()
    assert [row.name for row in rows] == list(nf.algorithms()) and where
    assert all(row.seconds <= 5 and row.n == 20 for row in rows)
    assert all(row.worst <= MISSES.get(row.name, LOST.get(row.name, 1e-10)) for row in rows)
    for row in rows[:3]:
        cost = nf.algorithm(row.name, 20, verify=False).cost
        assert (row.layers, row.start_layers) == (cost.loop.layers, cost.pre.layers)


def test_the_benchmark_prints_a_table_and_writes_the_numbers(tmp_path, capsys):
    path = tmp_path / "library.json"
    rows = benchmark.main(["richardson", "heat", "--sizes", "4", "--systems", "2", "--json", str(path)])
    printed = capsys.readouterr().out
    assert "| richardson |" in printed and "| heat |" in printed
    document = json.loads(path.read_text())
    assert [row["name"] for row in document["algorithms"]] == [row.name for row in rows] and document["provenance"]
    assert {row.dtype for row in rows} == {"float64", "float32"}


def test_the_page_has_a_line_for_every_algorithm_and_names_what_misses(tmp_path):
    rows = [replace(row, n=n, step={"step x": error}) for row in stored()[0] for n, error in ((4, 1e-12), (20, 3e-9))]
    numbers, page = tmp_path / "library.json", tmp_path / "page.md"
    benchmark._write(numbers, rows, stored()[1])
    page.write_text("# Library\n\n## Measured\n\nformer figures\n\n## Rest\n\nkept\n")
    library_table.main([str(numbers), "--into", str(page)])
    text = page.read_text()
    assert "former figures" not in text and "kept" in text and f"0 of {len(nf.algorithms())} " in text
    assert all(f"| `{name}` | " in text and f"| `{name}` | 20 | step x | 3.0e-09 |" in text for name in nf.algorithms())


def test_rows_and_numbers_of_the_benchmark_do_not_depend_on_the_processes(capsys):
    given = ["heat", "richardson", "--sizes", "4", "--systems", "2", "--dtypes", "float64"]
    one, two = (benchmark.main([*given, "--jobs", jobs]) for jobs in ("1", "2"))
    assert [replace(row, seconds=0) for row in one] == [replace(row, seconds=0) for row in two]


def test_float32_reaches_a_thousandth_where_the_program_is_tame():
    for name in ("cg", "jacobi", "power", "newton_schulz", "ista", "pagerank", "value_iteration"):
        assert max(measure(name, 8, systems=4, dtype=torch.float32).step.values()) <= 1e-3
