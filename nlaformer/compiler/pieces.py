"""Arrays of other sizes than n: NumPy's own, of traced scalars, as a method makes them or takes them out of an array.

    H = np.zeros((k + 1, k))          y[i] = b[i] - A[i, :i] @ y[:i]          u[1:-1] += d[2:] - d[:-2]

A prompt has n tokens, and a register holds n entries. What has another length is computed entry by entry, each entry a
scalar of its own. Wherever a row, a column or a result has n entries it becomes a vector again: V @ y is a sum of
multiples of columns, V.T @ w are inner products. A slice of a traced array is a view, as in NumPy: what is written into
it is written into that array (``store``), and what was written there since is seen (``fetch``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.graph import Graph, Node
from nlaformer.compiler.values import Value

# The functions of NumPy that Python's operators carry out on an array of objects; others are called for every entry.
_OPERATORS = ("add", "subtract", "multiply", "divide", "negative", "power")


class Pieces(np.ndarray):
    """An array of traced scalars and numbers."""

    graph: Graph
    source: tuple[Value, Any, Node] | None = None  # of a slice: the array, the index, and what was there when read

    def __array_finalize__(self, made_from: Any) -> None:
        if isinstance(made_from, Pieces):
            self.graph = made_from.graph

    def plain(self) -> np.ndarray:
        """NumPy's own array on the same memory, up to date."""
        owner = self._owner()
        if owner.source is not None:
            value, index, seen = owner.source
            if value.node is not seen:
                owner.view(np.ndarray)[...] = _picked(value, index)
                owner.source = (value, index, value.node)
        return self.view(np.ndarray)

    def _store(self) -> None:
        """Pass on what was written to the array that this is a part of."""
        owner = self._owner()
        if owner.source is not None:
            value, index, _ = owner.source
            value[index] = owner.view(np.ndarray)
            owner.source = (value, index, value.node)

    def _owner(self) -> Pieces:
        owner = self
        while isinstance(owner.base, Pieces):
            owner = owner.base
        return owner

    def __getitem__(self, index: Any) -> Any:
        self.plain()
        found = super().__getitem__(index)
        if not isinstance(found, Pieces) or not self.graph.holds(found.shape):
            return found
        graph = self.graph

        def write(node: Node) -> None:
            found[...] = entries(Value(node))

        unread = graph.make("refused", (), None, None)
        return Value(unread, lambda: graph.call(lambda node: node, found.plain()), write)

    def __setitem__(self, index: Any, value: Any) -> None:
        array = self.plain()
        array[index] = entries(value) if isinstance(value, Value) and value.kind != "scalar" else value
        self._store()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        given = [_simplest(self.graph, value) for value in inputs]
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
        if function is np.copyto:
            args[0][...] = args[1]
            return None
        return by_entries(self.graph, function, args, options)


def entries(value: Any) -> np.ndarray:
    """An array of objects: the entries of a traced value, of an array or a number."""
    if isinstance(value, Pieces):
        return value.plain()
    return np.asarray(value.entries() if isinstance(value, Value) else value, dtype=object)


def wrapped(graph: Graph, result: Any) -> Any:
    """A result as a program holds it: a traced value where it has the size of one."""
    if not isinstance(result, np.ndarray) or result.dtype != object:
        return result
    if graph.holds(result.shape):
        return Value(graph.call(lambda node: node, result))
    made = result.view(Pieces)
    made.graph = graph
    return made if result.ndim else result.item()


def by_entries(graph: Graph, function: Any, args: Any, options: dict[str, Any]) -> Any:
    """A function of NumPy on arrays of objects."""
    given = [_unwrapped(argument) for argument in args]
    return wrapped(graph, function(*given, **{key: _unwrapped(option) for key, option in options.items()}))


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
    made = wrapped(graph, found)
    if np.shares_memory(places[index], places):
        if isinstance(made, Value):
            return _view(value, index, made.node)
        made.source = (value, index, value.node)
    return made


def _view(value: Value, index: Any, node: Node) -> Value:
    """A slice that has the size of a traced value; its entries are read again where the array has changed."""
    if np.array_equal(_entry_numbers(value)[index], _entry_numbers(value)):
        return value[:]
    read = {id(value.node): node}

    def current() -> Node:
        now = value.node
        if id(now) not in read:
            read[id(now)] = value.graph.call(lambda n: n, _picked(value, index))
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


def _simplest(graph: Graph, value: Any) -> Any:
    return wrapped(graph, value.plain()) if isinstance(value, Pieces) else value


def _unwrapped(argument: Any) -> Any:
    """An argument of a function with NumPy's own arrays in the place of traced ones."""
    if isinstance(argument, (list, tuple)):
        return type(argument)(_unwrapped(each) for each in argument)
    return entries(argument) if isinstance(argument, (Value, Pieces)) else argument


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
