"""Training in real processes: killed, out of disk space, interrupted, under torchrun."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import nlaformer as nf
from nlaformer.errors import FileError, OptionError
from nlaformer.learn import checkpoint
from nlaformer.learn.checkpoint import model_step, read_manifest, read_metrics
from nlaformer.learn.ranks import Ranks
from nlaformer.learn.recipes import Config

ROOT = Path(__file__).parent.parent
CONFIG = Config(n=4, T=4, d=16, heads=2, batch=8, steps=300, warmup=20, chunk=16)
PROGRAM = nf.recipe("guided-cg", n=4, T=3, d=16, heads=2, batch=8, steps=120, warmup=20, chunk=16)
KINDS = pytest.mark.parametrize("config", [CONFIG, PROGRAM], ids=["solver", "program"])

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["nlaformer.learn.trainer", "nlaformer.learn.evaluate", "nlaformer.problems"])


def work(config, out, every, limit=None):
    torch.set_num_threads(1)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    nf.train(config, out=out, device="cpu", progress=False, checkpoint_every=every, log_every=10)


def start(*arguments):
    process = processes.Process(target=work, args=arguments)
    process.start()
    return process


def state(folder):
    return checkpoint.read(Path(folder) / checkpoint.LATEST).state


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@KINDS
def test_a_run_killed_ten_times_ends_in_the_same_bits(config, tmp_path):
    begun = time.monotonic()
    undisturbed = start(config, tmp_path / "undisturbed", 4)
    undisturbed.join()
    duration = time.monotonic() - begun
    chance = random.Random(2024)
    kills = 0
    for _ in range(10):
        process = start(config, tmp_path / "killed", 4)
        time.sleep(chance.uniform(0.02, 0.35) * duration)
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    assert kills > 0
    last = start(config, tmp_path / "killed", 4)
    last.join()
    assert last.exitcode == 0
    assert_equal(state(tmp_path / "killed"), state(tmp_path / "undisturbed"))
    weights = "model.safetensors"
    assert (tmp_path / "killed" / weights).read_bytes() == (tmp_path / "undisturbed" / weights).read_bytes()
    assert not list((tmp_path / "killed").glob(".*.tmp"))
    steps = [line["step"] for line in read_metrics(tmp_path / "killed") if "loss" in line]
    assert steps == list(range(10, config.steps + 1, 10))


@KINDS
def test_a_full_disk_stops_training_and_keeps_the_last_checkpoint(config, tmp_path):
    first = start(config.replace(steps=20), tmp_path / "full", 5)
    first.join()
    size = (tmp_path / "full" / checkpoint.LATEST).stat().st_size
    for path in (tmp_path / "full").iterdir():
        path.unlink()
    begin = start(config, tmp_path / "full", 5)
    while begin.is_alive() and not (tmp_path / "full" / checkpoint.PREVIOUS).exists():
        time.sleep(0.01)
    begin.kill()
    begin.join()
    step = checkpoint.resume([tmp_path / "full"], [config])[0].step
    assert 0 < step < config.steps
    code = (
        "import sys, resource, nlaformer as nf; from nlaformer.learn.recipes import Config; import json\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size // 2}))\n"
        "config = Config.from_json(json.loads(sys.argv[1]))\n"
        "nf.train(config, out=sys.argv[2], device='cpu', progress=False, checkpoint_every=5, log_every=10)"
    )
    import json

    arguments = [sys.executable, "-c", code, json.dumps(config.to_json()), str(tmp_path / "full")]
    outcome = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    assert outcome.returncode != 0
    assert "FileError" in outcome.stderr and checkpoint.LATEST in outcome.stderr
    assert checkpoint.resume([tmp_path / "full"], [config])[0].step == step
    nf.train(config, out=tmp_path / "full", device="cpu", progress=False, checkpoint_every=100)
    assert state(tmp_path / "full")["alive"].item()


def test_an_interrupted_run_saves_a_checkpoint_and_says_so_in_its_manifest(tmp_path):
    process = start(CONFIG.replace(steps=5000), tmp_path, 4000)
    while not (tmp_path / "metrics.jsonl").exists() or len(read_metrics(tmp_path)) < 2:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode != 0
    step = checkpoint.read(tmp_path / checkpoint.LATEST).step
    assert 0 < step < 4000
    manifest = read_manifest(tmp_path)
    assert (manifest["state"], manifest["steps"]) == ("interrupted", step)


def test_ctrl_c_reports_the_step_and_the_folder(tmp_path):
    folder = tmp_path / "run"
    settings = [f"--set={key}={value}" for key, value in {"n": 4, "T": 4, "d": 16, "heads": 2, "steps": 5000}.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "nlaformer", "train", "quickstart", *settings, "--device=cpu", "--out", str(folder)],
        cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while process.poll() is None and len(read_metrics(folder)) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    step = model_step(folder)
    assert process.returncode == 130 and "CPU" in said
    assert f"step {step}" in said and str(folder) in said
    evaluated = subprocess.run(
        [sys.executable, "-m", "nlaformer", "evaluate", str(folder), "--count=4"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert f"step {step} of 5000" in evaluated.stdout


TORCHRUN = """
import sys
import nlaformer as nf
import test_learn_processes as this
options = dict(device="cpu", progress=False, checkpoint_every=10)
for kind in (0, 1):
    nf.train(this.SHARED[kind], out=f"{sys.argv[1]}/shared{kind}", **options)
    runs = nf.train(this.SPREAD[kind], out=f"{sys.argv[1]}/spread{kind}", **options)
    assert len(runs) == 4
"""
# Of a solver and of a program; nine systems over two ranks are unequal shares.
SHARED = [config.replace(steps=20, warmup=5, batch=9, power=0.0) for config in (CONFIG, PROGRAM)]
SPREAD = [[config.replace(steps=10, warmup=5, seed=seed) for seed in range(4)] for config in (CONFIG, PROGRAM)]


LONG = """
import sys
import nlaformer as nf
import test_learn_processes as this
config = this.CONFIG.replace(steps=1_000_000)
nf.train(config, out=sys.argv[1], device="cpu", progress=False, checkpoint_every=5, log_every=1_000_000)
"""


def torchrun(folder, code):
    """Two processes that run the code, the folder being their argument."""
    script = folder / "script.py"
    script.write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(script), str(folder)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    process = torchrun(folder, TORCHRUN)
    said = process.communicate()[0]
    assert process.returncode == 0, said[-3000:]
    return folder


def test_two_processes_stop_together_and_save(tmp_path):
    process = torchrun(tmp_path, LONG)
    while process.poll() is None and not (tmp_path / checkpoint.LATEST).exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert "forcefully" not in said  # as torchrun ends whoever has not ended by himself
    manifest = read_manifest(tmp_path)
    assert manifest["state"] == "interrupted" and 5 <= manifest["steps"] < 1_000_000
    assert checkpoint.read(tmp_path / checkpoint.LATEST).step == manifest["steps"]


@pytest.mark.parametrize("kind", [0, 1], ids=["solver", "program"])
def test_two_processes_sharing_a_batch_train_the_model_of_one(kind, two_processes, tmp_path):
    work(SHARED[kind], tmp_path, 10)
    alone, shared = state(tmp_path), state(two_processes / f"shared{kind}")
    for name in alone:
        if name.startswith("weight."):
            scale = alone[name].norm()
            assert (alone[name] - shared[name]).norm() <= 1e-5 * scale, name


@pytest.mark.parametrize("kind", [0, 1], ids=["solver", "program"])
def test_two_processes_sharing_a_stack_train_the_members_of_one(kind, two_processes, tmp_path):
    runs = nf.train(SPREAD[kind], out=tmp_path, device="cpu", progress=False, checkpoint_every=10)
    for run in runs:
        assert_equal(state(run.folder), state(two_processes / f"spread{kind}" / run.folder.name))


def test_a_second_process_in_the_folder_of_a_program_is_refused(tmp_path):
    process = start(PROGRAM.replace(steps=100_000), tmp_path, 4000)
    while process.is_alive() and not (tmp_path / "metrics.jsonl").exists():
        time.sleep(0.01)
    try:
        with pytest.raises(FileError, match=str(tmp_path)):
            nf.train(PROGRAM.replace(steps=100_000), out=tmp_path, device="cpu", progress=False)
    finally:
        process.kill()
        process.join()


def test_more_processes_than_models_or_systems_are_refused():
    cpu = torch.device("cpu")
    assert Ranks(cpu, 4, 1, 2).members(batch=1) == [1, 3] and Ranks(cpu, 1, 1, 2).members(batch=2) == [0]
    for count, batch in ((2, 64), (1, 2)):
        with pytest.raises(OptionError, match="3 processes"):
            Ranks(cpu, count, 0, 3).members(batch)
