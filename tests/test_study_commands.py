"""``nlaformer reproduce``: lists, draws what is there, says what is missing, trains small ones, refuses nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nlaformer.study import plan
from nlaformer.study.catalogue import ARTEFACTS
from nlaformer.study.claims import page
from nlaformer.study.results import Results
from tests.command import run_command

ROOT = Path(__file__).parent.parent


def run(monkeypatch, capsys, *arguments):
    return run_command(monkeypatch, capsys, "reproduce", *arguments)


def test_the_list_names_everything_and_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said = run(monkeypatch, capsys, "list", "--json")
    listed = json.loads(said.out)
    assert code == 0 and [entry["name"] for entry in listed["artefacts"]] == [entry.name for entry in ARTEFACTS]
    assert listed["missing"] == list(plan.runs())


def test_without_numbers_it_draws_nothing_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said = run(monkeypatch, capsys, "fig-eta", "--from-results")
    assert code == 2 and "no folder results to draw from" in said.err and not list(tmp_path.iterdir())
    (tmp_path / "results").mkdir()
    code, said = run(monkeypatch, capsys, "fig-eta", "--from-results")
    assert code == 0 and "6 of 6 runs still to be made" in said.out
    assert list((tmp_path / "docs" / "figures").iterdir()) == []
    assert "**not yet run**" in (tmp_path / "docs" / "claims.md").read_text()


def test_a_small_study_runs_stops_in_time_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = {name: run for name, run in plan.runs().items() if name.startswith("bundled-")}
    monkeypatch.setattr(plan, "runs", lambda: few)
    code, said = run(monkeypatch, capsys, "next", "--small", "--minutes", "0.001", "--device", "cpu", "--steps", "8000")
    assert code == 0 and f"{len(few)} runs are still to be made" in said.out
    code, said = run(monkeypatch, capsys, "next", "--small", "--device", "cpu", "--steps", "8000", "--commit", "abc")
    assert code == 0 and "bundled-cg-joint-8k: finished" in said.out
    kept = Results(tmp_path / "runs" / "small" / "results").run("bundled-cg-joint-8k")
    assert kept.document["provenance"]["commit"] == "abc"
    assert (tmp_path / "runs" / "small" / "runs" / "weights" / "bundled-cg-joint-8k" / "model.safetensors").exists()


def test_how_long_it_takes_is_said_before_it_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said = run(monkeypatch, capsys, "fig-learning-rate", "--small", "--device", "cpu", "--steps", "8000")
    assert code == 0 and said.out.index("On this machine: about") < said.out.index("Training")
    assert (tmp_path / "runs" / "small" / "docs" / "figures" / "fig-learning-rate.svg").exists()


def test_a_name_that_is_not_there_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said = run(monkeypatch, capsys, "fig-sgima")
    assert code == 2 and "did you mean 'fig-sigma'?" in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["next", "--small", "--steps", "0"], "--steps"),
        (["next", "--small", "--minutes", "nan"], "minutes is nan"),
        (["next", "--small", "--minutes", "-1"], "minutes is -1"),
        (["next", "--small", "--json"], "--json goes with list"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said = run(monkeypatch, capsys, *arguments)
    assert code == 2 and words in said.err and not (tmp_path / "runs" / "small" / "runs" / "stack.json").exists()


def test_the_small_list_is_one_document_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said = run(monkeypatch, capsys, "list", "--small", "--json")
    assert code == 0 and json.loads(said.out)["missing"] == list(plan.runs())


@pytest.mark.parametrize("what", ["list", "fig-eta"])
@pytest.mark.parametrize("content", ["{", "[]", '{"provenance": {}}', '{"provenance": {}, "config": 3}'])
def test_a_damaged_file_of_results_is_one_clear_line(what, content, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "results" / "runs" / f"{plan.names(plan.over_eta())[0]}.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(content)
    code, said = run(monkeypatch, capsys, what, *(["--from-results"] if what != "list" else []))
    assert code == 2 and "results" in said.err and len(said.err.splitlines()) == 1


def test_the_page_of_claims_is_that_of_the_committed_numbers():
    assert (ROOT / "docs" / "claims.md").read_text() == page(Results(ROOT / "results"))


def test_no_figure_is_committed_without_its_numbers():
    results = Results(ROOT / "results")
    for entry in ARTEFACTS:
        drawn = [(ROOT / "docs" / "figures" / f"{entry.name}.{kind}").exists() for kind in ("png", "svg")]
        assert drawn == [entry.drawable(results)] * 2, entry.name
    for path in (ROOT / "results" / "runs").glob("*.json"):
        record = results.run(path.stem)
        where = record.document["provenance"]
        assert where["commit"] and where["versions"]["torch"] and where["machine"]["processor"], path.name
        assert path.stat().st_size < 60_000
