"""``nf.operation``: one operation as a transformer, with its prompt, its model, its read-out and its bound.

``Operation`` is what a user holds: it checks the operands, scales them, writes the prompt, runs the model and reads
the result in the kind of array that was given. What it runs, a ``Construction``, comes from the operation's record in
``theorem``.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer import io
from nlaformer.arrays import ArrayT, common_kind, full_precision, give, kind_of, plain, to_tensor, usable_device
from nlaformer.arrays import operands as take
from nlaformer.errors import DomainError, DTypeError, FileError, OptionError, ShapeError, look_up, unknown_name
from nlaformer.express import symbol
from nlaformer.express.construction import Construction, Cost, Options, check_options, each, spread
from nlaformer.express.linearize import Linearization
from nlaformer.express.theorem import RECORDS
from nlaformer.prompt import scale
from nlaformer.transformer import NLAFormer

# No result has an exponent beyond the sum of two operands'.
_LARGEST_EXPONENT = 4096


@full_precision()
def operation(
    name: str,
    n: int,
    *,
    order: int = 1,
    scheme: str = "antisymmetric",
    dtype: torch.dtype | str = torch.float64,
    device: torch.device | str = "cpu",
    f: Callable[[Any, Any], Any] | None = None,
    form: str = "accurate",
    width: int | None = None,
    minimum: float | None = None,
    normalize: bool = True,
    bound: float | None = None,
    score_bound: float | None = None,
) -> Operation:
    """A numerical linear algebra operation as an ordinary softmax transformer.

    Parameters
    ----------
    name : one of ``nf.operations()``
    n : length of the vectors, size of the matrices
    order : 1, 2 or 3, the number of pairs of heads; the error is of order c^2, c^4 or c^6
    scheme : "antisymmetric", heads +c and -c; or "paper", heads c and 0
    dtype : torch.float64 or torch.float32, or their names
    device : where the weights live
    f : for "pointwise", a function of two numbers composed of + - * / and constants
    form : for "multiply" and "divide", "accurate" (attention) or "ffn" (the paper's single FFN)
    width : hidden units of the "ffn" form (default 1024)
    minimum : for division, the smallest magnitude of a divisor, after scaling (default 2^-20; 2^-4 for "ffn")
    normalize : scale the operands by exact powers of two, so that any magnitude is in the domain
    bound, score_bound : with ``normalize=False``, the largest magnitude of an entry, and of a score

    Returns
    -------
    Operation

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> A, B = np.random.default_rng(0).normal(size=(2, 20, 20))
    >>> product = nf.operation("matmul", n=20)
    >>> error = np.abs(product(A, B) - A @ B).max()
    >>> bool(error <= product.error_bound(A, B).max() < 1e-7)
    True
    """
    record = look_up("operation", name, RECORDS)
    if (f is None) != (record.f is None):
        raise OptionError(f"f goes with 'pointwise' and only with it; the operation is {name!r} and f is {f!r}")
    if not isinstance(form, str):
        raise unknown_name("form", form, record.forms)
    options = Options(
        name=name,
        n=plain(n),
        order=plain(order),
        scheme=scheme,
        dtype=str(dtype).removeprefix("torch."),
        form=form,
        width=plain(width),
        minimum=plain(minimum) if minimum is not None else 2.0**-4 if form == "ffn" else 2.0**-20,
        normalize=normalize,
        bound=plain(bound),
        score_bound=plain(score_bound),
        expression=None if f is None else symbol.steps_of(f),
    )
    check_options(options, record.forms)
    construction = record.build(options)
    model = NLAFormer(pre=construction.layers).to(options.torch_dtype).to(usable_device(device))
    return Operation(options, construction, model)


def operations() -> tuple[str, ...]:
    """The names of the operations.

    >>> import nlaformer as nf
    >>> "matvec" in nf.operations()
    True
    """
    return tuple(RECORDS)


class Operation:
    """A numerical linear algebra operation as an ordinary softmax transformer. Made by ``nf.operation``.

    Attributes
    ----------
    model : NLAFormer, the transformer
    layout : the named rows of its prompt
    cost : size of the prompt and of the transformer, see ``Cost``
    """

    def __init__(self, options: Options, construction: Construction, model: NLAFormer):
        self.options, self.name, self.n, self.dtype = options, options.name, options.n, options.torch_dtype
        self.model, self.layout, self._construction = model, construction.layout, construction

    def __repr__(self) -> str:
        return f"<operation {self.name!r}, n={self.n}: {self.cost}>"

    def _repr_html_(self) -> str:
        from nlaformer.report.html import panel, rows

        registers = ", ".join(f"{name} {height}" for name, height in self.layout.registers)
        told = {
            "takes": ", ".join(f"{operand.name} {operand.shape(self.n)}" for operand in self._construction.operands)
        }
        told |= {"cost": str(self.cost), "rows of P": registers, "numbers": self.options.dtype}
        if self.linearization is not None:
            told["softmax"] = f"linearized with c = {self.linearization.c:.3g}, C = {self.linearization.C:.3g}"
        return panel(f"Operation {self.name}, n = {self.n}", rows(told))

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
        return from_config, (asdict(self.options), self.model)

    @full_precision()
    def __call__(self, *operands: ArrayT) -> ArrayT:
        """The result, in the kind of array that was given; leading dimensions are batch dimensions."""
        kind, scaled, e = self._prepare(operands)
        return each(lambda result: give(result, kind), self._run(scaled, e))

    @full_precision()
    def prompt(self, *operands: ArrayT) -> ArrayT:
        """The token matrix P, (..., rows, tokens), operands scaled; NumPy for NumPy, torch for torch."""
        kind, scaled, e = self._prepare(operands)
        return give(self._write(e, *scaled), kind)

    @full_precision()
    def read(self, P: ArrayT) -> ArrayT:
        """The result in a token matrix that the model returned, scaled back."""
        kind, state = kind_of(P), to_tensor("P", P)
        if state.shape[-2:] != (self.layout.rows, self.layout.tokens):
            raise ShapeError(
                f"{self.name}: P has shape {tuple(state.shape)}; "
                f"expected (..., {self.layout.rows}, {self.layout.tokens})"
            )
        return each(lambda r: give(r, kind), self._read(state))

    @full_precision()
    def error_bound(self, *operands: ArrayT) -> ArrayT:
        """A proven bound on the error of each entry of ``self(*operands)``; same shape as the result.

        It covers linearization, the sink's e^-C terms and rounding, on the data of this call; ``linearize`` derives it.
        """
        kind, scaled, e = self._prepare(operands)
        numbers = torch.finfo(self.dtype)
        bounds = self._construction.bound(*(t.double() for t in scaled))

        def finish(bound: Tensor, result: Tensor) -> Tensor:
            # Scaling back into the subnormal range rounds once more; a result beyond the range has no bound.
            bound = scale(bound, spread(e, bound)) + 2 * numbers.smallest_normal * numbers.eps
            return torch.where(torch.isfinite(result) & ~bound.isnan(), bound, torch.inf)

        return each(lambda b, r: give(finish(b, r), kind), bounds, self._run(scaled, e))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write config.json and model.safetensors into a folder; ``nf.load`` reads it back."""
        return io.save(path, "operation", self.model, asdict(self.options))

    # --- inside ---

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [operand.shape(self.n) for operand in self._construction.operands]

    def _run(self, scaled: Sequence[Tensor], e: Tensor) -> Any:
        """Prompt, forward pass and read-out, a piece of the batch at a time: a result, or a pair of results."""
        flat = [value.reshape(-1, *shape) for value, shape in zip(scaled, self._shapes, strict=True)]
        results = []
        for e_k, *operands in self.model.pieces(self.layout.rows, self.layout.tokens, e.reshape(-1), *flat):
            with torch.no_grad():
                result = self._read(self.model(self._write(e_k, *operands)))
            if any(bool(part.isnan().any()) for part in (result if isinstance(result, tuple) else (result,))):
                raise DomainError(f"{self.name}: intermediate values leave the range of {self.options.dtype}")
            results.append(result)
        return each(lambda *parts: torch.cat(parts).reshape((*e.shape, *parts[0].shape[1:])), *results)

    def _prepare(self, given: Sequence[Any]) -> tuple[str, list[Tensor], Tensor]:
        """The kind of array that was given, the operands scaled by powers of two, and the exponent of the result."""
        tensors = self._take(given)
        scaled, exponents = list(tensors), []
        batch = tensors[0].shape[: tensors[0].dim() - len(self._shapes[0])]
        for k, operand in enumerate(self._construction.operands):
            if self.options.normalize and operand.measure != "none":
                e = operand.exponent(tensors[k])
                scaled[k] = scale(tensors[k], -spread(e, tensors[k]))
                exponents.append(e)
            else:
                exponents.append(torch.zeros(batch, dtype=torch.int32, device=tensors[k].device))
            if not self.options.normalize:
                self._check_bound(operand.name, tensors[k])
        self._construction.check(*scaled)
        return common_kind(given), scaled, self._construction.result_exponent(*exponents)

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

    def _take(self, operands: Sequence[Any]) -> list[Tensor]:
        """The operands, checked, as tensors of one batch shape."""
        if any(weight.dtype != self.dtype for weight in self.model.parameters()):
            raise DTypeError(
                f"{self.name}: the model's weights were converted; build the operation with another dtype="
            )
        names = [operand.name for operand in self._construction.operands]
        if len(operands) != len(names):
            raise ShapeError(
                f"{self.name} takes {len(names)} operands ({', '.join(names)}); {len(operands)} were given"
            )
        given, shapes = dict(zip(names, operands, strict=True)), dict(zip(names, self._shapes, strict=True))
        return [tensor.detach() for tensor in take(self.name, given, shapes, self.dtype, self.device).values()]


def from_config(config: dict[str, Any], model: NLAFormer) -> Operation:
    """An operation from its saved options and weights."""
    try:
        options = Options(**config)
    except TypeError as error:
        raise FileError(f"the saved configuration is not that of an operation: {error}") from error
    record = look_up("operation", options.name, RECORDS)
    check_options(options, record.forms)
    construction = record.build(options)
    if not _same(NLAFormer(pre=construction.layers).to(options.torch_dtype), model):
        raise FileError(
            f"the saved weights are not those of operation {options.name!r}, n={options.n}, as it is described"
        )
    return Operation(options, construction, model)


def _same(expected: NLAFormer, given: NLAFormer) -> bool:
    """Whether a model has the structure and weights it should: a bound is proven for those and no others.

    Weights may differ by a few roundings, as the exponential function of another machine makes them.
    """
    wanted, found = expected.state_dict(), given.state_dict()

    def close(w: Tensor, other: Tensor) -> bool:
        tolerance = 8 * torch.finfo(w.dtype).eps if w.is_floating_point() else 0.0
        return other.dtype == w.dtype and other.shape == w.shape and torch.allclose(other, w, tolerance, 0.0)

    if io.structure(expected) != io.structure(given) or wanted.keys() != found.keys():
        return False
    return all(close(w, found[name].to(w.device)) for name, w in wanted.items())
