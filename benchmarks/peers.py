"""Ways to solve a batch of linear systems, ours and others', behind one signature: (A, b, rtol) -> Outcome.

A is (m, n, n) and b (m, n), NumPy, float64, symmetric positive definite. Every method may take 10 n iterations.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import nlaformer as nf
from nlaformer.solvers.guided import POLICIES

LEARNED = sorted(POLICIES)


@dataclass(frozen=True)
class Outcome:
    """What a method found; a number per system where it counts such a thing, else None."""

    x: np.ndarray  # (m, n)
    claims: np.ndarray  # (m,) whether the method says that it converged
    iterations: np.ndarray | None = None
    matvecs: np.ndarray | None = None  # products with A outside a model
    applications: np.ndarray | None = None  # of a model


@dataclass(frozen=True)
class Method:
    """A way to solve; ``model`` is the name of the model it uses, ``package`` what has to be installed for it."""

    name: str
    solve: Callable[[np.ndarray, np.ndarray, float], Outcome]
    model: str | None = None
    package: str | None = None

    @property
    def label(self) -> str:
        return f"{self.name} {self.model}" if self.model else self.name

    @property
    def installed(self) -> bool:
        return self.package is None or importlib.util.find_spec(self.package) is not None


def learned(name: str, model: str, solver: Any) -> Method:
    """One of our methods with a trained model, which is loaded already."""

    def solve(A: np.ndarray, b: np.ndarray, rtol: float) -> Outcome:
        return _ours(nf.solve(A, b, model=solver, method=name, rtol=rtol, check="ignore"))

    return Method(name, solve, model)


def classical() -> list[Method]:
    """CG first: what the others are compared with."""
    return [
        Method("CG", lambda A, b, rtol: _ours(nf.cg(A, b, rtol=rtol, check="ignore"))),
        Method("Jacobi-PCG", lambda A, b, rtol: _ours(nf.pcg(A, b, rtol=rtol, check="ignore"))),
        Method("SciPy cg", _scipy),
        Method("linear_operator CG", _linear_operator, package="linear_operator"),
        Method("PyAMG", _pyamg, package="pyamg"),
        Method("Cholesky, batched", _cholesky),
    ]


def _ours(result: nf.SolveResult[np.ndarray]) -> Outcome:
    claims = np.array([status is nf.Status.CONVERGED for status in np.ravel(np.asarray(result.status, dtype=object))])
    asked = None if result.model is None else np.asarray(result.model.applications)
    return Outcome(result.x, claims, np.asarray(result.iterations), np.asarray(result.matvecs), asked)


def _scipy(A: np.ndarray, b: np.ndarray, rtol: float) -> Outcome:
    from scipy.sparse.linalg import cg

    x, claims, counts = np.zeros_like(b), np.zeros(len(b), dtype=bool), np.zeros(len(b))

    def count(_: Any) -> None:
        counts[k] += 1

    for k in range(len(b)):
        x[k], info = cg(A[k], b[k], rtol=rtol, callback=count)
        claims[k] = info == 0
    return Outcome(x, claims, counts, counts)


def _linear_operator(A: np.ndarray, b: np.ndarray, rtol: float) -> Outcome:
    """Its batched CG, which stops when the mean of the residuals is small; its eps would end it at 1e-10."""
    from linear_operator.utils.linear_cg import linear_cg
    from linear_operator.utils.warnings import NumericalWarning

    matrices, calls = torch.from_numpy(A), 0

    def product(v: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return matrices @ v

    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        right = torch.from_numpy(b)[..., None]
        options = {"eps": 1e-30, "stop_updating_after": rtol / 10, "max_iter": 10 * b.shape[-1]}
        x = linear_cg(product, right, tolerance=rtol, **options)[..., 0].numpy()
    # One product goes into the first residual; all systems of the batch take the same number of iterations.
    every = np.full(len(b), calls)
    complained = any(issubclass(complaint.category, NumericalWarning) for complaint in complaints)
    return Outcome(x, np.full(len(b), not complained), every - 1, every)


def _pyamg(A: np.ndarray, b: np.ndarray, rtol: float) -> Outcome:
    """Smoothed aggregation as a preconditioner of CG, set-up counted; its cycles apply A too, uncounted."""
    import pyamg
    from scipy.sparse import csr_matrix

    x, claims, counts = np.zeros_like(b), np.zeros(len(b), dtype=bool), np.zeros(len(b))
    for k in range(len(b)):
        residuals: list[float] = []
        hierarchy = pyamg.smoothed_aggregation_solver(csr_matrix(A[k]))
        options = {"tol": rtol, "accel": "cg", "maxiter": 10 * b.shape[-1], "residuals": residuals}
        x[k], info = hierarchy.solve(b[k], return_info=True, **options)
        claims[k], counts[k] = info == 0, len(residuals) - 1
    return Outcome(x, claims, counts)


def _cholesky(A: np.ndarray, b: np.ndarray, rtol: float) -> Outcome:
    L, info = torch.linalg.cholesky_ex(torch.from_numpy(A))
    x = torch.cholesky_solve(torch.from_numpy(b)[..., None], L)[..., 0].numpy()
    return Outcome(x, (info == 0).numpy())
