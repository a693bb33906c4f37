"""A preconditioner for the block of a matrix that one process holds: by name, learned, or a function."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nlaformer.errors import DTypeError, MissingPackageError, ShapeError
from nlaformer.solvers.precondition.named import NAMES, build

Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def on_block(M: Any, block: Any) -> Function:
    """The function r -> M r for a square CSR matrix of float64, which may be empty.

    ``M`` is one of ``NAMES``; a model that writes a preconditioner, its folder or its bundled name, which needs torch;
    or a function that takes the matrix and returns r -> M r.

    >>> import scipy.sparse as sp
    >>> on_block("jacobi", sp.csr_matrix(np.diag([2.0, 4.0])))(np.ones(2)).tolist()
    [0.5, 0.25]
    """
    if not block.shape[0]:
        return np.copy
    if isinstance(M, str) and M in NAMES:
        return build(M, block, "gmres")  # who calls may run any method
    if isinstance(M, str | os.PathLike) or hasattr(M, "preconditioner"):
        return _learned(M, block)
    if not callable(M):
        raise DTypeError(f"M is a {type(M).__name__}; expected a name, a model, or a function of the matrix")
    function = M(block)

    def applied(r: NDArray[np.float64]) -> NDArray[np.float64]:
        found = np.array(function(r), dtype=np.float64)
        if found.shape != r.shape:
            raise ShapeError(f"M returned numbers of shape {found.shape} for a residual of shape {r.shape}")
        return found

    return applied


def _learned(M: Any, block: Any) -> Function:
    """What a network writes for the block."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"M is {M if isinstance(M, str) else 'a model'}, and a learned preconditioner needs torch in this Python; "
            f"without it there are {', '.join(NAMES)}"
        ) from error
    from nlaformer.solvers.arithmetic import scale
    from nlaformer.solvers.parse import read
    from nlaformer.solvers.preconditioners import read_preconditioner

    problem = read(block, np.zeros(block.shape[0]), None, 0.0, 0.0, "gmres", modelled=True)
    found, e = read_preconditioner(M, problem), np.asarray(problem.exponent_a)  # of A / 2^e

    def applied(r: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array(scale(found.apply(r[None])[0], -int(e.reshape(-1)[0])), dtype=np.float64)

    return applied
