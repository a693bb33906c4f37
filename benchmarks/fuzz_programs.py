"""Random small programs of the compiler's language: typed, seeded, written as a user writes NumPy.

A program is made as source text, so that it can be compiled as it stands and computed by NumPy alone. Beside every
expression stands the sum of the absolute terms of its last operation, which deviations are measured against.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import nlaformer as nf

N = 3
INPUTS = {"A": "m", "b": "v", "x0": "v"}
_CONSTANTS = (0.5, -0.3, 2.0, 0.1, 0.9, -1.0, 1e-3, 3.0, 40.0)
_VECTOR, _MATRIX = (0.5, -1.0, 0.25), ((0.5, 0.0, -0.25), (1.0, 0.5, 0.0), (0.0, 0.1, -1.0))


@dataclass(frozen=True)
class Rule:
    """An operation: what it gives, what it takes (s scalar, v vector, m matrix), its text and that of its terms.

    In a text, {0} and {1} are the arguments, in that of the terms also {t0}, the terms of the first argument.
    """

    name: str
    gives: str
    takes: str
    text: str
    terms: str = "np.abs({self})"


_SUM = "summed({0}, {1}, {t0}, {t1})"
RULES = (
    *(Rule("add", k, k + k, "({0} + {1})", _SUM) for k in "svm"),
    *(Rule("subtract", k, k + k, "({0} - {1})", _SUM) for k in "svm"),
    Rule("add a scalar", "v", "vs", "({0} + {1})", _SUM),
    *(Rule("multiply", k, k + k, "{0} * {1}") for k in "svm"),
    *(Rule("multiply by a scalar", k, "s" + k, "{0} * {1}") for k in "vm"),
    Rule("divide", "s", "ss", "{0} / {1}"),
    Rule("divide", "v", "vs", "{0} / {1}"),
    Rule("divide", "v", "vv", "{0} / {1}"),
    Rule("divide safely", "v", "vv", "{0} / (1.0 + {1} * {1})"),
    Rule("matvec", "v", "mv", "{0} @ {1}", "np.abs({0}) @ np.abs({1})"),
    Rule("matmul", "m", "mm", "{0} @ {1}", "np.abs({0}) @ np.abs({1})"),
    Rule("transpose", "m", "m", "{0}.T", "({t0}).T"),
    Rule("outer", "m", "vv", "np.outer({0}, {1})"),
    Rule("dot", "s", "vv", "np.dot({0}, {1})", "np.dot(np.abs({0}), np.abs({1}))"),
    Rule("Frobenius product", "s", "mm", "np.sum({0} * {1})", "np.sum(np.abs({0} * {1}))"),
    Rule("norm", "s", "v", "np.linalg.norm({0})"),
    Rule("norm of a matrix", "s", "m", "np.linalg.norm({0})"),
    Rule("diag", "v", "m", "np.diag({0})", "np.diag({t0})"),
    Rule("diagonal", "m", "v", "np.diag({0})", "np.diag({t0})"),
    Rule("triangle", "m", "m", "np.tril({0})", "np.tril({t0})"),
    Rule("upper triangle", "m", "m", "np.triu({0}, 1)", "np.triu({t0}, 1)"),
    Rule("roll", "v", "v", "np.roll({0}, 1)", "np.roll({t0}, 1)"),
    Rule("sum", "s", "v", "np.sum({0})", "np.sum(np.abs({0}))"),
    Rule("mean", "s", "v", "np.mean({0})", "np.mean(np.abs({0}))"),
    Rule("trace", "s", "m", "np.trace({0})", "np.sum(np.abs(np.diag({0})))"),
    Rule("sqrt", "v", "v", "np.sqrt({0} * {0})"),
    Rule("sqrt of a promise", "v", "v", "np.sqrt(nf.positive({0}))"),
    Rule("sqrt of a sum", "s", "v", "np.sqrt(1.0 + np.dot({0}, {0}))"),
    Rule("exp", "v", "v", "np.exp({0})"),
    Rule("exp of a scalar", "s", "s", "np.exp({0})"),
    Rule("log", "s", "v", "np.log(1.0 + np.dot({0}, {0}))", "(1.0 + np.abs({self}))"),
    Rule("log of a promise", "v", "v", "np.log(nf.positive({0}))", "(1.0 + np.abs({self}))"),
    Rule("relu", "v", "v", "np.maximum({0}, 0.0)", "{t0}"),
    Rule("abs", "v", "v", "np.abs({0})", "{t0}"),
    Rule("abs of a scalar", "s", "s", "np.abs({0})", "{t0}"),
    Rule("maximum", "v", "vv", "np.maximum({0}, {1})", "np.where({0} >= {1}, {t0}, {t1})"),
    Rule("minimum", "v", "vv", "np.minimum({0}, {1})", "np.where({0} <= {1}, {t0}, {t1})"),
    Rule("clip", "v", "v", "np.clip({0}, -1.0, 1.0)", "np.where(np.abs({0}) <= 1.0, {t0}, 1.0)"),
    Rule("expm1", "v", "v", "np.expm1({0})"),
    Rule("log1p", "v", "v", "np.log1p({0} * {0})"),
    Rule("sinh", "v", "v", "np.sinh({0})"),
    Rule("cosh", "v", "v", "np.cosh({0})"),
    Rule("tanh", "v", "v", "np.tanh({0})"),
    Rule("hypot", "v", "vv", "np.hypot({0}, {1})"),
    Rule("logaddexp", "v", "vv", "np.logaddexp({0}, {1})", "larger({0}, {1}, {self})"),
    Rule("sign", "v", "v", "np.sign({0})"),
    Rule("square", "v", "v", "{0} ** 2"),
    Rule("cube of a scalar", "s", "s", "{0} ** 3"),
    Rule("zeros", "v", "v", "np.zeros_like({0})"),
    Rule("ones", "v", "v", "np.ones_like({0})"),
    Rule("identity", "m", "", "np.eye(3)"),
    Rule("constant vector", "v", "", "self.w"),
    Rule("constant matrix", "m", "", "self.K"),
)


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
        space: dict[str, Any] = {"nf": nf, "np": np}
        exec(compile(self.source, "<fuzz>", "exec"), space)
        made: nf.Program = space["Fuzz"]()
        return made

    def in_numpy(self) -> Any:
        """The class computed by NumPy alone: 0 / 0 is 0, as the language says; ``vague`` marks signs of almost 0."""
        tree = ast.fix_missing_locations(_Quotients().visit(ast.parse(self.source)))
        space: dict[str, Any] = {"nf": _Plain, "np": _Numpy(), "quotient": _quotient}
        space |= {"summed": _summed, "larger": _larger}
        exec(compile(tree, "<fuzz in NumPy>", "exec"), space)
        return space["Fuzz"]()


class _Plain:
    """What nf is without the compiler."""

    Program = object

    @staticmethod
    def positive(v: Any) -> Any:
        return v


class _Numpy:
    """NumPy, with a note where the sign of almost nothing is asked for."""

    def __init__(self) -> None:
        self.vague = False

    def sign(self, v: Any) -> Any:
        size = np.abs(v)
        self.vague |= bool((size <= 1e-9 * max(1.0, float(np.max(size)))).any())
        return np.sign(v)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class _Quotients(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Div):
            return ast.Call(ast.Name("quotient", ast.Load()), [node.left, node.right], [])
        return node


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


class Generator:
    """Draws programs; the same seed draws the same ones."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

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
        names = {Value(key, f"np.abs({key})", kind): None for key, kind in known.items()}
        values, lines = list(names), []
        for k in range(int(self.rng.integers(3))):
            kind = str(self.rng.choice(list("svm"), p=(0.4, 0.5, 0.1)))
            made = self._expression(kind, values, int(self.rng.integers(1, 3)), used)
            lines.append(f"t{k} = {made.text}")
            values.append(replace(made, text=f"t{k}"))
        results = {key: self._result(name, key, kind, values, used) for key, kind in wanted.items()}
        arguments = ", ".join(["self", *known])
        body = "".join(f"        {line}\n" for line in lines)

        def method(title: str, part: Callable[[Value], str]) -> str:
            if name == "finish":
                returned = part(results["answer"])
            else:
                returned = "dict(" + ", ".join(f"{key}={part(value)}" for key, value in results.items()) + ")"
            return f"    def {title}({arguments}):\n{body}        return {returned}\n"

        return method(name, lambda value: value.text) + "\n" + method(f"terms_of_{name}", lambda value: value.terms)

    def _result(self, method: str, key: str, kind: str, values: list[Value], used: set[str]) -> Value:
        made = self._expression(kind, values, int(self.rng.integers(1, 4)), used)
        if method == "step" and self.rng.random() < 0.6:  # most steps are damped, so that runs last
            c = self.rng.choice([0.5, 0.1, 0.01])
            return Value(
                f"0.5 * {key} + {c} * ({made.text})", f"np.abs(0.5 * {key}) + np.abs({c} * ({made.text}))", kind
            )
        return made

    def _expression(self, kind: str, values: list[Value], depth: int, used: set[str]) -> Value:
        leaves = [value for value in values if value.kind == kind]
        if depth == 0 or (leaves and self.rng.random() < 0.15):
            if leaves and (kind != "s" or self.rng.random() < 0.7):
                return leaves[self.rng.integers(len(leaves))]
            if kind == "s":
                number = str(float(self.rng.choice(_CONSTANTS)))
                return Value(f"({number})", f"np.abs({number})", "s", is_number=True)
        rules = [rule for rule in RULES if rule.gives == kind]
        if depth == 0:
            rules = [rule for rule in rules if not rule.takes] or rules
        rule = rules[self.rng.integers(len(rules))]
        args = [self._expression(k, values, max(depth - 1, 0), used) for k in rule.takes]
        if depth <= -3:
            raise RecursionError("no leaf of this kind")
        used.add(rule.name)
        texts = [argument.text for argument in args]
        text = "(" + rule.text.format(*texts) + ")"
        terms = _terms(rule, args).format(*texts, self=text, **{f"t{k}": a.terms for k, a in enumerate(args)})
        constant = set(rule.takes) == {"s"} and all(argument.is_number for argument in args)
        constant |= rule.name == "mean" and args[0].is_ones
        return Value(text, f"({terms})", kind, constant, rule.name == "ones")


def _terms(rule: Rule, args: list[Value]) -> str:
    """The text of a rule's terms; a constant factor leaves the operation before it the last one."""
    if rule.name.startswith("multiply") and args[0].is_number:
        return "np.abs({0}) * {t1}"
    if rule.name in ("multiply", "divide") and args[1].is_number:
        return "{t0} * np.abs({1})" if rule.name == "multiply" else "{t0} / np.abs({1})"
    return rule.terms
