"""From instructions to layers.

An instruction has its layer since it was made (``instructions``). What remains is to drop what nobody reads and to end
each block: the FFN of its last layer writes the state and clears every work row, so that the loop finds P as it was.

A row is replaced by adding the difference, which is rounded to the digits of the larger value. A state at fixed scale,
which may fall by many decades in a step, is therefore cleared as soon as nothing reads it any more, where that is a
layer before the last: what is then added to 0 keeps its digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nlaformer.compiler.instructions import ATTENTION, BY_BOTH, BY_FFN, FFN, Block, Instruction, Selection, first_half
from nlaformer.compiler.terms import Combination, registers_of

BLOCKS: tuple[Block, ...] = ("pre", "loop", "post")
_ENCODING = ("parts of {0}", "log |{0}|, signs of {0}", "log |{0}| refined", "log |{0}| refined again")
_WORDS = {
    "scale": "{first}{power}",
    "matvec": "{parameter} {first}{power}",
    "dot": "{first} . {second}",
    "product": "{first} * {second}",
    "matmul": "{first}{parameter} @ {second}",
    "skew": "diagonals of {first}",
    "transpose": "the transpose, from {first}",
    "outer": "{first} {second}^T",
    "row dots": "rows of {first} . rows of {second}",
    "sum": "sum of {first} over tokens",
    "row sums": "sums of the rows of {first}",
    "squares": "row sums of {parameter} * {parameter}",
    "move": "entries of {first} moved",
    "log": "log {first}, interpolated",
    "coarse": "log |{first}|, roughly",
    "beneath": "min(log {first} + 16, 0), roughly",
    "peak": "largest {first}",
    "pick": "{first} of token 1",
    "relu": "max({first}, 0)",
    "below": "1 where {first} = 0",
    "flip": "{first} by the sign of {second}",
    "absolute": "sum of |{first}| over rows",
    "trip": "large where {first} < {parameter:.0e}, else 0",
    "diag": "diag({first})",
    "diagonal": "diagonal matrix of {first}",
    "triangle": "{parameter} of {first}",
    "constant": "constant",
    "read in": "{first} read by the network",
    "tell": "the network after {first} is given {second}",
    "network": "a trained layer after {first}",
    "hear": "what the network says after {first}",
}


@dataclass(frozen=True)
class Schedule:
    """The instructions of each block by layer, and what its last FFN clears."""

    layers: dict[Block, list[list[Instruction]]]
    clears: dict[Block, list[int]]
    early: dict[Block, dict[int, int]]  # the layer in which a state's old value is cleared, in the last one by a head


def schedule(selection: Selection) -> Schedule:
    """Live instructions in layers; blocks end with their write-back."""
    layers: dict[Block, list[list[Instruction]]] = {}
    clears: dict[Block, list[int]] = {}
    early: dict[Block, dict[int, int]] = {}
    kept: set[int] = set()  # what the pre block computes for the others stays in its rows
    for block in ("loop", "post", "pre"):
        live: list[Instruction] = []
        written_back = registers_of(*selection.writes[block].values())
        needed = written_back | kept
        for instruction in reversed(selection.instructions[block]):
            if needed & {instruction.target, *instruction.extra}:
                live.insert(0, instruction)
                needed |= instruction.reads
        last = [i.layer for i in live]
        if selection.writes[block]:
            last.append(selection.first_layer(block, written_back, FFN))
        layers[block] = [[i for i in live if i.layer == layer] for layer in range(1 + max(last, default=-1))]
        written = {register for i in live for register in (i.target, *i.extra)}
        clears[block] = sorted(written - kept)
        old = _cleared_early(selection) - written_back if block == "loop" else set()
        read = {register: max((i.layer for i in live if register in i.reads), default=0) for register in old}
        end = len(layers[block]) - 1
        moved = _written_by_moves(selection.writes[block], live) - {
            r for i in live if _reads_in_ffn(i, end) for r in i.reads
        }
        early[block] = {register: layer for register, layer in read.items() if layer < end or register in moved}
        kept |= {register for register in needed if selection.registers[register].block == "pre"}
    return Schedule(layers, clears, early)


def _cleared_early(selection: Selection) -> set[int]:
    """The rows of vectors and matrices among the states that may be far smaller than what they replace.

    An FFN adds new - old to the old value, and so rounds at its size. A state that floats has entries of one size,
    unless they are moved: a small row may come to stand where a large one was.
    """
    moved = any(i.op == "move" for i in selection.instructions["loop"])
    states = [rows for rows in selection.state.values() if rows.kind != "scalar" and (moved or rows.scale is None)]
    return {rows.register for rows in states}


def _written_by_moves(writes: dict[int, Combination], live: list[Instruction]) -> set[int]:
    """The rows that entries are moved to, by heads of a block."""
    made = {i.target for i in live if i.op == "move"}
    return {register for register, source in writes.items() if made & registers_of(source)}


def _reads_in_ffn(i: Instruction, layer: int) -> bool:
    return i.layer == layer and i.op in BY_FFN | BY_BOTH


def schedule_data(selection: Selection, layers: Schedule) -> dict[str, list[list[Any]]]:
    """Each block's layers as lists of [op, target, sources, exponent, extra, parameter], registers by name.

    The layer that ends a block also has its writes, with the op "write".
    """
    data: dict[str, list[list[Any]]] = {}
    for block in BLOCKS:
        names = [register.name.removeprefix(f"{block} ") for register in selection.registers]
        data[block] = [[_entry(i, names) for i in instructions] for instructions in layers.layers[block]]
        if data[block]:
            writes = selection.writes[block].items()
            data[block][-1] += [["write", names[r], [_named(source, names)], [], [], None] for r, source in writes]
    return data


def critical_path(block: list[list[Any]]) -> int:
    """The layers that the longest chain of dependent instructions takes, from the data of a block: a lower bound."""
    if any(isinstance(entry, str) for layer in block for entry in layer):  # the paper's form of CG
        return len(block)
    ready: dict[str, int] = {}  # in half layers: the first half that may read a row
    last = 0
    for op, target, sources, exponent, extra, parameter in (entry for layer in block for entry in layer):
        read = max((ready.get(name, 0) for source in (*sources, exponent) for name, _ in source), default=0)
        if op == "encode":
            read = 2 * parameter + 1
        elif op in ("matvec", "squares"):  # which read the logarithms of an input matrix
            read = max(read, ready.get(f"log |{parameter.removesuffix('.T')}|", 0))
        half = first_half(read, FFN if op in BY_FFN else ATTENTION)
        last = max(last, half)
        ready |= dict.fromkeys(extra, half + 1)
        if op in BY_BOTH:
            last = max(last, half := half + 1)
        if op != "write":  # which all read the old state
            ready[target] = half + 1
    return last // 2 + 1 if block else 0


def _entry(i: Instruction, names: list[str]) -> list[Any]:
    sources, extra = [_named(source, names) for source in i.sources], [names[register] for register in i.extra]
    parameter: Any = None
    if i.op == "encode":
        parameter = i.layer
    elif i.op in ("matvec", "squares", "trip"):  # A or A.T; the level of the trip
        parameter = i.parameters[0]
    elif i.op == "matmul":
        parameter = "^T" if i.parameters[1] else ""
    elif i.op == "triangle":
        parameter = f"{i.parameters[0]} triangle {i.parameters[1]:+d}"
    elif i.op == "refine":  # whether the value is a scalar
        parameter = i.parameters[-1]
    return [i.op, names[i.target], sources, _named(i.exponent, names), extra, parameter]


def _named(source: Combination, names: list[str]) -> list[Any]:
    return [[names[register], coefficient] for register, coefficient in source]


def in_words(entry: Any) -> str:
    """An entry of ``schedule_data`` as an assignment; t1, t2, ... are temporaries. Text stays as it is."""
    if isinstance(entry, str):  # the paper's form of CG
        return entry
    op, target, sources, exponent, extra, parameter = entry
    if op == "encode":
        return _ENCODING[parameter].format(target.removeprefix("log |").removesuffix("|"))
    if op == "write":
        return f"{target} := {_sum(sources[0])}"
    first, *others = [_sum(source) if len(source) == 1 else f"({_sum(source)})" for source in sources] or [""]
    power = f" exp({_sum(exponent)})" if exponent else ""
    if op == "refine":
        trip = f", {extra[1]} = {others[1]}" if len(sources) == 3 else ""
        # Scalars, and their trips, are read from the first token.
        return f"{target} = log {first}, refined" + (f"{trip}, read from token 1" if parameter else "")
    if op == "ratio":
        return f"{target} = {first} exp(-{extra[0]}), {extra[0]} = {others[0]}, of token 1"
    second = "".join(others[:1])
    return f"{target} = " + _WORDS[op].format(first=first, second=second, power=power, parameter=parameter)


def _sum(source: list[Any]) -> str:
    text = ""
    for name, coefficient in source:
        size = "" if abs(coefficient) == 1 else f"{abs(coefficient):.4g} "
        sign = (" - " if text else "-") if coefficient < 0 else (" + " if text else "")
        text += sign + size + name
    return text or "0"
