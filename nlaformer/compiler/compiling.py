"""The compiler: one function that names its stages in order."""

from __future__ import annotations

from typing import Any

import torch

from nlaformer.arrays import memory, plain, whole
from nlaformer.compiler.algorithm import LARGEST_BOUND, Algorithm, Plan
from nlaformer.compiler.analysis import analyse, unknown_signs
from nlaformer.compiler.display import describe_schedule
from nlaformer.compiler.emit import Emitter
from nlaformer.compiler.expression import Expression
from nlaformer.compiler.instructions import Precision, StateRows
from nlaformer.compiler.language import Program
from nlaformer.compiler.schedule import schedule
from nlaformer.compiler.select import Selector
from nlaformer.compiler.trace import trace
from nlaformer.compiler.verify import judge_first_steps
from nlaformer.compiler.verify import verify as against_reference
from nlaformer.errors import CompileError, OptionError
from nlaformer.express.linearize import check_scheme
from nlaformer.express.options import DTYPES


def compile(
    program: Program,
    n: int,
    *,
    order: int = 3,
    dtype: torch.dtype = torch.float64,
    bound: float = 1024.0,
    verify: bool = True,
) -> Algorithm:
    """The weights of a looped transformer that runs a program on systems of size n.

    Parameters
    ----------
    program : a Program
    n : the size of the systems
    order : accuracy of inner products, 1, 2 or 3 (2, 4 or 6 heads each)
    dtype : torch.float64 or torch.float32
    bound : the largest Frobenius norm of A (and norm of b) where the program's constants keep them from being scaled
    verify : compare with the program itself on random and hard systems and keep the deviations with the artefact; if
        the first step deviates by more than 1e-6 (float32: 1e-2) on the random ones, CompileError

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> class Jacobi(nf.Program):
    ...     def start(self, x0):
    ...         return dict(x=x0)
    ...
    ...     def step(self, A, b, x):
    ...         return dict(x=x + (b - A @ x) / nf.diag(A))
    >>> jacobi = nf.compile(Jacobi(), n=2)
    >>> A, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    >>> jacobi.run(A, b, iterations=40).x[-1].round(6)
    array([0.090909, 0.636364])
    """
    order, bound = plain(order), plain(bound)
    n = check_options(n, order, dtype)
    if not isinstance(program, Program):
        hint = "; call it: Name()" if isinstance(program, type) and issubclass(program, Program) else ""
        raise OptionError(f"compile takes an nf.Program; {program!r} was given{hint}")
    if isinstance(bound, bool) or not (isinstance(bound, (int, float)) and 0 < bound <= LARGEST_BOUND):
        raise OptionError(f"bound is {bound!r}; expected a number between 0 and {LARGEST_BOUND:.0f}")
    precision = Precision.of(dtype, order)
    attributes = {name: id(value) for name, value in vars(program).items()}
    traced = trace(program, also=unknown_signs)
    if attributes != {name: id(value) for name, value in vars(program).items()}:
        raise CompileError(
            f"{program.name} changes its own attributes while it runs; weights cannot. Return what changes as a state"
        )
    analysis = analyse(traced)
    selection = Selector(traced, analysis, n, precision, bound).select()
    layers = schedule(selection)
    matrix_bound = 2**0.5 if "A" in analysis.scaled else bound
    emitter = Emitter(selection, layers, n, precision, matrix_bound)
    check_memory(program.name, emitter)
    plan = Plan(
        name=program.name,
        n=n,
        dtype=str(dtype).removeprefix("torch."),
        order=order,
        bound=float(bound),
        inputs=traced.needs,
        scaled=sorted(analysis.scaled),
        units={name: [[f.numerator, f.denominator] for f in pair] for name, pair in analysis.units.items()},
        state={name: _places(rows, emitter) for name, rows in selection.state.items()},
        answer=_places(selection.answer, emitter),
        registers=[list(register) for register in emitter.layout.registers],
        residual=None if traced.residual is None else list(Expression.of(traced.residual).nodes),
        scale=None if traced.scale is None else list(Expression.of(traced.scale).nodes),
        promises=[list(Expression.of(node).nodes) for node in analysis.promises],
        steps={name: list(Expression.of(node).nodes) for name, node in traced.step.items()},
        schedule=describe_schedule(selection, layers),
        warnings=list(dict.fromkeys(selection.warnings)),
    )
    algorithm = Algorithm(plan, emitter.model())
    if verify:
        algorithm.plan.verification.update(against_reference(program, algorithm))
        judge_first_steps(algorithm)
    return algorithm


# Numbers that the interpolated logarithms of A take while the weights are made, for each entry of A.
_INTERPOLANTS = 1500


def check_memory(name: str, emitter: Emitter) -> None:
    """Refuse sizes of which the weights, the prompt or the attention of one system alone would not fit the memory."""
    n, layout = emitter.n, emitter.layout
    attention = 2 * n + _INTERPOLANTS if emitter.selection.matrix is not None else 2
    needed = 8 * (layout.rows * layout.tokens + attention * layout.tokens**2)
    available = memory(torch.device("cpu"))
    if needed > available:
        raise OptionError(
            f"n is {n:,}: the weights of {name} and a run would take {needed / 1e9:,.0f} GB; there are "
            f"{available / 1e9:,.0f} GB. Choose a smaller n"
        )


def check_options(n: Any, order: Any, dtype: Any, scheme: str = "antisymmetric") -> int:
    """The size as Python's own number, if it and the other options make sense."""
    check_scheme(order, scheme)
    if dtype not in DTYPES.values():
        raise OptionError(f"dtype is {dtype!r}; expected torch.float64 or torch.float32")
    return whole("n", n, 1)


def _places(rows: StateRows | None, emitter: Emitter) -> dict[str, Any]:
    assert rows is not None
    names = [emitter.names[row] for row in rows.rows]
    return {"kind": rows.kind, "rows": names, "scale": None if rows.scale is None else emitter.names[rows.scale]}
