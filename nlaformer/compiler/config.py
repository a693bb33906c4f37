"""The configuration of a compiled algorithm: everything but its weights, and what of a run follows from it alone.

A run multiplies A and b by powers of two, so that their norms are what the weights are made for, and every state and
the answer by the powers that follow from their units (``lower/facts.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from nlaformer.errors import DomainError, FileError
from nlaformer.program.data import ProgramGraph
from nlaformer.program.ir import AXES
from nlaformer.program.language import KINDS
from nlaformer.program.tensors import size
from nlaformer.prompt import exponent

LARGEST_BOUND = 2.0**20


@dataclass(frozen=True)
class AlgorithmConfig:
    """Everything about a compiled algorithm but its weights.

    ``program`` is what every value should be, with the line of the user's class that makes it. ``units`` has the
    exponents of A and b in each value's scale, ``scaled`` which of them a run scales, ``state`` and ``answer`` the rows
    of each value, ``scales`` the rows of an input of size 1 and of the logarithm of its scale, for inputs that the run
    does not scale. ``schedule`` says what every layer does, which the weights alone do not show.
    """

    name: str
    dtype: str
    order: int
    bound: float
    program: ProgramGraph
    scaled: list[str]
    units: dict[str, Any]
    state: dict[str, Any]
    answer: dict[str, Any]
    registers: list[Any]
    schedule: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    form: str = "compiled"
    scales: dict[str, Any] = field(default_factory=dict)
    verification: dict[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return self.program.n

    @property
    def inputs(self) -> list[str]:
        return list(self.program.inputs)

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each input."""
        return self.program.kinds

    def data(self) -> dict[str, Any]:
        """What ``save`` writes."""
        return vars(self) | {"program": self.program.data()}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> AlgorithmConfig:
        """The configuration of saved data; FileError if it is none."""
        program = data.get("program")
        if "inputs" in data or not isinstance(program, dict) or "nodes" not in program:
            raise FileError("version 0.3 or an earlier one wrote it; compile the program again, and save it anew")
        return cls(**{**data, "program": ProgramGraph.read(program)})

    def exponents(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The powers of two that A and b are divided by; multiples of what makes every state's exponent whole."""
        whole = math.lcm(*(denominator for pair in self.units.values() for _, denominator in pair))
        like = next(iter(inputs.values()))
        zero = torch.zeros(len(like), dtype=torch.int64, device=like.device)
        found = {"A": zero, "b": zero}
        for name in sorted(found.keys() & inputs.keys()):  # A before b, whose exponent depends on it
            magnitude = size(inputs[name], AXES[KINDS[name]])
            if name not in self.scaled:
                self._check_bound(name, magnitude)
                continue
            e = size_exponent(inputs[name], AXES[KINDS[name]])
            if name == "b" and "x0" in inputs and self._unit("x0")[1] == 1:
                # A far-off x0 must fit too.
                there = size(inputs["x0"], 1)
                e_x = size_exponent(inputs["x0"], 1) - self._unit("x0")[0].numerator * found["A"]
                e = torch.where(there > 0, torch.where(magnitude > 0, torch.maximum(e, e_x), e_x), e)
            found[name] = -torch.div(-e, whole, rounding_mode="floor") * whole  # up: at most what the weights hold
        return found

    def _unit(self, name: str) -> tuple[Fraction, Fraction]:
        of_A, of_b = self.units.get(name, ((0, 1), (0, 1)))
        return Fraction(*of_A), Fraction(*of_b)

    def exponent_of(self, name: str, exponents: dict[str, Tensor]) -> Tensor:
        """The power of two that an input, a state or the answer is divided by."""
        total = torch.zeros_like(exponents["A"])
        for unit, e in zip(self._unit(name), (exponents["A"], exponents["b"]), strict=True):
            total = total + torch.div(e * unit.numerator, unit.denominator, rounding_mode="floor")
        return total

    def _check_bound(self, name: str, magnitude: Tensor) -> None:
        if bool((magnitude > self.bound).any()):
            largest = float(magnitude.max())
            larger = f"Compile with a larger bound=, at most {LARGEST_BOUND:.0f}, or make"
            example = {"A": "a step size 0.1 / nf.norm(A)", "b": "a threshold 0.1 * nf.norm(b)"}[name]
            raise DomainError(
                f"{self.name}: the norm of {name} is {largest:.6g}, beyond bound={self.bound:.10g}; this "
                f"program has constants that keep {name} from being scaled. "
                f"{larger if largest <= LARGEST_BOUND else f'bound= is at most {LARGEST_BOUND:.0f}: make'} "
                f"the constants relative to {name}, as {example}"
            )


def size_exponent(value: Tensor, axes: int) -> Tensor:
    """The exponent of the size, also where the size itself is beyond the largest number; (...)."""
    found = size(value, axes)
    e = torch.where(found.isfinite(), exponent(found), 64 + exponent(size(value * 2.0**-64, axes)))
    return e.to(torch.int64)
