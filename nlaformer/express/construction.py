"""What a builder takes and returns: the options of an operation, its construction, and its cost.

A builder, one short function for each operation (``theorem``, ``pointwise``, ``composition``), turns ``Options`` into a
``Construction``: the layout of the prompt, the layers, where the operands go, where the result stands, and a bound on
its error. ``Cost`` counts what the paper's Table 1 counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nlaformer.arrays import DTYPES, is_finite, is_whole
from nlaformer.errors import OptionError, shown
from nlaformer.express.linearize import Linearization, check_scheme
from nlaformer.prompt import Layout, exponent, scale
from nlaformer.transformer import Layer, NLAFormer

_LARGEST_N = 2**16


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


def check_options(options: Options, forms: Sequence[str]) -> None:
    """Refuse options that make no sense, all of them at once; ``forms`` are those the operation has."""
    check_scheme(options.order, options.scheme)
    problems = []
    if not is_whole(options.n) or not 1 <= options.n <= _LARGEST_N:
        problems.append(f"n is {shown(options.n)}; it must be an integer from 1 to {_LARGEST_N}")
    if options.dtype not in DTYPES:
        problems.append(f"dtype is {options.dtype}; it must be torch.float64 or torch.float32")
    if options.form not in forms:
        problems.append(f"form is {shown(options.form)}; {options.name} has {' and '.join(map(repr, forms))}")
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
        if value is not None and options.normalize and options.expression is None:
            problems.append(f"{name} goes with normalize=False; with normalize=True any magnitude is in the domain")
    if not isinstance(options.normalize, bool):
        problems.append(f"normalize is {shown(options.normalize)}; it must be True or False")
    if not options.normalize and options.bound is None:
        problems.append("normalize=False needs bound=, the largest magnitude of an entry")
    if problems:
        raise OptionError(f"operation {options.name!r}: " + "; ".join(problems))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and is_finite(value)


@dataclass(frozen=True)
class Operand:
    """An argument of an operation and its place in the prompt."""

    name: str
    kind: Literal["row", "column", "matrix"]
    tokens: slice | None = None
    measure: Literal["none", "largest", "column norm"] = "largest"
    register: str | None = None

    def shape(self, n: int) -> tuple[int, ...]:
        return (n, n) if self.kind == "matrix" else (n,)

    def lift(self, value: Tensor) -> Tensor:
        """The operand as a block of the prompt: (..., rows, tokens)."""
        return {"row": row, "column": column, "matrix": lambda block: block}[self.kind](value)

    def exponent(self, value: Tensor) -> Tensor:
        """The power of two that the largest entry, or the largest column norm, is nearest to; (...)."""
        block = self.lift(value)
        return largest_exponent(block) if self.measure == "largest" else norm_exponent(block, -2)


@dataclass(frozen=True)
class Construction:
    """What a builder returns.

    ``read`` takes the result out of P; ``bound`` takes the scaled operands in float64 to a bound on the scaled result;
    ``result_exponent`` combines the operands' powers of two into the result's. ``check`` may refuse scaled operands.
    ``linearization`` holds C and c where there are any.
    """

    layout: Layout
    layers: Sequence[Layer]
    operands: tuple[Operand, ...]
    read: Callable[[Tensor], Any]
    bound: Callable[..., Any]
    result_exponent: Callable[..., Tensor] = lambda *exponents: sum(exponents)  # type: ignore[return-value, assignment]
    check: Callable[..., None] = lambda *operands: None
    linearization: Linearization | None = None


@dataclass(frozen=True)
class Cost:
    """Size of the prompt and of the transformer; heads and FFN width are the largest over the layers.

    Examples
    --------
    >>> import nlaformer as nf
    >>> print(nf.operation("matmul", n=20).cost)
    82 rows x 21 tokens = 1,722 entries; 1 layer, 2 heads, FFN width 0
    """

    rows: int
    tokens: int
    layers: int
    heads: int
    ffn_width: int

    @property
    def entries(self) -> int:
        return self.rows * self.tokens

    @classmethod
    def of(cls, model: NLAFormer, rows: int, tokens: int, loops: int = 0) -> Cost:
        """Read the cost off a model; ``loops`` passes of the loop block count as that many layers."""
        layers = [*model.pre, *model.loop, *model.post]
        return cls(
            rows=rows,
            tokens=tokens,
            layers=len(model.pre) + loops * len(model.loop) + len(model.post),
            heads=max((layer.heads.count for layer in layers if layer.heads is not None), default=0),
            ffn_width=max((layer.ffn.width for layer in layers if layer.ffn is not None), default=0),
        )

    def __str__(self) -> str:
        def counted(number: int, noun: str) -> str:
            return f"{number} {noun}" + ("" if number == 1 else "s")

        return (
            f"{self.rows} rows x {self.tokens} tokens = {self.entries:,} entries; "
            f"{counted(self.layers, 'layer')}, {counted(self.heads, 'head')}, FFN width {self.ffn_width}"
        )


def row(value: Tensor) -> Tensor:
    """A vector along the columns: (..., 1, n)."""
    return value[..., None, :]


def column(value: Tensor) -> Tensor:
    """A vector in one column: (..., n, 1)."""
    return value[..., :, None]


def largest_exponent(block: Tensor) -> Tensor:
    """The power of two that the largest magnitude of an entry is nearest to: (...)."""
    return exponent(torch.maximum(block.amax((-2, -1)), -block.amin((-2, -1))))


def norm_exponent(block: Tensor, *dims: int) -> Tensor:
    """The power of two that the largest norm of a column (dimension -2) or a row (-1) is nearest to: (...)."""
    # The norm of a matrix scaled by its largest entry can neither overflow nor vanish.
    e = largest_exponent(block)
    X = scale(block, -e[..., None, None])
    norms = torch.stack([torch.linalg.vector_norm(X, dim=dim).amax(-1) for dim in dims])
    return e + exponent(norms.amax(0))


def spread(e: Tensor, like: Tensor) -> Tensor:
    """One exponent for each system, with axes of length one for the entries."""
    return e.reshape((*e.shape, *[1] * (like.dim() - e.dim())))


def each(function: Callable[..., Any], *results: Any) -> Any:
    """Apply a function to a result, or to each of a pair of results."""
    if isinstance(results[0], tuple):
        return tuple(function(*parts) for parts in zip(*results, strict=True))
    return function(*results)
