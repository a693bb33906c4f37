"""Statistics, probability and systems that change with time."""

from __future__ import annotations

from typing import Any

import numpy as np

from nlaformer.compiler.library import families, models
from nlaformer.compiler.library.records import Record
from nlaformer.program.language import Program

_States = dict[str, Any]


class Kalman(Program):
    """The state of a linear system from noisy measurements of h^T x: Kalman's filter; a loop is one of z."""

    inputs = dict(z="vector", h="vector", Q="matrix", noise="scalar")

    def start(self, A: Any, Q: Any, x0: Any) -> _States:
        return dict(x=x0, P=Q, e=np.eye(len(A))[0])

    def step(self, A: Any, z: Any, h: Any, Q: Any, noise: Any, x: Any, P: Any, e: Any) -> _States:
        x, P = A @ x, A @ P @ A.T + Q
        u = P @ h
        variance = h @ u + noise
        gain = u / variance
        return dict(x=x + (e @ z - h @ x) * gain, P=P - np.outer(gain, u), e=np.roll(e, 1))


class RecursiveLeastSquares(Program):
    """Least squares as the data come: a loop is a row of A and an entry of b."""

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, P=(100 / np.vdot(A, A)) * np.eye(len(A)), e=np.eye(len(A))[0])

    def step(self, A: Any, b: Any, x: Any, P: Any, e: Any) -> _States:
        row = A.T @ e
        u = P @ row
        gain = u / (1 + row @ u)
        return dict(x=x + (e @ b - row @ x) * gain, P=P - np.outer(gain, u), e=np.roll(e, 1))

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A.T @ (b - A @ x) - (np.vdot(A, A) / 100) * x


class Ridge(Program):
    """Ridge regression, min |A x - b|² + penalty |x|²: conjugate gradients on its normal equations."""

    rectangular = True
    inputs = dict(penalty="scalar")

    def start(self, A: Any, b: Any, penalty: Any, x0: Any) -> _States:
        r = self.residual(A, b, penalty, x0)
        return dict(x=x0, r=r, d=r, rho=r @ r)

    def step(self, A: Any, penalty: Any, x: Any, r: Any, d: Any, rho: Any) -> _States:
        q = A @ d
        alpha = rho / (q @ q + penalty * (d @ d))
        r = r - alpha * (A.T @ q + penalty * d)
        rho_next = r @ r
        return dict(x=x + alpha * d, r=r, d=r + (rho_next / rho) * d, rho=rho_next)

    def residual(self, A: Any, b: Any, penalty: Any, x: Any) -> Any:
        return A.T @ (b - A @ x) - penalty * x


class PageRank(Program):
    """The ranks of the pages of a graph, A_ij = 1 for a link from j to i: the stationary state of a surfer."""

    damping = 0.85

    def start(self, A: Any) -> _States:
        return dict(x=np.full(len(A), 1 / len(A)))

    def step(self, A: Any, x: Any) -> _States:
        return dict(x=self._visits(A, x))

    def residual(self, A: Any, x: Any) -> Any:
        return self._visits(A, x) - x

    def residual_scale(self, x: Any) -> Any:
        return x

    def _visits(self, A: Any, x: Any) -> Any:
        return self.damping * (A @ (x / np.sum(A, axis=0))) + (1 - self.damping) / len(A)


class Sinkhorn(Program):
    """A plan of transport with row sums b and column sums c, from a positive kernel A = e^(-cost / epsilon)."""

    inputs = dict(c="vector")

    def start(self, A: Any, b: Any, c: Any) -> _States:
        return dict(u=np.ones_like(b), v=np.ones_like(c))

    def step(self, A: Any, b: Any, c: Any, u: Any, v: Any) -> _States:
        u = b / (A @ v)
        return dict(u=u, v=c / (A.T @ u))

    def finish(self, A: Any, u: Any, v: Any) -> Any:
        return np.outer(u, v) * A

    def residual(self, b: Any, x: Any) -> Any:
        return np.sum(x, axis=1) - b


class Mixture(Program):
    """Two groups in the data b: expectation and maximization for two normal distributions of one variance.

    The state x has the probability of the second group for each entry.
    """

    def start(self, b: Any) -> _States:
        distance = b - np.mean(b)
        return dict(x=1 / (1 + np.exp(-distance / np.sqrt(np.mean(distance**2)))))

    def step(self, b: Any, x: Any) -> _States:
        return dict(x=self._odds(b, x))

    def residual(self, b: Any, x: Any) -> Any:
        return self._odds(b, x) - x

    def residual_scale(self, x: Any) -> Any:
        return x

    @staticmethod
    def _odds(b: Any, x: Any) -> Any:
        y = 1 - x
        one, two = (y @ b) / np.sum(y), (x @ b) / np.sum(x)  # the means
        variance = np.mean(y * (b - one) ** 2 + x * (b - two) ** 2)
        ratio = (np.sum(y) / np.sum(x)) * np.exp(((b - two) ** 2 - (b - one) ** 2) / (2 * variance))
        return 1 / (1 + ratio)


class ForwardFilter(Program):
    """The hidden state of a Markov chain from what is seen: column k of C has the likelihoods of the k-th sight."""

    inputs = dict(C="matrix")

    def start(self, A: Any) -> _States:
        return dict(x=np.full(len(A), 1 / len(A)), e=np.eye(len(A))[0])

    def step(self, A: Any, C: Any, x: Any, e: Any) -> _States:
        weights = (A.T @ x) * (C @ e)
        return dict(x=weights / weights.sum(), e=np.roll(e, 1))


class ValueIteration(Program):
    """The best of two actions in every state: Bellman's equation x = max(b + A x / 2, c + C x / 2)."""

    inputs = dict(C="matrix", c="vector")
    discount = 0.5

    def start(self, b: Any) -> _States:
        return dict(x=np.zeros_like(b))

    def step(self, A: Any, b: Any, C: Any, c: Any, x: Any) -> _States:
        return dict(x=np.maximum(b + self.discount * (A @ x), c + self.discount * (C @ x)))

    def residual(self, A: Any, b: Any, C: Any, c: Any, x: Any) -> Any:
        return np.maximum(b + self.discount * (A @ x), c + self.discount * (C @ x)) - x


class MeanField(Program):
    """The magnetization of coupled spins: x = tanh(A x + b), damped by half."""

    def start(self, b: Any) -> _States:
        return dict(x=np.zeros_like(b))

    def step(self, A: Any, b: Any, x: Any) -> _States:
        return dict(x=(x + self._tanh(A @ x + b)) / 2)

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return self._tanh(A @ x + b) - x

    @staticmethod
    def _tanh(v: Any) -> Any:
        return 1 - 2 / (1 + np.exp(2 * v))


class RungeKutta(Program):
    """x' = b - A x in time: the classical method of order four; the step is 1 / |A|."""

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, h=1 / np.linalg.norm(A))

    def step(self, A: Any, b: Any, x: Any, h: Any) -> _States:
        k1 = b - A @ x
        k2 = b - A @ (x + h / 2 * k1)
        k3 = b - A @ (x + h / 2 * k2)
        k4 = b - A @ (x + h * k3)
        return dict(x=x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), h=h)


class Leapfrog(Program):
    """x'' = -A x in time, vibrations that keep their energy: Störmer and Verlet's method from x0 at rest."""

    def start(self, A: Any, x0: Any) -> _States:
        return dict(x=x0, v=np.zeros_like(x0), h=0.5 / np.sqrt(np.linalg.norm(A)))

    def step(self, A: Any, x: Any, v: Any, h: Any) -> _States:
        v = v - h / 2 * (A @ x)
        x = x + h * v
        return dict(x=x, v=v - h / 2 * (A @ x), h=h)


class Heat(Program):
    """Heat on a ring: each point moves towards its two neighbours, b is what flows in."""

    rate = 0.25

    def start(self, b: Any, x0: Any) -> _States:
        return dict(x=x0)

    def step(self, b: Any, x: Any) -> _States:
        return dict(x=x + self.rate * (np.roll(x, 1) - 2 * x + np.roll(x, -1)) + b)


class Horner(Program):
    """p(A) v for a polynomial p with the coefficients c, the highest first: Horner's rule, one a loop."""

    inputs = dict(c="vector", v="vector")

    def start(self, A: Any, v: Any) -> _States:
        return dict(x=np.zeros_like(v), e=np.eye(len(A))[0])

    def step(self, A: Any, c: Any, v: Any, x: Any, e: Any) -> _States:
        return dict(x=A @ x + (c @ e) * v, e=np.roll(e, 1))


def _size(n: int) -> int:
    return n


RECORDS = (
    Record("kalman", Kalman, models.measurements, _size, bound=64.0, particular=True),
    Record("recursive_least_squares", RecursiveLeastSquares, models.row_by_row, _size, particular=True),
    Record("ridge", Ridge, models.penalized, _size, particular=True),
    Record("pagerank", PageRank, models.graphs, particular=True),
    Record("sinkhorn", Sinkhorn, models.transports, particular=True),
    Record("mixture", Mixture, models.two_groups, bound=16.0),
    Record("forward_filter", ForwardFilter, models.hidden_chains, _size, particular=True),
    Record("value_iteration", ValueIteration, models.decisions, particular=True),
    Record("mean_field", MeanField, models.spins, bound=16.0),
    Record("runge_kutta", RungeKutta, families.moderate),
    Record("leapfrog", Leapfrog, models.vibrations),
    Record("heat", Heat, models.rings, lambda n: 100),
    Record("horner", Horner, models.polynomials, _size, particular=True),
)
