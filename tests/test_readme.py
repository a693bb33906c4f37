"""The Python of the README runs as it stands (except training, which tests/test_learn_*.py do), here and installed."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

import nlaformer as nf
from nlaformer.cli import demo

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _examples() -> str:
    """The blocks of the README that train nothing, one after another."""
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    chosen = [block for block in blocks if "nf.train" not in block]
    assert chosen
    return "\n".join(chosen)


def test_the_examples_of_the_readme_run_and_compute_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict = {"print": lambda *values: None}
    exec(_examples(), scope)
    A, B = scope["A"], scope["B"]
    assert np.abs(scope["product"](A, B) - A @ B).max() < 1e-9
    assert np.abs(scope["run"].x[-1] - np.linalg.solve(A @ A.T + 20 * np.eye(20), B[0])).max() < 1e-9

    result = scope["result"]
    assert result.converged and result.residual_bound <= 1e-8 * np.linalg.norm(B[0]) and scope["info"] == 0


@pytest.mark.long
def test_the_examples_run_with_the_wheel_alone_and_the_source_archive_is_complete(tmp_path):
    """The wheel is installed outside the checkout, into an environment that sees the packages of this one."""
    _run(sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "dist", cwd=ROOT)
    (wheel,), (archive,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    assert nf.__version__ in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"nlaformer", f"nlaformer-{nf.__version__}.dist-info"}
    assert {"nlaformer/py.typed", "nlaformer/pretrained/cg-accelerated/model.safetensors"} <= set(names)
    with tarfile.open(archive) as files:
        inside = {name.split("/")[1] for name in files.getnames() if "/" in name}
    assert {"nlaformer", "paper", "benchmarks", "tests", "docs", "README.md", "Makefile", "LICENSE"} <= inside

    home = tmp_path / "environment"
    _run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    (packages,) = home.rglob("site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    script = f"import nlaformer\nassert nlaformer.__file__.startswith({str(home)!r})\n{_examples()}"
    (tmp_path / "examples.py").write_text(script, encoding="utf-8")
    _run(python, "examples.py", cwd=tmp_path)
    _run(python, "-m", "nlaformer", "info", cwd=tmp_path)


def _run(*command: object, cwd: Path | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_and_the_help_give_the_same_time_for_the_demo():
    (told,) = re.findall(r"about \w+ minutes", demo.demo.__doc__ or "")
    assert told in README


def test_the_times_of_a_training_step_are_those_on_file():
    filed = json.loads((ROOT / "benchmarks" / "results" / "train_step.json").read_text(encoding="utf-8"))
    for precision in ("float32", "tf32", "bf16"):
        assert f"{filed['time'][f'{precision} E=1']['ms_per_step']:.1f} ms" in README, precision
    assert re.search(rf"\b{filed['eager']['ms']:.0f}\b", README)
    assert nf.recipe("cg-accelerated").precision == "tf32"
