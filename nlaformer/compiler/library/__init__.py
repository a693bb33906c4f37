"""The library: each algorithm as one would write it on a page, with the problems it is meant for.

Scale is never the programs' business: a run divides A and b by powers of two, and constants that would have a unit are
taken relative to the Frobenius norm of A, an upper bound for its largest eigenvalue. Where a program has constants with
a unit all the same (a rate of Adam), its record has the largest norm of A and b that it is compiled for.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
import torch

from nlaformer.arrays import full_precision
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.anysize.algorithm import AnySizeAlgorithm
from nlaformer.compiler.compiling import compile
from nlaformer.compiler.library import (
    constrained,
    eigen,
    krylov,
    matrix_functions,
    optimization,
    stationary,
    statistics,
)
from nlaformer.compiler.library.records import Record
from nlaformer.compiler.verify import with_verification
from nlaformer.errors import OptionError, look_up, unknown_name
from nlaformer.program.language import Program

GROUPS: dict[str, tuple[Record, ...]] = {
    "Krylov": krylov.RECORDS,
    "stationary": stationary.RECORDS,
    "optimization": optimization.RECORDS,
    "constraints": constrained.RECORDS,
    "matrix functions": matrix_functions.RECORDS,
    "eigenvectors": eigen.RECORDS,
    "statistics and dynamics": statistics.RECORDS,
}
_LIBRARY = {entry.name: entry for records in GROUPS.values() for entry in records}


def algorithms() -> tuple[str, ...]:
    """The names ``nf.algorithm`` knows.

    >>> algorithms()[:3]
    ('cg', 'cg_fused', 'pcg')
    """
    return tuple(_LIBRARY)


def record(name: str) -> Record:
    """The record behind a name.

    >>> record("cg").purpose
    'Positive definite systems: the method of section 3 of the paper.'
    """
    return look_up("algorithm", name, _LIBRARY)


def program(name: str) -> Program:
    """The program behind a name."""
    return record(name).program()


def example(name: str, n: int, count: int = 8, seed: int = 11) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs of the kind an algorithm is meant for, and the exact answers; OptionError where there are none.

    >>> inputs, x = example("cg", n=3)
    >>> inputs["A"].shape, inputs["b"].shape, x.shape
    ((8, 3, 3), (8, 3), (8, 3))
    """
    inputs, exact = record(name).problems(n, count, seed)
    if exact is None:
        raise OptionError(
            f"the problems of {name!r} have no exact answers; record({name!r}).problems draws their inputs"
        )
    return inputs, exact


@overload
def algorithm(
    name: str,
    n: int,
    *,
    order: int | None = None,
    dtype: torch.dtype | str = torch.float64,
    bound: float | None = None,
    verify: bool = True,
    **moved: Any,
) -> Algorithm: ...


@overload
def algorithm(
    name: str, n: Literal["any"], *, dtype: torch.dtype | str = torch.float64, slots: int | None = None
) -> AnySizeAlgorithm: ...


@full_precision()
def algorithm(
    name: str,
    n: int | Literal["any"],
    *,
    order: int | None = None,
    dtype: torch.dtype | str = torch.float64,
    bound: float | None = None,
    verify: bool = True,
    slots: int | None = None,
    **moved: Any,
) -> Algorithm | AnySizeAlgorithm:
    """A classical algorithm as a looped transformer.

    Parameters
    ----------
    name : one of ``nf.algorithms()``
    n, order, dtype, bound, verify, slots : as in ``nf.compile``
    moved : options of version 0.3, which are refused

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> cg = nf.algorithm("cg", n=3)
    >>> A = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]])
    >>> run = cg.run(A, A @ [1.0, 2.0, 3.0], iterations=3)
    >>> run.x[-1].round(9)
    array([1., 2., 3.])
    >>> cg.cost.loop.layers
    7
    """
    if moved.keys() & {"form", "ffn", "width", "scheme"} and moved != {"form": "compiled"}:
        raise OptionError(
            "CG in the form of the paper's Theorem 3.1 has moved; in a checkout of the repository, "
            "from paper.paper_form import paper_cg; paper_cg(n, ffn=..., width=..., scheme=...)"
        )
    for option in moved.keys() - {"form"}:
        raise unknown_name("option", option, ("order", "dtype", "bound", "verify", "slots"))
    entry = record(name)
    if isinstance(n, str) and n == "any":
        if (order, bound, verify) != (None, None, True):
            raise OptionError("order, bound and verify are settings of weights for one n; omit them with n='any'")
        return compile(entry.program(), "any", dtype=dtype, slots=slots)
    if slots is not None:
        raise OptionError("slots is a setting of weights for every n; omit it, or ask for n='any'")
    order, bound = 3 if order is None else order, entry.bound if bound is None else bound
    if not (verify and entry.particular):
        return compile(entry.program(), n, order=order, dtype=dtype, bound=bound, verify=verify)
    compiled = compile(entry.program(), n, order=order, dtype=dtype, bound=bound, verify=False)
    inputs, _ = entry.problems(n, 6, 2)
    return with_verification(compiled, inputs, min(12, entry.iterations(n)))
