"""The controls: the probe reads what is there and nothing else, and the vectors are those of the methods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import nlaformer as nf
from nlaformer.compiler.library import program
from nlaformer.errors import OptionError
from nlaformer.learn.model import initial
from nlaformer.problems import SPD
from nlaformer.report.figure import save
from paper import controls
from paper.__main__ import main
from paper.results import Results

SIZES = controls.Sizes(train=300, validation=80, test=100, seed=5)


@pytest.fixture(scope="module")
def systems():
    return SPD(n=4).sample(SIZES.count, SIZES.seed)


@pytest.fixture(scope="module")
def solver():
    solver = initial(nf.recipe("quickstart", n=4, T=5, d=16, heads=2))
    generator = torch.Generator().manual_seed(3)
    for probe in (solver.probe_x, solver.probe_rd):
        probe.weight.data = torch.randn(probe.weight.shape, generator=generator)
    return solver


@pytest.fixture(scope="module")
def found(solver):
    return controls.document({"cg-imitation": solver, "a model": solver}, SIZES)


def test_every_trajectory_is_the_programs_own(systems):
    T = 5
    held = controls.vectors(systems, T)
    A, b, x = systems
    for method, name in controls._OTHERS.items():
        run = program(name).run(*((A[7],) if name == "newton_schulz" else (A[7], b[7])), iterations=T)
        iterates = run.x @ b[7] if name == "newton_schulz" else run.x
        torch.testing.assert_close(held[f"x of {method}"][7], iterates)
    for name, iterates in held.items():
        if name.startswith("x of"):
            r = b[:, None] - iterates @ A.mT
            torch.testing.assert_close(held["r" + name[1:]], r, rtol=1e-6, atol=1e-9)
    assert torch.equal(held["the solution"][:, 3], x)


def test_the_states_are_those_the_solver_reads(solver, systems):
    few = type(systems)(*(tensor[:300] for tensor in systems))  # more than run through the network at once
    last, tokens = controls.hidden(solver, few, own=(0, 5))
    A, b = few.A.float(), few.b.float()
    with torch.no_grad():
        torch.testing.assert_close(last.float(), solver.features(A, b), rtol=1e-4, atol=1e-5)
    assert tokens[5].shape == (4, 300, 16)
    assert torch.equal(tokens[5][-1], last[:, 5])  # the last equation's token is the last token


def test_a_state_that_holds_cg_shows_cg_and_not_the_others(systems):
    """The positive control: CG's r and d, mixed into a wider state, are read back; what is not there is not."""
    held = controls.vectors(systems, 3)
    mixing = torch.randn(8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    vectors = {name: controls.over_length(value) for name, value in held.items()}
    X = torch.cat([vectors["r of CG"], vectors["d of CG"]], -1) @ mixing
    Y = controls.over_length(torch.stack(list(held.values()), -2)).transpose(0, 1)
    r2 = dict(zip(held, controls.probe(X.transpose(0, 1), Y, SIZES).r2.T, strict=True))
    assert r2["r of CG"].min() > 1 - 1e-9 and r2["d of CG"].min() > 1 - 1e-9
    assert r2["r of Chebyshev"][3] < 0.9 and r2["the solution"][3] < 0.5


def test_a_probe_finds_nothing_where_nothing_is():
    generator = torch.Generator().manual_seed(1)
    X, Y = (torch.randn(SIZES.count, k, dtype=torch.float64, generator=generator) for k in (20, 6))
    Y = torch.stack([Y, torch.ones_like(Y)], 1)
    scores = controls.probe(X, Y, SIZES)
    assert -0.05 < scores.r2[0] < 0.05
    assert scores.r2[1].isnan()  # a vector that never varies


def test_the_discrepancy_of_silence_and_of_the_own_probe_are_the_papers(solver, systems, found):
    from nlaformer.learn import teachers as krylov

    A, b = (tensor[-SIZES.test :] for tensor in systems[:2])
    path = krylov.cg(A, b, 5)
    rd = torch.cat([path.r, path.d], -1)
    with torch.no_grad():
        _, seen = solver(A.float(), b.float())
    numbers = found["models"]["cg-imitation"]["discrepancy"]
    for answer, name in ((torch.zeros_like(rd), "zero"), (seen.double(), "own probe")):
        by_hand = (answer - rd).square().sum(-1)[:, 2:5].sum(-1).mean() / (4 * 3)
        assert numbers[name]["one"] == pytest.approx(float(by_hand), rel=1e-4)


def test_what_is_not_trained_counts_as_untrained(found):
    """The model is untrained itself: no source may stand out, and vectors of other systems explain nothing."""
    model = found["models"]["a model"]
    assert set(model["r2"]) == set(controls.SOURCES)
    assert set(model["r2"]["trained"]) == set(controls._VECTORS)
    for vector in controls._VECTORS:
        assert abs(controls.average(model, "trained", vector) - controls.average(model, "untrained", vector)) < 0.3
        assert controls.average(model, "shuffled", vector) < 0.1
    assert model["own_token"]["iterates"] == [1, 2, 4]


def test_tables_and_figure_come_from_the_file_alone(found, tmp_path: Path):
    results = Results(tmp_path)
    results.write(controls.FILE, found)
    held, own, discrepancy = controls.tables(results)
    assert len(held.headings) == 3 and len(held.lines) == len(own.lines) and len(discrepancy.lines) == 7
    files = [save(controls.figure(results), tmp_path / name) for name in ("one.svg", "other.svg")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_command_probes_any_trained_model(solver, tmp_path: Path, capsys):
    folder = str(solver.save(tmp_path / "mine"))
    assert main(["probe", folder, "--count", "64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sizes"]["train"] == 64 and len(found["models"]["mine"]["r2"]["trained"]["r of CG"]) == 6
    assert found["models"]["mine"]["r2"]["trained"]["x of CG"][0] is None  # x_0 = 0 does not vary
    assert main(["probe", folder, "--count", "64"]) == 0 and "discrepancy" in capsys.readouterr().out
    compiled = nf.algorithm("richardson", n=3, verify=False).save(tmp_path / "compiled")
    assert main(["probe", str(compiled)]) == 2 and "algorithm" in capsys.readouterr().err


def test_models_that_cannot_be_probed_are_refused():
    short, broken = (initial(nf.recipe("quickstart", n=3, T=T, d=8, heads=2)) for T in (1, 3))
    with torch.no_grad():
        broken.read_in.weight.fill_(torch.nan)
    for solver, words in ((short, "T = 1"), (broken, "not finite")):
        with pytest.raises(OptionError, match=words):
            controls.document({"it": solver}, SIZES)


def test_two_models_of_one_name_are_both_probed(solver, tmp_path: Path, capsys):
    folders = [str(solver.save(tmp_path / part / "run")) for part in "ab"]
    assert main(["probe", *folders, "--count", "64", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["models"]) == folders
