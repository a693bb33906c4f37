"""Scales: which values float, and how a value of unknown size is brought to size 1 before it stands in a score.

Attention multiplies by linearizing the softmax, which is accurate to about 1e-13 of the *range* its scores were made
for. A row is *tame* if its bound is near the truth: an input (its prompt has norm 1, the logarithm of its scale stands
in a row beside it where the program does not commute with scaling), the mantissa of a floating state, what is made of
such rows, and vectors that are divided by their norms. Everything else is *wild*; a wild factor is first divided by its
own size:

    vector   l_j = log |v_j|, interpolated | peak = max_j l_j, by a sharp softmax | v e^-peak          2 layers
    matrix   the same from the sums of its rows' absolute values                                      3 layers
    scalar   l = log |s| | s e^-l, read from the first token                                           1 layer

The rough logarithms end at e^-16 (float32 has no digits below). In double precision min(0, 16 + log sum_j |v_j|) is
added to the peak beside them: a vector may fall to e^-32 in one step, by sudden convergence, say, or once a method has
overshot, and keeps its digits.

A factor that is not in the score, the value of the heads, may have any size.

*Scale groups.* Vectors, or matrices, that are added to each other share one exponent; a product with a computed scalar
starts a new group. A group that holds the answer or an input of the step stays at fixed scale; the others float: they
are kept as mantissas of norm about 1 with one common logarithm of their scale, so a residual may fall by any factor
without losing a digit. Scalars whose sign is not known are groups of their own, so that a zero is a zero; logarithms
are kept only of values that are proven positive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nlaformer.compiler.graph import Node, is_input, is_invariant, is_number, reachable
from nlaformer.compiler.instructions import FFN, Builder, Combination, combine
from nlaformer.compiler.trace import TracedProgram


class Scaling(Builder):
    """A builder that knows sizes: it brings wild rows to size 1 and aligns exponents at run time."""

    def normalized(self, source: Combination, kind: str) -> tuple[Combination, Combination]:
        """(row, F) with source = row e^F and a row of size about 1; 0 stays 0."""
        factor = max((abs(c) for _, c in source), default=1.0)
        source = tuple((register, c / factor) for register, c in source)
        shift = ((self.one, math.log(factor)),) if factor != 1.0 else ()
        if not source:
            return source, ()
        if kind == "scalar":
            log = self.emit("coarse", [source], half=FFN, writes=FFN, tame=False)
            picked = self._work("picked", log, scalar=True, tame=False)
            self.sizes.add(picked)
            row = self.emit(
                "ratio", [source, ((log, 1.0),)], scalar=True, extra=(picked,), tame=True, bound=2.0, size=1.0
            )
            return ((row, 1.0),), combine((1.0, ((picked, 1.0),)), (1.0, shift))
        peak = self._peak(source, kind)
        row = self.emit(
            "scale",
            [source],
            combine((-1.0, peak)),
            height=self._height(source),
            bound=math.sqrt(self.n),
            size=1.0,
            tame=True,
        )
        return ((row, 1.0),), combine((1.0, peak), (1.0, shift))

    def _peak(self, source: Combination, kind: str) -> Combination:
        """The logarithm of the largest entry, within a few tenths; where that ends, of the sum of absolute values."""
        absolute: Combination = ()
        if kind == "matrix" or self.target.is_double:
            absolute = ((self.emit("absolute", [source], half=FFN, writes=FFN, tame=False), 1.0),)
        log = self.emit("coarse", [absolute if kind == "matrix" else source], half=FFN, writes=FFN, tame=False)
        rows = [self.emit("peak", [((log, 1.0),)], scalar=True, tame=False)]
        if self.target.is_double:
            total = self.emit("sum", [absolute], scalar=True, tame=False)
            rows.append(self.emit("beneath", [((total, 1.0),)], half=FFN, writes=FFN, scalar=True, tame=False))
        self.sizes.update(rows)
        return combine(*((1.0, ((row, 1.0),)) for row in rows))

    def maximum(self, exponents: Iterable[Combination]) -> Combination:
        """About the largest of several exponents, from interpolated logarithms: F + max(0, H - F), in pairs."""
        largest: dict[Combination, float] = {}
        for exponent in exponents:
            rough = dict(self._rough(exponent))
            constant = rough.pop(self.one, 0.0)
            form = combine((1.0, rough.items()))
            largest[form] = max(largest.get(form, -math.inf), constant)
        forms = [combine((1.0, form), (constant, ((self.one, 1.0),))) for form, constant in largest.items()]
        while len(forms) > 1:
            pairs = [forms[k : k + 2] for k in range(0, len(forms), 2)]
            forms = [self._larger(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return forms[0] if forms else ()

    def _larger(self, F: Combination, H: Combination) -> Combination:
        above = self.emit("relu", [combine((1.0, H), (-1.0, F))], half=FFN, writes=FFN, scalar=True, tame=False)
        return combine((1.0, F), (1.0, ((above, 1.0),)))

    def _rough(self, exponent: Combination) -> Combination:
        """An exponent without the refinement of its logarithms, which is known a half layer earlier."""
        parts = []
        for register, c in exponent:
            if not self.out.registers[register].scalar:
                continue
            if register in self.interpolated:
                log = ((self.interpolated[register], 1.0),)
                register = self.emit("pick", [log], scalar=True, tame=False)
            parts.append((c, ((register, 1.0),)))
        return combine(*parts)


def scale_groups(traced: TracedProgram) -> tuple[dict[int, int], dict[int, list[str]]]:
    """The group of every vector and matrix, and the floating groups with their states."""
    parent: dict[int, int] = {}

    def find(key: int) -> int:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    def join(keys: Iterable[int]) -> None:
        first, *others = keys
        for other in others:
            parent[find(other)] = find(first)

    used = dict.fromkeys(
        [*traced.nodes, *traced.state.values()]
    )  # a state that no method reads is written all the same
    nodes = [node for node in used if node.kind != "scalar"]
    for node in nodes:
        find(id(node))
        join([id(node), *(id(argument) for argument in _of_same_scale(node))])
    states = [name for name, node in traced.state.items() if node.kind != "scalar"]
    for name in states:
        join([id(traced.state[name]), id(traced.step[name])])
    fixed = set()
    if traced.answer.kind == "matrix" or (traced.answer.kind == "vector" and not _is_homogeneous(traced)):
        fixed.add(find(id(traced.answer)))
    step = {id(node) for node in reachable(traced.step.values())}
    for node in nodes:
        if node.op in ("exp", "log", "sqrt", "sign", "constant", "ones", "identity"):
            fixed.add(find(id(node)))
        if node.op == "input" and id(node) in step:
            fixed.add(find(id(node)))
        if node.op == "add" and any(argument.kind != node.kind for argument in node.args):
            fixed.add(find(id(node)))  # a scalar added to a vector has a scale of its own
        if node.op in ("exp", "log"):
            fixed.add(find(id(node.args[0])))
    floating: dict[int, list[str]] = {}
    for name in states:
        if find(id(traced.state[name])) not in fixed:
            floating.setdefault(find(id(traced.state[name])), []).append(name)
    group = {id(node): find(id(node)) for node in nodes}
    for key in {group[id(node)] for node in nodes if node.op == "relu"} & floating.keys():
        # The larger and the smaller of two states: each has a scale of its own.
        for name in floating.pop(key):
            own = id(traced.state[name])
            group[own] = group[id(traced.step[name])] = own
            floating[own] = [name]
    return group, floating


def _is_homogeneous(traced: TracedProgram) -> bool:
    """Whether the answer is a state that a step multiplies by something: it may fall or grow without end."""
    answer = traced.answer
    if answer.op != "state" or answer.extra in unit_states(traced) or traced.step[answer.extra] is answer:
        return False
    stack = [traced.step[answer.extra]]
    while stack:
        node = stack.pop()
        args = [argument for argument in node.args if argument.kind == node.kind]
        if node.op == "matmul" and node.args[0].op == "input":
            stack.append(node.args[1])
        elif node.op in ("add", "multiply", "relu", "roll", "positive") and args:
            stack += args
        elif node.op == "divide":
            stack.append(node.args[0])
        elif node is not answer:
            return False
    return True


def _of_same_scale(node: Node) -> list[Node]:
    """The arguments that share a vector's or matrix's scale."""
    args = [argument for argument in node.args if argument.kind != "scalar"]
    if node.op in ("add", "positive", "relu", "roll", "triangle", "transpose", "diag", "diagonal"):
        return args
    if node.op == "matmul":
        left = node.args[0].args[0] if node.args[0].op == "transpose" else node.args[0]
        return [node.args[1]] if is_input(left, "A") else []
    if node.op == "multiply" and node.args[0].op == "constant" and node.args[0].kind == "scalar":
        return [node.args[1]]
    if node.op == "divide" and len(args) == 2 and is_invariant(node.args[1]):
        return [node.args[0]]
    return []


def is_counter(traced: TracedProgram, name: str) -> bool:
    """Whether a scalar state begins as a number, and a step only adds one to it: a row that is exact."""
    node, begun, after = traced.state[name], traced.start[name], traced.step[name]
    others = [argument for argument in after.args if argument is not node]
    return is_number(begun) and after.op == "add" and len(others) == 1 and is_number(others[0])


def is_divisor(traced: TracedProgram, node: Node) -> bool:
    """Whether something is divided by a value that is made of a node: its logarithm is at hand."""
    return any(node in reachable([other.args[1]]) for other in traced.nodes if other.op == "divide")


def unit_states(traced: TracedProgram) -> set[str]:
    """The vector states that are divided by their own norms in start and step: tame at fixed scale."""
    hopeful = {name for name, node in traced.state.items() if node.kind == "vector"}
    while True:
        wrong = {n for n in hopeful if not (_is_unit(traced.start[n], hopeful) and _is_unit(traced.step[n], hopeful))}
        if not wrong:
            return hopeful
        hopeful -= wrong


def _is_unit(node: Node, hopeful: set[str]) -> bool:
    if node.op == "state":
        return node.extra in hopeful
    if node.op != "divide" or node.args[1].op != "sqrt":
        return False
    square = node.args[1].args[0]
    square = square.args[0] if square.op == "positive" else square
    return square.op == "dot" and square.args[0] is square.args[1] is node.args[0]
