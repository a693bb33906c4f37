"""The runs of the paper: the plan, training under interruption, what is filed, and bundling."""

from __future__ import annotations

import dataclasses
import itertools
import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import nlaformer as nf
from nlaformer.errors import FileError, OptionError
from nlaformer.io import fingerprint, locked_folder
from nlaformer.learn import evaluate
from nlaformer.learn.checkpoint import read_manifest
from nlaformer.learn.cuda.launch import unsupported
from nlaformer.learn.stacks import check_stack
from paper import plan, run
from paper.__main__ import main
from paper.bundled import promote
from paper.results import FOLDER, Results, as_filed, rounded

RESULT, JOINT = map(plan.name_of, (plan.imitation(), plan.joint()))


def tiny(name):
    """A run of the plan, five steps of it."""
    planned = plan.small(plan.planned(name))
    return dataclasses.replace(planned, config=planned.config.replace(steps=5, warmup=1, chunk=5, batch=4))


def make(wanted, folder, filed, said=None):
    return run.make(wanted, folder, filed, device="cpu", say=(said if said is not None else []).append)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs, trained for real: the first in two goes."""
    folder = tmp_path_factory.mktemp("paper")
    filed = Results(folder / "results", commit="abc")
    wanted = [tiny(RESULT), tiny("bundled-cg-joint")]
    clock = itertools.count()  # the budget is spent at the fourth look at it, however fast the machine is
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "time", SimpleNamespace(monotonic=lambda: next(clock) * 2e-3))
        left = run.make(wanted, folder / "runs", filed, 6e-3, "cpu", lambda line: None)
    assert [planned.name for planned in left] == [RESULT, "bundled-cg-joint"]
    assert json.loads((folder / "runs" / run.STACK_FILE).read_text()) == ["bundled-cg-joint"]  # the lower rank first
    assert read_manifest(folder / "runs" / "bundled-cg-joint")["state"] == "interrupted"
    assert make(wanted, folder / "runs", filed) == []
    assert not (folder / "runs" / run.STACK_FILE).exists()
    return folder


# --- the plan ---


def test_every_planned_run_is_trainable_and_its_name_is_unique():
    runs = plan.exploratory()
    assert len({repr((planned.config, planned.after)) for planned in runs.values()}) == len(runs)
    for name, planned in runs.items():
        assert name == planned.name and not planned.config.complaints() and not plan.small(planned).config.complaints()
        config = planned.config
        assert unsupported(config.d, config.heads, config.ffn_width, config.n + 1) is None, f"{name} would be slow"


@pytest.mark.parametrize(
    "change", [{"heads": 4}, {"steps": 700_000}, {"seed": 100}, {"norm": "none"}, {"precision": "tf32"},
               {"sigma": (1.0,)}, {"d": 128}, {"window": 15}, {"lr": 2e-4}, {"supervision": "solution"}],
)  # fmt: skip
def test_runs_that_differ_in_one_setting_have_different_names(change):
    assert plan.name_of(plan.our_accelerated("cg").replace(**change)) != plan.name_of(plan.our_accelerated("cg"))


def test_the_labels_of_the_kinds_match_their_configs():
    for label, config in plan.kinds().items():
        assert ("power 1" in label) == (config.power == 1)
        assert ("faster" in label) == (config.supervision == "step+solution")
        assert ("PCG" in label) == (config.teacher == "pcg") and ("joint" in label) == (config.supervision == "joint")


def test_stacks_can_train_as_one_program_and_follow_the_ranks():
    stacks = plan.stacks(plan.exploratory().values())
    for stack in stacks:
        check_stack([planned.config for planned in stack])
        assert len(stack) <= plan.STACK
    assert [planned.name for planned in stacks[0]] == [f"bundled-{name}" for name in plan.BUNDLED]
    ranks = [planned.rank for stack in stacks for planned in stack]
    assert ranks == sorted(ranks) and len(ranks) == len(plan.exploratory())


def test_a_run_starts_from_weights_that_are_kept_and_made_before_it():
    runs = plan.exploratory()
    assert all(runs[name].keep for name in plan.BUNDLED.values())
    for planned in runs.values():
        if planned.after is not None:
            before = runs[planned.after]
            assert before.keep and before.rank < planned.rank
            changed = set(before.config.differences(planned.config))
            assert not changed & {"n", "T", "d", "heads", "ffn", "pre_layers", "loop_layers", "post_layers", "norm"}


# --- training ---


def test_a_kill_while_numbers_are_filed_loses_nothing(tmp_path, monkeypatch):
    filed, wanted = Results(tmp_path / "results"), [tiny(f"bundled-{name}") for name in plan.BUNDLED]
    names, file_run = [], run.file_run

    def killed_after_two(planned, *given):
        if len(names) == 2:
            raise KeyboardInterrupt
        names.append(planned.name)
        return file_run(planned, *given)

    monkeypatch.setattr(run, "file_run", killed_after_two)
    with pytest.raises(KeyboardInterrupt):
        make(wanted, tmp_path / "runs", filed)
    monkeypatch.setattr(run, "file_run", file_run)
    written = {name: read_manifest(tmp_path / "runs" / name)["written"] for name in names}
    assert make(wanted, tmp_path / "runs", filed) == []
    for planned in wanted:
        assert filed.run(planned.name).document["stack"] == [member.name for member in wanted]
        assert nf.load(tmp_path / "runs" / plan.WEIGHTS / planned.name).config == planned.config
    assert written == {name: read_manifest(tmp_path / "runs" / name)["written"] for name in names}


def test_a_run_waits_for_the_weights_it_starts_from(tmp_path):
    filed, said, folder = Results(tmp_path / "results"), [], tmp_path / "runs"
    parent = tiny("bundled-cg-joint")
    child = dataclasses.replace(tiny("bundled-cg-imitation-after-joint"), after=parent.name)
    assert make([child, parent], folder, filed, said) == []
    trained = [line.rpartition(" ")[2] for line in said if line.startswith("Training")]
    assert trained == [parent.name, child.name]
    assert filed.run(child.name).config.start == str(folder / plan.WEIGHTS / parent.name)
    (filed.folder / "runs" / f"{child.name}.json").unlink()
    kept = folder / plan.WEIGHTS / parent.name
    nf.load(folder / child.name).save(kept)
    with pytest.raises(FileError, match=f"{parent.name}.* not the ones of its numbers"):
        make([child], folder, filed)
    (filed.folder / "runs" / f"{parent.name}.json").unlink()
    kept.rename(tmp_path / "elsewhere")
    with pytest.raises(FileError, match=rf"{parent.name}.*remove .*{parent.name}\.json"):
        make([child], folder, filed)


def test_a_run_may_start_from_bundled_weights(tmp_path):
    planned, filed = plan.planned("bundled-cg-imitation-after-joint"), Results()
    start = tmp_path / plan.WEIGHTS / str(planned.after)
    run._fetch_bundled([planned], tmp_path, Results(tmp_path / "nothing"))
    assert not start.exists()  # no numbers say that they are the ones
    run._fetch_bundled([planned], tmp_path, filed)
    assert fingerprint(start) == filed.run(planned.after).document["weights"]


def test_a_finished_run_of_another_config_is_not_filed(tmp_path):
    filed, planned = Results(tmp_path / "results"), tiny("bundled-cg-joint")
    make([planned], tmp_path / "runs", filed)
    (filed.folder / "runs" / f"{planned.name}.json").unlink()  # as if killed before it was filed
    weights = tmp_path / "runs" / plan.WEIGHTS / planned.name / "model.safetensors"
    kept = weights.read_bytes()
    for changes in ({"lr": 1e-4}, {"steps": 4}, {"precision": "bf16"}):
        other = dataclasses.replace(planned, config=planned.config.replace(**changes))
        with pytest.raises(OptionError, match="another config"):
            make([other], tmp_path / "runs", filed)
    assert not filed.has_run(planned.name) and weights.read_bytes() == kept


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    pytest.importorskip("fcntl")
    with locked_folder(tmp_path), pytest.raises(FileError, match="another process"):
        make([tiny(RESULT)], tmp_path, Results(tmp_path / "results"))
    assert not (tmp_path / run.STACK_FILE).exists()


@pytest.mark.parametrize("content", ["", "null", "3", "[1", "{}", '"abc"', "[1, 2]", f'["{RESULT}", "{RESULT}"]'])
def test_a_damaged_stack_file_is_named(content, tmp_path):
    (tmp_path / run.STACK_FILE).write_text(content)
    with pytest.raises(FileError, match=run.STACK_FILE):
        make([tiny(RESULT)], tmp_path, Results(tmp_path / "results"))


# --- what is filed ---


def test_a_filed_run_has_its_config_commit_history_and_evaluations(made):
    filed = Results(made / "results")
    for name in (RESULT, "bundled-cg-joint"):
        record, path = filed.run(name), made / "results" / "runs" / f"{name}.json"
        assert path.stat().st_size < 60_000
        assert record.document["provenance"]["commit"] == "abc"
        assert record.config == tiny(name).config and record.document["steps"] == 5
        steps = record.history["step"]
        assert steps[0] == 0 and steps[-1] == 5
        assert {"spd, sigma 1.0", "spd, sigma 1.2", "spd, sigma 1.4", "b times 4"} <= set(record.evaluations)
        own = record.own
        assert own["count"] == 512 and len(own["loops"]) == 2 * record.config.T + 1
        assert len(own["counts"]["cg"]["mean"]) == 4 and own["counts"]["cg"]["reached"] == [1.0] * 4


def test_a_confirmatory_run_is_filed_with_its_group_failures_and_crossings(tmp_path, monkeypatch):
    monkeypatch.setattr("paper.run.TEST_COUNT", 8)
    filed = Results(tmp_path / "results")
    assert make([tiny("joint-eta0.0005-seed101")], tmp_path / "runs", filed) == []
    document, committed = (
        filed.run("joint-eta0.0005-seed101").document,
        Results().run("joint-eta0.0005-seed101").document,
    )
    assert document["group"] == "a" and set(committed) <= set(document)
    label, row = document["own"], document["evaluations"]
    assert set(row) == {label} and set(row[label]) == set(committed["evaluations"][label])
    assert row[label]["count"] == 8 and 0 <= row[label]["failures"] <= 1
    assert [len(quarters) for quarters in row[label]["crossing"].values()] == [4, 4]


def test_the_filed_evaluations_are_those_of_the_weights(made):
    record = Results(made / "results").run("bundled-cg-joint")
    solver = nf.load(made / "runs" / plan.WEIGHTS / "bundled-cg-joint")
    assert rounded(run.examine(solver)) == record.document["evaluations"]


def test_iterations_are_counted_for_each_system(made):
    from nlaformer.learn.teachers import cg

    record = Results(made / "results").run(RESULT)
    A, b, x = nf.problems.SPD(n=4, sigma=(1.2,)).sample(512, evaluate.SEED)
    errors = (cg(A, b, 4).x - x.unsqueeze(1)).square().sum(-1) / x.square().sum(-1, keepdim=True)
    first = torch.tensor([next((t for t in range(5) if row[t] <= 1e-2), 5) for row in errors]).double()
    assert record.own["counts"]["cg"]["mean"][1] == pytest.approx(first.mean().item(), rel=1e-5)


def test_every_committed_run_has_its_planned_config_seed_and_commit():
    for name in (path.stem for path in (FOLDER / "runs").glob("*.json")):
        record, planned = Results().run(name), plan.planned(name)
        document = record.document
        assert set(as_filed(planned.config).differences(record.config)) <= {"start"}, name
        assert document.get("group") == planned.group  # in protocol.md
        assert document["name"] == name and document["state"] in ("finished", "diverged")
        assert name.startswith("bundled-") or name.endswith(f"-seed{record.config.seed}")
        assert (record.config.start is None) == (planned.after is None)
        where = document["provenance"]
        assert where["commit"] and where["versions"]["torch"] and where["machine"]["processor"], name
        assert len(record.own["model"]) == record.config.T + 1


# --- bundling ---


def test_a_finished_run_becomes_a_bundled_model(made, tmp_path, monkeypatch):
    filed = Results(made / "results")
    card = tmp_path / "cg-joint" / "README.md"
    card.parent.mkdir()
    card.write_text("by hand")
    assert promote(made / "runs", filed, tmp_path) == [card]
    assert card.read_text() == "by hand"
    monkeypatch.setattr("nlaformer.pretrained.HOME", tmp_path)
    assert nf.load("cg-joint").config == tiny("bundled-cg-joint").config
    with pytest.raises(FileError, match="cg-joint"):
        nf.load("cg-jiont")
    monkeypatch.chdir(tmp_path)
    nf.operation("add", n=2).save(tmp_path / "here" / "cg-joint")
    monkeypatch.chdir(tmp_path / "here")
    assert nf.load("cg-joint").n == 2  # a folder of the user's comes first
    with pytest.raises(FileError, match="weights"):
        promote(tmp_path, filed, tmp_path)


def test_tiny_models_are_not_bundled(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("paper.__main__.promote", partial(promote, home=tmp_path))
    assert main(["promote", "--runs", str(made / "runs"), "--results", str(made / "results")]) == 2
    assert "planned config" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_weights_of_another_run_are_not_bundled(made, tmp_path):
    nf.load(made / "runs" / RESULT).save(tmp_path / plan.WEIGHTS / "bundled-cg-joint")
    with pytest.raises(FileError, match="another config"):
        promote(tmp_path, Results(made / "results"), tmp_path / "home")
    assert not (tmp_path / "home").exists()
