"""Each node of the graph as a value: a method for each operation, here those that are computed entry by entry.

A value is a sum of terms (``terms``). Sums, products with exponentials, quotients by positive values, powers and
roots are arithmetic on terms; the rest puts its arguments into rows and emits an instruction. Products are in
``products.py``, with the parts of vectors and matrices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nlaformer.compiler.analysis import Analysis
from nlaformer.compiler.filled import Network, speak
from nlaformer.compiler.graph import Node
from nlaformer.compiler.instructions import HEADROOM, MATRIX_NORM, Block, StateRows, Target
from nlaformer.compiler.scaling import Scaling, is_counter, is_divisor, scale_groups, unit_states
from nlaformer.compiler.terms import Combination, Term, Terms, add, combine, multiply, registers_of
from nlaformer.compiler.vanishing import causes, vanishing

_LEAVES = ("input", "constant", "zeros", "ones", "identity")


class Nodes(Scaling):
    """The rows of inputs and states, and the values of nodes."""

    def __init__(self, analysis: Analysis, target: Target, networks: Mapping[str, Network]):
        super().__init__(target)
        self.traced = traced = analysis.lowered
        self.analysis, self.networks = analysis, networks
        groups = scale_groups(traced, analysis.is_positive)
        self.group, self.floating, self.falling = groups.of, groups.floating, groups.falling
        self.values: dict[tuple[Block, int], Terms] = {}
        self.signed: set[int] = set()  # the logarithms of step lengths and of their opposites
        for name, node in traced.inputs.items():
            self._input_rows(name, node)
        self.scale_row: dict[int, int] = {}
        for k, group in enumerate(self.floating, start=1):
            number = "" if len(self.floating) == 1 else f" {k}"
            self.scale_row[group] = self._register("scale" + number, "input", scalar=True, tame=False)
        # The groups that the values of start begin.
        self._begun = {id(traced.start[n]): group for group, names in self.floating.items() for n in names}
        units = unit_states(traced)
        for name, node in traced.state.items():
            self.out.state[name] = self._state_rows(name, node, name in units)

    def _input_rows(self, name: str, node: Node) -> None:
        """A row for an input; of one that the run does not scale, also a copy of size 1 and the logarithm of its scale.

        The run scales A, b and an x0 of b's unit, where the program commutes with that.
        """
        more: dict[str, Any] = {"height": self.n if node.kind == "matrix" else 1, "scalar": node.kind == "scalar"}
        unit = self.analysis.units.get(name, (0, 0))
        if name in self.analysis.scaled or (name == "x0" and unit[1] == 1):
            self.inputs[name] = self.normal[name] = self._register(name, "input", bound=MATRIX_NORM, **more)
            return
        self.inputs[name] = self._register(name, "input", tame=False, **more)
        self.normal[name] = self._register(f"{name} of size 1", "input", bound=MATRIX_NORM, **more)
        scale = self._register(f"scale of {name}", "input", scalar=True, tame=False)
        self.out.scales[name] = (self.normal[name], scale)

    def _state_rows(self, name: str, node: Node, unit: bool) -> StateRows:
        if node.kind == "scalar":
            positive = self.analysis.is_positive(node)
            if is_counter(self.traced, name) and not (positive and is_divisor(self.traced, node)):
                return StateRows("scalar", self._register(name, "input", scalar=True, tame=False))
            if positive:
                row = self._register("log " + name, "input", scalar=True, tame=False)
                return StateRows("scalar", row, logarithm=True)
            row = self._register(name, "input", scalar=True)
            return StateRows("scalar", row, self._register(f"scale of {name}", "input", scalar=True, tame=False))
        group = self.group_of(node)
        height = self.n if node.kind == "matrix" else 1
        # A matrix that is the answer stands in scores as it is: its products then take no more layers than they need.
        tame = unit or group is not None or (node.kind == "matrix" and self.traced.answer is node)
        row = self._register(name, "input", height=height, bound=HEADROOM, tame=tame)
        return StateRows(node.kind, row, None if group is None else self.scale_row[group])

    def group_of(self, node: Node) -> int | None:
        """The floating group of a node, or None at fixed scale."""
        group = self.group.get(id(node))
        return group if group in self.floating else None

    def home_of(self, node: Node) -> int | None:
        """The floating group of a node; in the pre block, also the one that it begins."""
        group = self.group_of(node)
        return self._begun.get(id(node)) if group is None and self.block == "pre" else group

    def common_exponent(self, value: Terms, node: Node) -> Combination:
        """The exponent at which a value is best put into a row: its own where all terms agree, else its group's.

        Exponents of different origin are aligned at run time, by the largest.
        """
        exponents = {self._scalar_part(term.exponent) for term in value}
        if len(exponents) == 1:
            return exponents.pop()
        if node.kind != "scalar":
            group = self.group_of(node)
            if group is not None and self.block == "loop":
                scale = self.scale_row[group]
                if all(dict(exponent).get(scale) == 1.0 for exponent in exponents):
                    return ((scale, 1.0),)
            elif () in exponents or any(id(state) in self._kin(node) for state in self.traced.state.values()):
                return ()
        ordered = list(dict.fromkeys(self._scalar_part(term.exponent) for term in value))
        # Of the two exponents of a scalar of either sign one is that of 0: no row can be put at it.
        either = not self.signed.isdisjoint(registers_of(*ordered))
        if either or len({self._origin(exponent) for exponent in ordered}) > 1:
            return self.maximum(ordered)
        rows = [term.exponent for term in value if term.register != self.one]
        if rows or () in exponents or not value:
            return self._scalar_part(rows[0]) if rows else ()
        return ordered[0]

    def _kin(self, node: Node) -> set[int]:
        """The nodes of a node's scale group."""
        group = self.group.get(id(node))
        return {key for key, other in self.group.items() if other == group}

    def _origin(self, exponent: Combination) -> tuple[frozenset[int], Combination]:
        """The scales in an exponent, without the logarithms of computed scalars; of inputs and sizes with powers."""
        scales = {*self.scale_row.values(), *(rows.scale for rows in self.out.state.values())}
        given = self.sizes | {scale for _, scale in self.out.scales.values()}
        return (
            frozenset(register for register, _ in exponent if register in scales),
            tuple((register, c) for register, c in exponent if register in given),
        )

    # --- logarithms ---

    def logarithm(self, node: Node, policy: str) -> tuple[float, Combination]:
        """(c, F) with node = c e^F, for a positive node; ``policy`` says where 0 goes (num: e^F = 0, den: e^-F = 0)."""
        with self.within(self._home(node), node.place):
            value = self.value(node)
            if len(value) == 1 and value[0].register == self.one and not value[0].operator and value[0].coefficient > 0:
                return value[0].coefficient, value[0].exponent
            source, exponent = self._in_row(node)
            if node.kind == "scalar" and len({self._origin(term.exponent) for term in value}) > 1:
                source, exponent = self._normal(source, exponent, node)  # it may be far smaller than its parts
            factor, log = self._log_of(source, policy, node.kind == "scalar", self._clears(node, policy))
            # The square of what a trip takes to e^-k of it is e^-2k of it.
            trips = self._trips(log) if policy == "num" else ()
            return factor, combine((1.0, exponent), (1.0, log), (-2.0, trips))

    def _trips(self, exponent: Combination) -> Combination:
        """The trips of the logarithms in an exponent."""
        return tuple(sorted((self.tripped[register], 1.0) for register, _ in exponent if register in self.tripped))

    def _clears(self, node: Node, policy: str) -> set[str] | None:
        """The states that a trip of a positive scalar takes to 0: what vanishes with it.

        A quotient by d . A d <= 0 ends a method: all goes to 0 that falls with any product of their group.
        """
        groups = self._groups(node)
        if not groups:
            return None
        if policy == "den":
            square = node.op == "dot" and node.args[0] is node.args[1]
            fall = {name for group in groups for name in self.floating[group] if name in self.falling}
            return fall if fall and not square else None
        return self._vanishing_states(causes(node, self.analysis.is_positive), groups)

    def _vanishing_states(self, with_: set[int], groups: set[int]) -> set[str]:
        """The vector states of some groups that vanish in this block's values where the nodes ``with_`` do."""
        values = self.traced.start if self.block == "pre" else self.traced.step
        found = vanishing(values.values(), with_)
        return {name for group in groups for name in self.floating[group] if id(values[name]) in found}

    def _groups(self, node: Node) -> set[int]:
        """The floating groups whose vectors a scalar is made of; in the pre block, of those that it begins."""
        found: set[int | None] = set()
        seen: set[int] = set()
        stack = [node] if node.kind == "scalar" else []
        while stack:
            n = stack.pop()
            if id(n) in seen:
                continue
            seen.add(id(n))
            if n.op == "dot" and n.args[0].kind == "vector":
                found |= {self.home_of(argument) for argument in n.args}
            elif n.kind == "scalar":
                stack.extend(n.args)
        return {group for group in found if group is not None}

    def _halves(self, source: Combination, scalar: bool) -> list[int]:
        """max(v, 0) and max(-v, 0)."""
        rows = []
        for sign in (1.0, -1.0):
            half = tuple((register, sign * c) for register, c in source)
            rows.append(self.emit("relu", [half], scalar=scalar, **self._like(source)))
            for register, _ in source:
                if register in self.out.linearizations:
                    self.out.linearizations[rows[-1]] = self.out.linearizations[register]
        return rows

    def _signs(self, source: Combination, scalar: bool) -> list[int]:
        """Rows that are 0 where v > 0 and where v < 0, and 1 elsewhere."""
        more: dict[str, Any] = {"height": self._height(source), "scalar": scalar, "bound": 1.0, "size": 1.0}
        halves = self._halves(source, scalar)
        return [self.emit("below", [((half, 1.0),)], tame=True, **more) for half in halves]

    # --- nodes ---

    def _home(self, node: Node) -> Block:
        """What does not depend on the state is computed once, in the pre block."""
        if self.block == "pre" or node.op in _LEAVES:
            return self.block
        return "pre" if node.invariant else self.block

    def value(self, node: Node) -> Terms:
        block = self._home(node)
        key = (block, id(node))
        if key not in self.values:
            with self.within(block, node.place):
                self.values[key] = getattr(self, f"_{node.op}")(node)
        return self.values[key]

    def _constant(self, node: Node) -> Terms:
        if node.kind == "scalar":
            return (Term(node.extra, self.one),) if node.extra else ()
        rows = [list(node.extra)] if node.kind == "vector" else [list(row) for row in zip(*node.extra, strict=True)]
        return self._constant_rows(rows)

    def _constant_rows(self, rows: list[list[float]]) -> Terms:
        """Constant rows, written once: one number for each token."""
        largest = max(abs(entry) for row in rows for entry in row)
        with self.within("pre"):
            scaled = tuple(tuple(entry / largest for entry in row) for row in rows)
            bound = math.sqrt(len(rows) * self.n)
            more: dict[str, Any] = {"height": len(rows), "bound": bound, "size": 1.0}
            row = self.emit("constant", [], (), scaled, **more)
        return (Term(largest, row),)

    def _zeros(self, node: Node) -> Terms:
        return ()

    def _ones(self, node: Node) -> Terms:
        return (Term(1.0, self.one),) if node.kind == "vector" else self._constant_rows([[1.0] * self.n] * self.n)

    def _identity(self, node: Node) -> Terms:
        return (Term(1.0, self.eye),)

    def _input(self, node: Node) -> Terms:
        return (Term(1.0, self.inputs[node.extra]),)

    def _input_scale(self, name: str) -> Combination:
        return ((self.out.scales[name][1], 1.0),) if name in self.out.scales else ()

    def _state(self, node: Node) -> Terms:
        rows = self.out.state[node.extra]
        if rows.logarithm:
            return (Term(1.0, self.one, ((rows.register, 1.0),)),)
        return (Term(1.0, rows.register, () if rows.scale is None else ((rows.scale, 1.0),)),)

    def _add(self, node: Node) -> Terms:
        return add(*(self.value(argument) for argument in node.args))

    def _positive(self, node: Node) -> Terms:
        return self.value(node.args[0])

    def _in_row(self, node: Node) -> tuple[Combination, Combination]:
        """A value in rows, without the exponent at which it is best kept there; and that exponent."""
        # No rows where all terms cancel, as in x - x, which the graph does not see: what is made of it has no terms.
        with self.within(self._home(node), node.place):
            value = self.value(node)
            exponent = self.common_exponent(value, node)
            return self.materialize(value, exponent), exponent

    def _is_exponential(self, node: Node) -> bool:
        return all(term.register == self.one and not term.operator for term in self.value(node))

    # --- factors ---

    def _is_calm(self, source: Combination, node: Node) -> bool:
        """Whether a value may stand in a score: it is tame, and no difference that may be far smaller than its parts.

        Where the program itself computes a group's norm, as conjugate gradients do, its residuals fall slowly enough.
        """
        return self._tame(source) and (len(source) == 1 or node.kind == "matrix" or self._is_owned(node))

    def _is_owned(self, node: Node) -> bool:
        """Whether the program itself computes the norm of a vector's group."""
        # In the pre block, only of what begins one. In r / 2 + b * b, the vector b * b is of the group of r as well,
        # which counts for a trip (``home_of``), but the program's own r . r says nothing about the norm of b * b.
        group = self._begun.get(id(node)) if self.block == "pre" else self.group_of(node)
        return group is not None and self._own_scale(group) is not None

    def _calmed(self, source: Combination, exponent: Combination, node: Node) -> tuple[Combination, Combination]:
        """A factor that may stand in a score, and its exponent."""
        if self._is_calm(source, node):
            return source, exponent
        return self._normal(source, exponent, node)

    def _normal(self, source: Combination, exponent: Combination, node: Node) -> tuple[Combination, Combination]:
        """A value divided by its size, and its exponent; from now on this row is the value of the node."""
        home = self._home(node)
        with self.within(home):
            row, log = self.normalized(source, node.kind)
        exponent = combine((1.0, exponent), (1.0, log))
        self.values[(home, id(node))] = tuple(Term(c, register, exponent) for register, c in row)
        return row, exponent

    def _factor(self, node: Node) -> tuple[Combination, Combination]:
        """A value in rows of size about 1, and its exponent."""
        return self._calmed(*self._side(node), node)

    def _side(self, node: Node) -> tuple[Combination, Combination]:
        """A factor in rows, and its exponent; inputs by their copies of size 1."""
        if node.op == "input":
            return ((self.normal[node.extra], 1.0),), self._input_scale(node.extra)
        return self._in_row(node)

    def _divide(self, node: Node) -> Terms:
        u, v = node.args
        if self.analysis.is_positive(v):
            factor, exponent = self.logarithm(v, "den")
            value = self.value(u)
            if u.kind == "scalar" and self.analysis.is_positive(u) and self._groups(u):
                # 0 / 0 is 0, also over the state of a product that tripped before, which is e^-2k.
                c, log = self.logarithm(u, "num")
                value = (Term(c, self.one, combine((1.0, log), (-2.0, self._trips(log)))),)
            return multiply(value, (Term(1 / factor, self.one, combine((-1.0, exponent))),))
        # u / v = sign(v) u e^{-log |v|}; the sign by a mask, which is exact.
        scalar = v.kind == "scalar"
        with self.within(self._home(v)):
            source, exponent = self._in_row(v)
            signs = self._signs(source, scalar)
            size = tuple(sorted((half, 1.0) for half in self._halves(source, scalar)))
            factor, log = self._log_of(size, "den", scalar)
        numerator, e = self._in_row(u)
        if not numerator:
            return ()
        more = self._like(numerator) | {"height": max(self._height(numerator), self._height(source))}
        more |= {"scalar": scalar and u.kind == "scalar", "tame": self._is_calm(numerator, u)}
        row = self.emit("flip", [numerator, *(((sign, 1.0),) for sign in signs)], **more)
        return (Term(1 / factor, row, combine((1.0, e), (-1.0, exponent), (-1.0, log))),)

    def _sqrt(self, node: Node) -> Terms:
        factor, exponent = self.logarithm(node.args[0], "num")
        return (Term(math.sqrt(factor), self.one, combine((0.5, exponent))),)

    def _log(self, node: Node) -> Terms:
        factor, exponent = self.logarithm(node.args[0], "num")
        return add((Term(math.log(factor), self.one),), tuple(Term(c, register) for register, c in exponent))

    def _exp(self, node: Node) -> Terms:
        source = dict(self.materialize(self.value(node.args[0])))
        constant = math.exp(source.pop(self.one, 0.0))
        return (Term(constant, self.one, combine((1.0, source.items()))),)

    def _relu(self, node: Node) -> Terms:
        return self._by_ffn("relu", node)

    def _by_ffn(self, op: str, node: Node, parameters: tuple[object, ...] = (), **more: Any) -> Terms:
        """An exact function of a value in rows that commutes with positive factors."""
        source, exponent = self._in_row(node.args[0])
        if not source:
            return ()
        more = self._like(source) | {"scalar": node.kind == "scalar"} | more
        return (Term(1.0, self.emit(op, [source], (), parameters, **more), exponent),)

    def _sign(self, node: Node) -> Terms:
        source, _ = self._in_row(node.args[0])
        if not source:
            return ()
        above, below = self._signs(source, node.kind == "scalar")
        return (Term(1.0, below), Term(-1.0, above))

    def _learned(self, node: Node) -> Terms:
        """What a trained network says, of unknown size; it is given numbers as they are, without an exponent."""
        part, output = node.extra
        network, symmetric = self.networks[part], self.traced.program.positive_definite
        given = [self.materialize(self.value(a)) for a in node.args[1 : 1 + len(network.part.inputs)]]
        return (Term(1.0, speak(self, network, given, symmetric, output)),)

    def _own_scale(self, group: int) -> str | None:
        """A scalar state that is, after every step, a dot of two vectors of the group."""
        for name, node in self.traced.step.items():
            inner = node.args[0] if node.op == "positive" else node
            if inner.op != "dot" or not self.analysis.is_positive(node) or inner.args[0].kind != "vector":
                continue
            begin = self.traced.start[name]
            begin = begin.args[0] if begin.op == "positive" else begin
            if begin.op == "dot" and all(self.group_of(argument) == group for argument in inner.args):
                return name
        return None
