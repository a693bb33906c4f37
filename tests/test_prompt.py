"""Named rows and exact scaling."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nlaformer as nf
from nlaformer.express.theorem import RECORDS
from nlaformer.prompt import Layout, exponent, scale


def test_the_prompt_of_matmul_is_that_of_the_theorem():
    A, B = torch.arange(1.0, 5.0, dtype=torch.float64).reshape(2, 2), torch.ones(2, 2, dtype=torch.float64)
    op = nf.operation("matmul", n=2, normalize=False, bound=4.0)
    expected = torch.tensor(
        [
            [0, 1, 2],
            [0, 3, 4],
            [0, 1, 1],
            [0, 1, 1],
            [0, 0, 0],
            [0, 0, 0],
            [1, 0, 0],
            [0, 1, 0],
            [0, 0, 1],
        ],
        dtype=torch.float64,
    )
    assert torch.equal(op.prompt(A, B), expected)


@pytest.mark.parametrize("normalize", [{"normalize": True}, {"normalize": False, "bound": 5.0}])
@pytest.mark.parametrize("name", ["matmul", "transposed_matmul", "matrix_transpose", "outer_product", "divide"])
def test_the_output_is_the_input_with_the_result_in_place(name, normalize):
    """The theorem's output matrix: operands untouched (or replaced), work rows clean, sink column clean."""
    torch.manual_seed(0)
    op = nf.operation(name, n=4, **normalize)
    shapes = RECORDS[name].shapes(4).values()
    operands = [torch.randn(shape) if len(shape) == 2 else torch.randn(shape) + 2 for shape in shapes]
    P = op.prompt(*(x.double() for x in operands))
    out = op.model(P)
    layout = op.layout
    for register in set(layout.names) - {"result"}:
        before, after = layout.read(P, register, slice(None)), layout.read(out, register, slice(None))
        if (name, register) == ("matrix_transpose", "A"):
            before = torch.cat([before[:, :1], before[:, 1:].mT], dim=1)
        torch.testing.assert_close(after, before, rtol=0, atol=1e-8)
    sink = [row for register in layout.names if register not in ("position", "exponent") for row in layout[register]]
    assert torch.equal(out[sink, 0], torch.zeros(len(sink), dtype=torch.float64))


def test_reading_an_unknown_register_names_the_known_ones():
    with pytest.raises(KeyError, match="position"):
        Layout((("A", 2), ("position", 3)), tokens=3)["B"]


@given(
    st.floats(allow_nan=False, allow_infinity=False, width=64).filter(lambda x: x != 0),
    st.sampled_from([torch.float64, torch.float32]),
)
def test_scaling_is_exact_and_reversible(x, dtype):
    value = torch.tensor(x, dtype=dtype)
    if value == 0 or not torch.isfinite(value):
        return
    e = exponent(value.abs())
    scaled = scale(value, -e)
    assert 2**-0.5 <= abs(float(scaled)) <= 2**0.5
    assert float(scale(scaled, e)) == float(value)
    assert math.frexp(abs(float(scaled)))[0] == math.frexp(abs(float(value)))[0]
