"""Linear maps on the rows of a token matrix: the weights of eq. (1), stored in full or by their nonzero entries.

A trained weight is ``Dense``. A compiled one is ``Sparse``: nearly every row of it selects one row of P, and evaluation
makes use of that. Both act on the last axis of tensors (..., token, row).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# A row of a sparse weight with more entries than this is cheaper as part of a dense block than as gathers.
_GATHERS = 6
# Columns used by this many rows are crowded: rows that use no other column are cheaper in the dense block as well.
_CROWD = 32


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

        # Gathers: the k-th entries of all short rows that have one, at once.
        crowded = torch.zeros_like(count).index_add(0, out, (torch.bincount(source)[source] < _CROWD).long()) == 0
        block_row = (count > _GATHERS) | ((count > 0) & crowded)
        short = (count > 0) & ~block_row
        self._short = _run(torch.nonzero(short).flatten())
        self._gathers: list[tuple[_Rows, _Rows, Tensor]] = []  # to where among the short rows, from where, times what
        place = torch.cumsum(short, 0) - 1
        for k in range(int(count[short].max()) if bool(short.any()) else 0):
            entry = short[out] & (rank == k)
            self._gathers.append((_run(place[out[entry]]), _run(source[entry]), values[entry]))

        rows, entry = torch.nonzero(block_row).flatten(), block_row[out]
        columns, column = torch.unique(source[entry], return_inverse=True)
        self._block = values.new_zeros(len(rows), len(columns))
        self._block[torch.searchsorted(rows, out[entry]), column] = values[entry]
        self._block_rows, self._block_columns = _run(rows), _run(columns)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._plan()

    def _apply(self, *arguments: Any, **options: Any) -> Sparse:
        moved = super()._apply(*arguments, **options)  # to another device or precision
        self._plan()
        return moved

    def forward(self, X: Tensor) -> Tensor:
        return self._accumulate(X.new_zeros(*X.shape[:-1], self.shape[0]), X)

    def added_to(self, X: Tensor, Y: Tensor) -> Tensor:
        """X + W Y."""
        return self._accumulate(X.expand(*Y.shape[:-1], -1).clone(), Y)

    def _accumulate(self, out: Tensor, X: Tensor) -> Tensor:
        if self._gathers:
            (_, source, factors), *further = self._gathers
            terms = _gather(X, source) * factors
            for places, source, factors in further:
                _add(terms, places, _gather(X, source) * factors)
            _add(out, self._short, terms)
        if len(self._block):
            _add(out, self._block_rows, _gather(X, self._block_columns) @ self._block.mT)
        return out

    def dense(self) -> Tensor:
        W = self.values.new_zeros(self.shape)
        W[self.index[0], self.index[1]] = self.values
        return W

    def extra_repr(self) -> str:
        return f"{self.shape[0]} x {self.shape[1]}, {len(self.values):,} entries"


Weight = Dense | Sparse
_Rows = slice | Tensor


def _run(index: Tensor) -> _Rows:
    """Row numbers as a slice, if they are consecutive: a view costs nothing."""
    if not len(index) or bool((index.diff() != 1).any()):
        return index
    return slice(int(index[0]), int(index[-1]) + 1)


def _gather(X: Tensor, rows: _Rows) -> Tensor:
    """X[..., rows]."""
    return X[..., rows] if isinstance(rows, slice) else X.index_select(-1, rows)


def _add(out: Tensor, rows: _Rows, terms: Tensor) -> None:
    """out[..., rows] += terms, in place."""
    if isinstance(rows, slice):
        out[..., rows].add_(terms)
    else:
        out.index_add_(-1, rows, terms)
