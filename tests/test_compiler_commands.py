"""The command ``algorithms``, the picture, and the guide's example."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import nlaformer as nf
from benchmarks import algorithms as benchmark
from nlaformer.cli import algorithms as commands
from nlaformer.compiler.library import record
from nlaformer.errors import FileError, NLAFormerError


@pytest.fixture
def application():
    app = typer.Typer()
    app.command()(commands.algorithms)
    return app


def test_one_algorithm_as_json(application):
    result = CliRunner().invoke(application, ["richardson", "--n", "4", "--json"])
    document = json.loads(result.stdout)
    (row,) = document["algorithms"]
    assert row["name"] == "richardson" and row["layers"] == 1 and max(row["step"].values()) < 1e-10
    assert (
        row["seconds"] > 0
        and row["last"] < 1e-10
        and "class Richardson(Program):" in document["program"]
        and document["provenance"]
    )


def test_show_prints_the_program_the_schedule_and_draws(application, tmp_path):
    result = CliRunner().invoke(application, ["cg", "--n", "4", "--show", "--out", str(tmp_path / "new")])
    assert "class ConjugateGradient(Program):" in result.stdout
    assert "loop block (step): 7 layers" in result.stdout
    picture = (tmp_path / "new" / "cg-n4.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


def test_a_program_that_takes_over_methods_is_shown_with_them(application):
    result = CliRunner().invoke(application, ["gauss_seidel", "--n", "3", "--json"])
    source = json.loads(result.stdout)["program"]
    assert "class SuccessiveOverrelaxation(Program):" in source and "class GaussSeidel(Program):" in source


@pytest.mark.parametrize("name", nf.algorithms())
def test_the_program_that_is_shown_runs_on_its_own(name):
    entry, scope = record(name), {"__name__": "shown"}
    exec(compile(commands._source(entry.program), "shown.py", "exec"), scope)
    given = {key: value[0] for key, value in entry.problems(4, 1, 0)[0].items()}
    shown = scope[entry.program.__name__]().run(**given, iterations=2)
    np.testing.assert_array_equal(shown.x, entry.program().run(**given, iterations=2).x)


def test_the_program_is_printed_as_it_is_in_a_narrow_terminal(application, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    printed = CliRunner().invoke(application, ["gmres", "--n", "4"]).stdout
    assert printed.startswith(commands._source(record("gmres").program) + "\n\n")


def test_the_heads_of_all_layers_are_those_of_the_list(application):
    document = json.loads(CliRunner().invoke(application, ["cg", "--n", "4", "--json"]).stdout)
    loop, compiled = document["cost"]["loop (one step)"], nf.algorithm("cg", 4, verify=False)
    assert loop["heads_of_all_layers"] == document["algorithms"][0]["heads"] == compiled.loop_heads
    assert loop["heads"] == compiled.cost.loop.heads


def test_the_list_has_every_algorithm_of_every_group(application):
    result = CliRunner().invoke(application, ["--json"])
    document = json.loads(result.stdout)
    assert tuple(row["name"] for row in document["algorithms"]) == nf.algorithms() and document["provenance"]
    printed = CliRunner().invoke(application, ["--markdown"]).stdout
    assert all(f"| {name} |" in printed for name in nf.algorithms())


def test_the_folder_of_the_drawing_is_made_before_anything_is_measured(application, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(commands, "_converge", lambda *given: pytest.fail("measured first"))
    for path, words in ((tmp_path / "file", "file"), (tmp_path / "a" / "b", "a")):
        result = CliRunner().invoke(application, ["cg", "--n", "4", "--show", "--out", str(path)])
        assert isinstance(result.exception, FileError) and words in str(result.exception)


def test_the_table_lists_algorithms_that_follow_numpy_to_1e_minus_10():
    names = ["cg", "power", "newton_schulz", "scalar_newton"]
    rows = [benchmark.measure(name, n=4, iterations=20) for name in names]
    assert [line[0] for line in benchmark.table_sheet(rows).lines] == names
    assert all(row["last_deviation"] < 1e-10 for row in rows)
    assert rows[0]["iterations"]["1e-06"] is not None


def test_wrong_arguments_raise_the_packages_own_errors(application):
    for arguments in (
        ["cgg"],
        ["cg", "--n", "0"],
        ["--n", "0"],
        ["cg", "--n", "-3"],
        ["--show"],
        ["cg", "--dtype", "float16"],
        ["cg", "--json", "--markdown"],
    ):
        assert isinstance(CliRunner().invoke(application, arguments).exception, NLAFormerError)
    assert isinstance(CliRunner().invoke(application, ["ista", "--n", "3", "--show"]).exception, NLAFormerError)


def test_the_example_of_docs_compile_runs():
    guide = (Path(__file__).parents[1] / "docs" / "compile.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)[0]
    scope: dict = {"print": lambda *values: None}
    exec(compile(example, "docs/compile.md", "exec"), scope)
    assert scope["run"].x.shape == (301, 20) and np.isfinite(scope["run"].x).all()
