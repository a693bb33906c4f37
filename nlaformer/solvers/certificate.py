r"""The certificate: a proven upper bound on |b - A x|_2 for a given x, in floating point.

With u = 2^-53 and gamma_k = k u / (1 - k u), a component of b - A x that sums k products of float64 numbers, in any
order, with or without fused multiply-add, is computed with an error of at most (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1)

    gamma_{k+2} (|A| |x| + |b|)_i + underflow.

At condition 1e13 that is more than a tolerance of 1e-5 leaves room for. Where the bound alone stands between a residual
and its tolerance, the residual is computed again in twice the precision, with the compensated dot product of Ogita,
Rump and Oishi (2005), whose error is u |r| + gamma_k^2 (|A| |x| + |b|). Such a residual counts only if it also keeps a
distance of ten times the rounding error that float64 was seen to make, so that whoever recomputes the residual in
float64 finds the rule satisfied as well.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.solvers.operators import Operator

UNIT = 2.0**-53
_TINY = 2.0**-1020  # more than a product, or an entry of A scaled by a power of two, loses by underflow
_SPLIT = 2.0**27 + 1


class Certificate(NamedTuple):
    """The residual of x and what is proven about it; a row or number for each lane."""

    r: Tensor  # (m, n)
    norm: Tensor  # (m,) |r|
    bound: Tensor  # (m,) no less than the exact |b - A x|
    holds: Tensor  # (m,) bound <= tolerance


def certify(A: Operator, b: Tensor, x: Tensor, tolerance: Tensor) -> Certificate:
    """Judge x of every lane: b and x (m, n), tolerance (m,). A lane whose x is not finite does not hold.

    >>> from nlaformer.solvers.operators import Dense
    >>> third, one = torch.full((1, 1), 1 / 3, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    >>> certificate = certify(Dense(3 * one[None], 1), one, third, torch.tensor([1e-15]))
    >>> certificate.norm.item(), bool(certificate.bound < 1e-15), bool(certificate.holds)
    (0.0, True, True)
    """
    size = A.absolute(x.abs()) + b.abs()
    underflow = _TINY * (A.terms + 2) * (1 + x.abs().sum(-1))
    r = b - A.apply(x)
    norm = norm_upper(r)
    bound = (norm + norm_upper(_gamma(A.terms + 2) * size + underflow[:, None])) * (1 + 4 * UNIT)
    close = torch.isfinite(bound) & (norm <= tolerance) & (bound > tolerance)
    if A.terms and bool(close.any()):
        at = close.nonzero()[:, 0]
        exact = _accurate(A.take(at), b[at], x[at])
        noise = norm_upper(r[at] - exact)
        error = UNIT * exact.abs() + 2 * _gamma(A.terms + 2) ** 2 * size[at] + underflow[at, None]
        better = norm_upper(exact) + norm_upper(error) + 10 * noise
        r, norm, bound = r.clone(), norm.clone(), bound.clone()
        r[at], norm[at] = exact, norm_upper(exact)
        bound[at] = torch.minimum(bound[at], better * (1 + 4 * UNIT))
    holds = torch.isfinite(x).all(-1) & (bound <= tolerance)  # a comparison with NaN is false
    return Certificate(r, norm, bound, holds)


def norm_upper(v: Tensor) -> Tensor:
    """|v|_2 of every row, rounded upwards; neither overflows nor underflows on the way."""
    n = v.shape[-1]
    largest = v.abs().amax(-1, keepdim=True)
    unit = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    size = (v / unit).square().sum(-1).sqrt() * (1 + _gamma(n + 4))
    return size * unit[..., 0] + torch.where(largest[..., 0] > 0, 2.0**-1074, 0.0)


def norm_lower(v: Tensor) -> Tensor:
    """|v|_2 of every row, rounded downwards."""
    return norm_upper(v) * (1 - 2 * _gamma(v.shape[-1] + 6)) - 2.0**-1072


def _gamma(k: int) -> float:
    return k * UNIT / (1 - k * UNIT) * (1 + 2.0**-40)


def _accurate(A: Operator, b: Tensor, x: Tensor) -> Tensor:
    """The residual b - A x as if summed in twice the precision of float64, rounded once (Ogita, Rump and Oishi)."""
    total, lost = b.clone(), torch.zeros_like(b)
    for a, factor, rows in A.products(-x):
        product, error = _two_product(a, factor)
        at = slice(None) if rows is None else rows
        total[:, at], missed = _two_sum(total[:, at], product)
        lost[:, at] += missed + error
    return total + lost


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The sum and its rounding error, exactly (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The product and its rounding error, exactly (Dekker and Veltkamp)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    c = _SPLIT * a
    high = c - (c - a)
    return high, a - high
