"""LSMR: SciPy's iterates, alone and in batches, for every kind of matrix, and the choice of it for least squares."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch

import nlaformer as nf
from nlaformer.errors import OptionError


def system(rows: int, n: int, seed: int = 0, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, rows, n)), rng.standard_normal((count, rows))


@pytest.mark.parametrize("shape", [(40, 25), (25, 40), (30, 30)])
def test_lsmr_takes_the_iterates_of_scipys(shape: tuple[int, int]) -> None:
    A, b = (v[0] for v in system(*shape))
    seen: list[np.ndarray] = []
    result = nf.solve(A, b, method="lsmr", rtol=1e-9, callback=seen.append)
    assert result.converged and len(seen) == result.iterations
    for k in (1, 2, 5, 12):
        theirs = spla.lsmr(A, b, atol=0, btol=0, conlim=0, maxiter=k)
        assert np.allclose(seen[k - 1], theirs[0], rtol=1e-6, atol=1e-9)
        assert result.residuals[k] == pytest.approx(theirs[4], rel=1e-6)
        assert result.residuals[k] == pytest.approx(np.linalg.norm(A.T @ (b - A @ seen[k - 1])), rel=1e-6)
    assert np.all(np.diff(result.residuals) <= 0)


def test_every_kind_of_matrix_goes_with_lsmr() -> None:
    A, b = (v[0] for v in system(50, 30))
    x = np.linalg.lstsq(A, b)[0]
    for form in (A, sp.csr_array(A), spla.aslinearoperator(A), torch.from_numpy(A)):
        right = torch.from_numpy(b) if isinstance(form, torch.Tensor) else b
        for start in (None, np.ones(30)):
            result = nf.solve(form, right, method="lsmr", rtol=1e-10, x0=start)
            assert result.converged and np.allclose(np.asarray(result.x), x, atol=1e-7)


def test_lanes_of_a_batch_end_one_by_one_with_their_own_answers() -> None:
    A, b = system(30, 20, count=5)
    A, b = A * np.logspace(0, -12, 5)[:, None, None], b * np.logspace(-8, 8, 5)[:, None]
    A[1] *= np.logspace(0, 2, 20)
    b[3] = 0
    result = nf.solve(A, b, method="lsmr", rtol=1e-9, maxiter=2000)
    assert result.converged and result.iterations[3] == 0 and result.iterations[1] > result.iterations[0]
    for k in range(5):
        alone = nf.solve(A[k], b[k], method="lsmr", rtol=1e-9, maxiter=2000)
        assert alone.converged and np.allclose(result.x[k], alone.x, rtol=1e-5, atol=1e-6 * np.abs(alone.x).max())


def test_a_claim_that_fails_goes_on_from_the_true_residual() -> None:
    A, b = (v[0] for v in system(80, 60, seed=3))
    A = A * np.logspace(0, 5, 60)
    result = nf.solve(A, b, method="lsmr", rtol=1e-13, maxiter=20_000, check="ignore")
    gradient = np.linalg.norm(A.T @ (b - A @ result.x))
    assert (gradient <= 1e-13 * np.linalg.norm(A.T @ b)) >= result.converged
    assert gradient < 1e-8 * np.linalg.norm(A.T @ b)


def test_statuses_of_lsmr_say_what_is_wrong() -> None:
    A, b = (v[0] for v in system(30, 20))
    assert nf.solve(A, b, method="lsmr", maxiter=2, check="ignore").status is nf.Status.MAXITER
    with pytest.raises(OptionError, match="cgls"):
        nf.solve(A, b, method="lsmr", M="jacobi")
    calls = []

    def drifts(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return A.T @ x * (1 + 0.5 * (len(calls) > 6))

    other = spla.LinearOperator(A.shape, matvec=lambda x: A @ x, rmatvec=drifts, dtype=np.float64)
    assert nf.solve(other, b, method="lsmr", rtol=1e-10, check="ignore").status is nf.Status.NOT_LINEAR


@pytest.mark.parametrize(
    ("rows", "n", "density", "method"),
    [(40, 20, 1.0, "QR"), (20, 40, 1.0, "CGLS"), (900, 600, 0.01, "LSMR"), (600, 900, 0.01, "LSMR")],
)
def test_least_squares_with_nothing_chosen_take_what_suits(rows: int, n: int, density: float, method: str) -> None:
    A = sp.random_array((rows, n), density=density, rng=np.random.default_rng(1)) + sp.eye_array(rows, n)
    A, b = A.tocsr() if density < 1 else A.toarray(), np.random.default_rng(2).standard_normal(rows)
    result = nf.solve(A, b, rtol=1e-8)
    gradient = np.linalg.norm(A.T @ (b - A @ result.x))
    assert result.converged and gradient <= 1e-8 * np.linalg.norm(A.T @ b)
    assert method in result.method.partition(";")[0] and "because" in result.method


def test_dependent_columns_are_left_to_cgls() -> None:
    A = np.repeat(system(30, 5)[0][0], 2, axis=1)
    b = system(30, 5)[1][0]
    result = nf.solve(A, b, rtol=1e-9)
    assert result.converged and np.allclose(result.x, np.linalg.lstsq(A, b)[0], atol=1e-8)


def test_where_lsmr_does_not_get_on_cgls_goes_on_from_its_x() -> None:
    rng = np.random.default_rng(0)
    A = (sp.random_array((600, 300), density=0.02, rng=rng) + sp.eye_array(600, 300)).tocsr()
    A = sp.csr_array(A @ sp.diags_array(np.geomspace(1, 1e4, 300)))
    result = nf.solve(A, rng.standard_normal(600), rtol=1e-9)
    assert result.converged and "LSMR" in result.method and "CGLS" in result.method
