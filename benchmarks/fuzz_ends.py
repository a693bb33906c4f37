"""A run of a random program end to end, in NumPy: every state and the answer against the program's own run.

    deviation_t = |found_t - own_t| / max over s <= t of |own_s|

It may be the largest of

- 1e-6 (float32: 1e-2) times what the program amplifies: the largest deviation so far of eight runs whose inputs and
  states are perturbed by 1e-8 of each entry before every call, over 1e-8;
- 30 times the largest deviation of eight runs in which every operation of NumPy is rounded at random to 33 bits (10);
- 1000 times what NumPy's own rounding is, against a run in extended precision.

Where the first exceeds 1e4 (10), two runs of the program part, and nothing is compared; nor is it where the program's
own value is not finite. Nothing of the compiler is used, nor of its judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_AMOUNT, _COPIES = 1e-8, 8
_MARGIN = 3.0
_OF_ROUNDING, _OF_COARSE = 1e3, 30.0
# Functions that sum products and are no ufuncs; each is rounded on the grid of what it makes of absolute values.
_PRODUCTS = {np.dot, np.inner, np.vdot, np.outer, np.einsum, np.tensordot, np.kron}
Call = Callable[[str, dict[str, Any], Any], dict[str, Any]]  # a method, its values, the precision


class Coarse(np.ndarray):
    """An array whose operations are rounded to fewer bits, up or down at random, on the grid of the terms they sum."""

    bits = 33
    rng = np.random.default_rng(0)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: tuple[Any, ...] | None = None, **options: Any
    ) -> Any:
        arrays = [_plain(each) for each in inputs]
        if out is not None:
            options["out"] = tuple(map(_plain, out))
        terms = np.abs(self._terms(ufunc, method, arrays, options))
        found = getattr(ufunc, method)(*arrays, **options)
        if method == "at" or not isinstance(found, np.ndarray | np.floating) or found.dtype.kind != "f":
            return found
        rounded = self._rounded(np.asarray(found), terms)
        if out is None:
            return rounded.view(Coarse)
        options["out"][0][...] = rounded
        return out[0]

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        found = super().__array_function__(function, types, args, options)
        if function not in _PRODUCTS:
            return found
        terms = function(*(np.abs(_plain(a)) if isinstance(a, np.ndarray | float) else a for a in args), **options)
        return self._rounded(_plain(np.asarray(found)), np.asarray(terms)).view(Coarse)

    @staticmethod
    def _terms(ufunc: Any, method: str, arrays: list[Any], options: dict[str, Any]) -> Any:
        """The absolute terms that an operation sums, or its result."""
        options = {key: value for key, value in options.items() if key != "out"}
        sums = ufunc in (np.add, np.subtract) or (ufunc is np.matmul and method == "__call__")
        if not sums or method in ("at", "reduceat"):
            return getattr(ufunc, method)(*arrays, **options) if method != "at" else 0.0
        other = np.add if ufunc is np.subtract else ufunc
        return getattr(other, method)(*(np.abs(each) if k < 2 else each for k, each in enumerate(arrays)), **options)

    @classmethod
    def _rounded(cls, value: np.ndarray, terms: Any) -> np.ndarray:
        grid = np.ldexp(1.0, np.frexp(np.broadcast_to(np.abs(terms), value.shape))[1] - cls.bits)
        found = np.floor(value / grid + cls.rng.random(value.shape)) * grid
        return np.where(np.isfinite(found), found, value)


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Coarse) else value


def deviations(
    call: Call, given: dict[str, Any], found: dict[str, np.ndarray], plain: float, most: float, bits: int
) -> dict[str, np.ndarray]:
    """Of each value at each time the deviation over what is allowed, 0 where nothing is compared.

    ``call`` gives what start, step and finish make of values by name; ``found`` has each state and the "answer",
    (T + 1, ...).
    """
    rng, times = np.random.default_rng(0), len(next(iter(found.values())))
    own, exact = (_stacked(_run(call, given, times, lambda v: v, kind)) for kind in (float, np.longdouble))
    moved = [
        _stacked(_run(call, given, times, lambda v: v * (1 + _AMOUNT * rng.choice([-1.0, 1.0], np.shape(v)))))
        for _ in range(_COPIES)
    ]
    Coarse.bits, Coarse.rng = bits, rng
    coarse = [_stacked(_run(call, given, times, lambda v: np.array(v, float).view(Coarse))) for _ in range(_COPIES)]
    unit = max((float(np.linalg.norm(value)) for value in given.values()), default=1.0) or 1.0
    with np.errstate(all="ignore"):
        return {
            name: _excess(
                value,
                own[name],
                exact[name],
                [run[name] for run in moved],
                [run[name] for run in coarse],
                unit,
                plain,
                most,
            )
            for name, value in found.items()
            if name in own
        }


def _excess(
    found: np.ndarray,
    own: np.ndarray,
    exact: np.ndarray,
    moved: list[np.ndarray],
    coarse: list[np.ndarray],
    unit: float,
    plain: float,
    most: float,
) -> np.ndarray:
    scale = np.maximum.accumulate(np.nan_to_num(_norms(own), nan=0.0, posinf=0.0))
    scale = np.where(scale > 0, scale, unit)
    response = np.max([_norms(run - own) for run in moved], axis=0) / scale / _AMOUNT
    response = np.maximum.accumulate(np.nan_to_num(response, nan=np.inf))
    deviation = np.nan_to_num(_norms(found - own) / scale, nan=np.inf)
    known = (response <= most) & np.isfinite(_norms(own))
    known = np.logical_and.accumulate(known)
    rounding = np.maximum.accumulate(np.nan_to_num(_norms(exact - own) / scale, nan=np.inf))
    spread = np.max([_norms(run - own) for run in coarse], axis=0) / scale
    spread = np.maximum.accumulate(np.nan_to_num(spread, nan=np.inf))
    allowed = np.max([plain * np.maximum(response, 1.0), _OF_ROUNDING * rounding, _OF_COARSE * spread], axis=0)
    return np.where(known, deviation / (_MARGIN * allowed), 0.0)


def _run(
    call: Call, given: dict[str, Any], times: int, change: Callable[[Any], Any], precision: Any = float
) -> Iterator[dict[str, Any]]:
    def moved(values: dict[str, Any]) -> dict[str, Any]:
        return {name: change(value) for name, value in values.items()}

    state = call("start", moved(given), precision)
    for t in range(times):
        if t:
            state = call("step", moved(given | state), precision)
        yield state | call("finish", moved(given | state), precision)


def _stacked(run: Iterator[dict[str, Any]]) -> dict[str, np.ndarray]:
    records = list(run)
    return {name: np.stack([np.asarray(record[name]) for record in records]) for name in records[0]}


def _norms(values: np.ndarray) -> np.ndarray:
    """The norms of (T + 1, ...), of numbers whose squares overflow too."""
    flat = np.abs(np.asarray(values, "float64")).reshape(len(values), -1)
    largest = flat.max(-1, keepdims=True)
    safe = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    norms: np.ndarray = np.linalg.norm(flat / safe, axis=-1) * safe[:, 0]
    return norms
