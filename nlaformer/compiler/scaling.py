"""Scales: which values float, and how a value of unknown size is brought to size 1 before it stands in a score.

Attention multiplies by linearizing the softmax, which is accurate to about 1e-13 of the *range* its scores were made
for. A row is *tame* if its bound is near the truth: an input (its prompt has norm 1, the logarithm of its scale stands
in a row beside it where the program does not commute with scaling), the mantissa of a floating state, what is made of
such rows, and vectors that are divided by their norms. Everything else is *wild*; a wild factor is first divided by its
own size:

    vector   l_j = log |v_j|, interpolated | peak = max_j l_j, by a sharp softmax | v e^-peak          2 layers
    matrix   the same from the sums of its rows' absolute values                                      3 layers
    scalar   l = log |s| | s e^-l, read from the first token                                           1 layer

The rough logarithms end at e^-16 (in float32 before that where v may be large). In double precision min(0, 16 + log
sum_j |v_j|) is added to the peak beside them: a vector may fall to e^-32 in one step, by sudden convergence, say, or
once a method has overshot, and keeps its digits.

A factor that is not in the score, the value of the heads, may have any size.

*Scale groups.* Vectors, or matrices, that are added to each other share one exponent; a product with a computed scalar
starts a new group. A group that holds the answer or an input of the step stays at fixed scale; the others float: they
are kept as mantissas of norm about 1 with one common logarithm of their scale, so a residual may fall by any factor
without losing a digit. A sum of residuals, m = m + r, does not fall with r . r (``vanishing``): it stays at fixed
scale, and r floats without it. But r floats with A^T r, if that is what falls. Scalars whose sign is not known are
groups of their own, so that a zero is a zero; logarithms are kept only of values that are proven positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from nlaformer.compiler.graph import REARRANGING, Node, is_input, is_number, reachable
from nlaformer.compiler.instructions import Builder
from nlaformer.compiler.terms import Combination, combine
from nlaformer.compiler.trace import TracedProgram
from nlaformer.compiler.vanishing import causes, falling_states, vanishing


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
            log = self._coarse(source)
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

    def _coarse(self, source: Combination, sign: str = "either") -> int:
        """A rough logarithm of the size of each entry; the sign is positive or either."""
        return self.emit("coarse", [source], (), (sign, self._bound(source)), tame=False)

    def _peak(self, source: Combination, kind: str) -> Combination:
        """The logarithm of the largest entry, within a few tenths; where that ends, of the sum of absolute values."""
        absolute: Combination = ()
        if kind == "matrix" or self.target.is_double:
            absolute = ((self.emit("absolute", [source], tame=False), 1.0),)
        given, sign = (absolute, "positive") if kind == "matrix" else (source, "either")
        log = self._coarse(given, sign)
        rows = [self.emit("peak", [((log, 1.0),)], scalar=True, tame=False)]
        if self.target.is_double:
            total = self.emit("sum", [absolute], scalar=True, tame=False)
            rows.append(self.emit("beneath", [((total, 1.0),)], scalar=True, tame=False))
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
        above = self.emit("relu", [combine((1.0, H), (-1.0, F))], scalar=True, tame=False)
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


def scale_groups(traced: TracedProgram, is_positive: Callable[[Node], bool]) -> ScaleGroups:
    """The group of every vector and matrix; only states that vanish with the same inner products share a scale."""
    group = _united(traced)
    floating = _floating(traced, group)
    falls = _Falls.of(traced, is_positive, group, floating)
    parted = {key for key, names in floating.items() if len({falls.label(traced.state[n], key) for n in names}) > 1}
    if parted:
        labels = {k: falls.label(node, group[k]) for k, node in _vectors(traced).items() if group[k] in parted}
        group = _united(traced, labels)
        # Among what falls with nothing there is no product to tell a scale: it is kept as it is.
        floating = {
            key: names
            for key, names in _floating(traced, group).items()
            if any(labels.get(id(traced.state[name]), True) for name in names)
        }
    for key in {group[key] for key, node in _vectors(traced).items() if node.op == "relu"} & floating.keys():
        # The larger and the smaller of two states: each has a scale of its own.
        for name in floating.pop(key):
            own = id(traced.state[name])
            group[own] = group[id(traced.step[name])] = own
            floating[own] = [name]
    return ScaleGroups(group, floating, falls.states)


def _vectors(traced: TracedProgram) -> dict[int, Node]:
    """Vectors and matrices by id; a state that no method reads is written all the same."""
    return {id(node): node for node in [*traced.nodes, *traced.state.values()] if node.kind != "scalar"}


def _united(traced: TracedProgram, labels: Mapping[int, frozenset[int]] | None = None) -> dict[int, int]:
    """A number for each vector and matrix, the same for those that share a scale.

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

    for node in _vectors(traced).values():
        find(id(node))
        for argument in _of_same_scale(node):
            if labels.get(id(argument), frozenset()) <= labels.get(id(node), frozenset()):
                join(node, argument)
    for name, node in traced.state.items():
        if node.kind != "scalar":
            join(node, traced.step[name])
    return {key: find(key) for key in parent}


def _floating(traced: TracedProgram, group: Mapping[int, int]) -> dict[int, list[str]]:
    """The groups without the answer or anything else of a scale of its own, and their states."""
    fixed = set()
    if traced.answer.kind == "matrix" or (traced.answer.kind == "vector" and not _is_homogeneous(traced)):
        fixed.add(group[id(traced.answer)])
    step = {id(node) for node in reachable(traced.step.values())}
    for key, node in _vectors(traced).items():
        if node.op in ("exp", "log", "sqrt", "sign", "constant", "ones", "identity"):
            fixed.add(group[key])
        if node.op == "input" and key in step:
            fixed.add(group[key])
        if node.op == "add" and any(argument.kind != node.kind for argument in node.args):
            fixed.add(group[key])  # a scalar added to a vector has a scale of its own
        if node.op in ("exp", "log"):
            fixed.add(group[id(node.args[0])])
    floating: dict[int, list[str]] = {}
    for name, node in traced.state.items():
        if node.kind != "scalar" and group[id(node)] not in fixed:
            floating.setdefault(group[id(node)], []).append(name)
    return floating


@dataclass(frozen=True)
class _Falls:
    """What falls with each positive inner product: the groups of its vectors, nodes by id, and states of the groups."""

    products: list[tuple[set[int], set[int], frozenset[str]]]

    @classmethod
    def of(
        cls,
        traced: TracedProgram,
        is_positive: Callable[[Node], bool],
        group: Mapping[int, int],
        floating: Mapping[int, list[str]],
    ) -> _Falls:
        products = []
        for dot in reachable(traced.step.values()):
            if dot.op != "dot" or not is_positive(dot) or dot.args[0].kind != "vector":
                continue
            groups = {group[id(argument)] for argument in dot.args} & floating.keys()
            if groups:
                found = causes(dot, is_positive)
                states = falling_states(traced.step, found)
                kin = {name for key in groups for name in floating[key]}
                if states & kin:
                    products.append((groups, vanishing(traced.step.values(), found, states), states & kin))
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
    if node.op in REARRANGING | {"add", "positive", "relu"}:
        return args
    if node.op == "matmul":
        left = node.args[0].args[0] if node.args[0].op == "transpose" else node.args[0]
        return [node.args[1]] if is_input(left, "A") else []
    if node.op == "multiply" and node.args[0].op == "constant" and node.args[0].kind == "scalar":
        return [node.args[1]]
    if node.op == "divide" and len(args) == 2 and node.args[1].invariant:
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
