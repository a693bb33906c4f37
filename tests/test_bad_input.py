"""Bad input gets a clear error of our own type."""

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.errors import DomainError, DTypeError, NLAFormerError, OptionError, ShapeError, UnknownNameError

A = np.eye(3)
v = np.ones(3)


@pytest.mark.parametrize(
    ("operands", "error", "words"),
    [
        ((A,), ShapeError, "2 operands .A, B.; 1"),
        ((A, A, A), ShapeError, "3"),
        ((A, np.eye(4)), ShapeError, r"B has shape \(4, 4\); expected \(..., 3, 3\)"),
        ((A, v), ShapeError, "B has shape"),
        ((np.ones((2, 3, 3)), np.ones((5, 3, 3))), ShapeError, r"\(2, 3, 3\).*\(5, 3, 3\)"),
        ((A, 1.0), ShapeError, r"B has shape \(\)"),
        ((A * np.nan, A), DomainError, "A holds NaN"),
        ((A, np.full((3, 3), np.inf)), DomainError, "B holds NaN"),
        ((A, A * 1j), DTypeError, "complex"),
        ((A, A.astype(np.float32)), DTypeError, "B is float32.*float64"),
        ((A, torch.ones(3, 3, dtype=torch.float16)), DTypeError, "float16"),
        ((A, [["a"] * 3] * 3), DTypeError, "B holds <U1"),
        ((A, [[1, 2], [3]]), DTypeError, "B"),
        ((A, None), DTypeError, "B"),
        ((A, np.full((3, 3), 2**53 + 1)), DTypeError, "B.*float64"),
    ],
)
def test_bad_operands_raise_the_right_error(operands, error, words):
    with pytest.raises(error, match=words):
        nf.operation("matmul", n=3)(*operands)


def test_call_prompt_and_bound_refuse_bad_operands_alike():
    op = nf.operation("matmul", n=3)
    for method in (op, op.prompt, op.error_bound):
        with pytest.raises(ShapeError):
            method(A, np.eye(4))
    with pytest.raises(ShapeError, match=r"expected \(..., 14, 4\)"):
        op.read(np.zeros((3, 3)))


def test_integers_and_booleans_are_converted():
    op = nf.operation("matmul", n=3)
    M = np.arange(9).reshape(3, 3)
    np.testing.assert_allclose(op(M, M.astype(np.int8)), M @ M, atol=1e-7)
    np.testing.assert_allclose(op(M, np.eye(3, dtype=bool)), M, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"name": "matmull"}, UnknownNameError, "'matmul'"),
        ({"name": "cholesky"}, UnknownNameError, "'cholesky'"),
        ({"n": 0}, OptionError, "n is 0"),
        ({"n": -1}, OptionError, "n is -1"),
        ({"n": 2.5}, OptionError, "n is 2.5"),
        ({"n": True}, OptionError, "n is True"),
        ({"order": 4}, OptionError, "order is 4"),
        ({"scheme": "papr"}, UnknownNameError, "'paper'"),
        ({"scheme": "paper", "order": 2}, OptionError, "order=2"),
        ({"dtype": torch.float16}, OptionError, "dtype is float16"),
        ({"f": lambda a, b: a}, OptionError, "'pointwise'"),
        ({"name": "pointwise"}, OptionError, "'pointwise'"),
        ({"form": "ffn"}, OptionError, "form is 'ffn'"),
        ({"name": "multiply", "form": "fnn"}, OptionError, "form is 'fnn'"),
        ({"width": 64}, OptionError, "width"),
        ({"name": "multiply", "form": "ffn", "width": 3}, OptionError, "width is 3"),
        ({"name": "divide", "minimum": 0.0}, OptionError, "minimum is 0.0"),
        ({"bound": 2.0}, OptionError, "bound.*normalize=False"),
        ({"normalize": False}, OptionError, "normalize=False.*bound="),
        ({"normalize": False, "bound": -1.0}, OptionError, "bound is -1.0"),
        ({"normalize": False, "bound": float("nan")}, OptionError, "bound is nan"),
        ({"normalize": False, "bound": 10**400}, OptionError, "bound is 1000"),
        ({"name": "divide", "minimum": -(10**5000)}, OptionError, "minimum is a value of type int"),
        ({"n": 10**5000}, OptionError, "n is a value of type int"),
        ({"order": 10**5000}, OptionError, "order is a value of type int"),
        ({"scheme": np.array(["paper", "x"])}, UnknownNameError, "scheme.*array"),
        ({"form": np.array(["ffn", "x"])}, UnknownNameError, "form.*array"),
    ],
)
def test_bad_options_raise_the_right_error(options, error, words):
    with pytest.raises(error, match=words) as caught:
        nf.operation(**{"name": "matmul", "n": 3} | options)
    assert isinstance(caught.value, NLAFormerError)


def test_all_bad_options_are_named_at_once():
    with pytest.raises(OptionError, match=r"n is 0.*dtype is int32.*bound="):
        nf.operation("matmul", n=0, dtype=torch.int32, normalize=False)


@pytest.mark.parametrize("name", ["matmul", "matvec", "matrix_transpose", "transposed_matmul"])
def test_entries_beyond_a_declared_bound_are_named(name):
    op = nf.operation(name, n=3, normalize=False, bound=2.0)
    bad = A.copy()
    bad[1, 2] = -2.5
    others = {"matmul": [A], "transposed_matmul": [A], "matvec": [v], "matrix_transpose": []}[name]
    with pytest.raises(DomainError, match=r"A\[1\]\[2\] = -2.5 .*bound=2"):
        op(bad, *others)
    op(A, *others)


def test_error_bound_holds_with_a_declared_bound():
    rng = np.random.default_rng(0)
    for score_bound in (None, 60.0):
        op = nf.operation("transposed_matmul", n=8, normalize=False, bound=4.0, score_bound=score_bound)
        X, Y = rng.uniform(-4, 4, size=(2, 8, 8))
        assert (np.abs(op(X, Y) - X.T @ Y) <= op.error_bound(X, Y)).all()


def test_a_divisor_below_the_minimum_is_named_in_the_error():
    op = nf.operation("divide", n=3)
    with pytest.raises(DomainError, match=r"b\[1\] is 0"):
        op(v, np.array([1.0, 0.0, 2.0]))
    with pytest.raises(DomainError, match=r"minimum=0.25"):
        nf.operation("divide", n=3, minimum=0.25)(v, np.array([1.0, 0.1, 2.0]))
    with pytest.raises(DomainError):
        op(v, np.zeros(3))
