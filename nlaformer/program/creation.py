"""Arrays that a method makes itself, and then fills with traced values.

    L = np.zeros((n, n))                H = np.zeros((k + 1, k))
    L[i, j] = A[i, j] / L[j, j]         H[i, j] = v @ w

NumPy asks nobody before it makes an array from a shape, and such an array takes numbers alone. So these functions are
replaced in NumPy's namespace while a method is traced, for its thread: arrays of floats are then traced ones.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nlaformer.program.arrays import Array, Tracing, holds_array
from nlaformer.program.source import is_users

NAMES = ("zeros", "ones", "empty", "full", "eye", "identity", "array", "asarray")
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def traced_creation(tracing: Tracing) -> Iterator[None]:
    """Let arrays that this thread makes take traced values."""
    thread = threading.get_ident()

    def replaced(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(*args: Any, **options: Any) -> Any:
            if threading.get_ident() != thread or not is_users(sys._getframe(1)):
                return original(*args, **options)
            return _made(tracing, name, original, args, options)

        return make

    with _ONE_AT_A_TIME:
        originals = {name: getattr(np, name) for name in NAMES}
        try:
            for name, original in originals.items():
                setattr(np, name, replaced(name, original))
            yield
        finally:
            for name, original in originals.items():
                setattr(np, name, original)


def _made(tracing: Tracing, name: str, original: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
    """What a function of NumPy makes, ready to be filled; arrays of whole numbers and truth values as they are."""
    first, second = (*args, *options.values(), None, None)[:2]
    if not (holds_array(first) or (name == "full" and holds_array(second))):
        array = original(*args, **options)
        if array.dtype.kind != "f" or not array.ndim:
            return array
        return tracing.constant(np.zeros(array.shape) if name == "empty" else array)
    if options.get("dtype") is not None and np.dtype(options["dtype"]) not in (np.dtype(float), np.dtype(object)):
        tracing.refuse(f"np.{name} of traced values with dtype={options['dtype']!r:.30}; they are floats: omit it")
    if name == "full":
        made = tracing.constant(np.zeros(first))
        made[...] = second
        return made
    if isinstance(first, Array) and (name == "asarray" or not options.get("copy", True)):
        return first
    return tracing.made(first)
