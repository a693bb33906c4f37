r"""The certificate: a proven upper bound on |b - A x|_2 for a given x, in floating point.

With u = 2^-53 and gamma_k = k u / (1 - k u), a component of b - A x that sums k products of float64 numbers, in any
order, with or without fused multiply-add, is computed with an error of at most (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1)

    gamma_{k+2} (|A| |x| + |b|)_i + underflow.

An x passes if its computed residual plus twice that bound is within the tolerance: then the exact residual is, and so
is every other float64 evaluation of it, in whatever order. Bounds come in a cascade, each of them only where the one
before it alone keeps x from its tolerance. The first one costs nothing, with norms known from reading A:

    | |A| |x| + |b| |_2 <= sqrt(|A|_1 |A|_inf) |x|_2 + |b|_2.

The second one is the sum above, component by component. At condition 1e13 that exceeds a tolerance of 1e-5, although
rounding errors rarely add up like that. For the third, the residual is computed again in twice the precision, with the
compensated dot product of Ogita, Rump and Oishi (2005), whose error is u |r| + gamma_k^2 (|A| |x| + |b|). What an
evaluation in float64 may add to that is the bound above for a short sum; for a long one it is taken as
5 sqrt(k) u (|A| |x| + |b|), which random rounding errors exceed with a chance below 1e-5 (Higham and Mary 2019). The
exact residual is proven to meet the tolerance in either case.

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

from nlaformer.solvers.arithmetic import Array, Flag, Form, Number, form_of, like
from nlaformer.solvers.operators import Operator

UNIT = 2.0**-53
_TINY = 2.0**-1020  # more than a product, or an entry of A scaled by a power of two, loses by underflow
_MEASURED = 2.0**-900  # a sum of which underflow is no more than a rounding error
_SPLIT = 2.0**27 + 1


_SQUARES = (2.0**-800, 2.0**800)  # sums of squares that have lost nothing to underflow, and do not overflow


class Certificate(NamedTuple):
    """The residual of x and what is proven about it; a row or number for each lane."""

    r: Array  # (m, rows of A) b - A x
    g: Array  # (m, n) what is judged: r, or, of least squares, A^T r
    norm: Number  # (m,) |g|
    bound: Number  # (m,) no less than the exact |g|
    holds: Flag  # (m,) whether this x may be called a solution


def certify(A: Operator, b: Array, x: Array, tolerance: Number, adjoint: Operator | None = None) -> Certificate:
    """Judge x of every lane: b (m, rows), x (m, n), tolerance (m,). A lane whose x is not finite does not hold.

    ``adjoint`` is A^T, of least squares: then A^T (b - A x) is judged.

    >>> import numpy as np
    >>> from nlaformer.solvers.operators import DenseOperator
    >>> certificate = certify(DenseOperator(np.ones((1, 1))), np.ones(1), np.array([1 - 1e-16]), 1e-14)
    >>> certificate.norm < 2e-16, certificate.bound < 1e-14, certificate.holds
    (True, True, True)
    >>> A, b = DenseOperator(np.ones((2, 1))), np.array([1.0, 3.0])
    >>> mean = certify(A, b, np.array([2.0]), 1e-14, A.transposed)
    >>> mean.r.tolist(), mean.g.tolist(), mean.holds
    ([-1.0, 1.0], [0.0], True)
    """
    form, r = form_of(x), b - A.apply(x)
    if adjoint is None and A.size < math.inf:
        length, rows = norm_upper(x), r.shape[-1]
        rounding = _gamma(A.terms + 2) * (A.size * length + norm_upper(b))
        lost = _TINY * (A.terms + 2) * rows * (1 + length * math.sqrt(x.shape[-1]))
        error = (rounding + lost) * (1 + 16 * UNIT)
        found = _certificate(form, r, r, error, error, tolerance)
        if not form.some(_close(found, tolerance)):
            return found

    def evaluate(at: Array, sharp: bool) -> tuple[Evaluated, Evaluated]:
        found = residual(A.take(at), b[at], x[at], None if sharp else r)
        return found, found if adjoint is None else _product(adjoint.take(at), found, sharp)

    return _decided(evaluate, x, tolerance, A.terms > 0)


def certify_eigenpair(A: Operator, value: Number, v: Array, tolerance: Number) -> Certificate:
    """Judge |A v - value v| / |v| of every lane; value (m,), v (m, n).

    >>> import numpy as np
    >>> from nlaformer.solvers.operators import DenseOperator
    >>> found = certify_eigenpair(DenseOperator(np.array([[2.0, 1.0], [1.0, 2.0]])), 3.0, np.ones(2), 1e-14)
    >>> found.norm, found.bound < 1e-14, found.holds
    (0.0, True, True)
    """
    length = norm_lower(v)
    product, lost = _two_product(form_of(v).column(value), v)

    def evaluate(at: Array, sharp: bool) -> tuple[Evaluated, Evaluated]:
        # The residual b - A v with b = value v, a sum with one term more. A function that is not linear gives v itself
        # another image than -v.
        own = A.take(at)
        value = None if sharp else product - own.apply(v)
        r = residual(own, product[at], v[at], value, lost[at], extra=1)
        return r, r

    found = _decided(evaluate, v, tolerance * length * (1 - 4 * UNIT), A.terms > 0)
    return found._replace(norm=found.norm / length, bound=found.bound / length * (1 + 4 * UNIT))


def _decided(
    evaluate: Callable[[Array, bool], tuple[Evaluated, Evaluated]], x: Array, tolerance: Number, known: bool
) -> Certificate:
    """Judge by an evaluation in float64, and, where only its bound is in the way and entries are known, a sharp one."""
    form = form_of(x)
    found = _judged(form, *evaluate(..., False), tolerance)
    if known and (close := form.positions(_close(found, tolerance))):
        at = form.at(close)
        own = tolerance if at is ... else tolerance[at]
        again = _judged(form, *evaluate(at, True), own)
        if at is ...:
            return again if math.isfinite(again.bound) else found
        fit = form.isfinite(again.bound)
        for old, new in zip(found, again, strict=True):
            old[at[fit]] = new[fit]
    return found


def _close(found: Certificate, tolerance: Number) -> Flag:
    """Whether only the bound is in the way."""
    return ((found.norm <= tolerance) & (found.bound < math.inf)) > found.holds


class Evaluated(NamedTuple):
    """A vector as it was computed, for each lane, with what may differ in each component."""

    value: Array
    error: Array  # at most, from the exact vector
    spread: Array  # of any other evaluation in float64 from the exact vector


def _judged(form: Form, r: Evaluated, g: Evaluated, tolerance: Number) -> Certificate:
    spread = error = norm_upper(g.error)
    if g.spread is not g.error:
        spread = norm_upper(g.spread)
    return _certificate(form, r.value, g.value, error, spread, tolerance)


def _certificate(form: Form, r: Array, g: Array, error: Number, spread: Number, tolerance: Number) -> Certificate:
    norm = norm_upper(g)
    return Certificate(r, g, norm, *judged(norm, error, spread, tolerance))


def judged(norm: Number, error: Number, spread: Number, tolerance: Number) -> tuple[Number, Flag]:
    """The bound, and whether it holds: from norms, rounded upwards, of a vector as computed, its error, its spread.

    >>> judged(1.0, 2.0**-10, 2.0**-10, 1.01)[1], judged(1.0, 2.0**-10, 2.0**-10, 1.001)[1]
    (True, False)
    """
    bound = (norm + error) * (1 + 4 * UNIT)
    return bound, (bound + spread) * (1 + 4 * UNIT) <= tolerance  # false for NaN


def residual(
    A: Operator, b: Array, x: Array, value: Array | None, lost: Array | None = None, extra: int = 0
) -> Evaluated:
    """The residual b - A x with its errors: as it was computed in float64, or else summed in twice the precision.

    ``lost`` is what b lacks of a product that it stands for, an ``extra`` term of the sum.
    """
    terms = A.terms + 2 + extra
    size, underflow = A.absolute(abs(x)) + abs(b), _underflow(A, x)
    if value is not None:
        error = _gamma(terms) * size + underflow
        return Evaluated(value, error, error)
    r = _accurate(A, b, x, lost)
    error = UNIT * abs(r) + 2 * _gamma(terms) ** 2 * size + underflow
    return Evaluated(r, error, _likely(A) * size + underflow)


def _product(adjoint: Operator, r: Evaluated, sharp: bool) -> Evaluated:
    """A^T r of a residual that was evaluated with an error."""
    size, underflow = adjoint.absolute(abs(r.value)), _underflow(adjoint, r.value)
    upwards = 1 + _gamma(adjoint.terms + 2)
    inherited, spread = (adjoint.absolute(part) * upwards for part in (r.error, r.spread))
    if not sharp:
        own = _gamma(adjoint.terms + 2) * size + underflow
        return Evaluated(adjoint.apply(r.value), own + inherited, own + spread)
    g = _accurate(adjoint, 0.0 * size, -r.value)
    error = UNIT * abs(g) + 2 * _gamma(adjoint.terms + 2) ** 2 * size + underflow
    return Evaluated(g, error + inherited, _likely(adjoint) * size + underflow + spread)


def _likely(A: Operator) -> float:
    """What an evaluation in float64 may add, relative to |A| |x| + |b|: of a long sum, what is likely."""
    return min(5 * math.sqrt(A.terms) * UNIT, _gamma(A.terms + 2))


def _underflow(A: Operator, x: Array) -> Array:
    """What products may lose; twice as many terms as A has cover the scaling of its entries, and a further product."""
    return _TINY * (A.terms + 2) * (1 + abs(x).sum(-1)[..., None])


class Goal(NamedTuple):
    """What least squares start from: A^T b, of every lane."""

    norm: Number  # (m,) |A^T b|, rounded downwards
    vanishes: Flag  # (m,) whether rounding errors alone may be A^T b, in every component: then x = 0 is the answer
    noise: Number  # (m,) what the certificate of x = 0 meets there


def goal_of(A: Operator, adjoint: Operator, b: Array) -> Goal:
    """Measure A^T b, with one product.

    >>> import numpy as np
    >>> from nlaformer.solvers.operators import DenseOperator
    >>> A = DenseOperator(np.array([[0.1, 0.3], [0.7, -0.1], [0.2, 0.0]]))
    >>> b = np.cross(A.A[:, 0], A.A[:, 1])  # orthogonal to both columns
    >>> goal = goal_of(A, A.transposed, b)
    >>> bool(goal.vanishes), certify(A, b, np.zeros(2), goal.noise, A.transposed).holds
    (True, True)
    """
    g, size, underflow = adjoint.apply(b), adjoint.absolute(abs(b)), _underflow(adjoint, b)
    likely = max(_likely(A), _likely(adjoint)) * size
    rounding = likely + (A.terms + 2) * underflow
    # Terms that are not 0 may have underflowed where they sum to little: what is left of them says nothing.
    measured = (size > _MEASURED) | (adjoint.absolute(like(b != 0, b)) == 0)
    known = norm_lower(g) - norm_upper(_gamma(adjoint.terms + 2) * size + underflow)
    vanishes = ((abs(g) <= likely) & measured).all(-1)
    # Four times: A^T b itself, and the rounding errors of b - A x and of its product, which the certificate adds.
    return Goal(known, bool(vanishes) if b.ndim == 1 else vanishes, 4 * norm_upper(rounding))


def norm_of(v: Array) -> Number:
    """|v|_2 of every row, as it rounds."""
    form = form_of(v)
    return form.sqrt(form.dot(v, v))


def norm_upper(v: Array) -> Number:
    """|v|_2 of every row, rounded upwards; neither overflows nor underflows on the way."""
    form, up = form_of(v), 1 + _gamma(v.shape[-1] + 4)
    squares = form.dot(v, v)
    if not form.some(form.no((squares >= _SQUARES[0]) & (squares <= _SQUARES[1]))):
        return form.sqrt(squares) * up
    largest = form.peak(v)
    unit = form.where((largest > 0) & (largest < math.inf), largest, 1.0)
    v = v / form.column(unit)
    return form.sqrt(form.dot(v, v)) * up * unit + form.where(largest > 0, 0 * unit + 2.0**-1074, 0.0)


def norm_lower(v: Array) -> Number:
    """|v|_2 of every row, rounded downwards."""
    return norm_upper(v) * (1 - 2 * _gamma(v.shape[-1] + 6)) - 2.0**-1072


def _gamma(k: int) -> float:
    return k * UNIT / (1 - k * UNIT) * (1 + 2.0**-40)


def _accurate(A: Operator, b: Array, x: Array, lost: Array | None = None) -> Array:
    """The residual b - A x as if summed in twice the precision of float64, rounded once (Ogita, Rump and Oishi)."""
    total, lost = b + 0.0, 0.0 * b if lost is None else lost + 0.0
    for a, factor, rows in A.products(-x):
        product, error = _two_product(a, factor)
        at = slice(None) if rows is None else rows
        total[..., at], missed = _two_sum(total[..., at], product)
        lost[..., at] += missed + error
    return total + lost


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum and its rounding error, exactly (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The product and its rounding error, exactly (Dekker and Veltkamp)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _halves(a: Array) -> tuple[Array, Array]:
    c = _SPLIT * a
    high = c - (c - a)
    return high, a - high
