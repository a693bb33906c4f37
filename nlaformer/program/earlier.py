"""Programs as they were saved up to version 0.3: with kinds instead of shapes, the same for every size.

Each of start, step, finish, residual and scale has ``nodes``, a list of [op, arguments, extra, kind], and ``outputs``,
the number of a node for each name. The outputs of start and step contain the promises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nlaformer.errors import FileError
from nlaformer.program import numpy
from nlaformer.program.arrays import Array, Tracing
from nlaformer.program.data import ANSWER, ProgramGraph
from nlaformer.program.functions import vdot
from nlaformer.program.ir import AXES, Graph, Node, RefusedError
from nlaformer.program.learned import PartSpec
from nlaformer.program.primitives import PRIMITIVES

# What is no primitive any more, in NumPy: of the arguments and of ``extra``.
_OPS: dict[str, Callable[..., Any]] = {
    "dot": lambda extra, u, v: vdot(u, v),
    "outer": lambda extra, u, v: np.outer(u, v),
    "transpose": lambda extra, A: A.T,
    "diag": lambda extra, A: np.diag(A),
    "diagonal": lambda extra, v: np.diag(v),
    "triangle": lambda extra, A: np.tril(A, extra[1]) if extra[0] == "lower" else np.triu(A, extra[1]),
    "roll": lambda extra, v: np.roll(v, int(extra), axis=0),
    "sum": lambda extra, v: np.sum(v),
    "mean": lambda extra, v: np.mean(v),
}
_FILLS: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "zeros": np.zeros,
    "ones": np.ones,
    "identity": lambda shape: np.eye(shape[0]),
}


def read_earlier(data: Any, n: int) -> ProgramGraph:
    """The program of data saved by version 0.3, for systems of size n; FileError if it is none."""
    try:
        return _read(data, n)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FileError(f"this is not a program of version 0.3: {type(error).__name__}: {error}") from error


def _read(data: Mapping[str, Any], n: int) -> ProgramGraph:
    tracing = numpy.tracing(Graph())
    start, step, finish, residual, scale = (
        _nodes(tracing, data.get(method), n) for method in ("start", "step", "finish", "residual", "scale")
    )
    promised = {op for method in ("start", "step") for op in _promised(data[method], data["promises"])}
    return ProgramGraph(
        str(data["name"]),
        n,
        {name: tracing.graph.input(name, (n,) * AXES[kind]) for name, kind in data["inputs"].items()},
        {name: node for name, node in start.items() if name not in data["promises"]},
        {name: node for name, node in step.items() if name not in data["promises"]},
        finish[ANSWER],
        next(iter(residual.values()), None),
        next(iter(scale.values()), None),
        tuple(PartSpec(**part) for part in data["parts"]),
        bool(data.get("rectangular", False)),
        bool(promised & {"dot", "diag"}),
    )


def _promised(method: Mapping[str, Any], promises: Mapping[str, Any]) -> set[str]:
    """The operations that make what is promised to be positive."""
    return {method["nodes"][method["outputs"][name]][0] for name in promises if name in method["outputs"]}


def _nodes(tracing: Tracing, method: Mapping[str, Any] | None, n: int) -> dict[str, Node]:
    """The outputs of a method."""
    if method is None:
        return {}
    made: list[Array] = []
    for op, arguments, extra, kind in method["nodes"]:
        if not all(0 <= k < len(made) for k in arguments):
            raise ValueError(f"node {len(made)} is made of {arguments}")
        made.append(_array(tracing, op, [made[k] for k in arguments], extra, (n,) * AXES.get(kind, 0)))
    return {str(name): made[k].node for name, k in method["outputs"].items()}


def _array(tracing: Tracing, op: str, args: list[Array], extra: Any, shape: tuple[int, ...]) -> Array:
    graph = tracing.graph
    if op in ("input", "state"):
        return tracing.array(graph.make(op, (), str(extra), shape))
    if op == "learned":
        return tracing.array(graph.make(op, (each.node for each in args), tuple(extra), shape))
    if op == "constant" or op in _FILLS:
        return tracing.constant(extra if op == "constant" else _FILLS[op](shape))
    if op in _OPS:
        return tracing.array(tracing.node(_OPS[op](extra, *args)))
    if op not in PRIMITIVES or PRIMITIVES[op].evaluate is None:
        raise RefusedError(f"an operation {op!r}, which this version does not know")
    return args[0].apply(op, *args[1:])
