"""NumPy as the language: what a program computes is what the same lines compute on NumPy's arrays."""

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.errors import CompileError
from tests.expressions import (
    ARITHMETIC,
    CHANGED,
    COUPLING,
    FILLED,
    FUNCTIONS_OF_NUMPY,
    IN_TORCH,
    UFUNCS,
    WEIGHTS,
    N,
    program_of,
)
from tests.systems import StartsAtB, mixed_signs


def assert_as_numpy(expression, start=lambda b: 0.5 * b + 0.25):
    A, b = mixed_signs(N)
    found = program_of(expression).run(A, b, iterations=0).x[0]
    wanted = np.asarray(expression(A.copy(), b.copy(), start(b)))
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", [*UFUNCS, *FUNCTIONS_OF_NUMPY, *ARITHMETIC])
def test_a_traced_expression_computes_what_numpy_does(name):
    assert_as_numpy((UFUNCS | FUNCTIONS_OF_NUMPY | ARITHMETIC)[name])


@pytest.mark.parametrize("name", [*UFUNCS, *FUNCTIONS_OF_NUMPY, *ARITHMETIC])
def test_the_weights_of_an_expression_compute_what_numpy_does(name):
    expression = (UFUNCS | FUNCTIONS_OF_NUMPY | ARITHMETIC)[name]
    A, b = mixed_signs(N)
    run = nf.compile(program_of(expression), n=N, verify=False).run(A, b, iterations=0)
    wanted = np.asarray(expression(A, b, 0.5 * b + 0.25))
    assert run.status in (nf.RunStatus.FINISHED, nf.RunStatus.RUNNING)
    assert np.abs(run.x[0] - wanted).max() <= 1e-9 * np.abs(wanted).max()


@pytest.mark.parametrize("name", IN_TORCH)
def test_a_traced_expression_computes_what_torch_does(name):
    A, b = map(torch.tensor, mixed_signs(N))
    found = program_of(IN_TORCH[name]).run(A, b, iterations=0).x[0]
    torch.testing.assert_close(found, IN_TORCH[name](A, b, 0.5 * b + 0.25), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("lines", CHANGED)
def test_arrays_changed_in_place_behave_as_in_numpy(lines):
    assert_as_numpy(lines)


@pytest.mark.parametrize("lines", FILLED)
def test_arrays_that_a_method_makes_and_fills_are_those_of_numpy(lines):
    before = {name: getattr(np, name) for name in ("zeros", "eye", "array")}
    assert_as_numpy(lines)
    assert before == {name: getattr(np, name) for name in before}


@pytest.mark.parametrize("lines", FILLED)
def test_the_weights_of_filled_arrays_compute_what_numpy_does(lines):
    A, b = mixed_signs(N)
    run = nf.compile(program_of(lines), n=N, verify=False).run(A, b, iterations=0)
    wanted = lines(A.copy(), b.copy(), 0.5 * b + 0.25)
    assert np.abs(run.x[0] - wanted).max() <= 1e-9 * np.abs(wanted).max()


def test_what_a_method_changes_in_place_is_not_changed_for_the_next():
    class Changes(nf.Program):
        def start(self, A, b):
            b = b + 1.0
            A = 2.0 * A
            return dict(x=b, y=A @ b)

        def step(self, A, b, x, y):
            x += A @ b
            return dict(x=x, y=x)

        def finish(self, b, x, y):
            x -= b
            y += 1.0
            return x * y

    A, b = mixed_signs(N)
    x = b + 1
    y = 2 * A @ x
    run = Changes().run(A, b, iterations=1)
    np.testing.assert_allclose(run.state["y"][0], y, rtol=1e-12)
    np.testing.assert_allclose(run.state["y"][1], x + A @ b, rtol=1e-12)
    np.testing.assert_allclose(run.x[1], (x + A @ b - b) * (x + A @ b + 1), rtol=1e-12)


def test_an_exception_that_follows_from_a_refused_value_is_not_reported():
    class Unpacks(StartsAtB):
        def step(self, A, x):
            first, second = np.linalg.eigh(A)  # raises ValueError: there is nothing to unpack
            return dict(x=first + second @ x)

    with pytest.raises(CompileError, match="cannot be compiled") as caught:
        nf.compile(Unpacks(), n=2)
    assert "first, second = np" in str(caught.value) and "ValueError: not" not in str(caught.value)


def test_a_loop_of_thousands_of_operations_is_traced_and_refused_in_words():
    class Deep(StartsAtB):
        def step(self, b, x):
            for _ in range(2000):
                x = 0.999 * x + 0.001 * b
            return dict(x=x)

    np.testing.assert_allclose(Deep().run(b=np.ones(2), iterations=1).x[1], 1.0, rtol=1e-12)
    with pytest.raises(CompileError, match="iterations"):
        nf.compile(Deep(), n=2)


def test_constants_of_another_size_are_refused_by_their_shape():
    class Weighted(nf.Program):
        weights = np.arange(1.0, 4.0)

        def start(self, b):
            return dict(x=self.weights * b)

        def step(self, x):
            return dict(x=x)

    b = np.ones(3)
    assert np.array_equal(Weighted().run(b=b, iterations=0).x[0], [1.0, 2.0, 3.0])
    with pytest.raises(CompileError, match=r"\(3,\)"):
        Weighted().run(b=np.ones(4))
    with pytest.raises(CompileError, match=r"\(3,\)"):
        nf.compile(Weighted(), n=4)


class Everything(nf.Program):
    """Operations that have constants, on the way through a file."""

    def start(self, A, b):
        return dict(x=WEIGHTS * b, X=np.tril(A, -1) + COUPLING)

    def step(self, A, x, X):
        return dict(x=np.roll(X @ x, 2) / np.linalg.norm(A), X=0.5 * X)

    def finish(self, x):
        return x[1] * np.maximum(x, 0.0)


def test_a_program_with_constant_arrays_is_saved_and_loaded_with_its_checks(tmp_path):
    A, b = mixed_signs(N)
    algorithm = nf.compile(Everything(), n=N)
    run, again = (found.run(A, b, iterations=3) for found in (algorithm, nf.load(algorithm.save(tmp_path / "saved"))))
    assert np.array_equal(run.x, again.x) and run.status is again.status
    np.testing.assert_allclose(run.x, Everything().run(A, b, iterations=3).x, atol=1e-11)


class Largest(StartsAtB):
    """One where an entry is the largest."""

    def step(self, x):
        return dict(x=np.sign(np.abs(x) - np.max(np.abs(x))) + 1.0)


def test_the_largest_entry_is_an_entry():
    for b in np.random.default_rng(0).normal(size=(50, 6)):
        wanted = (np.abs(b) == np.abs(b).max()).astype(float)
        np.testing.assert_array_equal(Largest().run(b=b, iterations=1).x[-1], wanted)


@pytest.mark.parametrize("constant", [np.zeros_like, np.ones_like, lambda v: v**0, lambda v: 0.5 + np.zeros_like(v[0])])
def test_an_answer_may_be_a_constant(constant):
    class Constant(StartsAtB):
        def step(self, x):
            return dict(x=x)

        def finish(self, x):
            return constant(x)

    b = np.arange(1.0, N + 1)
    found = Constant().run(b=np.stack([b, b]), iterations=2).x
    np.testing.assert_array_equal(found, np.broadcast_to(constant(b), found.shape))
    assert found.shape == (2, 3, *np.shape(constant(b)))
