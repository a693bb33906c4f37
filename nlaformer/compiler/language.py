"""The language is ``nlaformer.program``; here its programs learn to run: a plain run is judged as a compiled one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlaformer.program.inputs import size_of
from nlaformer.program.language import KINDS, Program

if TYPE_CHECKING:
    from nlaformer.arrays import ArrayT
    from nlaformer.compiler.result import Run


def _run(
    self: Program,
    A: ArrayT | None = None,
    b: ArrayT | None = None,
    x0: ArrayT | None = None,
    iterations: int = 30,
    **further: ArrayT | float,
) -> Run[ArrayT]:
    """The reference: the program itself on NumPy or torch arrays, no transformer; ``further`` inputs by name."""
    from nlaformer.compiler.result import run_program
    from nlaformer.compiler.trace import trace_program

    given = {"A": A, "b": b, "x0": x0} | further
    kinds = KINDS | dict(self.inputs)
    return run_program(trace_program(self, size_of(given, kinds)), given, iterations)


Program.run = _run  # type: ignore[method-assign]
