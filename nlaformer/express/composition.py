"""The remark after statement (i): f(a_i, b_i) for any composition f of + - * /.

``symbol.steps_of`` runs the user's function on symbols and records its steps as plain data; ``compose`` turns the
steps into layers. Sums, differences and factors known in advance are linear forms and cost nothing; a product costs
one layer and a quotient three, side by side where they do not need each other. f need not be homogeneous, so the
operands cannot be scaled: their magnitude is limited by ``bound`` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nlaformer.errors import DomainError, OptionError
from nlaformer.express.construction import Construction, Operand, Options
from nlaformer.express.heads import Form, Head, Unit, add_form, assemble, product_heads, replace, times
from nlaformer.express.linearize import Linearization, design_product, rounding_unit
from nlaformer.express.pointwise import Quotient, check_divisor, pointwise_layout
from nlaformer.prompt import Layout

_DEFAULT_BOUND = 8.0
# Coefficients known in advance are multiplied out in float64, a few roundings each time.
_FOLDING = 4 * 2.0**-53


class _Known(NamedTuple):
    """A step on given data: its value, a bound on its error, and the size of the terms it sums."""

    value: Tensor
    error: Tensor
    size: Tensor


@dataclass(frozen=True)
class _Placed:
    """A step in the weights: a linear form over rows, the first layer that may read it, the largest it can be."""

    form: Form
    ready: int
    largest: float
    constant: float | None = None
    lin: Linearization | None = None
    quotient: Quotient | None = None


@dataclass
class _Builder:
    """Places the steps, one after the other, into layers and work rows."""

    options: Options
    layout: Layout
    bound: float
    nodes: list[_Placed] = field(default_factory=list)
    stages: list[tuple[list[Head], list[Unit]]] = field(default_factory=list)
    used: int = 0

    def put(self, layer: int, heads: Sequence[Head], units: Sequence[Unit]) -> None:
        while len(self.stages) <= layer:
            self.stages.append(([], []))
        self.stages[layer][0].extend(heads)
        self.stages[layer][1].extend(units)

    def rows(self, count: int) -> list[int]:
        self.used += count
        return list(self.layout["work"])[self.used - count : self.used]

    def place(self, step: list[Any]) -> None:
        name = step[0]
        if name in ("a", "b"):
            self.nodes.append(_Placed({self.layout[name][0]: 1.0}, 0, self.bound))
        elif name == "constant":
            data = list(self.layout["position"])[self.layout.data_tokens]
            self.nodes.append(_Placed(dict.fromkeys(data, step[1]), 0, abs(step[1]), constant=step[1]))
        else:
            left, right = self.nodes[step[1]], self.nodes[step[2]]
            if name == "-":
                name, right = "+", self.scaled(right, -1.0)
            node = {"+": self.sum, "*": self.product, "/": self.ratio}[name](left, right)
            limit = 2.0**100 if self.options.torch_dtype == torch.float64 else 2.0**40
            if not node.largest <= limit:
                raise OptionError(
                    f"f can reach {node.largest:.1g} for operands up to bound={self.bound:g}, beyond the range its "
                    f"weights allow ({limit:.1g}); choose a smaller bound, or a larger minimum"
                )
            self.nodes.append(node)

    def sum(self, left: _Placed, right: _Placed) -> _Placed:
        form = dict(left.form)
        for row, w in right.form.items():
            form[row] = form.get(row, 0.0) + w
        return _Placed(form, max(left.ready, right.ready), left.largest + right.largest)

    def scaled(self, node: _Placed, factor: float) -> _Placed:
        if factor == 0:
            return _Placed({}, 0, 0.0, constant=0.0)
        constant = None if node.constant is None else factor * node.constant
        return _Placed(times(node.form, factor), node.ready, abs(factor) * node.largest, constant)

    def product(self, left: _Placed, right: _Placed) -> _Placed:
        if right.constant is not None:
            return self.scaled(left, right.constant)
        if left.constant is not None:
            return self.scaled(right, left.constant)
        layer, (row,) = max(left.ready, right.ready), self.rows(1)
        options = self.options
        lin = design_product(options.torch_dtype, right.largest / 4, order=options.order, scheme=options.scheme)
        self.put(layer, product_heads(self.layout, lin, right.form, [left.form], [row]), [])
        return _Placed({row: 1.0}, layer + 1, left.largest * right.largest, lin=lin)

    def ratio(self, left: _Placed, right: _Placed) -> _Placed:
        if right.constant is not None:
            if right.constant == 0:
                raise OptionError("f divides by the constant 0")
            return self.scaled(left, 1 / right.constant)
        layer, low = max(left.ready, right.ready), self.options.minimum
        if right.largest <= low:
            raise OptionError(f"f has a divisor that is never above minimum={low:g}; choose a smaller minimum")
        *work, row = self.rows(Quotient.ROWS + 1)
        quotient = Quotient(self.layout, left.form, right.form, work, low, right.largest, self.options.torch_dtype)
        for k, (heads, units) in enumerate(quotient.stages(row)):
            self.put(layer + k, heads, units)
        return _Placed({row: 1.0}, layer + 3, left.largest / low, quotient=quotient)


def compose(options: Options) -> Construction:
    """Weights for the traced composition in ``options.expression``."""
    steps = options.expression or []
    work = sum({"*": 1, "/": 1 + Quotient.ROWS}.get(step[0], 0) for step in steps)
    layout = pointwise_layout(options, work=work, scaled=False)
    builder = _Builder(options, layout, options.bound or _DEFAULT_BOUND)
    for step in steps:
        builder.place(step)
    result = builder.nodes[-1]
    clear = [unit for row in (layout["work"] if work else ()) for unit in replace(row)]
    builder.put(max(result.ready - 1, 0), [], add_form(result.form, layout["result"][0]) + clear)

    def bound(a: Tensor, b: Tensor) -> Tensor:
        known = _evaluate(builder, steps, a, b)
        return 1.01 * _read(known, result, options) + 4 * rounding_unit(options.torch_dtype) * known.value.abs()

    return Construction(
        layout,
        [assemble(layout, heads, units) for heads, units in builder.stages],
        (Operand("a", "row", measure="none"), Operand("b", "row", measure="none")),
        read=lambda P: layout.read(P, "result")[..., 0, :],
        bound=bound,
        check=lambda a, b: _check(builder, steps, a, b),
    )


def _check(builder: _Builder, steps: list[list[Any]], a: Tensor, b: Tensor) -> None:
    for name, x in (("a", a), ("b", b)):
        if bool((x.abs() > builder.bound).any()):
            worst = float(x.reshape(-1)[int(x.abs().argmax())])
            raise DomainError(
                f"pointwise: entry {worst:.6g} of {name} lies beyond bound={builder.bound:g}; build with a larger one"
            )
    _evaluate(builder, steps, a.double(), b.double())


def _evaluate(builder: _Builder, steps: list[list[Any]], a: Tensor, b: Tensor) -> _Known:
    """The last step on given data, in float64, with a bound on the error of the transformer.

    Errors travel as in any forward analysis: |x'y' - xy| <= |x| e_y + |y| e_x + e_x e_y for products,
    (e_x + |x/y| e_y) / (|y| - e_y) for quotients, to which the operation's own error is added.
    """
    known: list[_Known] = []
    options = builder.options
    for step, node in zip(steps, builder.nodes, strict=True):
        if step[0] in ("a", "b", "constant"):
            x = a if step[0] == "a" else b if step[0] == "b" else torch.full_like(a, step[1])
            known.append(_Known(x, torch.zeros_like(x), x.abs()))
            continue
        (x, e_x, size_x), (y, e_y, size_y) = known[step[1]], known[step[2]]
        if node.lin is not None or node.quotient is not None:
            e_x, e_y = (_read(known[k], builder.nodes[k], options) for k in step[1:])
        if node.lin is not None:
            error = x.abs() * e_y + y.abs() * e_x + e_x * e_y + node.lin.product_bound(x.abs() + e_x, y.abs() + e_y)
            known.append(_Known(x * y, error, (x * y).abs() + error))
        elif node.quotient is not None:
            check_divisor("in f", y, y.abs() - e_y, options)
            error = (e_x + (x / y).abs() * e_y) / (y.abs() - e_y)
            error = error + node.quotient.error_bound(x.abs() + e_x, y.abs() - e_y)
            known.append(_Known(x / y, error, (x / y).abs() + error))
        elif step[0] in "+-":
            value = x + y if step[0] == "+" else x - y
            known.append(_Known(value, e_x + e_y, size_x + size_y))
        elif step[0] == "*":
            folded = _FOLDING * size_x * size_y
            known.append(_Known(x * y, x.abs() * e_y + y.abs() * e_x + folded, size_x * size_y))
        else:
            known.append(_Known(x / y, (e_x + _FOLDING * size_x) / y.abs(), size_x / y.abs()))
    return known[-1]


def _read(known: _Known, node: _Placed, options: Options) -> Tensor:
    """The error of a form when a weight evaluates it: one rounding for each of its terms, and one more."""
    return known.error + (len(node.form) + 3) * rounding_unit(options.torch_dtype) * (known.size + known.error)
