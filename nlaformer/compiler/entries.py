"""Entries, rows and columns of traced arrays, read and set.

    v[i] = e_i . v          v[i] = s:  v + (s - e_i . v) e_i          A[i] = w:  A + e_i (w - e_i A)^T

What was set is remembered with the node (``Graph.placed``): reading it back costs nothing, and setting it once more
leaves no rounding errors of what stood there before.
"""

from __future__ import annotations

import numpy as np

from nlaformer.compiler.graph import AXES, Graph, Node, RefusedError, is_number


def part(graph: Graph, axis: int, index: int, v: Node) -> Node:
    """An entry of a vector, a row (axis 0) or a column (axis 1) of a matrix."""
    unit = graph.unit(index)
    place, (base, parts) = index % len(unit.extra), _placed(graph, axis, v)
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
    place, (base, parts) = index % len(graph.unit(index).extra), _placed(graph, axis, v)
    again = place in parts
    parts = parts | {place: new}
    if v.kind == "vector" and len(parts) == graph.n:
        moved = shifted(graph, [parts[i] for i in range(graph.n)])
        if moved is not None:
            return moved
    result = base if again else v
    for where in parts if again else (place,):
        unit, old = graph.unit(where), part(graph, axis, where, base)
        change = graph.add(parts[where], graph.multiply(graph.number(-1.0), old))
        if v.kind == "vector":
            result = graph.add(result, graph.multiply(change, unit))
        else:
            result = graph.add(result, graph.outer(unit, change) if axis == 0 else graph.outer(change, unit))
    graph.placed[id(result)] = (base, axis, parts)
    return result


def _placed(graph: Graph, axis: int, v: Node) -> tuple[Node, dict[int, Node]]:
    """The array that parts were set in along an axis, and these; itself where they were not."""
    base, along, parts = graph.placed.get(id(v), (v, axis, {}))
    return (base, parts) if along == axis else (v, {})


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
        return _vector(graph, [graph.node(entry) for entry in entries])
    columns = [assembled(graph, column) for column in entries.T]
    if not any(id(column) in graph.placed for column in columns):
        return _filled(graph, 1, columns)
    return _filled(graph, 0, [assembled(graph, row) for row in entries])


def _vector(graph: Graph, nodes: list[Node]) -> Node:
    found = {id(node.args[1]): node.args[1] for node in nodes if node.op == "dot"}
    if len(found) == 1:
        (v,) = found.values()
        if all(node is part(graph, 0, i, v) for i, node in enumerate(nodes)):
            return v  # the entries of one vector
    moved = shifted(graph, nodes)
    return _filled(graph, 0, nodes) if moved is None else moved


def shifted(graph: Graph, nodes: list[Node]) -> Node | None:
    """A vector with these entries, if they are those of one vector moved by k places, with zeros behind them.

    tril(roll(diag(v), k)) 1 is made of masks and moves alone. Each entry by itself would be a product, right to 1e-13
    of the vector, and once all entries have left it this would be all that remains.
    """
    first = next((i for i, node in enumerate(nodes) if not node.is_zero), 0)
    unit, v = nodes[first].args if nodes[first].op == "dot" else (None, None)
    place = next((i for i, other in enumerate(graph.units) if other is unit), first)
    k, n = first - place, len(nodes)
    if v is None or not k:
        return None
    if not all(node is part(graph, 0, i - k, v) if 0 <= i - k < n else node.is_zero for i, node in enumerate(nodes)):
        return None
    rows = graph.triangle("lower" if k > 0 else "upper", 0, graph.roll(k, graph.diagonal(v)))
    result = graph.matmul(rows, graph.ones("vector"))
    graph.placed[id(result)] = (graph.zeros("vector"), 0, dict(enumerate(nodes)))
    return result


def _filled(graph: Graph, axis: int, parts: list[Node]) -> Node:
    """An array with these parts; those that are constant in one constant. One that was refused has no kind."""
    refused = next((p for p in parts if p.op == "refused"), None)
    if refused is not None:
        return refused
    constants = [np.asarray(p.extra) if p.op == "constant" else np.zeros([graph.n or 1] * AXES[p.kind]) for p in parts]
    result = graph.node(np.stack(constants, axis=axis))
    for i, p in enumerate(parts):
        if not p.is_zero and p.op != "constant":
            result = with_part(graph, axis, i, result, p)
    return result
