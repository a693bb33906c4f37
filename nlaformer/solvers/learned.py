"""A preconditioner that a network writes for A."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nlaformer.errors import OptionError
from nlaformer.program.learned import low_rank
from nlaformer.solvers.arithmetic import Array, like, to_torch
from nlaformer.solvers.blocks import LARGEST_CALL, Blocks, unreadable
from nlaformer.solvers.parse import Problem

_LARGEST_UPDATE = 1e10  # of |U^T D U|: beyond it, rounding errors are a large part of the smallest eigenvalues of M


@dataclass(frozen=True)
class DiagonalPlusRank:
    """M = (diag(1/D) + U U^T)^-1 on diagonal blocks, as D - W W^T, or M = diag(D) + W W^T (``program.learned``).

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
        A = to_torch(
            problem.A.blocks(blocks.index)
        )  # (G, k, s, s): each matrix is shown once, however many lanes share it
        # A block that cannot be positive definite is not shown: its system ends by itself, the others go on.
        definite = (A.diagonal(dim1=-2, dim2=-1) > 0).all(-1)[..., None, None]
        A = torch.where(definite, A, torch.eye(A.shape[-1], dtype=A.dtype, device=A.device))
        pieces = [model.preconditioner(piece) for piece in A.flatten(0, 1).split(LARGEST_CALL)]
        D, U = (torch.cat(parts).to(A) for parts in zip(*pieces, strict=True))
        D, U = (v.reshape(*A.shape[:2], *v.shape[1:]) for v in (D, U))
        found = cls.of(D, U, A.diagonal(dim1=-2, dim2=-1), blocks, model.config.n, getattr(model, "coarse", False))
        if len(A) > 1:
            shared = problem.lanes // len(A)
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

    def apply(self, X: Array) -> Array:
        weight = self.blocks.share.sqrt()
        parts = self.blocks.split(weight * to_torch(X))  # (m, k, s)
        columns = (self.W @ (self.W.mT @ parts[..., None]))[..., 0]
        parts = self.D * parts + columns if self.coarse else self.D * parts - columns
        return like(
            self.blocks.join(parts) / weight, X
        )  # join divides by the number of blocks, so 1 / weight leaves weight

    def take(self, at: Array) -> DiagonalPlusRank:
        return self if len(self.D) == 1 else replace(self, D=self.D[at], W=self.W[at])
