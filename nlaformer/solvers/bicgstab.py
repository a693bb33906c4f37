"""BiCGStab (van der Vorst 1992) of one system, with M to the right of A: two products a step, and no directions kept.

Where it breaks down, it begins again from the residual that it has, and stagnates if that is of no use either.
"""

from __future__ import annotations

import math

from nlaformer.solvers.arithmetic import Array
from nlaformer.solvers.certificate import norm_of, norm_upper
from nlaformer.solvers.iteration import Iteration
from nlaformer.solvers.preconditioners import Preconditioner
from nlaformer.solvers.progress import Progress
from nlaformer.solvers.result import Status
from nlaformer.solvers.state import SolveState


def bicgstab(state: SolveState, M: Preconditioner, progress: Progress) -> None:
    """Take a system alone to its end."""
    if lanes := state.going():
        _Steps(state, lanes, M).run(progress)


class _Steps(Iteration):
    """The recursion; its letters are those of the paper."""

    def __init__(self, state: SolveState, lanes: list[int], M: Preconditioner) -> None:
        super().__init__(state, lanes, M)
        self.norm = norm_upper(self.r)
        self._begin()

    def _begin(self) -> None:
        """Forget the directions, and take the present residual as the shadow."""
        self.shadow, self.p, self.v = self.r + 0.0, 0 * self.r, 0 * self.r
        self.rho = self.alpha = self.omega = 1.0
        self.fresh = True

    def iterate(self, most: int) -> None:
        for _ in range(min(most, self.left())):
            if not self._step():
                if self.fresh:
                    self.end([0], Status.STAGNATED, "BiCGStab breaks down")
                    return
                self._begin()
                continue
            self.norms.append(self.norm)
            self.fresh = False
            if not math.isfinite(self.norm):
                self.end([0], Status.NONFINITE, "the iteration left float64")
                return
            if self.norm <= self.target:
                return

    def _step(self) -> bool:
        """One step; whether it could be taken."""
        form = self.form
        dot, add, product = form.dot, form.add, self.A.product
        rho = dot(self.shadow, self.r)
        if rho == 0 or self.omega == 0 or not math.isfinite(rho):
            return False
        beta = rho / self.rho * (self.alpha / self.omega)
        self.p = p = add(self.r, form.times(beta, add(self.v, self.p, a=-self.omega)))
        y = p if self.M is None else self.M.apply(p)
        self.v = v = product(y)
        self.products += 1
        across = dot(self.shadow, v)
        if across == 0 or not math.isfinite(across):
            return False
        alpha = rho / across
        s = add(v, self.r, a=-alpha)
        z = s + 0.0 if self.M is None else self.M.apply(s)
        t = product(z)
        self.products += 1
        size = dot(t, t)
        omega = dot(t, s) / size if size > 0 else 0.0
        self.r = r = add(t, s, a=-omega)
        norm = norm_of(r)
        if not norm < self.norm:
            self.state.keep_before_rise(self.at, self.norm, norm, self.x)
        self.x = add(z, add(y, self.x, a=alpha), a=omega)
        self.norm, self.rho, self.alpha, self.omega = norm, rho, alpha, omega
        return True

    def restart(self, to: Array, r: Array, g: Array) -> None:
        self.r = r + 0.0
        self.norm = norm_upper(self.r)
        self._begin()
