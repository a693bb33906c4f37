"""The systems that a model was trained on, by a few numbers: the scale to show it a system at, and what is new to it.

A trained model computes with the entries of A and b as they are, so it knows the magnitudes of its training and no
others. Outside their range a system is scaled by exact powers of two, A' = 2^-e A and b' = 2^-(e+f) b, which has the
solution x' = 2^-f x. A is outside if |A|_F or the geometric mean of its diagonal is, and then e brings |A|_F nearest to
the middle of its range, in ratio; f does the same for |b| / |A|_F. Inside, e and f are 0 and nothing changes. The
ranges leave out a thousandth of the training systems at each end, where the model has seen too little to be accurate.

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
from nlaformer.prompt import exponent, scale

_COUNT = 4096  # systems that the ranges are measured on
_LARGEST = 2**24  # entries of their matrices
_SEED = 0
_TAIL = 1e-3  # of the training systems, left out at each end of the ranges of magnitudes
_FEW = 0.01  # of a batch may be unlike the training before a warning: a large batch holds extremes


@dataclass(frozen=True)
class Range:
    """The values of one measure in training: nearly all lie in [low, high], all in [least, most]."""

    low: float
    middle: float
    high: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Tensor) -> Range:
        low, middle, high = values.quantile(torch.tensor([_TAIL, 0.5, 1 - _TAIL], dtype=values.dtype)).tolist()
        return cls(low, middle, high, float(values.min()), float(values.max()))

    def outside(self, values: Tensor) -> Tensor:
        """Whether values lie outside [low, high]; those that are not finite do not count."""
        return torch.isfinite(values) & ~((self.low <= values) & (values <= self.high))

    def steps(self, values: Tensor, where: Tensor) -> Tensor:
        """Whole steps from the middle to the values, 0 elsewhere."""
        return torch.where(where & torch.isfinite(values), (values - self.middle).round(), 0.0).int()


@dataclass(frozen=True)
class Familiar:
    """The ranges of a training family."""

    size: Range  # log2 |A|_F
    diagonal: Range  # log2 of the geometric mean of a_ii
    length: Range  # log2 |b| / |A|_F
    shape: tuple[Range, Range, Range]  # of what _shape gives

    @classmethod
    def of(cls, A: Tensor, b: Tensor) -> Familiar:
        size, shape = _log_norm(A.flatten(-2)), _shape(A)
        near, relative, beside = map(Range.of, shape)
        return cls(Range.of(size), Range.of(size + shape[1]), Range.of(_log_norm(b) - size), (near, relative, beside))

    def scaling(self, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The exponents e and f of every system."""
        size = _log_norm(A.flatten(-2))
        length = _log_norm(b) - size
        outside = self.size.outside(size) | self.diagonal.outside(size + _shape(A)[1])
        return self.size.steps(size, outside), self.length.steps(length, self.length.outside(length))

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


def _log_norm(v: Tensor) -> Tensor:
    """log2 |v| over the last axis, without overflow; -inf for zero."""
    e = exponent(v.abs().amax(-1))
    return e + scale(v, -e[..., None]).norm(dim=-1).log2()


def _shape(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The spread of log a_ii, log2 of its geometric mean over |A|_F, and |A - diag A|_F / |A|_F.

    The first two are NaN unless the diagonal is positive.
    """
    A = scale(A, -exponent(A.abs().amax((-2, -1)))[..., None, None])
    diagonal, norm = A.diagonal(dim1=-2, dim2=-1), A.square().sum((-2, -1)).sqrt()
    logs = torch.where(diagonal > 0, diagonal, math.nan).log()
    beside = (norm.square() - diagonal.square().sum(-1)).clamp(min=0).sqrt()
    return logs.std(-1, correction=0), logs.mean(-1) / math.log(2) - norm.log2(), beside / norm
