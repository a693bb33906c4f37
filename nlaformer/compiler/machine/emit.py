"""From layers of instructions to weights: each instruction writes its heads and hidden units, a layer joins them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import torch

from nlaformer.arrays import check_memory
from nlaformer.compiler.machine.forms import Head, Units, added, assembled, replaced, select
from nlaformer.compiler.machine.logarithms import Encode
from nlaformer.compiler.machine.networks import beside, trained_layer
from nlaformer.compiler.machine.rows import Block, Placed, Plan
from nlaformer.compiler.machine.schedule import Schedule
from nlaformer.compiler.machine.writer import Writer
from nlaformer.prompt import Layout
from nlaformer.transformer import Layer, NLAFormer

# Numbers that the interpolated logarithms of A take while the weights are made, for each entry of A.
_INTERPOLANTS = 1500


@dataclass(frozen=True)
class Weights:
    """The transformer, the layout of its prompt, and the names of the machine's rows in it."""

    model: NLAFormer
    layout: Layout
    names: dict[int, str]


def emit(plan: Plan, layers: Schedule) -> Weights:
    """The weights of a schedule."""
    writer = Writer(plan, layers)
    n, layout = writer.n, writer.layout
    encodes = any(isinstance(each.instruction, Encode) for each in plan.machine.placed["pre"])
    attention = 2 * n + _INTERPOLANTS if encodes else 2
    needed = 8 * (layout.rows * layout.tokens + attention * layout.tokens**2)
    what = f"n is {n:,}: the weights and the run of a single system"
    check_memory(what, needed, torch.device("cpu"), ". Choose a smaller n")
    model = NLAFormer(*(_block(writer, layers, block) for block in ("pre", "loop", "post")))  # type: ignore[arg-type]
    return Weights(model, layout, writer.names)


def _block(writer: Writer, layers: Schedule, block: Block) -> list[Layer]:
    parts = [_parts(writer, placed) for placed in layers.layers[block]]
    end = len(parts) - 1
    for number, layer in layers.early[block].items():
        rows = writer.rows(number)
        if layer == end:  # every token takes what it holds itself from its rows
            parts[layer][0].append(writer.pick(np.arange(writer.n + 1), select(rows, -1.0), rows))
        else:
            parts[layer][1].extend(replaced(rows))
    if parts:
        parts[end][1].extend(_ending(writer, layers, block))
    height, dtype = writer.layout.rows, writer.target.dtype
    made = [assembled(heads, units, height, dtype) for heads, units in parts]
    for placed in (each for layer in layers.layers[block] for each in layer):
        trained = trained_layer(writer, placed, block)
        if trained is not None and made[placed.layer].rows is None:
            made[placed.layer] = beside(made[placed.layer], *trained, height, dtype)
    return made


def _parts(writer: Writer, layer: list[Placed]) -> tuple[list[Head], list[Units]]:
    """The heads and units of a layer; instructions that share heads are written together."""
    groups: dict[Hashable, list[Placed]] = {}
    for placed in layer:
        key = placed.instruction.shared
        groups.setdefault((placed.target,) if key is None else key, []).append(placed)
    heads: list[Head] = []
    units: list[Units] = []
    for group in groups.values():
        more_heads, more_units = group[0].instruction.write(writer, group)
        heads += more_heads
        units += more_units
    return heads, units


def _ending(writer: Writer, layers: Schedule, block: Block) -> list[Units]:
    """Write the state, clear the work rows."""
    units: list[Units] = []
    for number, source in writer.machine.writes[block].items():
        rows = writer.rows(number)
        forms = writer.forms(source, len(rows))
        units += added(forms, rows) if number in layers.early[block] else replaced(rows, forms)
    for number in layers.clears[block]:
        units += replaced(writer.rows(number))
    return units
