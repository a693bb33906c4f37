"""Runs: stacks equal solo runs, resuming changes nothing, divergence is contained, the folder tells all."""

from __future__ import annotations

import itertools
import json
import math
import sys
import types

import pytest
import torch

import nlaformer as nf
from nlaformer.errors import FileError, NLAFormerError, OptionError
from nlaformer.learn import checkpoint, optimizer
from nlaformer.learn.checkpoint import model_step, read_manifest, read_metrics
from nlaformer.learn.engine import PlainEngine
from nlaformer.learn.optimizer import learning_rate
from tests.training import TINY, equal, final, interrupt_at, train


def test_a_run_writes_config_manifest_metrics_model_and_two_checkpoints(tmp_path):
    run = train(TINY.replace(supervision="joint"), tmp_path)
    assert run.steps == 12 and not run.diverged
    names = {
        "config.json",
        "manifest.json",
        "metrics.jsonl",
        "model.safetensors",
        checkpoint.LATEST,
        checkpoint.PREVIOUS,
    }
    assert {path.name for path in tmp_path.iterdir()} == names
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert [line["step"] for line in lines if "validation" in line] == [0, 3, 6, 9, 12]
    assert len(lines[-1]["validation"]["squared_relative_error"]) == TINY.T + 1
    manifest = read_manifest(tmp_path)
    assert manifest["state"] == "finished" and manifest["arithmetic"] == "float32" and manifest["seed"] == 0
    assert manifest["versions"]["torch"] == torch.__version__ and manifest["config"] == run.config.to_json()
    assert nf.load(tmp_path).config == run.config


def test_the_manifest_names_the_build_of_torch(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    train(TINY, tmp_path)
    assert read_manifest(tmp_path)["versions"]["torch"] == "2.11.0+cu130"


def test_training_a_finished_run_again_changes_no_file(tmp_path):
    train(TINY, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    train(TINY, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_killed_before_its_manifest_is_closed_ends_finished(tmp_path, monkeypatch):
    def dying(*arguments):
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("nlaformer.learn.trainer._Training._close_folders", dying)
        train(TINY, tmp_path)
    assert read_manifest(tmp_path)["state"] == "running"
    assert train(TINY, tmp_path).steps == 12 and read_manifest(tmp_path)["state"] == "finished"


@pytest.mark.parametrize("step", [1, 4, 6, 11])
def test_a_resumed_run_ends_in_the_same_bits(step, tmp_path, monkeypatch):
    train(TINY, tmp_path / "undisturbed")
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        interrupt_at(step, patch)
        train(TINY, tmp_path / "run")
    train(TINY, tmp_path / "run")
    assert equal(final(tmp_path / "run"), final(tmp_path / "undisturbed"))
    assert read_metrics(tmp_path / "run") == read_metrics(tmp_path / "undisturbed")


def test_a_run_out_of_minutes_resumes_where_it_stopped(tmp_path, monkeypatch):
    undisturbed = train(TINY, tmp_path / "undisturbed")
    clock = itertools.count(step=10)  # every look at it costs ten seconds
    with monkeypatch.context() as patch:
        patch.setattr("nlaformer.learn.trainer.time", types.SimpleNamespace(monotonic=lambda: next(clock)))
        stopped = train(TINY, tmp_path / "run", minutes=1)
    assert 0 < stopped.steps < 12 and not stopped.diverged
    assert read_manifest(tmp_path / "run")["state"] == "interrupted" and model_step(tmp_path / "run") == stopped.steps
    spent = read_manifest(tmp_path / "run")["seconds_in_all"]
    assert train(TINY, tmp_path / "run", minutes=100).steps == 12
    assert equal(final(tmp_path / "run"), final(undisturbed.folder))
    assert read_manifest(tmp_path / "run")["seconds_in_all"] > spent > 0


def test_validations_may_come_more_often_than_checkpoints(tmp_path):
    train(TINY, tmp_path, checkpoint_every=6, validate_every=2)
    lines = [line for line in read_metrics(tmp_path) if "validation" in line]
    assert [line["step"] for line in lines] == [0, 2, 4, 6, 8, 10, 12]
    assert [line["step"] for line in lines if line["saved"]] == [6, 12]


MEMBERS = [
    TINY,
    TINY.replace(lr=3e-3, warmup=5, clip=0.1),
    TINY.replace(seed=7, sigma=(1.0, 1.4), teacher="pcg", supervision="joint", eta=0.01),
    TINY.replace(supervision="step+solution", window=2, power=0.5),
]


def test_a_member_of_a_stack_is_the_model_trained_alone(tmp_path):
    runs = train(MEMBERS, tmp_path / "stack")
    for k, config in enumerate(MEMBERS):
        train(config, tmp_path / f"alone{k}")
        assert runs[k].folder.parent == tmp_path / "stack"
        assert equal(final(runs[k].folder), final(tmp_path / f"alone{k}"))


def test_a_stack_resumes_at_the_last_step_all_members_have(tmp_path, monkeypatch):
    undisturbed = train(MEMBERS, tmp_path / "undisturbed")
    written = []
    original = checkpoint.write

    def dying(folder, what):
        if len(written) == 6:  # the second round of checkpoints, after two of four members
            raise SystemExit
        written.append(folder)
        original(folder, what)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(checkpoint, "write", dying)
        train(MEMBERS, tmp_path / "stack")
    resumed = train(MEMBERS, tmp_path / "stack")
    for one, other in zip(undisturbed, resumed, strict=True):
        assert equal(final(one.folder), final(other.folder))


def test_a_diverging_member_is_frozen_and_the_others_are_unaffected(tmp_path):
    wild = TINY.replace(lr=1e30, warmup=0, clip=1e30)
    runs = train([TINY, wild], tmp_path / "stack")
    assert [run.diverged for run in runs] == [False, True]
    train(TINY, tmp_path / "alone")
    assert equal(final(runs[0].folder), final(tmp_path / "alone"))
    lines = [line for line in read_metrics(runs[1].folder) if "loss" in line]
    assert lines[-1]["diverged"] and lines[-1]["step"] < TINY.steps
    assert all(tensor.isfinite().all() for tensor in final(runs[1].folder).values())
    assert read_manifest(runs[1].folder)["state"] == "diverged"


def test_a_single_model_that_diverges_stops_the_run(tmp_path):
    run = train(TINY.replace(lr=1e30, warmup=0, clip=1e30), tmp_path)
    assert run.diverged and run.steps < TINY.steps


def test_a_run_starts_from_the_weights_of_a_model(tmp_path):
    first = train(TINY, tmp_path / "first")
    onward = TINY.replace(start=str(tmp_path / "first"), family="poisson-1d", lr=1e-3, seed=1)
    begun = PlainEngine([onward]).model
    assert all(torch.equal(a[0], b) for a, b in zip(begun.parameters(), first.model.parameters(), strict=True))
    train(onward, tmp_path / "onward", minutes=0.0)  # one step, then a checkpoint
    resumed = train(onward, tmp_path / "onward")
    assert equal(resumed.model.state_dict(), train(onward, tmp_path / "undisturbed").model.state_dict())
    assert not equal(resumed.model.state_dict(), first.model.state_dict())
    assert resumed.model.config.start == str(tmp_path / "first")


def test_a_run_resumes_without_the_model_it_started_from(tmp_path):
    train(TINY, tmp_path / "first")
    onward = TINY.replace(start=str(tmp_path / "first"), seed=1)
    whole = train(onward, tmp_path / "undisturbed")
    train(onward, tmp_path / "onward", minutes=0.0)
    (tmp_path / "first" / "config.json").unlink()
    assert equal(train(onward, tmp_path / "onward").model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[]\n", b"{}\n", b"3\n"])
def test_damaged_metrics_are_replaced_and_a_damaged_manifest_is_named(content, tmp_path):
    train(TINY, tmp_path / "run", minutes=0.0)
    (tmp_path / "run" / "metrics.jsonl").write_bytes(content)
    assert train(TINY, tmp_path / "run").steps == TINY.steps
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_bytes(content)
    with pytest.raises(FileError, match=r"manifest\.json"):
        train(TINY, tmp_path / "run")
    manifest.unlink()
    assert train(TINY, tmp_path / "run").steps == TINY.steps and manifest.exists()


@pytest.mark.parametrize("out", ["", "a\0b", None])
def test_out_that_is_not_a_path_is_refused(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError):
        train(TINY, out)
    assert not list(tmp_path.iterdir())


def test_only_temporary_files_of_a_killed_run_are_removed(tmp_path, monkeypatch):
    (tmp_path / ".a.tmp").mkdir()
    (tmp_path / ".b.tmp").touch()
    train(TINY, tmp_path)
    assert sorted(path.name for path in tmp_path.glob(".*.tmp")) == [".a.tmp"]
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".b.tmp").touch()
    monkeypatch.setattr("pathlib.Path.unlink", lambda self, missing_ok=False: self.joinpath("x").read_bytes())
    with pytest.raises(FileError, match=r"\.b\.tmp"):
        train(TINY, tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".b.tmp"]


def test_a_start_with_other_weights_is_refused_before_its_folder_is_made(tmp_path):
    train(TINY, tmp_path / "first")
    nf.operation("add", n=3).save(tmp_path / "operation")
    for changes, words in (
        ({"start": str(tmp_path / "first"), "d": 16}, "start="),
        ({"start": str(tmp_path / "operation")}, "operation"),
        ({"start": "cg-acelerated"}, "cg-accelerated"),
    ):
        with pytest.raises(NLAFormerError, match=words):
            train(TINY.replace(**changes), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_run_is_not_resumed_with_another_config(tmp_path):
    train(TINY, tmp_path)
    with pytest.raises(OptionError, match=r"lr.*0\.001.*0\.01"):
        train(TINY.replace(lr=0.01), tmp_path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"config": "quickstart"}, r"nf\.recipe\('quickstart'\)"),
        ({"config": 3}, "given 3"),
        ({"config": []}, r"given \[\]"),
        ({"config": [TINY, None]}, r"nf\.recipe"),
        ({"log_every": "a"}, "log_every is 'a'"),
        ({"log_every": 0}, "log_every is 0"),
        ({"checkpoint_every": 1.5}, "checkpoint_every is 1.5"),
        ({"validate_every": True}, "validate_every is True"),
        ({"minutes": "ten"}, "minutes is 'ten'"),
        ({"minutes": float("nan")}, "minutes is nan"),
        ({"minutes": -1}, "minutes is -1"),
        ({"minutes": True}, "minutes is True"),
        ({"device": 3.5}, "device 3.5"),
        ({"device": []}, r"device \[\]"),
        ({"device": "gpu"}, "device 'gpu'"),
        ({"device": "privateuseone"}, "device 'privateuseone'.*cpu or cuda"),
        ({"device": 10**5000}, "device a value of type int"),
        ({"minutes": -(10**5000)}, "minutes is a value of type int"),
        ({"log_every": -(10**5000)}, "log_every is a value of type int"),
        ({"device": "cuda:99"}, "device 'cuda:99'"),
    ],
)
def test_bad_arguments_of_train_are_refused_before_its_folder_is_made(given, words, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(OptionError, match=words):
        train(**({"config": TINY, "out": out} | given))
    assert not out.exists()


def test_the_learning_rate_warms_up_and_falls_to_final_lr():
    config = TINY.replace(steps=101, warmup=10, lr=1.0, final_lr=0.02)
    rates = [learning_rate(config, number) for number in range(101)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == rates[10] == 1.0
    assert rates[100] == pytest.approx(0.02) and rates[55] == pytest.approx(0.51)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


def test_the_engine_takes_the_steps_of_torch_optim_adam(monkeypatch):
    config = TINY.replace(clip=1e9, d=8, heads=8, norm="none")  # heads of width one: W_Q carries no factor
    engine = PlainEngine([config])
    member = engine.members[0]
    reference = PlainEngine([config]).members[0]
    parameters = list(reference.parameters.values())
    adam = torch.optim.Adam(parameters, betas=(config.beta1, config.beta2))
    gradients = []

    def recording(weight, gradient, *rest):
        gradients.append(gradient.clone())
        optimizer.adam(weight, gradient, *rest)

    monkeypatch.setattr("nlaformer.learn.engine.adam", recording)
    for number in range(5):
        gradients.clear()
        engine.step(number)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        adam.param_groups[0]["lr"] = learning_rate(config, number)
        adam.step()
    for name, parameter in reference.parameters.items():
        torch.testing.assert_close(member.parameters[name], parameter, rtol=1e-5, atol=1e-7)


def test_the_training_systems_depend_on_seed_and_step_alone():
    from nlaformer.learn.data import Stream

    stream, again = Stream(TINY), Stream(TINY)
    assert torch.equal(stream.batch(9).A, again.batch(9).A)
    others = [Stream(TINY.replace(seed=1)).batch(9).A, stream.batch(8).A, stream.batch(9 + TINY.chunk).A]
    assert all(not torch.equal(stream.batch(9).A, other) for other in others)
    batch = stream.batch(0)
    torch.testing.assert_close((batch.A @ batch.x_true.unsqueeze(-1)).squeeze(-1), batch.b, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(batch.x[:, -1], batch.x_true, rtol=1e-3, atol=1e-3)  # CG ends after n = T iterations


def test_a_truncated_last_line_of_metrics_is_ignored(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2.0}]


def test_metrics_of_a_diverged_run_are_valid_json(tmp_path):
    train(TINY.replace(lr=1e30, warmup=0, clip=1e30), tmp_path)
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert math.isfinite(read_metrics(tmp_path)[1]["loss"])


def test_missing_tensorboard_is_refused_before_the_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(OptionError, match="tensorboard"):
        train(TINY, tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()


def test_tensorboard_gets_every_line_of_metrics(tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            self.folder = folder

        def add_scalar(self, name, value, step):
            written.append((name, step))

        def close(self):
            written.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    train(TINY, tmp_path, tensorboard=True)
    assert ("loss", 1) in written and ("lr", TINY.steps) in written and written[-1] == "closed"


def test_threads_of_a_config_hold_during_its_run_only(tmp_path):
    before, seen = torch.get_num_threads(), []
    original = PlainEngine.step

    class Watching(PlainEngine):
        def step(self, number):
            seen.append(torch.get_num_threads())
            original(self, number)

    from nlaformer.learn import trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "make_engine", lambda configs, device, share: Watching(configs, device, share))
        train(TINY.replace(threads=before + 1), tmp_path)
    assert set(seen) == {before + 1} and torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([TINY, None], "None as entry 1"), ([TINY, "quickstart"], r"entry 1.*nf\.recipe\('quickstart'\)"),
        ("quickstart", r"nf\.recipe\('quickstart'\)"), ([], r"\[\]"), (None, "None"), (3, "3"),
    ],
)  # fmt: skip
def test_what_is_not_a_config_is_named(given, named, tmp_path):
    with pytest.raises(OptionError, match=named):
        nf.train(given, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
