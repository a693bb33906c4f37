"""nf.evaluate: the errors of anything that gives iterates, beside classical methods on the same systems.

What an error is and which methods are the rivals is the family's own. Systems given as arrays are judged by the squared
relative error ||x_t - x||^2 / ||x||^2, beside the classical methods for such matrices (``problems/classical.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nlaformer.arrays import all_finite, to_tensor, whole
from nlaformer.errors import DomainError, OptionError, ShapeError, shown
from nlaformer.learn.compare import Comparison, measured
from nlaformer.learn.evaluate import SEED
from nlaformer.learn.model import Solver
from nlaformer.microscope.subject import Subject, subject
from nlaformer.problems import Family, Rival, Systems
from nlaformer.problems.classical import classical


@torch.no_grad()
def evaluate(
    model: object,
    systems: Family | Sequence[Any] | None = None,
    *,
    iterations: int | None = None,
    count: int = 512,
    seed: int = SEED,
) -> Comparison:
    """The error of every iterate of a model beside those of classical methods.

    Parameters
    ----------
    model : a trained model, a compiled algorithm, an ``nf.Program``, or a function or torch module of A (count, n, n)
        and b (count, n) that returns iterates (count, T + 1, n)
    systems : a family, of which ``count`` systems are drawn; or arrays (A, b) or (A, b, x), with A (..., n, n) and b, x
        (..., n), where x is computed by a direct solver if it is not given. Default: the family of the training
    iterations : iterates beyond x_0; by default as many as in training, n for an algorithm
    count, seed : of the systems that are drawn

    Returns
    -------
    Comparison : ``mean``, ``median`` and ``largest`` errors by method, the model's first; ``iterations_to()``,
        ``plot()``

    Examples
    --------
    >>> import nlaformer as nf
    >>> found = nf.evaluate(nf.algorithm("cg", n=4, verify=False), nf.problems.SPD(n=4), count=8)
    >>> list(found.mean)[:2], found.iterations_to()["ConjugateGradient"][5]
    (['ConjugateGradient', 'CG'], 4)
    """
    family = systems if isinstance(systems, Family) else None if systems is None else _given(systems)
    of = subject(model, family, None if iterations is None else whole("iterations", iterations, 1))
    given = of.family.all if isinstance(of.family, _Given) else None
    drawn = of.family.sample(whole("count", count, 1), seed) if given is None else given
    name = "learned" if of.model is not None else of.name
    if name in of.family.rivals():
        name = "model"
    label = repr(of.family) if given is None else "given systems"
    trained = of.T if of.model is None else of.model.config.T
    return measured(label, drawn, {name: _iterates(of, drawn)}, of.family, trained)


def _iterates(of: Subject, systems: Systems) -> Tensor:
    """The iterates as a user gets them: a trained solver scales the systems."""
    if isinstance(of.model, Solver):
        return of.model.iterates(systems.A, systems.b, of.T).double().cpu()
    return of.iterates(systems.A, systems.b)


@dataclass(frozen=True)
class _Given(Family):
    """Systems that were given; drawing takes the first of them."""

    n: int
    all: Systems = field(repr=False)

    def sample(self, count: int, seed: int, *args: Any, **options: Any) -> Systems:
        return Systems(*(array[:count] for array in self.all))

    def rivals(self) -> Mapping[str, Rival]:
        return classical(self.all.A)


def _given(systems: Any) -> _Given:
    """Arrays (A, b) or (A, b, x) as a family."""
    if isinstance(systems, str | bytes) or not isinstance(systems, Sequence) or len(systems) not in (2, 3):
        raise OptionError(
            f"systems is {shown(systems)}; expected a family, such as nf.problems.SPD(n=20), or arrays (A, b) or "
            "(A, b, x)"
        )
    A, b, *x = (to_tensor(name, value).double().cpu() for name, value in zip("Abx", systems, strict=False))
    n = A.shape[-1] if A.dim() >= 2 else 0
    if not n or A.shape[-2] != n or any(v.dim() < 1 or v.shape[-1] != n for v in (b, *x)):
        shapes = ", ".join(str(tuple(v.shape)) for v in (A, b, *x))
        raise ShapeError(f"the arrays have shapes {shapes}; expected A (..., n, n), b (..., n) and perhaps x (..., n)")
    if not all(map(all_finite, (A, b, *x))):
        raise DomainError("the systems hold NaN or infinity; every entry must be finite")
    try:
        batch = torch.broadcast_shapes(A.shape[:-2], *(v.shape[:-1] for v in (b, *x)))
    except RuntimeError:
        shapes = f"{tuple(A.shape)} and {tuple(b.shape)}"
        raise ShapeError(f"the leading dimensions of A and b, {shapes}, do not broadcast") from None
    A = A.expand(*batch, n, n).reshape(-1, n, n)
    b, *x = (v.expand(*batch, n).reshape(-1, n) for v in (b, *x))
    answers = x[0] if x else _solved(A, b)
    if not bool(answers.any(-1).all()):
        raise DomainError("the answer of a system is 0, so it has no relative error; omit that system")
    return _Given(n, Systems(A, b, answers))


def _solved(A: Tensor, b: Tensor) -> Tensor:
    try:
        return torch.linalg.solve(A, b)
    except torch.linalg.LinAlgError as error:
        raise DomainError(f"a matrix is singular, so the answer is not known; pass (A, b, x). {error}") from error
