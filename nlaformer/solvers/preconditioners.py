"""Preconditioners: M approximates the *inverse* of A, as in SciPy, and is symmetric positive definite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import give, to_tensor
from nlaformer.errors import OptionError, ShapeError, unknown_name
from nlaformer.solvers.operators import DenseOperator, ImplicitOperator, Operator, SparseOperator
from nlaformer.solvers.parse import Problem, read_matrix, read_real


@dataclass(frozen=True)
class Identity:
    """No preconditioner."""

    def apply(self, X: Tensor) -> Tensor:
        return X

    def take(self, lanes: Tensor) -> Identity:
        return self


@dataclass(frozen=True)
class _Diagonal:
    """A diagonal M, given by its entries."""

    entries: Tensor  # (m, n), or (1, n) for all lanes

    def apply(self, X: Tensor) -> Tensor:
        return self.entries * X

    def take(self, lanes: Tensor) -> _Diagonal:
        return self if len(self.entries) == 1 else _Diagonal(self.entries[lanes])


@dataclass(frozen=True)
class _Function:
    """A user's function of the residuals of all systems; lanes that have ended are zero in them."""

    function: Callable[[Any], Any]
    problem: Problem
    lanes: Tensor

    def apply(self, X: Tensor) -> Tensor:
        full = torch.zeros_like(self.problem.b)
        full[self.lanes] = X
        given = full.reshape(*self.problem.shape, full.shape[-1])
        found = to_tensor("what M returned", self.function(give(given.clone(), self.problem.kind)))
        if found.shape != given.shape or found.is_complex():
            raise ShapeError(
                f"M returned {found.dtype} of shape {tuple(found.shape)} for residuals of shape {tuple(given.shape)}; "
                "a function M must return as many real numbers as it is given"
            )
        return found.to(X).reshape(full.shape)[self.lanes]

    def take(self, lanes: Tensor) -> _Function:
        return _Function(self.function, self.problem, self.lanes[lanes])


Preconditioner: TypeAlias = Identity | _Diagonal | _Function | Operator


def read_preconditioner(M: Any, problem: Problem) -> Preconditioner:
    """Make a preconditioner of what a user may give as M.

    None; "jacobi"; the entries of a diagonal, (n,) or one row per system; matrices (..., n, n), dense or sparse; a
    LinearOperator; a function r -> M r on arrays (..., n) of the kind of b.
    """
    import scipy.sparse

    if M is None:
        return Identity()
    if isinstance(M, str):
        if M != "jacobi":
            raise unknown_name("preconditioner", M, ["jacobi"])
        return _jacobi(problem)
    m, n = problem.b.shape
    if scipy.sparse.issparse(M) or hasattr(M, "matvec"):
        matrix = read_matrix("M", M)
        if matrix.shape != (n, n):
            raise ShapeError(f"M has shape {matrix.shape} for systems of {n} unknowns; expected ({n}, {n})")
        return SparseOperator(matrix.astype(np.float64)) if scipy.sparse.issparse(matrix) else ImplicitOperator(matrix)
    if callable(M):
        return _Function(M, problem, torch.arange(m, device=problem.b.device))
    return _from_array(M, problem)


def _jacobi(problem: Problem) -> _Diagonal:
    A = problem.A
    if isinstance(A, SparseOperator):
        diagonal = torch.from_numpy(A.A.diagonal())[None]
    elif isinstance(A, DenseOperator):
        diagonal = A.A.diagonal(dim1=-2, dim2=-1)
    else:
        raise OptionError('M="jacobi" needs the diagonal of A, which a LinearOperator does not show; pass M itself')
    # A with other entries on its diagonal is refused.
    return _diagonal(torch.where(diagonal > 0, 1 / diagonal, 1.0), problem)


def _diagonal(rows: Tensor, problem: Problem) -> _Diagonal:
    """A diagonal for each matrix, (G, n), as one for each lane."""
    return _Diagonal(rows if len(rows) == 1 else rows.repeat_interleave(len(problem.b) // len(rows), 0))


def _from_array(M: Any, problem: Problem) -> Preconditioner:
    entries = read_real("M", M).to(problem.b)
    m, n = problem.b.shape
    batch = problem.shape[:-1] if problem.columns else problem.shape
    if entries.shape == (n, n) and batch == (n,):
        raise ShapeError(f"M of shape {(n, n)} for {n} matrices may be a matrix or {n} diagonals; pass {(n, n, n)}")
    if entries.shape in ((n,), (*batch, n)):
        return _diagonal(entries.reshape(-1, n), problem)
    if entries.shape in ((n, n), (*batch, n, n)):
        matrices = entries.reshape(-1, n, n)
        return DenseOperator(matrices, m // len(matrices))
    raise ShapeError(
        f"M has shape {tuple(entries.shape)} for {m} systems of {n} unknowns; expected a diagonal "
        f"({', '.join(map(str, (*batch, n)))},) or matrices {(*batch, n, n)} that approximate the inverse of A"
    )
