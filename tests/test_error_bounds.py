"""``error_bound`` is never below the error, and not far above it."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nlaformer as nf
from tests.reference import OPERATIONS, draw, exact, one_array

MAGNITUDES = {torch.float64: (-300, 300), torch.float32: (-36, 36)}


@st.composite
def cases(draw_from):
    """An operation with operands that are ordinary, tiny, huge, repeated, sparse or dominated by one entry."""
    name = draw_from(st.sampled_from(list(OPERATIONS)))
    n = draw_from(st.sampled_from([1, 2, 3, 4, 5, 8, 13, 21]))
    dtype = draw_from(st.sampled_from([torch.float64, torch.float32]))
    scheme = draw_from(st.sampled_from(["antisymmetric", "antisymmetric", "antisymmetric", "paper"]))
    order = 1 if scheme == "paper" else draw_from(st.sampled_from([1, 2, 3]))
    rng = np.random.default_rng(draw_from(st.integers(0, 2**32 - 1)))
    low, high = MAGNITUDES[dtype]
    operands = []
    for original in draw(name, n, rng, dtype):
        x = original
        shape = draw_from(
            st.sampled_from(["normal", "zeros", "repeated", "sparse", "dominant", "positive", "mixed", "integers"])
        )
        if shape == "zeros":
            x = 0 * x
        elif shape == "repeated":
            x = np.full_like(x, x.flat[0])
        elif shape == "sparse":
            x = x * (rng.random(x.shape) < 0.3)
        elif shape == "dominant":
            x = x.copy()
            x.flat[rng.integers(x.size)] *= 1e6
        elif shape == "positive":
            x = np.abs(x)
        elif shape == "mixed":
            x = x * 10.0 ** rng.uniform(-12, 0, x.shape)
        elif shape == "integers":
            x = np.round(3 * x)
        half = (high - low) / 4  # so that products stay within the range of the dtype
        operands.append((x * 10.0 ** draw_from(st.integers(int(low + half), int(high - half)))).astype(original.dtype))
    return name, n, dtype, order, scheme, operands


@settings(max_examples=2500, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_the_bound_is_never_below_the_error(case):
    name, n, dtype, order, scheme, operands = case
    op = nf.operation(name, n=n, order=order, dtype=dtype, scheme=scheme)
    if name == "divide":
        divisor = np.abs(operands[1].astype(np.longdouble))
        if (divisor < divisor.max() * 2.0**-19).any() or not divisor.any():  # minimum is 2^-20 of the scaled largest
            return
    result = one_array(op(*operands)).astype(np.longdouble)
    error = np.abs(result - exact(name, *operands))
    assert (error <= one_array(op.error_bound(*operands))).all()


@pytest.mark.parametrize("n", [5, 20, 64, 256, 512])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", ["matrix_transpose", "transposed_matmul", "matmul", "outer_product"])
def test_the_bound_is_within_twenty_times_the_error(name, dtype, n):
    for seed in range(3):
        operands = draw(name, n, np.random.default_rng(seed), dtype)
        op = nf.operation(name, n=n, dtype=dtype)
        wanted = exact(name, *operands, extended=dtype == torch.float64 and n <= 64)
        error = np.abs(op(*operands).astype(wanted.dtype) - wanted)
        bound = op.error_bound(*operands)
        assert error.max() <= bound.max() <= 20 * error.max()


@pytest.mark.parametrize("order", [2, 3])
def test_each_higher_order_is_at_least_three_times_as_accurate(order):
    """Four and six heads are each several times as accurate as two fewer, bound and error alike."""
    operands = draw("matmul", 20, np.random.default_rng(0))
    wanted = exact("matmul", *operands)

    def error_and_bound(k):
        op = nf.operation("matmul", n=20, order=k)
        return np.abs(op(*operands) - wanted).max(), op.error_bound(*operands).max()

    for coarse, fine in zip(error_and_bound(order - 1), error_and_bound(order), strict=True):
        assert fine <= coarse / 3
