"""A program whose graph is the same for every n: traced at several sizes, and compared.

What the graphs share is the program for any n. A constant may be c n^k: it is then told from three sizes, and becomes
c e^{k log n}, where log n stands in the prompt. All else that depends on n is refused, with its line: entries by their
places, matrices as states or as products, arrays of constants that are not all equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from nlaformer.compiler.lower.facts import Core, Facts, facts_of
from nlaformer.compiler.lower.normal import normal
from nlaformer.errors import CompileError
from nlaformer.program.data import ProgramGraph
from nlaformer.program.ir import Node, is_transpose
from nlaformer.program.language import Program
from nlaformer.program.trace import refuse_open_parts, trace

# Two to compare, and a third that tells which power of n a number is; no number of a program is likely to be one.
SIZES = (7, 11, 13)
_POWERS = (-1.0, -0.5, 0.5, 1.0, -2.0, 2.0)


@dataclass(frozen=True)
class AnySize:
    """A program for any n.

    Attributes
    ----------
    graphs : at each of ``SIZES``
    facts : of its normal form
    powers : c and k of the numbers that are c n^k, by the node's id
    """

    graphs: Sequence[ProgramGraph]
    facts: Facts
    powers: Mapping[int, tuple[float, float]]

    @property
    def core(self) -> Core:
        return self.facts.core

    @property
    def graph(self) -> ProgramGraph:
        return self.graphs[0]


def traced_for_any(program: Program) -> AnySize:
    """A program for any n; CompileError with the first line whose value depends on n."""
    return any_size([trace(program, n) for n in SIZES])


def any_size(graphs: Sequence[ProgramGraph]) -> AnySize:
    """The program whose graphs at ``SIZES`` these are."""
    refuse_open_parts(graphs[0])
    cores = [normal(graph) for graph in graphs]
    for name, node in cores[0].state.items():
        if node.ndim == 2:
            begun = cores[0].start[name]
            _refuse(cores[0].name, begun, f"the state {name} is a matrix; weights for every n have no n rows for it")
    first, *others = cores
    powers: dict[int, tuple[float, float]] = {}
    for nodes in zip(*(core.nodes for core in cores), strict=False):
        _compare(first.name, nodes, powers)
    for other in others:
        if len(other.nodes) != len(first.nodes):
            line = max(first.nodes, other.nodes, key=len)[min(len(first.nodes), len(other.nodes))]
            _refuse(first.name, line, "how often this is computed depends on n, which weights for every n cannot")
    facts = facts_of(first)
    if facts.problems:
        _refuse(first.name, *facts.problems[0])
    return AnySize(tuple(graphs), facts, powers)


def _refuse(name: str, node: Node, message: str) -> NoReturn:
    raise CompileError(f"{name} cannot be compiled for n='any'.\n  {node.line}\n    {message}")


def _compare(name: str, nodes: tuple[Node, ...], powers: dict[int, tuple[float, float]]) -> None:
    """Refuse a node that is not the same at every size, or that needs n rows."""
    node = nodes[0]
    if len({other.op for other in nodes}) > 1 or len({len(other.args) for other in nodes}) > 1:
        _refuse(name, node, "what is computed here depends on n, which weights for every n do not know")
    for other, n in zip(nodes, SIZES, strict=True):
        if any(side != n for side in other.shape):
            fixed = f"an array of shape {other.shape} at n = {n}; weights for every n hold numbers and vectors of n"
            _refuse(name, other, fixed)
    if node.op == "constant":
        _compare_constants(name, nodes, powers)
    elif node.op == "move":
        if {kind_of_move(other) for other in nodes} - {"spread", "transpose", "diagonal"}:
            places = "entries by their places (x[i], slices, np.roll, triangles) need n rows of positions in the prompt"
            _refuse(name, node, f"{places}; weights for every n reach entries by the pattern of a matrix alone")
    elif node.op not in ("input", "state", "sum") and any(other.extra != node.extra for other in nodes):
        _refuse(name, node, "what is computed here depends on n, which weights for every n do not know")
    elif node.op == "matmul" and node.ndim == 2:
        _refuse(name, node, "a product of two matrices needs n rows; write A @ (B @ x)")


def _compare_constants(name: str, nodes: Sequence[Node], powers: dict[int, tuple[float, float]]) -> None:
    """Refuse a constant that is not one number, or a number that is no power of n."""
    values = [constant_of(node) for node in nodes]
    if any(value is None for value in values):
        different = "an array of different constants has one size (as np.eye(n)[0], np.arange(n)); give it as an input"
        _refuse(name, nodes[0], different)
    power = power_of(nodes)
    if power is None:
        at = ", ".join(f"{value:.6g}" for value in values)
        _refuse(
            name, nodes[0], f"a number that depends on n, {at} at n = {', '.join(map(str, SIZES))}, and is no c n^k"
        )
    if power[1]:
        powers[id(nodes[0])] = power


def power_of(nodes: Sequence[Node]) -> tuple[float, float] | None:
    """(c, k) of constants that are c n^k at ``SIZES``, everywhere or on a diagonal; None if they are not."""
    values = [constant_of(node) for node in nodes]
    first = values[0]
    if first is None or len(set(values)) == 1:
        return None if first is None else (first, 0.0)
    for k in _POWERS:
        c = first / SIZES[0] ** k
        if all(v is not None and math.isclose(v, c * n**k, rel_tol=1e-14) for v, n in zip(values, SIZES, strict=True)):
            return c, k
    return None


def constant_of(node: Node) -> float | None:
    """The number that a constant is, or has everywhere, or on the diagonal of a matrix; None if there is none."""
    value = node.extra
    if node.ndim == 2:
        diagonal = value.diagonal()
        if (value == np.diag(diagonal)).all() and (diagonal == diagonal[0]).all():
            return float(diagonal[0])
        return None
    flat = np.ravel(value)
    return float(flat[0]) if (flat == flat[0]).all() else None


def kind_of_move(node: Node) -> str:
    """What a move is that needs no places: a number in every entry, a transpose, a diagonal; else nothing."""
    if len(node.args) != 1:
        return ""
    source = node.args[0]
    if not source.shape and node.ndim == 1 and (node.extra == 0).all():
        return "spread"
    if is_transpose(node) and source.op == "input":
        return "transpose"
    n = node.size
    if source.op == "input" and source.ndim == 2 and node.ndim == 1 and (node.extra == np.arange(n) * (n + 1)).all():
        return "diagonal"
    return ""
