"""The instructions, what one layer does: half, heads or units, and words.

``sources`` are combinations of rows; everything that an instruction reads is among them, so that its layer follows from
them alone. Instructions of a layer that have the same ``shared`` key are written together, since one head may carry
many values.

Two rules come from rounding. A scalar is read from the first token by all tokens (``FirstToken``): a product across
tokens amplifies rounding by 1/c, and copies that differ in the last digits would break r = b - A x. And entries are
moved, masked and given signs by hard attention and by units that are exact: a 0 stays 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch

from nlaformer.compiler.machine.forms import (
    Forms,
    Head,
    Ints,
    Units,
    added,
    bent,
    masked,
    select,
    stack,
)
from nlaformer.compiler.machine.rows import MATRIX_NORM, Placed
from nlaformer.compiler.terms import Combination
from nlaformer.express.linearize import Linearization

if TYPE_CHECKING:
    from nlaformer.compiler.machine.writer import Writer

Half = Literal["attention", "ffn", "both"]
Parts = tuple[list[Head], list[Units]]
Words = Callable[[Combination], str]
_MATRIX_CEILING = {torch.float64: 46.0, torch.float32: 24.0}
_SHARPNESS = 4.0  # of the softmax that finds the largest entry
SIGN_THRESHOLD = {torch.float64: 2.0**-900, torch.float32: 2.0**-100}  # |sign(v)| is 1 from here on


@dataclass(frozen=True)
class Instruction:
    """What is done in one layer. A base: every class below is final."""

    sources: tuple[Combination, ...]

    half: ClassVar[Half] = "attention"

    @property
    def shared(self) -> Hashable:
        """Instructions of a layer with the same key are written together; None: by itself."""
        return None

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        """The heads and units of the instructions of a group, of which this is the first."""
        raise NotImplementedError

    def words(self, say: Words, beside: Sequence[str]) -> str:
        """What it computes; ``beside`` names the rows that it writes besides."""
        raise NotImplementedError


def _values(to: Writer, group: Sequence[Placed], source: int) -> tuple[Forms, Ints]:
    """The values of a group of instructions, and their target rows."""
    targets = [to.rows(each.target) for each in group]
    forms = (to.forms(e.instruction.sources[source], len(rows)) for e, rows in zip(group, targets, strict=True))
    return stack(*forms), np.concatenate(targets)


def _power(say: Words, exponent: Combination) -> str:
    """A factor e^exponent, in words; ``say`` puts sums in parentheses."""
    text = say(exponent)
    return (f" exp{text}" if text.startswith("(") else f" exp({text})") if exponent else ""


# --- products ---


@dataclass(frozen=True)
class Scale(Instruction):
    """t_j = v_j e^{F_j}: one head, or one for each row of F."""

    @property
    def shared(self) -> Hashable:
        return Scale, self.sources[1]

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        value, target = _values(to, group, 0)
        exponents = to.forms(self.sources[1])
        if exponents.count == 1:
            return [to.exponential(exponents, value, target)], []
        each = exponents.count
        return [to.exponential(exponents[k % each], value[k], target[k : k + 1]) for k in range(len(target))], []

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return say(self.sources[0]) + _power(say, self.sources[1])


@dataclass(frozen=True)
class Kernel(Instruction):
    """t = e^F (C v) for an input matrix C, or its entries squared, kept as logarithms: two heads.

    A matrix kept as logarithms needs no linearization: the kernel of softmax attention is the exponential. ``sources``
    are v, F, log |C| and the masks of its signs.
    """

    name: str = ""
    transposed: bool = False
    power: float = 1.0

    @property
    def shared(self) -> Hashable:
        return Kernel, self.sources[1:], self.transposed, self.power

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        value, target = _values(to, group, 0)
        _, exponent, logs, masks = self.sources
        log, signs = to.forms(logs), to.rows(masks[0][0])
        ceiling = _MATRIX_CEILING[to.target.dtype] + math.log(MATRIX_NORM)
        heads = []
        for k, sign in enumerate((1.0, -1.0)):
            score = log * self.power + select(signs[k * to.n : (k + 1) * to.n])
            query, key = (to.own, score) if self.transposed else (score, to.own)
            query, key = stack(query, to.forms(exponent)), stack(key, to.ones)
            heads.append(to.below(query, key, value, target, ceiling, sign**self.power))
        return heads, []

    def words(self, say: Words, beside: Sequence[str]) -> str:
        if self.power != 1.0:
            return f"row sums of {self.name} * {self.name}"
        return f"{self.name}{'.T' if self.transposed else ''} {say(self.sources[0])}{_power(say, self.sources[1])}"


@dataclass(frozen=True)
class Linear(Instruction):
    """t_j = sum_i value_i (key_i . query_j), the softmax linearized: two heads for each order.

    ``sources`` are key, query and value: u, 1 and v make a dot, the identity, X and Y a matrix product.
    """

    lin: Linearization | None = None

    @property
    def shared(self) -> Hashable:
        return Linear, self.sources[:2], self.lin

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        assert self.lin is not None
        value, target = _values(to, group, 2)
        return to.linear(self.lin, to.forms(self.sources[0]), to.forms(self.sources[1]), value, target), []

    def words(self, say: Words, beside: Sequence[str]) -> str:
        key, query, value = map(say, self.sources)
        if query == "one":
            return f"{key} . {value}"
        if value == "eye":
            return f"{query} {key}^T"
        return f"{query} @ {value}" if key == "eye" else f"{key}^T @ {value}"


@dataclass(frozen=True)
class InToken(Instruction):
    """t_j = value_j (left_j . right_j), token by token, linearized: two heads for each order.

    Of matrices, entry by entry: ``left`` then has as many rows as ``value``, and each has heads of its own.
    """

    lin: Linearization | None = None
    entries: bool = True

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        assert self.lin is not None
        value, target = _values(to, group, 2)
        left, right = to.forms(self.sources[0]), to.forms(self.sources[1])
        if not self.entries or left.count == 1:
            return to.linear_in_token(self.lin, left, right, value, target), []
        rows = range(len(target))
        return [h for k in rows for h in to.linear_in_token(self.lin, left[k], right, value[k], target[k : k + 1])], []

    def words(self, say: Words, beside: Sequence[str]) -> str:
        left, right, value = map(say, self.sources)
        return f"{left} * {value}" if self.entries else f"rows of {left} . rows of {right}"


# --- sums and moves ---


@dataclass(frozen=True)
class Total(Instruction):
    """The sum of all rows of a source over all tokens: one head."""

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        return [to.total(to.forms(self.sources[0]).total(), to.rows(group[0].target))], []

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"sum of {say(self.sources[0])} over tokens"


@dataclass(frozen=True)
class RowSums(Instruction):
    """t_j = sum_k X_jk, in the FFN, which is exact."""

    half: ClassVar[Half] = "ffn"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        return [], added(to.forms(self.sources[0]).total(), to.rows(group[0].target))

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"sums of the rows of {say(self.sources[0])}"


@dataclass(frozen=True)
class FirstToken(Instruction):
    """The first token's value in all tokens, exactly; with a logarithm as second source, value e^-logarithm there.

    With it the logarithm is picked as well, into a row beside.
    """

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        source, *logs = map(to.forms, self.sources)
        target = to.rows(group[0].target)
        if not logs:
            return [to.first(source, target)], []
        picked = to.first(logs[0], to.rows(group[0].beside[0]))
        return [to.pick_exponential(1, -logs[0], source, target), picked], []

    def words(self, say: Words, beside: Sequence[str]) -> str:
        source, *logs = map(say, self.sources)
        return f"{source} exp(-{beside[0]}), {beside[0]} = {logs[0]}, of token 1" if logs else f"{source} of token 1"


@dataclass(frozen=True)
class Peak(Instruction):
    """About the largest value over the tokens: one head."""

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        return [to.peak(to.forms(self.sources[0]), to.rows(group[0].target), _SHARPNESS)], []

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"largest {say(self.sources[0])}"


# From which token each token reads, 1 to n, 0 for none; and which row goes to which.
Reading = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
# A row that goes to a row, and the tokens, 0 to n - 1, where it does.
Showing = tuple[int, int, tuple[int, ...]]


@dataclass(frozen=True)
class Attend(Instruction):
    """Entries of other tokens, by hard attention, exact: one head for each reading.

    ``showing``: what is read stands in rows beside, and the FFN of the same layer shows parts of it in the result.
    """

    readings: tuple[Reading, ...] = ()
    showing: tuple[Showing, ...] = ()

    @property
    def half(self) -> Half:  # type: ignore[override]
        return "both" if self.showing else "attention"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        forms, target = to.forms(self.sources[0]), to.rows(group[0].target)
        rows = to.rows(group[0].beside[0]) if self.showing else target
        heads = []
        for tokens, pairs in self.readings:
            value = stack(*(forms[a] for a, _ in pairs))
            heads.append(to.pick(np.array([0, *tokens]), value, rows[[z for _, z in pairs]]))
        # Rows of the source itself come after those that were read.
        own = stack(select(rows), forms) if self.showing else forms
        return heads, _shown(to, own, target, self.showing) if self.showing else []

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"entries of {say(self.sources[0])} moved"


@dataclass(frozen=True)
class Show(Instruction):
    """Entries of a token's own rows, by masks, exact."""

    showing: tuple[Showing, ...] = ()
    half: ClassVar[Half] = "ffn"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        return [], _shown(to, to.forms(self.sources[0]), to.rows(group[0].target), self.showing)

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"entries of {say(self.sources[0])} in their own tokens"


def _shown(to: Writer, forms: Forms, target: Ints, showing: Sequence[Showing]) -> list[Units]:
    """Units that put forms into rows, each in some tokens."""
    data = to.positions[1:]
    parts, hidden, rows = [], [], []
    for a, z, tokens in showing:
        parts.append(forms[a])
        off = np.delete(data, list(tokens))
        hidden.append(Forms(1, np.zeros(len(off), np.int64), off, np.ones(len(off))))
        rows.append(target[z])
    return masked(stack(*parts), np.array(rows), stack(*hidden)) if parts else []


@dataclass(frozen=True)
class Constant(Instruction):
    """Numbers, one for each token, in each row."""

    numbers: tuple[tuple[float, ...], ...] = ()
    half: ClassVar[Half] = "ffn"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        array = np.array(self.numbers)
        form, token = np.nonzero(array)
        rows = Forms(len(array), form, to.positions[1:][token], array[form, token])
        return [], added(rows, to.rows(group[0].target))

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return "constant"


# --- exact functions ---


@dataclass(frozen=True)
class Relu(Instruction):
    """max(v, 0); ``absolute``: the sum of the absolute values of a token's entries."""

    absolute: bool = False
    half: ClassVar[Half] = "ffn"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        target = to.rows(group[0].target)
        if not self.absolute:
            return [], [bent(to.forms(self.sources[0], len(target)), target)]
        forms = to.forms(self.sources[0])
        target = target.repeat(forms.count)
        return [], [bent(forms, target), bent(-forms, target)]

    def words(self, say: Words, beside: Sequence[str]) -> str:
        source = say(self.sources[0])
        return f"sum of |{source}| over rows" if self.absolute else f"max({source}, 0)"


@dataclass(frozen=True)
class IsZero(Instruction):
    """max(0, 1 - v / t) for v >= 0: 1 at 0, 0 from the threshold on."""

    half: ClassVar[Half] = "ffn"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        target = to.rows(group[0].target)
        forms = to.forms(self.sources[0], len(target)) * (-1.0 / SIGN_THRESHOLD[to.target.dtype])
        return [], [bent(forms + to.ones.copies(len(target)), target)]

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"1 where {say(self.sources[0])} = 0"


@dataclass(frozen=True)
class Sign(Instruction):
    """Where the first mask is 0, u; where the second is, -u; else 0: u times a sign, exactly."""

    half: ClassVar[Half] = "ffn"

    def write(self, to: Writer, group: Sequence[Placed]) -> Parts:
        target = to.rows(group[0].target)
        u, positive, negative = (to.forms(source, len(target)) for source in self.sources)
        return [], masked(u, target, positive) + masked(-u, target, negative)

    def words(self, say: Words, beside: Sequence[str]) -> str:
        return f"{say(self.sources[0])} by the sign of {say(self.sources[1])}"
