"""The pages of the repository: their links lead somewhere, and the commands they name exist."""

import argparse
import importlib
import pkgutil
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer.main

import nlaformer as nf
from nlaformer.cli import app
from nlaformer.learn.recipes import recipes
from paper import plan
from paper.__main__ import _parser
from paper.artefacts import ARTEFACTS

ROOT = Path(__file__).parents[1]
COMMANDS = typer.main.get_command(app)
# Pages that are drawn from results, or that name commands of the past.
HISTORY = ("CHANGELOG.md", "paper/tables/")


def _pages() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    return listed or [str(path.relative_to(ROOT)) for path in ROOT.glob("*.md")]  # in an archive without history


def _headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", _pages())
def test_relative_links_lead_to_a_file_and_a_heading(name: str):
    page = ROOT / name
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name}: {target}"
        assert not anchor or anchor in _headings(file), f"{name}: {target}"


def _commands(text: str) -> list[list[str]]:
    """The commands of a page, in code blocks and between backticks, as words."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"^```(?:console|bash|)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", text)
    starts = re.compile(r"(?:\S+/)?(?:torchrun .*?-m )?(nlaformer |python -m |python benchmarks/)")
    return [shlex.split(line, comments=True) for line in lines if starts.match(line)]


@pytest.mark.parametrize("name", [name for name in _pages() if not name.startswith(HISTORY)])
def test_commands_that_a_page_names_exist(name: str):
    for words in _commands((ROOT / name).read_text(encoding="utf-8")):
        line = shlex.join(words)
        if words[0] == "torchrun":
            words = words[words.index("-m") + 1 :]
        if words[0] == "nlaformer":
            _check_library(words[1:], line)
        elif words[:3] == ["python", "-m", "paper"]:
            _check_paper(words[3:], line)
        else:
            assert words[:2] == ["python", "-m"], f"{name}: {line}"
            importlib.import_module(words[2])


def _check_library(words: list[str], line: str) -> None:
    command = COMMANDS
    while words and not words[0].startswith("-") and hasattr(command, "commands"):
        assert words[0] in command.commands, line
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    for word in words:
        assert not word.startswith("--") or word.partition("=")[0] in known | {"--help", "--version"}, line
    if command.name in ("train", "sweep") and words and words[0].islower():
        assert words[0].startswith("--") or words[0] in (*recipes(), "poisson"), line  # poisson: of CONTRIBUTING.md


def _check_paper(words: list[str], line: str) -> None:
    (group,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    if not words:
        return
    assert words[0] in group.choices, line
    if words[0] in ("draw", "run") and len(words) > 1 and not words[1].startswith("-"):
        groups = {f"confirmatory-{run.group}" for run in plan.confirmatory().values()}
        assert words[1] in {*(artefact.name for artefact in ARTEFACTS), *groups, "all", "next", "NAME"}, line
    known = group.choices[words[0]]._option_string_actions
    assert all(word in known for word in words[1:] if word.startswith("--")), line


def test_tests_that_a_page_names_exist():
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    pages = "".join((ROOT / name).read_text(encoding="utf-8") for name in _pages())
    named = set(re.findall(r"`(test_\w+)`", pages))
    assert named and [name for name in sorted(named) if f"def {name}(" not in tests] == []


def test_citation_changelog_and_readme_name_this_version():
    assert re.search(rf"^version: {re.escape(nf.__version__)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert f"## {nf.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"nlaformer {nf.__version__}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_modules_that_the_newest_table_of_the_changelog_names_exist():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    table = re.search(r"^\| in version [\d.]+ \| now \|\n(.*?)\n\n", changelog, flags=re.MULTILINE | re.DOTALL)[1]
    rows = [row.strip("|").split("|")[1] for row in table.splitlines()[1:]]
    named = [name for row in rows for name in re.findall(r"`((?:nlaformer|paper|benchmarks)[\w.]*)`", row)]
    assert named
    for name in named:
        pkgutil.resolve_name(name)  # raises where there is no such module or attribute
