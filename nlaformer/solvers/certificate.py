r"""The certificate: a proven upper bound on |b - A x|_2 for a given x, in floating point.

With u = 2^-53 and gamma_k = k u / (1 - k u), a component of b - A x that sums k products of float64 numbers, in any
order, with or without fused multiply-add, is computed with an error of at most (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1)

    gamma_{k+2} (|A| |x| + |b|)_i + underflow.

An x passes if its computed residual plus twice that bound is within the tolerance: then the exact residual is, and so
is every other float64 evaluation of it, in whatever order. At condition 1e13 the bound exceeds a tolerance of 1e-5,
although rounding errors rarely add up like that. Where only the bound keeps a long sum from its tolerance, the residual
is computed again in twice the precision, with the compensated dot product of Ogita, Rump and
Oishi (2005), whose error is u |r| + gamma_k^2 (|A| |x| + |b|); what an evaluation in float64 may add to that is then
taken as 5 sqrt(k) u (|A| |x| + |b|), which random rounding errors exceed with a chance below 1e-5 (Higham and Mary
2019). The exact residual is proven to meet the tolerance in either case.
"""

from __future__ import annotations

import math
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
    holds: Tensor  # (m,) whether this x may be called a solution


def certify(A: Operator, b: Tensor, x: Tensor, tolerance: Tensor) -> Certificate:
    """Judge x of every lane: b and x (m, n), tolerance (m,). A lane whose x is not finite does not hold.

    >>> from nlaformer.solvers.operators import DenseOperator
    >>> third, one = torch.full((1, 1), 1 / 3, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    >>> certificate = certify(DenseOperator(3 * one[None], 1), one, third, torch.tensor([1e-14]))
    >>> certificate.norm.item(), bool(certificate.bound < 1e-14), bool(certificate.holds)
    (0.0, True, True)
    """
    size = A.absolute(x.abs()) + b.abs()
    underflow = _TINY * (A.terms + 2) * (1 + x.abs().sum(-1, keepdim=True))
    r = b - A.apply(x)
    norm, rounding = norm_upper(r), norm_upper(_gamma(A.terms + 2) * size + underflow)
    bound = (norm + rounding) * (1 + 4 * UNIT)
    holds = (norm + 2 * rounding) * (1 + 4 * UNIT) <= tolerance  # a comparison with NaN is false
    close = torch.isfinite(bound) & (norm <= tolerance) & ~holds
    if 5 * math.sqrt(A.terms) < A.terms and bool(close.any()):
        at = close.nonzero()[:, 0]
        r, norm, bound, holds = r.clone(), norm.clone(), bound.clone(), holds.clone()
        r[at] = _accurate(A.take(at), b[at], x[at])
        norm[at] = norm_upper(r[at])
        error = UNIT * r[at].abs() + 2 * _gamma(A.terms + 2) ** 2 * size[at] + underflow[at]
        bound[at] = (norm[at] + norm_upper(error)) * (1 + 4 * UNIT)
        likely = norm_upper(5 * math.sqrt(A.terms) * UNIT * size[at])
        holds[at] = (bound[at] + likely) * (1 + 4 * UNIT) <= tolerance[at]
    return Certificate(r, norm, bound, holds & torch.isfinite(x).all(-1))


def norm_of(v: Tensor) -> Tensor:
    """|v|_2 of every row, as it rounds."""
    return v.square().sum(-1).sqrt()


def norm_upper(v: Tensor) -> Tensor:
    """|v|_2 of every row, rounded upwards; neither overflows nor underflows on the way."""
    n = v.shape[-1]
    largest = v.abs().amax(-1, keepdim=True)
    unit = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    size = norm_of(v / unit) * (1 + _gamma(n + 4))
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
