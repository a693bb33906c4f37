"""A program as data: three graphs, a residual and its scale, and its iteration on batches of tensors.

Nothing here calls the user's class. A saved model holds this data and runs it; a teacher, the training of a learned
part, the certificate, the checks beside a compiled run and the explorer use the same. Learned parts are given to the
iteration as functions, and the memory of a part is one more state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.errors import FileError
from nlaformer.program import tensors
from nlaformer.program.ir import AXES, Graph, Line, Node, is_input, is_transpose, reachable
from nlaformer.program.learned import PartSpec
from nlaformer.program.primitives import PRIMITIVES

# The name of what finish returns, beside the states; no state can have it, since no method could ask for it.
ANSWER = "finish()"
# What fills a learned part: its inputs in the order of the call -> its outputs by name.
Part = Callable[..., Mapping[str, Tensor]]
_UPWARDS = 1 + 2.0**-30  # more than the bounds of an error lose by their own rounding


@dataclass(frozen=True)
class Expression:
    """Named values of one graph, computed on batches of tensors; what they share is computed once.

    Examples
    --------
    >>> graph = Graph()
    >>> b = graph.input("b", (2,))
    >>> twice = Expression({"x": graph.make("add", (b, b), None, (2,))})
    >>> twice({"b": torch.tensor([1.0, 2.0])})["x"].tolist()
    [2.0, 4.0]
    """

    outputs: Mapping[str, Node]

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """All nodes, arguments before what is made of them."""
        return reachable(self.outputs.values())

    @functools.cached_property
    def numbers(self) -> dict[Node, int]:
        """The place of every node among them."""
        return {node: k for k, node in enumerate(self.nodes)}

    def __call__(self, values: Mapping[str, Tensor], parts: Mapping[str, Part] | None = None) -> dict[str, Tensor]:
        """The outputs. A value has its own axes last; those before them count systems, and are broadcast.

        Parameters
        ----------
        values : inputs and states by name
        parts : what fills the learned parts; each is called once
        """
        results = self.results(values, parts)
        return {name: results[self.numbers[node]] for name, node in self.outputs.items()}

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
        for node in self.nodes:
            if node.op in ("input", "state"):
                results.append(values[node.extra])
                continue
            args = self._arguments(node, results)
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


def _evaluate(node: Node, *args: Tensor) -> Tensor:
    evaluate = PRIMITIVES[node.op].evaluate
    if evaluate is None:
        raise TypeError(f"{node.op} has no value of its own")
    return evaluate(node, *args)


@dataclass(frozen=True)
class ProgramGraph:
    """A program as data, for systems of one size.

    Attributes
    ----------
    name : of its class; n : the size
    inputs, start, step : its inputs, and every state by name; answer : what finish returns
    residual, scale : what a run is judged by, of the inputs and the state x, which stands for the answer
    parts : its learned parts
    rectangular : whether it takes rectangular matrices, padded with zeros
    positive_definite : whether it declares A to be symmetric positive definite
    uses_torch : whether its methods call functions of torch, which take tensors alone
    """

    name: str
    n: int
    inputs: Mapping[str, Node]
    start: Mapping[str, Node]
    step: Mapping[str, Node]
    answer: Node
    residual: Node | None = None
    scale: Node | None = None
    parts: tuple[PartSpec, ...] = ()
    rectangular: bool = False
    positive_definite: bool = False
    uses_torch: bool = False

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of every input: scalar, vector or matrix."""
        return {name: list(AXES)[node.ndim] for name, node in self.inputs.items()}

    @functools.cached_property
    def residual_value(self) -> Expression:
        """The residual, of the inputs and the answer."""
        return Expression({} if self.residual is None else {"residual": self.residual})

    # Its iteration.

    @functools.cached_property
    def promises(self) -> dict[str, Node]:
        """What the program takes to be positive, by name: nf.positive(v); of a positive definite A some products."""
        nodes = reachable((*self.start.values(), *self.step.values(), self.answer))
        found = [node for node in nodes if rests_on_promise(node, self.positive_definite)]
        return {f"promise {k}": node for k, node in enumerate(found)}

    @functools.cached_property
    def first_values(self) -> Expression:
        """What ``start`` and then ``finish`` make, and the promises that they rest on."""
        return self._with_promises(self.start)

    @functools.cached_property
    def next_values(self) -> Expression:
        """What ``step`` makes, and the promises that it rests on."""
        return self._with_promises(self.step)

    def _with_promises(self, states: Mapping[str, Node]) -> Expression:
        made = set(reachable(states.values()))
        return Expression({**states, **{name: node for name, node in self.promises.items() if node in made}})

    @functools.cached_property
    def last_values(self) -> Expression:
        """What ``finish`` makes."""
        return Expression({ANSWER: self.answer})

    def first(self, inputs: Mapping[str, Tensor], parts: Mapping[str, Part] | None = None) -> dict[str, Tensor]:
        """Every state after ``start`` and the answer, with any leading axes; ``parts`` fill what is left open."""
        return self._finished(inputs, self.first_values(inputs, parts), parts)

    def next(
        self, inputs: Mapping[str, Tensor], states: Mapping[str, Tensor], parts: Mapping[str, Part] | None = None
    ) -> dict[str, Tensor]:
        """The same after one more step."""
        return self._finished(inputs, self.next_values({**inputs, **states}, parts), parts)

    def _finished(
        self, inputs: Mapping[str, Tensor], states: dict[str, Tensor], parts: Mapping[str, Part] | None
    ) -> dict[str, Tensor]:
        """The states and the answer; what is made of constants alone gets the leading axes of the inputs."""
        values = states | self.last_values({**inputs, **states}, parts)
        systems = torch.broadcast_shapes(*(v.shape[: v.dim() - self.inputs[k].ndim] for k, v in inputs.items()))
        memories = {part.memory_name for part in self.parts}
        for name, node in {**self.step, ANSWER: self.answer}.items():
            if name not in memories:
                values[name] = values[name].expand((*systems, *node.shape))
        return values

    def carried(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The states alone, which the next step starts from."""
        return {name: values[name] for name in self.step}

    def iterate(self, inputs: Mapping[str, Tensor], iterations: int) -> Iterator[dict[str, Tensor]]:
        """The values of a program without learned parts after ``start`` and after each of the iterations."""
        yield (values := self.first(inputs))
        for _ in range(iterations):
            yield (values := self.next(inputs, self.carried(values)))

    # As plain data.

    def data(self) -> dict[str, Any]:
        """What JSON takes and ``read`` reads."""
        ends = {"answer": self.answer, "residual": self.residual, "scale": self.scale}
        known = {name: node for name, node in ends.items() if node is not None}
        nodes = reachable((*self.inputs.values(), *self.start.values(), *self.step.values(), *known.values()))
        packed, numbers = packed_nodes(nodes)
        flags = ("name", "n", "rectangular", "positive_definite", "uses_torch")
        return {
            **{flag: getattr(self, flag) for flag in flags},
            **packed,
            **{
                part: {name: numbers[node] for name, node in getattr(self, part).items()}
                for part in ("inputs", "start", "step")
            },
            **{name: numbers[node] for name, node in known.items()},
            "parts": [part.data() for part in self.parts],
        }

    @classmethod
    def read(cls, data: Any) -> ProgramGraph:
        """The program of saved data; FileError if it is none."""
        try:
            nodes = unpacked_nodes(data)
            named: dict[str, Any] = {
                part: {str(name): nodes[k] for name, k in data[part].items()} for part in ("inputs", "start", "step")
            }
            ends: dict[str, Any] = {name: nodes[data[name]] for name in ("answer", "residual", "scale") if name in data}
            flags: dict[str, Any] = {
                flag: bool(data[flag]) for flag in ("rectangular", "positive_definite", "uses_torch")
            }
            parts = tuple(PartSpec(**part) for part in data["parts"])
            return cls(str(data["name"]), int(data["n"]), **named, **ends, parts=parts, **flags)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise FileError(f"this is not a program: {type(error).__name__}: {error}") from error


def rests_on_promise(node: Node, positive_definite: bool) -> bool:
    """Whether a node is nf.positive(v) or, for a positive definite A, dot(d, A @ d) or diag(A)."""
    if node.op == "matmul" and positive_definite and not node.shape:
        pairs = (node.args, node.args[::-1])
        return any(q.op == "matmul" and _is_matrix(q.args[0]) and q.args[1] is d for d, q in pairs)
    if node.op == "move" and positive_definite and len(node.args) == 1 and is_input(node.args[0], "A"):
        n = node.args[0].shape[0]
        return node.shape == (n,) and np.array_equal(node.extra, np.arange(n) * (n + 1))
    return node.op == "positive"


def _is_matrix(node: Node) -> bool:
    """Whether a node is A or A.T."""
    return is_input(node.args[0] if is_transpose(node) else node, "A")


# --- nodes as plain data ---


def packed_nodes(nodes: Iterable[Node]) -> tuple[dict[str, Any], dict[Node, int]]:
    """Nodes in order, each [op, arguments, extra, shape, number of its line], and the lines; and each one's number."""
    numbers: dict[Node, int] = {}
    lines: dict[Line, int] = {}
    packed = []
    for node in nodes:
        numbers[node] = len(numbers)
        line = lines.setdefault(node.line, len(lines))
        extra = _packed_extra(node)
        packed.append([node.op, [numbers[argument] for argument in node.args], extra, list(node.shape), line])
    return {"nodes": packed, "lines": [[line.file, line.number, line.text] for line in lines]}, numbers


def _packed_extra(node: Node) -> Any:
    if node.op == "constant":
        return node.extra.tolist()
    if node.op == "move":
        steps = _steps(node.extra)
        return node.extra.ravel().tolist() if steps is None else {"first": int(node.extra.flat[0]), "steps": steps}
    return node.extra


def _steps(positions: np.ndarray) -> list[int] | None:
    """The steps along each axis of positions that are evenly spaced; None if they are not."""
    if not positions.size or positions.flat[0] < 0:
        return None
    first = positions[(0,) * positions.ndim]
    steps = []
    for axis, side in enumerate(positions.shape):
        place = tuple(int(k == axis and side > 1) for k in range(positions.ndim))
        steps.append(int(positions[place] - first))
    return steps if np.array_equal(_spaced(int(first), steps, positions.shape), positions) else None


def _spaced(first: int, steps: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    result = np.full(shape, first, dtype=np.int64)
    for axis, step in enumerate(steps):
        places = np.arange(shape[axis]) * step
        result += places.reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return result


def unpacked_nodes(data: Mapping[str, Any], graph: Graph | None = None) -> list[Node]:
    """The nodes of plain data, each checked; ValueError if there is none like it."""
    lines = [Line(str(file), int(number), str(text)) for file, number, text in data["lines"]]
    graph = graph or Graph()
    nodes: list[Node] = []
    for op, arguments, extra, shape, line in data["nodes"]:
        if not all(isinstance(k, int) and 0 <= k < len(nodes) for k in arguments):
            raise ValueError(f"node {len(nodes)} is made of {arguments}")
        graph.line = functools.partial(lines.__getitem__, line)
        nodes.append(_unpacked(graph, op, [nodes[k] for k in arguments], extra, tuple(map(int, shape))))
    return nodes


def _unpacked(graph: Graph, op: str, args: Sequence[Node], extra: Any, shape: tuple[int, ...]) -> Node:
    record = PRIMITIVES.get(op)
    if record is None or (record.evaluate is None and op not in ("input", "state", "constant", "learned")):
        raise ValueError(f"an operation {op!r}, which this version does not know")
    if op == "constant":
        node = graph.constant(extra)
    elif op == "move":
        spaced = isinstance(extra, dict)
        positions = _spaced(extra["first"], extra["steps"], shape) if spaced else np.array(extra, dtype=np.int64)
        if positions.max(initial=-1) >= sum(argument.size for argument in args):
            raise ValueError("entries from beyond the end of an array")
        node = graph.move(args, positions.reshape(shape))
    elif record.evaluate is None:
        node = graph.make(op, args, tuple(extra) if op == "learned" else str(extra), shape)
    else:
        whole = (tuple(map(int, extra[0])), bool(extra[1])) if extra is not None else None
        node = graph.make(op, args, whole, record.shape([argument.shape for argument in args], whole))
    if node.shape != shape:
        raise ValueError(f"{op} of shape {shape}, which has the shape {node.shape}")
    return node
