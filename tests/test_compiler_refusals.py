"""What is refused says what to write instead, and that compiles and computes what NumPy does."""

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import scipy.special

import nlaformer as nf
from nlaformer.compiler.library import record
from nlaformer.errors import CompileError, DomainError
from nlaformer.program import functions, primitives
from nlaformer.program.refusals import OTHERWISE, PROGRAMS, REMEDIES
from tests.refused import FOLLOWED, NO_COUNTERPART, TAKEN, N, at_largest, program_of
from tests.systems import StartsAtB


@pytest.mark.parametrize("name", FOLLOWED)
def test_advice_that_is_followed_compiles_and_computes_the_same(name):
    refused, advice, followed = FOLLOWED[name]
    with pytest.raises(CompileError, match="cannot be compiled") as caught:
        nf.compile(program_of(refused), n=N)
    assert advice in str(caught.value)
    rng = np.random.default_rng(1)
    A, b = np.abs(rng.standard_normal((N, N))), rng.standard_normal(N)
    found = nf.compile(program_of(followed), n=N, verify=False).run(A, b, iterations=0).x[0]
    wanted = refused(A, b, b) if name != "wrong shapes" else followed(A, b, b)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", TAKEN)
def test_what_program_traces_compiles_as_it_stands(name):
    written, _, other = TAKEN[name]
    rng = np.random.default_rng(1)
    A, b = np.abs(rng.standard_normal((N, N))), rng.standard_normal(N)
    for expression in (written, other):
        found = nf.compile(program_of(expression), n=N, verify=False).run(A, b, iterations=0).x[0]
        np.testing.assert_allclose(found, np.asarray(written(A, b, b)), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("expression", "advice"), [pair for pair in NO_COUNTERPART if pair[1] is not None])
def test_what_has_no_counterpart_is_refused_once_on_the_line_of_the_user(expression, advice):
    with pytest.raises(CompileError, match="cannot be compiled") as caught:
        nf.compile(program_of(expression), n=N)
    assert advice in str(caught.value) and "refused.py" in str(caught.value)


# What NumPy computes that a program of the library does, up to signs.
COMPUTED = {
    "solve": lambda A, b: np.linalg.solve(A, b),
    "lstsq": lambda A, b: np.linalg.lstsq(A, b)[0],
    "inv": lambda A: np.linalg.inv(A),
    "pinv": lambda A: np.linalg.pinv(A),
    "qr": lambda A: np.linalg.qr(A)[0],
    "cholesky": lambda A: np.linalg.cholesky(A),
    "lu": lambda A: scipy.linalg.lu(A)[2],
    "lu_factor": lambda A: np.triu(scipy.linalg.lu_factor(A)[0]),
    "eig": lambda A: np.linalg.eigh(A)[1][:, -1],
    "eigh": lambda A, b: np.linalg.eigh(A)[1][:, -1],
    "svd": lambda A, b: np.linalg.svd(A)[2][0],
    "expm": lambda A: scipy.linalg.expm(A),
    "sqrtm": lambda A: scipy.linalg.sqrtm(A),
    "signm": lambda A: scipy.linalg.signm(A),
    "polar": lambda A: scipy.linalg.polar(A)[0],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_the_program_that_is_named_computes_what_the_function_does(name):
    entry = record(PROGRAMS[name][0])
    given = {key: value[0] for key, value in entry.problems(N, 1, 0)[0].items()}
    found = nf.algorithm(entry.name, N, verify=False).run(**given, iterations=entry.iterations(N)).x[-1]
    np.testing.assert_allclose(np.abs(found), np.abs(COMPUTED[name](**given)), rtol=1e-8, atol=1e-9)


def test_every_program_that_is_named_is_in_the_library():
    assert {name for name, _ in PROGRAMS.values()} <= set(nf.algorithms())
    assert {name for name, _ in PROGRAMS.values()} == {PROGRAMS[name][0] for name in COMPUTED}


def test_the_largest_singular_value_is_a_state_of_the_program_that_is_named():
    A, b = np.random.default_rng(0).standard_normal((2, N, N))
    found = nf.algorithm("singular_vectors", N, verify=False).run(A, b[0], iterations=300)
    np.testing.assert_allclose(found.state["value"][-1], np.linalg.norm(A, 2), rtol=1e-9)


class PartialPivoting(nf.Program):
    """P A = L U; a loop is a column. Rows are not moved: ``free`` has 1 for those that were no pivot yet."""

    def start(self, A):
        n = len(A)
        return dict(U=A, P=np.zeros((n, n)), e=np.eye(n)[0], free=np.ones(n))

    def step(self, U, P, e, free):
        pivot = at_largest(np.abs(U @ e) * free)
        row = pivot @ U
        factor = (U @ e) / (row @ e) * (free - pivot)
        return dict(U=U - np.outer(factor, row), P=P + np.outer(e, pivot), e=np.roll(e, 1), free=free - pivot)

    def finish(self, P, U):
        return P @ U


class Backtracking(nf.Program):
    """Steepest descent; a step is halved up to six times, until it lowers x . A x / 2 - b . x enough."""

    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        r, rate = b - A @ x, 1.0
        for _ in range(6):
            change = rate * rate * (r @ A @ r) / 2 - rate * (r @ r)
            rate = rate - rate / 2 * np.maximum(np.sign(change + rate / 2 * (r @ r)), 0)
        return dict(x=x + rate * r)


def test_partial_pivoting_compiles_with_a_sign_as_a_switch():
    A = np.random.default_rng(1).standard_normal((N, N))
    A[0, 0] = 1e-14  # without exchanges nothing would be left
    compiled = nf.compile(PartialPivoting(), n=N, verify=False)
    run, (P, _, U) = compiled.run(A, iterations=N), scipy.linalg.lu(A)
    assert run.status is nf.RunStatus.FINISHED
    np.testing.assert_allclose(run.x[-1], U, atol=1e-9)
    np.testing.assert_allclose(run.state["P"][-1], P.T, atol=1e-9)


def test_backtracking_compiles_with_a_sign_as_a_switch():
    M = np.random.default_rng(0).standard_normal((N, N))
    A, b = M @ M.T + 4 * np.eye(N), M[0]
    run = nf.compile(Backtracking(), n=N).run(A, b, iterations=200)
    assert run.status is nf.RunStatus.CONVERGED
    np.testing.assert_allclose(run.x, Backtracking().run(A, b, iterations=200).x, atol=1e-9)


def test_two_one_hot_states_go_through_all_pairs():
    class Pairs(nf.Program):
        def start(self, A):
            unit = np.eye(len(A))[0]
            return dict(X=np.zeros_like(A), e=unit, f=unit)

        def step(self, A, X, e, f):
            X = X + np.outer(e, f) * (e @ A @ f)
            return dict(X=X, e=np.roll(e, 1), f=f + (np.roll(f, 1) - f) * e[-1])

        def finish(self, X):
            return X

    A = np.random.default_rng(0).standard_normal((N, N))
    found = nf.compile(Pairs(), n=N).run(A, iterations=N * N).x
    np.testing.assert_allclose(found[-1], A, atol=1e-9)
    assert np.abs(found[-2] - A).max() > 1e-3


def test_a_program_without_a_finite_value_compiles_once_the_operation_is_kept_finite():
    def starts(least):
        class Logarithm(nf.Program):
            def start(self, A):
                return dict(X=np.log(np.abs(np.triu(A)) + least))

            def step(self, X):
                return dict(X=X / 2)

            def finish(self, X):
                return X

        return Logarithm()

    with pytest.raises(CompileError, match="log") as caught:
        nf.compile(starts(0.0), n=N)
    assert "division" not in str(caught.value)
    A = np.random.default_rng(0).standard_normal((N, N))
    found = nf.compile(starts(1e-3), n=N).run(A, iterations=0).x[0]
    np.testing.assert_allclose(found, np.log(np.abs(np.triu(A)) + 1e-3), rtol=1e-9)


def test_a_bound_far_above_the_norms_of_the_matrices_costs_no_digits():
    class Difference(StartsAtB):
        def step(self, A, b, x):
            s, t = np.sum(np.abs(A @ A @ A @ x)), np.sum(np.abs(A @ A @ A @ b))
            return dict(x=x * (s - t + 1e-3) / (1 + s))

    far, near = (nf.compile(Difference(), n=N, bound=bound).verification["systems"] for bound in (2.0**20, 64.0))
    assert far["random"]["bars"] < 1 and near["random"]["bars"] < 1


def test_beyond_the_largest_bound_constants_can_be_made_relative():
    def descends(rate):
        class Descent(nf.Program):
            def start(self, x0):
                return dict(x=x0)

            def step(self, A, b, x):
                return dict(x=x + rate(A) * (b - A @ x))

        return Descent()

    A, b = 2e7 * np.eye(N), np.ones(N)
    with pytest.raises(DomainError) as caught:
        nf.compile(descends(lambda A: 0.1), n=N).run(A, b)
    (largest,) = re.findall(r"at most (\d+)", str(caught.value))
    compiled = nf.compile(descends(lambda A: 0.1), n=N, bound=float(largest), verify=False)
    with pytest.raises(DomainError):
        compiled.run(A, b)
    run = nf.compile(descends(lambda A: 0.1 / nf.norm(A)), n=N).run(A, b, iterations=700)
    assert run.status is nf.RunStatus.CONVERGED
    np.testing.assert_allclose(run.x[-1], np.linalg.solve(A, b), rtol=1e-9)


def test_a_method_that_ends_after_n_steps_is_run_for_n():
    A = record("cholesky").problems(N, 1, 0)[0]["A"][0]
    run = nf.algorithm("cholesky", N, verify=False).run(A, iterations=N)
    assert run.status is nf.RunStatus.CONVERGED
    np.testing.assert_allclose(run.x[-1], np.linalg.cholesky(A), atol=1e-9)


def rows_of_the_table():
    text = (Path(__file__).parents[1] / "docs" / "compile.md").read_text(encoding="utf-8")
    lines = text[text.index("| in NumPy |") :].partition("\n\n")[0].splitlines()[2:]
    return {
        cells[1].strip(): set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", cells[2]))))
        for cells in (line.split("|") for line in lines)
    }


def test_the_table_of_the_language_lists_what_is_taken_and_nothing_else():
    rows = rows_of_the_table()
    refused = rows.pop("not taken")
    listed = set().union(*rows.values())
    inner = {name.rpartition(".")[2]: name for name in (*primitives.BY_NAME, *functions.FUNCTIONS)}
    of_numpy = {name for name in inner if hasattr(np, name) or hasattr(np.linalg, name)}
    operators = {"add", "subtract", "multiply", "divide", "true_divide", "negative", "positive", "power", "float_power"}
    aliases = {"absolute", "fabs", "fmax", "fmin", "pow", "vecdot", "matvec", "vecmat", "transpose", "matrix_transpose"}
    aliases |= {"vector_norm", "matrix_norm", "bitwise_and", "bitwise_or", "bitwise_xor", "invert"}
    aliases |= {"allclose", "iscomplexobj", "isrealobj", "real"}  # torch's allclose is refused as a decision
    methods = {"diagonal", "astype", "ravel", "conj", "conjugate", "reduce"}
    assert not of_numpy - listed - operators - aliases - methods
    assert not {name for name in listed if isinstance(getattr(np, name, None), np.ufunc)} - inner.keys()
    assert not refused & inner.keys()


def test_no_advice_is_given_against_what_can_be_compiled():
    assert not REMEDIES.keys() & functions.FUNCTIONS.keys()
    assert OTHERWISE not in REMEDIES.values()


def test_a_function_that_keeps_more_digits_than_its_weights_is_named_with_what_they_compute():
    def step(function):
        class Shrinks(nf.Program):
            def start(self, b):
                return dict(x=1e-9 * b * b)

            def step(self, x):
                return dict(x=function(nf.positive(x)))

        return Shrinks()

    with pytest.raises(CompileError) as caught:
        nf.compile(step(np.log1p), n=N)
    assert "np.log(1 + v)" in str(caught.value)
    nf.compile(step(lambda v: np.log(1 + v)), n=N)  # of which the program itself determines less
