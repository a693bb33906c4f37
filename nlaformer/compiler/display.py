"""How a compiled algorithm prints: its blocks, layer by layer, as assignments to registers."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from nlaformer.compiler.instructions import Instruction, Selection
from nlaformer.compiler.schedule import Schedule
from nlaformer.compiler.values import Combination, Form
from nlaformer.prompt import Layout
from nlaformer.transformer import NLAFormer

if TYPE_CHECKING:
    from nlaformer.compiler.algorithm import Plan

_TITLES = {"pre": "pre block (start)", "loop": "loop block (step)", "post": "post block (finish)"}
_ENCODING = ("parts of A", "log |A|, signs of A", "log |A| refined", "log |A| refined again")


def describe_schedule(selection: Selection, layers: Schedule) -> dict[str, list[list[str]]]:
    """Each block's layers as lists of assignments; t1, t2, ... are temporaries."""
    described: dict[str, list[list[str]]] = {}
    for block, contents in layers.layers.items():
        words = Words(selection, block)
        described[block] = [[words.instruction(i) for i in instructions] for instructions in contents]
        if contents:
            described[block][-1] += [words.write(r, source) for r, source in layers.writes[block].items()]
    return {block: described[block] for block in _TITLES}  # type: ignore[index]


class Words:
    """The instructions of a block in words."""

    def __init__(self, selection: Selection, block: str):
        self.selection, self.block = selection, block

    def name(self, register: int) -> str:
        return self.selection.registers[register].name.removeprefix(f"{self.block} ")

    def sum(self, source: Combination | Form) -> str:
        text = ""
        for register, coefficient in source:
            size = "" if abs(coefficient) == 1 else f"{abs(coefficient):.4g} "
            sign = (" - " if text else "-") if coefficient < 0 else (" + " if text else "")
            text += sign + size + self.name(register)
        return text or "0"

    def factor(self, source: Combination) -> str:
        return self.sum(source) if len(source) == 1 else f"({self.sum(source)})"

    def write(self, register: int, source: Combination) -> str:
        return f"{self.name(register)} := {self.sum(source)}"

    def reading(self, i: Instruction) -> str:
        """Scalars, and their trips, are read from the first token."""
        if not i.parameters[-1]:
            return ""
        trip = f", {self.name(i.extra[1])} = {self.factor(i.sources[2])}" if len(i.sources) == 3 else ""
        return f"{trip}, read from token 1"

    def instruction(self, i: Instruction) -> str:
        if i.op == "encode":
            return _ENCODING[i.layer]
        first, *others = [self.factor(source) for source in i.sources] or [""]
        power = f" exp({self.sum(i.form)})" if i.form else ""
        text = {
            "scale": lambda: first + power,
            "matvec": lambda: f"{i.parameters[0]} {first}{power}",
            "dot": lambda: f"{first} . {others[0]}",
            "product": lambda: f"{first} * {others[0]}",
            "matmul": lambda: f"{first} @ {others[0]}",
            "log": lambda: f"log {first}, interpolated",
            "refine": lambda: f"log {first}, refined" + self.reading(i),
            "relu": lambda: f"max({first}, 0)",
            "trip": lambda: f"trip where {first} < {i.parameters[0]:.0e}",
            "diag": lambda: "diag(A)",
            "sum": lambda: f"sum of {first} over tokens",
            "squares": lambda: "row sums of A * A",
        }[i.op]()
        return f"{self.name(i.target)} = {text}"


def show(plan: Plan, model: NLAFormer, layout: Layout, width: int = 118) -> str:
    """The schedule: for every layer its heads, its FFN width and its assignments; then what was verified."""
    loop = len(model.loop)
    lines = [
        f"{plan.name}, n = {plan.n}, {plan.dtype}: {layout.rows} rows x {layout.tokens} tokens, "
        f"{loop} layer{'' if loop == 1 else 's'} an iteration",
        "scaled by powers of two: " + (", ".join(plan.scaled) or f"nothing (inputs within {plan.bound:g})"),
    ]
    for block, title in _TITLES.items():
        layers: Any = getattr(model, block)
        lines.append(f"{title}: {len(layers)} layer" + ("" if len(layers) == 1 else "s"))
        for k, (layer, instructions) in enumerate(zip(layers, plan.schedule[block], strict=True), start=1):
            heads = 0 if layer.heads is None else layer.heads.count
            hidden = 0 if layer.ffn is None else layer.ffn.width
            first = f"  {k:2}  {heads:3} head{' ' if heads == 1 else 's'}  FFN {hidden:5}  "
            lines += textwrap.wrap(
                "; ".join(instructions), width, initial_indent=first, subsequent_indent=" " * len(first)
            ) or [first.rstrip()]
    lines += [f"note: {warning}" for warning in plan.warnings]
    for name, found in plan.verification.get("systems", {}).items():
        lines.append(
            f"verified on {name}: deviation {found['first']:.0e} after one step, {found['last']:.0e} "
            f"after {plan.verification['iterations']}"
        )
    return "\n".join(lines)
