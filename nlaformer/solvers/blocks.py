"""Diagonal blocks of A: what a model made for few unknowns is shown of a system with many.

The unknowns are put in blocks of one size; the last overlaps the one before it, and an unknown in two blocks gets the
mean of both answers. Of a sparse A, neighbours come together (reverse Cuthill-McKee), so that the blocks hold more of
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import memory
from nlaformer.solvers.arithmetic import to_torch
from nlaformer.solvers.models import NO_ENTRIES
from nlaformer.solvers.operators import ImplicitOperator, SparseOperator
from nlaformer.solvers.parse import Problem

LARGEST_CALL = 4096  # matrices that a model is shown at once, which bounds its memory
_COPIES = 4  # of the entries of A in memory while a model is called


@dataclass(frozen=True)
class Blocks:
    """Blocks of s of n unknowns."""

    index: Tensor  # (k, s)
    share: Tensor  # (n,) 1 over the number of blocks that hold an unknown

    @classmethod
    def of(cls, problem: Problem, size: int) -> Blocks:
        """Blocks of at most ``size`` unknowns; a single one if that is enough."""
        n = problem.unknowns
        size, order = min(size, n), torch.arange(n)
        if n > size and isinstance(problem.A, SparseOperator):
            from scipy.sparse.csgraph import reverse_cuthill_mckee

            order = torch.from_numpy(np.array(reverse_cuthill_mckee(problem.A.A, symmetric_mode=True), dtype=np.int64))
        starts = [*range(0, n - size, size), n - size]
        index = torch.stack([order[start : start + size] for start in starts]).to(to_torch(problem.b[:1]).device)
        return cls(index, 1 / torch.bincount(index.flatten(), minlength=n).double())

    def split(self, r: Tensor) -> Tensor:
        """The blocks of vectors (m, n): (m, k, s)."""
        return r[:, self.index]

    def join(self, parts: Tensor) -> Tensor:
        """Vectors from their blocks, the mean where two hold the same unknown."""
        whole = parts.new_zeros(len(parts), len(self.share))
        return whole.index_add_(1, self.index.flatten(), parts.flatten(1)) * self.share


def unreadable(problem: Problem, size: int) -> str:
    """Why the blocks of A cannot be shown to a model of some size, or nothing."""
    if isinstance(problem.A, ImplicitOperator):
        return NO_ENTRIES
    entries = 8 * problem.b.shape[-1] * size  # bytes of the blocks, or, of least squares, of A
    if isinstance(problem.A, SparseOperator) and _COPIES * entries > memory(to_torch(problem.b[:1]).device):
        return f"the entries of A that it is shown would take {_COPIES * entries / 1e9:,.0f} GB of memory"
    return ""
