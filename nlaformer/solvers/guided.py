"""Steps that a model proposes, for as long as they pay; the model may fail in any way without harm to the answer.

With c ~ A^-1 r from the model and conjugation against the directions before it,

    d = c - sum_j (c.A d_j / d_j.A d_j) d_j      x <- x + (r.d / d.A d) d      r <- r - (r.d / d.A d) A d

is flexible conjugate gradients: the model may be as nonlinear as it likes, since each step minimizes the error in the
A-norm along d whatever d is. Without the sum it is iterative refinement with an exact line search. A step costs one
product with A. A proposal that does not pay ends the model's part of that system. The classical method does the rest:
it starts from the last iterate that paid and keeps conjugate to the model's directions (deflation), or from x0 as if
there had been no model.

A trained model knows systems of one size and one scale. ``_Proposer`` shows it A with the diagonal (its geometric mean)
of the family it was trained on, and r as long as A's Frobenius norm, which is how long b = A x is for a standard normal
x. A smaller system is filled up with a diagonal; of a larger one the model sees diagonal blocks, whose answers are put
side by side (block Jacobi). A plain function sees A as the user gave it, and r as long as b.
"""

from __future__ import annotations

import os
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import give, memory, to_tensor
from nlaformer.errors import OptionError
from nlaformer.loading import load
from nlaformer.prompt import scale
from nlaformer.solvers.certificate import norm_of
from nlaformer.solvers.conjugate import Direction
from nlaformer.solvers.operators import ImplicitOperator, SparseOperator
from nlaformer.solvers.parse import Problem
from nlaformer.solvers.result import Contribution, Status
from nlaformer.solvers.state import SolveState

# What must be left of d.A d once d is conjugate to the directions before it; of less, rounding errors are a large part.
_NEW = 1e-10
_ENOUGH = 10  # iterations of a model trained towards the solution
_COPIES = 4  # of the entries of A in memory while a model is called
_LARGEST_CALL = 4096  # systems that a trained model is shown at once, which bounds its memory


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
    """

    first: float
    pays: float
    patience: int = 0
    memory: int = 0
    applications: int | None = None
    line_search: bool = True


POLICIES = {
    "auto": Policy(first=0.1, pays=1 / 3, memory=16),
    "warm-start": Policy(first=1.0, pays=1.0, applications=1, line_search=False),
    "refine": Policy(first=0.5, pays=0.5, patience=1),
    "flexible": Policy(first=0.9, pays=0.9, patience=4, memory=16),
}


def guide(state: SolveState, model: Any, method: str) -> Guidance:
    """Let a model advance the lanes that go on, each until its proposals no longer pay."""
    proposer, policy, lanes = _Proposer(model, state.problem), POLICIES[method], state.going()
    guidance = Guidance(state, proposer, policy)
    if method != "auto" and not proposer.possible:
        raise OptionError(f"the method {method} needs the model, but {proposer.unfit}")
    if method == "auto" and proposer.unfit:
        proposer.refused[proposer.unfit] += len(lanes)
        return guidance
    begun = norm_of(state.r)
    for _ in range(min(policy.applications or (state.maxiter + 1) // 2, state.maxiter)):
        if not len(lanes):
            break
        c, fit = proposer.correction(lanes, state.r[lanes])
        lanes, c = lanes[fit], c[fit]
        if len(lanes):
            lanes = guidance.step(lanes, c)
    guidance.reduction = torch.where(guidance.accepted > 0, norm_of(state.r) / begun, 1.0)
    return guidance


class Guidance:
    """The model's part of a solve, and what it came to for each lane."""

    def __init__(self, state: SolveState, proposer: _Proposer, policy: Policy) -> None:
        self.directions: list[Direction] = []
        self.proposer, self._state, self._policy = proposer, state, policy
        self.accepted = torch.zeros_like(state.iterations)  # (m,) proposals that were used
        self.reduction = torch.ones_like(state.norm)  # (m,) |r| where the model's part ended over |r| where it began
        self._poor = torch.zeros_like(state.iterations)  # (m,) proposals in a row that did not pay

    def step(self, lanes: Tensor, c: Tensor) -> Tensor:
        """Use the proposals c where they are worth it; returns the lanes that go on with the model."""
        state, policy = self._state, self._policy
        x, r, direction, fresh = self._along(lanes, c)
        ratio = norm_of(r) / norm_of(state.r[lanes])
        usable = torch.isfinite(ratio) & torch.isfinite(x).all(-1) & fresh
        helped = self.accepted[lanes] > 0
        pays = torch.where(helped, policy.pays, policy.first)
        self._poor[lanes] = torch.where(ratio <= pays, 0, self._poor[lanes] + 1)
        going = usable & (self._poor[lanes] <= policy.patience)
        # Its product with A is spent: after the first, a proposal that lowers the residual is used even as the last.
        used = going | (usable & (ratio < 1) & helped)
        if bool(used.any()):
            state.accept(lanes[used], x[used], r[used])
            self.accepted[lanes[used]] += 1
        if policy.memory:
            self.directions.append(direction.take(used).among(lanes[used], len(state.x)))
            del self.directions[: -policy.memory]
        self.proposer.refused["it does not lower the residual enough"] += int((~used).sum())
        lanes = lanes[going]
        small = norm_of(state.r[lanes]) <= state.problem.tolerance[lanes]
        if bool(small.any()):
            state.r[lanes[small]] = state.judge(lanes[small])[0].r
        return lanes[~small]

    def _along(self, lanes: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Direction, Tensor]:
        """Make d conjugate to the directions before it: x and r after a step along it, and whether any of d is left."""
        q = self._state.apply(lanes, d)
        proposed = (d * q).sum(-1)
        for direction in self.directions:
            before = direction.take(lanes)
            beta = before.coefficient(d)
            d, q = d - beta * before.d, q - beta * before.q
        x, r, curvature = self._state.x[lanes], self._state.r[lanes], (d * q).sum(-1)
        if self._policy.line_search:
            alpha, fresh = (r * d).sum(-1) / curvature, curvature > _NEW * proposed.abs()
        else:
            alpha, fresh = torch.ones_like(curvature), torch.ones_like(curvature, dtype=torch.bool)
        return x + alpha[:, None] * d, r - alpha[:, None] * q, Direction(d, q, curvature), fresh

    def undo_failures(self) -> None:
        """Start the lanes again that the model advanced and that did not converge."""
        settled = (Status.CONVERGED, Status.PRECISION)
        lanes = [k for k in self.accepted.nonzero()[:, 0].tolist() if self._state.status[k] not in settled]
        self._state.start_again(torch.tensor(lanes, dtype=torch.long, device=self._state.x.device))

    def contribution(self) -> Contribution:
        """What the model did, in the shape of the batch."""
        numbers, proposer = self._state.problem.numbers, self.proposer
        reasons = tuple(reason for reason, count in proposer.refused.most_common() if count)
        return Contribution(numbers(proposer.applications), numbers(self.accepted), numbers(self.reduction), reasons)


class _Proposer:
    """The model of one solve: asked for corrections c ~ A^-1 r, with a count of its answers and refusals.

    ``possible`` says whether it can be asked at all; ``unfit`` why it cannot be expected to help, or nothing.
    """

    def __init__(self, model: Any, problem: Problem) -> None:
        begun = time.perf_counter()
        self.refused = Counter[str]()
        self.applications = torch.zeros(len(problem.b), dtype=torch.long, device=problem.b.device)
        self._problem = problem
        self._function, self._config = _as_function(model)
        n = problem.b.shape[-1]
        size = n if self._config is None else self._config.n
        self.possible, self.unfit = _fitness(problem, n, size)
        if self.possible:
            self._prepare(n, size)
        self.seconds = time.perf_counter() - begun

    def _prepare(self, n: int, size: int) -> None:
        """Bring the matrices into the form that is shown to the model."""
        problem = self._problem
        self._blocks = _blocks(problem, n, min(size, n)).to(problem.b.device)  # (k, s)
        self._share = 1 / torch.bincount(self._blocks.flatten(), minlength=n).double()
        self._A = problem.A.blocks(self._blocks)  # (m or 1, k, s, s)
        if self._config is None:
            self._A = scale(self._A, problem.exponent_a[: len(self._A), None, None, None])
            self._back = scale(torch.ones_like(self._A[..., :1, 0]), problem.exponent_a[: len(self._A), None, None])
            self._length = norm_of(scale(problem.b, problem.exponent_b[:, None]))
        else:
            self._A, self._back = self._in_scale(self._A, size)

    def _in_scale(self, A: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The matrices in the model's size and with its usual diagonal, and the factor used."""
        diagonal = A.diagonal(dim1=-2, dim2=-1)
        mean = diagonal.clamp(min=torch.finfo(torch.float64).tiny).log().mean(-1)
        usual = _usual_diagonal(self._config)
        full = torch.zeros(*A.shape[:-2], size, size, dtype=A.dtype, device=A.device)
        full.diagonal(dim1=-2, dim2=-1)[:] = usual
        s = A.shape[-1]
        factor = (usual / mean.exp())[..., None]
        full[..., :s, :s] = A * factor[..., None]
        return full, factor

    def correction(self, lanes: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """The model's c ~ A^-1 r for the residuals r of some lanes, and where it is usable."""
        self.applications[lanes] += 1
        A, back = (v if len(v) == 1 else v[lanes] for v in (self._A, self._back))
        A = A.expand(len(lanes), -1, -1, -1)
        parts = r[:, self._blocks]  # (lanes, k, s)
        length = norm_of(parts)[..., None]
        unit = torch.where(length > 0, length, 1.0)
        wanted = self._length[lanes, None, None] if self._config is None else A.square().sum((-2, -1)).sqrt()[..., None]
        right = torch.zeros(*parts.shape[:-1], A.shape[-1], dtype=r.dtype, device=r.device)
        right[..., : parts.shape[-1]] = parts / unit * wanted
        begun = time.perf_counter()
        answer, reason = self._ask(A.flatten(0, 1), right.flatten(0, 1))
        self.seconds += time.perf_counter() - begun
        if answer is None:
            self.refused[reason] += len(lanes)
            return torch.zeros_like(r), torch.zeros(len(lanes), dtype=torch.bool, device=r.device)
        c = answer.reshape(right.shape)[..., : parts.shape[-1]] * (unit / wanted * back)
        whole = torch.zeros_like(r)
        whole.index_add_(1, self._blocks.flatten(), c.flatten(1))
        whole = whole * self._share
        fit = torch.isfinite(whole).all(-1) & (whole.abs().amax(-1) < 1e100)
        self.refused["its answer is not finite, or far too large"] += int((~fit).sum())
        zero = (whole == 0).all(-1)
        self.refused["its answer is zero"] += int(zero.sum())
        fit &= ~zero
        return torch.where(fit[:, None], whole, 0.0), fit

    def _ask(self, A: Tensor, b: Tensor) -> tuple[Tensor | None, str]:
        """The last iterate for systems A (k, s, s), b (k, s), or the reason why there is none."""
        parts = []
        try:
            for chunk in zip(A.split(_LARGEST_CALL), b.split(_LARGEST_CALL), strict=True):
                found, wanted = self._call(*chunk), chunk[1].shape
                if found.shape != wanted:
                    return None, f"it returned shape {tuple(found.shape)} for b of shape {tuple(wanted)}"
                parts.append(found)
        except Exception as error:  # whatever a model raises, the solve goes on without it
            return None, "it raised " + traceback.format_exception_only(error)[-1].split("\n")[0]
        return torch.cat(parts).to(b), ""

    def _call(self, A: Tensor, b: Tensor) -> Tensor:
        # Copies, since a model may write into its arguments.
        A, b = A.clone(), b.clone()
        single = self._problem.single and len(b) == 1 and self._config is None
        if single:
            A, b = A[0], b[0]
        kind = "torch" if self._config is not None else self._problem.kind
        found = to_tensor("its answer", self._function(give(A, kind), give(b, kind))).detach()
        if found.dim() == b.dim() + 1:
            found = found[..., -1, :]
        if found.is_complex():
            raise TypeError("its answer is complex")
        if found.device.type == "cuda":
            torch.cuda.synchronize()  # or the time would be counted where the answer is first used
        return (found[None] if single else found).double()


def iterations_per_call(config: Any) -> int:
    """How many iterations a trained model makes for each of its answers.

    The error of a model trained towards the solution hardly falls after ten, and its next answer, to a new residual,
    gains more. One that imitates CG needs all its iterations.
    """
    return min(config.T, _ENOUGH) if "solution" in config.supervision else config.T


def _as_function(model: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    """The model as a function (A, b) -> x or iterates, and its config if it is a trained one."""
    if isinstance(model, str | os.PathLike):
        model = load(model)
    if hasattr(model, "iterates") and hasattr(model, "config"):
        if getattr(model, "stacked", 0):
            raise OptionError("a stack of models cannot solve; take one of its members")
        # Scaled here, by a rule of this module.
        return partial(model.iterates, iterations=iterations_per_call(model.config), normalize=False), model.config
    if callable(model):
        return model, None
    raise OptionError(
        f"model is a {type(model).__name__}; expected a trained model, its folder or its bundled name, or a function "
        "(A, b) -> x"
    )


@cache
def _usual_diagonal(config: Any) -> float:
    """The geometric mean of the diagonals of the systems a model was trained on."""
    A = config.make_family().sample(256, seed=0).A
    return float(A.diagonal(dim1=-2, dim2=-1).log().mean().exp())


def _fitness(problem: Problem, n: int, size: int) -> tuple[bool, str]:
    """Whether a model of some size can be asked at all, and why it cannot be expected to help."""
    if isinstance(problem.A, ImplicitOperator):
        return False, "the entries of a LinearOperator cannot be shown to it"
    entries = 8 * n * size  # bytes of the blocks, which are as large as the model; a function is shown all of A
    if isinstance(problem.A, SparseOperator) and _COPIES * entries > memory(problem.b.device):
        return False, f"the entries of A that it is shown would take {_COPIES * entries / 1e9:,.0f} GB of memory"
    return True, f"the systems have {n} unknowns, it was made for {size}" if n > size else ""


def _blocks(problem: Problem, n: int, size: int) -> Tensor:
    """The unknowns in blocks of one size; the last overlaps the one before it: (k, size)."""
    order = torch.arange(n)
    if n > size and isinstance(problem.A, SparseOperator):  # neighbours together: the blocks then hold more of A
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        order = torch.from_numpy(np.array(reverse_cuthill_mckee(problem.A.A, symmetric_mode=True), dtype=np.int64))
    starts = [*range(0, n - size, size), n - size]
    return torch.stack([order[start : start + size] for start in starts])
