"""The instructions: each operation of the language as weights, sizes of values, layers, weights without the package."""

import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import nlaformer as nf
from tests.reference import equation_one
from tests.systems import StartsAtB

DOCS = Path(__file__).parents[1] / "docs"
N = 5


def matrix(seed, scale=1.0):
    return scale * np.random.default_rng(seed).standard_normal((N, N))


def vector(seed, scale=1.0):
    return scale * np.random.default_rng(seed).standard_normal(N)


def program(function, start=None):
    """A step that replaces x by a function of A, b and x."""

    class Once(nf.Program):
        def start(self, A, b, x0):
            return dict(x=x0 if start is None else start(A, b, x0))

        def step(self, A, b, x):
            return dict(x=function(A, b, x))

    return Once()


@pytest.mark.parametrize("name", ["subspace_iteration", "newton_schulz", "gmres"])
def test_the_column_of_the_sink_stays_zero(name):
    algorithm = nf.algorithm(name, 20, verify=False)
    A, b = (np.random.default_rng(0).standard_normal(shape) for shape in ((20, 20), 20))
    P = torch.as_tensor(algorithm.prompt(**{k: v for k, v in dict(A=A, b=b).items() if k in algorithm.config.kinds}))
    X = P.mT
    for layer in (*algorithm.model.pre, *algorithm.model.loop, *algorithm.model.loop):
        X = layer(X)
        assert torch.equal(X[0], P[:, 0])


@pytest.mark.parametrize("count", [5, 6, 7])
def test_products_leave_the_sink_at_zero(count):
    """What was left there by rounding came back times e^20 wherever an exponential multiplies."""

    def step(A, b, x):
        y = x.copy()
        for i in range(1, count + 1):
            y[i] = A[i, i] * x[i] / 10
        return y

    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((8, 8)), rng.standard_normal(8)
    run = nf.compile(program(step), n=8, verify=False).run(A, b, b, iterations=1)
    np.testing.assert_allclose(run.x[1], step(A, b, run.x[0]), rtol=0, atol=1e-11)


def deviation(function, A, b, x0, start=None, n=N):
    """Of one step from the weights' own state, relative to the result; and the algorithm."""
    algorithm = nf.compile(program(function, start), n=n, verify=False)
    states = algorithm.run(A, b, x0, iterations=1).state["x"]
    wanted = function(A, b, states[0])
    return np.linalg.norm(states[1] - wanted) / np.linalg.norm(wanted), states[1], wanted


VECTORS = {
    "relu": lambda A, b, x: np.maximum(x, 0.0),
    "abs": lambda A, b, x: np.abs(x - b),
    "minimum": lambda A, b, x: np.minimum(x, b),
    "sign": lambda A, b, x: np.sign(x) + b,
    "roll": lambda A, b, x: np.roll(x, 2),
    "product": lambda A, b, x: x * b * x,
    "quotient": lambda A, b, x: x / (1.0 + b * b),
    "signed quotient": lambda A, b, x: x / np.sum(b),
    "signed scalar": lambda A, b, x: np.dot(x, b) * x,
    "sum": lambda A, b, x: np.sum(x) * b,
    "mean": lambda A, b, x: np.mean(A) * b + x,
    "constant vector": lambda A, b, x: x + np.arange(1.0, N + 1),
    "constant matrix": lambda A, b, x: np.arange(1.0, N * N + 1).reshape(N, N) @ x,
    "product of matrices": lambda A, b, x: (A @ A.T) @ x,
    "entrywise product of matrices": lambda A, b, x: (A * A.T) @ x,
    "outer": lambda A, b, x: np.outer(x, b) @ x,
    "triangle": lambda A, b, x: np.tril(A, -1) @ x + np.triu(A) @ b,
    "diagonal": lambda A, b, x: np.diag(x) @ b,
    "diag": lambda A, b, x: np.diag(A @ A) * x,
    "trace": lambda A, b, x: np.trace(A) * x,
    "exponential": lambda A, b, x: np.exp(-np.abs(x)) + np.sqrt(np.abs(b) + 0.1),
    "norm of a difference": lambda A, b, x: (b - A @ x) / np.linalg.norm(b - A @ x),
    "Frobenius": lambda A, b, x: np.linalg.norm(A * A) * x,
}


@pytest.mark.parametrize("scale", [1.0, 100.0, 0.01])
@pytest.mark.parametrize("name", VECTORS)
def test_an_operation_agrees_with_numpy_at_any_scale(name, scale):
    found, _, _ = deviation(VECTORS[name], matrix(1), vector(2, scale), vector(3, 1 / scale))
    assert found <= 1e-10


EXACT = {
    "roll": lambda A, b, x: np.roll(x, -1, axis=0),
    "transpose": lambda A, b, x: x.T,
    "triangle": lambda A, b, x: np.triu(x, 1),
    "diagonal": lambda A, b, x: np.diag(np.diag(x)),
    "relu": lambda A, b, x: np.maximum(x, 0.0),
}


@pytest.mark.parametrize("name", EXACT)
def test_permutations_and_masks_of_a_matrix_are_exact(name):
    _, found, wanted = deviation(
        EXACT[name], matrix(4), vector(5), vector(6), start=lambda A, b, x0: A + np.outer(b, b)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=0)


def test_a_product_with_a_state_matrix_agrees_with_numpy():
    class Powers(nf.Program):
        def start(self, A, x0):
            return dict(x=x0, M=A / np.linalg.norm(A))

        def step(self, A, x, M):
            return dict(x=M @ x + M.T @ x, M=0.5 * M @ M.T)

    run = nf.compile(Powers(), n=N, verify=False).run(matrix(7), x0=vector(8), iterations=4)
    x, M = run.state["x"], run.state["M"]
    for t in range(4):
        np.testing.assert_allclose(x[t + 1], M[t] @ x[t] + M[t].T @ x[t], rtol=0, atol=1e-11 * np.linalg.norm(x[t]))
        np.testing.assert_allclose(M[t + 1], 0.5 * M[t] @ M[t].T, rtol=0, atol=1e-10 * np.linalg.norm(M[t + 1]))


def test_further_inputs_of_every_kind_enter_the_weights():
    class Affine(nf.Program):
        inputs: ClassVar = dict(C="matrix", shift="vector", rate="scalar")

        def start(self, x0):
            return dict(x=x0)

        def step(self, x, C, shift, rate):
            return dict(x=x + rate * (shift - C @ x))

    given = dict(x0=vector(1), C=matrix(2, 300.0), shift=vector(3, 0.01), rate=-0.003)
    run = nf.compile(Affine(), n=N, verify=False).run(**given, iterations=3)
    wanted = Affine().run(**given, iterations=3)
    np.testing.assert_allclose(run.x, wanted.x, rtol=1e-11)


# --- weights that were wrong ---


def test_products_of_inputs_that_may_not_be_scaled_are_right():
    class Chain(nf.Program):
        def start(self, b, x0):
            return dict(x=b * x0)

        def step(self, b, x):
            return dict(x=b * x)

        def finish(self, x):
            return x / np.linalg.norm(x)

    b, x0 = np.array([-0.5, -2, -1.3]), np.array([1.1, -0.05, -0.3])
    run, wanted = nf.compile(Chain(), n=3).run(b=b, x0=x0), Chain().run(b=b, x0=x0)
    np.testing.assert_allclose(run.x, wanted.x, rtol=0, atol=1e-11)
    found = nf.compile(program(lambda A, b, x: x, lambda A, b, x0: x0 * (2 * b)), n=3, verify=False)
    np.testing.assert_allclose(found.run(np.eye(3), 100 * b, 100 * x0).x[0], 2e4 * b * x0, rtol=1e-12)


@pytest.mark.parametrize("size", [1.0, 50.0, 100.0])
def test_an_answer_that_is_a_power_of_e_has_any_size(size):
    class Exponential(StartsAtB):
        def step(self, x):
            return dict(x=x)

        def finish(self, x):
            return np.exp(x)

    b = size * np.array([1.0, -0.5, 0.3])
    np.testing.assert_allclose(nf.compile(Exponential(), n=3).run(b=b, iterations=1).x[-1], np.exp(b), rtol=1e-13)


class Minres(nf.Program):
    """Paige and Saunders', with vectors and rotations that begin at zero."""

    def start(self, A, b, x0):
        r = b - A @ x0
        beta, zero = np.linalg.norm(r), 0 * b
        return dict(x=x0, v=r / beta, v_old=zero, w=zero, w_old=zero, beta=beta, eta=beta, c=1, c_old=1, s=0, s_old=0)

    def step(self, A, x, v, v_old, w, w_old, beta, eta, c, c_old, s, s_old):
        p = A @ v
        alpha = np.dot(v, p)
        q = p - alpha * v - beta * v_old
        beta_next = np.linalg.norm(q)
        delta = c * alpha - c_old * s * beta
        length = np.sqrt(nf.positive(delta * delta + beta_next * beta_next))
        w_next = (v - s_old * beta * w_old - (s * alpha + c_old * c * beta) * w) / length
        c_next, s_next = delta / length, beta_next / length
        x = x + c_next * eta * w_next
        rotation = dict(c=c_next, c_old=c, s=s_next, s_old=s, eta=-s_next * eta)
        return dict(x=x, v=q / beta_next, v_old=v, w=w_next, w_old=w, beta=beta_next, **rotation)


def test_vectors_and_scalars_that_begin_at_zero_are_zero_and_leave_it():
    n = 12
    M = np.random.default_rng(0).standard_normal((n, n))
    A, b = M + M.T, np.random.default_rng(1).standard_normal(n)
    run, wanted = nf.compile(Minres(), n=n, verify=False).run(A, b, iterations=6), Minres().run(A, b, iterations=6)
    for name in ("v_old", "w", "w_old", "s", "s_old"):
        assert np.abs(run.state[name][0]).max() == 0.0
    for name, value in wanted.state.items():
        np.testing.assert_allclose(run.state[name], value, rtol=0, atol=1e-8 * np.abs(value).max())


class Adam(nf.Program):
    def start(self, b, x0):
        return dict(x=x0, m=0 * b, v=0 * b)

    def step(self, A, b, x, m, v):
        g = A @ x - b
        m, v = 0.9 * m + 0.1 * g, nf.positive(0.99 * v + 0.01 * g * g)
        return dict(x=x - 0.01 * m / (np.sqrt(v) + 1e-8), m=m, v=v)


class SoftThreshold(nf.Program):
    """ISTA, its absolute values as roots of squares."""

    def start(self, A, x0):
        return dict(x=x0, L=np.linalg.norm(A))

    def step(self, A, b, x, L):
        y = x - A.T @ (A @ x - b) / (L * L)
        size = np.sqrt(nf.positive(y * y))
        return dict(x=y * np.maximum(size - 0.01, 0.0) / nf.positive(size), L=L)


@pytest.mark.parametrize("written", [Adam(), SoftThreshold()])
def test_elementwise_methods_follow_numpy(written):
    A, b, x0 = matrix(1) @ matrix(1).T + np.eye(N), vector(2), vector(3, 10.0)
    run, wanted = (
        nf.compile(written, n=N, verify=False).run(A, b, x0, iterations=20),
        written.run(A, b, x0, iterations=20),
    )
    np.testing.assert_allclose(run.x, wanted.x, rtol=0, atol=1e-9 * np.abs(wanted.x).max())


# --- layers and export ---


def test_the_dense_weights_evaluate_to_a_run():
    cg = nf.algorithm("cg", n=4, verify=False)
    A, b = np.diag([1.0, 2, 3, 4]) / 5 + 0.05, np.full(4, 0.5)

    def plain(layers):
        heads = [[{k: W.numpy() for k, W in head.items()} for head in layer["heads"]] for layer in layers]
        rest = [{k: W.numpy() for k, W in layer.items() if k != "heads"} for layer in layers]
        return [{"heads": h} | r for h, r in zip(heads, rest, strict=True)]

    weights = cg.dense()
    P = equation_one(cg.prompt(A, b), plain(weights["pre"]))
    for _ in range(6):
        P = equation_one(P, plain(weights["loop"]))
    np.testing.assert_allclose(P[cg.layout["x"].start, 1:], np.linalg.solve(A, b), rtol=1e-9)
    assert not any(isinstance(W, torch.nn.Parameter) for layer in weights["pre"] for W in layer.values())


def test_the_documented_evaluation_without_the_package_solves_a_system(tmp_path, monkeypatch):
    text = (DOCS / "compile.md").read_text(encoding="utf-8")
    made, evaluated = re.findall(r"<!-- export -->\n```python\n(.*?)```", text, flags=re.DOTALL)
    assert "nlaformer" not in evaluated
    monkeypatch.chdir(tmp_path)
    scope, printed = {}, []
    exec(made, scope)
    exec(evaluated, {"print": lambda *values: printed.extend(values)})
    np.testing.assert_allclose(printed[0], np.linalg.solve(scope["A"], scope["b"]), rtol=1e-9)
    assert printed[1] < 1e-9


@pytest.mark.parametrize("size", [10.0, 1.0, 0.1, 1e-2, 1e-4])
def test_a_quotient_of_products_keeps_its_digits_where_a_product_of_quotients_does_not(size):
    """docs/compile.md, Limits: divide last."""
    late, early = (
        nf.compile(program, n=12, verify=False) for program in (_Weighted(_divided_last), _Weighted(_divided_first))
    )
    rng = np.random.default_rng(0)
    given = dict(w=size * rng.uniform(0.7, 1.3, 12), b=rng.standard_normal(12))
    wanted = _Weighted(_divided_last).run(**given, iterations=0).x[0]
    error = np.linalg.norm(late.run(**given, iterations=0).x[0] - wanted) / np.linalg.norm(wanted)
    assert error < 1e-5
    assert (early.run(**given, iterations=0).status is nf.RunStatus.INACCURATE) == (size <= 0.1)


class _Weighted(nf.Program):
    inputs = dict(w="vector")  # noqa: RUF012

    def __init__(self, weights):
        self.weights = weights

    def start(self, b, w):
        return dict(x=self.weights(w) @ b)

    def step(self, x):
        return dict(x=x)


def _divided_last(w):
    return 1 / np.outer(w, w)


def _divided_first(w):
    return np.outer(1 / w, 1 / w)
