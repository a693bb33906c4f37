"""Nonlinear systems A x + x^3 = b with a convex energy, and the methods that they face.

x^3 is meant entry by entry. The system is the condition for the minimum of

    f(x) = x . A x / 2 + sum x_i^4 / 4 - b . x,    gradient -r,  r = b - A x - x^3,    Hessian A + 3 diag(x^2),

which is convex for positive definite A, so that there is one solution. All methods search exactly along a direction d:
the derivative of f there is a cubic, increasing polynomial of the step. Nonlinear conjugate gradients are those of
Polak and Ribiere with beta = max(beta, 0) ("PR+"); L-BFGS keeps ten pairs; Newton-CG solves the Newton equation to
a residual of min(1/2, sqrt |r|) |r| by conjugate gradients and searches along what it has after each of their steps.
An iteration is a product with A. Nothing else that costs as much is needed by any of them, but for what the
preconditioned form of nonlinear CG starts with: the fit of a diagonal plus rank one to A, five products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from nlaformer.problems.base import Draws, Family, Rival, Systems, real, sigmas, whole
from nlaformer.problems.conjugate import by_hand
from nlaformer.problems.spd import SPD
from nlaformer.problems.vectors import divided, dot, product

_SEARCH = 60  # Newton's steps to the minimum along a direction, at most; they converge, since the cubic increases
_PAIRS = 10


@dataclass(frozen=True)
class Cubic(Family):
    """A x + x^3 = b with A of the family ``spd``: the solution is drawn, x ~ N(0, scale^2), then b.

    Parameters
    ----------
    n : unknowns
    sigma : of the log-normal diagonal of A; of several, each system takes one at random
    scale : of the solution: the larger, the more nonlinear

    Examples
    --------
    >>> A, b, x = Cubic(n=4).sample(3, seed=0)
    >>> torch.allclose((A @ x[..., None])[..., 0] + x**3, b)
    True
    """

    name: ClassVar[str] = "cubic"
    definite: ClassVar[bool] = False
    n: int = whole(20, least=1)
    sigma: tuple[float, ...] = sigmas(1.2)
    scale: float = real(1.0, positive=True)

    def systems(self, draw: Draws, count: int) -> Systems:
        A, b, x = SPD(self.n, self.sigma).systems(draw, count)
        return Systems(A, self.scale * b + (self.scale * x) ** 3, self.scale * x)

    def rivals(self) -> Mapping[str, Rival]:
        return {
            "nonlinear CG": nonlinear_cg,
            "L-BFGS": lbfgs,
            "Newton-CG": newton_cg,
            "nonlinear CG, diagonal + rank 1 by hand": by_hand_cg,
        }

    def others(self) -> Mapping[str, Family]:
        return {
            "scale 1/4": Cubic(self.n, self.sigma, self.scale / 4),
            "scale 4": Cubic(self.n, self.sigma, 4 * self.scale),
            "sigma 2": Cubic(self.n, (2.0,), self.scale),
        }


class _Point(NamedTuple):
    """An iterate, and b - A x, which a search along a direction updates without a further product."""

    x: Tensor
    linear: Tensor

    @property
    def r(self) -> Tensor:
        return self.linear - self.x**3

    def along(self, d: Tensor, Ad: Tensor) -> _Point:
        """The minimum along d: slope = curvature a + skewness a^2 + quartic a^3, by Newton's method."""
        x, d2 = self.x, d.square()
        slope, curvature = dot(self.r, d), dot(d, Ad) + 3 * dot(x.square(), d2)
        skewness, quartic = 3 * dot(x * d, d2), dot(d2, d2)
        a = torch.zeros_like(slope)
        for _ in range(_SEARCH):
            value = a * (curvature + a * (skewness + a * quartic)) - slope
            change = divided(value, curvature + a * (2 * skewness + 3 * a * quartic))
            a = a - change
            if (change.abs() <= 1e-15 * a.abs()).all():
                break
        return _Point(x + a * d, self.linear - a * Ad)


def nonlinear_cg(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    """The iterates of nonlinear conjugate gradients, PR+, from x_0 = 0, (count, iterations + 1, n), in float64."""
    return _conjugate(A.double(), b.double(), iterations, lambda state: state.r)


def by_hand_cg(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    """The same with M = (diag(D + 3 x^2) + u u^T)^-1, where D and u fit A once (``conjugate.by_hand``)."""
    A, b = A.double(), b.double()
    D, u = by_hand(A)

    def preconditioned(state: _Point) -> Tensor:
        E = D + 3 * state.x.square()
        w = u / E
        return state.r / E - w * dot(w, state.r) / (1 + dot(u, w))

    return _conjugate(A, b, iterations, preconditioned)


def _conjugate(A: Tensor, b: Tensor, iterations: int, preconditioned: Callable[[_Point], Tensor]) -> Tensor:
    state = _Point(torch.zeros_like(b), b)
    z = d = preconditioned(state)
    iterates = [state.x]
    for _ in range(iterations):
        following = state.along(d, product(A, d))
        z, before = preconditioned(following), dot(z, state.r)
        d = z + divided(dot(z, following.r - state.r), before).clamp(min=0.0) * d
        d = torch.where(dot(d, following.r) > 0, d, z)  # a descent direction, whatever rounding does
        state = following
        iterates.append(state.x)
    return torch.stack(iterates, 1)


def lbfgs(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    """The iterates of L-BFGS with ten pairs from x_0 = 0, (count, iterations + 1, n), in float64."""
    A, b = A.double(), b.double()
    state = _Point(torch.zeros_like(b), b)
    pairs: list[tuple[Tensor, Tensor]] = []  # differences of x, and of the gradient
    iterates = [state.x]
    for _ in range(iterations):
        d, weights = state.r, []
        for s, y in reversed(pairs):
            weights.append(divided(dot(s, d), dot(s, y)))
            d = d - weights[-1] * y
        if pairs:
            s, y = pairs[-1]
            d = torch.where(dot(y, y) > 0, divided(dot(s, y), dot(y, y)), 1.0) * d
        for (s, y), weight in zip(pairs, reversed(weights), strict=True):
            d = d + (weight - divided(dot(y, d), dot(s, y))) * s
        d = torch.where(dot(d, state.r) > 0, d, state.r)
        following = state.along(d, product(A, d))
        pairs = [*pairs, (following.x - state.x, state.r - following.r)][-_PAIRS:]
        state = following
        iterates.append(state.x)
    return torch.stack(iterates, 1)


def newton_cg(A: Tensor, b: Tensor, iterations: int) -> Tensor:
    """The iterates of Newton-CG from x_0 = 0, one for each product with A, (count, iterations + 1, n), in float64."""
    A, b = A.double(), b.double()
    state = _Point(torch.zeros_like(b), b)
    size = b.norm(dim=-1, keepdim=True)
    s, As, residual, d = torch.zeros_like(b), torch.zeros_like(b), state.r, state.r
    iterates = [state.x]
    for _ in range(iterations):
        Ad = product(A, d)
        Hd = Ad + 3 * state.x.square() * d
        alpha = divided(dot(residual, residual), dot(d, Hd))
        s, As, rest = s + alpha * d, As + alpha * Ad, residual - alpha * Hd
        found = state.along(s, As)
        norm = state.r.norm(dim=-1, keepdim=True)
        forcing = torch.sqrt(divided(norm, size)).clamp(max=0.5)
        ends = rest.norm(dim=-1, keepdim=True) <= forcing * norm
        d = torch.where(ends, found.r, rest + divided(dot(rest, rest), dot(residual, residual)) * d)
        residual = torch.where(ends, found.r, rest)
        state = _Point(*(torch.where(ends, new, old) for new, old in zip(found, state, strict=True)))
        s, As = torch.where(ends, 0.0, s), torch.where(ends, 0.0, As)
        iterates.append(found.x)
    return torch.stack(iterates, 1)
