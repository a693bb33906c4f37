"""Nonlinear systems A x + x^3 = b, A positive definite: nonlinear conjugate gradients preconditioned by a network.

They minimize f(x) = x . A x / 2 + sum x_i^4 / 4 - b . x, whose gradient is -r = A x + x^3 - b. The proposal is
c = W M W r, where W is the diagonal of the Hessian A + 3 diag(x^2) to the power -1/2 and M is symmetric positive
definite, whatever the network says: f falls along it. It is made conjugate to the last direction with the Hessian; then
f is minimized along it, exactly. So no step increases f. A step takes one product with A.

The search is in closed form. With s = (x . d^3) / (d^2 . d^2) the line is x + a d = (x - s d) + t d with t = s + a, and
the derivative of f along it is, up to a constant and the factor d^2 . d^2, the odd and increasing

    h(t) = t^3 + 3 p t,    p = (d . A d / 3 + |d (x - s d)|^2) / (d^2 . d^2) > 0,

so that a = h^-1(h(s) + r . d / (d^2 . d^2)) - s, where h^-1(2 z p^(3/2)) = 2 sqrt(p) sinh(asinh(z) / 3). Two steps of
Newton's method give the digits that the last difference loses where the step is small beside x.
"""

from __future__ import annotations

from typing import Any

from nlaformer.program.language import Program, diag, dot, exp, log, norm, relu, sign, sqrt, zeros_like
from nlaformer.program.learned import Learned

_States = dict[str, Any]


class GuidedNonlinear(Program):
    """Nonlinear conjugate gradients with an exact line search; a network writes the preconditioner of a loop.

    The network is also given how much of the Hessian's diagonal comes from x, as a logarithm.
    """

    positive_definite = True

    def __init__(self, rank: int = 1):
        self.rank = rank
        self.precondition = Learned(f"dimensionless diagonal + rank {rank}")

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        linear = b - A @ x0
        return dict(x=x0, linear=linear, d=zeros_like(b), q=zeros_like(b))

    def step(self, A: Any, x: Any, linear: Any, d: Any, q: Any) -> _States:
        r = linear - x * x * x
        a, curved = diag(A), 3.0 * (x * x)
        w = 1.0 / sqrt(a + curved)
        c = w * (self.precondition(A, r / norm(r), log(1.0 + curved / a)) @ (w * r))
        h = q + curved * d
        d = c - (dot(c, h) / dot(d, h)) * d
        q = A @ d
        a = _search(x, r, d, dot(d, q))
        return dict(x=x + a * d, linear=linear - a * q, d=d, q=q)

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return b - A @ x - x * x * x


def _search(x: Any, r: Any, d: Any, curvature: Any) -> Any:
    """The step to the minimum along d, where ``curvature`` is d . A d."""
    quartic = dot(d * d, d * d)
    slope = dot(r, d) / quartic
    s = dot(x * d, d * d) / quartic
    e = d * (x - s * d)
    p = (curvature / 3.0 + dot(e, e)) / quartic
    z = (s * s * s + 3.0 * p * s + slope) / (2.0 * p * sqrt(p))
    size = exp(log(relu(z) + relu(-z) + sqrt(1.0 + z * z)) / 3.0)
    a = sign(z) * sqrt(p) * (size - 1.0 / size) - s
    for _ in range(2):
        a = a - (a * (a * (a + 3.0 * s) + 3.0 * (s * s + p)) - slope) / (3.0 * (s + a) * (s + a) + 3.0 * p)
    return a
