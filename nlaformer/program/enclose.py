r"""The rules of a running error analysis, one for each primitive (``Primitive.enclose``).

Every node has a computed value v and an error e with |v - exact| <= e. From the arguments u and w with their errors,
and with u = 2^-53 the unit of rounding, among others (Higham, section 3.3)

    u + w        e = e_u + e_w + u |v|
    u * w        e = |u| e_w + e_u (|w| + e_w) + u |v|
    u / w        e = (e_u + |v| e_w) / (|w| - e_w) + u |v|
    M @ w        e = |M| e_w + e_M (|w| + e_w) + gamma_k |M| |w|
    sqrt(u)      e = min(e_u / sqrt(u), sqrt(e_u)) + u |v|
    exp(u)       e = v (exp(e_u) - 1) + 4 u |v|          log(u)    e = e_u / (u - e_u) + 4 u (1 + |v|)
    max(u, w)    e = max(e_u, e_w)                       tanh(u)   e = e_u + 4 u |v|

and underflow. The library's exp, log and their like are taken to err by no more than two units in the last place. What
cannot be bounded (a quotient by what may be zero, the root of what may be negative) has an infinite error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nlaformer.program.ir import Node
from nlaformer.program.tensors import aligned, matmul, move, total
from nlaformer.program.tensors import largest as _largest

UNIT = 2.0**-53
_TINY = 2.0**-1070  # more than a rounded product loses by underflow
_SMALLEST = 2.0**-1021  # more than the smallest number that is rounded with a small relative error
# The node, its arguments, their errors, and its value; what comes out is the error of the value.
Rule = Callable[[Node, Sequence[Tensor], Sequence[Tensor], Tensor], Tensor]


def rounding(value: Tensor) -> Tensor:
    return UNIT * value.abs() + _TINY


def add(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    e, f = aligned(node, *errs)
    return e + f + rounding(value)


def multiply(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    (u, w), (e, f) = aligned(node, *args), aligned(node, *errs)
    return u.abs() * f + e * (w.abs() + f) + rounding(value)


def divide(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    (u, w), (e, f) = aligned(node, *args), aligned(node, *errs)
    away = w.abs() - f  # from zero
    error = (e + (value.abs() + _TINY) * f) / torch.where(away > 0, away, 0.0) + rounding(value)
    nothing = (u == 0) & (e == 0) & (w == 0) & (f == 0)  # 0 / 0 is 0
    return torch.where(nothing, 0.0, torch.where(away > 0, error, torch.inf))


def product(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    """Of a product of matrices and vectors."""
    (u, w), (e, f) = args, errs
    size = matmul(node, u.abs(), w.abs())
    inherited = matmul(node, u.abs(), f) + matmul(node, e, w.abs() + f)
    return inherited + (node.args[0].shape[-1] + 2) * (UNIT * size + _TINY) + rounding(value)


def summed(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    terms = node.args[0].size // max(node.size, 1) + 2
    return total(node, errs[0]) + terms * (UNIT * total(node, args[0].abs()) + _TINY)


def sqrt(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    (u,), (e,) = args, errs
    near = torch.minimum(torch.where(u > 0, e / u.sqrt(), torch.inf), e.sqrt())
    return torch.where(u - e >= 0, near + rounding(value), torch.inf)


def _no_less(exponential: Tensor) -> Tensor:
    """What exp(u) is at most, up to its relative error: where it underflows, exp(u + e) need not."""
    return exponential.clamp(min=_SMALLEST)


def exp(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    return _no_less(value) * (torch.expm1(errs[0]) + 4 * UNIT) * (1 + 8 * UNIT) + _TINY


def expm1(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    return _no_less(args[0].exp()) * torch.expm1(errs[0]) * (1 + 8 * UNIT) + 4 * rounding(value)


def log(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    (u,), (e,) = args, errs
    return torch.where(u - e > 0, e / (u - e) + 4 * UNIT * (1 + value.abs()), torch.inf)


def log1p(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    away = (1 + args[0]) * (1 - 2 * UNIT) - errs[0]  # from the pole
    return torch.where(away > 0, errs[0] / away + 4 * rounding(value), torch.inf)


def sinh(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    return torch.cosh(args[0].abs() + errs[0]) * errs[0] * (1 + 8 * UNIT) + 4 * rounding(value)


def slope_one(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    """Of a function of slope at most 1 in each argument."""
    return sum(aligned(node, *errs), 4 * rounding(value))


def sign(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    (u,), (e,) = args, errs
    return torch.where((u.abs() > e) | (e == 0), 0.0, 2.0)


def larger(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    """Of the larger or the smaller of two values."""
    return torch.maximum(*aligned(node, *errs))


def logaddexp(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    return larger(node, args, errs, value) + 4 * UNIT * (1 + torch.maximum(*aligned(node, *args)).abs())


def where(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    """Of the value that is chosen; of either, where it is not certain which."""
    (c, u, w), (d, e, f) = aligned(node, *args), aligned(node, *errs)
    return torch.where(d == 0, torch.where(c != 0, e, f), (u - w).abs() + e + f)


def first(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    """Of a function that takes no error further than it is."""
    return errs[0]


def moved(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    """Of entries that stand elsewhere."""
    return move(node, *errs)


def largest(node: Node, args: Sequence[Tensor], errs: Sequence[Tensor], value: Tensor) -> Tensor:
    """Of the largest or the smallest entry."""
    return _largest(node, errs[0])
