"""Values as sums of terms, coefficient * row * e^exponent:

    V_j = sum_k  c_k  (M_k R_k)_j  e^{F_k[j]}

R is a register (the register of ones for scalars), F a linear combination of rows that hold logarithms, known to the
compiler only by name, and M is nothing, A or A^T. Products, quotients, powers and roots of such terms are arithmetic on
c and F and cost no layer; ``Lowering.stored`` puts a value into rows where it must be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Combination = tuple[tuple[int, float], ...]  # of registers: sorted (register, coefficient)
Operator = str  # of a term: nothing, or an input matrix by name, "C", transposed "C.T"


def combine(*parts: tuple[float, Iterable[tuple[int, float]]]) -> Combination:
    """The sum of factor * combination over the parts."""
    total: dict[int, float] = {}
    for factor, part in parts:
        for register, coefficient in part:
            total[register] = total.get(register, 0.0) + factor * coefficient
    return tuple(sorted((register, c) for register, c in total.items() if c != 0.0))


def registers_of(*sources: Combination) -> set[int]:
    return {register for source in sources for register, _ in source}


@dataclass(frozen=True)
class Term:
    """coefficient * (operator row) * e^exponent."""

    coefficient: float
    register: int
    exponent: Combination = ()
    operator: Operator = ""


Terms = tuple[Term, ...]


def add(*values: Terms) -> Terms:
    """A sum, like terms collected."""
    total: dict[tuple[int, Combination, Operator], float] = {}
    for value in values:
        for term in value:
            key = (term.register, term.exponent, term.operator)
            total[key] = total.get(key, 0.0) + term.coefficient
    return tuple(Term(c, *key) for key, c in total.items() if c != 0.0)


def multiply(value: Terms, exponentials: Terms) -> Terms:
    """A product in which one side consists of exponentials alone (its rows are ones)."""
    return add(
        tuple(
            Term(e.coefficient * t.coefficient, t.register, combine((1.0, t.exponent), (1.0, e.exponent)), t.operator)
            for e in exponentials
            for t in value
        )
    )
