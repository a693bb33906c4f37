"""nf.eigenpair: certified eigenpairs of symmetric matrices, with and without a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch

import nlaformer as nf
from nlaformer.errors import ConvergenceWarning, DTypeError, OptionError, ShapeError, UnknownNameError
from nlaformer.learn.methods import method
from nlaformer.learn.programs import initial

Status = nf.Status


def symmetric(values: Any, seed: int = 0) -> np.ndarray:
    """A matrix with these eigenvalues."""
    n = len(values)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]
    A = (Q * np.asarray(values)) @ Q.T
    return (A + A.T) / 2


def exact_residual(A: np.ndarray, value: float, v: np.ndarray) -> float:
    """|A v - value v| / |v| in extended precision."""
    A, v = A.astype(np.longdouble), np.asarray(v).astype(np.longdouble)
    r = (A * v).sum(-1) - np.longdouble(value) * v
    return float(np.sqrt((r**2).sum() / (v**2).sum()))


@pytest.mark.parametrize("which", ["smallest", "largest"])
@pytest.mark.parametrize("n", [1, 2, 7, 60, 120])
def test_the_wanted_eigenvalue_is_found_and_enclosed(n: int, which: str) -> None:
    for seed in range(3):
        A = symmetric(np.random.default_rng(seed).uniform(-1, 3, n), seed)
        result = nf.eigenpair(A, which=which, rtol=1e-9)
        true = np.linalg.eigvalsh(A)[0 if which == "smallest" else -1]
        low, high = result.enclosure
        assert result.converged and low <= true + 1e-13 and high >= true - 1e-13 and high - low < 1e-7
        assert exact_residual(A, result.value, result.vector) <= result.residual_bound * (1 + 1e-6)
        assert result.residual_norm <= result.residual_bound <= result.tolerance <= 1e-9 * np.linalg.norm(A, 2)
        value, vector = result
        assert value == result.value and np.linalg.norm(vector) == pytest.approx(1)


def test_lanczos_takes_no_more_products_than_scipys() -> None:
    A = symmetric(np.geomspace(1, 100, 80))
    result, products = nf.eigenpair(A, which="largest", rtol=1e-8), [0]

    def counted(v: np.ndarray) -> np.ndarray:
        products[0] += 1
        return A @ v

    operator = spla.LinearOperator((80, 80), matvec=counted, dtype=float)
    theirs = spla.eigsh(operator, k=1, which="LA", tol=1e-8, return_eigenvectors=False)
    assert result.value == pytest.approx(theirs[0], rel=1e-8) and result.evaluations <= products[0] + 3


def test_every_kind_of_matrix_gives_the_same_pair() -> None:
    A = symmetric([1.0, 3.0, 4.0, 9.0, 12.0])
    for form in (A, sp.csr_array(A), torch.from_numpy(A), torch.from_numpy(A).to_sparse(), spla.aslinearoperator(A)):
        result = nf.eigenpair(form)
        assert result.converged and result.value == pytest.approx(1.0)
        assert isinstance(result.vector, torch.Tensor if isinstance(form, torch.Tensor) else np.ndarray)
    single = nf.eigenpair(A.astype(np.float32))
    assert single.converged and single.vector.dtype == np.float32
    fine = nf.eigenpair(A.astype(np.float32), rtol=1e-9, check="ignore")
    assert fine.status is Status.PRECISION
    assert exact_residual(A.astype(np.float32), fine.value, fine.vector64) <= 1e-9 * 12.1


@pytest.mark.parametrize("size", [1e-300, 1e-20, 1e20, 1e300])
def test_matrices_of_any_scale_have_the_scaled_eigenvalue(size: float) -> None:
    A = symmetric([1.0, 2.0, 5.0, 7.0]) * size
    result = nf.eigenpair((A + A.T) / 2 if size < 1 else A, which="largest", rtol=1e-10)
    assert result.converged and result.value / size == pytest.approx(7.0)
    assert result.enclosure[0] / size <= 7.000001 and result.enclosure[1] / size >= 6.999999


def test_an_operator_of_a_huge_scale_meets_the_tolerance_that_is_reported() -> None:
    A = np.diag([1.0, 2.0, 3.0, -4.0]) * 1e280
    for M in (None, lambda r: r * 1e-280):
        result = nf.eigenpair(spla.aslinearoperator(A), M=M, rtol=1e-9)
        assert result.converged and result.value / 1e280 == pytest.approx(-4.0)
        assert result.residual_bound <= result.tolerance <= 4.0001e271
    stuck = nf.eigenpair(spla.aslinearoperator(A), M=lambda r: r * 0, rtol=1e-9, maxiter=1, check="ignore")
    assert not stuck.converged and stuck.residual_bound > stuck.tolerance


def test_clusters_and_multiple_eigenvalues_are_enclosed() -> None:
    for values in ([1.0, 1.0, 1.0, 2.0], [1.0] * 6, [0.0] * 3 + [1.0], [1.0, 1.0 + 1e-13, 1.0 + 1e-9, 50.0, 51.0]):
        A = symmetric(values)
        result = nf.eigenpair(A, rtol=1e-10, check="ignore")
        true = np.linalg.eigvalsh(A)
        assert result.converged and np.any(
            (result.enclosure[0] <= true + 1e-14) & (true - 1e-14 <= result.enclosure[1])
        )
    zero = nf.eigenpair(np.zeros((3, 3)))
    assert zero.converged and zero.value == zero.residual_bound == 0.0


def test_an_eigenvector_as_start_gives_its_own_eigenvalue_not_the_smallest() -> None:
    result = nf.eigenpair(np.diag([1.0, 2.0, 3.0]), x0=np.array([0.0, 0.0, 1.0]))
    assert result.converged and result.value == 3.0 and result.enclosure[0] <= 3.0 <= result.enclosure[1]


def test_statuses_say_what_is_wrong() -> None:
    A = symmetric(np.geomspace(1, 1e6, 60))
    for status, given, options in (
        (Status.NOT_SYMMETRIC, np.triu(np.ones((3, 3))), {}),
        (Status.NOT_SYMMETRIC, sp.csr_array(np.triu(np.ones((3, 3)))), {}),
        (Status.NOT_SYMMETRIC, spla.aslinearoperator(np.triu(np.ones((3, 3)))), {}),
        (Status.NONFINITE, np.full((2, 2), np.nan), {}),
        (Status.NONFINITE, spla.LinearOperator((2, 2), matvec=lambda v: v * np.nan, dtype=float), {}),
        (Status.NONFINITE, np.full((4, 4), 1.7e308), dict(which="largest")),
        (Status.MAXITER, A, dict(maxiter=3)),
        (Status.STAGNATED, A, dict(rtol=0.0)),
    ):
        result = nf.eigenpair(given, check="ignore", **options)
        assert result.status is status and result.info != 0 and not result.converged
    with pytest.warns(ConvergenceWarning) as caught:
        nf.eigenpair(A, maxiter=3)
    assert caught[0].filename == __file__
    unfinished = nf.eigenpair(A, maxiter=3, check="ignore")
    true = np.linalg.eigvalsh(A)
    assert np.any((unfinished.enclosure[0] <= true) & (true <= unfinished.enclosure[1]))


def test_an_operator_whose_products_contradict_its_symmetry_encloses_nothing() -> None:
    rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
    shifted = spla.LinearOperator((3, 3), matvec=lambda v: np.diag([1.0, 2.0, 4.0]) @ v + 1.0, dtype=float)
    for status, given in (
        (Status.NOT_SYMMETRIC, spla.aslinearoperator(rotation)),
        (Status.NOT_SYMMETRIC, spla.aslinearoperator(np.triu(np.ones((3, 3))))),
        (Status.NOT_LINEAR, shifted),
    ):
        result = nf.eigenpair(given, check="ignore")
        assert result.status is status and result.enclosure == (-np.inf, np.inf)


def test_a_preconditioner_saves_products_and_the_callback_sees_every_step() -> None:
    A = symmetric(np.geomspace(1e-1, 1e2, 50))
    seen: list[np.ndarray] = []
    plain = nf.eigenpair(A, rtol=1e-9, callback=seen.append)
    near = nf.eigenpair(A, rtol=1e-9, M=np.linalg.inv(A + 1e-1 * np.eye(50)))
    assert near.converged and near.evaluations < plain.evaluations / 2
    assert len(seen) == plain.iterations == len(plain.residuals) - 1 and seen[-1].shape == (50,)


def test_bad_arguments_are_refused() -> None:
    A = np.eye(3)
    for error, options in (
        (UnknownNameError, dict(which="middle")),
        (UnknownNameError, dict(check="shout")),
        (ShapeError, dict(x0=np.ones(4))),
        (DTypeError, dict(x0=np.ones(3) * 1j)),
        (ShapeError, dict(x0=np.ones((3, 2)))),
        (OptionError, dict(x0=np.zeros(3))),
        (OptionError, dict(rtol=-1.0)),
        (OptionError, dict(maxiter=-1)),
        (OptionError, dict(callback=3)),
        (OptionError, dict(model=3)),
        (OptionError, dict(model=initial(nf.recipe("quickstart", n=3), method("guided-gcr")))),
        (OptionError, dict(M="learned-preconditioner")),
    ):
        with pytest.raises(error):
            nf.eigenpair(A, **options)  # type: ignore[arg-type]
    affine = spla.LinearOperator((3, 3), matvec=lambda v: np.arange(1.0, 4.0) * np.ravel(v) + 1e-3, dtype=float)
    assert nf.eigenpair(affine, check="ignore").status is Status.NOT_LINEAR
    with pytest.raises(ShapeError, match="one matrix"):
        nf.eigenpair(np.stack([A, A]))
    with pytest.raises(ShapeError, match="square"):
        nf.eigenpair(np.ones((2, 3)))
    with pytest.raises(OptionError, match="LinearOperator"):
        nf.eigenpair(spla.aslinearoperator(A), model=lambda A, v: v)


def test_the_certificate_of_an_operator_is_of_the_vector_itself_and_not_of_its_negative() -> None:
    affine = spla.LinearOperator((2, 2), matvec=lambda v: [0.325, 0.29] * np.ravel(v) + 3.2e-4, dtype=float)
    for which in ("smallest", "largest"):
        for rtol in np.logspace(-5, -2, 40):
            result = nf.eigenpair(affine, which=which, rtol=rtol, check="ignore")
            if result.converged:
                residual = affine.matvec(result.vector) - result.value * result.vector
                assert np.linalg.norm(residual) <= result.tolerance * (1 + 1e-9)


@pytest.mark.parametrize("how", ["as drawn", "nan"])
def test_a_program_runs_before_lanczos_and_costs_no_answer(how: str) -> None:
    A = symmetric(np.geomspace(1, 1e2, 8))
    model = initial(nf.recipe("quickstart", n=8), method("guided-eigen"))
    for parameter in model.parameters():
        parameter.data = parameter.data * (np.nan if how == "nan" else 1.0)
    result = nf.eigenpair(A, model=model, rtol=1e-9)
    assert result.converged and result.value == pytest.approx(1.0) and result.model is not None
    assert result.model.applications >= 1
    with pytest.raises(OptionError, match="smallest"):
        nf.eigenpair(A, model=model, which="largest")
    with pytest.raises(OptionError, match="eigenvector"):
        nf.eigenpair(A, model=initial(nf.recipe("quickstart", n=8), method("guided-cg")))


def test_a_function_helps_or_costs_nothing_but_products() -> None:
    A = symmetric(np.geomspace(1, 1e3, 60))
    plain = nf.eigenpair(A, rtol=1e-9)
    shifted = np.linalg.inv(A - 0.99 * np.eye(60))

    def inverse_iteration(A: np.ndarray, v: np.ndarray) -> np.ndarray:
        return shifted @ v

    helped = nf.eigenpair(A, rtol=1e-9, model=inverse_iteration)
    assert helped.converged and helped.model is not None and helped.model.accepted > 1
    assert helped.evaluations < plain.evaluations / 2 and "model" in helped.method
    for useless in (lambda A, v: v * np.nan, lambda A, v: v[:-1], lambda A, v: 1 / 0, lambda A, v: np.ones_like(v)):
        result = nf.eigenpair(A, rtol=1e-9, model=useless)
        assert result.converged and result.value == pytest.approx(plain.value)
        assert result.evaluations <= 1.1 * plain.evaluations and result.model is not None and result.model.reasons


def close_to_the_smallest(A: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A step of inverse iteration near the eigenvalue 1."""
    return np.linalg.solve(A - 0.999 * np.eye(len(A)), v)


def test_without_convergence_the_pair_of_the_smallest_residual_is_returned() -> None:
    A = np.diag(np.arange(1.0, 101.0))
    result = nf.eigenpair(A, model=close_to_the_smallest, maxiter=1, rtol=1e-12, check="ignore")
    assert result.status is Status.MAXITER and len(result.residuals) == result.iterations + 1
    assert result.residual_norm == pytest.approx(result.residuals.min()) and result.residual_norm < 1e-2
    assert result.value == pytest.approx(1.0, abs=1e-5)
    assert result.residual_bound < 1e-2 and result.enclosure[0] <= 1.0 <= result.enclosure[1]


def test_the_method_says_whether_the_model_or_lanczos_found_the_pair() -> None:
    A = np.diag(np.arange(1.0, 31.0))
    misleading = nf.eigenpair(A, model=lambda A, v: np.eye(30)[15], maxiter=4, rtol=1e-13, check="ignore")
    alone = nf.eigenpair(A, maxiter=4, rtol=1e-13, check="ignore")
    leading = nf.eigenpair(A, model=close_to_the_smallest, maxiter=30, rtol=1e-8)
    unasked = nf.eigenpair(A, model=close_to_the_smallest, maxiter=0, check="ignore")
    plain = nf.eigenpair(A, maxiter=0, check="ignore")
    assert leading.converged and leading.model is not None and leading.iterations == leading.model.accepted
    assert "Lanczos" not in leading.method
    assert unasked.model is not None and unasked.model.applications == 0 and plain.method in unasked.method
    assert misleading.model is not None and misleading.model.accepted == 1
    assert misleading.residual_norm == alone.residual_norm and misleading.iterations > alone.iterations
    assert misleading.method.startswith(alone.method) and misleading.method != unasked.method


@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy, sp.csr_array])
def test_a_function_sees_A_as_it_was_given(form: Any) -> None:
    A, seen = symmetric([100.0, 300.0, 400.0, 900.0]), []

    def watch(given: Any, v: Any) -> Any:
        seen.append(np.asarray(given).copy())
        given *= 0  # its own copy
        found = np.linalg.solve(A - 99.0 * np.eye(4), np.asarray(v))
        return torch.from_numpy(found) if isinstance(v, torch.Tensor) else found

    nf.eigenpair(form(A), model=watch, rtol=1e-10)
    assert len(seen) > 1 and all(np.array_equal(given, A) for given in seen)


def test_a_callback_that_changes_its_vector_changes_nothing_else() -> None:
    A = symmetric(np.arange(1.0, 9.0))
    plain, changed = nf.eigenpair(A), nf.eigenpair(A, callback=lambda v: v.fill(9.0))
    assert changed.status is Status.CONVERGED and np.array_equal(plain.vector, changed.vector)


@pytest.mark.parametrize("low", [2e-300, 0.0])
def test_a_matrix_whose_asymmetry_is_tiny_is_not_symmetric(low: float) -> None:
    A = np.array([[1e300, 1e-300], [low, 1e300]])
    assert nf.eigenpair(A, check="ignore").status is Status.NOT_SYMMETRIC


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_vector_has_the_precision_of_A_whatever_that_of_the_start(dtype: torch.dtype) -> None:
    A = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=dtype)
    for start in (None, *(torch.ones(2, dtype=own) for own in (torch.float16, torch.float32, torch.float64))):
        result = nf.eigenpair(A, x0=start, check="ignore")
        assert result.vector.dtype == dtype and result.vector64.dtype == torch.float64
        assert result.status in (Status.CONVERGED, Status.PRECISION)
