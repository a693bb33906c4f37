"""Programs with learned parts in the trainer: folders, stacks, resuming, a user's own program, evaluation."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import nlaformer as nf
from benchmarks import guided
from nlaformer.cli import app
from nlaformer.errors import NLAFormerError, OptionError
from nlaformer.learn import checkpoint, compare, teachers
from nlaformer.learn.checkpoint import read_manifest, read_metrics
from nlaformer.learn.cuda.compiled import CompiledEngine
from nlaformer.learn.data import Stream
from nlaformer.learn.engine import PlainEngine
from nlaformer.learn.models import untrained
from nlaformer.learn.recipes import Config
from nlaformer.problems.conjugate import by_hand
from tests.training import equal, final, imported, interrupt_at, train

ROOT = Path(__file__).parent.parent
SIZES = {"n": 4, "T": 3, "d": 8, "heads": 2, "batch": 4, "steps": 12, "warmup": 2, "chunk": 4}
GUIDED = nf.recipe("guided-cg", **SIZES)
PRECONDITIONER = nf.recipe("learned-preconditioner", **SIZES)
KINDS = pytest.mark.parametrize("config", [GUIDED, PRECONDITIONER], ids=["every loop", "set-up"])
MINE = '''
import nlaformer as nf

class Momentum(nf.Program):
    """Steepest descent with a learned, positive share of the last step."""

    positive_definite = True
    share = nf.Learned("positive scalar", memory=True)

    def __init__(self, damping=0.5):
        self.damping = damping

    def start(self, A, b, x0):
        return dict(x=x0, r=b - A @ x0, d=nf.zeros_like(b))

    def step(self, A, x, r, d):
        d = r + self.damping * self.share(A, r / nf.norm(r)) * d
        q = A @ d
        alpha = nf.dot(r, d) / nf.dot(d, q)
        return dict(x=x + alpha * d, r=r - alpha * q, d=d)

class NothingLearned(nf.Program):
    def start(self, b):
        return dict(x=b)

    def step(self, A, b, x):
        return dict(x=x + (b - A @ x) / nf.norm(A))

class Further(Momentum):
    inputs = dict(C="vector")

    def finish(self, x, C):
        return x + C

class Named(Momentum):
    def __init__(self, name="update"):
        self.name_of_part = name
        setattr(self, name, nf.Learned("positive scalar"))

    def step(self, A, x, r, d):
        d = r + getattr(self, self.name_of_part)(A, r / nf.norm(r)) * d
        return dict(x=x + d / nf.norm(A), r=r, d=d)

class Size(Momentum):
    def finish(self, x):
        return nf.norm(x)
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    yield from imported("momentum", MINE, tmp_path, monkeypatch)


@KINDS
def test_a_run_of_a_program_writes_the_folder_of_a_run(config, tmp_path):
    run = train(config, tmp_path)
    assert run.steps == 12 and not run.diverged and isinstance(run.model, nf.TrainedProgram)
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert len(lines[-1]["validation"]["squared_relative_error"]) == len(lines[-1]["validation"]["median"]) == 4
    manifest = read_manifest(tmp_path)
    assert manifest["state"] == "finished" and manifest["config"] == config.to_json()
    loaded = nf.load(tmp_path)
    assert loaded.config == config and equal(loaded.state_dict(), run.model.state_dict())


@KINDS
@pytest.mark.parametrize("step", [1, 6])
def test_a_resumed_program_ends_in_the_same_bits(config, step, tmp_path, monkeypatch):
    train(config, tmp_path / "undisturbed")
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        interrupt_at(step, patch)
        train(config, tmp_path / "run")
    train(config, tmp_path / "run")
    assert equal(final(tmp_path / "run"), final(tmp_path / "undisturbed"))
    assert read_metrics(tmp_path / "run") == read_metrics(tmp_path / "undisturbed")


def test_a_program_in_a_stack_is_the_program_trained_alone(tmp_path):
    members = [GUIDED, GUIDED.replace(lr=3e-3, seed=3), GUIDED.replace(sigma=(1.0,), power=0.5, floor=1e-6, window=2)]
    runs = train(members, tmp_path / "stack")
    for k, config in enumerate(members):
        train(config, tmp_path / f"alone{k}")
        assert equal(final(runs[k].folder), final(tmp_path / f"alone{k}"))


def test_a_diverging_program_is_frozen_and_the_others_are_unaffected(tmp_path):
    runs = train([GUIDED, GUIDED.replace(lr=1e30, warmup=0, clip=1e30)], tmp_path / "stack")
    assert [run.diverged for run in runs] == [False, True]
    train(GUIDED, tmp_path / "alone")
    assert equal(final(runs[0].folder), final(tmp_path / "alone"))
    assert all(tensor.isfinite().all() for tensor in final(runs[1].folder).values())


@KINDS
def test_training_lowers_the_loss_of_a_program(config):
    engine = PlainEngine([config.replace(steps=150, warmup=10, lr=3e-3, d=16, batch=16)])
    engine.step(0)
    before = engine.report().loss.item()
    for number in range(1, 120):
        engine.step(number)
    engine.step(0)
    assert engine.report().loss.item() < before - 0.2


def test_the_loss_of_a_program_is_the_mean_logarithm_of_its_squared_relative_errors():
    engine = PlainEngine([GUIDED])
    batch = Stream(GUIDED).batch(0)
    with torch.no_grad():
        x = untrained(GUIDED)(batch.A, batch.b)
    engine.step(0)
    error = ((x - batch.x_true[:, None]) ** 2).sum(-1) / (batch.x_true**2).sum(-1, keepdim=True)
    floor = torch.tensor([1.0, 1e-24, 1e-24, 1e-24])
    assert engine.report().loss.item() == pytest.approx(float((error.mean(0) + floor).log().mean()), rel=1e-5)
    assert batch.A.dtype == torch.float64 and batch.x.numel() == 0


def test_a_program_can_learn_from_a_teacher():
    config = GUIDED.replace(supervision="result", teacher="pcg")
    assert config.make_teacher() is teachers.teacher("pcg")
    batch = Stream(config).batch(0)
    torch.testing.assert_close(batch.x, teachers.pcg(batch.A, batch.b, 3).x)
    engine = PlainEngine([config])
    with torch.no_grad():
        x = untrained(config)(batch.A, batch.b)
    engine.step(0)
    error = ((x - batch.x) ** 2).sum(-1) / (batch.x_true**2).sum(-1, keepdim=True)
    floor = torch.tensor([1.0, 1e-24, 1e-24, 1e-24])
    assert engine.report().loss.item() == pytest.approx(float((error.mean(0) + floor).log().mean()), rel=1e-5)


@KINDS
def test_the_engine_of_cuda_takes_the_steps_of_the_plain_one(config):
    members = [config, config.replace(seed=1, lr=3e-3), config.replace(lr=1e30, clip=1e30, warmup=0)]
    fast, plain = CompiledEngine(members, "cpu", compiled=False), PlainEngine(members)
    for number in range(6):  # beyond the first chunk
        fast.step(number)
        plain.step(number)
    one, other = fast.state(), plain.state()
    assert one.keys() == other.keys() and one["alive"].tolist() == other["alive"].tolist() == [True, True, False]
    for name in (name for name in one if name.startswith("weight.")):
        torch.testing.assert_close(one[name][:2], other[name][:2], rtol=1e-3, atol=1e-5)
    assert fast.report().loss[:2].tolist() == pytest.approx(plain.report().loss[:2].tolist(), rel=1e-4)


def test_without_a_compiler_the_engine_of_cuda_runs_uncompiled(monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.warns(RuntimeWarning, match="no compiler here"):
        engine = CompiledEngine([GUIDED], "cpu", compiled=True)
    plain = PlainEngine([GUIDED])
    for number in range(2):
        engine.step(number)
        plain.step(number)
    assert engine.report().loss.tolist() == pytest.approx(plain.report().loss.tolist(), rel=1e-4)


@pytest.mark.parametrize(
    "setting",
    ["post_layers=2", "shared=no", "inject=yes", "eta=1", "probe=r", "teacher=pcg", "lambda=2", "program_options={}"],
)
def test_settings_of_the_imitating_solver_are_refused_for_a_program(setting):
    config = Config() if setting.startswith("program") else GUIDED
    with pytest.raises(OptionError, match=setting.partition("=")[0]):
        config.set([setting])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"supervision": "joint"}, "joint"),
        ({"precision": "bf16"}, "bf16"),
        ({"program": "guided"}, "guided-cg"),
        ({"program": "learned-pcg", "loop_layers": 2}, "loop_layers"),
        ({"program": "learned-pcg", "program_options": {"rank": 10**6}}, "rank 1000000"),
    ],
)
def test_programs_that_cannot_be_trained_are_complaints(changes, words):
    with pytest.raises(NLAFormerError, match=words):
        GUIDED.replace(**changes).validate()


@pytest.mark.parametrize(
    ("name", "words"), [("NothingLearned", "NothingLearned"), ("Further", "takes C"), ("Size", "gives a scalar")]
)
def test_a_program_that_cannot_be_trained_is_refused_before_its_folder_is_made(name, words, mine, tmp_path):
    with pytest.raises(NLAFormerError, match=words):
        train(GUIDED.replace(program=getattr(mine, name)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["update", "apply", "values", "type", "keys", "forward", "training", "_modules"])
def test_a_part_whose_name_torch_keeps_for_itself_is_refused_by_that_name(name, mine):
    (complaint,) = GUIDED.replace(program=mine.Named).set([f"program.name={name}"]).complaints()
    assert re.search(rf"\b{name}\b", complaint)
    assert GUIDED.replace(program=mine.Named).set([f"program.name=my_{name}"]).complaints() == []


@pytest.mark.parametrize("text", ["False", "no", "0"])
def test_a_program_without_coarse_columns_is_trained_without(text):
    config = PRECONDITIONER.set([f"program.coarse={text}", "program.rank=2"])
    assert not untrained(config).coarse and config == PRECONDITIONER.replace(
        program_options={"coarse": False, "rank": 2}
    )
    with pytest.raises(OptionError, match=r"program\.coarse"):
        PRECONDITIONER.set(["program.coarse=off"]).validate()


def test_a_learned_part_of_ones_own_trains_resumes_loads_evaluates_and_runs(mine, tmp_path):
    config = GUIDED.replace(program=mine.Momentum(damping=0.25), recipe="custom")
    assert (config.program, dict(config.program_options)) == ("momentum:Momentum", {"damping": 0.25})
    train(config, tmp_path / "undisturbed")
    train(config, tmp_path / "run", minutes=0.0)  # one step, then a checkpoint
    settings = [f"--set={key}={value}" for key, value in SIZES.items()]
    settings += ["--set=program=momentum:Momentum", "--set=program.damping=0.25", "--set=recipe=custom"]
    command = ["train", "guided-cg", *settings, "--out", str(tmp_path / "run"), "--device=cpu", "--json"]
    outcome = CliRunner().invoke(app, command)
    assert outcome.exit_code == 0, outcome.output
    assert equal(final(tmp_path / "run"), final(tmp_path / "undisturbed"))
    assert len(json.loads(outcome.stdout)["evaluations"]) == len(nf.recipe("guided-cg").sigma) + 7
    code = f"""
import sys, numpy as np, nlaformer as nf
model = nf.load({str(tmp_path / "run")!r})
run = model.run(np.eye(4) * 3, np.ones(4), iterations=5)
assert np.allclose(run.x[-1], 1 / 3), run.x
assert "momentum" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("kind", ["program", "teacher"])
def test_a_run_whose_code_was_edited_does_not_resume(kind, mine, tmp_path, monkeypatch):
    edited = mine.Momentum if kind == "program" else mine.NothingLearned
    config = GUIDED.replace(program=mine.Momentum, teacher=mine.NothingLearned, supervision="result")
    train(config, tmp_path, minutes=0)  # stops after a step
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with monkeypatch.context() as patch:
        code = Path("momentum.py").read_text()
        code = code.replace("alpha * d,", "0.5 * alpha * d,") if kind == "program" else code.replace("/ nf", "/ 2 / nf")
        exec(code, found := {})
        patch.setattr(edited, "step", found[edited.__name__].step)
        with pytest.raises(OptionError, match=rf"{kind}=momentum:{edited.__name__}.*step"):
            train(config, tmp_path)
    assert {path: path.read_bytes() for path in kept} == kept
    assert train(config, tmp_path).steps == config.steps


def test_a_checkpoint_from_before_the_digests_of_programs_resumes(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "method_digests", lambda config: {})
        train(GUIDED, tmp_path, minutes=0)
    assert not checkpoint.read(tmp_path / checkpoint.LATEST).methods
    assert train(GUIDED, tmp_path).steps == GUIDED.steps
    assert checkpoint.read(tmp_path / checkpoint.LATEST).methods.keys() >= {"program.start", "program.step"}


def test_a_run_of_a_program_starts_from_the_weights_of_a_model(tmp_path):
    first = train(GUIDED, tmp_path / "first")
    onward = GUIDED.replace(start=str(tmp_path / "first"), seed=1, family="poisson-1d")
    begun = PlainEngine([onward]).model
    assert all(torch.equal(a[0], b) for a, b in zip(begun.parameters(), first.model.parameters(), strict=True))
    with pytest.raises(OptionError, match="start="):
        PlainEngine([PRECONDITIONER.replace(start=str(tmp_path / "first"))])
    with pytest.raises(OptionError, match="start="):  # weights of the same shapes
        PlainEngine([GUIDED.replace(start=str(tmp_path / "first"), heads=1)])


@pytest.fixture(scope="module")
def model():
    return untrained(PRECONDITIONER.replace(n=6))


def test_a_comparison_has_the_errors_of_every_method(model):
    systems = nf.problems.SPD(n=6).sample(5, 1)
    row = compare.compare(model, "label", systems)
    A, b, x = (tensor.numpy() for tensor in systems)
    D, u = (value.numpy() for value in by_hand(systems.A))
    M = np.linalg.inv(D[..., None] * np.eye(6) + u[..., :, None] * u[..., None, :])
    iterates = {
        "learned": model.iterates(A, b, iterations=12),
        "CG": teachers.cg(A, b, 12).x.numpy(),
        "PCG, Jacobi": teachers.pcg(A, b, 12).x.numpy(),
        "PCG, diagonal + rank 1 by hand": teachers.pcg(
            A, b, 12, M=lambda r: (torch.from_numpy(M) @ r[..., None])[..., 0]
        ).x.numpy(),
    }
    assert list(row.mean) == list(iterates) and len(row.mean["CG"]) == 13
    for name, found in iterates.items():
        errors = ((found - x[:, None]) ** 2).sum(-1) / (x**2).sum(-1)[:, None]
        assert row.mean[name][:6] == pytest.approx(errors.mean(0)[:6], rel=1e-6, abs=1e-20)
        assert row.median[name][:6] == pytest.approx(np.sort(errors, 0)[2][:6], rel=1e-6, abs=1e-20)
        assert row.largest[name][:6] == pytest.approx(errors.max(0)[:6], rel=1e-6, abs=1e-20)
    counts = row.iterations_to()["CG"]
    assert all(row.mean["CG"][t] <= 10.0 ** -(k + 1) < row.mean["CG"][t - 1] for k, t in enumerate(counts) if t)


def test_the_preconditioner_by_hand_is_positive_definite_on_every_family():
    for family in nf.problems.unlike(6).values():
        D, u = by_hand(family.sample(16, seed=0).A)
        assert (D > 0).all() and u.isfinite().all()


def test_a_program_is_evaluated_at_every_sigma_and_on_seven_other_families(tmp_path):
    untrained(GUIDED).save(tmp_path)
    outcome = CliRunner().invoke(app, ["evaluate", str(tmp_path), "--count", "4"])
    assert outcome.exit_code == 0, outcome.output
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = compare.evaluate_program(nf.load(tmp_path), count=4)
    assert [row.label for row in rows[:4]] == [f"spd, sigma {sigma}" for sigma in ("1", "1.2", "1.4", "1.6")]
    assert len(rows) == 4 + 7
    assert all(row.label in outcome.stdout for row in rows)
    json.dumps([row.to_json() for row in rows], allow_nan=False)


@pytest.mark.parametrize("read_norm", [True, False])
def test_files_from_before_read_norm_load_and_resume_as_they_were_trained(read_norm, tmp_path, monkeypatch):
    config, whole = GUIDED.replace(read_norm=read_norm), tmp_path / "whole"
    train(config, whole)
    to_json = Config.to_json
    monkeypatch.setattr(Config, "to_json", lambda self: {k: v for k, v in to_json(self).items() if k != "read_norm"})
    old = tmp_path / "old"
    train(config, old, minutes=0)  # stops after a step
    monkeypatch.undo()
    assert "read_norm" not in (old / "config.json").read_text() and nf.load(old).config == config
    with pytest.raises(OptionError, match="read_norm"):
        train(config.replace(read_norm=not read_norm), old)
    train(config, old)
    assert equal(final(old), final(whole)) and nf.load(old).config.read_norm == read_norm


def test_a_config_without_its_program_is_that_of_a_solver():
    config = GUIDED.replace(program=None)
    assert config.program is None and config.complaints() == []


def test_a_config_of_a_program_lists_all_complaints_at_once():
    config = GUIDED.replace(d=30, heads=0, batch=0, sigma=(-1.0,), program="guided")
    found = "\n".join(config.complaints())
    assert all(word in found for word in ("heads=0", "batch=0", "sigma=(-1.0,)", "guided-cg"))


def test_the_benchmark_measures_both_kinds_and_says_what_is_broken(tmp_path, capsys):
    for config, name in ((GUIDED, "guided"), (PRECONDITIONER, "preconditioner")):
        untrained(config).save(tmp_path / name)
    arguments = [str(tmp_path / "guided"), str(tmp_path / "preconditioner"), "--count=8", "--device=cpu"]
    assert guided.main([*arguments, "--out", str(tmp_path / "found.json")]) == 1
    assert "BROKEN" in capsys.readouterr().out
    models = json.loads((tmp_path / "found.json").read_text())["models"]
    kept = [models[str(tmp_path / name)]["kept"] for name in ("guided", "preconditioner")]
    assert sum("CG in" in claim for claim in kept[0]) == 4 * 12 and sum("at 4T" in claim for claim in kept[0]) == 4
    assert sum("at t = " in claim for claim in kept[1]) == 6
    definite = [held for claim, held in kept[1].items() if "positive definite" in claim]
    assert len(definite) == 10 and all(definite)


def test_the_benchmark_times_a_training_step(capsys):
    assert guided.main(["--speed=2", "--steps=2", "--small", "--device=cpu"]) == 0
    assert "ms_per_model_and_step" in capsys.readouterr().out


def _blocks(page: str, heading: str) -> list[tuple[str, str]]:
    """The code blocks below a heading: language and text."""
    section = re.split(rf"^## {heading}$", page, flags=re.MULTILINE)[1].partition("\n## ")[0]
    return re.findall(r"^```(\w*)\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)


def test_the_page_on_ones_own_classes_does_what_it_says(tmp_path):
    page = (ROOT / "docs" / "learn.md").read_text(encoding="utf-8")
    (_, mine), (_, commands), (_, script), (_, use) = _blocks(page, "Your own family, teacher and learned part")
    (tmp_path / "mine.py").write_text(mine)
    few = {"steps": 6, "warmup": 2, "d": 16, "heads": 2, "batch": 4}
    settings = [word for key, value in few.items() for word in ("--set", f"{key}={value}")]

    def run(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    imitation, descent, evaluation = (shlex.split(line)[1:] for line in commands.splitlines())
    run("-m", "nlaformer", *imitation, *settings)
    run("-m", "nlaformer", *descent, *settings)
    assert "mine:Springs" in run("-m", "nlaformer", *evaluation, "--count=4")
    weights = (tmp_path / "runs" / "descent" / "model.safetensors").read_bytes()
    changes = ", ".join(f"{key}={value}" for key, value in few.items())
    run("-c", script.replace("program=mine.Descent)", f"program=mine.Descent, {changes})"))
    assert (tmp_path / "runs" / "descent" / "model.safetensors").read_bytes() == weights
    (tmp_path / "mine.py").unlink()
    run("-c", use)
