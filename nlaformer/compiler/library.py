"""The library: each algorithm as one would write it on a page.

Scale is never the programs' business: a run divides A and b by powers of two, and constants that would have a unit are
taken relative to the Frobenius norm of A, an upper bound for its largest eigenvalue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.compiling import compile
from nlaformer.compiler.language import Program, diag, dot, exp, identity_like, norm, positive, zeros_like
from nlaformer.errors import OptionError, look_up, unknown_name
from nlaformer.problems.spd import random_spd

_States = dict[str, Any]


class ConjugateGradient(Program):
    """Hestenes and Stiefel's, as in section 3 of the paper."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        return dict(x=x0, r=r, d=r, rho=dot(r, r))

    def step(self, A: Any, x: Any, r: Any, d: Any, rho: Any) -> _States:
        q = A @ d
        alpha = rho / dot(d, q)
        r = r - alpha * q
        rho_next = dot(r, r)
        beta = rho_next / rho
        return dict(x=x + alpha * d, r=r, d=r + beta * d, rho=rho_next)


class FusedConjugateGradient(Program):
    """Chronopoulos and Gear's: both inner products of an iteration at once, so two layers fewer."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        w = A @ r
        gamma = dot(r, r)
        alpha = gamma / dot(r, w)
        return dict(x=x0 + alpha * r, r=r - alpha * w, p=r, s=w, gamma=gamma, alpha=alpha)

    def step(self, A: Any, x: Any, r: Any, p: Any, s: Any, gamma: Any, alpha: Any) -> _States:
        w = A @ r
        gamma_next = dot(r, r)
        beta = gamma_next / gamma
        alpha_next = gamma_next / positive(dot(r, w) - beta * gamma_next / alpha)
        p, s = r + beta * p, w + beta * s
        return dict(x=x + alpha_next * p, r=r - alpha_next * s, p=p, s=s, gamma=gamma_next, alpha=alpha_next)


class PreconditionedConjugateGradient(Program):
    """Conjugate gradients with Jacobi's preconditioner."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        z = r / diag(A)
        return dict(x=x0, r=r, d=z, rho=dot(r, z))

    def step(self, A: Any, x: Any, r: Any, d: Any, rho: Any) -> _States:
        q = A @ d
        alpha = rho / dot(d, q)
        r = r - alpha * q
        z = r / diag(A)
        rho_next = dot(r, z)
        return dict(x=x + alpha * d, r=r, d=z + (rho_next / rho) * d, rho=rho_next)


class ConjugateResidual(Program):
    """Stiefel's: the residual is minimized over the same space."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        w = A @ r
        return dict(x=x0, r=r, d=r, q=w, rho=dot(r, w))

    def step(self, A: Any, x: Any, r: Any, d: Any, q: Any, rho: Any) -> _States:
        alpha = rho / dot(q, q)
        r = r - alpha * q
        w = A @ r
        rho_next = dot(r, w)
        beta = rho_next / rho
        return dict(x=x + alpha * d, r=r, d=r + beta * d, q=w + beta * q, rho=rho_next)


class NormalEquations(Program):
    """CGNR: conjugate gradients on A^T A x = A^T b, for any nonsingular A."""

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        r = b - A @ x0
        z = A.T @ r
        return dict(x=x0, r=r, d=z, rho=dot(z, z))

    def step(self, A: Any, x: Any, r: Any, d: Any, rho: Any) -> _States:
        q = A @ d
        alpha = rho / dot(q, q)
        r = r - alpha * q
        z = A.T @ r
        rho_next = dot(z, z)
        return dict(x=x + alpha * d, r=r, d=z + (rho_next / rho) * d, rho=rho_next)


class SteepestDescent(Program):
    """The gradient method with the best step, the residual carried along."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        return dict(x=x0, r=b - A @ x0)

    def step(self, A: Any, x: Any, r: Any) -> _States:
        q = A @ r
        alpha = dot(r, r) / dot(r, q)
        return dict(x=x + alpha * r, r=r - alpha * q)


class Richardson(Program):
    """x + omega (b - A x); omega is ``relaxation`` over the norm of A, so 0 < relaxation < 2 converges."""

    relaxation = 1.5

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, omega=self.relaxation / norm(A))

    def step(self, A: Any, b: Any, x: Any, omega: Any) -> _States:
        return dict(x=x + omega * (b - A @ x), omega=omega)


class HeavyBall(Program):
    """Polyak's: Richardson with a memory of the last step."""

    relaxation, momentum = 2.5, 0.75

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, previous=x0, omega=self.relaxation / norm(A))

    def step(self, A: Any, b: Any, x: Any, previous: Any, omega: Any) -> _States:
        return dict(x=x + omega * (b - A @ x) + self.momentum * (x - previous), previous=x, omega=omega)


class Chebyshev(Program):
    """Chebyshev's semi-iteration for eigenvalues between norm(A) / ``condition`` and norm(A)."""

    condition = 100.0

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        centre = 0.5 * (1 + 1 / self.condition) * norm(A)
        r = b - A @ x0
        return dict(x=x0, r=r, d=r / centre, rho=self._ratio / (2 * self._ratio**2), centre=centre)

    def step(self, A: Any, x: Any, r: Any, d: Any, rho: Any, centre: Any) -> _States:
        x, r = x + d, r - A @ d
        rho_next = 1 / positive(2 * self._ratio - rho)
        # centre / ratio is half the width of the interval.
        return dict(
            x=x, r=r, d=rho_next * rho * d + (2 * self._ratio * rho_next / centre) * r, rho=rho_next, centre=centre
        )

    @property
    def _ratio(self) -> float:
        return (self.condition + 1) / (self.condition - 1)


class Power(Program):
    """The power method: the dominant eigenvector, and its eigenvalue as a state."""

    def start(self, A: Any) -> _States:
        w = A @ (1 + zeros_like(diag(A)))
        return dict(x=w / norm(w), eigenvalue=norm(w))

    def step(self, A: Any, x: Any) -> _States:
        w = A @ x
        return dict(x=w / norm(w), eigenvalue=dot(x, w))

    def residual(self, A: Any, x: Any) -> Any:
        w = A @ x
        return w - dot(x, w) * x

    def residual_scale(self, A: Any, x: Any) -> Any:
        return A @ x


class NewtonSchulz(Program):
    """The inverse of A by matrix products alone."""

    def start(self, A: Any) -> _States:
        return dict(X=(1 / dot(A, A)) * A.T)

    def step(self, A: Any, X: Any) -> _States:
        return dict(X=X + X @ (identity_like(A) - A @ X))

    def finish(self, X: Any) -> Any:
        return X

    def residual(self, A: Any, x: Any) -> Any:
        return identity_like(A) - A @ x


class ScalarNewton(Program):
    """A nonlinear system, entry by entry: Newton's method for x + e^x = b."""

    def start(self, b: Any) -> _States:
        return dict(x=zeros_like(b))

    def step(self, b: Any, x: Any) -> _States:
        growth = exp(x)
        return dict(x=x - (x + growth - b) / (1 + growth))

    def residual(self, b: Any, x: Any) -> Any:
        return x + exp(x) - b

    def residual_scale(self, b: Any, x: Any) -> Any:
        return norm(b) + norm(exp(x))


_LIBRARY: dict[str, type[Program]] = {
    "cg": ConjugateGradient,
    "cg_fused": FusedConjugateGradient,
    "pcg": PreconditionedConjugateGradient,
    "conjugate_residual": ConjugateResidual,
    "cgnr": NormalEquations,
    "steepest_descent": SteepestDescent,
    "richardson": Richardson,
    "heavy_ball": HeavyBall,
    "chebyshev": Chebyshev,
    "power": Power,
    "newton_schulz": NewtonSchulz,
    "scalar_newton": ScalarNewton,
}


def algorithms() -> tuple[str, ...]:
    """The names ``nf.algorithm`` knows.

    >>> algorithms()[:3]
    ('cg', 'cg_fused', 'pcg')
    """
    return tuple(_LIBRARY)


def program(name: str) -> Program:
    """The program behind a name."""
    return look_up("algorithm", name, _LIBRARY)()


def example(name: str, n: int, count: int = 8, seed: int = 11) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs for an algorithm, from the paper's family with sigma = 1.2, and the exact answers.

    >>> inputs, x = example("cg", n=3)
    >>> inputs["A"].shape, inputs["b"].shape, x.shape
    ((8, 3, 3), (8, 3), (8, 3))
    """
    A = random_spd(n, count, seed=seed)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, n))
    if name == "cgnr":
        A = A + 0.1 * rng.standard_normal(A.shape)
    b = (A @ x[..., None])[..., 0]
    if name == "power":
        vectors = np.linalg.eigh(A)[1][..., -1]
        return {"A": A}, vectors * np.sign(vectors.sum(-1, keepdims=True))  # it starts from A times ones
    if name == "newton_schulz":
        return {"A": A}, np.linalg.inv(A)
    if name == "scalar_newton":
        return {"b": b}, program(name).run(b=b, iterations=100).x[:, -1]
    return {"A": A, "b": b}, np.linalg.solve(A, b[..., None])[..., 0]


def algorithm(
    name: str,
    n: int,
    *,
    order: int | None = None,
    dtype: torch.dtype = torch.float64,
    bound: float | None = None,
    verify: bool = True,
    form: str = "compiled",
    **paper: Any,
) -> Algorithm:
    """A classical algorithm as a looped transformer.

    Parameters
    ----------
    name : one of ``nf.algorithms()``
    n, order, dtype, bound, verify : as in ``nf.compile``
    form : "compiled", or "paper" for cg as in the paper's Theorem 3.1, one layer an iteration; then ``ffn`` ("ideal" or
        "fitted"), ``width`` (of the fitted FFN) and ``scheme`` ("antisymmetric" or "paper") may be given

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> cg = nf.algorithm("cg", n=3)
    >>> A = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]])
    >>> run = cg.run(A, A @ [1.0, 2.0, 3.0], iterations=3)
    >>> run.x[-1].round(9)
    array([1., 2., 3.])
    >>> cg.cost.loop.layers
    7
    """
    for option in paper.keys() - {"ffn", "width", "scheme"}:
        raise unknown_name("option", option, ("order", "dtype", "bound", "verify", "form", "ffn", "width", "scheme"))
    if not isinstance(form, str) or form not in ("compiled", "paper"):
        raise unknown_name("form", form, ("compiled", "paper"))
    if form == "paper":
        from nlaformer.compiler.paper_form import paper_cg

        if name != "cg":
            raise OptionError(f"the paper gives a form of its own for 'cg' only; {name!r} has form='compiled'")
        if bound is not None:
            raise OptionError("bound goes with form='compiled' only; the paper's form scales A and b")
        return paper_cg(n, order=1 if order is None else order, dtype=dtype, verified=verify, **paper)
    if paper:
        raise OptionError(f"{', '.join(paper)} go with form='paper' only")
    order, bound = 3 if order is None else order, 1024.0 if bound is None else bound
    return compile(program(name), n, order=order, dtype=dtype, bound=bound, verify=verify)
