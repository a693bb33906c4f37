"""A, b and x0 as users give them become lanes in float64, scaled by powers of two.

A lane has its own method: conjugate gradients, or minimal residuals (GMRES) where A is not symmetric, or least squares
where A is not square.

A lane is one right-hand side with its matrix. The number of dimensions says what b is. With one dimension less than A
it holds a vector for every matrix, A (..., n, n) and b (..., n); with as many it holds columns, A (..., n, n) and
b (..., n, k); a single vector (n,) goes with every matrix of a batch. So for A (n, n), b (n, n) is n columns, as in
NumPy and SciPy, and for A (n, n, n), b (n, n) is n vectors, one per matrix. Of least squares, A has m rows and b m
entries, x n.

A and b are scaled so that their largest entries are near 1: A x = b becomes (2^-i A) y = 2^-j b with x = 2^(j-i) y.
Scaling by powers of two is exact, and no product on the way overflows or underflows.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import give, kind_of, plain, to_tensor
from nlaformer.errors import DTypeError, OptionError, ShapeError
from nlaformer.prompt import exponent, scale
from nlaformer.solvers.certificate import UNIT, goal_of, norm_lower
from nlaformer.solvers.operators import DenseOperator, ImplicitOperator, Operator, SparseOperator
from nlaformer.solvers.sparse import COMPLEX, is_sparse, to_csr

_NEARLY_SYMMETRIC = 1e-6  # of the largest entry: a gap that may be rounding, float32's at most


@dataclass(frozen=True)
class Problem:
    """m lanes, scaled, and the way back to the units, shape and kind of array of the user."""

    A: Operator
    adjoint: Operator | None  # A^T, of least squares alone
    b: Tensor  # (m, rows of A)
    x0: Tensor | None  # (m, n)
    unknowns: int  # n
    tolerance: Tensor  # (m,) for |b - A x|, or, of least squares, |A^T (b - A x)|
    exponent_a: Tensor  # (m,)
    exponent_b: Tensor  # (m,)
    finite: Tensor  # (m,) whether A, b and x0 are
    minimal: Tensor  # (m,) whether steps minimize the residual (GMRES, CGLS) and not the error in the A-norm (CG)
    complaint: list[str]  # of every lane: why A does not suit CG, where that is its method, or nothing
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]  # of the numbers per system
    columns: bool

    @property
    def single(self) -> bool:
        """Whether there is one right-hand side, so that numbers per system are plain numbers."""
        return not self.shape

    @property
    def exponent(self) -> Tensor:
        """The exponents of what the tolerance is for, (m,)."""
        return self.exponent_b if self.adjoint is None else self.exponent_a + self.exponent_b

    def test(self, lanes: Tensor, d: Tensor, q: Tensor) -> Tensor:
        """What residuals and products are multiplied with in a step along d, q = A d: q where that minimizes |r|."""
        minimal = self.minimal[lanes]
        if bool(minimal.all()):
            return q
        return torch.where(minimal[:, None], q, d) if bool(minimal.any()) else d

    def unscaled(self, x: Tensor, lanes: Tensor | slice = slice(None)) -> Tensor:
        """The vector in the user's units, float64."""
        return scale(x, (self.exponent_b - self.exponent_a)[lanes, None])

    def rounded(self, x: Tensor, lanes: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The returned x, in the user's precision; in the units of the lanes."""
        given = self.unscaled(x, lanes).to(dtype or self.dtype).double()
        return scale(given, (self.exponent_a - self.exponent_b)[lanes, None])

    def vectors(self, X: Tensor, dtype: torch.dtype | None = None) -> Any:
        """Lanes of vectors in the shape and kind of b."""
        X = X.reshape(*self.shape, X.shape[-1]).to(dtype or self.dtype)
        return give(X.mT.contiguous() if self.columns else X, self.kind)

    def numbers(self, values: Any) -> Any:
        """A number or a row per lane, in the shape of the batch; of a single system a plain number or its row."""
        array = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
        if self.single:
            return array[0] if array.ndim > 1 else array.tolist()[0]
        return array.reshape(self.shape + array.shape[1:])


_SQUARE = ("cg", "pcg", "gmres")


def read(A: Any, b: Any, x0: Any, rtol: float, atol: float, method: str = "auto") -> Problem:
    """Check what was given and make lanes of it; A chooses between CG, GMRES and least squares where ``method`` not."""
    rtol, atol = read_tolerance("rtol", rtol), read_tolerance("atol", atol)
    matrices, right = read_matrix("A", A, square=method in _SQUARE), read_real("b", b)
    shape, columns = _shape(matrices, right)
    device = _device(A, matrices, right)
    batch = shape[:-1] if columns else shape
    operator, exponent_a, finite, flaws = _scaled(matrices, batch, math.prod(shape), device)
    least_squares = method == "cgls" or matrices.shape[-2] != matrices.shape[-1]
    minimal = [least_squares or method == "gmres" or (method not in _SQUARE and flaw.skew) for flaw in flaws]

    def as_lanes(v: Tensor) -> Tensor:
        v = (v.mT if columns else v).to(device, torch.float64)
        return v.expand(*shape, v.shape[-1]).reshape(-1, v.shape[-1]).contiguous()

    y = as_lanes(right)
    finite = finite & torch.isfinite(y).all(-1)
    y = torch.where(finite[:, None], y, 0.0)
    exponent_b, given = exponent(y.abs().amax(-1)), y
    y = scale(y, -exponent_b[:, None])
    start, n = None, matrices.shape[-1]
    if least_squares and isinstance(operator, ImplicitOperator):
        # Entries tell the size of other matrices. Products with A and A^T would leave the range of the numbers.
        drawn = torch.randn(y.shape[-1], dtype=y.dtype, generator=torch.Generator().manual_seed(0)).expand_as(y)
        exponent_a, _ = _finite_exponent(operator.transposed.apply(drawn).abs().amax(-1))
        operator = operator.scaled(exponent_a)
    if x0 is not None:
        start = as_lanes(_read_x0(x0, n, shape, columns))
        finite = finite & torch.isfinite(start).all(-1)
        start = scale(torch.where(finite[:, None], start, 0.0), (exponent_a - exponent_b)[:, None])
    adjoint = operator.transposed if least_squares else None
    if adjoint is None:
        tolerance = _tolerances(norm_lower(y), exponent_b, rtol, atol, torch.zeros_like(y[:, 0]))
    else:
        own = adjoint.in_units(exponent_b) if isinstance(adjoint, ImplicitOperator) else adjoint
        goal = goal_of(operator, own, y)
        vanishes = goal.vanishes
        if bool(vanishes.any()):  # an entry that the scaling took to zero may be all there is of A^T b
            vanishes = vanishes & _keeps(matrices, batch, exponent_a) & ((y != 0) == (given != 0)).all(-1)
        tolerance = _tolerances(goal.norm, exponent_a + exponent_b, rtol, atol, goal.noise * vanishes)
        start = None if start is None else torch.where(vanishes[:, None], 0.0, start)  # the answer
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
        minimal=torch.tensor(minimal, device=device),
        complaint=["" if own else str(flaw) for own, flaw in zip(minimal, flaws, strict=True)],
        kind="torch" if "torch" in (kind_of(A), kind_of(b)) else "numpy",
        dtype=result_dtype(matrices.dtype, right.dtype),
        shape=shape,
        columns=columns,
    )


def _shape(matrices: Any, right: Tensor) -> tuple[tuple[int, ...], bool]:
    """The shape of the lanes, and whether b holds columns, as the dimensions of A and b say; or a ShapeError."""
    dimensions, n = len(matrices.shape), matrices.shape[-2]
    columns = right.dim() == dimensions
    expected = (
        f"A {tuple(matrices.shape)} goes with b (..., {n}), a vector per matrix, or (..., {n}, k), k columns; given b "
        f"{tuple(right.shape)}"
    )
    known = columns or right.dim() in (1, dimensions - 1)
    if not known or not right.numel() or right.shape[-2 if columns else -1] != n:
        raise ShapeError(expected)
    batch = _batch(tuple(matrices.shape[:-2]), tuple(right.shape[: -2 if columns else -1]), expected)
    return ((*batch, right.shape[-1]) if columns else batch), columns


def _device(A: Any, matrices: Any, right: Tensor) -> torch.device:
    """Where the work is done: with the matrix, if that is a tensor; SciPy's matrices live on the CPU."""
    if not isinstance(matrices, Tensor):
        return torch.device("cpu")
    return matrices.device if isinstance(A, Tensor) else right.device


def _read_x0(x0: Any, n: int, shape: tuple[int, ...], columns: bool) -> Tensor:
    """A real x0 for each system, in the shape of x."""
    if isinstance(x0, str):
        raise OptionError(f"x0 is {x0!r:.20}; expected a vector. Where SciPy takes 'Mb', pass the product M @ b")
    start = read_real("x0", x0)
    own, batch = ((n, shape[-1]), shape[:-1]) if columns else ((n,), shape)  # of a single system, and of the others
    expected = f"x0 has shape {tuple(start.shape)}; expected that of x, {(*batch, *own)}, or one x0 for each system"
    rest = start.dim() - len(own)
    if tuple(start.shape[rest:]) != own or _batch(batch, tuple(start.shape[: max(rest, 0)]), expected) != batch:
        raise ShapeError(expected)
    return start


def _tolerances(norm: Tensor, e: Tensor, rtol: float, atol: float, least: Tensor) -> Tensor:
    """max(rtol norm, atol), or ``least``, of every lane in its units, rounded downwards, for norms that were."""
    relative = torch.maximum(rtol * norm.clamp(min=0) * (1 - 4 * UNIT), least)
    found = torch.maximum(relative, scale(torch.full_like(relative, atol), -e) * (1 - 4 * UNIT))
    # The tolerance that is reported in the user's units must be the one that x meets, so it is a float64 there.
    found = found.clamp(max=torch.finfo(torch.float64).max)
    return scale(scale_towards(found, e, 0.0), -e)


def scale_towards(values: Tensor, e: Tensor, towards: float) -> Tensor:
    """Values from 0 on times 2^e; a product that float64 cannot hold is rounded towards 0 or infinity.

    >>> third = torch.tensor(1 / 3, dtype=torch.float64)
    >>> [scale_towards(third, torch.tensor(-1074), towards).item() for towards in (0.0, math.inf)]
    [0.0, 5e-324]
    """
    found = scale(values, e)
    back = scale(found, -e)
    off = back < values if towards else back > values
    return torch.where(off, torch.nextafter(found, torch.full_like(found, towards)), found)


def read_matrix(name: str, value: Any, square: bool = True) -> Any:
    """A dense tensor (..., n, n), or a CSR array or LinearOperator of SciPy's: real, square if so, not empty."""
    found: Any = value
    if is_sparse(value):
        found = to_csr(name, value)
        if found.dtype.kind in "iu":
            _check_integers(name, found.data)
    elif not isinstance(value, Tensor) and hasattr(value, "matvec") and hasattr(value, "shape"):
        found = _linear_operator(name, value)
    else:
        found = read_real(name, value)
    shape = tuple(found.shape)
    if len(shape) < 2 or (square and shape[-1] != shape[-2]) or not math.prod(shape):
        wanted = "square matrices (..., n, n), n" if square else "matrices (..., m, n), m and n"
        raise ShapeError(f"{name} has shape {getattr(value, 'shape', shape)}; expected {wanted} from 1 on")
    return found


def _linear_operator(name: str, value: Any) -> Any:
    """What has a shape and a matvec as a LinearOperator of SciPy's, of real numbers."""
    from scipy.sparse.linalg import aslinearoperator

    try:
        found = aslinearoperator(value)
        kind = np.dtype(found.dtype).kind if found.dtype is not None else "f"
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"{name} is a {type(value).__name__} that SciPy cannot read as a LinearOperator: {error}"
        ) from error
    if kind == "c":
        raise DTypeError(f"{name} is complex ({found.dtype}); {COMPLEX}")
    if kind not in "biuf":
        raise DTypeError(f"{name} holds {found.dtype} values; only real systems can be solved")
    return found


def read_real(name: str, value: Any) -> Tensor:
    """A dense tensor of real numbers that float64 can hold."""
    tensor = to_tensor(name, value).detach()
    if tensor.is_complex():
        raise DTypeError(f"{name} is complex ({tensor.dtype}); {COMPLEX}")
    if not tensor.is_floating_point() and tensor.dtype != torch.bool:
        _check_integers(name, tensor)
    return tensor


def _check_integers(name: str, values: Any) -> None:
    """Refuse whole numbers that float64 cannot hold: the answer would be that of another system."""
    array = values.cpu().numpy() if isinstance(values, Tensor) else values
    if array.size and max(abs(int(array.min())), abs(int(array.max()))) > 2**53:
        raise DTypeError(f"{name} holds whole numbers beyond 2^53, which float64 does not hold exactly; convert them")


def result_dtype(*dtypes: Any) -> torch.dtype:
    """The widest precision among those given; whole numbers count as float64."""
    known = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
    found = (known.get(str(dtype).removeprefix("torch."), torch.float64) for dtype in dtypes)
    return functools.reduce(torch.promote_types, found)


def read_tolerance(name: str, value: Any) -> float:
    """A finite number from 0 on, or an OptionError."""
    number = plain(value)
    try:
        found = float(number) if isinstance(number, (Real, Decimal)) and not isinstance(number, bool) else math.nan
    except (OverflowError, ValueError):
        found = math.nan
    if not 0 <= found < math.inf:
        raise OptionError(f"{name} must be a finite number from 0 on, not {value!r:.60}")
    return found


def _batch(first: tuple[int, ...], second: tuple[int, ...], message: str) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(first, second)  # torch's loads SymPy on its first call
    except ValueError:
        raise ShapeError(message) from None


class _Flaws(NamedTuple):
    """What keeps a matrix from being symmetric positive definite, as its entries show, or nothing.

    CG on A computes residuals b - A x of A as it is given, and so does the certificate. What an asymmetry takes away is
    that directions are conjugate, and steps stay the same up to rounding where they are to sqrt(eps) (Simon 1984). So
    CG takes an A whose entries differ from their mirror images by 10 n eps of the largest entry, or by sqrt(eps) of the
    least one on the diagonal, more than the rounding errors of a matrix that was computed, as in U diag(s) V^T.
    """

    asymmetry: str = ""  # beyond sqrt(eps)
    diagonal: str = ""
    skew: bool = False  # an asymmetry beyond 10 n eps, with which a method for any A is at least as good

    @classmethod
    def of(cls, gap: float, diagonal: float, largest: float, n: int, eps: float) -> _Flaws:
        asymmetry = low = ""
        rounding, most = 10 * n * eps * largest, 1e-3 * largest
        if gap > min(max(rounding, math.sqrt(eps) * diagonal), most):
            nearly = "; if only by rounding, solve with (A + A.T) / 2" if gap < _NEARLY_SYMMETRIC * largest else ""
            share = f"{gap / largest:.1e} of the largest{nearly}"
            asymmetry = f"A is not symmetric: an entry differs from its mirror image by {share}"
        if diagonal <= 0:
            low = f"A has {'a zero' if diagonal == 0 else 'a negative'} entry on its diagonal"
        return cls(asymmetry, low, gap > min(rounding, most))

    def __str__(self) -> str:
        return self.asymmetry or self.diagonal


def _scaled(
    matrices: Any, batch: tuple[int, ...], lanes: int, device: torch.device
) -> tuple[Operator, Tensor, Tensor, list[_Flaws]]:
    """The matrices with their largest entries near 1.

    Also of every lane: the exponent, whether A is finite, and its flaws, if it is square.
    """
    from scipy.sparse.linalg import LinearOperator

    if isinstance(matrices, LinearOperator):
        e, finite = torch.zeros(lanes, dtype=torch.int32), torch.ones(lanes, dtype=torch.bool)
        return ImplicitOperator.of(matrices, lanes), e, finite, [_Flaws()] * lanes
    operator: Operator
    square = matrices.shape[-2] == matrices.shape[-1]
    # The diagonal is measured before the scaling, which may take a small entry to zero.
    if isinstance(matrices, Tensor):
        A = matrices.to(device, torch.float64)
        A = A.reshape(1, *A.shape[-2:]) if math.prod(A.shape[:-2]) == 1 else A.expand(*batch, -1, -1).flatten(0, -3)
        lowest = A.diagonal(dim1=-2, dim2=-1).amin(-1)  # (G,)
        e, finite = _finite_exponent(A.abs().amax((-2, -1)))
        A = torch.where(finite[:, None, None], scale(A, -e[:, None, None]), 0.0)
        size = A.abs().amax((-2, -1))
        gap = (A - A.mT).abs().amax((-2, -1)) if square else torch.zeros_like(size)
        operator = DenseOperator(A, lanes // len(A))
    else:
        csr = matrices.astype(np.float64)
        lowest = torch.tensor([csr.diagonal().min()])
        e, finite = _finite_exponent(_largest(csr))
        csr.data = scale(torch.from_numpy(csr.data), -e).numpy() if finite else np.zeros_like(csr.data)
        size = _largest(csr)
        gap = _largest(csr - csr.T) if square else torch.zeros_like(size)
        operator = SparseOperator(csr)
    n, eps, shared = matrices.shape[-1], torch.finfo(result_dtype(matrices.dtype)).eps, lanes // len(e)
    diagonal = torch.where(lowest > 0, scale(lowest, -e).clamp(min=5e-324), lowest)
    measured = zip(gap.tolist(), diagonal.tolist(), size.tolist(), strict=True)
    flaws = [_Flaws.of(*numbers, n, eps) for numbers in measured]
    every = [flaw for flaw in flaws for _ in range(shared)]
    return operator, e.repeat_interleave(shared), finite.repeat_interleave(shared), every


def _keeps(matrices: Any, batch: tuple[int, ...], e: Tensor) -> Tensor:
    """Whether no entry of A is taken to zero by the scaling; of every lane."""
    if isinstance(matrices, Tensor):
        size = matrices.to(e.device, torch.float64).abs()
        smallest = torch.where(size > 0, size, torch.inf).amin((-2, -1)).expand(batch).reshape(-1)
    elif is_sparse(matrices):
        size = np.abs(matrices.data.astype(np.float64))
        smallest = torch.tensor([size.min(initial=np.inf, where=size > 0)])
    else:
        return torch.ones_like(e, dtype=torch.bool)  # an operator has no entries
    return scale(smallest.repeat_interleave(len(e) // len(smallest)), -e) > 0


def _finite_exponent(largest: Tensor) -> tuple[Tensor, Tensor]:
    finite = torch.isfinite(largest)
    return exponent(torch.where(finite, largest, 1.0)), finite


def _largest(csr: Any) -> Tensor:
    return torch.tensor([np.abs(csr.data).max(initial=0.0)])
