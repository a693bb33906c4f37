"""The training benchmark runs on a CPU with a tiny model, and its table holds what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import compiled_step, train_step

ROOT = Path(__file__).parents[1]


def test_sections_of_the_benchmark_run_on_a_cpu(tmp_path: Path) -> None:
    train_step.main(["--smoke", "--json", str(tmp_path / "found.json"), "--only", "machine", "stack", "eager"])
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["eager"]["ms"] > 0
    assert all(row["weights"] < 1e-6 for row in found["stack"].values())


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_a_compiled_step_has_the_gradient_of_float64(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Uncompiled here; on a CPU both precisions are float32."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    for name, make in (("layers", compiled_step.CompiledLayers), ("passes", compiled_step.CompiledPasses)):
        assert compiled_step.one(train_step.SMOKE, name, make, precision, 1)["step from float64"] < 1e-6


def test_the_table_shows_compiled_steps_and_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import train_step_table

    found = json.loads((ROOT / "benchmarks" / "results" / "train_step.json").read_text())
    found["compiled"] = {"float32": {"ms": 20.5}, "tf32": {"error": "RuntimeError: no | compiler"}}
    section = train_step_table.section(found)
    rows = [line for line in section.splitlines() if "torch.compile" in line]
    assert len(rows) == 2 and "20.50" in rows[0] and "RuntimeError: no" in rows[1]
    assert rows[1].count("|") == rows[0].count("|")
