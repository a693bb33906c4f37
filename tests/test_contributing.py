"""CONTRIBUTING.md, followed literally: its edits go into a copy of the package, and what stands under "Then" runs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ") if part.startswith("Add ")}

EDIT = re.compile(
    r"^(?:New file `(?P<new>[^`]+)`"
    r"|In `(?P<file>[^`]+)`, (?P<where>above|below|at the end of) (?:the row )?`(?P<anchor>[^`]+)`):\n\n"
    r"```\w+\n(?P<block>.*?)```$",
    flags=re.MULTILINE | re.DOTALL,
)
CODE = re.compile(r"^```(python|)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its pages with every edit of the page."""
    root = tmp_path_factory.mktemp("checkout")
    unused = shutil.ignore_patterns("__pycache__", "*.safetensors")
    for folder in ("nlaformer", "docs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=unused)
    shutil.copy(ROOT / "pyproject.toml", root)
    for section in SECTIONS.values():
        edits = list(EDIT.finditer(section))
        assert edits and len(edits) == len(re.findall(r"^(?:In|New file) `", section, flags=re.MULTILINE))
        for edit in edits:
            _apply(root, **edit.groupdict())
    return root


def _apply(root: Path, new: str | None, file: str | None, where: str, anchor: str, block: str) -> None:
    if new is not None:
        (root / new).write_text(block, encoding="utf-8")
        return
    path = root / str(file)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    start = f"{anchor}: " if where == "at the end of" else anchor  # a table is annotated with its type
    found = [index for index, line in enumerate(lines) if line.lstrip(" |`").startswith(start)]
    assert len(found) == 1, f"{file} has {len(found)} lines that begin with {start}"
    (place,) = found
    if where == "at the end of":
        place = next(index for index in range(place, len(lines)) if lines[index].startswith("}"))
    elif where == "below":
        place += 1
    space = "\n\n" if block.startswith(("def ", "class ")) else ""
    lines.insert(place, block + space)
    path.write_text("".join(lines), encoding="utf-8")


def _run(root: Path, *command: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_accepts_the_edits_of_the_page(copy: Path):
    _run(copy, sys.executable, "-m", "ruff", "check", "nlaformer")
    _run(copy, sys.executable, "-m", "ruff", "format", "--check", "nlaformer")


@pytest.mark.parametrize("section", SECTIONS)
def test_what_the_page_adds_is_found_through_the_public_interface(copy: Path, section: str):
    blocks = CODE.findall(EDIT.sub("", SECTIONS[section]))
    assert blocks
    for kind, code in blocks:
        if kind == "python":
            imports = "import numpy as np, torch, nlaformer as nf\n"
            _run(copy, sys.executable, "-c", imports + code)
        else:
            for line in code.splitlines():
                _run(copy, sys.executable, "-m", *shlex.split(line))


def test_the_doctests_of_the_edited_modules_pass(copy: Path):
    edited = {edit["new"] or edit["file"] for section in SECTIONS.values() for edit in EDIT.finditer(section)}
    modules = sorted(name for name in edited if name.endswith(".py"))
    _run(copy, sys.executable, "-m", "pytest", "-q", "--rootdir", ".", *modules)
