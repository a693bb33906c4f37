"""The page of a recording: its numbers are the recording's, it loads nothing, and names in it are text."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest

import nlaformer as nf
from nlaformer.errors import OptionError
from nlaformer.learn.model import initial
from nlaformer.learn.models import untrained
from nlaformer.report import recording
from tests.browser import DESKTOP, PHONE, Visit, chromium  # noqa: F401

TINY = {"n": 3, "T": 3, "d": 8, "heads": 2}


@pytest.fixture(scope="module")
def systems():
    A, b, _ = nf.problems.SPD(n=3).sample(2, seed=0)
    return A.numpy(), b.numpy()


def _data(page: str) -> dict:
    return json.loads(re.findall(r"^const data = (.*);$", page, flags=re.MULTILINE)[0])


def _array(data: dict, part: dict) -> np.ndarray:
    numbers = np.frombuffer(base64.b64decode(data["numbers"]), dtype="<f4")
    return numbers[part["start"] :][: int(np.prod(part["shape"]))].reshape(part["shape"])


def test_the_numbers_of_the_page_are_those_of_the_recording(systems):
    cg = nf.algorithm("cg", n=3, verify=False)
    record = nf.trace(cg, *systems, iterations=2)
    data = _data(record.to_html(system=1))
    names = [layer["name"] for layer in data["layers"]]
    assert names == list(dict.fromkeys(name.rpartition("].")[0] + "]" for name in record if ".layer[" in name))
    for layer in data["layers"]:
        for part, name in (("input", "input"), ("output", "output"), ("weights", "attention.weights")):
            if f"{layer['name']}.{name}" in record:
                wanted = record[f"{layer['name']}.{name}"][1].astype("f4")
                assert np.array_equal(_array(data, layer[part]), wanted)
    found = {state["name"]: _array(data, state) for state in data["states"]}
    assert np.array_equal(found["r"], record.registers["r"][1].astype("f4")) and found["rho"].shape == (3,)
    by_name = {layer["name"]: layer for layer in data["layers"]}
    assert by_name["loop[1].layer[0]"]["step"] == 1 and by_name["pre.layer[0]"]["step"] == 0
    assert all(layer["computes"] for layer in data["layers"])
    assert [(name, height) for name, _, height in data["rows"]] == list(cg.layout.registers)


def test_models_of_every_kind_and_partial_recordings_have_a_page(systems):
    A, b = systems
    for model, operands in (
        (nf.operation("matvec", n=3), (A, b)),
        (initial(nf.recipe("quickstart", **TINY)), (A, b)),
        (untrained(nf.recipe("guided-quickstart", **TINY)), (A, b)),
        (nf.operation("matvec", n=3).model, (nf.operation("matvec", n=3).prompt(A, b),)),
    ):
        for keep in ("*", "*.attention.weights"):
            record = nf.trace(model, *operands, keep=keep)
            assert _data(record.to_html())["layers"] and "Trace of" in record._repr_html_()
    assert {s["name"] for s in _data(nf.trace(initial(nf.recipe("quickstart", **TINY)), A, b).to_html())["states"]} == {
        "x", "probe of r", "probe of d"}  # fmt: skip


def test_the_page_loads_nothing_and_shows_names_as_text():
    evil = "</script><img src=x onerror=alert(1)>"
    layer = recording.RecordedLayer(evil, evil, 0, np.eye(2), np.full((2, 2), np.nan))
    page = recording.recording_page(evil, [layer], {evil: np.zeros((1, 2))}, [(evil, 2)])
    assert "<img" not in page and page.count("</script>") == 1
    assert not re.findall(r"(?:src|href)=|url\(|https?:|import\(|fetch\(|innerHTML", page.replace("img src=x", ""))
    data = _data(page)
    assert data["rows"][0][0] == evil and np.isnan(_array(data, data["layers"][0]["output"])).all()


def test_a_system_that_is_not_there_and_a_page_too_large_are_refused(systems, monkeypatch):
    record = nf.trace(nf.operation("matvec", n=3), *systems)
    with pytest.raises(OptionError, match="2"):
        record.to_html(system=2)
    monkeypatch.setattr(recording, "_LARGEST", 1000)
    with pytest.raises(OptionError, match="MB"):
        record.to_html()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_browser_shows_the_layers_and_the_values_of_the_recording(size, systems, chromium, tmp_path):  # noqa: F811
    record = nf.trace(nf.algorithm("cg", n=3, verify=False), *(array[0] for array in systems), iterations=2)
    (tmp_path / "trace.html").write_text(record.to_html(), encoding="utf-8")
    visit = Visit(chromium, tmp_path / "trace.html", size, color_scheme="dark")
    try:
        page, names = visit.page, [layer["name"] for layer in _data(record.to_html())["layers"]]
        wanted = "loop[1].layer[0]"
        page.locator("#layer").focus()
        for _ in range(names.index(wanted)):
            page.keyboard.press("ArrowRight")
        assert wanted in page.locator("#name").inner_text()
        assert page.locator("#computes").inner_text() == record.about.computes(wanted)
        assert page.locator("canvas").count() == 2 + len(record.attention[wanted])
        (line,) = (text for text in page.locator("#states p").all_inner_texts() if text.startswith("r "))
        assert np.allclose([float(word) for word in line.split()[1:]], record.registers["r"][1], rtol=1e-5)
        box = page.locator("#before canvas").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 3)  # row 0, the last token
        read = float(page.locator("#reading").inner_text().rpartition(": ")[2])
        assert read == pytest.approx(record[f"{wanted}.input"][0, -1], rel=1e-5)
        page.locator("#scale").select_option("linear")
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert visit.complaints == [] and visit.elsewhere == []
    finally:
        visit.context.close()
