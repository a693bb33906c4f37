"""What has to be known of a program before it is lowered: units, signs, and what vanishes with an inner product.

*Units.* A run scales A and b by powers of two, exactly, into the range the weights are made for. That is harmless if
the program commutes with it: if multiplying A by 2^a and b by 2^β multiplies every value by a power of two of its own.
Each value's exponent is linear in (a, β) and some unknowns (x0's, the states'); sums force exponents to agree, exp and
log force them to vanish, and Gaussian elimination over the fractions tells which of a and β remain free. A constant
step size in ``x + 0.02 * (b - A @ x)`` has the unit 1/A, so A is then taken as it is, within a declared bound.

*Signs.* A logarithm exists only of positive values. Signs are inferred from squares, norms, exponentials and what the
program promises, optimistically for states: assumed positive until a step shows otherwise. A scalar that is 0 or
positive, such as relu(s), has a root, but is not kept as a logarithm.

*Vanishing.* Where the residual of conjugate gradients falls into its own rounding, r . r = 0, so do r, beta = (r . r) /
rho and d = r + beta d; x + alpha d does not, nor does a running sum m + r. That is a property of the graph: a sum
vanishes if all its terms do, a product if one of its factors does, a quotient with its numerator (0/0 is 0), a linear
image with its argument; inputs, constants and states stay. A state *falls* with the product if it vanishes in that step
or, since other states vanished, in a later one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from nlaformer.program.data import ANSWER
from nlaformer.program.facts import Unit, combine
from nlaformer.program.ir import Node, is_input, is_transpose, is_zero, reachable
from nlaformer.program.primitives import PRIMITIVES


@dataclass(frozen=True, eq=False)
class Core:
    """A program in core primitives and in its normal form: its state before, at and after a step, and the answer.

    ``definite``: whether it takes A to be symmetric positive definite.
    """

    name: str
    n: int
    inputs: Mapping[str, Node]
    start: Mapping[str, Node]
    state: Mapping[str, Node]
    step: Mapping[str, Node]
    answer: Node
    definite: bool

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """All nodes of start, step and answer, arguments first."""
        return reachable((*self.start.values(), *self.step.values(), self.answer))


@dataclass(frozen=True, eq=False)
class Facts:
    """Exponents of A and b by name, which of them a run may scale, and the nodes known to be positive, by id.

    ``problems`` are roots and logarithms of values whose sign is not known.
    """

    core: Core
    units: Mapping[str, tuple[Fraction, Fraction]]
    scaled: frozenset[str]
    positive: frozenset[int]
    problems: tuple[tuple[Node, str], ...]

    def is_positive(self, node: Node) -> bool:
        return id(node) in self.positive


def facts_of(core: Core) -> Facts:
    """Units and signs of a program."""
    units, scaled, with_units = _solve_units(core)
    promised = {id(node) for node in core.nodes if _is_definite(node, core)}
    or_zero = _positive_nodes(core, promised, or_zero=True)
    roots = [n for n in core.nodes if n.op in _OF_UNKNOWN_SIGN and id(n.args[0]) not in or_zero]
    problems = (*((node, _OF_UNKNOWN_SIGN[node.op]) for node in roots), *with_units)
    return Facts(core, units, scaled, _positive_nodes(core, promised, or_zero=False), problems)


_OF_UNKNOWN_SIGN = {
    "sqrt": "the root of a value whose sign is not known; write np.sqrt(nf.positive(v)) if you know that v is "
    "positive, np.sqrt(np.maximum(v, 0)) if it may be 0",
    "log": "the logarithm, or a power that is not whole, of a value whose sign is not known; write nf.positive(v) "
    "for v if you know that it is positive",
}


# --- what a node is ---


def undeclared(node: Node) -> Node:
    """A node, or what it declares positive."""
    return node.args[0] if node.op == "positive" else node


def dot_of(node: Node) -> tuple[Node, Node] | None:
    """The factors of an inner product of two vectors, written as u @ v or as the sum of u * v."""
    if node.op == "matmul" and not node.shape:
        return node.args[0], node.args[1]
    if node.op == "sum" and not node.shape and node.args[0].op == "multiply" and node.args[0].ndim == 1:
        u, v = node.args[0].args
        return (u, v) if u.shape == v.shape else None
    return None


def is_system_matrix(node: Node) -> bool:
    """Whether a node is a matrix that is given, or the transpose of one."""
    return node.ndim == 2 and (node.op == "input" or (is_transpose(node) and node.args[0].op == "input"))


def _is_system(node: Node) -> bool:
    return is_system_matrix(node) and is_input(node.args[0] if node.args else node, "A")


def _is_definite(node: Node, core: Core) -> bool:
    """Whether a node is positive because A is definite: dot(d, A @ d), or an entry of the diagonal of A."""
    if not core.definite:
        return False
    if (pair := dot_of(node)) is not None:
        return any(
            (q.op == "matmul" and _is_system(q.args[0]) and q.args[1] is d)
            or (q.op == "matmul" and _is_system(q.args[-1]) and q.args[0] is d)
            for d, q in (pair, pair[::-1])
        )
    if node.op == "move" and len(node.args) == 1 and is_input(node.args[0], "A"):
        place = node.extra.ravel()
        n = node.args[0].shape[-1]
        return bool((place % (n + 1) == 0).all() and (place >= 0).all())
    return False


# --- units ---


def _solve_units(core: Core) -> tuple[dict[str, tuple[Fraction, Fraction]], frozenset[str], list[tuple[Node, str]]]:
    """Each input's, state's and the answer's exponent (of A, of b), which of them may be scaled, and problems."""
    equations: list[Unit] = []  # sums of exponents that vanish
    exponents: dict[int, Unit] = {}
    fresh = itertools.count()
    for node in core.nodes:
        args = [exponents[id(argument)] for argument in node.args]
        if node.op in ("input", "state"):
            value = {f"{node.extra if node.op == 'input' else node.op}:{node.extra}": Fraction(1)}
        elif is_zero(node):
            value = {f"zeros:{next(fresh)}": Fraction(1)}
        else:
            value = PRIMITIVES[node.op].unit(node, args, equations.append)
        exponents[id(node)] = value
    for name in core.state:
        for node in (core.start[name], core.step[name]):
            if not is_zero(node):  # 0 has every unit
                equations.append(combine(exponents[id(node)], {f"state:{name}": Fraction(1)}, -1))
    solution, free = _eliminate(equations)
    scaled = frozenset(name for name in ("A", "b") if name in core.inputs and f"{name}:{name}" in free)

    def solved(exponent: Unit) -> Unit:
        total: Unit = {}
        for name, coefficient in exponent.items():
            total = combine(total, solution.get(name, {name: Fraction(1)}), coefficient)
        return total

    named = {name: solved(exponents[id(node)]) for name, node in core.inputs.items() if id(node) in exponents}
    named |= {name: solution.get(f"state:{name}", {}) for name in core.state}
    named[ANSWER] = solved(exponents[id(core.answer)])
    problems = [
        (node, f"argument {place} of {node.extra[0]} has a unit: it changes when the system is scaled")
        for node in core.nodes if node.op == "learned"
        for place, given in enumerate(node.args[1:], 2) if solved(exponents[id(given)])
        if given.op != "state" or given.extra in core.state  # the memory of a part has none
    ]  # fmt: skip

    def of(name: str, exponent: Unit) -> Fraction:
        return exponent.get(f"{name}:{name}", Fraction(0)) if name in scaled else Fraction(0)

    return {name: (of("A", exponent), of("b", exponent)) for name, exponent in named.items()}, scaled, problems


def _eliminate(equations: list[Unit]) -> tuple[dict[str, Unit], set[str]]:
    """Solve homogeneous equations for as many names as they determine, A and b last.

    Returns each determined name as a combination of free ones; A or b is free if no equation fixes it.
    """
    solution: dict[str, Unit] = {}
    for equation in equations:
        for name in list(equation):
            if name in solution:
                coefficient = equation[name]
                equation = combine({k: v for k, v in equation.items() if k != name}, solution[name], coefficient)
        if not equation:
            continue
        # A and b are determined only where nothing else can be.
        pivot = min(equation, key=lambda name: (name == "A:A", name == "b:b", name))
        rest = {name: -c / equation[pivot] for name, c in equation.items() if name != pivot}
        solution = {
            name: combine({k: v for k, v in value.items() if k != pivot}, rest, value.get(pivot, Fraction(0)))
            for name, value in solution.items()
        }
        solution[pivot] = rest
    free = {"A:A", "b:b"} - solution.keys()
    if "b:b" in solution and solution["b:b"].get("A:A"):
        # b could only be scaled together with A; neither is scaled.
        free -= {"A:A"}
    return solution, free


# --- signs ---


def _positive_nodes(core: Core, promised: set[int], or_zero: bool) -> frozenset[int]:
    """The nodes known to be positive; with ``or_zero``, also scalars that are known to be 0 or positive."""
    hopeful = set(core.state)
    while True:
        positive = set(promised)
        for node in core.nodes:
            if _is_positive(node, positive, hopeful, or_zero):
                positive.add(id(node))
        wrong = {
            name for name in hopeful if id(core.start[name]) not in positive or id(core.step[name]) not in positive
        }
        if not wrong:
            return frozenset(positive)
        hopeful -= wrong


def _is_positive(node: Node, positive: set[int], hopeful: set[str], or_zero: bool) -> bool:
    if node.op in ("state", "input"):
        return node.op == "state" and node.extra in hopeful
    if node.op == "move" and not node.shape and not or_zero:
        return False  # an entry of an array may be 0
    return PRIMITIVES[node.op].sign(node, lambda other: id(other) in positive, or_zero)


# --- vanishing ---


def vanishing(values: Iterable[Node], with_: Collection[int], states: Collection[str] = ()) -> set[int]:
    """The nodes that vanish, by id, where the nodes ``with_`` and these states do."""
    found: set[int] = set()
    for node in reachable(values):
        known = [id(argument) in found for argument in node.args]
        if (
            id(node) in with_
            or is_zero(node)
            or (node.op == "state" and node.extra in states)
            or (node.args and PRIMITIVES[node.op].vanishes(known))
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


def causes(node: Node, facts: Facts) -> set[int]:
    """The nodes that vanish, by id, because a positive scalar does: it, its vectors, and the terms of a sum."""
    found = {id(node)}
    if (pair := dot_of(node)) is not None:
        found |= {id(argument) for argument in pair}
    elif node.op in ("positive", "sqrt"):
        found |= causes(node.args[0], facts)
    elif node.op == "add" and all(map(facts.is_positive, node.args)):
        found = found.union(*(causes(argument, facts) for argument in node.args))
    elif node.op == "multiply" and any(argument.op == "constant" for argument in node.args):
        found |= set().union(*(causes(argument, facts) for argument in node.args if argument.op != "constant"))
    return found
