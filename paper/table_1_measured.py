"""Weights against the reference: every operation in extended precision, and one row of the measured Table 1.

Operands are N(0, 1) from fixed seeds; errors are medians over the seeds, in the Frobenius norm relative to the
result (``inner_product``: to |a| |b|, its result may vanish). A bound is given entry by entry and measured in the same
norm, so that it can be read beside the error. Extended precision is NumPy's longdouble: 64 bits of mantissa on x86.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nlaformer.errors import OptionError, unknown_name
from nlaformer.express import loop_computer
from nlaformer.express.catalogue import operation, operations
from nlaformer.express.cost import Cost
from nlaformer.express.operation import Operation, each
from nlaformer.express.options import DTYPES

SEEDS = (0, 1, 2, 3, 4)
GROWTH_SIZES = (16, 32, 64, 128, 256, 512)
# The loop-transformer's attention looks at n^2 columns; beyond this n it is counted, not run.
LOOP_LARGEST = 32
# The reference in extended precision takes n^3 steps without BLAS: minutes at this n.
LARGEST = 1024


def example(a: Any, b: Any) -> Any:
    """The composition that stands for ``pointwise`` in the table: a b + b / 3."""
    return a * b + b / 3


_VECTORS, _MATRICES = ("vector", "vector"), ("matrix", "matrix")
_OPERANDS = {
    "vector_transpose": ("vector",),
    "matrix_transpose": ("matrix",),
    "transposed_matmul": _MATRICES,
    "matmul": _MATRICES,
    "matvec": ("matrix", "vector"),
}
_REFERENCE: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "pointwise": example,
    "column_shift": lambda a, b: (b, a),
    "row_shift": lambda a, b: (b, a),
    "vector_transpose": lambda a: a[..., None],
    "inner_product": lambda a, b: (a * b).sum(-1),
    "outer_product": lambda a, b: a[..., :, None] * b[..., None, :],
    "matrix_transpose": lambda A: np.swapaxes(A, -1, -2),
    "transposed_matmul": lambda A, B: np.swapaxes(A, -1, -2) @ B,
    "matmul": lambda A, B: A @ B,
    "matvec": lambda A, b: (A @ b[..., None])[..., 0],
}


@dataclass(frozen=True)
class Accuracy:
    """Error and proven bound (the loop-transformer has none), relative, medians over the seeds."""

    error: float
    bound: float | None = None


@dataclass(frozen=True)
class LoopRow:
    """The loop-transformer for one operation: with reads and writes, and its function block alone.

    ``accuracy`` is empty where it was counted and not run.
    """

    cost: Cost
    growth: float
    block_cost: Cost
    block_growth: float
    accuracy: dict[str, Accuracy]


@dataclass(frozen=True)
class Row:
    """One operation of the measured Table 1, in one of its forms.

    ``growth`` is the exponent of the prompt's entries in n; ``paper_scheme`` the accuracy of the paper's own pair of
    heads, empty where the operation linearizes nothing; ``loop`` is None for what the paper's table does not list.
    """

    name: str
    form: str
    n: int
    cost: Cost
    growth: float
    accuracy: dict[str, Accuracy]
    paper_scheme: dict[str, Accuracy]
    loop: LoopRow | None


def reference(name: str, *operands: Any) -> Any:
    """The result of an operation in extended precision; leading dimensions are batch dimensions.

    >>> print(reference("inner_product", np.ones(3), np.arange(3.0)))
    3.0
    """
    if name not in _REFERENCE:
        raise unknown_name("operation", name, _REFERENCE)
    return _REFERENCE[name](*(np.asarray(operand, dtype=np.longdouble) for operand in operands))


def relative(name: str, deviation: Any, exact: Any, operands: Sequence[Any]) -> np.ndarray:
    """The norm of a deviation of each of a batch of results, over the norm of the result."""
    if name == "inner_product":
        return _norm(deviation) / (_norm(operands[0]) * _norm(operands[1]))
    return _norm(deviation) / _norm(exact)


def draw(name: str, n: int, dtype: str = "float64", seeds: Sequence[int] = SEEDS) -> list[np.ndarray]:
    """N(0, 1) operands, one of each seed; divisors are kept a tenth of the largest one away from zero."""
    shapes = [(n, n) if kind == "matrix" else (n,) for kind in _OPERANDS.get(name, _VECTORS)]
    generators = [np.random.default_rng([seed, n]) for seed in seeds]
    drawn = [[generator.normal(size=shape) for shape in shapes] for generator in generators]
    operands = [np.stack(values) for values in zip(*drawn, strict=True)]
    if name == "divide":
        size = np.abs(operands[1])
        operands[1] = np.copysign(np.maximum(size, 0.1 * size.max(-1, keepdims=True)), operands[1])
    return [operand.astype(dtype) for operand in operands]


def accuracy(name: str, n: int, transformer: Callable[..., Any], dtype: str = "float64") -> Accuracy:
    """Error, and bound if it has one, of anything that computes the operation.

    >>> measured = accuracy("matmul", 5, operation("matmul", n=5))
    >>> measured.error < measured.bound < 1e-8
    True
    """
    operands = draw(name, n, dtype)
    exact = reference(name, *operands)
    deviation = each(lambda result, truth: result.astype(np.longdouble) - truth, transformer(*operands), exact)
    error = float(np.median(relative(name, deviation, exact, operands)))
    if not isinstance(transformer, Operation):
        return Accuracy(error)
    bound = relative(name, transformer.error_bound(*operands), exact, operands)
    return Accuracy(error, float(np.median(bound)))


def growth(cost: Callable[[int], Cost], sizes: Sequence[int] = GROWTH_SIZES) -> float:
    """The exponent p of entries ~ n^p, fitted by least squares over sizes of 16 and more.

    >>> round(growth(lambda n: operation("matmul", n=n).cost), 2)
    1.98
    """
    entries = [cost(n).entries for n in sizes]
    return float(np.polyfit([math.log(n) for n in sizes], [math.log(e) for e in entries], 1)[0])


def build(
    name: str,
    n: int,
    order: int = 1,
    scheme: str = "antisymmetric",
    dtype: str = "float64",
    form: str = "accurate",
) -> Operation:
    """An operation for the table; ``pointwise`` is ``example``."""
    if isinstance(n, int) and n > LARGEST:
        raise OptionError(f"n is {n}; the commands measure up to n = {LARGEST}; for more, nf.operation in Python")
    f = example if name == "pointwise" else None
    return operation(name, n=n, order=order, scheme=scheme, dtype=DTYPES[dtype], form=form, f=f)


def measure(
    name: str,
    n: int = 20,
    order: int = 1,
    scheme: str = "antisymmetric",
    dtypes: Sequence[str] = tuple(DTYPES),
    form: str = "accurate",
) -> Row:
    """One row of the measured Table 1: build, run, compare; the loop-transformer beside it."""
    ours = {dtype: build(name, n, order, scheme, dtype, form) for dtype in dtypes}
    papers = {dtype: build(name, n, 1, "paper", dtype, form) for dtype in dtypes}
    papers = {dtype: theirs for dtype, theirs in papers.items() if not _same_weights(ours[dtype], theirs)}
    return Row(
        name=name,
        form=form,
        n=n,
        cost=next(iter(ours.values())).cost,
        growth=growth(lambda size: build(name, size, order, scheme, form=form).cost),
        accuracy={dtype: accuracy(name, n, op, dtype) for dtype, op in ours.items()},
        paper_scheme={dtype: accuracy(name, n, op, dtype) for dtype, op in papers.items()},
        loop=measure_loop(name, n, dtypes) if name in loop_computer.names() and form == "accurate" else None,
    )


def measure_loop(name: str, n: int, dtypes: Sequence[str] = tuple(DTYPES)) -> LoopRow:
    """The loop-transformer for one operation, run up to ``LOOP_LARGEST``, counted beyond."""
    cost, block_cost = loop_computer.count(name, n)
    measured = {}
    if n <= LOOP_LARGEST:
        machines = {dtype: loop_computer.build(name, n, dtype=DTYPES[dtype]) for dtype in dtypes}
        cost, block_cost = machines[dtypes[0]].cost, machines[dtypes[0]].block_cost
        measured = {dtype: accuracy(name, n, machine, dtype) for dtype, machine in machines.items()}
    return LoopRow(
        cost=cost,
        growth=growth(lambda size: loop_computer.count(name, size)[0]),
        block_cost=block_cost,
        block_growth=growth(lambda size: loop_computer.count(name, size)[1]),
        accuracy=measured,
    )


def measure_all(
    n: int = 20, order: int = 1, scheme: str = "antisymmetric", dtypes: Sequence[str] = tuple(DTYPES)
) -> list[Row]:
    """Every row of the measured Table 1: multiply and divide in both of their forms."""
    return [measure(name, n, order, scheme, dtypes, form) for name, form in _lines()]


def _lines() -> Iterator[tuple[str, str]]:
    for name in operations():
        yield name, "accurate"
        if name in ("multiply", "divide"):
            yield name, "ffn"


def _norm(values: Any) -> np.ndarray:
    """Frobenius norms over all axes but the first; of a pair of results, of both together."""
    parts = values if isinstance(values, tuple) else (values,)
    squares = sum(np.square(np.asarray(part, np.longdouble)).reshape(len(part), -1).sum(-1) for part in parts)
    return np.sqrt(squares)


def _same_weights(one: Operation, other: Operation) -> bool:
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    return mine.keys() == theirs.keys() and all(
        value.shape == theirs[key].shape and torch.equal(value, theirs[key]) for key, value in mine.items()
    )
