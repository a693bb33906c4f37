"""A program whose learned parts are filled in, on its way to weights: trained layers beside compiled ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nlaformer.compiler.lower.facts import Facts
from nlaformer.compiler.machine.networks import Network
from nlaformer.errors import CompileError
from nlaformer.program.data import ProgramGraph
from nlaformer.program.run import Run


@dataclass(frozen=True)
class FilledProgram:
    """A program as data, a network for each of its parts, and its own run."""

    graph: ProgramGraph
    networks: Mapping[str, Network]
    run: Callable[..., Run[Any]]


class Trained(Protocol):
    """A trained program, as ``nf.load`` gives it."""

    def filled(self) -> FilledProgram: ...


def refuse_unknown(filled: FilledProgram, facts: Facts) -> None:
    """Raise CompileError where there are no weights for a part."""
    for part in filled.graph.parts:
        name, network = f"{filled.graph.name}: the learned part {part.name}", filled.networks[part.name]
        if part.is_scalar:
            raise CompileError(
                f"{name} gives {part.gives!r}; there are weights for a part that gives a vector, a diagonal or a "
                "diagonal plus columns. The model itself runs it"
            )
        if any(layer.causal for layer in (*network.pre, *network.loop)):
            raise CompileError(f"{name} has causal attention, which would hide the later tokens from compiled heads")
    if len(filled.graph.parts) > 1:
        raise CompileError(f"{filled.graph.name} has {len(filled.graph.parts)} learned parts; one can be compiled")
    if "A" in facts.scaled and any(f.denominator != 1 for pair in facts.units.values() for f in pair):
        # A run would then scale A by even powers of two, and the network was trained on the nearest one.
        raise CompileError(f"{filled.graph.name} has a state with the unit of a root of A or b; the model runs it")
