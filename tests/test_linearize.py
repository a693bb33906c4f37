"""The linearization: where its error has its optimum, and what C costs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nlaformer.express.linearize import RICHARDSON, Linearization, design, exponent_rounding

n = 20
rng = np.random.default_rng(0)
VALUES, SCORES = torch.from_numpy(rng.normal(size=(2, 64, n)))  # 64 sums of n terms


def error(lin: Linearization, dtype: torch.dtype = torch.float64) -> float:
    """Root mean square error of sum_i v_i s_i, by a softmax written out here."""
    total = torch.zeros(64, dtype=dtype)
    for multiple, gain in lin.heads:
        scores = torch.cat([torch.full((64, 1), lin.C), multiple * lin.c * SCORES], dim=1).to(dtype)
        values = torch.cat([torch.zeros(64, 1), VALUES], dim=1).to(dtype)
        total = total + gain * (torch.softmax(scores, 1) * values).sum(1)
    return float((total.double() - (VALUES * SCORES).sum(1)).square().mean().sqrt())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("order", "scheme"), [(1, "paper"), (1, "antisymmetric"), (2, "antisymmetric")])
def test_c_gives_at_most_five_times_the_smallest_error(order, scheme, dtype):
    lin = design(n, dtype, typical=1.0, order=order, scheme=scheme)
    best = min(error(replace(lin, c=lin.c * 2.0**k), dtype) for k in range(-8, 9))
    assert error(lin, dtype) <= 5 * best


@pytest.mark.parametrize("order", RICHARDSON)
def test_truncation_falls_with_the_power_of_the_order(order):
    """Where c is far too large, halving it divides the error by 2^(2k)."""
    lin = replace(design(n, torch.float64, typical=1.0, order=order), c=0.2)
    ratio = error(lin) / error(replace(lin, c=0.1))
    assert ratio == pytest.approx(4.0**order, rel=0.35)


def test_rounding_grows_like_one_over_c():
    lin = design(n, torch.float64, typical=1.0)
    ratio = error(replace(lin, c=lin.c / 1024)) / error(replace(lin, c=lin.c / 64))
    assert ratio == pytest.approx(16, rel=0.5)


def test_rounding_doubles_where_C_passes_a_power_of_two():
    lin = replace(design(n, torch.float64, typical=1.0), c=1e-7)
    assert exponent_rounding(32.0, torch.float64) == 2 * exponent_rounding(31.9, torch.float64)
    assert error(replace(lin, C=33.0)) / error(replace(lin, C=31.0)) == pytest.approx(2, rel=0.4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("tokens", [1, 20, 512, 100_000])
def test_C_is_just_below_a_power_of_two_and_large_enough_for_the_sink(tokens, dtype):
    lin = design(tokens, dtype, typical=1.0)
    assert math.log2(lin.C + 0.125).is_integer()
    assert tokens * math.exp(-lin.C) <= 1.3e-4
    assert max(abs(gain) for _, gain in lin.heads) < torch.finfo(dtype).max / 1e6


def test_richardson_weights_solve_their_equations():
    """Sum w_j = 1 and sum w_j j^(2m) = 0 for 0 < m < k."""
    for k, weights in RICHARDSON.items():
        for m in range(k):
            total = sum(w * j ** (2 * m) for j, w in enumerate(weights, start=1))
            assert total == pytest.approx(1.0 if m == 0 else 0.0, abs=1e-12)
