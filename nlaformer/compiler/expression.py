"""Traced expressions as plain data, evaluated on batches of arrays beside the transformer.

The artefact keeps four kinds of them: the residual a run reports, what that is small beside, the values the program
takes to be positive, and each state's step. They are evaluated on the data of every run, so that neither a broken
promise (an indefinite A) nor a step that strays from the program's own passes in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nlaformer.compiler.graph import Node
from nlaformer.compiler.inputs import AXES


@dataclass(frozen=True)
class Expression:
    """Nodes in order, each [op, arguments, extra, kind]; the last one is the value."""

    nodes: tuple[Any, ...]

    @classmethod
    def of(cls, node: Node) -> Expression:
        order: dict[int, int] = {}
        nodes: list[Any] = []

        def visit(node: Node) -> int:
            if id(node) not in order:
                arguments = [visit(argument) for argument in node.args]
                order[id(node)] = len(nodes)
                nodes.append([node.op, arguments, node.extra, node.kind])
            return order[id(node)]

        visit(node)
        return cls(tuple(nodes))

    @property
    def kind(self) -> str:
        return self.nodes[-1][3]

    def __call__(self, values: dict[str, Tensor]) -> Tensor:
        """The value; vectors (..., n), matrices (..., n, n), scalars (...), leading dimensions broadcast."""
        like = next(iter(values.values()))
        size = next(v.shape[-1] for v in values.values() if v.dim())
        results: list[Tensor] = []
        for op, arguments, extra, kind in self.nodes:
            known = values.get(str(extra)) if op in ("A", "b", "x0", "state") else None
            if known is not None:
                results.append(known)
            else:
                shape = {"scalar": (), "vector": (size,), "matrix": (size, size)}[kind]
                kinds = [self.nodes[k][3] for k in arguments]
                results.append(_apply(op, [results[k] for k in arguments], kinds, extra, shape, like))
        return results[-1]


def _apply(
    op: str, args: list[Tensor], kinds: Sequence[str], extra: Any, shape: tuple[int, ...], like: Tensor
) -> Tensor:
    if op == "constant":
        return torch.as_tensor(extra, dtype=like.dtype, device=like.device)
    if op == "zeros":
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    if op == "identity":
        return torch.eye(shape[0], dtype=like.dtype, device=like.device)
    if op in ("add", "multiply", "divide"):
        widest = max(AXES[kind] for kind in kinds)
        u, v = (a.reshape((*a.shape, *[1] * (widest - AXES[k]))) for a, k in zip(args, kinds, strict=True))
        return u + v if op == "add" else u * v if op == "multiply" else u / v
    if op == "matmul":
        u, v = args
        return u @ v if kinds[1] == "matrix" else (u @ v[..., None])[..., 0]
    if op == "transpose":
        return args[0].mT
    if op == "dot":
        return (args[0] * args[1]).sum((-2, -1) if kinds[0] == "matrix" else -1)
    if op == "diag":
        return args[0].diagonal(dim1=-2, dim2=-1)
    if op == "positive":
        return args[0]
    return {"sqrt": torch.sqrt, "exp": torch.exp, "log": torch.log}[op](args[0])


def size(value: Tensor, kind: str) -> Tensor:
    """The Euclidean or Frobenius norm over the axes of a kind, without overflow; (...)."""
    if kind == "scalar":
        return value.abs()
    flat = value.flatten(-2) if kind == "matrix" else value
    largest = flat.abs().amax(-1, keepdim=True)
    safe = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    return (flat / safe).norm(dim=-1) * safe[..., 0]
