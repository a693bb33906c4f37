"""From instructions to layers.

An instruction is placed when it is made, in the first layer its operands allow: attention reads what earlier layers
wrote, the FFN also what the attention of its own layer wrote. There is no limit to the heads of a layer, so first means
fewest. What remains is to drop what nobody reads and to end each block: the FFN of its last layer writes the state and
clears every work row, so that the loop finds P as it left it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nlaformer.compiler.instructions import ATTENTION, ENTRY, Block, Combination, Instruction, Selection

__all__ = ["BLOCKS", "Schedule", "describe_schedule", "schedule"]

BLOCKS: tuple[Block, ...] = ("pre", "loop", "post")
_ENCODING = ("parts of A", "log |A|, signs of A", "log |A| refined", "log |A| refined again")


@dataclass(frozen=True)
class Schedule:
    """The instructions of each block by layer, what its last FFN writes and clears."""

    layers: dict[Block, list[list[Instruction]]]
    writes: dict[Block, dict[int, Combination]]
    clears: dict[Block, list[int]]


def schedule(selection: Selection) -> Schedule:
    """Live instructions in layers; blocks end with their write-back."""
    live: dict[Block, list[Instruction]] = {}
    kept: set[int] = set()
    for block in ("loop", "post"):
        needed = _registers(selection.writes[block].values())
        live[block] = _live(selection.instructions[block], needed)
        kept |= needed | {register for instruction in live[block] for register in instruction.reads}
        if selection.matrix is not None and any(i.op == "matvec" for i in live[block]):
            kept |= {selection.matrix.logs, selection.matrix.signs}
    # What the pre block computes for the others stays in its rows.
    kept = {register for register in kept if selection.registers[register].block == "pre"}
    live["pre"] = _live(selection.instructions["pre"], _registers(selection.writes["pre"].values()) | kept, selection)

    layers: dict[Block, list[list[Instruction]]] = {}
    clears: dict[Block, list[int]] = {}
    for block in BLOCKS:
        instructions, writes = live[block], selection.writes[block]
        depth = max((i.layer + 1 for i in instructions), default=0)
        if writes:
            depth = max(depth, 1 + max(_write_layer(selection, block, source) for source in writes.values()))
        layers[block] = [[i for i in instructions if i.layer == layer] for layer in range(depth)]
        written = {register for i in instructions for register in (i.target, *i.extra)}
        clears[block] = sorted(written - (kept if block == "pre" else set()))
    return Schedule(layers, selection.writes, clears)


def _registers(sources: Iterable[Combination]) -> set[int]:
    return {register for source in sources for register, _ in source}


def _live(instructions: list[Instruction], needed: set[int], selection: Selection | None = None) -> list[Instruction]:
    """The instructions whose results are read, last first."""
    needed, live = set(needed), []
    for instruction in reversed(instructions):
        if needed & {instruction.target, *instruction.extra}:
            live.append(instruction)
            needed |= instruction.reads
            if selection is not None and selection.matrix is not None and instruction.op in ("matvec", "squares"):
                needed |= {selection.matrix.logs}
    return live[::-1]


def _write_layer(selection: Selection, block: Block, source: Combination) -> int:
    """The first layer whose FFN can read a combination."""
    layer = 0
    for register, _ in source:
        known = selection.registers[register]
        written, by = known.time if known.block == block else ENTRY
        layer = max(layer, written if by == ATTENTION else written + 1)
    return layer


# --- in words --------------------------------------------------------------------------------------------------------


def describe_schedule(selection: Selection, layers: Schedule) -> dict[str, list[list[str]]]:
    """Each block's layers as lists of assignments, which ``print`` shows; t1, t2, ... are temporaries."""
    described: dict[str, list[list[str]]] = {}
    for block in BLOCKS:
        words = _Words(selection, block)
        described[block] = [[words.instruction(i) for i in instructions] for instructions in layers.layers[block]]
        if described[block]:
            described[block][-1] += [words.write(r, source) for r, source in layers.writes[block].items()]
    return described


class _Words:
    """The instructions of a block in words."""

    def __init__(self, selection: Selection, block: Block):
        self.selection, self.block = selection, block

    def name(self, register: int) -> str:
        return self.selection.registers[register].name.removeprefix(f"{self.block} ")

    def sum(self, source: Combination) -> str:
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
        power = f" exp({self.sum(i.exponent)})" if i.exponent else ""
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
