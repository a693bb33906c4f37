"""The examples of the README run as they stand, here and with the wheel alone, and its numbers are those on file."""

import importlib
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
from paper import bundled
from paper.curves import overtaken
from paper.numbers import numbers
from paper.results import Results

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def examples() -> str:
    """The blocks of the README, one after another."""
    return "\n".join(re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL))


def test_the_examples_of_the_readme_run_and_solve_their_systems(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "readme_examples.py").write_text(examples(), encoding="utf-8")
    scope = vars(importlib.import_module("readme_examples"))
    wanted = np.linalg.solve(scope["S"], scope["b"])
    assert np.abs(scope["cg"].x[-1] - wanted).max() < 1e-9 and np.abs(scope["run"].x[-1] - wanted).max() < 1e-6
    assert np.abs(scope["result"].x - wanted).max() < 1e-6 and scope["info"] == 0


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
    script = f"import nlaformer\nassert nlaformer.__file__.startswith({str(home)!r})\n{examples()}"
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


def _row(begins: str) -> str:
    """The line of the table of results that begins so."""
    (row,) = re.findall(rf"^\| {re.escape(begins)}.*$", README, flags=re.MULTILINE)
    return row


def _filed(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def _short(number: float) -> str:
    """Two digits, and an exponent without a leading zero."""
    return re.sub(r"e-0(\d)", r"e-\1", f"{number:.1e}")


def _iterations(curve: dict) -> str:
    """Iterations to 1e-1, ..., 1e-6; a range where the mean is within two standard errors of the threshold."""
    ends = [[m + sign * 2 * e for m, e in zip(curve["mean"], curve["standard_error"], strict=True)] for sign in (-1, 1)]
    found = [
        [next(t for t, error in enumerate(end) if error <= threshold) for end in ends]
        for threshold in (10.0**-k for k in range(1, 7))
    ]
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in found)


def test_the_numbers_of_operations_and_algorithms_are_those_on_file():
    found = numbers()
    for row in json.loads((ROOT / "paper" / "results" / "operations.json").read_text(encoding="utf-8"))["rows"]:
        if row["operation"] == "matmul":
            accuracy = (row["accuracy"]["float64"]["error"], row["accuracy"]["float64"]["bound"])
            for number in (*accuracy, row["paper_scheme"]["float64"]["error"]):
                assert _short(number) in _row("A B")
    for key in ("operations.matrix_transpose.entries", "operations.matrix_transpose.loop.entries"):
        assert f"{found[key]:,}" in _row("A^T")
    assert f"{found['compiled.cg.layers']} layers" in _row("CG compiled")
    for key in ("compiled.cg.error", "compiled.cg.reference_error"):
        assert _short(found[key]) in _row("CG compiled")


def test_the_numbers_of_learned_models_are_those_on_file():
    fresh = bundled.fresh(Results())
    model, cg = (fresh.at(method, 1.2) for method in ("cg-accelerated", "cg"))
    assert f"{_iterations(model)}; CG's {_iterations(cg)}" in _row("cg-accelerated: iterations")
    assert _short(model["mean"][-1]) in _row("the same") and f"t = {overtaken(model['mean'], cg['mean'])}" in _row(
        "the same"
    )
    assert f"t = 3 the mean over {fresh.count:,} fresh systems is {_short(model['mean'][3])}" in " ".join(
        README.split()
    )
    low, high = numbers()["lambda.law"]
    fresh = [end for weight in (1, 7, 10, 13) for end in numbers()[f"h9.{weight}"]]
    for span in (f"{low:.1f} to {high:.1f}", f"{min(fresh):.2f} to {max(fresh):.2f}"):
        assert span in _row("lead over the teacher")
    for key, words in (("teaching.lead", "over steepest"), ("h9.30", "at lambda = 30"), ("h9.pcg", "over PCG")):
        low, high = numbers()[key]
        assert f"{low:.2f} to {high:.2f} {words}" in _row("lead over the teacher")


def test_the_numbers_of_solving_and_training_are_those_on_file():
    found = _filed("solve")["acceptance"]["verdict"]
    assert f"{found['matvecs']:.1f} with a model; CG's {found['cg_iterations'] + 1:.1f}" in _row("products with A")
    stress = _filed("solve_stress")["found"]
    assert f"{len(stress['lies'])} of {stress['statuses']['CONVERGED']:,}" in _row("wrong certificates")
    found = _filed("train_step")
    for precision in ("float32", "tf32", "bf16"):
        assert f"{found['time'][f'{precision} E=1']['ms_per_step']:.1f} ms in {precision}" in _row("a training step")
    assert f"eager torch {found['eager']['ms']:.0f} ms" in _row("a training step")
    compiled = found["compiled"]["float32"]["ms"]
    assert f"torch.compile and a CUDA graph {compiled:.1f} ms in float32" in _row("a training step")


def test_the_numbers_of_the_learned_parts_are_those_on_file():
    row, learned = _row("learned-preconditioner"), numbers()
    key = "learned_parts.learned-preconditioner.spd-sigma-1-2"
    (mine, cg, _, by_hand), (mine_10, cg_10, _, by_hand_10) = learned[f"{key}.t5"], learned[f"{key}.t10"]
    for pair in ((mine, mine_10), (cg, cg_10), (by_hand, by_hand_10)):
        assert ", ".join(_short(value) for value in pair) in row
    key, row = "learned_parts.guided-cg.spd-sigma-1-2.iterations", _row("guided-cg")
    mine, cg = (", ".join(map(str, learned[f"{key}.{method}"][:12])) for method in ("learned", "cg"))
    assert f"| {mine}; CG's {cg} |" in row
    seconds = learned["learned_parts.learned-preconditioner.seconds"]
    assert f"{seconds:.0f} s on an H200" in README


def test_the_numbers_of_other_tasks_are_those_on_file():
    grids = ("diffusion", "learned-preconditioner-diffusion", ["PCG, Jacobi", "PCG, IC(0)"])
    for begins, name, rivals in (("systems that are not", "guided-gcr", ["GMRES"]), grids):
        for model in _filed(name)["models"].values():
            counts = next(iter(model["families"].values()))["iterations_to"]["mean"]
            for method in ("learned", *rivals):
                assert ", ".join(str(counts[method][k]) for k in (1, 3, 5)) in _row(begins), (name, method)
