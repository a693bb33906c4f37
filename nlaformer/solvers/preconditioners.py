"""Preconditioners: M approximates the *inverse* of A, as in SciPy, and is symmetric positive definite."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nlaformer.arrays import is_tensor, kind_of, to_array, to_tensor
from nlaformer.errors import OptionError, ShapeError
from nlaformer.solvers.arithmetic import Array, like, namespace, to_numpy
from nlaformer.solvers.inputs import read_matrix, read_real
from nlaformer.solvers.models import is_solver, no_function, role_of, runs
from nlaformer.solvers.operators import DenseOperator, ImplicitOperator, SparseOperator
from nlaformer.solvers.parse import Problem
from nlaformer.solvers.precondition.named import NAMES, Named, build, unknown
from nlaformer.solvers.sparse import is_sparse


class Preconditioner(Protocol):
    """What the iterations need of M; an operator has it too."""

    def apply(self, X: Array) -> Array:
        """M r of every lane."""

    def take(self, at: Any) -> Preconditioner:
        """That of some lanes."""


@dataclass(frozen=True)
class Identity:
    """No preconditioner."""

    def apply(self, X: Array) -> Array:
        return X

    def take(self, at: Any) -> Identity:
        return self


@dataclass(frozen=True)
class _Diagonal:
    """A diagonal M, given by its entries."""

    entries: Array  # (n,), (1, n) for all lanes, or (m, n)

    def apply(self, X: Array) -> Array:
        return self.entries * X

    def take(self, at: Any) -> _Diagonal:
        return self if len(self.entries) == 1 or at is ... else _Diagonal(self.entries[at])


@dataclass(frozen=True)
class _Function:
    """A user's function of the residuals of all systems; lanes that have ended are zero in them."""

    function: Callable[[Any], Any]
    problem: Problem
    at: Any = ...

    def apply(self, X: Array) -> Array:
        problem = self.problem
        full = namespace(X).zeros_like(problem.b[..., :1]) + like(np.zeros(problem.unknowns), X)
        full[self.at] = X
        shape = (*problem.shape, full.shape[-1])
        found = self.function(problem.given(full.reshape(shape)))
        found = to_tensor("what M returned", found) if is_tensor(found) else to_array("what M returned", found)
        if tuple(found.shape) != shape or "complex" in str(found.dtype):
            raise ShapeError(
                f"M returned {found.dtype} of shape {tuple(found.shape)} for residuals of shape {shape}; "
                "a function M must return as many real numbers as it is given"
            )
        return (like(found, X).reshape(full.shape) + 0.0)[self.at]

    def take(self, at: Any) -> _Function:
        return _Function(self.function, self.problem, at if self.at is ... else self.at[at])


@dataclass(frozen=True)
class Applied:
    """A preconditioner of vectors of NumPy, which all lanes share."""

    M: Named

    def apply(self, X: Array) -> Array:
        rows = np.ascontiguousarray(to_numpy(X)).reshape(-1, X.shape[-1])
        found = np.stack([self.M(row) for row in rows]) if X.ndim > 1 else self.M(rows[0])
        return like(found.reshape(tuple(X.shape)), X)

    def take(self, at: Any) -> Applied:
        return self


def entries(problem: Problem) -> Any:
    """The only matrix of a problem, scaled, as an array or a SciPy matrix; None of several, or where it is unknown."""
    A = problem.A
    if isinstance(A, SparseOperator):
        return A.A
    if isinstance(A, DenseOperator) and (A.A.ndim == 2 or len(A.A) == 1):
        return to_numpy(A.A if A.A.ndim == 2 else A.A[0])
    return None


def learned(M: Any) -> Any:
    """The model that is given as M: one that writes a preconditioner, its folder or its bundled name; else None."""
    if M is None:
        return None
    if isinstance(M, os.PathLike) or (isinstance(M, str) and M not in NAMES):
        M = _loaded(M)
    if kind_of(M) != "list" or isinstance(M, str | list | tuple):
        return None
    if role := role_of(M):
        if role != "preconditioner":
            raise OptionError("M is a model that proposes directions, not a preconditioner; pass it as model=")
        return M
    if is_solver(M) or runs(M):
        raise OptionError("M is a model that solves systems, not a preconditioner; pass it as model=")
    return None


def read_preconditioner(M: Any, problem: Problem) -> Preconditioner:
    """Make a preconditioner of what a user may give as M.

    None; a name (``precondition.named``); a model that writes one, its folder or its bundled name; the entries of a
    diagonal, (n,) or one row per system; matrices (..., n, n), dense or sparse; a LinearOperator; a function r -> M r
    on arrays (..., n) of the kind of b. Of least squares, M approximates the inverse of A^T A.
    """
    if M is None:
        return Identity()
    if isinstance(M, str) and M == "jacobi":
        return _jacobi(problem)
    if isinstance(M, str) and M in NAMES:
        return _named(M, problem)
    if (model := learned(M)) is not None:
        from nlaformer.solvers.learned import DiagonalPlusRank

        return DiagonalPlusRank.learned(model, problem)
    n = problem.unknowns
    if is_sparse(M) or (hasattr(M, "matvec") and not is_tensor(M)):
        matrix = read_matrix("M", M)
        if matrix.shape != (n, n):
            raise ShapeError(f"M has shape {matrix.shape} for systems of {n} unknowns; expected ({n}, {n})")
        return SparseOperator(matrix.astype(np.float64)) if is_sparse(matrix) else ImplicitOperator(matrix)
    if callable(M):
        if kind := no_function(M, "r"):
            raise OptionError(f"M is {kind}; expected a function of the residual r, or a matrix")
        return _Function(M, problem)
    return _from_array(M, problem)


def _loaded(name: str | os.PathLike[str]) -> Any:
    """The model of a folder or a bundled name, if it writes a preconditioner."""
    from nlaformer.loading import bundled, load, refuse_recipe

    refuse_recipe(name)
    if isinstance(name, str) and not os.path.exists(name) and name not in bundled():
        raise unknown(name, bundled())
    model = load(name)
    if role_of(model) != "preconditioner":
        raise OptionError(f"{name} is not a learned preconditioner; pass it as model=, if it is a model")
    return model


def _named(name: str, problem: Problem) -> Preconditioner:
    """The preconditioner of a name for the only matrix of a problem."""
    if not all(problem.form.list(problem.finite)) or any(problem.complaint):
        return Identity()  # the solve ends before it is used
    if problem.adjoint is not None:
        raise OptionError(f'M="{name}" is for square systems; least squares take "jacobi", or an M of your own')
    A = entries(problem)
    if A is None:
        what = "a LinearOperator does not show" if isinstance(problem.A, ImplicitOperator) else "is one of several here"
        raise OptionError(f'M="{name}" is made of the entries of one A, which {what}; pass "jacobi" or M itself')
    symmetric = not problem.minimal[0]
    return Applied(build(name, A, "cg" if symmetric else "gmres", symmetric))


def _jacobi(problem: Problem) -> _Diagonal:
    """The inverse of the diagonal of A, or, of least squares, of A^T A."""
    A, squares = problem.A, problem.adjoint is not None
    if isinstance(A, SparseOperator):
        diagonal = A.A.multiply(A.A).sum(0) if squares else A.A.diagonal()
        diagonal = like(np.asarray(diagonal).reshape(-1), problem.b)
        diagonal = diagonal if problem.form.alone else diagonal[None]
    elif isinstance(A, DenseOperator):
        diagonal = (A.A * A.A).sum(-2) if squares else problem.form.xp.linalg.diagonal(A.A)
    else:
        raise OptionError('M="jacobi" needs the diagonal of A, which a LinearOperator does not show; pass M itself')
    # For CG, A with entries on its diagonal that are not positive is refused.
    known = diagonal != 0
    return _diagonal(problem.form.xp.where(known, 1 / problem.form.xp.where(known, diagonal, 1.0), 1.0), problem)


def _diagonal(rows: Array, problem: Problem) -> _Diagonal:
    """A diagonal for each matrix, (G, n), as one for each lane; that of a system alone as it is."""
    if problem.form.alone or len(rows) == 1:
        return _Diagonal(rows)
    return _Diagonal(problem.form.xp.repeat(rows, problem.lanes // len(rows), axis=0))


def _from_array(M: Any, problem: Problem) -> Preconditioner:
    entries = like(read_real("M", M), problem.b) + 0.0
    m, n, alone = problem.lanes, problem.unknowns, problem.form.alone
    batch = problem.shape[:-1] if problem.columns else problem.shape
    shape = tuple(entries.shape)
    if shape == (n, n) and batch == (n,):
        raise ShapeError(f"M of shape {(n, n)} for {n} matrices may be a matrix or {n} diagonals; pass {(n, n, n)}")
    if shape in ((n,), (*batch, n)):
        return _diagonal(entries if alone else entries.reshape(-1, n), problem)
    if shape in ((n, n), (*batch, n, n)):
        matrices = entries if alone else entries.reshape(-1, n, n)
        return DenseOperator(matrices, 1 if alone else m // len(matrices))
    raise ShapeError(
        f"M has shape {shape} for {m} systems of {n} unknowns; expected a diagonal "
        f"({', '.join(map(str, (*batch, n)))},) or matrices {(*batch, n, n)} that approximate the inverse of A"
    )
