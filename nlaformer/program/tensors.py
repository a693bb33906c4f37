"""Values of primitives on tensors: batched over any leading axes, and differentiable.

A node's own axes are the last ones of its tensor; the axes before them count systems, and are broadcast.

A quotient 0 / 0 is 0 and has the gradient 0, as has the root of 0. A method that has converged divides zeros in all
further steps (beta = 0 / 0 of the conjugate gradient method); with NaN there, one converged system would spoil the
gradient of its whole batch. A numerator whose square underflows counts as 0 there, so that r / norm(r) is 0 for every r
whose norm is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nlaformer.program.ir import Node

Evaluate = Callable[..., Tensor]  # of a node and its arguments


def aligned(node: Node, *args: Tensor) -> list[Tensor]:
    """Arguments with axes of length one before their own, where they have fewer than others."""
    widest = max(argument.ndim for argument in node.args)
    return [_widened(a, argument.ndim, widest) for a, argument in zip(args, node.args, strict=True)]


def _widened(value: Tensor, own: int, widest: int) -> Tensor:
    if own == widest:
        return value
    systems = value.dim() - own
    return value.reshape((*value.shape[:systems], *[1] * (widest - own), *value.shape[systems:]))


def entrywise(function: Callable[..., Tensor]) -> Evaluate:
    """A function of one value, or of several that are broadcast."""
    return lambda node, *args: function(*aligned(node, *args))


def constant(node: Node, like: Tensor) -> Tensor:
    """The numbers of a constant in the dtype and on the device of another tensor."""
    # By way of float64: what is beyond the range of single precision is infinite there, and no error.
    return torch.tensor(node.listed, dtype=torch.float64, device=like.device).to(like.dtype)


def divide(node: Node, u: Tensor, v: Tensor) -> Tensor:
    u, v = aligned(node, u, v)
    nothing = (v == 0) & (u * u == 0)
    # The inner replacement keeps the gradient of what is thrown away finite: NaN times 0 is NaN.
    return torch.where(nothing, 0.0, u / torch.where(nothing, 1.0, v))


def sqrt(node: Node, v: Tensor) -> Tensor:
    nothing = v == 0
    return torch.where(nothing, 0.0, torch.where(nothing, 1.0, v).sqrt())


def hypot(node: Node, u: Tensor, v: Tensor) -> Tensor:
    u, v = aligned(node, u, v)
    nothing = (u == 0) & (v == 0)
    return torch.where(nothing, 0.0, torch.hypot(torch.where(nothing, 1.0, u), v))


def where(node: Node, c: Tensor, u: Tensor, v: Tensor) -> Tensor:
    c, u, v = aligned(node, c, u, v)
    return torch.where(c != 0, u, v)


def matmul(node: Node, u: Tensor, v: Tensor) -> Tensor:
    """NumPy's products: of vectors, of matrices and vectors, of (stacks of) matrices."""
    left, right = (argument.ndim for argument in node.args)
    if left == right == 1:
        return (u * v).sum(-1)
    if left == 1:
        return _applied(v.mT, u) if right == 2 else (_widened(u[..., None, :], 2, right) @ v)[..., 0, :]
    if right == 1:
        return _applied(u, v) if left == 2 else (u @ _widened(v[..., None], 2, left))[..., 0]
    return torch.matmul(*aligned(node, u, v))


def _applied(M: Tensor, v: Tensor) -> Tensor:
    if M.dim() == v.dim() + 1 and M.dim() > 2 and M.shape[-3] == 1 < v.shape[-2]:
        return v @ M[..., 0, :, :].mT  # one matrix for all vectors of an axis: it need not be repeated for each
    return (M @ v[..., None])[..., 0]


def _axes(node: Node) -> list[int]:
    """The axes that a node is a sum, or the largest entry, over; counted from the end."""
    return [axis - node.args[0].ndim for axis in node.extra[0]]


def total(node: Node, v: Tensor) -> Tensor:
    return v.sum(_axes(node), keepdim=node.extra[1])


def largest(node: Node, v: Tensor) -> Tensor:
    return v.amax(_axes(node), keepdim=node.extra[1])


def smallest(node: Node, v: Tensor) -> Tensor:
    return v.amin(_axes(node), keepdim=node.extra[1])


def move(node: Node, *args: Tensor) -> Tensor:
    if node.moves_as == "transpose":
        return args[0].mT
    systems = torch.broadcast_shapes(*(a.shape[: a.dim() - k.ndim] for a, k in zip(args, node.args, strict=True)))
    flat = [a.expand((*systems, *k.shape)).reshape((*systems, k.size)) for a, k in zip(args, node.args, strict=True)]
    if node.moves_as != "reshape":
        nothing = flat[0].new_zeros(()).expand(*systems, 1)  # at the position -1
        positions = torch.tensor(node.listed, device=flat[0].device)
        flat = [torch.cat([*flat, nothing], -1)[..., positions]]
    return flat[0].reshape((*systems, *node.shape))


def size(value: Tensor, axes: int) -> Tensor:
    """The Euclidean or Frobenius norm over so many last axes, squares without overflow; (...)."""
    if not axes:
        return value.abs()
    flat = value.flatten(-axes)
    largest = flat.abs().amax(-1, keepdim=True)
    safe = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    return (flat / safe).norm(dim=-1) * safe[..., 0]
