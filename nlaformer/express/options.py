"""Everything that determines the weights of an operation, and what of it makes no sense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from nlaformer.arrays import is_finite, is_whole
from nlaformer.errors import OptionError, shown
from nlaformer.express.linearize import check_scheme

LARGEST_N = 2**16
DTYPES = {"float64": torch.float64, "float32": torch.float32}
FORMS = ("accurate", "ffn")


@dataclass(frozen=True)
class Options:
    """The options of ``nf.operation`` in plain data; what ``save`` writes."""

    name: str
    n: int
    order: int = 1
    scheme: str = "antisymmetric"
    dtype: str = "float64"
    form: str = "accurate"
    width: int | None = None
    minimum: float = 2.0**-20
    normalize: bool = True
    bound: float | None = None
    score_bound: float | None = None
    expression: list[Any] | None = None

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def largest(self) -> float:
        """The largest magnitude an entry can have in the prompt."""
        return 2**0.5 if self.normalize else float(self.bound)  # type: ignore[arg-type]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and is_finite(value)


def check(options: Options) -> None:
    """Refuse options that make no sense, all of them at once."""
    check_scheme(options.order, options.scheme)
    problems = []
    if not is_whole(options.n) or not 1 <= options.n <= LARGEST_N:
        problems.append(f"n is {shown(options.n)}; it must be an integer from 1 to {LARGEST_N}")
    if options.dtype not in DTYPES:
        problems.append(f"dtype is {options.dtype}; it must be torch.float64 or torch.float32")
    if options.form not in FORMS:
        problems.append(f"form is {shown(options.form)}; it must be one of {', '.join(FORMS)}")
    if options.form == "ffn" and options.name not in ("multiply", "divide"):
        problems.append(f"form='ffn' is for multiply and divide; {options.name} has one form")
    if options.width is not None and (options.form != "ffn" or not is_whole(options.width) or options.width < 16):
        problems.append(
            f"width is {shown(options.width)}; it goes with form='ffn' and must be an integer of 16 or more"
        )
    smallest, largest = (2.0**-40, 2.0**50) if options.dtype == "float64" else (2.0**-24, 2.0**30)
    if not _number(options.minimum) or not smallest <= options.minimum <= 0.5:
        problems.append(f"minimum is {shown(options.minimum)}; it must lie in [{smallest:.1g}, 0.5]")
    for name in ("bound", "score_bound"):
        value = getattr(options, name)
        if value is not None and (not _number(value) or not 1 / largest <= value <= largest):
            problems.append(f"{name} is {shown(value)}; it must lie in [{1 / largest:.1g}, {largest:.1g}]")
        if value is not None and options.normalize and options.name != "pointwise":
            problems.append(f"{name} goes with normalize=False; with normalize=True any magnitude is in the domain")
    if not isinstance(options.normalize, bool):
        problems.append(f"normalize is {shown(options.normalize)}; it must be True or False")
    if not options.normalize and options.bound is None:
        problems.append("normalize=False needs bound=, the largest magnitude of an entry")
    if problems:
        raise OptionError(f"operation {options.name!r}: " + "; ".join(problems))
