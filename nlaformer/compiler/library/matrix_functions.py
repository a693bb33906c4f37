"""Functions of matrices by matrix products, and factorizations, one column a loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.language import Program
from nlaformer.compiler.library import families as problems
from nlaformer.compiler.library.records import Record

_States = dict[str, Any]


class NewtonSchulz(Program):
    """The inverse of A by matrix products alone."""

    def start(self, A: Any) -> _States:
        return dict(X=(1 / np.vdot(A, A)) * A.T)

    def step(self, A: Any, X: Any) -> _States:
        return dict(X=X + X @ (np.eye(len(A)) - A @ X))

    def finish(self, X: Any) -> Any:
        return X

    def residual(self, A: Any, x: Any) -> Any:
        return np.eye(len(A)) - A @ x


class MatrixSign(Program):
    """The sign of a matrix with real eigenvalues: +1 and -1 in their place; splits the spectrum at 0."""

    def start(self, A: Any) -> _States:
        return dict(X=A / np.linalg.norm(A))

    def step(self, X: Any) -> _States:
        return dict(X=1.5 * X - 0.5 * X @ X @ X)

    def finish(self, X: Any) -> Any:
        return X

    def residual(self, x: Any) -> Any:
        return np.eye(len(x)) - x @ x


class MatrixExponential(Program):
    """e^A by its series, one term a loop: linear differential equations, graphs."""

    def start(self, A: Any) -> _States:
        return dict(X=np.eye(len(A)), term=np.eye(len(A)), k=1.0)

    def step(self, A: Any, X: Any, term: Any, k: Any) -> _States:
        term = A @ term / k
        return dict(X=X + term, term=term, k=k + 1)

    def finish(self, X: Any) -> Any:
        return X


def _size(n: int) -> int:
    return n


RECORDS = (
    Record("newton_schulz", NewtonSchulz, problems.inverses, lambda n: 25),
    Record("matrix_sign", MatrixSign, problems.signs, lambda n: 20),
    Record("matrix_exponential", MatrixExponential, problems.exponentials, lambda n: 20, bound=16.0),
)
