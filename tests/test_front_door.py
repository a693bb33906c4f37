"""The public names: loaded lazily, seen by editors and type checkers with concrete types."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nlaformer as nf

ROOT = Path(nf.__file__).parent.parent
SCRIPT = Path(__file__).with_name("user_script.py")
HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib")


def _typed() -> dict[str, str]:
    """The names that a type checker is told of, with their modules."""
    tree = ast.parse(Path(nf.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or "": str(node.module) for node in imports for alias in node.names}


def test_the_lazy_names_are_those_that_a_type_checker_sees():
    assert _typed() == nf._HOME


@pytest.mark.parametrize("name", sorted(nf.__all__))
def test_a_public_name_can_be_loaded_and_says_what_it_is(name: str):
    value = getattr(nf, name)
    assert name in dir(nf)
    assert name == "__version__" or inspect.getdoc(value)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="solv"):
        nf.solv  # noqa: B018


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, nlaformer; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_the_types_of_a_user_script_hold_no_any_of_ours(tmp_path: Path):
    """Mypy --strict --disallow-any-expr finds nothing in a script that touches every public name."""
    source = SCRIPT.read_text(encoding="utf-8")
    assert [name for name in nf.__all__ if not re.search(rf"\bnf\.{name}\b", source)] == []
    (tmp_path / "script.py").write_text(source, encoding="utf-8")
    flags = ["--strict", "--disallow-any-expr", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}"]
    command = [sys.executable, "-m", "mypy", "--config-file=", *flags, "script.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
