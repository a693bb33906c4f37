"""Functions in terms of those that there are weights for, written in NumPy.

    max(u, v) = v + relu(u - v)          min(u, v) = v - relu(v - u)          where(c, u, v) = c u + (1 - c) v
    tanh v = (e^-2 relu(-v) - e^-2 relu(v)) / (e^-2 relu(-v) + e^-2 relu(v))          expm1 v = e^v - e^0

The 0 of expm1 is relu(v) - relu(-v) - v, which is exactly 0 whatever v is, and takes the way of v through the layers.
So both terms of the differences have the same rounding errors at v = 0: expm1 and tanh of 0 are exactly 0.

sin and cos take v to [-pi, pi] first: where |v| > 2^k pi, 2^k 2 pi is subtracted from |v|, for k = 5, ..., 0; that is
right to |v| <= 64 pi, beyond which they are not. Then they are their Taylor polynomials in v / pi. arctan(v) is
8 arctan(h(h(h(v)))), h(v) = v / (1 + sqrt(1 + v^2)) = tan(arctan(v) / 2), and that is at most 0.2: by its series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def relu(v: Any) -> Any:
    return v.apply("relu")


def maximum(u: Any, v: Any) -> Any:
    return v + relu(u - v)


def minimum(u: Any, v: Any) -> Any:
    return v - relu(v - u)


def where(c: Any, u: Any, v: Any) -> Any:
    return c * u + (1.0 - c) * v


def expm1(v: Any) -> Any:
    return np.exp(v) - np.exp(relu(v) - relu(-v) - v)


def tanh(v: Any) -> Any:
    up, down = np.exp(-2.0 * relu(-v)), np.exp(-2.0 * relu(v))
    return (up - down) / (up + down)


def folded(larger: Callable[..., Any]) -> Callable[..., Any]:
    """The largest (or smallest) entry: the halves of an axis are compared until one entry is left."""

    def rewrite(v: Any, axes: Sequence[int], keeps: bool) -> Any:
        shape = [1 if k in axes else side for k, side in enumerate(v.shape)]
        for axis in axes:
            while (count := v.shape[axis]) > 1:
                before, half = (slice(None),) * axis, (count + 1) // 2
                v = larger(v[(*before, slice(half))], v[(*before, slice(count - half, None))])
        return v if keeps else np.reshape(v, [side for k, side in enumerate(shape) if k not in axes])

    return rewrite


def polynomial(v: Any, coefficients: Sequence[float]) -> Any:
    """The sum of coefficients[k] v^k; powers from those of half the degree, so that few layers make all."""
    powers: dict[int, Any] = {1: v}
    for k in range(2, len(coefficients)):
        powers[k] = powers[k // 2] * powers[k - k // 2]
    result = coefficients[0]
    for k, power in powers.items():
        result = result + coefficients[k] * power
    return result


def _within_half_turn(v: Any) -> Any:
    """The rest of v by 2 pi, as a part of pi: between -1 and 1."""
    for k in reversed(range(6)):
        far = 2.0**k * math.pi
        v = v - 2 * far * (relu(np.sign(v - far)) - relu(np.sign(-v - far)))
    return v / math.pi


def sin(v: Any) -> Any:
    t = _within_half_turn(v)
    return t * polynomial(t * t, [(-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(15)])


def cos(v: Any) -> Any:
    t = _within_half_turn(v)
    return polynomial(t * t, [(-1) ** k * math.pi ** (2 * k) / math.factorial(2 * k) for k in range(15)])


def arctan(v: Any) -> Any:
    for _ in range(3):
        v = v / (1.0 + np.sqrt(1.0 + v * v))
    return 8.0 * v * polynomial(v * v, [(-1) ** k / (2 * k + 1) for k in range(12)])
