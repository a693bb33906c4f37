"""Smooth optimization: gradients, momentum, curvature.

Unless said otherwise f(x) = x^T A x / 2 - b^T x for a positive definite A, whose gradient is A x - b.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.library import families as problems
from nlaformer.compiler.library.records import Record
from nlaformer.program.language import Program, positive

_States = dict[str, Any]


class GradientDescent(Program):
    """Least squares by fixed steps: f(x) = |A x - b|² / 2, the step 1 / |A|²."""

    rectangular = True

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, rate=1 / np.vdot(A, A))

    def step(self, A: Any, b: Any, x: Any, rate: Any) -> _States:
        return dict(x=x - rate * (A.T @ (A @ x - b)), rate=rate)

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A.T @ (b - A @ x)


class SteepestDescent(Program):
    """Definite systems: the gradient method with the best step, the residual carried along."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        return dict(x=x0, r=b - A @ x0)

    def step(self, A: Any, x: Any, r: Any) -> _States:
        q = A @ r
        alpha = (r @ r) / (r @ q)
        return dict(x=x + alpha * r, r=r - alpha * q)


class BarzilaiBorwein(Program):
    """Definite systems: the gradient method with the best step of the iteration before, far quicker than the best."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        return dict(x=x0, r=b - A @ x0, alpha=1 / np.linalg.norm(A))

    def step(self, A: Any, x: Any, r: Any, alpha: Any) -> _States:
        q = A @ r
        return dict(x=x + alpha * r, r=r - alpha * q, alpha=(r @ r) / (r @ q))


class HeavyBall(Program):
    """Definite systems: Polyak's method, Richardson with a memory of the last step."""

    relaxation, momentum = 2.5, 0.75

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, previous=x0, omega=self.relaxation / np.linalg.norm(A))

    def step(self, A: Any, b: Any, x: Any, previous: Any, omega: Any) -> _States:
        return dict(x=x + omega * (b - A @ x) + self.momentum * (x - previous), previous=x, omega=omega)


class Nesterov(Program):
    """Smooth convex functions: Nesterov's accelerated gradient method with its growing momentum."""

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, y=x0, t=1.0, rate=1 / np.linalg.norm(A))

    def step(self, A: Any, b: Any, x: Any, y: Any, t: Any, rate: Any) -> _States:
        x_next = y - rate * (A @ y - b)
        t_next = (1 + np.sqrt(1 + 4 * t**2)) / 2
        return dict(x=x_next, y=x_next + ((t - 1) / t_next) * (x_next - x), t=t_next, rate=rate)


class Adam(Program):
    """Training: Kingma and Ba's method, each entry's step divided by a running size of its gradient."""

    rate, beta1, beta2, epsilon = 0.1, 0.9, 0.999, 1e-3

    def start(self, x0: Any) -> _States:
        return dict(x=x0, m=np.zeros_like(x0), v=np.zeros_like(x0), power1=1.0, power2=1.0)

    def step(self, A: Any, b: Any, x: Any, m: Any, v: Any, power1: Any, power2: Any) -> _States:
        g = A @ x - b
        m, v = self.beta1 * m + (1 - self.beta1) * g, self.beta2 * v + (1 - self.beta2) * g**2
        power1, power2 = self.beta1 * power1, self.beta2 * power2
        m_hat, v_hat = m / positive(1 - power1), v / positive(1 - power2)
        x = x - self.rate * m_hat / (np.sqrt(v_hat) + self.epsilon)
        return dict(x=x, m=m, v=v, power1=power1, power2=power2)


class RMSProp(Program):
    """Training: steps divided by the root of a running mean of squared gradients, after Hinton."""

    rate, decay, epsilon = 0.02, 0.9, 1e-3

    def start(self, x0: Any) -> _States:
        return dict(x=x0, v=np.zeros_like(x0))

    def step(self, A: Any, b: Any, x: Any, v: Any) -> _States:
        g = A @ x - b
        v = self.decay * v + (1 - self.decay) * g**2
        return dict(x=x - self.rate * g / (np.sqrt(v) + self.epsilon), v=v)


class AdaGrad(Program):
    """Training: steps divided by the root of all squared gradients so far, after Duchi, Hazan and Singer."""

    rate, epsilon = 0.5, 1e-3

    def start(self, x0: Any) -> _States:
        return dict(x=x0, v=np.zeros_like(x0))

    def step(self, A: Any, b: Any, x: Any, v: Any) -> _States:
        g = A @ x - b
        v = v + g**2
        return dict(x=x - self.rate * g / (np.sqrt(v) + self.epsilon), v=v)


class SignDescent(Program):
    """Training: steps of one size along the signs of the gradient, the size decaying (signSGD)."""

    decay = 0.9

    def start(self, x0: Any) -> _States:
        return dict(x=x0, rate=0.5)

    def step(self, A: Any, b: Any, x: Any, rate: Any) -> _States:
        return dict(x=x - rate * np.sign(A @ x - b), rate=self.decay * rate)


class BFGS(Program):
    """Smooth minimization: Broyden, Fletcher, Goldfarb and Shanno's inverse Hessian H, exact line searches."""

    positive_definite = True

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        return dict(x=x0, g=A @ x0 - b, H=np.eye(len(A)) / np.linalg.norm(A))

    def step(self, A: Any, x: Any, g: Any, H: Any) -> _States:
        p = -(H @ g)
        q = A @ p  # the change of the gradient along p
        curvature = p @ q
        alpha = -(g @ p) / curvature
        E = np.eye(len(A)) - np.outer(p, q) / curvature
        return dict(x=x + alpha * p, g=g + alpha * q, H=E @ H @ E.T + np.outer(p, p) / curvature)


class DFP(Program):
    """Smooth minimization: Davidon, Fletcher and Powell's update of H, the first of its kind; as bfgs otherwise."""

    positive_definite = True
    start = BFGS.start

    def step(self, A: Any, x: Any, g: Any, H: Any) -> _States:
        p = -(H @ g)
        q = A @ p
        w = H @ q
        curvature = p @ q
        alpha = -(g @ p) / curvature
        H = H + np.outer(p, p) / curvature - np.outer(w, w) / positive(q @ w)
        return dict(x=x + alpha * p, g=g + alpha * q, H=H)


class Broyden(Program):
    """Nonlinear systems without derivatives, here A x + x³ / 10 = b: Broyden's good update of an inverse Jacobian."""

    def start(self, A: Any, b: Any, x0: Any) -> _States:
        return dict(x=x0, f=self._function(A, b, x0), H=np.diag(1 / np.diag(A)))

    def step(self, A: Any, b: Any, x: Any, f: Any, H: Any) -> _States:
        s = -(H @ f)
        x = x + s
        f_next = self._function(A, b, x)
        y = H @ (f_next - f)
        return dict(x=x, f=f_next, H=H + np.outer(s - y, H.T @ s) / (s @ y))

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return self._function(A, b, x)

    @staticmethod
    def _function(A: Any, b: Any, x: Any) -> Any:
        return A @ x + 0.1 * x**3 - b


class ScalarNewton(Program):
    """Separable nonlinear systems, entry by entry: Newton's method for x + e^x = b."""

    def start(self, b: Any) -> _States:
        return dict(x=np.zeros_like(b))

    def step(self, b: Any, x: Any) -> _States:
        growth = np.exp(x)
        return dict(x=x - (x + growth - b) / (1 + growth))

    def residual(self, b: Any, x: Any) -> Any:
        return x + np.exp(x) - b

    def residual_scale(self, b: Any, x: Any) -> Any:
        return np.linalg.norm(b) + np.linalg.norm(np.exp(x))


class SecularNewton(Program):
    """One unknown: the mu > 0 with |b / (d + mu)| = radius, by Newton's method, as in trust-region methods (d > 0)."""

    inputs = dict(d="vector", radius="scalar")

    def start(self, b: Any, d: Any, radius: Any) -> _States:
        return dict(mu=0.0)

    def step(self, b: Any, d: Any, radius: Any, mu: Any) -> _States:
        s = b / (d + mu)
        length = np.linalg.norm(s)
        slope = s @ (s / (d + mu))
        return dict(mu=mu + (length**2 / slope) * (length - radius) / radius)

    def finish(self, mu: Any) -> Any:
        return mu

    def residual(self, b: Any, d: Any, radius: Any, x: Any) -> Any:
        return np.linalg.norm(b / (d + x)) - radius


class LogisticRegression(Program):
    """Classification: maximum likelihood with a small penalty, labels b in {0, 1}, by gradient steps."""

    rectangular = True
    rate, penalty = 1.0, 0.1

    def start(self, x0: Any) -> _States:
        return dict(x=x0)

    def step(self, A: Any, b: Any, x: Any) -> _States:
        return dict(x=x - self.rate * self._gradient(A, b, x))

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return self._gradient(A, b, x)

    def _gradient(self, A: Any, b: Any, x: Any) -> Any:
        return A.T @ (1 / (1 + np.exp(-(A @ x))) - b) + self.penalty * x


class HuberRegression(Program):
    """Robust regression: residuals beyond ``width`` pull with a constant force only."""

    rectangular = True
    width = 0.5

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, rate=1 / np.vdot(A, A))

    def step(self, A: Any, b: Any, x: Any, rate: Any) -> _States:
        return dict(x=x + rate * self.residual(A, b, x), rate=rate)

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A.T @ np.minimum(np.maximum(b - A @ x, -self.width), self.width)


RECORDS = (
    Record("gradient_descent", GradientDescent, problems.least_squares),
    Record("steepest_descent", SteepestDescent, problems.definite),
    Record("barzilai_borwein", BarzilaiBorwein, problems.definite),
    Record("heavy_ball", HeavyBall, problems.definite),
    Record("nesterov", Nesterov, problems.definite),
    Record("adam", Adam, problems.moderate, bound=16.0, particular=True),
    Record("rmsprop", RMSProp, problems.moderate, bound=16.0, particular=True),
    Record("adagrad", AdaGrad, problems.moderate, bound=16.0, particular=True),
    Record("sign_descent", SignDescent, problems.moderate, bound=16.0),
    Record("bfgs", BFGS, problems.definite, lambda n: n + 4),
    Record("dfp", DFP, problems.definite, lambda n: n + 4),
    Record("broyden", Broyden, problems.cubic, lambda n: 12, bound=16.0, particular=True),
    Record("scalar_newton", ScalarNewton, problems.exponential, lambda n: 20),
    Record("secular_newton", SecularNewton, problems.trust_region, lambda n: 10, bound=16.0, particular=True),
    Record("logistic_regression", LogisticRegression, problems.labels, bound=16.0),
    Record("huber_regression", HuberRegression, problems.regression, bound=16.0),
)
