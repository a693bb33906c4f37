"""Linear maps on the rows of a token matrix: the weights of eq. (1), stored in full or by their nonzero entries.

A trained weight is ``Dense``. A compiled one is ``Sparse``: nearly every row of it selects one row of P, and evaluation
makes use of that. Both act on the last axis of tensors (..., token, row).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

# A row of a sparse weight with more entries than this is cheaper as part of a dense block than as gathers.
_GATHERS = 6
# Columns used by this many rows are crowded: rows that use no other column are cheaper in the dense block as well.
_CROWD = 32
# Row numbers in at most this many consecutive runs are gathered run by run: views, joined by one copy.
_RUNS = 16


class Dense(nn.Module):
    """A linear map on the rows, stored in full: (out, in), or (E, out, in) for a stack of E models."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[-2], self.weight.shape[-1]

    def forward(self, X: Tensor) -> Tensor:
        if self.weight.dim() == 2:
            return X @ self.weight.mT  # (..., token, out)
        return (X.flatten(1, -2) @ self.weight.mT).unflatten(1, X.shape[1:-1])  # (E, ..., token, out)

    def added_to(self, X: Tensor, Y: Tensor) -> Tensor:
        """X + W Y."""
        return X + self(Y)

    def dense(self) -> Tensor:
        return self.weight

    def extra_repr(self) -> str:
        return " x ".join(map(str, self.weight.shape))


class Sparse(nn.Module):
    """A linear map on the rows given by its nonzero entries, ``W[index[0, k], index[1, k]] = values[k]``.

    Most rows of W are sums of a few gathered rows of the input. Those with more than ``_GATHERS`` entries, and those
    that share every column with many others (the units of an interpolant), form one dense block over the columns they
    use. Rows without entries cost nothing.
    """

    index: Tensor
    values: Tensor
    block: Tensor

    def __init__(self, index: Tensor, values: Tensor, shape: tuple[int, int]):
        super().__init__()
        order = torch.argsort(index[0] * shape[1] + index[1])
        index, values = index[:, order], values[order]
        self.shape = shape
        self.register_buffer("index", index)
        self.register_buffer("values", values)
        self._plan()

    def _plan(self) -> None:
        """Decide from the entries how to evaluate W: what is gathered, and what forms a dense block."""
        (out, source), values, shape = self.index, self.values, self.shape
        count = torch.bincount(out, minlength=shape[0])
        first = torch.cumsum(count, 0) - count
        rank = torch.arange(len(out), device=out.device) - first[out]  # entry k is number rank[k] in its row

        # Gathers: the k-th entries of all short rows at once; a row with fewer entries adds 0 times row 0.
        crowded = torch.zeros_like(count).index_add(0, out, (torch.bincount(source)[source] < _CROWD).long()) == 0
        block_row = (count > _GATHERS) | ((count > 0) & crowded)
        short = (count > 0) & ~block_row
        self._short = _runs(torch.nonzero(short).flatten())
        self._sources: list[_Rows] = []
        place = torch.cumsum(short, 0) - 1
        for k in range(int(count[short].max()) if bool(short.any()) else 0):
            entry = short[out] & (rank == k)
            gather = source.new_zeros(int(short.sum()))
            coefficient = values.new_zeros(len(gather))
            gather[place[out[entry]]] = source[entry]
            coefficient[place[out[entry]]] = values[entry]
            self._sources.append(_runs(gather))
            self.register_buffer(f"coefficient{k}", coefficient, persistent=False)

        rows, entry = torch.nonzero(block_row).flatten(), block_row[out]
        columns, column = torch.unique(source[entry], return_inverse=True)
        block = values.new_zeros(len(rows), len(columns))
        block[torch.searchsorted(rows, out[entry]), column] = values[entry]
        self._block_rows, self._block_columns = _runs(rows), _runs(columns)
        self.register_buffer("block", block, persistent=False)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._plan()

    def forward(self, X: Tensor) -> Tensor:
        return self._accumulate(X.new_zeros(*X.shape[:-1], self.shape[0]), X)

    def added_to(self, X: Tensor, Y: Tensor) -> Tensor:
        """X + W Y."""
        return self._accumulate(X.clone(), Y)

    def _accumulate(self, out: Tensor, X: Tensor) -> Tensor:
        if self._sources:
            terms = (_gather(X, source) * getattr(self, f"coefficient{k}") for k, source in enumerate(self._sources))
            _add(out, self._short, functools.reduce(torch.add, terms))
        if len(self.block):
            _add(out, self._block_rows, _gather(X, self._block_columns) @ self.block.mT)
        return out

    def dense(self) -> Tensor:
        W = self.values.new_zeros(self.shape)
        W[self.index[0], self.index[1]] = self.values
        return W

    def extra_repr(self) -> str:
        return f"{self.shape[0]} x {self.shape[1]}, {len(self.values):,} entries"


Weight = Dense | Sparse
_Rows = tuple[slice, ...] | Tensor


def _runs(index: Tensor) -> _Rows:
    """Row numbers as slices of consecutive ones, if there are few: views are much faster than a gather."""
    breaks = torch.nonzero(index.diff() != 1).flatten() + 1
    if len(breaks) >= _RUNS:
        return index
    runs = index.tensor_split(breaks)
    return tuple(slice(int(run[0]), int(run[-1]) + 1) for run in runs if len(run))


def _gather(X: Tensor, rows: _Rows) -> Tensor:
    """X[..., rows]."""
    if isinstance(rows, Tensor):
        return X[..., rows]
    return X[..., rows[0]] if len(rows) == 1 else torch.cat([X[..., run] for run in rows], dim=-1)


def _add(out: Tensor, rows: _Rows, terms: Tensor) -> None:
    """out[..., rows] += terms, in place."""
    if isinstance(rows, Tensor):
        out[..., rows] += terms
        return
    for run, part in zip(rows, terms.split([run.stop - run.start for run in rows], dim=-1), strict=True):
        out[..., run] += part
