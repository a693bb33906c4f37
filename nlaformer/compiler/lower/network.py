"""Learned parts: what a trained network says, from what it is given in rows, as numbers of unknown size."""

from __future__ import annotations

from typing import Any

from nlaformer.compiler.lower.context import Lowering, lowers
from nlaformer.compiler.machine.instructions import Show
from nlaformer.compiler.machine.networks import Hear, ReadIn, Tell, Trained
from nlaformer.compiler.machine.rows import HEADROOM, UNKNOWN, Range
from nlaformer.compiler.terms import Combination, Term, Terms
from nlaformer.program.ir import Node


@lowers("learned")
def lower_learned(low: Lowering, node: Node) -> Terms:
    """The network is given numbers as they are, without an exponent."""
    name, output = node.extra
    network, machine, n = low.networks[name], low.machine, low.n
    part = network.part
    given = [low.stored(low.value(a)) for a in node.args[1 : 1 + len(part.inputs)]]
    copied = part.method == "step" and not part.memory
    work = _hidden(low, name, network, copied)
    with machine.within("pre"):
        # Token i holds row i of A; the network reads columns.
        A: Combination = ((low.normal["A"], 1.0),)
        if not low.core.definite:
            A = low.stored((Term(1.0, machine.eye, (), "A.T"),))
        state = machine.add(ReadIn((A,), name), 0)
        if part.method == "step":
            state = _through(low, network, "pre", state)
    if part.inputs or copied:
        kinds = list(zip(given, part.inputs, strict=True))
        scalars, vectors = ([v for v, kind in kinds if kind == wanted] for wanted in ("scalar", "vector"))
        spread = [_diagonal(low, vector) for vector in vectors]
        sources = (((state, 1.0),), *scalars, *vectors, *spread)
        tell = Tell(sources, name, len(scalars), len(vectors), copied)
        state = machine.add(tell, 0, beside=[work] if copied else [])
    state = _through(low, network, "loop" if part.method == "step" else "pre", state)
    heard = (n if part.is_vector else 1, UNKNOWN)
    hear = Hear((((state, 1.0),),), name, 0 if part.is_vector else list(part.outputs).index(output))
    row = machine.add(hear, 1, Range(HEADROOM, 1.0, calibrated=False), beside=[heard])
    return (Term(1.0, row),)


def _hidden(low: Lowering, name: str, network: Any, copied: bool) -> int:
    """The rows that the layers of this block work on: the memory, or a copy of it."""
    hidden, machine = low.plan.hidden, low.machine
    if name not in hidden:
        memory = work = machine.row(f"{name}.memory", "input", network.width)
        if copied:
            work = machine.row(f"{name}.hidden", machine.block, network.width)
        hidden[name] = {"pre": memory, machine.block: work}
    return hidden[name][machine.block]


def _diagonal(low: Lowering, vector: Combination) -> Combination:
    showing = tuple((0, k, (k,)) for k in range(low.n))
    return ((low.machine.add(Show((vector,), showing), low.n, UNKNOWN), 1.0),)


def _through(low: Lowering, network: Any, block: str, before: int) -> int:
    """The layers of a block, one after the other. A row of no height stands for what each has done."""
    for k in range(len(getattr(network, block))):
        before = low.machine.add(Trained((((before, 1.0),),), network.part.name, block, k), 0)
    return before
