"""Conjugate gradients as weights: accuracy, scale, hard systems, and convergence that stays."""

import json

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer import io
from nlaformer.compiler.library import program
from nlaformer.errors import FileError
from tests.reference import dense_layers, equation_one
from tests.systems import family, relative_error, with_eigenvalues


@pytest.fixture(scope="module")
def cg():
    return nf.algorithm("cg", n=20, verify=False)


@pytest.fixture(scope="module")
def pcg():
    return nf.algorithm("pcg", n=20, verify=False)


@pytest.mark.parametrize("sigma", [1.0, 1.2, 1.4])
def test_cg_solves_the_papers_family_to_near_machine_precision(cg, sigma):
    A, b, x = family(20, 16, sigma)
    run = cg.run(A, b, iterations=60)
    error = relative_error(run.x, x)
    assert np.median(error[:, 30]) <= 1e-12 and error[:, 30].max() <= 1e-9
    assert error[:, 60].max() <= 1e-12
    reference = program("cg").run(A, b, iterations=5)
    assert np.median(np.linalg.norm(run.x[:, 5] - reference.x[:, 5], axis=-1) / np.linalg.norm(x, axis=-1)) <= 1e-9
    assert all(status is nf.RunStatus.CONVERGED for status in run.status)


def test_further_loops_leave_the_answer_in_place(cg):
    A, b, x = family(20, 4, 1.2)
    error = relative_error(cg.run(A, b, iterations=600).x, x)
    assert error[:, 60:].max() <= 1e-12


def test_cg_in_float32_reaches_an_error_of_1e_minus_4():
    A, b, x = (value.astype(np.float32) for value in family(20, 16, 1.2))
    run = nf.algorithm("cg", n=20, dtype=torch.float32, verify=False).run(A, b, iterations=60)
    assert run.x.dtype == np.float32
    assert relative_error(run.x, x)[:, -1].max() <= 1e-4


@pytest.mark.parametrize("n", [1, 2, 4, 9, 33, 64])
def test_cg_solves_systems_of_any_size(n):
    A, b, x = family(n, 3, 1.2)
    run = nf.algorithm("cg", n=n, verify=False).run(A, b, iterations=max(20, 2 * n))
    assert relative_error(run.x, x)[:, -1].max() <= 1e-11


@pytest.mark.parametrize(("of_A", "of_b"), [(1e8, 1.0), (1e-8, 1.0), (1.0, 1e12), (1.0, 1e-12), (1e-150, 1e150)])
@pytest.mark.parametrize("name", ["cg", "pcg"])
def test_the_error_does_not_depend_on_the_magnitude_of_the_data(name, of_A, of_b, request):
    A, b, x = family(20, 4, 1.2)
    run = request.getfixturevalue(name).run(of_A * A, of_b * b, iterations=60)
    assert relative_error(run.x / of_b * of_A, x)[:, -1].max() <= 1e-12


@pytest.mark.parametrize(("of_A", "of_b"), [(1e-290, 1.0), (1e300, 1.0), (1.0, 1e-145), (1.0, 1e150)])
def test_cg_converges_in_the_documented_range_of_magnitudes(cg, of_A, of_b):
    A, b, _ = family(20, 4, 1.2)
    A, b = A / np.linalg.norm(A, axis=(1, 2), keepdims=True), b / np.linalg.norm(b, axis=1, keepdims=True)
    assert (cg.run(of_A * A, of_b * b, iterations=60).status == nf.RunStatus.CONVERGED).all()


def test_a_matrix_whose_norm_is_beyond_the_largest_number_is_solved(cg):
    A, b, x = family(20, 4, 1.2)
    factor = 1.5e308 / np.abs(A).max()
    run = cg.run(factor * A, 1e300 * b, iterations=60)
    assert relative_error(run.x * (factor / 1e300), x)[:, -1].max() <= 1e-12


@pytest.mark.parametrize("condition", [1e4, 1e6])
@pytest.mark.parametrize("spacing", [np.geomspace, np.linspace])
def test_ill_conditioned_systems_end_near_numpys_own_error(cg, condition, spacing):
    A = with_eigenvalues(spacing(1.0, condition, 20))
    b = np.random.default_rng(5).standard_normal(20)
    x = np.linalg.solve(A, b)
    theirs = relative_error(program("cg").run(A, b, iterations=200).x, x)[-1]
    assert relative_error(cg.run(A, b, iterations=300).x, x)[-1] <= 100 * theirs


@pytest.mark.parametrize("name", ["cg", "pcg"])
def test_sudden_convergence_and_a_zero_right_hand_side_end_converged(name, request):
    algorithm = request.getfixturevalue(name)
    b = np.random.default_rng(6).standard_normal(20)
    # Jacobi's preconditioner spoils the two eigenvalues of the last matrix, so pcg converges there as usual.
    for A, after in ((np.eye(20), 1), (37 * np.eye(20), 1), (with_eigenvalues(np.repeat([1.0, 9.0], 10)), 2)):
        run = algorithm.run(A, b, iterations=60)
        after = 30 if name == "pcg" and after == 2 else after
        assert relative_error(run.x, np.linalg.solve(A, b))[after:].max() <= 1e-11
        assert run.status is nf.RunStatus.CONVERGED
    nothing = algorithm.run(np.eye(20), np.zeros(20), iterations=60)
    assert not nothing.x.any() and nothing.status is nf.RunStatus.CONVERGED


@pytest.mark.parametrize("name", ["pcg", "conjugate_residual"])
def test_an_answer_stays_where_a_residual_ends_just_above_its_rounding(name):
    # In a few of these systems a residual falls into the noise by a little only, and a trip takes off a part of it.
    n, count = 6, 400
    rng = np.random.default_rng(2)
    Laplacian = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    A = np.stack([Laplacian, with_eigenvalues(np.repeat([1.0, 5.0], n // 2))]).repeat(count // 2, 0)
    run = nf.algorithm(name, n, verify=False).run(A, *rng.standard_normal((2, count, n)), iterations=14)
    lowest = np.minimum.accumulate(run.residual_norms, axis=1)
    assert (run.residual_norms <= np.where(lowest < 1e-9, 1e-7, np.inf)).all()


@pytest.mark.parametrize("eigenvalues", [np.linspace(-1, 1, 20), np.r_[-3.0, np.ones(19)], -np.linspace(1, 2, 20)])
@pytest.mark.parametrize("name", ["cg", "pcg"])
def test_an_indefinite_matrix_ends_not_positive(name, eigenvalues, request):
    b = np.random.default_rng(6).standard_normal(20)
    run = request.getfixturevalue(name).run(with_eigenvalues(eigenvalues), b, iterations=60)
    assert run.status is nf.RunStatus.NOT_POSITIVE


def test_a_zero_matrix_does_not_converge(cg):
    run = cg.run(np.zeros((20, 20)), np.ones(20))
    assert run.status is not nf.RunStatus.CONVERGED and np.isfinite(run.x).all()


def test_a_run_starts_from_x0(cg):
    A, b, x = family(20, 4, 1.2)
    for x0 in (x * (1 + 1e-6), np.ones_like(x)):
        run = cg.run(A, b, x0=x0, iterations=60)
        assert np.array_equal(run.x[:, 0], x0)
        assert relative_error(run.x, x)[:, -1].max() <= 1e-12


def test_states_and_residual_norms_equal_those_of_the_program(cg):
    A, b, _ = family(20, 2, 1.0)
    run, reference = cg.run(A, b, iterations=3), program("cg").run(A, b, iterations=3)
    for name in ("r", "d", "rho"):
        np.testing.assert_allclose(run.state[name], reference.state[name], rtol=1e-8, atol=1e-9)
    residual = b[:, None] - np.einsum("bij,btj->bti", A, run.x)
    np.testing.assert_allclose(run.residual_norms, np.linalg.norm(residual, axis=-1), rtol=1e-9)


def test_a_batch_has_the_iterates_of_its_systems(cg):
    A, b, _ = family(20, 6, 1.0)
    whole = cg.run(A.reshape(2, 3, 20, 20), b.reshape(2, 3, 20), iterations=4)
    assert whole.x.shape == (2, 3, 5, 20) and whole.status.shape == (2, 3) and whole.residual_norms.shape == (2, 3, 5)
    single = cg.run(A[4], b[4], iterations=4)
    np.testing.assert_allclose(single.x, whole.x[1, 1], rtol=0, atol=1e-8)
    in_torch = cg.run(torch.tensor(A), torch.tensor(b), iterations=4)
    assert isinstance(in_torch.x, torch.Tensor) and isinstance(in_torch.residual_norms, torch.Tensor)
    shared = cg.run(A[0], b, iterations=4)
    assert shared.x.shape == (6, 5, 20)


def test_numpy_evaluation_of_equation_one_reproduces_a_run():
    cg = nf.algorithm("cg", n=6, verify=False)
    A, b, x = family(6, 1, 1.0)
    P = equation_one(cg.prompt(A[0], b[0]), dense_layers(cg.model.pre))
    loop = dense_layers(cg.model.loop)
    run = cg.run(A[0], b[0], iterations=12)
    rows = cg.layout["x"]
    unit = run.x[-1] / cg.layout.read(cg.model(torch.tensor(cg.prompt(A, b)), loops=12), "x")[0, 0].numpy()
    for t in range(13):
        found = P[rows.start, 1:] * unit
        assert np.linalg.norm(found - run.x[t]) <= (1e-9 if t <= 3 or t >= 10 else 1e-4) * np.linalg.norm(x[0])
        P = equation_one(P, loop)


def test_a_loaded_algorithm_runs_bitwise_equal(tmp_path):
    cg = nf.algorithm("cg", n=8)
    A, b, _ = family(8, 3, 1.0)
    again = nf.load(cg.save(tmp_path / "cg"))
    first, second = cg.run(A, b), again.run(A, b)
    assert np.array_equal(first.x, second.x) and np.array_equal(first.state["rho"], second.state["rho"])
    assert again.verification == cg.verification and again.verification["systems"]["random"]["first"] < 1e-10
    assert str(again) == str(cg)


@pytest.mark.parametrize("far", [1e6, 1e10, 1e18])
def test_a_distant_start_does_not_loosen_convergence(far):
    """Converged means |b - A x| <= 1e-10 |b|, wherever the run began; in plain NumPy too."""
    A, b = np.diag([4.0, 3, 2, 1]) + 0.5, np.ones(4)
    for run in (
        nf.algorithm("cg", n=4).run(A, b, np.full(4, far), iterations=40),
        program("cg").run(A, b, np.full(4, far), iterations=40),
    ):
        if run.status is nf.RunStatus.CONVERGED:
            assert np.linalg.norm(b - A @ run.x[-1]) <= 1e-10 * np.linalg.norm(b)


@pytest.mark.parametrize("distance", [0.0, 1e-14, 1e-12, 1e-8])
@pytest.mark.parametrize("name", ["cg", "pcg", "conjugate_residual", "steepest_descent"])
def test_a_start_at_the_solution_stays_there(name, distance):
    """A residual too small for its square to be told from noise ends the run at once; it must not grow again."""
    rng = np.random.default_rng(0)
    M = rng.normal(size=(8, 8))
    A, solution = M @ M.T + 8 * np.eye(8), rng.normal(size=8)
    run = nf.algorithm(name, n=8).run(A, A @ solution, solution * (1 + distance), iterations=100)
    assert run.status is nf.RunStatus.CONVERGED
    assert np.linalg.norm(run.x[-1] - solution) <= 1e-11 * np.linalg.norm(solution)


@pytest.mark.parametrize(
    "forge",
    [
        lambda config: config.pop("units"),
        lambda config: config["units"]["r"].pop(),
        lambda config: config["registers"].pop(7),
        lambda config: config["state"]["d"].update(rows={}),
        lambda config: config["program"].update(answer=0),
        lambda config: config["program"]["nodes"][2].__setitem__(2, "A"),
        lambda config: config["program"]["start"].pop("x"),
        lambda config: config["schedule"].update(loop=[]),
        lambda config: config.update(verification=[[0]]),
        lambda config: config.update(program={"nodes": [], "outputs": {}}),
        lambda config: config.update(inputs=["A", "b", "x0"]),
    ],
)
def test_a_forged_file_whose_digest_fits_is_refused_when_it_is_loaded(tmp_path, forge):
    cg = nf.algorithm("cg", n=3, verify=False)
    config = json.loads(json.dumps(cg.config.data()))
    forge(config)
    io.save(tmp_path, "algorithm", cg.model, config)
    with pytest.raises(FileError):
        nf.load(tmp_path)
