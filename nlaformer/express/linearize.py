r"""The softmax linearization: how attention multiplies, and a bound on its error.

Let column j of a prompt look at n data tokens with scores t s_i and values v_i, and at a sink token with score
C and value 0. With M = e^C + n the attention gives

    f(t) = sum_i v_i e^{t s_i} / D(t),      D(t) = e^C + sum_k e^{t s_k},

and at t = 0

    M f'(0) = sum_i v_i s_i  -  (sum_i v_i)(sum_k s_k) / M.                                            (bias)

So the wanted bilinear form sum_i v_i s_i is a derivative of the softmax, and heads with different t difference
it. The paper takes two heads, t = c and t = 0, and multiplies by e^C: (f(c) - f(0)) / c, an error of first
order in c and a factor n e^-C. We take t = +c and t = -c, the same two heads, and multiply by M: the error is
of second order and the factor is gone. ``order=k`` adds heads at +-2c, ..., +-kc with Richardson's weights w_j,

    sum_j w_j M (f(jc) - f(-jc)) / (2jc),       w = (1), (4/3, -1/3), (3/2, -3/5, 1/10),

which removes the derivatives f''', ..., f^(2k-1).

The bound, entry by entry, evaluated on the data of a call
----------------------------------------------------------
*Truncation.* Taylor's formula with Lagrange's remainder gives at most
M sum_j |w_j| (jc)^2k max |f^(2k+1)(t)| / (2k+1)!, the maximum over |t| <= tau = kc. With N(t) = sum_i v_i e^{t s_i},
the coefficients f_m = f^(m)/m! of f = N / D at any t follow from N = f D:

    f_m = N_m - sum_{1<=l<=m} D_l f_{m-l}       (N_m, D_l: Taylor coefficients of N and D over D(t)),

hence |f_m| <= F_m with F_m = a_m + sum_l d_l F_{m-l}, where a_m and d_l bound |N_m| and |D_l|:
a_m = sum_i |v_i| |s_i|^m e^{tau |s_i|} / (m! e^C) and d_l the same with |v_i| = 1, because D(t) >= e^C.

*Bias.* |sum v| |sum s| / M, as above (for the paper's scheme, gain e^C / c, also n e^-C |sum v s|).

*Rounding.* u = eps / 2. Implementations of the softmax subtract the largest score, about C, so the exponent
j c s_i - C is rounded to half a unit in the last place of C: ``exponent_rounding``. That absolute error is a relative
error of the weight and exceeds all others; it doubles whenever C passes a power of two, so C is chosen just below one.
The exponential adds two units in the last place (4u) and the division 3u. The scores are inner products of K terms,
(K + 2) u j c sigma_i with sigma_i = |k_i|.|q_j|; the sum over tokens has ``summands`` nonzero terms,
(summands + 1) u, whatever its order. The rounding of D, (n + 4) u, is common to all weights of a head and column,
so it multiplies the head's output and not its terms. All of it is multiplied by the gain M / (2jc) of each head:
rounding costs O(u / c) and truncation O(c^2k), and ``design`` balances them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nlaformer.arrays import is_whole
from nlaformer.errors import OptionError, shown, unknown_name

_SCHEMES = ("antisymmetric", "paper")
RICHARDSON = {1: (1.0,), 2: (4 / 3, -1 / 3), 3: (3 / 2, -3 / 5, 1 / 10)}
# E|g|^m of a standard normal g, for the truncation term of a typical input.
_ABSOLUTE_MOMENT = {2: 1.0, 3: 1.5957691216057308, 5: 6.383076486422923, 7: 38.29845891853754}
# exp within two units in the last place (4u) and a division through a reciprocal (3u).
_WEIGHT_ROUNDING = 7.0


@dataclass(frozen=True)
class Linearization:
    """The constants of one group of heads: step c, sink score C, number n of data tokens, scheme and order."""

    c: float
    C: float
    tokens: int
    order: int = 1
    scheme: str = "antisymmetric"
    dtype: torch.dtype = torch.float64
    product: bool = False

    @property
    def heads(self) -> tuple[tuple[float, float], ...]:
        """For each head its multiple of c in the score and the gain of its value."""
        if self.scheme == "paper":
            return ((1.0, self._factor / self.c), (0.0, -self._factor / self.c))
        pairs = []
        for j, weight in enumerate(RICHARDSON[self.order], start=1):
            gain = weight * self._factor / (2 * j * self.c)
            pairs += [(float(j), gain), (-float(j), -gain)]
        return tuple(pairs)

    @property
    def _factor(self) -> float:
        """What the derivative f'(0) is multiplied by."""
        if self.product:
            return 4.0
        return math.exp(self.C) + (0 if self.scheme == "paper" else self.tokens)

    @property
    def _degree(self) -> int:
        """The first derivative of f that is not cancelled."""
        return 2 if self.scheme == "paper" else 2 * self.order + 1

    @property
    def steps(self) -> float:
        """Sum of |gain| / factor over the heads: what rounding is multiplied by."""
        return sum(abs(gain) for _, gain in self.heads) / self._factor

    def _truncation(self, coefficient: Tensor) -> Tensor:
        """Lagrange's remainder, from a bound on the Taylor coefficient of the first degree that is not cancelled."""
        power = self._degree - 1
        weights = sum(abs(w) * (j * self.c) ** power for j, w in enumerate(RICHARDSON[self.order], start=1))
        return self._factor * weights * coefficient

    def error_bound(self, values: Tensor, scores: Tensor, sigma: Tensor, inner: int, summands: int) -> Tensor:
        """Bound on each entry of sum_i v_i s_i as the heads compute it; see the module's derivation.

        Parameters
        ----------
        values : (..., n, r), float64, the r value rows of the n data tokens
        scores : (..., n, q), float64, s for each of q queries
        sigma : (..., n, q), |k_i|.|q_j|, what the scores would be without cancellation
        inner : width of the keys
        summands : nonzero terms in a sum over tokens (1 where the values are unit vectors)

        Returns
        -------
        (..., r, q)
        """
        u, tau, e_C = rounding_unit(self.dtype), self.order * self.c, math.exp(self.C)
        size, magnitude = values.abs().mT, scores.abs()  # (..., r, n), (..., n, q)
        tilt = torch.exp(tau * magnitude)
        powers = [magnitude**m * tilt / e_C for m in range(self._degree + 1)]
        F = _taylor_bound([size @ p for p in powers], [p.sum(-2, keepdim=True) for p in powers])
        truncation = self._truncation(F[self._degree])

        total = values.sum(-2)[..., :, None].abs()  # (..., r, 1)
        bias = total * scores.sum(-2, keepdim=True).abs() / e_C
        if self.scheme == "paper":
            bias = bias + self.tokens * (size @ magnitude) / e_C

        amount = size @ tilt  # sum |v_i| e^{tau |s_i|}: a head's output, all its terms taken positive
        output = torch.minimum(amount, total + size @ torch.expm1(tau * magnitude))
        top = self.C + tau * magnitude.amax((-2, -1), keepdim=True)  # the largest exponent of each system
        exponent = _exponent_rounding(top, self.dtype)
        each = exponent + (_WEIGHT_ROUNDING + summands + 1) * u
        common = (self.tokens + 2 * self.order + 8) * u + self.tokens / e_C * exponent
        rounding = self.steps * (each * amount + common * output)
        rounding = rounding + 2 * len(self.heads) * (inner + 2) * u * (size @ (sigma * tilt))
        underflow = self.tokens * sum(abs(gain) for _, gain in self.heads) * torch.finfo(self.dtype).tiny
        return 1.01 * (truncation + bias + rounding) + underflow

    def product_bound(self, value: Tensor, factor: Tensor) -> Tensor:
        """Bound on each entry of value * factor as ``heads.product_heads`` computes it.

        Here f(t) = v sigma(ts) with the logistic function sigma. Its derivative is the Fourier transform of the
        positive function pi w / sinh(pi w), so that each odd derivative is largest at 0: |sigma^(m)| / m! is at most
        1/48, 1/480, 17/80640 for m = 3, 5, 7; and 1 / (12 sqrt 3) for m = 2.
        """
        u, m = rounding_unit(self.dtype), self._degree
        size, magnitude = value.abs(), factor.abs()
        largest = {2: 1 / (12 * math.sqrt(3)), 3: 1 / 48, 5: 1 / 480, 7: 17 / 80640}[m]
        truncation = self._truncation(largest * size * magnitude**m)
        gain = sum(abs(g) for _, g in self.heads)
        exponent = 2 * self.order * self.c * magnitude  # the score and its difference to the largest, each rounded
        output = size * torch.sigmoid(exponent)  # a head's output is v times a weight of about 1/2
        rounding = gain * u * (_WEIGHT_ROUNDING + 2 * self.order + 6 + exponent) * output
        underflow = gain * torch.finfo(self.dtype).tiny
        return 1.01 * (truncation + rounding + 20 * u * size * magnitude) + underflow


def design(
    tokens: int,
    dtype: torch.dtype,
    typical: float,
    *,
    order: int = 1,
    scheme: str = "antisymmetric",
    summands: int = 1,
) -> Linearization:
    """Choose C and c for n data tokens whose scores have root mean square ``typical``.

    C is the largest number below a power of two (16, 32, ...) that makes the bias factor n e^-C harmless.
    c balances truncation and rounding in the bound. Only a quarter of the worst case of the summation is counted,
    because its roundings mostly cancel.

    >>> design(20, torch.float64, typical=0.2).C
    31.875
    """
    check_scheme(order, scheme)
    u = rounding_unit(dtype)
    tolerance = 2.0**-36 if dtype == torch.float64 else 2.0**-13
    C = 16.0
    while tokens * math.exp(-C) > tolerance:
        C *= 2
    C -= 0.125
    kappa = exponent_rounding(C, dtype) + (_WEIGHT_ROUNDING + summands / 4) * u
    if scheme == "paper":
        c = math.sqrt(4 * kappa / _ABSOLUTE_MOMENT[2]) / typical
    else:
        weights = RICHARDSON[order]
        degree = 2 * order + 1
        rounding = sum(abs(w) / j for j, w in enumerate(weights, start=1))
        growth = sum(abs(w) * j ** (degree - 1) for j, w in enumerate(weights, start=1))
        growth *= 2 * order * _ABSOLUTE_MOMENT[degree] / math.factorial(degree)
        c = (kappa * rounding / growth) ** (1 / degree) / typical
    return Linearization(_representable(c, dtype), C, tokens, order, scheme, dtype)


def design_product(
    dtype: torch.dtype, typical: float, *, order: int = 1, scheme: str = "antisymmetric"
) -> Linearization:
    """Choose c for products token by token (``heads.product_heads``): one data token, C = 0.

    The weight of the token's own value is then the logistic function of t s. No constant has to cancel and no
    exponent is rounded to the grid of C, so a product is ten times as accurate as a sum. The derivation above
    holds with n = 1, M = 2, except that the bias is a known factor: f'(0) = v s / 4, not v s / 2.
    """
    lin = design(1, dtype, typical, order=order, scheme=scheme)
    # Rounding is smaller than with a large C, so c may be smaller too.
    shrink = (rounding_unit(dtype) / exponent_rounding(lin.C, dtype)) ** (1 / (2 * order + 1))
    return Linearization(_representable(lin.c * shrink, dtype), 0.0, 1, order, scheme, dtype, product=True)


def typical_of_largest(count: int) -> float:
    """Root mean square of ``count`` normal numbers scaled so that the largest is within sqrt(2) of 1."""
    return 0.85 * math.sqrt(2) / math.sqrt(2 * math.log(2 * count))


def _taylor_bound(a: list[Tensor], d: list[Tensor]) -> list[Tensor]:
    """F_m = a_m / m! + sum_l d_l / l! F_{m-l}, the bound on Taylor coefficients of a quotient."""
    F: list[Tensor] = []
    for m in range(len(a)):
        term = a[m] / math.factorial(m)
        for k in range(1, m + 1):
            term = term + d[k] / math.factorial(k) * F[m - k]
        F.append(term)
    return F


def rounding_unit(dtype: torch.dtype) -> float:
    """u: half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def exponent_rounding(top: float, dtype: torch.dtype) -> float:
    """Half a unit in the last place of a number as large as ``top``."""
    return float(_exponent_rounding(torch.tensor(top, dtype=torch.float64), dtype))


def _exponent_rounding(top: Tensor, dtype: torch.dtype) -> Tensor:
    """The same for each of several numbers: u times the power of two at or below it."""
    return torch.ldexp(torch.full_like(top, rounding_unit(dtype)), torch.frexp(top).exponent - 1)


def check_scheme(order: int, scheme: str) -> None:
    """Refuse unknown schemes and orders, and an order where it means nothing."""
    if not isinstance(scheme, str) or scheme not in _SCHEMES:
        raise unknown_name("scheme", scheme, _SCHEMES)
    if not is_whole(order) or order not in RICHARDSON:
        raise OptionError(f"order is {shown(order)}; it must be 1, 2 or 3 (2, 4 or 6 heads)")
    if scheme == "paper" and order != 1:
        raise OptionError(f"scheme='paper' is one pair of heads; order={order} needs scheme='antisymmetric'")


def _representable(c: float, dtype: torch.dtype) -> float:
    """The nearest number of the dtype, so that the weights hold c itself."""
    return float(torch.tensor(c, dtype=dtype))
