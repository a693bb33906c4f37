"""What the rounding of a primitive is relative to: the absolute terms that its last operation adds, summed.

An operation that only moves or selects entries has no rounding; it leaves the operation before it the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nlaformer.program import tensors
from nlaformer.program.ir import Node

# The node, its arguments, the terms of an argument by its number, and the value.
Rule = Callable[[Node, Sequence[Tensor], Callable[[int], Tensor], Tensor], Tensor]


def of_terms(evaluate: tensors.Evaluate) -> Rule:
    """|u| + |v| for u + v, sum |u_i v_i| for u @ v; a constant factor leaves the operation before it the last one."""

    def rule(node: Node, args: Sequence[Tensor], terms: Callable[[int], Tensor], value: Tensor) -> Tensor:
        sizes = [argument.abs() for argument in args]
        if node.op == "multiply" and node.args[0].op == "constant":
            sizes[1] = terms(1)
        return evaluate(node, *sizes)

    return rule


def of_value(node: Node, args: Sequence[Tensor], terms: Callable[[int], Tensor], value: Tensor) -> Tensor:
    return value.abs()


def of_logarithm(node: Node, args: Sequence[Tensor], terms: Callable[[int], Tensor], value: Tensor) -> Tensor:
    """1 and itself: a relative error of the argument is an absolute one of the logarithm."""
    return value.abs() + 1.0


def of_logaddexp(node: Node, args: Sequence[Tensor], terms: Callable[[int], Tensor], value: Tensor) -> Tensor:
    larger = torch.maximum(*tensors.aligned(node, *args))  # max(u, v) + log1p(exp(-|u - v|))
    return larger.abs() + (value - larger)


def of_wave(node: Node, args: Sequence[Tensor], terms: Callable[[int], Tensor], value: Tensor) -> Tensor:
    """A relative error of the argument of sin and cos is an absolute one of their values."""
    return value.abs() + args[0].abs()


def of_choice(node: Node, args: Sequence[Tensor], terms: Callable[[int], Tensor], value: Tensor) -> Tensor:
    """The terms of the larger of two values are its own; so those of the smaller."""
    u, v = tensors.aligned(node, *args)
    first = u >= v if node.op == "maximum" else u <= v
    of_u, of_v = tensors.aligned(node, terms(0), terms(1))
    return torch.where(first, of_u, of_v)


def of_chosen(node: Node, args: Sequence[Tensor], terms: Callable[[int], Tensor], value: Tensor) -> Tensor:
    """Of np.where: the terms of the value that is chosen."""
    c, u, v = tensors.aligned(node, args[0], terms(1), terms(2))
    return torch.where(c != 0, u, v)


def of_largest(node: Node, args: Sequence[Tensor], terms: Callable[[int], Tensor], value: Tensor) -> Tensor:
    """At most the largest of the entries' terms."""
    return tensors.largest(node, terms(0))


SELECTING = (of_choice, of_chosen, of_largest)  # what they give is one of their arguments
