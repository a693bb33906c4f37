"""Functions of matrices by matrix products, and factorizations, one column a loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.library import families as problems
from nlaformer.compiler.library.records import Record
from nlaformer.program.language import Program, positive

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


class SquareRoot(Program):
    """The square root of a positive definite matrix, and its inverse beside it, by matrix products (Higham)."""

    def start(self, A: Any) -> _States:
        size = np.linalg.norm(A)
        return dict(Y=A / size, Z=np.eye(len(A)), size=size)

    def step(self, A: Any, Y: Any, Z: Any, size: Any) -> _States:
        T = (3 * np.eye(len(A)) - Z @ Y) / 2
        return dict(Y=Y @ T, Z=T @ Z, size=size)

    def finish(self, Y: Any, size: Any) -> Any:
        return np.sqrt(size) * Y

    def residual(self, A: Any, x: Any) -> Any:
        return A - x @ x


class InverseSquareRoot(Program):
    """A^(-1/2) of a positive definite matrix: whitening."""

    start, step = SquareRoot.start, SquareRoot.step

    def finish(self, Z: Any, size: Any) -> Any:
        return Z / np.sqrt(size)

    def residual(self, A: Any, x: Any) -> Any:
        return np.eye(len(A)) - x @ A @ x


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


class Polar(Program):
    """The orthogonal matrix nearest to A, as in the Muon optimizer: Newton and Schulz's iteration."""

    def start(self, A: Any) -> _States:
        return dict(X=A / np.linalg.norm(A))

    def step(self, X: Any) -> _States:
        return dict(X=1.5 * X - 0.5 * X @ (X.T @ X))

    def finish(self, X: Any) -> Any:
        return X

    def residual(self, x: Any) -> Any:
        return np.eye(len(x)) - x.T @ x


class MatrixExponential(Program):
    """e^A by its series, one term a loop: linear differential equations, graphs."""

    def start(self, A: Any) -> _States:
        return dict(X=np.eye(len(A)), term=np.eye(len(A)), k=1.0)

    def step(self, A: Any, X: Any, term: Any, k: Any) -> _States:
        term = A @ term / k
        return dict(X=X + term, term=term, k=k + 1)

    def finish(self, X: Any) -> Any:
        return X


class Purification(Program):
    """The projector on the upper half of a spectrum in [0, 1], as in electronic structure (McWeeny)."""

    def start(self, A: Any) -> _States:
        return dict(P=A)

    def step(self, P: Any) -> _States:
        square = P @ P
        return dict(P=3 * square - 2 * square @ P)

    def finish(self, P: Any) -> Any:
        return P

    def residual(self, x: Any) -> Any:
        return x - x @ x

    def residual_scale(self, x: Any) -> Any:
        return x


class Stein(Program):
    """X = A X A^T + Q, the covariance of a linear system in its steady state: Smith's method with doubling."""

    inputs = dict(Q="matrix")

    def start(self, A: Any, Q: Any) -> _States:
        return dict(X=Q, F=A)

    def step(self, X: Any, F: Any) -> _States:
        return dict(X=X + F @ X @ F.T, F=F @ F)

    def finish(self, X: Any) -> Any:
        return X

    def residual(self, A: Any, Q: Any, x: Any) -> Any:
        return Q + A @ x @ A.T - x


class Cholesky(Program):
    """A = L L^T of a positive definite matrix; a loop is a column."""

    def start(self, A: Any) -> _States:
        return dict(L=np.zeros_like(A), S=A, e=np.eye(len(A))[0])

    def step(self, L: Any, S: Any, e: Any) -> _States:
        column = S @ e
        column = column / np.sqrt(positive(e @ column))
        return dict(L=L + np.outer(column, e), S=S - np.outer(column, column), e=np.roll(e, 1))

    def finish(self, L: Any) -> Any:
        return L

    def residual(self, A: Any, x: Any) -> Any:
        return A - x @ x.T


class LU(Program):
    """A = L U by Gaussian elimination without exchanges; a loop is a column. The answer is U, L is a state."""

    def start(self, A: Any) -> _States:
        return dict(L=np.zeros_like(A), U=np.zeros_like(A), S=A, e=np.eye(len(A))[0])

    def step(self, L: Any, U: Any, S: Any, e: Any) -> _States:
        row, column = S.T @ e, S @ e
        column = column / (e @ column)
        return dict(L=L + np.outer(column, e), U=U + np.outer(e, row), S=S - np.outer(column, row), e=np.roll(e, 1))

    def finish(self, U: Any) -> Any:
        return U


class GaussJordan(Program):
    """The inverse of A by elimination without exchanges; a loop is a column."""

    def start(self, A: Any) -> _States:
        return dict(M=A, X=np.eye(len(A)), e=np.eye(len(A))[0])

    def step(self, M: Any, X: Any, e: Any) -> _States:
        column = M @ e
        pivot = e @ column
        # Less a multiple of the pivot's row; the pivot's row itself is divided by the pivot.
        factor = (column - e) / pivot
        return dict(M=M - np.outer(factor, M.T @ e), X=X - np.outer(factor, X.T @ e), e=np.roll(e, 1))

    def finish(self, X: Any) -> Any:
        return X

    def residual(self, A: Any, x: Any) -> Any:
        return np.eye(len(A)) - A @ x


class GramSchmidt(Program):
    """A = Q R by Gram and Schmidt's process, twice; a loop is a column. The answer is Q, R is a state."""

    def start(self, A: Any) -> _States:
        return dict(Q=np.zeros_like(A), R=np.zeros_like(A), e=np.eye(len(A))[0])

    def step(self, A: Any, Q: Any, R: Any, e: Any) -> _States:
        column = A @ e
        h = Q.T @ column
        column = column - Q @ h
        again = Q.T @ column
        column = column - Q @ again
        size = np.linalg.norm(column)
        return dict(Q=Q + np.outer(column / size, e), R=R + np.outer(h + again + size * e, e), e=np.roll(e, 1))

    def finish(self, Q: Any) -> Any:
        return Q


def _size(n: int) -> int:
    return n


RECORDS = (
    Record("newton_schulz", NewtonSchulz, problems.inverses, lambda n: 25),
    Record("square_root", SquareRoot, problems.square_roots, lambda n: 20),
    Record("inverse_square_root", InverseSquareRoot, problems.inverse_square_roots, lambda n: 20),
    Record("matrix_sign", MatrixSign, problems.signs, lambda n: 20),
    Record("polar", Polar, problems.polar_factors, lambda n: 20),
    Record("matrix_exponential", MatrixExponential, problems.exponentials, lambda n: 20, bound=16.0, particular=True),
    Record("purification", Purification, problems.occupations, lambda n: 15, bound=16.0, particular=True),
    Record("stein", Stein, problems.steady_states, lambda n: 6, bound=16.0, particular=True),
    Record("cholesky", Cholesky, problems.cholesky_factors, _size, particular=True),
    Record("lu", LU, problems.triangular_factors, _size, particular=True),
    Record("gauss_jordan", GaussJordan, problems.eliminations, _size, bound=16.0, particular=True),
    Record("gram_schmidt", GramSchmidt, problems.orthonormal_factors, _size, particular=True),
)
