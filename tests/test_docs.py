"""The pages of docs/ as a reader uses them: their code runs, the reference is complete, the check of the site works."""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import nlaformer as nf
from nlaformer.microscope import battery
from tests.command import run_command

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SMALL = {"steps": 4, "warmup": 2, "d": 16, "heads": 2, "batch": 4}
# Pages whose blocks run here, one after the other; of some only the blocks above a heading.
RUN = {
    "index": "",
    "first-steps": "",
    "faq": "",
    "problems": "",
    "any-size": "",
    "learn": "## Your own family",
    "tasks": "## A task of your own",
}
# Pages, or the rest of them, whose blocks other tests run and judge.
ELSEWHERE = {
    "compile": "test_compiler_commands.py",
    "learn": "test_learn_programs.py",
    "tasks": "test_tasks.py",
    "solve": "test_solve_command.py",
    "microscope": "test_microscope_page.py",
    "battery": "test_microscope.py",
}


def _blocks(text: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", RUN)
def test_the_code_of_a_page_runs_as_it_stands(name, tmp_path, monkeypatch):
    """Trainings take a few steps of a small network, everything else is as on the page."""
    train = nf.train
    monkeypatch.setattr(nf, "train", lambda config, out: train(config.replace(**SMALL), out=out))
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    blocks = _blocks(text.split(RUN[name])[0] if RUN[name] else text)
    scope: dict[str, object] = {"__name__": name}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for number, block in enumerate(blocks):
            exec(compile(block, f"docs/{name}.md, block {number}", "exec"), scope)
    assert blocks


def test_every_page_with_code_is_run_by_a_test():
    with_code = {path.stem for path in DOCS.glob("*.md") if _blocks(path.read_text(encoding="utf-8"))}
    assert with_code == {*RUN, *ELSEWHERE, "tutorial"}
    for page, test in ELSEWHERE.items():
        assert f'"{page}.md"' in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_the_tutorial_compiles_trains_solves_and_looks(tmp_path, monkeypatch, capsys):
    """The network is small, its training short, and the battery takes few systems."""
    monkeypatch.setattr(battery, "QUICK", battery.Effort(count=12, matrices=2, right_hand_sides=40, fitting=24))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    own, compiling, using = _blocks(text)
    training, looking = (shlex.split(line)[1:] for line in re.findall(r"^nlaformer .*$", text, flags=re.MULTILINE))
    (tmp_path / "springs.py").write_text(own, encoding="utf-8")
    few = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    assert run_command(monkeypatch, capsys, *training, *few)[0] == 0
    exec(compile(compiling + using, "docs/tutorial.md", "exec"), {"__name__": "tutorial"})
    assert run_command(monkeypatch, capsys, *looking)[0] in (0, 1)  # 1: no algorithm is named
    assert "<svg" in (tmp_path / "springs.html").read_text(encoding="utf-8")


def test_the_reference_has_every_public_name_once():
    listed = re.findall(r"^- `nf\.([\w.]+)`", (DOCS / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    wanted = {name for name in nf.__all__ if name not in ("__version__", "problems", "errors")}
    wanted |= {f"problems.{name}" for name in nf.problems.__all__ if name != "Rival"}  # a type alias, in prose
    wanted |= {f"errors.{name}" for name, value in vars(nf.errors).items() if isinstance(value, type) and name[0] != "_"
               and issubclass(value, Exception)}  # fmt: skip
    assert sorted(listed) == sorted(wanted)


def test_every_page_is_in_the_navigation():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"^- \[[^]]+\]\(([\w-]+)\.md\)", index, flags=re.MULTILINE))
    assert linked == {path.stem for path in DOCS.glob("*.md")} - {"index"}


def test_make_docs_builds_the_site_without_a_network_a_warning_or_a_broken_link(tmp_path):
    pytest.importorskip("sphinx", reason="sphinx is not installed: pip install -e .[dev]")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    command = ["make", "docs", f"RUN={sys.executable}", f"BUILD={tmp_path}", "--old-file=.venv/installed"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | nowhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "explorer.html").stat().st_size > 1_000_000
    reference = (tmp_path / "site" / "docs" / "api.html").read_text(encoding="utf-8")
    assert all(f'id="nlaformer.{name}"' in reference for name in ("algorithm", "NLAFormer.states", "solve"))


def test_the_check_of_the_site_finds_broken_links_and_what_comes_from_the_network(tmp_path):
    problems = runpy.run_path(str(DOCS / "check_site.py"))["problems"]
    (tmp_path / "other.html").write_text('<p id="there">', encoding="utf-8")
    good = (
        '<script src="own.js"></script><a href="other.html#there"><a href="https://example.org"><a href="#me" id="me">'
    )
    (tmp_path / "page.html").write_text(good, encoding="utf-8")
    assert problems(tmp_path) == []
    bad = {
        '<a href="missing.html">': "missing.html",
        '<a href="other.html#nowhere">': "other.html#nowhere",
        '<script src="https://cdn.example.org/x.js"></script>': "cdn.example.org",
        '<link rel="stylesheet" href="//fonts.example.org/x.css">': "fonts.example.org",
        '<style>p {background: url("https://img.example.org/x.png")}</style>': "img.example.org",
        '<script>import("https://lib.example.org/x.js")</script>': "lib.example.org",
    }
    for line, named in bad.items():
        (tmp_path / "page.html").write_text(line, encoding="utf-8")
        (found,) = problems(tmp_path)
        assert named in found
    assert problems(tmp_path / "empty")
