"""benchmarks/operations.py: what is timed and counted, and the page it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import nlaformer as nf
from benchmarks import operations as bench
from nlaformer.express.theorem import RECORDS


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    """The command sets the threads of torch for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_peak_memory_counts_only_what_is_alive_at_once():
    """Three blocks of 8 kB are made; at most two live at a time."""

    def work() -> torch.Tensor:
        first = torch.ones(1000, dtype=torch.float64)
        second = first + first
        del first
        return second.exp()

    assert bench.peak_bytes(work) == 16_000


def test_functions_are_timed_in_turns():
    calls: list[str] = []
    medians = bench.interleaved([lambda: calls.append("a"), lambda: calls.append("b")], budget=0.0)
    assert calls == ["a", "b"] * 6 and len(medians) == 2 and min(medians) >= 0


@pytest.mark.parametrize("name", nf.operations())
def test_torchs_operation_computes_the_same_as_ours(name: str):
    """A ratio to something else would mean nothing."""
    operands = bench._operands(name, 6, 7)
    theirs, ours = bench.own_function(name)(*operands), nf.operation(name, n=6, f=RECORDS[name].f)(*operands)
    for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (theirs, ours)), strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, rtol=0, atol=1e-6)


def test_the_command_writes_its_table_with_provenance(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench, "QUICK_CASES", ((4, None), (4, 8)))
    monkeypatch.setattr(bench, "QUICK_NAMES", ("matmul",))
    monkeypatch.setattr(bench, "BUDGET", 0.01)
    code = bench.main(["--quick", "--json", "--out", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    assert code == 0 and [line["batch"] for line in found["measurements"]] == [None, 8]
    assert found["measurements"][0]["call_bytes"] > found["measurements"][0]["torch_bytes"] > 0
    assert json.loads((tmp_path / "operations.json").read_text()) == found
    assert "| matmul | 4 | 8 |" in (tmp_path / "operations.md").read_text()
    assert found["provenance"]["machine"]["threads"] == 1


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda *case: pytest.fail("measured before it knew where to write"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SystemExit) as exit:
        bench.main(["--out", str(tmp_path / "file")])
    assert exit.value.code == 2 and str(tmp_path / "file") in capsys.readouterr().err
