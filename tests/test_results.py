"""Filed results: each names its commit and its code, and says when the code has changed since."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import command
from nlaformer import provenance
from paper.results import Results, older

ROOT = Path(__file__).parents[1]
FILED = sorted([*(ROOT / "paper" / "results").rglob("*.json"), *(ROOT / "benchmarks" / "results").glob("*.json")])


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit, in the place of this one."""
    git(tmp_path, "init", "-q")
    (tmp_path / "nlaformer").mkdir()
    (tmp_path / "nlaformer" / "code.py").write_text("1\n")
    (tmp_path / "other.py").write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "first")
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    provenance._differences.cache_clear()
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True).stdout


def test_every_filed_result_names_its_commit_and_the_code_that_made_it():
    assert len(FILED) > 200
    for path in FILED:
        where = json.loads(path.read_text(encoding="utf-8"))["provenance"]
        assert where["commit"] and where["files"], path


def test_a_result_is_older_than_a_change_of_its_own_code_alone(checkout: Path):
    where = {"commit": git(checkout, "rev-parse", "HEAD").strip(), "files": ["nlaformer"]}
    (checkout / "other.py").write_text("2\n")
    assert provenance.changed_since(where) == []
    provenance._differences.cache_clear()
    (checkout / "nlaformer" / "code.py").write_text("2\n")
    assert provenance.changed_since(where) == ["nlaformer/code.py"]
    assert provenance.changed_since(where | {"commit": where["commit"] + " with changes"}) == ["nlaformer/code.py"]


@pytest.mark.parametrize("commit", [None, "0" * 40, "no commit"])
def test_a_result_of_an_unknown_commit_is_not_called_new(checkout: Path, commit: str | None):
    assert provenance.changed_since({"commit": commit, "files": ["nlaformer"]}) is None


def test_reading_an_older_result_says_so_and_verdicts_lists_it(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = command.write(tmp_path / "found.json", {"provenance": provenance.provenance(), "found": 1})
    assert command.read(file)["found"] == 1 and not capsys.readouterr().err
    where = {"commit": git(checkout, "rev-parse", "HEAD").strip(), "files": ["nlaformer"]}
    folder = tmp_path / "results"
    Results(folder).write("controls", {})
    document = json.loads((folder / "controls.json").read_text())
    document["provenance"] |= where
    (folder / "controls.json").write_text(json.dumps(document))
    assert older(Results(folder)) == {}
    provenance._differences.cache_clear()
    (checkout / "nlaformer" / "code.py").write_text("3\n")
    assert older(Results(folder)) == {("nlaformer/code.py",): ["controls"]}
    command.write(file, {"provenance": provenance.provenance() | where, "found": 1})
    command.read(file)
    assert "nlaformer/code.py" in capsys.readouterr().err


def test_scripts_that_measure_models_call_them_as_a_user_does():
    scripts = [*(ROOT / "paper").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    raw = [path.name for path in scripts if re.search(r"\bnormalize=", path.read_text(encoding="utf-8"))]
    assert sorted(raw) == ["learned_operations.py", "scale.py"]  # of operations; and what compares the two calls
