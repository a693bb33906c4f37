"""``nlaformer reproduce``: lists, draws what is there, says what is missing, trains small ones, refuses nonsense."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nlaformer.errors import FileError
from paper import catalogue, plan
from paper.catalogue import ARTEFACTS
from paper.claims import page
from paper.results import Results
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
    assert code == 2 and "no numbers in paper/results" in said.err and not list(tmp_path.iterdir())
    (tmp_path / "paper" / "results").mkdir(parents=True)
    assert run(monkeypatch, capsys, "fig-eta", "--from-results")[0] == 2 and not (tmp_path / "docs").exists()
    Results(tmp_path / "paper" / "results").write("untrained.json", {"discrepancy": [8.0]})
    code, said = run(monkeypatch, capsys, "fig-eta", "--from-results")
    assert code == 0 and "9 of 9 runs still to be made" in said.out
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
        (
            ["fig-eta", "--from-results", "--steps", "3", "--results", str(ROOT / "paper" / "results")],
            "--steps is about training",
        ),
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
    kept = tmp_path / "paper" / "results" / "runs" / f"{plan.names(plan.over_eta())[0]}.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(content)
    code, said = run(monkeypatch, capsys, what, *(["--from-results"] if what != "list" else []))
    assert code == 2 and "results" in said.err and len(said.err.splitlines()) == 1


@pytest.mark.parametrize("what", ["fig-lambda", "fig-dimension", "fig-transformer"])
def test_a_program_learns_what_was_found_and_whether_a_claim_differs(what, tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "paper" / "results", tmp_path / "paper" / "results")
    monkeypatch.chdir(tmp_path)
    code, said = run(monkeypatch, capsys, what, "--from-results", "--json")
    (made,) = json.loads(said.out)
    assert made["name"] == what and [Path(path).exists() for path in made["figures"]] == [True, True]
    judgements = {verdict["judgement"] for verdict in made["verdicts"] if not verdict["ours"]}
    assert code == ("differs" in judgements) and bool(made["tables"]) == (what != "fig-transformer")
    monkeypatch.setattr(catalogue, "ARTEFACTS", (catalogue.artefact(what),))
    assert run(monkeypatch, capsys, "all", "--from-results")[0] == 0  # all of them answer no single question


def test_the_numbers_of_another_run_are_refused(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "paper" / "results", tmp_path / "paper" / "results")
    monkeypatch.chdir(tmp_path)
    one, other = (tmp_path / "paper" / "results" / "runs" / f"{name}.json" for name in plan.names(plan.over_eta())[:2])
    shutil.copy(one, other)
    code, said = run(monkeypatch, capsys, "fig-eta", "--from-results")
    assert code == 2 and "the numbers of another run" in said.err and other.name in said.err


@pytest.mark.parametrize("what", ["list", "next", "promote"])
def test_what_draws_nothing_draws_nothing_from_results(what, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said = run(monkeypatch, capsys, what, "--from-results")
    assert code == 2 and "--from-results goes with" in said.err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("errors", [[], [1.0, -0.1], ["1"], "abc", {"t": 1}, 3])
def test_a_damaged_run_is_named_and_no_other(errors, tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "paper" / "results", tmp_path / "paper" / "results")
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "paper" / "results" / "runs" / f"{plan.names(plan.over_eta())[0]}.json"
    document = json.loads(kept.read_text())
    document["evaluations"][document["own"]]["model"] = errors
    kept.write_text(json.dumps(document))
    code, said = run(monkeypatch, capsys, "fig-eta", "--from-results")
    assert code == 2 and kept.name in said.err and len(said.err.splitlines()) == 1


def test_what_was_found_is_said_although_another_file_is_damaged(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "paper" / "results", tmp_path / "paper" / "results")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paper" / "results" / "bundled-fresh.json").write_text('{"provenance": {}, "models": {"x": 3}}')
    code, said = run(monkeypatch, capsys, "fig-eta", "--from-results", "--json")
    assert code == 2 and json.loads(said.out)[0]["name"] == "fig-eta" and "bundled-fresh.json" in said.err


DAMAGE = {
    "counts without a number": lambda d, row: row["counts"]["model"].update(mean=[None] * 4),
    "negative counts": lambda d, row: row["counts"]["model"].update(mean=[-1.0] * 4),
    "more iterations than there are": lambda d, row: row["counts"]["cg"].update(mean=[22.0] * 4),
    "a teacher without numbers": lambda d, row: row.update(cg=[None] * 21),
    "negative errors of a teacher": lambda d, row: row.update(pcg=[-1.0] * 21),
    "a negative discrepancy": lambda d, row: row.update(discrepancy=-3),
    "true for a number": lambda d, row: row.update(model=[True, *row["model"][1:]]),
    "a curve cut short": lambda d, row: row.update(model=row["model"][:10]),
    "a number that no float is": lambda d, row: row.update(deviation=[10**400] * 21),
    "a list for a number": lambda d, row: row.update(discrepancy=[1.0]),
    "a threshold more": lambda d, row: row["counts"]["model"]["mean"].append(1.0),
    "no condition numbers": lambda d, row: row.update(condition=0),
    "no teacher": lambda d, row: row.pop("cg"),
    "no evaluation": lambda d, row: d["evaluations"].pop(d["own"]),
    "no arithmetic": lambda d, row: d.update(trained={"arithmetic": None}),
    "a history of two lengths": lambda d, row: d["history"]["step"].append(1),
    "no state": lambda d, row: d.pop("state"),
    "no curve": lambda d, row: row.pop("model"),
    "another seed and sigma": lambda d, row: d["config"].update(seed=7, sigma=[1.4]),
    "an unfinished run": lambda d, row: d.update(state="interrupted"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_numbers_no_run_can_have_are_refused_by_the_name_of_their_file(damage, tmp_path):
    shutil.copytree(ROOT / "paper" / "results", tmp_path / "paper" / "results")
    path = tmp_path / "paper" / "results" / "runs" / "pcg-accelerated-power0.5-sigma1.2-seed1.json"
    document = json.loads(path.read_text())
    DAMAGE[damage](document, document["evaluations"][document["own"]])
    path.write_text(json.dumps(document))
    with pytest.raises(FileError, match=path.name):
        page(Results(tmp_path / "paper" / "results"))


def test_where_every_run_is_there_next_says_so(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "paper" / "results", tmp_path / "paper" / "results")
    code, said = run(
        monkeypatch, capsys, "next", "--results", str(tmp_path / "paper" / "results"), "--runs", str(tmp_path / "runs")
    )
    assert code == 0 and "nothing is left to be trained" in said.out and not (tmp_path / "runs").exists()


def test_a_model_that_diverged_spoils_only_its_own_numbers(tmp_path):
    shutil.copytree(ROOT / "paper" / "results", tmp_path / "paper" / "results")
    for path in (tmp_path / "paper" / "results" / "runs").glob("*.json"):
        document = json.loads(path.read_text())
        for row in document["evaluations"].values():
            row |= {"model": [None] * 21, "discrepancy": None}
            row |= {kind: [None] * len(row[kind]) for kind in ("deviation", "intermediate", "loops") if kind in row}
        path.write_text(json.dumps(document))
        if path.stem.endswith("150k"):
            assert "**differs**" in page(Results(tmp_path / "paper" / "results"))
    for entry in ARTEFACTS:
        if entry.draw is not None:
            entry.draw(Results(tmp_path / "paper" / "results"))


def test_no_picture_cuts_off_its_titles():
    for entry in ARTEFACTS:
        if entry.draw is None or (figure := entry.draw(Results(ROOT / "paper" / "results"))) is None:
            continue
        figure.draw_without_rendering()
        for axes in figure.axes:
            title = axes.title.get_window_extent()
            assert figure.bbox.x0 <= title.x0 and title.x1 <= figure.bbox.x1, (entry.name, axes.get_title())


def test_files_that_are_missing_are_not_called_runs(tmp_path):
    (artefact,) = (entry for entry in ARTEFACTS if entry.name == "table-first-setting")
    still = artefact.still_missing(Results(tmp_path))
    assert still == "6 of 6 runs still to be made, untrained.json still to be measured"


def test_the_page_of_claims_is_that_of_the_committed_numbers():
    assert (ROOT / "docs" / "claims.md").read_text() == page(Results(ROOT / "paper" / "results"))


def test_no_figure_is_committed_without_its_numbers():
    results = Results(ROOT / "paper" / "results")
    for entry in ARTEFACTS:
        drawn = [(ROOT / "docs" / "figures" / f"{entry.name}.{kind}").exists() for kind in ("png", "svg")]
        assert drawn == [entry.drawable(results)] * 2, entry.name
    for path in (ROOT / "paper" / "results" / "runs").glob("*.json"):
        record = results.run(path.stem)
        where = record.document["provenance"]
        assert where["commit"] and where["versions"]["torch"] and where["machine"]["processor"], path.name
        assert path.stat().st_size < 60_000
