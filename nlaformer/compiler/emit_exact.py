"""Exact instructions: pieces of the FFN that select, mask and bend, and heads that move the values of other tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nlaformer.compiler.instructions import EYE, Instruction
from nlaformer.compiler.rows import Emit, Parts, Rows
from nlaformer.express import heads as build
from nlaformer.express.heads import Form, Unit

SIGN_THRESHOLD = {torch.float64: 2.0**-900, torch.float32: 2.0**-100}  # |sign(v)| is 1 from here on


def _relu(at: Rows, i: Instruction) -> Parts:
    rows = at.rows(i.target)
    forms = at.forms(i.sources[0], len(rows))
    return [], [Unit(form, 0.0, {row: 1.0}) for form, row in zip(forms, rows, strict=True)]


def _absolute(at: Rows, i: Instruction) -> Parts:
    """The sum of the absolute values of a token's entries."""
    (target,) = at.rows(i.target)
    return [], [
        Unit(build.times(form, sign), 0.0, {target: 1.0}) for form in at.forms(i.sources[0]) for sign in (1.0, -1.0)
    ]


def _below(at: Rows, i: Instruction) -> Parts:
    """max(0, 1 - v / t) for v >= 0: 1 at 0, 0 from the threshold on."""
    rows = zip(at.forms(i.sources[0]), at.rows(i.target), strict=True)
    return [], [
        Unit({**build.times(form, -1.0 / SIGN_THRESHOLD[at.target.dtype]), at.one: 1.0}, 0.0, {row: 1.0})
        for form, row in rows
    ]


def _flip(at: Rows, i: Instruction) -> Parts:
    """Where the first mask is 0, u; where the second is, -u; else 0: u times a sign, exactly."""
    target = at.rows(i.target)
    u, positive, negative = (at.forms(source, len(target)) for source in i.sources)
    units = []
    for form, p, m, row in zip(u, positive, negative, target, strict=True):
        units += build.masked(form, row, p) + build.masked(build.times(form, -1.0), row, m)
    return [], units


def _constant(at: Rows, i: Instruction) -> Parts:
    """Each row a form over the positions."""
    units = []
    for row, numbers in zip(at.rows(i.target), i.parameters, strict=True):
        form = {place: number for place, number in zip(at.rows(EYE), numbers, strict=True) if number}
        units += build.add_form(form, row) if form else []
    return [], units


def _diag(at: Rows, i: Instruction) -> Parts:
    """Entry k of token k."""
    forms = at.forms(i.sources[0], at.n)
    return [], _masked(at, forms, at.rows(i.target) * at.n, [{k} for k in range(at.n)])


def _diagonal(at: Rows, i: Instruction) -> Parts:
    forms = at.forms(i.sources[0], at.n)
    return [], _masked(at, forms, at.rows(i.target), [{k} for k in range(at.n)])


def _triangle(at: Rows, i: Instruction) -> Parts:
    """Row k of the register holds column k: entry (j, k) stands in token j."""
    side, offset = i.parameters
    inside = [
        {j for j in range(at.n) if (k - j <= offset if side == "lower" else k - j >= offset)} for k in range(at.n)
    ]
    return [], _masked(at, at.forms(i.sources[0], at.n), at.rows(i.target), inside)


def _skew(at: Rows, i: Instruction) -> Parts:
    """Row s of token i: X_i,i-s, so that the transpose moves row s by s tokens."""
    forms, rows = at.forms(i.sources[0], at.n), at.rows(i.target)
    units = []
    for s, row in enumerate(rows):
        targets = [row] * at.n
        units += _masked(at, forms, targets, [{(k + s) % at.n} for k in range(at.n)])
    return [], units


def _transpose(at: Rows, i: Instruction) -> Parts:
    """Token j reads row s of token j + s, X_j+s,j, and puts it into row j + s."""
    skewed, moved, target = at.forms(i.sources[0]), at.rows(i.extra[0]), at.rows(i.target)
    heads = []
    units = []
    for s, (form, row) in enumerate(zip(skewed, moved, strict=True)):
        source = [0, *(1 + (j + s) % at.n for j in range(at.n))]
        heads.append(build.pick_head(at.layout, source, [form], [row]))
        kept = [{(k - s) % at.n} for k in range(at.n)]
        units += _masked(at, [{row: 1.0}] * at.n, target, kept)
    return heads, units


def _row_sums(at: Rows, i: Instruction) -> Parts:
    """Token j: the sum of its own rows, in the FFN, which is exact."""
    return [], build.add_form(_total(at, i), at.rows(i.target)[0])


def _sum(at: Rows, i: Instruction) -> Parts:
    """Over all tokens and, of a matrix, rows."""
    return [build.sum_head(at.layout, [_total(at, i)], at.rows(i.target))], []


def _total(at: Rows, i: Instruction) -> Form:
    """The sum of all rows of a source."""
    total: Form = {}
    for form in at.forms(i.sources[0]):
        for row, c in form.items():
            total[row] = total.get(row, 0.0) + c
    return total


def _move(at: Rows, i: Instruction) -> Parts:
    """A head for each route: from which token each token reads, 0 for none, and which row goes to which."""
    forms, rows = at.forms(i.sources[0]), at.rows(i.target)
    return [
        build.pick_head(at.layout, [0, *tokens], [forms[a] for a, _ in pairs], [rows[z] for _, z in pairs])
        for tokens, pairs in i.parameters
    ], []


def _pick(at: Rows, i: Instruction) -> Parts:
    """The first token's value."""
    return [build.pick_head(at.layout, [0] + [1] * at.n, at.forms(i.sources[0]), at.rows(i.target))], []


def _masked(at: Rows, forms: Sequence[Form], rows: Sequence[int], kept: Sequence[set[int]]) -> list[Unit]:
    positions = at.rows(EYE)
    units = []
    for form, row, tokens in zip(forms, rows, kept, strict=True):
        hidden = [place for j, place in enumerate(positions) if j not in tokens]
        units += build.masked(form, row, hidden)
    return units


EXACT: dict[str, Emit] = {
    "relu": _relu,
    "absolute": _absolute,
    "below": _below,
    "flip": _flip,
    "constant": _constant,
    "diag": _diag,
    "diagonal": _diagonal,
    "triangle": _triangle,
    "skew": _skew,
    "transpose": _transpose,
    "row sums": _row_sums,
    "sum": _sum,
    "move": _move,
    "pick": _pick,
}
