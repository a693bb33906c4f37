r"""The certificate: a proven upper bound on |b - A x|_2 for a given x, in floating point.

With u = 2^-53 and gamma_k = k u / (1 - k u), a component of b - A x that sums k products of float64 numbers, in any
order, with or without fused multiply-add, is computed with an error of at most (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1)

    gamma_{k+2} (|A| |x| + |b|)_i + underflow.

An x passes if its computed residual plus twice that bound is within the tolerance: then the exact residual is, and so
is every other float64 evaluation of it, in whatever order. At condition 1e13 the bound exceeds a tolerance of 1e-5,
although rounding errors rarely add up like that. Where only the bound keeps x from its tolerance, the residual is
computed again in twice the precision, with the compensated dot product of Ogita, Rump and Oishi (2005), whose error is
u |r| + gamma_k^2 (|A| |x| + |b|). What an evaluation in float64 may add to that is the bound above for a short sum; for
a long one it is taken as 5 sqrt(k) u (|A| |x| + |b|), which random rounding errors exceed with a chance below 1e-5
(Higham and Mary 2019). The exact residual is proven to meet the tolerance in either case.

For least squares it is A^T (b - A x) that is judged. With a residual computed with componentwise error at most e, the
product with A^T is computed with an error of at most

    gamma_{k+2} |A^T| |r| + |A^T| e + underflow.

For an eigenpair it is A v - theta v, a sum of k + 1 products, relative to |v|. If A is symmetric, an eigenvalue lies
no farther from theta than |A v - theta v| / |v|.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.solvers.operators import Operator

UNIT = 2.0**-53
_TINY = 2.0**-1020  # more than a product, or an entry of A scaled by a power of two, loses by underflow
_MEASURED = 2.0**-900  # a sum of which underflow is no more than a rounding error
_SPLIT = 2.0**27 + 1


class Certificate(NamedTuple):
    """The residual of x and what is proven about it; a row or number for each lane."""

    r: Tensor  # (m, rows of A) b - A x
    g: Tensor  # (m, n) what is judged: r, or, of least squares, A^T r
    norm: Tensor  # (m,) |g|
    bound: Tensor  # (m,) no less than the exact |g|
    holds: Tensor  # (m,) whether this x may be called a solution


def certify(A: Operator, b: Tensor, x: Tensor, tolerance: Tensor, adjoint: Operator | None = None) -> Certificate:
    """Judge x of every lane: b (m, rows), x (m, n), tolerance (m,). A lane whose x is not finite does not hold.

    ``adjoint`` is A^T, of least squares: then A^T (b - A x) is judged.

    >>> from nlaformer.solvers.operators import DenseOperator
    >>> third, one = torch.full((1, 1), 1 / 3, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    >>> certificate = certify(DenseOperator(3 * one[None], 1), one, third, torch.tensor([1e-14]))
    >>> certificate.norm.item(), bool(certificate.bound < 1e-14), bool(certificate.holds)
    (0.0, True, True)
    >>> A, b = DenseOperator(torch.ones(1, 2, 1, dtype=torch.float64), 1), torch.tensor([[1.0, 3.0]]).double()
    >>> mean = certify(A, b, 2 * one, torch.tensor([1e-14]), A.transposed)
    >>> mean.r.tolist(), mean.g.tolist(), bool(mean.holds)
    ([[-1.0, 1.0]], [[0.0]], True)
    """

    def evaluate(at: Tensor | slice, sharp: bool) -> tuple[_Evaluated, _Evaluated]:
        own = A if isinstance(at, slice) else A.take(at)
        r = _residual(own, b[at], x[at], sharp)
        if adjoint is None:
            return r, r
        return r, _product(adjoint if isinstance(at, slice) else adjoint.take(at), r, sharp)

    return _decided(evaluate, x, tolerance, A.terms > 0)


def certify_eigenpair(A: Operator, value: Tensor, v: Tensor, tolerance: Tensor) -> Certificate:
    """Judge |A v - value v| / |v| of every lane; value (m,), v (m, n).

    >>> from nlaformer.solvers.operators import DenseOperator
    >>> A = DenseOperator(torch.tensor([[[2.0, 1.0], [1.0, 2.0]]], dtype=torch.float64), 1)
    >>> found = certify_eigenpair(A, torch.tensor([3.0]).double(), torch.ones(1, 2).double(), torch.tensor([1e-14]))
    >>> found.norm.item(), bool(found.bound < 1e-14), bool(found.holds)
    (0.0, True, True)
    """
    length = norm_lower(v)
    product, lost = _two_product(value[:, None].expand_as(v), v)

    def evaluate(at: Tensor | slice, sharp: bool) -> tuple[_Evaluated, _Evaluated]:
        own = A if isinstance(at, slice) else A.take(at)
        # The residual b - A v with b = value v, a sum with one term more. A function that is not linear gives v itself
        # another image than -v.
        r = _residual(own, product[at], v[at], sharp, lost[at], extra=1)
        return r, r

    found = _decided(evaluate, v, tolerance * length * (1 - 4 * UNIT), A.terms > 0)
    return found._replace(norm=found.norm / length, bound=found.bound / length * (1 + 4 * UNIT))


def _decided(
    evaluate: Callable[[Tensor | slice, bool], tuple[_Evaluated, _Evaluated]], x: Tensor, tolerance: Tensor, known: bool
) -> Certificate:
    """Judge by an evaluation in float64, and, where only its bound is in the way and entries are known, a sharp one."""
    found = _judged(*evaluate(slice(None), False), tolerance)
    close = torch.isfinite(found.bound) & (found.norm <= tolerance) & ~found.holds
    if known and bool(close.any()):
        at = close.nonzero()[:, 0]
        again = _judged(*evaluate(at, True), tolerance[at])
        fit = torch.isfinite(again.bound)
        found = Certificate(*(own.clone() for own in found))
        for own, new in zip(found, again, strict=True):
            own[at[fit]] = new[fit]
    return found._replace(holds=found.holds & torch.isfinite(x).all(-1))


class _Evaluated(NamedTuple):
    """A vector as it was computed, for each lane, with what may differ in each component."""

    value: Tensor
    error: Tensor  # at most, from the exact vector
    spread: Tensor  # of any other evaluation in float64 from the exact vector


def _judged(r: _Evaluated, g: _Evaluated, tolerance: Tensor) -> Certificate:
    norm = norm_upper(g.value)
    bound = (norm + norm_upper(g.error)) * (1 + 4 * UNIT)
    holds = (bound + norm_upper(g.spread)) * (1 + 4 * UNIT) <= tolerance  # a comparison with NaN is false
    return Certificate(r.value, g.value, norm, bound, holds)


def _residual(A: Operator, b: Tensor, x: Tensor, sharp: bool, lost: Tensor | None = None, extra: int = 0) -> _Evaluated:
    """The residual b - A x; ``sharp`` sums in twice the precision.

    ``lost`` is what b lacks of a product that it stands for, an ``extra`` term of the sum.
    """
    terms = A.terms + 2 + extra
    size, underflow = A.absolute(x.abs()) + b.abs(), _underflow(A, x)
    if not sharp:
        error = _gamma(terms) * size + underflow
        return _Evaluated(b - A.apply(x), error, error)
    r = _accurate(A, b, x, lost)
    error = UNIT * r.abs() + 2 * _gamma(terms) ** 2 * size + underflow
    return _Evaluated(r, error, _likely(A) * size + underflow)


def _product(adjoint: Operator, r: _Evaluated, sharp: bool) -> _Evaluated:
    """A^T r of a residual that was evaluated with an error."""
    size, underflow = adjoint.absolute(r.value.abs()), _underflow(adjoint, r.value)
    upwards = 1 + _gamma(adjoint.terms + 2)
    inherited, spread = (adjoint.absolute(part) * upwards for part in (r.error, r.spread))
    if not sharp:
        own = _gamma(adjoint.terms + 2) * size + underflow
        return _Evaluated(adjoint.apply(r.value), own + inherited, own + spread)
    g = _accurate(adjoint, torch.zeros_like(inherited), -r.value)
    error = UNIT * g.abs() + 2 * _gamma(adjoint.terms + 2) ** 2 * size + underflow
    return _Evaluated(g, error + inherited, _likely(adjoint) * size + underflow + spread)


def _likely(A: Operator) -> float:
    """What an evaluation in float64 may add, relative to |A| |x| + |b|: of a long sum, what is likely."""
    return min(5 * math.sqrt(A.terms) * UNIT, _gamma(A.terms + 2))


def _underflow(A: Operator, x: Tensor) -> Tensor:
    """What products may lose; twice as many terms as A has cover the scaling of its entries, and a further product."""
    return _TINY * (A.terms + 2) * (1 + x.abs().sum(-1, keepdim=True))


class Goal(NamedTuple):
    """What least squares start from: A^T b, of every lane."""

    norm: Tensor  # (m,) |A^T b|, rounded downwards
    vanishes: Tensor  # (m,) whether rounding errors alone may be A^T b, in every component: then x = 0 is the answer
    noise: Tensor  # (m,) what the certificate of x = 0 meets there


def goal_of(A: Operator, adjoint: Operator, b: Tensor) -> Goal:
    """Measure A^T b, with one product.

    >>> from nlaformer.solvers.operators import DenseOperator
    >>> A = DenseOperator(torch.tensor([[[0.1, 0.3], [0.7, -0.1], [0.2, 0.0]]], dtype=torch.float64), 1)
    >>> b = torch.linalg.cross(A.A[:, :, 0], A.A[:, :, 1])  # orthogonal to both columns
    >>> goal = goal_of(A, A.transposed, b)
    >>> goal.vanishes.item(), bool(certify(A, b, b.new_zeros(1, 2), goal.noise, A.transposed).holds)
    (True, True)
    """
    g, size, underflow = adjoint.apply(b), adjoint.absolute(b.abs()), _underflow(adjoint, b)
    likely = max(_likely(A), _likely(adjoint)) * size
    rounding = likely + (A.terms + 2) * underflow
    # Terms that are not 0 may have underflowed where they sum to little: what is left of them says nothing.
    measured = (size > _MEASURED) | (adjoint.absolute((b != 0).to(b)) == 0)
    known = norm_lower(g) - norm_upper(_gamma(adjoint.terms + 2) * size + underflow)
    # Four times: A^T b itself, and the rounding errors of b - A x and of its product, which the certificate adds.
    return Goal(known, ((g.abs() <= likely) & measured).all(-1), 4 * norm_upper(rounding))


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


def _accurate(A: Operator, b: Tensor, x: Tensor, lost: Tensor | None = None) -> Tensor:
    """The residual b - A x as if summed in twice the precision of float64, rounded once (Ogita, Rump and Oishi)."""
    total, lost = b.clone(), torch.zeros_like(b) if lost is None else lost.clone()
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
