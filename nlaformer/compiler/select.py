"""From the graph to instructions: each node becomes a value, each value that must stand in a row an instruction.

The instructions, all of them heads and hidden units of ``express.heads``:

=========  ======================================================  ==========================================
scale      t_j = v_j e^{F_j}                                       1 head
matvec     t = e^F (A v), A kept as logarithms: exact, no c        2 heads
dot        t = sum_i u_i v_i, the softmax linearized               2 heads for each order
product    t_j = u_j v_j                                           2 heads for each order
matmul     T = X Y for matrices                                    2 heads for each order
log        l = log s, interpolated                                 FFN
refine     g = s e^-l at the first token; l = l + log g            1 or 2 heads, FFN
relu       t = max(s, 0)                                           FFN
diag, sum, squares                                                 FFN; 1 head; 2 heads
=========  ======================================================  ==========================================

Three rules come from rounding. A scalar is read from the first token by all tokens (``refine``): LIN amplifies rounding
by 1/c, and copies that differ in the last digits would break r = b - A x. A logarithm is refined, because interpolation
alone leaves h^2/8. And where a dot falls into its own noise or turns negative, a *trip* row grows without bound and
takes the floating states to zero: x then stays as it is, for ever (sudden convergence, b = 0, an indefinite A).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from nlaformer.compiler.analysis import Analysis
from nlaformer.compiler.language import Node, Trace, describe
from nlaformer.compiler.values import Combination, Form, Operator, Term, Value, add, combination, combine, multiply
from nlaformer.express.linearize import Linearization, design, design_product, exponent_rounding

Block = Literal["input", "pre", "loop", "post"]
ATTENTION, FFN = 0, 1
ENTRY = (-1, FFN)  # written before the block began
_HEADROOM = 4.0  # how far a mantissa may grow within one step before products lose accuracy
_NOTHING = math.exp(-200.0)  # the number that stands for zero where only logarithms can be kept
_MATRIX_NORM = 2.0**0.5  # the Frobenius norm of A in the prompt


@dataclass
class Register:
    """Rows of P: ``time`` is the layer and the half of it that writes them, in their block."""

    name: str
    height: int
    block: Block
    time: tuple[int, int]
    scalar: bool = False
    bound: float = 1.0


@dataclass(frozen=True)
class Instruction:
    """What is done in one layer; ``sources`` are combinations of registers, ``form`` an exponent."""

    op: str
    block: Block
    layer: int
    target: int
    sources: tuple[Combination, ...]
    form: Form = ()
    parameters: tuple[Any, ...] = ()
    text: str = ""
    extra: tuple[int, ...] = ()  # further registers it writes

    @property
    def reads(self) -> set[int]:
        return {register for source in (*self.sources, self.form) for register, _ in source}


@dataclass(frozen=True)
class Precision:
    """The numbers that depend on the dtype."""

    dtype: torch.dtype
    order: int
    log_units: int
    refine_units: int

    @classmethod
    def of(cls, dtype: torch.dtype, order: int) -> Precision:
        return cls(dtype, order, 1024, 512) if dtype == torch.float64 else cls(dtype, order, 256, 48)


@dataclass
class Selection:
    """Everything later stages need: registers, instructions by block, what each block writes back."""

    registers: list[Register]
    instructions: dict[Block, list[Instruction]] = field(default_factory=lambda: {"pre": [], "loop": [], "post": []})
    writes: dict[Block, dict[int, Combination]] = field(default_factory=lambda: {"pre": {}, "loop": {}, "post": {}})
    state: dict[str, StateRows] = field(default_factory=dict)
    answer: StateRows | None = None
    linearizations: dict[int, Linearization] = field(default_factory=dict)
    matrix: MatrixRows | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StateRows:
    """Where a state stands: a row and the logarithm of its scale, or the logarithms of a scalar's two parts."""

    kind: str
    rows: tuple[int, ...]
    scale: int | None = None


@dataclass(frozen=True)
class MatrixRows:
    """The registers of the encoded A: its positive and negative part, the masks of both, work, log |A|."""

    part: int
    signs: int
    ratio: int
    logs: int


class Selector:
    """One pass over start, step and finish."""

    def __init__(self, traced: Trace, analysis: Analysis, n: int, precision: Precision, bound: float):
        self.traced, self.analysis, self.n, self.precision = traced, analysis, n, precision
        self.matrix_norm = _MATRIX_NORM if "A" in analysis.scaled else bound
        self.block: Block = "pre"
        self.out = Selection([])
        self.made: dict[tuple[Any, ...], int] = {}
        self.values: dict[tuple[Block, int], Value] = {}
        self.trips: dict[Block, list[tuple[set[int], int]]] = {"pre": [], "loop": [], "post": []}
        self.one = self._register("one", "input", scalar=True)
        self.eye = self._register("eye", "input", height=n)
        limit = _MATRIX_NORM if "b" in analysis.scaled else bound
        self.inputs = {name: self._register(name, "input", bound=limit) for name in traced.inputs if name != "A"}
        self.scale_row: dict[int, int] = {}
        for group, names in analysis.floating.items():
            self.scale_row[group] = self._register("log scale of " + ", ".join(names), "input", scalar=True)
        for name, node in traced.state.items():
            self.out.state[name] = self._state_rows(name, node)

    # --- registers and instructions ---

    def _register(self, name: str, block: Block, **more: Any) -> int:
        self.out.registers.append(Register(name, more.pop("height", 1), block, more.pop("time", ENTRY), **more))
        return len(self.out.registers) - 1

    def _state_rows(self, name: str, node: Node) -> StateRows:
        if node.kind == "scalar":
            signs = ("log ",) if self.analysis.is_positive(node) else ("log +", "log -")
            return StateRows("scalar", tuple(self._register(s + name, "input", scalar=True) for s in signs))
        group = self.analysis.group_of(node)
        height = self.n if node.kind == "matrix" else 1
        row = self._register(name, "input", height=height, bound=_HEADROOM)
        return StateRows(node.kind, (row,), None if group is None else self.scale_row[group])

    def _time(self, register: int) -> tuple[int, int]:
        known = self.out.registers[register]
        return known.time if known.block == self.block else ENTRY

    def _layer(self, reads: Sequence[int], half: int) -> int:
        """The first layer in which attention, or the FFN, may read these registers."""
        layer = 0
        for register in reads:
            written, by = self._time(register)
            layer = max(layer, written if half == FFN and by == ATTENTION else written + 1)
        return layer

    def emit(
        self,
        op: str,
        sources: Sequence[Combination],
        form: Form = (),
        parameters: tuple[Any, ...] = (),
        *,
        name: str,
        half: int = ATTENTION,
        writes: int = ATTENTION,
        extra: tuple[int, ...] = (),
        reads: Sequence[int] = (),
        **more: Any,
    ) -> int:
        """The register that holds the result; equal instructions are one."""
        key = (self.block, op, tuple(sources), form, parameters)
        if key in self.made:
            return self.made[key]
        read = [register for source in (*sources, form) for register, _ in source] + list(reads)
        layer = self._layer(read, half)
        target = self._register(name, self.block, time=(layer, writes), **more)
        for other in extra:
            self.out.registers[other].time = (layer, ATTENTION)
        self.made[key] = target
        self.out.instructions[self.block].append(
            Instruction(op, self.block, layer, target, tuple(sources), form, parameters, name, extra)
        )
        return target

    @contextmanager
    def within(self, block: Block) -> Iterator[None]:
        previous, self.block = self.block, block
        try:
            yield
        finally:
            self.block = previous

    def _bound(self, source: Combination) -> float:
        return sum(abs(c) * self.out.registers[register].bound for register, c in source)

    def _name(self, source: Combination) -> str:
        parts = [("" if c == 1 else "-" if c == -1 else f"{c:.3g} ") + self.out.registers[r].name for r, c in source]
        return " + ".join(parts[:3]) + (" + …" if len(parts) > 3 else "")

    # --- values in rows ---

    def materialize(self, value: Value, target: Form = ()) -> Combination:
        """A combination of rows that equals value / e^target; terms with the same exponent share a head."""
        plain: dict[int, float] = {}
        moved: dict[tuple[Operator, Form], dict[int, float]] = {}
        for term in value:
            difference = combine((1.0, term.form), (-1.0, target))
            entries = plain
            if term.operator or difference:
                entries = moved.setdefault((term.operator, difference), {})
            entries[term.register] = entries.get(term.register, 0.0) + term.coefficient
        for (operator, difference), entries in moved.items():
            source = combination(entries)
            factor = source[0][1]  # taken out, so that q and -q are one row
            row = self._moved(operator, difference, tuple((register, c / factor) for register, c in source))
            plain[row] = plain.get(row, 0.0) + factor
        return combination(plain)

    def _moved(self, operator: Operator, form: Form, source: Combination) -> int:
        height = self.out.registers[source[0][0]].height
        if operator:
            encoded = self._encoded_matrix()
            time = self._layer([register for register, _ in form], ATTENTION)
            if not form or time <= self._layer([register for register, _ in source] + encoded, ATTENTION):
                # One layer either way: the exponent joins the logarithms of A in the score.
                name = f"{operator} ({self._name(source)})" if len(source) > 1 else f"{operator} {self._name(source)}"
                bound = self.matrix_norm * self._bound(source)
                return self.emit(
                    "matvec", [source], form, (operator,), name=name, reads=encoded, height=height, bound=bound
                )
            source = ((self._moved(operator, (), source), 1.0),)
        scalar = all(self.out.registers[r].scalar for r, _ in (*source, *form))
        bound = max(self._bound(source), _HEADROOM) if not scalar else 1.0
        name = f"{self._name(source)} · exp(…)" if len(source) == 1 else f"({self._name(source)}) · exp(…)"
        return self.emit("scale", [source], form, name=name, height=height, scalar=scalar, bound=bound)

    def _encoded_matrix(self) -> list[int]:
        """The logarithms of |A| and the masks of its signs, made by the first four layers of the pre block."""
        if self.out.matrix is None:
            with self.within("pre"):
                part = self._register("parts of A", "pre", height=2 * self.n, time=(0, FFN))
                signs = self._register("signs of A", "pre", height=2 * self.n, time=(1, FFN))
                ratio = self._register("ratios of A", "pre", height=self.n, time=(3, ATTENTION))
                logs = self._register("log |A|", "pre", height=self.n, time=(3, FFN))
                self.out.matrix = MatrixRows(part, signs, ratio, logs)
                for layer, text in enumerate(
                    ("positive and negative part of A", "log |A|", "log |A| refined", "log |A| refined again")
                ):
                    self.out.instructions["pre"].append(
                        Instruction("encode", "pre", layer, logs, (), text=text, extra=(part, signs, ratio))
                    )
        return [self.out.matrix.logs, self.out.matrix.signs]

    def common_form(self, value: Value, node: Node | None) -> Form:
        """The exponent at which a value is best put into a row: its own where all terms agree, else its group's."""
        forms = {self._scalar_part(term.form) for term in value}
        if len(forms) == 1:
            return forms.pop()
        if node is not None and node.kind != "scalar":
            group = self.analysis.group_of(node)
            return ((self.scale_row[group], 1.0),) if group is not None and self.block == "loop" else ()
        rows = [term.form for term in value if term.register != self.one]
        if rows:
            return rows[0]
        return () if () in forms or not value else value[0].form

    def _scalar_part(self, form: Form) -> Form:
        return tuple((register, c) for register, c in form if self.out.registers[register].scalar)

    # --- logarithms ---

    def logarithm(self, node: Node, policy: str) -> tuple[float, Form]:
        """(c, F) with node = c e^F, for a positive node; ``policy`` says where 0 goes (num: e^F = 0, den: e^-F = 0)."""
        with self.within(self._home(node)):
            value = self.value(node)
            if len(value) == 1 and value[0].register == self.one and not value[0].operator and value[0].coefficient > 0:
                return value[0].coefficient, value[0].form
            form = self.common_form(value, node)
            source = self.materialize(value, form)
            factor, log = self._log_of(source, policy, node.kind == "scalar", self._groups(node))
            return factor, combine((1.0, form), (1.0, log))

    def _log_of(self, source: Combination, policy: str, scalar: bool, groups: set[int]) -> tuple[float, Form]:
        """(c, F) with source = c e^F: interpolated, then refined; with a trip for the floating ``groups``."""
        if not source:
            return _NOTHING, ()
        factor = max(abs(c) for _, c in source)
        source = tuple((register, c / factor) for register, c in source)
        lowest, highest = self._range(source)
        name = self._name(source)
        first = self.emit(
            "log", [source], (), (lowest, highest, policy), name=f"log({name})", half=FFN, writes=FFN, scalar=scalar
        )
        extra: tuple[int, ...] = (self._work(("ratio", source, policy), f"ratio({name})"),)
        trip = None
        if groups:
            trip = self.emit("trip", [source], (), (lowest,), name=f"trip({name})", half=FFN, writes=FFN)
            tripped = self._work(("tripped", source, policy), f"tripped({name})", scalar=True)
            extra = (*extra, tripped)
            if not any(row == tripped for _, row in self.trips[self.block]):
                self.trips[self.block].append((groups, tripped))
        refined = self.emit(
            "refine",
            [source, ((first, 1.0),), *([] if trip is None else [((trip, 1.0),)])],
            (),
            (lowest, highest, policy, scalar),
            name=f"log({name}) refined",
            writes=FFN,
            scalar=scalar,
            extra=extra,
        )
        return factor, ((refined, 1.0),)

    def _work(self, key: tuple[Any, ...], name: str, **more: Any) -> int:
        key = (self.block, *key)
        if key not in self.made:
            self.made[key] = self._register(name, self.block, **more)
        return self.made[key]

    def _groups(self, node: Node) -> set[int]:
        """The floating groups whose vectors a scalar is made of."""
        found: set[int | None] = set()
        stack = [node] if node.kind == "scalar" else []
        while stack:
            n = stack.pop()
            if n.op == "dot" and n.args[0].kind == "vector":
                found |= {self.analysis.group_of(argument) for argument in n.args}
            elif n.kind == "scalar":
                stack.extend(n.args)
        return {group for group in found if group is not None}

    def _range(self, source: Combination) -> tuple[float, float]:
        """Where the logarithm is interpolated: from the noise of a dot to well above its bound."""
        bound = self._bound(source)
        noise = [self.out.linearizations[r] for r, _ in source if r in self.out.linearizations]
        if noise:
            return self.noise(noise[0]) ** 2 * bound, 1e3 * self.n * bound
        reach = 1e16 if self.precision.dtype == torch.float64 else 1e7
        return bound / reach, bound * reach

    def noise(self, lin: Linearization) -> float:
        """Ten times the rounding of a linearized dot, relative to its factors."""
        steps = sum(abs(gain) for _, gain in lin.heads) / (math.exp(lin.C) + lin.tokens)
        return 10 * steps * exponent_rounding(lin.C, lin.dtype)

    def exponentials(self, node: Node) -> Value:
        """A value as a sum of exponentials: scalars that multiply something."""
        value = self.value(node)
        if all(term.register == self.one and not term.operator for term in value):
            return value
        if self.analysis.is_positive(node):
            factor, form = self.logarithm(node, "num")
            return (Term(factor, self.one, form),)
        return tuple(Term(c, self.one, f) for c, f in self.signed_logarithms(node, "num"))

    def signed_logarithms(self, node: Node, policy: str) -> tuple[tuple[float, Form], tuple[float, Form]]:
        """((c, F), (-c, G)) with node = c e^F - c e^G, one of them zero."""
        with self.within(self._home(node)):
            value = self.value(node)
            form = self.common_form(value, node)
            source = self.materialize(value, form)
            parts = []
            for sign, symbol in ((1.0, "+"), (-1.0, "-")):
                half = tuple((register, sign * c) for register, c in source)
                row = self.emit(
                    "relu",
                    [half],
                    name=f"({self._name(source)}){symbol}",
                    half=FFN,
                    writes=FFN,
                    bound=self._bound(source),
                    scalar=False,
                )
                for register, _ in source:
                    if register in self.out.linearizations:
                        self.out.linearizations[row] = self.out.linearizations[register]
                factor, log = self._log_of(((row, 1.0),), policy, node.kind == "scalar", set())
                parts.append((sign * factor, combine((1.0, form), (1.0, log))))
            return parts[0], parts[1]

    # --- nodes ---

    def _home(self, node: Node) -> Block:
        """What does not depend on the state is computed once, in the pre block."""
        if self.block == "pre" or node.op in ("A", "b", "x0", "constant", "zeros", "identity", "transpose"):
            return self.block
        return "pre" if self._invariant(node) else self.block

    def _invariant(self, node: Node) -> bool:
        return node.op != "state" and all(self._invariant(argument) for argument in node.args)

    def value(self, node: Node) -> Value:
        block = self._home(node)
        key = (block, id(node))
        if key not in self.values:
            with self.within(block):
                self.values[key] = getattr(self, f"_{node.op.lower()}")(node)
        return self.values[key]

    def _constant(self, node: Node) -> Value:
        return (Term(node.extra, self.one),) if node.extra else ()

    def _zeros(self, node: Node) -> Value:
        return ()

    def _identity(self, node: Node) -> Value:
        return (Term(1.0, self.eye),)

    def _a(self, node: Node) -> Value:
        return (Term(1.0, self.eye, (), "A"),)

    def _transpose(self, node: Node) -> Value:
        return (Term(1.0, self.eye, (), "A.T"),)

    def _b(self, node: Node) -> Value:
        return (Term(1.0, self.inputs[node.op]),)

    _x0 = _b

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
            if self._is_exponential(one) or (self.analysis.is_positive(one) and self._invariant(one)):
                return multiply(self.value(other), self.exponentials(one))
        rows, forms = [], []
        for node in (u, v):
            value = self.value(node)
            forms.append(self.common_form(value, node))
            rows.append(self.materialize(value, forms[-1]))
        if not all(rows):
            return ()
        rows.sort(key=self._bound)
        lin = design_product(self.precision.dtype, min(self._bound(rows[0]), 8.0) / 2, order=self.precision.order)
        bound = self._bound(rows[0]) * self._bound(rows[1])
        name = f"({self._name(rows[0])}) * ({self._name(rows[1])})"
        row = self.emit("product", rows, (), (lin,), name=name, bound=bound)
        return (Term(1.0, row, combine((1.0, forms[0]), (1.0, forms[1]))),)

    def _divide(self, node: Node) -> Value:
        u, v = node.args
        if self.analysis.is_positive(v):
            factor, form = self.logarithm(v, "den")
            inverse: Value = (Term(1 / factor, self.one, combine((-1.0, form))),)
        else:
            inverse = tuple(Term(1 / c, self.one, combine((-1.0, f))) for c, f in self.signed_logarithms(v, "den"))
        return multiply(self.value(u), inverse)

    def _matmul(self, node: Node) -> Value:
        left, right = node.args
        value = self.value(right)
        if left.op in ("A", "transpose"):
            operator: Operator = "A" if left.op == "A" else "A.T"
            plain = all(not term.operator and self._scalar_part(term.form) == term.form for term in value)
            if not plain:
                form = self.common_form(value, right)
                value = tuple(Term(c, register, form) for register, c in self.materialize(value, form))
            return tuple(Term(t.coefficient, t.register, t.form, operator) for t in value)
        form = self.common_form(value, right)
        X, Y = self.materialize(self.value(left)), self.materialize(value, form)
        # An inverse may have entries far above 1, so c is small and the order high.
        lin = design(self.n, self.precision.dtype, 8.0, order=3, summands=self.n)
        name = f"({self._name(X)}) @ ({self._name(Y)})"
        row = self.emit(
            "matmul",
            [X, Y],
            (),
            (lin,),
            name=name,
            height=self.out.registers[Y[0][0]].height,
            bound=self._bound(X) * self._bound(Y),
        )
        return (Term(1.0, row, form),)

    def _dot(self, node: Node) -> Value:
        if node.args[0].kind == "matrix":
            return self._squares()
        rows, forms = [], []
        for argument in node.args:
            value = self.value(argument)
            forms.append(self.common_form(value, argument))
            rows.append(self.materialize(value, forms[-1]))
        if not all(rows):
            return ()
        row = self._dot_of(*rows)
        if any(self.analysis.group_of(argument) is None for argument in node.args) and self.block == "loop":
            self.out.warnings.append(
                f"{describe(node)} is a product of vectors at fixed scale: it loses its digits where they fall below "
                "1e-8; a residual that is carried as a state floats and does not"
            )
        return (Term(1.0, row, combine((1.0, forms[0]), (1.0, forms[1]))),)

    def _dot_of(self, u: Combination, v: Combination) -> int:
        key, value = sorted((u, v), key=self._unruly)
        typical = 2 * self._bound(key) / _HEADROOM / math.sqrt(self.n)
        lin = design(self.n, self.precision.dtype, typical, order=self.precision.order, summands=self.n)
        name = f"({self._name(key)})·({self._name(value)})"
        row = self.emit("dot", [key, value], (), (lin,), name=name, bound=self._bound(u) * self._bound(v))
        self.out.linearizations[row] = lin
        return row

    def _unruly(self, source: Combination) -> tuple[int, Combination]:
        """How likely a vector is to outgrow its bound, which costs the accuracy of a key but not that of a value.

        A v is tame, since A has norm 1; d = r + beta d may be hundreds of times longer than r on hard systems.
        """
        made_by = {i.target: i.op for i in self.out.instructions[self.block]}
        ranks = {"matvec": 0, "scale": 2}
        return max(ranks.get(made_by.get(register, ""), 1) for register, _ in source), source

    def _squares(self) -> Value:
        encoded = self._encoded_matrix()
        with self.within("pre"):
            rows = self.emit("squares", [((self.one, 1.0),)], name="row norms of A, squared", reads=encoded, bound=1.0)
            total = self.emit("sum", [((rows, 1.0),)], name="norm of A, squared", bound=self.matrix_norm**2)
        return (Term(1.0, total),)

    def _diag(self, node: Node) -> Value:
        row = self.emit("diag", [], name="diag(A)", half=FFN, writes=FFN, bound=self.matrix_norm)
        return (Term(1.0, row),)

    def _sqrt(self, node: Node) -> Value:
        factor, form = self.logarithm(node.args[0], "num")
        return (Term(math.sqrt(factor), self.one, combine((0.5, form))),)

    def _log(self, node: Node) -> Value:
        factor, form = self.logarithm(node.args[0], "num")
        return add((Term(math.log(factor), self.one),), tuple(Term(c, register) for register, c in form))

    def _exp(self, node: Node) -> Value:
        source = dict(self.materialize(self.value(node.args[0])))
        constant = math.exp(source.pop(self.one, 0.0))
        return (Term(constant, self.one, combination(source)),)

    # --- the blocks ---

    def select(self) -> Selection:
        """Instructions for start, step and finish."""
        for block, nodes in (("pre", self.traced.start), ("loop", self.traced.step)):
            self.block = block  # type: ignore[assignment]
            self._write_states(nodes)
        self.block = "post"
        self._write_answer()
        return self.out

    def _write_states(self, nodes: dict[str, Node]) -> None:
        writes = self.out.writes[self.block]
        targets: dict[int, Form] = {}
        for group, names in self.analysis.floating.items():
            form = self._new_scale(group, names, nodes)
            targets[group] = form
            writes[self.scale_row[group]] = form
        for name, node in nodes.items():
            rows = self.out.state[name]
            if rows.kind == "scalar":
                self._write_scalar(writes, rows, node)
                continue
            home = next((g for g, names in self.analysis.floating.items() if name in names), None)
            target: Form = ()
            if home is not None:
                target = targets[home]
                tripped = [row for groups, row in self.trips[self.block] if home in groups]
                target = combine((1.0, target), *((1.0, ((row, 1.0),)) for row in tripped))
            writes[rows.rows[0]] = self.materialize(self.value(node), target)

    def _write_scalar(self, writes: dict[int, Combination], rows: StateRows, node: Node) -> None:
        signed = len(rows.rows) == 2
        parts = self.signed_logarithms(node, "num") if signed else (self.logarithm(node, "num"),)
        for row, (factor, form) in zip(rows.rows, parts, strict=True):
            writes[row] = combine((1.0, form), (math.log(abs(factor)), ((self.one, 1.0),)))

    def _new_scale(self, group: int, names: list[str], nodes: dict[str, Node]) -> Form:
        """The logarithm of a group's new scale: half of a dot the program makes anyway, or of a norm at entry."""
        own = self._own_scale(group, names)
        if own is not None:
            factor, form = self.logarithm(nodes[own], "num")
            return combine((0.5, form), (0.5 * math.log(factor), ((self.one, 1.0),)))
        if self.block == "loop":
            base: Form = ((self.scale_row[group], 1.0),)
            rows: list[Combination] = [((self.out.state[name].rows[0], 1.0),) for name in names]
        else:
            base = ()
            rows = [self.materialize(self.value(nodes[name])) for name in names]
        squares: dict[int, float] = {}
        for row in rows:
            if row:
                squares[self._dot_of(row, row)] = 1.0
        factor, log = self._log_of(combination(squares), "num", True, {group})
        return combine((1.0, base), (0.5, log), (0.5 * math.log(factor), ((self.one, 1.0),)))

    def _own_scale(self, group: int, names: list[str]) -> str | None:
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

    def _write_answer(self) -> None:
        node = self.traced.answer
        if node.op == "state":
            self.out.answer = self.out.state[node.extra]
            return
        if node.kind == "scalar":
            signs = ("log ",) if self.analysis.is_positive(node) else ("log +", "log -")
            rows = StateRows("scalar", tuple(self._register(s + "answer", "input", scalar=True) for s in signs))
            self._write_scalar(self.out.writes["post"], rows, node)
        else:
            height = self.n if node.kind == "matrix" else 1
            rows = StateRows(node.kind, (self._register("answer", "input", height=height),))
            self.out.writes["post"][rows.rows[0]] = self.materialize(self.value(node))
        self.out.answer = rows
