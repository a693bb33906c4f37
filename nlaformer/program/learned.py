"""nf.Learned: a part of a program that is left open, to be filled in by training.

The part only proposes; what the program does with the proposal is exact arithmetic, so its guarantees hold whatever the
part says. A call is traced to nodes ``learned``, one for each thing that the part gives; a part in ``step`` has a
hidden state besides, which is made from A in ``start`` and is passed from step to step: its memory.

The network says numbers z, finite and of any size; the program bounds them and makes of them what the part gives.
Positive numbers are e^z with |z| <= 8. "diagonal + rank k" gives a symmetric positive definite M, close to the inverse
of A where it has learned well: with z_0 and k further numbers for each unknown, a_i the diagonal entries of A, and
|z_j| <= 64 for the latter,

    M = (diag(1 / D) + U U^T)^-1,    D_i = e^z_i0 / a_i,    U_ij = z_ij sqrt(a_i).

With these bounds M stays positive definite in the arithmetic of float64, whatever the network says. "dimensionless
diagonal + rank k" is the same with a_i = 1: a program that has another scale than the diagonal of A multiplies by it.

M is never formed: by the formula of Sherman, Morrison and Woodbury, one column after the other,

    M_0 = diag(D),    w_j = M_{j-1} u_j / sqrt(1 + u_j . M_{j-1} u_j),    M_j = M_{j-1} - w_j w_j^T,

which are ordinary operations of the language. ``M @ v`` costs k inner products.

These columns stand for the few largest eigenvalues of A. Where a few small ones are the trouble, as in diffusion, the
columns belong into M itself: "diagonal + coarse k" gives the Jacobi method with an additive coarse correction,

    M = diag(D) + V V^T,    D_i = e^z_i0 / a_i,    V_ij = z_ij / sqrt(a_i).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from nlaformer.errors import OptionError, unknown_name
from nlaformer.program.arrays import Tracing, tracing_of
from nlaformer.program.ir import AXES, Node
from nlaformer.program.language import diag, dot, exp, is_traced, positive, relu, sqrt

_ValueT = TypeVar("_ValueT", bound=Any)
_GIVES = ("vector", "scalar", "positive scalar", "positive diagonal", "diagonal + rank 1", "diagonal + coarse 8")
_PLUS = r"(?:dimensionless )?diagonal \+ (?:rank|coarse) "
_COLUMNS, _RANKED = re.compile(_PLUS + "(.*)"), re.compile(_PLUS + r"([1-9]\d*)")
EXPONENT = 8.0  # the largest |z| of e^z
_COLUMN = 64.0  # the largest entry of a column


@dataclass(frozen=True)
class PartSpec:
    """What a learned part is given and gives, as plain data.

    Attributes
    ----------
    name : its name in the program
    gives : as in ``nf.Learned``
    method : "start" or "step"
    memory : whether its hidden state is passed from step to step
    inputs : the kinds of what it is given beside A, in order
    """

    name: str
    gives: str
    method: str
    memory: bool
    inputs: list[str]

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def rank(self) -> int:
        """The k of "diagonal + rank k" and "diagonal + coarse k", else 0."""
        found = _RANKED.fullmatch(self.gives)
        return int(found[1]) if found else 0

    @property
    def coarse(self) -> bool:
        """Whether the columns are those of M, not of its inverse."""
        return " coarse " in self.gives

    @property
    def dimensionless(self) -> bool:
        """Whether M has no unit: the diagonal of A is then left out of it."""
        return self.gives.startswith("dimensionless")

    @property
    def is_vector(self) -> bool:
        """Whether it gives a vector of any numbers, which is read from one token."""
        return self.gives == "vector"

    @property
    def is_scalar(self) -> bool:
        return self.gives in ("scalar", "positive scalar")

    @property
    def by_token(self) -> bool:
        """Whether it gives a diagonal, perhaps with columns: each token says its own entries."""
        return not self.is_vector and not self.is_scalar

    @property
    def is_positive(self) -> bool:
        """Whether what it says is the logarithm of what it gives."""
        return self.gives.startswith("positive")

    @property
    def outputs(self) -> dict[str, str]:
        """The names of the tensors that it gives, with their kinds; its memory apart."""
        if self.rank:
            return dict.fromkeys(["diagonal", *(f"column{j}" for j in range(1, self.rank + 1))], "vector")
        return {"value": "scalar" if self.is_scalar else "vector"}

    @property
    def memory_name(self) -> str:
        """The name of its hidden state among the states of the program."""
        return f"{self.name}.memory"

    def bound(self, output: str) -> float:
        """The largest absolute value that the program takes from what the network says."""
        if output.startswith("column"):
            return _COLUMN
        return EXPONENT if output == "diagonal" or self.is_positive else math.inf


@dataclass(frozen=True)
class Call:
    """A part in a traced program: its nodes ``memory`` before the first step and after each, and what is said."""

    spec: PartSpec
    nodes: tuple[Node, ...]
    memory: dict[str, tuple[Node, Node]] = field(default_factory=dict)
    said: dict[str, Node] = field(default_factory=dict)


class Learned:
    """A part of a program that training fills in.

    It is an attribute of an ``nf.Program``, of its class or set by ``__init__``, under one name. It is called once, in
    ``start`` (once for each system) or in ``step`` (in every loop), with A and with vectors and scalars that have no
    unit: they must not change when A or b is multiplied by a number, as ``r / nf.norm(r)`` does not. What it gives has
    no unit either, but for "diagonal + rank k". The part is a transformer whose sizes are those of the recipe. It
    computes in float32, the program around it in float64.

    Parameters
    ----------
    gives : "vector", "scalar", "positive scalar", "positive diagonal" (a vector of positive numbers) or
        "diagonal + rank k", k <= n: a symmetric positive definite M in place of A's inverse, to be used as ``M @ r``. M
        may be returned as a state. "diagonal + coarse k" is one whose columns stand for the smallest eigenvalues of A,
        not for the largest. "dimensionless diagonal + ..." is an M without a unit, in place of the inverse of a matrix
        with ones on its diagonal
    memory : whether the part, in ``step``, keeps a hidden state from loop to loop

    Examples
    --------
    >>> import nlaformer as nf
    >>> class Guided(nf.Program):
    ...     positive_definite = True
    ...     propose = nf.Learned("vector", memory=True)
    ...
    ...     def start(self, A, b, x0):
    ...         return dict(x=x0, r=b - A @ x0)
    ...
    ...     def step(self, A, x, r):
    ...         d = self.propose(A, r / nf.norm(r))  # any direction will do: the step along it is the best one
    ...         q = A @ d
    ...         alpha = nf.dot(r, d) / nf.dot(d, q)
    ...         return dict(x=x + alpha * d, r=r - alpha * q)
    >>> Guided.propose
    Learned('vector', memory=True)
    """

    def __init__(self, gives: str, memory: bool = False):
        columns = isinstance(gives, str) and _COLUMNS.fullmatch(gives)
        if columns and not _RANKED.fullmatch(gives):
            raise OptionError(f"{gives!r} has {columns[1]} columns; expected a whole number from 1 on (program.rank)")
        if not isinstance(gives, str) or not (gives in _GIVES or columns):
            raise unknown_name("kind of learned part", gives, _GIVES)
        if not isinstance(memory, bool):
            raise OptionError(f"memory is {memory!r:.40}; expected True or False")
        self.gives, self.memory, self.name = gives, memory, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Learned({self.gives!r}{', memory=True' if self.memory else ''})"

    def __call__(self, A: _ValueT, *values: _ValueT) -> _ValueT:
        """What the part gives for A and further vectors and scalars."""
        tracing = tracing_of(A, *values)
        if (other := next(filter(is_traced, (A, *values)), None)) is not None and tracing is None:
            return other.call_learned(self, [A, *values])
        if tracing is None:
            raise OptionError(
                f"the learned part {self.name or self!r} is not filled in yet; train the program with nf.train, and "
                "run the model that nf.load gives"
            )
        result: Any = _trace(self, tracing, [A, *values])
        return result


class LowRank:
    """M = diag(D) - sum_j w_j w_j^T, or + where ``coarse``, traced or of tensors (..., n); ``M @ v`` is all it can.

    >>> import torch
    >>> M = LowRank.of(torch.tensor([1.0, 0.5]), torch.tensor([1.0, 2.0]))  # (diag(1, 2) + u u^T)^-1
    >>> (M @ torch.tensor([2.0, 2.0])).tolist()  # its first column, 2 and 2
    [1.0, 0.0]
    """

    def __init__(self, diagonal: Any, columns: tuple[Any, ...], coarse: bool = False):
        self.diagonal, self.columns, self.coarse = diagonal, columns, coarse

    @classmethod
    def of(cls, D: Any, *U: Any) -> LowRank:
        """(diag(1 / D) + U U^T)^-1."""
        M = cls(D, ())
        for u in U:
            w = M @ u
            M = cls(D, (*M.columns, w / sqrt(positive(1.0 + _inner(u, w)))))
        return M

    def __matmul__(self, v: Any) -> Any:
        if is_traced(self.diagonal) and (not is_traced(v) or v.ndim != 1):
            raise TypeError(f"M @ {v!r:.40}; the M of a learned part can be multiplied by a vector")
        result = self.diagonal * v
        for w in self.columns:
            part = _inner(w, v) * w
            result = result + part if self.coarse else result - part
        return result

    def states(self, name: str) -> dict[str, Any]:
        """The vectors that stand for M as a state."""
        kind = "coarse" if self.coarse else "column"
        named = {f"{name}.{kind}{j}": column for j, column in enumerate(self.columns, start=1)}
        return {f"{name}.diagonal": self.diagonal, **named}

    @staticmethod
    def from_states(name: str, known: Mapping[str, Any]) -> LowRank | None:
        """The M of those states; None if there are none of that name."""
        if f"{name}.diagonal" not in known:
            return None
        coarse = f"{name}.coarse1" in known
        columns = [key for key in known if key.startswith(f"{name}.coarse" if coarse else f"{name}.column")]
        return LowRank(known[f"{name}.diagonal"], tuple(known[key] for key in columns), coarse)


def _trace(part: Learned, tracing: Tracing, given: list[Any]) -> Any:
    """The nodes of a call; what it gives, as the program uses it."""
    nodes = [tracing.node(value) for value in given]
    for node in nodes[1:]:
        if node.shape not in ((), nodes[0].shape[:1]):
            fits = f"numbers and vectors of length n = {nodes[0].shape[0]}" if nodes[0].shape else "numbers and vectors"
            tracing.refuse(
                f"{part.name}: {node!r} is a {node.kind} of shape {node.shape}; beside A, a learned part takes {fits}"
            )
    spec = PartSpec(part.name, part.gives, tracing.method, part.memory, [list(AXES)[node.ndim] for node in nodes[1:]])
    if problem := _problem(spec, tracing, nodes):
        tracing.refuse(f"{part.name or part!r}: {problem}")
    call = tracing.learned[part.name] = _call(spec, tracing, tuple(nodes))
    said = {name: tracing.array(node) for name, node in call.said.items()}
    if not spec.rank:
        return exp(bounded(said["value"], EXPONENT)) if spec.is_positive else said["value"]
    a = 1.0 if spec.dimensionless else positive(diag(tracing.array(nodes[0])))
    return low_rank(spec.coarse, *factors(spec, said, a))


def _problem(part: PartSpec, tracing: Tracing, nodes: list[Node]) -> str:
    """What is wrong with a call, in words."""
    if not part.name:
        return "a learned part must be an attribute of the program: name = nf.Learned(...) in its class"
    if part.method not in ("start", "step"):
        return f"a learned part can be called in start and step, not in {part.method}"
    if part.memory and part.method == "start":
        return "memory=True is for a part that is called in step; in start it is called once"
    if nodes[0].extra != "A" or nodes[0].ndim != 2:
        return f"the first argument must be A, the program's input; given {nodes[0]!r}"
    n = nodes[0].shape[0]
    if part.rank > n:
        return f"{part.gives!r} for n = {n} unknowns; M has at most n columns, so choose a k up to {n}"
    known = tracing.learned.get(part.name)
    if known is not None and (known.nodes, known.spec.method) != (tuple(nodes), part.method):
        return "a second call; a learned part is called once, in start or in step"
    return ""


def _call(spec: PartSpec, tracing: Tracing, nodes: tuple[Node, ...]) -> Call:
    """A call and its nodes. Its memory is a state of whatever shape the network gives it: () stands for that."""
    memory, arguments, graph = {}, nodes, tracing.graph
    if spec.method == "step":
        before = graph.state(spec.memory_name, ())
        arguments = (*nodes, before)
        begin = graph.make("learned", (nodes[0],), (spec.name, "memory"), ())
        after = graph.make("learned", arguments, (spec.name, "memory"), ()) if spec.memory else before
        memory = {spec.memory_name: (begin, after)}
    n = nodes[0].shape[0]
    said = {
        output: graph.make("learned", arguments, (spec.name, output), (n,) * AXES[kind])
        for output, kind in spec.outputs.items()
    }
    return Call(spec, nodes, memory, said)


def factors(part: PartSpec, said: Mapping[str, _ValueT], a: Any) -> list[_ValueT]:
    """D and the columns, from what the network says and the diagonal entries of A, or 1; traced or tensors."""
    z, *columns = said.values()
    scaled = (bounded(column, _COLUMN) for column in columns)
    return [exp(bounded(z, EXPONENT)) / a, *(v / sqrt(a) if part.coarse else v * sqrt(a) for v in scaled)]


def low_rank(coarse: bool, D: Any, *columns: Any) -> LowRank:
    """The M of D and the columns that ``factors`` gives."""
    return LowRank(D, columns, coarse=True) if coarse else LowRank.of(D, *columns)


def _inner(u: Any, v: Any) -> Any:
    """The inner product; of tensors that of every row, (..., 1)."""
    return dot(u, v) if is_traced(v) else (u * v).sum(-1, keepdim=True)


def bounded(z: Any, bound: float) -> Any:
    return z + relu(-bound - z) - relu(z - bound)  # exactly z within the bound
