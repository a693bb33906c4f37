r"""Minimal residuals: GMRES, MINRES for symmetric A, and CGLS for least squares; of one system or of several at once.

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

For symmetric A all products are orthogonal to A c by themselves but the last two: keeping those is MINRES. With a
preconditioner, "orthogonal" and "smallest" are in the norm of M, which must be positive definite.
"""

from __future__ import annotations

from nlaformer.solvers.arithmetic import Array, Flag, exponent, scale
from nlaformer.solvers.certificate import norm_of, norm_upper
from nlaformer.solvers.conjugate_gradients import Direction
from nlaformer.solvers.iteration import Iteration, replaced
from nlaformer.solvers.operators import ImplicitOperator
from nlaformer.solvers.parse import of_rows
from nlaformer.solvers.preconditioners import Preconditioner
from nlaformer.solvers.progress import Progress
from nlaformer.solvers.result import Status
from nlaformer.solvers.state import OTHER_ADJOINT, SolveState, contradicts

_LONGEST = 256  # directions that are kept before GMRES starts again
_MOST_KEPT = 2**26  # entries of all directions together
_NEW = 1e-12  # of |A c| that must be left once it is orthogonal to the products before it
_GAINS = 0.9  # a step that leaves more of the residual gains little
_CANCELS = 0.5  # of |A c| that must be left, or rounding errors are taken out once more
_ORDINARY = (2.0**-600, 2.0**600)  # |A c|^2 for which nothing needs to be scaled


def minimal_residuals(
    state: SolveState,
    M: Preconditioner,
    directions: list[Direction],
    progress: Progress,
    room: int | None,
    symmetric: bool,
) -> None:
    """Take every lane of this kind that goes on to its end, orthogonal to the directions of the model's steps.

    GMRES starts again after ``room`` steps; with ``symmetric``, it is MINRES.
    """
    lanes = state.going(minimal=True)
    if not lanes:
        return
    _Steps(state, lanes, M, directions, room, symmetric).run(progress)


class _Steps(Iteration):
    """The directions and iterates of the lanes that go on; s of them."""

    def __init__(
        self,
        state: SolveState,
        lanes: list[int],
        M: Preconditioner,
        directions: list[Direction],
        room: int | None,
        symmetric: bool,
    ) -> None:
        super().__init__(state, lanes, M)
        form, at, xp = self.form, self.at, self.form.xp
        self.square, self.window = state.problem.adjoint is None, symmetric
        self.adjoint = None if state.problem.adjoint is None else state.problem.adjoint.take(at)
        self.g = self.r if self.square else state.g[at]  # (s, n)
        self.norm = norm_upper(self.g)
        self.stalled = self.exhausted = self.norm < 0  # (s,) whether the last step gained little; nothing new was left
        self.reach = 0 * self.norm  # (s,) the largest |A c| / |c| so far
        n, rows = self.x.shape[-1], self.r.shape[-1]
        most = _MOST_KEPT // (len(lanes) * (n + rows))
        self.room = 2 if symmetric else max(2, min(room or _LONGEST, n + len(directions), most))
        self.d, self.q = (
            xp.zeros((*self.x.shape[:-1], self.room, size), dtype=xp.float64, device=form.device) for size in (n, rows)
        )
        # MINRES with M is in its norm: p = M q and z = M r take the places of q and r.
        self.inner = self.window and self.M is not None
        self.p = 0 * self.q if self.inner else self.q
        self.z = self.M.apply(self.r) if self.inner and self.M is not None else self.r
        self.rows = ["g", "d", "q", "stalled", "exhausted", "reach", *(["p", "z"] if self.inner else [])]
        self.count = self.taken = 0  # of the directions that are kept, and of all
        for direction in directions[-(self.room // 2) :]:
            own = direction.take(at)
            length = xp.sqrt(xp.where(own.curvature > 0, own.curvature, 0.0))[:, None]
            unit = xp.where(length > 0, length, 1.0)
            d, q = (xp.where(length > 0, v / unit, 0.0) for v in (own.d, own.q))
            self._add(d, q, q)

    def iterate(self, most: int) -> None:
        form, state = self.form, self.state
        for _ in range(min(most, self.left())):
            c = self._proposal()
            q = self.A.product(c)
            self.products += 1
            given = form.dot(q, q)
            if form.some(form.no((given >= _ORDINARY[0]) & (given <= _ORDINARY[1]))):
                lost = form.no(form.isfinite(form.peak(c) + form.peak(q)))
                if form.some(lost):
                    self.end(form.positions(lost), Status.NONFINITE, "a product with A or M is not finite")
                    return
                e = exponent(form.peak(q))  # an operator may have any scale
                c, q = scale(c, of_rows(-e)), scale(q, of_rows(-e))
            if isinstance(self.A, ImplicitOperator) and not self.square and self._contradicts(c, q):
                return
            d, q, p, fresh = self._orthogonal(c, q)
            alpha = form.dot(self.r, p)
            self.r = form.add(q, self.r, a=-alpha)
            g = self._gradient()
            norm = norm_of(g)
            if form.some(form.no(norm < self.norm)):
                state.keep_before_rise(self.at, self.norm, norm, self.x)
            self.x = form.add(d, self.x, a=alpha)
            if self.inner:
                self.z = form.add(p, self.z, a=-alpha)
            stale = form.no(fresh)
            self.exhausted = stale & (self.stalled if self.square else (stale | True))
            self.stalled = stale | form.no(norm <= _GAINS * self.norm)
            self.g, self.norm = g, norm
            self._add(d, q, p)
            self.norms.append(norm)
            if form.lost(norm):
                lost = form.no(form.isfinite(norm))
                self.end(form.positions(lost), Status.NONFINITE, "the iteration left float64")
                return
            if form.some((norm <= self.target) | self.exhausted):
                return

    def gather(self, own: Array) -> None:
        super().gather(own)
        self.adjoint = self.adjoint and self.adjoint.keep(own)
        self.g = self.r if self.square else self.g
        if not self.inner:
            self.p, self.z = self.q, self.r

    def take_claims(self) -> Flag:
        found = (self.norm <= self.target) | self.exhausted
        self.exhausted = self.norm < 0
        return found

    def shown(self) -> Array:
        return self.g

    def restart(self, to: Array, r: Array, g: Array) -> None:
        self.r[to], self.d[to], self.q[to] = r, 0.0, 0.0
        self.g[to] = g
        if self.inner and self.M is not None:
            self.p[to] = 0.0
            self.z[to] = self.M.apply(self.r)[to]
        norm = norm_upper(self.g)
        self.norm = replaced(self.norm, to, norm)
        self.stalled = replaced(self.stalled, to, self.norm < 0)

    def _gradient(self) -> Array:
        """The running g of the running r."""
        if self.adjoint is None:
            return self.r
        self.products += 1
        return self.adjoint.apply(self.r)

    def _contradicts(self, c: Array, q: Array) -> bool:
        """End the lanes whose operator and its adjoint are not of one matrix; whether there were any."""
        form, length = self.form, norm_of(c)
        reach = norm_of(q) / form.where(length > 0, length, 1.0)
        self.reach = form.where(reach > self.reach, reach, self.reach)
        strange = form.positions(contradicts(c, q, self.r, self.g, self.reach))
        self.end(strange, Status.NOT_LINEAR, OTHER_ADJOINT)
        return bool(strange)

    def _proposal(self) -> Array:
        """The c of every lane, of length 1: M g, or M q after a step that gained little."""
        form, M = self.form, self.M
        v, length, own = self.g if not self.inner else self.z, self.norm, self.inner
        if self.square and self.taken and form.some(self.stalled):
            last = self.p[..., (self.taken - 1) % self.room, :]
            if form.alone:
                v, length = last, 1.0
            else:
                v = form.xp.where(self.stalled[:, None], last, v)
                length = form.where(self.stalled, 1.0, length)
        if own or M is not None:
            v = v if own or M is None else M.apply(v / form.column(form.where(length > 0, length, 1.0)))
            length = norm_of(v)
        return v / form.column(form.where(length > 0, length, 1.0))

    def _orthogonal(self, c: Array, q: Array) -> tuple[Array, Array, Array, Flag]:
        """The direction d of c, q = A d and p, orthogonal to those before and of length 1; zero if nothing is left."""
        form = self.form
        kept_d, kept_q, kept_p = (own[..., : self.count, :] for own in (self.d, self.q, self.p))
        given = norm_of(q)
        total = beta = form.coefficients(kept_p, q)
        q = q - form.combination(beta, kept_q)
        left = norm_of(q)
        if not self.inner and form.some(left < _CANCELS * given):  # what cancelled was known to fewer digits
            beta = form.coefficients(kept_p, q)
            total, q = total + beta, q - form.combination(beta, kept_q)
            left = norm_of(q)
        d, p, length = c - form.combination(total, kept_d), q, left
        if self.inner and self.M is not None:
            p = self.M.apply(q)
            squares = form.dot(q, p)
            length = form.sqrt(form.where(squares > 0, squares, 0.0))
        fresh = (left > _NEW * given) & (length > 0)
        over = form.column(form.where(fresh, 1.0 / form.where(fresh, length, 1.0), 0.0))
        return d * over, q * over, p * over, fresh

    def _add(self, d: Array, q: Array, p: Array) -> None:
        """Keep a direction; where there is no room, GMRES starts again, CGLS with this one, and MINRES forgets one."""
        if self.count == self.room and not self.window:
            self.count = self.taken = 0
            if self.square:
                self.stalled = self.norm < 0
                return
        k = self.taken % self.room
        self.d[..., k, :], self.q[..., k, :] = d, q
        if self.inner:
            self.p[..., k, :] = p
        self.taken, self.count = self.taken + 1, min(self.count + 1, self.room)
