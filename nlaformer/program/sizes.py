"""A program as data for systems of several sizes: what was traced for n unknowns, made anew for another number.

A vector of n entries becomes one of m, a matrix of ones one of ones. Of a ``move`` it is found out how an entry's place
in its source depends on its place in the result: each index of the one is an index of the other, shifted, turned round
or rolled, or a fixed place, counted from either end; and which entries are 0: those beside a diagonal, or none. What
was written otherwise, such as a vector of n numbers, belongs to n alone. Whether the lines of a class compute with n
itself, as ``np.mean`` does, is not seen in its graph: ``fits_others`` traces it for another size and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from nlaformer.errors import NLAFormerError, ShapeError
from nlaformer.program.data import ProgramGraph
from nlaformer.program.ir import Graph, Line, Node, Positions, Shape, reachable
from nlaformer.program.language import Program
from nlaformer.program.primitives import PRIMITIVES
from nlaformer.program.trace import trace

# The index of a source, from those of the result and the lengths of both; which entries there are.
_Index = Callable[[list[Positions], int], Positions]
_Kept = Callable[[list[Positions]], np.ndarray]


def fits_others(program: Program, graph: ProgramGraph) -> bool:
    """Whether the graph of a program, made anew for another size, is what its lines give there."""
    for n in {graph.n - 1, max(graph.n // 2, 1)} - {0, graph.n}:
        try:
            if resized(graph, n).without_lines() != trace(program, n).without_lines():
                return False
        except NLAFormerError:
            return False
    return True


def resized(program: ProgramGraph, n: int) -> ProgramGraph:
    """The same program for systems of another size; ShapeError where it belongs to its own."""
    if n == program.n:
        return program
    lines = [Line()]
    graph, images = Graph(lambda: lines[-1]), dict[Node, Node]()
    ends = [node for node in (program.answer, program.residual, program.scale) if node is not None]
    try:
        for node in reachable((*program.inputs.values(), *program.start.values(), *program.step.values(), *ends)):
            lines[:] = [node.line]
            images[node] = _image(graph, node, [images[argument] for argument in node.args], program.n, n)
    except ValueError as error:
        raise ShapeError(
            f"{program.name} was made for systems of {program.n} unknowns, and {error}; given one of {n}"
        ) from None

    def named(nodes: Mapping[str, Node]) -> dict[str, Node]:
        return {name: images[node] for name, node in nodes.items()}

    blocks = [named(nodes) for nodes in (program.inputs, program.start, program.step)]
    answer, *more = (node and images[node] for node in (program.answer, program.residual, program.scale))
    made = dict(zip(("inputs", "start", "step"), blocks, strict=True))
    return replace(program, n=n, **made, answer=answer, residual=more[0], scale=more[1])  # type: ignore[arg-type]


def _image(graph: Graph, node: Node, args: list[Node], old: int, n: int) -> Node:
    shape = _shape(node.shape, old, n)
    if node.op == "constant":
        return graph.constant(_numbers(node.extra, shape))
    if node.op == "move":
        return graph.move(args, _places(node, shape, old, n))
    record = PRIMITIVES[node.op]
    if record.evaluate is not None:
        shape = record.shape([argument.shape for argument in args], node.extra)
    return graph.make(node.op, args, node.extra, shape)


def _shape(shape: Shape, old: int, n: int) -> Shape:
    if any(side not in (1, old) for side in shape) or (old == 1 and shape):
        raise ValueError(f"has an array of shape {shape}")
    return tuple(n if side == old else side for side in shape)


def _numbers(values: np.ndarray, shape: Shape) -> np.ndarray:
    first = values.flat[0] if values.size else 0.0
    if (values == first).all():
        return np.full(shape, first)
    if values.ndim == 2 and np.array_equal(values, first * np.eye(len(values))):
        made: np.ndarray = first * np.eye(shape[0])
        return made
    raise ValueError("has numbers for each of them")


def _places(node: Node, shape: Shape, old: int, n: int) -> Positions:
    """The positions of a move in an array of another size."""
    positions, kept = node.extra, node.extra >= 0
    if len(node.args) > 1 or not kept.any():
        raise ValueError("joins arrays")
    source, there = node.args[0].shape, _indices(node.shape)
    indices = np.unravel_index(np.where(kept, positions, 0), source) if source else ()
    found = []
    for index, side in zip(indices, source, strict=True):
        rules = (rule for rule in _rules(index[kept], [each[kept] for each in there], side, old))
        found.append(next((r for r in rules if np.array_equal(r(there, side)[kept], index[kept])), None))
    mask = next((mask for mask in _masks(there, kept) if np.array_equal(mask(there), kept)), None)
    if mask is None or None in found:
        raise ValueError("takes entries of arrays one by one")
    new, here = _shape(source, old, n), _indices(shape)
    places = [rule(here, side) for rule, side in zip(found, new, strict=True) if rule is not None]
    outside = [(k < 0) | (k >= side) for k, side in zip(places, new, strict=True)]
    if any(bool((each & mask(here)).any()) for each in outside):
        raise ValueError("takes entries that are not there")
    flat = np.ravel_multi_index([np.where(mask(here), k, 0) for k in places], new) if new else np.zeros(shape, np.int64)
    return np.where(mask(here), flat, -1)


def _indices(shape: Shape) -> list[Positions]:
    return [np.asarray(index) for index in np.indices(shape)]


def _rules(index: Positions, there: list[Positions], side: int, old: int) -> Iterator[_Index]:
    """How an index may depend on those of the result."""
    first = int(index[0])
    for k, own in enumerate(there):
        shift = first - int(own[0])
        yield lambda at, side, k=k, shift=shift: at[k] + shift  # type: ignore[misc]
        rolled = shift if abs(shift) <= side / 2 else shift - int(np.sign(shift)) * side
        yield lambda at, side, k=k, rolled=rolled: (at[k] + rolled) % side  # type: ignore[misc]
        turned = first + int(own[0]) - (side - 1)
        yield lambda at, side, k=k, turned=turned: side - 1 + turned - at[k]  # type: ignore[misc]
    if side == 1 or first < side / 2:
        yield lambda at, side: np.full(at[0].shape if at else (), first)
    yield lambda at, side, last=first - side: np.full(at[0].shape if at else (), side + last)  # type: ignore[misc]


def _masks(there: list[Positions], kept: np.ndarray) -> Iterator[_Kept]:
    """Which entries may be there: all of them, or those of a matrix on, below or above a diagonal."""
    yield lambda at: np.ones(at[0].shape if at else (), dtype=bool)
    if kept.ndim == 2:
        offsets = (there[1] - there[0])[kept]
        low, high = int(offsets.min()), int(offsets.max())
        yield lambda at: at[1] - at[0] <= high
        yield lambda at: at[1] - at[0] >= low
        yield lambda at: (low <= at[1] - at[0]) & (at[1] - at[0] <= high)
