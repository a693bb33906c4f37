"""What nf.cg, nf.gmres, nf.minres and nf.solve cost and show: what they import, progress on a terminal, Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import textwrap
from collections.abc import Callable
from fractions import Fraction
from operator import mul
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse import linalg

import nlaformer as nf
from nlaformer import Status
from nlaformer.errors import DomainError


def symmetric(n: int, condition: float, definite: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    A = (q * np.geomspace(1, condition, n) * (1 if definite else rng.choice([-1, 1], n))) @ q.T
    return (A + A.T) / 2, rng.standard_normal(n)


@pytest.mark.parametrize(
    "solve",
    [
        "cg(A, b)",
        "cg(S, b)",
        "pcg(S, b)",
        "gmres(A, b)",
        "minres(A, b)",
        "solve(L, b)",
        "solve(A[None], b)",
        "solve(A[:, :2], b)",
    ],
)
def test_a_solve_of_numpy_and_scipy_arrays_loads_neither_torch_nor_the_compiler_nor_learn(solve: str) -> None:
    code = f"""
        import sys, numpy as np, nlaformer as nf
        from scipy.sparse import csr_array, linalg
        A, b = np.diag([1.0, 2.0, 3.0]), np.ones(3)
        S, L = csr_array(A), linalg.aslinearoperator(A)
        assert nf.{solve}.converged
        parts = ("torch", "nlaformer.compiler", "nlaformer.learn", "nlaformer.express", "nlaformer.loading")
        print([name for name in sys.modules if name in parts or name.startswith(tuple(f"{{p}}." for p in parts))])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.parametrize("n", [1, 2, 30, 120])
def test_minres_solves_symmetric_systems_definite_or_not(n: int, definite: bool) -> None:
    A, b = symmetric(n, 50.0, definite)
    for M in (None, 1 / (1 + np.abs(np.diag(A)))):
        result = nf.minres(A, b, M=M, rtol=1e-9)
        assert result.converged and "MINRES" in result.method
        assert np.linalg.norm(b - A @ result.x) <= 1e-9 * np.linalg.norm(b)
        assert M is not None or np.all(np.diff(result.residuals[:-1]) <= 1e-12 * np.linalg.norm(b))
    several = nf.minres(np.stack([A, -A, 2 * A]), b, rtol=1e-9)
    assert several.converged and np.allclose(several.x[0], -several.x[1])


def test_minres_takes_about_the_iterations_of_scipys() -> None:
    A, b = symmetric(80, 30.0, False)
    counted: list[int] = []
    linalg.minres(A, b, rtol=1e-8, callback=lambda x: counted.append(1))
    assert nf.minres(A, b, rtol=1e-6).iterations <= len(counted) + 2
    with pytest.raises(DomainError, match="not symmetric"):
        nf.minres(np.triu(np.ones((4, 4))), np.ones(4))


def test_gmres_starts_again_after_so_many_steps() -> None:
    A = np.eye(40) * 4 + np.random.default_rng(0).standard_normal((40, 40)) / 3
    long, short = nf.gmres(A, np.ones(40), rtol=1e-9), nf.gmres(A, np.ones(40), rtol=1e-9, restart=4)
    assert long.converged and short.converged and short.iterations > long.iterations
    with pytest.raises(nf.errors.OptionError, match="restart"):
        nf.gmres(A, np.ones(40), restart=0)


def test_the_certificate_of_each_stage_holds_in_exact_arithmetic() -> None:
    for condition, rtol in ((1e2, 1e-8), (1e10, 1e-6), (1e12, 1e-5)):  # norms, |A| |x|, twice the precision
        A, b = symmetric(25, condition, True)
        for given in (A, sparse.csr_array(A), np.stack([A, A])):
            result = nf.cg(given, b, rtol=rtol, maxiter=5000, check="ignore")
            x = [Fraction(value) for value in np.atleast_2d(result.x)[0]]
            rows = ([Fraction(entry) for entry in row] for row in A)
            squares = [(Fraction(r) - sum(map(mul, row, x))) ** 2 for r, row in zip(b, rows, strict=True)]
            assert Fraction(np.ravel(result.residual_bound)[0]) ** 2 >= sum(squares)


def interrupting(after: int) -> Callable[[Any], None]:
    calls: list[int] = []

    def callback(x: Any) -> None:
        calls.append(1)
        if len(calls) == after:
            raise KeyboardInterrupt

    return callback


@pytest.mark.parametrize("solve", [nf.cg, nf.gmres, nf.minres])
def test_an_interrupted_solve_gives_the_best_x(solve: Callable[..., Any]) -> None:
    A, b = symmetric(60, 1e4, True)
    result = solve(A, b, rtol=1e-12, callback=interrupting(9), check="ignore")
    assert result.status is Status.INTERRUPTED and not result.converged and result.iterations == 9
    assert np.linalg.norm(b - A @ result.x) == pytest.approx(result.residuals.min(), rel=1e-6)
    several = solve(np.stack([A, A]), b, rtol=1e-12, callback=interrupting(9), check="ignore")
    assert list(several.status) == [Status.INTERRUPTED] * 2


def test_a_long_solve_shows_its_progress_on_a_terminal_alone() -> None:
    code = """
        import numpy as np, time, nlaformer as nf
        from nlaformer.solvers import progress
        from scipy.sparse.linalg import LinearOperator
        progress._FIRST, progress._PAUSE = 0.05, 0.02
        d = np.geomspace(1, 1e3, 400)
        def product(v):
            time.sleep(0.002)
            return d * v
        nf.cg(LinearOperator((400, 400), matvec=product, dtype=float), np.ones(400), maxiter=150, check="ignore")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    quiet = subprocess.run(command, capture_output=True, text=True, check=True)
    assert quiet.stderr == ""
    own, terminal = pty.openpty()
    process = subprocess.Popen(command, stderr=terminal)
    os.close(terminal)
    shown = ""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(own, 2**12):
            shown += part.decode()
    os.close(own)
    assert process.wait() == 0
    for word in ("iteration", "residual", "products/s", "left"):
        assert word in shown
    assert shown.rstrip("\n").endswith("\r")  # the line is removed
