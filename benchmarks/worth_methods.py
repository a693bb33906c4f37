"""The methods of ``benchmarks.worth`` behind one signature: matrices A (batch, n, n), columns B (batch, n, sides).

Each iterative method has two forms, *solve* and *fixed*; see ``benchmarks.worth``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import nlaformer as nf
from nlaformer.learn.programs import TrainedProgram
from nlaformer.problems.conjugate import inverse_by_hand, last_iterate
from nlaformer.problems.preconditioners import incomplete_cholesky
from nlaformer.solvers.learned import DiagonalPlusRank
from nlaformer.solvers.parse import read

RTOL = 1e-8
BY_HAND = "rank one by hand"
PRECONDITIONER, GUIDED = BUNDLED = ("learned-preconditioner", "guided-cg")  # trained on spd, n = 20; in every cell
DIFFUSION = ("learned-preconditioner-diffusion", "guided-diffusion")  # trained on one grid; in the cells of grids
LEARNED = (*BUNDLED, *DIFFUSION)
DIRECT = ("Cholesky", "sparse LU", "AMG")  # one form each; the last two run on the CPU, one matrix after the other


def forms(method: str) -> tuple[str, ...]:
    """The forms of a method; that of solve is first, since it finds the iterations that the other needs."""
    return ("",) if method in DIRECT else ("solve", "fixed")


@dataclass(frozen=True)
class Answer:
    """x (matrices, n, sides), the mean and the largest number of iterations, and what was counted."""

    x: Tensor
    iterations: float = 0.0
    most: int = 0
    products: float = 0.0
    calls: float = 0.0
    setup: float = 0.0  # seconds that do not grow with the right-hand sides


class Bench:
    """The methods on one device, and what they need to know of each other."""

    def __init__(self, device: str, models: Iterable[TrainedProgram]) -> None:
        self.device = torch.device(device)
        self.models = {model.config.recipe: model.to(self.device) for model in models}
        self.needed: dict[tuple[str, int, str], int] = {}  # iterations of the worst right-hand side so far
        self.warm: set[tuple[str, str]] = set()  # methods and forms that have run once
        self.flops = {name: _call_flops(model) for name, model in self.models.items()}

    def learned(self, family: str) -> list[str]:
        """The models that are measured on a family."""
        return [name for name in self.models if name in BUNDLED or family == "grid"]

    def guides(self, method: str) -> bool:
        """Whether a method calls its network in every iteration."""
        return method in self.models and self.models[method].role == "directions"

    def run(self, family: str, method: str, form: str, A: Tensor, B: Tensor) -> Answer:
        """One method on matrices A (batch, n, n) with columns B (batch, n, sides)."""
        if method in DIRECT:
            return Answer({"Cholesky": _cholesky, "sparse LU": _sparse_lu, "AMG": _amg}[method](A, B))
        if form == "solve":
            answer = self._solve(method, A, B)
            key = family, A.shape[-1], method
            self.needed[key] = max(self.needed.get(key, 0), answer.most)
            return answer
        return self._fixed(family, method, A, B)

    def _solve(self, method: str, A: Tensor, B: Tensor) -> Answer:
        options: dict[str, Any] = {"rtol": RTOL, "check": "ignore"}
        calls, setup = 0.0, 0.0
        if self.guides(method):
            result = nf.solve(A, B, model=self.models[method], method="guided", **options)
            assert result.model is not None
            calls = float(np.mean(result.model.applications)) * self._blocks(method, A)
        elif method in self.models:
            result = nf.solve(A, B, M=self.models[method], **options)
            calls, setup = self._blocks(method, A) / B.shape[-1], result.model_seconds
        else:
            M = "jacobi" if method == "Jacobi" else self._inverse(method, A, B.shape[-1])
            result = nf.cg(A, B, **options) if M is None else nf.pcg(A, B, M=M, **options)
        most = int(np.max(result.iterations))
        return Answer(result.x, _mean(result.iterations), most, _mean(result.matvecs), calls, setup)

    def _fixed(self, family: str, method: str, A: Tensor, B: Tensor) -> Answer:
        n, k = B.shape[-2:]
        most, calls, begun = self.needed[family, n, method], 0.0, self.clock()
        if self.guides(method):
            lanes = A.repeat_interleave(k, 0)
            with torch.no_grad():
                x = self.models[method](lanes, B.mT.reshape(-1, n), iterations=most)[:, -1]
            x, calls, setup = x.reshape(len(A), k, n).mT, float(most), 0.0
        else:
            M = self._inverse(method, A, k)
            self.wait()
            setup = self.clock() - begun
            x = last_iterate(A[:, None], B.mT, most, M).mT
            calls = self._blocks(method, A) / k if method in self.models else 0.0
        residual(A, B, x)
        return Answer(x, most, most, most + 2.0, calls, setup)

    def _blocks(self, method: str, A: Tensor) -> int:
        return math.ceil(A.shape[-1] / self.models[method].config.n)

    def _inverse(self, method: str, A: Tensor, sides: int) -> Callable[[Tensor], Tensor] | None:
        """A preconditioner of A (batch, n, n) as a function of residuals (batch, sides, n)."""
        if method == "CG":
            return None
        if method == "Jacobi":
            inverse = 1 / A.diagonal(dim1=-2, dim2=-1)[:, None]
            return lambda r: inverse * r
        if method == BY_HAND:
            return inverse_by_hand(A[:, None])
        if method == "IC(0)":
            L = incomplete_cholesky(A)
            return lambda r: torch.cholesky_solve(r.mT, L).mT
        lanes = torch.arange(len(A), device=A.device).repeat_interleave(sides)
        M = DiagonalPlusRank.learned(self.models[method], read(A, A[..., 0], None, RTOL, 0.0)).take(lanes)
        return lambda r: M.apply(r.flatten(0, 1)).reshape(r.shape)

    def work(self, method: str, answer: Answer) -> float | None:
        """Floating-point operations for one right-hand side; None where they are not known."""
        n, k = answer.x.shape[-2:]
        if method == "Cholesky":
            return n**3 / 3 / k + 4 * n**2
        if method in DIRECT:
            return None
        each = {"Jacobi": n, BY_HAND: 6 * n, "IC(0)": 2 * n**2}.get(method, 0)
        if method in self.models:
            each = (2 + 4 * self.models[method].program.parts[0].rank) * n
        setup = 20 * n**2 / k if method == BY_HAND else 0.0
        network = answer.calls * self.flops.get(method, 0.0)
        return answer.products * 2 * n**2 + answer.iterations * (10 * n + each) + setup + network

    def clock(self) -> float:
        """Seconds: of the processor on the CPU, where methods have one thread, of the wall on a GPU."""
        return time.process_time() if self.device.type == "cpu" else time.perf_counter()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _call_flops(model: TrainedProgram) -> float:
    """What torch counts in one call of a model's network."""
    A = 2 * torch.eye(model.config.n, dtype=torch.float64, device=model.device)[None]
    memory = model.begin(A) if model.role == "directions" else None
    with FlopCounterMode(display=False) as counter:
        if memory is not None:
            model.propose(A, memory, torch.ones_like(A[:, 0]))
        else:
            model.preconditioner(A)
    return float(counter.get_total_flops())


def _mean(values: Any) -> float:
    return float(np.mean(values))


def residual(A: Tensor, B: Tensor, X: Tensor) -> Tensor:
    """|b - A x| / |b| of every right-hand side."""
    return (B - A @ X).norm(dim=-2) / B.norm(dim=-2)


def _cholesky(A: Tensor, B: Tensor) -> Tensor:
    L, _ = torch.linalg.cholesky_ex(A)
    X = torch.cholesky_solve(B, L)
    residual(A, B, X)
    return X


def _sparse_lu(A: Tensor, B: Tensor) -> Tensor:
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import splu

    pairs = zip(A.cpu().numpy(), B.cpu().numpy(), strict=True)
    return torch.from_numpy(np.stack([splu(csc_array(a)).solve(b) for a, b in pairs])).to(A)


def _amg(A: Tensor, B: Tensor) -> Tensor:
    """CG preconditioned by PyAMG's smoothed aggregation, one right-hand side after the other."""
    import pyamg
    from scipy.sparse import csr_array

    found = []
    for a, b in zip(A.cpu().numpy(), B.cpu().numpy(), strict=True):
        hierarchy = pyamg.smoothed_aggregation_solver(csr_array(a), max_coarse=4)
        found.append(np.stack([hierarchy.solve(v, tol=RTOL / 2, accel="cg", maxiter=200) for v in b.T], -1))
    return torch.from_numpy(np.stack(found)).to(A)
