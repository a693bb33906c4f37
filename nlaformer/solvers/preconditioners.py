"""Preconditioners: M approximates the *inverse* of A, as in SciPy, and is symmetric positive definite."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import give, to_tensor
from nlaformer.compiler.learned import low_rank
from nlaformer.errors import OptionError, ShapeError, unknown_name
from nlaformer.loading import bundled, load, refuse_recipe
from nlaformer.solvers.blocks import LARGEST_CALL, Blocks, unreadable
from nlaformer.solvers.models import is_solver, no_function, role_of, runs
from nlaformer.solvers.operators import DenseOperator, ImplicitOperator, Operator, SparseOperator
from nlaformer.solvers.parse import Problem, read_matrix, read_real

_LARGEST_UPDATE = 1e10  # of |U^T D U|: beyond it, rounding errors are a large part of the smallest eigenvalues of M


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
        full = X.new_zeros(len(self.problem.b), self.problem.unknowns)
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


@dataclass(frozen=True)
class DiagonalPlusRank:
    """M = (diag(1/D) + U U^T)^-1 on diagonal blocks, as D - W W^T, or M = diag(D) + W W^T (``compiler.learned``).

    It is symmetric positive definite whatever a network says: a block for which D is not positive, an entry is not
    finite, or 1 + |U^T D U| is so large that the difference would be rounding error, becomes the Jacobi one. Blocks
    that overlap are weighted by the square root of their share from both sides, which keeps M symmetric.
    """

    D: Tensor  # (m or 1, k, s)
    W: Tensor  # (m or 1, k, s, rank)
    blocks: Blocks
    size: int  # unknowns that the model was made for
    jacobi: int = 0  # blocks that became the Jacobi one
    seconds: float = 0.0  # that the model took
    coarse: bool = False  # whether the columns are added

    @classmethod
    def learned(cls, model: Any, problem: Problem) -> DiagonalPlusRank:
        """The preconditioner that a model writes for the matrices of a problem."""
        if reason := unreadable(problem, model.config.n):
            raise OptionError(f"a learned preconditioner reads A, but {reason}; pass another M")
        if problem.adjoint is not None:
            raise OptionError("a learned preconditioner is one of square systems; for least squares pass another M")
        begun = time.perf_counter()
        blocks = Blocks.of(problem, model.config.n)
        A = problem.A.blocks(blocks.index)  # (G, k, s, s): each matrix is shown once, however many lanes share it
        # A block that cannot be positive definite is not shown: its system ends by itself, the others go on.
        definite = (A.diagonal(dim1=-2, dim2=-1) > 0).all(-1)[..., None, None]
        A = torch.where(definite, A, torch.eye(A.shape[-1], dtype=A.dtype, device=A.device))
        pieces = [model.preconditioner(piece) for piece in A.flatten(0, 1).split(LARGEST_CALL)]
        D, U = (torch.cat(parts).to(problem.b) for parts in zip(*pieces, strict=True))
        D, U = (v.reshape(*A.shape[:2], *v.shape[1:]) for v in (D, U))
        found = cls.of(D, U, A.diagonal(dim1=-2, dim2=-1), blocks, model.config.n, getattr(model, "coarse", False))
        if len(A) > 1:
            shared = len(problem.b) // len(A)
            found = replace(found, **{name: getattr(found, name).repeat_interleave(shared, 0) for name in ("D", "W")})
        return replace(found, seconds=time.perf_counter() - begun)

    @classmethod
    def of(
        cls, D: Tensor, U: Tensor, diagonal: Tensor, blocks: Blocks, size: int, coarse: bool = False
    ) -> DiagonalPlusRank:
        """From D (..., s) and U (..., s, rank), checked; ``diagonal`` is that of A."""
        weight = 1 / D if coarse else D
        update = (weight[..., None] * U.square()).sum((-2, -1))  # the trace of U^T D U, or of U^T D^-1 U
        sound = (torch.isfinite(D) & (D > 0)).all(-1) & torch.isfinite(U).all((-2, -1))
        sound &= update < _LARGEST_UPDATE  # false for NaN
        D = torch.where(sound[..., None], D, torch.where(diagonal > 0, 1 / diagonal, 1.0))
        U = torch.where(sound[..., None, None], U, 0.0)
        W = torch.stack(low_rank(coarse, D, *U.unbind(-1)).columns, -1) if U.shape[-1] else U
        return cls(D, W, blocks, size, int((~sound).sum()), coarse=coarse)

    def apply(self, X: Tensor) -> Tensor:
        weight = self.blocks.share.sqrt()
        parts = self.blocks.split(weight * X)  # (m, k, s)
        columns = (self.W @ (self.W.mT @ parts[..., None]))[..., 0]
        parts = self.D * parts + columns if self.coarse else self.D * parts - columns
        return self.blocks.join(parts) / weight  # join divides by the number of blocks, so 1 / weight leaves weight

    def take(self, lanes: Tensor) -> DiagonalPlusRank:
        return self if len(self.D) == 1 else replace(self, D=self.D[lanes], W=self.W[lanes])


Preconditioner: TypeAlias = Identity | _Diagonal | _Function | DiagonalPlusRank | Operator


def read_preconditioner(M: Any, problem: Problem) -> Preconditioner:
    """Make a preconditioner of what a user may give as M.

    None; "jacobi"; a model that writes one, its folder or its bundled name; the entries of a diagonal, (n,) or one row
    per system; matrices (..., n, n), dense or sparse; a LinearOperator; a function r -> M r on arrays (..., n) of the
    kind of b. Of least squares, M approximates the inverse of A^T A.
    """
    import scipy.sparse

    if M is None:
        return Identity()
    if isinstance(M, str) and M == "jacobi":
        return _jacobi(problem)
    if isinstance(M, str | os.PathLike):
        M = _loaded(M)
    if role := role_of(M):
        if role != "preconditioner":
            raise OptionError("M is a model that proposes directions, not a preconditioner; pass it as model=")
        return DiagonalPlusRank.learned(M, problem)
    if is_solver(M) or runs(M):
        raise OptionError("M is a model that solves systems, not a preconditioner; pass it as model=")
    m, n = len(problem.b), problem.unknowns
    if scipy.sparse.issparse(M) or hasattr(M, "matvec"):
        matrix = read_matrix("M", M)
        if matrix.shape != (n, n):
            raise ShapeError(f"M has shape {matrix.shape} for systems of {n} unknowns; expected ({n}, {n})")
        if scipy.sparse.issparse(matrix):
            return SparseOperator(matrix.astype(np.float64))
        return ImplicitOperator.of(matrix, m, problem.b.device)
    if callable(M):
        if kind := no_function(M, "r"):
            raise OptionError(f"M is {kind}; expected a function of the residual r, or a matrix")
        return _Function(M, problem, torch.arange(m, device=problem.b.device))
    return _from_array(M, problem)


def _loaded(name: str | os.PathLike[str]) -> Any:
    """The model of a folder or a bundled name, if it writes a preconditioner."""
    refuse_recipe(name)
    if isinstance(name, str) and not os.path.exists(name) and name not in bundled():
        raise unknown_name("preconditioner", name, ["jacobi", *bundled()])
    model = load(name)
    if role_of(model) != "preconditioner":
        raise OptionError(f"{name} is not a learned preconditioner; pass it as model=, if it is a model")
    return model


def _jacobi(problem: Problem) -> _Diagonal:
    """The inverse of the diagonal of A, or, of least squares, of A^T A."""
    A, squares = problem.A, problem.adjoint is not None
    if isinstance(A, SparseOperator):
        diagonal = torch.from_numpy(A.A.multiply(A.A).sum(0) if squares else A.A.diagonal())[None]
    elif isinstance(A, DenseOperator):
        diagonal = A.A.square().sum(-2) if squares else A.A.diagonal(dim1=-2, dim2=-1)
    else:
        raise OptionError('M="jacobi" needs the diagonal of A, which a LinearOperator does not show; pass M itself')
    # For CG, A with entries on its diagonal that are not positive is refused.
    return _diagonal(torch.where(diagonal != 0, 1 / diagonal, 1.0), problem)


def _diagonal(rows: Tensor, problem: Problem) -> _Diagonal:
    """A diagonal for each matrix, (G, n), as one for each lane."""
    return _Diagonal(rows if len(rows) == 1 else rows.repeat_interleave(len(problem.b) // len(rows), 0))


def _from_array(M: Any, problem: Problem) -> Preconditioner:
    entries = read_real("M", M).to(problem.b)
    m, n = len(problem.b), problem.unknowns
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
