"""The examples: every script runs as a user runs it, and a notebook is exactly what its script gives."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path

import pytest
import torch

from examples import notebooks

SCRIPTS = notebooks.scripts()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Where an example trains or measures much, it says itself what the short form leaves out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NLAFORMER_EXAMPLES", "short")
    threads = torch.get_num_threads()
    runpy.run_path(str(script), run_name="__main__")
    assert torch.get_num_threads() == threads
    assert capsys.readouterr().out and all(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert list((tmp_path / "out").glob("*.png"))


def test_a_notebook_is_what_its_script_gives():
    assert len(SCRIPTS) == 4 and notebooks.outdated() == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_is_the_code_that_runs(script: Path):
    cells = json.loads(script.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(script.read_text(encoding="utf-8")))


def test_cells_of_a_notebook_are_those_of_the_script():
    made = json.loads(notebooks.notebook("# %% [markdown]\n# # Title\n#\n# text\n\n# %%\nx = 1\n\nx\n"))
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in made["cells"]] == [
        ("markdown", "# Title\n\ntext"),
        ("code", "x = 1\n\nx"),
    ]
    assert made["nbformat"] == 4 and len({cell["id"] for cell in made["cells"]}) == 2
