"""Saving and loading: bit for bit; every damaged or edited file is refused."""

import copy
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import nlaformer as nf
from nlaformer import io
from nlaformer.cli import app
from nlaformer.errors import FileError, UnknownNameError
from nlaformer.learn.model import initial
from tests.reference import OPERATIONS, draw, one_array


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_loaded_operation_has_the_weights_and_results_of_the_saved_one(name, dtype, tmp_path):
    op = nf.operation(name, n=5, dtype=dtype, order=2)
    op.save(tmp_path / "op")
    loaded = nf.load(tmp_path / "op")
    before, after = op.model.state_dict(), loaded.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    operands = draw(name, 5, np.random.default_rng(0), dtype)
    np.testing.assert_array_equal(one_array(op(*operands)), one_array(loaded(*operands)))
    np.testing.assert_array_equal(one_array(op.error_bound(*operands)), one_array(loaded.error_bound(*operands)))
    assert op.options == loaded.options


@pytest.fixture
def saved(tmp_path):
    return nf.operation("matmul", n=3).save(tmp_path / "op")


def edit(saved, change, signed=True):
    """Change the config; signed, as a forger or another version would leave it, so that its content is judged."""
    path = saved / "config.json"
    document = json.loads(path.read_text())
    change(document)
    if signed:
        document.pop("digest")
        document["digest"] = io._digest(document, (saved / "model.safetensors").read_bytes())
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (lambda p: (p / "config.json").unlink(), "config.json: No such file"),
        (lambda p: (p / "model.safetensors").unlink(), "model.safetensors: No such file"),
        (lambda p: (p / "config.json").write_text("{"), "JSON"),
        (lambda p: (p / "config.json").write_bytes(b"\xff\xfe"), "JSON.*utf-8"),
        (lambda p: (p / "config.json").write_text("[]"), "config.json.*written"),
        (lambda p: (p / "config.json").write_text('{"format": "other"}'), "config.json.*written"),
        (lambda p: (p / "config.json").write_text('{"format": "nlaformer", "version": 99}'), "version 99"),
        (lambda p: (p / "model.safetensors").write_bytes(b""), "safetensors.*truncated"),
        (lambda p: (p / "model.safetensors").write_bytes(b"x" * 100), "safetensors.*truncated"),
        (lambda p: _truncate(p / "model.safetensors"), "safetensors.*truncated"),
        (lambda p: edit(p, lambda d: d["config"].update(n=4), signed=False), "edited"),
        (lambda p: edit(p, lambda d: d.pop("model")), "lacks.*'model'"),
        (lambda p: edit(p, lambda d: d["model"]["pre"].append(d["model"]["pre"][0])), "fit.*KeyError.*pre.1"),
        (lambda p: edit(p, lambda d: d["model"]["pre"][0]["heads"].update(W_Q=[1, 1])), r"fit.*W_Q.*\[1, 1\]"),
        (lambda p: edit(p, lambda d: d["config"].update(n=4)), "weights.*matmul"),
        (lambda p: edit(p, lambda d: d["config"].update(colour="red")), "colour"),
        (lambda p: edit(p, lambda d: d["config"].update(order="x")), "order is 'x'"),
    ],
)
def test_damaged_files_are_refused(saved, damage, check):
    damage(saved)
    with pytest.raises(FileError, match=check):
        nf.load(saved)


def artefacts(folder):
    """One of each kind, saved."""
    tiny = nf.recipe("quickstart", n=3, T=3, d=8, heads=2)
    return [
        nf.operation("matmul", n=3).save(folder / "operation"),
        nf.algorithm("richardson", n=2).save(folder / "algorithm"),
        initial(tiny).save(folder / "solver"),
    ]


def leaves(value, path=()):
    """The path to every number, string, flag and null in a document."""
    if isinstance(value, dict | list) and value:
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))
    else:
        yield path


def test_an_edit_of_anything_in_a_config_is_refused(tmp_path):
    for saved in artefacts(tmp_path):
        whole = json.loads((saved / "config.json").read_text())
        paths = list(leaves(whole))
        assert {path[0] for path in paths} == {"format", "version", "kind", "config", "model", "digest"}
        for path in [*paths[:: max(1, len(paths) // 150)], ("kind",), ("digest",)]:
            document = copy.deepcopy(whole)
            place = document
            for key in path[:-1]:
                place = place[key]
            old = place[path[-1]]
            place[path[-1]] = old + 1 if isinstance(old, float) or type(old) is int else f"{old} edited"
            (saved / "config.json").write_text(json.dumps(document))
            with pytest.raises(FileError):
                nf.load(saved)
        # Spacing and the order of the keys carry nothing.
        (saved / "config.json").write_text(json.dumps(whole, sort_keys=True))
        nf.load(saved)


def test_an_edit_of_any_byte_of_the_weights_is_refused(tmp_path):
    for saved in artefacts(tmp_path):
        path = saved / "model.safetensors"
        content = path.read_bytes()
        for k in range(0, len(content), max(1, len(content) // 100)):
            path.write_bytes(content[:k] + bytes([content[k] ^ 1]) + content[k + 1 :])
            with pytest.raises(FileError):
                nf.load(saved)


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"n": 4}, "positions"),
        ({"d": 16}, "ffn.W_1"),
        ({"heads": 4}, "layers"),
        ({"ffn": 7}, "ffn.W_1"),
        ({"loop_layers": 2}, "loop.1"),
        ({"norm": "none"}, "gain_1"),
    ],
)
def test_a_solver_whose_weights_do_not_fit_its_config_is_refused(changes, differing, tmp_path):
    saved = artefacts(tmp_path)[2]
    edit(saved, lambda d: d["config"].update(changes))
    with pytest.raises(FileError, match=f"weights.*{differing}"):
        nf.load(saved)


@pytest.mark.parametrize("path", [None, 3, b"folder", ""])
def test_a_value_that_is_not_a_path_is_refused(path):
    for write in (nf.operation("add", n=2).save, nf.algorithm("richardson", n=2, verify=False).save, nf.load):
        with pytest.raises(FileError, match=f"{re.escape(repr(path))}.*path"):
            write(path)


def test_a_name_too_long_for_any_folder_is_refused():
    with pytest.raises(FileError, match="no folder"):
        nf.load("a" * 5000)


def test_a_misspelt_bundled_name_is_answered_with_the_nearest():
    with pytest.raises(FileError, match="'cg-accelerated'"):
        nf.load("cg-acelerated")


def test_evaluate_answers_a_misspelt_bundled_name_with_the_nearest():
    outcome = CliRunner().invoke(app, ["evaluate", "cg-acelerated"])
    assert isinstance(outcome.exception, FileError) and "'cg-accelerated'" in str(outcome.exception)


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-8])


def test_an_unknown_kind_and_a_missing_folder_are_refused(saved, tmp_path):
    edit(saved, lambda d: d.update(kind="operatoin"))
    with pytest.raises(UnknownNameError, match="'operation'"):
        nf.load(saved)
    with pytest.raises(FileError, match=r"nowhere.*No such file"):
        nf.load(tmp_path / "nowhere")


def test_a_full_disk_leaves_the_old_file_intact(saved):
    """A real limit on the size of files, in a process of its own: saving fails, what was there still loads."""
    script = (
        "import resource, sys, nlaformer, nlaformer.errors, nlaformer as nf\n"
        "op = nf.operation('matmul', n=40)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try:\n"
        "    op.save(sys.argv[1])\n"
        "except nlaformer.errors.FileError as error:\n"
        "    print(error); sys.exit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(saved)], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "model.safetensors" in done.stdout and "intact" in done.stdout
    assert nf.load(saved).n == 3
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]


def test_a_compiled_algorithm_of_version_0_2_is_refused_with_what_to_do(tmp_path):
    kind, config, model, _ = io.read(nf.algorithm("richardson", 2, verify=False).save(tmp_path / "now"))
    config["steps"] = config.pop("program")  # as it was called there
    with pytest.raises(FileError, match="compile the program again"):
        nf.load(io.save(tmp_path / "then", kind, model, config))
