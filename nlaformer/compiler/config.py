"""The configuration of a compiled algorithm: everything but its weights, and what of a run follows from it alone.

A run multiplies A and b by powers of two, so that their norms are what the weights are made for, and every state and
the answer by the powers that follow from their units (``analysis.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from nlaformer.compiler.analysis import Analysis
from nlaformer.compiler.expression import Expression, size, size_exponent
from nlaformer.compiler.graph import KINDS
from nlaformer.compiler.machine.rows import Target
from nlaformer.compiler.reference import returned, without_networks
from nlaformer.compiler.trace import TracedProgram
from nlaformer.errors import DomainError
from nlaformer.prompt import Layout

LARGEST_BOUND = 2.0**20


@dataclass(frozen=True)
class AlgorithmConfig:
    """Everything about a compiled algorithm but its weights, as plain data; what ``save`` writes.

    ``units`` has the exponents of A and b in each value's scale, ``state`` and ``answer`` the rows of each value,
    ``scales`` the rows of an input of size 1 and of the logarithm of its scale, for inputs that the run does not scale.
    ``residual``, ``scale``, ``promises`` and ``program`` (what every value should be) are the data of an ``Expression``
    each. ``schedule`` says in words what every layer computes, which the weights alone do not show;
    ``lines`` the line of the user's class that computes each value.
    """

    name: str
    n: int
    dtype: str
    order: int
    bound: float
    inputs: list[str]
    scaled: list[str]
    units: dict[str, Any]
    state: dict[str, Any]
    answer: dict[str, Any]
    registers: list[Any]
    residual: Any
    scale: Any
    promises: Any
    program: Any
    schedule: dict[str, Any]
    warnings: list[str]
    form: str = "compiled"
    scales: dict[str, Any] = field(default_factory=dict)
    verification: dict[str, Any] = field(default_factory=dict)
    further: dict[str, str] = field(default_factory=dict)
    rectangular: bool = False
    definite: bool = False  # whether the program takes A to be symmetric positive definite
    lines: dict[str, str] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each input; ``further`` has those that the program declares."""
        return {name: (KINDS | self.further)[name] for name in self.inputs}

    @classmethod
    def of(
        cls, traced: TracedProgram, analysis: Analysis, target: Target, layout: Layout, **fields: Any
    ) -> AlgorithmConfig:
        """The configuration of a program in a layout; ``fields`` are those that depend on its weights."""
        return cls(
            n=target.n,
            dtype=str(target.dtype).removeprefix("torch."),
            order=target.order,
            bound=target.bound,
            inputs=list(traced.inputs),
            rectangular=traced.program.rectangular,
            definite=traced.program.positive_definite,
            further={name: node.kind for name, node in traced.inputs.items() if name not in KINDS},
            scaled=sorted(analysis.scaled),
            units={name: [[f.numerator, f.denominator] for f in pair] for name, pair in analysis.units.items()},
            registers=[list(register) for register in layout.registers],
            residual=None if traced.residual is None else Expression.of({"residual": traced.residual}).data(),
            scale=None if traced.scale is None else Expression.of({"scale": traced.scale}).data(),
            lines={k: str(v.place) for k, v in returned(traced).items() if v.op not in ("input", "state")},
            promises=Expression.of(without_networks({str(k): v for k, v in enumerate(analysis.promises)})).data(),
            **fields,
        )

    def exponents(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The powers of two that A and b are divided by; multiples of what makes every state's exponent whole."""
        whole = math.lcm(*(denominator for pair in self.units.values() for _, denominator in pair))
        like = next(iter(inputs.values()))
        zero = torch.zeros(len(like), dtype=torch.int64, device=like.device)
        found = {"A": zero, "b": zero}
        for name in sorted(found.keys() & inputs.keys()):  # A before b, whose exponent depends on it
            magnitude = size(inputs[name], KINDS[name])
            if name not in self.scaled:
                self._check_bound(name, magnitude)
                continue
            e = size_exponent(inputs[name], KINDS[name])
            if name == "b" and "x0" in inputs and self._unit("x0")[1] == 1:
                # A far-off x0 must fit too.
                there = size(inputs["x0"], "vector")
                e_x = size_exponent(inputs["x0"], "vector") - self._unit("x0")[0].numerator * found["A"]
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
