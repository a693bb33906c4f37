"""Optimization with constraints and corners: projections, thresholds, multipliers."""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.library import families as problems
from nlaformer.compiler.library.records import Record
from nlaformer.program.language import Program

_States = dict[str, Any]


def _shrink(v: Any, level: Any) -> Any:
    """Every entry moved towards 0 by a level, and not beyond."""
    return np.maximum(v - level, 0) - np.maximum(-v - level, 0)


# The lasso: min |A x - b|² / 2 + level |x|_1, the level this times |A^T b|, above which the answer is 0.
_PENALTY = 0.1


def _lasso_residual(self: Program, A: Any, b: Any, x: Any) -> Any:
    """How far a proximal gradient step of length 1 / |A|² moves x."""
    rate = 1 / np.vdot(A, A)
    return x - _shrink(x + rate * (A.T @ (b - A @ x)), rate * _PENALTY * np.linalg.norm(A.T @ b))


class ISTA(Program):
    """Sparse regression (lasso): a gradient step, then every entry moved towards 0."""

    rectangular, residual = True, _lasso_residual

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        rate = 1 / np.vdot(A, A)
        return dict(x=x0, rate=rate, level=rate * _PENALTY * np.linalg.norm(A.T @ b))

    def step(self, A: Any, b: Any, x: Any, rate: Any, level: Any) -> _States:
        return dict(x=_shrink(x + rate * (A.T @ (b - A @ x)), level), rate=rate, level=level)


class FISTA(Program):
    """Sparse regression (lasso): ista with Nesterov's momentum, after Beck and Teboulle."""

    rectangular, residual = True, _lasso_residual

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        rate = 1 / np.vdot(A, A)
        return dict(x=x0, y=x0, t=1.0, rate=rate, level=rate * _PENALTY * np.linalg.norm(A.T @ b))

    def step(self, A: Any, b: Any, x: Any, y: Any, t: Any, rate: Any, level: Any) -> _States:
        x_next = _shrink(y + rate * (A.T @ (b - A @ y)), level)
        t_next = (1 + np.sqrt(1 + 4 * t**2)) / 2
        return dict(x=x_next, y=x_next + ((t - 1) / t_next) * (x_next - x), t=t_next, rate=rate, level=level)


class ADMM(Program):
    """Sparse regression (lasso): a ridge regression, a threshold and a multiplier in turn."""

    rectangular, residual = True, _lasso_residual

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        total = np.vdot(A, A)
        rho = 0.1 * total
        M = A.T @ A + rho * np.eye(len(A))
        X = np.eye(len(A)) / (total + rho)
        for _ in range(9):  # Newton and Schulz's iteration: 1 - 1/11 to the power of 512 is 1e-21
            X = X @ (2 * np.eye(len(A)) - M @ X)
        return dict(x=x0, u=np.zeros_like(x0), X=X, rho=rho, level=_PENALTY * np.linalg.norm(A.T @ b) / rho)

    def step(self, A: Any, b: Any, x: Any, u: Any, X: Any, rho: Any, level: Any) -> _States:
        ridge = X @ (A.T @ b + rho * (x - u))
        x = _shrink(ridge + u, level)
        return dict(x=x, u=u + ridge - x, X=X, rho=rho, level=level)


class ProjectedGradient(Program):
    """Quadratic functions in a box, lower <= x <= upper: a gradient step, then the nearest point of the box."""

    inputs = dict(lower="vector", upper="vector")

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, rate=1 / np.linalg.norm(A))

    def step(self, A: Any, b: Any, lower: Any, upper: Any, x: Any, rate: Any) -> _States:
        return dict(x=np.minimum(np.maximum(x + rate * (b - A @ x), lower), upper), rate=rate)

    def residual(self, A: Any, b: Any, lower: Any, upper: Any, x: Any) -> Any:
        """How far a step moves x."""
        return x - np.minimum(np.maximum(x + (b - A @ x) / np.linalg.norm(A), lower), upper)


class NonnegativeLeastSquares(Program):
    """Least squares with x >= 0: projected gradient steps with Nesterov's momentum."""

    rectangular = True

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, y=x0, t=1.0, rate=1 / np.vdot(A, A))

    def step(self, A: Any, b: Any, x: Any, y: Any, t: Any, rate: Any) -> _States:
        x_next = np.maximum(y + rate * (A.T @ (b - A @ y)), 0)
        t_next = (1 + np.sqrt(1 + 4 * t**2)) / 2
        return dict(x=x_next, y=x_next + ((t - 1) / t_next) * (x_next - x), t=t_next, rate=rate)

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return x - np.maximum(x + (A.T @ (b - A @ x)) / np.vdot(A, A), 0)


class MultiplicativeUpdate(Program):
    """Nonnegative least squares with nonnegative data: Lee and Seung's update, x stays positive by itself."""

    def start(self, A: Any, b: Any) -> _States:
        return dict(x=np.ones_like(b) * (np.sum(b) / np.sum(A)))

    def step(self, A: Any, b: Any, x: Any) -> _States:
        return dict(x=x * (A.T @ b) / (A.T @ (A @ x)))

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return x * (A.T @ (b - A @ x))


class MirrorDescent(Program):
    """Quadratic functions of probabilities: steps in the logarithm of x, which keep x positive and its sum 1."""

    rate = 1.0

    def start(self, b: Any) -> _States:
        return dict(x=np.full(len(b), 1 / len(b)))

    def step(self, A: Any, b: Any, x: Any) -> _States:
        weights = x * np.exp(-self.rate * (A @ x - b))
        return dict(x=weights / weights.sum())

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        """The gradient less its mean under x, times x."""
        g = A @ x - b
        return x * (g - x @ g)


class FrankWolfe(Program):
    """Quadratic functions in a ball, |x| <= 1: towards the best point of the linearized function, no projection."""

    def start(self, x0: Any) -> _States:
        return dict(x=x0, t=2.0)

    def step(self, A: Any, b: Any, x: Any, t: Any) -> _States:
        r = b - A @ x
        return dict(x=x + (2 / t) * (r / np.linalg.norm(r) - x), t=t + 1)

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        """How far a projected gradient step moves x."""
        v = x + b - A @ x
        return x - v / np.maximum(np.linalg.norm(v), 1)


RECORDS = (
    Record("ista", ISTA, problems.regression, particular=True),
    Record("fista", FISTA, problems.regression, particular=True),
    Record("admm", ADMM, problems.regression, particular=True),
    Record("projected_gradient", ProjectedGradient, problems.box, particular=True),
    Record("nonnegative_least_squares", NonnegativeLeastSquares, problems.regression, particular=True),
    Record("multiplicative_update", MultiplicativeUpdate, problems.nonnegative, particular=True),
    Record("mirror_descent", MirrorDescent, problems.simplex, bound=16.0),
    Record("frank_wolfe", FrankWolfe, problems.simplex, bound=16.0),
)
