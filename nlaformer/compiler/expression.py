"""The evaluator: values of a traced program as plain data, computed on batches of tensors.

A program's methods are traced once; from then on every use of it is an ``Expression``: the plain run, the targets of a
teacher, the training of a learned part, the checks beside a compiled run and the program inside a saved model. So all
of them compute the same numbers, batched over any leading axes and differentiable, and none imports the user's class.

A quotient 0 / 0 is 0 and has the gradient 0, as has the root of 0. A method that has converged divides zeros in all
further steps (beta = 0 / 0 of the conjugate gradient method); with NaN there, one converged system would spoil the
gradient of its whole batch. A numerator whose square underflows counts as 0 there, so that r / norm(r) is 0 for every r
whose norm is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nlaformer.compiler.graph import AXES, REARRANGING, Graph, Node, describe, reachable
from nlaformer.compiler.places import Place
from nlaformer.prompt import exponent

# What fills a learned part: its inputs in the order of the call -> its outputs by name.
Part = Callable[..., Mapping[str, Tensor]]


@dataclass(frozen=True)
class Expression:
    """Named values of one graph as plain data, which JSON takes: nodes in order, each [op, arguments, extra, kind].

    Attributes
    ----------
    nodes : the nodes, arguments before what is made of them
    outputs : for each name, the number of its node

    Examples
    --------
    >>> twice = Expression([["input", [], "b", "vector"], ["add", [0, 0], None, "vector"]], {"x": 1})
    >>> twice({"b": torch.tensor([1.0, 2.0])})["x"].tolist()
    [2.0, 4.0]
    """

    nodes: list[Any]
    outputs: dict[str, int]

    @classmethod
    def of(cls, values: Mapping[str, Node]) -> Expression:
        """The values of a graph by name; what they share is evaluated once."""
        nodes = reachable(values.values())
        index = {id(node): k for k, node in enumerate(nodes)}
        plain = [[*_plain(n), n.kind] for n in nodes]
        for node, made in zip(nodes, plain, strict=True):
            made.insert(1, [index[id(argument)] for argument in node.args])
        return cls(plain, {name: index[id(node)] for name, node in values.items()})

    @classmethod
    def read(cls, data: Any) -> Expression:
        """The expression of saved data; older files have one list of nodes for each value, the last of them its own."""
        if isinstance(data, dict) and isinstance(data.get("outputs"), dict):
            return cls(data["nodes"], data["outputs"])._checked()
        if isinstance(data, dict):
            values = data
        elif data and isinstance(data[0][0], str):
            values = {"value": data}
        else:
            values = {str(k): nodes for k, nodes in enumerate(data)}
        nodes: list[Any] = []
        numbers: dict[str, int] = {}  # of nodes by what they say: equal ones are one
        outputs = {}
        for name, own in values.items():
            places: list[int] = []
            for op, arguments, extra, kind in own:
                node = [op, [places[k] for k in arguments], extra, kind]
                places.append(numbers.setdefault(repr(node), len(nodes)))
                nodes += [node] if places[-1] == len(nodes) else []
            outputs[name] = places[-1]
        return cls(nodes, outputs)._checked()

    def _checked(self) -> Expression:
        """Refuse nodes that are no known operations on nodes before them."""
        for k, (op, arguments, _, _) in enumerate(self.nodes):
            if op not in _OPERATIONS and op not in (*_INPUTS, "learned"):
                raise ValueError(f"an operation {op!r}, which this version does not know")
            if not all(0 <= argument < k for argument in arguments):
                raise ValueError(f"node {k} is made of {arguments}")
        if not all(0 <= k < len(self.nodes) for k in self.outputs.values()):
            raise ValueError(f"outputs {self.outputs} of {len(self.nodes)} nodes")
        return self

    def data(self) -> dict[str, Any]:
        """What ``read`` takes."""
        return {"nodes": self.nodes, "outputs": self.outputs}

    @property
    def kinds(self) -> dict[str, str]:
        """Each value's kind: scalar, vector or matrix."""
        return {name: self.nodes[k][3] for name, k in self.outputs.items()}

    def __call__(self, values: Mapping[str, Tensor], parts: Mapping[str, Part] | None = None) -> dict[str, Tensor]:
        """The values; vectors (..., n), matrices (..., n, n), scalars (...), leading dimensions broadcast.

        Parameters
        ----------
        values : inputs and states by name
        parts : what fills the learned parts; each is called once
        """
        results = self.results(values, parts)
        return {name: results[k] for name, k in self.outputs.items()}

    def results(
        self,
        values: Mapping[str, Tensor],
        parts: Mapping[str, Part] | None = None,
        rounded: Callable[[int, Sequence[Tensor]], Tensor] | None = None,
    ) -> list[Tensor]:
        """The value of every node; ``rounded`` gives what a node's operation is taken to have made instead."""
        like, size = next(iter(values.values())), self._size(values)
        results: list[Tensor] = []
        filled: dict[str, Mapping[str, Tensor]] = {}
        for op, arguments, extra, kind in self.nodes:
            if op in _INPUTS:
                results.append(values[extra])
                continue
            args = [results[k] for k in arguments]
            if op == "learned":
                part, output = extra
                if part not in filled:
                    filled[part] = (parts or {})[part](*args)
                results.append(filled[part][output])
                continue
            use = _Use([self.nodes[k][3] for k in arguments], extra, (size,) * AXES[kind], like)
            results.append(_OPERATIONS[op](use, *args))
            if rounded is not None:
                results[-1] = rounded(len(results) - 1, results)
        return results

    def terms(self, number: int, results: Sequence[Tensor]) -> Tensor:
        """The absolute terms that a node's last operation adds, summed: what its rounding is relative to.

        |u| + |v| for u + v, sum |u_i v_i| for dot(u, v). A constant factor and operations that only move or select
        entries leave the operation before them the last one; of the larger of two values it is that of this one. The
        terms of a logarithm are 1 and itself, since a relative error of its argument is an absolute one of the result.
        """
        op, arguments, extra, _ = self.nodes[number]
        args = [results[k] for k in arguments]
        use = _Use([self.nodes[k][3] for k in arguments], extra, (), results[number])
        if op in ("move", "where"):
            known = int(op == "where")  # the condition is as it is
            args[known:] = [self.terms(k, results) for k in arguments[known:]]
            return _OPERATIONS[op](use, *args)
        if op in _EXACT or (op == "multiply" and self.nodes[arguments[0]][0] == "constant"):
            args[-1] = self.terms(arguments[-1], results)
        if op in _EXACT or op in _SUMS:
            return _OPERATIONS[op](use, *(argument.abs() for argument in args))
        if op in _CHOICES:
            u, v = use.aligned(*args)
            first = u >= v if op == "maximum" else u <= v
            of_u, of_v = use.aligned(*(self.terms(k, results) for k in arguments))
            return torch.where(first, of_u, of_v)
        if op == "logaddexp":  # max(u, v) + log1p(exp(-|u - v|))
            larger = torch.maximum(*use.aligned(*args))
            return larger.abs() + (results[number] - larger)
        if op in ("sin", "cos"):  # a relative error of the argument is an absolute one
            return results[number].abs() + args[0].abs()
        return results[number].abs() + (1.0 if op == "log" else 0.0)

    def magnitudes(self, results: Sequence[Tensor]) -> list[Tensor]:
        """At most so large would every node be if nothing cancelled: (|x| + |b|) |c| for (x - b) c."""
        found: list[Tensor] = []
        for number, (op, arguments, extra, _) in enumerate(self.nodes):
            args = [found[k] for k in arguments]
            if op == "divide":  # by what it is
                args[1] = results[arguments[1]].abs()
            use = _Use([self.nodes[k][3] for k in arguments], extra, (), results[number])
            if op in ("log", "sin", "cos", "arctan") or not arguments:
                found.append(self.terms(number, results))
            else:
                found.append(_OPERATIONS["maximum" if op == "minimum" else op](use, *args))
        return found

    def underflows(self, results: Sequence[Tensor]) -> Tensor:
        """Whether a product on the way to the values is lost below the smallest normal number; (...)."""
        found = torch.zeros((), dtype=torch.bool, device=results[0].device)
        for number, (op, arguments, extra, kind) in enumerate(self.nodes):
            if op not in ("multiply", "matmul", "dot", "outer", "vecmat"):
                continue
            use = _Use([self.nodes[k][3] for k in arguments], extra, (), results[number])
            sizes = [results[k].abs() for k in arguments]
            terms, counts = (_OPERATIONS[op](use, *args) for args in (sizes, [(v > 0).to(v) for v in sizes]))
            lost = (terms < torch.finfo(terms.dtype).smallest_normal) & (counts > 0)
            found = found | (lost.flatten(-AXES[kind]).any(-1) if AXES[kind] else lost)
        return found

    def below(self, name: str) -> set[int]:
        """The numbers of an output's node and of all that it is made of."""
        found, open_ = set(), {self.outputs[name]}
        while open_:
            found |= open_
            open_ = {argument for number in open_ for argument in self.nodes[number][1]} - found
        return found

    def only(self, *names: str) -> Expression:
        """The expression of some of the outputs."""
        numbers = sorted(set[int]().union(*(self.below(name) for name in names)))
        place = {number: k for k, number in enumerate(numbers)}
        kept = (self.nodes[number] for number in numbers)
        nodes = [[op, [place[k] for k in arguments], extra, kind] for op, arguments, extra, kind in kept]
        return Expression(nodes, {name: place[self.outputs[name]] for name in names})

    def spelled(self, number: int) -> str:
        """A node as a user would type it."""
        made: list[Node] = []
        for op, arguments, extra, kind in self.nodes[: number + 1]:
            made.append(Node(Graph(), op, tuple(made[k] for k in arguments), extra, kind, Place("", 0)))
        return describe(made[number])

    def __bool__(self) -> bool:
        return bool(self.outputs)

    def _size(self, values: Mapping[str, Tensor]) -> int:
        """The n of the values: of a vector or matrix that is used or, where only its shape is, of the first given."""
        used = (values[extra] for op, _, extra, kind in self.nodes if op in _INPUTS and kind != "scalar")
        given = (value for value in values.values() if value.dim())
        return next((value.shape[-1] for value in (*used, *given)), 1)

    def value(self, values: Mapping[str, Tensor]) -> Tensor:
        """The value of an expression that has one."""
        (result,) = self(values).values()
        return result


EMPTY = Expression([], {})


def _plain(node: Any) -> tuple[str, Any]:
    """The operation of a node and its ``extra``; those of ``program/``, which has shapes, in the names used here."""
    if isinstance(node, Node):
        return node.op, node.extra
    if node.op == "constant":
        return "constant", node.extra.tolist()
    if node.op == "matmul":
        named = {(1, 1): "dot", (1, 2): "vecmat"}
        return named.get(tuple(argument.ndim for argument in node.args), "matmul"), None
    if node.op == "move":
        shapes = [list(argument.shape) for argument in node.args]
        return "move", [node.extra.ravel().tolist(), list(node.shape), shapes]
    if node.op in _REDUCED:
        return _REDUCED[node.op], [[axis - node.args[0].ndim for axis in node.extra[0]], node.extra[1]]
    return node.op, node.extra


@dataclass(frozen=True)
class _Use:
    """A node beside its arguments: their kinds, its constant, its shape, and a tensor of the dtype and device."""

    kinds: Sequence[str]
    extra: Any
    shape: tuple[int, ...]
    like: Tensor

    def aligned(self, *args: Tensor) -> list[Tensor]:
        """Arguments of different kinds, with axes of length one before their own where one has fewer."""
        own = [AXES[kind] for kind in self.kinds]
        shapes = [(a.shape[: a.dim() - k], a.shape[a.dim() - k :]) for a, k in zip(args, own, strict=True)]
        widest = max(own)
        return [
            a.reshape((*systems, *[1] * (widest - len(axes)), *axes))
            for a, (systems, axes) in zip(args, shapes, strict=True)
        ]


def _constant(use: _Use) -> Tensor:
    # By way of float64: what is beyond the range of single precision is infinite there, and no error.
    return torch.tensor(use.extra, dtype=torch.float64, device=use.like.device).to(use.like.dtype)


def _full(number: float) -> Callable[[_Use], Tensor]:
    return lambda use: torch.full(use.shape, number, dtype=use.like.dtype, device=use.like.device)


def _divide(use: _Use, u: Tensor, v: Tensor) -> Tensor:
    u, v = use.aligned(u, v)
    nothing = (v == 0) & (u * u == 0)
    # The inner replacement keeps the gradient of what is thrown away finite: NaN times 0 is NaN.
    return torch.where(nothing, 0.0, u / torch.where(nothing, 1.0, v))


def _sqrt(use: _Use, v: Tensor) -> Tensor:
    nothing = v == 0
    return torch.where(nothing, 0.0, torch.where(nothing, 1.0, v).sqrt())


def _hypot(use: _Use, u: Tensor, v: Tensor) -> Tensor:
    u, v = use.aligned(u, v)
    nothing = (u == 0) & (v == 0)
    return torch.where(nothing, 0.0, torch.hypot(torch.where(nothing, 1.0, u), v))


def _pairwise(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda use, u, v: function(*use.aligned(u, v))


def _matmul(use: _Use, u: Tensor, v: Tensor) -> Tensor:
    if use.kinds[1] == "matrix":
        return u @ v
    if u.dim() == v.dim() + 1 and u.dim() > 2 and u.shape[-3] == 1 < v.shape[-2]:
        return v @ u[..., 0, :, :].mT  # one matrix for all vectors of an axis: it need not be repeated for each
    return (u @ v[..., None])[..., 0]


def _axes(use: _Use) -> tuple[int, ...]:
    """The axes of the first argument's entries."""
    return (-2, -1) if use.kinds[0] == "matrix" else (-1,)


def _dot(use: _Use, u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(_axes(use))


def _roll(use: _Use, v: Tensor) -> Tensor:
    axis = -AXES[use.kinds[0]]
    return v.roll(use.extra % v.shape[axis], axis)  # a whole number of any size


def _triangle(use: _Use, M: Tensor) -> Tensor:
    side, k = use.extra
    return M.tril(k) if side == "lower" else M.triu(k)


def _move(use: _Use, *args: Tensor) -> Tensor:
    positions, shape, shapes = use.extra
    systems = torch.broadcast_shapes(*(a.shape[: a.dim() - len(s)] for a, s in zip(args, shapes, strict=True)))
    flat = [a.expand((*systems, *s)).reshape((*systems, -1)) for a, s in zip(args, shapes, strict=True)]
    entries = torch.cat([*flat, flat[0].new_zeros(()).expand((*systems, 1))], -1)  # 0 at the position -1
    return entries[..., torch.tensor(positions, device=entries.device)].reshape((*systems, *shape))


def _where(use: _Use, c: Tensor, u: Tensor, v: Tensor) -> Tensor:
    c, u, v = use.aligned(c, u, v)
    return torch.where(c != 0, u, v)


# Reductions of program/, over axes that are counted from the end.
_REDUCED = {"sum": "total", "max": "largest", "min": "smallest"}
# Names of values that the caller gives. A, b and x0 are operations of their own in older files.
_INPUTS = ("input", "state", "A", "b", "x0")
# Operations that add terms: the sum of the absolute ones is the operation on absolute values.
_SUMS = frozenset({"add", "multiply", "divide", "matmul", "dot", "sum", "mean", "outer", "vecmat", "total"})
# Operations that move or select entries.
_EXACT = REARRANGING | {"positive", "relu"}
# Operations that give one of their arguments.
_CHOICES = frozenset({"maximum", "minimum"})
_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "constant": _constant,
    "zeros": _full(0.0),
    "ones": _full(1.0),
    "identity": lambda use: torch.eye(use.shape[0], dtype=use.like.dtype, device=use.like.device),
    "add": _pairwise(torch.add),
    "multiply": _pairwise(torch.multiply),
    "divide": _divide,
    "matmul": _matmul,
    "transpose": lambda use, M: M.mT,
    "dot": _dot,
    "outer": lambda use, u, v: u[..., :, None] * v[..., None, :],
    "diag": lambda use, M: M.diagonal(dim1=-2, dim2=-1),
    "diagonal": lambda use, v: torch.diag_embed(v),
    "triangle": _triangle,
    "roll": _roll,
    "sum": lambda use, v: v.sum(_axes(use)),
    "mean": lambda use, v: v.mean(_axes(use)),
    "sqrt": _sqrt,
    "exp": lambda use, v: v.exp(),
    "log": lambda use, v: v.log(),
    "positive": lambda use, v: v,
    "relu": lambda use, v: v.relu(),
    "sign": lambda use, v: v.sign(),
    "expm1": lambda use, v: v.expm1(),
    "log1p": lambda use, v: v.log1p(),
    "sinh": lambda use, v: v.sinh(),
    "tanh": lambda use, v: v.tanh(),
    "softplus": lambda use, v: torch.logaddexp(v, torch.zeros_like(v)),
    "maximum": _pairwise(torch.maximum),
    "minimum": _pairwise(torch.minimum),
    "logaddexp": _pairwise(torch.logaddexp),
    "hypot": _hypot,
    "move": _move,
    "where": _where,
    "vecmat": lambda use, v, M: _matmul(_Use(["matrix", "vector"], None, use.shape, use.like), M.mT, v),
    "total": lambda use, v: v.sum(use.extra[0], keepdim=use.extra[1]),
    "largest": lambda use, v: v.amax(use.extra[0], keepdim=use.extra[1]),
    "smallest": lambda use, v: v.amin(use.extra[0], keepdim=use.extra[1]),
    "sin": lambda use, v: v.sin(),
    "cos": lambda use, v: v.cos(),
    "arctan": lambda use, v: v.arctan(),
}


def size(value: Tensor, kind: str) -> Tensor:
    """The Euclidean or Frobenius norm over the axes of a kind, squares without overflow; (...)."""
    if kind == "scalar":
        return value.abs()
    flat = value.flatten(-2) if kind == "matrix" else value
    largest = flat.abs().amax(-1, keepdim=True)
    safe = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    return (flat / safe).norm(dim=-1) * safe[..., 0]


def size_exponent(value: Tensor, kind: str) -> Tensor:
    """The exponent of the size, also where the size itself is beyond the largest number; (...)."""
    found = size(value, kind)
    e = torch.where(found.isfinite(), exponent(found), 64 + exponent(size(value * 2.0**-64, kind)))
    return e.to(torch.int64)
