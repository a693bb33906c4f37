"""The classical methods that linear systems are solved with, by what their matrices are.

A family that declares no rivals of its own gets these, and so do systems that are given as arrays.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nlaformer.problems.base import Rival
from nlaformer.problems.conjugate import CLASSICAL
from nlaformer.problems.least_squares import METHODS as LEAST_SQUARES
from nlaformer.problems.nonsymmetric import METHODS as NONSYMMETRIC

_ROUNDING = 1e-8  # of the largest entry of A


def classical(A: Tensor, consistent: bool = True) -> Mapping[str, Rival]:
    """Methods for systems with matrices A (count, n, n) by name, the one to beat first.

    Conjugate gradients if every A is symmetric and positive semidefinite; else those for least squares if one is
    rectangular, padded with zeros, or the systems are not ``consistent``; else GMRES and BiCGSTAB.

    >>> A = torch.tensor([[[2.0, 1.0], [1.0, 2.0]]])
    >>> [next(iter(classical(M))) for M in (A, A - 2 * torch.eye(2), A * torch.tensor([1.0, 0.0]))]
    ['CG', 'GMRES', 'CGLS']
    """
    largest = A.abs().amax((-2, -1), keepdim=True)
    A = A.double() / torch.where(largest > 0, largest, 1.0)
    ridge = _ROUNDING * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    symmetric = bool(((A - A.mT).abs() <= _ROUNDING).all())
    if consistent and symmetric and not bool(torch.linalg.cholesky_ex(A + ridge).info.any()):
        return CLASSICAL
    empty = (A == 0).all(-1) | (A == 0).all(-2)  # rows and columns of padding
    return LEAST_SQUARES if bool(empty.any()) or not consistent else NONSYMMETRIC
