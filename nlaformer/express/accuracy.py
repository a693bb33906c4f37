"""How accurate an operation is: random operands, the reference in extended precision, error and proven bound.

Operands are N(0, 1) from fixed seeds; errors are medians over the seeds, in the Frobenius norm relative to the result,
or to the operands where the record says so. A bound is given entry by entry and measured in the same norm, so that it
can be read beside the error. Extended precision is NumPy's longdouble: 64 bits of mantissa on x86.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nlaformer.errors import look_up
from nlaformer.express.construction import each
from nlaformer.express.operation import Operation
from nlaformer.express.theorem import RECORDS

SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Accuracy:
    """Error and proven bound, relative, medians over the seeds; the bound is None where there is none."""

    error: float
    bound: float | None = None


def accuracy(name: str, n: int, transformer: Callable[..., Any], dtype: str = "float64") -> Accuracy:
    """Error, and bound if it has one, of anything that computes the operation.

    >>> import nlaformer as nf
    >>> measured = accuracy("matmul", 5, nf.operation("matmul", n=5))
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


def draw(name: str, n: int, dtype: str = "float64", seeds: Sequence[int] = SEEDS) -> list[np.ndarray]:
    """N(0, 1) operands, one of each seed; divisors are kept a tenth of the largest one away from zero."""
    record = RECORDS[name]
    generators = [np.random.default_rng([seed, n]) for seed in seeds]
    drawn = [[generator.normal(size=shape) for shape in record.shapes(n).values()] for generator in generators]
    operands = [np.stack(values) for values in zip(*drawn, strict=True)]
    for k, operand in enumerate(operands):
        if record.operands[k] == record.divisor:
            size = np.abs(operand)
            operands[k] = np.copysign(np.maximum(size, 0.1 * size.max(-1, keepdims=True)), operand)
    return [operand.astype(dtype) for operand in operands]


def reference(name: str, *operands: Any) -> Any:
    """The result of an operation in extended precision; leading dimensions are batch dimensions.

    >>> print(reference("inner_product", np.ones(3), np.arange(3.0)))
    3.0
    """
    record = look_up("operation", name, RECORDS)
    return record.reference(*(np.asarray(operand, dtype=np.longdouble) for operand in operands))


def relative(name: str, deviation: Any, exact: Any, operands: Sequence[Any]) -> np.ndarray:
    """The norm of a deviation of each of a batch of results, over the norm of what the record compares it with."""
    if RECORDS[name].relative_to == "operands":
        return _norm(deviation) / math.prod(map(_norm, operands))
    return _norm(deviation) / _norm(exact)


def _norm(values: Any) -> np.ndarray:
    """Frobenius norms over all axes but the first; of a pair of results, of both together."""
    parts = values if isinstance(values, tuple) else (values,)
    squares = sum(np.square(np.asarray(part, np.longdouble)).reshape(len(part), -1).sum(-1) for part in parts)
    return np.sqrt(squares)
