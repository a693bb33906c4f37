"""What the methods of a program hold while they are traced: values that behave as NumPy's arrays do.

A ``Value`` points to a node of the graph. Operators give new values; in-place operators (``x += d``, ``x[:] = d``,
``out=x``) change where the value points, so that every name of the same array sees the change; a scalar, which NumPy
cannot change, gets a new value. ``A.T``, ``np.diag(A)`` and the rows ``A[i]`` are views. An entry is an inner product
with a unit vector, ``x[i] = e_i . x``. What cannot be compiled is noted with its line, and tracing continues with a
refused value, so that ``CompileError`` can list everything at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from nlaformer.compiler.entries import is_by_columns, numbers_of, part, with_part
from nlaformer.compiler.graph import AXES, Graph, Node, describe
from nlaformer.compiler.places import calling, calling_library
from nlaformer.compiler.refusals import ARRAY, DECISION, INDEX, PARTS, REMEDIES, in_python, number_wanted, remedy
from nlaformer.program.text import Text


def _operator(rule: str) -> tuple[Callable[..., Value], Callable[..., Value], Callable[..., Value]]:
    """The methods of an operator: the value on its left, on its right, and in place."""

    def left(self: Value, other: Any) -> Value:
        return NotImplemented if self.is_foreign(other) else self.apply(rule, self, other)

    def right(self: Value, other: Any) -> Value:
        return NotImplemented if self.is_foreign(other) else self.apply(rule, other, self)

    def in_place(self: Value, other: Any) -> Value:
        return NotImplemented if self.is_foreign(other) else self.become(left(self, other))

    return left, right, in_place


class Value:
    """An array in a traced program; ``read`` and ``write`` make it a view of another one."""

    __array_priority__ = 1000.0
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: Node, read: Callable[[], Node] | None = None, write: Callable[[Node], Any] | None = None):
        self._node, self._read, self._write = node, read, write

    @property
    def node(self) -> Node:
        return self._node if self._read is None else self._read()

    @property
    def is_own(self) -> bool:
        """Whether this is an array of its own, and no view."""
        return self._read is None

    @property
    def graph(self) -> Graph:
        return self._node.graph

    @property
    def kind(self) -> str:
        return self.node.kind

    def __repr__(self) -> str:
        return Text.of(self.graph.refuse, describe(self.node))

    def __format__(self, specification: str) -> str:
        return repr(self)  # so that a step may print what it computes

    def apply(self, rule: str, *args: Any) -> Value:
        """A rule of the graph, by name, on values and constants."""
        return Value(self.graph.call(getattr(self.graph, rule), *args))

    def refuse(self, message: str, kind: str | None = None) -> Value:
        """Note a problem, unless this value has been refused already."""
        if self.node.op == "refused":
            return Value(self.graph.refused(kind))
        return Value(self.graph.refuse(message, kind))

    def become(self, other: Any) -> Value:
        """The same array with new entries; a scalar cannot be changed, and is replaced."""
        node = self.graph.node_or_refused(other)
        if self.kind == "scalar" or "refused" in (node.op, self.node.op):
            return Value(node)
        if AXES[node.kind] > AXES[self.kind]:
            return self.refuse(f"a {node.kind} assigned to a {self.kind}, in place", self.kind)
        if AXES[node.kind] < AXES[self.kind]:  # broadcast
            node = self.graph.call(self.graph.add, node, self.graph.zeros(self.kind))
        if self._read is None:
            self._node = node
        elif self._write is not None:
            self._write(node)
        else:
            return self.refuse("a diagonal changed in place; NumPy does not permit it. Write A + np.diag(v)", self.kind)
        return self

    # What can be compiled.

    __add__, __radd__, __iadd__ = _operator("add")
    __mul__, __rmul__, __imul__ = _operator("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _operator("divide")
    __matmul__, __rmatmul__, __imatmul__ = _operator("matmul")

    def __sub__(self, other: Any) -> Value:
        return NotImplemented if self.is_foreign(other) else self + self.apply("multiply", -1.0, other)

    def __rsub__(self, other: Any) -> Value:
        return NotImplemented if self.is_foreign(other) else self.apply("add", other, -self)

    def __isub__(self, other: Any) -> Value:
        return NotImplemented if self.is_foreign(other) else self.become(self - other)

    def __neg__(self) -> Value:
        return self.apply("multiply", self, -1.0)

    def __pos__(self) -> Value:
        return Value(self.node)

    def __abs__(self) -> Value:
        return self._function("absolute", self)

    def __pow__(self, power: Any) -> Value:
        return self._function("power", self, power)

    def __rpow__(self, base: Any) -> Value:
        return self._function("power", base, self)

    def __ipow__(self, power: Any) -> Value:
        return self.become(self**power)

    @property
    def T(self) -> Value:
        return self.view("transpose", lambda node: self.become(self.graph.call(self.graph.transpose, node)))

    def view(self, rule: str, write: Callable[[Node], Any] | None) -> Value:
        """What a rule makes of this array, now and whenever it has changed."""
        read = getattr(self.graph, rule)
        return Value(self.node, lambda: self.graph.call(read, self.node), write)

    def __getitem__(self, index: Any) -> Value:
        if _is_refused(self) or _is_everything(index):
            return Value(self.node, lambda: self.node, self.become)
        places = _whole_numbers(index)
        if places is None:
            return self._slice(index)
        if len(places) > AXES[self.kind]:
            return self.refuse(PARTS)
        i, j = (*places, None)[:2]
        if i is None:
            return self._part(1, j)
        if j is None:  # a row is a view, as in NumPy; an entry is a number
            row = self._part(0, i)
            return row if self.kind == "matrix" else Value(row.node)
        return self._part(1, j)[i] if is_by_columns(self.graph, self.node) else self._part(0, i)[j]

    def _slice(self, index: Any) -> Any:
        """A part that is neither an entry nor a row nor a column; of constants, NumPy's own."""
        known = numbers_of(self.graph, self.node)
        if known is not None and (self.graph.assemble is None or np.shape(known[index]) in ((), known.shape)):
            self.graph.numbers_wanted = True  # should it be changed in place, which these cannot be
            return known[index]
        if self._refuses(index):
            return Value(self.graph.refused())
        from nlaformer.compiler.pieces import slice_of

        return slice_of(self, index)

    def _refuses(self, index: Any) -> bool:
        """Whether an index cannot be compiled, which is noted."""
        parts = index if isinstance(index, tuple) else (index,)
        if any(map(_is_refused, parts)):
            return True
        if any(isinstance(part, Value) for part in parts):
            self.refuse(INDEX)
        elif any(part is None for part in parts):
            self.refuse(PARTS)
        else:
            return not self.graph.want_entries("a slice")
        return True

    def _part(self, axis: int, index: Any) -> Value:
        """A view of an entry, a row or a column."""
        read = functools.partial(part, self.graph, axis, index)
        return Value(
            self.graph.refused(),
            lambda: self.graph.call(read, self),
            lambda node: self._set(axis, index, node),
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        if _is_refused(self) or _is_refused(value):
            return
        if _is_everything(index):
            self.become(value)
        elif (places := _whole_numbers(index)) is None:
            if not self._refuses(index):
                from nlaformer.compiler.pieces import set_slice

                set_slice(self, index, value)
        elif len(places) > AXES[self.kind]:
            self.refuse(PARTS)
        elif len(places) == 1 and places[0] is not None:
            self._set(0, places[0], value)
        elif places[0] is None:
            self._set(1, places[1], value)
        else:
            self[places[0]][places[1]] = value

    def _set(self, axis: int, index: Any, value: Any) -> None:
        """Replace an entry of a vector, or a row or a column of a matrix."""
        self.become(self.graph.call(functools.partial(with_part, self.graph, axis, index), self, value))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._size(".shape"),) * AXES.get(self.kind, 1)

    @property
    def ndim(self) -> int:
        return AXES.get(self.kind, 1)

    @property
    def size(self) -> int:
        return self._size(".size") ** AXES.get(self.kind, 1)

    @property
    def dtype(self) -> Any:
        return np.dtype(float)

    def __len__(self) -> int:
        return self._size("len(v)")

    def _size(self, what: str) -> int:
        if self.graph.n is None:
            self.refuse(f"{what} where the size of the systems is not known; write it without the size")
        return self.graph.n or 1

    # What cannot be compiled: noted, and answered so that tracing can continue.

    def _decide(self, other: Any) -> Value:
        if _is_refused(other):
            return other  # type: ignore[no-any-return]
        instead = in_python(calling())
        return self.refuse(f"a decision that depends on the data; {instead}" if instead else DECISION)

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _decide  # type: ignore[assignment]

    def __bool__(self) -> bool:
        self.refuse(DECISION)
        # True once: an `if` is traced through its first branch, a `while` ends.
        place = self.graph.place()
        self.graph.visits[place] = self.graph.visits.get(place, 0) + 1
        return self.graph.visits[place] == 1

    def __float__(self) -> float:
        self.graph.numbers_wanted = True
        self.refuse(number_wanted(calling()))
        return 1.0

    def __int__(self) -> int:
        return int(self.__float__())

    __index__ = __trunc__ = __floor__ = __ceil__ = __int__

    def __complex__(self) -> complex:
        return complex(self.__float__())

    def __round__(self, digits: int = 0) -> float:
        return self.__float__()

    def _unknown(self, other: Any) -> Value:
        return self.refuse("an operator that cannot be compiled; use + - * / @ and **", self.kind)

    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __and__ = __rand__ = __or__ = __ror__ = _unknown
    __divmod__ = __rdivmod__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _unknown

    def __invert__(self) -> Value:
        return self._unknown(None)

    def __iter__(self) -> Any:
        """The entries of a vector, the rows of a matrix."""
        if self.kind == "scalar" or _is_refused(self) or calling_library():
            self._refuse_use("a loop over the entries of a scalar")
            return iter(())
        return (self[i] for i in range(len(self)))

    def __call__(self, *args: Any, **kwargs: Any) -> Value:
        return self.refuse("a value called like a function")

    # NumPy's protocols, torch's, and methods.

    def _refuse_use(self, otherwise: str) -> None:
        """Refuse what a function of a library does with a value, by the function's name, or what a line does."""
        name = calling_library()
        self.refuse(f"{name} takes arrays of numbers alone; {remedy(name)}" if name else otherwise)

    def _function(self, name: str, *args: Any) -> Value:
        from nlaformer.compiler.functions import FUNCTIONS

        return FUNCTIONS[name](*args)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """The entries, where an array takes them; else refused, with numbers to continue with."""
        if self.graph.assemble is not None:
            return self.entries()
        self.graph.numbers_wanted = True
        name = calling()
        self._refuse_use(number_wanted(name) if name in ("np.float64", "np.float32") else ARRAY)
        return np.ones((self.graph.n or 2,) * AXES.get(self.kind, 0))

    def entries(self) -> np.ndarray:
        """An array of traced scalars."""
        n, shape = max(self.graph.n or 1, 1), (self.graph.n or 1,) * AXES.get(self.kind, 0)
        entries = np.empty(n ** len(shape), dtype=object)
        for k in range(len(entries)):
            entries[k] = self[divmod(k, n) if len(shape) == 2 else k] if shape else self
        return entries.reshape(shape)

    def is_foreign(self, value: Any) -> bool:
        """Whether a value is an array of traced entries of another size (``pieces.py``), which knows what to do."""
        if not isinstance(value, np.ndarray) or value.dtype != object:
            return False
        return value.ndim > 0 and not self.graph.holds(value.shape)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Value:
        from nlaformer.compiler.calls import by_name

        if any(map(self.is_foreign, (*inputs, *options.get("out", ())))):
            return NotImplemented
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        return by_name(self, "np" if hasattr(np, ufunc.__name__) else "scipy.special", name, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Value:
        from nlaformer.compiler.calls import by_name

        if any(issubclass(kind, np.ndarray) and kind is not np.ndarray for kind in types):
            return NotImplemented
        inner = function.__module__.removeprefix("numpy").removeprefix(".")
        return by_name(self, "np", f"{inner}.{function.__name__}" if inner else function.__name__, args, options)

    def nf(self, name: str, *args: Any) -> Any:
        """A function of nf, by name."""
        from nlaformer.compiler.calls import by_name

        return by_name(self, "nf", name, args, {})

    def call_learned(self, part: Any, given: list[Any]) -> Any:
        """What a learned part gives."""
        from nlaformer.compiler.learned import trace_call

        return trace_call(part, self.graph, given)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Value:
        from nlaformer.compiler.calls import by_name

        values = (value for value in (*args, *(options or {}).values()) if isinstance(value, Value))
        name = getattr(function, "__name__", "function").replace("linalg_", "linalg.")
        return by_name(next(values), "torch", name, args, options or {})

    def __getattr__(self, name: str) -> Any:
        from nlaformer.compiler.calls import METHODS, by_name

        if name.startswith("__"):
            raise AttributeError(name)
        if name in METHODS:
            return lambda *args, **options: by_name(self, "", name, (self, *args), options)
        methods = f"a traced value has .T and the methods {', '.join(METHODS)}"
        return self.refuse(f".{name} cannot be compiled; {REMEDIES.get(name, methods)}")


def _is_everything(index: Any) -> bool:
    """Whether an index is [:], [...] or [:, :]."""
    parts = index if isinstance(index, tuple) else (index,)
    return bool(parts) and all(part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts)


def _whole_numbers(index: Any) -> list[int | None] | None:
    """The whole numbers of an index, with None for a colon before or after one; None if it is any other index."""
    parts = index if isinstance(index, tuple) else (index,)
    if all(isinstance(part, (int, np.integer)) and not isinstance(part, bool) for part in parts):
        return [int(part) for part in parts]
    if len(parts) == 2 and sum(_is_everything(part) for part in parts) == 1:
        found = _whole_numbers(parts[_is_everything(parts[0])])
        return found and ([None, *found] if _is_everything(parts[0]) else found)
    return None


def _is_refused(value: Any) -> bool:
    return isinstance(value, Value) and value.node.op == "refused"


def graph_of(*values: Any) -> Graph | None:
    """The graph that values belong to; None if they are arrays and numbers alone."""
    return next((value.graph for value in values if isinstance(value, Value)), None)
