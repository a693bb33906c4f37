"""From instructions to layers.

An instruction is placed when it is made, in the first layer its operands allow: attention reads what earlier layers
wrote, the FFN also what the attention of its own layer wrote. There is no limit to the heads of a layer, so first means
fewest. What remains is to drop what nobody reads and to end each block: the FFN of its last layer writes the state and
clears every work row, so that the loop finds P as it left it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nlaformer.compiler.instructions import ATTENTION, ENTRY, Block, Instruction, Selection
from nlaformer.compiler.values import Combination


@dataclass(frozen=True)
class Schedule:
    """The instructions of each block by layer, what its last FFN writes and clears."""

    layers: dict[Block, list[list[Instruction]]]
    writes: dict[Block, dict[int, Combination]]
    clears: dict[Block, list[int]]


def schedule(selection: Selection) -> Schedule:
    """Live instructions in layers; blocks end with their write-back."""
    needed = {block: _registers(selection.writes[block].values()) for block in ("loop", "post")}
    live: dict[Block, list[Instruction]] = {}
    for block in ("loop", "post"):
        live[block] = _live(selection.instructions[block], needed[block])  # type: ignore[index]
    kept = needed["loop"] | needed["post"]
    for block in ("loop", "post"):
        kept |= {register for instruction in live[block] for register in instruction.reads}  # type: ignore[index]
        if selection.matrix is not None and any(i.op == "matvec" for i in live[block]):  # type: ignore[index]
            kept |= {selection.matrix.logs, selection.matrix.signs}
    kept = {register for register in kept if selection.registers[register].block == "pre"}
    live["pre"] = _live(selection.instructions["pre"], _registers(selection.writes["pre"].values()) | kept, selection)

    layers: dict[Block, list[list[Instruction]]] = {}
    clears: dict[Block, list[int]] = {}
    for block, instructions in live.items():
        writes = selection.writes[block]
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
