"""nf.solve on kinds, shapes, precisions and scales of input; SciPy's own test problems; bad input."""

from __future__ import annotations

import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch
from sklearn.datasets import make_spd_matrix

import nlaformer as nf
from nlaformer import problems
from nlaformer.errors import ConvergenceError, ConvergenceWarning, DTypeError, OptionError, ShapeError
from nlaformer.learn import teachers as krylov

Status = nf.Status


def spd(n: int, count: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    A, b, _ = problems.SPD(n=n).sample(count, seed)
    return A.numpy(), b.numpy()


def residual(A: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    """|b - A x| / |b| in extended precision."""
    A, b, x = (np.asarray(v).astype(np.longdouble) for v in (A, b, x))
    return np.sqrt(((b - (A * x[..., None, :]).sum(-1)) ** 2).sum(-1) / (b**2).sum(-1))


# Input and output


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_result_has_the_kind_and_precision_of_the_input(dtype: str) -> None:
    A, b = (v[0].astype(dtype) for v in spd(7))
    for kind in (np.asarray, torch.from_numpy):
        result = nf.solve(kind(A), kind(b))
        assert type(result.x) is type(kind(b)) and result.x.dtype == kind(b).dtype and result.x.shape == (7,)
        assert result.status is Status.CONVERGED and residual(A, b, np.asarray(result.x)) <= 1e-5
    sparse = nf.solve(sp.csr_array(A), b)
    implicit = nf.solve(spla.aslinearoperator(A), b)
    tensor = nf.solve(torch.from_numpy(A).to_sparse(), torch.from_numpy(b))
    for result in (sparse, implicit, tensor):
        assert result.converged and str(result.x.dtype).endswith(dtype)
        assert residual(A, b, np.asarray(result.x)) <= 1e-5
    assert isinstance(tensor.x, torch.Tensor)


def test_lists_and_whole_numbers_are_read_as_float64() -> None:
    result = nf.solve([[2, 1], [1, 2]], [3, 3])
    assert isinstance(result.x, np.ndarray) and result.x.dtype == np.float64
    assert np.allclose(result.x, 1)
    assert nf.solve(sp.csr_array(np.array([[2, 1], [1, 2]])), np.array([3, 3])).converged


def test_the_number_of_dimensions_distinguishes_batches_from_columns() -> None:
    A, b = spd(4, count=6)
    batch = nf.solve(A, b)
    assert batch.x.shape == (6, 4) and batch.status.shape == batch.iterations.shape == (6,)
    assert batch.residuals.shape == (6, batch.iterations.max() + 1)
    columns = nf.solve(A[0], b.T)  # six right-hand sides of one matrix
    assert columns.x.shape == (4, 6) and columns.status.shape == (6,)
    assert np.all(residual(A[0], b, columns.x.T) <= 1e-5)
    both = nf.solve(A.reshape(2, 3, 4, 4), np.stack([b, -b], -1).reshape(2, 3, 4, 2))
    assert both.x.shape == (2, 3, 4, 2) and both.status.shape == (2, 3, 2)
    assert np.allclose(both.x[..., 0], -both.x[..., 1]) and np.allclose(both.x[..., 0].reshape(6, 4), batch.x)
    shared = nf.solve(A, b[0])
    assert shared.x.shape == (6, 4) and np.all(residual(A, b[:1], shared.x) <= 1e-5)
    square = nf.solve(A[0], np.eye(4))  # as many columns as unknowns are columns still
    assert np.allclose(A[0] @ square.x, np.eye(4), atol=1e-4)


def test_each_right_hand_side_meets_its_own_tolerance() -> None:
    A, b = spd(8, count=4)
    scales = 10.0 ** np.array([[0], [-8], [8], [-200]])
    result = nf.cg(A, b * scales, rtol=1e-7)
    assert result.converged and np.all(residual(A, b * scales, result.x) <= 1e-7)
    alone = [nf.cg(A[k], b[k] * scales[k], rtol=1e-7).iterations for k in range(4)]
    assert result.iterations.tolist() == alone


@pytest.mark.parametrize("exponents", [(0, 0), (100, -100), (-150, 3), (290, 290), (-290, -290), (7, 160)])
def test_scaled_systems_give_the_scaled_answer(exponents: tuple[int, int]) -> None:
    A, b = (v[0] for v in spd(10))
    i, j = exponents
    plain, scaled = nf.solve(A, b, rtol=1e-9), nf.solve(A * 10.0**i, b * 10.0**j, rtol=1e-9)
    assert scaled.converged and abs(scaled.iterations - plain.iterations) <= 1
    assert np.allclose(scaled.x / 10.0 ** (j - i), plain.x, rtol=1e-7)


# The certificate and the statuses


def test_a_float32_answer_that_rounding_spoils_has_status_precision() -> None:
    A, b, _ = problems.PrescribedSpectrum(n=60, cond=1e4).sample(1, seed=3, dtype=torch.float32)
    b = torch.randn(60, generator=torch.Generator().manual_seed(0))
    result = nf.solve(A[0], b, rtol=1e-6, check="ignore")
    assert result.status is Status.PRECISION and result.info > 0
    assert residual(A[0], b, result.x64) <= 1e-6 < residual(A[0], b, result.x)
    assert result.x.dtype == torch.float32 and result.x64.dtype == torch.float64
    assert nf.solve(A[0].double(), b.double(), rtol=1e-6).converged


@pytest.mark.parametrize("rtol", [0.0, 1e-300, 1e-16, 1e-12])
def test_a_tolerance_below_what_float64_reaches_does_not_converge(rtol: float) -> None:
    A, b, _ = problems.PrescribedSpectrum(n=40, cond=1e8).sample(3, seed=1)
    b = torch.randn(3, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = nf.solve(A, b, rtol=rtol, maxiter=4000, check="ignore")
    assert set(result.status) <= {Status.STAGNATED, Status.MAXITER}
    assert np.all(residual(A, b, result.x) < 1e-5)  # what float64 gives is given all the same


def test_a_residual_that_only_its_bound_keeps_from_the_tolerance_is_computed_again() -> None:
    A = 1 / (1.0 + np.arange(12)[:, None] + np.arange(12))  # Hilbert's matrix
    b = A @ np.ones(12)
    plain, jacobi = (nf.solve(A, b, M=M, rtol=1e-15, check="ignore") for M in (None, "jacobi"))
    for result in (plain, jacobi):
        to_fractions = np.vectorize(Fraction, otypes=[object])
        r = to_fractions(b) - to_fractions(A) @ to_fractions(result.x)
        assert (r * r).sum() <= Fraction(result.residual_bound) ** 2 <= Fraction(result.tolerance) ** 2
        assert result.status is Status.STAGNATED and "proven" in result.detail  # NumPy's own residual may miss it
    assert nf.solve(A, b, rtol=5e-15).converged


def test_the_bound_is_never_below_the_residual() -> None:
    A, b, _ = problems.PrescribedSpectrum(n=30, cond=1e10).sample(50, seed=2)
    result = nf.solve(A, b, rtol=1e-4, check="ignore")
    exact = residual(A, b, result.x) * np.sqrt((b.numpy().astype(np.longdouble) ** 2).sum(-1))
    assert np.all(exact <= result.residual_bound) and np.all(result.residual_bound <= 1.01 * exact + 1e-9)


POISSON = sp.diags_array([-np.ones(9), 2 * np.ones(10), -np.ones(9)], offsets=[-1, 0, 1])
SCIPY = {
    "poisson 1-D": (POISSON, Status.CONVERGED),
    "poisson 2-D": (sp.kronsum(POISSON, POISSON), Status.CONVERGED),
    "negative definite": (-POISSON, Status.NOT_SPD),
    "random diagonal": (sp.diags_array(np.random.default_rng(0).random(10)), Status.CONVERGED),
    "random positive definite": (np.cov(np.random.default_rng(1).random((8, 40))) + np.eye(8), Status.CONVERGED),
    "random indefinite": (np.diag([1.0, -1.0, 2.0, 3.0]) + 0.1, Status.NOT_SPD),
    "non-symmetric": (
        sp.diags_array([np.ones(9) * -2, 4 * np.ones(10), -np.ones(9)], offsets=[-1, 0, 1]),
        Status.CONVERGED,
    ),
    "symmetric, not definite": (np.array([[0.0, 1.0], [1.0, 0.0]]), Status.NOT_SPD),
    "singular": (np.diag([1.0, 2.0, 0.0]), Status.NOT_SPD),
    "zero": (np.zeros((3, 3)), Status.NOT_SPD),
    "laplacian without shift": (np.array([[1.0, -1.0], [-1.0, 1.0]]), Status.STAGNATED),  # d.A d = 0 but for rounding
}


@pytest.mark.parametrize("name", SCIPY)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scipys_problems_end_in_the_right_status(name: str, dtype: str) -> None:
    A, expected = SCIPY[name]
    A = A.astype(dtype)
    b = np.arange(1, A.shape[0] + 1).astype(dtype)
    forms = [A] if isinstance(A, np.ndarray) else [A.tocsr(), A.toarray()]
    for form in forms:
        result = nf.solve(form, b, method="gmres" if name == "non-symmetric" else "cg", check="ignore")
        assert result.status is expected
        assert (result.info == 0) == (expected is Status.CONVERGED)
        if expected is Status.CONVERGED:
            theirs, info = (spla.gmres if name == "non-symmetric" else spla.cg)(form, b, rtol=1e-5)
            assert info == 0 and np.allclose(result.x, theirs, rtol=1e-3, atol=1e-3)


def test_cg_refuses_a_matrix_that_is_not_symmetric_which_solve_takes() -> None:
    A = SCIPY["non-symmetric"][0].toarray()
    assert nf.solve(A, np.ones(10)).converged
    for refused in (nf.cg(A, np.ones(10), check="ignore"), nf.solve(A, np.ones(10), method="pcg", check="ignore")):
        assert refused.status is Status.NOT_SPD and "symmetric" in refused.detail


def test_an_indefinite_linear_operator_is_detected_while_iterating() -> None:
    A = spla.aslinearoperator(np.diag([3.0, 2.0, -1.0]))
    result = nf.solve(A, np.ones(3), check="ignore")
    assert result.status is Status.NOT_SPD and "d.A d" in result.detail


def test_an_operator_may_write_into_its_argument_and_reuse_its_buffer_but_not_be_complex() -> None:
    A, b = (v[0] for v in spd(6))
    buffer = np.zeros(6)

    def careless(v: np.ndarray) -> np.ndarray:
        np.matmul(A, v, out=buffer)
        v[...] = np.nan
        return buffer

    result = nf.solve(spla.LinearOperator((6, 6), matvec=careless, dtype=float), b, rtol=1e-9)
    assert result.converged and residual(A, b, result.x) <= 1e-9
    with pytest.raises(DTypeError, match="complex"):
        nf.solve(spla.LinearOperator((6, 6), matvec=lambda v: 1j * v, dtype=float), b)


def test_the_input_is_not_changed_and_a_callback_cannot_change_the_iterate() -> None:
    A, b = (v[0] for v in spd(6))
    x0 = np.ones(6)
    kept = [v.copy() for v in (A, b, x0)]

    def spoil(x: np.ndarray) -> None:
        x[...] = np.nan

    result = nf.solve(A, b, x0=x0, callback=spoil, rtol=1e-9)
    assert result.converged and residual(A, b, result.x) <= 1e-9
    assert all(np.array_equal(given, copy) for given, copy in zip((A, b, x0), kept, strict=True))


def test_a_zero_right_hand_side_has_the_answer_zero_in_no_iterations() -> None:
    for A in (np.eye(3), -np.eye(3), sp.eye_array(3)):
        result = nf.solve(A, np.zeros(3), x0=np.ones(3))
        assert result.converged and result.iterations == result.matvecs == 0 and not result.x.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_nonfinite_system_is_reported_and_spoils_no_other(value: float) -> None:
    A, b = spd(5, count=3)
    broken_A, broken_b, x0 = A.copy(), b.copy(), np.zeros_like(b)
    broken_A[0, 1, 2] = value
    broken_b[1, 0] = value
    x0[2, 3] = value
    result = nf.solve(broken_A, broken_b, check="ignore")
    assert [status.name for status in result.status] == ["NONFINITE", "NONFINITE", "CONVERGED"]
    assert np.isnan(result.x[:2]).all() and residual(A[2], b[2], result.x[2]) <= 1e-5
    assert nf.solve(A, b, x0=x0, check="ignore").status[2] is Status.NONFINITE
    operator = spla.LinearOperator((5, 5), matvec=lambda v: np.full(5, value), dtype=float)
    assert nf.solve(operator, b[0], check="ignore").status is Status.NONFINITE
    assert nf.solve(np.eye(2) * 1e-300, np.full(2, 1e300), check="ignore").status is Status.NONFINITE


def test_the_status_is_maxiter_when_iterations_run_out() -> None:
    A, b, _ = problems.Poisson1D(n=50).sample(1, seed=0)
    result = nf.cg(A[0], b[0], maxiter=3, check="ignore")
    assert result.status is Status.MAXITER and result.iterations == result.info == 3
    assert nf.cg(A[0], b[0], maxiter=0, check="ignore").iterations == 0


def test_check_warns_raises_or_ignores_without_convergence() -> None:
    A, b = -np.eye(2), np.ones(2)
    with pytest.warns(ConvergenceWarning, match="diagonal") as caught:
        nf.cg(A, b)
    assert caught[0].filename == __file__
    with pytest.raises(ConvergenceError) as error:
        nf.cg(A, b, check="raise")
    assert error.value.result.status is Status.NOT_SPD
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nf.cg(A, b, check="ignore")


# What is measured


def test_history_counts_and_printing_agree_with_the_iterates() -> None:
    A, b = (v[0] for v in spd(12))
    seen: list[np.ndarray] = []
    result = nf.solve(A, b, rtol=1e-8, callback=seen.append)
    assert len(seen) == result.iterations == len(result.residuals) - 1
    assert np.array_equal(seen[-1], result.x)
    assert result.residuals[0] == pytest.approx(np.linalg.norm(b))
    for x, norm in zip(seen, result.residuals[1:], strict=True):
        assert np.linalg.norm(b - A @ x) == pytest.approx(norm, rel=1e-4)
    assert result.matvecs == result.iterations + 1  # one for the certificate
    assert result.residual_norm <= result.residual_bound <= result.tolerance
    x, info = result
    assert x is result.x and info == 0
    lines = str(result).splitlines()
    assert len(lines) == 6 and len({line[:10].rstrip() for line in lines}) == 6
    assert len(str(nf.solve(*spd(4, count=3))).splitlines()) == 6


def test_the_iteration_starts_from_x0() -> None:
    A, b = (v[0] for v in spd(9))
    x = np.linalg.solve(A, b)
    assert nf.solve(A, b, x0=x).iterations == 0
    near, far = (nf.solve(A, b, x0=x0, rtol=1e-8).residuals[0] for x0 in (x + 1e-6, x + 1))
    assert near < far
    result = nf.solve(A, b, x0=x + 1e3, rtol=1e-8)
    assert result.converged and residual(A, b, result.x) <= 1e-8


@pytest.mark.parametrize("M", ["jacobi", "diagonal", "matrix", "sparse", "operator", "function"])
def test_every_kind_of_preconditioner_saves_iterations(M: str) -> None:
    A, b, _ = problems.Poisson1D(n=30, sigma=3.0).sample(1, seed=4)
    A, b = A[0].numpy(), b[0].numpy()
    d = 1 / np.diag(A)
    given = {
        "jacobi": "jacobi",
        "diagonal": d,
        "matrix": np.diag(d),
        "sparse": sp.diags_array(d),
        "operator": spla.aslinearoperator(np.diag(d)),
        "function": lambda r: d * r,
    }[M]
    result, plain = nf.cg(A, b, M=given), nf.cg(A, b, check="ignore")
    assert result.converged and result.iterations < plain.iterations
    assert result.iterations == nf.pcg(A, b).iterations
    assert np.all(residual(A, b, nf.pcg(np.stack([A, A]), np.stack([b, -b]), M=given).x[0]) <= 1e-5)


def test_a_preconditioner_that_is_not_definite_is_detected() -> None:
    A, b = (v[0] for v in spd(5))
    result = nf.pcg(A, b, M=-np.eye(5), check="ignore")
    assert result.status is Status.NOT_SPD and "M" in result.detail
    singular = nf.pcg(A, b, M=np.array([1.0, 1.0, 1.0, 1.0, 0.0]), check="ignore")
    assert singular.status is Status.NOT_SPD and "M" in singular.detail
    assert nf.pcg(A, b, M=np.full(5, np.nan), check="ignore").status is Status.NONFINITE


def test_cg_follows_the_teachers_trajectory() -> None:
    A, b = spd(6, count=3)
    for own, teacher in ((nf.cg, krylov.cg), (nf.pcg, krylov.pcg)):
        result = own(A * 1e-9, b * 1e5, rtol=1e-3, trajectory=True)
        steps = int(result.iterations.min())
        expected = teacher(A * 1e-9, b * 1e5, steps)
        for mine, theirs in zip(result.trajectory, expected, strict=True):
            assert mine.shape == (3, result.iterations.max() + 1, 6)
            assert np.allclose(mine[:, : steps + 1], theirs, rtol=1e-6, atol=1e-9 * np.abs(theirs.numpy()).max())
    assert nf.cg(A, b).trajectory is None


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "dia", "bsr"])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float32", "float64"])
def test_sparse_matrices_of_every_format_are_solved(form: str, dtype: str) -> None:
    A = sp.diags_array([1.0, 4.0, 1.0], offsets=[-1, 0, 1], shape=(5, 5)).astype(dtype).asformat(form)
    assert nf.solve(A, np.ones(5), M=sp.eye_array(5, dtype=dtype, format=form)).converged


def test_read_only_sparse_matrices_are_solved_and_not_changed() -> None:
    entries = (
        np.array([1.0, 2.0, 0.5, 3.0, 0.5]),
        np.array([0, 0, 1, 1, 0]),
        np.array([0, 3, 5]),
    )
    kept = [part.copy() for part in entries]
    for part in entries:
        part.flags.writeable = False
    A = sp.csr_array(entries, shape=(2, 2))
    result = nf.solve(A, np.ones(2), M=A)
    assert result.converged and np.allclose(result.x, np.linalg.solve([[3.0, 0.5], [0.5, 3.0]], np.ones(2)))
    assert all(np.array_equal(now, then) for now, then in zip((A.data, A.indices, A.indptr), kept, strict=True))


@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_array])
def test_indices_outside_the_matrix_are_refused(form: type) -> None:
    A = form(np.eye(3))
    A.indices[1] = 2**30
    with pytest.raises(ShapeError, match=r"^A "):
        nf.solve(A, np.ones(3))
    with pytest.raises(ShapeError, match=r"^M "):
        nf.solve(np.eye(3), np.ones(3), M=A)


def test_tolerances_and_counts_may_be_any_kind_of_number() -> None:
    A, b = (v[0] for v in spd(5))
    plain = nf.solve(A, b, rtol=1e-6)
    for rtol in (Fraction(1, 10**6), Decimal("1e-6"), np.array(1e-6), torch.tensor(1e-6, dtype=torch.float64)):
        assert nf.solve(A, b, rtol=rtol).tolerance == plain.tolerance
    assert nf.solve(A, b, maxiter=10**30).converged
    assert nf.solve(A, b, maxiter=2**63 - 1, model=lambda A, b: b, method="refine").converged


@pytest.mark.parametrize(("size", "length"), [(1e-300, 1e300), (1e300, 1e-300)])
def test_an_answer_outside_the_range_of_float64_has_status_nonfinite(size: float, length: float) -> None:
    A, b = (v[0] for v in spd(5))
    result = nf.solve(A * size, b * length, check="ignore")
    assert result.status is Status.NONFINITE and "float64" in result.detail


def test_the_certificate_holds_for_subnormal_numbers() -> None:
    generator = np.random.default_rng(5)
    for _ in range(100):
        A = np.round(4 * np.eye(2) + generator.uniform(-1, 1)) * 2.0 ** generator.choice([-1060, 0, 900])
        b = np.round(generator.standard_normal(2) * 64) * 5e-324
        rtol, atol = 10.0 ** generator.uniform(-9, 0), float(generator.choice([0.0, 1e-322, 1e-3]))
        result = nf.solve(A, b, rtol=rtol, atol=atol, check="ignore")
        x = [Fraction(value) for value in result.x.tolist()]
        r = [Fraction(float(b[i])) - sum(Fraction(float(A[i, j])) * x[j] for j in range(2)) for i in range(2)]
        exact = sum(entry**2 for entry in r)
        rule = max(Fraction(rtol) ** 2 * sum(Fraction(float(entry)) ** 2 for entry in b), Fraction(atol) ** 2)
        assert exact <= Fraction(result.residual_bound) ** 2 and Fraction(result.tolerance) ** 2 <= rule
        if result.converged:
            assert result.residual_norm <= result.residual_bound <= result.tolerance


# Refusals


@pytest.mark.parametrize(
    ("A", "b", "error"),
    [
        (np.ones((2, 3)), np.ones(3), ShapeError),
        (np.ones(3), np.ones(3), ShapeError),
        (np.eye(3), np.ones(4), ShapeError),
        (np.eye(3), np.ones((2, 3)), ShapeError),
        (np.eye(3), np.ones(()), ShapeError),
        (np.eye(3), np.ones((2, 3, 1)), ShapeError),
        (np.stack([np.eye(3)] * 2), np.ones((4, 3)), ShapeError),
        (np.zeros((0, 0)), np.zeros(0), ShapeError),
        (np.zeros((0, 3, 3)), np.zeros((0, 3)), ShapeError),
        (np.eye(3), np.ones((3, 0)), ShapeError),
        (sp.csr_array(np.ones((2, 3))), np.ones(3), ShapeError),
        (sp.csr_array(np.eye(3)), np.ones((5, 3)), ShapeError),
        (np.eye(2) * 1j, np.ones(2), DTypeError),
        (np.eye(2), np.ones(2) * 1j, DTypeError),
        (sp.csr_array(np.eye(2) * 1j), np.ones(2), DTypeError),
        (spla.aslinearoperator(np.eye(2) * 1j), np.ones(2), DTypeError),
        (torch.eye(2) * 1j, torch.ones(2), DTypeError),
        (np.eye(2), ["a", "b"], DTypeError),
        ("A", np.ones(2), (DTypeError, ShapeError)),
        (None, np.ones(2), (DTypeError, ShapeError)),
        (np.eye(2, dtype=np.longdouble), np.ones(2), DTypeError),
        (sp.csr_array(np.eye(2, dtype=np.longdouble)), np.ones(2), DTypeError),
        (np.eye(2, dtype=int) * (2**60 + 1), np.ones(2), DTypeError),
        (sp.dok_array(np.eye(2, dtype=int) * (2**60 + 1)), np.ones(2), DTypeError),
        (spla.LinearOperator((2, 2), matvec=lambda v: np.array(["a", "b"]), dtype=float), np.ones(2), DTypeError),
    ],
)
def test_bad_systems_are_refused(A: object, b: object, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        nf.solve(A, b)
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    "options",
    [
        dict(rtol=-1.0),
        dict(rtol=np.nan),
        dict(rtol="small"),
        dict(rtol=10**400),
        dict(rtol=np.True_),
        dict(atol=np.inf),
        dict(maxiter=-1),
        dict(maxiter=2.5),
        dict(maxiter=True),
        dict(method="bicg"),
        dict(check="shout"),
        dict(method="cg", M="jacobi"),
        dict(M="ilu"),
        dict(M=nf.Program),
        dict(M=lambda A, r: r),
        dict(M=np.ones(3)),
        dict(x0=np.ones(3)),
        dict(x0=np.ones((5, 2))),
        dict(callback=3),
        dict(switch="no"),
        dict(method="refine"),
        dict(method="cg", model=lambda A, b: b),
        dict(model=3),
        dict(model="/no/such/model"),
    ],
)
def test_bad_options_are_refused(options: dict) -> None:
    with pytest.raises((OptionError, ShapeError, ValueError)) as caught:
        nf.solve(np.eye(2), np.ones(2), **options)
    assert len(str(caught.value)) > 20


def test_a_matrix_that_is_nearly_symmetric_gets_a_remedy():
    A = np.diag([1.0, 2.0, 3.0])
    A[0, 1] = 1e-7
    assert "(A + A.T) / 2" in nf.cg(A, np.ones(3), check="ignore").detail
    assert "(A + A.T) / 2" not in nf.solve(A + np.triu(np.ones((3, 3)), 1), np.ones(3), check="ignore").detail


def test_what_rounding_makes_of_a_symmetric_matrix_is_solved_as_it_is_given():
    A = np.stack(
        [make_spd_matrix(20, random_state=seed) for seed in (1085, 2252, 2704, 3002, 7978, 10586, 10673, 13747)]
    )
    b = np.random.default_rng(0).standard_normal((len(A), 20))
    gap = np.abs(A - A.swapaxes(-2, -1)).max((-2, -1)) / np.abs(A).max((-2, -1))
    assert gap.min() > 10 * 20 * np.finfo(float).eps  # more than n rounding errors
    for form, right in ((A, b), (A[0], b[0]), (sp.csr_array(A[1]), b[1]), (torch.from_numpy(A[2]), b[2])):
        for solve in (nf.cg, nf.pcg):
            result = solve(form, right, rtol=1e-11)
            given = form.toarray() if sp.issparse(form) else np.asarray(form)
            assert result.converged and (residual(given, right, np.asarray(result.x)) <= 1e-11).all()


def test_an_asymmetry_beyond_rounding_is_refused_by_cg_however_small_the_entries():
    for size, entry in ((1.0, 1e-7), (1e-9, 1e-13), (1e12, 1e5)):  # of the diagonal
        A = np.diag([1.0, size, size])
        A[1, 2] = entry
        assert nf.cg(A, np.ones(3), check="ignore").status is Status.NOT_SPD


def test_a_sparse_right_hand_side_is_refused_with_a_remedy():
    with pytest.raises(DTypeError, match=r"b\.toarray\(\)"):
        nf.solve(np.eye(3), sp.csr_array(np.ones((3, 1))))


def test_a_lane_that_breaks_down_leaves_the_directions_of_the_others_alone() -> None:
    A, b = spd(12, count=6)
    A[2] -= 1.5 * np.median(np.linalg.eigvalsh(A[2])) * np.eye(12)  # breaks down after some steps
    A[2] += np.diag(np.maximum(0, 1e-3 - np.diag(A[2])))
    for M in (None, "jacobi"):
        together = nf.cg(A, b, rtol=1e-9, M=M, check="ignore")
        assert together.status[2] is Status.NOT_SPD and together.iterations[2] > 0
        for k in (0, 1, 3, 4, 5):
            alone = nf.cg(A[k], b[k], rtol=1e-9, M=M)
            assert abs(together.iterations[k] - alone.iterations) <= 1 and together.status[k] is Status.CONVERGED
