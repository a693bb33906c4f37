"""The README's Python runs as it stands (but for training, which tests/test_learn_*.py do)."""

import json
import re
from pathlib import Path

import numpy as np

import nlaformer as nf

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_examples_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL) if "nf.train" not in block]
    assert len(blocks) == 4
    scope: dict = {"print": lambda *values: None}
    exec("\n".join(blocks), scope)
    A, B = scope["A"], scope["B"]
    assert np.abs(scope["product"](A, B) - A @ B).max() < 1e-9
    assert np.abs(scope["run"].x[-1] - np.linalg.solve(A @ A.T + 20 * np.eye(20), B[0])).max() < 1e-9

    result = scope["result"]
    assert result.converged and result.residual_bound <= 1e-8 * np.linalg.norm(B[0]) and scope["info"] == 0


def test_the_names_in_the_map_from_paper_to_code_exist():
    for name in re.findall(r'`nf\.operation\("(\w+)"', README):
        assert name in nf.operations()
    for module, attribute in re.findall(r"`(nlaformer(?:\.\w+)+)\.(\w+)`", README):
        assert hasattr(__import__(module, fromlist=[attribute]), attribute), f"{module}.{attribute}"


def test_the_times_of_a_training_step_are_those_on_file():
    filed = json.loads(
        (Path(__file__).parents[1] / "benchmarks" / "results" / "train_step.json").read_text(encoding="utf-8")
    )
    fused = {
        precision: f"{filed['time'][f'{precision} E=1']['ms_per_step']:.1f}"
        for precision in ("float32", "tf32", "bf16")
    }
    assert (
        f"takes {fused['float32']} ms on one H200 in float32 where eager torch takes {filed['eager']['ms']:.0f}, "
        f"{fused['tf32']} ms in tf32 (the default), {fused['bf16']} ms in bf16"
    ) in " ".join(README.split())
    assert nf.recipe("cg-accelerated").precision == "tf32"
