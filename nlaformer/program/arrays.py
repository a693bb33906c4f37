"""What the methods of a program hold while they are traced: arrays of any shape that behave as NumPy's do.

An ``Array`` points to a node of the graph. Operators give new arrays. Operators in place (``x += d``, ``x[:] = d``,
``out=x``) change where the array points, so that every name of it sees the change; a scalar, which NumPy cannot change,
gets a new value. A view is its owner and the places of its entries there: it is read from what the owner is now, and
what is written into it is written into the owner. Places are arrays of NumPy themselves, counted from 1: NumPy's own
indexing tells which they are, and whether they are a view.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

from nlaformer.program import refusals
from nlaformer.program.ir import Graph, Line, Node, RefusedError, describe
from nlaformer.program.primitives import PRIMITIVES, apply
from nlaformer.program.source import calling, calling_library
from nlaformer.program.text import Text


@dataclass
class Tracing:
    """What the arrays of one program share.

    Attributes
    ----------
    call : carries out a function of a library, by name (``numpy.py``)
    method : that is being traced
    names : of the program's constants, by id
    uses_torch : functions of torch were called, which take no NumPy arrays
    problem : the first that was met, with its line
    learned : the calls of learned parts, by name
    """

    graph: Graph
    call: Callable[..., Any]
    method: str = ""
    names: dict[int, str] = field(default_factory=dict)
    uses_torch: bool = False
    problem: tuple[Line, str] | None = None
    learned: dict[str, Any] = field(default_factory=dict)

    def refuse(self, message: str, line: Line | None = None) -> NoReturn:
        """Note a problem, and end the tracing of the method."""
        self.problem = self.problem or (line or self.graph.line(), message)
        raise RefusedError(message)

    def array(self, node: Node, truth: bool = False) -> Array:
        return Array(self, node, truth=truth)

    def constant(self, value: Any) -> Array:
        """An array of numbers that takes traced values."""
        return Array(self, self.graph.constant(value), truth=np.asarray(value).dtype == bool)

    def node(self, value: Any) -> Node:
        """The node of an array, of numbers, or of a nest of these."""
        if isinstance(value, (Array, Node)):
            return value.node if isinstance(value, Array) else value
        if holds_array(value):
            return self.made(value).node
        given = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        if not isinstance(given, (int, float, np.generic, np.ndarray, list, tuple)):
            raise RefusedError(
                f"a {type(value).__name__} ({value!r:.40}) among traced values; constants are numbers and their arrays"
            )
        array = np.asarray(given)
        if array.dtype.kind not in "biuf":
            raise RefusedError(f"an array of {array.dtype}; constants are real numbers")
        if array.dtype.kind in "iu" and (array.astype(float).astype(array.dtype) != array).any():
            raise RefusedError(f"the constant {value!r:.40}, which float64 does not hold exactly; write a float")
        if not np.isfinite(array).all():
            raise RefusedError(f"the constant {value!r:.40}; constants must be finite")
        return self.graph.constant(array)

    def made(self, value: Any) -> Array:
        """What np.array makes of a nest of traced values and numbers."""
        if isinstance(value, Array):
            return value.copy()
        if isinstance(value, np.ndarray) and value.dtype == object:
            value = list(value) if value.ndim else value.item()
        if not isinstance(value, (list, tuple)) or not holds_array(value):
            return self.array(self.node(value))
        parts = [self.made(part) for part in value]
        if len({part.shape for part in parts}) > 1:
            raise ValueError(f"np.array of parts of the shapes {sorted({part.shape for part in parts})}")
        nodes = [part.node for part in parts]
        return self.array(self.graph.move(nodes, np.arange(len(parts) * parts[0].size).reshape(-1, *parts[0].shape)))


def holds_array(value: Any) -> bool:
    """Whether a value is an array that is traced, or a nest with one in it."""
    if isinstance(value, (list, tuple)):
        return any(map(holds_array, value))
    if isinstance(value, np.ndarray) and value.dtype == object:
        return any(map(holds_array, value.ravel()))
    return isinstance(value, Array)


def tracing_of(*values: Any) -> Tracing | None:
    """What the traced arrays among values share; None if there are none."""
    for value in values:
        if isinstance(value, Array):
            return value.tracing
        if isinstance(value, (list, tuple)) and (found := tracing_of(*value)) is not None:
            return found
    return None


class Array(NDArrayOperatorsMixin):
    """An array in a traced program; with ``owner`` and ``places`` a view of another one.

    ``truth``: it holds truth values. ``fixed``: NumPy makes such a view read-only, as a diagonal.
    """

    __array_priority__ = 1000.0

    def __init__(
        self,
        tracing: Tracing,
        node: Node | None = None,
        owner: Array | None = None,
        places: np.ndarray | None = None,
        truth: bool = False,
        fixed: bool = False,
    ):
        self.tracing, self._node, self._owner, self._places = tracing, node, owner, places
        self.truth, self.fixed, self._seen = truth, fixed, (node, node)

    @property
    def node(self) -> Node:
        if self._owner is None:
            assert self._node is not None
            return self._node
        source = self._owner.node
        if self._seen[0] is not source:  # the owner has changed since
            self._seen = source, self.tracing.graph.move((source,), self.places - 1)
        assert self._seen[1] is not None
        return self._seen[1]

    @property
    def owner(self) -> Array:
        return self if self._owner is None else self._owner

    @property
    def places(self) -> np.ndarray:
        """Where the entries are in the owner, counted from 1."""
        if self._places is None:
            self._places = np.arange(1, self.node.size + 1).reshape(self.node.shape)
        return self._places

    def view(self, places: np.ndarray, fixed: bool = False) -> Array:
        return Array(self.tracing, owner=self.owner, places=places, truth=self.truth, fixed=fixed or self.fixed)

    def apply(self, op: str, *others: Any, extra: Any = None) -> Array:
        """A primitive of this and other values."""
        nodes = (self.node, *map(self.tracing.node, others))
        return self.tracing.array(apply(self.tracing.graph, op, *nodes, extra=extra), PRIMITIVES[op].truth)

    def become(self, other: Any) -> Array:
        """The same array with new entries; a scalar cannot be changed, and is replaced."""
        if not self.shape:
            return self.tracing.array(self.tracing.node(other))
        if (shape := self.tracing.node(other).shape) != self.shape:
            raise ValueError(f"an array of shape {self.shape} changed in place into one of shape {shape}")
        self[...] = other
        return self

    def copy(self, order: Any = None) -> Array:
        return self.tracing.array(self.node, self.truth)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> Array:
        return self.copy()

    # Parts.

    def __getitem__(self, index: Any) -> Array:
        picked = self.places[self._plain(index)]
        if np.ndim(picked) and np.may_share_memory(picked, self.places):
            return self.view(picked)
        return self.tracing.array(self.tracing.graph.move((self.owner.node,), np.asarray(picked) - 1), self.truth)

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.fixed:
            raise ValueError("assignment destination is read-only")
        if isinstance(index, Array) and index.truth and index.node.op != "constant":
            index, value = ..., np.where(index, value, self)
        places = np.asarray(self.places[self._plain(index)])
        owner, new = self.owner, self.tracing.node(value)
        old = owner.node
        entries = np.arange(old.size, old.size + new.size).reshape(new.shape)
        while entries.ndim > places.ndim and len(entries) == 1:
            entries = entries[0]
        positions = np.arange(old.size)
        try:
            positions[places.ravel() - 1] = np.broadcast_to(entries, places.shape).ravel()
        except ValueError:
            raise ValueError(f"an array of shape {new.shape} assigned to a part of shape {places.shape}") from None
        owner._node = self.tracing.graph.move((old, new), positions.reshape(old.shape))

    def _plain(self, index: Any) -> Any:
        """An index of numbers; it must not depend on data."""
        if isinstance(index, tuple):
            return tuple(map(self._plain, index))
        if not holds_array(index):
            return index
        node = self.tracing.node(index)
        if node.op != "constant":
            self.tracing.refuse(refusals.MASK if isinstance(index, Array) and index.truth else refusals.INDEX)
        return node.extra.astype(bool) if isinstance(index, Array) and index.truth else node.extra

    def __iter__(self) -> Iterator[Array]:
        """The entries of a vector, the rows of a matrix."""
        if not self.shape or calling_library():
            self._refuse_use("a loop over the entries of a scalar")
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a scalar")
        return self.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape if self._places is None else self._places.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    @property
    def dtype(self) -> Any:
        return np.dtype(bool if self.truth else float)

    @property
    def T(self) -> Any:
        return np.transpose(self)  # type: ignore[call-overload]

    @property
    def mT(self) -> Any:
        return np.swapaxes(self, -1, -2)  # type: ignore[call-overload]

    @property
    def real(self) -> Array:
        return self

    # What would need the numbers, which are known only of constants.

    def _number(self, otherwise: Callable[[], str]) -> Any:
        if self.node.op == "constant":
            return self.node.extra
        self.tracing.refuse(otherwise())

    def __bool__(self) -> bool:
        return bool(self._number(lambda: refusals.decision(calling())))

    def __float__(self) -> float:
        return float(self._number(lambda: refusals.number_wanted(calling())))

    def __int__(self) -> int:
        return int(self.__float__())

    def __index__(self) -> int:
        self.__float__()
        raise TypeError("a float where Python takes a whole number")

    __trunc__ = __floor__ = __ceil__ = __int__

    def __complex__(self) -> complex:
        return complex(self.__float__())

    def __round__(self, digits: int = 0) -> float:
        return round(self.__float__(), digits)

    def __hash__(self) -> int:
        self.tracing.refuse(refusals.KEY)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.tracing.refuse("a value called like a function")

    def _refuse_use(self, otherwise: str) -> NoReturn:
        """Refuse what a function of a library does with a value, by the function's name, or what a line does."""
        name = calling_library()
        instead = f"{name} takes arrays of numbers alone; {refusals.remedy(name)}"
        self.tracing.refuse(instead if name else otherwise)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self.node.op == "constant":
            return self.node.extra.astype(dtype or self.dtype)
        name = calling()
        if (known := refusals.remedy(name)) != refusals.OTHERWISE:  # a function of NumPy's that is given a list
            self._refuse_use(f"{name}: {known}")
        self._refuse_use(refusals.number_wanted(name) if name in ("np.float64", "np.float32") else refusals.ARRAY)

    def __repr__(self) -> str:
        return Text.of(self.tracing.refuse, describe(self.node))

    def __format__(self, specification: str) -> str:
        return repr(self)  # so that a step may print what it computes

    # NumPy's protocols, torch's, methods, and the functions of nf.

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        library = "np" if hasattr(np, ufunc.__name__) else "scipy.special"
        return self.tracing.call(self.tracing, library, name, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        inner = function.__module__.removeprefix("numpy").removeprefix(".")
        name = f"{inner}.{function.__name__}" if inner else function.__name__
        return self.tracing.call(self.tracing, "np", name, args, options)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        tracing = tracing_of(*args, *(options or {}).values())
        assert tracing is not None
        name = getattr(function, "__name__", "function").replace("linalg_", "linalg.")
        return tracing.call(tracing, "torch", name, args, options or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not (hasattr(np.ndarray, name) or hasattr(torch.Tensor, name)):
            raise AttributeError(f"a traced array has no {name}")
        return functools.partial(self._method, name)

    def _method(self, name: str, *args: Any, **options: Any) -> Any:
        return self.tracing.call(self.tracing, "", name, (self, *args), options)

    def nf(self, name: str, *args: Any) -> Any:
        """A function of nf, by name."""
        return self.tracing.call(self.tracing, "nf", name, args, {})
