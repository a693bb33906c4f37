r"""Values of an ``Expression`` with a bound on their rounding errors: a running error analysis.

Every node has a computed value v and an error e with |v - exact| <= e for the exact inputs. From the arguments u and w
with their errors, and with u = 2^-53 the unit of rounding, among others (Higham, section 3.3)

    u + w        e = e_u + e_w + u |v|
    u * w        e = |u| e_w + e_u (|w| + e_w) + u |v|
    u / w        e = (e_u + |v| e_w) / (|w| - e_w) + u |v|
    M @ w        e = |M| e_w + e_M (|w| + e_w) + gamma_k |M| |w|
    sqrt(u)      e = min(e_u / sqrt(u), sqrt(e_u)) + u |v|
    exp(u)       e = v (exp(e_u) - 1) + 4 u |v|          log(u)    e = e_u / (u - e_u) + 4 u (1 + |v|)
    max(u, w)    e = max(e_u, e_w)                       tanh(u)   e = e_u + 4 u |v|

and underflow. The library's exp, log and their like are taken to err by no more than two units in the last place. What
cannot be bounded (a quotient by what may be zero, the root of what may be negative) has an infinite error. The bounds
are themselves computed in float64; a factor of 1 + 2^-30 a node covers that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nlaformer.compiler.expression import Expression
from nlaformer.compiler.graph import AXES
from nlaformer.solvers.certificate import UNIT

_UPWARDS = 1 + 2.0**-30
_TINY = 2.0**-1070  # more than a rounded product loses by underflow
_SMALLEST = 2.0**-1021  # more than the smallest number that is rounded with a small relative error


def enclose(expression: Expression, values: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    """One value of an expression in float64 and a bound on its error, entry by entry; the inputs are exact.

    >>> tenth = torch.tensor([0.1, 0.2], dtype=torch.float64)
    >>> square = Expression([["input", [], "b", "vector"], ["multiply", [0, 0], None, "vector"]], {"x": 1})
    >>> value, error = enclose(square, {"b": tenth}, "x")
    >>> bool((error < 2 * UNIT * value).all() and (error > 0).all())
    True
    """
    results = expression.results(values)
    errors: list[Tensor] = []
    for k, (op, arguments, _, _) in enumerate(expression.nodes):
        value = results[k]
        if op not in _RULES:  # inputs and constants, which are exact
            errors.append(torch.zeros_like(value))
            continue
        kinds = [expression.nodes[a][3] for a in arguments]
        args, errs = ([part[a] for a in arguments] for part in (results, errors))
        error = _RULES[op](_Node(expression.nodes[k], kinds, value), args, errs) * _UPWARDS
        errors.append(torch.where(torch.isnan(error), torch.inf, error).expand(value.shape))
    at = expression.outputs[name]
    return results[at], errors[at]


class _Node:
    def __init__(self, node: Any, kinds: Sequence[str], value: Tensor) -> None:
        self.extra, self.kinds, self.value = node[2], kinds, value
        self.rounding = UNIT * value.abs() + _TINY

    def aligned(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Arguments of different kinds, with axes of length one where one has fewer."""
        widest = max(AXES[kind] for kind in self.kinds)
        return [p.reshape((*p.shape, *[1] * (widest - AXES[k]))) for p, k in zip(parts, self.kinds, strict=True)]


_Rule = Callable[[_Node, Sequence[Tensor], Sequence[Tensor]], Tensor]


def _add(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    e, f = node.aligned(errs)
    return e + f + node.rounding


def _multiply(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    (u, w), (e, f) = node.aligned(args), node.aligned(errs)
    return u.abs() * f + e * (w.abs() + f) + node.rounding


def _divide(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    (u, w), (e, f) = node.aligned(args), node.aligned(errs)
    away = w.abs() - f  # from zero
    error = (e + (node.value.abs() + _TINY) * f) / torch.where(away > 0, away, 0.0) + node.rounding
    nothing = (u == 0) & (e == 0) & (w == 0) & (f == 0)  # 0 / 0 is 0
    return torch.where(nothing, 0.0, torch.where(away > 0, error, torch.inf))


def _sums(product: Callable[[Tensor, Tensor], Tensor]) -> _Rule:
    """The rule of a sum of products."""

    def rule(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
        (u, w), (e, f) = args, errs
        terms = w.shape[-1] ** AXES[node.kinds[1]] + 2
        size = product(u.abs(), w.abs())
        inherited = product(u.abs(), f) + product(e, w.abs() + f)
        return inherited + terms * (UNIT * size + _TINY) + node.rounding

    return rule


def _sum(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    (u,), (e,) = args, errs
    return e.sum() + (u.numel() + 2) * (UNIT * u.abs().sum() + _TINY)


def _sqrt(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    (u,), (e,) = args, errs
    near = torch.minimum(torch.where(u > 0, e / u.sqrt(), torch.inf), e.sqrt())
    return torch.where(u - e >= 0, near + node.rounding, torch.inf)


def _no_less(exponential: Tensor) -> Tensor:
    """What exp(u) is at most, up to its relative error: where it underflows, exp(u + e) need not."""
    return exponential.clamp(min=_SMALLEST)


def _log(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    (u,), (e,) = args, errs
    return torch.where(u - e > 0, e / (u - e) + 4 * UNIT * (1 + node.value.abs()), torch.inf)


def _expm1(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    return _no_less(args[0].exp()) * torch.expm1(errs[0]) * (1 + 8 * UNIT) + 4 * node.rounding


def _log1p(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    away = (1 + args[0]) * (1 - 2 * UNIT) - errs[0]  # from the pole
    return torch.where(away > 0, errs[0] / away + 4 * node.rounding, torch.inf)


def _logaddexp(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    return _choice(node, args, errs) + 4 * UNIT * (1 + torch.maximum(*node.aligned(args)).abs())


def _choice(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    return torch.maximum(*node.aligned(errs))


def _sign(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    (u,), (e,) = args, errs
    return torch.where((u.abs() > e) | (e == 0), 0.0, 2.0)


def _triangle(node: _Node, args: Sequence[Tensor], errs: Sequence[Tensor]) -> Tensor:
    side, k = node.extra
    return errs[0].tril(k) if side == "lower" else errs[0].triu(k)


_RULES: dict[str, _Rule] = {
    "add": _add,
    "multiply": _multiply,
    "divide": _divide,
    "matmul": _sums(torch.matmul),
    "dot": _sums(lambda u, w: (u * w).sum()),
    "outer": lambda node, args, errs: (
        args[0].abs()[:, None] * errs[1] + errs[0][:, None] * (args[1].abs() + errs[1]) + node.rounding
    ),
    "sum": _sum,
    "mean": lambda node, args, errs: _sum(node, args, errs) / args[0].numel() + 2 * node.rounding,
    "sqrt": _sqrt,
    "exp": lambda node, args, errs: _no_less(node.value) * (torch.expm1(errs[0]) + 4 * UNIT) * (1 + 8 * UNIT) + _TINY,
    "log": _log,
    "sign": _sign,
    "expm1": _expm1,
    "log1p": _log1p,
    "sinh": lambda node, args, errs: torch.cosh(args[0].abs() + errs[0]) * errs[0] * (1 + 8 * UNIT) + 4 * node.rounding,
    "tanh": lambda node, args, errs: errs[0] + 4 * node.rounding,
    "softplus": lambda node, args, errs: errs[0] + 4 * node.rounding,
    "logaddexp": _logaddexp,
    "hypot": lambda node, args, errs: sum(node.aligned(errs), 4 * node.rounding),
    "maximum": _choice,
    "minimum": _choice,
    # These move or select entries, or have the slope 1 at most.
    "transpose": lambda node, args, errs: errs[0].mT,
    "diag": lambda node, args, errs: errs[0].diagonal(),
    "diagonal": lambda node, args, errs: torch.diag_embed(errs[0]),
    "triangle": _triangle,
    "roll": lambda node, args, errs: errs[0].roll(node.extra, 0),
    "positive": lambda node, args, errs: errs[0],
    "relu": lambda node, args, errs: errs[0],
}
