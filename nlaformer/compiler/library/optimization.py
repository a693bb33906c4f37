"""Smooth optimization: gradients, momentum, curvature.

Unless said otherwise f(x) = x^T A x / 2 - b^T x for a positive definite A, whose gradient is A x - b.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.language import Program
from nlaformer.compiler.library import families as problems
from nlaformer.compiler.library.records import Record

_States = dict[str, Any]


class GradientDescent(Program):
    """Least squares by fixed steps: f(x) = |A x - b|² / 2, the step 1 / |A|²."""

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, rate=1 / np.vdot(A, A))

    def step(self, A: Any, b: Any, x: Any, rate: Any) -> _States:
        return dict(x=x - rate * (A.T @ (A @ x - b)), rate=rate)

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A.T @ (b - A @ x)


class SteepestDescent(Program):
    """Definite systems: the gradient method with the best step, the residual carried along."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        return dict(x=x0, r=b - A @ x0)

    def step(self, A: Any, x: Any, r: Any) -> _States:
        q = A @ r
        alpha = (r @ r) / (r @ q)
        return dict(x=x + alpha * r, r=r - alpha * q)


class BarzilaiBorwein(Program):
    """Definite systems: the gradient method with the best step of the iteration before, far quicker than the best."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        return dict(x=x0, r=b - A @ x0, alpha=1 / np.linalg.norm(A))

    def step(self, A: Any, x: Any, r: Any, alpha: Any) -> _States:
        q = A @ r
        return dict(x=x + alpha * r, r=r - alpha * q, alpha=(r @ r) / (r @ q))


class HeavyBall(Program):
    """Definite systems: Polyak's method, Richardson with a memory of the last step."""

    relaxation, momentum = 2.5, 0.75

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, previous=x0, omega=self.relaxation / np.linalg.norm(A))

    def step(self, A: Any, b: Any, x: Any, previous: Any, omega: Any) -> _States:
        return dict(x=x + omega * (b - A @ x) + self.momentum * (x - previous), previous=x, omega=omega)


class ScalarNewton(Program):
    """Separable nonlinear systems, entry by entry: Newton's method for x + e^x = b."""

    def start(self, b: Any) -> _States:
        return dict(x=np.zeros_like(b))

    def step(self, b: Any, x: Any) -> _States:
        growth = np.exp(x)
        return dict(x=x - (x + growth - b) / (1 + growth))

    def residual(self, b: Any, x: Any) -> Any:
        return x + np.exp(x) - b

    def residual_scale(self, b: Any, x: Any) -> Any:
        return np.linalg.norm(b) + np.linalg.norm(np.exp(x))


RECORDS = (
    Record("gradient_descent", GradientDescent, problems.least_squares),
    Record("steepest_descent", SteepestDescent, problems.definite),
    Record("barzilai_borwein", BarzilaiBorwein, problems.definite),
    Record("heavy_ball", HeavyBall, problems.definite),
    Record("scalar_newton", ScalarNewton, problems.exponential, lambda n: 20),
)
