"""The systems that a model was trained on, by a few numbers: the scale to show it a system at, and what is new to it.

A trained model computes with the entries of A and b as they are, so it knows the magnitudes of its training and no
others. A system of another magnitude is shown to it as A' = 2^-e A and b' = 2^-(e+f) b, which has the solution
x' = 2^-f x. Two measures give e and f:

- the size of A, |A - diag A|_F. In the paper's family it spans half a bit, |A|_F four. Where the diagonal is larger
  than in all the training, the geometric mean of the diagonal takes its place.
- the length of x, by three steps of conjugate gradients with Jacobi's preconditioner, which find it within a bit.

A measure within its range in training changes nothing: there the model is what was trained, to the last bit. Outside,
the measure is brought back by the power of two that makes it ordinary, which is exact; where no power of two does, to
the median. So a multiple of a system of the family is solved like the system itself, unless it stays within the range:
then it cannot be told from another system of the family. In the paper's, these are multiples of A by 0.7 to 1.2.

Three more numbers do not depend on the scale: the spread of the logarithms of the diagonal, and its size and that of
the other entries relative to |A|_F. Where one lies outside all that the training had, the system is unlike those of
the training.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from nlaformer.errors import NLAFormerError, UnfamiliarWarning
from nlaformer.learn.config import Config
from nlaformer.problems.conjugate import last_iterate
from nlaformer.prompt import exponent, scale

_COUNT = 8192  # systems that the ranges are measured on
_LARGEST = 2**24  # entries of their matrices
_SEED = 0
_TAIL = 1e-3  # of the training systems, left out at each end of what is ordinary
# What other draws of the family may go beyond the measured ranges of size and of length, as shares of their width.
_MARGINS = 1 / 2, 1 / 8
_ROUNDING = 1e-9  # in log2: a measure that is the same for all systems still has rounding errors
_FEW = 0.01  # of a batch may be unlike the training before a warning: a large batch holds extremes


@dataclass(frozen=True)
class Range:
    """The values of one measure in training: all lie in [least, most], with a margin, nearly all in [low, high]."""

    least: float
    low: float
    middle: float
    high: float
    most: float

    @classmethod
    def of(cls, values: Tensor, margin: float = 0.0) -> Range:
        low, middle, high = values.quantile(torch.tensor([_TAIL, 0.5, 1 - _TAIL], dtype=values.dtype)).tolist()
        least, most = float(values.min()), float(values.max())
        beyond = margin * (most - least) + _ROUNDING
        return cls(least - beyond, low - _ROUNDING, middle, high + _ROUNDING, most + beyond)

    def shift(self, values: Tensor) -> Tensor:
        """What to subtract from log2 of a measure: 0 within the range, and where the measure is not finite."""
        within = (self.least <= values) & (values <= self.most)
        steps = (values - self.middle).round()
        ordinary = (self.low <= values - steps) & (values - steps <= self.high)
        shift = torch.where(ordinary, steps, values - self.middle)
        return torch.where(within | ~torch.isfinite(values), 0.0, shift)


@dataclass(frozen=True)
class Familiar:
    """The ranges of a training family."""

    floor: float  # log2 of the least |A - diag A|_F over the geometric mean of |a_ii|
    size: Range  # log2 of the size of A
    length: Range  # log2 of the length of x, estimated
    shape: tuple[Range, Range, Range]  # of what _shape gives

    @classmethod
    def of(cls, A: Tensor, b: Tensor) -> Familiar:
        beside, diagonal = _sizes(A)
        floor = float((beside - diagonal).min())
        floor = floor if math.isfinite(floor) else 0.0
        size = torch.maximum(beside, diagonal + floor)
        near, relative, share = map(Range.of, _shape(A))
        of_size, of_length = _MARGINS
        return cls(floor, Range.of(size, of_size), Range.of(_length(A, b), of_length), (near, relative, share))

    def scaling(self, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The exponents e and f of every system."""
        beside, diagonal = _sizes(A)
        e = self.size.shift(torch.maximum(beside, diagonal + self.floor))
        return e, self.length.shift(_length(times_power(A, -e[..., None, None]), b) - e)

    def unlike(self, A: Tensor) -> Tensor:
        """Whether a matrix lies outside what the training had, at any scale."""
        measured = zip(self.shape, _shape(A), strict=True)
        return ~torch.stack([(known.least <= value) & (value <= known.most) for known, value in measured]).all(0)


@cache
def familiar(config: Config) -> Familiar | None:
    """The ranges of the family of a config, measured once with a fixed seed; None if the family is not here."""
    try:
        A, b, _ = config.make_family().sample(min(_COUNT, max(_LARGEST // config.n**2, 16)), seed=_SEED)
    except NLAFormerError:
        return None
    return Familiar.of(A, b)


def warn_if_unfamiliar(unlike: Tensor, stacklevel: int) -> None:
    """Say that systems are unlike those of the training, if more than a few of a batch are."""
    count, systems = int(unlike.sum()), unlike.numel()
    if count <= _FEW * systems:
        return
    which = "the system is" if systems == 1 else f"{count:,} of {systems:,} systems are"
    warnings.warn(
        f"{which} unlike those the model was trained on, and nothing is known about the errors of its iterates; "
        "compare b - A x with b, or use nf.solve(A, b, model=...), which proves the residual of its answer",
        UnfamiliarWarning,
        stacklevel=stacklevel + 1,
    )


def times_power(X: Tensor, e: Tensor) -> Tensor:
    """X times 2^e for any real e: exact where e is whole."""
    whole = e.round()
    return scale(X * torch.exp2(e - whole), whole.int())


def _log_norm(v: Tensor) -> Tensor:
    """log2 |v| over the last axis, without overflow; -inf for zero."""
    e = exponent(v.abs().amax(-1))
    return e + scale(v, -e[..., None]).norm(dim=-1).log2()


def _sizes(A: Tensor) -> tuple[Tensor, Tensor]:
    """log2 of |A - diag A|_F, and of the geometric mean of |a_ii|."""
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    return _log_norm((A - torch.diag_embed(diagonal)).flatten(-2)), diagonal.abs().log2().mean(-1)


def _length(A: Tensor, b: Tensor) -> Tensor:
    """log2 of the length of x after three steps of conjugate gradients with Jacobi's preconditioner, from x = 0.

    Where these break down, as for a diagonal with a zero, it is log2 of |b| / |A|_F. A must be of ordinary size.
    """
    e = exponent(b.abs().amax(-1))
    b = scale(b, -e[..., None])
    x = last_iterate(A, b, 3, "jacobi")
    finite = torch.isfinite(x).all(-1)
    found = _log_norm(torch.where(finite[..., None], x, 0.0))
    return e + torch.where(finite, found, _log_norm(b) - _log_norm(A.flatten(-2)))


def _shape(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The spread of log a_ii, log2 of its geometric mean over |A|_F, and |A - diag A|_F / |A|_F.

    The first two are infinite unless the diagonal is positive.
    """
    A = scale(A, -exponent(A.abs().amax((-2, -1)))[..., None, None])
    diagonal, norm = A.diagonal(dim1=-2, dim2=-1), A.square().sum((-2, -1)).sqrt()
    logs, positive = diagonal.clamp(min=torch.finfo(A.dtype).tiny).log(), (diagonal > 0).all(-1)
    near, relative = logs.std(-1, correction=0), logs.mean(-1) / math.log(2) - norm.log2()
    beside = (A - torch.diag_embed(diagonal)).square().sum((-2, -1)).sqrt()
    return torch.where(positive, near, math.inf), torch.where(positive, relative, math.inf), beside / norm
