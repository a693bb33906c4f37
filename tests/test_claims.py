"""paper/claims.md, note.md and the model cards: every number has a key, and prints what the results say under it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nlaformer import pretrained
from paper import hypotheses
from paper.numbers import numbers
from paper.verdicts import verdicts

PAPER = Path(__file__).parents[1] / "paper"
PAGE, NOTE = ((PAPER / f"{name}.md").read_text(encoding="utf-8") for name in ("claims", "note"))
CARDS = {name: (pretrained.HOME / name / "README.md").read_text(encoding="utf-8") for name in pretrained.names()}
VERDICTS = ("holds", "holds in part", "differs", "undecided", "underspecified", "not run")
OURS = "## Ours"  # the heading after which the claims are no longer the paper's

KEY = r"<!-- (?P<key>\S+) -->"
# Digits after a letter, an underscore or a caret belong to a name or an exponent: float64, x_1, n^2.
NUMBER = r"(?<![\w.^])(?P<number>-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?)(?P<percent>%?)"
# What may hold digits without a key: code (formulas, settings, thresholds), link targets and references.
EXEMPT = re.compile(
    r"`[^`\n]*`|\]\([^)\n]*\)|\b(?:[Ss]ections?|Tables?|Figures?|Theorem|Lemma) \d[\d.]*[a-z]?(?: and \d[\d.]*[a-z]?)?"
    r"|^    .*$|^(?:## )?\d+\. |\[\d+\]|\((?:19|20)\d\d\)",  # of the note: formulas, lists and headings, references
    re.MULTILINE,
)
TOKEN = re.compile(f"{NUMBER}(?:{KEY})?")


def printed_like(text: str, value: float) -> str:
    """A value to the digits of a printed number, a percentage as one."""
    shown = value * 100 if text.endswith("%") else value
    digits = text.removesuffix("%").partition("e")[0].partition(".")[2]
    if "e" in text:
        mantissa, _, exponent = f"{shown:.{len(digits)}e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{shown:,.{len(digits)}f}" + "%" * text.endswith("%")


def complaints(page: str, known: dict[str, float | list[float]]) -> list[str]:
    """What is wrong with the numbers of a page; a key stands after the last of as many numbers as it has values."""
    found = []
    for line in EXEMPT.sub(" ", page).splitlines():
        waiting: list[str] = []
        for match in TOKEN.finditer(line):
            waiting.append(match["number"] + match["percent"])
            if match["key"] is None:
                continue
            if match["key"] == "paper":
                waiting.pop()
                continue
            if match["key"] not in known:
                found.append(f"no such key: {match['key']}")
                waiting.clear()
                continue
            value = known[match["key"]]
            values = value if isinstance(value, list) else [value]
            shown = waiting[-len(values) :]
            del waiting[-len(values) :]
            expected = [printed_like(text, each) for text, each in zip(shown, values, strict=False)]
            if shown != expected or len(shown) != len(values):
                found.append(f"{match['key']}: printed {shown}, computed {values}")
        found += [f"no key: {text} in {line[:60]}" for text in waiting]
    return found


def rows(page: str) -> list[list[str]]:
    """The cells of the tables of claims, which have four columns."""
    lines = [line.strip().strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [line for line in cells if len(line) == 4 and line[0] != "claim" and not line[0].startswith(":-")]


def judged(page: str) -> dict[str, str]:
    """The verdicts of the table of fresh seeds, which has five columns, by the keys of their rules."""
    lines = [line.strip().strip("|").split("|") for line in page.splitlines() if re.match(r"\| H\d", line)]
    return {line[0].strip().lower(): line[-1].strip() for line in lines}


def counts(page: str) -> dict[str, float]:
    """How many claims have each verdict, the paper's and ours."""
    parts = dict(zip(("paper", "ours"), page.split(OURS), strict=True))
    found = {f"page.{part}.{v.replace(' ', '_')}": 0.0 for part in parts for v in VERDICTS}
    for part, text in parts.items():
        verdicts = [row[2] for row in rows(text)]
        found[f"page.{part}"] = len(verdicts)
        for verdict in verdicts:
            found[f"page.{part}.{verdict.replace(' ', '_')}"] += 1
    return found


KNOWN = numbers() | counts(PAGE)
LEARNED = (PAPER.parent / "docs" / "what-it-learned.md").read_text(encoding="utf-8")
every_page = pytest.mark.parametrize(
    "page", [PAGE, NOTE, LEARNED, *CARDS.values()], ids=["claims", "note", "what-it-learned", *CARDS]
)


@every_page
def test_every_number_has_a_key_and_prints_its_value(page):
    assert complaints(page, KNOWN) == []


@pytest.mark.parametrize("name", CARDS)
def test_a_card_has_the_numbers_of_its_own_model(name):
    keys = [key for key in re.findall(KEY, CARDS[name]) if key.startswith(("cards.", "learned_parts."))]
    assert len(keys) > 40
    assert [key for key in keys if key.split(".")[1] != name] == []


@pytest.mark.parametrize("name", CARDS)
def test_a_card_points_to_the_numbers_of_its_run(name):
    files = re.findall(r"`((?:paper|benchmarks)/results/\S+\.json)`", CARDS[name])
    assert files and [file for file in files if not (PAPER.parent / file).exists()] == []


def test_every_verdict_is_one_of_the_six():
    assert {row[2] for row in rows(PAGE)} <= set(VERDICTS)
    assert len(rows(PAGE)) > 50


def test_verdicts_on_fresh_seeds_follow_from_the_protocols_rules():
    assert judged(PAGE) == verdicts(hypotheses.numbers())


def test_the_word_after_an_interval_is_the_outcome_of_its_test():
    words = re.findall(r"<!-- (h\d+)\.(\S*)(?:interval|prediction) --> \((\w+)\)", PAGE)
    found = hypotheses.numbers()
    assert len(words) > 10
    assert [word for name, key, word in words if found[name][f"{key}outcome"] != word] == []


def test_a_claim_that_fresh_seeds_decided_has_their_verdict():
    named = [(re.search(r"; (H\d+(?:\.\d)?)\)", row[0]), row[2]) for row in rows(PAGE)]
    stated = {match[1].lower(): verdict for match, verdict in named if match}
    fresh = {name: verdict for name, verdict in judged(PAGE).items() if verdict not in ("not run", "reported")}
    assert len(stated) > 10 and fresh
    assert {name: stated[name] for name in stated.keys() & fresh.keys()} == {
        name: fresh[name] for name in stated.keys() & fresh.keys()
    }


def test_claims_can_be_read_aloud():
    """A claim and what was found come to 45 words each at most."""
    plain = [[re.sub(r"<!--.*?-->", "", cell) for cell in row] for row in rows(PAGE)]
    assert [row[0] for row in plain if max(len(cell.split()) for cell in row[:2]) > 45] == []


@pytest.mark.parametrize("page", [PAGE, NOTE], ids=["claims", "note"])
def test_linked_files_exist(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    local = [target.partition("#")[0] for target in targets if "://" not in target]
    assert [target for target in local if target and not (PAPER / target).exists()] == []
    assert any(target.startswith("figures/") for target in local)


@every_page
def test_a_changed_result_is_noticed(page):
    """Whatever key of the page changes its value, the page is found wrong."""
    keys = set(re.findall(KEY, page)) - {"paper"}
    unnoticed = [key for key in keys if not any(key in found for found in complaints(page, KNOWN | {key: _other(key)}))]
    assert keys and unnoticed == []


def _other(key: str) -> float | list[float]:
    value = KNOWN[key]
    return [2 * each + 1 for each in value] if isinstance(value, list) else 2 * value + 1


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("It takes 7<!-- cg.layers --> layers.", None),
        ("It takes 8<!-- cg.layers --> layers.", "cg.layers: printed ['8'], computed [7]"),
        ("It takes 7 layers.", "no key: 7"),
        ("It takes 7<!-- cg.layer --> layers.", "no such key: cg.layer"),
        ("The paper prints 10<!-- paper -->, Table 1 and `n^2` do not count, nor does float64.", None),
        ("From 0.084 to 0.095<!-- range -->, 30%<!-- share --> of 1,302<!-- entries -->.", None),
        ("From 0.084 to 0.096<!-- range -->.", "range: printed ['0.084', '0.096']"),
        ("From 0.095<!-- range -->.", "range: printed ['0.095']"),
        ("From 5, 0.084 to 0.095<!-- range -->.", "no key: 5"),
        ("It ends at 2.6e-14<!-- error -->.", None),
        ("It ends at 2.7e-14<!-- error -->.", "error: printed"),
    ],
)
def test_the_checker_can_fail(line, complaint):
    known = {"cg.layers": 7, "range": [0.08449, 0.0948], "share": 0.3008, "entries": 1302, "error": 2.62e-14}
    found = complaints(line, known)
    assert (found == []) if complaint is None else (len(found) == 1 and complaint in found[0])
