"""What the views of the explorer say and keep: remarks on a matrix, saved charts, the address, focus, marks."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from nlaformer.explorer.bundle import page as page_of
from tests.explorer import link, texts


def _watch(what, A, b=None) -> str:
    b = np.ones(len(A)) if b is None else b
    return link(view="watch", watch={"what": f"algorithm {what}", "texts": texts(A, b)})


DEFINITE = np.array([[4, 1, 0, 0], [1, 3, 1, 0], [0, 1, 2, 1], [0, 0, 1, 5]])
INDEFINITE = np.diag([1, -2, 3, 4]) + 0.1
NONSYMMETRIC = np.triu(np.full((4, 4), 0.2)) + np.diag([3.0, 4, 5, 6])  # of which Jacobi and Richardson converge


@pytest.mark.parametrize(
    ("what", "A", "remarks"),
    [
        ("cg", DEFINITE, False),
        ("cg", INDEFINITE, True),
        ("minres", INDEFINITE, False),
        ("minres", NONSYMMETRIC, True),
        ("jacobi", NONSYMMETRIC, False),
        ("jacobi", DEFINITE + 5, True),
        ("richardson", NONSYMMETRIC, False),
        ("richardson", INDEFINITE, True),
        ("cg", np.ones((4, 4)), True),  # singular
    ],
)
def test_a_matrix_gets_a_remark_where_the_method_is_not_made_for_it(visit, what, A, remarks):
    page = visit(fragment=_watch(what, A)).page
    page.wait_for_selector(f".watch[data-ready='algorithm {what}']")
    assert bool(page.locator(".message").inner_text()) == remarks


def test_entries_near_the_largest_number_are_scaled_and_solved(visit):
    x = np.array([1.0, -2.0, 3.0, 0.5])
    size = 3e307  # of which the norm of A is beyond the largest number
    page = visit(fragment=_watch("cg", size * DEFINITE, size * (DEFINITE @ x))).page
    page.wait_for_selector(".watch[data-ready]")
    for _ in range(5):
        page.get_by_role("button", name="Next iteration").click()
    shown = page.locator("[data-value='x'] td[title]").first.get_attribute("title")
    assert np.abs(np.array(shown.split(), dtype=float) - x).max() < 1e-9


@pytest.mark.parametrize("what", ["cg", "conjugate_residual", "richardson"])
def test_a_solution_beyond_the_largest_number_is_said_and_draws_nothing_malformed(visit, what):
    opened = visit(fragment=_watch(what, 1e-320 * np.eye(4), np.ones(4)))
    opened.page.wait_for_selector(f".watch[data-ready='algorithm {what}']")
    assert opened.page.locator(".message").inner_text()
    assert not opened.complaints


@pytest.mark.parametrize(("size", "solved"), [(1e308, True), (1e-320, False)])
def test_the_learned_view_draws_what_is_finite_and_dims_a_run_of_another_system(visit, size, solved):
    opened = visit(fragment=link(view="learned", learned={"t": 5}))
    page = opened.page
    page.wait_for_selector(".learned[data-ready]")
    page.get_by_text("Or paste a system of your own").click()
    given = texts(size * np.eye(20), np.ones(20))
    page.get_by_label("Vector b").fill(given["b"])
    page.get_by_label("Matrix A").fill(given["A"])
    page.wait_for_function("() => /[a-z]\\.$/.test(document.querySelector('.message').innerText)", timeout=30_000)
    assert page.locator(".message.problem").count() == page.locator(".stage.stale").count() == (not solved)
    assert not opened.complaints


@pytest.mark.parametrize(
    "shown", [repr, str, "np.{!r}".format, lambda A: repr(torch.from_numpy(A)), lambda A: repr(A.tolist())]
)
def test_a_matrix_may_be_pasted_as_python_prints_it(visit, shown):
    page = visit().page
    page.wait_for_selector(".watch[data-ready]")
    page.get_by_label("Matrix A").fill(shown(INDEFINITE))
    page.wait_for_function("document.querySelector('.message').innerText.includes('positive definite')")
    assert page.locator(".message.problem").count() == 0


def test_what_the_page_says_stays_its_full_time_when_it_speaks_twice(visit, tmp_path):
    page = visit().page
    page.wait_for_selector(".watch[data-ready]")
    page.clock.install(time=0)
    page.clock.pause_at(1000)  # from here on time passes only where it is told to
    said = page.locator("header .said")
    for name, passing in (("first", 3000), ("second", 3000), ("third", 5000)):
        (tmp_path / name).write_text("{}")
        page.locator("input[type=file]").set_input_files(tmp_path / name)
        said.filter(has_text=name).wait_for()
        page.clock.run_for(passing)
        assert bool(said.inner_text()) == (passing < 4000)


def test_a_saved_chart_names_its_lines(visit):
    page = visit(fragment=link(view="compare", compare={"n": 5, "methods": ["cg", "steepest_descent"]})).page
    page.wait_for_selector(".compare[data-round]")
    with page.expect_download() as download:
        page.locator("#panel-errors").get_by_role("button", name="as SVG").click()
    words = {text.text for text in ElementTree.parse(download.value.path()).iter("{http://www.w3.org/2000/svg}text")}
    assert set(page.locator("#panel-errors .legend span").all_inner_texts()) <= words


def test_bands_with_infinite_errors_are_drawn_at_the_highest(visit, page_file, tmp_path):
    text = page_file.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    nodes = data["algorithms"]["steepest_descent"]["program"]["nodes"]
    assert [nodes[k][1][0] for k in (13, 15)] == [12, 12]  # alpha
    nodes[13][1][0] = nodes[15][1][0] = 11  # r A r in its place, which overflows on some systems
    path = tmp_path / "diverging.html"
    path.write_text(page_of(data, dict(re.findall(r'id="store-([\w-]+)">(.*?)</script>', text))), encoding="utf-8")
    shown = {"family": "condition", "condition": 1, "n": 5, "methods": ["cg", "steepest_descent"], "count": 8}
    opened = visit(path=path, fragment=link(view="compare", compare=shown))
    page = opened.page
    page.wait_for_selector(".compare[data-round]")
    band = page.locator("#panel-errors path[fill-opacity]").nth(1).get_attribute("d")
    points = np.array(re.findall(r"[ML]([^ ]+) ([^MLz]+)", band), dtype=float)
    upper, lower = points[:25], points[:24:-1]
    assert np.array_equal(upper[:, 0], lower[:, 0])
    highest = float(page.locator("#panel-errors .grid").first.get_attribute("y1"))
    assert upper[-1, 1] == highest < lower[-1, 1]
    assert page.locator("#panel-errors .tick").first.text_content().startswith("≥")
    assert not opened.complaints


def test_the_address_holds_the_theme_and_is_not_written_at_every_step(visit):
    page = visit(color_scheme="light").page
    page.wait_for_selector(".watch[data-ready]")
    page.evaluate(
        "() => { const write = history.replaceState; window.writes = 0;"
        " history.replaceState = (...given) => { window.writes += 1; write.apply(history, given); }; }"
    )
    page.evaluate(
        "() => { for (let k = 0; k < 30; k++) document.querySelector('[aria-label=\"Next layer\"]').click(); }"
    )
    page.get_by_role("button", name="Theme").click()
    page.wait_for_function("location.hash.includes('dark')")
    assert page.evaluate("window.writes") < 5
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    again = visit(color_scheme="light", fragment="#" + page.url.partition("#")[2]).page
    again.wait_for_selector(".watch[data-ready]")
    assert again.evaluate("getComputedStyle(document.body).backgroundColor") == ground


def test_a_browser_without_light_dark_has_the_light_theme_throughout(visit, page_file, tmp_path):
    older = tmp_path / "older.html"
    older.write_text(page_file.read_text(encoding="utf-8").replace("light-dark(", "unknown("), encoding="utf-8")
    looks = []
    for path, scheme in ((page_file, "light"), (older, "dark")):
        page = visit(path=path, color_scheme=scheme).page
        page.wait_for_selector(".watch[data-ready]")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        lines = page.locator("#panel-error .line path[stroke-width]").all()
        looks.append((ground, [line.get_attribute("stroke") for line in lines]))
    assert looks[0] == looks[1]
    assert len(looks[0][1]) == 3


@pytest.mark.parametrize(("view", "control"), [("watch", "watch-family"), ("learned", "learned-model")])
def test_a_choice_keeps_the_focus_of_the_keyboard(visit, view, control):
    page = visit(fragment=link(view=view)).page
    page.wait_for_selector(f".{view}[data-ready]")
    page.locator(f"#{control}").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.id") == control


def test_sigma_rests_while_a_system_is_pasted_and_the_page_says_so(visit):
    page = visit(fragment=link(view="learned")).page
    page.wait_for_selector(".learned[data-ready]")
    sigma, told = page.locator("#learned-sigma"), page.locator(".setup .note").last.inner_text()
    page.get_by_text("Or paste a system of your own").click()
    page.get_by_label("Matrix A").fill("2 0\n0 2")
    assert sigma.is_disabled()
    assert page.locator(".setup .note").last.inner_text() != told
    page.get_by_label("Matrix A").fill("")
    assert sigma.is_enabled()


def test_a_walk_that_was_closed_leaves_no_mark(visit):
    page = visit().page
    page.wait_for_selector(".watch[data-ready]")
    page.get_by_role("button", name="Guided walk").click()
    page.keyboard.press("Escape")
    page.wait_for_timeout(400)  # a mark is set a little after a stop is shown
    assert page.locator(".pointed").count() == 0
