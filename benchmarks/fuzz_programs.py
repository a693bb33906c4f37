"""Random small programs of the compiler's language: typed, seeded, written as a user writes NumPy.

A program is made as source text, so that it can be compiled as it stands and computed by NumPy alone. Beside every
expression stands the sum of the absolute terms of its last operation, which deviations are measured against. The
operations are in ``fuzz_rules.py``.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special

import nlaformer as nf
from benchmarks.fuzz_rules import MOVED, RULES, SIZED, Rule

INPUTS = {"A": "m", "b": "v", "x0": "v"}
_CONSTANTS = (0.5, -0.3, 2.0, 0.1, 0.9, -1.0, 1e-3, 3.0, 40.0)
_VECTOR, _MATRIX = (0.5, -1.0, 0.25), ((0.5, 0.0, -0.25), (1.0, 0.5, 0.0), (0.0, 0.1, -1.0))


@dataclass(frozen=True)
class Value:
    text: str
    terms: str
    kind: str
    is_number: bool = False  # it has the same value for all inputs, as np.exp(2.0) or the mean of ones
    is_ones: bool = False


@dataclass(frozen=True)
class Written:
    """A program's source, its parts by name, and what each of its methods asks for."""

    source: str
    asks: dict[str, list[str]]
    states: dict[str, str]
    answer: str
    operations: frozenset[str]
    residual: bool = field(default=False)

    @property
    def inputs(self) -> list[str]:
        asked = {name for names in self.asks.values() for name in names}
        return [name for name in INPUTS if name in asked]

    def program(self) -> nf.Program:
        """The class as a user has it."""
        space: dict[str, Any] = {"nf": nf, "np": np, "special": special}
        exec(compile(self.source, "<fuzz>", "exec"), space)
        made: nf.Program = space["Fuzz"]()
        return made

    def in_numpy(self) -> Any:
        """The class computed by NumPy alone: 0 / 0 is 0, as the language says; ``vague`` marks signs of almost 0."""
        tree, numpy = ast.fix_missing_locations(_Arithmetic().visit(ast.parse(self.source))), _Numpy()
        space: dict[str, Any] = {"nf": _Plain, "np": numpy, "quotient": _quotient, "lossy": numpy.lossy}
        space |= {"summed": _summed, "larger": _larger, "special": special}
        exec(compile(tree, "<fuzz in NumPy>", "exec"), space)
        return space["Fuzz"]()


class _Plain:
    """What nf is without the compiler."""

    Program = object

    @staticmethod
    def positive(v: Any) -> Any:
        return v

    @staticmethod
    def relu(v: Any) -> Any:
        return np.maximum(v, 0.0)

    @staticmethod
    def identity_like(A: Any) -> Any:
        return np.eye(len(A), dtype=A.dtype)


_MAKE_ARRAYS = ("zeros", "ones", "empty", "full", "eye", "identity")


class _Numpy:
    """NumPy, with a note where the sign of almost nothing is asked for, and new arrays of a chosen precision.

    Where ``loss`` is not 0, every sum and product loses such a part of its largest entry.
    """

    def __init__(self) -> None:
        self.vague = False
        self.precision: Any = float
        self.loss, self.rng = 0.0, np.random.default_rng(0)

    def lossy(self, value: Any) -> Any:
        if not self.loss or np.asarray(value).dtype.kind != "f":  # whole numbers are sizes and places
            return value
        return value + self.loss * np.max(np.abs(value)) * self.rng.choice([-1.0, 1.0], np.shape(value))

    def sign(self, v: Any) -> Any:
        size = np.abs(v)
        self.vague |= bool((size <= 1e-9 * max(1.0, float(np.max(size)))).any())
        return np.sign(v)

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return functools.partial(found, dtype=self.precision) if name in _MAKE_ARRAYS else found


class _Arithmetic(ast.NodeTransformer):
    """Operators as calls: quotients with 0 / 0 = 0, and every result passes ``lossy``."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        result: ast.expr = node
        if isinstance(node.op, ast.Div):
            result = ast.Call(ast.Name("quotient", ast.Load()), [node.left, node.right], [])
        return ast.Call(ast.Name("lossy", ast.Load()), [result], [])


def _quotient(u: Any, v: Any) -> Any:
    u, v = np.asarray(u), np.asarray(v)
    nothing = (v == 0) & (u * u == 0)
    return np.where(nothing, 0 * u, u / np.where(nothing, 1, v))


def _summed(u: Any, v: Any, terms_of_u: Any, terms_of_v: Any) -> Any:
    """The terms of u + v. To add exactly 0 rounds nothing: the operation before it is the last that does."""
    terms = np.where(u == 0, np.where(v == 0, np.maximum(terms_of_u, terms_of_v), terms_of_v), np.abs(u) + np.abs(v))
    return np.where((v == 0) & (u != 0), terms_of_u, terms)


def _larger(u: Any, v: Any, total: Any) -> Any:
    """The terms of logaddexp(u, v) = max(u, v) + log1p(exp(-|u - v|))."""
    return np.abs(np.maximum(u, v)) + (total - np.maximum(u, v))


@dataclass
class _Body:
    """A method that is being drawn: the values that have names, its lines, and those of its terms."""

    values: list[Value]
    used: set[str]
    lines: list[str] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)  # the same lines, with the terms of what they name
    named: int = 0

    def name(self, made: Value) -> Value:
        """A line that gives a value a name."""
        name = self._new_name()
        self._add(f"{name} = {made.text}", f"terms_of_{name} = {made.terms}")
        return self._known(replace(made, text=name, terms=f"terms_of_{name}"))

    def carry_out(self, rule: Rule, args: list[Value]) -> Value:
        """The statements of a rule, and the value that they make."""
        name = self._new_name()
        of_values = {"t": name, "self": name, **{f"t{k}": argument.terms for k, argument in enumerate(args)}}
        texts = [argument.text for argument in args]
        if rule.terms in (MOVED, SIZED):
            moved = [f"({argument.terms})" if rule.terms == MOVED else f"np.abs({argument.text})" for argument in args]
            terms = rule.text.format(*moved, t=f"terms_of_{name}")
        else:
            terms = f"terms_of_{name} = {rule.terms.format(*texts, **of_values)}"
        self._add(rule.text.format(*texts, **of_values), terms)
        return self._known(Value(name, f"terms_of_{name}", rule.gives))

    def change(self, key: str, lines: list[str], terms: str) -> Value:
        """Lines that change an argument in place."""
        self.terms.append(f"terms_of_{key} = {terms}")
        self._add("\n".join(lines), "")
        return Value(key, f"terms_of_{key}", "")

    def _new_name(self) -> str:
        self.named += 1
        return f"t{self.named}"

    def _add(self, text: str, terms: str) -> None:
        self.lines += text.splitlines()
        self.terms += [*text.splitlines(), *terms.splitlines()]

    def _known(self, value: Value) -> Value:
        self.values.append(value)
        return value


class Generator:
    """Draws programs; the same seed draws the same ones, and as many seeds as there are rules draw all of these."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.rule = RULES[seed % len(RULES)]

    def draw(self) -> Written:
        rng = self.rng
        used: set[str] = set()
        kinds = {"x": "v"} | {
            name: str(rng.choice(list("svm"), p=(0.4, 0.4, 0.2))) for name in ("y", "z")[: rng.integers(3)]
        }
        asked = [name for name, p in (("A", 0.8), ("b", 0.8), ("x0", 0.4)) if rng.random() < p] or ["b"]
        given = {name: INPUTS[name] for name in asked}
        later = {name: kind for name, kind in given.items() if name != "x0"}
        methods, asks = [], {}
        for method, known in (("start", given), ("step", later | kinds), ("finish", later | kinds)):
            if method == "finish" and rng.random() < 0.5:
                continue
            wanted = kinds if method != "finish" else {"answer": str(rng.choice(list("vs"), p=(0.8, 0.2)))}
            asks[method] = list(known)
            methods.append(self._method(method, known, wanted, used))
        answer = "v" if "finish" not in asks else wanted["answer"]
        residual = rng.random() < 0.15 and answer == "v" and "b" in given
        if residual:
            text = str(rng.choice(["1.0 / x - b", "np.log(nf.positive(x)) - b", "x * x - b", "b - x"]))
            asks["residual"] = ["b", "x"]
            methods.append(f"    def residual(self, b, x):\n        return {text}\n")
        head = f"class Fuzz(nf.Program):\n    w = np.array({_VECTOR})\n    K = np.array({_MATRIX})\n\n"
        return Written(head + "\n".join(methods), asks, kinds, answer, frozenset(used), bool(residual))

    def _method(self, name: str, known: dict[str, str], wanted: dict[str, str], used: set[str]) -> str:
        """A method and, beside it, the terms of what it returns."""
        body = _Body([Value(key, f"np.abs({key})", kind) for key, kind in known.items()], used)
        for _ in range(int(self.rng.integers(3))):
            kind = str(self.rng.choice(list("svm"), p=(0.4, 0.5, 0.1)))
            made = self._expression(kind, body, int(self.rng.integers(1, 3)))
            if made not in body.values:
                body.name(made)
        results = {key: self._result(name, key, kind, body) for key, kind in wanted.items()}
        arguments = ", ".join(["self", *known])

        def method(title: str, lines: list[str], part: Callable[[Value], str]) -> str:
            if name == "finish":
                returned = part(results["answer"])
            else:
                returned = "dict(" + ", ".join(f"{key}={part(value)}" for key, value in results.items()) + ")"
            text = "".join(f"        {line}\n" for line in lines)
            return f"    def {title}({arguments}):\n{text}        return {returned}\n"

        terms = method(f"terms_of_{name}", body.terms, lambda value: value.terms)
        return method(name, body.lines, lambda value: value.text) + "\n" + terms

    def _result(self, method: str, key: str, kind: str, body: _Body) -> Value:
        depth = int(self.rng.integers(1, 4))
        if (method, key) == ("step", "x"):  # every program has the operation of its seed
            made = self._as_vector(self._operation(self.rule, body, 1), body)
        else:
            made = self._expression(kind, body, depth)
        if method != "step" or self.rng.random() >= 0.6:  # most steps are damped, so that runs last
            return made
        c = self.rng.choice([0.5, 0.1, 0.01])
        terms = f"np.abs(0.5 * {key}) + np.abs({c} * ({made.text}))"
        # What has a name may be a view of an argument, and its terms would not follow.
        if self.rng.random() < 0.3 and not body.named:
            return body.change(key, [f"change = {c} * ({made.text})", f"{key} *= 0.5", f"{key} += change"], terms)
        return Value(f"0.5 * {key} + {c} * ({made.text})", terms, kind)

    def _as_vector(self, made: Value, body: _Body) -> Value:
        if made.kind == "v":
            return made
        product = next(rule for rule in RULES if rule.gives == "v" and rule.takes == f"{made.kind}v")
        return self._applied(product, [made, self._expression("v", body, 0)], body)

    def _expression(self, kind: str, body: _Body, depth: int) -> Value:
        leaves = [value for value in body.values if value.kind == kind]
        if depth == 0 or (leaves and self.rng.random() < 0.15):
            if leaves and (kind != "s" or self.rng.random() < 0.7):
                return leaves[self.rng.integers(len(leaves))]
            if kind == "s":
                number = str(float(self.rng.choice(_CONSTANTS)))
                return Value(f"({number})", f"np.abs({number})", "s", is_number=True)
        rules = [rule for rule in RULES if rule.gives == kind]
        if depth == 0:
            rules = [rule for rule in rules if not rule.takes] or rules
        return self._operation(rules[self.rng.integers(len(rules))], body, depth)

    def _operation(self, rule: Rule, body: _Body, depth: int) -> Value:
        return self._applied(rule, [self._expression(k, body, max(depth - 1, 0)) for k in rule.takes], body)

    def _applied(self, rule: Rule, args: list[Value], body: _Body) -> Value:
        body.used.add(rule.name)
        if rule.statements:
            return body.carry_out(rule, args)
        texts = [argument.text for argument in args]
        text = "(" + rule.text.format(*texts) + ")"
        terms = _terms(rule, args).format(*texts, self=text, **{f"t{k}": a.terms for k, a in enumerate(args)})
        constant = set(rule.takes) == {"s"} and all(argument.is_number for argument in args) and rule.gives == "s"
        constant |= rule.name == "mean" and args[0].is_ones
        return Value(text, f"({terms})", rule.gives, constant, rule.name == "ones")


def _terms(rule: Rule, args: list[Value]) -> str:
    """The text of a rule's terms; a constant factor leaves the operation before it the last one."""
    if rule.name.startswith("multiply") and args[0].is_number:
        return "np.abs({0}) * {t1}"
    if rule.name in ("multiply", "divide") and args[1].is_number:
        return "{t0} * np.abs({1})" if rule.name == "multiply" else "{t0} / np.abs({1})"
    return rule.terms
