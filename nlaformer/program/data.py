"""A program as data: three graphs, a residual and its scale, and its iteration on batches of tensors.

Nothing here calls the user's class. A saved model holds this data and runs it; a teacher, the training of a learned
part, the certificate, the checks beside a compiled run and the explorer use the same. Learned parts are given to the
iteration as functions, and the memory of a part is one more state.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.errors import FileError
from nlaformer.program.expression import Expression, Part
from nlaformer.program.ir import Graph, Line, Node, is_input, is_transpose, reachable
from nlaformer.program.learned import PartSpec
from nlaformer.program.primitives import PRIMITIVES

# The name of what finish returns, beside the states; no state can have it, since no method could ask for it.
ANSWER = "finish()"


@dataclass(frozen=True, eq=False)
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
        return {name: node.kind for name, node in self.inputs.items()}

    @functools.cached_property
    def values(self) -> dict[str, Node]:
        """What a run reports, as a step makes it: every state and, under ``ANSWER``, the answer."""
        memories = {part.memory_name for part in self.parts}
        return {name: node for name, node in self.step.items() if name not in memories} | {ANSWER: self.answer}

    @functools.cached_property
    def residual_value(self) -> Expression:
        """The residual, of the inputs and the answer."""
        return Expression({} if self.residual is None else {"residual": self.residual})

    @functools.cached_property
    def scale_value(self) -> Expression:
        """What the residual is compared with, of the same."""
        return Expression({} if self.scale is None else {"scale": self.scale})

    # Its iteration.

    @functools.cached_property
    def promises(self) -> dict[str, Node]:
        """What the program takes to be positive, by name: nf.positive(v); of a positive definite A some products."""
        nodes = reachable((*self.start.values(), *self.step.values(), self.answer))
        found = [node for node in nodes if rests_on_promise(node, self.positive_definite)]
        return {f"promise {k}": node for k, node in enumerate(found)}

    @functools.cached_property
    def own_promises(self) -> Expression:
        """Those of them that no learned part has a share in."""
        open_ = {k for k, node in self.promises.items() if any(each.op == "learned" for each in reachable([node]))}
        return Expression({name: node for name, node in self.promises.items() if name not in open_})

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
        for name, node in self.values.items():
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

    def without_lines(self) -> dict[str, Any]:
        """What it computes, method by method, as plain data; the same wherever in a file its lines stand."""
        ends = {"finish": self.answer, "residual": self.residual, "scale": self.scale}
        methods: dict[str, Mapping[str, Node]] = {"start": self.start, "step": self.step}
        methods |= {name: {name: node} for name, node in ends.items() if node is not None}
        found: dict[str, Any] = {}
        for name, values in methods.items():
            packed, numbers = packed_nodes(reachable(values.values()))
            found[name] = [[node[:-1] for node in packed["nodes"]], {key: numbers[v] for key, v in values.items()}]
        parts = [part.data() for part in self.parts]
        return found | {"parts": parts, "flags": [self.rectangular, self.positive_definite]}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramGraph) and (self is other or self.data() == other.data())

    __hash__ = object.__hash__

    def __deepcopy__(self, memo: Any) -> ProgramGraph:
        return self  # it does not change

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
