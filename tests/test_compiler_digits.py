"""The digits that a program determines, its own lines beside a run, and what is made of the text of a value."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.compiler.library import algorithm, record
from nlaformer.errors import CompileError, OptionError
from nlaformer.program.judge import RULES, bands
from tests.systems import StartsAtB, family, with_eigenvalues


class Counting(nf.Program):
    """A whole number, a vector that is moved, and one that cancels to 0 but for rounding."""

    def start(self, b):
        return dict(x=b, count=0.0, left=b)

    def step(self, b, x, count, left):
        return dict(x=x / 3, count=count + 1, left=(x + b / 3) - x - b / 3)


def test_what_only_counts_or_moves_keeps_all_its_digits_and_a_cancellation_none():
    run = Counting().run(b=np.array([1.0, -2.0, 0.7]), iterations=5)
    assert (run.digits["count"] == 16).all() and run.digits["x"][0] == 16
    assert (run.digits["x"][1:] > 8.5).all() and (run.digits["x"][1:] < 11).all()
    assert (run.digits["left"][1:] == 0).all()
    np.testing.assert_array_equal(run.digits["finish()"], run.digits["x"])


def test_digits_fall_with_the_condition_of_the_system():
    cg, b = nf.algorithm("cg", n=8, verify=False), np.ones(8)
    digits = [
        cg.run(with_eigenvalues(np.geomspace(1.0, condition, 8)), b, iterations=12).digits["x"][-1]
        for condition in (10.0, 1e3, 1e5)
    ]
    assert digits[0] > digits[1] > digits[2] and digits[0] > 8


def test_a_system_has_the_same_digits_alone_and_in_a_batch():
    A, b, _ = family(6, 3, 1.2)
    cg = nf.algorithm("cg", n=6, verify=False)
    many = cg.run(A, b, iterations=12)
    for k in range(3):
        one = cg.run(A[k], b[k], iterations=12)
        for name in ("x", "r", "rho"):
            np.testing.assert_allclose(many.digits[name][k], one.digits[name], atol=1.0, err_msg=name)
        np.testing.assert_allclose(many.digits["x"][k], one.digits["x"], atol=1e-3)


def test_a_value_is_wrong_only_beyond_every_one_of_many_runs():
    A, b, _ = family(6, 3, 1.2)
    record = nf.algorithm("cg", n=6, verify=False).run(A, b, iterations=8).record
    given, rule = (record.graph, record.inputs, 8, RULES[record.dtype]), RULES[record.dtype]
    few = bands(*given)
    near, far = ({name: band.own.clone() for name, band in few.items()} for _ in range(2))
    near["x"][1, 4] += 1.05 * rule.bars * few["x"].bar[1, 4] * torch.eye(6)[0]
    far["x"][1, 4] += 1e4 * rule.bars * few["x"].bar[1, 4] * torch.eye(6)[0]
    assert few["x"].wrong(near["x"]).nonzero().tolist() == [[1, 4]]
    more, most = bands(*given, near), bands(*given, far)
    assert not more["x"].wrong(near["x"]).any()
    assert most["x"].wrong(far["x"]).nonzero().tolist() == [[1, 4]]
    for name, band in few.items():  # the other systems are judged as they were
        torch.testing.assert_close(more[name].spread[[0, 2]], band.spread[[0, 2]])


def test_digits_have_the_shape_of_the_batch_and_are_told_in_the_text_of_a_run():
    A, b, _ = family(5, 6, 1.2)
    run = nf.algorithm("cg", n=5, verify=False).run(A.reshape(2, 3, 5, 5), b.reshape(2, 3, 5), iterations=9)
    assert run.digits["x"].shape == (2, 3, 10) == run.digits["rho"].shape
    least = f"x has {run.digits['x'][..., -1].min():.0f} digits"
    assert least in repr(run) and least in run.finding and "digits" in run._repr_html_()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["cg", "minimal_residual", "power", "cholesky", "sinkhorn", "adagrad"])
def test_no_value_of_sound_weights_wrong_and_damaged_weights_do(name, dtype):
    compiled, entry = algorithm(name, 6, dtype=dtype, verify=False), record(name)
    given = {key: value.astype(dtype) for key, value in entry.problems(6, 8, 31)[0].items()}
    bands = (run := compiled.run(**given, iterations=min(12, entry.iterations(6)))).record.bands
    assert not any(band.wrong(run.record.values[key]).any() for key, band in bands.items())
    moved = {key: value * (1 + (1e-5 if dtype == "float64" else 0.3)) for key, value in run.record.values.items()}
    assert any(band.wrong(moved[key]).any() for key, band in bands.items())


def test_a_value_that_is_not_finite_wrong_where_the_program_is():
    run = Counting().run(b=np.array([1.0, -2.0, 0.7]), iterations=2)
    lost = run.record.values["left"] * np.nan
    assert run.record.bands["left"].wrong(lost).all()


class ByKind(StartsAtB):
    """What Python cannot trap: a decision by the kind of a value."""

    def step(self, x):
        return dict(x=0.5 * x if isinstance(x, np.ndarray) else 0.25 * x)


def test_a_run_is_compared_with_the_lines_of_its_program():
    b = np.array([1.0, -2.0, 0.7])
    assert nf.compile(StartsFrom(), n=3).run(b=b, iterations=4).check()
    wrong = nf.compile(ByKind(), n=3, verify=False).run(b=b, iterations=4).check()
    assert not wrong and "step 1" in str(wrong)
    with pytest.raises(CompileError, match="step 1"):
        nf.compile(ByKind(), n=3)


class StartsFrom(StartsAtB):
    def step(self, x):
        return dict(x=0.5 * x + 1.0)


def test_a_loaded_algorithm_is_checked_against_a_program_that_is_given(tmp_path):
    loaded = nf.load(nf.compile(StartsFrom(), n=3).save(tmp_path / "saved"))
    run = loaded.run(b=np.ones(3), iterations=2)
    with pytest.raises(OptionError, match="check"):
        run.check()
    assert run.check(StartsFrom()) and not run.check(ByKind())


class Late(nf.Program):
    """What it keeps beside its states shows after ten steps."""

    def start(self, b):
        self.__dict__.clear()
        return dict(x=b, k=0.0)

    def step(self, b, x, k):
        return dict(x=x * (0.5 if isinstance(k, float) and k > 9 else 1.0), k=k + 1)


def test_lines_are_compared_in_all_steps_of_the_verification():
    with pytest.raises(CompileError, match="step 11"):
        nf.compile(Late(), n=3)


def test_a_diagnosis_names_the_line_of_the_program():
    cg = nf.algorithm("cg", n=4, verify=False)
    cg.model.loop[-1].ffn.b_2.data[cg.layout["d"].start] += 1e-3  # damage what writes d
    run = cg.run(with_eigenvalues(np.array([1.0, 2.0, 3.0, 5.0])), np.ones(4), iterations=3)
    assert "krylov.py" in run.diagnose().first.line and "r + " in str(run.diagnose())


def test_values_are_printed(capsys):
    class Prints(StartsAtB):
        def step(self, x):
            print(x, f"{nf.norm(x):.2e}", f"x = {x[0]}", str(x)[:5], repr(x).upper(), "%s" % x, f"{x!r:>20}")  # noqa: UP031
            return dict(x=0.5 * x)

    nf.compile(Prints(), n=3)
    assert "sqrt((x @ x))" in capsys.readouterr().out


SEEN: dict = {}


def _as_key(x):
    SEEN[str(x)] = 1
    return x


@pytest.mark.parametrize(
    "decides",
    [
        lambda x: 0.5 * x if str(x[0]).startswith("-") else x,
        lambda x: 0.5 * x if repr(x) == "x" else x,
        lambda x: 0.5 * x if "-" in f"{x[0]}" else x,
        lambda x: 0.5 * x if str(x) else x,
        lambda x: 0.5 * x if str(x[0])[0] == "-" else x,
        lambda x: 0.5 * x if f"x = {x[0]}".startswith("x = -") else x,
        lambda x: float(str(x[0])) * x,
        lambda x: {x: 1} and x,
        _as_key,
    ],
)
def test_a_decision_by_the_text_of_a_value_is_refused(decides):
    class Decides(StartsAtB):
        def step(self, x):
            return dict(x=decides(x))

    with pytest.raises(CompileError):
        nf.compile(Decides(), n=3)
