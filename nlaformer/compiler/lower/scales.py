"""Which values share a scale, and which scales float.

Vectors, or matrices, that are added to each other or whose entries are moved into one array share one exponent; a
product with a computed scalar starts a new group. A group that holds the answer or an input of the step stays at fixed
scale; the others float: they are kept as mantissas of norm about 1 with one common logarithm of their scale, so a
residual may fall by any factor without losing a digit. A sum of residuals, m = m + r, does not fall with r . r
(``facts.vanishing``): it stays at fixed scale, and r floats without it. But r floats with A^T r, if that is what falls.
Scalars whose sign is not known are groups of their own, so that a zero is a zero; logarithms are kept only of values
that are proven positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nlaformer.compiler.lower.facts import Core, Facts, causes, dot_of, falling_states, undeclared, vanishing
from nlaformer.program.ir import Node, is_number, reachable
from nlaformer.program.primitives import PRIMITIVES


@dataclass(frozen=True)
class ScaleGroups:
    """Which vectors and matrices share a scale.

    Attributes
    ----------
    of : by the id of a node, its group
    floating : the groups whose scale changes from step to step, with their states
    falling : the states that vanish where an inner product of their group does
    """

    of: dict[int, int]
    floating: dict[int, list[str]]
    falling: frozenset[str]


def scale_groups(facts: Facts) -> ScaleGroups:
    """The group of every vector and matrix; only states that vanish with the same inner products share a scale."""
    core = facts.core
    group = _united(core)
    floating = _floating(core, group)
    falls = _Falls.of(facts, group, floating)
    parted = {key for key, names in floating.items() if len({falls.label(core.state[n], key) for n in names}) > 1}
    if parted:
        labels = {k: falls.label(node, group[k]) for k, node in _arrays(core).items() if group[k] in parted}
        group = _united(core, labels)
        # Among what falls with nothing there is no product to tell a scale: it is kept as it is.
        floating = {
            key: names
            for key, names in _floating(core, group).items()
            if any(labels.get(id(core.state[name]), True) for name in names)
        }
    for key in {group[key] for key, node in _arrays(core).items() if node.op == "relu"} & floating.keys():
        # The larger and the smaller of two states: each has a scale of its own.
        for name in floating.pop(key):
            own = id(core.state[name])
            group[own] = group[id(core.step[name])] = own
            floating[own] = [name]
    return ScaleGroups(group, floating, falls.states)


def _arrays(core: Core) -> dict[int, Node]:
    """Vectors and matrices by id; a state that no method reads is written all the same."""
    return {id(node): node for node in [*core.nodes, *core.state.values()] if node.shape}


def _united(core: Core, labels: Mapping[int, frozenset[int]] | None = None) -> dict[int, int]:
    """A number for each array, the same for those that share a scale.

    What stays does not share the scale of a term that falls with a product of which it has no label.
    """
    parent: dict[int, int] = {}
    labels = labels or {}

    def find(key: int) -> int:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    def join(first: Node, other: Node) -> None:
        parent[find(id(other))] = find(id(first))

    for node in _arrays(core).values():
        find(id(node))
        for argument in PRIMITIVES[node.op].kin(node):
            if labels.get(id(argument), frozenset()) <= labels.get(id(node), frozenset()):
                join(node, argument)
    for name, node in core.state.items():
        if node.shape:
            join(node, core.step[name])
    return {key: find(key) for key in parent}


def _floating(core: Core, group: Mapping[int, int]) -> dict[int, list[str]]:
    """The groups without the answer or anything else of a scale of its own, and their states."""
    fixed = set()
    if core.answer.ndim == 2 or (core.answer.ndim == 1 and not _is_homogeneous(core)):
        fixed.add(group[id(core.answer)])
    step = {id(node) for node in reachable(core.step.values())}
    for key, node in _arrays(core).items():
        if node.op in ("exp", "log", "sqrt", "sign", "constant") or (node.op == "input" and key in step):
            fixed.add(group[key])
        if node.op == "add" and any(argument.shape != node.shape for argument in node.args):
            fixed.add(group[key])  # a scalar added to a vector has a scale of its own
        if node.op in ("exp", "log"):
            fixed.add(group[id(node.args[0])])
    floating: dict[int, list[str]] = {}
    for name, node in core.state.items():
        if node.shape and group[id(node)] not in fixed:
            floating.setdefault(group[id(node)], []).append(name)
    return floating


@dataclass(frozen=True)
class _Falls:
    """What falls with each positive inner product: the groups of its vectors, nodes by id, and states of the groups."""

    products: list[tuple[set[int], set[int], frozenset[str]]]

    @classmethod
    def of(cls, facts: Facts, group: Mapping[int, int], floating: Mapping[int, list[str]]) -> _Falls:
        products = []
        step = facts.core.step
        for dot in reachable(step.values()):
            pair = dot_of(dot)
            if pair is None or not facts.is_positive(dot):
                continue
            groups = {group[id(argument)] for argument in pair} & floating.keys()
            if groups:
                found = causes(dot, facts)
                states = falling_states(step, found)
                kin = {name for key in groups for name in floating[key]}
                if states & kin:
                    products.append((groups, vanishing(step.values(), found, states), states & kin))
        return cls(products)

    @property
    def states(self) -> frozenset[str]:
        return frozenset().union(*(states for _, _, states in self.products))

    def label(self, node: Node, group: int) -> frozenset[int]:
        """The products of a node's group that it falls with."""
        return frozenset(
            k
            for k, (groups, nodes, states) in enumerate(self.products)
            if group in groups and (node.extra in states if node.op == "state" else id(node) in nodes)
        )


def _is_homogeneous(core: Core) -> bool:
    """Whether the answer is a state that a step multiplies by something: it may fall or grow without end."""
    answer = core.answer
    if answer.op != "state" or answer.extra in unit_states(core) or core.step[answer.extra] is answer:
        return False
    stack = [core.step[answer.extra]]
    while stack:
        node = stack.pop()
        args = [argument for argument in node.args if argument.shape == node.shape]
        if node.op == "matmul" and node.args[0].op == "input":
            stack.append(node.args[1])
        elif (node.op in ("add", "multiply", "relu", "positive") or is_permutation(node)) and args:
            stack += args
        elif node.op == "divide":
            stack.append(node.args[0])
        elif node is not answer:
            return False
    return True


def is_permutation(node: Node) -> bool:
    """Whether a node has all the entries of its argument, in another order."""
    whole = node.op == "move" and len(node.args) == 1 and node.shape == node.args[0].shape
    return whole and len(np.unique(node.extra)) == node.size and int(node.extra.min()) >= 0


def is_counter(core: Core, name: str) -> bool:
    """Whether a scalar state begins as a number, and a step only adds one to it: a row that is exact."""
    node, begun, after = core.state[name], core.start[name], core.step[name]
    others = [argument for argument in after.args if argument is not node]
    return is_number(begun) and after.op == "add" and len(others) == 1 and is_number(others[0])


def is_divisor(core: Core, node: Node) -> bool:
    """Whether something is divided by a value that is made of a node: its logarithm is at hand."""
    return any(node in reachable([other.args[1]]) for other in core.nodes if other.op == "divide")


def unit_states(core: Core) -> set[str]:
    """The vector states that are divided by their own norms in start and step: calibrated at fixed scale."""
    hopeful = {name for name, node in core.state.items() if node.ndim == 1}
    while True:
        wrong = {n for n in hopeful if not (_is_unit(core.start[n], hopeful) and _is_unit(core.step[n], hopeful))}
        if not wrong:
            return hopeful
        hopeful -= wrong


def _is_unit(node: Node, hopeful: set[str]) -> bool:
    if node.op == "state":
        return node.extra in hopeful
    if node.op != "divide" or node.args[1].op != "sqrt":
        return False
    pair = dot_of(undeclared(node.args[1].args[0]))
    return pair is not None and pair[0] is pair[1] is node.args[0]
