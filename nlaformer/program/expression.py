"""Named values of a graph, computed on batches of tensors.

A program's methods are traced once; from then on every use of it is an ``Expression``: the plain run, the targets of a
teacher, the training of a learned part, the checks beside a compiled run and the program inside a saved model. So all
of them compute the same numbers, batched over any leading axes and differentiable, and none imports the user's class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nlaformer.program import tensors
from nlaformer.program.ir import Node, reachable
from nlaformer.program.primitives import PRIMITIVES

# What fills a learned part: its inputs in the order of the call -> its outputs by name.
Part = Callable[..., Mapping[str, Tensor]]
_UPWARDS = 1 + 2.0**-30  # more than the bounds of an error lose by their own rounding
_PRODUCTS = ("multiply", "matmul")


@dataclass(frozen=True)
class Expression:
    """Named values of one graph, computed on batches of tensors; what they share is computed once.

    Examples
    --------
    >>> from nlaformer.program.ir import Graph
    >>> graph = Graph()
    >>> b = graph.input("b", (2,))
    >>> twice = Expression({"x": graph.make("add", (b, b), None, (2,))})
    >>> twice({"b": torch.tensor([1.0, 2.0])})["x"].tolist()
    [2.0, 4.0]
    """

    outputs: Mapping[str, Node]
    nodes: list[Node] = field(init=False, repr=False)  # arguments before what is made of them
    numbers: dict[Node, int] = field(init=False, repr=False)  # the place of every node among them
    _arguments_of: list[tuple[int, ...]] = field(init=False, repr=False)
    _made: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Here and not when they are asked for: torch.compile follows a call, and it knows lists and numbers best.
        nodes = reachable(self.outputs.values())
        numbers = {node: k for k, node in enumerate(nodes)}
        arguments = [tuple(numbers[argument] for argument in node.args) for node in nodes]
        made = {name: numbers[node] for name, node in self.outputs.items()}
        vars(self).update(nodes=nodes, numbers=numbers, _arguments_of=arguments, _made=made)
        for node in nodes:
            _ = node.listed, node.moves_as

    def __call__(self, values: Mapping[str, Tensor], parts: Mapping[str, Part] | None = None) -> dict[str, Tensor]:
        """The outputs. A value has its own axes last; those before them count systems, and are broadcast.

        Parameters
        ----------
        values : inputs and states by name
        parts : what fills the learned parts; each is called once
        """
        results = self.results(values, parts)
        return {name: results[number] for name, number in self._made.items()}

    def results(
        self,
        values: Mapping[str, Tensor],
        parts: Mapping[str, Part] | None = None,
        rounded: Callable[[int, Sequence[Tensor]], Tensor] | None = None,
    ) -> list[Tensor]:
        """The value of every node; ``rounded`` gives what a node's operation is taken to have made instead."""
        like = next(iter(values.values()))
        results: list[Tensor] = []
        filled: dict[str, Mapping[str, Tensor]] = {}
        for node, places in zip(self.nodes, self._arguments_of, strict=True):
            if node.op in ("input", "state"):
                results.append(values[node.extra])
                continue
            args = [results[k] for k in places]
            if node.op == "learned":
                part, output = node.extra
                if part not in filled:
                    filled[part] = (parts or {})[part](*args)
                results.append(filled[part][output])
                continue
            results.append(tensors.constant(node, like) if node.op == "constant" else _evaluate(node, *args))
            if rounded is not None:
                results[-1] = rounded(len(results) - 1, results)
        return results

    def _arguments(self, node: Node, results: Sequence[Tensor]) -> list[Tensor]:
        return [results[self.numbers[argument]] for argument in node.args]

    def terms(self, number: int, results: Sequence[Tensor]) -> Tensor:
        """The absolute terms that a node's last operation adds, summed: what its rounding is relative to."""
        node, record = self.nodes[number], PRIMITIVES[self.nodes[number].op]

        def of(k: int) -> Tensor:
            return self.terms(self.numbers[node.args[k]], results)

        if record.rounding is not None:
            return record.rounding(node, self._arguments(node, results), of, results[number])
        if record.evaluate is None:
            return results[number].abs()
        return record.evaluate(node, *map(of, range(len(node.args))))

    def enclosed(self, values: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
        """An output in float64 and a bound on its rounding error, entry by entry; the values given are exact.

        >>> from nlaformer.program.ir import Graph
        >>> graph = Graph()
        >>> b = graph.input("b", (2,))
        >>> square = Expression({"x": graph.make("multiply", (b, b), None, (2,))})
        >>> value, error = square.enclosed({"b": torch.tensor([0.1, 0.2], dtype=torch.float64)}, "x")
        >>> bool((error < 2.0**-52 * value).all() and (error > 0).all())
        True
        """
        results = self.results(values)
        errors: list[Tensor] = []
        for node, value in zip(self.nodes, results, strict=True):
            rule = PRIMITIVES[node.op].enclose
            if rule is None:  # inputs and constants, which are exact
                errors.append(torch.zeros_like(value))
                continue
            error = rule(node, self._arguments(node, results), self._arguments(node, errors), value) * _UPWARDS
            errors.append(torch.where(torch.isnan(error), torch.inf, error).expand(value.shape))
        at = self.numbers[self.outputs[name]]
        return results[at], errors[at]

    def magnitudes(self, results: Sequence[Tensor]) -> list[Tensor]:
        """At most so large would every node be if nothing cancelled: (|x| + |b|) |c| for (x - b) c."""
        found: list[Tensor] = []
        for number, node in enumerate(self.nodes):
            args = self._arguments(node, found)
            if node.op == "divide":  # by what it is
                args[1] = results[self.numbers[node.args[1]]].abs()
            if node.op in ("log", "sin", "cos", "arctan") or not args:
                found.append(self.terms(number, results))
            else:
                larger = {"minimum": "maximum", "min": "max"}.get(node.op, node.op)
                found.append(_evaluate(node, *args, op=larger))
        return found

    def underflows(self, results: Sequence[Tensor]) -> Tensor:
        """Whether a product on the way to the values is lost below the smallest normal number; (...)."""
        found = torch.zeros((), dtype=torch.bool, device=results[0].device)
        for node in self.nodes:
            if node.op in _PRODUCTS:
                sizes = [argument.abs() for argument in self._arguments(node, results)]
                terms, counts = (_evaluate(node, *args) for args in (sizes, [(v > 0).to(v) for v in sizes]))
                lost = (terms < torch.finfo(terms.dtype).smallest_normal) & (counts > 0)
                found = found | (lost.flatten(-node.ndim).any(-1) if node.ndim else lost)
        return found

    def __bool__(self) -> bool:
        return bool(self.outputs)


def _evaluate(node: Node, *args: Tensor, op: str = "") -> Tensor:
    evaluate = PRIMITIVES[op or node.op].evaluate
    if evaluate is None:
        raise TypeError(f"{node.op} has no value of its own")
    return evaluate(node, *args)
