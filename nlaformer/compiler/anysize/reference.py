"""The program itself for any n, on sparse matrices: what runs are judged by.

It evaluates the graph that was traced, not its normal form, and shares nothing with the weights. Vectors are tensors
(..., n) of several iterates or several runs at once; matrices are SciPy's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from nlaformer.compiler.anysize.program import AnySize, kind_of_move, power_of
from nlaformer.errors import OptionError
from nlaformer.program.data import ANSWER
from nlaformer.program.ir import AXES, Node, reachable
from nlaformer.program.judge import Band, Rule, on_grid, together
from nlaformer.program.primitives import PRIMITIVES
from nlaformer.program.tensors import size

_EXACT = {"move", "constant", "positive", "relu", "sign", "maximum", "minimum", "input", "state"}
_ENTRIES_AT_ONCE = 2**25
Values = Mapping[str, Any]


class _UnknownError(OptionError):
    """A node that has no value for every n."""


@dataclass(frozen=True)
class Method:
    """Named values of a program's graph, at any n."""

    outputs: Mapping[str, Node]
    powers: Mapping[int, tuple[float, float]]

    @classmethod
    def of(cls, at_sizes: Sequence[Mapping[str, Node]]) -> Method:
        """The same values at each of ``SIZES``."""
        orders = [reachable(outputs.values()) for outputs in at_sizes]
        powers = {}
        for nodes in zip(*orders, strict=False):
            if nodes[0].op == "constant" and (power := power_of(nodes)) is not None:
                powers[id(nodes[0])] = power
        return cls(at_sizes[0], powers)

    def __call__(self, values: Values, n: int, rule: Rule | None = None, draws: Any = None) -> dict[str, Any]:
        """The outputs; with a rule, every operation is rounded to its bits, up or down at random."""
        results: dict[int, Any] = {}
        for node in reachable(self.outputs.values()):
            args = [results[id(argument)] for argument in node.args]
            found = self._value(node, args, values, n)
            if rule is not None and node.ndim < 2 and node.op not in _EXACT and isinstance(found, Tensor):
                terms = self._terms(node, args, found)
                chances = torch.rand(rule.runs, *[n] * node.ndim, generator=draws, dtype=torch.float64)
                value, terms = torch.broadcast_tensors(found, terms)
                found = on_grid(value, terms, chances, rule.bits)
            results[id(node)] = found
        return {name: results[id(node)] for name, node in self.outputs.items()}

    def _value(self, node: Node, args: list[Any], values: Values, n: int) -> Any:
        if node.op in ("input", "state"):
            return values[node.extra]
        if node.op == "constant":
            if id(node) not in self.powers:
                raise _UnknownError(f"{node.line}: a constant that depends on n")
            c, k = self.powers[id(node)]
            number = c * n**k
            return (
                number * sp.eye_array(n, format="csr")
                if node.ndim == 2
                else torch.full((n,) * node.ndim, number, dtype=torch.float64)
            )
        if node.op == "move":
            return _moved(node, args[0], n)
        if any(sp.issparse(argument) for argument in args):
            return _of_matrices(node, args)
        evaluate = PRIMITIVES[node.op].evaluate
        assert evaluate is not None
        return evaluate(node, *args)

    def _terms(self, node: Node, args: list[Any], value: Tensor) -> Tensor:
        """The absolute terms that an operation adds."""
        if node.op in ("add", "matmul", "sum"):
            return self._value_of_terms(node, [abs(argument) for argument in args])
        return value.abs()

    @staticmethod
    def _value_of_terms(node: Node, args: list[Any]) -> Tensor:
        if any(sp.issparse(argument) for argument in args):
            return _of_matrices(node, args)  # type: ignore[no-any-return]
        evaluate = PRIMITIVES[node.op].evaluate
        assert evaluate is not None
        return evaluate(node, *args)


def _moved(node: Node, value: Any, n: int) -> Any:
    kind = kind_of_move(node)
    if kind == "transpose":
        return value.T.tocsr()
    if kind == "diagonal":
        return torch.from_numpy(value.diagonal())
    if kind == "spread":
        return value[..., None].expand(*value.shape, n)
    raise _UnknownError(f"{node.line}: entries by their places")


def _of_matrices(node: Node, args: list[Any]) -> Any:
    """Products of a sparse matrix and vectors, sums over its entries, and what adds and scales matrices."""
    first, last = args[0], args[-1]
    if node.op == "matmul":
        matrix, vector = (first, last) if sp.issparse(first) else (last.T, first)
        flat = vector.reshape(-1, vector.shape[-1]).numpy()
        return torch.from_numpy(np.ascontiguousarray((matrix @ flat.T).T)).reshape(*vector.shape[:-1], -1)
    if node.op == "sum":
        axes, _ = node.extra
        found = np.asarray(first.sum(axis=None if len(axes) == 2 else axes[0]), dtype=float)
        return torch.from_numpy(np.atleast_1d(found).reshape(() if len(axes) == 2 else -1))
    if node.op == "multiply" and sp.issparse(first) and sp.issparse(last):
        return first.multiply(last).tocsr()
    if node.op == "add":
        return first + last
    numbers = [float(argument) for argument in args if not sp.issparse(argument)]
    if node.op in ("multiply", "divide") and len(numbers) == 1:
        matrix = first if sp.issparse(first) else last
        return matrix * numbers[0] if node.op == "multiply" else matrix / numbers[0]
    raise _UnknownError(f"{node.line}: {node.op} of a matrix")


@dataclass(frozen=True)
class Reference:
    """The methods of a program; ``residual`` and ``scale`` are of the inputs and the answer."""

    start: Method
    step: Method
    finish: Method
    residual: Method | None
    scale: Method | None
    promised: Method

    @classmethod
    def of(cls, program: AnySize) -> Reference:
        graphs = program.graphs

        def optional(name: str) -> Method | None:
            nodes = [getattr(graph, name) for graph in graphs]
            return None if nodes[0] is None else Method.of([{name: node} for node in nodes])

        start, step = (Method.of([getattr(graph, block) for graph in graphs]) for block in ("start", "step"))
        finish = Method.of([{ANSWER: graph.answer} for graph in graphs])
        of_step = [set(reachable(graph.step.values())) for graph in graphs]
        promised = Method.of(
            [{k: v for k, v in g.promises.items() if v in own} for g, own in zip(graphs, of_step, strict=True)]
        )
        return cls(start, step, finish, optional("residual"), optional("scale"), promised)

    def promises(self, values: Values, n: int) -> dict[str, Any]:
        """What a step takes to be positive, from the states before it."""
        return self.promised(values, n)

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of every state and of the answer."""
        return {name: list(AXES)[node.ndim] for name, node in {**self.step.outputs, **self.finish.outputs}.items()}

    def run(self, inputs: Values, n: int, count: int, rule: Rule | None = None, draws: Any = None) -> Iterator[Values]:
        """The states and the answer after start and after each step; with a rule in several runs, (runs, ...)."""
        states = self.start(inputs, n, rule, draws)
        yield {**states, **self.finish({**inputs, **states}, n, rule, draws)}
        for _ in range(count):
            states = self.step({**inputs, **states}, n, rule, draws)
            yield {**states, **self.finish({**inputs, **states}, n, rule, draws)}

    def is_judged(self, n: int, rule: Rule) -> bool:
        """Whether the runs of the rule fit into memory."""
        return rule.runs * n * len(self.kinds) <= _ENTRIES_AT_ONCE

    def bands(self, inputs: Values, n: int, count: int, rule: Rule, found: Values) -> dict[str, Band]:
        """What the program determines of every value of one system, as far as it takes to judge ``found``."""
        few = self._bands(inputs, n, count, rule, rule.runs, 0)
        if not any(bool(band.wrong(found[name]).any()) for name, band in few.items()):
            return few
        return self._bands(inputs, n, count, rule, rule.more, 1)

    def _bands(self, inputs: Values, n: int, count: int, rule: Rule, runs: int, seed: int) -> dict[str, Band]:
        """What so many runs say, as many at once as the rule has."""
        draws = torch.Generator().manual_seed(seed)
        parts = [self._apart(inputs, n, count, rule, draws) for _ in range(0, runs, rule.runs)]
        unit = torch.stack([v.abs().max() for v in inputs.values() if isinstance(v, Tensor)] or [torch.ones(())]).max()
        unit = torch.where(unit > 0, unit, 1.0)[None].double()
        bands = {}
        for name, kind in self.kinds.items():
            own, spread, lost = together([part[name] for part in parts])
            bands[name] = Band(own[None], spread[None], lost[None], AXES[kind], rule, unit)
        return bands

    def _apart(self, inputs: Values, n: int, count: int, rule: Rule, draws: Any) -> dict[str, tuple[Tensor, ...]]:
        """The program's own values, how far its runs in few bits are from them, and where all are lost."""
        found: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in self.kinds}
        for own, moved in zip(self.run(inputs, n, count), self.run(inputs, n, count, rule, draws), strict=True):
            for name, kind in self.kinds.items():
                shape = [n] * AXES[kind]
                one, many = own[name].expand(shape), moved[name].expand((rule.runs, *shape)).reshape(rule.runs, -1)
                spread = size(many - one.reshape(1, -1), 1).amax().nan_to_num(torch.inf, torch.inf)
                finite = torch.isfinite(many).all(1).any() | torch.isfinite(one).all()
                found[name].append((one, spread, ~finite))
        return {name: tuple(torch.stack(each) for each in zip(*v, strict=True)) for name, v in found.items()}
