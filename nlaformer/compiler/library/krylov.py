"""Krylov methods: the best approximation from the space of b, A b, A² b, ..., in one sense or another."""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.library.families import (
    columns,
    definite,
    general_reduction,
    indefinite,
    least_squares,
    nonsymmetric,
    symmetric_reduction,
)
from nlaformer.compiler.library.records import Record
from nlaformer.program.language import Program, positive

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


class MINRES(Program):
    """Symmetric indefinite systems: Paige and Saunders' method, Lanczos with one Givens rotation a step."""

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        beta = np.linalg.norm(r)
        nothing = np.zeros_like(r)
        vectors = dict(v=r / beta, v_old=nothing, w=nothing, w_old=nothing)
        return dict(x=x0, **vectors, beta=0.0, eta=beta, c=1.0, c_old=1.0, s=0.0, s_old=0.0)

    def step(
        self, A: Any, x: Any, v: Any, v_old: Any, w: Any, w_old: Any, beta: Any, eta: Any, c: Any, c_old: Any, s: Any,
        s_old: Any,
    ) -> _States:  # fmt: skip
        u = A @ v
        alpha = v @ u
        u = u - alpha * v - beta * v_old
        beta_next = np.linalg.norm(u)
        # The new column of the tridiagonal matrix, under the last two rotations and then its own.
        delta = c * alpha - c_old * s * beta
        epsilon = s * alpha + c_old * c * beta
        rho = np.sqrt(delta**2 + beta_next**2)
        c_next, s_next = delta / rho, beta_next / rho
        w_next = (v - s_old * beta * w_old - epsilon * w) / rho
        return dict(
            x=x + c_next * eta * w_next, v=u / beta_next, v_old=v, w=w_next, w_old=w, beta=beta_next,
            eta=-s_next * eta, c=c_next, c_old=c, s=s_next, s_old=s,
        )  # fmt: skip


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

    rectangular = True
    start, step = NormalEquations.start, NormalEquations.step

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A.T @ (b - A @ x)


class LSQR(Program):
    """Least squares, min |A x - b|: Golub and Kahan's bidiagonalization, after Paige and Saunders."""

    rectangular = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        u = b - A @ x0
        beta = np.linalg.norm(u)
        u = u / beta
        v = A.T @ u
        alpha = np.linalg.norm(v)
        v = v / alpha
        return dict(x=x0, u=u, v=v, w=v, alpha=alpha, rho_bar=alpha, phi_bar=beta)

    def step(self, A: Any, x: Any, u: Any, v: Any, w: Any, alpha: Any, rho_bar: Any, phi_bar: Any) -> _States:
        u = A @ v - alpha * u
        beta = np.linalg.norm(u)
        u = u / beta
        v = A.T @ u - beta * v
        alpha = np.linalg.norm(v)
        v = v / alpha
        rho = np.sqrt(rho_bar**2 + beta**2)
        c, s = rho_bar / rho, beta / rho
        x, w = x + (c * phi_bar / rho) * w, v - (s * alpha / rho) * w
        return dict(x=x, u=u, v=v, w=w, alpha=alpha, rho_bar=-c * alpha, phi_bar=s * phi_bar)

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


class BiConjugateGradient(Program):
    """Nonsymmetric systems: Fletcher's method, a second residual carried along with A^T."""

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        return dict(x=x0, r=r, shadow=r, d=r, e=r, rho=r @ r)

    def step(self, A: Any, x: Any, r: Any, shadow: Any, d: Any, e: Any, rho: Any) -> _States:
        q = A @ d
        alpha = rho / (e @ q)
        r, shadow = r - alpha * q, shadow - alpha * (A.T @ e)
        rho_next = shadow @ r
        beta = rho_next / rho
        return dict(x=x + alpha * d, r=r, shadow=shadow, d=r + beta * d, e=shadow + beta * e, rho=rho_next)


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


class Lanczos(Program):
    """Extreme eigenvalues of a symmetric A, from the tridiagonal matrix V^T A V; k loops are lanczos(k)."""

    def start(self, A: Any, b: Any) -> _States:
        v, e = b / np.linalg.norm(b), np.eye(len(A))[0]
        return dict(T=np.zeros_like(A), V=np.outer(v, e), v=v, e=e)

    def step(self, A: Any, T: Any, V: Any, v: Any, e: Any) -> _States:
        w = A @ v
        alpha = v @ w
        w = w - V @ (V.T @ w)
        w = w - V @ (V.T @ w)  # twice is enough
        beta = np.linalg.norm(w)
        v, e_next = w / beta, np.roll(e, 1)
        T = T + alpha * np.outer(e, e) + beta * (np.outer(e, e_next) + np.outer(e_next, e))
        return dict(T=T, V=V + np.outer(v, e_next), v=v, e=e_next)

    def finish(self, A: Any, T: Any, v: Any, e: Any) -> Any:
        return T + (v @ (A @ v)) * np.outer(e, e)


class Arnoldi(Program):
    """The Hessenberg matrix V^T A V of any A; k loops reduce A to the space of b, A b, ..., A^k b."""

    def start(self, A: Any, b: Any) -> _States:
        v, e = b / np.linalg.norm(b), np.eye(len(A))[0]
        return dict(H=np.zeros_like(A), V=np.outer(v, e), v=v, e=e)

    def step(self, A: Any, H: Any, V: Any, v: Any, e: Any) -> _States:
        w = A @ v
        h = V.T @ w
        w = w - V @ h
        again = V.T @ w
        w = w - V @ again
        beta = np.linalg.norm(w)
        v, e_next = w / beta, np.roll(e, 1)
        return dict(H=H + np.outer(h + again + beta * e_next, e), V=V + np.outer(v, e_next), v=v, e=e_next)

    def finish(self, A: Any, H: Any, V: Any, v: Any, e: Any) -> Any:
        return H + np.outer(V.T @ (A @ v), e)


def _size(n: int) -> int:
    """Enough in exact arithmetic."""
    return n


def _few(n: int) -> int:
    """The same, and some."""
    return n + 4


RECORDS = (
    Record("cg", ConjugateGradient, definite),
    Record("cg_fused", FusedConjugateGradient, definite),
    Record("pcg", PreconditionedConjugateGradient, definite),
    Record("conjugate_residual", ConjugateResidual, definite),
    Record("minimal_residual", MinimalResidual, nonsymmetric),
    Record("minres", MINRES, indefinite, _size),
    Record("cgnr", NormalEquations, nonsymmetric),
    Record("cgls", LeastSquaresConjugateGradient, least_squares, columns),
    Record("lsqr", LSQR, least_squares, columns),
    Record("craig", Craig, nonsymmetric),
    Record("bicg", BiConjugateGradient, nonsymmetric, _few),
    Record("bicgstab", BiConjugateGradientStabilized, nonsymmetric, _few),
    Record("gmres", GMRES, nonsymmetric, particular=True),
    Record("lanczos", Lanczos, symmetric_reduction, lambda n: n - 1, particular=True),
    Record("arnoldi", Arnoldi, general_reduction, lambda n: n - 1, particular=True),
)
