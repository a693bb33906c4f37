"""The command line: exit codes, one clear line for a mistake, plain output, JSON for programs."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.console import Sheet, to_text
from nlaformer.express import accuracy
from nlaformer.learn import recipes
from tests.command import run_command

HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "numpy")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command in this process: exit code, standard output, standard error."""

    def command(*arguments: str, columns: int | None = None) -> tuple[int, str, str]:
        code, said = run_command(monkeypatch, capsys, *arguments, columns=columns)
        return code, *said

    return command


def test_a_name_too_long_for_a_file_is_a_mistake_in_one_line(run):
    code, out, err = run("evaluate", "a" * 5000)
    assert (code, out) == (2, "") and "too long" in err and len(err.splitlines()) == 1


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training of the demo, but of a few steps; the explorer, which has tests of its own, is not packed."""
    monkeypatch.setattr("nlaformer.explorer.write_page", lambda path: path)
    short = recipes.recipe("guided-quickstart", steps=10, warmup=2)
    monkeypatch.setattr(nf, "recipe", lambda name: short, raising=False)


def test_help_loads_nothing_heavy():
    code = f"""
import sys
from nlaformer.cli import main
sys.argv = ["nlaformer", "--help"]
try:
    main()
except SystemExit as exit:
    print("loaded:", [name for name in {HEAVY} if name in sys.modules], exit.code)
"""
    root = Path(nf.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert "loaded: [] 0" in done.stdout
    for command in ("demo", "operations", "solve", "info"):
        assert command in done.stdout


def test_no_line_in_a_list_of_commands_is_cut_short(run):
    code, out, _ = run("--help")
    listed = out.partition("Commands:")[2].splitlines()[1:]
    assert code == 0 and listed and all(line.endswith(".") and not line.endswith("...") for line in listed)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["operations", "matmull"], "'matmul'"),
        (["operations", "matmul", "--n", "0"], "n is 0"),
        (["operations", "matmul", "--order", "7"], "1, 2 or 3"),
        (["operations", "matmul", "--dtype", "float16"], "float32"),
        (["operations", "matmul", "--scheme", "papers"], "'paper'"),
        (["operations", "--json", "--markdown"], "--markdown"),
        (["operations", "--show"], "operations matmul --show"),
        (["operations", "matmul", "--n", "9" * 20], "1024"),
        (["operations", "matmul", "--show", "--out", "missing/folder"], "missing"),
        (["operations", "--out", "missing/folder"], "--show"),
        (["operations", "matmul", "--out", "."], "--show"),
        (["algorithms", "--out", "missing/folder"], "--show"),
        (["report", "layer"], "python -m paper diagram"),
    ],
)
def test_a_mistake_is_one_clear_line_and_code_2(run, arguments: list[str], says: str):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert says in err and len(err.splitlines()) == 1 and "Traceback" not in err


@pytest.mark.parametrize("arguments", [["operation"], ["operations", "--nn", "3"], ["operations", "--n", "five"]])
def test_a_mistyped_command_or_option_is_code_2(run, arguments: list[str]):
    code, _, err = run(*arguments)
    assert code == 2 and "Traceback" not in err


def test_an_interrupt_is_code_130(run, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(accuracy, "accuracy", interrupted)
    assert run("operations", "matmul")[0] == 130


@pytest.mark.parametrize("arguments", [["--help"], ["info", "--json"], ["operations", "add", "--n", "3"]])
def test_a_reader_that_closes_the_pipe_early_is_no_error(arguments: list[str]):
    command = [sys.executable, "-m", "nlaformer", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 0)
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["info", "--json"], ["operations", "add", "--n", "3"]])
def test_an_output_that_cannot_be_written_is_one_line_and_code_2(arguments: list[str]):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "nlaformer", *arguments], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    said = done.stderr.decode()
    assert said.startswith("nlaformer: ") and os.strerror(errno.ENOSPC) in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "new"),
    [
        (["reproduce", "all", "--from-results"], "python -m paper"),
        (["probe", "cg-joint"], "python -m paper"),
        (["bench", "--help"], "python -m benchmarks"),
    ],
)
def test_a_command_that_moved_says_where(run, arguments: list[str], new: str):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and new in err and len(err.splitlines()) == 1


def test_version_is_that_of_the_package(run):
    assert run("--version") == (0, f"nlaformer {nf.__version__}\n", "")


def test_one_operation_says_how_it_is_called(run):
    out = run("operations", "matvec", "--n", "3", "--dtype", "float64")[1]
    assert "op(A, b) with A (n, n), b (n,)" in out and "A b, (n,)" in out


def test_one_operation_as_json_has_registers_cost_accuracy_and_constants(run):
    code, out, _ = run("operations", "matmul", "--n", "5", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["registers"] == {"A": 5, "B": 5, "result": 5, "position": 6, "exponent": 1}
    assert found["cost"]["layers"] == 1 and found["cost"]["heads"] == 2
    assert 0 < found["accuracy"]["float64"]["error"] < found["accuracy"]["float64"]["bound"]
    assert found["constants"]["float64"]["c"] < found["constants"]["float32"]["c"]


def test_the_table_as_json_has_every_operation_and_its_origin(run):
    found = json.loads(run("operations", "--n", "5", "--json")[1])
    assert {line["operation"] for line in found["operations"]} == set(nf.operations())
    assert found["provenance"]["versions"]["nlaformer"] == nf.__version__


def test_the_table_is_plain_text_of_eighty_columns(run):
    code, out, _ = run("operations", "--n", "5")
    assert code == 0
    assert "\x1b" not in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "…" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_the_tables_of_operations_are_valid_markdown(run):
    out = run("operations", "--n", "5", "--markdown")[1]
    assert "| matmul | 22 x 6 | 132 |" in out and out.count("**") == 4


def test_only_the_dtype_asked_for_is_measured(run):
    found = json.loads(run("operations", "matvec", "--n", "4", "--dtype", "float32", "--json")[1])
    assert list(found["accuracy"]) == ["float32"]


def test_show_draws_and_says_where(run, tmp_path: Path):
    code, out, _ = run("operations", "matrix_transpose", "--n", "4", "--show", "--out", str(tmp_path))
    picture = tmp_path / "matrix_transpose-n4.png"
    assert code == 0 and picture.exists()
    assert str(picture) in out


def test_demo_shows_its_four_parts_in_order_with_a_picture_each(run, small, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("demo")
    assert code == 0
    calls = ["nf.operation(", "nf.compile(", 'nf.load("cg-accelerated")', "nf.train(", "nf.solve("]
    places = [out.index(call) for call in calls]
    assert places == sorted(places)
    drawn = sorted(path.name for path in Path("out").glob("*.png"))
    assert [name[0] for name in drawn] == ["1", "2", "3", "3", "4"] and all(name in out for name in drawn)
    assert nf.load("out/demo-model").config.steps == 10 and "out/explorer.html" in out
    assert "\x1b" not in out and max(len(line) for line in out.splitlines()) <= 80


def test_info_names_the_version_of_torch_and_the_threads(run):
    code, out, _ = run("info")
    assert code == 0 and torch.__version__ in out
    found = json.loads(run("info", "--json")[1])
    assert found["versions"]["torch"] == torch.__version__ and found["machine"]["threads"] >= 1


# --- width ----------------------------------------------------------------------------------------------------------

NUMBERS = Sheet(
    "Numbers", ("operation", "rows x\ntokens", "entries\ngrow like", *"abcdefg"),
    (("matrix_transpose", "62 x 21", "n^1.97 (n^2)", *["1.0e-10"] * 7),),
)  # fmt: skip
WORDS = Sheet(
    "Words", ("name", "call", "arguments and shapes", "result"),
    (("transposed_matmul", "op(A, B)", "A (n, n), B (n, n)", "the pair (b, a), in P they are columns"),), words=True,
)  # fmt: skip


@pytest.mark.parametrize("sheet", [NUMBERS, WORDS], ids=["numbers", "words"])
@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_no_line_of_a_table_exceeds_the_width_and_no_cell_is_lost(sheet: Sheet, width: int):
    text = to_text(sheet, width)
    assert max(map(len, text.splitlines())) <= width
    assert all(line == line.rstrip() for line in text.splitlines())
    assert text.count("1.0e-10") == sum(cell == "1.0e-10" for cell in sheet.lines[0])


def test_a_table_that_fits_has_one_heading():
    assert to_text(NUMBERS, 200).count("operation") == 1 < to_text(NUMBERS, 60).count("operation")


def test_the_output_of_a_command_fits_into_60_columns(run):
    program = json.loads(run("algorithms", "cg", "--n", "4", "--json")[1])["program"]  # code is not folded
    for arguments in (("algorithms", "cg", "--n", "4"), ("operations", "matmul", "--n", "4"), ("info",)):
        code, out, _ = run(*arguments, columns=60)
        out = out.removeprefix(program)
        assert code == 0 and max(len(line) for line in out.splitlines()) <= 60, arguments


# --- details of one algorithm, keys of --set, names -------------------------------------------------------------------


def test_one_algorithm_shows_the_cost_of_each_block_and_the_schedule(run):
    out = run("algorithms", "cg", "--n", "4")[1]
    cost = nf.algorithm("cg", 4, verify=False).cost
    for block, layers in (("pre", cost.pre.layers), ("loop", cost.loop.layers), ("post", cost.post.layers)):
        assert re.search(rf"^{block} \(.*\) +{layers} ", out, flags=re.MULTILINE), block
    assert "A d" in out  # the product of an iteration
    found = json.loads(run("algorithms", "cg", "--n", "4", "--json")[1])
    assert found["cost"]["loop (one step)"]["layers"] == cost.loop.layers


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_help_lists_every_field_that_set_takes(run, command: str):
    code, out, _ = run(command, "--help")
    listed = re.findall(r"^  (\w+)  +\S", out.partition("Keys of")[2], flags=re.MULTILINE)
    wanted = {field.name.removesuffix("_") for field in fields(recipes.Config)} - {"recipe"}
    assert code == 0 and set(listed) == wanted


def test_a_misspelt_model_gets_a_suggestion(run):
    code, out, err = run("evaluate", "cg-acelerated")
    assert (code, out) == (2, "") and "cg-accelerated" in err and len(err.splitlines()) == 1


def test_a_method_without_its_model_names_the_option_of_the_command(run, tmp_path: Path):
    np.save(tmp_path / "A.npy", np.eye(3))
    code, _, err = run("solve", str(tmp_path / "A.npy"), "--method", "flexible")
    assert code == 2 and "flexible" in err and "model=" not in err
