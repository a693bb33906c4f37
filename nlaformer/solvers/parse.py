"""A, b and x0 as users give them become a system alone, or several lanes, in float64.

A lane has its own method: conjugate gradients, or minimal residuals (GMRES) where A is not symmetric, or least squares
where A is not square.

A lane is one right-hand side with its matrix. The number of dimensions says what b is. With one dimension less than A
it holds a vector for every matrix, A (..., n, n) and b (..., n); with as many it holds columns, A (..., n, n) and
b (..., n, k); a single vector (n,) goes with every matrix of a batch. So for A (n, n), b (n, n) is n columns, as in
NumPy and SciPy, and for A (n, n, n), b (n, n) is n vectors, one per matrix. Of least squares, A has m rows and b m
entries, x n.

Where the largest entry of A or b is far from 1, it is scaled: A x = b becomes (2^-i A) y = 2^-j b with x = 2^(j-i) y.
Scaling by powers of two is exact, and no product on the way overflows or underflows. A model is always shown systems
whose largest entries are near 1.

Arrays of NumPy stay NumPy's, tensors torch's; with a sparse A or an operator, work is done in NumPy.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nlaformer.arrays import is_tensor, kind_of
from nlaformer.errors import DomainError, OptionError, ShapeError
from nlaformer.solvers.arithmetic import (
    Array,
    Flag,
    Form,
    Number,
    cast,
    exponent,
    form_of,
    like,
    namespace,
    scale,
    to_numpy,
    to_torch,
    transpose,
)
from nlaformer.solvers.certificate import UNIT, goal_of, norm_lower
from nlaformer.solvers.inputs import is_array, read_matrix, read_real, read_tolerance, result_dtype
from nlaformer.solvers.matrices import NEAR_ONE, keeps, measure
from nlaformer.solvers.operators import ImplicitOperator, Operator

_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Problem:
    """One system or m lanes, scaled, and the way back to the units, shape and kind of array of the user."""

    A: Operator
    adjoint: Operator | None  # A^T, of least squares alone
    b: Array  # (rows of A,) of a system alone, or (m, rows of A)
    x0: Array | None  # (m, n)
    unknowns: int  # n
    tolerance: Number  # (m,) for |b - A x|, or, of least squares, |A^T (b - A x)|
    exponent_a: Any  # (m,), or 0 where no lane is scaled
    exponent_b: Any  # (m,)
    finite: Flag  # (m,) whether A, b and x0 are
    minimal: list[bool]  # of every lane: whether steps minimize the residual (GMRES, CGLS), not the A-norm of the error
    complaint: list[str]  # of every lane: why A does not suit CG, where that is its method, or nothing
    kind: str
    dtype: str
    shape: tuple[int, ...]  # of the numbers per system
    columns: bool

    @cached_property
    def form(self) -> Form:
        """Whether it is a system alone."""
        return form_of(self.b)

    @property
    def lanes(self) -> int:
        """Their number, m."""
        return math.prod(self.shape)

    @property
    def single(self) -> bool:
        """Whether there is one right-hand side, so that numbers per system are plain numbers."""
        return not self.shape

    @property
    def exponent(self) -> Any:
        """The exponents of what the tolerance is for, (m,)."""
        return self.exponent_b if self.adjoint is None else self.exponent_a + self.exponent_b

    def unscaled(self, x: Array, at: Any = ...) -> Array:
        """The vector in the user's units, float64."""
        return scale(x, of_rows(self.exponent_b - self.exponent_a, at))

    def rounded(self, x: Array, at: Any = ..., dtype: str = "") -> Array:
        """The returned x, in the user's precision; in the units of the lanes."""
        dtype, e = dtype or self.dtype, of_rows(self.exponent_a - self.exponent_b, at)
        if dtype == "float64" and isinstance(e, int) and e == 0:
            return x
        return scale(cast(cast(self.unscaled(x, at), dtype), "float64"), e)

    def vectors(self, X: Array, dtype: str = "") -> Any:
        """Lanes of vectors, copied, in the shape and kind of b."""
        X = cast(X.reshape(*self.shape, X.shape[-1]), dtype or self.dtype)
        X = transpose(X) if self.columns else X
        return self.given(X.copy() if isinstance(X, np.ndarray) else X.clone().contiguous())

    def given(self, X: Array) -> Any:
        """Vectors in the kind of b."""
        return to_torch(X) if self.kind == "torch" else to_numpy(X)

    def numbers(self, values: Any) -> Any:
        """A number or a row per lane, in the shape of the batch; of a single system a plain number or its row."""
        if self.single:
            return values[0]
        array = np.asarray(values)
        return array.reshape(self.shape + array.shape[1:])


def of_rows(e: Any, at: Any = ...) -> Any:
    """The exponents of some lanes as those of their rows."""
    return e if isinstance(e, int) else e[at][:, None]


_MINIMAL = ("gmres", "minres")
_SQUARE = ("cg", "pcg", *_MINIMAL)
_LEAST_SQUARES = ("cgls", "lsmr")


def read(
    A: Any,
    b: Any,
    x0: Any,
    rtol: float,
    atol: float,
    method: str = "auto",
    modelled: bool = False,
    tensors: bool = False,
) -> Problem:
    """Check what was given and make lanes of it; A chooses between CG, GMRES and least squares where ``method`` not.

    A system that a model is shown is never alone, and near 1; with ``tensors``, all arrays are those of torch.
    """
    rtol, atol = read_tolerance("rtol", rtol), read_tolerance("atol", atol)
    matrices, right = read_matrix("A", A, square=method in _SQUARE), read_real("b", b)
    shape, columns = _shape(matrices, right)
    dtype = result_dtype(matrices.dtype, right.dtype)
    matrices, right = _together(A, matrices, right, tensors)
    alone = not (shape or modelled)
    least_squares = method in _LEAST_SQUARES or matrices.shape[-2] != matrices.shape[-1]
    batch, lanes = shape[:-1] if columns else shape, math.prod(shape)
    compare = not least_squares and method != "gmres"  # GMRES takes any square matrix
    operator, (e, whole, flaws) = measure(matrices, batch, lanes, alone, compare, method in _SQUARE, modelled)

    def as_lanes(v: Array) -> Array:
        if alone:
            return cast(v, "float64")
        v = cast(transpose(v) if columns else v, "float64")
        return namespace(v).broadcast_to(v, (*shape, v.shape[-1])).reshape(-1, v.shape[-1])

    given = y = as_lanes(right)
    form = form_of(y)

    def each(values: list[Any]) -> list[Any]:
        """What is known of every matrix, for every lane."""
        shared = lanes // len(values)
        return values if shared == 1 else [value for value in values for _ in range(shared)]

    def of_lanes(values: list[Any]) -> Any:
        """Numbers of every matrix as those of every lane."""
        return form.numbers(each(values))

    exponent_a, finite = of_lanes(e) if modelled or any(e) else 0, of_lanes(whole)
    finite, y, exponent_b = _in_range(form, y, finite, modelled)
    n = matrices.shape[-1]
    if least_squares and isinstance(operator, ImplicitOperator):
        # Entries tell the size of other matrices. Products with A and A^T would leave the range of the numbers.
        drawn = like(np.random.default_rng(0).standard_normal(y.shape[-1]), y) + 0 * y
        exponent_a = _exponents(form, form.peak(operator.transposed.apply(drawn)), modelled)
        operator = operator.scaled(exponent_a)
    start = None
    if x0 is not None:
        start = as_lanes(like(_read_x0(x0, n, shape, columns), right))
        finite = finite & form.isfinite(form.peak(start))
        start = scale(_or_zero(form, finite, start), of_rows(exponent_a - exponent_b))
    adjoint = operator.transposed if least_squares else None
    if adjoint is None:
        tolerance = _tolerances(form, norm_lower(y), exponent_b, rtol, atol, 0.0)
    else:
        own = adjoint.in_units(exponent_b) if isinstance(adjoint, ImplicitOperator) else adjoint
        goal = goal_of(operator, own, y)
        vanishes = goal.vanishes
        if form.some(vanishes):  # an entry that the scaling took to zero may be all there is of A^T b
            same = ((y != 0) == (given != 0)).all(-1)
            vanishes = vanishes & of_lanes(keeps(matrices, batch, e)) & (bool(same) if alone else same)
        tolerance = _tolerances(form, goal.norm, exponent_a + exponent_b, rtol, atol, goal.noise * vanishes)
        start = None if start is None else _or_zero(form, form.no(vanishes), start)  # 0 is the answer
    flaws, chosen = each(flaws), least_squares or method in _MINIMAL
    if method == "minres" and (skew := [flaw.asymmetry for flaw in flaws if flaw.asymmetry]):
        raise DomainError(f"{skew[0]}; minres needs a symmetric matrix, gmres takes any")
    minimal = [chosen] * lanes if chosen or method in _SQUARE else [flaw.skew for flaw in flaws]
    return Problem(
        A=operator,
        adjoint=adjoint,
        b=y,
        x0=start,
        unknowns=n,
        tolerance=tolerance,
        exponent_a=exponent_a,
        exponent_b=exponent_b,
        finite=finite,
        minimal=minimal,
        complaint=["" if own else flaw.complaint for own, flaw in zip(minimal, flaws, strict=True)],
        kind="torch" if "torch" in (kind_of(A), kind_of(b)) else "numpy",
        dtype=dtype,
        shape=shape,
        columns=columns,
    )


def _or_zero(form: Form, kept: Flag, v: Array) -> Array:
    """Vectors, zero where they are not kept."""
    if not form.some(form.no(kept)):
        return v
    xp = form.xp
    return xp.where(form.column(kept) if v.ndim == 2 else xp.asarray(kept), v, xp.zeros_like(v))


def _in_range(form: Form, y: Array, finite: Flag, modelled: bool) -> tuple[Flag, Array, Any]:
    """Whether A and b are finite, b scaled, and its exponents."""
    largest = form.peak(y)
    known = form.isfinite(largest)
    finite = finite & known
    e = _exponents(form, form.where(known, largest, 0.0), modelled)
    return finite, scale(_or_zero(form, finite, y), of_rows(-e)), e


def _exponents(form: Form, largest: Number, always: bool) -> Any:
    """The powers of two that bring numbers near 1; 0 for those that are not far, unless ``always``."""
    known = form.where(form.isfinite(largest), largest, 1.0)
    far = (known < NEAR_ONE[0]) | (known > NEAR_ONE[1])
    if not always and not form.some(far):
        return 0
    return exponent(known) if always else form.where(far, exponent(known), 0)


def _together(A: Any, matrices: Any, right: Array, tensors: bool) -> tuple[Any, Array]:
    """The matrices and right-hand sides as arrays of one library on one device; SciPy's matrices live on the CPU."""
    if not is_array(matrices):
        return matrices, to_torch(right) if tensors else to_numpy(right)
    if tensors or is_tensor(matrices) or is_tensor(right):
        matrices, right = to_torch(matrices), to_torch(right)
        device = matrices.device if is_tensor(A) else right.device
        return matrices.to(device), right.to(device)
    return matrices, right


def _shape(matrices: Any, right: Array) -> tuple[tuple[int, ...], bool]:
    """The shape of the lanes, and whether b holds columns, as the dimensions of A and b say; or a ShapeError."""
    dimensions, n = len(matrices.shape), matrices.shape[-2]
    if dimensions == 2 and tuple(right.shape) == (n,):
        return (), False
    columns = right.ndim == dimensions
    expected = (
        f"A {tuple(matrices.shape)} goes with b (..., {n}), a vector per matrix, or (..., {n}, k), k columns; given b "
        f"{tuple(right.shape)}"
    )
    known = columns or right.ndim in (1, dimensions - 1)
    if not known or not math.prod(right.shape) or right.shape[-2 if columns else -1] != n:
        raise ShapeError(expected)
    batch = _batch(tuple(matrices.shape[:-2]), tuple(right.shape[: -2 if columns else -1]), expected)
    return ((*batch, right.shape[-1]) if columns else batch), columns


def _read_x0(x0: Any, n: int, shape: tuple[int, ...], columns: bool) -> Array:
    """A real x0 for each system, in the shape of x."""
    if isinstance(x0, str):
        raise OptionError(f"x0 is {x0!r:.20}; expected a vector. Where SciPy takes 'Mb', pass the product M @ b")
    start = read_real("x0", x0)
    own, batch = ((n, shape[-1]), shape[:-1]) if columns else ((n,), shape)  # of a single system, and of the others
    expected = f"x0 has shape {tuple(start.shape)}; expected that of x, {(*batch, *own)}, or one x0 for each system"
    rest = start.ndim - len(own)
    if tuple(start.shape[rest:]) != own or _batch(batch, tuple(start.shape[: max(rest, 0)]), expected) != batch:
        raise ShapeError(expected)
    return start


def _tolerances(form: Form, norm: Number, e: Any, rtol: float, atol: float, least: Number) -> Number:
    """max(rtol norm, atol), or ``least``, of every lane in its units, rounded downwards, for norms that were."""

    def larger(a: Number, b: Number) -> Number:
        return form.where(a > b, a, b)

    relative = larger(rtol * larger(norm, 0.0 * norm) * (1 - 4 * UNIT), least + 0.0 * norm)
    found = larger(relative, scale(0.0 * norm + atol, -e) * (1 - 4 * UNIT))
    # The tolerance that is reported in the user's units must be the one that x meets, so it is a float64 there.
    found = form.where(found > _LARGEST, _LARGEST, found)  # NaN stays: no residual is within it
    return scale(scale_towards(found, e, 0.0), -e)


def scale_towards(values: Number, e: Any, towards: float) -> Number:
    """Values from 0 on times 2^e; a product that float64 cannot hold is rounded towards 0 or infinity.

    >>> [scale_towards(1 / 3, -1074, towards) for towards in (0.0, math.inf)]
    [0.0, 5e-324]
    """
    if isinstance(e, int) and e == 0:
        return values
    found = scale(values, e)
    back = scale(found, -e)
    off = back < values if towards else back > values
    if isinstance(values, float):
        return math.nextafter(found, towards) if off else found
    xp = namespace(values)
    return xp.where(off, xp.nextafter(found, xp.full_like(found, towards)), found)


def _batch(first: tuple[int, ...], second: tuple[int, ...], message: str) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(first, second)  # torch's loads SymPy on its first call
    except ValueError:
        raise ShapeError(message) from None
