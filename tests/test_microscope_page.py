"""The snippets of docs/microscope.md run as they stand, and do what the page says of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import nlaformer as nf

PAGE = (Path(__file__).parents[1] / "docs" / "microscope.md").read_text(encoding="utf-8")
SECTIONS = ("Record", "Intervene", "Probe", "Other tools")


def _section(title: str) -> str:
    return re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:][_titles().index(title)]


def _titles() -> list[str]:
    return re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE)


def _code(*titles: str, marked: str = "") -> str:
    """The snippets of sections; those after a mark, or those without one."""
    text = "".join(_section(title) for title in titles)
    return "\n".join(code for mark, code in re.findall(r"(<!-- \w+ -->\n)?```python\n(.*?)```", text, flags=re.DOTALL)
                     if mark.strip("<>!- \n") == marked)  # fmt: skip


@pytest.fixture(scope="module")
def scope() -> dict:
    found: dict = {}
    exec(_code(*SECTIONS), found)
    return found


def test_snippets_of_the_page_do_what_it_says(scope):
    record, cg = scope["record"], scope["cg"]
    run = cg.run(scope["A"], scope["b"], iterations=5)
    assert np.array_equal(record.iterates, run.x) and np.array_equal(scope["same"].x, run.x)
    assert np.array_equal(scope["exchanged"].output[:, 1], run.x[:, 1])
    for name in ("without", "scaled", "other"):
        assert not np.allclose(scope[name].x[:, -1], run.x[:, -1]), name
    assert len(scope["seen"]) == 5 and scope["cache"].names == tuple(n for n in record if n in scope["cache"])
    assert scope["found"].beyond_controls("cg.r")
    assert set(re.findall(r"`\.\.\.\.([a-z.]+)`", PAGE)) == {n.split("].")[-1] for n in record if ".layer" in n} - {
        "input"
    }


def test_the_idioms_of_nnsight_work_on_the_modules(scope, tmp_path):
    """Skipped where nnsight, which is an extra, is not installed."""
    pytest.importorskip("nnsight")
    found, file = dict(scope), tmp_path / "page.py"
    file.write_text(_code("Other tools", marked="nnsight"), encoding="utf-8")  # nnsight reads the source of a block
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), found)
    record = nf.trace(found["cg"].model, found["P"], loops=3)
    for i, weights in enumerate(found["weights"]):
        assert np.array_equal(weights, record[f"loop[{i}].layer[0].attention.weights"])
