"""One operation as a transformer: a prompt, a model, a read-out, a bound.

``Construction`` is what a builder in ``operations.py`` returns: layout, layers, where the operands go, where the
result stands and how wrong it can be. ``Operation`` is what a user holds: it checks the operands, scales them,
writes the prompt, runs the model and reads the result in the kind of array that came in.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nlaformer import io
from nlaformer.arrays import ArrayT, common_kind, give, kind_of, to_tensor, usable_device
from nlaformer.arrays import operands as take
from nlaformer.errors import DomainError, DTypeError, ShapeError
from nlaformer.express.cost import Cost
from nlaformer.express.linearize import Linearization
from nlaformer.express.options import Options
from nlaformer.prompt import Layout, exponent, scale
from nlaformer.transformer import Layer, NLAFormer

# No result has an exponent beyond the sum of two operands'.
_LARGEST_EXPONENT = 4096


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


class Operation:
    """A numerical linear algebra operation as an ordinary softmax transformer. Made by ``nf.operation``.

    Attributes
    ----------
    model : NLAFormer, the transformer
    layout : the named rows of its prompt
    cost : what it costs, see ``Cost``
    """

    def __init__(self, options: Options, construction: Construction, model: NLAFormer):
        self.options = options
        self.model = model
        self.layout = construction.layout
        self._construction = construction

    def __repr__(self) -> str:
        return f"<operation {self.name!r}, n={self.n}: {self.cost}>"

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def n(self) -> int:
        return self.options.n

    @property
    def dtype(self) -> torch.dtype:
        return self.options.torch_dtype

    @property
    def device(self) -> torch.device:
        return next(self.model.buffers()).device

    @property
    def cost(self) -> Cost:
        return Cost.of(self.model, self.layout.rows, self.layout.tokens)

    @property
    def linearization(self) -> Linearization | None:
        """The constants C and c of the heads that linearize the softmax, if any do."""
        return self._construction.linearization

    def to(self, device: torch.device | str) -> Operation:
        """The same operation on another device; this one stays where it is."""
        return Operation(self.options, self._construction, copy.deepcopy(self.model).to(usable_device(device)))

    def __reduce__(self) -> tuple[Any, ...]:
        from nlaformer.express.catalogue import from_config

        return from_config, (asdict(self.options), self.model)

    def __call__(self, *operands: ArrayT) -> ArrayT:
        """The result, in the kind of array that came in; leading dimensions are batch dimensions."""
        kind, tensors = self._take(operands)
        scaled, e = self._scale(tensors)
        flat = [t.reshape(-1, *shape) for t, shape in zip(scaled, self._shapes, strict=True)]
        pieces = self.model.pieces(self.layout.rows, self.layout.tokens, e.reshape(-1), *flat)
        results = [self._run(*piece) for piece in pieces]
        return each(lambda *r: give(torch.cat(r).reshape((*e.shape, *r[0].shape[1:])), kind), *results)

    def prompt(self, *operands: ArrayT) -> ArrayT:
        """The token matrix P, (..., rows, tokens), operands scaled; NumPy for NumPy, torch for torch."""
        kind, tensors = self._take(operands)
        scaled, e = self._scale(tensors)
        return give(self._write(e, *scaled), kind)

    def read(self, P: ArrayT) -> ArrayT:
        """The result that stands in a token matrix the model returned, scaled back."""
        kind, state = kind_of(P), to_tensor("P", P)
        if state.shape[-2:] != (self.layout.rows, self.layout.tokens):
            raise ShapeError(
                f"{self.name}: P has shape {tuple(state.shape)}; "
                f"expected (..., {self.layout.rows}, {self.layout.tokens})"
            )
        return each(lambda r: give(r, kind), self._read(state))

    def error_bound(self, *operands: ArrayT) -> ArrayT:
        """A proven bound on the error of each entry of ``self(*operands)``; same shape as the result.

        It covers linearization, the sink's e^-C terms and rounding, on the data of this call; ``linearize`` derives it.
        """
        kind, tensors = self._take(operands)
        scaled, e = self._scale(tensors)
        numbers = torch.finfo(self.dtype)
        bounds = self._construction.bound(*(t.double() for t in scaled))

        def finish(bound: Tensor, result: Tensor) -> Tensor:
            # Scaling back into the subnormal range rounds once more; a result beyond the range has no bound.
            bound = scale(bound, spread(e, bound)) + 2 * numbers.smallest_normal * numbers.eps
            return torch.where(torch.isfinite(result) & ~bound.isnan(), bound, torch.inf)

        return each(lambda b, r: give(finish(b, r), kind), bounds, self(*tensors))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write config.json and model.safetensors into a folder; ``nf.load`` reads it back."""
        return io.save(path, "operation", self.model, asdict(self.options))

    # --- inside ---

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [operand.shape(self.n) for operand in self._construction.operands]

    def _run(self, e: Tensor, *scaled: Tensor) -> Any:
        with torch.no_grad():
            result = self._read(self.model(self._write(e, *scaled)))
        if any(bool(part.isnan().any()) for part in (result if isinstance(result, tuple) else (result,))):
            raise DomainError(f"{self.name}: intermediate values leave the range of {self.options.dtype}")
        return result

    def _scale(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Operands scaled by powers of two into the compact set, checked, and the exponent of the result."""
        operands, scaled, exponents = self._construction.operands, list(tensors), []
        batch = tensors[0].shape[: tensors[0].dim() - len(self._shapes[0])]
        for k, operand in enumerate(operands):
            if self.options.normalize and operand.measure != "none":
                e = operand.exponent(tensors[k])
                scaled[k] = scale(tensors[k], -spread(e, tensors[k]))
                exponents.append(e)
            else:
                exponents.append(torch.zeros(batch, dtype=torch.int32, device=tensors[k].device))
            if not self.options.normalize:
                self._check_bound(operand.name, tensors[k])
        self._construction.check(*scaled)
        return scaled, self._construction.result_exponent(*exponents)

    def _write(self, e: Tensor, *scaled: Tensor) -> Tensor:
        layout = self.layout
        P = layout.empty(tuple(e.shape), self.dtype, scaled[0].device)
        for operand, value in zip(self._construction.operands, scaled, strict=True):
            layout.write(P, operand.register or operand.name, operand.lift(value), operand.tokens)
        if "exponent" in layout.names:
            layout.write(P, "exponent", e[..., None, None].to(self.dtype), slice(0, 1))
        return P

    def _read(self, P: Tensor) -> Any:
        def back(result: Tensor) -> Tensor:
            if "exponent" not in self.layout.names:
                return result
            e = self.layout.read(P, "exponent", slice(0, 1))[..., 0, 0]
            if not bool((e.abs() <= _LARGEST_EXPONENT).all()):
                raise DomainError(f"{self.name}: the row 'exponent' of P does not hold an exponent of this dtype")
            return scale(result, spread(e.to(torch.int32), result))

        return each(back, self._construction.read(P))

    def _check_bound(self, name: str, value: Tensor) -> None:
        largest = value.abs().reshape(-1)
        if largest.numel() and bool(largest.max() > torch.tensor(self.options.largest, dtype=self.dtype)):
            where = np.unravel_index(int(largest.argmax()), value.shape)
            index = "".join(f"[{int(k)}]" for k in where)
            raise DomainError(
                f"{self.name}: entry {name}{index} = {float(value[where]):.6g} lies beyond the declared "
                f"bound={self.options.bound:g}; declare a larger bound, or leave normalize=True"
            )

    def _take(self, operands: Sequence[Any]) -> tuple[str, list[Tensor]]:
        """Check the operands and turn them into tensors of one batch shape."""
        expected = self._construction.operands
        if any(weight.dtype != self.dtype for weight in self.model.buffers() if weight.is_floating_point()):
            raise DTypeError(
                f"{self.name}: the model's weights were converted; build the operation with another dtype="
            )
        if len(operands) != len(expected):
            names = ", ".join(operand.name for operand in expected)
            raise ShapeError(f"{self.name} takes {len(expected)} operands ({names}); {len(operands)} were given")
        given = {operand.name: value for operand, value in zip(expected, operands, strict=True)}
        shapes = {operand.name: operand.shape(self.n) for operand in expected}
        tensors = take(self.name, given, shapes, self.dtype, self.device)
        return common_kind(operands), [tensor.detach() for tensor in tensors.values()]


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
