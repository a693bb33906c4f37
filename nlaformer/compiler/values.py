"""How a value lives in the rows of P: sums of  coefficient * row * e^form.

    V_j = sum_k  c_k  (M_k R_k)_j  e^{F_k[j]}

R is a register (the register of ones for scalars), F a *form*: a linear combination of rows that hold logarithms, known
to the compiler only by name, and M is nothing, A or A^T. Products, quotients, powers and roots of such terms are
arithmetic on c and F and cost no layer; ``instructions.Builder.materialize`` puts a value into a row where it must be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Form = tuple[tuple[int, float], ...]  # sorted (register, coefficient)
Combination = tuple[tuple[int, float], ...]
Operator = Literal["", "A", "A.T"]


def combine(*parts: tuple[float, Iterable[tuple[int, float]]]) -> Form:
    """The sum of factor * form over the parts."""
    total: dict[int, float] = {}
    for factor, form in parts:
        for register, coefficient in form:
            total[register] = total.get(register, 0.0) + factor * coefficient
    return tuple(sorted((register, c) for register, c in total.items() if c != 0.0))


def combination(entries: Mapping[int, float]) -> Combination:
    return combine((1.0, entries.items()))


@dataclass(frozen=True)
class Term:
    """coefficient * (operator row) * e^form."""

    coefficient: float
    register: int
    form: Form = ()
    operator: Operator = ""

    def times(self, factor: float, form: Form = ()) -> Term:
        return replace(self, coefficient=self.coefficient * factor, form=combine((1.0, self.form), (1.0, form)))


Value = tuple[Term, ...]


def add(*values: Value) -> Value:
    """A sum, like terms collected."""
    total: dict[tuple[int, Form, Operator], float] = {}
    for value in values:
        for term in value:
            key = (term.register, term.form, term.operator)
            total[key] = total.get(key, 0.0) + term.coefficient
    return tuple(Term(c, register, form, operator) for (register, form, operator), c in total.items() if c != 0.0)


def multiply(value: Value, exponentials: Value) -> Value:
    """A product in which one side consists of exponentials alone (its rows are ones)."""
    return add(*(tuple(term.times(e.coefficient, e.form) for term in value) for e in exponentials))
