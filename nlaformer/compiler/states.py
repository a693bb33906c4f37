"""How the states of a program stand in the rows of P: read from them, and written into them.

A vector stands in a row, entry j at token j; a matrix in n rows, row j at token j; a scalar in a row, the same at every
token. A positive scalar stands as its logarithm. States of one scale group (``lower/scales.py``) stand as mantissas of
size about 1 and one row with the common logarithm of their scale.

``place`` is the entry of ``AlgorithmConfig.state`` for a state: its kind, its rows, the row of its scale, and whether
it stands as a logarithm. Values are scaled, as in P.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nlaformer.errors import DomainError
from nlaformer.prompt import Layout

Places = Mapping[str, Mapping[str, Any]]


def read(layout: Layout, P: Tensor, place: Mapping[str, Any]) -> Tensor:
    """A state, (systems[, n[, n]]), from P (systems, rows, tokens)."""
    kind, rows = place["kind"], layout.read(P, place["rows"][0])
    value = rows.mT if kind == "matrix" else rows[..., 0, :] if kind == "vector" else rows[..., 0, 0]
    if place.get("logarithm", kind == "scalar"):
        return exponential(value)
    if place["scale"] is not None:
        value = value * per_system(exponential(layout.read(P, place["scale"])[..., 0, 0]), value)
    return value


def replaced(layout: Layout, P: Tensor, places: Places, values: Mapping[str, Tensor]) -> Tensor:
    """P with other values of some states, and the rows that depend on them encoded anew.

    Where a state changes, the common scale of its group does, so that the largest mantissa keeps its size; the other
    states of the group are then divided by the new scale. A system whose values are those that stand there already
    stays as it is, bit for bit.
    """
    held = {name: read(layout, P, place) for name, place in places.items()}
    same = {name: (value == held[name]).reshape(len(P), -1).all(1) for name, value in values.items()}  # (systems,) each
    result = P.clone()
    groups: dict[str, list[str]] = {}
    for name, place in places.items():
        if place["scale"] is not None:
            groups.setdefault(place["scale"], []).append(name)
    for scale, members in groups.items():
        if values.keys() & set(members):
            before, after = ({m: new.get(m, held[m]) for m in members} for new in ({}, values))
            log = _new_log_scale(layout.read(P, scale)[..., 0, 0], before, after)
            layout.write(result, scale, log[:, None, None].expand(-1, 1, layout.tokens - 1))
            for m, value in after.items():
                _write(layout, result, places[m], value * per_system(torch.exp(-log), value))
    for name, value in values.items():
        place = places[name]
        if place.get("logarithm", place["kind"] == "scalar"):
            if not bool(((value > 0) | same[name]).all()):
                raise DomainError(f"the state {name} stands in P as a logarithm; replace it by positive numbers")
            _write(
                layout, result, place, torch.where(same[name], layout.read(P, place["rows"][0])[:, 0, 0], value.log())
            )
        elif place["scale"] is None:
            _write(layout, result, place, value)
    return torch.where(torch.stack(list(same.values())).all(0)[:, None, None], P, result)


def _new_log_scale(log: Tensor, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Tensor:
    """The logarithm of a group's scale, moved as the largest of its states is; as it was where all are 0."""
    sizes = [
        torch.stack([value.reshape(len(value), -1).norm(dim=1) for value in states.values()]).amax(0)
        for states in (before, after)
    ]
    moved = log + torch.log(sizes[1]) - torch.log(sizes[0])
    return torch.where((sizes[0] > 0) & (sizes[1] > 0), moved, log)


def _write(layout: Layout, P: Tensor, place: Mapping[str, Any], value: Tensor) -> None:
    """A value into its rows, in place."""
    if place["kind"] == "scalar":
        value = value[:, None].expand(-1, layout.tokens - 1)
    layout.write(P, place["rows"][0], value.mT if place["kind"] == "matrix" else value[:, None, :])


def per_system(numbers: Tensor, value: Tensor) -> Tensor:
    """One number for each system, in a shape that multiplies their values."""
    return numbers.reshape(-1, *[1] * (value.dim() - 1))


def exponential(log: Tensor) -> Tensor:
    """e^log, at most the largest number: a state that was taken to zero must not become 0 times infinity."""
    return torch.exp(log).clamp(max=torch.finfo(log.dtype).max)
