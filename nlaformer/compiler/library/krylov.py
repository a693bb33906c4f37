"""Krylov methods: the best approximation from the space of b, A b, A² b, ..., in one sense or another."""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.language import Program, positive
from nlaformer.compiler.library.families import (
    definite,
    least_squares,
    nonsymmetric,
)
from nlaformer.compiler.library.records import Record

_States = dict[str, Any]


class ConjugateGradient(Program):
    """Positive definite systems: the method of section 3 of the paper."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        return dict(x=x0, r=r, d=r, rho=r @ r)

    def step(self, A: Any, x: Any, r: Any, d: Any, rho: Any) -> _States:
        q = A @ d
        alpha = rho / (d @ q)
        r = r - alpha * q
        rho_next = r @ r
        beta = rho_next / rho
        return dict(x=x + alpha * d, r=r, d=r + beta * d, rho=rho_next)


class FusedConjugateGradient(Program):
    """The same iterates as cg after Chronopoulos and Gear: both inner products at once, so two layers fewer."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        w = A @ r
        gamma = r @ r
        alpha = gamma / (r @ w)
        return dict(x=x0 + alpha * r, r=r - alpha * w, p=r, s=w, gamma=gamma, alpha=alpha)

    def step(self, A: Any, x: Any, r: Any, p: Any, s: Any, gamma: Any, alpha: Any) -> _States:
        w = A @ r
        gamma_next = r @ r
        beta = gamma_next / gamma
        alpha_next = gamma_next / positive(r @ w - beta * gamma_next / alpha)
        p, s = r + beta * p, w + beta * s
        return dict(x=x + alpha_next * p, r=r - alpha_next * s, p=p, s=s, gamma=gamma_next, alpha=alpha_next)


class PreconditionedConjugateGradient(Program):
    """Positive definite systems with a diagonal of many sizes: conjugate gradients with Jacobi's preconditioner."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        z = r / np.diag(A)
        return dict(x=x0, r=r, d=z, rho=r @ z)

    def step(self, A: Any, x: Any, r: Any, d: Any, rho: Any) -> _States:
        q = A @ d
        alpha = rho / (d @ q)
        r = r - alpha * q
        z = r / np.diag(A)
        rho_next = r @ z
        return dict(x=x + alpha * d, r=r, d=z + (rho_next / rho) * d, rho=rho_next)


class ConjugateResidual(Program):
    """Positive definite systems: Stiefel's method, the smallest residual over the space of cg."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        w = A @ r
        return dict(x=x0, r=r, d=r, q=w, rho=r @ w)

    def step(self, A: Any, x: Any, r: Any, d: Any, q: Any, rho: Any) -> _States:
        alpha = rho / (q @ q)
        r = r - alpha * q
        w = A @ r
        rho_next = r @ w
        beta = rho_next / rho
        return dict(x=x + alpha * d, r=r, d=r + beta * d, q=w + beta * q, rho=rho_next)


class MinimalResidual(Program):
    """Systems with a definite symmetric part: the step along r that makes the next residual smallest."""

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        return dict(x=x0, r=b - A @ x0)

    def step(self, A: Any, x: Any, r: Any) -> _States:
        q = A @ r
        alpha = (r @ q) / (q @ q)
        return dict(x=x + alpha * r, r=r - alpha * q)


class NormalEquations(Program):
    """Any nonsingular system: conjugate gradients on A^T A x = A^T b (CGNR)."""

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        z = A.T @ r
        return dict(x=x0, r=r, d=z, rho=z @ z)

    def step(self, A: Any, x: Any, r: Any, d: Any, rho: Any) -> _States:
        q = A @ d
        alpha = rho / (q @ q)
        r = r - alpha * q
        z = A.T @ r
        rho_next = z @ z
        return dict(x=x + alpha * d, r=r, d=z + (rho_next / rho) * d, rho=rho_next)


class LeastSquaresConjugateGradient(Program):
    """Least squares, min |A x - b|: cgnr, judged by A^T (b - A x), since b - A x does not vanish (CGLS)."""

    start, step = NormalEquations.start, NormalEquations.step

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A.T @ (b - A @ x)


class Craig(Program):
    """Any nonsingular system: the smallest error over the space of cgnr (CGNE)."""

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        return dict(x=x0, r=r, d=A.T @ r, rho=r @ r)

    def step(self, A: Any, x: Any, r: Any, d: Any, rho: Any) -> _States:
        alpha = rho / (d @ d)
        r = r - alpha * (A @ d)
        rho_next = r @ r
        return dict(x=x + alpha * d, r=r, d=A.T @ r + (rho_next / rho) * d, rho=rho_next)


class BiConjugateGradientStabilized(Program):
    """Nonsymmetric systems: van der Vorst's method, no products with A^T."""

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        return dict(x=x0, r=r, d=r, shadow=r, rho=r @ r)

    def step(self, A: Any, x: Any, r: Any, d: Any, shadow: Any, rho: Any) -> _States:
        q = A @ d
        alpha = rho / (shadow @ q)
        s = r - alpha * q
        t = A @ s
        omega = (t @ s) / (t @ t)
        r = s - omega * t
        rho_next = shadow @ r
        beta = (rho_next / rho) * (alpha / omega)
        return dict(x=x + alpha * d + omega * s, r=r, d=r + beta * (d - omega * q), shadow=shadow, rho=rho_next)


class GMRES(Program):
    """Nonsymmetric systems: GMRES(k), the smallest residual over k dimensions; one loop is one cycle."""

    k = 2

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        return dict(x=x0, r=b - A @ x0)

    def step(self, A: Any, x: Any, r: Any) -> _States:
        g: Any = np.linalg.norm(r)
        V: list[Any] = [r / g]
        products: list[Any] = []
        rotations: list[Any] = []
        triangle: list[Any] = []
        right: list[Any] = []
        for j in range(self.k):
            w = A @ V[j]
            products.append(w)
            h = []
            for v in V:  # Arnoldi, by the modified Gram-Schmidt process
                h.append(v @ w)
                w = w - h[-1] * v
            size = np.linalg.norm(w)
            V.append(w / size)
            for i, (c, s) in enumerate(rotations):
                h[i], h[i + 1] = c * h[i] + s * h[i + 1], c * h[i + 1] - s * h[i]
            rho = np.sqrt(h[j] ** 2 + size**2)
            c, s = h[j] / rho, size / rho
            h[j] = rho
            rotations.append((c, s))
            triangle.append(h)
            right.append(c * g)
            g = -s * g
        y: list[Any] = [0.0] * self.k
        for i in reversed(range(self.k)):
            y[i] = (right[i] - sum(triangle[j][i] * y[j] for j in range(i + 1, self.k))) / triangle[i][i]
        x = x + sum(y[j] * V[j] for j in range(self.k))
        return dict(x=x, r=r - sum(y[j] * products[j] for j in range(self.k)))


def _few(n: int) -> int:
    """Enough in exact arithmetic, and some."""
    return n + 4


RECORDS = (
    Record("cg", ConjugateGradient, definite),
    Record("cg_fused", FusedConjugateGradient, definite),
    Record("pcg", PreconditionedConjugateGradient, definite),
    Record("conjugate_residual", ConjugateResidual, definite),
    Record("minimal_residual", MinimalResidual, nonsymmetric),
    Record("cgnr", NormalEquations, nonsymmetric),
    Record("cgls", LeastSquaresConjugateGradient, least_squares, _few),
    Record("craig", Craig, nonsymmetric),
    Record("bicgstab", BiConjugateGradientStabilized, nonsymmetric, _few),
    Record("gmres", GMRES, nonsymmetric),
)
