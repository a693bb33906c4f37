"""nf.solve for matrices that are not symmetric (GMRES) and not square (least squares), with and without a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch

import nlaformer as nf
from nlaformer.errors import OptionError, ShapeError
from nlaformer.learn.methods import method
from nlaformer.learn.programs import initial

Status = nf.Status


def nonsymmetric(n: int, count: int = 1, seed: int = 0, shift: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, n, n)) + shift * np.sqrt(n) * np.eye(n), rng.standard_normal((count, n))


def rectangular(rows: int, n: int, count: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, rows, n)), rng.standard_normal((count, rows))


def optimality(A: np.ndarray, b: np.ndarray, x: np.ndarray) -> float:
    """|A^T (b - A x)| / |A^T b| in extended precision."""
    A, b, x = (np.asarray(v).astype(np.longdouble) for v in (A, b, x))
    return float(np.linalg.norm(A.T @ (b - A @ x)) / np.linalg.norm(A.T @ b))


# Not symmetric


@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_gmres_takes_the_iterations_of_scipys(shift: float) -> None:
    for seed in range(4):
        A, b = (v[0] for v in nonsymmetric(24, seed=seed, shift=shift))
        norms: list[float] = []
        x, _ = spla.gmres(A, b, rtol=1e-8, restart=24, callback=norms.append, callback_type="pr_norm")
        result = nf.solve(A, b, rtol=1e-8, method="gmres")
        assert result.converged and result.method == "GMRES" and abs(result.iterations - len(norms)) <= 1
        assert np.allclose(result.residuals[1:6] / np.linalg.norm(b), norms[:5], rtol=1e-6)
        assert np.allclose(result.x, x, atol=1e-5)
        assert result.residual_norm <= result.residual_bound <= result.tolerance


def test_gmres_goes_on_where_the_first_steps_gain_nothing() -> None:
    shift = np.roll(np.eye(8), 1, 0)  # no iterate before the last is better than x = 0
    result = nf.solve(shift, np.eye(8)[0], method="gmres")
    assert result.converged and result.iterations == 8 and np.allclose(result.x, np.eye(8)[7])
    turn = nf.solve(np.array([[0.0, 1.0], [-1.0, 0.0]]), np.array([1.0, 2.0]), rtol=1e-12, method="gmres")
    assert turn.converged and np.allclose(turn.x, [-2.0, 1.0])


def test_a_batch_gives_each_matrix_its_own_method() -> None:
    A, b = nonsymmetric(6, count=4)
    A[1] = A[1] @ A[1].T + np.eye(6)
    A[3] = -np.eye(6)
    result = nf.solve(A, b, rtol=1e-9, check="ignore")
    assert [status.name for status in result.status] == ["CONVERGED"] * 3 + ["NOT_SPD"]
    assert "GMRES" in result.method and "conjugate gradients" in result.method
    assert np.allclose(result.x[1], nf.cg(A[1], b[1], rtol=1e-9).x, rtol=1e-12)
    assert nf.solve(A, b, rtol=1e-9, method="gmres").converged


def test_every_kind_of_matrix_and_preconditioner_goes_with_gmres() -> None:
    A, b = (v[0] for v in nonsymmetric(12, shift=3.0))
    A = A * np.logspace(0, 3, 12)[:, None]
    plain = nf.solve(A, b, method="gmres", rtol=1e-8)
    near = np.linalg.inv(A + 1e-3 * np.eye(12))
    for M in (near, sp.csr_array(near), spla.aslinearoperator(near), lambda r: near @ r):
        assert nf.solve(A, b, M=M, rtol=1e-8).iterations < plain.iterations
    columns = A / np.logspace(0, 3, 12)[:, None] * np.logspace(0, 3, 12)
    assert nf.solve(columns, b, M="jacobi").iterations < nf.solve(columns, b, method="gmres").iterations
    for form in (sp.csr_array(A), spla.aslinearoperator(A), torch.from_numpy(A)):
        result = nf.solve(form, torch.from_numpy(b) if isinstance(form, torch.Tensor) else b, method="gmres", rtol=1e-8)
        assert result.converged and np.allclose(np.asarray(result.x), plain.x, atol=1e-6)
    single = nf.solve(A.astype(np.float32), b.astype(np.float32), check="ignore")
    assert single.x.dtype == np.float32 and single.status in (Status.CONVERGED, Status.PRECISION)


def test_singular_systems_end_in_a_status_of_their_own() -> None:
    A = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    turn = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert nf.solve(turn, np.array([2.0, 1.0, 0.0])).converged  # in the range of A
    for b in (np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.0, 1.0])):
        result = nf.solve(A, b, check="ignore")
        assert result.status is Status.STAGNATED and result.info > 0
    assert nf.solve(np.zeros((3, 3)), np.ones(3), method="gmres", check="ignore").status is Status.STAGNATED
    affine = spla.LinearOperator((2, 2), matvec=lambda v: v + 1, dtype=float)
    assert nf.solve(affine, np.zeros(2), method="gmres", check="ignore").status is Status.NOT_LINEAR


def test_the_callback_sees_every_iterate_of_gmres_and_the_limit_is_kept() -> None:
    A, b = (v[0] for v in nonsymmetric(20, shift=0.0))
    seen: list[np.ndarray] = []
    result = nf.solve(A, b, rtol=1e-8, callback=seen.append, method="gmres")
    assert len(seen) == result.iterations and np.array_equal(seen[-1], result.x)
    for x, norm in zip(seen, result.residuals[1:], strict=True):
        assert np.linalg.norm(b - A @ x) == pytest.approx(norm, rel=1e-4, abs=1e-12)
    assert nf.solve(A, b, maxiter=3, method="gmres", check="ignore").status is Status.MAXITER
    start = nf.solve(A, b, x0=result.x, rtol=1e-7)
    assert start.iterations == 0 and start.converged


def test_gmres_starts_again_when_it_keeps_no_more_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    from nlaformer.solvers import minimal_residuals

    A, b = (v[0] for v in nonsymmetric(30, shift=2.0))
    full = nf.solve(A, b, rtol=1e-9, method="gmres")
    monkeypatch.setattr(minimal_residuals, "_LONGEST", 6)
    short = nf.solve(A, b, rtol=1e-9, method="gmres")
    assert short.converged and short.iterations > full.iterations and np.allclose(short.x, full.x, atol=1e-6)


# Models


class Speaker:
    """Proposes the solution with an error, or nonsense, as a program with a network does."""

    def __init__(self, n: int, error: float) -> None:
        self.config, self.error = SimpleNamespace(n=n), error
        self.generator = torch.Generator().manual_seed(0)

    def begin(self, A: torch.Tensor) -> torch.Tensor:
        return A

    def propose(self, A: torch.Tensor, memory: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = torch.linalg.solve(A, r)
        noise = torch.randn(r.shape, generator=self.generator, dtype=r.dtype)
        return c + self.error * c.norm(dim=-1, keepdim=True) * noise / r.shape[-1] ** 0.5, memory


@pytest.mark.parametrize(("error", "fewer"), [(0.1, True), (100.0, False), (np.nan, False)])
def test_a_network_helps_gmres_if_it_is_good_and_never_costs_the_answer(error: float, fewer: bool) -> None:
    A, b = nonsymmetric(20, count=16)
    result, own = nf.solve(A, b, model=Speaker(20, error), rtol=1e-10), nf.solve(A, b, rtol=1e-10)
    errors = np.linalg.norm(b - (A @ result.x[..., None])[..., 0], axis=-1) / np.linalg.norm(b, axis=-1)
    assert result.converged and np.all(errors <= 1e-10)
    assert (result.matvecs.mean() < 0.6 * own.matvecs.mean()) == fewer
    assert result.matvecs.mean() <= 1.25 * own.matvecs.mean()


def test_functions_are_models_of_gmres_and_of_least_squares() -> None:
    A, b = nonsymmetric(15, count=3)
    near = nf.solve(A, b, model=lambda A, b: np.linalg.solve(A, b[..., None])[..., 0] * 1.001, rtol=1e-10)
    assert near.converged and near.iterations.max() <= 4 and "GMRES" in near.method
    A, b = rectangular(20, 6, count=3)

    def shown(A: np.ndarray, b: np.ndarray) -> np.ndarray:
        assert A.shape[-2:] == (20, 6) and b.shape[-1] == 20
        return (np.linalg.pinv(A) @ b[..., None])[..., 0] * 1.001

    result = nf.solve(A, b, model=shown, rtol=1e-10)
    assert result.converged and result.iterations.max() <= 4 and np.all(result.model.accepted > 0)
    assert nf.solve(A, b, model=lambda A, b: b * np.nan, rtol=1e-10).converged


@pytest.mark.parametrize("model", [nf.operation("matmul", n=2), nf.Program, nf.NLAFormer([], []), lambda A: A])
def test_a_model_of_another_kind_is_refused(model: Any) -> None:
    with pytest.raises(OptionError, match="model is"):
        nf.solve(np.eye(2), np.ones(2), model=model)


def test_a_program_for_least_squares_is_a_model_of_them() -> None:
    A, b = rectangular(7, 4, count=3)
    model = initial(nf.recipe("quickstart", n=8), method("guided-cgls"))
    result = nf.solve(A, b, model=model, rtol=1e-9)
    assert result.converged and np.all(result.model.accepted > 0)
    assert all(optimality(A[k], b[k], result.x[k]) <= 1e-9 for k in range(3))
    large = nf.solve(*rectangular(9, 4), model=model, rtol=1e-9)
    assert large.converged and large.model.applications == 0 and "9 rows" in large.model.reasons[0]
    for name in ("guided-nonlinear", "guided-eigen"):
        with pytest.raises(OptionError, match="another problem"):
            nf.solve(np.eye(8), np.ones(8), model=initial(nf.recipe("quickstart", n=8), method(name)))
    gcr = initial(nf.recipe("quickstart", n=8), method("guided-gcr"))
    A, b = nonsymmetric(8, count=3)
    assert nf.solve(A, b, model=gcr, rtol=1e-9).converged


def test_a_model_of_square_systems_is_refused_for_least_squares() -> None:
    A, b = (v[0] for v in rectangular(5, 3))
    for model in (Speaker(3, 0.1), "cg-accelerated"):
        with pytest.raises(OptionError, match="least squares"):
            nf.solve(A, b, model=model)
    with pytest.raises(OptionError, match="switch"):
        nf.solve(A, b, switch=False)


# Least squares


@pytest.mark.parametrize("rows", [3, 6, 20])
def test_least_squares_have_numpys_answer_of_the_smallest_norm(rows: int) -> None:
    A, b = rectangular(rows, 6, count=5)
    result = nf.solve(A, b, rtol=1e-11, method="cgls")
    assert result.converged and result.method == "CGLS" and result.x.shape == (5, 6)
    for k in range(5):
        assert np.allclose(result.x[k], np.linalg.lstsq(A[k], b[k], rcond=None)[0], atol=1e-7)
        assert optimality(A[k], b[k], result.x[k]) <= 1e-11
        assert result.tolerance[k] == pytest.approx(1e-11 * np.linalg.norm(A[k].T @ b[k]))


def test_least_squares_take_every_kind_of_matrix_columns_and_x0() -> None:
    A, b = (v[0] for v in rectangular(9, 4))
    x = np.linalg.lstsq(A, b, rcond=None)[0]
    for form in (sp.csr_array(A), spla.aslinearoperator(A), torch.from_numpy(A), A.astype(np.float32)):
        own = torch.from_numpy(b) if isinstance(form, torch.Tensor) else b
        assert np.allclose(np.asarray(nf.solve(form, own, rtol=1e-9).x), x, atol=1e-5)
    columns = nf.solve(A, np.stack([b, 2 * b], -1), rtol=1e-9)
    assert columns.x.shape == (4, 2) and np.allclose(columns.x[:, 1], 2 * x) and columns.status.shape == (2,)
    assert nf.solve(A, b, x0=x + 1.0, rtol=1e-9).residuals[0] > nf.solve(A, b, x0=x + 1e-3, rtol=1e-9).residuals[0]
    seen: list[np.ndarray] = []
    scaled = A * np.logspace(0, 3, 4)
    plain, jacobi = (
        nf.solve(scaled, b, rtol=1e-9, method="cgls", **more) for more in ({"callback": seen.append}, {"M": "jacobi"})
    )
    assert jacobi.converged and jacobi.iterations <= plain.iterations == len(seen)
    with pytest.raises(ShapeError, match="x0"):
        nf.solve(A, b, x0=np.zeros(9))
    for classical in ("cg", "gmres"):
        with pytest.raises(ShapeError, match="square"):
            nf.solve(A, b, method=classical)


@pytest.mark.parametrize("exponents", [(0, 0), (150, -150), (-150, 3), (140, 140), (-140, -140)])
def test_scaled_least_squares_give_the_scaled_answer(exponents: tuple[int, int]) -> None:
    A, b = (v[0] for v in rectangular(7, 3))
    i, j = exponents
    plain, scaled = nf.solve(A, b, rtol=1e-9), nf.solve(A * 10.0**i, b * 10.0**j, rtol=1e-9)
    assert scaled.converged and scaled.iterations == plain.iterations
    assert np.allclose(scaled.x / 10.0 ** (j - i), plain.x, rtol=1e-7)


def test_least_squares_end_in_statuses_of_their_own() -> None:
    A, b = (v[0] for v in rectangular(8, 4))
    A[:, 3] = A[:, :3].sum(1)  # not of full rank
    assert nf.solve(A, b, rtol=1e-9).converged
    assert nf.solve(A, b, rtol=0.0, check="ignore").status is Status.STAGNATED
    assert nf.solve(A, b, maxiter=1, check="ignore", rtol=1e-9).status is Status.MAXITER
    assert nf.solve(A * np.nan, b, check="ignore").status is Status.NONFINITE
    assert nf.solve(np.zeros((3, 2)), np.ones(3)).x.tolist() == [0.0, 0.0]
    assert nf.solve(A, np.zeros(8)).x.tolist() == [0.0] * 4
    wrong = spla.LinearOperator((8, 4), matvec=lambda v: A @ v, rmatvec=lambda v: A[::-1].T @ v, dtype=float)
    assert nf.solve(wrong, b, check="ignore").status is Status.NOT_LINEAR
    with pytest.raises(OptionError, match="rmatvec"):
        nf.solve(spla.LinearOperator((8, 4), matvec=lambda v: A @ v, dtype=float), b)


@pytest.mark.parametrize("share", [0.0, [1.0, 1.0, 1.0, 0.0]])
def test_an_rmatvec_that_hides_the_gradient_is_not_called_converged(share: object) -> None:
    A, b = (v[0] for v in rectangular(8, 4))
    liar = spla.LinearOperator((8, 4), matvec=lambda v: A @ v, rmatvec=lambda v: A.T @ v * share, dtype=float)
    for x0 in (None, np.ones(4)):
        assert nf.solve(liar, b, x0=x0, check="ignore").status is Status.NOT_LINEAR


@pytest.mark.parametrize("method", ["cgls", "lsmr"])
@pytest.mark.parametrize("lanes", [(), (3,)])
def test_no_answer_holds_where_the_goal_of_least_squares_is_no_number(lanes: tuple[int, ...], method: str) -> None:
    A = rectangular(8, 4)[0][0]
    calls = []

    def breaks(y: np.ndarray) -> np.ndarray:
        calls.append(1)
        return A.T @ y if len(calls) > 4 else np.full(4, np.nan)  # whatever comes after the goal

    operator = spla.LinearOperator(A.shape, matvec=lambda v: A @ v, rmatvec=breaks, dtype=np.float64)
    for x0 in (None, np.ones((4, *lanes))):
        calls.clear()
        result = nf.solve(operator, np.ones((8, *lanes)), method=method, x0=x0, check="ignore")
        assert not result.converged and not np.any(np.asarray(result.tolerance) > 1e300)


def test_an_answer_that_holds_is_not_put_back_to_the_start() -> None:
    # The iterate before rounding does not hold, and is worse than the start; the one that is returned does.
    A, b = np.array([[1e300, 1e-300], [1e-300, 1.0]]), np.array([-1.4185e-320, 1.249484759995838e-308])
    result = nf.solve(A, b, check="ignore")
    assert result.converged and result.residual_bound <= result.tolerance


def test_entries_that_stand_twice_are_summed_as_numbers() -> None:
    twice = sp.coo_array((np.array([100, 100, 1], dtype=np.int8), ([0, 0, 1], [0, 0, 1])))
    assert np.allclose(nf.solve(twice, np.array([200.0, 1.0])).x, 1.0)


def test_the_bound_of_least_squares_is_never_below_their_residual() -> None:
    rng = np.random.default_rng(0)
    for cond in (1.0, 1e3, 1e6):
        U, _ = np.linalg.qr(rng.standard_normal((12, 5)))
        A = U * np.geomspace(1, 1 / cond, 5) @ np.linalg.qr(rng.standard_normal((5, 5)))[0]
        b = rng.standard_normal(12)
        result = nf.solve(A, b, rtol=1e-8, check="ignore")
        exact = optimality(A, b, result.x) * np.linalg.norm(A.T @ b)
        assert exact <= result.residual_bound and (result.residual_bound <= result.tolerance or not result.converged)


@pytest.mark.parametrize("scale", [1e-200, 1e160, 1e300])
@pytest.mark.parametrize("rows", [4, 7])
def test_operators_of_any_scale_are_solved(rows: int, scale: float) -> None:
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((rows, 4)), rng.standard_normal(rows)
    wanted = np.linalg.lstsq(A, b, rcond=None)[0]
    operator = spla.LinearOperator(
        A.shape, matvec=lambda v: A @ v * scale, rmatvec=lambda v: A.T @ v * scale, dtype=float
    )
    result = nf.solve(operator, b, rtol=1e-9, method="auto" if rows > 4 else "gmres")
    assert result.converged and np.allclose(result.x * scale, wanted, rtol=1e-7)


@pytest.mark.parametrize("method", ["cg", "gmres"])
def test_an_operator_that_is_not_linear_is_said_to_be_so_where_the_iteration_ends(method: str) -> None:
    affine = spla.LinearOperator((4, 4), matvec=lambda v: np.arange(1.0, 5.0) * np.ravel(v) + 1, dtype=float)
    result = nf.solve(affine, np.arange(4.0), method=method, check="ignore")
    assert result.status is Status.NOT_LINEAR


def test_an_answer_is_no_worse_than_the_start_where_running_residuals_stray() -> None:
    Q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 3)))
    b = np.random.default_rng(1).standard_normal(6)
    b -= Q @ (Q.T @ b)  # A^T b is nothing but rounding
    result = nf.solve(spla.aslinearoperator(Q), b, check="ignore")
    assert not result.converged and np.linalg.norm(Q.T @ (b - Q @ result.x)) < 1e-15


@pytest.mark.parametrize("size", [1.0, 1e-8, 1e8])
@pytest.mark.parametrize("shape", [(6, 3), (40, 20), (300, 2)])
def test_zero_solves_least_squares_with_b_orthogonal_to_all_columns(shape: tuple[int, int], size: float) -> None:
    A, b = (v[0] for v in rectangular(*shape))
    Q, _ = np.linalg.qr(A)
    for _ in range(2):
        b -= Q @ (Q.T @ b)
    for form in (A, sp.csr_array(A), torch.from_numpy(A)):
        for x0 in (None, np.ones(shape[1])):
            result = nf.solve(form, torch.from_numpy(size * b) if form is not A else size * b, x0=x0)
            assert result.converged and not np.asarray(result.x).any()
            assert np.linalg.norm(A.T @ (size * b)) <= result.residual_bound <= result.tolerance
    assert result.tolerance < 1e-11 * size * np.linalg.norm(A) * np.linalg.norm(b)
    assert nf.solve(np.eye(4, 2), np.array([0.0, 0.0, 1.0, 1.0])).converged


@pytest.mark.parametrize("share", [1e-12, 1e-9])
def test_a_small_part_of_b_in_the_columns_is_no_rounding_error(share: float) -> None:
    A, b = (v[0] for v in rectangular(6, 3))
    Q, _ = np.linalg.qr(A)
    b = b - Q @ (Q.T @ b) + share * A[:, 0]
    result = nf.solve(A, b, check="ignore")
    assert result.x[0] == pytest.approx(share, rel=1e-2)  # and not 0
    graded = np.array([[1e17, 1.0], [1e17, -1.0]])  # rounding in the first column hides no second one
    assert nf.solve(graded, np.array([1.0, -1.0]), method="cgls", check="ignore").x[1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("A", "b"),
    [
        (np.diag([1e300, 1e-30]), [0.0, 1.0]),  # scaled, the second column is 0
        (np.array([[1.0], [0.0]]), [1e-20, 1e305]),  # scaled, b has nothing in common with the column
        (np.array([[1e-180], [1.0], [0.0]]), [1e-160, 0.0, 1.0]),  # A^T b underflows, though no entry does
    ],
)
def test_zero_is_no_least_squares_answer_where_numbers_are_lost_by_underflow(A: np.ndarray, b: list[float]) -> None:
    for form in (A, sp.csr_array(A)):
        assert not nf.solve(form, np.array(b), method="cgls", check="ignore").converged
    beside = nf.solve(np.stack([A, np.eye(*A.shape)]), np.array(b), method="cgls", check="ignore")
    assert beside.status[0] is not Status.CONVERGED


@pytest.mark.parametrize("size", [1e20, 1e120, 1e300, 1e308])
@pytest.mark.parametrize("rows", [2, 3])
def test_an_x0_out_of_all_bounds_costs_a_product_and_no_answer(size: float, rows: int) -> None:
    A, b = np.array([[4.0, 1.0], [1.0, 3.0], [1.0, 1.0]])[:rows], np.ones(rows)
    for matrix in (A, A * [[1.0], [-1.0], [1.0]][:rows]):
        far, near = nf.solve(matrix, b, x0=np.full(2, size), rtol=1e-12), nf.solve(matrix, b, rtol=1e-12)
        assert far.converged and np.array_equal(far.x, near.x)


def test_least_squares_name_their_residual_and_a_padded_matrix_how_to_get_there() -> None:
    A, b, x = (value[0].numpy() for value in nf.problems.LeastSquares(n=8, columns=3).sample(1, seed=0))
    padded = nf.solve(A, b, rtol=1e-9, check="ignore")  # square, so a system for GMRES
    assert padded.status is Status.STAGNATED and "cgls" in padded.detail
    for result in (nf.solve(A, b, method="cgls", rtol=1e-9), nf.solve(A[:, :3], b, rtol=1e-9)):
        assert result.converged and np.allclose(result.x[:3], x[:3]) and result.least_squares
        assert "A^T" in str(result) and "A^T" in result._repr_html_()
    square = nf.solve(np.eye(3), np.ones(3))
    assert not square.least_squares and "A^T" not in str(square)
