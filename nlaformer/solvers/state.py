"""The state of a solve: where every lane stands. The only place that calls a lane converged.

The methods (``conjugate_gradients``, ``minimal_residuals``, ``guided``) read the state and change it through methods of
``SolveState``. What they lower is g: the residual r = b - A x, or, of least squares, A^T r.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nlaformer.prompt import scale
from nlaformer.solvers.certificate import Certificate, certify, norm_of
from nlaformer.solvers.operators import ImplicitOperator, Operator
from nlaformer.solvers.parse import Problem
from nlaformer.solvers.result import Status

OTHER_ADJOINT = "c.(A^T r) is not (A c).r: rmatvec is another matrix"
_FAR = 1e16  # |b - A x0| over |b|, more or less: beyond it the rounding of x0 alone is more than b
_APART = 1e-3  # of |A| |c| |r| by which the two may differ


def contradicts(c: Tensor, q: Tensor, r: Tensor, g: Tensor, reach: Tensor) -> Tensor:
    """Whether q = A c and g = A^T r cannot be products with a matrix and its transpose; ``reach`` is about |A|."""
    gap = ((c * g).sum(-1) - (q * r).sum(-1)).abs()
    return gap > _APART * reach * norm_of(c) * norm_of(r)


class SolveState:
    """The iterates, running residuals, counts and statuses of all lanes.

    A lane goes on until it has a status. Only ``judge`` gives CONVERGED, and only to an x that passed its certificate
    as it will be returned. ``keep`` stores x, r and d of every iteration.
    """

    def __init__(self, problem: Problem, maxiter: int, callback: Callable[[Any], Any] | None, keep: bool) -> None:
        self.problem, self.maxiter = problem, maxiter
        self._callback, self._keep = callback, keep
        m, device = len(problem.b), problem.b.device
        self.x = problem.b.new_zeros(m, problem.unknowns) if problem.x0 is None else problem.x0.clone()  # (m, n)
        self.iterations = torch.zeros(m, dtype=torch.long, device=device)
        self.limit = torch.full_like(self.iterations, maxiter)
        self.matvecs = torch.zeros(m, dtype=torch.long, device=device)
        if problem.adjoint is not None:  # the tolerance took a product, the scale of an operator another one
            self.matvecs += 2 if isinstance(problem.A, ImplicitOperator) else 1
        self.norm = torch.full((m,), torch.nan, dtype=torch.float64, device=device)  # of the x that was judged last
        self.bound = self.norm.clone()
        self.status: list[Status | None] = [None] * m
        self.detail = [""] * m
        self.trajectory: list[tuple[Tensor, Tensor, Tensor]] = []
        self.r = self._first_residuals()  # (m, rows of A), running
        self.g = self._first_gradients()  # (m, n), running
        self._start = (self.x.clone(), self.r.clone(), self.g.clone())
        norm = norm_of(self.g)
        self._history = [(torch.arange(m, device=device), self.iterations.clone(), norm)]  # lanes, their k, |r_k|
        # The smallest running residual of every lane; its x is kept once the residual rises again.
        self._least, self._kept = norm.clone(), torch.zeros(m, dtype=torch.bool, device=device)
        self._best = self.x.clone()
        self._end_at_x0()

    def _first_residuals(self) -> Tensor:
        """End the lanes whose input is not finite or whose answer is 0; the residuals of the others."""
        problem = self.problem
        self.end((~problem.finite).nonzero()[:, 0], Status.NONFINITE, "A, b or x0 holds NaN or infinity")
        self.x[~problem.finite] = torch.nan
        zero = (problem.b == 0).all(-1)
        if problem.adjoint is not None and not isinstance(problem.A, ImplicitOperator):
            # Least squares with A = 0; others have an entry near 1.
            zero |= (problem.A.absolute(torch.ones_like(self.x)) == 0).all(-1)
        zero &= problem.finite
        self.x[zero], self.norm[zero], self.bound[zero] = 0.0, 0.0, 0.0
        self.end(zero.nonzero()[:, 0], Status.CONVERGED)
        self._end_affine(zero.nonzero()[:, 0])
        self._end_other_adjoint()
        r, lanes = problem.b.clone(), self.going()
        if problem.x0 is not None and len(lanes):
            r[lanes] = problem.b[lanes] - self.apply(lanes, self.x[lanes])
            far = ~(norm_of(r) < _FAR)  # true for NaN
            self.x[far], r[far] = 0.0, problem.b[far]
        return r

    def _end_affine(self, lanes: Tensor) -> None:
        """End lanes with an operator that does not take 0 to 0."""
        if not len(lanes) or not isinstance(self.problem.A, ImplicitOperator):
            return
        affine = (self.apply(lanes, torch.zeros_like(self.x[lanes])) != 0).any(-1)
        self.end(lanes[affine], Status.NOT_LINEAR, "A applied to 0 is not 0")

    def _end_other_adjoint(self) -> None:
        """End least squares with an operator whose rmatvec contradicts its matvec; A^T r certifies nothing there."""
        problem, lanes = self.problem, self.going()
        if problem.adjoint is None or not isinstance(problem.A, ImplicitOperator) or not len(lanes):
            return
        one, draws = lanes[:1], torch.Generator().manual_seed(1)
        c, y = (
            torch.randn(1, k, dtype=self.x.dtype, generator=draws).to(self.x.device)
            for k in (self.x.shape[-1], problem.b.shape[-1])
        )
        q, g = self.apply(one, c), self.gradient(one, y)
        self.matvecs[lanes[1:]] += 2  # the operator is that of all
        if bool(contradicts(c, q, y, g, torch.maximum(norm_of(q) / norm_of(c), norm_of(g) / norm_of(y)))):
            self.end(lanes, Status.NOT_LINEAR, OTHER_ADJOINT)

    def _first_gradients(self) -> Tensor:
        """What is lowered, where the lanes begin; the residuals themselves unless these are least squares."""
        lanes = self.going()
        if self.problem.adjoint is None or not len(lanes):
            return self.r
        g = torch.zeros_like(self.x)
        g[lanes] = self.gradient(lanes, self.r[lanes])
        return g

    def _end_at_x0(self) -> None:
        """End the lanes whose x0 is a solution, then those whose matrix cannot be positive definite."""
        problem, lanes = self.problem, self.going()
        claims = lanes[norm_of(self.g[lanes]) <= problem.tolerance[lanes]]
        if len(claims):
            self.judge(claims)
        for lane in [lane for lane in self.going().tolist() if problem.complaint[lane]]:
            self.end(torch.tensor([lane], device=self.x.device), Status.NOT_SPD, problem.complaint[lane])

    # Reading

    @property
    def watched(self) -> bool:
        """Whether every iterate is shown to a callback or kept."""
        return self._callback is not None or self._keep

    def going(self) -> Tensor:
        """The lanes that have not ended."""
        lanes = [lane for lane, status in enumerate(self.status) if status is None]
        return torch.tensor(lanes, dtype=torch.long, device=self.x.device)

    def residuals(self) -> NDArray[np.float64]:
        """|g_k| of every lane in the user's units, (m, K + 1), NaN after its end."""
        table = torch.full((len(self.x), int(self.iterations.max()) + 1), torch.nan, dtype=torch.float64)
        for lanes, k, norms in self._history:
            table[lanes.cpu(), k.cpu()] = norms.cpu()
        done = torch.tensor([status is Status.CONVERGED for status in self.status])
        table[done, self.iterations.cpu()[done]] = self.norm.cpu()[done]
        found: NDArray[np.float64] = scale(table, self.problem.exponent.cpu()[:, None]).numpy()
        return found

    # Iterating

    def apply(self, lanes: Tensor, v: Tensor) -> Tensor:
        """A v of some lanes, counted."""
        self.count_product(lanes)
        return self.problem.A.take(lanes).apply(v)

    def gradient(self, lanes: Tensor, r: Tensor) -> Tensor:
        """What is lowered, g, for the residuals r of some lanes; of least squares a product with A^T, counted."""
        if self.problem.adjoint is None:
            return r
        self.count_product(lanes)
        return self.problem.adjoint.take(lanes).apply(r)

    def count_product(self, lanes: Tensor) -> None:
        """Count one product with A, or A^T, for some lanes."""
        self.matvecs[lanes] += 1

    def accept(self, lanes: Tensor, x: Tensor, r: Tensor, g: Tensor) -> None:
        """Take a step that a model proposed. It does not count against the limit of the classical method."""
        norm = norm_of(g)
        self.keep_before_rise(lanes, torch.ones_like(lanes, dtype=torch.bool), norm, self.x[lanes])
        self.count_iteration(lanes, norm)
        self.limit[lanes] += 1
        self.show(lanes, x, r, g)

    def count_iteration(self, lanes: Tensor, norm: Tensor) -> None:
        """Count one iteration for some lanes; ``norm`` is that of their running g after it."""
        self.iterations[lanes] += 1
        self._history.append((lanes, self.iterations[lanes], norm))

    def show(self, lanes: Tensor, x: Tensor, r: Tensor, g: Tensor) -> None:
        """Set the iterates and running residuals of some lanes, and call the callback."""
        self.x[lanes] = x
        self.replace(lanes, r, g)
        if self._callback is not None:
            self._callback(self.problem.vectors(self.problem.unscaled(self.x)))

    def replace(self, lanes: Tensor, r: Tensor, g: Tensor) -> None:
        """Set the running residuals of some lanes."""
        self.r[lanes], self.g[lanes] = r, g

    def keep(self, lanes: Tensor, d: Tensor) -> None:
        """Store x, r and d of this iteration, if that was asked for; lanes that have ended keep their last d."""
        if self._keep:
            full = self.trajectory[-1][2].clone() if self.trajectory else torch.zeros_like(self.x)
            full[lanes] = d
            self.trajectory.append((self.x.clone(), self.r.clone(), full))

    def keep_before_rise(self, lanes: Tensor, going: Tensor, norm: Tensor, x: Tensor) -> None:
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
        """Put lanes back to where they began, with the full number of iterations."""
        fresh = lanes[~self._kept[lanes]]
        self._best[fresh], self._kept[fresh] = self.x[fresh], True
        for own, begun in zip((self.x, self.r, self.g), self._start, strict=True):
            own[lanes] = begun[lanes]
        self.limit[lanes] = self.iterations[lanes] + self.maxiter
        for lane in lanes.tolist():
            self.status[lane] = None

    # Ending

    def end(self, lanes: Tensor, status: Status, detail: str = "", x: Tensor | None = None) -> None:
        """Give some lanes a status, and their last iterate if it is new."""
        if x is not None:
            self.x[lanes] = x
        for lane in lanes.tolist():
            self.status[lane], self.detail[lane] = status, detail

    def judge(self, lanes: Tensor, x: Tensor | None = None) -> tuple[Certificate, Tensor, Tensor]:
        """Certify x of some lanes, by default the present one; those that hold end as CONVERGED.

        Returns the certificate of the float64 iterate, and for every lane whether it ended and by how much rounding to
        the user's precision changes the residual.
        """
        if x is not None:
            self.x[lanes] = x
        x = self.x[lanes]
        returned = self.problem.rounded(x, lanes)
        found = exact = self._certify(lanes, x)
        if not torch.equal(returned, x):
            found = self._certify(lanes, returned)
        self.norm[lanes], self.bound[lanes] = found.norm, found.bound
        self.end(lanes[found.holds], Status.CONVERGED)
        return exact, found.holds, norm_of(found.g - exact.g)

    def _certify(self, lanes: Tensor, x: Tensor) -> Certificate:
        """The certificate of an x for some lanes; a LinearOperator is applied to that x in the user's units."""
        problem = self.problem
        A, adjoint = self._in_units(problem.A, lanes, problem.exponent_b - problem.exponent_a), None
        if problem.adjoint is not None:
            adjoint = self._in_units(problem.adjoint, lanes, problem.exponent_b)
        self.matvecs[lanes] += 1 if adjoint is None else 2
        return certify(A, problem.b[lanes], x, problem.tolerance[lanes], adjoint)

    def _in_units(self, A: Operator, lanes: Tensor, exponent: Tensor) -> Operator:
        own = A.take(lanes)
        return own.in_units(exponent[lanes]) if isinstance(own, ImplicitOperator) else own

    def end_unrounded(self, lanes: Tensor) -> None:
        """End lanes whose iterate holds, but not in the user's precision: PRECISION if it holds in float64."""
        if not len(lanes):
            return
        holds = self._certify(lanes, self.problem.rounded(self.x[lanes], lanes, torch.float64)).holds
        self.end(lanes[holds], Status.PRECISION)
        self.end(lanes[~holds], Status.NONFINITE, "the answer is outside the range of float64")

    def _tell_padding(self, lanes: list[int]) -> None:
        """Say that A has columns of zeros, where these are not known to be least squares."""
        lanes = [lane for lane in lanes if not self.detail[lane]]
        if not lanes or self.problem.adjoint is not None or isinstance(self.problem.A, ImplicitOperator):
            return
        own = self.problem.A.take(torch.tensor(lanes, device=self.x.device)).transposed
        empty = (own.absolute(torch.ones_like(self.x[lanes])) == 0).any(-1)
        for lane in (lane for lane, found in zip(lanes, empty.tolist(), strict=True) if found):
            self.detail[lane] = 'A has a column of zeros; if b - A x is to be as small as it can, use method="cgls"'

    def finish(self) -> None:
        """Certify the lanes that ended without an answer as well, at the iterate of the smallest residual.

        Those that hold after all are converged.
        """
        open_ended = [
            lane
            for lane, status in enumerate(self.status)
            if status not in (Status.CONVERGED, Status.PRECISION) and bool(self.problem.finite[lane])
        ]
        if open_ended:
            lanes = torch.tensor(open_ended, device=self.x.device)
            contradicted = {lane: self.detail[lane] for lane in open_ended if self.status[lane] is Status.NOT_LINEAR}
            self.x[lanes] = torch.where(self._kept[lanes, None], self._best[lanes], self.x[lanes])
            exact, done, _ = self.judge(lanes)
            # Running residuals may have strayed: where the true one is larger than it was, the start is better.
            worse = ~(exact.norm <= norm_of(self._start[2][lanes]) * (1 + 1e-10)) & ~done
            if bool(worse.any()):
                self.x[lanes[worse]] = self._start[0][lanes[worse]]
                exact, done, _ = self.judge(lanes)
            spent = torch.tensor([self.status[lane] in (Status.MAXITER, Status.STAGNATED) for lane in open_ended])
            unsure = spent.to(lanes.device) & ~exact.holds & (exact.bound <= self.problem.tolerance[lanes])
            detail = "the residual is proven to meet the tolerance, but other evaluations in float64 may not show it"
            self.end(lanes[unsure], Status.STAGNATED, detail)
            far = ~torch.isfinite(self.problem.unscaled(self.x[lanes], lanes)).all(-1)
            self.end(lanes[far], Status.NONFINITE, "the answer is beyond the largest float64")
            self.end_unrounded(lanes[exact.holds & ~done & ~far])
            unclear = (Status.MAXITER, Status.STAGNATED, Status.NOT_SPD)
            ended = [lane for lane in open_ended if self.status[lane] in unclear]
            self._end_affine(torch.tensor(ended, dtype=torch.long, device=lanes.device))
            self._tell_padding([lane for lane in open_ended if self.status[lane] is Status.STAGNATED])
            for lane, detail in contradicted.items():  # such products prove nothing, whatever the certificate says
                self.status[lane], self.detail[lane] = Status.NOT_LINEAR, detail
