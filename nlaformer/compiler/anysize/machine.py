"""The machine for any n: a token for each row of A, rows of the prompt, and instructions that are a head or some units.

Token i holds a vector's entry i in one row; a scalar is a row that is equal in all tokens. An instruction writes one
row, in the first half layer in which all that it reads is there:

    slot   sum over the slots of A's row i of a_is value(column of slot s)            heads by address
    own    e^score value, token by token                                              heads by own address
    all    sum over all tokens of e^score value                                       heads over all tokens
    first  value at token 1, so that a scalar is the same in all tokens to the bit
    linear, relu, absolute, log                                                       hidden units

A block ends with what it writes. A state whose new value is no increment is cleared by a head and written by the FFN of
the same layer, so that a small value that replaces a large one keeps its digits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from nlaformer.compiler.terms import Combination

Block = Literal["pre", "loop", "post"]
BLOCKS: tuple[Block, ...] = ("pre", "loop", "post")
ONE = 0
Part = tuple[Combination, Combination]  # value and score
HEADS = ("slot", "own", "all", "first", "clear")


@dataclass(frozen=True)
class Instruction:
    """What one row is made of: the sum over ``parts`` of value e^score; ``matrix`` names the slots."""

    kind: str
    parts: tuple[Part, ...]
    matrix: str = ""

    @property
    def reads(self) -> set[int]:
        return {row for value, score in self.parts for row, _ in (*value, *score)}


@dataclass
class Row:
    """A row of the prompt; ``ready``: the half layer of its block from which on it may be read."""

    name: str
    scalar: bool
    block: Block | Literal["input"]
    ready: int = 0


@dataclass
class Machine:
    """Rows, and for each block the instructions by half layer, what it writes and what it clears."""

    rows: list[Row] = field(default_factory=lambda: [Row("one", True, "input")])
    placed: dict[Block, list[tuple[int, Instruction, int]]] = field(default_factory=lambda: {b: [] for b in BLOCKS})
    writes: dict[Block, dict[int, Combination]] = field(default_factory=lambda: {b: {} for b in BLOCKS})
    clears: dict[Block, list[int]] = field(default_factory=lambda: {b: [] for b in BLOCKS})
    layers: dict[Block, int] = field(default_factory=dict)
    block: Block = "pre"
    _known: dict[tuple[Block, Instruction], int] = field(default_factory=dict)

    def row(self, name: str, scalar: bool, block: Block | Literal["input"] = "input") -> int:
        self.rows.append(Row(name, scalar, block))
        return len(self.rows) - 1

    def ready(self, rows: Iterable[int], block: Block) -> int:
        return max((self.rows[row].ready for row in rows if self.rows[row].block == block), default=0)

    def add(self, kind: str, *parts: Part, matrix: str = "") -> int:
        """The row that an instruction writes; the one that is there, if there is one."""
        instruction = Instruction(kind, parts, matrix)
        for block in ("pre", self.block):
            if (block, instruction) in self._known:
                return self._known[block, instruction]  # type: ignore[index]
        half = self.ready(instruction.reads, self.block)
        half += (half % 2) if kind in HEADS else 1 - half % 2
        scalar = kind in ("all", "first") or (
            kind != "slot" and all(self.rows[row].scalar for row in instruction.reads)
        )
        row = self.row(f"{self.block} {kind} {len(self.rows)}", scalar, self.block)
        self.rows[row].ready = half + 1
        self.placed[self.block].append((half, instruction, row))
        self._known[self.block, instruction] = row
        return row

    def end(self, block: Block, writes: dict[int, Combination]) -> None:
        """A block's end: ``writes`` has the new values of rows that outlast it."""
        self.block = block
        changed = {row: source for row, source in writes.items() if source != ((row, 1.0),)}
        new: dict[int, Combination] = {}
        cleared = []
        for row, source in changed.items():
            others = [(other, c) for other, c in source if other != row and other in changed]
            increment = dict(source).get(row) == 1.0 and not others and block != "post"
            if block == "loop" and not increment:
                cleared.append(row)
        for row, source in changed.items():
            if row in cleared:
                old = tuple((other, c) for other, c in source if other in changed)
                copy = ((self.add("linear", (old, ())), 1.0),) if old else ()
                new[row] = (*(pair for pair in source if pair[0] not in changed), *copy)
            else:
                new[row] = tuple(pair for pair in source if pair[0] != row)
        last = max([0, *(self.ready((r for r, _ in source), block) // 2 for source in new.values())])
        for half, instruction, _ in self.placed[block]:
            last = max(last, half // 2)
            if instruction.kind not in HEADS and instruction.reads & set(cleared):
                last = max(last, half // 2 + 1)
        if cleared:
            for row in cleared:
                self.placed[block].append((2 * last, Instruction("clear", ((((row, -1.0),), ()),)), row))
        self.writes[block] = new
        self.layers[block] = last + 1 if new or self.placed[block] else 0

    def finish(self) -> None:
        """What each block clears at its end: the rows that it made and that no other reads."""
        read = {row for b in BLOCKS[1:] for _, instruction, _ in self.placed[b] for row in instruction.reads}
        read |= {row for b in BLOCKS[1:] for source in self.writes[b].values() for row, _ in source}
        for block in BLOCKS:
            made = {row for _, instruction, row in self.placed[block] if instruction.kind != "clear"}
            self.clears[block] = sorted(made - read if block == "pre" else made)
