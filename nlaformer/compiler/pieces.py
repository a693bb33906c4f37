"""Arrays of other sizes than n: NumPy's own, of traced scalars, as a method makes them or takes them out of an array.

    H = np.zeros((k + 1, k))          y[i] = b[i] - A[i, :i] @ y[:i]          u[1:-1] += d[2:] - d[:-2]

A prompt has n tokens, and a register holds n entries. What has another length is computed entry by entry, each entry a
scalar of its own. Wherever a row, a column or a result has n entries it becomes a vector again: V @ y is a sum of
multiples of columns, V.T @ w are inner products. A slice of a traced array is a view, as in NumPy: what is written into
it is written into that array (``_store``), and what was written there since is seen (``plain``). Its memory is
read-only to NumPy: what it would write there past ``__setitem__`` (``p.fill(0)``, ``np.put``) would not be passed on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.graph import Graph, Node
from nlaformer.compiler.values import Value

# The functions of NumPy that Python's operators carry out on an array of objects; others are called for every entry.
_OPERATORS = ("add", "subtract", "multiply", "divide", "negative", "power")
# The methods of an array that read its memory without asking.
_READING = ("copy", "flatten", "tolist", "item", "take", "repeat", "astype", "dot", "trace", "flat", "__deepcopy__")


class Pieces(np.ndarray):
    """An array of traced scalars and numbers."""

    graph: Graph
    # Of an array that has the memory of a slice: the traced array, the index, and what was there when read.
    source: tuple[Value, Any, Node] | None = None

    def __array_finalize__(self, made_from: Any) -> None:
        if isinstance(made_from, Pieces):
            self.graph = made_from.graph

    def __getattribute__(self, name: str) -> Any:
        if name in _READING:
            self.plain()
        return super().__getattribute__(name)

    def plain(self) -> np.ndarray:
        """NumPy's own array on the same memory, up to date."""
        owner = self._owner()
        if owner.source is not None:
            value, index, seen = owner.source
            if value.node is not seen:
                owner.view(np.ndarray)[index] = _picked(value, index)
                owner.source = (value, index, value.node)
        return self.view(np.ndarray)

    def _memory(self) -> np.ndarray:
        """The same array, to write into; not one that NumPy makes read-only, as a diagonal."""
        memory = self.view(np.ndarray)
        memory.flags.writeable = self.flags.writeable or self._owner().source is not None
        return memory

    def _store(self) -> None:
        """Pass on what was written to the array that this is a part of."""
        owner = self._owner()
        if owner.source is not None:
            value, index, _ = owner.source
            value[index] = owner.view(np.ndarray)[index]
            owner.source = (value, index, value.node)

    def _owner(self) -> Pieces:
        owner: np.ndarray = self
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return owner if isinstance(owner, Pieces) else self

    def __getitem__(self, index: Any) -> Any:
        self.plain()
        return wrapped(self.graph, super().__getitem__(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.plain()
        array = self._memory()
        array[index] = entries(value) if isinstance(value, Value) and value.kind != "scalar" else value
        self._store()

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, **options: Any) -> Any:
        """NumPy's own makes a number of what it finds."""
        sums = self.sum(axis, dtype, out, **options)
        return sums / (self.size // np.size(sums))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        given = [wrapped(self.graph, v.plain()) if isinstance(v, Pieces) else v for v in inputs]
        if method != "__call__" or any(isinstance(value, np.ndarray) for value in given):
            given = [entries(value) for value in given]
        try:
            result = self._computed(ufunc, method, given, options)
        except ValueError as error:  # of shapes that do not fit
            return Value(self.graph.refuse(str(error)))
        for target in out:
            target[...] = result
            return target
        return wrapped(self.graph, result)

    def _computed(self, ufunc: Any, method: str, given: list[Any], options: dict[str, Any]) -> Any:
        if ufunc is np.matmul:
            return _product(self.graph, *given)
        if ufunc.__name__ not in _OPERATORS and any(isinstance(value, np.ndarray) for value in given):
            ufunc = np.frompyfunc(lambda *values, of=ufunc: of(*values), ufunc.nin, ufunc.nout)
        return getattr(ufunc, method)(*given, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function is np.dot and len(args) == 2 and not options and all(np.ndim(value) for value in args):
            return np.matmul(*args)
        if function is np.copyto and len(args) == 2 and not options:
            args[0][...] = args[1]
            return None
        given, named = _in_pieces(args), _in_pieces(options)
        return wrapped(self.graph, super().__array_function__(function, (Pieces,), given, named))


def entries(value: Any) -> np.ndarray:
    """An array of objects: the entries of a traced value, of an array or a number."""
    if isinstance(value, Pieces):
        return value.plain()
    return np.asarray(value.entries() if isinstance(value, Value) else value, dtype=object)


def wrapped(graph: Graph, result: Any) -> Any:
    """A result as a program holds it: a traced value where it has the size of one."""
    if not isinstance(result, np.ndarray) or result.dtype != object:
        return result
    if not result.ndim:
        return result.item()
    made = result if isinstance(result, Pieces) else result.view(Pieces)
    made.graph = graph
    if not graph.holds(result.shape):
        return made
    if made is not result or result.base is None:
        return Value(graph.node_or_refused(result.view(np.ndarray)))

    def write(node: Node) -> None:
        made[...] = entries(Value(node))

    unread = graph.refused()
    return Value(unread, lambda: graph.node_or_refused(made.plain()), write)


def by_entries(graph: Graph, function: Any, args: Any, options: dict[str, Any]) -> Any:
    """A function of NumPy on arrays of objects; what is a view of a traced array in NumPy is one here."""
    return wrapped(graph, function(*_in_pieces(args), **_in_pieces(options)))


def slice_of(value: Value, index: Any) -> Any:
    """A part of a traced array; a view where it is one in NumPy. All entries in another order are a product."""
    graph, n = value.graph, value.graph.n or 1
    by_column = value.kind == "matrix" and isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None)
    along = index[1] if by_column else index
    if not isinstance(along, tuple) and np.shape(np.arange(n)[along]) == (n,):
        order = np.eye(n)[along]
        moved = (lambda v: v @ order.T) if by_column else (lambda v: order @ v)
        back = (lambda v: v @ order) if by_column else (lambda v: order.T @ v)
        if not isinstance(along, slice):
            return moved(value)
        return Value(value.node, lambda: moved(value).node, lambda node: value.become(back(Value(node))))
    found, places = _picked(value, index), _entry_numbers(value)
    if not found.ndim:
        return found.item()
    if not np.shares_memory(places[index], places):
        return wrapped(graph, found)
    if graph.holds(found.shape):
        return _view(value, index, wrapped(graph, found).node)
    return _linked(value, index, found)


def _linked(value: Value, index: Any, found: np.ndarray) -> Pieces:
    """A slice in the memory of an array of the whole size: strided as in NumPy, which decides what ravel gives."""
    whole = Pieces(value.shape, dtype=object)
    whole.graph, whole.source = value.graph, (value, index, value.node)
    whole.view(np.ndarray)[index] = found
    part: Pieces = np.ndarray.__getitem__(whole, index)
    part.flags.writeable = False
    return part


def _view(value: Value, index: Any, node: Node) -> Value:
    """A slice that has the size of a traced value; its entries are read again where the array has changed."""
    if np.array_equal(_entry_numbers(value)[index], _entry_numbers(value)):
        return value[:]
    read = {id(value.node): node}

    def current() -> Node:
        now = value.node
        if id(now) not in read:
            read[id(now)] = value.graph.node_or_refused(_picked(value, index))
        return read[id(now)]

    return Value(node, current, lambda n: set_slice(value, index, Value(n)))


def _entry_numbers(value: Value) -> np.ndarray:
    """The numbers of the entries, in the shape of the array."""
    return np.arange(value.size).reshape(value.shape)


def _picked(value: Value, index: Any) -> np.ndarray:
    """The entries at an index, and no others: each is an inner product."""
    places = np.asarray(_entry_numbers(value)[index])
    found = np.empty(places.shape, dtype=object)
    for at, place in np.ndenumerate(places):
        found[at] = value[divmod(int(place), value.shape[1]) if value.ndim == 2 else int(place)]
    return found


def set_slice(value: Value, index: Any, new: Any) -> None:
    """Replace a part of a traced array."""
    n = value.graph.n or 1
    places = _entry_numbers(value)[index]
    values = np.broadcast_to(entries(new), places.shape)
    if value.kind == "vector":
        for place, entry in zip(places.flat, values.flat, strict=True):
            value[int(place)] = entry
        return
    for i in np.unique(places // n):
        row = +value[int(i)]
        for place, entry in zip(places.flat, values.flat, strict=True):
            if place // n == i:
                row[int(place % n)] = entry
        value[int(i)] = row


def _in_pieces(given: Any) -> Any:
    """Arguments of a function with pieces, up to date, in the place of traced arrays."""
    if isinstance(given, (list, tuple)):
        return type(given)(_in_pieces(each) for each in given)
    if isinstance(given, dict):
        return {key: _in_pieces(each) for key, each in given.items()}
    if isinstance(given, Value):
        return entries(given) if given.kind == "scalar" else _linked(given, ..., entries(given))
    if isinstance(given, Pieces):
        given.plain()
    return given


def _product(graph: Graph, u: np.ndarray, v: np.ndarray) -> Any:
    """A matrix product: by columns of length n, by inner products of such, else by entries."""
    n, inner = graph.n, u.shape[-1] if u.ndim else 0
    if not u.ndim or not v.ndim or inner != v.shape[0] or max(u.ndim, v.ndim) > 2:
        return np.matmul(u, v)  # NumPy says what is wrong
    if u.ndim == v.ndim == 2 and not graph.holds((u.shape[0], v.shape[1])):
        return np.stack([entries(_product(graph, u, column)) for column in v.T], axis=1)
    if u.ndim == 2 and v.ndim == 1 and inner == n:
        rows = wrapped(graph, u)
        if isinstance(rows, Value):
            return rows @ wrapped(graph, v)
        return np.array([wrapped(graph, row) @ wrapped(graph, v) for row in u], dtype=object)
    if v.ndim == 2 and u.ndim == 1:
        return _product(graph, v.T, u)
    if u.ndim == 2 and u.shape[0] == n:
        columns = [wrapped(graph, column) for column in u.T]
        if v.ndim == 1:
            return sum(entry * column for entry, column in zip(v, columns, strict=True))
        return sum(np.outer(column, wrapped(graph, row)) for column, row in zip(columns, v, strict=True))
    return np.matmul(u, v)
