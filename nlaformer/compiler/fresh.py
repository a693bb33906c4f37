"""Fresh arrays: what a method makes with ``np.zeros`` and its like, and then fills with traced values.

    L = np.zeros((n, n))                H = np.zeros((k + 1, k))
    L[i, j] = A[i, j] / L[j, j]         H[i, j] = v @ w

NumPy asks nobody before it makes an array from a shape, and such an array takes numbers alone. So a program that needs
more is traced once more, with these functions replaced in NumPy's namespace while its methods run, for their thread.
Arrays of size n are then traced values. Others are NumPy's own, with traced scalars as entries (``pieces.py``).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nlaformer.compiler.entries import assembled
from nlaformer.compiler.graph import Graph
from nlaformer.compiler.pieces import Pieces, wrapped
from nlaformer.compiler.places import is_users
from nlaformer.compiler.values import Value

NAMES = ("zeros", "ones", "empty", "full", "eye", "identity", "array", "asarray")
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def fillable(graph: Graph) -> Iterator[None]:
    """Let arrays that this thread makes take traced values."""
    thread = threading.get_ident()

    def replaced(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(*args: Any, **options: Any) -> Any:
            if threading.get_ident() != thread or not is_users(sys._getframe(1)):
                return original(*args, **options)
            return _made(graph, name, original, args, options)

        return make

    with _ONE_AT_A_TIME:
        originals = {name: getattr(np, name) for name in NAMES}
        graph.assemble = functools.partial(assembled, graph)
        try:
            for name, original in originals.items():
                setattr(np, name, replaced(name, original))
            yield
        finally:
            for name, original in originals.items():
                setattr(np, name, original)


def _made(graph: Graph, name: str, original: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
    """What a function of NumPy makes, ready to be filled; arrays of whole numbers and truth values as they are."""
    first, second = (*args, *options.values(), None, None)[:2]
    traced = _holds_traced(first) or (name == "full" and isinstance(second, Value))
    if traced and np.dtype(options.get("dtype")) not in (float, object):
        kind = options["dtype"]
        return Value(graph.refuse(f"np.{name} of traced values with dtype={kind!r:.30}; they are floats: omit it"))
    if name in ("array", "asarray") and isinstance(first, (Value, Pieces)):
        return first.copy() if name == "array" and options.get("copy", True) else first
    if name == "full" and isinstance(second, Value):
        array = np.zeros(first, dtype=object)
        array[...] = second
    elif _holds_traced(first):
        array = original(first, dtype=object)
    else:
        array = original(*args, **options)
        if array.dtype.kind != "f":
            return array
        if name == "empty":
            array[...] = 0.0
    return wrapped(graph, array.astype(object))


def _holds_traced(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_traced, value))
    return isinstance(value, Value) or (isinstance(value, np.ndarray) and value.dtype == object)
