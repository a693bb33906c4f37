"""Weights for every n: the literal softmax, gathered heads and NumPy say the same; what needs n rows is refused."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import nlaformer as nf
from nlaformer.compiler import library
from nlaformer.compiler.anysize.algorithm import AnySizeAlgorithm
from nlaformer.errors import CompileError, DomainError, OptionError, ShapeError

# The programs of the library without matrices as states; those that solve a sparse definite system of any size.
SOLVERS = (
    "cg", "cg_fused", "pcg", "conjugate_residual", "minimal_residual", "minres", "cgnr", "cgls", "lsqr", "craig",
    "bicg", "bicgstab", "gmres", "richardson", "jacobi", "cimmino", "chebyshev", "anderson", "gradient_descent",
    "steepest_descent", "barzilai_borwein", "heavy_ball", "nesterov", "ridge", "runge_kutta",
)  # fmt: skip
OTHERS = (
    "power", "deflated_power", "subspace_iteration", "singular_vectors", "pagerank", "value_iteration", "ista", "fista",
    "projected_gradient", "logistic_regression", "huber_regression", "frank_wolfe", "mean_field", "leapfrog",
    "scalar_newton", "secular_newton", "nonnegative_least_squares", "adagrad", "sign_descent", "mixture",
)  # fmt: skip


@functools.cache
def algorithm(name: str, slots: int = 16) -> AnySizeAlgorithm:
    return nf.algorithm(name, n="any", slots=slots)


def system(n: int, seed: int) -> tuple[sp.csr_array, np.ndarray]:
    """A sparse definite matrix of a random pattern, of condition about 10, and a right-hand side."""
    rng = np.random.default_rng(seed)
    A = sp.random_array((n, n), density=3 / n, rng=rng, data_sampler=rng.standard_normal)
    A = sp.csr_array(A + A.T)
    shift = 1.2 * abs(A).sum(axis=1).max()
    return sp.csr_array(A + shift * sp.eye_array(n)), rng.standard_normal(n)


def apart(u: Any, v: Any) -> float:
    return float(np.abs(u - v).max() / max(np.abs(v).max(), 1e-300))


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_give_what_the_program_gives_densely_and_gathered(name: str) -> None:
    n = 40
    A, b = system(n, seed=len(name))
    given = {k: {"A": A, "b": b}[k] for k in ("A", "b")}
    if extra := set(library.record(name).program().inputs) - given.keys():
        given |= {k: v for k, v in library.record(name).problems(n, 1, 1)[0].items() if k in extra}
        given = {k: v[0] if k in extra and np.ndim(v) else v for k, v in given.items()}
    slots = int(np.diff(A.indptr).max())
    weights = algorithm(name, max(slots, 16))
    run = weights.run(**given, iterations=6)
    dense = weights.run(**given, iterations=6, attention="dense")
    own = library.program(name).run(**{k: v.toarray() if sp.issparse(v) else v for k, v in given.items()}, iterations=6)
    assert run.diagnose()
    assert dense.diagnose()
    assert apart(run.x[:4], own.x[:4]) < 1e-11
    assert apart(run.x[:4], dense.x[:4]) < 1e-11


@pytest.mark.parametrize("name", OTHERS)
def test_other_programs_give_what_the_program_gives_densely_and_gathered(name: str) -> None:
    n = 16
    given = {key: np.asarray(value)[0] for key, value in library.record(name).problems(n, 1, 3)[0].items()}
    weights = algorithm(name)
    run, dense = weights.run(**given, iterations=5), weights.run(**given, iterations=5, attention="dense")
    own = library.program(name).run(**given, iterations=5)
    assert run.diagnose()
    assert apart(run.x, own.x) < 1e-11
    assert apart(run.x, dense.x) < 1e-11


def test_one_file_of_weights_runs_systems_of_every_size(tmp_path: Any) -> None:
    algorithm("cg").save(tmp_path / "cg")
    assert (tmp_path / "cg" / "model.safetensors").stat().st_size < 4e6
    loaded = nf.load(tmp_path / "cg")
    for n in (1, 5, 3000):
        A, b = system(n, seed=n) if n > 1 else (sp.csr_array([[2.0]]), np.ones(1))
        run = loaded.run(A, b, iterations=30)
        assert np.linalg.norm(A @ run.x[-1] - b) < 1e-12 * np.linalg.norm(b)
        assert run.status == nf.RunStatus.CONVERGED
        assert run.digits["x"][-1] > 8


def test_weights_know_neither_n_nor_a() -> None:
    cg = algorithm("cg")
    before = {name: tensor.clone() for name, tensor in cg.model.state_dict().items()}
    cg.run(*system(100, seed=1), iterations=2)
    assert all(torch.equal(before[name], tensor) for name, tensor in cg.model.state_dict().items())


def test_any_magnitude_is_scaled_by_powers_of_two() -> None:
    A, b = system(30, seed=2)
    run, scaled = (algorithm("cg").run(A * s, b * t, iterations=5) for s, t in ((1.0, 1.0), (2.0**60, 2.0**-90)))
    assert np.array_equal(run.x * 2.0**-150, scaled.x)


def test_a_matrix_of_subnormal_numbers_is_scaled() -> None:
    cg, A = nf.algorithm("cg", n="any", slots=3), np.diag(np.arange(1.0, 6.0)) * 2.0**-1040
    run = cg.run(A, np.ones(5) * 2.0**-1000, iterations=6)
    np.testing.assert_allclose(run.x[-1], 2.0**40 / np.arange(1.0, 6.0), rtol=1e-9)


@pytest.mark.parametrize("kind", ["csr", "coo", "dense", "torch csr", "torch coo", "torch"])
def test_matrices_of_every_kind_are_taken(kind: str) -> None:
    A, b = system(25, seed=3)
    dense = torch.tensor(A.toarray())
    made = {"csr": A, "coo": A.tocoo(), "dense": A.toarray(), "torch csr": dense.to_sparse_csr()}
    made |= {"torch coo": dense.to_sparse_coo(), "torch": dense}
    expected = algorithm("cg").run(A, b, iterations=3).x
    assert np.array_equal(np.asarray(algorithm("cg").run(made[kind], b, iterations=3).x), expected)


def test_right_hand_sides_run_as_if_alone() -> None:
    A, _ = system(20, seed=4)
    B = np.random.default_rng(0).standard_normal((2, 3, 20))
    run = algorithm("bicgstab").run(A, B, iterations=3)
    assert run.x.shape == (2, 3, 4, 20)
    assert np.array_equal(run.x[1, 2], algorithm("bicgstab").run(A, B[1, 2], iterations=3).x)


def test_rectangular_matrices_are_padded() -> None:
    rng = np.random.default_rng(5)
    A = sp.csr_array(sp.random_array((30, 12), density=0.3, rng=rng) + sp.eye_array(30, 12))
    b = rng.standard_normal(30)
    run = algorithm("lsqr", 30).run(A, b, iterations=14)
    assert apart(run.x[-1, :12], np.linalg.lstsq(A.toarray(), b, rcond=None)[0]) < 1e-9


def test_a_user_s_program_with_further_matrices_compiles() -> None:
    class TwoGrid(nf.Program):
        inputs = {"P": "matrix", "coarse": "vector"}  # noqa: RUF012
        rectangular = True
        damping = 0.6

        def start(self, x0: Any) -> dict[str, Any]:
            return dict(x=x0)

        def step(self, A: Any, b: Any, P: Any, coarse: Any, x: Any) -> dict[str, Any]:
            x = x + self.damping * (b - A @ x) / np.diag(A)
            return dict(x=x + P @ (coarse * (P.T @ (b - A @ x))))

    n = 24
    A, b = system(n, seed=6)
    P = sp.csr_array(np.kron(np.eye(n // 2), np.ones((2, 1))))
    coarse = np.zeros(n)
    coarse[: n // 2] = 1 / (P.T @ A @ P).diagonal()
    weights = nf.compile(TwoGrid(), n="any")
    run = weights.run(A, b, P=P, coarse=coarse, iterations=8)
    padded = np.pad(P.toarray(), [(0, 0), (0, n - n // 2)])
    assert apart(run.x, TwoGrid().run(A.toarray(), b, P=padded, coarse=coarse, iterations=8).x) < 1e-12
    assert run.diagnose()


def test_a_preconditioner_of_two_triangular_sweeps_and_a_heat_equation_compile() -> None:
    class Swept(nf.Program):
        """CG preconditioned with L L^T, both factors by three steps of Jacobi's method."""

        inputs = {"L": "matrix"}  # noqa: RUF012
        positive_definite = True

        def sweep(self, L: Any, r: Any) -> Any:
            diagonal = np.diag(L)
            y = r / diagonal
            for _ in range(3):
                y = y + (r - L @ y) / diagonal
            z = y / diagonal
            for _ in range(3):
                z = z + (y - L.T @ z) / diagonal
            return z

        def start(self, A: Any, b: Any, L: Any, x0: Any) -> dict[str, Any]:
            r = b - A @ x0
            z = self.sweep(L, r)
            return dict(x=x0, r=r, d=z, rho=r @ z)

        def step(self, A: Any, L: Any, x: Any, r: Any, d: Any, rho: Any) -> dict[str, Any]:
            q = A @ d
            alpha = rho / (d @ q)
            r = r - alpha * q
            z = self.sweep(L, r)
            rho_next = r @ z
            return dict(x=x + alpha * d, r=r, d=z + rho_next / rho * d, rho=rho_next)

    class Heat(nf.Program):
        def start(self, b: Any) -> dict[str, Any]:
            return dict(x=b)

        def step(self, A: Any, x: Any) -> dict[str, Any]:
            return dict(x=x - 0.2 / np.linalg.norm(A) * (A @ x))

    A, b = system(30, seed=13)
    L = sp.csr_array(np.linalg.cholesky(A.toarray()) * (abs(np.tril(A.toarray())) > 0))
    for program, given in ((Swept(), {"A": A, "b": b, "L": L}), (Heat(), {"A": A, "b": b})):
        run = nf.compile(program, n="any").run(**given, iterations=4)
        own = program.run(**{k: v.toarray() if sp.issparse(v) else v for k, v in given.items()}, iterations=4)
        assert apart(run.x, own.x) < 1e-12
        assert run.diagnose()


def test_weights_are_read_as_they_are_now() -> None:
    cg = nf.algorithm("cg", n="any", slots=8)
    A, b = system(20, seed=7)
    A = sp.csr_array(sp.diags_array([np.ones(19), 4 * np.ones(20), np.ones(19)], offsets=[-1, 0, 1]))
    before = cg.run(A, b, iterations=3).x
    cg.model.loop[0].heads.W_O.values.data *= 1.001
    gathered, dense = (cg.run(A, b, iterations=3, attention=kind) for kind in ("gathered", "dense"))
    assert apart(gathered.x, before) > 1e-5
    assert apart(gathered.x, dense.x) < 1e-12
    assert gathered.status == nf.RunStatus.INACCURATE


def test_hooks_see_dense_attention_and_gathered_heads_refuse_them() -> None:
    cg = nf.algorithm("cg", n="any", slots=8)
    A = sp.csr_array(sp.diags_array([np.ones(9), 4 * np.ones(10), np.ones(9)], offsets=[-1, 0, 1]))
    seen = []
    handle = cg.model.hooks["loop.layer[0].output"].register_forward_hook(lambda *given: seen.append(given[2].shape))
    with pytest.raises(OptionError):
        cg.run(A, np.ones(10), iterations=1)
    cg.run(A, np.ones(10), iterations=1, attention="dense")
    handle.remove()
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("name", "line"),
    [("lanczos", "np.outer"), ("newton_schulz", "X"), ("admm", "X"), ("heat", "np.roll"), ("cholesky", "")],
)
def test_what_needs_n_rows_is_refused_with_its_line(name: str, line: str) -> None:
    with pytest.raises(CompileError) as refusal:
        nf.algorithm(name, n="any")
    assert line in str(refusal.value)
    assert ".py, line" in str(refusal.value)


class _Broken(nf.Program):
    def start(self, x0: Any) -> dict[str, Any]:
        return dict(x=x0)


@pytest.mark.parametrize(
    "step",
    [
        lambda self, A, b, x: dict(x=x + b[0]),
        lambda self, A, b, x: dict(x=x + np.arange(len(b)) * b),
        lambda self, A, b, x: dict(x=(A @ A) @ x),
        lambda self, A, b, x: dict(x=x + len(b) % 3 * b),
        lambda self, A, b, x: dict(x=sum((A @ x for _ in range(len(b))), x)),
    ],
)
def test_what_depends_on_n_is_refused(step: Any) -> None:
    program = type("Made", (_Broken,), dict(step=step))()
    with pytest.raises(CompileError):
        nf.compile(program, n="any")


def test_long_rows_are_refused_with_the_slots_that_they_need() -> None:
    A = sp.csr_array(np.eye(20) + np.eye(20)[:1].T @ np.ones((1, 20)))
    with pytest.raises(ShapeError, match="slots=20"):
        algorithm("cg").run(A, np.ones(20))


@pytest.mark.parametrize("change", ["nan", "sizes", "rectangular", "missing", "extra"])
def test_bad_input_is_refused(change: str) -> None:
    A, b = system(10, seed=8)
    given: dict[str, Any] = {"A": A, "b": b}
    if change == "nan":
        given["b"] = np.full(10, np.nan)
    elif change == "sizes":
        given["b"] = np.ones(9)
    elif change == "rectangular":
        given["A"] = sp.csr_array(np.ones((10, 9)))
    elif change == "missing":
        del given["A"]
    else:
        given["c"] = b
    with pytest.raises((ShapeError, DomainError)):
        algorithm("cg").run(**given, iterations=1)


@pytest.mark.parametrize("options", [dict(order=2), dict(verify=False), dict(dtype="float32"), dict(slots=0)])
def test_settings_without_effect_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        nf.algorithm("cg", n="any", **options)
    with pytest.raises(OptionError):
        nf.algorithm("cg", n=4, slots=3)


@pytest.mark.parametrize("columns", [(), (2,)])
def test_solve_certifies_the_answers_of_weights_for_every_n(columns: tuple[int, ...]) -> None:
    A, _ = system(200, seed=10)
    b = np.random.default_rng(1).standard_normal((200, *columns))
    result = nf.solve(A, b, model=algorithm("cg", 20), rtol=1e-10)
    assert np.all(result.converged)
    assert np.all(result.model.accepted > 0)
    assert np.linalg.norm(A @ result.x - b) <= 1e-9 * np.linalg.norm(b)


def test_the_last_iterate_alone_may_be_kept() -> None:
    A, b = system(15, seed=9)
    run = algorithm("cg").run(A, b, iterations=5, keep="last")
    assert np.array_equal(run.x[0], algorithm("cg").run(A, b, iterations=5).x[-1])


def test_a_large_run_is_judged_by_its_residual_and_says_that_it_has_no_digits() -> None:
    n = 300_000
    A = sp.csr_array(sp.diags_array([-np.ones(n - 1), 4 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1]))
    run = algorithm("cg").run(A, np.ones(n), iterations=25)
    assert run.status == nf.RunStatus.CONVERGED
    for asked in (lambda: run.digits, run.check):
        with pytest.raises(OptionError):
            asked()


def test_a_run_is_compared_with_the_lines_of_its_program() -> None:
    A, b = system(30, seed=12)
    assert algorithm("pcg").run(A, b, iterations=4).check()


def test_an_indefinite_matrix_is_called_not_positive() -> None:
    A = sp.csr_array(sp.diags_array([np.r_[-1.0, np.ones(9)]], offsets=[0]))
    assert algorithm("cg").run(A, np.r_[4.0, np.ones(9)], iterations=4).status == nf.RunStatus.NOT_POSITIVE
