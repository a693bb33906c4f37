"""Lowering: functions for which there are no weights, in terms of those that have them.

    max(u, v) = v + relu(u - v)          min(u, v) = v - relu(v - u)            hypot(u, v) = sqrt(u u + v v)
    log1p v = log(1 + v)                 softplus v = log(1 + e^v)              logaddexp(u, v) = log(e^u + e^v)
    sinh v = (e^v - e^-v) / 2            expm1 v = e^v - e^0
    tanh v = (e^-2 relu(-v) - e^-2 relu(v)) / (e^-2 relu(-v) + e^-2 relu(v))

The 0 of expm1 is relu(v) - relu(-v) - v, which is exactly 0 whatever v is, and takes the way of v through the layers.
So both terms of the differences have the same rounding errors at v = 0: sinh, expm1 and tanh of 0 are exactly 0.

The right-hand sides lose digits where the left-hand ones, computed by themselves, do not: min(1e-14, 1) as 1 - (1 -
1e-14), expm1 of 1e-12. So only the weights are made from them. The graph that a program is run, taught and checked by
keeps the functions themselves, and a run whose weights lost digits that matter is found to be inaccurate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from nlaformer.compiler.functions import add, exp, log, multiply, relu, sqrt
from nlaformer.compiler.graph import Node, reachable
from nlaformer.compiler.trace import TracedProgram
from nlaformer.compiler.values import Value


def _tanh(up: Value, down: Value) -> Value:
    return (up - down) / (up + down)


_COMPOSITIONS: dict[str, Callable[..., Value]] = {
    "maximum": lambda u, v: add(v, relu(u - v)),
    "minimum": lambda u, v: v - relu(v - u),
    "expm1": lambda v: exp(v) - exp(relu(v) - relu(-v) - v),
    "log1p": lambda v: log(1.0 + v),
    "sinh": lambda v: 0.5 * (exp(v) - exp(-v)),
    "tanh": lambda v: _tanh(exp(-2.0 * relu(-v)), exp(-2.0 * relu(v))),
    "softplus": lambda v: log(1.0 + exp(v)),
    "logaddexp": lambda u, v: log(exp(u) + exp(v)),
    "hypot": lambda u, v: sqrt(add(multiply(u, u), multiply(v, v))),
}
_POINTWISE = ("sqrt", "exp", "log", "positive", "relu", "sign")
_BY_NAME = ("add", "multiply", "divide", "matmul", "dot", "outer", "transpose", "diag", "diagonal")


def lower(traced: TracedProgram) -> tuple[TracedProgram, dict[int, Node]]:
    """The program with every function written out, and what each node became, by id: itself if it has none."""
    calls = [node for call in traced.learned for node in call.nodes]
    images: dict[int, Node] = {}
    for node in reachable((*traced.nodes, *traced.inputs.values(), *traced.state.values(), *calls)):
        images[id(node)] = _image(node, tuple(images[id(argument)] for argument in node.args))

    def named(nodes: dict[str, Node]) -> dict[str, Node]:
        return {name: images[id(node)] for name, node in nodes.items()}

    learned = tuple(replace(call, nodes=tuple(images[id(node)] for node in call.nodes)) for call in traced.learned)
    program = replace(
        traced,
        start=named(traced.start),
        step=named(traced.step),
        answer=images[id(traced.answer)],
        problems=tuple(traced.answer.graph.problems),
        learned=learned,
    )
    return program, images


def _image(node: Node, args: tuple[Node, ...]) -> Node:
    """What a node becomes when its arguments have become these."""
    if args == node.args and node.op not in _COMPOSITIONS:
        return node
    graph = node.graph
    graph.here = node.place
    try:
        return graph.call(_rule(node), *args)
    except OverflowError as error:
        return graph.refuse(f"a constant leaves the range of the numbers: {error}", node.kind)
    finally:
        graph.here = None


def _rule(node: Node) -> Callable[..., Node]:
    """What makes a node of this operation from other arguments."""
    graph, op, extra = node.graph, node.op, node.extra
    if op in _COMPOSITIONS:
        return lambda *args: _COMPOSITIONS[op](*map(Value, args)).node
    if op in _POINTWISE:
        return functools.partial(graph.pointwise, op)
    if op in ("sum", "mean"):
        return functools.partial(graph.total, op)
    if op in ("triangle", "roll"):
        return functools.partial(getattr(graph, op), *(extra if op == "triangle" else (extra,)))
    if op in _BY_NAME:
        rule: Callable[..., Node] = getattr(graph, op)
        return rule
    return lambda *args: graph.make(op, args, extra, node.kind)
