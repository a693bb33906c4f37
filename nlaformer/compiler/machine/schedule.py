"""From placed instructions to layers.

An instruction has its layer since it was made (``rows``). What remains is to drop what nobody reads and to end each
block: the FFN of its last layer writes the state and clears every work row, so that the loop finds P as it was.

A row is replaced by adding the difference, which is rounded to the digits of the larger value. A state at fixed scale,
which may fall by many decades in a step, is therefore cleared as soon as nothing reads it any more, where that is a
layer before the last: what is then added to 0 keeps its digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nlaformer.compiler.machine.instructions import Attend, Show, Words
from nlaformer.compiler.machine.logarithms import Encode
from nlaformer.compiler.machine.rows import BLOCKS, FFN, Block, Machine, Placed, Plan
from nlaformer.compiler.terms import Combination


@dataclass(frozen=True)
class Schedule:
    """The instructions of each block by layer, and what is cleared.

    Attributes
    ----------
    clears : what the last FFN of a block clears
    early : the layer in which a state's old value is cleared, in the last one by a head
    unread : inputs that are given, but that nothing reads
    """

    layers: dict[Block, list[list[Placed]]]
    clears: dict[Block, list[int]]
    early: dict[Block, dict[int, int]]
    unread: set[int]


def schedule(plan: Plan) -> Schedule:
    """Live instructions in layers; blocks end with their write-back."""
    machine = plan.machine
    layers: dict[Block, list[list[Placed]]] = {}
    clears: dict[Block, list[int]] = {}
    early: dict[Block, dict[int, int]] = {}
    kept: set[int] = set()  # what the pre block computes for the others stays in its rows
    read_anywhere: set[int] = set()
    for block in ("loop", "post", "pre"):
        writes = machine.writes[block]
        written_back = machine.roots(*writes.values())
        live, needed = _live(machine.placed[block], written_back | kept)
        last = [each.layer for each in live]
        if writes:
            with machine.within(block):
                last.append(machine.first_layer(written_back, FFN))
        layers[block] = [[each for each in live if each.layer == k] for k in range(1 + max(last, default=-1))]
        clears[block] = sorted({row for each in live for row in each.written} - kept)
        old = _cleared_early(plan) - written_back if block == "loop" else set()
        early[block] = _early(machine, old, writes, live, len(layers[block]) - 1)
        read_anywhere |= written_back.union(*(each.reads for each in live))
        kept |= {row for row in needed if machine.rows[row].block == "pre"}
    unread = {plan.inputs[name] for name in plan.scales} - read_anywhere
    return Schedule(layers, clears, early, unread)


def _live(placed: Sequence[Placed], needed: set[int]) -> tuple[list[Placed], set[int]]:
    """The instructions whose results are needed, and all rows that are."""
    live = []
    for each in reversed(placed):
        if needed.intersection(each.written):
            live.append(each)
            needed = needed | each.reads
    return live[::-1], needed


def _early(
    machine: Machine, old: set[int], writes: dict[int, Combination], live: Sequence[Placed], end: int
) -> dict[int, int]:
    """The layer in which the old values of states are cleared before the last FFN writes them."""
    read = {row: max((each.layer for each in live if row in each.reads), default=0) for row in old}
    moving = {each.target for each in live if isinstance(each.instruction, (Attend, Show))}
    in_ffn = {row for each in live if each.layer == end and each.instruction.half != "attention" for row in each.reads}
    # Rows that entries are moved to may be cleared by a head of the last layer.
    moved = {row for row, source in writes.items() if moving & machine.roots(source)} - in_ffn
    return {row: layer for row, layer in read.items() if layer < end or row in moved}


def _cleared_early(plan: Plan) -> set[int]:
    """The rows of vectors and matrices among the states that may be far smaller than what they replace.

    An FFN adds new - old to the old value, and so rounds at its size. A state that floats has entries of one size,
    unless they are moved: a small row may come to stand where a large one was.
    """
    moved = any(isinstance(each.instruction, (Attend, Show)) for each in plan.machine.placed["loop"])
    states = [stored for stored in plan.state.values() if stored.kind != "scalar" and (moved or stored.scale is None)]
    return {stored.row for stored in states}


def in_words(plan: Plan, layers: Schedule) -> dict[str, list[list[str]]]:
    """What each layer of each block computes, as assignments; t1, t2, ... are temporaries of their block."""
    machine = plan.machine
    words: dict[str, list[list[str]]] = {}
    for block in BLOCKS:
        names = [_name(machine, number, block) for number in range(len(machine.rows))]

        def say(source: Combination, names: list[str] = names) -> str:
            text = _sum(source, names)
            return text if len(source) < 2 else f"({text})"

        words[block] = [[_assignment(each, names, say) for each in layer] for layer in layers.layers[block]]
        if words[block]:
            writes = machine.writes[block].items()
            words[block][-1] += [f"{names[row]} := {_sum(source, names)}" for row, source in writes]
    return words


def _assignment(placed: Placed, names: Sequence[str], say: Words) -> str:
    """What an instruction does; one of several layers that make a row together says so itself."""
    words = placed.instruction.words(say, [names[row] for row in placed.beside])
    return words if isinstance(placed.instruction, Encode) else f"{names[placed.target]} = {words}"


def _name(machine: Machine, number: int, block: Block) -> str:
    row = machine.rows[number]
    if row.view:
        of = dict.fromkeys(machine.rows[part[0]].name.removeprefix(f"{block} ") for part in row.view if part)
        return f"rows of {', '.join(of)}"
    return row.name.removeprefix(f"{block} ")


def _sum(source: Combination, names: Sequence[str]) -> str:
    text = ""
    for number, coefficient in source:
        size = "" if abs(coefficient) == 1 else f"{abs(coefficient):.4g} "
        sign = (" - " if text else "-") if coefficient < 0 else (" + " if text else "")
        text += sign + size + names[number]
    return text or "0"
