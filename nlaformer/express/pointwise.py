"""Statement (i) of the theorem: products, quotients and their compositions, entry by entry.

The paper uses one FFN for all of this, by the universal approximation theorem. That form is here too (``form="ffn"``),
with the rate at which its error falls with the width: W^-2 for products, W^-4/3 for quotients. The accurate forms let
attention multiply: a token that sees only itself and a sink multiplies its value by a function of its score, the odd
part of a logistic function for products and an exponential for quotients. They need position rows and a sink.

A quotient x / y takes three layers of one head:

1. attention keeps x and y where y > 0, so that |y| and x sgn(y) are linear forms; FFN: l = log|y|, interpolated;
2. attention: g = |y| e^-l, within h^2/8 of 1; FFN: l += log g, interpolated on that tiny interval;
3. attention: x sgn(y) e^-l.

The error of step 1 enters step 2 only through its square, so a thousand hidden units reach 1e-14.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nlaformer.errors import DomainError
from nlaformer.express.construction import Construction, Operand, Options
from nlaformer.express.heads import (
    OFF,
    Form,
    Head,
    Unit,
    assemble,
    exponential_head,
    gate_head,
    piecewise_linear,
    product_heads,
    replace,
    times,
)
from nlaformer.express.linearize import (
    Linearization,
    design_product,
    exponent_rounding,
    rounding_unit,
    typical_of_largest,
)
from nlaformer.prompt import Layout

_FFN_WIDTH = 1024


def multiply(options: Options) -> Construction:
    """P = [0 a; 0 b; 0 0; e_1 .. e_{n+1}] -> a b in the third row: one layer, two heads, no FFN."""
    if options.form == "ffn":
        return _multiply_ffn(options)
    layout = pointwise_layout(options)
    a, b, result = (layout[name][0] for name in ("a", "b", "result"))
    typical = options.largest / 2**0.5 * typical_of_largest(options.n)
    lin = design_product(options.torch_dtype, typical, order=options.order, scheme=options.scheme)
    heads = product_heads(layout, lin, {b: 1.0}, [{a: 1.0}], [result])
    return _construction(options, layout, [(heads, [])], lin.product_bound, lin)


def divide(options: Options) -> Construction:
    """P = [0 a; 0 b; 0 0; work; e_1 .. e_{n+1}] -> a / b in the third row: three layers of one head."""
    if options.form == "ffn":
        return _divide_ffn(options)
    layout = pointwise_layout(options, work=Quotient.ROWS)
    a, b, result, work = (layout[name] for name in ("a", "b", "result", "work"))
    quotient = Quotient(
        layout, {a[0]: 1.0}, {b[0]: 1.0}, list(work), options.minimum, options.largest, options.torch_dtype
    )
    stages = quotient.stages(result[0])
    stages[-1][1].extend(unit for row in work for unit in replace(row))
    return _construction(options, layout, stages, quotient.error_bound)


def _multiply_ffn(options: Options) -> Construction:
    """A b = ((a + b)^2 - (a - b)^2) / 4 with both squares interpolated by half the units: error h^2 / 16."""
    layout = pointwise_layout(options, positions=False)
    a, b, result = (layout[name][0] for name in ("a", "b", "result"))
    half = (options.width or _FFN_WIDTH) // 2
    reach = 2 * options.largest
    h = 2 * reach / (half - 1)
    knots = [-reach + h * k for k in range(half)]
    squares = [knot**2 for knot in knots]
    units = piecewise_linear({a: 1.0, b: 1.0}, knots, squares, {result: 0.25})
    units += piecewise_linear({a: 1.0, b: -1.0}, knots, squares, {result: -0.25})
    rounding = (2 * half + 8) * rounding_unit(options.torch_dtype) * 8 * reach**2
    error = 1.01 * (h**2 / 16 + rounding)
    return _construction(options, layout, [([], units)], bound=lambda a, b: torch.full_like(a, error))


def _divide_ffn(options: Options) -> Construction:
    """A / b = (log|b + eta a| - log|b - eta a|) / (2 eta) + O(eta^2): two ridge functions of one hidden layer.

    The logarithm is interpolated at geometric knots, two-sided, a quarter of the units for each sign and term: its
    error h^2/8 is divided by 2 eta, the difference quotient's is eta^2 |a/b|^3 / 3, and eta balances them.
    """
    layout = pointwise_layout(options, positions=False)
    a, b, result = (layout[name][0] for name in ("a", "b", "result"))
    count = (options.width or _FFN_WIDTH) // 4
    low, high = options.minimum / 2, 2 * options.largest
    h = math.log(high / low) / (count - 1)
    knots = [low * math.exp(h * k) for k in range(count)]
    logs = [math.log(knot) for knot in knots]
    worst = options.largest / options.minimum
    eta = min((h**2 / (16 * 2 * worst**3 / 3)) ** (1 / 3), low / options.largest)
    slope = (logs[1] - logs[0]) / (knots[1] - knots[0])
    units: list[Unit] = []
    for sign in (1.0, -1.0):
        form, output = {b: 1.0, a: sign * eta}, {result: sign / (2 * eta)}
        for side in (times(form, 1.0), times(form, -1.0)):
            # Beyond zero the interpolant continues with its first slope, which one more unit subtracts.
            units += piecewise_linear(side, knots, logs, output)[:-1]
            units.append(Unit(side, 0.0, times(output, slope)))
    sizes = 4 * (slope * high + math.log(high / low)) / (2 * eta)
    rounding = (4 * count + 8) * rounding_unit(options.torch_dtype) * sizes

    def bound(a: Tensor, b: Tensor) -> Tensor:
        step = (eta * a / b).abs()
        truncation = eta**2 * (a / b).abs() ** 3 / (3 * (1 - step**2))
        return 1.01 * (truncation + h**2 / (16 * eta) + rounding)

    return _construction(options, layout, [([], units)], bound)


class Quotient:
    """The three stages of x / y, with |y| in [low, high], and a bound on their relative error."""

    ROWS = 4  # x where y > 0, y where y > 0, l, g

    def __init__(
        self, layout: Layout, x: Form, y: Form, rows: Sequence[int], low: float, high: float, dtype: torch.dtype
    ):
        self.layout, self.x, self.y, self.rows = layout, x, y, rows
        u = rounding_unit(dtype)
        width, fine = (1024, 64) if dtype == torch.float64 else (256, 32)
        low, high = low * 0.999, high * 1.001
        h = math.log(high / low) / (width - 1)
        self.knots = [low * math.exp(h * k) for k in range(width)]
        largest_log = max(abs(math.log(low)), abs(math.log(high)))
        # l may be wrong by the interpolation, h^2/8 too small, and by the rounding of a sum of one sign.
        slack = 2 * (width + 8) * u * (largest_log + math.log(high / low))
        top = math.expm1(h**2 / 8 + slack) * 1.01
        step = (top + slack) / (fine - 1)
        self.fine_knots = [1 - slack + step * k for k in range(fine)]
        self.gate = {row: OFF / low * w for row, w in y.items()}
        margin = 37.0 if dtype == torch.float64 else 17.0
        self.ceiling = -math.log(low) + margin
        exponential = exponent_rounding(self.ceiling + largest_log, dtype) + 16 * u + 2 * math.exp(-margin)
        # Below this a value times e^-ceiling is no longer a normal number.
        self.underflow = 2 * math.exp(self.ceiling) * torch.finfo(dtype).tiny
        self.relative_error = 1.01 * (step**2 / (8 * (1 - slack) ** 2) + 2 * exponential + 8 * u * largest_log)

    def error_bound(self, x: Tensor, y: Tensor) -> Tensor:
        """Bound on each entry of x / y as the three stages compute it."""
        return self.relative_error * (x / y).abs() + self.underflow * (1 + 1 / y.abs())

    def stages(self, target: int) -> list[tuple[list[Head], list[Unit]]]:
        """Heads and units of the three layers; the quotient is added to ``target``."""
        layout, sink = self.layout, self.layout["position"][0]
        positive_x, positive_y, log, ratio = self.rows
        magnitude = {positive_y: 2.0} | times(self.y, -1.0)  # |y| = 2 max(y, 0) - y
        signed_x = {positive_x: 2.0} | times(self.x, -1.0)
        logs, fine_logs = [math.log(knot) for knot in self.knots], [math.log(knot) for knot in self.fine_knots]
        return [
            (
                [gate_head(layout, self.gate, [self.x, self.y], [positive_x, positive_y])],
                piecewise_linear(magnitude, self.knots, logs, {log: 1.0}, sink),
            ),
            (
                [exponential_head(layout, {log: -1.0}, [magnitude], [ratio], self.ceiling)],
                piecewise_linear({ratio: 1.0}, self.fine_knots, fine_logs, {log: 1.0}, sink),
            ),
            ([exponential_head(layout, {log: -1.0}, [signed_x], [target], self.ceiling)], []),
        ]


def _construction(
    options: Options,
    layout: Layout,
    stages: Sequence[tuple[Sequence[Head], Sequence[Unit]]],
    bound: Callable[..., Tensor],
    linearization: Linearization | None = None,
) -> Construction:
    divides = options.name == "divide"
    return Construction(
        layout,
        [assemble(layout, heads, units) for heads, units in stages],
        (Operand("a", "row"), Operand("b", "row")),
        read=lambda P: layout.read(P, "result")[..., 0, :],
        bound=bound,
        result_exponent=lambda e_a, e_b: e_a - e_b if divides else e_a + e_b,
        check=lambda a, b: check_divisor("b", b, b.abs(), options) if divides else None,
        linearization=linearization,
    )


def pointwise_layout(options: Options, work: int = 0, positions: bool = True, scaled: bool = True) -> Layout:
    """Rows a, b, result; work rows, positions and the operands' power of two where needed."""
    registers = [("a", 1), ("b", 1), ("result", 1)]
    if work:
        registers.append(("work", work))
    if positions:
        registers.append(("position", options.n + 1))
    if scaled and options.normalize:
        registers.append(("exponent", 1))
    return Layout(tuple(registers), tokens=options.n + positions, sink=positions)


def check_divisor(name: str, divisor: Tensor, magnitude: Tensor, options: Options) -> None:
    """Refuse divisors whose magnitude may be closer to zero than the weights allow, or is NaN."""
    small = ~(magnitude >= options.minimum)
    if bool(small.any()):
        where = torch.nonzero(small)[0].tolist()
        index = "".join(f"[{k}]" for k in where)
        scaled = " after scaling" if options.normalize and options.name == "divide" else ""
        raise DomainError(
            f"{options.name}: the divisor {name}{index} is {float(divisor[tuple(where)]):.6g}{scaled}, "
            f"closer to zero than minimum={options.minimum:g}; choose a smaller minimum, or avoid such divisors"
        )
