"""The programs of the library as plain NumPy: against SciPy, direct formulas and each other; no transformer here."""

import inspect

import numpy as np
import pytest
import scipy.optimize

import nlaformer as nf
from nlaformer.compiler.library import GROUPS, example, record

NAMED = (
    "cg", "pcg", "conjugate_residual", "minres", "bicgstab", "gmres", "cgls", "lsqr", "lanczos", "richardson",
    "jacobi", "gauss_seidel", "sor", "kaczmarz", "chebyshev", "gradient_descent", "nesterov", "heavy_ball", "adam",
    "bfgs", "ista", "fista", "admm", "projected_gradient", "scalar_newton", "secular_newton", "logistic_regression",
    "newton_schulz", "square_root", "matrix_sign", "polar", "power", "deflated_power", "subspace_iteration",
    "rayleigh_quotient", "kalman", "ridge", "pagerank", "sinkhorn", "mixture",
)  # fmt: skip
# After the iterations of its record, on four problems of size 6; 1e-9 for all others.
SLOW = {
    "minimal_residual": 0.3, "richardson": 0.1, "chebyshev": 2e-2, "steepest_descent": 0.1, "heavy_ball": 2e-2,
    "nesterov": 5e-2, "gradient_descent": 0.1, "cimmino": 1e-3, "barzilai_borwein": 1e-4, "gmres": 1e-3, "power": 1e-2,
    "adam": 0.3, "rmsprop": 0.8, "adagrad": 0.1, "sign_descent": 0.1, "sor": 1e-3, "kaczmarz": 1e-4, "pagerank": 1e-5,
    "inverse_iteration": 1e-5, "subspace_iteration": 1e-5, "value_iteration": 1e-8, "runge_kutta": 1e-2,
    "gauss_seidel": 1e-5, "bicgstab": 1e-6, "heat": 1e-3,
}  # fmt: skip


def by_hand(name, n, count=4, seed=5, iterations=None):
    """The last answers, from the program's own lines on NumPy arrays, one problem at a time."""
    entry = record(name)
    inputs, exact = entry.problems(n, count, seed)
    answers = []
    for i in range(count):
        known = {"x0": np.zeros(n)} | {key: value[i] for key, value in inputs.items()}
        state = {}
        for method in ["start"] + ["step"] * (entry.iterations(n) if iterations is None else iterations):
            state = _call(entry.program(), method, known | state)
        answers.append(_call(entry.program(), "finish", known | state))
    return inputs, exact, np.array(answers)


def _call(program, method, known):
    found = getattr(program, method)
    with np.errstate(all="ignore"):
        return found(**{name: known[name] for name in inspect.signature(found).parameters})


def test_the_library_has_the_programs_one_looks_for():
    assert len(nf.algorithms()) >= 40 and sum(name in nf.algorithms() for name in NAMED) >= 30
    names = [entry.name for records in GROUPS.values() for entry in records]
    assert len(names) == len(set(names)) and all(record(name).purpose for name in names)


@pytest.mark.parametrize("name", [n for n in nf.algorithms() if record(n).problems(3, 1, 0)[1] is not None])
def test_a_program_reaches_the_exact_answer(name):
    _, exact, answers = by_hand(name, 6)
    shape = (len(exact), -1)
    error = np.linalg.norm((answers - exact).reshape(shape), axis=-1) / np.linalg.norm(exact.reshape(shape), axis=-1)
    assert error.max() <= SLOW.get(name, 1e-9)


@pytest.mark.parametrize("name", nf.algorithms())
def test_program_run_computes_what_the_lines_compute(name):
    inputs, _, answers = by_hand(name, 5, iterations=3)
    run = record(name).program().run(**inputs, iterations=3)
    np.testing.assert_allclose(run.x[:, -1], answers, rtol=1e-9, atol=1e-9 * np.abs(answers).max())


@pytest.mark.parametrize("name", ["ista", "fista", "admm"])
def test_the_lasso_ends_where_its_optimality_conditions_hold(name):
    inputs, _, x = by_hand(name, 6, iterations=3000)
    A, b = inputs["A"], inputs["b"]
    force = np.einsum("kij,ki->kj", A, b - np.einsum("kij,kj->ki", A, x))
    level = 0.1 * np.linalg.norm(np.einsum("kij,ki->kj", A, b), axis=-1, keepdims=True)
    assert (np.abs(force) <= level * (1 + 1e-7)).all()
    np.testing.assert_allclose(np.where(x != 0, force - level * np.sign(x), 0.0), 0.0, atol=1e-6)


def test_projected_gradient_finds_the_point_that_scipy_finds():
    inputs, _, x = by_hand("projected_gradient", 5, iterations=2000)
    for i, answer in enumerate(x):
        A, b = inputs["A"][i], inputs["b"][i]
        root = np.linalg.cholesky(A)
        bounds = (inputs["lower"][i], inputs["upper"][i])
        wanted = scipy.optimize.lsq_linear(root.T, np.linalg.solve(root, b), bounds, tol=1e-14).x
        np.testing.assert_allclose(answer, wanted, atol=1e-6)


def test_nonnegative_least_squares_and_the_multiplicative_update_agree_with_scipy():
    for name, iterations, tolerance in (
        ("nonnegative_least_squares", 2000, 1e-8),
        ("multiplicative_update", 20000, 1e-3),
    ):
        inputs, _, x = by_hand(name, 4, count=2, iterations=iterations)
        for i, answer in enumerate(x):
            A, b = inputs["A"][i], inputs["b"][i]
            wanted = scipy.optimize.nnls(A, b)[1]
            assert np.linalg.norm(A @ answer - b) <= wanted + tolerance * np.linalg.norm(b) and (answer >= 0).all()


def test_logistic_and_huber_regression_end_at_a_minimum_of_their_functions():
    def logistic(A, b, x):
        return np.logaddexp(0, A @ x).sum() - b @ (A @ x) + 0.05 * x @ x

    def huber(A, b, x):
        r = np.abs(A @ x - b)
        return np.where(r <= 0.5, r**2 / 2, 0.5 * r - 0.125).sum()

    for name, function in (("logistic_regression", logistic), ("huber_regression", huber)):
        inputs, _, x = by_hand(name, 5, iterations=3000)
        for A, b, answer in zip(inputs["A"], inputs["b"], x, strict=True):
            wanted = scipy.optimize.minimize(lambda v: function(A, b, v), np.zeros(5), tol=1e-12).fun  # noqa: B023
            assert function(A, b, answer) <= wanted + 1e-8


def test_secular_newton_finds_the_root_that_brentq_finds():
    inputs, _, mu = by_hand("secular_newton", 6)
    for b, d, radius, answer in zip(inputs["b"], inputs["d"], inputs["radius"], mu, strict=True):
        wanted = scipy.optimize.brentq(lambda m: np.linalg.norm(b / (d + m)) - radius, 0, 100)  # noqa: B023
        assert answer == pytest.approx(wanted, rel=1e-9)


def test_mirror_descent_and_frank_wolfe_end_at_the_minimum_of_their_sets():
    inputs, _, x = by_hand("mirror_descent", 5, iterations=4000)
    for A, b, answer in zip(inputs["A"], inputs["b"], x, strict=True):
        g = A @ answer - b
        assert (g >= answer @ g - 1e-4).all() and answer.sum() == pytest.approx(1) and (answer >= 0).all()
    inputs, _, x = by_hand("frank_wolfe", 5, iterations=4000)
    for A, b, answer in zip(inputs["A"], inputs["b"], x, strict=True):
        g = A @ answer - b
        assert g @ answer + np.linalg.norm(g) <= 1e-2 and np.linalg.norm(answer) <= 1 + 1e-9


def test_sinkhorns_plan_has_the_sums_and_the_form_asked_for():
    inputs, _, plan = by_hand("sinkhorn", 6)
    np.testing.assert_allclose(plan.sum(2), inputs["b"], rtol=1e-9)
    np.testing.assert_allclose(plan.sum(1), inputs["c"], rtol=1e-9)
    scaling = np.log(plan / inputs["A"])
    np.testing.assert_allclose(np.linalg.svd(scaling - scaling.mean(1, keepdims=True))[1][:, 1:], 0.0, atol=1e-9)


def test_the_mixture_finds_the_two_groups_and_increases_the_likelihood():
    inputs, _, _ = by_hand("mixture", 12)
    b = inputs["b"]
    run = record("mixture").program().run(b=b, iterations=40)
    x = run.x[:, :, None]
    weight = np.concatenate([1 - x, x], 2)  # (problems, times, groups, entries)
    total = weight.sum(-1)
    means = (weight * b[:, None, None]).sum(-1) / total
    distance = (b[:, None, None] - means[..., None]) ** 2
    variance = (weight * distance).sum((2, 3))[..., None, None] / b.shape[-1]
    density = (total / b.shape[-1])[..., None] * np.exp(-distance / (2 * variance)) / np.sqrt(variance)
    likelihood = np.log(density.sum(2)).sum(-1)
    assert (np.diff(likelihood, axis=1) >= -1e-9).all()
    assert ((run.x[:, -1] > 0.5) == (np.arange(12) % 2 == 1)).mean() >= 0.9


def test_eigenvectors_belong_to_the_eigenvalues_named():
    inputs, _, x = by_hand("deflated_power", 6)
    np.testing.assert_allclose(np.einsum("ki,kij,kj->k", x, inputs["A"], x), 0.5, rtol=1e-9)
    inputs, _, x = by_hand("rayleigh_quotient", 6)
    values = np.einsum("ki,kij,kj->k", x, inputs["A"], x)
    assert np.abs(np.linalg.eigvalsh(inputs["A"]) - values[:, None]).min(1).max() <= 1e-6


def test_leapfrog_keeps_the_energy_and_the_mean_field_solves_its_equation():
    inputs, _ = record("leapfrog").problems(6, 4, 5)
    run = record("leapfrog").program().run(**inputs, iterations=200)
    energy = (run.state["v"] ** 2).sum(-1) + np.einsum("kti,kij,ktj->kt", run.x, inputs["A"], run.x)
    assert (np.abs(energy / energy[:, :1] - 1) <= 0.1).all()
    inputs, _, x = by_hand("mean_field", 6, iterations=400)
    np.testing.assert_allclose(np.tanh(np.einsum("kij,kj->ki", inputs["A"], x) + inputs["b"]), x, atol=1e-9)


def test_exact_answers_that_do_not_exist_are_refused():
    with pytest.raises(nf.errors.OptionError):
        example("ista", 4)
