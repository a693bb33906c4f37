"""Steps that a model proposes, for as long as they pay; the model may fail in any way without harm to the answer.

With c ~ A^-1 r, or only its direction, from the model and conjugation against the directions before it,

    d = c - sum_j (c.A d_j / d_j.A d_j) d_j      x <- x + (r.d / d.A d) d      r <- r - (r.d / d.A d) A d

is flexible conjugate gradients: the model may be as nonlinear as it likes, since each step minimizes the error in the
A-norm along d whatever d is, and lowers its square by (r.d)^2 / d.A d. Without the sum it is iterative refinement with
an exact line search. A step costs one product with A.

Where A is not symmetric, or of least squares, the same steps minimize the residual |b - A x|: with q = A d in the place
of the left factor, they are generalized conjugate residuals (GCR),

    d = c - sum_j (A c.q_j / q_j.q_j) d_j        x <- x + (r.q / q.q) d          r <- r - (r.q / q.q) q.

A model that answers (``Policy``) ends with the first answers that do not pay. A network that proposes directions is
*watched* instead (``_Watch``), since all its steps are kept: they are conjugate, so on few unknowns even a useless one
is a step towards the end of CG. The classical method does the rest: it starts from the last iterate and keeps conjugate
to the model's directions (deflation), or from x0 as if there had been no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nlaformer.errors import OptionError
from nlaformer.solvers.arithmetic import Array
from nlaformer.solvers.certificate import norm_of
from nlaformer.solvers.conjugate_gradients import Direction
from nlaformer.solvers.models import warn_refused
from nlaformer.solvers.preconditioners import Preconditioner
from nlaformer.solvers.proposers import Proposer
from nlaformer.solvers.result import Contribution, Status
from nlaformer.solvers.state import SolveState

# What must be left of d.A d once d is conjugate to the directions before it; of less, rounding errors are a large part.
_NEW = 1e-10
_MOST_KEPT = 2**25  # entries of the directions that are kept, of all systems together


@dataclass(frozen=True)
class Policy:
    """When the proposals of a model are used.

    Attributes
    ----------
    first : the first proposal pays if it multiplies the residual by no more than this
    pays : any later one pays if it multiplies the residual by no more than this
    patience : proposals in a row that may fail to pay before the model's part ends; they are used all the same
    memory : directions that a new one is made conjugate to
    applications : the most proposals to ask for; None is half of the iterations, the rest is for the classical method
    line_search : False takes the proposal with step length 1
    watched : every proposal is used, and ``_Watch`` decides when the model's part ends
    """

    first: float = 1.0
    pays: float = 1.0
    patience: int = 0
    memory: int = 0
    applications: int | None = None
    line_search: bool = True
    watched: bool = False


POLICIES = {  # of the methods for models that answer
    "auto": Policy(first=0.1, pays=1 / 3, memory=16),
    "warm-start": Policy(applications=1, line_search=False),
    "refine": Policy(first=0.5, pays=0.5, patience=1),
    "flexible": Policy(first=0.9, pays=0.9, patience=4, memory=16),
}
METHODS = (*POLICIES, "guided")
_GUIDED = Policy(memory=64, watched=True)


def guide(state: SolveState, proposer: Proposer, method: str, M: Preconditioner, switch: bool) -> Guidance:
    """Let a model advance the lanes that go on, each until its proposals no longer pay; M makes the plain steps."""
    xp, lanes = state.form.xp, state.form.at(state.going())
    if method != "auto" and not proposer.possible:
        raise OptionError(f"the method {method} needs the model, but {proposer.unfit}")
    fitting = ("auto", "guided") if proposer.guided else tuple(POLICIES)
    if method not in fitting:
        kind = "proposes directions and has no answers" if proposer.guided else "gives answers, not directions"
        raise OptionError(f"the method {method} does not go with this model, which {kind}; use {' or '.join(fitting)}")
    policy = _GUIDED if proposer.guided else POLICIES[method]
    guidance = Guidance(state, proposer, policy, switch)
    if method == "auto" and proposer.unfit:
        warn_refused(proposer.unfit, above=5)
        proposer.refused[proposer.unfit] += len(lanes)
        return guidance
    begun = norm_of(state.g)
    for _ in range(min(policy.applications or (state.maxiter + 1) // 2, state.maxiter)):
        if not len(lanes):
            break
        plain = guidance.watch.plain[lanes]
        c, fit = xp.zeros_like(state.x[lanes]), xp.asarray(plain, copy=True)
        if bool(plain.any()):
            c[plain] = M.take(lanes[plain]).apply(state.g[lanes[plain]])
        if not bool(plain.all()):
            c[~plain], fit[~plain] = proposer.correction(lanes[~plain], state.r[lanes[~plain]], state.g[lanes[~plain]])
        lanes, c = lanes[fit], c[fit]
        if len(lanes):
            lanes = guidance.step(lanes, c)
    guidance.reduction = xp.where(guidance.accepted > 0, norm_of(state.g) / begun, 1.0)
    return guidance


class Guidance:
    """The model's part of a solve, and what it came to for each lane."""

    def __init__(self, state: SolveState, proposer: Proposer, policy: Policy, switch: bool) -> None:
        self.directions: list[Direction] = []
        self.proposer, self._state, self._policy = proposer, state, policy
        self._xp, count = state.form.xp, state.form.numbers([0] * len(state.lanes))
        self.accepted = count + 0  # (m,) proposals that were used
        # (m,) |r| where the model's part ended over |r| where it began
        self.reduction = state.form.numbers([1.0] * len(state.lanes))
        self.watch = _Watch(state, switch, proposer.in_blocks)
        self._memory = min(policy.memory, max(2, _MOST_KEPT // math.prod(state.x.shape)))
        self._poor = count + 0  # (m,) proposals in a row that did not pay

    def step(self, lanes: Array, c: Array) -> Array:
        """Use the proposals c where they are worth it; returns the lanes that go on with the model."""
        state, policy = self._state, self._policy
        x, r, direction, gain, fresh = self._along(lanes, c)
        g = state.gradient(lanes.tolist(), r)
        ratio = norm_of(g) / norm_of(state.g[lanes])
        usable = self._xp.isfinite(ratio) & self._xp.isfinite(x).all(-1) & fresh
        plain = self.watch.plain[lanes]
        if policy.watched:
            used, going = usable, usable & self.watch.goes_on(lanes, norm_of(g), gain)
        else:
            used, going = self._paying(lanes, ratio, usable)
        if bool(used.any()):
            state.keep(lanes[used].tolist(), direction.d[used])
            state.accept(lanes[used].tolist(), x[used], r[used], g[used])
            self.accepted[lanes[used & ~plain]] += 1
        if policy.memory and bool(used.any()):
            self.directions.append(direction.take(used).among(lanes[used], state.x))
            del self.directions[: -self._memory]
        refused = self.proposer.refused
        if policy.watched:
            refused["a plain step gains as much as its own"] += int((used & ~going).sum())
            refused["its direction adds nothing to those before it"] += int((~used).sum())
        else:
            refused["it does not lower the residual enough"] += int((~used).sum())
        lanes = lanes[going]
        small = norm_of(state.g[lanes]) <= state.problem.tolerance[lanes]
        if bool(small.any()):
            exact, _ = state.judge(lanes[small].tolist())
            state.replace(lanes[small].tolist(), exact.r, exact.g)
        return lanes[~small]

    def _paying(self, lanes: Array, ratio: Array, usable: Array) -> tuple[Array, Array]:
        """Where a proposal that multiplies the residual by ``ratio`` is used, and where the model goes on."""
        policy = self._policy
        helped = self.accepted[lanes] > 0
        pays = self._xp.where(helped, policy.pays, policy.first)
        self._poor[lanes] = self._xp.where(ratio <= pays, 0, self._poor[lanes] + 1)
        going = usable & (self._poor[lanes] <= policy.patience)
        # Its product with A is spent: after the first, a proposal that lowers the residual is used even as the last.
        return going | (usable & (ratio < 1) & helped), going

    def _along(self, lanes: Array, d: Array) -> tuple[Array, Array, Direction, Array, Array]:
        """Make d conjugate to the directions before it, and step along it.

        Returns x, r, the direction, by how much the step lowers the squared error, and whether any of d is left.
        """
        q, w = self._state.apply(lanes.tolist(), d), self._test
        proposed = (w(lanes, d, q) * q).sum(-1)
        for direction in self.directions:
            before = direction.take(lanes)
            beta = before.coefficient(w(lanes, d, q))
            d, q = d - beta * before.d, q - beta * before.q
        x, r, curvature = self._state.x[lanes], self._state.r[lanes], (w(lanes, d, q) * q).sum(-1)
        if self._policy.line_search:
            alpha, fresh = (r * w(lanes, d, q)).sum(-1) / curvature, curvature > _NEW * abs(proposed)
        else:
            alpha, fresh = 0 * curvature + 1, curvature == curvature
        gain = alpha * alpha * curvature
        return x + alpha[:, None] * d, r - alpha[:, None] * q, Direction(d, q, curvature), gain, fresh

    def _test(self, lanes: Array, d: Array, q: Array) -> Array:
        """What residuals and products are multiplied with in a step along d, q = A d: q where that minimizes |r|."""
        kinds = self._state.problem.minimal
        minimal = [kinds[lane] for lane in lanes.tolist()]
        if all(minimal) or not any(minimal):
            return q if any(minimal) else d
        return self._xp.where(self._state.form.numbers(minimal)[:, None], q, d)

    def undo_failures(self, others: bool) -> None:
        """Start the lanes again that the model advanced, or ``others`` too, and that did not converge."""
        settled = (Status.CONVERGED, Status.PRECISION)
        lanes = self._state.all if others else self._state.form.positions(self.accepted > 0)
        self._state.start_again([k for k in lanes if self._state.lanes[k].status not in settled])

    def contribution(self) -> Contribution:
        """What the model did, in the shape of the batch."""
        numbers, proposer = self._state.problem.numbers, self.proposer
        reasons = tuple(reason for reason, count in proposer.refused.most_common() if count)
        asked, used, left = (numbers(v.tolist()) for v in (proposer.applications, self.accepted, self.reduction))
        return Contribution(asked, used, left, reasons)


class _Watch:
    """When plain CG takes over from a network: the rule of ``guided``, which takes no product with A.

    The network needs no comparison while |r_k| <= 3^-k |r_0|. Its first two steps are granted. Then the next step is a
    plain one, d = r made conjugate. It is a step of CG, so nothing is lost with it. If it lowers the squared error at
    least half as much as the network's last step did, CG takes over: its first step after others is its weakest.
    Otherwise the network gets four more steps before the next comparison, then eight, and so on.

    A quarter is enough where |r_k| > q^k |r_0| with q = 3^-sqrt(20/n), or 1/3 up to 20 unknowns: on larger systems CG
    takes more steps, as many as the square root of n on grids, so a network that is ahead of q does well. For systems
    shown in blocks it is half throughout: CG has a longer way to go after a wrong decision.
    """

    granted, again = 2, 4

    def __init__(self, state: SolveState, switch: bool, in_blocks: bool) -> None:
        self._where = state.form.where
        self._switch, self._share = switch, 0.5 if in_blocks else 0.25
        self._course = 3.0 ** -min(1.0, math.sqrt(20 / state.problem.unknowns))
        norm = norm_of(state.g)
        self._begun, self._gain = norm, 0.0 * norm
        self._steps = state.form.numbers([0] * len(state.lanes))
        self._left = self._steps + self.granted  # steps of the network before it can be compared
        self._again = self._steps + self.again
        self._needed = 0.0 * norm  # of the network's last gain: a plain step that has it takes over
        self.plain = self._steps != 0  # whether a lane's next step is a plain one

    def goes_on(self, lanes: Array, norm: Array, gain: Array) -> Array:
        """Whether the network goes on, after a step to a residual of some norm that lowered the squared error."""
        if not self._switch:
            return lanes >= 0
        plain, before = self.plain[lanes], self._gain[lanes]
        self._steps[lanes] += 1
        beaten = plain & ~(gain < self._needed[lanes] * before)
        kept = lanes[plain & ~beaten]
        self._left[kept] = self._again[kept]
        self._again[kept] *= 2
        asked = lanes[~plain]
        self._left[asked] -= 1
        self._gain[asked] = gain[~plain]
        rate = (norm / self._begun[lanes]) ** (1 / (self._steps[lanes] + 0 * norm))
        self.plain[lanes] = ~plain & ~(rate <= 1 / 3) & (self._left[lanes] <= 0)
        self._needed[lanes] = self._where(rate <= self._course, 0 * norm + 0.5, self._share)
        return ~beaten
