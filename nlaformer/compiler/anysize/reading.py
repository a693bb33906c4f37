"""What a layer's weights compute where its heads attend only to what they declare: forms of rows, and functions.

Nothing here knows the instructions that the weights were made from. A head that attends to its own token, an address or
token 1, beside the sink, is gain / (1 + e^-(score - score of the sink)) times its value. Units whose forms are
multiples of one form are one piecewise linear function of it, by slopes and intercepts. Weights that were changed are
read as they are; a change that needs more than this is refused, and dense attention runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nlaformer.errors import OptionError
from nlaformer.prompt import Layout
from nlaformer.transformer import FFN, Heads, Layer
from nlaformer.weights import Sparse, Weight

Form = dict[int, float]  # rows of P and coefficients


@dataclass(frozen=True)
class HeadForm:
    """A head: ``shift`` is its constant score less that of the sink; values are (form, target, gain)."""

    kind: str
    slot: tuple[str, int] | None
    score: Form
    shift: float
    values: tuple[tuple[Form, int, float], ...]


@dataclass(frozen=True)
class Piecewise:
    """A piecewise linear function: slope and intercept of each piece; between which numbers they change."""

    knots: np.ndarray
    slope: np.ndarray
    intercept: np.ndarray


@dataclass(frozen=True)
class LayerForm:
    """The heads, and (form, target, function) of the hidden units."""

    heads: tuple[HeadForm, ...]
    functions: tuple[tuple[Form, int, Piecewise], ...]


class Reader:
    """Reads layers in one layout of the prompt."""

    def __init__(self, layout: Layout) -> None:
        self.one, self.sink, self.first = (layout[name][0] for name in ("one", "sink", "first"))
        self.addresses = {row for name in layout.names if name.endswith("address") for row in layout[name]}

    def layer(self, layer: Layer, words: Sequence[str]) -> LayerForm:
        """What one layer computes; ``words`` say what its heads attend to."""
        heads = () if layer.heads is None else self.heads(layer.heads, words)
        return LayerForm(heads, self.functions(layer.ffn) if isinstance(layer.ffn, FFN) else ())

    def heads(self, heads: Heads, words: Sequence[str]) -> tuple[HeadForm, ...]:
        W_Q, W_K, W_U = (_rows(W) for W in (heads.W_Q, heads.W_K, heads.W_U))
        out: dict[int, list[tuple[int, float]]] = {}
        for target, form in _rows(heads.W_O).items():
            for place, gain in form.items():
                out.setdefault(place, []).append((target, gain))
        wide, inner = heads.W_U.shape[0] // heads.count, heads.W_Q.shape[0] // heads.count
        found = []
        for h, word in enumerate(words):
            score, shift = self.score(word, W_Q, W_K, range(h * inner, (h + 1) * inner))
            values = [(W_U.get(p, {}), t, g) for p in range(h * wide, (h + 1) * wide) for t, g in out.get(p, ())]
            kind, _, slot = word.rpartition(" ")
            of = (kind, int(slot)) if kind else None
            found.append(HeadForm("slot" if kind else word, of, score, shift, tuple(values)))
        return tuple(found)

    def score(self, kind: str, W_Q: Mapping[int, Form], W_K: Mapping[int, Form], places: range) -> tuple[Form, float]:
        """The score of the token that is attended to, less that of the sink: a form, and a number."""
        score: Form = {}
        shift = 0.0
        for place in places:
            query, key = dict(W_Q.get(place, {})), dict(W_K.get(place, {}))
            if self.addresses & (query.keys() | key.keys()):
                if key.get(self.sink) or query.keys() - self.addresses - {self.one}:
                    raise _unread()
                continue  # 0 where the addresses agree
            query.pop(self.sink, None)
            to_sink, at_one = key.pop(self.sink, 0.0), key.pop(self.one, 0.0)
            if kind == "first":
                at_one += key.pop(self.first, 0.0)
            constant = query.pop(self.one, 0.0)
            if query and (key or to_sink):
                raise _unread()
            shift += constant * (at_one - to_sink)
            for form, factor in ((key, constant), (query, at_one)):
                for row, c in form.items():
                    score[row] = score.get(row, 0.0) + factor * c
        return {row: c for row, c in score.items() if c}, shift

    def functions(self, ffn: FFN) -> tuple[tuple[Form, int, Piecewise], ...]:
        W_1, bias = _rows(ffn.W_1), ffn.b_1.detach().cpu().numpy()
        targets: dict[int, list[tuple[int, float]]] = {}
        for target, form in _rows(ffn.W_2).items():
            for unit, weight in form.items():
                targets.setdefault(unit, []).append((target, weight))
        groups: dict[tuple[tuple[tuple[int, float], ...], int], list[tuple[float, float, float]]] = {}
        for unit, outputs in targets.items():
            reads = dict(W_1.get(unit, {}))
            reads.pop(self.sink, None)
            beta = float(bias[unit]) + reads.pop(self.one, 0.0)
            rows = sorted(reads)
            alpha = reads[rows[0]] if rows else 0.0
            key = tuple((row, reads[row] / alpha) for row in rows)
            for target, weight in outputs:
                groups.setdefault((key, target), []).append((alpha, beta, weight))
        if bool(torch.any(ffn.b_2)):
            raise _unread()
        return tuple((dict(key), target, _function(units)) for (key, target), units in groups.items())


def _unread() -> OptionError:
    return OptionError(
        "the weights were changed so that a head attends to more than it declares; run it by dense attention, "
        'run(..., attention="dense")'
    )


def _rows(W: Weight) -> dict[int, Form]:
    """The nonzero entries of a weight by row."""
    if not isinstance(W, Sparse):
        raise _unread()
    index, values = W.index.cpu().numpy(), W.values.detach().cpu().numpy()
    rows: dict[int, Form] = {}
    for out, source, value in zip(index[0].tolist(), index[1].tolist(), values.tolist(), strict=True):
        if value:
            rows.setdefault(out, {})[source] = value
    return rows


def _function(units: Sequence[tuple[float, float, float]]) -> Piecewise:
    """Sum of weight max(0, alpha x + beta)."""
    alpha, beta, weight = np.array(units).T
    constant = float((weight * np.maximum(beta, 0.0))[alpha == 0.0].sum())
    alpha, beta, weight = (part[alpha != 0.0] for part in (alpha, beta, weight))
    place = np.divide(-beta, alpha) + 0.0
    order = np.argsort(place, kind="stable")
    alpha, beta, weight, place = (part[order] for part in (alpha, beta, weight, place))
    knots = np.unique(place)
    first = np.searchsorted(place, knots)
    right = alpha > 0  # active to the right of their knots; the others to the left

    def pieces(c: np.ndarray) -> np.ndarray:
        each = np.add.reduceat(np.stack([np.where(right, c, 0.0), np.where(right, 0.0, c)]), first, axis=1)
        result: np.ndarray = np.append(0.0, np.cumsum(each[0]))
        return result + np.append(np.cumsum(each[1][::-1])[::-1], 0.0)

    if not len(knots):
        return Piecewise(knots, np.zeros(1), np.full(1, constant))
    return Piecewise(knots, pieces(weight * alpha), pieces(weight * beta) + constant)
