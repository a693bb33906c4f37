"""``python -m paper``: it lists, trains small models, draws one artefact or all, and says what is missing."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

import nlaformer as nf
from nlaformer import pretrained
from nlaformer.learn.evaluate import judge, trial
from paper import acceleration, bundled, measured, plan
from paper.__main__ import main
from paper.artefacts import ARTEFACTS, draw
from paper.curves import typical
from paper.results import FOLDER, HOME, Results


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def committed(results):
    """A copy of the committed results."""
    return shutil.copytree(FOLDER, results)


def test_the_list_names_every_artefact_and_what_is_missing(tmp_path, capsys):
    assert main(["list", "--results", str(tmp_path)]) == 0
    listed, count = capsys.readouterr().out, len(plan.exploratory())
    assert all(entry.name in listed for entry in ARTEFACTS)
    assert "all there" in listed and f"0 of the {count}" in listed
    assert main(["list"]) == 0 and f"{count} of the {count}" in capsys.readouterr().out


def test_artefacts_name_runs_of_the_plan_only():
    assert {name for entry in ARTEFACTS for name in entry.runs} <= {*plan.exploratory(), *plan.confirmatory()}


@pytest.mark.parametrize("entry", ARTEFACTS, ids=lambda entry: entry.name)
def test_drawing_one_artefact_writes_its_files_only_and_as_committed(entry, tmp_path):
    assert draw(entry, Results(), tmp_path)
    kinds = {"figures": ("svg", entry.figure), "tables": ("md", entry.tables)}
    expected = {f"{folder}/{entry.name}.{end}" for folder, (end, made) in kinds.items() if made is not None}
    assert set(map(str, files(tmp_path))) == expected
    for name in expected:
        assert (tmp_path / name).read_bytes() == (HOME / name).read_bytes(), f"python -m paper draw {entry.name}"


def test_no_figure_or_table_is_committed_without_an_artefact():
    known = {entry.name for entry in ARTEFACTS}
    assert {path.stem for folder in ("figures", "tables") for path in (HOME / folder).iterdir()} == known


def test_the_command_draws_into_the_folder_given(tmp_path, capsys):
    assert main(["draw", "fig-eta", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [
        str(tmp_path / name) for name in ("figures/fig-eta.svg", "tables/fig-eta.md")
    ]


def test_nothing_is_drawn_without_numbers(tmp_path, capsys):
    out, empty = tmp_path / "out", str(tmp_path / "results")
    (tmp_path / "results").mkdir()
    assert main(["draw", "all", "--out", str(out), "--results", empty]) == 1
    drawn = {path.stem for path in (out / "figures").iterdir()}
    assert drawn == {"fig-transformer", "fig-structure", "fig-probe"} and not (out / "tables").exists()
    assert "fig-eta: 6 missing" in capsys.readouterr().out


def test_an_artefact_with_a_missing_run_is_not_drawn(tmp_path, capsys):
    results, name = committed(tmp_path / "results"), plan.seeds_of(plan.joint())[1]
    (results / "runs" / f"{name}.json").unlink()
    assert main(["draw", "fig-loops", "--results", str(results), "--out", str(tmp_path / "out")]) == 1
    assert name in capsys.readouterr().out and not (tmp_path / "out").exists()


def test_a_small_plan_runs_end_to_end_stops_in_time_and_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = {name: planned for name, planned in plan.exploratory().items() if name.startswith("bundled-")}
    monkeypatch.setattr(plan, "exploratory", lambda: few)
    small = {name: plan.small(planned) for name, planned in few.items()}
    steps = {name: planned.config.replace(steps=5, warmup=1) for name, planned in small.items()}
    monkeypatch.setattr(
        plan, "small", lambda planned: dataclasses.replace(small[planned.name], config=steps[planned.name])
    )
    assert main(["run", "next", "--small", "--minutes", "0.001", "--device", "cpu"]) == 1
    assert main(["run", "next", "--small", "--device", "cpu", "--commit", "abc1234"]) == 0
    kept = Results(tmp_path / "runs" / "small" / "results")
    assert all(kept.run(name).document["provenance"]["commit"] == "abc1234" for name in few)
    assert (tmp_path / "runs" / "small" / "runs" / "weights" / "bundled-cg-joint" / "model.safetensors").exists()
    trained = files(kept.folder)
    assert main(["run", "table-bundled", "--small", "--device", "cpu"]) == 0  # measures what is missing
    assert main(["draw", "table-bundled", "--small"]) == 0
    assert (tmp_path / "runs" / "small" / "tables" / "table-bundled.md").exists()
    assert trained.items() <= files(kept.folder).items()
    assert not (tmp_path / "paper").exists()


def test_a_run_is_asked_for_with_those_it_starts_from(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("paper.__main__.make", lambda wanted, *given: asked.extend(run.name for run in wanted))
    name = "bundled-cg-accelerated-polished-lr0.0002"
    main(["run", name, "--results", str(tmp_path)])
    assert set(asked) == {run.name for run in plan.lineage(name)} and len(asked) == 4
    asked.clear()
    main(["run", name, "--results", str(tmp_path), "--small"])
    assert asked == [name]  # tiny models start from random weights


def test_nothing_is_trained_where_every_run_is_there(tmp_path):
    assert main(["run", "next", "--runs", str(tmp_path / "runs")]) == 0 and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["draw", "fig-sgima"], "fig-sigma"),
        (["run", "next", "--small", "--minutes", "nan"], "nan"),
        (["run", "next", "--small", "--minutes", "-1"], "-1"),
        (["run", "next", "--small", "--stack", "0"], "--stack is 0"),
        (["run", "next", "--small", "--commit", ""], "--commit"),
        (["run", "next", "--small", "--commit", "no commit"], "no commit"),
        (["run", "confirmatory-d", "--small", "--only", "nothing"], "nothing"),
        (["run", "theorem-cg", "--only", "result"], "result"),
        (["run", "confirmatory-d", "--small", "--results", str(FOLDER)], "tiny models"),
        (["run", "confirmatory-d", "--small", "--device", "cpu", "--results", __file__], "folder"),
        (["run", "confirmatory-d", "--small", "--only", ","], "--only"),
        (["list", "--results", "no-such-folder"], "no-such-folder"),
        (["draw", "all", "--results", __file__], "folder"),
        (["probe", "cg-joint", "--count", "3"], "3"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_a_run_asked_for_twice_is_made_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("paper.__main__.make", lambda wanted, *given: asked.extend(run.name for run in wanted))
    names = ["solution-only-seed100", "confirmatory-d", "--only", "solution-only-seed100, solution-only-seed102,"]
    main(["run", *names, "--small", "--results", str(tmp_path)])
    assert asked == ["solution-only-seed100", "solution-only-seed102"]


@pytest.mark.parametrize("content", ["", "null", "[1]", "{}", '{"provenance": {}}'])
def test_a_damaged_result_is_named(content, tmp_path, capsys):
    results, name = committed(tmp_path / "results"), "solution-only-seed100"
    (results / "runs" / f"{name}.json").write_text(content)
    for arguments in (["draw", "fig-teacher", "--out", str(tmp_path / "out")], ["run", name], ["list"]):
        assert main([*arguments, "--results", str(results)]) == 2
        assert name in capsys.readouterr().err and not files(tmp_path / "out")


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("provenance", {}),
        ("config", 3),
        ("own", "elsewhere"),
        ("evaluations", []),
        ("history", {"step": [], "discrepancy": [], "final_error": []}),
        ("model", [1.0]),
        ("model", [-1.0] * 21),
        ("model", ["low"] * 21),
        ("deviation", None),
    ],
)
def test_a_run_whose_numbers_lost_their_form_is_refused(entry, value, tmp_path, capsys):
    results, name = committed(tmp_path / "results"), "solution-only-seed100"
    path = results / "runs" / f"{name}.json"
    document = json.loads(path.read_text())
    own = document["evaluations"][document["own"]]
    (own if entry in own else document)[entry] = value
    path.write_text(json.dumps(document))
    assert main(["draw", "fig-teacher", "--results", str(results)]) == 2
    said = capsys.readouterr().err
    assert name in said and len(said.splitlines()) == 1 and not (tmp_path / "figures").exists()


def test_a_run_of_another_config_is_refused(tmp_path, monkeypatch, capsys):
    runs = committed(tmp_path / "results") / "runs"
    shutil.copy(runs / "cg-accelerated-lambda1-seed100.json", runs / "cg-accelerated-lambda10-seed100.json")
    shutil.copy(HOME / "ledger.md", tmp_path)
    monkeypatch.setattr("paper.ledger.HOME", tmp_path)
    folder = ["--results", str(tmp_path / "results")]
    for arguments in (["draw", "fig-teacher", *folder], ["list", *folder], ["ledger"]):
        assert main(arguments) == 2
        assert "cg-accelerated-lambda10-seed100" in capsys.readouterr().err
    assert main(["list", "--small", *folder]) == 2  # of the paper's size, where tiny ones are expected


def test_a_ledger_is_not_emptied(tmp_path, monkeypatch, capsys):
    shutil.copy(HOME / "ledger.md", tmp_path)
    monkeypatch.setattr("paper.ledger.HOME", tmp_path)
    assert main(["ledger"]) == 2 and "no run of protocol.md" in capsys.readouterr().err
    assert (tmp_path / "ledger.md").read_bytes() == (HOME / "ledger.md").read_bytes()


@pytest.mark.parametrize("mark", ["<!-- runs -->\n", "<!-- end -->\n"])
def test_a_ledger_without_its_marks_is_left_as_it_is(mark, tmp_path, monkeypatch, capsys):
    text = (HOME / "ledger.md").read_text(encoding="utf-8").replace(mark, "")
    (tmp_path / "ledger.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr("paper.ledger.HOME", tmp_path)
    assert main(["ledger"]) == 2 and mark.strip() in capsys.readouterr().err
    assert (tmp_path / "ledger.md").read_text(encoding="utf-8") == text


def test_figures_and_tables_survive_models_that_diverged(tmp_path):
    results = committed(tmp_path / "results")
    for path in (results / "runs").glob("*.json"):
        document = json.loads(path.read_text())
        for row in document["evaluations"].values():
            row |= {"model": [None] * 21, "discrepancy": None}
            row |= {kind: [None] * len(row[kind]) for kind in ("deviation", "intermediate", "loops") if kind in row}
        path.write_text(json.dumps(document))
    for entry in ARTEFACTS:
        if entry.runs:
            draw(entry, Results(results), tmp_path)


def test_no_picture_cuts_off_its_titles():
    for entry in ARTEFACTS:
        if entry.figure is None:
            continue
        figure = entry.figure(Results())
        figure.draw_without_rendering()
        for axes in figure.axes:
            title = axes.title.get_window_extent()
            assert figure.bbox.x0 <= title.x0 and title.x1 <= figure.bbox.x1, (entry.name, axes.get_title())


# --- measurements ---


def test_the_diagonal_lowers_the_condition_numbers():
    found = measured.measure_systems(small=True)
    assert all(1 < low < median < high for low, median, high in found["condition"].values())
    bare, *others = (row[1] for row in found["condition"].values())
    assert max(others) < bare and min(found["smallest_eigenvalue"].values()) > 0


def test_the_lead_is_the_teachers_error_over_the_pupils():
    record = Results().run(plan.BUNDLED["pcg-accelerated"])
    row = record.at(1.2)
    lead = acceleration.lead_curve(record)
    assert lead[3] == pytest.approx(row["pcg"][3] / row["model"][3])
    assert min(lead[2:7]) < typical(lead) < max(lead[2:7])


def test_fresh_systems_are_measured_as_in_an_evaluation(monkeypatch):
    name = "pcg-accelerated"
    monkeypatch.setattr(plan, "BUNDLED", {name: plan.BUNDLED[name]})
    found, solver = bundled.Fresh(bundled.measure(small=True)), nf.load(name)
    for sigma in plan.SIGMAS:
        systems = nf.problems.SPD(n=20, sigma=(sigma,)).sample(found.count, found.document["seed"])
        whole, row = judge(solver, trial("", systems, solver.config.T)), found.at(name, sigma)
        assert row["mean"] == pytest.approx(whole.model, rel=1e-3)
        assert row["standard_error"] == pytest.approx(whole.standard_error, rel=1e-3)
        assert row["deviation"] == pytest.approx(whole.deviation, rel=1e-3)
        assert row["upper"] == pytest.approx(whole.upper["model"], rel=1e-3)
        assert max(row["median"]) <= max(row["largest"])
        for method, mean in (("cg", whole.cg), ("pcg", whole.pcg)):
            assert found.at(method, sigma)["mean"] == pytest.approx(mean, rel=1e-3)
            assert found.at(method, sigma)["median"] == pytest.approx(whole.median[method], rel=1e-3)


def test_a_folder_named_like_a_bundled_model_is_not_measured(tmp_path, monkeypatch):
    nf.operation("add", n=2).save(tmp_path / "cg-joint")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bundled, "_SMALL_COUNT", 2)
    found = bundled.Fresh(bundled.measure(small=True))
    assert found.configs["cg-joint"] == nf.load(pretrained.HOME / "cg-joint").config
