"""Whatever is typed, pasted, opened or packed is shown as text, and a malformed matrix gets a sentence."""

from __future__ import annotations

import json
import re

import pytest

from nlaformer.explorer.bundle import page as page_of
from tests.explorer import link, open_view, settled

# Markup that does something, without a space, as the name of a program has none.
INJECTION = """<img/src="x"onerror="document.title='taken'">"""
SAID = """(known) => {
  const found = document.querySelector(".message.problem")?.innerText;
  return found && !known.includes(found);
}"""
# Keys of what is packed whose values are there to be read.
READ = {
    "about", "claim", "command", "file", "found", "meanings", "section", "sentences", "source", "text", "title",
    "verdict", "version",
}  # fmt: skip


@pytest.mark.parametrize("view", ["Watch", "Learned"])
def test_a_malformed_matrix_gets_a_sentence_and_markup_stays_text(visit, view):
    opened = visit(fragment=link(view=view.lower()))
    page = opened.page
    settled(page, view)
    if view == "Learned":
        page.get_by_text("Or paste a system of your own").click()
    sentences = set()
    for text in ["1 2\n3", "1 2 3\n4 5 6", "1 two\n3 4", "1 0 0 0 0 0 0\n" * 7, "1e400 0\n0 1", INJECTION]:
        page.get_by_label("Matrix A").fill(text)
        page.wait_for_function(SAID, arg=list(sentences))
        sentences.add(page.locator(".message.problem").inner_text())
    assert all(re.search(r"\w.*\.$", sentence) for sentence in sentences)
    assert any("<img" in sentence for sentence in sentences)
    _unharmed(opened)


def _unharmed(opened):
    """Nothing of what was given became markup."""
    assert opened.page.locator("img").count() == 0
    assert opened.page.title() != "taken"
    assert not opened.complaints


def test_an_empty_matrix_gets_a_sentence(visit):
    page = visit().page
    page.get_by_label("Matrix A").fill("")
    page.wait_for_function(SAID, arg=[])


@pytest.mark.parametrize("view", ["watch", "learned"])
def test_markup_in_an_address_is_shown_as_text(visit, view):
    said = dict.fromkeys(("what", "register", "model", "family"), INJECTION) | {
        "texts": {"A": INJECTION, "b": INJECTION}
    }
    opened = visit(fragment=link(view=view, **{view: said}))
    opened.page.wait_for_selector(".message.problem:has-text('<img')")
    assert opened.page.locator("textarea[id$='-A']").input_value() == INJECTION
    _unharmed(opened)


def test_markup_in_the_name_of_a_file_is_shown_as_text(visit, tmp_path):
    opened = visit()
    named = tmp_path / "<img src=x onerror=alert(1)>.json"
    named.write_text("{}")
    opened.page.locator("input[type=file]").set_input_files(named)
    opened.page.wait_for_function("document.querySelector('.said').textContent.includes('<img')")
    _unharmed(opened)


@pytest.fixture(scope="module")
def hostile(page_file, tmp_path_factory):
    """The page with markup in everything that it has a name, a title or a sentence for."""
    text = page_file.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    for kind, name in (("algorithms", "jacobi"), ("operations", "add"), ("solvers", "cg-imitation")):
        data[kind] = {INJECTION if each == name else each: entry for each, entry in data[kind].items()}
    data["findings"][INJECTION] = data["findings"].pop("cg-imitation")
    for size in data["algorithms"][INJECTION]["sizes"].values():
        size["layout"]["registers"] = [
            [re.sub("^pre t.*", rf"\g<0>{INJECTION}", name), height] for name, height in size["layout"]["registers"]
        ]
    data = _marked(data)
    path = tmp_path_factory.mktemp("hostile") / "explorer.html"
    path.write_text(page_of(data, dict(re.findall(r'id="store-([\w-]+)">(.*?)</script>', text))), encoding="utf-8")
    return path


def _marked(data, key=""):
    """A copy with markup at the end of each text that is there to be read."""
    if isinstance(data, dict):
        return {name: _marked(value, name) for name, value in data.items()}
    if isinstance(data, list):
        return [_marked(value, key) for value in data]
    return data + INJECTION if isinstance(data, str) and key in READ else data


def test_markup_in_names_and_titles_of_what_is_packed_is_shown_as_text(visit, hostile):
    watch, learned = {"what": f"algorithm {INJECTION}", "at": 3}, {"model": INJECTION, "t": 1}
    opened = visit(path=hostile, fragment=link(view="watch", watch=watch, learned=learned))
    page = opened.page
    shown = {
        "Watch": ("option", ".setup .note", ".instructions", ".program", "[data-register]"),
        "Compare": (".methods label",),
        "Learned": ("option", ".findings", "#panel-findings .note"),
        "Paper": ("section h2", ".claim .said", ".claim .found", ".verdict", ".meanings", ".note", "option"),
    }
    for view, places in shown.items():
        open_view(page, view)
        for place in places:
            assert page.locator(place).filter(has_text="<img/src").count() > 0, (view, place)
    _unharmed(opened)
    # And the markup is of a kind that would have done something.
    page.evaluate("(markup) => { document.createElement('div').innerHTML = markup; }", INJECTION)
    page.wait_for_function("document.title === 'taken'")
