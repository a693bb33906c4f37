"""The paper's form of CG: one layer an iteration, its attention's error, and an FFN that can only be fitted."""

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.compiler.library import program
from nlaformer.errors import FileError, OptionError, UnknownNameError
from paper.paper_form import fitted_error, load, paper_cg
from tests.systems import family, relative_error


@pytest.mark.parametrize(("scheme", "first", "floor"), [("paper", 1e-6, 1e-4), ("antisymmetric", 1e-8, 1e-6)])
def test_one_layer_with_the_exact_update_follows_and_stagnates(scheme, first, floor):
    cg = paper_cg(20, scheme=scheme, verify=False)
    assert [layer.heads.count for layer in (*cg.model.pre, *cg.model.loop)] == [4, 2]
    A, b, x = family(20, 16, 1.2)
    run = cg.run(A, b, iterations=60)
    reference = program("cg").run(A, b, iterations=1)
    assert np.linalg.norm(run.x[:, 1] - reference.x[:, 1], axis=-1).max() <= first * np.linalg.norm(x, axis=-1).max()
    error = np.median(relative_error(run.x, x), axis=0)
    # The attention's rounding is divided by c |d|: the error stops falling far above that of the compiled form.
    assert 1e-11 < error[-1] < floor
    np.testing.assert_allclose(run.state["r"][:, 0], b, atol=1e-6 * np.abs(b).max())


def test_a_starting_vector_enters_with_its_sign():
    A, b, x = family(8, 4, 1.0)
    run = paper_cg(8, verify=False).run(A, b, x0=0.5 * x, iterations=0)
    np.testing.assert_allclose(run.state["r"][:, 0], 0.5 * b, atol=1e-7 * np.abs(b).max())


def test_the_step_length_has_no_limit_where_cg_converges():
    A = np.diag([1.0, 4.0])
    for size in (1.0, 1e-8, 1e-100):
        steps = []
        for direction in np.eye(2):
            run = program("cg").run(A, size * direction, iterations=1)
            steps.append(np.linalg.norm(run.x[1]) / size)
        np.testing.assert_allclose(steps, [1.0, 0.25])


def test_the_fitted_ffn_is_a_relu_network_that_improves_with_width(tmp_path):
    narrow, wide = (fitted_error(2, width)["median"] for width in (8, 64))
    assert wide < 0.75 * narrow and 1e-3 < wide < 0.3
    cg = paper_cg(2, ffn="fitted", width=64, verify=False)
    assert cg.model.loop[0].ffn.width == 64 + 1 + 4
    A, b, x = family(2, 32, 1.2)
    run = cg.run(A, b, iterations=2)
    assert np.median(relative_error(run.x, x)[:, 2]) < 0.4
    with pytest.raises(FileError, match=r"paper\.paper_form\.load"):
        nf.load(cg.save(tmp_path / "fitted"))
    again = load(tmp_path / "fitted")
    assert np.array_equal(again.run(A, b, iterations=2).x, run.x)


def test_fitting_a_large_n_and_saving_the_ideal_ffn_are_refused(tmp_path):
    with pytest.raises(OptionError, match="ffn='fitted'"):
        paper_cg(20, ffn="fitted")
    with pytest.raises(OptionError, match="ffn='ideal'"):
        paper_cg(3, verify=False).save(tmp_path)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: paper_cg(0), OptionError, "n is 0"),
        (lambda: paper_cg(3, scheme="papers"), UnknownNameError, "'paper'"),
        (lambda: paper_cg(3, ffn="fited"), UnknownNameError, "'fitted'"),
        (lambda: paper_cg(3, ffn="fitted", width=[3]), OptionError, "width is [3]"),
        (lambda: paper_cg(3, dtype=torch.float16), OptionError, "float16"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
