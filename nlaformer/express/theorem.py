"""The operations of the paper's theorem: one short function and one record each.

Each builder states the prompt and the weights; the prompts are the theorem's, with the corrections that
``docs/errata.md`` lists. The attention writes the result itself, because its gain already holds the factor 1/c that
the paper leaves to the FFN; an FFN is then needed only where the result replaces an operand, exact but for rounding.
Where operands are scaled, one more row, ``exponent``, carries the power of two of the result; no weight reads it.

``RECORDS``, at the end, holds everything about an operation that other code needs. To add an operation, write its
builder and its record; the command line, Table 1, the benchmarks and the tests read the record.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nlaformer.errors import DomainError
from nlaformer.express import composition, pointwise
from nlaformer.express.construction import Construction, Operand, Options, column, row
from nlaformer.express.heads import Form, Unit, add_form, assemble, exchange, linear_heads, pick_head, replace, select
from nlaformer.express.linearize import Linearization, design, rounding_unit, typical_of_largest
from nlaformer.prompt import Layout

# --- linear in one FFN: statement (i), addition and subtraction, and the row shift of (ii) -----------------------


def add(options: Options, sign: float = 1.0) -> Construction:
    """P = [a; b; 0] over n tokens -> [a; b; a +- b]. No attention, FFN of width 2, exact but for rounding."""
    layout = Layout((("a", 1), ("b", 1), ("result", 1)), tokens=options.n, sink=False)
    form: Form = {layout["a"][0]: 1.0, layout["b"][0]: sign}
    u = rounding_unit(options.torch_dtype)
    return Construction(
        layout,
        [assemble(layout, units=add_form(form, layout["result"][0]))],
        (Operand("a", "row", measure="none"), Operand("b", "row", measure="none")),
        read=lambda P: layout.read(P, "result")[..., 0, :],
        bound=lambda a, b: 3 * u * (a.abs() + b.abs()),
    )


def row_shift(options: Options) -> Construction:
    """P = [a; b] over n tokens -> [b; a]. No attention, no positions: FFN of width 2 on the difference."""
    layout = Layout((("a", 1), ("b", 1)), tokens=options.n, sink=False)
    u = rounding_unit(options.torch_dtype)
    return Construction(
        layout,
        [assemble(layout, units=exchange(layout["a"][0], layout["b"][0]))],
        (Operand("a", "row", measure="none"), Operand("b", "row", measure="none")),
        read=lambda P: (layout.read(P, "a")[..., 0, :], layout.read(P, "b")[..., 0, :]),
        bound=lambda a, b: (3 * u * (a.abs() + b.abs()),) * 2,
    )


# --- attention --------------------------------------------------------------------------------------------------


def column_shift(options: Options) -> Construction:
    """P = [0 a b; 0 0 0; e_1 e_2 e_3] -> [0 b a; 0 0 0; e_1 e_2 e_3].

    The paper linearizes a softmax whose scores are a permutation times c. A permutation needs no linearization:
    scores that are large instead of small make hard attention with one head, exact but for rounding.
    ``scheme="paper"`` gives the paper's pair.
    """
    n = options.n
    layout = Layout((("data", n), ("work", n), ("position", 3)), tokens=3)
    data, work, position = layout["data"], layout["work"], layout["position"]
    first, second = slice(1, 2), slice(2, 3)
    u = rounding_unit(options.torch_dtype)
    lin = design(2, options.torch_dtype, 1.0, scheme="paper", summands=2) if options.scheme == "paper" else None
    if lin is None:
        heads = [pick_head(layout, (0, 2, 1), select(data), work)]
    else:
        swapped = [{position[2]: 1.0}, {position[1]: 1.0}]
        heads = linear_heads(layout, lin, key=select(position[1:]), query=swapped, value=select(data), target=work)

    def bound(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        moved = 4 * u * (a.abs() + b.abs())
        if lin is None:
            return moved, moved
        swap = torch.eye(2, dtype=torch.float64, device=a.device).flip(0)
        attention = lin.error_bound(torch.stack([a, b], -2), swap, swap, inner=3, summands=2)  # (..., n, 2)
        return attention[..., 0] + moved, attention[..., 1] + moved

    return Construction(
        layout,
        [assemble(layout, heads, _replace_block(data, work))],
        (Operand("a", "column", first, "none", "data"), Operand("b", "column", second, "none", "data")),
        read=lambda P: (layout.read(P, "data", first)[..., 0], layout.read(P, "data", second)[..., 0]),
        bound=bound,
        linearization=lin,
    )


def vector_transpose(options: Options) -> Construction:
    """P = [0 a^T; 0 0; e_1 .. e_{n+1}] -> [0 .. 0 a; 0 .. 0 0; e_1 .. e_{n+1}]: a row becomes the last column.

    Key a_i, query c at the last token, value e_i. Rows 1..n of the output include the row in which a stands, so the
    attention writes one row lower and the FFN moves the block up.
    """
    n = options.n
    layout = _layout(options, (("a", 1), ("work", n), ("position", n + 1)))
    block, last = [*layout["a"], *layout["work"]], slice(n, n + 1)
    up = [unit for here, below in itertools.pairwise(block) for unit in replace(here, {below: 1.0})]
    return _linearized(
        options,
        layout,
        _design(options, n),
        (Operand("a", "row"),),
        key=select(layout["a"]),
        query=[{layout["position"][n]: 1.0}],
        value=_positions(layout),
        target="work",
        scores=column,
        read=lambda P: torch.cat([layout.read(P, "a", last), layout.read(P, "work", last)[..., : n - 1, :]], -2),
        units=[*up, *replace(block[-1])],
        moved=lambda a: 2 * a.abs().amax(-1)[..., None, None] + column(a.abs()),
    )


def inner_product(options: Options) -> Construction:
    """P = [0 a^T; 0 b^T; 0 0; e_1 .. e_{n+1}] -> a^T b in the third row of the last column.

    Key a_i, query c at the last token, value b_i (the paper's W_V lacks e^C and overwrites b: errata).
    """
    n = options.n
    layout = _layout(options, (("a", 1), ("b", 1), ("result", 1), ("position", n + 1)))
    return _linearized(
        options,
        layout,
        _design(options, n, summands=math.isqrt(n)),  # roundings of one sum mostly cancel
        (Operand("a", "row"), Operand("b", "row")),
        key=select(layout["a"]),
        query=[{layout["position"][n]: 1.0}],
        value=select(layout["b"]),
        scores=lambda a, b: column(a),
        values=lambda a, b: column(b),
        read=lambda P: layout.read(P, "result", slice(n, n + 1)),
        part=lambda block: block[..., 0, 0],
    )


def outer_product(options: Options) -> Construction:
    """P = [0 a^T; 0 b^T; 0 0; e_1 .. e_{n+1}] -> a b^T in the result rows. Key a_i, query c b_j, value e_i."""
    n = options.n
    layout = _layout(options, (("a", 1), ("b", 1), ("result", n), ("position", n + 1)))
    return _linearized(
        options,
        layout,
        _design(options, n, factors=2),
        (Operand("a", "row"), Operand("b", "row")),
        key=select(layout["a"]),
        query=select(layout["b"]),
        value=_positions(layout),
        scores=lambda a, b: column(a) * row(b),
        read=lambda P: layout.read(P, "result"),
    )


def matrix_transpose(options: Options) -> Construction:
    """P = [0 A; 0 0; e_1 .. e_{n+1}] -> [0 A^T; 0 0; e_1 .. e_{n+1}]. Key column a_i, query c e_j, value e_i."""
    n = options.n
    layout = _layout(options, (("A", n), ("work", n), ("position", n + 1)))
    return _linearized(
        options,
        layout,
        _design(options, n * n),
        (Operand("A", "matrix"),),
        key=select(layout["A"]),
        query=_positions(layout),
        value=_positions(layout),
        target="work",
        scores=lambda A: A.mT,
        read=lambda P: layout.read(P, "A"),
        units=_replace_block(layout["A"], layout["work"]),
        moved=lambda A: A.abs() + A.abs().mT,
    )


def transposed_matmul(options: Options) -> Construction:
    """P = [0 A; 0 B; 0 0; e_1 .. e_{n+1}] -> A^T B in the result rows. Key column a_i, query c b_j, value e_i.

    The scores are the result, which the norms of the columns bound more tightly than the largest entry does. The
    operands are therefore scaled by the largest norm of a column.
    """
    n = options.n
    layout = _layout(options, (("A", n), ("B", n), ("result", n), ("position", n + 1)))
    typical = 1 / math.sqrt(n)  # of unit vectors in random directions, norms rounded to powers of two
    if not options.normalize:
        typical = (options.score_bound or n * options.largest**2) / (4 * math.sqrt(n))
    return _linearized(
        options,
        layout,
        design(n, options.torch_dtype, typical, order=options.order, scheme=options.scheme),
        (Operand("A", "matrix", measure="column norm"), Operand("B", "matrix", measure="column norm")),
        key=select(layout["A"]),
        query=select(layout["B"]),
        value=_positions(layout),
        scores=lambda A, B: A.mT @ B,
        read=lambda P: layout.read(P, "result"),
    )


def matmul(options: Options) -> Construction:
    """P = [0 A; 0 B; 0 0; e_1 .. e_{n+1}] -> A B in the result rows, in ONE layer.

    The paper transposes A and then computes A^T B, two layers. But A b_j = sum_i a_i B_ij is itself a sum over
    tokens: value a_i, key e_i, query c b_j.
    """
    n = options.n
    layout = _layout(options, (("A", n), ("B", n), ("result", n), ("position", n + 1)))
    return _linearized(
        options,
        layout,
        _design(options, n * n, summands=n),
        (Operand("A", "matrix"), Operand("B", "matrix")),
        key=_positions(layout),
        query=select(layout["B"]),
        value=select(layout["A"]),
        scores=lambda A, B: B,
        values=lambda A, B: A.mT,
        read=lambda P: layout.read(P, "result"),
    )


def matvec(options: Options) -> Construction:
    """P = [0 A; 0 b^T; 0 0; e_1 .. e_{n+1}] -> A b in the result rows of the last column, in ONE layer.

    Value a_i, key b_i, query c at the last token; the paper uses two layers.
    """
    n = options.n
    layout = _layout(options, (("A", n), ("b", 1), ("result", n), ("position", n + 1)))
    return _linearized(
        options,
        layout,
        _design(options, n, summands=math.isqrt(n)),
        (Operand("A", "matrix"), Operand("b", "row")),
        key=select(layout["b"]),
        query=[{layout["position"][n]: 1.0}],
        value=select(layout["A"]),
        scores=lambda A, b: column(b),
        values=lambda A, b: A.mT,
        read=lambda P: layout.read(P, "result", slice(n, n + 1)),
        part=lambda block: block[..., 0],
    )


# --- shared pieces ----------------------------------------------------------------------------------------------


def _linearized(
    options: Options,
    layout: Layout,
    lin: Linearization,
    operands: tuple[Operand, ...],
    *,
    key: Sequence[Form],
    query: Sequence[Form],
    value: Sequence[Form],
    scores: Callable[..., Tensor],
    values: Callable[..., Tensor] | None = None,
    read: Callable[[Tensor], Tensor],
    part: Callable[[Tensor], Tensor] = lambda block: block,
    target: str = "result",
    units: Sequence[Unit] = (),
    moved: Callable[..., Tensor] = lambda *operands: 0.0,  # type: ignore[assignment, return-value]
) -> Construction:
    """One layer that adds sum_i value_i (key_i . query_j) to the target rows, with its bound.

    For given operands, ``scores`` are the products key_i . query_j, (..., n, q), and ``values`` the values,
    (..., n, r); without it they are unit vectors. ``part`` takes the result out of the block that ``read`` finds in P.
    ``units`` are the FFN's, and ``moved`` is the size of what they add and subtract.
    """
    u = rounding_unit(options.torch_dtype)

    def bound(*given: Tensor) -> Tensor:
        s = scores(*given)
        v = torch.eye(options.n, dtype=s.dtype, device=s.device) if values is None else values(*given)
        sigma, summands = scores(*(operand.abs() for operand in given)), 1 if values is None else options.n
        attention = lin.error_bound(v, s, sigma, inner=len(key) + 1, summands=summands)
        return part(attention + 4 * u * moved(*given))

    def check(*given: Tensor) -> None:
        if options.score_bound is None:
            return
        largest = scores(*(operand.double() for operand in given)).abs()
        if largest.numel() and float(largest.max()) > options.score_bound * (1 + 1e-6):
            raise DomainError(
                f"{options.name}: a score reaches {float(largest.max()):.6g}, beyond the declared "
                f"score_bound={options.score_bound:g}; declare a larger one"
            )

    heads = linear_heads(layout, lin, key=key, query=query, value=value, target=layout[target])
    layers = [assemble(layout, heads, units)]
    return Construction(layout, layers, operands, lambda P: part(read(P)), bound, check=check, linearization=lin)


def _layout(options: Options, registers: tuple[tuple[str, int], ...]) -> Layout:
    """The theorem's rows over n + 1 tokens; where operands are scaled, the row that carries the power of two."""
    exponent = (("exponent", 1),) if options.normalize else ()
    return Layout((*registers, *exponent), tokens=options.n + 1)


def _design(options: Options, count: int, *, factors: int = 1, summands: int = 1) -> Linearization:
    """C and c for scores that are entries, or products of ``factors`` entries, of operands with ``count`` of them."""
    largest = (options.score_bound or options.largest**factors) / 2 ** (factors / 2)
    # Products of normal numbers have heavier tails than normal numbers: count them as larger.
    typical = largest * typical_of_largest(count) ** factors * 2.5 ** (factors - 1)
    return design(
        options.n, options.torch_dtype, typical, order=options.order, scheme=options.scheme, summands=summands
    )


def _positions(layout: Layout) -> list[Form]:
    """The unit vectors of the data tokens."""
    return select(list(layout["position"])[layout.data_tokens])


def _replace_block(data: Sequence[int], work: Sequence[int]) -> list[Unit]:
    """Data = work, work = 0: what the FFN does where a result takes its operand's place."""
    return [
        unit
        for here, source in zip(data, work, strict=True)
        for unit in (*replace(here, {source: 1.0}), *replace(source))
    ]


# --- the records ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """What the paper prints: input size O(size) and layers in its Table 1, heads in its theorem.

    ``loop_size`` and ``loop_layers`` are the loop-transformer's, where the table lists it.
    """

    size: str
    layers: str
    heads: str
    loop_size: str | None = None
    loop_layers: str | None = None


@dataclass(frozen=True)
class Record:
    """Everything about one operation.

    Attributes
    ----------
    build : makes the construction
    operands : names of the arguments, capital letters for n x n matrices, small letters for vectors of length n
    reference : the operation on NumPy or torch arrays with any batch dimensions
    result : the result and its shape in words
    printed : what the paper prints, or None if it does not have the operation
    forms : what ``form=`` may be
    f : where the operation is built from a function, the one that Table 1 and the tests use
    divisor : the operand that must not come near zero, if there is one
    relative_to : what an error is compared with; a sum of products may vanish, so it is compared with its operands
    """

    build: Callable[[Options], Construction]
    operands: tuple[str, ...]
    reference: Callable[..., Any]
    result: str
    printed: Printed | None = None
    forms: tuple[str, ...] = ("accurate",)
    f: Callable[[Any, Any], Any] | None = None
    divisor: str | None = None
    relative_to: Literal["result", "operands"] = "result"

    def shapes(self, n: int) -> dict[str, tuple[int, ...]]:
        """The shape of each operand, without batch dimensions."""
        return {name: (n, n) if name.isupper() else (n,) for name in self.operands}

    @property
    def call(self) -> str:
        """How the operation is called, in words."""
        return f"op({', '.join(self.operands)})"

    @property
    def arguments(self) -> str:
        """The operands and their shapes, in words."""
        return ", ".join(f"{name} (n, n)" if name.isupper() else f"{name} (n,)" for name in self.operands)


def _example(a: Any, b: Any) -> Any:
    """The composition that stands for ``pointwise`` in tables and tests."""
    return a * b + b / 3


RECORDS: dict[str, Record] = {
    "add": Record(add, ("a", "b"), lambda a, b: a + b, "a + b, (n,)", Printed("n", "1", "1", "n", "12n")),
    "subtract": Record(
        lambda options: add(options, -1.0),
        ("a", "b"),
        lambda a, b: a - b,
        "a - b, (n,)",
        Printed("n", "1", "1", "n", "12n"),
    ),
    "multiply": Record(
        pointwise.multiply,
        ("a", "b"),
        lambda a, b: a * b,
        "a_i b_i, (n,)",
        Printed("n", "1", "1", "n", "12n"),
        forms=("accurate", "ffn"),
    ),
    "divide": Record(
        pointwise.divide,
        ("a", "b"),
        lambda a, b: a / b,
        "a_i / b_i, (n,)",
        Printed("n", "1", "1", "n", "12n"),
        forms=("accurate", "ffn"),
        divisor="b",
    ),
    "pointwise": Record(
        composition.compose,
        ("a", "b"),
        _example,
        "f(a_i, b_i), (n,); f=... when it is built",
        Printed("n", "1", "1"),
        f=_example,
    ),
    "column_shift": Record(
        column_shift,
        ("a", "b"),
        lambda a, b: (b, a),
        "the pair (b, a), (n,) and (n,); in P they are columns",
        Printed("n", "1", "2", "n", "4"),
    ),
    "row_shift": Record(
        row_shift,
        ("a", "b"),
        lambda a, b: (b, a),
        "the pair (b, a), (n,) and (n,); in P they are rows",
        Printed("n", "1", "1", "n log n", "4n"),
    ),
    "vector_transpose": Record(
        vector_transpose, ("a",), column, "a as a column, (n, 1)", Printed("n^2", "1", "2", "n^3", "4")
    ),
    "inner_product": Record(
        inner_product,
        ("a", "b"),
        lambda a, b: (a * b).sum(-1),
        "a^T b, a number, ()",
        Printed("n^2", "1", "2", "n^3", "6"),
        relative_to="operands",
    ),
    "outer_product": Record(
        outer_product,
        ("a", "b"),
        lambda a, b: column(a) * row(b),
        "a b^T, (n, n)",
        Printed("n^2", "1", "2", "n^3", "6"),
    ),
    "matrix_transpose": Record(
        matrix_transpose, ("A",), lambda A: A.swapaxes(-1, -2), "A^T, (n, n)", Printed("n^2", "1", "2", "n^3", "4")
    ),
    "transposed_matmul": Record(
        transposed_matmul,
        ("A", "B"),
        lambda A, B: A.swapaxes(-1, -2) @ B,
        "A^T B, (n, n)",
        Printed("n^2", "1", "2", "n^3", "6"),
    ),
    "matmul": Record(matmul, ("A", "B"), lambda A, B: A @ B, "A B, (n, n)", Printed("n^2", "2", "2", "n^3", "10")),
    "matvec": Record(
        matvec, ("A", "b"), lambda A, b: (A @ column(b))[..., 0], "A b, (n,)", Printed("n^2", "2", "2", "n^3", "6")
    ),
}
