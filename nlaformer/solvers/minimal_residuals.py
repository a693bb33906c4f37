r"""Minimal residuals on many lanes: GMRES where A is not symmetric, CGLS for least squares.

Every step adds a direction d whose product q = A d is orthogonal to those before it, and goes to the smallest |b - A x|
along it. From a proposal c,

    q = A c - sum_j (A c.q_j) q_j        d = c - sum_j (A c.q_j) d_j        (both divided by |q|)
    x <- x + (r.q) d                     r <- r - (r.q) q

With c = M r this is GCR (Eisenstat, Elman and Schultz 1983): the iterates of GMRES with the right preconditioner M,
unless a step gains nothing; r then adds nothing new either. After a step that gains little, c = M q of that step goes
on in the same Krylov space (Jiranek and Rozloznik 2010). Unlike in the usual form of GMRES, x is known after every
step, and the directions of a model can stand among the others.

With c = M A^T r the iterates are those of CGLS and LSQR, where M approximates the inverse of A^T A. Only the last
direction matters there in exact arithmetic; keeping them all saves what rounding would lose.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nlaformer.prompt import exponent, scale
from nlaformer.solvers.certificate import norm_of, norm_upper
from nlaformer.solvers.claims import Claims
from nlaformer.solvers.conjugate_gradients import Direction
from nlaformer.solvers.operators import ImplicitOperator
from nlaformer.solvers.preconditioners import Preconditioner
from nlaformer.solvers.result import Status
from nlaformer.solvers.state import OTHER_ADJOINT, SolveState, contradicts

_LONGEST = 256  # directions that are kept before GMRES starts again
_MOST_KEPT = 2**26  # entries of all directions together
_NEW = 1e-12  # of |A c| that must be left once it is orthogonal to the products before it
_GAINS = 0.9  # a step that leaves more of the residual gains little


def minimal_residuals(state: SolveState, M: Preconditioner, directions: list[Direction]) -> None:
    """Take every lane of this kind that goes on to its end, orthogonal to the directions of the model's steps."""
    lanes = state.going()
    lanes = lanes[state.problem.minimal[lanes]]
    if not len(lanes):
        return
    steps = _Steps(state, lanes, M, directions)
    while True:
        steps.verify_claims()
        steps.end_spent()
        if not len(steps.lanes):
            return
        steps.step()


class _Steps:
    """The directions and iterates of the lanes that go on; s of them."""

    def __init__(self, state: SolveState, lanes: Tensor, M: Preconditioner, directions: list[Direction]) -> None:
        self.state, self.lanes = state, lanes
        self.square = state.problem.adjoint is None
        self.A, self.M = state.problem.A.take(lanes), M.take(lanes)
        self.x, self.r, self.g = state.x[lanes], state.r[lanes], state.g[lanes]  # (s, n), (s, rows), (s, n)
        self.norm = norm_upper(self.g)
        self.claims = Claims(state, lanes)
        self.stalled = torch.zeros_like(lanes, dtype=torch.bool)  # (s,) whether the last step gained little
        self.exhausted = self.stalled.clone()  # (s,) whether nothing new was left to try
        self.reach = torch.zeros_like(self.norm)  # (s,) the largest |A c| / |c| so far
        s, n, rows = len(lanes), self.x.shape[-1], self.r.shape[-1]
        room = max(2, min(_LONGEST, n + len(directions), _MOST_KEPT // (s * (n + rows))))
        self.d, self.q = self.x.new_zeros(s, room, n), self.x.new_zeros(s, room, rows)
        self.count = 0  # of the directions that are kept
        for direction in directions[-(room // 2) :]:
            own = direction.take(lanes)
            length = own.curvature.clamp(min=0).sqrt()[:, None]
            self._add(*(torch.where(length > 0, v / length, 0.0) for v in (own.d, own.q)))

    def step(self) -> None:
        """One iteration."""
        state, c = self.state, self._proposal()
        q = self.A.apply(c)
        state.count_product(self.lanes)
        finite = torch.isfinite(c).all(-1) & torch.isfinite(q).all(-1)
        c, q = self._end(~finite, Status.NONFINITE, "a product with A or M is not finite", c, q)
        e = exponent(_size(q))  # an operator may have any scale
        c, q = scale(c, -e), scale(q, -e)
        if isinstance(self.A, ImplicitOperator) and not self.square:
            self.reach = torch.fmax(self.reach, norm_of(q) / norm_of(c))
            strange = contradicts(c, q, self.r, self.g, self.reach)
            c, q = self._end(strange, Status.NOT_LINEAR, OTHER_ADJOINT, c, q)
        if not len(self.lanes):
            return
        d, q, fresh = self._orthogonal(c, q)
        alpha = (self.r * q).sum(-1, keepdim=True)
        x, r = self.x + alpha * d, self.r - alpha * q
        g = state.gradient(self.lanes, r)
        norm = norm_of(g)
        state.keep_before_rise(self.lanes, torch.isfinite(norm), norm, self.x)
        self.exhausted = ~fresh & (self.stalled | torch.full_like(fresh, not self.square))
        self.stalled = ~fresh | ~(norm <= _GAINS * self.norm)
        self.x, self.r, self.g, self.norm = x, r, g, norm
        self._add(d, q)
        state.count_iteration(self.lanes, norm)
        self._end(~torch.isfinite(norm), Status.NONFINITE, "the iteration left float64")
        if state.watched and len(self.lanes):
            state.show(self.lanes, self.x, self.r, self.g)

    def _proposal(self) -> Tensor:
        """The c of every lane, near 1 in size: M g, or M q after a step that gained little."""
        v = self.g
        if self.square and self.count and bool(self.stalled.any()):
            v = torch.where(self.stalled[:, None], self.q[:, self.count - 1], v)
        c = self.M.apply(v / _size(v))
        return c / _size(c)

    def _orthogonal(self, c: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The direction d of c and q = A d, of length 1 and orthogonal to those before; zero, where nothing is left."""
        given, d = norm_of(q), c
        kept_d, kept_q = self.d[:, : self.count], self.q[:, : self.count]
        for _ in range(2):  # once is not enough where little is left
            beta = kept_q @ q[:, :, None]  # (s, count, 1)
            q, d = q - (kept_q.mT @ beta)[..., 0], d - (kept_d.mT @ beta)[..., 0]
        left = norm_of(q)
        fresh = (left > _NEW * given) & (left > 0)
        length = torch.where(fresh, left, 1.0)[:, None]
        d, q = (torch.where(fresh[:, None], v / length, 0.0) for v in (d, q))
        return d, q, fresh

    def _add(self, d: Tensor, q: Tensor) -> None:
        """Keep a direction; where there is no room, GMRES starts again, and CGLS goes on with this one."""
        if self.count == self.q.shape[1]:
            self.count = 0
            if self.square:
                self.stalled = torch.zeros_like(self.stalled)
                return
        self.d[:, self.count], self.q[:, self.count] = d, q
        self.count += 1

    def verify_claims(self) -> None:
        """Check the lanes that claim to have converged, or cannot go on, by their true residual."""
        at = ((self.norm <= self.claims.target) | self.exhausted).nonzero()[:, 0]
        if not len(at):
            return
        verdict = self.claims.judge(at, self.lanes[at], self.x[at], self.norm[at])
        again, exact = at[verdict.again], verdict.exact
        self.r[again], self.g[again] = exact.r[verdict.again], exact.g[verdict.again]
        self.norm[again] = norm_upper(self.g[again])
        self.d[again], self.q[again] = 0.0, 0.0
        self.stalled[again], self.exhausted[at] = False, False
        self._drop(torch.zeros_like(self.stalled).index_fill(0, at[verdict.ended], True))

    def end_spent(self) -> None:
        """End the lanes that are out of iterations."""
        self._end(self.state.iterations[self.lanes] >= self.state.limit[self.lanes], Status.MAXITER, "")

    def _end(self, which: Tensor, status: Status, detail: str, *rows: Tensor) -> tuple[Tensor, ...]:
        """End some lanes with the x they have; of rows for every lane, the others' are returned."""
        if not bool(which.any()):
            return rows
        self.state.end(self.lanes[which], status, detail, self.x[which])
        self._drop(which)
        return tuple(row[~which] for row in rows)

    def _drop(self, which: Tensor) -> None:
        """Go on without some lanes."""
        if not bool(which.any()):
            return
        at = (~which).nonzero()[:, 0]
        self.lanes, self.A, self.M = self.lanes[at], self.A.take(at), self.M.take(at)
        self.x, self.r, self.g, self.norm = self.x[at], self.r[at], self.g[at], self.norm[at]
        self.d, self.q, self.reach = self.d[at], self.q[at], self.reach[at]
        self.stalled, self.exhausted = self.stalled[at], self.exhausted[at]
        self.claims.keep(at)


def _size(v: Tensor) -> Tensor:
    """The largest entry of every row, 1 for a row of zeros: (s, 1)."""
    largest = v.abs().amax(-1, keepdim=True)
    return torch.where(largest > 0, largest, 1.0)
