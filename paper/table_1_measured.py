"""The rows of the measured Table 1: every operation built, run and compared, the loop-transformer beside it.

How errors and bounds are measured is in ``nlaformer.express.accuracy``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nlaformer.arrays import DTYPES
from nlaformer.errors import OptionError
from nlaformer.express import loop_transformer
from nlaformer.express.accuracy import Accuracy, accuracy
from nlaformer.express.construction import Cost
from nlaformer.express.operation import Operation, operation
from nlaformer.express.theorem import RECORDS

GROWTH_SIZES = (16, 32, 64, 128, 256, 512)
# The loop-transformer's attention looks at n^2 columns; beyond this n it is counted, not run.
LOOP_LARGEST = 32
# The reference in extended precision takes n^3 steps without BLAS: minutes at this n.
LARGEST = 1024


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
    """An operation for the table; ``pointwise`` has the function of its record."""
    if isinstance(n, int) and n > LARGEST:
        raise OptionError(f"n is {n}; the commands measure up to n = {LARGEST}; for more, nf.operation in Python")
    f = RECORDS[name].f if name in RECORDS else None
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
        loop=measure_loop(name, n, dtypes) if name in loop_transformer.names() and form == "accurate" else None,
    )


def measure_loop(name: str, n: int, dtypes: Sequence[str] = tuple(DTYPES)) -> LoopRow:
    """The loop-transformer for one operation, run up to ``LOOP_LARGEST``, counted beyond."""
    cost, block_cost = loop_transformer.count(name, n)
    measured = {}
    if n <= LOOP_LARGEST:
        machines = {dtype: loop_transformer.build(name, n, dtype=DTYPES[dtype]) for dtype in dtypes}
        cost, block_cost = machines[dtypes[0]].cost, machines[dtypes[0]].block_cost
        measured = {dtype: accuracy(name, n, machine, dtype) for dtype, machine in machines.items()}
    return LoopRow(
        cost=cost,
        growth=growth(lambda size: loop_transformer.count(name, size)[0]),
        block_cost=block_cost,
        block_growth=growth(lambda size: loop_transformer.count(name, size)[1]),
        accuracy=measured,
    )


def measure_all(
    n: int = 20, order: int = 1, scheme: str = "antisymmetric", dtypes: Sequence[str] = tuple(DTYPES)
) -> list[Row]:
    """Every row of the measured Table 1: multiply and divide in both of their forms."""
    return [measure(name, n, order, scheme, dtypes, form) for name, form in _lines()]


def _lines() -> Iterator[tuple[str, str]]:
    return ((name, form) for name, record in RECORDS.items() for form in record.forms)


def _same_weights(one: Operation, other: Operation) -> bool:
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    return mine.keys() == theirs.keys() and all(
        value.shape == theirs[key].shape and torch.equal(value, theirs[key]) for key, value in mine.items()
    )
