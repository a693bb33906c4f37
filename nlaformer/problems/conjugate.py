"""Conjugate gradients, plain and preconditioned, as in section 3, on whole batches: what symmetric systems face.

    alpha_k = r_k.z_k / d_k.A d_k      x_{k+1} = x_k + alpha_k d_k      r_{k+1} = r_k - alpha_k A d_k
    beta_k+1 = r_{k+1}.z_{k+1} / r_k.z_k                                d_{k+1} = z_{k+1} + beta_{k+1} d_k

with z = M r, where M ~ A^-1 as in SciPy, and z = r for plain CG. Both keep the whole trajectory.

How this differs from ``scipy.sparse.linalg.cg``: (1) any leading batch dimensions; (2) always float64; (3) a fixed
number of iterations without looking at the numbers, so that nothing waits for the device; (4) a system whose r.z or
d.A d has become exactly zero, whether solved or underflowed, stays as it is bit for bit where SciPy divides by zero.
Entries of b around 1e-150 and below underflow in r.z: scale such systems first.

A diagonal plus rank one by hand is what any claim on the paper's family must face, since its A is nearly that. Writing
A = E + diag(a) with E zero on the diagonal, four power iterations on E + diag(u^2) fit u u^T to E, where u^2 is the
current guess of the diagonal that u u^T has; they start from the largest row of E. M = (diag(a - u^2) + u u^T)^-1 then
follows from the formula of Sherman and Morrison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nlaformer.arrays import whole
from nlaformer.errors import DTypeError, ShapeError, unknown_name
from nlaformer.problems.vectors import dot, product

_Apply = Callable[[Tensor], Tensor]
_POWER_ITERATIONS = 4
_LEAST = 0.1  # of a_ii stays in the diagonal, so that M is positive definite


class Trajectory(NamedTuple):
    """Every iterate with its residual and search direction."""

    x: Tensor  # (..., T+1, n)
    r: Tensor  # (..., T+1, n)
    d: Tensor  # (..., T+1, n)


def cg(A: Any, b: Any, iterations: int, x0: Any = None) -> Trajectory:
    """Conjugate gradients for a fixed number of iterations.

    Parameters
    ----------
    A : (..., n, n), symmetric positive definite
    b : (..., n); the leading dimensions broadcast with those of A
    iterations : T
    x0 : (..., n), the first iterate; zero by default

    Returns
    -------
    Trajectory : x, r, d, each (..., T+1, n) in float64 on the device of A

    Examples
    --------
    >>> A, b = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.tensor([1.0, 2.0])
    >>> cg(A, b, iterations=2).x
    tensor([[0.0000, 0.0000],
            [0.2500, 0.5000],
            [0.0909, 0.6364]], dtype=torch.float64)
    """
    A, b, x0 = as_system(A, b, x0)
    return _trajectory(A, lambda r: r, b, x0, iterations)


def pcg(A: Any, b: Any, iterations: int, M: Any = "jacobi", x0: Any = None) -> Trajectory:
    """Preconditioned conjugate gradients for a fixed number of iterations.

    Parameters
    ----------
    A, b, iterations, x0 : as for ``cg``
    M : approximates the *inverse* of A, as in SciPy, and is symmetric positive definite: "jacobi" (the inverse of
        A's diagonal), the diagonal of a diagonal M, (..., n), or a function of r, (..., n) -> (..., n)

    Returns
    -------
    Trajectory : x, r, d, each (..., T+1, n) in float64; d_0 = M r_0

    Examples
    --------
    >>> A, b = torch.diag(torch.tensor([1.0, 10.0, 100.0])), torch.ones(3)
    >>> pcg(A, b, iterations=1).x[-1]
    tensor([1.0000, 0.1000, 0.0100], dtype=torch.float64)
    """
    A, b, x0 = as_system(A, b, x0)
    return _trajectory(A, _preconditioner(M, A, b), b, x0, iterations)


def by_hand(A: Tensor) -> tuple[Tensor, Tensor]:
    """D and u, each (..., n), for the preconditioner (diag(D) + u u^T)^-1 of A (..., n, n).

    >>> u, diagonal = torch.linspace(1, 2, 10).double(), torch.arange(1.0, 11.0).double()
    >>> D, found = by_hand(torch.outer(u, u) + torch.diag(diagonal))
    >>> torch.allclose(D, diagonal, rtol=1e-2), torch.allclose(found.abs(), u, rtol=1e-2)
    (True, True)
    """
    a = A.diagonal(dim1=-2, dim2=-1)
    E = A - torch.diag_embed(a)
    largest = E.square().sum(-1).argmax(-1)[..., None, None].expand(*E.shape[:-2], 1, E.shape[-1])
    u = _rescaled(E, E.gather(-2, largest).squeeze(-2))
    for _ in range(_POWER_ITERATIONS):
        u = _rescaled(E + torch.diag_embed(u.square()), u)
    return torch.maximum(a - u.square(), _LEAST * a), u


def _rescaled(B: Tensor, u: Tensor) -> Tensor:
    """The direction of B u with the square root of u's Rayleigh quotient as its length; 0 where that is negative."""
    w = product(B, u)
    quotient = dot(u, w) / u.square().sum(-1, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)
    length = w.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)
    return w / length * quotient.clamp(min=0.0).sqrt()


def inverse_by_hand(A: Tensor) -> _Apply:
    """The preconditioner of ``by_hand`` as a function of r, by the formula of Sherman and Morrison.

    >>> A = torch.diag(torch.arange(1.0, 11.0)).double() + 1
    >>> r = torch.ones(10).double()
    >>> torch.allclose(inverse_by_hand(A)(r), torch.linalg.solve(A, r), rtol=1e-2)
    True
    """
    D, u = by_hand(A)
    w = u / D
    scale = 1 + dot(u, w)
    return lambda r: r / D - w * dot(w, r) / scale


CLASSICAL: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "CG": lambda A, b, iterations: cg(A, b, iterations).x,
    "PCG, Jacobi": lambda A, b, iterations: pcg(A, b, iterations).x,
    "PCG, diagonal + rank 1 by hand": lambda A, b, iterations: pcg(A, b, iterations, M=inverse_by_hand(A)).x,
}


def last_iterate(A: Any, b: Any, iterations: int, M: Any = None) -> Tensor:
    """The last iterate of ``cg``, or of ``pcg`` with M, from 0: (..., n), in the memory of a few vectors.

    Matrices with k right-hand sides each are A (..., 1, n, n) and b (..., k, n).

    >>> A, b = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.tensor([[1.0, 2.0], [5.0, 4.0]])
    >>> last_iterate(A, b, iterations=2)
    tensor([[0.0909, 0.6364],
            [1.0000, 1.0000]], dtype=torch.float64)
    """
    A, b, x0 = as_system(A, b, None)
    for step in _steps(A, (lambda r: r) if M is None else _preconditioner(M, A, b), b, x0, iterations):
        x, _, _ = step
    return x


def _trajectory(A: Tensor, M: _Apply, b: Tensor, x: Tensor, iterations: int) -> Trajectory:
    return Trajectory(*(torch.stack(part, -2) for part in zip(*_steps(A, M, b, x, iterations), strict=True)))


def _steps(A: Tensor, M: _Apply, b: Tensor, x: Tensor, iterations: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """x, r and d from x on. A system that cannot take another step (0/0) keeps its state."""

    def image(v: Tensor) -> Tensor:
        # Many right-hand sides of one matrix are one product of matrices, many matrices a batch of them.
        if A.ndim == 2:
            return v @ A.mT
        if A.ndim > 3 and A.shape[-3] == 1:
            return v @ A.squeeze(-3).mT
        return product(A, v)

    r = b - image(x)
    d = M(r)
    rz = dot(r, d)
    yield x, r, d
    for _ in range(whole("iterations", iterations, 0)):
        q = image(d)
        curvature = dot(d, q)
        going = (rz != 0) & (curvature != 0)
        alpha = torch.where(going, rz / curvature, 0.0)
        x = x + alpha * d
        r = r - alpha * q
        z = M(r)
        rz_next = dot(r, z)
        beta = rz_next / rz
        d = torch.where(going, z + beta * d, d)
        rz = torch.where(going, rz_next, rz)
        yield x, r, d


def as_system(A: Any, b: Any, x0: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A, b and x0 in float64, the vectors with the full batch shape."""
    A = _float64("A", A)
    b = _float64("b", b, A.device)
    if A.ndim < 2 or A.shape[-1] != A.shape[-2] or not A.shape[-1]:
        raise ShapeError(f"A has shape {tuple(A.shape)}; expected square matrices (..., n, n) with n from 1 on")
    shape = _vectors("b", b, A.shape[:-1])
    x0 = b.new_zeros(shape) if x0 is None else _float64("x0", x0, A.device)
    shape = _vectors("x0", x0, shape)
    return A, b.expand(shape), x0.expand(shape)


def _preconditioner(M: Any, A: Tensor, b: Tensor) -> _Apply:
    if callable(M):
        return M  # type: ignore[no-any-return]
    if isinstance(M, str):
        if M != "jacobi":
            raise unknown_name("preconditioner", M, ["jacobi"])
        diagonal = A.diagonal(dim1=-2, dim2=-1)
        inverse = torch.where(diagonal == 0, 1.0, 1 / diagonal)  # A with a zero there is not definite anyway
    else:
        inverse = _float64("M", M, A.device)
        if _vectors("M", inverse, b.shape) != b.shape:
            raise ShapeError(
                f"M has shape {tuple(inverse.shape)} for systems of shape {tuple(b.shape)}; an array M is the diagonal "
                "of the preconditioner. For a full matrix pass a function: M=lambda r: r @ matrix"
            )
    return lambda r: inverse * r


def _float64(name: str, value: Any, device: torch.device | None = None) -> Tensor:
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DTypeError(f"{name} is a {type(value).__name__} ({error}); expected an array of numbers") from error
    if tensor.is_complex():
        raise DTypeError(f"{name} is complex ({tensor.dtype}); only real systems can be solved")
    return tensor.to(device=device, dtype=torch.float64)


def _vectors(name: str, value: Tensor, others: torch.Size) -> torch.Size:
    """The shape that a stack of vectors has together with the others."""
    try:
        if value.ndim and value.shape[-1] == others[-1]:
            return torch.broadcast_shapes(value.shape, others)
    except RuntimeError:
        pass
    raise ShapeError(f"{name} has shape {tuple(value.shape)}, which does not go with {tuple(others)}, (..., n)")
