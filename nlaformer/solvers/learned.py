"""A model as a part that may fail: asked for corrections to an iterate, believed in nothing.

The model is asked for c ~ A^-1 r. A trained one knows systems of one size and one scale, so it is shown A with the
diagonal (its geometric mean) of the family it was trained on and r as long as A's Frobenius norm, which is how long
b = A x is for a standard normal x. A smaller system is filled up with a diagonal; of a larger one it sees diagonal
blocks, whose answers are put side by side (block Jacobi). A plain function sees A as the user gave it, and r as long
as b.

A model trained towards the solution is looped ten times at most, whatever it was trained for: its error hardly falls
after that, and its next answer, to a new residual, gains more. One that imitates CG needs all its iterations.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import give, memory, to_tensor
from nlaformer.errors import OptionError
from nlaformer.prompt import scale
from nlaformer.solvers.certificate import norm_of
from nlaformer.solvers.operators import Sparse
from nlaformer.solvers.parse import Problem

_ENOUGH = 10  # iterations of a model trained towards the solution
_COPIES = 4  # of the entries that a model is shown, on the way to it
_LARGEST_CALL = 4096  # systems that a trained model is shown at once, which bounds its memory


class Learned:
    """The model of one solve, with what is known of its answers."""

    def __init__(self, model: Any, problem: Problem) -> None:
        begun = time.perf_counter()
        self.refused = Counter[str]()
        self._problem = problem
        self._function, self._config = _as_function(model)
        self._prepare()
        self.seconds = time.perf_counter() - begun

    def _prepare(self) -> None:
        """Bring the matrices into the form that the model is shown."""
        problem = self._problem
        m, n = problem.b.shape
        device = problem.b.device
        self.applications = torch.zeros(m, dtype=torch.long, device=device)
        size = n if self._config is None else self._config.n
        self.possible, self.unfit = _fitness(problem, n, size)
        if not self.possible:
            return
        order = _order(problem) if n > size else torch.arange(n)
        self._blocks = _blocks(n, min(size, n), order).to(device)  # (k, s)
        self._share = 1 / torch.bincount(self._blocks.flatten(), minlength=n).double()
        self._A = problem.A.blocks(self._blocks)  # (m or 1, k, s, s)
        if self._config is None:
            self._A = scale(self._A, problem.exponent_a[: len(self._A), None, None, None])
            self._back = scale(torch.ones_like(self._A[..., :1, 0]), problem.exponent_a[: len(self._A), None, None])
            self._length = norm_of(scale(problem.b, problem.exponent_b[:, None]))
        else:
            self._A, self._back = self._in_scale(self._A, size)

    def _in_scale(self, A: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The matrices as the model knows them, of its size and with the usual diagonal, and the factor used."""
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
        """The model's c ~ A^-1 r for the residuals r of some lanes, and where it is of any use."""
        self.applications[lanes] += 1
        A, back = (v if len(v) == 1 else v[lanes] for v in (self._A, self._back))
        A = A.expand(len(lanes), -1, -1, -1)
        parts = r[:, self._blocks]  # (lanes, k, s)
        length = norm_of(parts)[..., None]
        unit = torch.where(length > 0, length, 1.0)
        wanted = self._length[lanes, None, None] if self._config is None else _frobenius(A)
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
        except Exception as error:  # whatever a model does, the solve goes on without it
            return None, "it raised " + traceback.format_exception_only(error)[-1].split("\n")[0]
        return torch.cat(parts).to(b), ""

    def _call(self, A: Tensor, b: Tensor) -> Tensor:
        # Copies, so that a model that writes into its arguments spoils nothing.
        A, b = A.clone(), b.clone()
        alone = self._problem.single and len(b) == 1 and self._config is None
        if alone:
            A, b = A[0], b[0]
        kind = "torch" if self._config is not None else self._problem.kind
        found = to_tensor("its answer", self._function(give(A, kind), give(b, kind))).detach()
        if found.dim() == b.dim() + 1:
            found = found[..., -1, :]
        if found.is_complex():
            raise TypeError("its answer is complex")
        if found.device.type == "cuda":
            torch.cuda.synchronize()  # or the time would be counted where the answer is first looked at
        return (found[None] if alone else found).double()


def iterations(config: Any) -> int:
    """How many iterations a trained model makes for each of its answers."""
    return min(config.T, _ENOUGH) if "solution" in config.supervision else config.T


def _as_function(model: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    """The model as a function (A, b) -> x or iterates, and its config if it is a trained one."""
    from pathlib import Path

    if isinstance(model, (str, Path)):
        from nlaformer.loading import load

        model = load(model)
    if hasattr(model, "iterates") and hasattr(model, "config"):
        if getattr(model, "stacked", 0):
            raise OptionError("a stack of models cannot solve; take one of its members")
        return partial(model.iterates, iterations=iterations(model.config)), model.config
    if callable(model):
        return model, None
    raise OptionError(
        f"model is a {type(model).__name__}; expected a trained model, its folder or its bundled name, or a function "
        "(A, b) -> x"
    )


def _frobenius(A: Tensor) -> Tensor:
    return A.square().sum((-2, -1)).sqrt()[..., None]


@cache
def _usual_diagonal(config: Any) -> float:
    """The geometric mean of the diagonals of the systems a model was trained on."""
    from nlaformer.learn.data import family_of

    A = family_of(config).sample(256, seed=0).A
    return float(A.diagonal(dim1=-2, dim2=-1).log().mean().exp())


def _fitness(problem: Problem, n: int, size: int) -> tuple[bool, str]:
    """Whether a model of some size can be asked at all, and why it cannot be expected to help, or nothing."""
    if not problem.explicit:
        return False, "the entries of a LinearOperator cannot be shown to it"
    entries = 8 * n * size  # bytes of the blocks, which are as large as the model; a function is shown all of A
    if isinstance(problem.A, Sparse) and _COPIES * entries > memory(problem.b.device):
        return False, f"the entries of A that it is shown would take {_COPIES * entries / 1e9:,.0f} GB of memory"
    return True, f"the systems have {n} unknowns, it was made for {size}" if n > size else ""


def _order(problem: Problem) -> Tensor:
    """The unknowns so that neighbours stand together, which makes diagonal blocks worth more."""
    if not isinstance(problem.A, Sparse):
        return torch.arange(problem.b.shape[-1])
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    return torch.from_numpy(np.array(reverse_cuthill_mckee(problem.A.A, symmetric_mode=True), dtype=np.int64))


def _blocks(n: int, size: int, order: Tensor) -> Tensor:
    """The unknowns in blocks of one size; the last overlaps the one before it: (k, size)."""
    starts = [*range(0, n - size, size), n - size]
    return torch.stack([order[start : start + size] for start in starts])
