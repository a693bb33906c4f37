"""From the graph to instructions: each node becomes a value; a value that must be in a row becomes an instruction.

``start``, ``step`` and ``finish`` are selected in this order. What ``step`` computes from the inputs alone is computed
once, in the pre block. A block ends with what it writes: vectors at fixed scale as they are, floating ones divided by
their group's new scale, scalars as logarithms.
"""

from __future__ import annotations

import math

from nlaformer.compiler.analysis import Analysis
from nlaformer.compiler.graph import KINDS, Node, describe, is_input, is_invariant
from nlaformer.compiler.instructions import (
    FFN,
    HEADROOM,
    MATRIX_NORM,
    NOTHING,
    Block,
    Builder,
    Combination,
    Operator,
    Selection,
    StateRows,
    Target,
    Term,
    Value,
    add,
    combine,
    multiply,
)
from nlaformer.compiler.trace import TracedProgram, refuse
from nlaformer.express.linearize import design, design_product

_OPERATORS: dict[str, Operator] = {"identity": "", "input": "A", "transpose": "A.T"}


def select(traced: TracedProgram, analysis: Analysis, target: Target) -> Selection:
    """Instructions for start, step and finish."""
    refuse(
        traced.program,
        [
            f"{node.place}\n    {describe(node)}: there are no weights for this yet ({node.op} of "
            f"{', '.join(argument.kind for argument in node.args) or node.kind}); Program.run computes it"
            for node in traced.nodes
            if not _has_instructions(node)
        ],
    )
    return _Selector(traced, analysis, target).select()


def _has_instructions(node: Node) -> bool:
    """Whether a node can be selected."""
    kinds = [argument.kind for argument in node.args]
    if node.op == "input":
        return node.extra in KINDS
    if node.op == "constant":
        return node.kind == "scalar"
    if node.op == "transpose" or node.op == "diag" or (node.op == "dot" and kinds[0] == "matrix"):
        return all(is_input(argument, "A") for argument in node.args)
    if node.op in ("multiply", "divide"):
        return kinds != ["matrix", "matrix"] and not (node.op == "divide" and kinds[1] == "matrix")
    if node.op in ("sqrt", "exp", "log"):
        return node.kind != "matrix"
    return node.op in ("zeros", "identity", "state", "add", "matmul", "dot", "positive")


class _Selector(Builder):
    """One pass over start, step and finish."""

    def __init__(self, traced: TracedProgram, analysis: Analysis, target: Target):
        super().__init__(target, MATRIX_NORM if "A" in analysis.scaled else target.bound)
        self.traced, self.analysis = traced, analysis
        self.values: dict[tuple[Block, int], Value] = {}
        limit = MATRIX_NORM if "b" in analysis.scaled else target.bound
        self.inputs = {name: self._register(name, "input", bound=limit) for name in traced.inputs if name != "A"}
        self.scale_row: dict[int, int] = {}
        for k, group in enumerate(analysis.floating, start=1):
            number = "" if len(analysis.floating) == 1 else f" {k}"
            self.scale_row[group] = self._register("scale" + number, "input", scalar=True)
        for name, node in traced.state.items():
            self.out.state[name] = self._state_rows(name, node)
        pairs = [rows.rows for rows in self.out.state.values() if len(rows.rows) == 2]
        self.partner = {row: other for plus, minus in pairs for row, other in ((plus, minus), (minus, plus))}

    def _state_rows(self, name: str, node: Node) -> StateRows:
        if node.kind == "scalar":
            signs = ("log ",) if self.analysis.is_positive(node) else ("log +", "log -")
            return StateRows("scalar", tuple(self._register(s + name, "input", scalar=True) for s in signs))
        group = self.analysis.group_of(node)
        height = self.n if node.kind == "matrix" else 1
        row = self._register(name, "input", height=height, bound=HEADROOM)
        return StateRows(node.kind, (row,), None if group is None else self.scale_row[group])

    def common_exponent(self, value: Value, node: Node) -> Combination:
        """The exponent at which a value is best put into a row: its own where all terms agree, else its group's."""
        exponents = {self._scalar_part(term.exponent) for term in value}
        if len(exponents) == 1:
            return exponents.pop()
        if node.kind != "scalar":
            group = self.analysis.group_of(node)
            return ((self.scale_row[group], 1.0),) if group is not None and self.block == "loop" else ()
        rows = [term.exponent for term in value if term.register != self.one]
        if rows or () in exponents or not value:
            return rows[0] if rows else ()
        lasting = [term.exponent for term in value if not any(row in self.partner for row, _ in term.exponent)]
        return lasting[0] if lasting else self._between(value[0].exponent)

    def _between(self, exponent: Combination) -> Combination:
        """An exponent with the mean of a signed scalar's two logarithms for either, since one stands for 0, at -200."""
        half = -0.5 * math.log(NOTHING)
        return combine(
            *(
                (c, ((row, 0.5), (self.partner[row], 0.5), (self.one, half)) if row in self.partner else ((row, 1.0),))
                for row, c in exponent
            )
        )

    # --- logarithms ---

    def logarithm(self, node: Node, policy: str) -> tuple[float, Combination]:
        """(c, F) with node = c e^F, for a positive node; ``policy`` says where 0 goes (num: e^F = 0, den: e^-F = 0)."""
        with self.within(self._home(node)):
            value = self.value(node)
            if len(value) == 1 and value[0].register == self.one and not value[0].operator and value[0].coefficient > 0:
                return value[0].coefficient, value[0].exponent
            source, exponent = self._in_row(node)
            factor, log = self._log_of(source, policy, node.kind == "scalar", self._groups(node))
            return factor, combine((1.0, exponent), (1.0, log))

    def _groups(self, node: Node) -> set[int]:
        """The floating groups whose vectors a scalar is made of; in the pre block, of those that it begins."""
        begun = {}
        if self.block == "pre":
            begun = {id(self.traced.start[n]): g for g, names in self.analysis.floating.items() for n in names}
        found: set[int | None] = set()
        stack = [node] if node.kind == "scalar" else []
        while stack:
            n = stack.pop()
            if n.op == "dot" and n.args[0].kind == "vector":
                found |= {self.analysis.group_of(argument) for argument in n.args}
                found |= {begun.get(id(argument)) for argument in n.args}
            elif n.kind == "scalar":
                stack.extend(n.args)
        return {group for group in found if group is not None}

    def exponentials(self, node: Node) -> Value:
        """A value as a sum of exponentials: scalars that multiply something."""
        if self._is_exponential(node):
            return self.value(node)
        return tuple(Term(c, self.one, f) for c, f in self.logarithms(node, "num"))

    def logarithms(self, node: Node, policy: str) -> list[tuple[float, Combination]]:
        """(c, F) of a positive node = c e^F; of any other, (c, F) and (-d, G), node = c e^F - d e^G, one of them 0."""
        if self.analysis.is_positive(node):
            return [self.logarithm(node, policy)]
        with self.within(self._home(node)):
            source, exponent = self._in_row(node)
            if not source:
                return [(NOTHING, ()), (-NOTHING, ())]
            parts = []
            for sign in (1.0, -1.0):
                half = tuple((register, sign * c) for register, c in source)
                row = self.emit("relu", [half], half=FFN, writes=FFN, bound=self._bound(source))
                for register, _ in source:
                    if register in self.out.linearizations:
                        self.out.linearizations[row] = self.out.linearizations[register]
                factor, log = self._log_of(((row, 1.0),), policy, node.kind == "scalar", set())
                parts.append((sign * factor, combine((1.0, exponent), (1.0, log))))
            return parts

    # --- nodes ---

    def _home(self, node: Node) -> Block:
        """What does not depend on the state is computed once, in the pre block."""
        if self.block == "pre" or node.op in ("input", "constant", "zeros", "identity", "transpose"):
            return self.block
        return "pre" if is_invariant(node) else self.block

    def value(self, node: Node) -> Value:
        block = self._home(node)
        key = (block, id(node))
        if key not in self.values:
            with self.within(block):
                self.values[key] = getattr(self, f"_{node.op}")(node)
        return self.values[key]

    def _constant(self, node: Node) -> Value:
        return (Term(node.extra, self.one),) if node.extra else ()

    def _zeros(self, node: Node) -> Value:
        return ()

    def _identity(self, node: Node) -> Value:
        return (Term(1.0, self.eye, (), _OPERATORS[node.op]),)

    _transpose = _identity

    def _input(self, node: Node) -> Value:
        return self._identity(node) if node.extra == "A" else (Term(1.0, self.inputs[node.extra]),)

    def _state(self, node: Node) -> Value:
        rows = self.out.state[node.extra]
        if rows.kind == "scalar":
            return tuple(Term(sign, self.one, ((row, 1.0),)) for sign, row in zip((1.0, -1.0), rows.rows, strict=False))
        return (Term(1.0, rows.rows[0], () if rows.scale is None else ((rows.scale, 1.0),)),)

    def _add(self, node: Node) -> Value:
        return add(*(self.value(argument) for argument in node.args))

    def _positive(self, node: Node) -> Value:
        return self.value(node.args[0])

    def _multiply(self, node: Node) -> Value:
        u, v = node.args
        if u.kind != "scalar" and v.kind != "scalar":
            return self._entrywise(u, v)
        if u.kind == "scalar" and v.kind == "scalar" and not self._is_exponential(u) and self._is_exponential(v):
            u, v = v, u
        return multiply(self.value(v), self.exponentials(u))

    def _is_exponential(self, node: Node) -> bool:
        return all(term.register == self.one and not term.operator for term in self.value(node))

    def _entrywise(self, u: Node, v: Node) -> Value:
        for one, other in ((u, v), (v, u)):
            if self._is_exponential(one) or (self.analysis.is_positive(one) and is_invariant(one)):
                return multiply(self.value(other), self.exponentials(one))
        rows, exponent = self._factors(u, v)
        if not all(rows):
            return ()
        rows.sort(key=self._bound)
        lin = design_product(self.target.dtype, min(self._bound(rows[0]), 8.0) / 2, order=self.target.order)
        bound = self._bound(rows[0]) * self._bound(rows[1])
        row = self.emit("product", rows, (), (lin,), bound=bound)
        return (Term(1.0, row, exponent),)

    def _factors(self, u: Node, v: Node) -> tuple[list[Combination], Combination]:
        """The factors of a product in rows, and the sum of their exponents."""
        (first, e), (second, f) = self._in_row(u), self._in_row(v)
        return [first, second], combine((1.0, e), (1.0, f))

    def _in_row(self, node: Node) -> tuple[Combination, Combination]:
        """A value in rows, without the exponent at which it is best kept there; and that exponent."""
        value = self.value(node)
        exponent = self.common_exponent(value, node)
        return self.materialize(value, exponent), exponent

    def _divide(self, node: Node) -> Value:
        u, v = node.args
        inverse = tuple(Term(1 / c, self.one, combine((-1.0, f))) for c, f in self.logarithms(v, "den"))
        return multiply(self.value(u), inverse)

    def _matmul(self, node: Node) -> Value:
        left, right = node.args
        value = self.value(right)
        if left.op == "transpose" or is_input(left, "A"):
            plain = all(not term.operator and self._scalar_part(term.exponent) == term.exponent for term in value)
            if not plain:
                exponent = self.common_exponent(value, right)
                value = tuple(Term(c, register, exponent) for register, c in self.materialize(value, exponent))
            return tuple(Term(t.coefficient, t.register, t.exponent, _OPERATORS[left.op]) for t in value)
        exponent = self.common_exponent(value, right)
        X, Y = self.materialize(self.value(left)), self.materialize(value, exponent)
        # An inverse may have entries far above 1, so c is small and the order high.
        lin = design(self.n, self.target.dtype, 8.0, order=3, summands=self.n)
        height, bound = self.out.registers[Y[0][0]].height, self._bound(X) * self._bound(Y)
        row = self.emit("matmul", [X, Y], (), (lin,), height=height, bound=bound)
        return (Term(1.0, row, exponent),)

    def _dot(self, node: Node) -> Value:
        if node.args[0].kind == "matrix":
            return self._squares()
        rows, exponent = self._factors(*node.args)
        if not all(rows):
            return ()
        row = self._dot_of(*rows)
        if any(self.analysis.group_of(argument) is None for argument in node.args) and self.block == "loop":
            self.out.warnings.append(
                f"{describe(node)} is a product of vectors at fixed scale: it loses its digits where they fall below "
                "1e-8; a residual that is carried as a state floats and does not"
            )
        return (Term(1.0, row, exponent),)

    def _squares(self) -> Value:
        with self.within("pre"):
            rows = self.emit("squares", [((self.one, 1.0),)], also=self._encoded_matrix())
            total = self.emit("sum", [((rows, 1.0),)], bound=self.matrix_norm**2)
        return (Term(1.0, total),)

    def _diag(self, node: Node) -> Value:
        row = self.emit("diag", [], half=FFN, writes=FFN, bound=self.matrix_norm)
        return (Term(1.0, row),)

    def _sqrt(self, node: Node) -> Value:
        factor, exponent = self.logarithm(node.args[0], "num")
        return (Term(math.sqrt(factor), self.one, combine((0.5, exponent))),)

    def _log(self, node: Node) -> Value:
        factor, exponent = self.logarithm(node.args[0], "num")
        return add((Term(math.log(factor), self.one),), tuple(Term(c, register) for register, c in exponent))

    def _exp(self, node: Node) -> Value:
        source = dict(self.materialize(self.value(node.args[0])))
        constant = math.exp(source.pop(self.one, 0.0))
        return (Term(constant, self.one, combine((1.0, source.items()))),)

    # --- the blocks ---

    def select(self) -> Selection:
        self._write_states("pre", self.traced.start)
        self._write_states("loop", self.traced.step)
        self.block, answer = "post", self.traced.answer
        if answer.op == "state":
            self.out.answer = self.out.state[answer.extra]
        else:
            self.out.answer = self._state_rows("answer", answer)
            self._write(self.out.answer, answer)
        return self.out

    def _write_states(self, block: Block, nodes: dict[str, Node]) -> None:
        self.block = block
        targets: dict[int | None, Combination] = {None: ()}
        for group, names in self.analysis.floating.items():
            targets[group] = self.out.writes[block][self.scale_row[group]] = self._new_scale(group, names, nodes)
        for name, node in nodes.items():
            home = self.analysis.group_of(self.traced.state[name])
            tripped = [(1.0, ((row, 1.0),)) for row, groups in self.trips[block].items() if home in groups]
            self._write(self.out.state[name], node, combine((1.0, targets[home]), *tripped))

    def _write(self, rows: StateRows, node: Node, target: Combination = ()) -> None:
        """A block's last FFN writes a value, divided by e^target, into its rows."""
        writes = self.out.writes[self.block]
        if rows.kind != "scalar":
            writes[rows.rows[0]] = self.materialize(self.value(node), target)
            return
        parts = [*self.logarithms(node, "num"), (-NOTHING, ())]
        for row, (factor, exponent) in zip(rows.rows, parts, strict=False):
            writes[row] = combine((1.0, exponent), (math.log(abs(factor)), ((self.one, 1.0),)))

    def _new_scale(self, group: int, names: list[str], nodes: dict[str, Node]) -> Combination:
        """The logarithm of a group's new scale: half of a dot the program makes anyway, or of a norm at entry."""
        own = self._own_scale(group)
        if own is not None:
            factor, exponent = self.logarithm(nodes[own], "num")
            return combine((0.5, exponent), (0.5 * math.log(factor), ((self.one, 1.0),)))
        base: Combination = ()
        if self.block == "loop":
            base = ((self.scale_row[group], 1.0),)
            rows: list[Combination] = [((self.out.state[name].rows[0], 1.0),) for name in names]
        else:
            rows = [self.materialize(self.value(nodes[name])) for name in names]
        squares = combine((1.0, {self._dot_of(row, row): 1.0 for row in rows if row}.items()))
        factor, log = self._log_of(squares, "num", True, {group})
        return combine((1.0, base), (0.5, log), (0.5 * math.log(factor), ((self.one, 1.0),)))

    def _own_scale(self, group: int) -> str | None:
        """A scalar state that is, after every step, a dot of two vectors of the group."""
        for name, node in self.traced.step.items():
            inner = node.args[0] if node.op == "positive" else node
            if inner.op != "dot" or not self.analysis.is_positive(node) or inner.args[0].kind != "vector":
                continue
            begin = self.traced.start[name]
            begin = begin.args[0] if begin.op == "positive" else begin
            if begin.op == "dot" and all(self.analysis.group_of(argument) == group for argument in inner.args):
                return name
        return None
