"""Conjugate gradients: the iteration of section 3, of one system or of several at once.

A lane that meets its target claims to have converged, and its true residual decides (``state``). After a claim that
failed, the iteration starts again from x with the true residual (residual replacement).

After the steps of a model, every direction is kept conjugate to the ones taken there (deflated CG, Saad, Yeung, Erhel
and Guyomarc'h 2000), so that a restart loses little of what they did. They cannot remove what rounding errors
put back into the residual along the model's own, and on badly scaled systems that grows; so every step ends with the
best steps along those, which lower the A-norm of the error and take no product with A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nlaformer.solvers.arithmetic import Array, Number, namespace
from nlaformer.solvers.certificate import UNIT, norm_of, norm_upper
from nlaformer.solvers.iteration import Iteration, replaced
from nlaformer.solvers.operators import DenseOperator, ImplicitOperator, SparseOperator
from nlaformer.solvers.preconditioners import Preconditioner
from nlaformer.solvers.progress import Progress
from nlaformer.solvers.result import Status
from nlaformer.solvers.state import SolveState


@dataclass(frozen=True)
class Direction:
    """A direction of earlier steps that new ones are kept conjugate to; zero for lanes that did not use it."""

    d: Array  # (m, n)
    q: Array  # (m, n) A d
    curvature: Array  # (m,) d.A d

    def among(self, lanes: Array, like: Array) -> Direction:
        """The direction of some lanes as one of all lanes, whose vectors are those of an array."""
        xp = namespace(like)
        parts = []
        for part in (self.d, self.q, self.curvature):
            full = xp.zeros((len(like), *part.shape[1:]), dtype=part.dtype, device=like.device)
            full[lanes] = part
            parts.append(full)
        return Direction(*parts)

    def take(self, lanes: Array) -> Direction:
        """The direction of some lanes."""
        return Direction(self.d[lanes], self.q[lanes], self.curvature[lanes])

    def coefficient(self, w: Array) -> Array:
        """The beta for which d - beta * self.d is conjugate to this direction, (m, 1), for w = d; see ``test``."""
        xp, used = namespace(w), self.curvature > 0
        return xp.where(used, (w * self.q).sum(-1) / xp.where(used, self.curvature, 1.0), 0.0)[:, None]


@dataclass(frozen=True)
class _Together:
    """All directions of earlier steps, conjugate to each other and with d.A d = 1."""

    pairs: Array  # (s, K, 2 n) d and A d, side by side: one product with both

    @classmethod
    def of(cls, directions: list[Direction], lanes: Array) -> _Together:
        """The directions of some lanes; zero where a lane did not use one."""
        xp = namespace(directions[0].d)
        own = [direction.take(lanes) for direction in directions]
        squares = xp.stack([one.curvature for one in own], axis=1)
        length = xp.sqrt(xp.where(squares > 0, squares, 0.0))[..., None]
        pairs = xp.stack([xp.concat([one.d, one.q], axis=-1) for one in own], axis=1)
        return cls(xp.where(length > 0, pairs / xp.where(length > 0, length, 1.0), 0.0))

    def __getitem__(self, at: Array) -> _Together:
        return _Together(self.pairs[at])

    def conjugate(self, z: Array) -> Array:
        """What is left of z once it is conjugate to all of them."""
        n = z.shape[-1]
        d, q = self.pairs[..., :n], self.pairs[..., n:]
        return z - ((q @ z[:, :, None]).swapaxes(1, 2) @ d)[:, 0]

    def step(self, x: Array, r: Array) -> tuple[Array, Array]:
        """The x and r after the best step along each of them."""
        n = x.shape[-1]
        steps = ((self.pairs[..., :n] @ r[:, :, None]).swapaxes(1, 2) @ self.pairs)[:, 0]
        return x + steps[:, :n], r - steps[:, n:]


def conjugate_gradients(state: SolveState, M: Preconditioner, directions: list[Direction], progress: Progress) -> None:
    """Take every lane of CG that goes on to its end, conjugate to the directions of the model's steps."""
    lanes = state.going(minimal=False)
    if not lanes:
        state.keep([], None)
        return
    recursion = _Recursion(state, lanes, M, directions)
    if state.keeps:
        state.keep(lanes, recursion.direction())
    recursion.run(progress)


class _Recursion(Iteration):
    """Where the recursion of section 3 stands."""

    def __init__(self, state: SolveState, lanes: list[int], M: Preconditioner, directions: list[Direction]) -> None:
        super().__init__(state, lanes, M)
        self.before = _Together.of(directions, self.at) if directions else None
        self.rows = ["d", "rz", "square"] if self.before is None else ["d", "rz", "square", "before"]
        self.square = self.form.dot(self.r, self.r)  # (s,)
        self.norm = norm_upper(self.r)
        # The next d is z + (r.z / rz) d. It is made when it is needed, since the last M r is not; ``made`` says it is.
        self.d, self.rz, self.made = 0 * self.r, 0 * self.norm + 1.0, False

    def iterate(self, most: int) -> None:
        """Take (preconditioned) steps of section 3 until a lane claims or breaks down, or so many are taken."""
        form, keep, M, before, norms = self.form, self.state.keep_before_rise, self.M, self.before, self.norms
        product, dot, add, times, some, sqrt = self.A.product, form.dot, form.add, form.times, form.some, form.sqrt
        is_broken, is_lost = form.broken, form.lost
        x, r, d, rz, square, norm, target = self.x, self.r, self.d, self.rz, self.square, self.norm, self.target
        broken, lost, made = False, False, self.made
        done = len(norms)
        try:
            for _ in range(min(most, self.left())):
                if not made:
                    z = r if M is None else M.apply(r)
                    new = square if M is None else dot(r, z)
                    d = add(z if before is None else before.conjugate(z), times(new / rz, d))
                    rz, made = new, True
                q = product(d)
                curvature = dot(d, q)
                if broken := is_broken(rz, curvature):
                    break
                made = False
                alpha = rz / curvature
                if before is None:
                    r = add(q, r, a=-alpha)
                else:
                    moved, r = before.step(x + form.column(alpha) * d, r - form.column(alpha) * q)
                square = dot(r, r)
                after = sqrt(square)
                if lost := is_lost(after):  # these end with the x they have
                    alpha = form.where(form.isfinite(after), alpha, 0.0)
                if some(after >= norm):
                    keep(self.at, norm, after, x)
                x = add(d, x, a=alpha) if before is None else moved
                norm = after
                norms.append(after)
                if lost or some(after <= target):
                    break
        finally:
            self.x, self.r, self.d, self.rz, self.square, self.norm, self.made = x, r, d, rz, square, norm, made
            self.products += len(norms) - done + broken
        if broken:
            self._end_breakdowns(curvature)
        elif lost:
            which = form.positions(form.no(form.isfinite(norm)))
            self.end(which, Status.NONFINITE, "the iteration left float64", steps=-1)

    def restart(self, to: Array, r: Array, g: Array) -> None:
        if self.made:
            self.d = self.d - self._conjugate()
            self.made = False
        self.r[to], self.d[to] = r, 0.0
        norm = norm_upper(self.r)
        self.square = replaced(self.square, to, self.form.dot(self.r, self.r))
        self.norm, self.rz = replaced(self.norm, to, norm), replaced(self.rz, to, 0 * norm + 1.0)

    def direction(self) -> Array:
        if self.made:
            return self.d
        z = self.r if self.M is None else self.M.apply(self.r)
        return self._conjugate() + self.form.column(self.form.dot(self.r, z) / self.rz) * self.d

    def _conjugate(self) -> Array:
        """M r, conjugate to the directions of the model's steps."""
        z = self.r if self.M is None else self.M.apply(self.r)
        return z if self.before is None else self.before.conjugate(z)

    def _end_breakdowns(self, curvature: Number) -> None:
        """End the lanes that cannot take a step, and say why; not definite is what no rounding error explains."""
        form = self.form
        sound = (self.rz > 0) & (curvature > 0) & (curvature < math.inf)
        each = zip(*map(form.list, (sound, self.rz, curvature, form.peak(self.d))), strict=True)
        ends: dict[tuple[Status, str], list[int]] = {}
        for k, (goes_on, rz, bend, size) in enumerate(each):
            if not goes_on:
                ends.setdefault(self._reason(k, rz, bend, size), []).append(k)
        self.flush()
        for (status, detail), found in ends.items():
            self.state.end([self.lanes[k] for k in found], status, detail)
        positions = [k for found in ends.values() for k in found]
        self.drop(positions)

    def _reason(self, k: int, rz: float, curvature: float, size: float) -> tuple[Status, str]:
        """Why the lane at a position cannot take a step."""
        own, M = self.form.at([k]), self.M
        A, r, d = self.A.take(own), self.r[own], self.d[own]
        if not math.isfinite(rz + curvature):
            return Status.NONFINITE, "a product with A or M is not finite"
        if M is not None and rz < -_rounding(M.take(own), r):
            return Status.NOT_SPD, "a residual with r.M r < 0 was found: M is not positive definite"
        if M is not None and rz <= 0 and self._loses_under(M.take(own), r):
            return Status.NOT_SPD, "M e = 0 for a unit vector e: M is not positive definite"
        if rz <= 0:
            return Status.STAGNATED, f"r.{'' if M is None else 'M '}r cannot be told from zero"
        if size < 1e-150:
            return Status.STAGNATED, "d.A d cannot be told from zero; scale M"
        if curvature < -_rounding(A, d):
            return Status.NOT_SPD, "d.A d < 0 for a direction d"
        return Status.STAGNATED, "d.A d cannot be told from zero"

    def _loses_under(self, M: Preconditioner, r: Array) -> bool:
        """Whether M e = 0 for the unit vector e that is nearest to a residual that is not 0."""
        largest = abs(r).max()
        if not largest > 0:
            return False
        e = 0 * r
        e.reshape(-1)[int(abs(r).argmax())] = 1.0
        return not bool(M.apply(e).any())


def _rounding(A: Preconditioner, v: Array) -> float:
    """More than rounding errors and underflow can make of v.A v, of one lane."""
    size, n = abs(v), v.shape[-1]
    underflow = 2.0**-1060 * n**2 * (1 + float(size.sum())) ** 2
    if isinstance(A, DenseOperator | SparseOperator):
        return 2 * (A.terms + n + 2) * UNIT * float((size * A.absolute(size)).sum()) + underflow
    unit = A.unit if isinstance(A, ImplicitOperator) else UNIT
    return 2 * (2 * n + 2) * unit * _reach(A, v) * float((v * v).sum()) + underflow


def _reach(A: Preconditioner, v: Array) -> float:
    """About |A| of one lane, from below, where its entries are not known: by a few steps of the power method."""
    found = 0.0
    for _ in range(4):
        w = A.apply(v)
        lengths = float(norm_of(w.reshape(-1))), float(norm_of(v.reshape(-1)))
        if not (lengths[0] > 0 and math.isfinite(lengths[0]) and lengths[1] > 0):
            break
        found, v = max(found, lengths[0] / lengths[1]), w / lengths[0]
    return found
