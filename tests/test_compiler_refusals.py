"""What is refused says what to write instead, and that compiles and computes what NumPy does."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import scipy.special

import nlaformer as nf
from nlaformer.compiler.functions import FUNCTIONS
from nlaformer.compiler.library import record
from nlaformer.compiler.refusals import OTHERWISE, PROGRAMS, REMEDIES
from nlaformer.errors import CompileError, DomainError
from tests.systems import StartsAtB

N = 6


def program_of(expression):
    class Once(StartsAtB):
        def step(self, x):
            return dict(x=x)

        def finish(self, A, b, x):
            return expression(A, b, x)

    return Once()


def shifted(x):
    w = np.exp(x - np.max(x))
    return w / np.sum(w)


def halved(x):
    while x @ x > 1:
        x = x / 2
    return x


def halved_four_times(x):
    for _ in range(4):
        x = x + (x / 2 - x) * np.maximum(np.sign(x @ x - 1), 0)
    return x


def with_entry(w, x):
    w[0] = x[1]
    return w


def with_sum(w, x):
    w += x
    return w


def small_sine(v):
    return v - v**3 / 6 + v**5 / 120


def arctan(v):
    for _ in range(4):
        v = v / (1 + np.sqrt(1 + v * v))
    return 16 * (v - v**3 / 3 + v**5 / 5 - v**7 / 7 + v**9 / 9)


def in_order(v):
    v, n = v.copy(), len(v)
    for k in range(n):
        for i in range(k % 2, n - 1, 2):
            v[i], v[i + 1] = np.minimum(v[i], v[i + 1]), np.maximum(v[i], v[i + 1])
    return v


def at_largest(v):
    return np.maximum(np.sign(v - np.max(v) + 1e-9 * np.max(np.abs(v))), 0)


def forward(L, b):
    x = np.zeros_like(b)
    for i in range(len(b)):
        x[i] = (b[i] - L[i, :i] @ x[:i]) / L[i, i]
    return x


def backward(U, b):
    x = np.zeros_like(b)
    for i in reversed(range(len(b))):
        x[i] = (b[i] - U[i, i + 1 :] @ x[i + 1 :]) / U[i, i]
    return x


def convolved(v, w):
    m = len(w)
    return sum(w[k] * np.concatenate([np.zeros(k), v, np.zeros(m - 1 - k)]) for k in range(m))


# What a user writes, a part of the advice, and the line that follows it.
FOLLOWED = {
    "softmax": (lambda A, b, x: scipy.special.softmax(x), "np.exp(v - np.max(v))", lambda A, b, x: shifted(x)),
    "logsumexp": (
        lambda A, b, x: x + scipy.special.logsumexp(x),
        "np.max(v) + np.log(np.sum(w))",
        lambda A, b, x: x + np.max(x) + np.log(np.sum(np.exp(x - np.max(x)))),
    ),
    "where": (
        lambda A, b, x: np.where(x > b / 2, x, A @ x),
        "np.sign(u - v)",
        lambda A, b, x: A @ x + (x - A @ x) * np.maximum(np.sign(x - b / 2), 0),
    ),
    "if": (
        lambda A, b, x: x if x[0] > 0 else -x,
        "np.sign(u - v)",
        lambda A, b, x: -x + 2 * x * np.maximum(np.sign(x[0]), 0),
    ),
    "if two may be equal": (
        lambda A, b, x: x if b @ x > x @ x else -x,
        "np.sign(u - v - 1e-9)",
        lambda A, b, x: -x + 2 * x * np.maximum(np.sign(b @ x - x @ x - 1e-9), 0),
    ),
    "while": (
        lambda A, b, x: halved(x),
        "a for with a fixed number of passes",
        lambda A, b, x: halved_four_times(x),
    ),
    "a mask by data": (lambda A, b, x: x * (x > 0), "np.maximum", lambda A, b, x: np.maximum(x, 0)),
    "a new axis": (lambda A, b, x: x[:, None] * A, "(A.T * v).T", lambda A, b, x: (A.T * x).T),
    "keepdims": (
        lambda A, b, x: A - A.mean(axis=1, keepdims=True),
        "(A.T - v).T",
        lambda A, b, x: (A.T - A.mean(axis=1)).T,
    ),
    "keepdims in a quotient": (
        lambda A, b, x: A / np.sum(A, axis=1, keepdims=True),
        "/",
        lambda A, b, x: (A.T / np.sum(A, axis=1)).T,
    ),
    "arctan": (lambda A, b, x: np.arctan(3 * x), "v**9 / 9", lambda A, b, x: arctan(3 * x)),
    "sin": (lambda A, b, x: np.sin(x / 400), "v**5 / 120", lambda A, b, x: small_sine(x / 400)),
    "sort": (lambda A, b, x: np.sort(x), "np.minimum(v[i], v[i + 1])", lambda A, b, x: in_order(x)),
    "sorted": (lambda A, b, x: np.array(sorted(x)), "np.minimum(v[i], v[i + 1])", lambda A, b, x: in_order(x)),
    "median": (
        lambda A, b, x: np.median(x) * x,
        "v[n // 2 - 1]",
        lambda A, b, x: (in_order(x)[N // 2] + in_order(x)[N // 2 - 1]) / 2 * x,
    ),
    "argmax": (lambda A, b, x: A[np.argmax(x)], "e @ A", lambda A, b, x: at_largest(x) @ A),
    "argmax of negative entries": (
        lambda A, b, x: x[np.argmax(-np.abs(x))] * x,
        "e @ w",
        lambda A, b, x: at_largest(-np.abs(x)) @ x * x,
    ),
    "argmin": (lambda A, b, x: A[np.argmin(x)], "take -v", lambda A, b, x: at_largest(-x) @ A),
    "a lower triangle": (
        lambda A, b, x: scipy.linalg.solve_triangular(A, x, lower=True),
        "L[i, :i] @ x[:i]",
        lambda A, b, x: forward(A, x),
    ),
    "an upper triangle": (
        lambda A, b, x: scipy.linalg.solve_triangular(A, x),
        "U[i, i + 1 :] @ x[i + 1 :]",
        lambda A, b, x: backward(A, x),
    ),
    "convolve": (
        lambda A, b, x: np.convolve(x, [1.0, 2.0, 3.0], "same"),
        "np.concatenate([np.zeros(k), v, np.zeros(m - 1 - k)])",
        lambda A, b, x: convolved(x, [1.0, 2.0, 3.0])[1:-1],
    ),
    "convolve two": (
        lambda A, b, x: np.convolve(x, A[0])[3 : 3 + N],
        "w[k] *",
        lambda A, b, x: convolved(x, A[0])[3 : 3 + N],
    ),
    "a norm of another order": (
        lambda A, b, x: np.linalg.norm(x, 3) * x,
        "np.sum(np.abs(v) ** p) ** (1 / p)",
        lambda A, b, x: np.sum(np.abs(x) ** 3) ** (1 / 3) * x,
    ),
    "isnan": (lambda A, b, x: np.isnan(x) + x, "omit", lambda A, b, x: x),
    "einsum": (lambda A, b, x: np.einsum("ij,j->i", A, x), "@", lambda A, b, x: A @ x),
    "prod": (
        lambda A, b, x: np.prod(np.abs(x)) * x,
        "np.exp(np.sum(np.log(v)))",
        lambda A, b, x: np.exp(np.sum(np.log(np.abs(x)))) * x,
    ),
    "average": (
        lambda A, b, x: np.average(x, weights=np.arange(1.0, N + 1)) * b,
        "np.sum(w * v)",
        lambda A, b, x: np.sum(np.arange(1.0, N + 1) * x) / np.sum(np.arange(1.0, N + 1)) * b,
    ),
    "a cube": (lambda A, b, x: math.pow(x[0], 3) * x, "**", lambda A, b, x: x[0] ** 3 * x),
    "a distance": (
        lambda A, b, x: math.dist(x, 2 * b) * x,
        "np.linalg.norm(u - v)",
        lambda A, b, x: np.linalg.norm(x - 2 * b) * x,
    ),
    "fsum": (lambda A, b, x: math.fsum(x) * x, "np.sum(v)", lambda A, b, x: np.sum(x) * x),
    "tanh": (lambda A, b, x: math.tanh(x[1]) * x, "np.tanh", lambda A, b, x: np.tanh(x[1]) * x),
    "the larger": (lambda A, b, x: max(x[0], 0.5) * x, "np.maximum(u, v)", lambda A, b, x: np.maximum(x[0], 0.5) * x),
    "the largest": (lambda A, b, x: max(x) * x, "np.max(v)", lambda A, b, x: np.max(x) * x),
    "the smallest": (lambda A, b, x: min(x) * x, "np.min(v)", lambda A, b, x: np.min(x) * x),
    "cumprod": (
        lambda A, b, x: np.cumprod(np.abs(x)),
        "np.exp(np.cumsum(np.log(v)))",
        lambda A, b, x: np.exp(np.cumsum(np.log(np.abs(x)))),
    ),
    "cumsum of a matrix": (
        lambda A, b, x: np.cumsum(A, axis=0),
        "np.tril(np.ones_like(A)) @ A",
        lambda A, b, x: np.tril(np.ones_like(A)) @ A,
    ),
    "a NumPy number": (lambda A, b, x: np.float64(x @ x) * x, "Omit np.float64", lambda A, b, x: x @ x * x),
    "float": (lambda A, b, x: float(x @ x) * x, "Omit float", lambda A, b, x: x @ x * x),
    "math.sqrt": (lambda A, b, x: math.sqrt(x @ x) * x, "np.sqrt", lambda A, b, x: np.sqrt(x @ x) * x),
    "heaviside": (
        lambda A, b, x: np.heaviside(x - x[0], 0.25),
        "np.maximum(np.sign(v), 0) + h * (1 - np.abs(np.sign(v)))",
        lambda A, b, x: np.maximum(np.sign(x - x[0]), 0) + 0.25 * (1 - np.abs(np.sign(x - x[0]))),
    ),
    "a root": (
        lambda A, b, x: np.sqrt(A @ A[0]),
        "np.sqrt(np.maximum(v, 0))",
        lambda A, b, x: np.sqrt(np.maximum(A @ A[0], 0)),
    ),
    "copysign": (lambda A, b, x: np.copysign(b, x), "np.sign(v)", lambda A, b, x: np.abs(b) * np.sign(x)),
    "cbrt": (lambda A, b, x: np.cbrt(x), "(1 / 3)", lambda A, b, x: np.sign(x) * np.abs(x) ** (1 / 3)),
    "ptp": (lambda A, b, x: np.ptp(x) * x, "np.min(v)", lambda A, b, x: (np.max(x) - np.min(x)) * x),
    "differences": (
        lambda A, b, x: np.subtract.outer(x, b),
        "np.outer",
        lambda A, b, x: np.outer(x, np.ones_like(b)) - np.outer(np.ones_like(x), b),
    ),
    "an entry among numbers": (
        lambda A, b, x: with_entry(np.arange(1.0, N + 1), x),
        "np.array(w)",
        lambda A, b, x: with_entry(np.array(np.arange(1.0, N + 1)), x),
    ),
    "numbers changed in place": (
        lambda A, b, x: with_sum(np.arange(1.0, N + 1), x),
        "np.array(w)",
        lambda A, b, x: with_sum(np.array(np.arange(1.0, N + 1)), x),
    ),
    "wrong shapes": (lambda A, b, x: (x @ b) @ x, "write *", lambda A, b, x: x @ b * x),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_advice_that_is_followed_compiles_and_computes_the_same(name):
    refused, advice, followed = FOLLOWED[name]
    with pytest.raises(CompileError, match="1 problem") as caught:
        nf.compile(program_of(refused), n=N)
    assert advice in str(caught.value)
    rng = np.random.default_rng(1)
    A, b = np.abs(rng.standard_normal((N, N))), rng.standard_normal(N)
    found = nf.compile(program_of(followed), n=N, verify=False).run(A, b, iterations=0).x[0]
    wanted = refused(A, b, b) if name != "wrong shapes" else followed(A, b, b)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        (lambda A, b, x: np.linalg.solve(A, b), "cgnr"),
        (lambda A, b, x: np.linalg.inv(A) @ b, "newton_schulz"),
        (lambda A, b, x: np.linalg.qr(A)[0] @ b, "gram_schmidt"),
        (lambda A, b, x: np.linalg.eigh(A)[0], "subspace_iteration"),
        (lambda A, b, x: scipy.linalg.expm(A) @ x, "matrix_exponential"),
        (lambda A, b, x: scipy.linalg.cholesky(A) @ x, "scipy.linalg.cholesky"),
        (lambda A, b, x: scipy.linalg.solve_triangular(A, x), "scipy.linalg.solve_triangular"),
        (lambda A, b, x: np.linalg.norm(A, 2) * x, "singular_vectors"),
        (lambda A, b, x: np.arcsin(x), OTHERWISE),
        (lambda A, b, x: int(x[0]) * x, "known only when the weights run"),
        (lambda A, b, x: math.sin(x[0]) * x, "math.sin"),
        (lambda A, b, x: x[int(x[0])] * x, "int(...)"),
        (lambda A, b, x: x[x[0]] * x, "np.roll"),
        (lambda A, b, x: sum(x[0] for _ in range(x[0])) * x, "range(...)"),
        (lambda A, b, x: np.arange(9.0)[x[0]] * x, "needed here"),
        (lambda A, b, x: A @ np.ones(3), "(3,)"),
        (lambda A, b, x: np.reshape(A, N * N).__setitem__(0, 1.0) or A @ x, ".copy()"),
        (lambda A, b, x: A[:, 0].ravel().__setitem__(0, 1.0) or A @ x, ".copy()"),
        (lambda A, b, x: x[1:].fill(0.5) or x, "p[:] = v"),
        (lambda A, b, x: np.sum(A, axis=2) * x, "a matrix has the axes 0 and 1"),
        (lambda A, b, x: np.var(x, where=np.arange(N) > 1) * x, "np.var(v, axis, ddof, correction)"),
        (lambda A, b, x: np.log(b - 2 * A @ x), "the logarithm, or a power that is not whole, of a value whose sign"),
        (lambda A, b, x: np.sqrt((b - x)[0]) * x, "the root of a value whose sign is not known; write np.sqrt("),
    ],
)
def test_what_has_no_counterpart_is_refused_once_on_the_line_of_the_user(expression, advice):
    with pytest.raises(CompileError, match="1 problem") as caught:
        nf.compile(program_of(expression), n=N)
    assert advice in str(caught.value) and f"{__name__.rpartition('.')[2]}.py" in str(caught.value)


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


def test_a_bound_near_the_norms_of_the_matrices_keeps_the_digits():
    class Difference(StartsAtB):
        def step(self, A, b, x):
            s, t = np.sum(np.abs(A @ A @ A @ x)), np.sum(np.abs(A @ A @ A @ b))
            return dict(x=x * (s - t + 1e-3) / (1 + s))

    with pytest.raises(CompileError, match="bound="):
        nf.compile(Difference(), n=N, bound=2.0**20)
    nf.compile(Difference(), n=N, bound=64.0)


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
    inner = {name.rpartition(".")[2]: name for name in FUNCTIONS}
    of_numpy = {name for name in inner if hasattr(np, name) or hasattr(np.linalg, name)}
    operators = {"add", "subtract", "multiply", "divide", "true_divide", "negative", "positive", "power", "float_power"}
    aliases = {"absolute", "fabs", "fmax", "fmin", "pow", "vecdot", "matvec", "vecmat", "transpose", "matrix_transpose"}
    aliases |= {"vector_norm", "matrix_norm"}
    methods = {"diagonal", "astype", "ravel", "conj", "conjugate", "reduce"}
    assert not of_numpy - listed - operators - aliases - methods
    assert not {name for name in listed if isinstance(getattr(np, name, None), np.ufunc)} - inner.keys()
    assert not refused & inner.keys()


def test_no_advice_is_given_against_what_can_be_compiled():
    assert not REMEDIES.keys() & FUNCTIONS.keys()
    assert OTHERWISE not in REMEDIES.values()


def test_a_function_that_keeps_more_digits_than_its_weights_is_named_with_what_they_compute():
    def step(function):
        class Shrinks(StartsAtB):
            def step(self, x):
                return dict(x=function(x * x))

        return Shrinks()

    with pytest.raises(CompileError) as caught:
        nf.compile(step(np.log1p), n=N)
    assert "np.log(1 + v)" in str(caught.value)
    nf.compile(step(lambda v: np.log(1 + v)), n=N)
