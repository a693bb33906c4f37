r"""LSMR (Fong and Saunders 2011): least squares by short recurrences, two products a step and no directions kept.

Golub and Kahan's process writes A V_k = U_{k+1} B_k with bidiagonal B_k, from beta_1 u_1 = r and alpha_1 v_1 = A^T u_1.
The step of x minimizes |A^T (b - A x)|, which is what the certificate is for, over the span of V_k: one rotation makes
B_k upper bidiagonal, another one the transpose of that, and |A^T r_k| = |zeta_bar_{k+1}| falls in every step. The
letters are those of the paper.
"""

from __future__ import annotations

from nlaformer.solvers.arithmetic import Array, Number
from nlaformer.solvers.certificate import norm_of
from nlaformer.solvers.iteration import Iteration, replaced
from nlaformer.solvers.operators import ImplicitOperator, Operator
from nlaformer.solvers.preconditioners import Identity
from nlaformer.solvers.progress import Progress
from nlaformer.solvers.result import Status
from nlaformer.solvers.state import OTHER_ADJOINT, SolveState, contradicts

_VECTORS = ("u", "v", "h", "h_bar")
_NUMBERS = ("alpha", "alpha_bar", "zeta_bar", "rho", "rho_bar", "c_bar", "s_bar", "reach")


def lsmr(state: SolveState, adjoint: Operator, progress: Progress) -> None:
    """Take every lane that goes on to its end."""
    if lanes := state.going():
        _Steps(state, lanes, adjoint).run(progress)


class _Steps(Iteration):
    """Where the process and its rotations stand."""

    def __init__(self, state: SolveState, lanes: list[int], adjoint: Operator) -> None:
        super().__init__(state, lanes, Identity())
        self.adjoint, self.rows = adjoint.take(self.at), [*_VECTORS, *_NUMBERS]
        self._begin(self.r + 0.0)

    def _begin(self, r: Array) -> None:
        """Start the process at the residuals of all lanes, which are overwritten."""
        beta = norm_of(r)
        self.u = self._unit(r, beta)
        v = self.adjoint.apply(self.u)
        self.products += 1
        self.alpha = self.alpha_bar = norm_of(v)
        self.v = self._unit(v, self.alpha)
        self.h, self.h_bar = self.v + 0.0, 0 * self.v
        self.zeta_bar = self.norm = self.alpha * beta
        self.rho = self.rho_bar = self.c_bar = 0 * beta + 1.0
        self.s_bar = self.reach = 0 * beta

    def _unit(self, v: Array, length: Number) -> Array:
        """The vectors over their lengths, in their place; zero for those that have none."""
        where = self.form.where
        return self.form.times(where(length > 0, 1.0 / where(length > 0, length, 1.0), 0.0), v)

    def iterate(self, most: int) -> None:
        form = self.form
        for _ in range(min(most, self.left())):
            q = self.A.product(self.v)
            u = form.add(self.u, q + 0.0, a=-self.alpha)
            beta = norm_of(u)
            self.u = self._unit(u, beta)
            p = self.adjoint.product(self.u)
            self.products += 2
            if isinstance(self.A, ImplicitOperator) and self._contradicts(q, p):
                return
            v = form.add(self.v, p, a=-beta)
            self.alpha = norm_of(v)
            self.v = self._unit(v, self.alpha)
            self._rotate(beta)
            self.norm = abs(self.zeta_bar)
            self.norms.append(self.norm)
            if form.lost(self.norm):
                lost = form.no(form.isfinite(self.norm))
                self.end(form.positions(lost), Status.NONFINITE, "the iteration left float64")
                return
            if form.some(self.norm <= self.target):
                return

    def _rotate(self, beta: Number) -> None:
        """The two rotations of a step, and the step of x along h_bar."""
        form, before = self.form, self.rho * self.rho_bar
        rho = self._length(self.alpha_bar, beta)
        c, s = self.alpha_bar / rho, beta / rho
        theta, self.alpha_bar = s * self.alpha, c * self.alpha
        theta_bar, turned = self.s_bar * rho, self.c_bar * rho
        rho_bar = self._length(turned, theta)
        self.c_bar, self.s_bar = turned / rho_bar, theta / rho_bar
        zeta, self.zeta_bar = self.c_bar * self.zeta_bar, -self.s_bar * self.zeta_bar
        self.h_bar = form.add(self.h, form.times(-theta_bar * rho / before, self.h_bar), a=0 * rho + 1.0)
        self.x = form.add(self.h_bar, self.x, a=zeta / (rho * rho_bar))
        self.h = form.add(self.v, form.times(-theta / rho, self.h), a=0 * rho + 1.0)
        self.rho, self.rho_bar = rho, rho_bar

    def _length(self, a: Number, b: Number) -> Number:
        """The radius of a rotation; 1 where both are 0, and nothing is left to do."""
        found = self.form.sqrt(a * a + b * b)
        return self.form.where(found > 0, found, 1.0)

    def _contradicts(self, q: Array, p: Array) -> bool:
        """End the lanes whose operator and its adjoint are not of one matrix; whether there were any."""
        form, length = self.form, norm_of(q)
        self.reach = form.where(length > self.reach, length, self.reach)
        strange = form.positions(contradicts(self.v, q, self.u, p, self.reach))
        self.end(strange, Status.NOT_LINEAR, OTHER_ADJOINT)
        return bool(strange)

    def gather(self, own: Array) -> None:
        super().gather(own)
        self.adjoint = self.adjoint.keep(own)

    def shown(self) -> Array:
        return self.state.g[self.at]  # as it was: of the present one, only the length is known

    def restart(self, to: Array, r: Array, g: Array) -> None:
        self.r[to] = r
        old = {name: getattr(self, name) for name in (*_VECTORS, *_NUMBERS, "norm")}
        self._begin(self.r + 0.0)
        for name, value in old.items():
            fresh = getattr(self, name)
            if name in _VECTORS and to is not ...:
                value[to] = fresh[to]
                setattr(self, name, value)
            else:
                setattr(self, name, replaced(value, to, fresh))
