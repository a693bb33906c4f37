"""nf.probe: it reads what stands in a state, does not read what does not, and its controls say the difference."""

from __future__ import annotations

import numpy as np
import pytest

import nlaformer as nf
from nlaformer.errors import DTypeError, OptionError, SampleWarning, ShapeError, UnknownNameError
from nlaformer.learn.methods import LearnedPCG
from nlaformer.learn.programs import initial as initial_program
from nlaformer.microscope import probes
from nlaformer.microscope.targets import values
from tests.test_microscope_recording import SMALL, N, solver, subject

SOURCES = {"model", "untrained", "input", "permuted"}


class Halved(nf.Program):
    def start(self, b):
        return dict(x=b, half=0.5 * b)

    def step(self, x, half):
        return dict(x=half, half=0.5 * half)


@pytest.fixture(scope="module")
def compiled():
    targets = {
        "cg.r": "cg.r",
        "richardson.x": "richardson.x",
        "sign of b": lambda A, b: b.sign(),
        "b of a program": (Halved(), "half"),
    }
    return nf.probe(subject("compiled")[0], targets=targets, iterations=2, systems=560)


def test_the_registers_of_compiled_cg_are_read_and_no_control_reads_them(compiled):
    scores = compiled["cg.r"]
    assert scores["model"].mean_low > 0.99 and compiled.beyond_controls("cg.r")
    assert max(scores[name].mean_high for name in ("untrained", "input", "permuted")) < 0.9
    assert scores["model"].r2.shape == (3,) and set(scores) == SOURCES


def test_what_the_input_holds_too_is_not_beyond_the_controls(compiled):
    # Both read b, which stands in the prompt.
    assert compiled["b of a program"]["input"].mean > 0.99
    assert not compiled.beyond_controls("b of a program")


def test_targets_of_other_systems_are_not_read(compiled):
    for name in compiled.scores:
        assert abs(compiled[name]["permuted"].mean) < 0.1, name


def test_r2_and_its_interval_are_those_of_a_known_map():
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(4000, 6)), rng.normal(size=(4000, 2))
    Y = X[:, :2] + np.sqrt(3) * noise  # R^2 = 1/4
    (score,) = probes._scores([None, X], {"y": np.stack([Y, Y], 1)}, 3000, seed=0).values()
    assert np.isnan(score.r2[0]) and score.low[1] < 0.25 < score.high[1] and score.high[1] - score.low[1] < 0.1
    assert score.mean == score.r2[1]


def test_intervals_hold_the_value_of_many_systems_nine_times_in_ten():
    rng, held = np.random.default_rng(1), 0
    for _ in range(40):
        X, noise = rng.normal(size=(400, 3)), rng.normal(size=(400, 1))
        (score,) = probes._scores([X], {"y": (X[:, :1] + noise)[:, None]}, 300, seed=0).values()  # R^2 = 1/2
        held += score.low[0] < 0.5 < score.high[0]
    assert held >= 34


def test_coefficients_and_residuals_are_those_of_the_method():
    A, b, x = nf.problems.SPD(n=N).sample(3, seed=2)
    found = values(["cg.alpha", "cg.beta", "cg.r", "richardson.r", "newton_schulz.x", "solution"], (A, b, x), 2)
    for k in range(3):
        r = b[k].numpy()
        alpha = r @ r / (r @ A[k].numpy() @ r)
        after = r - alpha * A[k].numpy() @ r
        assert np.allclose(found["cg.alpha"][k, :2, 0], [0, alpha])
        assert np.allclose(found["cg.beta"][k, 1, 0], after @ after / (r @ r))
        assert np.allclose(found["cg.r"][k, 1], after)
        assert np.allclose(found["richardson.r"][k, 0], r)
    assert found["newton_schulz.x"].shape == (3, 3, N) and np.array_equal(found["solution"][:, 1], x.numpy())


@pytest.mark.parametrize("kind", ("trained", "program"))
def test_networks_and_programs_with_a_learned_part_are_probed_at_any_part(kind: str):
    model = solver(norm="none") if kind == "trained" else subject("program")[0]
    for at, token in (("output", None), ("ffn.hidden", "all")):
        with pytest.warns(SampleWarning):
            found = nf.probe(model, targets=["solution"], at=at, token=token, systems=40, iterations=2)
        assert set(found["solution"]) == SOURCES
        assert np.isfinite(found["solution"]["model"].r2[1:]).all(), at


def test_a_part_that_is_read_once_is_probed_there_and_so_are_its_controls():
    model = initial_program(SMALL, LearnedPCG())
    targets = {"diagonal of A": lambda A, b: A.diagonal(dim1=-2, dim2=-1)}  # n numbers, and n = T + 1
    found = nf.probe(model, targets=targets, token="own", systems=200)
    for source in SOURCES:
        r2 = found["diagonal of A"][source].r2
        assert np.isfinite(r2[0]) and np.isnan(r2[1:]).all() and r2[0] == found["diagonal of A"][source].mean
    assert found["diagonal of A"]["input"].mean_low > 0.4 > 0.1 > found["diagonal of A"]["permuted"].mean_high


def test_the_sample_is_chosen_by_what_a_probe_reads():
    assert probes._count(None, 10) == 400 and 3 * probes._count(None, 300) // 4 == 5 * 300
    with pytest.warns(SampleWarning, match="300"):
        probes._count(100, 300)


def test_what_cannot_be_probed_is_refused():
    model = subject("compiled")[0]
    with pytest.raises(UnknownNameError, match=r"cg\.x"):
        nf.probe(model, targets=["cgg.x"], iterations=1, systems=200)
    with pytest.raises(UnknownNameError, match="rho"):
        nf.probe(model, targets=["cg.roh"], iterations=1, systems=200)
    with pytest.raises(UnknownNameError, match="alpha"):
        nf.probe(model, targets=["cg.alhpa"], iterations=1, systems=200)
    with pytest.raises(OptionError, match=r"cg\.r"):
        nf.probe(model, targets=["r"], iterations=1, systems=200)
    with pytest.raises(OptionError, match="token"):
        nf.probe(model, targets=["cg.alpha"], iterations=1, systems=200)
    with pytest.raises(OptionError, match="names"):
        nf.probe(model, at="layer[99].output")
    with pytest.raises(OptionError, match="SPD"):
        nf.probe(model, "spd")
    with pytest.raises(OptionError, match="targets"):
        nf.probe(model, targets="cg.r", iterations=1, systems=200)


def test_a_target_may_write_into_what_it_gets_and_must_be_real():
    model = subject("compiled")[0]

    def spoiling(A, b):
        found = (A @ b[..., None])[..., 0]
        A.zero_(), b.zero_()
        return found

    targets = {"own": spoiling, "cg.r": "cg.r"}
    alone = nf.probe(model, targets=["cg.r"], iterations=1, systems=200, controls=False)
    both = nf.probe(model, targets=targets, iterations=1, systems=200, controls=False)
    assert both["cg.r"]["model"].mean == pytest.approx(alone["cg.r"]["model"].mean, abs=1e-9)
    for error, options in (
        (DTypeError, dict(targets={"z": lambda A, b: b * 1j})),
        (ShapeError, dict(targets={"z": lambda A, b: 3.0})),
        (OptionError, dict(targets=3)),
        (OptionError, dict(targets={3: "cg.r"})),
        (OptionError, dict(token=True)),
        (OptionError, dict(controls="yes")),
        (OptionError, dict(at=3)),
    ):
        with pytest.raises(error):
            nf.probe(model, **({"iterations": 1, "systems": 200} | options))
