"""The library and programs that are not in it: layers, deviation from the reference, printing."""

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.compiler.library import program
from nlaformer.compiler.library.measuring import measure
from nlaformer.errors import CompileError, DomainError, DTypeError, OptionError, ShapeError, UnknownNameError
from tests.systems import family, relative_error

N = 12


def inputs(name, seed=7):
    A, b, _ = family(N, 4, 1.0, seed)
    if name == "cgnr":
        A = A + 0.1 * np.random.default_rng(seed).standard_normal(A.shape)
    return {"power": (A,), "newton_schulz": (A,), "scalar_newton": (None, b)}.get(name, (A, b))


def deviation(run, reference):
    found, wanted = (x.reshape(len(x), x.shape[1], -1) for x in (run.x, reference.x))
    scale = np.linalg.norm(wanted, axis=-1).max(-1, keepdims=True)
    return np.linalg.norm(found - wanted, axis=-1) / scale


@pytest.mark.parametrize(
    ("name", "layers"),
    {
        "cg": 7,
        "cg_fused": 5,
        "pcg": 7,
        "steepest_descent": 4,
        "richardson": 1,
        "heavy_ball": 1,
        "conjugate_residual": 7,
        "cgnr": 8,
        "chebyshev": 3,
        "power": 5,
        "newton_schulz": 2,
        "scalar_newton": 3,
    }.items(),
)
def test_an_iteration_has_the_documented_number_of_layers(name, layers):
    algorithm = nf.algorithm(name, n=6, verify=False)
    assert algorithm.cost.loop.layers <= layers
    assert algorithm.cost.pre.layers == len(algorithm.model.pre) and algorithm.cost.post.layers == 0


@pytest.mark.parametrize(
    "name", ["steepest_descent", "richardson", "heavy_ball", "chebyshev", "power", "newton_schulz"]
)
def test_stable_methods_follow_their_reference_all_the_way(name):
    run = nf.algorithm(name, n=N, verify=False).run(*inputs(name), iterations=60)
    assert deviation(run, program(name).run(*inputs(name), iterations=60)).max() <= 1e-10


@pytest.mark.parametrize("name", ["cg", "cg_fused", "pcg", "conjugate_residual", "cgnr", "scalar_newton"])
def test_methods_that_amplify_rounding_follow_at_first_and_in_the_end(name):
    run = nf.algorithm(name, n=N, verify=False).run(*inputs(name), iterations=80)
    found = deviation(run, program(name).run(*inputs(name), iterations=80))
    assert found[:, :3].max() <= 1e-10 and found[:, -1].max() <= 1e-10
    assert all(status is nf.RunStatus.CONVERGED for status in run.status)


# Quotients of small differences: in float32 too few of their digits are left, and the compiler may say so.
WILD = {
    "admm", "anderson", "bicg", "bicgstab", "broyden", "deflated_power", "gmres", "inverse_iteration",
    "recursive_least_squares", "subspace_iteration",
}  # fmt: skip


@pytest.mark.parametrize("name", nf.algorithms())
def test_float32_and_hard_systems_stay_finite(name):
    try:
        algorithm = nf.algorithm(name, n=6, dtype=torch.float32)
    except CompileError:
        assert name in WILD
        return
    for found in algorithm.verification["systems"].values():
        assert name in WILD or (np.isfinite(found["largest"]) and found["first"] <= 1e-2)


def test_power_finds_the_dominant_eigenvalue():
    (A,) = inputs("power")
    run = nf.algorithm("power", n=N, verify=False).run(A, iterations=200)
    np.testing.assert_allclose(run.state["eigenvalue"][:, -1], np.linalg.eigvalsh(A)[:, -1], rtol=1e-10)


def test_newton_schulz_inverts_a_nonsymmetric_matrix():
    A = inputs("cgnr")[0]
    run = nf.algorithm("newton_schulz", n=N, verify=False).run(1e6 * A, iterations=40)
    assert run.x.shape == (4, 41, N, N)
    np.testing.assert_allclose(
        run.x[:, -1] * 1e6, np.linalg.inv(A), rtol=0, atol=1e-11 * np.abs(np.linalg.inv(A)).max()
    )


# --- three programs of ten lines that are not in the library ---


class Jacobi(nf.Program):
    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        return dict(x=x + 0.5 * (b - A @ x) / nf.diag(A))


class MinimalResidual(nf.Program):
    """A signed step length: dot(r, A r) may have either sign."""

    def start(self, A, b, x0):
        return dict(x=x0, r=b - A @ x0)

    def step(self, A, x, r):
        q = A @ r
        alpha = nf.dot(r, q) / nf.dot(q, q)
        return dict(x=x + alpha * r, r=r - alpha * q)


class GradientDescentWithMomentumAndShift(nf.Program):
    """Scalars as states, a signed one among them, a finish, elementwise products."""

    def start(self, A, b):
        return dict(x=0.0 * b, count=1.0 / nf.norm(A), drift=nf.dot(b, A @ b))

    def step(self, A, b, x, count, drift):
        g = b - A @ x
        return dict(x=x + count * g, count=count, drift=nf.dot(g, b) - 0.5 * drift)

    def finish(self, A, b, x, drift):
        return x + (b - A @ x) / nf.norm(A) + 0.0 * drift * x


@pytest.mark.parametrize("written", [Jacobi(), MinimalResidual(), GradientDescentWithMomentumAndShift()])
def test_user_programs_compile_and_verify(written):
    compiled = nf.compile(written, n=N)
    assert compiled.verification["systems"]["random"]["first"] <= 1e-10
    A, b, _ = family(N, 4, 1.0)
    if isinstance(written, MinimalResidual):
        A[0] = -A[0]  # for a negative definite matrix every step length is negative
    run, reference = compiled.run(A, b, iterations=40), written.run(A, b, iterations=40)
    assert deviation(run, reference).max() <= 1e-9
    for name, value in reference.state.items():
        largest = np.abs(value).max()
        np.testing.assert_allclose(run.state[name], value, rtol=0, atol=1e-8 * largest)


def test_a_constant_with_a_unit_is_taken_as_it_is():
    class HeavyBall(nf.Program):
        step_size, momentum = 0.02, 0.8

        def start(self, x0):
            return dict(x=x0, previous=x0)

        def step(self, A, b, x, previous):
            return dict(x=x + self.step_size * (b - A @ x) + self.momentum * (x - previous), previous=x)

        def finish(self, x, previous):
            return x

    compiled = nf.compile(HeavyBall(), n=N, bound=200.0)
    assert compiled.config.scaled == ["b"] and compiled.cost.loop.layers == 1
    A, b, x = family(N, 4, 1.0)
    run = compiled.run(A, 1e9 * b, iterations=600)
    assert deviation(run, HeavyBall().run(A, 1e9 * b, iterations=600)).max() <= 1e-12
    assert relative_error(run.x, 1e9 * x)[:, -1].max() <= 1e-3
    with pytest.raises(DomainError, match="bound="):
        compiled.run(100 * A, b)


def test_sizes_may_be_numpy_integers(tmp_path):
    compiled = nf.compile(Jacobi(), n=np.int64(4), order=np.int64(2), bound=np.float64(8.0))
    assert nf.load(compiled.save(tmp_path)).config == compiled.config and compiled.n == 4


class OutOfRange(nf.Program):
    """Powers of e beyond what an exponential head can hold."""

    def start(self, x0):
        return dict(x=x0)

    def step(self, b, x):
        return dict(x=x + 1e-30 * nf.exp(70.0 * b))


def test_weights_whose_first_step_is_wrong_are_refused():
    with pytest.raises(CompileError, match=r"\(random\).*verify=False"):
        nf.compile(OutOfRange(), n=4)
    assert nf.compile(OutOfRange(), n=4, verify=False).run(b=np.ones(4)).status is nf.RunStatus.INACCURATE


@pytest.mark.parametrize("name", ["cg", "pcg", "cg_fused", "conjugate_residual", "cgnr"])
def test_a_breakdown_stays_finite_and_is_named(name):
    n = 20
    index = np.arange(1.0, n + 1)
    hilbert, singular = 1 / (index[:, None] + index - 1), np.ones((n, n))
    algorithm = nf.algorithm(name, n=n, verify=False)
    for A, b in ((hilbert, hilbert.sum(1)), (singular, np.sin(index)), (np.zeros((n, n)), np.ones(n))):
        run = algorithm.run(A, b, iterations=150)
        assert np.isfinite(run.x).all()
        small = run.residual_norms[-1] <= 1e-10 * np.linalg.norm(b)
        assert small or run.status is not nf.RunStatus.CONVERGED


def test_a_diverging_iteration_says_so():
    class TooFar(nf.Program):
        def start(self, A, x0):
            return dict(x=x0, omega=4.0 / nf.norm(A))

        def step(self, A, b, x, omega):
            return dict(x=x + omega * (b - A @ x), omega=omega)

    A, b, _ = family(N, 1, 1.0)
    run = nf.compile(TooFar(), n=N, verify=False).run(A[0], b[0], iterations=60)
    assert run.status is nf.RunStatus.DIVERGED


def test_printing_shows_the_schedule():
    text = str(nf.algorithm("cg", n=6))
    assert "loop block (step): 7 layers" in text and "A d" in text and "verified on identity" in text
    assert text.count("heads  FFN") + text.count("head   FFN") == 15


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nf.algorithm("cgg", n=3), UnknownNameError, "'cg'"),
        (lambda: nf.algorithm("cg", n=0), OptionError, "n is 0"),
        (lambda: nf.algorithm("cg", n=3, order=4), OptionError, "order is 4"),
        (lambda: nf.algorithm("cg", n=3, form="paper"), OptionError, "paper_cg"),
        (lambda: nf.algorithm("cg", n=3, ffn="ideal"), OptionError, "paper_cg"),
        (lambda: nf.algorithm("cg", n=3, verfy=False), UnknownNameError, "'verify'"),
        (lambda: nf.algorithm(3, n=3), UnknownNameError, "named 3"),
        (lambda: nf.algorithm([], n=3), UnknownNameError, "named []"),
        (lambda: nf.operation({}, n=3), UnknownNameError, "named {}"),
        (lambda: nf.recipe([]), UnknownNameError, "named []"),
        (lambda: nf.compile(Jacobi(), n=2.0), OptionError, "n is 2.0"),
        (lambda: nf.compile(Jacobi, n=3), OptionError, "Jacobi()"),
        (lambda: nf.compile(Jacobi(), n=3, bound=-1), OptionError, "bound"),
        (lambda: nf.algorithm("cg", n=3, verify=False).run(np.eye(4), np.ones(4)), ShapeError, "(..., 3, 3)"),
        (lambda: nf.algorithm("cg", n=3, verify=False).run(np.eye(3)), ShapeError, "b"),
        (lambda: nf.algorithm("power", n=3, verify=False).run(np.eye(3), np.ones(3)), ShapeError, "A"),
        (lambda: nf.algorithm("cg", n=3, verify=False).run(np.eye(3), [1, np.nan, 1]), DomainError, "NaN"),
        (lambda: nf.algorithm("cg", n=3, verify=False).run(np.eye(3), np.ones(3), iterations=-1), OptionError, "iter"),
        (
            lambda: nf.algorithm("cg", n=3, verify=False).run(np.eye(3, dtype="f4"), np.ones(3)),
            DTypeError,
            "float32",
        ),
    ],
)
def test_a_wrong_argument_raises_its_own_error(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["bfgs", "admm", "square_root", "inverse_iteration", "kalman"])
def test_sizes_of_matrices_are_found_in_single_precision(name):
    """A rough logarithm of either sign was off by half its argument there, and a step by 1e4."""
    assert measure(name, n=4, systems=16, dtype=torch.float32).worst < 1e-3
