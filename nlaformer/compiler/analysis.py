"""What the compiler has to know about a traced program before it chooses instructions.

*Units.* A run scales A and b by powers of two, exactly, into the range the weights are made for. That is harmless if
the program commutes with it: if multiplying A by 2^a and b by 2^β multiplies every value by a power of two of its own.
Each value's exponent is linear in (a, β) and some unknowns (x0's, the states'); sums force exponents to agree, exp and
log force them to vanish, and Gaussian elimination over the fractions tells which of a and β remain free. A constant
step size in ``x + 0.02 * (b - A @ x)`` has the unit 1/A, so A is then taken as it is, within a declared bound.

*Signs.* A logarithm exists only of positive values. Signs are inferred from squares, norms, exponentials and what the
program declares, optimistically for states: assumed positive until a step shows otherwise. Whatever rests on a
declaration becomes a *promise* that every run checks on its data. A scalar that is 0 or positive, such as relu(s), has
a root, but is not kept as a logarithm.

Both are facts about the lowered program (``rewrites.py``), which the weights are made from; promises are checked as the
program states them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from nlaformer.compiler.graph import REARRANGING, Node, is_input
from nlaformer.compiler.learned import Call
from nlaformer.compiler.lower.facts import facts_of
from nlaformer.compiler.lower.normal import normal
from nlaformer.compiler.rewrites import lower
from nlaformer.compiler.trace import ANSWER, TracedProgram, refuse, refuse_changes
from nlaformer.program.data import ProgramGraph

# The exponent of a value: linear in those of A, b and the unknowns.
_Power = dict[str, Fraction]
# Operations whose value has the sign of their arguments, where all of these are positive.
_KEEP_SIGN = REARRANGING | {"add", "multiply", "divide", "matmul", "dot", "outer", "sqrt", "sum", "mean", "sign"}


@dataclass(frozen=True)
class Analysis:
    """The result: the program that there are weights for, units by name, which inputs may be scaled, signs, promises.

    ``lowered`` and ``positive`` belong together; ``promises`` are values of the program as it was traced.
    """

    lowered: TracedProgram
    units: dict[str, tuple[Fraction, Fraction]]
    scaled: frozenset[str]
    positive: frozenset[int]
    promises: tuple[Node, ...]

    def is_positive(self, node: Node) -> bool:
        return id(node) in self.positive


def analyse(traced: TracedProgram) -> Analysis:
    """Units and signs of a program. Raises CompileError with everything that cannot be compiled."""
    if traced.graph is not None:
        return _of_graph(traced, traced.graph)
    promises = tuple(node for node in traced.nodes if _rests_on_promise(node, traced.program.positive_definite))
    lowered, images = lower(traced)
    promised = [images[id(node)] for node in promises]
    refuse(traced.program, [*lowered.problems, *_unknown_signs(lowered, promised)])
    refuse_changes(traced)
    units, scaled = _solve_units(lowered)
    return Analysis(lowered, units, scaled, _positive_nodes(lowered, promised, or_zero=False), promises)


def _of_graph(traced: TracedProgram, graph: ProgramGraph) -> Analysis:
    """The same of a graph of ``program/``, which the rules of ``lower/`` make weights from."""
    facts = facts_of(normal(graph))
    if facts.problems:
        node, problem = facts.problems[0]
        refuse(traced.program, [f"{node.line}\n    {problem}"])
    promises: tuple[Any, ...] = tuple(graph.promises.values())
    return Analysis(traced, dict(facts.units), facts.scaled, frozenset(), promises)


def _solve_units(traced: TracedProgram) -> tuple[dict[str, tuple[Fraction, Fraction]], frozenset[str]]:
    """Each input's, state's and the answer's exponent (of A, of b), and which of A and b may be scaled."""
    equations: list[_Power] = []  # sums of exponents that vanish
    exponents: dict[int, _Power] = {}
    fresh = iter(range(10**9))

    for node in traced.nodes:
        args = [exponents[id(argument)] for argument in node.args]
        if node.op in ("input", "state"):
            value = {f"{node.extra if node.op == 'input' else node.op}:{node.extra}": Fraction(1)}
        elif node.op == "zeros":
            value = {f"zeros:{next(fresh)}": Fraction(1)}
        elif node.op in ("constant", "ones", "identity", "sign", "learned"):
            value = {}
        elif node.op in ("multiply", "matmul", "dot", "outer"):
            value = _combine(args[0], args[1], 1)
        elif node.op == "divide":
            value = _combine(args[0], args[1], -1)
        elif node.op == "add":
            equations.append(_combine(args[0], args[1], -1))
            value = args[0]
        elif node.op in ("exp", "log"):
            equations.append(args[0])
            value = {}
        elif node.op == "sqrt":
            value = {name: coefficient / 2 for name, coefficient in args[0].items()}
        else:
            value = args[0]
        exponents[id(node)] = value
    for name in traced.state:
        for node in (traced.start[name], traced.step[name]):
            if not node.is_zero:  # 0 has every unit
                equations.append(_combine(exponents[id(node)], {f"state:{name}": Fraction(1)}, -1))
    solution, free = _eliminate(equations)
    scaled = frozenset(name for name in ("A", "b") if name in traced.inputs and f"{name}:{name}" in free)
    for key, exponent in exponents.items():
        exponents[key] = {}
        for name, coefficient in exponent.items():
            exponents[key] = _combine(exponents[key], solution.get(name, {name: Fraction(1)}), coefficient)
    refuse(traced.program, [problem for call in traced.learned for problem in _units_of_call(call, exponents)])
    named = {name: exponents[id(node)] for name, node in traced.inputs.items() if id(node) in exponents}
    named |= {name: solution.get(f"state:{name}", {}) for name in traced.state}
    named[ANSWER] = exponents[id(traced.answer)]

    def of(name: str, exponent: _Power) -> Fraction:
        return exponent.get(f"{name}:{name}", Fraction(0)) if name in scaled else Fraction(0)

    return {name: (of("A", exponent), of("b", exponent)) for name, exponent in named.items()}, scaled


def _units_of_call(call: Call, exponents: dict[int, _Power]) -> list[str]:
    """A problem for each input of a learned part, A apart, that changes with the scale of A, b or anything else.

    And one for a part that is called in vain.
    """
    problems = []
    if call.said and not any(id(node) in exponents for node in call.said.values()):
        vain = "is called, but nothing is made of what it gives: return it, or make a state of it"
        return [f"{call.place}\n    {call.spec.name} {vain}"]
    for place, node in enumerate(call.nodes[1:], 2):
        if exponents[id(node)]:
            problems.append(
                f"{call.place}\n    argument {place} of {call.spec.name} has a unit: it changes when the "
                "system is scaled. A learned part takes numbers without one, such as r / nf.norm(r)"
            )
    return problems


def _combine(u: _Power, v: _Power, factor: Fraction | int) -> _Power:
    total = dict(u)
    for name, coefficient in v.items():
        total[name] = total.get(name, Fraction(0)) + factor * coefficient
    return {name: coefficient for name, coefficient in total.items() if coefficient}


def _eliminate(equations: list[_Power]) -> tuple[dict[str, _Power], set[str]]:
    """Solve homogeneous equations for as many names as they determine, A and b last.

    Returns each determined name as a combination of free ones; A or b is free if no equation fixes it.
    """
    solution: dict[str, _Power] = {}
    for equation in equations:
        for name in list(equation):
            if name in solution:
                coefficient = equation[name]
                equation = _combine({k: v for k, v in equation.items() if k != name}, solution[name], coefficient)
        if not equation:
            continue
        # A and b are determined only where nothing else can be.
        pivot = min(equation, key=lambda name: (name == "A:A", name == "b:b", name))
        rest = {name: -c / equation[pivot] for name, c in equation.items() if name != pivot}
        solution = {
            name: _combine({k: v for k, v in value.items() if k != pivot}, rest, value.get(pivot, Fraction(0)))
            for name, value in solution.items()
        }
        solution[pivot] = rest
    free = {"A:A", "b:b"} - solution.keys()
    if "b:b" in solution and solution["b:b"].get("A:A"):
        # b could only be scaled together with A; neither is scaled.
        free -= {"A:A"}
    return solution, free


def _positive_nodes(traced: TracedProgram, promises: list[Node], or_zero: bool) -> frozenset[int]:
    """The nodes known to be positive; with ``or_zero``, also scalars that are known to be 0 or positive."""
    hopeful = set(traced.state)
    while True:
        positive = {id(node) for node in promises}
        for node in traced.nodes:
            if _is_positive(node, positive, hopeful, or_zero):
                positive.add(id(node))
        wrong = {
            name for name in hopeful if id(traced.start[name]) not in positive or id(traced.step[name]) not in positive
        }
        if not wrong:
            return frozenset(positive)
        hopeful -= wrong


def _unknown_signs(traced: TracedProgram, promises: list[Node]) -> list[str]:
    """A problem for each logarithm and root of a value whose sign is not known."""
    positive = _positive_nodes(traced, promises, or_zero=True)
    return [
        f"{node.place}\n    {_OF_UNKNOWN_SIGN[node.op]}"
        for node in traced.nodes
        if node.op in ("log", "sqrt") and id(node.args[0]) not in positive
    ]


_OF_UNKNOWN_SIGN = {
    "sqrt": "the root of a value whose sign is not known; write np.sqrt(nf.positive(v)) if you know that v is "
    "positive, np.sqrt(np.maximum(v, 0)) if it may be 0",
    "log": "the logarithm, or a power that is not whole, of a value whose sign is not known; write nf.positive(v) "
    "for v if you know that it is positive",
}


def _is_positive(node: Node, positive: set[int], hopeful: set[str], or_zero: bool) -> bool:
    known = [id(argument) in positive for argument in node.args]
    if node.op == "relu" or node.is_zero:
        # The logarithm of a scalar that vanishes must not be its only trace; entries of a vector are kept as they are.
        return or_zero or node.kind != "scalar"
    if node.op == "constant":
        return bool((np.asarray(node.extra) > 0).all())
    if node.op == "state":
        return node.extra in hopeful
    if node.op in ("exp", "positive", "ones", "identity"):
        return True
    if node.op in _KEEP_SIGN and all(known):
        return True
    if node.op == "multiply":
        return node.args[0] is node.args[1]
    if node.op == "dot":
        u, v = node.args
        return u is v or _is_weighted(u, v, positive) or _is_weighted(v, u, positive)
    return False


def _is_weighted(u: Node, v: Node, positive: set[int]) -> bool:
    """Whether v is u times or over something positive."""
    if v.op == "multiply":
        return any(v.args[k] is u and id(v.args[1 - k]) in positive for k in (0, 1))
    return v.op == "divide" and v.args[0] is u and id(v.args[1]) in positive


def _is_matrix_of_system(node: Node) -> bool:
    """Whether a node is A or A.T."""
    return is_input(node, "A") or (node.op == "transpose" and is_input(node.args[0], "A"))


def _rests_on_promise(node: Node, definite: bool) -> bool:
    """Whether a node is nf.positive(v) or, for a positive definite A, dot(d, A @ d) or diag(A)."""
    if node.op == "dot" and definite:
        pairs = (node.args, node.args[::-1])
        return any(q.op == "matmul" and _is_matrix_of_system(q.args[0]) and q.args[1] is d for d, q in pairs)
    return node.op == "positive" or (node.op == "diag" and definite and is_input(node.args[0], "A"))
