"""Eigenvectors and singular vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.library import families as problems
from nlaformer.compiler.library.records import Record
from nlaformer.program.language import Program

_States = dict[str, Any]


def _eigen_residual(self: Program, A: Any, x: Any) -> Any:
    w = A @ x
    return w - (x @ w) * x


def _eigen_scale(self: Program, A: Any, x: Any) -> Any:
    return A @ x


class Power(Program):
    """The dominant eigenvector by the power method, and its eigenvalue as a state."""

    residual, residual_scale = _eigen_residual, _eigen_scale

    def start(self, A: Any) -> _States:
        w = A @ (1 + np.zeros_like(np.diag(A)))
        return dict(x=w / np.linalg.norm(w), eigenvalue=np.linalg.norm(w))

    def step(self, A: Any, x: Any) -> _States:
        w = A @ x
        return dict(x=w / np.linalg.norm(w), eigenvalue=x @ w)


class DeflatedPower(Program):
    """The second eigenvector x of a symmetric A: the power method on A less the first pair, found beside it."""

    residual, residual_scale = _eigen_residual, _eigen_scale

    def start(self, A: Any, b: Any) -> _States:
        first = b / np.linalg.norm(b)
        w = A @ first
        eigenvalue = first @ w
        w = w - eigenvalue * first
        return dict(x=w / np.linalg.norm(w), first=first, eigenvalue=eigenvalue)

    def step(self, A: Any, x: Any, first: Any, eigenvalue: Any) -> _States:
        w = A @ x - eigenvalue * (first @ x) * first
        v = A @ first
        return dict(x=w / np.linalg.norm(w), first=v / np.linalg.norm(v), eigenvalue=first @ v)


class SubspaceIteration(Program):
    """The three dominant eigenvectors of a symmetric A: x, y, z multiplied by A and made orthonormal."""

    residual, residual_scale = _eigen_residual, _eigen_scale

    def start(self, A: Any, b: Any) -> _States:
        return self._orthonormal(b, A @ b, A @ (A @ b))

    def step(self, A: Any, x: Any, y: Any, z: Any) -> _States:
        return self._orthonormal(A @ x, A @ y, A @ z)

    @staticmethod
    def _orthonormal(x: Any, y: Any, z: Any) -> _States:
        x = x / np.linalg.norm(x)
        y = y - (x @ y) * x
        y = y / np.linalg.norm(y)
        z = z - (x @ z) * x - (y @ z) * y
        return dict(x=x, y=y, z=z / np.linalg.norm(z))


class RayleighQuotient(Program):
    """An eigenvector near b: (A - mu) y = x with mu = x^T A x, by ``inner`` steps towards the smallest residual."""

    residual, residual_scale = _eigen_residual, _eigen_scale
    inner = 3

    def start(self, b: Any) -> _States:
        return dict(x=b / np.linalg.norm(b))

    def step(self, A: Any, x: Any) -> _States:
        mu = x @ (A @ x)
        y, r, p = np.zeros_like(x), x, x
        before: list[tuple[Any, Any, Any]] = []
        for _ in range(self.inner):
            s = A @ p - mu * p
            for p_old, s_old, size in before[-2:]:  # A is symmetric: two suffice
                beta = (s @ s_old) / size
                p, s = p - beta * p_old, s - beta * s_old
            before.append((p, s, s @ s))
            alpha = (r @ s) / (s @ s)
            y, r, p = y + alpha * p, r - alpha * s, s
        y = (x @ y) * y  # the sign of mu's error would turn x around
        return dict(x=y / np.linalg.norm(y))


class InverseIteration(Program):
    """The eigenvector of the smallest eigenvalue: x times an inverse, which Newton and Schulz's iteration sharpens."""

    residual, residual_scale = _eigen_residual, _eigen_scale

    def start(self, A: Any, b: Any) -> _States:
        return dict(x=b / np.linalg.norm(b), X=A.T / np.vdot(A, A))

    def step(self, A: Any, x: Any, X: Any) -> _States:
        w = X @ x
        return dict(x=w / np.linalg.norm(w), X=X + X @ (np.eye(len(A)) - A @ X))


class SingularVectors(Program):
    """The dominant singular vectors x and left of any A, and the singular value: the power method on A^T A."""

    def start(self, b: Any) -> _States:
        return dict(x=b / np.linalg.norm(b), left=np.zeros_like(b), value=0.0)

    def step(self, A: Any, x: Any) -> _States:
        left = A @ x
        left = left / np.linalg.norm(left)
        w = A.T @ left
        return dict(x=w / np.linalg.norm(w), left=left, value=np.linalg.norm(w))

    def residual(self, A: Any, x: Any) -> Any:
        w = A.T @ (A @ x)
        return w - (x @ w) * x

    def residual_scale(self, A: Any, x: Any) -> Any:
        return A.T @ (A @ x)


RECORDS = (
    Record("power", Power, problems.dominant_eigenvectors),
    Record("deflated_power", DeflatedPower, problems.eigenvectors, lambda n: 60),
    Record("subspace_iteration", SubspaceIteration, problems.first_eigenvectors, particular=True),
    Record("rayleigh_quotient", RayleighQuotient, problems.near_eigenvectors, lambda n: 10, particular=True),
    Record("inverse_iteration", InverseIteration, problems.last_eigenvectors),
    Record("singular_vectors", SingularVectors, problems.singular_vectors),
)
