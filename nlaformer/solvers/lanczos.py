"""The search for an extremal eigenpair: a growing subspace and the best vector in it (Lanczos, Davidson)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nlaformer.arrays import give
from nlaformer.solvers.arithmetic import cast, scale
from nlaformer.solvers.certificate import Certificate, certify_eigenpair, norm_of, norm_upper
from nlaformer.solvers.operators import ImplicitOperator
from nlaformer.solvers.parse import Problem
from nlaformer.solvers.preconditioners import Preconditioner
from nlaformer.solvers.result import Status
from nlaformer.solvers.runner import Runner
from nlaformer.solvers.search import Search

_LONGEST = 48  # directions before a restart
_KEPT = 12  # of them after it
_NEW = 1e-12  # of |c| that must be left once it is orthogonal to the directions before it
_STRIKES = 3  # claims that may fail
_NOISE = 2.0**-48  # of |A|: a residual that falls no further
_LOWER = 1 - 2.0**-30  # more than a Ritz value loses to rounding, so that it is no more than |A|
_SKEW = 1e-3  # of |A|: how much products may contradict the symmetry of A


class EigenSearch(Search):
    """The subspace, the best vector so far, and how the search ended."""

    def __init__(
        self,
        problem: Problem,
        M: Preconditioner,
        which: str,
        tolerances: tuple[float, float],
        limit: int,
        callback: Callable[[Any], Any] | None,
        symmetric: bool,
    ) -> None:
        super().__init__(limit)
        self.problem, self.M, self.callback, self.symmetric = problem, M, callback, symmetric
        self.sign = 1.0 if which == "smallest" else -1.0
        self.rtol, self.atol = tolerances
        n, self.e = problem.unknowns, problem.exponent_a
        self.V = problem.b.new_zeros(0, n)  # (k, n), orthonormal
        self.W = self.V.clone()  # their products with A
        self.theta, self.v, self.r = 0.0, problem.b[0], problem.b[0]
        self.reach = 0.0  # the largest |Ritz value| so far
        self.skew = 0.0  # how much products contradict the symmetry of A
        self.matvecs = 0
        self.best: tuple[float, float, Tensor] | None = None  # the smallest residual, with theta and v
        self.proof: Certificate | None = None  # of what converged

    # The subspace

    def apply(self, v: Tensor) -> Tensor:
        self.matvecs += 1
        return self.problem.A.apply(v[None])[0]

    def add(self, c: Tensor) -> bool:
        """Extend the subspace by a direction; False if it holds it already, or the product is not finite."""
        size = float(c.abs().max())
        if not 0 < size < math.inf:
            return False
        c = c / size
        given = float(norm_of(c))
        for _ in range(2):
            c = c - self.V.mT @ (self.V @ c)
        left = float(norm_of(c))
        if not left > _NEW * given:
            return False
        c = c / left
        c = c - self.V.mT @ (self.V @ c)  # what the division enlarged
        c = c / norm_of(c)
        w = self.apply(c)
        if not bool(torch.isfinite(w).all()):
            self.end(Status.NONFINITE, "a product with A is not finite")
            return False
        self.V, self.W = torch.cat([self.V, c[None]]), torch.cat([self.W, w[None]])
        return True

    def ritz(self) -> float:
        """The best vector of the subspace, its value and its residual; returns the residual's norm."""
        if len(self.V) > _LONGEST:
            self._restart()
        H = self.V @ self.W.mT
        values, Y = torch.linalg.eigh(self.sign * (H + H.mT) / 2)
        self.reach = max(self.reach, float(values.abs().max()))
        self.skew = max(self.skew, float((H - H.mT).abs().max()))
        self.theta = self.sign * float(values[0])
        self.v, w = Y[:, 0] @ self.V, Y[:, 0] @ self.W
        self.r = w - self.theta * self.v
        norm = float(norm_upper(self.r[None]))
        if self.best is None or norm < self.best[0]:
            self.best = (norm, self.theta, self.v)
        return norm

    def _restart(self) -> None:
        H = self.V @ self.W.mT
        _, Y = torch.linalg.eigh(self.sign * (H + H.mT) / 2)
        self.V, self.W = Y[:, :_KEPT].mT @ self.V, Y[:, :_KEPT].mT @ self.W

    # The search

    def run(self, runner: Runner | None) -> None:
        if not bool(self.problem.finite.all()):
            self.end(Status.NONFINITE, "A or x0 holds NaN or infinity")
        elif not self.symmetric:
            self.end(Status.NOT_SYMMETRIC, "an entry differs from its mirror image")
        if self.status is None and self.add(self.problem.b[0]):
            self.norms.append(self.ritz())
            if runner is not None:
                self.follow(runner)
            self._lanczos()

    def join(self, fresh: Search) -> bool:
        assert isinstance(fresh, EigenSearch)
        self.matvecs = fresh.matvecs = self.matvecs + fresh.matvecs
        self.reach = fresh.reach = max(self.reach, fresh.reach)  # both are no more than |A|
        return super().join(fresh)

    def here(self) -> Tensor:
        return self.v

    def near(self) -> bool:
        return self.norms[-1] <= self.tolerance()

    def take(self, answer: Tensor) -> str:
        """Add the answer to the subspace, where it is of use even if the residual rises at first."""
        if not self.add(answer):
            return "its answer adds nothing to the vectors before it"
        self._count(self.ritz())
        return ""

    def _lanczos(self) -> None:
        """Take steps along residuals until the end."""
        strikes, norm, target = 0, self.norms[-1], 1.0
        while self.status is None:
            if self.skew > _SKEW * self.reach:  # then a small residual says little about the eigenvalues
                self.end(Status.NOT_SYMMETRIC, "u.(A v) is not v.(A u) for two vectors")
                return
            if norm <= max(target * self.tolerance(), _NOISE * self.reach):
                found = self.judge(self.theta, self.v)
                if bool(found.holds[0]):
                    self.best, self.proof = (norm, self.theta, self.v), found
                    self.end(Status.CONVERGED)
                    return
                strikes, target = strikes + 1, 0.5 * target
            if strikes > _STRIKES or len(self.V) >= self.problem.unknowns:
                self.end(Status.STAGNATED)
            elif self.steps >= self.limit:
                self.end(Status.MAXITER)
            else:
                norm = self._step(norm)

    def _step(self, before: float) -> float:
        """One direction more; returns the residual's norm."""
        c = self.M.apply(self.r[None])[0]
        if not self.add(c) and self.status is None:
            # Nothing new in the residual: a random direction tells whether the subspace is all there is to find.
            draw = torch.randn(
                self.r.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1 + self.steps)
            )
            if not self.add(draw.to(self.r)) and self.status is None:
                self.end(Status.STAGNATED, "no new direction is left")
        if self.status is not None:
            return before
        norm = self.ritz()
        self._count(norm)
        if not math.isfinite(norm):
            self.end(Status.NONFINITE, "the iteration left float64")
        return norm

    def _count(self, norm: float) -> None:
        self.steps += 1
        self.norms.append(norm)
        if self.callback is not None:
            self.callback(give(cast(self.v.clone(), self.problem.dtype), self.problem.kind))

    # The end

    def tolerance(self) -> float:
        """The tolerance of the residual, in the units of the problem; no more than max(rtol |A|, atol)."""
        own = scale(torch.tensor([self.atol], dtype=torch.float64), -self.e.cpu())
        return max(self.rtol * self.reach * _LOWER, float(own) * _LOWER)

    def judge(self, theta: float, v: Tensor, dtype: str = "") -> Certificate:
        """The certificate of theta and v as they are returned, in the units of the problem."""
        A, e = self.problem.A, self.e
        if theta == 0 and not isinstance(A, ImplicitOperator) and not bool(A.absolute(torch.ones_like(v)[None]).any()):
            zero = torch.zeros(1, dtype=torch.float64, device=v.device)  # A is 0, without a rounding error
            return Certificate(v[None], v[None], zero, zero, zero == 0)
        value = scale(scale(torch.tensor([theta], dtype=torch.float64, device=v.device), e), -e)
        if isinstance(A, ImplicitOperator):
            A = A.in_units(torch.zeros_like(e))
        self.matvecs += 1
        returned = cast(v, dtype or self.problem.dtype).double()
        tolerance = torch.tensor([self.tolerance()], dtype=torch.float64, device=v.device)
        return certify_eigenpair(A, value, returned[None], tolerance)
