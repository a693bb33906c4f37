"""What every iteration shares: its lanes, their claims and ends, and how what it found gets into the state."""

from __future__ import annotations

from nlaformer.solvers.arithmetic import Array, Flag, Number
from nlaformer.solvers.preconditioners import Identity, Preconditioner
from nlaformer.solvers.progress import Progress
from nlaformer.solvers.result import Status
from nlaformer.solvers.state import SolveState


class Iteration:
    """A method at work on the lanes that go on, and on no others: what a lane needs is dropped when it ends.

    x, r and what a method adds are its own until ``flush`` hands them to the state.
    """

    def __init__(self, state: SolveState, lanes: list[int], M: Preconditioner) -> None:
        self.state, self.lanes, self.form = state, lanes, state.form
        self.at = at = self.form.at(lanes)
        self.A, self.M = state.problem.A.take(at), None if isinstance(M, Identity) else M.take(at)
        self.x, self.r = state.x[at], state.r[at]  # (s, n), (s, rows)
        self.rows: list[str] = []  # what else has a row, or a number, for every lane
        self.norm: Number = 0.0  # (s,) of the running residual
        self.norms: list[Number] = []  # since the last flush
        self.products = 0  # with A and A^T since then
        for lane in lanes:
            state.lanes[lane].begin()
        self._aim()

    def iterate(self, most: int) -> None:
        """Take steps until a lane claims or ends, or so many are taken."""
        raise NotImplementedError

    def restart(self, to: Array, r: Array, g: Array) -> None:
        """Go on from the true residuals of lanes at some positions."""
        raise NotImplementedError

    def take_claims(self) -> Flag:
        """Which lanes ask for their true residual."""
        return self.norm <= self.target

    def shown(self) -> Array:
        """The running g."""
        return self.r

    def direction(self) -> Array:
        """That of the next step, which the trajectory keeps."""
        return self.r

    def run(self, progress: Progress) -> None:
        """Take every lane to its end."""
        try:
            while self.lanes:
                if not (self._verify_claims() or self._end_spent()):
                    self.iterate(1 if self.state.watched else progress.steps(self))
                    self._show()
        finally:
            self.flush()

    def left(self) -> int:
        """Iterations until the first lane has no more."""
        lanes = (self.state.lanes[lane] for lane in self.lanes)
        return min(lane.limit - lane.iterations for lane in lanes) - len(self.norms)

    def flush(self) -> None:
        """Hand the iterates and counts to the state."""
        state = self.state
        if not self.lanes:
            return
        state.x[self.at] = self.x
        state.count(self.lanes, self.norms, self.products)
        self.norms, self.products = [], 0

    def end(self, which: list[int], status: Status, detail: str = "", steps: int = 0) -> None:
        """End lanes at some positions with the x they have; ``steps`` corrects the number of their iterations."""
        if not which:
            return
        self.flush()
        for lane in (self.state.lanes[self.lanes[k]] for k in which):
            lane.end(status, detail)
            lane.iterations += steps
        self.drop(which)

    def drop(self, which: list[int]) -> None:
        """Go on without the lanes at some positions; others change places with them, so that A is hardly copied."""
        if not which:
            return
        left, ended = len(self.lanes) - len(which), set(which)
        order = list(range(left))
        movers = (k for k in range(left, len(self.lanes)) if k not in ended)
        for k in which:
            if k < left:
                order[k] = next(movers)
        self.lanes = [self.lanes[k] for k in order]
        if self.lanes:
            self.at = self.form.at(self.lanes)
            self.gather(self.form.at(order))

    def gather(self, own: Array) -> None:
        """Keep what belongs to the lanes at some positions."""
        self.A, self.M = self.A.keep(own), self.M and self.M.take(own)
        for name in ("x", "r", "norm", "target", *self.rows):
            setattr(self, name, getattr(self, name)[own])

    def _aim(self) -> None:
        """Read at which residuals the lanes claim next."""
        self.target = self.form.numbers([self.state.lanes[lane].target for lane in self.lanes])

    def _verify_claims(self) -> bool:
        """Check the lanes that claim to have converged by their true residual; whether there were any."""
        claims = self.form.positions(self.take_claims())
        if not claims:
            return False
        self.flush()
        lanes, own = [self.lanes[k] for k in claims], self.form.at(claims)
        exact, again = self.state.claim(lanes, self.norm if own is ... else self.norm[own])
        if again:
            of = self.form.at(again)
            self.restart(self.form.at([claims[k] for k in again]), exact.r[of], exact.g[of])
        self._aim()
        self.drop([k for k, lane in zip(claims, lanes, strict=True) if self.state.lanes[lane].status is not None])
        return True

    def _end_spent(self) -> bool:
        """End the lanes that are out of iterations; whether there were any."""
        if self.left() > 0:
            return False
        self.flush()
        lanes = [self.state.lanes[lane] for lane in self.lanes]
        self.end([k for k, lane in enumerate(lanes) if lane.iterations >= lane.limit], Status.MAXITER)
        return True

    def _show(self) -> None:
        """Hand this iteration to the callback, or to the trajectory."""
        if self.state.watched and self.norms:
            self.flush()
            self.state.show(self.lanes, self.x, self.r, self.shown())
            if self.state.keeps:
                self.state.keep(self.lanes, self.direction())


def replaced(numbers: Number, to: Array, by: Number) -> Number:
    """The numbers of all lanes with those of some replaced; the history keeps the old ones."""
    if to is ...:
        return by
    found = numbers | False if str(numbers.dtype).endswith("bool") else numbers + 0
    found[to] = by[to]
    return found
