"""Instructions to weights: the heads and hidden units of the machine for any n, and what each head can attend to.

An address is ``BITS`` rows of 0 and 1. Heads by address score -PENALTY for each bit that differs, so a token that is
addressed scores exactly 0 there and what is added to its score is not rounded to another grid:

    -P b (1 - c) - P (1 - b) c      b a bit of the query's address, c the key's

A slot's entry a stands as log(|a| / (g - |a|)), and its sink scores 0: the softmax over the sink and the token that is
addressed is then |a| / g itself, and the gain g makes it |a|. Exponentials have a sink of score C = 90, the gain e^C:
they are exact below e^50, and n e^-90 is nothing, so n never enters. All heads keep the column of the sink 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nlaformer.compiler.anysize.lower import Lowering
from nlaformer.compiler.anysize.machine import BLOCKS, Block, Instruction
from nlaformer.compiler.machine.forms import (
    OFF,
    Forms,
    Head,
    Units,
    added,
    assembled,
    bent,
    interpolated,
    nothing,
    replaced,
    select,
    stack,
)
from nlaformer.compiler.terms import Combination
from nlaformer.prompt import Layout
from nlaformer.transformer import Layer, NLAFormer

BITS = 24  # of an address: up to 16,777,216 rows
PENALTY = 128.0
CEILING = 90.0  # the score of the sink of exponential heads
ABSENT = -2000.0  # the score of a slot without an entry, or with one of the other sign
SEGMENTS, LOWEST, HIGHEST = 16, -160, 64  # of the interpolated logarithm: knots a binade, and the binades
# What a logarithm of v between two knots is short of, at most; half of it is added everywhere.
_SHORT = math.log1p(1 / SEGMENTS) ** 2 / 8
Declared = dict[str, list[list[str]]]


def knots() -> tuple[np.ndarray, np.ndarray]:
    """Of the logarithm: 0 and 16 a binade; and its values there."""
    k = np.arange((HIGHEST - LOWEST) * SEGMENTS + 1)
    x = np.ldexp(1 + (k % SEGMENTS) / SEGMENTS, LOWEST + k // SEGMENTS)
    log = np.log(x) + _SHORT / 2
    return np.append(0.0, x), np.append(log[0] - 1.0, log)


def layout_of(low: Lowering, slots: int, tokens: int) -> Layout:
    """The rows of the prompt: for each matrix and slot an address and two signs, then the machine's rows."""
    registers: list[tuple[str, int]] = [("sink", 1), ("one", 1), ("first", 1), ("address", BITS)]
    for name in low.matrices:
        for s in range(slots):
            registers += [(f"{name} {s} address", BITS), (f"{name} {s} +", 1), (f"{name} {s} -", 1)]
    registers += [(row.name, 1) for row in low.machine.rows[1:]]
    return Layout(tuple(registers), tokens)


@dataclass(frozen=True)
class Made:
    """The transformer, and for each block and layer what its heads can attend to: one word for each."""

    model: NLAFormer
    attends: Declared


def weights_of(low: Lowering, slots: int, gains: dict[str, float]) -> Made:
    """The weights; ``gains`` bound the entries of each matrix."""
    writer = _Writer(low, slots, gains)
    blocks: list[list[Layer]] = []
    attends: Declared = {}
    for block in BLOCKS:
        layers, declared = [], []
        for number in range(low.machine.layers[block]):
            heads, words, units = writer.layer(block, number)
            layers.append(assembled(heads, units, writer.layout.rows, torch.float64))
            declared.append(words)
        blocks.append(layers)
        attends[block] = declared
    return Made(NLAFormer(blocks[0], blocks[1], blocks[2]), attends)


class _Writer:
    def __init__(self, low: Lowering, slots: int, gains: dict[str, float]) -> None:
        self.low, self.machine, self.slots, self.gains = low, low.machine, slots, gains
        self.layout = layout_of(low, slots, tokens=2)
        self.sink, self.one = self._place("sink"), self._place("one")

    def _place(self, name: str) -> int:
        return self.layout[name][0]

    def rows(self, *numbers: int) -> Any:
        return np.array([self._place(self.machine.rows[number].name) for number in numbers], np.int64)

    def form(self, source: Combination) -> Forms:
        if not source:
            return nothing(1)
        values = np.array([c for _, c in source])
        return Forms(1, np.zeros(len(source), np.int64), self.rows(*(row for row, _ in source)), values)

    def at(self, row: int, value: float = 1.0) -> Forms:
        return select([row], value)

    def layer(self, block: Block, number: int) -> tuple[list[Head], list[str], list[Units]]:
        here = [each for each in self.machine.placed[block] if each[0] // 2 == number]
        groups: dict[tuple[Any, ...], list[tuple[Combination, int]]] = {}
        units: list[Units] = []
        for half, instruction, row in here:
            if half % 2:
                units += self.units(instruction, row)
                continue
            for source, score in instruction.parts:
                groups.setdefault((instruction.kind, instruction.matrix, score), []).append((source, row))
        heads, words = [], []
        for (kind, matrix, score), members in groups.items():
            value = stack(*(self.form(source) for source, _ in members))
            target = self.rows(*(row for _, row in members))
            if kind == "slot":
                made = [self.slot(matrix, s, sign, value, target) for s in range(self.slots) for sign in "+-"]
                words += [f"{matrix} {s}" for s in range(self.slots) for _ in "+-"]
            else:
                made = [getattr(self, kind)(score, value, target)]
                words.append("own" if kind == "clear" else kind)
            heads += made
        if number == self.machine.layers[block] - 1:
            units += self.ending(block)
        return heads, words, units

    # --- heads ---

    def address(self, name: str) -> tuple[Forms, Forms]:
        """Queries of the address under a name, and keys of tokens' own: 0 where they agree."""
        asked, own = select(self.layout[name]), select(self.layout["address"])
        ones = self.at(self.one).copies(BITS)
        return stack(asked * -PENALTY, ones * -PENALTY + asked * PENALTY), stack(ones + -own, own)

    @property
    def alone(self) -> tuple[Forms, Forms]:
        """The column of the sink attends to itself."""
        return self.at(self.sink, OFF), self.at(self.sink)

    @property
    def everywhere(self) -> Forms:
        return self.at(self.one) + self.at(self.sink)

    def slot(self, matrix: str, s: int, sign: str, value: Forms, target: Any) -> Head:
        query, key = self.address(f"{matrix} {s} address")
        entry, (alone, itself) = self.at(self._place(f"{matrix} {s} {sign}")), self.alone
        gain = self.gains[matrix.removesuffix(".T")] * (1.0 if sign == "+" else -1.0)
        return Head(stack(query, entry, alone), stack(key, self.at(self.one), itself), value, target, gain)

    def own(self, score: Combination, value: Forms, target: Any) -> Head:
        query, key = self.address("address")
        alone, itself = self.alone
        queries = stack(query, self.form(score), self.everywhere, alone)
        keys = stack(key, self.at(self.one), self.at(self.sink, CEILING), itself)
        return Head(queries, keys, value, target, math.exp(CEILING))

    def all(self, score: Combination, value: Forms, target: Any) -> Head:
        alone, itself = self.alone
        queries = stack(self.at(self.one), self.everywhere, alone)
        return Head(
            queries, stack(self.form(score), self.at(self.sink, CEILING), itself), value, target, math.exp(CEILING)
        )

    def first(self, score: Combination, value: Forms, target: Any) -> Head:
        queries = stack(self.at(self.one), self.at(self.one, -OFF) + self.at(self.sink, OFF))
        return Head(queries, stack(self.at(self._place("first"), OFF), self.at(self.sink)), value, target)

    def clear(self, score: Combination, value: Forms, target: Any) -> Head:
        query, key = self.address("address")
        queries = stack(query, self.at(self.one, -OFF) + self.at(self.sink, OFF))
        return Head(queries, stack(key, self.at(self.sink)), value, target)

    # --- hidden units ---

    def units(self, instruction: Instruction, row: int) -> list[Units]:
        form, target = self.form(instruction.parts[0][0]), self.rows(row)
        if instruction.kind == "linear":
            return added(form, target)
        if instruction.kind == "relu":
            return [bent(form, target)]
        if instruction.kind == "absolute":
            return [bent(form, target), bent(-form, target)]
        return interpolated(form, *knots(), target, self.sink)

    def ending(self, block: Block) -> list[Units]:
        machine = self.machine
        clears: Sequence[list[Units]] = [replaced(self.rows(row)) for row in machine.clears[block]]
        writes = [added(self.form(source), self.rows(row)) for row, source in machine.writes[block].items() if source]
        return list(itertools.chain(*writes, *clears))
