"""Linear maps on the rows of a token matrix: the weights of eq. (1), stored in full or by their nonzero entries.

A trained weight is ``Dense``. A compiled one is ``Sparse``: nearly every row of it selects one row of P, and evaluation
makes use of that. Both act on the last axis of tensors (..., token, row).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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

    ``values`` is what is computed with, however it is changed: in place, through ``.data`` or a NumPy view, by an
    optimizer (after ``requires_grad_()``), by ``torch.func.functional_call``. So the entries stand in the order of
    evaluation, and every forward pass reads them.
    """

    index: Tensor
    values: nn.Parameter

    def __init__(self, index: Tensor, values: Tensor, shape: tuple[int, int]):
        super().__init__()
        self.shape = shape
        self.register_buffer("index", index)
        self.values = nn.Parameter(values, requires_grad=False)
        self._arrange()

    def _arrange(self) -> None:
        """Decide from the entries how to evaluate W, and bring them into that order: gathers first, then the block."""
        order = torch.argsort(self.index[0] * self.shape[1] + self.index[1])
        out, source = self.index[:, order]
        count = torch.bincount(out, minlength=self.shape[0])
        first = torch.cumsum(count, 0) - count
        rank = torch.arange(len(out), device=out.device) - first[out]  # entry k is number rank[k] in its row

        # Gathers: the k-th entries of all short rows that have one, at once.
        crowded = torch.zeros_like(count).index_add(0, out, (torch.bincount(source)[source] < _CROWD).long()) == 0
        block_row = (count > _GATHERS) | ((count > 0) & crowded)
        short = (count > 0) & ~block_row
        self._short, self._whole = _run(torch.nonzero(short).flatten()), bool(short.all()) and len(short) > 0
        self._gathers: list[tuple[_Rows, _Rows]] = []  # to where among the short rows, from where
        place, entries = torch.cumsum(short, 0) - 1, []
        for k in range(int(count[short].max()) if bool(short.any()) else 0):
            entries.append(torch.nonzero(short[out] & (rank == k)).flatten())
            self._gathers.append((_run(place[out[entries[-1]]]), _run(source[entries[-1]])))

        rows, inside = torch.nonzero(block_row).flatten(), torch.nonzero(block_row[out]).flatten()
        columns, column = torch.unique(source[inside], return_inverse=True)
        self._block_rows, self._block_columns = _run(rows), _run(columns)
        self._block_shape = len(rows), len(columns)
        places = torch.searchsorted(rows, out[inside]) * len(columns) + column
        self._block_places = None if len(places) == len(rows) * len(columns) else places  # none: it has no zeros
        self._block = self.values.new_zeros(0)  # until it is needed

        entries.append(inside)
        order = order[torch.cat(entries)]
        self.index = self.index[:, order]
        self.values.data = self.values.data[order]
        self._sizes = [len(part) for part in entries]
        self._address, self._parts = -1, ()

    def _read(self) -> tuple[Tensor, ...]:
        """The factors of every gather, and the block, from the values as they are now."""
        values: Tensor = self._parameters["values"]  # type: ignore[assignment]
        if torch.is_grad_enabled() or torch.compiler.is_compiling():  # backward needs them as they are in this pass
            *factors, entries = values.split(self._sizes)
            if self._block_places is not None:
                entries = entries.new_zeros(math.prod(self._block_shape)).scatter(0, self._block_places, entries)
            return *factors, entries.view(self._block_shape)
        if values.data_ptr() != self._address:  # other storage, as after ``.data = ...``; else these are views of it
            self._address = values.data_ptr()
            if self._block_places is not None and not len(self._block):
                self._block = values.detach().new_zeros(math.prod(self._block_shape))
            *factors, self._entries = values.detach().split(self._sizes)
            block = self._entries if self._block_places is None else self._block
            self._parts = (*factors, block.view(self._block_shape))
        if self._block_places is not None:
            self._block.index_copy_(0, self._block_places, self._entries)
        return self._parts

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._arrange()

    def _apply(self, *arguments: Any, **options: Any) -> Sparse:
        moved = super()._apply(*arguments, **options)  # to another device or precision
        self._arrange()
        return moved

    def forward(self, X: Tensor) -> Tensor:
        if self._whole:
            return self._gathered(X, self._read()[:-1])
        return self._accumulate(X.new_zeros(*X.shape[:-1], self.shape[0]), X)

    def added_to(self, X: Tensor, Y: Tensor) -> Tensor:
        """X + W Y."""
        return self._accumulate(X.expand(*Y.shape[:-1], -1).clone(), Y)

    def _accumulate(self, out: Tensor, X: Tensor) -> Tensor:
        *factors, block = self._read()
        if factors:
            _add(out, self._short, self._gathered(X, factors))
        if self._block_shape[0]:
            _add(out, self._block_rows, _gather(X, self._block_columns) @ block.mT)
        return out

    def _gathered(self, X: Tensor, factors: Sequence[Tensor]) -> Tensor:
        """The short rows."""
        (_, source), *further = self._gathers
        terms = _gather(X, source) * factors[0]
        for (places, source), factor in zip(further, factors[1:], strict=True):
            _add(terms, places, _gather(X, source) * factor)
        return terms

    def dense(self) -> Tensor:
        return self.values.new_zeros(self.shape).index_put((self.index[0], self.index[1]), self.values)

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
