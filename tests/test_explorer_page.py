"""The explorer as a visitor meets it: the walk, a matrix of one's own, every slider, every view, no complaint."""

from __future__ import annotations

import io
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nlaformer as nf
from nlaformer.compiler.library import program
from nlaformer.explorer import findings, write_page
from nlaformer.explorer.bundle import sources
from tests.browser import DESKTOP, PHONE, ROOT
from tests.explorer import link, open_view, settled

VIEWS = ("Watch", "Compare", "Learned", "Paper")
MATRIX = [[5.0, 1.0, -2.0], [1.0, 4.0, 0.5], [-2.0, 0.5, 6.0]]
# The panel of each stop of the walk, and what must be seen in it.
STOPS = [
    ("panel-p", "[data-register='A'].picked"),
    ("panel-p", "[data-register='r'].picked"),
    ("panel-attention", "svg[aria-label^='head 2']"),
    ("panel-values", "[data-value='result'] td[title]"),
    ("panel-layer", ".line.active:has-text('q = A @ d')"),
    ("panel-error", "svg.chart"),
    ("panel-probes", "svg:nth-of-type(3) circle"),
    ("panel-errors", ".legend:has-text('cg-accelerated')"),
]
UNCOVERED = """(selector) => {
  const { left, top, width, height } = document.querySelector(selector).getBoundingClientRect();
  return document.elementFromPoint(left + width / 2, top + height / 2)?.matches(selector);
}"""


def _keep(page, name: str) -> None:
    """A screenshot for the documentation, where NLAFORMER_SCREENSHOTS names a folder."""
    if folder := os.environ.get("NLAFORMER_SCREENSHOTS"):
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        picture.save(Path(folder) / f"explorer-{name}.png", optimize=True)  # a third of the size, to the eye the same


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_guided_walk_has_eight_stops_that_show_what_they_speak_of(visit, viewport):
    opened = visit(viewport)
    page = opened.page
    page.get_by_role("button", name="Guided walk").click()
    titles = []
    for stop, (panel, shown) in enumerate(STOPS, start=1):
        card = page.get_by_role("complementary", name="Guided walk")
        assert f"{stop} of {len(STOPS)}" in card.inner_text()
        titles.append(card.get_by_role("heading").inner_text())
        page.wait_for_selector(f"#{panel}.pointed {shown}")
        # Neither beyond the window nor behind the card.
        page.wait_for_function(UNCOVERED, arg=f"#{panel} h2", timeout=5000)
        card.get_by_role("button", name="Done" if stop == len(STOPS) else "Next").click()
    assert len(set(titles)) == len(STOPS) == 8
    assert card.is_hidden()
    assert page.locator(".pointed").count() == 0
    assert not opened.complaints
    assert not opened.elsewhere


def test_a_typed_matrix_runs_and_the_values_on_the_page_are_the_librarys(visit):
    opened = visit()
    page, b = opened.page, [1.0, -2.0, 3.0]
    page.get_by_label("Matrix A").fill("\n".join(" ".join(map(str, row)) for row in MATRIX))
    page.get_by_label("Vector b").fill("1, -2, 3")
    page.wait_for_function("document.querySelectorAll('#panel-p svg text.faint').length === 4")  # the sink and n = 3
    run = nf.algorithm("cg", n=3, verify=False).run(np.array(MATRIX), np.array(b), iterations=3)
    for t in range(4):
        page.get_by_role("button", name="Next iteration").click()
        for name, expected in {"x": run.x[t], **{state: run.state[state][t] for state in ("r", "d", "rho")}}.items():
            shown = page.locator(f"[data-value='{name}'] td[title]").first.get_attribute("title").split()
            assert np.abs(np.array(shown, dtype=float) - np.ravel(expected)).max() < 1e-9, (t, name)
    assert not opened.complaints


def test_an_entry_of_p_is_read_under_the_pointer(visit):
    page = visit(fragment=link(view="watch", watch={"at": 8})).page
    settled(page, "Watch")
    register = page.locator("[data-register='r']")
    numbers, picture = register.get_attribute("data-numbers").split(), register.locator("image").bounding_box()
    for token, number in enumerate(numbers):  # one row
        step = picture["width"] / len(numbers)
        page.mouse.move(picture["x"] + (token + 0.5) * step, picture["y"] + picture["height"] / 2)
        assert register.locator("title").text_content().endswith(f": {number}")


def test_every_algorithm_and_operation_of_the_list_runs_in_watch(visit):
    opened = visit()
    page = opened.page
    settled(page, "Watch")
    choices = (
        page.get_by_label("What runs", exact=True)
        .locator("option")
        .evaluate_all("(all) => all.map((each) => each.value)")
    )
    for choice in choices:
        if choice.startswith("solver "):  # which opens another view
            continue
        page.get_by_label("What runs", exact=True).select_option(choice)
        page.wait_for_function("(choice) => document.querySelector('.watch').dataset.ready === choice", arg=choice)
        page.get_by_role("button", name="Next iteration").click()
        assert page.locator("#panel-values tbody tr").count() > 0, choice
    assert not opened.complaints


@pytest.mark.parametrize(
    ("what", "layer", "line"), [("cg", "= A d", "q = A @ d"), ("guided-cg", "network", "self.precondition(")]
)
def test_the_line_of_the_program_stands_beside_the_layer_that_works_on_it(visit, what, layer, line):
    page = visit().page
    settled(page, "Watch")
    page.get_by_label("What runs", exact=True).select_option(f"algorithm {what}")
    page.wait_for_selector(f".watch[data-ready='algorithm {what}']")
    for _ in range(40):
        page.get_by_role("button", name="Next layer").click()
        if "Iteration 1" in page.locator("#where").inner_text() and layer in page.locator(".instructions").inner_text():
            break
    marked = page.locator(".program .line.active").all_inner_texts()
    assert any(line in text for text in marked), marked


def test_a_slider_stays_in_hand_while_it_is_moved(visit):
    page = visit().page
    settled(page, "Watch")
    slider, before = page.locator("#watch-sigma"), page.get_by_label("Matrix A").input_value()
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert float(slider.input_value()) == pytest.approx(1.5)
    assert page.get_by_label("Matrix A").input_value() != before


def test_play_goes_on_by_itself_and_pauses(visit):
    page = visit().page
    settled(page, "Watch")
    before = page.locator("#where").inner_text()
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("(before) => document.getElementById('where').innerText !== before", arg=before)
    page.get_by_role("button", name="Pause").click()
    assert page.get_by_role("button", name="Play").is_visible()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_view_opens_every_slider_moves_and_nothing_complains(visit, viewport):
    opened = visit(viewport)
    page = opened.page
    for view in VIEWS:
        open_view(page, view)
        for k in range(page.locator("input[type=range]").count()):
            slider = page.locator("input[type=range]").nth(k)
            before = slider.input_value()
            slider.press("ArrowLeft" if before == slider.get_attribute("max") else "ArrowRight")
            assert page.locator("input[type=range]").nth(k).input_value() != before, (view, k)
        page.wait_for_timeout(500)  # what a slider starts may complain a little later
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{view} is {wide} pixels wider than the window"
    assert not opened.complaints
    assert not opened.elsewhere


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_issue_of_accessibility(visit, scheme, viewport):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = visit(viewport, color_scheme=scheme).page
    for view in VIEWS:
        open_view(page, view)
        found = axe.run(page).response["violations"]
        serious = {v["id"]: v["nodes"][0]["html"] for v in found if v["impact"] in ("serious", "critical")}
        assert not serious, (view, serious)


def test_an_address_that_says_anything_leaves_the_page_whole(visit):
    opened = visit()
    page = opened.page
    wild = {
        "watch": [
            {"at": -5},
            {"at": 2.5},
            {"family": "nope"},
            {"what": "algorithm __proto__"},
            {"what": "__proto__ toString"},
        ],
        "compare": [
            {"n": 3.5},
            {"count": 0},
            {"count": 1e9, "methods": ["cg"]},
            {"methods": ["nope", "__proto__"]},
            {"family": "toString"},
        ],
        "learned": [{"model": "nope"}, {"t": -1}, {"t": 1.5, "sigma": -1e300}],
        "toString": [{}],
    }
    for view, states in wild.items():
        for state in states:
            page.evaluate("(hash) => { location.hash = hash; }", link(view=view, **{view: state}))
            page.wait_for_timeout(100)
            settled(page, view.capitalize())
            assert not opened.complaints, (view, state)


def test_a_link_and_a_saved_file_restore_what_was_seen(visit, tmp_path):
    first = visit()
    page = first.page
    page.get_by_label("Matrix A").fill("2 1\n1 3")
    page.get_by_label("Vector b").fill("1 1")
    page.wait_for_function("document.querySelectorAll('#panel-p svg text.faint').length === 3")
    page.get_by_role("button", name="Next iteration").click()
    page.get_by_role("button", name="Next iteration").click()
    at = "JSON.parse(decodeURIComponent(location.hash.slice(1))).watch.at"  # written when steps have paused
    page.wait_for_function(f"{at} === Number(document.querySelector('[data-move=scrub]').value)")
    where, address = page.locator("#where").inner_text(), page.url
    with page.expect_download() as download:
        page.get_by_role("button", name="Save", exact=True).click()
    download.value.save_as(tmp_path / "state.json")
    again = visit(fragment="#" + address.partition("#")[2]).page
    settled(again, "Watch")
    assert again.locator("#where").inner_text() == where
    assert again.get_by_label("Matrix A").input_value() == "2 1\n1 3"
    fresh = visit().page
    fresh.locator("input[type=file]").set_input_files(tmp_path / "state.json")
    fresh.wait_for_function("(where) => document.getElementById('where')?.innerText === where", arg=where)


def test_every_panel_is_saved_as_an_svg_file_that_stands_alone(visit):
    page = visit(fragment=link(view="watch", watch={"at": 12})).page
    for view in VIEWS:
        open_view(page, view)
        for name in page.locator("section.panel:visible").evaluate_all("(panels) => panels.map((p) => p.ariaLabel)"):
            with page.expect_download() as download:
                page.get_by_role("button", name=f"Save {name} as SVG").click()
            root = ElementTree.parse(download.value.path()).getroot()
            assert root.tag.endswith("svg")
            assert len(list(root.iter())) > 3, (view, name)


@pytest.mark.parametrize("count", [1, 4])
def test_the_errors_drawn_in_compare_are_those_of_the_program(visit, count):
    opened = visit(fragment=link(view="compare", compare={"n": 5, "methods": ["cg"], "seed": 3, "count": count}))
    draw = "async ([k]) => explorer.drawSystem('paper', 5, { sigma: 1.2 }, 3000 + k)"
    errors = []
    for system in (opened.evaluate(draw, k) for k in range(count)):
        A, x = np.array(system["A"]).reshape(5, 5), np.array(system["x"])
        assert np.allclose(A, A.T)
        assert np.linalg.eigvalsh(A).min() > 0
        run = program("cg").run(A, A @ x, iterations=5)
        errors.append(((run.x - x) ** 2).sum(-1) / (x**2).sum())
    median = np.quantile(errors, 0.5, axis=0, method="higher")
    settled(opened.page, "Compare")
    drawn = opened.page.locator("#panel-iterations tbody td").all_inner_texts()
    for level, shown in zip((1e-2, 1e-4, 1e-6, 1e-8), drawn[:4], strict=True):
        reached = np.flatnonzero(median <= level)
        assert shown == (str(reached[0]) if len(reached) else "—")


def test_the_keyboard_alone_opens_a_view_steps_picks_a_register_and_plays(visit):
    page = visit().page
    settled(page, "Watch")
    page.get_by_role("button", name="Next layer").focus()
    page.keyboard.press("Enter")
    assert page.locator("[data-move=scrub]").input_value() == "1"
    page.locator("[data-register][tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    named = page.evaluate("document.activeElement.dataset.register")
    page.keyboard.press("Enter")
    assert page.locator(".register.picked").get_attribute("data-register") == named
    page.get_by_role("button", name="Play").focus()
    page.keyboard.press("Space")
    page.wait_for_function("Number(document.querySelector('[data-move=scrub]').value) > 1")
    page.get_by_role("button", name="Compare").focus()
    page.keyboard.press("Enter")
    settled(page, "Compare")


def test_a_learned_model_runs_on_a_pasted_system_and_refuses_another_size_in_a_sentence(visit):
    opened = visit(fragment=link(view="learned"))
    page = opened.page
    settled(page, "Learned")
    page.get_by_text("Or paste a system of your own").click()
    page.get_by_label("Matrix A").fill("2 0\n0 2")
    page.get_by_label("Vector b").fill("1 1")
    page.wait_for_selector(".message.problem")
    assert "20 unknowns" in page.locator(".message.problem").inner_text()
    drawn = page.locator("#panel-loop").inner_html()
    A = np.diag(np.full(20, 3.0)) + 0.5
    page.get_by_label("Matrix A").fill("\n".join(" ".join(map(str, row)) for row in A))
    page.get_by_label("Vector b").fill(" ".join(["1"] * 10 + ["-1"] * 10))
    page.wait_for_function("!document.querySelector('.message.problem')")
    page.wait_for_function("document.querySelector('.message').textContent.startsWith('Computing') === false")
    page.wait_for_function("drawn => document.querySelector('#panel-loop').innerHTML !== drawn", arg=drawn)
    assert page.locator("#panel-loop svg").count() == 8
    assert not opened.complaints


def test_a_claim_shows_its_figure_from_the_page_alone(visit):
    opened = visit(fragment=link(view="paper"))
    page = opened.page
    page.locator(".claim button").first.click()
    page.wait_for_function("document.querySelector('.claim img')?.naturalWidth > 100")
    with page.expect_download() as download:
        page.locator(".figure").get_by_role("button", name="Save").click()
    saved = Path(download.value.path()).read_bytes()
    assert saved == (ROOT / "paper/figures" / download.value.suggested_filename).read_bytes()
    assert not opened.complaints
    assert not opened.elsewhere


def test_the_command_explore_writes_one_file_below_fifteen_megabytes_and_says_where_it_is(page_file):
    size, said = page_file.stat().st_size, page_file.with_suffix(".txt").read_text(encoding="utf-8")
    assert 1_000_000 < size < 15_000_000
    assert f"{size / 1e6:.1f} MB" in said
    assert page_file.as_uri() in said


@pytest.mark.parametrize("name", ["", "page.txt", "folder.html", "file.html/page.html"])
def test_a_page_that_cannot_be_written_is_refused_before_it_is_packed(tmp_path, monkeypatch, name):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file.html").touch()
    monkeypatch.setattr("nlaformer.explorer.catalogue.catalogue", lambda: pytest.fail("the page was packed"))
    with pytest.raises(nf.errors.FileError):
        write_page(tmp_path / name)


def test_modules_of_the_page_export_and_import_what_is_used():
    modules = {name: text for name, text in sources().items() if name.endswith(".js")}
    taken = {
        name: re.findall(r'^import \{(.*)\} from "\./(.*)";', text, re.MULTILINE) for name, text in modules.items()
    }
    used = {
        (module, each.split(" as ")[0].strip())
        for found in taken.values()
        for names, module in found
        for each in names.split(",")
    }
    for name, text in modules.items():
        made = {
            (name, each)
            for each in re.findall(r"^export (?:async )?(?:function\*?|const|class) (\w+)", text, re.MULTILINE)
        }
        assert made <= used, made - used
        for names, _ in taken[name]:
            for each in names.split(","):
                assert len(re.findall(rf"\b{each.split(' as ')[-1].strip()}\b", text)) > 1, (name, each)


def test_the_page_tells_the_claims_of_the_repository_and_a_folder_without_them_has_none(tmp_path):
    told = findings.claims()
    verdicts = {meaning[0] for meaning in told["meanings"]}
    assert len(told["rows"]) > 40
    assert {row["verdict"] for row in told["rows"]} <= verdicts
    assert not any("<!--" in row["found"] or "](" in row["found"] for row in told["rows"])
    assert findings.claims(tmp_path) is None
    assert findings.microscope(["cg-accelerated"], tmp_path) == {}


def test_pictures_of_the_views_for_the_documentation(visit):
    page = visit(fragment=link(view="watch", watch={"at": 12})).page
    settled(page, "Watch")
    _keep(page, "watch")
    page.get_by_role("button", name="Guided walk").click()
    for _ in range(7):
        page.get_by_role("button", name="Next", exact=True).click()
    page.wait_for_function("document.querySelectorAll('#panel-iterations tbody tr').length === 5")
    page.get_by_role("button", name="Done").click()
    _keep(page, "compare")
    open_view(page, "Learned")
    _keep(page, "learned")
    open_view(page, "Paper")
    assert page.locator(".claim").count() > 40
