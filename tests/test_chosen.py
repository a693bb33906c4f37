"""nf.solve with nothing chosen: whatever is tried, the answer is certified, and a wrong choice is left."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import nlaformer as nf
from nlaformer.solvers import automatic, chosen
from nlaformer.solvers.automatic import Choice
from nlaformer.solvers.precondition.named import Named, build
from tests.test_automatic import CASES, wind
from tests.test_preconditioners import grid


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_matrix_is_solved(case):
    A = CASES[case][0]
    b = np.random.default_rng(4).standard_normal(A.shape[0])
    result = nf.solve(A, b, rtol=1e-8)
    assert result.converged and np.linalg.norm(b - A @ result.x) <= 1e-8 * np.linalg.norm(b)
    assert "because" in str(result)


@pytest.mark.parametrize("kind", ["columns", "float32", "tensor", "start"])
def test_what_is_chosen_serves_every_kind_of_input(kind):
    A, b = grid(9, 9).toarray(), np.random.default_rng(1).standard_normal(81)
    if kind == "columns":
        result = nf.solve(A, np.stack([b, 2 * b], 1))
        assert result.converged and np.allclose(result.x[:, 1], 2 * result.x[:, 0])
    elif kind == "float32":
        assert nf.solve(A.astype(np.float32), b.astype(np.float32)).x.dtype == np.float32
    elif kind == "tensor":
        torch = pytest.importorskip("torch")
        assert isinstance(nf.solve(torch.as_tensor(A), torch.as_tensor(b)).x, torch.Tensor)
    else:
        assert nf.solve(A, b, x0=np.linalg.solve(A, b)).iterations == 0


@pytest.fixture
def attempts(monkeypatch):
    """Let a test say what is chosen."""

    def set_to(*given: Choice) -> None:
        monkeypatch.setattr(chosen, "choices", lambda A, symmetric, definite=True: iter(given))

    return set_to


def test_a_choice_that_spends_its_iterations_is_left_for_the_next_and_its_steps_are_kept(attempts):
    A, b = grid(30, 30), np.random.default_rng(1).standard_normal(900)
    attempts(Choice("cg", None, "of a test", 60), Choice("cg", build("jacobi", A), "of a test"))
    result = nf.solve(A, b, rtol=1e-8)
    alone = nf.cg(A, b, M="jacobi", rtol=1e-8)
    assert result.converged and result.residuals[60] < 0.1 * result.residuals[0]
    assert 60 < result.iterations < 60 + alone.iterations


def test_a_preconditioner_that_is_wrong_costs_time_and_not_the_answer(attempts):
    A, b = grid(20, 20), np.ones(400)
    bad = Named("bad", lambda r: np.full_like(r, np.nan))
    negative = Named("negative", lambda r: -r)
    for M in (bad, negative):
        attempts(Choice("cg", M, "of a test", 10), Choice("cg", None, "of a test"))
        assert nf.solve(A, b, rtol=1e-8).converged


def test_a_large_dense_matrix_that_probing_shows_to_be_indefinite_is_factored(monkeypatch):
    monkeypatch.setattr(automatic, "DIRECT", 10)
    A = np.ones((30, 30)) + 0.5 * np.eye(30) - np.diag(np.arange(30) % 2)
    result = nf.solve(A, np.random.default_rng(0).standard_normal(30), rtol=1e-8)
    assert result.converged and "LU" in result.method


@pytest.mark.parametrize(("shift", "name"), [(0.0, "LU"), (20.0, "GMRES with M")])
def test_a_large_dense_general_matrix_is_factored_unless_gmres_is_fast(monkeypatch, shift, name):
    monkeypatch.setattr(automatic, "DIRECT", 10)
    A = np.random.default_rng(0).standard_normal((600, 600)) / 20 + shift * np.eye(600)
    result = nf.solve(A, np.ones(600), rtol=1e-8)
    assert result.converged and name in result.method


def test_a_matrix_that_a_solve_shows_to_be_indefinite_is_solved_by_another_method():
    A = sp.csr_matrix(grid(16, 16, 16) - 0.5 * sp.eye_array(4096))
    b = np.random.default_rng(0).standard_normal(4096)
    assert nf.solve(A, b, rtol=1e-6).converged


def test_no_more_iterations_are_taken_than_asked_for(attempts):
    A, b = grid(30, 30), np.ones(900)
    attempts(Choice("cg", None, "of a test", 5), Choice("cg", None, "of a test", 5), Choice("cg", None, "of a test"))
    result = nf.solve(A, b, rtol=1e-10, maxiter=12, check="ignore")
    assert result.status is nf.Status.MAXITER and result.iterations == 12


@pytest.mark.parametrize("name", [None, "jacobi", "amg"])
def test_bicgstab_takes_the_steps_of_scipys(name, attempts):
    from scipy.sparse.linalg import LinearOperator, bicgstab

    A, b = wind(14, 14, 14), np.random.default_rng(2).standard_normal(14**3)
    M = None if name is None else build(name, A, "gmres")
    attempts(Choice("bicgstab", M, "of a test"))
    result = nf.solve(A, b, rtol=1e-9)
    count = []
    operator = None if M is None else LinearOperator(A.shape, matvec=M.apply, dtype=np.float64)
    bicgstab(A, b, rtol=1e-9, M=operator, callback=lambda x: count.append(1))
    assert result.converged and abs(result.iterations - len(count)) <= 1 + len(count) // 10
    assert len(result.residuals) == result.iterations + 1


def test_bicgstab_ends_where_it_breaks_down(attempts):
    attempts(Choice("bicgstab", None, "of a test"))
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    assert not nf.solve(turn, np.array([1.0, 0.0]), check="ignore").converged
    assert nf.solve(np.eye(3), np.ones(3)).converged


def test_a_chosen_solve_imports_no_torch():
    import subprocess
    import sys

    code = "import sys, numpy as np, nlaformer as nf; nf.solve(np.eye(3), np.ones(3)); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_memory_error_of_a_factorization_is_no_failure(monkeypatch):
    def refuse(*_, **__):
        raise MemoryError

    monkeypatch.setattr(automatic, "_superlu", refuse)
    result = nf.solve(grid(20, 20), np.ones(400), rtol=1e-8)
    assert result.converged and "splu failed" in result.method
