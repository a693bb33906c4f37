"""The rooms of the package import downwards only, as docs/architecture.md lists it.

A room is a module or a folder of ``nlaformer/``. Counted are imports at the top and inside functions, and dotted names
in string literals, which ``importlib`` may load. Not counted are docstrings and imports under ``if TYPE_CHECKING``,
which do not exist at run time, and ``nlaformer.__version__``, which is set before anything else is loaded. The front
door, ``nlaformer/__init__.py``, stands above all rooms: only the command line may go through it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import nlaformer
from nlaformer import compiler
from nlaformer.express.theorem import RECORDS

PACKAGE = Path(nlaformer.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"
FRONT_DOOR = "the front door"
ROOMS = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
ROOMS -= {"__init__", "__main__"}


def _room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return {"__init__": FRONT_DOOR, "__main__": "cli"}.get(first, first)


def _names(tree: ast.AST) -> Iterator[str]:
    """Every dotted name below ``nlaformer`` that a module imports or spells in a string."""
    hidden = {child for node in ast.walk(tree) if _is_for_type_checkers(node) for part in node.body
              for child in ast.walk(part)}  # fmt: skip
    described = {node.body[0].value for node in ast.walk(tree) if _has_docstring(node)}
    doors = set()
    for node in ast.walk(tree):
        if node in hidden or node in described:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("nlaformer."))
            doors |= {alias.asname or alias.name for alias in node.names if alias.name == "nlaformer"}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "nlaformer":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\bnlaformer(?:\.\w+)+", node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in doors:
            yield f"nlaformer.{node.attr}"


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _has_docstring(node: ast.AST) -> bool:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None


def _graph() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    found: dict[str, set[str]] = {room: set() for room in (*ROOMS, FRONT_DOOR)}
    for path in PACKAGE.rglob("*.py"):
        room = _room_of(path)
        for name in _names(ast.parse(path.read_text(encoding="utf-8"))):
            part = name.split(".")[1]
            if part != "__version__":
                found[room].add(part if part in ROOMS else FRONT_DOOR)
    return {room: others - {room} for room, others in found.items()}


def _listed() -> dict[str, set[str]]:
    """The table of docs/architecture.md: the rooms that each room may import."""
    lines = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {room: {other.strip() for other in others.split(",")} - {"nothing"} for room, others in lines}


def test_every_room_is_described_and_every_described_room_exists():
    assert set(_listed()) == ROOMS


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_only_what_the_page_allows(room: str):
    assert _graph()[room] <= _listed()[room]


def test_the_page_lists_no_import_that_does_not_exist():
    graph = _graph()
    assert {(room, other) for room, others in _listed().items() for other in others - graph[room]} == set()


def test_no_cycle_between_rooms():
    tuple(TopologicalSorter(_graph()).static_order())


def test_the_library_does_not_import_the_paper_or_the_benchmarks():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {name.split(".")[0] for name in names} & {"paper", "benchmarks", "tests"}, path


def test_the_modules_of_the_explorers_page_import_downwards_as_its_table_lists_them():
    lines = re.findall(
        r"^\| ((?:`\w+` ?)+)\| .* \|$", PAGE.read_text("utf-8").split("## The explorer's page")[1], re.MULTILINE
    )
    row = {name: k for k, files in enumerate(lines) for name in re.findall(r"\w+", files)}
    scripts = {path.stem: path.read_text("utf-8") for path in (PACKAGE / "explorer" / "page").glob("*.js")}
    assert set(row) == set(scripts)
    taken = {name: re.findall(r'^import .* from "\./(\w+)\.js";', text, re.MULTILINE) for name, text in scripts.items()}
    assert sum(map(len, taken.values())) > 50
    assert [(name, other) for name, others in taken.items() for other in others if row[other] < row[name]] == []


def test_only_the_command_line_knows_of_typer():
    users = {_room_of(path) for path in PACKAGE.rglob("*.py") if re.search(r"\btyper\b", path.read_text("utf-8"))}
    assert users - {"provenance"} == {"cli"}  # provenance lists its version


def test_the_names_in_the_map_from_paper_to_code_exist():
    page = PAGE.read_text(encoding="utf-8")
    named = re.findall(r'`(?:nf\.operation\()?"(\w+)"', page)
    assert set(named) == {name for name, record in RECORDS.items() if record.printed}  # those of the paper
    dotted = re.findall(r"`(nlaformer(?:\.\w+)+)`", page)
    assert dotted
    for name in dotted:
        home, _, attribute = name.rpartition(".")
        assert (
            importlib.util.find_spec(name) if attribute.islower() else hasattr(importlib.import_module(home), attribute)
        )
    for name in re.findall(r"`nf\.(\w+)", page):
        assert hasattr(nlaformer, name), name
    for path in re.findall(r"`(paper/[\w./]*)`", page):
        assert (PACKAGE.parent / path).exists(), path


def test_the_map_of_the_compiler_names_every_module():
    modules = {path.stem for path in (PACKAGE / "compiler").glob("*.py")} - {"__init__"}
    assert modules <= set(re.findall(r"\w+", compiler.__doc__ or ""))
