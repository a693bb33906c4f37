"""Entries, rows and columns of traced arrays, read and set.

    v[i] = e_i . v          v[i] = s:  M v + s e_i          A[i] = w:  M A + e_i w^T          M: 1 without e_i e_i^T

The weights move entries by hard attention, exactly (``moves.py``). Entries that come from one array, those that stay
included, are moved at once, by a matrix of zeros and ones: x[1:] = y[:-1] is M x + S y. What was set is remembered with
the node (``Graph.placed``): reading it back costs nothing, and setting it once more leaves nothing of what stood there.
"""

from __future__ import annotations

import numpy as np

from nlaformer.compiler.graph import AXES, Graph, Node, is_number
from nlaformer.compiler.refusals import RefusedError


def part(graph: Graph, axis: int, index: int, v: Node) -> Node:
    """An entry of a vector, a row (axis 0) or a column (axis 1) of a matrix."""
    unit = _unit(graph, index)
    place, (base, parts) = index % (graph.n or 1), _placed(graph, axis, v)
    if place in parts:
        return parts[place]
    if base.op == "ones":
        return graph.ones("vector") if base.kind == "matrix" else graph.number(1.0)
    if base.op == "multiply" and is_number(base.args[0]):
        return graph.multiply(base.args[0], part(graph, axis, index, base.args[1]))
    if base.op == "constant":
        return graph.node(np.asarray(base.extra).take(place, axis=axis))
    return graph.matmul(unit, base) if axis == 0 else graph.matmul(base, unit)


def with_part(graph: Graph, axis: int, index: int, v: Node, new: Node) -> Node:
    """The array with an entry, a row or a column replaced."""
    if AXES[new.kind] >= AXES[v.kind]:
        raise RefusedError(f"a {new.kind} assigned to a part of a {v.kind}", v.kind)
    if v.kind == "matrix" and new.kind == "scalar":
        new = graph.zeros("vector") if new.is_zero else graph.add(new, graph.zeros("vector"))
    _unit(graph, index)  # refused where there is none
    place, (base, parts) = index % (graph.n or 1), _placed(graph, axis, v)
    parts = parts | {place: new}
    stay = {i: part(graph, axis, i, base) for i in range(graph.n or 1) if i not in parts}
    result = _joined_parts(graph, axis, parts | stay)
    graph.placed[id(result)] = (base, axis, parts)
    return result


def _placed(graph: Graph, axis: int, v: Node) -> tuple[Node, dict[int, Node]]:
    """The array that parts were set in along an axis, and these; itself where they were not."""
    base, along, parts = graph.placed.get(id(v), (v, axis, {}))
    return (base, parts) if along == axis else (v, {})


def _unit(graph: Graph, index: int) -> Node:
    """The vector with 1 in one place, which the size must be known for."""
    if graph.n is None:
        raise RefusedError("an index where the size of the systems is not known; write whole vectors")
    if not -graph.n <= index < graph.n:
        raise RefusedError(f"the index {index} in a vector of length {graph.n}")
    if not graph.units:
        graph.units = [graph.node(row) for row in np.identity(graph.n)]
    return graph.units[index]


def numbers_of(graph: Graph, v: Node) -> np.ndarray | None:
    """The entries of a constant array, for NumPy to read; None for any other."""
    if v.op == "multiply" and is_number(v.args[0]):
        inner = numbers_of(graph, v.args[1])
        array = None if inner is None else inner * v.args[0].extra
    elif v.op == "constant":
        array = np.asarray(v.extra)
    elif v.op in ("zeros", "ones"):
        array = np.full([graph.n or 1] * AXES[v.kind], float(v.op == "ones"))
    else:
        array = np.eye(graph.n or 1) if v.op == "identity" else None
    if array is not None:
        array.flags.writeable = False  # it is a copy: what is written into it would be lost
    return array


def is_by_columns(graph: Graph, v: Node) -> bool:
    """Whether columns were set last: entries are then best read from them."""
    return id(v) in graph.placed and graph.placed[id(v)][1] == 1


def assembled(graph: Graph, entries: np.ndarray) -> Node:
    """The array (n,) or (n, n) of traced entries, and of numbers among them."""
    if entries.shape == ():
        return graph.node(entries.item())
    if not graph.holds(entries.shape):
        raise RefusedError(
            f"an array of shape {entries.shape} that holds traced values, beside one of size n = {graph.n}; of such an "
            "array, entries and parts of length n can be used and returned"
        )
    if entries.ndim == 1:
        return _assembled(graph, 0, [graph.node(entry) for entry in entries])
    columns = [assembled(graph, column) for column in entries.T]
    if not any(id(column) in graph.placed for column in columns):
        return _assembled(graph, 1, columns)
    return _assembled(graph, 0, [assembled(graph, row) for row in entries])


def _assembled(graph: Graph, axis: int, parts: list[Node]) -> Node:
    """An array with these parts. One that was refused has no kind."""
    refused = next((p for p in parts if p.op == "refused"), None)
    if refused is not None:
        return refused
    result = _joined_parts(graph, axis, dict(enumerate(parts)))
    if result.op not in ("constant", "zeros", "ones"):
        kind = "vector" if parts[0].kind == "scalar" else "matrix"
        graph.placed.setdefault(id(result), (graph.zeros(kind), axis, dict(enumerate(parts))))
    return result


def _joined_parts(graph: Graph, axis: int, parts: dict[int, Node]) -> Node:
    """An array with these parts: constants at once, what comes from one array at once, others one by one."""
    n, kind = len(parts), next(iter(parts.values())).kind
    numbers = np.zeros((n, n) if kind == "vector" else n)
    moves: dict[tuple[int, float], tuple[Node, np.ndarray]] = {}
    placed = []
    for i, p in parts.items():
        factor, inner = (p.args[0].extra, p.args[1]) if p.op == "multiply" and is_number(p.args[0]) else (1.0, p)
        known, found = numbers_of(graph, p), _source(graph, axis, inner)
        if known is not None:
            numbers[i] = known
        elif found is not None:
            place, v = found
            moves.setdefault((id(v), factor), (v, np.zeros((n, n))))[1][i, place] = 1.0
        else:
            unit, rule = _unit(graph, i), graph.multiply if kind == "scalar" else graph.outer
            placed.append(rule(unit, p) if axis == 0 else rule(p, unit))
    result = graph.node(numbers if axis == 0 else numbers.T)
    for (_, factor), (v, order) in moves.items():
        moved = graph.matmul(graph.node(order), v) if axis == 0 else graph.matmul(v, graph.node(order.T))
        result = graph.add(result, graph.multiply(graph.number(factor), moved))
    for term in placed:
        result = graph.add(result, term)
    return result


def _source(graph: Graph, axis: int, p: Node) -> tuple[int, Node] | None:
    """The place and the array that a part was read from along an axis, as ``part`` writes it; None for any other."""
    if p.op not in ("dot", "matmul"):
        return None
    unit, v = p.args if p.op == "dot" else (p.args[1], p.args[0])
    place = next((i for i, other in enumerate(graph.units) if other is unit), None)
    if place is None:
        return None
    if p.op == "matmul" and axis == 0:
        v = graph.transpose(v)
    return (place, v) if part(graph, axis, place, v) is p else None
