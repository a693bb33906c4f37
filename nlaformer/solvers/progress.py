"""Where every lane of a solve stands, and the only place that calls a lane converged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.prompt import scale
from nlaformer.solvers.certificate import Certificate, certify, norm_of
from nlaformer.solvers.parse import Problem
from nlaformer.solvers.result import Status


class Progress:
    """The iterates, counts and statuses of all lanes; the methods read and advance them.

    A lane is going until it has a status. ``judge`` alone gives CONVERGED, and only to an x that passed its
    certificate as it will be handed out.
    """

    def __init__(self, problem: Problem, maxiter: int, callback: Callable[[Any], Any] | None, keep: bool) -> None:
        self.problem, self.maxiter = problem, maxiter
        self._callback, self._keep = callback, keep
        self.watched = callback is not None or keep  # whether somebody looks at every iterate
        m, device = len(problem.b), problem.b.device
        self.x = torch.zeros_like(problem.b) if problem.x0 is None else problem.x0.clone()
        self.iterations = torch.zeros(m, dtype=torch.long, device=device)
        self.limit = torch.full_like(self.iterations, maxiter)  # the classical method's iterations are counted
        self.matvecs = torch.zeros(m, dtype=torch.long, device=device)
        self.norm = torch.full((m,), torch.nan, dtype=torch.float64, device=device)
        self.bound = self.norm.clone()
        self.status: list[Status | None] = [None] * m
        self.detail = [""] * m
        self.history: list[tuple[Tensor, Tensor, Tensor]] = []  # lanes, their k, |r_k|
        self.trajectory: list[tuple[Tensor, Tensor, Tensor]] = []
        self.r = self._begin()
        self._start = (self.x.clone(), self.r.clone())
        norm = norm_of(self.r)
        self.history.append((torch.arange(m, device=device), self.iterations.clone(), norm))
        # The smallest running residual of every lane; its x is kept once the residual rises again.
        self._least, self._kept = norm.clone(), torch.zeros(m, dtype=torch.bool, device=device)
        self._best = self.x.clone()

    def _begin(self) -> Tensor:
        """End the lanes that need no work; the residuals of the others."""
        problem = self.problem
        for lane in (~problem.finite).nonzero()[:, 0].tolist():
            self.end([lane], Status.NONFINITE, "A, b or x0 holds NaN or infinity")
        self.x[~problem.finite] = torch.nan
        zero = (problem.b == 0).all(-1) & problem.finite
        for lane in zero.nonzero()[:, 0].tolist():
            self.end([lane], Status.CONVERGED)
        self.x[zero], self.norm[zero], self.bound[zero] = 0.0, 0.0, 0.0
        r, lanes = problem.b.clone(), self.going()
        if problem.x0 is not None and len(lanes):
            r[lanes] = problem.b[lanes] - self.apply(lanes, self.x[lanes])
        return r

    def going(self) -> Tensor:
        """The lanes that have not ended."""
        lanes = [lane for lane, status in enumerate(self.status) if status is None]
        return torch.tensor(lanes, dtype=torch.long, device=self.x.device)

    def end(self, lanes: Any, status: Status, detail: str = "") -> None:
        for lane in lanes.tolist() if isinstance(lanes, Tensor) else lanes:
            self.status[lane], self.detail[lane] = status, detail

    def apply(self, lanes: Tensor, v: Tensor) -> Tensor:
        """A v of some lanes, counted."""
        self.matvecs[lanes] += 1
        return self.problem.A.take(lanes).apply(v)

    def advance(self, lanes: Tensor, x: Tensor, r: Tensor) -> None:
        """One iteration more: new iterates and running residuals of some lanes."""
        norm = norm_of(r)
        self.before_rising(lanes, torch.ones_like(lanes, dtype=torch.bool), norm, self.x[lanes])
        self.count(lanes, norm)
        self.show(lanes, x, r)

    def count(self, lanes: Tensor, norm: Tensor) -> None:
        """Enter an iteration into the history."""
        self.iterations[lanes] += 1
        self.history.append((lanes, self.iterations[lanes], norm))

    def show(self, lanes: Tensor, x: Tensor, r: Tensor) -> None:
        """Take over the iterates and running residuals of some lanes, and let the user see them."""
        self.x[lanes], self.r[lanes] = x, r
        if self._callback is not None:
            self._callback(self.problem.vectors(self.problem.unscaled(self.x)))

    def before_rising(self, lanes: Tensor, going: Tensor, norm: Tensor, x: Tensor) -> None:
        """Keep x of the lanes whose residual is about to rise from its smallest value so far to ``norm``."""
        least = self._least[lanes]
        lower = norm < least
        if bool((going & ~lower).any()):
            rising = going & ~lower & ~self._kept[lanes]
            self._best[lanes[rising]] = x[rising]
            self._kept[lanes[rising]] = True
        lower &= going
        self._least[lanes] = torch.where(lower, norm, least)
        self._kept[lanes[lower]] = False

    def start_again(self, lanes: Tensor) -> None:
        """Put lanes back to where they began, with all their iterations before them."""
        fresh = lanes[~self._kept[lanes]]
        self._best[fresh], self._kept[fresh] = self.x[fresh], True
        for own, begun in zip((self.x, self.r), self._start, strict=True):
            own[lanes] = begun[lanes]
        self.limit[lanes] = self.iterations[lanes] + self.maxiter
        for lane in lanes.tolist():
            self.status[lane] = None

    def follow(self, lanes: Tensor, d: Tensor) -> None:
        """Keep the state x, r, d of this iteration for the trajectory."""
        if self._keep:
            full = self.trajectory[-1][2].clone() if self.trajectory else torch.zeros_like(self.x)
            full[lanes] = d
            self.trajectory.append((self.x.clone(), self.r.clone(), full))

    def judge(self, lanes: Tensor) -> tuple[Certificate, Tensor, Tensor]:
        """Certify the present x of some lanes; those that hold end as CONVERGED.

        Returns the certificate of the float64 iterate, and for every lane whether it ended and by how much rounding to
        the user's precision changes the residual.
        """
        problem, x = self.problem, self.x[lanes]
        A, b, tolerance = problem.A.take(lanes), problem.b[lanes], problem.tolerance[lanes]
        handed = problem.rounded(x, lanes)
        self.matvecs[lanes] += 1
        found = exact = certify(A, b, x, tolerance)
        if not torch.equal(handed, x):
            self.matvecs[lanes] += 1
            found = certify(A, b, handed, tolerance)
        self.norm[lanes], self.bound[lanes] = found.norm, found.bound
        self.end(lanes[found.holds], Status.CONVERGED)
        return exact, found.holds, norm_of(found.r - exact.r)

    def end_unrounded(self, lanes: Tensor) -> None:
        """End lanes whose iterate holds, but not as it is handed out: float64 may be enough for it, or not either."""
        if not len(lanes):
            return
        problem = self.problem
        x = problem.rounded(self.x[lanes], lanes, torch.float64)
        holds = certify(problem.A.take(lanes), problem.b[lanes], x, problem.tolerance[lanes]).holds
        self.matvecs[lanes] += 1
        self.end(lanes[holds], Status.PRECISION)
        self.end(lanes[~holds], Status.NONFINITE, "the answer is outside the range of float64")

    def finish(self) -> None:
        """Certify the lanes that ended without an answer as well, at the iterate of the smallest residual.

        What holds after all is converged.
        """
        open_ended = [
            lane
            for lane, status in enumerate(self.status)
            if status not in (Status.CONVERGED, Status.PRECISION) and bool(self.problem.finite[lane])
        ]
        if open_ended:
            lanes = torch.tensor(open_ended, device=self.x.device)
            self.x[lanes] = torch.where(self._kept[lanes, None], self._best[lanes], self.x[lanes])
            exact, done, _ = self.judge(lanes)
            far = ~torch.isfinite(self.problem.unscaled(self.x[lanes], lanes)).all(-1)
            self.end(lanes[far], Status.NONFINITE, "the answer is beyond the largest float64")
            self.end_unrounded(lanes[exact.holds & ~done & ~far])

    def residuals(self) -> np.ndarray:
        """|r_k| of every lane in the user's units, (m, K + 1), NaN after its end."""
        table = torch.full((len(self.x), int(self.iterations.max()) + 1), torch.nan, dtype=torch.float64)
        for lanes, k, norms in self.history:
            table[lanes.cpu(), k.cpu()] = norms.cpu()
        done = torch.tensor([status is Status.CONVERGED for status in self.status])
        table[done, self.iterations.cpu()[done]] = self.norm.cpu()[done]
        return scale(table, self.problem.exponent_b.cpu()[:, None]).numpy()
