"""What vanishes with an inner product.

Where the residual of conjugate gradients falls into its own rounding, r . r = 0, so do r, beta = (r . r) / rho and
d = r + beta d; x + alpha d does not, nor does a running sum m + r. That is a property of the graph: a sum vanishes if
all its terms do, a product if one of its factors does, a quotient with its numerator (0/0 is 0), a linear image with
its argument; inputs, constants and states stay.

A state *falls* with the product if it vanishes in that step or, since other states vanished, in a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from nlaformer.compiler.graph import REARRANGING, Node, reachable

_ALL, _ANY = ("add",), ("multiply", "matmul", "dot", "outer")
_FIRST = REARRANGING | {"divide", "positive", "sqrt", "relu", "sum", "mean"}


def vanishing(values: Iterable[Node], with_: Collection[int], states: Collection[str] = ()) -> set[int]:
    """The nodes that vanish, by id, where the nodes ``with_`` and these states do."""
    found: set[int] = set()
    for node in reachable(values):
        known = [id(argument) in found for argument in node.args]
        if (
            id(node) in with_
            or node.is_zero
            or (node.op == "state" and node.extra in states)
            or (node.op in _ALL and all(known))
            or (node.op in _ANY and any(known))
            or (node.op in _FIRST and known[0])
        ):
            found.add(id(node))
    return found


def falling_states(step: Mapping[str, Node], with_: Collection[int]) -> frozenset[str]:
    """The states that vanish, at once or later, where the nodes ``with_`` of a step do."""
    states: frozenset[str] = frozenset()
    while True:
        found = vanishing(step.values(), with_, states)
        after = frozenset(name for name, node in step.items() if id(node) in found)
        if after == states:
            return states
        states = after


def causes(node: Node, is_positive: Callable[[Node], bool]) -> set[int]:
    """The nodes that vanish, by id, because a positive scalar does: it, its vectors, and the terms of a sum."""
    found = {id(node)}
    if node.op in ("positive", "sqrt"):
        found |= causes(node.args[0], is_positive)
    elif node.op == "dot":
        found |= {id(argument) for argument in node.args}
    elif node.op == "add" and all(map(is_positive, node.args)):
        found = found.union(*(causes(argument, is_positive) for argument in node.args))
    elif node.op == "multiply" and node.args[0].op == "constant":
        found |= causes(node.args[1], is_positive)
    return found
