"""Products, quotients and compositions: the laws of the FFN forms, and f traced into layers."""

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.errors import DomainError, OptionError
from nlaformer.express.symbol import steps_of

GRID = np.linspace(-1.4, 1.4, 201)


def largest_error(name: str, width: int, a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    op = nf.operation(name, n=len(a), form="ffn", width=width)
    wanted = a * b if name == "multiply" else a / b
    error = np.abs(op(a, b) - wanted)
    assert (error <= op.error_bound(a, b)).all()
    return error.max(), op.error_bound(a, b).max()


@pytest.mark.parametrize("width", [64, 256, 1024])
def test_the_ffn_product_has_error_h_squared_over_16(width):
    a, b = (x.ravel() for x in np.meshgrid(GRID, GRID))
    error, bound = largest_error("multiply", width, a, b)
    h = 4 * np.sqrt(2) / (width // 2 - 1)
    assert 0.9 * h**2 / 16 <= error <= bound <= 1.1 * h**2 / 16


def test_the_ffn_quotient_falls_like_width_to_the_minus_four_thirds():
    divisors = np.concatenate([-np.geomspace(0.09, 1.4, 60), np.geomspace(0.09, 1.4, 60)])
    a, b = (x.ravel() for x in np.meshgrid(np.linspace(-1.4, 1.4, 61), divisors))
    widths = [128, 512, 2048, 8192]
    errors, bounds = zip(*(largest_error("divide", width, a, b) for width in widths), strict=True)
    for measured in (errors, bounds):
        slope = np.polyfit(np.log(widths), np.log(measured), 1)[0]
        assert -1.45 <= slope <= -1.2


def test_the_ffn_forms_are_the_papers_one_layer_without_positions():
    for name in ("multiply", "divide"):
        op = nf.operation(name, n=9, form="ffn", width=256)
        assert op.cost.layers == 1
        assert op.cost.heads == 0
        assert op.cost.ffn_width <= 256
        assert op.cost.tokens == 9


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: a * b + b / 3,
        lambda a, b: a / b,
        lambda a, b: (a - b) * (a + b) / (a * a + b * b + 1),
        lambda a, b: 2 - a,
        lambda a, b: a,
        lambda a, b: 1 / (1 + a**2) - b**3,
        lambda a, b: -a * b,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_compositions_follow_their_formula_within_the_bound(f, dtype):
    rng = np.random.default_rng(0)
    kind = np.float64 if dtype == torch.float64 else np.float32
    a, b = rng.uniform(0.5, 2, size=(2, 50)).astype(kind) * rng.choice([-1, 1], size=(2, 50)).astype(kind)
    op = nf.operation("pointwise", n=50, f=f, dtype=dtype)
    wanted = f(a.astype(np.longdouble), b.astype(np.longdouble))
    error, bound = np.abs(op(a, b) - wanted), op.error_bound(a, b)
    assert (error <= bound).all()
    tolerance = 1e-7 if dtype == torch.float64 else 0.2
    assert bound.max() <= tolerance * (1 + np.abs(wanted).max())


def test_independent_products_share_a_layer_and_sums_cost_none():
    assert nf.operation("pointwise", n=3, f=lambda a, b: a * a + b * b - a * b).cost.layers == 1
    assert nf.operation("pointwise", n=3, f=lambda a, b: a * a * b).cost.layers == 2
    assert nf.operation("pointwise", n=3, f=lambda a, b: a / b + b / a).cost.layers == 3
    assert nf.operation("pointwise", n=3, f=lambda a, b: 3 * a - b / 4 + 1).cost.heads == 0


def test_a_loaded_composition_gives_the_same_result(tmp_path):
    op = nf.operation("pointwise", n=4, f=lambda a, b: a * b + b / 3)
    op.save(tmp_path)
    a, b = np.random.default_rng(1).normal(size=(2, 4))
    np.testing.assert_array_equal(nf.load(tmp_path)(a, b), op(a, b))


def test_compositions_refuse_unsupported_functions_and_operands():
    for f, reason in [
        (lambda a, b: a if a > b else b, "'>'"),
        (lambda a, b: a if a else b, "argument"),
        (lambda a, b: a**0.5, "0.5"),
        (lambda a, b: a * np.ones(3), "f "),
        (lambda a, b: 3.0, "returned 3.0"),
        (lambda a, b: a / 0, "constant 0"),
        (lambda a: a, "f "),
        (lambda a, b: a.sum(), "f "),
    ]:
        with pytest.raises(OptionError, match=reason):
            nf.operation("pointwise", n=3, f=f)
    with pytest.raises(DomainError, match=r"9 of a .*bound=8"):
        nf.operation("pointwise", n=2, f=lambda a, b: a * b)([9.0, 1.0], [1.0, 1.0])
    with pytest.raises(DomainError, match="minimum"):
        nf.operation("pointwise", n=2, f=lambda a, b: a / (a - b))([1.0, 1.0], [1.0, 2.0])


def test_the_steps_of_f_are_plain_data():
    assert steps_of(lambda a, b: 2 * a) == [["a"], ["b"], ["constant", 2.0], ["*", 2, 0]]
