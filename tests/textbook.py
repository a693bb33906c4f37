"""Programs from textbooks, not in the library, written as on NumPy arrays; and their own lines on such arrays."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import torch

import nlaformer as nf


class AdaGrad(nf.Program):
    rate, epsilon = 0.1, 1e-8

    def start(self, A, b):
        return dict(x=np.zeros_like(b), G=np.zeros_like(b))

    def step(self, A, b, x, G):
        g = A.T @ (A @ x - b)
        G += g**2
        x -= self.rate * g / (np.sqrt(G) + self.epsilon)
        return dict(x=x, G=G)


class Broyden(nf.Program):
    """A x + x^3 / 10 = b, with an inverse Jacobian that is updated by Sherman and Morrison's formula."""

    def f(self, A, b, x):
        return A @ x + 0.1 * x**3 - b

    def start(self, A, b, x0):
        return dict(x=x0, H=np.eye(len(b)) / np.linalg.norm(A))

    def step(self, A, b, x, H):
        F = self.f(A, b, x)
        s = -H @ F
        x = x + s
        y = self.f(A, b, x) - F
        Hy = H @ y
        return dict(x=x, H=H + np.outer(s - Hy, s @ H) / (s @ Hy))

    def residual(self, A, b, x):
        return self.f(A, b, x)


class Oja(nf.Program):
    rate = 0.05

    def start(self, A):
        n = A.shape[0]
        return dict(w=np.ones(n) / np.sqrt(n))

    def step(self, A, w):
        y = A @ w
        w += self.rate * (y - (w @ y) * w)
        return dict(w=w)

    def finish(self, w):
        return w / np.linalg.norm(w)


class MirrorDescent(nf.Program):
    rate = 0.1

    def start(self, b):
        return dict(x=np.ones(len(b)) / len(b))

    def step(self, A, b, x):
        x = x * np.exp(-self.rate * (A @ x - b))
        return dict(x=x / x.sum())


class RungeKutta(nf.Program):
    h = 0.05

    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        def f(y):
            return b - A @ y

        k1 = f(x)
        k2 = f(x + self.h / 2 * k1)
        k3 = f(x + self.h / 2 * k2)
        k4 = f(x + self.h * k3)
        return dict(x=x + self.h / 6 * (k1 + 2 * k2 + 2 * k3 + k4))


class GaussSeidel(nf.Program):
    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        for i in range(len(b)):
            total = 0.0
            for j in range(len(b)):
                if j != i:
                    total += A[i, j] * x[j]
            x[i] = (b[i] - total) / A[i, i]
        return dict(x=x)


class RecursiveLeastSquares(nf.Program):
    """A row of A in each step; a rolled unit vector picks it."""

    def start(self, A, b):
        n = len(b)
        e = np.zeros(n)
        e[0] = 1.0
        return dict(x=np.zeros(n), P=10.0 * np.eye(n), e=e)

    def step(self, A, b, x, P, e):
        a = e @ A
        k = P @ a / (1 + a @ P @ a)
        return dict(x=x + k * (e @ b - a @ x), P=P - np.outer(k, P @ a), e=np.roll(e, 1))


class Bisection(nf.Program):
    """The root of |b|, by halves; the choice of the half by a sign, as the refusal of np.where says."""

    def start(self, b):
        return dict(low=np.zeros_like(b), high=1.0 + np.abs(b))

    def step(self, b, low, high):
        middle = (low + high) / 2
        above = (1 + np.sign(middle**2 - np.abs(b))) / 2
        return dict(low=middle + (low - middle) * above, high=high + (middle - high) * above)

    def finish(self, low, high):
        return (low + high) / 2


class FrankWolfe(nf.Program):
    """On the simplex; the smallest entry of the gradient by its exponential, as the refusal of np.argmin says."""

    def start(self, b):
        return dict(x=np.ones(len(b)) / len(b), k=0.0)

    def step(self, A, b, x, k):
        gradient = A @ x - b
        w = np.exp(-20 * gradient / np.max(np.abs(gradient)))
        rate = 2 / (k + 2)
        return dict(x=(1 - rate) * x + rate * w / np.sum(w), k=k + 1)


class QRIteration(nf.Program):
    """Eigenvalues by unshifted QR steps; Q and R by modified Gram and Schmidt, written into fresh arrays."""

    def start(self, A):
        return dict(T=A)

    def step(self, T):
        n = len(T)
        Q = np.zeros((n, n))
        R = np.zeros((n, n))
        for j in range(n):
            v = T[:, j].copy()
            for i in range(j):
                R[i, j] = Q[:, i] @ v
                v -= R[i, j] * Q[:, i]
            R[j, j] = np.linalg.norm(v)
            Q[:, j] = v / R[j, j]
        return dict(T=R @ Q)

    def finish(self, T):
        return np.diag(T)


class ThomasSplitting(nf.Program):
    """The tridiagonal part of A, solved by Thomas' algorithm, as a preconditioner."""

    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        n, r = len(b), b - A @ x
        c, d, z = np.zeros(n), np.zeros(n), np.zeros(n)
        c[0] = A[0, 1] / A[0, 0]
        d[0] = r[0] / A[0, 0]
        for i in range(1, n):
            m = A[i, i] - A[i, i - 1] * c[i - 1]
            if i < n - 1:
                c[i] = A[i, i + 1] / m
            d[i] = (r[i] - A[i, i - 1] * d[i - 1]) / m
        z[n - 1] = d[n - 1]
        for i in range(n - 2, -1, -1):
            z[i] = d[i] - c[i] * z[i + 1]
        return dict(x=x + z / 2)


class ExponentiatedGradient(nf.Program):
    eta = 0.2

    def weights(self, theta):
        e = np.exp(theta - np.max(theta))
        return e / e.sum()

    def start(self, b):
        return dict(theta=np.zeros(len(b)))

    def step(self, A, b, theta):
        return dict(theta=theta - self.eta * (A @ self.weights(theta) - b))

    def finish(self, theta):
        return self.weights(theta)


class GaussianMixture(nf.Program):
    """EM for two Gaussians of variance 1 on the line; b is the sample."""

    def start(self, b):
        return dict(mu=np.min(b), nu=np.max(b), pi=0.5)

    def step(self, b, mu, nu, pi):
        p = pi * np.exp(-((b - mu) ** 2) / 2)
        q = (1 - pi) * np.exp(-((b - nu) ** 2) / 2)
        r = p / (p + q)
        return dict(mu=np.sum(r * b) / np.sum(r), nu=np.sum((1 - r) * b) / np.sum(1 - r), pi=np.mean(r))

    def finish(self, mu, nu, pi):
        return pi * mu + (1 - pi) * nu


class Arnoldi(nf.Program):
    """Three steps of Arnoldi's process in each loop, and a combination of its basis."""

    def start(self, b):
        return dict(x=b / np.linalg.norm(b))

    def step(self, A, x):
        k = 3
        V, H = np.zeros((len(x), k + 1)), np.zeros((k + 1, k))
        V[:, 0] = x / np.linalg.norm(x)
        for j in range(k):
            w = A @ V[:, j]
            for i in range(j + 1):
                H[i, j] = V[:, i] @ w
                w = w - H[i, j] * V[:, i]
            H[j + 1, j] = np.linalg.norm(w)
            V[:, j + 1] = w / H[j + 1, j]
        return dict(x=V[:, 0] + 0.1 * H[1, 0] / H[0, 0] * V[:, 2])


class SymmetricOverrelaxation(nf.Program):
    """A sweep forwards and a sweep backwards, by slices of rows."""

    omega = 1.2

    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        for i in (*range(len(b)), *reversed(range(len(b)))):
            sigma = A[i, :i] @ x[:i] + A[i, i + 1 :] @ x[i + 1 :]
            x[i] = (1 - self.omega) * x[i] + self.omega * (b[i] - sigma) / A[i, i]
        return dict(x=x)


class HeatEquation(nf.Program):
    """Finite differences between fixed ends."""

    def start(self, b):
        return dict(u=b)

    def step(self, u):
        new = u.copy()
        new[1:-1] = u[1:-1] + 0.2 * (u[2:] - 2 * u[1:-1] + u[:-2])
        return dict(u=new)

    def finish(self, u):
        return u


class ClassicalGramSchmidt(nf.Program):
    """QR steps with Q by blocks of columns, which have none at first."""

    def start(self, A):
        return dict(T=A)

    def step(self, T):
        n = len(T)
        Q = np.zeros((n, n))
        for j in range(n):
            v = T[:, j] - Q[:, :j] @ (Q[:, :j].T @ T[:, j])
            Q[:, j] = v / np.linalg.norm(v)
        return dict(T=Q.T @ T @ Q)

    def finish(self, T):
        return np.diag(T)


class CholeskyByColumns(nf.Program):
    """Factorized once; every step solves with both triangles."""

    positive_definite = True

    def start(self, A, b, x0):
        L = np.zeros((len(b), len(b)))
        for j in range(len(b)):
            L[j, j] = np.sqrt(nf.positive(A[j, j] - L[j, :j] @ L[j, :j]))
            L[j + 1 :, j] = (A[j + 1 :, j] - L[j + 1 :, :j] @ L[j, :j]) / L[j, j]
        return dict(x=x0, L=L)

    def step(self, A, b, x, L):
        y = b - A @ x
        for i in range(len(b)):
            y[i] = (y[i] - L[i, :i] @ y[:i]) / L[i, i]
        for i in reversed(range(len(b))):
            y[i] = (y[i] - L[i + 1 :, i] @ y[i + 1 :]) / L[i, i]
        return dict(x=x + y, L=L)


class Householder(nf.Program):
    """Trefethen and Bau, algorithm 10.1: b becomes Q^T b, A becomes R."""

    def start(self, A, b):
        for k in range(len(b) - 1):
            v = A[k:, k].copy()
            v[0] += np.sign(v[0]) * np.linalg.norm(v)
            v = v / np.linalg.norm(v)
            A[k:, k:] -= 2 * np.outer(v, v @ A[k:, k:])
            b[k:] -= 2 * v * (v @ b[k:])
        return dict(x=b, R=A)

    def step(self, x, R):
        return dict(x=x - 0.1 * R @ x, R=R)


class Perceptron(nf.Program):
    """Rosenblatt's, a sample in each step; `if y * (a @ w) <= 0: w = w + y * a` as the refusal says."""

    def start(self, A, b):
        return dict(x=np.zeros(len(b)), e=np.eye(len(b))[0])

    def step(self, A, b, x, e):
        a, y = e @ A, np.sign(e @ b)
        kept = np.maximum(np.sign(y * (a @ x) - 1e-9), 0)
        return dict(x=x + y * a * (1 - kept), e=np.roll(e, 1))


class InTorch(nf.Program):
    """Nonnegative least squares by projected gradients, in torch's spellings."""

    def start(self, b):
        return dict(x=torch.relu(b))

    def step(self, A, b, x):
        return dict(x=torch.relu(x + torch.mv(A, b - A @ x) / torch.linalg.norm(A) ** 2))


PROGRAMS = [
    AdaGrad,
    Broyden,
    Oja,
    MirrorDescent,
    RungeKutta,
    GaussSeidel,
    RecursiveLeastSquares,
    Bisection,
    FrankWolfe,
    QRIteration,
    ThomasSplitting,
    ExponentiatedGradient,
    GaussianMixture,
    Arnoldi,
    SymmetricOverrelaxation,
    HeatEquation,
    ClassicalGramSchmidt,
    CholeskyByColumns,
    Householder,
    Perceptron,
    InTorch,
]


def asked(method):
    return list(inspect.signature(method).parameters)


def on_arrays(program, given, iterations):
    """The iterates of a program's own lines."""
    if isinstance(program, InTorch):
        given = {name: torch.tensor(value) for name, value in given.items()}

    def call(method, state):
        return method(**{name: copy.deepcopy((given | state)[name]) for name in asked(method)})

    states = [call(program.start, {})]
    for _ in range(iterations):
        states.append(call(program.step, states[-1]))
    return np.array([call(program.finish, state).tolist() for state in states])
