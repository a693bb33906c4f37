"""The study: its plan, its runs under interruption, what is filed of them, and that nothing is drawn from nothing."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest
import torch

import nlaformer as nf
from nlaformer.errors import FileError, OptionError
from nlaformer.io import fingerprint, locked_folder
from nlaformer.learn.cuda.launch import unsupported
from nlaformer.learn.evaluate import own_label
from nlaformer.learn.recipes import check_stack
from nlaformer.learn.runs import read_manifest
from paper import bundling, claims, commands, filing, lead, plan, running
from paper.catalogue import ARTEFACTS
from paper.results import Results, rounded

ROOT = Path(__file__).parent.parent

RESULT, JOINT = plan.names([plan.imitation(), plan.joint()])
CPU = running.Speeds("cpu")


def tiny(name):
    """A run of the plan, five steps of it."""
    run = plan.small(plan.planned(name))
    return dataclasses.replace(run, config=run.config.replace(steps=5, warmup=1, chunk=5, batch=4))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs, made for real: the first in two goes."""
    folder = tmp_path_factory.mktemp("study")
    results = Results(folder / "results", commit="of the lead")
    said = []
    wanted = [tiny(RESULT), tiny("bundled-cg-joint")]
    left = running.carry_out(wanted, folder / "runs", results, time.monotonic() + 6e-3, CPU, said.append)
    assert [run.name for run in left] == [RESULT, "bundled-cg-joint"] and "The time is up" in said[-1]
    under_way = json.loads((folder / "runs" / running.STACK).read_text())
    assert under_way == ["bundled-cg-joint"]  # the lower rank first
    assert read_manifest(folder / "runs" / "bundled-cg-joint")["state"] == "interrupted"
    assert running.carry_out(wanted, folder / "runs", results, speeds=CPU, say=said.append) == []
    assert not (folder / "runs" / running.STACK).exists()
    return folder


def test_a_kill_while_numbers_are_filed_loses_nothing(tmp_path, monkeypatch):
    results, wanted = Results(tmp_path / "results"), [tiny(f"bundled-{name}") for name in plan.BUNDLED]
    filed, file_run = [], running.file_run

    def killed_after_two(run, *given):
        if len(filed) == 2:
            raise KeyboardInterrupt
        filed.append(run.name)
        return file_run(run, *given)

    monkeypatch.setattr(running, "file_run", killed_after_two)
    with pytest.raises(KeyboardInterrupt):
        running.carry_out(wanted, tmp_path / "runs", results, speeds=CPU, say=lambda line: None)
    monkeypatch.setattr(running, "file_run", file_run)
    written = {name: read_manifest(tmp_path / "runs" / name)["written"] for name in filed}
    assert running.carry_out(wanted, tmp_path / "runs", results, speeds=CPU, say=lambda line: None) == []
    for run in wanted:
        assert results.run(run.name).document["stack"] == [member.name for member in wanted]
        assert nf.load(tmp_path / "runs" / running.WEIGHTS / run.name).config == run.config
    assert written == {name: read_manifest(tmp_path / "runs" / name)["written"] for name in filed}


class OneSecondARun(running.Speeds):
    """A machine on which a run of the looped architecture takes a second, and any other a hundred."""

    def seconds(self, stack):
        return sum(1.0 if "looped" in run.name else 100.0 for run in stack)


def test_the_most_valuable_runs_that_fit_are_made():
    due, speeds = list(plan.runs().values()), OneSecondARun("cpu")
    (first, *_), said = plan.stacks(due), []

    def fitting(seconds):
        return running.fitting(due, time.monotonic() + seconds, speeds, said.append)

    assert fitting(float("inf")) == first == fitting(100.0 * len(first) + 1)
    assert fitting(100.0 * len(first) - 1) == first[:-1]
    assert fitting(101.0) == first[:1]
    assert [run.name for run in fitting(3.0)] == [name for name in plan.runs() if "looped" in name]
    assert not said
    assert fitting(0.5) == fitting(-1.0) == first[:1] and len(said) == 2  # none fits: begun, to go on another time
    speeds.one_by_one = False  # on a GPU a stack has a share of its own in the time: eight members, three halves
    assert fitting(100.0 * len(first) - 1) == first[:-1] and fitting(101.0) != first[:1] and fitting(0.5) == first


def test_the_time_a_stack_takes_is_measured_once(monkeypatch):
    timed = []
    monkeypatch.setattr(running, "_seconds_per_step", lambda configs, device: timed.append(configs) or 0.5)
    speeds, stack = running.Speeds("cpu"), [tiny(RESULT), tiny(JOINT)]
    assert speeds.seconds(stack) == speeds.seconds(stack) == pytest.approx(1.1 * 2 * 0.5 * 5)
    assert speeds.seconds(stack[:1]) == pytest.approx(1.1 * 0.5 * 5)
    assert [len(configs) for configs in timed] == [1]  # members train one after another here
    speeds.one_by_one = False
    assert speeds.seconds(stack) == pytest.approx(1.1 * 0.5 * 5)
    assert [len(configs) for configs in timed] == [1, 2]
    speeds.seconds([plan.planned("bundled-cg-imitation-150k")])  # whose weights to begin with are not there
    assert timed[-1][0].start is None


def test_a_run_waits_for_the_weights_it_begins_with(tmp_path):
    results, said = Results(tmp_path / "results"), []
    parent = tiny("bundled-cg-joint")
    child = tiny("bundled-cg-imitation-after-joint")
    planned = plan.planned("bundled-cg-imitation-after-joint")
    child = dataclasses.replace(child, config=child.config.replace(start=planned.config.start)).within(
        tmp_path / "runs"
    )
    assert child.begins_with == parent.name
    assert running.carry_out([child, parent], tmp_path / "runs", results, speeds=CPU, say=said.append) == []
    assert [line for line in said if line.startswith("Training")] == [
        f"Training 1 of 2 runs to make: {parent.name}",
        f"Training 1 of 1 runs to make: {child.name}",
    ]
    (tmp_path / "results" / "runs" / f"{child.name}.json").unlink()
    kept = tmp_path / "runs" / plan.WEIGHTS / parent.name
    nf.load(tmp_path / "runs" / child.name).save(kept)
    with pytest.raises(FileError, match="not the ones of its numbers"):
        running.carry_out([child], tmp_path / "runs", results, speeds=CPU, say=said.append)
    (tmp_path / "results" / "runs" / f"{parent.name}.json").unlink()
    kept.rename(tmp_path / "elsewhere")
    with pytest.raises(FileError, match=rf"begins with the weights of {parent.name}.*remove .*{parent.name}\.json"):
        running.carry_out([child], tmp_path / "runs", results, speeds=CPU, say=said.append)


def test_a_run_may_begin_with_bundled_weights(tmp_path):
    results, run = (
        Results(ROOT / "paper" / "results"),
        plan.planned("bundled-cg-imitation-after-joint").within(tmp_path),
    )
    begun = tmp_path / plan.WEIGHTS / str(run.begins_with)
    running._fetch_beginnings([run], Results(tmp_path / "nothing"))
    assert not begun.exists()  # nothing says that they are the ones
    running._fetch_beginnings([run], results)
    assert fingerprint(begun) == results.run(run.begins_with).document["weights"]


def test_a_run_is_asked_for_with_those_it_begins_with(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(commands, "_make", lambda wanted, *given, **more: asked.extend(run.name for run in wanted))
    commands.reproduce("fig-lead", runs=tmp_path / "runs", results=tmp_path / "results", docs=tmp_path / "docs")
    begun = {plan.planned(name).begins_with for name in asked} - {None}
    assert begun and begun <= set(asked) and len(asked) == len(set(asked))
    shorter = len(asked)
    commands.reproduce("fig-lead", runs=tmp_path, results=tmp_path / "results", docs=tmp_path / "docs", small=True)
    assert not begun & set(asked[shorter:]) - set(lead.ARTEFACT.runs)  # tiny models begin with nothing


def test_a_finished_run_of_another_config_is_not_filed(tmp_path):
    results, run = Results(tmp_path / "results"), tiny("bundled-cg-joint")
    running.carry_out([run], tmp_path / "runs", results, speeds=CPU, say=lambda line: None)
    (tmp_path / "results" / "runs" / f"{run.name}.json").unlink()  # as if killed before that
    kept = (tmp_path / "runs" / running.WEIGHTS / run.name / "model.safetensors").read_bytes()
    for changes in ({"lr": 1e-4}, {"steps": 4}, {"precision": "bf16"}):
        other = dataclasses.replace(run, config=run.config.replace(**changes))
        with pytest.raises(OptionError, match="holds a run of another config"):
            running.carry_out([other], tmp_path / "runs", results, speeds=CPU, say=lambda line: None)
    assert results.run(run.name) is None
    assert (tmp_path / "runs" / running.WEIGHTS / run.name / "model.safetensors").read_bytes() == kept


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    pytest.importorskip("fcntl")
    with locked_folder(tmp_path), pytest.raises(FileError, match="another process is training"):
        running.carry_out([tiny(RESULT)], tmp_path, Results(tmp_path / "results"), speeds=CPU)
    assert not (tmp_path / running.STACK).exists()


@pytest.mark.parametrize("content", ["", "null", "3", "[1"])
def test_a_damaged_list_of_the_stack_is_named(content, tmp_path):
    (tmp_path / running.STACK).write_text(content)
    with pytest.raises(FileError, match=r"stack\.json is damaged"):
        running.carry_out([tiny(RESULT)], tmp_path, Results(tmp_path / "results"), speeds=CPU)


@pytest.fixture(scope="module")
def everything(made, tmp_path_factory):
    """A folder of results in which every run is there: copies of one that was made, under the names of the plan."""
    results = Results(tmp_path_factory.mktemp("everything"))
    record = Results(made / "results").run(RESULT)
    for run in plan.runs().values():
        config = plan.small(run).config.replace(steps=record.config.steps, warmup=1)
        own = own_label(config) if own_label(config) in record.evaluations else record.document["own"]
        document = record.document | {"name": run.name, "config": config.to_json(), "own": own}
        results.write(f"runs/{run.name}.json", document)
    for entry in ARTEFACTS:
        if entry.measure is not None and any(results.file(name) is None for name in entry.files):
            entry.measure(results, True)
    return results


def test_every_run_can_be_trained_and_has_a_name_of_its_own():
    runs = plan.runs()
    assert len({repr(run.config) for run in runs.values()}) == len(runs)
    for name, run in runs.items():
        assert name == run.name and not run.config.complaints() and not plan.small(run).config.complaints()
        config = run.config
        assert unsupported(config.d, config.heads, config.ffn_width, config.n + 1) is None, f"{name} would be slow"


def test_artefacts_refer_to_runs_of_the_plan_and_need_all_of_them():
    named = {name for entry in ARTEFACTS for name in entry.runs}
    assert set(plan.runs()) == named


def test_stacks_are_programs_in_the_order_of_their_value():
    stacks = plan.stacks(plan.runs().values())
    for stack in stacks:
        check_stack([run.config for run in stack])
        assert len(stack) <= plan.STACK
    assert [run.name for run in stacks[0]] == [f"bundled-{name}" for name in plan.BUNDLED]
    ranks = [run.rank for stack in stacks for run in stack]
    assert ranks == sorted(ranks) and len(ranks) == len(plan.runs())


def test_a_run_begins_with_weights_that_are_kept_before_its_turn():
    runs = plan.runs()
    begun = {name: run for name, run in runs.items() if run.config.start is not None}
    assert begun and all(runs[name].keep for name in plan.BUNDLED.values())
    for run in begun.values():
        before = runs[run.config.start.removeprefix(f"{plan.HOME}/{plan.WEIGHTS}/")]
        assert before.keep and before.rank < run.rank
        changed = set(before.config.differences(run.config))
        assert not changed & {"n", "T", "d", "heads", "ffn", "pre_layers", "loop_layers", "post_layers", "norm"}


def test_a_shorter_run_has_another_name_and_the_same_everything_else():
    run = plan.planned(JOINT)
    shorter = run.of_length(20_000)
    assert shorter.name == f"{JOINT}-20k" and run.of_length(None) == run == run.of_length(plan.STEPS)
    assert run.of_length(2 * plan.STEPS) == run  # never longer
    begun = plan.planned("bundled-cg-imitation-150k").of_length(20_000)
    assert begun.config.start == plan.weights_of("bundled-cg-imitation-20k")
    last = plan.planned("bundled-cg-accelerated-lambda100").of_length(20_000)  # 1,800 steps, after a shorter run
    assert last.begins_with == "bundled-cg-accelerated-150k-20k" and last.config.steps == 1800
    assert last.name == "bundled-cg-accelerated-lambda100-20k"
    assert set(run.config.differences(shorter.config)) == {"steps"}
    assert run.in_precision("bf16").config.precision == "bf16" and run.in_precision("bf16").name == JOINT


def test_a_run_is_filed_with_its_story(made):
    results = Results(made / "results")
    for name in (RESULT, "bundled-cg-joint"):
        record, path = results.run(name), made / "results" / "runs" / f"{name}.json"
        assert path.stat().st_size < 60_000
        assert record.document["provenance"]["commit"] == "of the lead"
        assert record.config == tiny(name).config and record.document["steps"] == 5
        assert record.history["step"][0] == 0 and record.history["step"][-1] == 5
        assert {"spd, sigma 1.0", "spd, sigma 1.2", "spd, sigma 1.4", "b times 4"} <= set(record.evaluations)
        own = record.own
        assert own["count"] == 512 and len(own["loops"]) == 2 * record.config.T + 1
        assert len(own["counts"]["cg"]["mean"]) == 4 and own["counts"]["cg"]["reached"] == [1.0] * 4
    assert results.run("joint-of-nothing") is None


def test_what_is_filed_is_what_the_weights_give(made):
    record = Results(made / "results").run("bundled-cg-joint")
    solver = nf.load(made / "runs" / running.WEIGHTS / "bundled-cg-joint")
    again = rounded(filing.Examiner().examine(solver))
    assert again == record.document["evaluations"]


def test_counts_are_those_of_each_system(made):
    record = Results(made / "results").run(RESULT)
    A, b, x = nf.problems.SPD(n=4, sigma=(1.2,)).sample(512, filing.evaluate.SEED)
    from nlaformer.learn import teachers as krylov

    errors = (krylov.cg(A, b, 4).x - x.unsqueeze(1)).square().sum(-1) / x.square().sum(-1, keepdim=True)
    first = torch.tensor([next((t for t in range(5) if row[t] <= 1e-2), 5) for row in errors]).double()
    assert record.own["counts"]["cg"]["mean"][1] == pytest.approx(first.mean().item(), rel=1e-5)


def test_runs_are_compared_at_one_length(everything, tmp_path):
    record = everything.run(JOINT)
    results = Results(tmp_path)

    def put(name, steps):
        config = record.config.replace(steps=steps).to_json()
        results.write(f"runs/{name}.json", record.document | {"config": config, "name": name})

    put("a", 100)
    put("a-20k", 20)
    put("b-20k", 20)
    assert {name: run.name for name, run in results.together(["a", "b", "c"]).items()} == {"a": "a-20k", "b": "b-20k"}
    put("b", 100)
    assert {run.name for run in results.together(["a", "b", "c"]).values()} == {"a", "b"}


def test_numbers_without_a_source_are_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"value": 1}')
    with pytest.raises(FileError, match="provenance"):
        Results(tmp_path).file("x.json")
    (tmp_path / "y.json").write_text('{"value": ')
    with pytest.raises(FileError, match="not a JSON document"):
        Results(tmp_path).file("y.json")


def test_nothing_is_drawn_or_judged_from_nothing(tmp_path):
    results = Results(tmp_path)
    for entry in ARTEFACTS:
        if not entry.runs and not entry.files:
            continue  # a diagram
        assert not entry.drawable(results) and (entry.draw is None or entry.draw(results) is None)
        assert not entry.sheets or entry.sheets(results) == []
        for verdict in entry.verdicts(results) if entry.verdicts else []:
            assert verdict.judgement == "not yet run" or "Figure 4a" in verdict.where
    assert "not yet run" in claims.page(results)


def test_everything_is_drawn_and_judged_from_results_alone(everything, tmp_path):
    from nlaformer.report.figure import save

    for entry in ARTEFACTS:
        assert entry.missing(everything) == []
        if entry.draw is not None:
            first, second = (save(entry.draw(everything), tmp_path / f"{k}.svg").read_bytes() for k in "12")
            assert first == second and first.startswith(b"<?xml")
        unsaid = [v.claim for v in (entry.verdicts(everything) if entry.verdicts else []) if not v.found]
        assert not entry.runs or unsaid == [], entry.name
    page = claims.page(everything)
    assert page == claims.page(Results(everything.folder))


def test_a_finished_run_becomes_a_bundled_model(made, tmp_path, monkeypatch):
    results = Results(made / "results")
    assert bundling.promote(made / "runs", results, tmp_path) == [tmp_path / "cg-joint"]
    card = (tmp_path / "cg-joint" / "README.md").read_text()
    assert "## Where it fails" in card and "results/runs/bundled-cg-joint.json" in card and "b times 4" in card
    monkeypatch.setattr("nlaformer.pretrained.HOME", tmp_path)
    assert nf.load("cg-joint").config == tiny("bundled-cg-joint").config
    with pytest.raises(FileError, match="bundled: cg-joint"):
        nf.load("cg-jiont")
    monkeypatch.chdir(tmp_path)
    nf.operation("add", n=2).save(tmp_path / "here" / "cg-joint")
    monkeypatch.chdir(tmp_path / "here")
    assert nf.load("cg-joint").n == 2  # a folder of the user's comes first
    with pytest.raises(FileError, match="has its weights"):
        bundling.promote(tmp_path, results, tmp_path)


def test_a_model_that_is_not_of_its_run_is_not_bundled(made, tmp_path):
    place = tmp_path / running.WEIGHTS / "bundled-cg-joint"
    nf.load(made / "runs" / RESULT).save(place)
    with pytest.raises(FileError, match="another config"):
        bundling.promote(tmp_path, Results(made / "results"), tmp_path)


def test_a_card_that_cannot_be_made_leaves_the_bundled_model(made, tmp_path):
    results = Results(tmp_path / "results")
    document = Results(made / "results").run("bundled-cg-joint").document
    results.write("runs/bundled-cg-joint.json", document | {"provenance": {}})
    with pytest.raises(FileError, match="promote: a file"), results.reading("promote"):
        bundling.promote(made / "runs", results, tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_is_refused(number, tmp_path):
    (tmp_path / "a.json").write_text(f'{{"provenance": {{}}, "mean": [{number}]}}')
    with pytest.raises(FileError, match=f"{number} is no number"):
        Results(tmp_path).file("a.json")
