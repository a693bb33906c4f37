"""The rows of P that a selection asks for, by register: what every instruction's weights are written in.

P has the registers A (token j holds row j of A), one, position, and those the selection asked for; column 1 is the sink
and stays zero in all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from nlaformer.compiler.instructions import EYE, ONE, Instruction, Selection
from nlaformer.compiler.schedule import Schedule
from nlaformer.compiler.terms import Combination, registers_of
from nlaformer.express.heads import Form, Head, Unit
from nlaformer.prompt import Layout

Parts = tuple[list[Head], list[Unit]]
# Sink scores of exponential heads. Exponents are rounded to the grid of their distance from it, which doubles beyond 64
# (float32: 32); values up to e^19 (e^7) above keep their accuracy.
_CEILING = {torch.float64: 56.0, torch.float32: 24.0}


class Rows:
    """Registers to rows, combinations of registers to forms."""

    def __init__(self, selection: Selection, layers: Schedule):
        self.selection, self.blocks, self.target = selection, layers, selection.target
        self.n = selection.target.n
        self.layout = self._layout()
        self.sink = self.layout["position"][0]
        self.one = self.layout["one"][0]
        self.ceiling = _CEILING[self.target.dtype]

    def _layout(self) -> Layout:
        layers = [layer for block in self.blocks.layers.values() for layer in block]
        written = {register for layer in layers for i in layer for register in (i.target, *i.extra)}
        read = {register for layer in layers for i in layer for register in i.reads}
        read |= registers_of(*(source for writes in self.selection.writes.values() for source in writes.values()))
        unused = {self.selection.inputs[name] for name in self.selection.scales} - read
        registers = [("one", 1), ("position", self.n + 1)]
        self.names: dict[int, str] = {ONE: "one"}
        taken = {"one", "position"}
        for k, register in enumerate(self.selection.registers):
            if k in unused:  # the copy of size 1 is
                continue
            if register.name == "A" and register.block == "input":
                self.names[k] = "A"
                registers.insert(0, ("A", self.n))
            elif k not in (ONE, EYE) and (k in written or register.block == "input"):
                name, copy = register.name, 2
                while name in taken:
                    name, copy = f"{register.name} ({copy})", copy + 1
                taken.add(name)
                self.names[k] = name
                registers.append((name, register.height))
        return Layout(tuple(registers), tokens=self.n + 1)

    def rows(self, register: int) -> list[int]:
        if register == EYE:  # the position rows of the data tokens
            return list(self.layout["position"])[1:]
        return list(self.layout[self.names[register]])

    def forms(self, source: Combination, height: int = 1) -> list[Form]:
        """A combination of registers as one form for each of its rows, at least ``height``, a single row repeated."""
        height = max(height, *(len(self.rows(register)) for register, _ in source)) if source else height
        forms: list[Form] = [{} for _ in range(height)]
        for register, coefficient in source:
            rows = self.rows(register)
            for form, row in zip(forms, rows * height if len(rows) == 1 else rows, strict=True):
                form[row] = form.get(row, 0.0) + coefficient
        return forms

    def form(self, source: Combination) -> Form:
        return self.forms(source)[0]


# The weights of one instruction.
Emit = Callable[[Rows, Instruction], Parts]
