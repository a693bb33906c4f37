"""nf.solve_nonlinear: certified roots of functions and of the residuals of programs, with and without a model."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.errors import CompileError, ConvergenceWarning, DTypeError, OptionError, ShapeError, UnknownNameError
from nlaformer.learn.methods import method
from nlaformer.learn.programs import initial
from nlaformer.program.data import ANSWER
from nlaformer.program.primitives import PRIMITIVES

Status = nf.Status


def cubic(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, b and the solution of A x + x^3 = b."""
    rng = np.random.default_rng(seed)
    Q = rng.standard_normal((n, n))
    A, x = Q @ Q.T / n + np.eye(n), rng.standard_normal(n)
    return A, A @ x + x**3, x


class Cubic(nf.Program):
    def start(self, x0: Any) -> dict[str, Any]:
        return dict(x=x0)

    def step(self, A: Any, b: Any, x: Any) -> dict[str, Any]:
        return dict(x=x + 0.01 * (b - A @ x - x * x * x))

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A @ x + x * x * x - b


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_functions_and_programs_have_the_same_root(kind: Any) -> None:
    A, b, x = (kind(v) for v in cubic(8))
    start = kind(np.zeros(8))
    by_values = nf.solve_nonlinear(lambda v: A @ v + v**3 - b, start, rtol=1e-12)
    by_program = nf.solve_nonlinear(Cubic(), start, A=A, b=b, rtol=1e-12)
    for result in (by_values, by_program):
        assert result.converged and type(result.x) is type(x) and np.allclose(np.asarray(result.x), x, atol=1e-9)
        assert result.residual_norm <= result.residual_bound <= result.tolerance
        assert result.tolerance == pytest.approx(1e-12 * np.linalg.norm(np.asarray(b)))
        assert tuple(result)[1] == 0 and len(result.residuals) == result.iterations + 1
    assert by_values.residual_bound == pytest.approx(by_values.residual_norm, rel=1e-14)


def test_the_bound_of_a_programs_residual_is_proven() -> None:
    """Against exact arithmetic, at points near and far from a root."""
    A, b, x = cubic(5)
    exact = np.vectorize(Fraction, otypes=[object])
    for at in (x, x * (1 + 1e-15), np.zeros(5), 1e8 * x, 1e-8 * x):
        result = nf.solve_nonlinear(Cubic(), at, A=A, b=b, maxiter=0, check="ignore")
        v = exact(at)
        r = exact(A) @ v + v * v * v - exact(b)
        assert (r * r).sum() <= Fraction(result.residual_bound) ** 2
        assert result.residual_bound <= 1e-8 + 1.01 * result.residual_norm


def test_the_errors_of_every_operation_are_bounded() -> None:
    assert all(primitive.enclose for primitive in PRIMITIVES.values() if primitive.evaluate)

    class All(nf.Program):
        def start(self, x0: Any) -> dict[str, Any]:
            return dict(x=x0)

        def step(self, A: Any, b: Any, x: Any) -> dict[str, Any]:
            return dict(x=x)

        def residual(self, A: Any, b: Any, x: Any) -> Any:
            M = np.tril(A) @ A.T + np.outer(b, x)
            v = nf.exp(x / 7.0) + nf.log(nf.exp(b) + 1.0) * nf.sqrt(x * x + 0.3) + nf.relu(b) * nf.sign(x)
            w = np.expm1(x / 7.0) * np.log1p(b * b) + np.sinh(x) * np.tanh(b) + np.hypot(b, x) * np.logaddexp(b, x)
            w = w * torch.nn.functional.softplus(x) + np.maximum(b, x) * np.minimum(0.5, b)
            return M @ v + nf.dot(b, x) * np.roll(x, 1) + (x.sum() + b.mean()) * nf.diag(A) / (2.0 + x * x) + w

    expression = All().graph(4).residual_value
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        A, b, x = (torch.randn(*size, dtype=torch.float64, generator=generator) for size in ((4, 4), (4,), (4,)))
        value, error = expression.enclosed({"A": A, "b": b, ANSWER: x}, "residual")
        A, b, x = (v.numpy().astype(np.longdouble) for v in (A, b, x))
        M = np.tril(A) @ A.T + np.outer(b, x)
        v = np.exp(x / 7) + np.log(np.exp(b) + 1) * np.sqrt(x * x + np.longdouble(0.3)) + np.maximum(b, 0) * np.sign(x)
        w = np.expm1(x / 7) * np.log1p(b * b) + np.sinh(x) * np.tanh(b) + np.hypot(b, x) * np.logaddexp(b, x)
        w = w * np.logaddexp(x, np.longdouble(0)) + np.maximum(b, x) * np.minimum(np.longdouble(0.5), b)
        true = M @ v + (b @ x) * np.roll(x, 1) + (x.sum() + b.mean()) * np.diag(A) / (2 + x * x) + w
        assert np.all(np.abs(value.numpy() - true) <= error.numpy()) and np.all(error.numpy() < 1e-12)


def test_what_cannot_be_bounded_is_not_called_converged() -> None:
    class Quotient(nf.Program):
        def start(self, x0: Any) -> dict[str, Any]:
            return dict(x=x0)

        def step(self, b: Any, x: Any) -> dict[str, Any]:
            return dict(x=x)

        def residual(self, b: Any, x: Any) -> Any:
            return x / ((b + 1e-17) - b)  # 0 / 0 is 0, but the divisor is a rounding error

    result = nf.solve_nonlinear(Quotient(), np.zeros(1), b=np.array([0.1]), atol=1.0, check="ignore")
    assert not result.converged and result.residual_bound == np.inf


@pytest.mark.parametrize(
    ("residual", "b", "exact"),
    [
        # exp(-812) underflows, but its argument is a rounding error away from -560.
        (lambda b, x: 1e300 * nf.exp(((x + b) - 2.0**62) - 300.0), -260.0, 1e56),
        # (1e-300)^2 underflows, whoever multiplies first.
        (lambda b, x: x * 1e-300 * 1e-300 * 1e300 * 1e300 + 0.0 * b, 0.0, 1e18),
        # A quotient that underflows, by a divisor that is hardly known.
        (lambda b, x: 1e290 * (1e290 * ((1e-200 * x) / (1e143 * ((1.5 * x + b) - 1.5 * x)))), 400.0, 1e50),
    ],
)
def test_what_underflows_on_the_way_is_not_called_a_root(residual: Any, b: float, exact: float) -> None:
    class Underflows(nf.Program):
        def start(self, x0: Any) -> dict[str, Any]:
            return dict(x=x0)

        def step(self, b: Any, x: Any) -> dict[str, Any]:
            return dict(x=x)

        def residual(self, b: Any, x: Any) -> Any:
            return residual(b, x)

    result = nf.solve_nonlinear(Underflows(), np.array([2.0**62]), b=np.array([b]), atol=1.0, check="ignore")
    assert not result.converged and result.residual_bound >= exact


def test_factors_that_round_when_they_are_put_together_are_in_the_bound() -> None:
    factors = [23.0, 17.0, 7.0, 7.0, 3.0, 7.0, 7.0, 19.0]  # the product of their inverses errs by six units

    class Quotients(nf.Program):
        def start(self, x0: Any) -> dict[str, Any]:
            return dict(x=x0)

        def step(self, b: Any, x: Any) -> dict[str, Any]:
            return dict(x=x)

        def residual(self, b: Any, x: Any) -> Any:
            for factor in factors:
                x = x / factor
            return x - b

    together = 1.0
    for factor in factors:
        together = (1.0 / factor) * together
    near = 1.5 * together
    result = nf.solve_nonlinear(Quotients(), np.array([1.5]), b=np.array([near]), maxiter=0, check="ignore")
    exact = Fraction(1.5) / int(np.prod(factors)) - Fraction(near)
    assert abs(exact) <= Fraction(result.residual_bound) < 1e-14 * Fraction(near)


def test_a_whole_number_that_float64_does_not_hold_is_refused() -> None:
    class Large(nf.Program):
        def start(self, x0: Any) -> dict[str, Any]:
            return dict(x=x0)

        def step(self, x: Any) -> dict[str, Any]:
            return dict(x=x)

        def residual(self, x: Any) -> Any:
            return x - (2**53 + 1)

    with pytest.raises(nf.errors.CompileError):
        nf.solve_nonlinear(Large(), np.ones(1))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("F", "x0", "status"),
    [
        (lambda x: x**2 + 1, [3.0], Status.STAGNATED),
        (lambda x: x * np.nan, [1.0], Status.NONFINITE),
        (lambda x: np.sign(x) + 0.5, [1.0], Status.STAGNATED),
        (lambda x: np.ones_like(x), [1.0, 2.0], Status.STAGNATED),
        (lambda x: np.array([x[0] + x[1], x[0] + x[1] - 1]), [0.0, 0.0], Status.STAGNATED),
        (lambda x: x, [np.nan], Status.NONFINITE),
        (lambda x: np.sqrt(x - 1), [5.0], Status.CONVERGED),
        (lambda x: 1e300 * (x - 1), [7.0], Status.CONVERGED),
        (lambda x: 1e-300 * (x**3 - 8), [7.0], Status.CONVERGED),
        (lambda x: x - 1e300, [3e300], Status.CONVERGED),
        (lambda x: np.where(x > 2, np.nan, x**3 - 1), [1.9], Status.CONVERGED),
    ],
)
def test_statuses_say_how_it_ended(F: Any, x0: list[float], status: Status) -> None:
    result = nf.solve_nonlinear(F, np.array(x0), check="ignore")
    assert result.status is status and (result.info == 0) == result.converged
    if result.converged:
        assert abs(F(result.x)[0]) <= 1e-5 * abs(F(np.array(x0))[0])


def test_limits_callbacks_and_precisions() -> None:
    A, b, x = cubic(6)
    seen: list[np.ndarray] = []

    def spoiling(v: np.ndarray) -> np.ndarray:
        found = A @ v + v**3 - b
        v[...] = np.nan
        return found

    def watch(v: np.ndarray) -> None:
        seen.append(v.copy())
        v[...] = np.nan

    result = nf.solve_nonlinear(spoiling, np.zeros(6), rtol=1e-10, callback=watch)
    assert result.converged and len(seen) == result.iterations and np.array_equal(seen[-1], result.x)
    assert nf.solve_nonlinear(Cubic(), np.zeros(6), A=A, b=b, maxiter=1, check="ignore").status is Status.MAXITER
    assert nf.solve_nonlinear(Cubic(), x, A=A, b=b, atol=1e-9).iterations == 0
    single = nf.solve_nonlinear(Cubic(), np.zeros(6, np.float32), A=A, b=b)
    assert single.converged and single.x.dtype == np.float32
    v = single.x.astype(float)
    assert np.linalg.norm(A @ v + v**3 - b) <= 1e-5 * np.linalg.norm(b)
    with pytest.warns(ConvergenceWarning) as caught:
        nf.solve_nonlinear(lambda v: v**2 + 1, np.ones(2))
    assert caught[0].filename == __file__


def test_a_trained_program_is_its_own_model_and_costs_no_answer() -> None:
    A, b, x = cubic(8)
    model = initial(nf.recipe("quickstart", n=8), method("guided-nonlinear"))
    for F, options in (
        (model, {}),
        (Cubic(), {"model": model}),
        (Cubic(), {"model": lambda v: v * np.nan}),
    ):
        result = nf.solve_nonlinear(F, np.zeros(8), A=A, b=b, rtol=1e-10, **options)
        assert result.converged and np.allclose(result.x, x, atol=1e-7) and result.model is not None
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    broken = nf.solve_nonlinear(model, np.zeros(8), A=A, b=b, rtol=1e-10)
    assert broken.converged and np.allclose(broken.x, x, atol=1e-7)
    other = initial(nf.recipe("quickstart", n=8), method("guided-cg"))
    with pytest.raises(OptionError, match="another residual"):
        nf.solve_nonlinear(Cubic(), np.zeros(8), A=A, b=b, model=other)
    halved = nf.solve_nonlinear(lambda v: v - 1, np.zeros(3), model=lambda v: (v + 1) / 2, rtol=1e-3)
    assert halved.converged and halved.model is not None and halved.model.accepted > 1


def test_bad_arguments_are_refused() -> None:
    A, b, _ = cubic(3)
    for error, F, x0, options in (
        (OptionError, Cubic, np.zeros(3), {}),
        (OptionError, 3, np.zeros(3), {}),
        (OptionError, nf.operation("add", n=3), np.zeros(3), {}),
        (OptionError, lambda x: x, np.zeros(3), dict(A=A)),
        (OptionError, lambda x: x, np.zeros(3), dict(rtol=-1)),
        (OptionError, lambda x: x, np.ones(3), dict(model=3)),
        (OptionError, lambda x: x, np.ones(3), dict(callback=3)),
        (UnknownNameError, lambda x: x, np.ones(3), dict(check="shout")),
        (ShapeError, lambda x: x, np.zeros((2, 3)), {}),
        (ShapeError, lambda x: x, np.zeros(0), {}),
        (ShapeError, lambda x: x[:-1], np.zeros(3), {}),
        (ShapeError, Cubic(), np.zeros(3), dict(A=A)),
        (ShapeError, Cubic(), np.zeros(4), dict(A=A, b=b)),
        (ShapeError, Cubic(), np.zeros(3), dict(A=np.stack([A, A]), b=b)),
        (CompileError, type("Asks", (Cubic,), {"residual": lambda self, z, x: x * x})(), np.zeros(3), dict(A=A, b=b)),
        (DTypeError, lambda x: x * 1j, np.zeros(3), {}),
        (DTypeError, lambda x: "a", np.zeros(3), {}),
        (DTypeError, lambda x: x, np.zeros(3) * 1j, {}),
    ):
        with pytest.raises(error):
            nf.solve_nonlinear(F, x0, **options)  # type: ignore[arg-type]


def cube(x: np.ndarray) -> np.ndarray:
    return x**3 - 27.0


def test_without_convergence_the_point_of_the_smallest_residual_is_returned() -> None:
    result = nf.solve_nonlinear(
        cube, np.array([1e3]), model=lambda x: np.array([3.5]), maxiter=1, rtol=1e-15, check="ignore"
    )
    assert result.status is Status.MAXITER and result.model is not None and result.model.accepted == 1
    assert len(result.residuals) == result.iterations + 1
    assert result.residual_norm == result.residuals.min() < abs(cube(3.5))
    assert abs(cube(result.x)[0]) == pytest.approx(result.residual_norm)


def test_the_method_says_what_found_the_root() -> None:
    def solved(model: Any, **options: Any) -> nf.NonlinearResult[np.ndarray]:
        return nf.solve_nonlinear(cube, np.array([4.0]), model=model, check="ignore", **options)

    leading = solved(lambda x: np.array([3.0]))
    assert leading.converged and leading.iterations == 1 and "Newton" not in leading.method
    first = solved(lambda x: x - 0.7)
    assert first.converged and "model" in first.method and "Newton" in first.method

    def with_trap(x: np.ndarray) -> np.ndarray:  # |F| has a minimum that is no root near x = 0
        return np.where(x < 1.0, 1.0 + x**2, cube(x))

    trapped = nf.solve_nonlinear(with_trap, np.array([4.0]), model=lambda x: np.array([0.5]), rtol=1e-12)
    plain = nf.solve_nonlinear(with_trap, np.array([4.0]), rtol=1e-12)
    assert trapped.converged and trapped.x == pytest.approx(3.0) and trapped.x == plain.x
    assert trapped.iterations > plain.iterations and trapped.method not in (plain.method, first.method)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_model_runs_no_more_often_than_maxiter(limit: int) -> None:
    """One rule for roots and eigenpairs."""
    calls: list[str] = []

    def halving(x: np.ndarray) -> np.ndarray:
        calls.append("root")
        return (x + 1) / 2

    def inverse_iteration(A: np.ndarray, v: np.ndarray) -> np.ndarray:
        calls.append("pair")
        return np.linalg.solve(A - 0.9 * np.eye(len(A)), v)

    nf.solve_nonlinear(lambda x: x - 1, np.zeros(3), model=halving, maxiter=limit, rtol=1e-12, check="ignore")
    nf.eigenpair(np.diag(np.arange(1.0, 101.0)), model=inverse_iteration, maxiter=limit, rtol=1e-15, check="ignore")
    assert calls.count("root") == calls.count("pair") == limit


def test_a_models_answer_beyond_single_precision_is_no_root() -> None:
    result = nf.solve_nonlinear(
        lambda x: 1 / x, np.ones(1, np.float32), model=lambda x: np.full(1, 1e300), maxiter=2, check="ignore"
    )
    assert np.isfinite(result.x).all() and not result.converged
    assert result.model is not None and result.model.accepted == 0


def test_an_answer_has_memory_of_its_own() -> None:
    x0 = np.zeros(3)
    nf.solve_nonlinear(lambda x: x**2 + 1.0, x0, check="ignore").x[:] = 5.0
    assert not x0.any()


def test_a_program_without_a_residual_of_its_own_is_refused() -> None:
    class Rooted(nf.Program):
        def start(self, b: Any, x0: Any) -> dict[str, Any]:
            return dict(x=x0)

        def step(self, A: Any, b: Any, x: Any) -> dict[str, Any]:
            return dict(x=x + 0.1 * (b - A @ x - x**3))

    A, b, _ = cubic(3)
    for F in (Rooted(), initial(nf.recipe("quickstart", n=3, d=8, heads=1), method("guided-cg"))):
        with pytest.raises(OptionError, match="residual"):
            nf.solve_nonlinear(F, np.zeros(3), A=A, b=b)


@pytest.mark.parametrize(
    ("F", "x0"),
    [
        (lambda x: np.exp(x) - 1.5, 1e-9),
        (lambda x: np.cos(x) + x - 0.5, 1e-12),
        (lambda x: x**3 - 1e-300, 2e-100),
        (lambda x: x * 1e200 - 1, 1e-190),
    ],
)
def test_a_start_near_zero_may_be_one_of_small_numbers_or_not(F: Any, x0: float) -> None:
    result = nf.solve_nonlinear(F, np.array([x0, 1.1 * x0]), rtol=1e-8)
    assert result.converged and result.iterations < 12 and result.evaluations < 60


def test_a_complex_answer_of_a_model_is_not_used() -> None:
    result = nf.solve_nonlinear(lambda x: x - 1, np.zeros(2), model=lambda x: x + 1 + 1j)
    assert result.converged and result.model is not None and result.model.accepted == 0


@pytest.mark.parametrize("error", [ValueError, NotImplementedError, KeyError])
def test_what_a_function_raises_in_a_later_call_is_raised_as_it_is(error: type[Exception]) -> None:
    calls = []

    def F(x: np.ndarray) -> np.ndarray:
        calls.append(x)
        if len(calls) > 1:
            raise error("mine")
        return x**2 - 2.0

    with pytest.raises(error, match="mine"):
        nf.solve_nonlinear(F, np.ones(3))


def test_results_compare_by_identity() -> None:
    result = nf.solve_nonlinear(lambda x: x - 1.0, np.zeros(2))
    assert result == result and result != copy.deepcopy(result) and hash(result)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_answer_has_the_precision_of_x0(dtype: torch.dtype) -> None:
    """Of a program, |F| is that of the rounded x in float64, so that a coarse x does not pass a fine tolerance."""
    x0, seen = torch.full((2,), 2.0, dtype=dtype), set()

    def F(x: torch.Tensor) -> torch.Tensor:
        seen.add(x.dtype)
        return x**3 - 1

    exact = nf.solve_nonlinear(F, x0)
    assert exact.converged and exact.x.dtype == dtype and seen == {dtype}
    A, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    result = nf.solve_nonlinear(method("guided-nonlinear"), x0, A=A, b=b, rtol=1e-6, check="ignore")
    x = result.x.double().numpy()
    size = np.linalg.norm(A @ x + x**3 - b)
    assert result.x.dtype == dtype and abs(size - result.residual_norm) <= 1e-12
    assert result.converged == (size <= result.tolerance) and result.converged == (dtype.itemsize > 2)
