"""The preconditioners that have a name, with numba and without."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, cg

import nlaformer as nf
from nlaformer.errors import DTypeError, MissingPackageError, OptionError, ShapeError, UnknownNameError
from nlaformer.solvers.precondition import incomplete, levels
from nlaformer.solvers.precondition.named import NAMES, build
from nlaformer.solvers.precondition.rows import Rows

kernels = pytest.importorskip("nlaformer.solvers.precondition.kernels", exc_type=ImportError)
DEFINITE = [name for name in NAMES if name != "ilu"]


def grid(*shape: int, weights: tuple[float, ...] = (1.0, 1.0, 1.0)) -> sp.csr_matrix:
    """Diffusion on a grid with zero values around it."""
    A = sp.csr_matrix((1, 1))
    for k, m in enumerate(shape):
        line = weights[k] * sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(m, m))
        A = sp.kron(A, sp.eye_array(m)) + sp.kron(sp.eye_array(A.shape[0]), line)
    return sp.csr_matrix(A)


def rotated(m: int, degrees: float, epsilon: float) -> sp.csr_matrix:
    """Diffusion along one direction, by bilinear finite elements on a grid: entries of both signs."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    xx, yy, xy = c * c + epsilon * s * s, s * s + epsilon * c * c, (1 - epsilon) * c * s
    a, b = (-xx - yy) / 6, xy / 2
    stencil = {
        (0, 0): 4 * (xx + yy) / 3, (1, 0): -2 * xx / 3 + yy / 3, (0, 1): xx / 3 - 2 * yy / 3,
        (1, 1): a - b, (1, -1): a + b,
    }  # fmt: skip
    index = np.arange(m * m).reshape(m, m)
    A = sp.csr_matrix((m * m, m * m))
    for (di, dj), value in stencil.items():
        one = index[: m - di, max(0, -dj) : m - max(0, dj)].ravel()
        two = index[di:, max(0, dj) : m - max(0, -dj)].ravel()
        part = sp.csr_matrix((np.full(len(one), value), (one, two)), shape=A.shape)
        A = A + part + (part.T if (di, dj) != (0, 0) else 0 * part)
    return sp.csr_matrix(A)


def dense_definite(n: int, seed: int) -> np.ndarray:
    B = np.random.default_rng(seed).standard_normal((n, n))
    return B @ B.T + 1e-3 * np.eye(n)


MATRICES = {
    "one": sp.csr_matrix([[4.0]]),
    "diagonal": sp.csr_matrix(sp.diags_array(np.arange(1.0, 20.0))),
    "grid": grid(7, 5, 3),
    "rotated": rotated(9, 30.0, 1e-3),
    "dense": dense_definite(12, 1),
    "parts": sp.csr_matrix(sp.block_diag([grid(6, 6), sp.eye_array(3), dense_definite(5, 2)])),
    "scaled": sp.csr_matrix(1e60 * grid(4, 4)),
}


def as_matrix(M, n: int) -> np.ndarray:
    return np.stack([M(e) for e in np.eye(n)], 1)


def iterations(A, M, rtol: float = 1e-8) -> int:
    count = []
    b = np.random.default_rng(3).standard_normal(A.shape[0])
    operator = LinearOperator(A.shape, matvec=M, dtype=np.float64)
    _, info = cg(A, b, rtol=rtol, M=operator, callback=lambda x: count.append(1))
    assert info == 0
    return len(count)


@pytest.fixture(params=["kernels", "levels"])
def loops(request, monkeypatch):
    chosen = {"kernels": kernels, "levels": levels}[request.param]
    monkeypatch.setattr(incomplete, "machine", lambda: chosen)
    monkeypatch.setattr("nlaformer.solvers.precondition.named.machine", lambda: chosen)
    return chosen


@pytest.mark.parametrize("name", DEFINITE)
@pytest.mark.parametrize("matrix", MATRICES)
def test_a_named_preconditioner_is_symmetric_positive_definite(name, matrix, loops):
    A = MATRICES[matrix]
    if name == "amg":
        pytest.importorskip("pyamg")
    M = as_matrix(build(name, A), A.shape[0])
    scale = np.outer(*[np.sqrt(M.diagonal())] * 2)
    assert np.abs((M - M.T) / scale).max() < 1e-10
    assert np.linalg.eigvalsh((M + M.T) / scale).min() > 0


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize(("omega", "shift"), [(0.0, 0.0), (0.97, 0.0), (0.0, 0.03)])
def test_the_factor_without_numba_is_that_of_the_compiled_loop(matrix, omega, shift):
    A = Rows.of(sp.csr_matrix(MATRICES[matrix]))
    order = np.random.default_rng(0).permutation(A.size).astype(np.uint32)
    ours, theirs = (loops.permuted(A, order) for loops in (kernels, levels))
    assert np.array_equal(ours.j, theirs.j) and np.array_equal(ours.v, theirs.v)
    T, other = (loops.factor(ours, omega, shift, 0.0) for loops in (kernels, levels))
    assert (T is None) == (other is None)
    if T is not None:
        assert np.allclose(T.v, other.v, rtol=1e-9, atol=0)
        r = np.random.default_rng(1).standard_normal(A.size)
        assert np.allclose(kernels.sweeps(T, order)(r), levels.sweeps(other, order)(r), rtol=1e-8, atol=0)


def test_the_sweeps_are_those_of_the_product_of_the_triangles(loops):
    T = sp.csr_matrix(sp.triu(rotated(6, 20.0, 0.1)))
    order = np.random.default_rng(0).permutation(36).astype(np.uint32)
    product = (T.T @ sp.diags_array(1 / T.diagonal()) @ T).toarray()
    r, y = np.random.default_rng(1).standard_normal(36), np.empty(36)
    y[order] = np.linalg.solve(product, r[order])
    assert np.allclose(loops.sweeps(Rows.of(T), order)(r), y)


def test_the_relaxed_factor_keeps_row_sums(loops):
    A = grid(8, 8)
    T = loops.factor(Rows.of(A), 1.0, 0.0, 0.0).csr
    product = T.T @ sp.diags_array(1 / T.diagonal()) @ T
    assert np.allclose(product @ np.ones(64), A @ np.ones(64))


def test_a_factorization_that_breaks_down_is_seen(loops):
    A = sp.csr_matrix(np.array([[1.0, 0.9, 0.0, 0.9], [0.9, 1, 0.9, 0], [0, 0.9, 1, 0.9], [0.9, 0, 0.9, 1]]))
    assert loops.factor(Rows.of(A), 0.0, 0.0, 0.0) is None
    assert loops.factor(Rows.of(A), 0.0, 1.0, 0.0) is not None


@pytest.mark.parametrize("root", [0, 17])
def test_breadth_first_distances_are_those_of_the_graph(loops, root):
    A = sp.csr_matrix(sp.block_diag([grid(6, 6), grid(3, 3)]))
    order, level = loops.cuthill_mckee(Rows.of(A), root)
    assert np.array_equal(np.sort(order), np.arange(45))
    wanted = sp.csgraph.dijkstra(abs(A), indices=root, unweighted=True)
    assert np.array_equal(level[:36], wanted[:36])
    assert loops.depth(Rows.of(grid(9, 9)), np.array([0, 80])) == 8


def test_balls_hold_the_nodes_around_their_centres(loops):
    A = grid(40, 40)
    found = loops.balls(Rows.of(A), np.array([0, 1599]), 15)
    assert np.array_equal(found, np.unique(found)) and 25 <= len(found) <= 30
    near = np.array([k for k in found if k < 800])
    assert (near // 40 + near % 40).max() <= 5
    assert len(loops.balls(Rows.of(A), np.array([3, 3, 5, 8]), 4000)) == 1600


def test_minimum_discarded_fill_of_a_tree_discards_nothing():
    edges = [(k, (k - 1) // 2) for k in range(1, 31)]
    A = np.eye(31) * 4
    for i, j in edges:
        A[i, j] = A[j, i] = -1
    rows = Rows.of(sp.csr_matrix(A))
    order = kernels.minimum_discarded_fill(rows)
    T = kernels.factor(kernels.permuted(rows, order), 0.0, 0.0, 0.0).csr
    assert np.allclose((T.T @ sp.diags_array(1 / T.diagonal()) @ T).toarray(), A[np.ix_(order, order)])


@pytest.mark.parametrize("degrees", [20.0, 55.0, 105.0, 160.0])
def test_the_chosen_order_is_near_the_best_where_the_order_matters(degrees):
    A = rotated(100, degrees, 1e-3)
    counts = {order: iterations(A, incomplete.incomplete_cholesky(A, order).apply) for order in ("rcm", "rcm2", "mdf")}
    chosen = iterations(A, incomplete.incomplete_cholesky(A).apply)
    assert chosen <= 1.25 * min(counts.values()) + 1, counts


def test_ic_and_ssor_take_fewer_iterations_than_jacobi_in_three_dimensions(loops):
    A = grid(20, 20, 20)
    counts = {name: iterations(A, build(name, A)) for name in ("jacobi", "ssor", "ic")}
    assert counts["ic"] < 0.5 * counts["jacobi"] and counts["ssor"] < 0.7 * counts["jacobi"], counts


def test_ic_is_made_for_a_definite_matrix_whose_plain_factorization_breaks_down(loops):
    A = sp.csr_matrix(dense_definite(40, 5) * (np.random.default_rng(1).random((40, 40)) < 0.3))
    A = (A + A.T) / 2
    A = sp.csr_matrix(A + (1e-3 - np.linalg.eigvalsh(A.toarray()).min()) * sp.eye_array(40))
    assert iterations(A, build("ic", A)) <= 400


def test_the_same_matrix_gets_the_same_preconditioner_whatever_its_format():
    A, r = grid(9, 9), np.random.default_rng(0).standard_normal(81)
    wanted = build("ic", A)(r)
    twice = sp.coo_matrix((np.r_[A.tocoo().data / 2].repeat(2), (A.tocoo().row.repeat(2), A.tocoo().col.repeat(2))))
    for other in (A.toarray(), A.tocsc(), sp.coo_array(A), twice, A.astype(np.float32)):
        assert np.allclose(build("ic", other)(r), wanted)


def test_the_matrix_is_left_as_it_was(loops):
    A = rotated(12, 40.0, 1e-2)
    before = A.copy()
    for name in DEFINITE:
        build(name, A)
    assert (before != A).nnz == 0 and np.array_equal(A.indices, before.indices)


@pytest.mark.parametrize(
    ("name", "A", "method", "error"),
    [
        ("icc", grid(3, 3), "cg", UnknownNameError),
        (7, grid(3, 3), "cg", UnknownNameError),
        ("ilu", grid(3, 3), "cg", OptionError),
        ("ilu", grid(3, 3), "minres", OptionError),
        ("ic", -grid(3, 3), "cg", OptionError),
        ("ssor", grid(3, 3) + sp.triu(grid(3, 3), 1), "cg", OptionError),
        ("ic", lambda x: x, "cg", OptionError),
        ("ic", grid(3, 3) * np.nan, "cg", OptionError),
        ("ic", np.ones((2, 3)), "cg", ShapeError),
        ("ic", np.ones((4, 2, 2)), "cg", ShapeError),
        ("ic", np.eye(2) * 1j, "cg", DTypeError),
        ("ilu", sp.csr_matrix((3, 3)), "gmres", OptionError),
    ],
)
def test_what_cannot_be_preconditioned_is_refused(name, A, method, error):
    with pytest.raises(error):
        build(name, A, method)


def test_the_error_for_an_unknown_name_lists_the_names_and_ones_own():
    with pytest.raises(UnknownNameError) as raised:
        build("ilut", grid(3, 3))
    assert all(name in str(raised.value) for name in (*NAMES, "LinearOperator", "aspreconditioner"))


def test_amg_without_pyamg_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyamg", None)
    with pytest.raises(MissingPackageError, match="amg"):
        build("amg", grid(3, 3))


def test_preconditioners_import_no_torch():
    code = (
        "import sys, numpy as np, nlaformer.solvers.precondition.named as named\n"
        "[named.build(name, np.eye(3)) for name in ('jacobi', 'ssor', 'ic')]\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_numba_ic_says_what_that_costs():
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import numpy as np, nlaformer.solvers.precondition.named as named\n"
        "print(named.build('ic', np.eye(3)).told)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "numba" in found.stdout


@pytest.mark.parametrize("name", DEFINITE)
def test_cg_takes_a_preconditioner_by_name(name):
    A = grid(12, 12, 12)
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    plain, result = nf.cg(A, b, rtol=1e-9), nf.cg(A, b, M=name, rtol=1e-9)
    assert result.converged and result.iterations <= plain.iterations
    assert np.allclose(result.x, plain.x, atol=1e-7)
    columns = nf.cg(A.toarray(), np.stack([b, -b], 1), M=name, rtol=1e-9)
    assert columns.converged and np.allclose(columns.x[:, 0], plain.x, atol=1e-7)


def test_gmres_takes_ilu_and_cg_refuses_it():
    A = sp.csr_matrix(grid(15, 15) + 0.5 * sp.triu(grid(15, 15), 1))
    b = np.ones(225)
    result = nf.solve(A, b, M="ilu", rtol=1e-9, method="gmres")
    assert result.converged and result.iterations < nf.solve(A, b, rtol=1e-9, method="gmres").iterations
    with pytest.raises(OptionError, match="symmetric"):
        nf.cg(grid(15, 15), b, M="ilu")


@pytest.mark.parametrize("A", [sp.linalg.aslinearoperator(np.eye(4)), np.stack([np.eye(4)] * 4), np.eye(4)[:, :3]])
def test_names_that_need_the_entries_of_one_square_matrix_say_so(A):
    with pytest.raises(OptionError):
        nf.solve(A, np.ones(A.shape[0] if not isinstance(A, np.ndarray) else 4), M="ic")


def test_a_tensor_is_preconditioned_by_name_too():
    torch = pytest.importorskip("torch")
    A = torch.as_tensor(grid(6, 6).toarray())
    assert nf.cg(A, torch.ones(36, dtype=torch.float64), M="ic").converged


def test_an_aspreconditioner_of_pyamg_is_taken():
    pyamg = pytest.importorskip("pyamg")
    A = grid(30, 30)
    M = pyamg.ruge_stuben_solver(A).aspreconditioner()
    assert nf.cg(A, np.ones(900), M=M, rtol=1e-8).iterations < 15
