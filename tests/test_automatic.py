"""Which method is chosen for a matrix, and that every choice does what it says."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from nlaformer.solvers import automatic
from nlaformer.solvers.automatic import choices
from nlaformer.solvers.precondition import incomplete, levels
from tests.test_preconditioners import grid, rotated

pytest.importorskip("numba")
pytest.importorskip("pyamg")
RNG = np.random.default_rng(0)


def random_graph(n: int, margin: float) -> sp.csr_matrix:
    rows, columns = np.repeat(np.arange(n), 5), RNG.integers(0, n, 5 * n)
    B = sp.csr_matrix((RNG.standard_normal(5 * n), (rows, columns)), shape=(n, n))
    B = B + B.T
    B = B - sp.diags_array(B.diagonal())
    return sp.csr_matrix(B + sp.diags_array(margin * np.asarray(abs(B).sum(1)).ravel()))


def wind(*shape: int) -> sp.csr_matrix:
    A = grid(*shape)
    upwind = sp.tril(A, -1)
    return sp.csr_matrix(A + 0.4 * (upwind - sp.diags_array(np.asarray(upwind.sum(1)).ravel())))


DENSE = RNG.standard_normal((40, 40))
CASES = {
    "dense, definite": (DENSE @ DENSE.T, True, "cg", "cholesky"),
    "dense, indefinite": (DENSE + DENSE.T, True, "gmres", "lu"),
    "dense, positive diagonal, indefinite": (DENSE + DENSE.T + 5 * np.eye(40), True, "gmres", "lu"),
    "dense, general": (DENSE, False, "gmres", "lu"),
    "sparse, small": (grid(20, 20), True, "cg", "splu"),
    "sparse, small, not symmetric": (wind(20, 20), False, "gmres", "splu"),
    "sparse, small, indefinite": (sp.csr_matrix(grid(20, 20) - 5 * sp.eye_array(400)), True, "gmres", "splu"),
    "square": (grid(110, 110), True, "cg", "ic"),
    "square, rotated": (rotated(110, 35.0, 1e-3), True, "cg", "ic"),
    "cube, easy": (grid(18, 18, 18), True, "cg", "jacobi"),
    "cube, anisotropic": (grid(30, 30, 30, weights=(1.0, 0.01, 30.0)), True, "cg", "ic"),
    "random, dominant": (random_graph(5000, 1.1), True, "cg", "jacobi"),
    "random": (random_graph(5000, 0.8), True, "cg", "jacobi"),
    "square, wind": (wind(110, 110), False, "bicgstab", "amg"),
    "cube, wind": (wind(18, 18, 18), False, "bicgstab", "jacobi"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_choice_is_what_suits_the_matrix(case):
    A, symmetric, method, name = CASES[case]
    first = next(choices(A, symmetric))
    assert (first.method, first.M.name) == (method, name), first.why


@pytest.mark.parametrize("case", [case for case in CASES if "dense" in case or "small" in case])
def test_a_direct_choice_solves_by_one_application(case):
    A, symmetric, *_ = CASES[case]
    b = RNG.standard_normal(A.shape[0])
    assert np.linalg.norm(b - A @ next(choices(A, symmetric)).M(b)) < 1e-8 * np.linalg.norm(b)


@pytest.mark.parametrize("case", CASES)
def test_a_last_choice_without_a_limit_stands_behind_the_others(case):
    A, symmetric, *_ = CASES[case]
    limits = [choice.limit for choice in choices(A, symmetric)]
    assert limits[-1] is None and all(limit is not None for limit in limits[:-1])


def test_a_singular_matrix_is_left_to_an_iteration():
    first = next(choices(np.ones((5, 5)) - 2 * np.diag([0.0, 0, 0, 0, 1]), False))
    assert first.M is None and "singular" in first.why


def test_a_matrix_that_probing_shows_to_be_indefinite_is_not_solved_as_a_definite_one():
    A = sp.csr_matrix(grid(80, 80) - 3.9 * sp.eye_array(6400))
    assert next(choices(A, True)).method in ("gmres", "minres")


def test_no_factor_and_no_hierarchy_is_built_of_a_random_graph(monkeypatch):
    for name in ("_superlu", "hierarchy"):
        monkeypatch.setattr(automatic, name, lambda *_, **__: pytest.fail("it would fill the memory"))
    for margin, symmetric in ((1.1, True), (0.8, True), (1.1, False), (0.8, False)):
        assert next(choice.M.name for choice in choices(random_graph(5000, margin), symmetric)) == "jacobi"


@pytest.mark.parametrize(("case", "name"), [("square", "splu"), ("cube, anisotropic", "jacobi"),
                                            ("square, wind", "splu"), ("dense, definite", "cholesky")])  # fmt: skip
def test_without_the_extras_scipy_does(case, name, monkeypatch):
    monkeypatch.setattr(incomplete, "machine", lambda: levels)
    monkeypatch.setattr(automatic, "machine", lambda: levels)
    monkeypatch.setattr(automatic, "find_spec", lambda name: None)
    A, symmetric, *_ = CASES[case]
    assert next(choices(A, symmetric)).M.name == name


def test_the_dimension_of_a_mesh_is_that_of_its_space():
    from nlaformer.solvers.precondition.incomplete import dimension
    from nlaformer.solvers.precondition.rows import Rows

    found = [dimension(Rows.of(A)) for A in (grid(9000), grid(90, 90), rotated(90, 10.0, 0.1), grid(21, 21, 21))]
    assert found[0] == pytest.approx(1, abs=0.1) and found[3] > 2.5
    assert found[1] == pytest.approx(2, abs=0.2) and found[2] == pytest.approx(2, abs=0.2)
    assert dimension(Rows.of(random_graph(9000, 1.0))) > 4
