"""Stationary methods: the same correction in every loop, or in every sweep over the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.library.families import definite, dominant
from nlaformer.compiler.library.records import Record
from nlaformer.program.language import Program, positive

_States = dict[str, Any]


class Richardson(Program):
    """Positive definite systems, the simplest way: x + omega (b - A x).

    omega is ``relaxation`` over the norm of A, so 0 < relaxation < 2 converges.
    """

    relaxation = 1.5

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, omega=self.relaxation / np.linalg.norm(A))

    def step(self, A: Any, b: Any, x: Any, omega: Any) -> _States:
        return dict(x=x + omega * (b - A @ x), omega=omega)


class Jacobi(Program):
    """Diagonally dominant systems: every unknown from its own equation, all at once."""

    def start(self, x0: Any) -> _States:
        return dict(x=x0)

    def step(self, A: Any, b: Any, x: Any) -> _States:
        return dict(x=x + (b - A @ x) / np.diag(A))


class SuccessiveOverrelaxation(Program):
    """Diagonally dominant systems: one unknown a loop, moved ``omega`` times as far as its equation asks."""

    omega = 1.1

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, e=np.eye(len(A))[0])

    def step(self, A: Any, b: Any, x: Any, e: Any) -> _States:
        return dict(x=x + self.omega * e * (b - A @ x) / np.diag(A), e=np.roll(e, 1))


class GaussSeidel(Program):
    """Diagonally dominant systems: one unknown a loop from its own equation; n loops are a sweep."""

    omega = 1.0
    start, step = SuccessiveOverrelaxation.start, SuccessiveOverrelaxation.step


class Kaczmarz(Program):
    """Any consistent system: one row a loop, x projected onto its hyperplane."""

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, e=np.eye(len(A))[0])

    def step(self, A: Any, b: Any, x: Any, e: Any) -> _States:
        row = A.T @ e
        return dict(x=x + ((b @ e - row @ x) / (row @ row)) * row, e=np.roll(e, 1))


class Cimmino(Program):
    """Any consistent system: x reflected in the hyperplanes of all rows, and the mean of these points."""

    def start(self, x0: Any) -> _States:
        return dict(x=x0)

    def step(self, A: Any, b: Any, x: Any) -> _States:
        squares = np.sum(A * A, axis=1)
        return dict(x=x + (2 / len(b)) * (A.T @ ((b - A @ x) / squares)))


class Chebyshev(Program):
    """Definite systems without inner products: eigenvalues between norm(A) / ``condition`` and norm(A)."""

    condition = 100.0

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        centre = 0.5 * (1 + 1 / self.condition) * np.linalg.norm(A)
        r = b - A @ x0
        return dict(x=x0, r=r, d=r / centre, rho=self._ratio / (2 * self._ratio**2), centre=centre)

    def step(self, A: Any, x: Any, r: Any, d: Any, rho: Any, centre: Any) -> _States:
        x, r = x + d, r - A @ d
        rho_next = 1 / positive(2 * self._ratio - rho)
        # centre / ratio is half the width of the interval.
        return dict(
            x=x, r=r, d=rho_next * rho * d + (2 * self._ratio * rho_next / centre) * r, rho=rho_next, centre=centre
        )

    @property
    def _ratio(self) -> float:
        return (self.condition + 1) / (self.condition - 1)


class Anderson(Program):
    """Fixed points, here Jacobi's: the last two steps combined so that their residual is smallest (depth 1)."""

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        f = (b - A @ x0) / np.diag(A)
        x = x0 + f
        return dict(x=x, f=f, change=f)

    def step(self, A: Any, b: Any, x: Any, f: Any, change: Any) -> _States:
        f_next = (b - A @ x) / np.diag(A)
        difference = f_next - f
        gamma = (difference @ f_next) / (difference @ difference)
        change = f_next - gamma * (change + difference)
        return dict(x=x + change, f=f_next, change=change)


RECORDS = (
    Record("richardson", Richardson, definite),
    Record("jacobi", Jacobi, dominant),
    Record("gauss_seidel", GaussSeidel, dominant, lambda n: 6 * n),
    Record("sor", SuccessiveOverrelaxation, dominant, lambda n: 6 * n),
    Record("kaczmarz", Kaczmarz, dominant, lambda n: 6 * n),
    Record("cimmino", Cimmino, dominant),
    Record("chebyshev", Chebyshev, definite),
    Record("anderson", Anderson, dominant, lambda n: 12, particular=True),
)
