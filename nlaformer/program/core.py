"""The core of a program: the same in terms of the primitives that there are weights for (``CORE``).

Here, and not before, numbers become one where a rounding is lost on the way: v / 3 is (1/3) v, 2 (3 v) is 6 v. And
what says the same becomes the same: u.T @ A is A.T @ u, the sum of u * v is u @ v where that product has no other use.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nlaformer.program import numpy
from nlaformer.program.arrays import Array, Tracing
from nlaformer.program.data import ProgramGraph
from nlaformer.program.ir import NOWHERE, Graph, Line, Node, is_number, reachable
from nlaformer.program.primitives import PRIMITIVES, apply


def core(program: ProgramGraph) -> tuple[ProgramGraph, dict[Node, Node]]:
    """The core of a program, and what each of its nodes became. Residual and scale stay: they have no weights."""
    lines: list[Line] = [NOWHERE]
    tracing = numpy.tracing(Graph(lambda: lines[-1]))
    images: dict[Node, Node] = {}
    written: dict[Node, Node] = {}  # nodes of the new graph, in core terms
    outputs = (*program.inputs.values(), *program.start.values(), *program.step.values(), program.answer)
    nodes = reachable(outputs)
    uses = Counter(itertools.chain(outputs, *(node.args for node in nodes)))
    for node in nodes:
        lines[:] = [node.line]
        args = [images[argument] for argument in node.args]
        images[node] = _product(tracing.graph, node, args, uses) or _image(tracing, node, args, written)

    def named(values: Mapping[str, Node]) -> dict[str, Node]:
        return {name: images[node] for name, node in values.items()}

    blocks = {block: named(getattr(program, block)) for block in ("inputs", "start", "step")}
    return replace(program, **blocks, answer=images[program.answer]), images  # type: ignore[arg-type]


def _image(tracing: Tracing, node: Node, args: Sequence[Node], written: dict[Node, Node]) -> Node:
    """What a node becomes when its arguments have become these, which are in core terms."""
    graph, record = tracing.graph, PRIMITIVES[node.op]
    if record.rewrite is not None:
        extra = node.extra if isinstance(node.extra, tuple) else ()
        result = record.rewrite(*(Array(tracing, argument) for argument in args), *extra).node
        for inner in reachable([result], written):  # a rewrite may use what is rewritten itself
            written[inner] = _image(tracing, inner, [written[argument] for argument in inner.args], written)
        return written[result]
    if node.op == "move":
        made = graph.move(args, node.extra)
    elif record.evaluate is None:
        made = (
            graph.constant(node.extra) if node.op == "constant" else graph.make(node.op, args, node.extra, node.shape)
        )
    else:
        made = _simplified(tracing, node, args) or apply(graph, node.op, *args, extra=node.extra)
    written[made] = made
    return made


def _simplified(tracing: Tracing, node: Node, args: Sequence[Node]) -> Node | None:
    """A core node in its one form; None if it has it."""
    graph = tracing.graph
    if node.op == "divide" and is_number(args[1]) and _keeps(1.0 / float(args[1].extra)):
        return _multiple(graph, 1.0 / float(args[1].extra), args[0])
    if node.op == "divide" and args[1].shape and args[0].shape != args[1].shape:
        return _broadcast_quotient(graph, node, *args)
    if node.op == "multiply" and is_number(args[0]):
        return _multiple(graph, float(args[0].extra), args[1])
    if node.op == "matmul" and args[0].ndim == 1 and args[1].ndim == 2:
        transposed = graph.move((args[1],), np.arange(args[1].size).reshape(args[1].shape).T)
        return apply(graph, "matmul", transposed, args[0])
    return None


def _product(graph: Graph, node: Node, args: Sequence[Node], uses: Mapping[Node, int]) -> Node | None:
    """The sum of the product of two vectors, which is used for nothing else, is their inner product."""
    if node.op != "sum" or node.shape or args[0].op != "multiply" or args[0].ndim != 1 or uses[node.args[0]] > 1:
        return None
    u, v = args[0].args
    return apply(graph, "matmul", u, v) if u.shape == v.shape else None


def _broadcast_quotient(graph: Graph, node: Node, u: Node, v: Node) -> Node:
    """A quotient of arrays of one shape; or the product with the reciprocals, where there are fewer of them."""
    if v.shape != node.shape:
        return apply(graph, "multiply", u, apply(graph, "divide", graph.constant(1.0), v))
    spread = graph.move((u,), np.broadcast_to(np.arange(u.size).reshape(u.shape), node.shape)) if u.shape else u
    return apply(graph, "divide", spread, v)


def _multiple(graph: Graph, number: float, v: Node) -> Node:
    """The number times v, where v may be a multiple itself."""
    if v.op == "multiply" and is_number(v.args[0]) and _keeps(number * float(v.args[0].extra)):
        return _multiple(graph, number * float(v.args[0].extra), v.args[1])
    return apply(graph, "multiply", graph.constant(number), v)


def _keeps(number: float) -> bool:
    """Whether a number is in the range of float64: of 1e-200 * (1e-200 * x) something is left at x = 1e300."""
    return math.isfinite(number) and (number == 0 or abs(number) >= sys.float_info.min)
