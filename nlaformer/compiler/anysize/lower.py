"""A program to instructions of the machine for any n: a rule for each primitive.

Values are sums of terms, coefficient * row * e^exponent, as in the compiler for one n (``terms.py``). Here no value
needs a scale of its own, since a logarithm is found from 2^-160 to 2^64 and every product is an exponential:

    l = log |v|     interpolated, 16 knots a binade, then twice Newton's step for e^l = |v|:  l += |v| e^-l - 1
    u v             u e^l where v > 0, -u e^l where v < 0: two heads, whose scores have -2048 where the sign is wrong
    u . v           the same, by heads over all tokens
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nlaformer.compiler.anysize.machine import BLOCKS, ONE, Block, Machine, Part
from nlaformer.compiler.anysize.program import AnySize, constant_of, kind_of_move
from nlaformer.compiler.terms import Combination, Term, Terms, add, combine, multiply
from nlaformer.errors import CompileError
from nlaformer.program.ir import Node

GATE = 2048.0  # what a score loses where a sign is wrong
_MOST_TERMS = 4  # of a factor; one with more is put into a row


@dataclass(frozen=True)
class Stored:
    """Where a value stands; ``logarithm``: as its logarithm."""

    row: int
    kind: str
    logarithm: bool = False


@dataclass(frozen=True)
class Log:
    """The logarithm of |v|; |v| itself; and rows that are 0 where v is positive, and where it is negative."""

    log: Combination
    size: Combination
    below: Combination = ()
    above: Combination = ()
    sign: Combination = ()


@dataclass
class Lowering:
    """What the rules share. ``matrices``: whose slots are read, A^T as "A.T"; ``of_rows``: what stands beside."""

    program: AnySize
    machine: Machine = field(default_factory=Machine)
    inputs: dict[str, int] = field(default_factory=dict)
    state: dict[str, Stored] = field(default_factory=dict)
    answer: Stored | None = None
    matrices: list[str] = field(default_factory=list)
    of_rows: dict[str, int] = field(default_factory=dict)
    values: dict[tuple[Block, int], Terms] = field(default_factory=dict)
    logs: dict[tuple[Block, Combination, bool], Log] = field(default_factory=dict)

    def refuse(self, node: Node, message: str) -> Any:
        raise CompileError(f"{self.program.core.name} cannot be compiled for n='any'.\n  {node.line}\n    {message}")

    def value(self, node: Node) -> Terms:
        """The value of a node; what is made of inputs alone is made in the pre block."""
        machine, block = self.machine, self.machine.block
        for home in ("pre", block):
            if (home, id(node)) in self.values:
                return self.values[home, id(node)]  # type: ignore[index]
        if node.op not in RULES:
            self.refuse(node, f"{node.op}: there are no weights for it; Program.run computes it")
        machine.block = "pre" if node.invariant else block
        result = RULES[node.op](self, node)
        self.values[machine.block, id(node)] = result
        machine.block = block
        return result

    def home(self, node: Node, make: Callable[[], Any]) -> Any:
        """What is made of a node's value, in the block where it is computed."""
        block = self.machine.block
        self.machine.block = "pre" if node.invariant else block
        made = make()
        self.machine.block = block
        return made

    def stored(self, value: Terms) -> Combination:
        """A value as a combination of rows."""
        plain: list[tuple[int, float]] = []
        parts: dict[int, list[Part]] = {}
        for term in value:
            if term.exponent:
                parts.setdefault(term.register, []).append((((term.register, term.coefficient),), term.exponent))
            else:
                plain.append((term.register, term.coefficient))
        return combine((1.0, plain), (1.0, ((self.machine.add("own", *each), 1.0) for each in parts.values())))

    def rows_of(self, node: Node) -> Combination:
        return self.home(node, lambda: self.stored(self.value(node)))

    def given(self, name: str, scalar: bool) -> int:
        """A row that stands in the prompt beside the inputs."""
        if name not in self.of_rows:
            self.of_rows[name] = self.machine.row(name, scalar)
        return self.of_rows[name]

    def slots(self, name: str) -> str:
        if name not in self.matrices:
            self.matrices.append(name)
        return name

    # --- logarithms ---

    def log(self, source: Combination, positive: bool) -> Log:
        """The logarithm of a combination of rows."""
        machine = self.machine
        for block in ("pre", machine.block):
            if (block, source, positive) in self.logs:
                return self.logs[block, source, positive]  # type: ignore[index]
        size: Combination = source if positive else ((machine.add("absolute", (source, ())), 1.0),)
        rough: Combination = ((machine.add("log", (size, ())), 1.0),)
        first = combine((1.0, rough), (1.0, ((machine.add("own", (size, combine((-1.0, rough)))), 1.0), (ONE, -1.0))))
        second = machine.add("own", (size, combine((-1.0, first))))
        refined = combine((1.0, first), (1.0, ((second, 1.0), (ONE, -1.0))))
        found = Log(refined, size)
        if not positive:
            sign: Combination = ((machine.add("own", (source, combine((-1.0, rough)))), 1.0),)
            below, above = (((machine.add("relu", (combine((s, sign)), ())), 1.0),) for s in (-1.0, 1.0))
            found = Log(refined, size, below, above, sign)
        self.logs[machine.block, source, positive] = found
        return found

    def logarithm(self, node: Node) -> tuple[float, Combination]:
        """(c, F) with node = c e^F for a positive node."""
        value = self.value(node)
        if len(value) == 1 and value[0].register == ONE and value[0].coefficient > 0 and not self.is_gated(value):
            return value[0].coefficient, value[0].exponent
        return 1.0, self.home(node, lambda: self.log(self.stored(value), True)).log

    def is_gated(self, value: Terms) -> bool:
        return any(abs(c) >= GATE for term in value for _, c in term.exponent)

    def factor(self, node: Node, power: float = 1.0) -> Terms:
        """A value, or its reciprocal, as exponentials alone: their rows are ones."""
        value = self.value(node)
        ones = all(term.register == ONE for term in value)
        if ones and power == 1.0 and len(value) <= _MOST_TERMS:
            return value
        if ones and len(value) == 1 and not self.is_gated(value):
            return (Term(1.0 / value[0].coefficient, ONE, combine((-1.0, value[0].exponent))),)
        if not value:
            return self.refuse(node, "a division by zero") if power < 0 else ()
        if self.program.facts.is_positive(node):
            c, log = self.logarithm(node)
            return (Term(c**power, ONE, combine((power, log))),)
        found = self.home(node, lambda: self.log(self.stored(value), False))
        sides = ((1.0, found.below), (-1.0, found.above))
        return tuple(Term(s, ONE, combine((power, found.log), (-GATE, wrong))) for s, wrong in sides)

    def is_ready(self, node: Node) -> tuple[bool, bool, int]:
        """What makes a node the better one to take the logarithm of: one that is there, or is there early."""
        source = self.rows_of(node)
        there = any((b, source, p) in self.logs for b in ("pre", self.machine.block) for p in (True, False))
        early = self.machine.ready((row for row, _ in source), self.machine.block)
        return there, node.invariant, -early


def lower(program: AnySize) -> Lowering:
    """The instructions of a program."""
    low = Lowering(program)
    core, machine = program.core, low.machine
    for name, node in core.inputs.items():
        if node.ndim < 2:
            low.inputs[name] = machine.row(name, not node.shape)
    for name, node in core.state.items():
        logarithm = not node.shape and program.facts.is_positive(node)
        row = machine.row(f"log {name}" if logarithm else f"state {name}", not node.shape)
        low.state[name] = Stored(row, "vector" if node.shape else "scalar", logarithm)
    writes = {"pre": _written(low, "pre", core.start), "loop": _written(low, "loop", core.step), "post": {}}
    machine.block, answer = "post", core.answer
    if answer.ndim == 2:
        low.refuse(answer, "the answer is a matrix, which needs n rows")
    if answer.op == "state":
        low.answer = low.state[answer.extra]
    else:
        low.answer = Stored(machine.row("answer", not answer.shape), "vector" if answer.shape else "scalar")
        writes["post"] = {low.answer.row: low.stored(low.value(answer))}
    for block in BLOCKS:  # after all values: what the loop makes of inputs alone is made in the pre block
        machine.end(block, writes[block])
    machine.finish()
    return low


def _written(low: Lowering, block: Block, nodes: Mapping[str, Node]) -> dict[int, Combination]:
    """What a block writes into the rows of the states."""
    low.machine.block = block
    writes: dict[int, Combination] = {}
    for name, node in nodes.items():
        stored = low.state[name]
        if stored.logarithm:
            c, log = low.logarithm(node)
            writes[stored.row] = combine((1.0, log), (math.log(c), ((ONE, 1.0),)))
        else:
            writes[stored.row] = low.stored(low.value(node))
    return writes


# --- the rules ---

Rule = Callable[[Lowering, Node], Terms]
RULES: dict[str, Rule] = {}


def lowers(op: str) -> Callable[[Rule], Rule]:
    def enter(rule: Rule) -> Rule:
        RULES[op] = rule
        return rule

    return enter


@lowers("input")
def _input(low: Lowering, node: Node) -> Terms:
    if node.ndim == 2:
        low.refuse(node, "a matrix that is used other than in products with vectors needs n rows")
    return (Term(1.0, low.inputs[node.extra]),)


@lowers("state")
def _state(low: Lowering, node: Node) -> Terms:
    stored = low.state[node.extra]
    return (Term(1.0, ONE, ((stored.row, 1.0),)),) if stored.logarithm else (Term(1.0, stored.row),)


@lowers("constant")
def _constant(low: Lowering, node: Node) -> Terms:
    if id(node) in low.program.powers:
        c, k = low.program.powers[id(node)]
        return (Term(c, ONE, ((low.given("log n", True), k),)),)
    c = constant_of(node) or 0.0
    return (Term(c, ONE),) if c else ()


@lowers("add")
def _add(low: Lowering, node: Node) -> Terms:
    return add(*(low.value(argument) for argument in node.args))


@lowers("positive")
def _positive(low: Lowering, node: Node) -> Terms:
    return low.value(node.args[0])


@lowers("multiply")
def _multiply(low: Lowering, node: Node) -> Terms:
    u, v = node.args
    if node.ndim == 2:
        low.refuse(node, "a product of matrices by entries needs n rows; sums of squares of an input's rows do not")
    for factor, other in ((u, v), (v, u)):
        value = low.value(factor)
        if all(term.register == ONE for term in value) and len(value) <= _MOST_TERMS:
            return multiply(_short(low, other), value)
    scalars = [argument for argument in (u, v) if not argument.shape]
    by = scalars[0] if len(scalars) == 1 else max((u, v), key=low.is_ready)
    return multiply(_short(low, v if by is u else u), low.factor(by))


def _short(low: Lowering, node: Node) -> Terms:
    """A value of few terms: one with many is put into rows."""
    value = low.value(node)
    if sum(bool(term.exponent) for term in value) > _MOST_TERMS:
        return tuple(Term(c, row) for row, c in low.rows_of(node))
    return value


@lowers("divide")
def _divide(low: Lowering, node: Node) -> Terms:
    return multiply(_short(low, node.args[0]), low.factor(node.args[1], -1.0))


@lowers("sqrt")
def _sqrt(low: Lowering, node: Node) -> Terms:
    c, log = low.logarithm(node.args[0])
    return (Term(math.sqrt(c), ONE, combine((0.5, log))),)


@lowers("log")
def _log(low: Lowering, node: Node) -> Terms:
    c, log = low.logarithm(node.args[0])
    return add((Term(math.log(c), ONE),) if c != 1.0 else (), tuple(Term(k, row) for row, k in log))


@lowers("exp")
def _exp(low: Lowering, node: Node) -> Terms:
    source = dict(low.rows_of(node.args[0]))
    return (Term(math.exp(source.pop(ONE, 0.0)), ONE, combine((1.0, source.items()))),)


@lowers("relu")
def _relu(low: Lowering, node: Node) -> Terms:
    source = low.rows_of(node.args[0])
    return (Term(1.0, low.machine.add("relu", (source, ()))),) if source else ()


@lowers("sign")
def _sign(low: Lowering, node: Node) -> Terms:
    """(2u + 1)_+ - (2u - 1)_+ - 1 of u = v / |v| from the rough logarithm."""
    source = low.rows_of(node.args[0])
    if not source:
        return ()
    u = low.log(source, False).sign
    up, down = (low.machine.add("relu", (combine((2.0, u), (s, ((ONE, 1.0),))), ())) for s in (1.0, -1.0))
    return (Term(1.0, up), Term(-1.0, down), Term(-1.0, ONE))


@lowers("move")
def _move(low: Lowering, node: Node) -> Terms:
    if kind_of_move(node) == "spread":
        return low.value(node.args[0])
    if kind_of_move(node) == "diagonal":
        return (Term(1.0, low.given(f"diagonal of {node.args[0].extra}", False)),)
    return low.refuse(node, "a transpose that is used other than in products with vectors needs n rows")


@lowers("sum")
def _sum(low: Lowering, node: Node) -> Terms:
    (source,) = node.args
    if source.ndim == 2:
        squares = source.op == "multiply" and source.args[0] is source.args[1]
        matrix = source.args[0] if squares else source
        name = matrix_name(matrix)
        if not squares or name is None:
            return low.refuse(
                node, "sums over a matrix: of an input's squares, and A @ np.ones(n), have weights for every n"
            )
        axes = node.extra[0]
        name = name if axes != (0,) else name.removesuffix(".T") if name.endswith(".T") else name + ".T"
        row = low.given(f"squares of {name}", False)
        return (Term(1.0, row if len(axes) == 1 else total(low, (((row, 1.0),), ()))),)
    return (Term(1.0, total(low, (low.rows_of(source), ()))),)


@lowers("matmul")
def _matmul(low: Lowering, node: Node) -> Terms:
    u, v = node.args
    if u.ndim == v.ndim == 1:
        return _inner(low, u, v)
    if u.ndim != 2:
        u, v = v, u  # the normal form has A.T @ u
    parts = []
    for factor, name in _operator(low, u):
        value = low.value(v)
        if name:
            source = low.rows_of(v)
            value = (Term(1.0, low.machine.add("slot", (source, ()), matrix=low.slots(name))),) if source else ()
        parts.append(multiply(value, factor))
    return add(*parts)


def matrix_name(node: Node) -> str | None:
    """The name of an input's slots, of its transpose as "A.T"."""
    if node.op == "input":
        return str(node.extra)
    if node.op == "move" and kind_of_move(node) == "transpose":
        return f"{node.args[0].extra}.T"
    return None


def _operator(low: Lowering, node: Node) -> list[tuple[Terms, str]]:
    """A matrix as a sum of scalars times inputs, their transposes and (no name) the identity."""
    if (name := matrix_name(node)) is not None:
        return [((Term(1.0, ONE),), name)]
    if node.op == "constant":
        return [(_constant(low, node), "")]
    if node.op == "add" and all(argument.ndim == 2 for argument in node.args):
        return [part for argument in node.args for part in _operator(low, argument)]
    if node.op in ("multiply", "divide") and not node.args[node.op == "divide"].shape:
        scalar, matrix = node.args if node.op == "multiply" else node.args[::-1]
        factor = low.factor(scalar, -1.0 if node.op == "divide" else 1.0)
        return [(multiply(inner, factor), name) for inner, name in _operator(low, matrix)]
    return low.refuse(node, "this matrix is not an input; weights for every n multiply by inputs and their sums alone")


def total(low: Lowering, *parts: Part) -> int:
    """The sum over all tokens of value e^score, the same in every token to the last bit."""
    return low.machine.add("first", (((low.machine.add("all", *parts), 1.0),), ()))


def _inner(low: Lowering, u: Node, v: Node) -> Terms:
    """The inner product; of a vector with itself, by |v| e^{log |v|}, which needs no signs."""
    if u is v:
        source = low.rows_of(v)
        if not source:
            return ()
        found = low.home(v, lambda: low.log(source, low.program.facts.is_positive(v)))
        return (Term(1.0, total(low, (found.size, found.log))),)
    by = max((u, v), key=low.is_ready)
    value, factors = low.rows_of(v if by is u else u), low.factor(by)
    parts = [(combine((term.coefficient, value)), term.exponent) for term in factors]
    return (Term(1.0, total(low, *parts)),) if parts and value else ()
