"""What a program is given beside A, b and x0: further inputs by name, and rectangular data."""

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.errors import CompileError
from tests.systems import mixed_signs

N = 5


class BoxConstrained(nf.Program):
    """Projected gradients for min |C x - b| within bounds, with a weight on |x|."""

    rectangular = True
    inputs = dict(C="matrix", lower="vector", mu="scalar")  # noqa: RUF012

    def start(self, C, b):
        return dict(x=C.T @ b)

    def step(self, C, b, x, lower, mu):
        return dict(x=np.maximum(x - 0.01 * (C.T @ (C @ x - b) + mu * x), lower))

    def residual(self, C, b, x, mu):
        return C.T @ (C @ x - b) + mu * x


def box_constrained(C, b, lower, mu, iterations):
    x = [C.T @ b]
    for _ in range(iterations):
        x.append(np.maximum(x[-1] - 0.01 * (C.T @ (C @ x[-1] - b) + mu * x[-1]), lower))
    return np.array(x)


def test_further_inputs_are_taken_by_name():
    C, b = mixed_signs(N)
    lower, mu = -0.1 * np.ones(N), 0.3
    run = BoxConstrained().run(b=b, C=C, lower=lower, mu=mu, iterations=4)
    wanted = box_constrained(C, b, lower, mu, 4)
    np.testing.assert_allclose(run.x, wanted, rtol=1e-12)
    residual = C.T @ (C @ wanted[4] - b) + mu * wanted[4]
    np.testing.assert_allclose(run.residual_norms[4], np.linalg.norm(residual), rtol=1e-12)
    batch = BoxConstrained().run(b=np.stack([b, 2 * b]), C=C, lower=lower, mu=np.array([0.3, 0.5]), iterations=4)
    np.testing.assert_allclose(batch.x[0], wanted, rtol=1e-12)
    np.testing.assert_allclose(batch.x[1], box_constrained(C, 2 * b, lower, 0.5, 4), rtol=1e-12)
    single = BoxConstrained().run(b=b.astype("f4"), C=C.astype("f4"), lower=lower.astype("f4"), mu=0.3, iterations=4)
    assert single.x.dtype == np.float32  # a Python number has no precision of its own


@pytest.mark.parametrize("shape", [(N, 3), (3, N)])
@pytest.mark.parametrize("library", [np.asarray, torch.tensor, np.ndarray.tolist])
def test_rectangular_data_is_padded_with_zeros(shape, library):
    rng = np.random.default_rng(3)
    C, b, lower = rng.standard_normal(shape), rng.standard_normal(shape[0]), -0.1 * np.ones(shape[1])
    given = {name: library(value) for name, value in dict(C=C, b=b, lower=lower).items()}
    run = BoxConstrained().run(**given, mu=0.3, iterations=4)
    wanted = box_constrained(C, b, lower, 0.3, 4)
    np.testing.assert_allclose(run.x[:, : shape[1]], wanted, rtol=1e-12)
    assert run.x.shape == (5, N) and not np.asarray(run.x)[:, shape[1] :].any()


def test_inputs_that_do_not_fit_are_refused_by_name():
    C, b = mixed_signs(N)
    lower = np.zeros(N)
    with pytest.raises(nf.errors.ShapeError, match="mu"):
        BoxConstrained().run(b=b, C=C, lower=lower)
    with pytest.raises(nf.errors.ShapeError, match="upper"):
        BoxConstrained().run(b=b, C=C, lower=lower, mu=1.0, upper=lower)
    with pytest.raises(nf.errors.ShapeError, match="lower"):
        BoxConstrained().run(b=b, C=C, lower=np.zeros(N - 1), mu=1.0)  # C is square: nothing is padded
    with pytest.raises(nf.errors.ShapeError, match="b has shape"):
        BoxConstrained().run(b=b[:2], C=C[:, :3], lower=lower[:3], mu=1.0)


@pytest.mark.parametrize(
    "declared", [["C"], dict(C="tensor"), dict(A="matrix"), dict(iterations="scalar"), {3: "matrix"}]
)
def test_a_wrong_declaration_of_inputs_is_a_compile_error(declared):
    with pytest.raises(CompileError, match="input"):
        nf.compile(type("Wrong", (BoxConstrained,), {"inputs": declared})(), n=3)


def test_further_inputs_reach_the_weights():
    C, b = mixed_signs(N)
    lower, mu = -0.1 * np.ones(N), 0.3
    algorithm = nf.compile(BoxConstrained(), n=N)
    run = algorithm.run(b=b, C=C, lower=lower, mu=mu, iterations=6)
    np.testing.assert_allclose(run.x, box_constrained(C, b, lower, mu, 6), rtol=0, atol=1e-12)
    run = algorithm.run(b=b[:3], C=C[:3], lower=lower, mu=mu, iterations=6)
    np.testing.assert_allclose(run.x, box_constrained(C[:3], b[:3], lower, mu, 6), rtol=0, atol=1e-12)


def test_a_program_with_scalars_alone_is_refused_for_want_of_a_size():
    class Scalars(nf.Program):
        inputs = dict(mu="scalar")  # noqa: RUF012

        def start(self, mu):
            return dict(x=mu)

        def step(self, x):
            return dict(x=0.5 * x)

    with pytest.raises(CompileError, match="size"):
        Scalars().run(mu=2.0)


def test_an_input_that_no_line_uses_does_no_harm():
    class Unused(nf.Program):
        def start(self, A, b, x0):
            return dict(x=b)

        def step(self, A, b, x):
            return dict(x=0.5 * x)

    A, b = mixed_signs(N)
    found = nf.compile(Unused(), n=N).run(A, b, iterations=3)
    np.testing.assert_allclose(found.x, Unused().run(A, b, x0=b, iterations=3).x, rtol=1e-12)
