"""The context in which rules lower a program: the machine, what is known of the program, and the values so far.

A *value* is a sum of terms (``compiler.terms``), coefficient * (row through a matrix) * e^exponent. A rule says what
value a node has, from those of its arguments:

    @lowers("add")
    def lower_add(low: Lowering, node: Node) -> Terms:
        return add(*(spread(low, argument, node.shape) for argument in node.args))

Sums, products with exponentials, quotients by positive values, powers and roots are arithmetic on terms and cost no
layer; ``Lowering.stored`` puts a value into rows where it must be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nlaformer.compiler.lower.facts import Facts, dot_of, undeclared
from nlaformer.compiler.lower.scales import is_counter, is_divisor, scale_groups, unit_states
from nlaformer.compiler.machine.instructions import Constant, Kernel, Scale
from nlaformer.compiler.machine.logarithms import Encode
from nlaformer.compiler.machine.rows import (
    ATTENTION,
    HEADROOM,
    MATRIX_NORM,
    UNKNOWN,
    UNKNOWN_SCALAR,
    Block,
    EncodedMatrix,
    Machine,
    Placed,
    Plan,
    Range,
    Stored,
    Target,
)
from nlaformer.compiler.terms import Combination, Operator, Term, Terms, combine, registers_of
from nlaformer.program.ir import Graph, Node

Rule = Callable[["Lowering", Node], Terms]
RULES: dict[str, Rule] = {}
_LEAVES = ("input", "constant")


def lowers(op: str) -> Callable[[Rule], Rule]:
    """Enter the rule that lowers a primitive."""

    def enter(rule: Rule) -> Rule:
        RULES[op] = rule
        return rule

    return enter


class Lowering:
    """What the rules share.

    Attributes
    ----------
    plan, machine : what is being made
    graph : of nodes that rules make
    facts, core : what is known of the program
    group, floating, falling : its scale groups
    scale_row : of each floating group, the row of its logarithm
    normal : of inputs, the row of size 1
    uses : of each node by id, how many are made of it
    stops : of each block, the rows that grow where a value falls into noise, and the states that they take to 0
    """

    def __init__(self, facts: Facts, target: Target, networks: Mapping[str, Any]):
        self.facts, self.core, self.networks = facts, facts.core, networks
        self.target, self.n = target, target.n
        self.machine, self.graph = Machine(target), Graph()
        self.plan = Plan(self.machine, networks=dict(networks))
        groups = scale_groups(facts)
        self.group, self.floating, self.falling = groups.of, groups.floating, groups.falling
        self.values: dict[tuple[Block, int], Terms] = {}
        self.uses = Counter(id(argument) for node in self.core.nodes for argument in node.args)
        self.stops: dict[Block, dict[int, set[str]]] = {"pre": {}, "loop": {}, "post": {}}
        self.normal: dict[str, int] = {}
        self._ones = {self.machine.one}
        self.scale_row: dict[int, int] = {}
        self._encodings: dict[int, EncodedMatrix] = {}
        for name, node in self.core.inputs.items():
            self._input_rows(name, node)
        for k, group in enumerate(self.floating, start=1):
            number = "" if len(self.floating) == 1 else f" {k}"
            self.scale_row[group] = self.machine.row("scale" + number, "input", range=UNKNOWN_SCALAR)
        # The groups that the values of start begin.
        self.begun = {id(self.core.start[n]): group for group, names in self.floating.items() for n in names}
        units = unit_states(self.core)
        for name, node in self.core.state.items():
            self.plan.state[name] = self._state_rows(name, node, name in units)
        scales = {*self.scale_row.values(), *(stored.scale for stored in self.plan.state.values())}
        self._scales = {scale for scale in scales if scale is not None}

    # --- rows of inputs and states ---

    def _input_rows(self, name: str, node: Node) -> None:
        """A row for an input; of one that the run does not scale, also a copy of size 1 and the logarithm of its scale.

        The run scales A, b and an x0 of b's unit, where the program commutes with that.
        """
        height, scalar = self.height(node), not node.shape
        known = Range(MATRIX_NORM, scalar=scalar)
        unit = self.facts.units.get(name, (0, 0))
        if name in self.facts.scaled or (name == "x0" and unit[1] == 1):
            self.plan.inputs[name] = self.normal[name] = self.machine.row(name, "input", height, known)
            return
        unknown = UNKNOWN_SCALAR if scalar else UNKNOWN
        self.plan.inputs[name] = self.machine.row(name, "input", height, unknown)
        self.normal[name] = self.machine.row(f"{name} of size 1", "input", height, known)
        scale = self.machine.row(f"scale of {name}", "input", range=UNKNOWN_SCALAR)
        self.plan.scales[name] = (self.normal[name], scale)

    def _state_rows(self, name: str, node: Node, unit: bool) -> Stored:
        row = self.machine.row
        if not node.shape:
            positive = self.facts.is_positive(node)
            if is_counter(self.core, name) and not (positive and is_divisor(self.core, node)):
                return Stored("scalar", row(name, "input", range=UNKNOWN_SCALAR))
            if positive:
                return Stored("scalar", row("log " + name, "input", range=UNKNOWN_SCALAR), logarithm=True)
            stored = row(name, "input", range=Range(scalar=True))
            return Stored("scalar", stored, row(f"scale of {name}", "input", range=UNKNOWN_SCALAR))
        group = self.group_of(node)
        # A matrix that is the answer stands in scores as it is: its products then take no more layers than they need.
        calibrated = unit or group is not None or (node.ndim == 2 and self.core.answer is node)
        known = Range(HEADROOM, 1.0, calibrated=calibrated)
        kind = "matrix" if node.ndim == 2 else "vector"
        stored = row(name, "input", self.height(node), known)
        return Stored(kind, stored, None if group is None else self.scale_row[group])

    def input_scale(self, name: str) -> Combination:
        """The logarithm of the scale of an input, beside its row of size 1."""
        return ((self.plan.scales[name][1], 1.0),) if name in self.plan.scales else ()

    def height(self, node: Node) -> int:
        """The rows that a value takes: token j holds row j of a matrix."""
        return node.shape[1] if node.ndim == 2 else 1

    # --- scales ---

    def group_of(self, node: Node) -> int | None:
        """The floating group of a node, or None at fixed scale."""
        group = self.group.get(id(node))
        return group if group in self.floating else None

    def home_of(self, node: Node) -> int | None:
        """The floating group of a node; in the pre block, also the one that it begins."""
        group = self.group_of(node)
        return self.begun.get(id(node)) if group is None and self.machine.block == "pre" else group

    def is_kin_of_a_state(self, node: Node) -> bool:
        group = self.group.get(id(node))
        return any(self.group.get(id(state), id(state)) == group for state in self.core.state.values() if state.shape)

    def scalar_part(self, exponent: Combination) -> Combination:
        return tuple((row, c) for row, c in exponent if self.machine.rows[row].range.scalar)

    def origin(self, exponent: Combination) -> tuple[frozenset[int], Combination]:
        """The scales in an exponent, without the logarithms of computed scalars; of inputs and sizes with powers."""
        given = {scale for _, scale in self.plan.scales.values()}
        return (
            frozenset(row for row, _ in exponent if row in self._scales),
            tuple((row, c) for row, c in exponent if row in given or self.machine.rows[row].range.of_size),
        )

    def own_scale(self, group: int) -> str | None:
        """A scalar state that is, after every step, a dot of two vectors of the group."""
        for name, node in self.core.step.items():
            pair, begun = dot_of(undeclared(node)), dot_of(undeclared(self.core.start[name]))
            if pair is None or begun is None or not self.facts.is_positive(node):
                continue
            if all(self.group_of(argument) == group for argument in pair):
                return name
        return None

    # --- values ---

    def home(self, node: Node) -> Block:
        """What does not depend on the state is computed once, in the pre block."""
        if self.machine.block == "pre" or node.op in _LEAVES:
            return self.machine.block
        return "pre" if node.invariant else self.machine.block

    def value(self, node: Node) -> Terms:
        """The value of a node, by its rule; each once."""
        block = self.home(node)
        key = (block, id(node))
        if key not in self.values:
            with self.machine.within(block, node.line):
                self.values[key] = RULES[node.op](self, node)
        return self.values[key]

    def has_value(self, node: Node, value: Terms) -> None:
        """From now on, this is the value of a node: the same in better rows."""
        self.values[(self.home(node), id(node))] = value

    def is_exponential(self, node: Node) -> bool:
        """Whether a value is a sum of exponentials alone: its rows are ones."""
        return all(term.register in self._ones and not term.operator for term in self.value(node))

    def is_partial(self, node: Node) -> bool:
        """Whether an array is shorter than the rows of P, so that other tokens must stay 0."""
        return bool(node.shape) and (node.shape[0] < self.n or node.shape[-1] < self.n)

    def eye(self, width: int) -> Combination:
        """The first columns of the identity."""
        parts = [(self.machine.eye, k) for k in range(width)]
        return ((self.machine.eye if width == self.n else self.machine.view(parts, Range()), 1.0),)

    # --- numbers ---

    def ones(self, node: Node) -> int:
        """A row of ones in the entries of a node; e^F times it is 0 in other tokens."""
        if not self.is_partial(node):
            return self.machine.one
        (term,) = self.numbers(np.ones(node.shape))
        self._ones.add(term.register)
        return term.register

    def numbers(self, array: np.ndarray) -> Terms:
        """A multiple of ones or of the identity, which are there, or rows that are written once."""
        if not array.any():
            return ()
        first = float(array.flat[0])
        if array.ndim < 2 and (array == first).all() and array.shape in ((), (self.n,)):
            return (Term(first, self.machine.one),)
        if array.shape == (self.n, self.n) and np.array_equal(array, first * np.eye(self.n)):
            return (Term(first, self.machine.eye),)
        rows = np.zeros((tokens_and_rows(array.shape)[1], self.n))
        rows[:, : array.shape[0]] = array.reshape(tokens_and_rows(array.shape)).T
        largest = float(abs(rows).max())
        known = Range(float(np.sqrt(rows.size)))
        with self.machine.within("pre"):
            constant = Constant((), tuple(tuple(entry / largest for entry in row) for row in rows.tolist()))
            row = self.machine.add(constant, len(rows), known)
        return (Term(largest, row),)

    # --- values in rows ---

    def stored(self, value: Terms, target: Combination = ()) -> Combination:
        """A combination of rows that equals value / e^target; terms with the same exponent share a head."""
        groups: dict[tuple[Operator, Combination], dict[int, float]] = {}
        for term in value:
            entries = groups.setdefault((term.operator, combine((1.0, term.exponent), (-1.0, target))), {})
            entries[term.register] = entries.get(term.register, 0.0) + term.coefficient
        plain = groups.pop(("", ()), {})  # rows that stand at this exponent already
        for (operator, difference), entries in groups.items():
            source = combine((1.0, entries.items()))
            factor = source[0][1]  # taken out, so that q and -q are one row
            source = tuple((row, c / factor) for row, c in source)
            made = self._row_of(operator, difference, source, calibrated=bool(target))
            plain[made] = plain.get(made, 0.0) + factor
        return combine((1.0, plain.items()))

    def _row_of(self, operator: Operator, exponent: Combination, source: Combination, calibrated: bool) -> int:
        """The row operator source e^exponent; ``calibrated``: it was brought to the scale of its kin."""
        machine = self.machine
        height = machine.height(source)
        calibrated = machine.calibrated(source) and (calibrated or not self.scalar_part(exponent))
        if operator and machine.height(exponent) == 1:
            logs, signs = self.encoded(operator)
            first = machine.first_layer(registers_of(exponent), ATTENTION)
            # One layer either way: the exponent joins the logarithms of A in the score.
            if first <= machine.first_layer(machine.roots(source, logs, signs), ATTENTION):
                bound = MATRIX_NORM * machine.bound(source)
                kernel = Kernel((source, exponent, logs, signs), *_named(operator))
                return machine.add(kernel, height, Range(bound, bound / HEADROOM, calibrated))
        if operator:
            source = ((self._row_of(operator, (), source, calibrated), 1.0),)
        scalar = machine.is_scalar(source) and machine.is_scalar(exponent)
        bound = max(machine.bound(source), HEADROOM) if not scalar else 1.0
        known = Range(bound, bound / HEADROOM, calibrated, scalar)
        return machine.add(Scale((source, exponent)), max(height, machine.height(exponent)), known)

    def encoded(self, operator: Operator) -> tuple[Combination, Combination]:
        """The logarithms of an input matrix and the masks of its signs, made by four layers of the pre block."""
        name, machine, n = _named(operator)[0], self.machine, self.n
        matrix = self.normal[name]
        if matrix not in self._encodings:
            part = machine.row(f"parts of {name}", "pre", 2 * n, ready=2)
            signs = machine.row(f"signs of {name}", "pre", 2 * n, ready=4)
            ratio = machine.row(f"ratios of {name}", "pre", n, ready=7)
            logs = machine.row(f"log |{name}|", "pre", n, ready=8)
            rows = self._encodings[matrix] = EncodedMatrix(matrix, part, signs, ratio, logs)
            with machine.within("pre"):
                for layer in range(4):
                    reads = frozenset({matrix})
                    machine.place(Placed(Encode((), name, rows, layer), layer, logs, rows[1:4], reads, machine.line))
        rows = self._encodings[matrix]
        return ((rows.logs, 1.0),), ((rows.signs, 1.0),)


def tokens_and_rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many tokens and rows of P a value of a shape takes; a scalar stands in every token."""
    tokens, rows, *_ = (*shape, 1, 1)
    return tokens, rows


def _named(operator: Operator) -> tuple[str, bool]:
    """The name of an operator's matrix, and whether it is transposed."""
    return operator.removesuffix(".T"), operator.endswith(".T")
