"""Programs that once compiled to wrong weights: they are right now, or refused, or their runs say so."""

import array
import itertools
import types
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.compiler.library import program
from nlaformer.errors import CompileError
from tests.systems import SAYS, StartsAtB, with_eigenvalues


def right_or_said(written, given, iterations=8, tolerance=1e-6):
    """The run of the weights, verified or not: right in every value end to end, or refused, or its status says so."""
    n = next(iter(given.values())).shape[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            nf.compile(written, n=n)
        except CompileError as error:
            assert "of start" in str(error) or "of step" in str(error) or "the answer" in str(error)
        run = nf.compile(written, n=n, verify=False).run(**given, iterations=iterations)
    if run.status in SAYS:
        if run.status is nf.RunStatus.INACCURATE:
            assert run.diagnose().first is not None
        return run
    reference = written.run(**given, iterations=iterations)
    for name, value in ({"answer": reference.x} | reference.state).items():
        found = run.x if name == "answer" else run.state[name]
        scale = np.abs(value).max()
        np.testing.assert_allclose(found, value, rtol=0, atol=tolerance * scale, err_msg=name)
    return run


class Products(nf.Program):
    def start(self, b, x0):
        return dict(x=b * x0)

    def step(self, b, x):
        return dict(x=b * x)

    def finish(self, x):
        return x / nf.norm(x)


class Doubled(Products):
    def start(self, b, x0):
        return dict(x=x0 * (2 * b))

    def finish(self, x):
        return x


class Reciprocal(nf.Program):
    def start(self, b):
        return dict(x=1 / b)

    def step(self, x):
        return dict(x=x)


class Exponential(StartsAtB):
    def step(self, x):
        return dict(x=x)

    def finish(self, x):
        return nf.exp(x)


def test_a_product_of_inputs_in_start_is_right_or_said_to_be_wrong():
    given = dict(b=np.array([-0.5, -2.0, -1.3]), x0=np.array([1.1, -0.05, -0.3]))
    run = right_or_said(Products(), given)
    assert run.status in SAYS or np.isclose(np.linalg.norm(run.x[-1]), 1.0)
    right_or_said(Doubled(), dict(b=np.array([100.0, 1.0, -3.0]), x0=np.array([100.0, -2.0, 0.5])), iterations=0)


def test_a_reciprocal_of_zero_is_not_finished():
    assert right_or_said(Reciprocal(), dict(b=np.array([1.0, 0.0]))).status is not nf.RunStatus.FINISHED


@pytest.mark.parametrize("number", [50.0, 100.0])
def test_a_large_exponential_in_finish_is_right_or_said_to_be_wrong(number):
    right_or_said(Exponential(), dict(b=np.array([number, 1.0, -number])))


class TwoVectors(nf.Program):
    """A power iteration with a second vector, and its Rayleigh quotient beside x."""

    def start(self, A, b):
        return dict(x=b / nf.norm(b), w=b / nf.norm(b), mu=nf.dot(b, A @ b))

    def step(self, A, x, w, mu):
        y, v = A @ x, A @ w
        w = v / nf.norm(v)
        return dict(x=y / nf.norm(y), w=w, mu=nf.dot(w, A @ w))


class ZeroVectors(nf.Program):
    """The recurrence of MINRES for its Lanczos vectors, which starts from a vector of zeros."""

    def start(self, A, b):
        return dict(x=b / nf.norm(b), previous=nf.zeros_like(b), beta=nf.norm(b) * 0.0)

    def step(self, A, x, previous, beta):
        v = A @ x - beta * previous
        v = v - nf.dot(v, x) * x
        beta = nf.norm(v)
        return dict(x=v / beta, previous=x, beta=beta)


class Adam(nf.Program):
    """Adam on |A x - b|^2 / 2, with the root and the powers of beta as states."""

    def start(self, b):
        return dict(x=0.0 * b, m=0.0 * b, v=0.0 * b, first=0.9, second=0.999)

    def step(self, A, b, x, m, v, first, second):
        g = A @ x - b
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        change = (m / (1.0 - first)) / (np.sqrt(nf.positive(v / (1.0 - second))) + 1e-8)
        return dict(x=x - 0.05 * change, m=m, v=v, first=0.9 * first, second=0.999 * second)


class SoftThreshold(nf.Program):
    """ISTA: a gradient step, then x - clip(x, -t, t)."""

    def start(self, b):
        return dict(x=0.0 * b)

    def step(self, A, b, x):
        y = x - 0.05 * (A.T @ (A @ x - b))
        return dict(x=np.maximum(y - 0.01, 0.0) - np.maximum(-y - 0.01, 0.0))


@pytest.mark.parametrize("written", [TwoVectors(), ZeroVectors(), Adam(), SoftThreshold()], ids=lambda p: p.name)
def test_states_beside_x_are_right_or_said_to_be_wrong(written):
    A, b = with_eigenvalues(np.array([1.0, 2.0, 2.26])), np.array([1.0, -0.5, 0.25])
    right_or_said(written, dict(A=A, b=b), iterations=2 if isinstance(written, ZeroVectors) else 12)


def test_an_input_that_is_asked_for_and_not_used_compiles():
    class Unused(nf.Program):
        def start(self, A, b, x0):
            return dict(x=b)

        def step(self, A, b, x):
            return dict(x=x + 0.1 * (b - A @ x))

    A, b = np.eye(3), np.ones(3)
    np.testing.assert_allclose(nf.compile(Unused(), n=3).run(A, b, b).x, Unused().run(A, b, b).x, atol=1e-12)


class Counter(nf.Program):
    steps: ClassVar = [0]

    def start(self, x0):
        self.steps[0] = 0
        return dict(x=x0)

    def step(self, A, b, x):
        self.steps[0] += 1
        return dict(x=x + 0.1 / self.steps[0] * (b - A @ x))


class TwoNames(nf.Program):
    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        z = x
        z += 0.1 * (b - A @ x)
        return dict(x=x)


def test_memory_beside_the_states_is_refused_or_computed():
    with pytest.raises(CompileError, match="step"):
        nf.compile(Counter(), n=3)
    A, b = np.eye(3), np.ones(3)
    try:
        run = nf.compile(TwoNames(), n=3).run(A, b, iterations=3)
    except CompileError as error:
        assert "x" in str(error)
    else:
        x, wanted = 0 * b, [0 * b]
        for _ in range(3):
            x = x + 0.1 * (b - A @ x)
            wanted.append(x)
        np.testing.assert_allclose(run.x, wanted, atol=1e-12)


def test_dtypes_may_be_given_by_name():
    assert nf.algorithm("cg", n=3, dtype="float32", verify=False).dtype == torch.float32
    assert nf.compile(program("richardson"), n=3, dtype="float64", verify=False).dtype == torch.float64


class _Log:
    steps = 0


class _Slots:
    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


def _helper() -> None: ...


_module = types.ModuleType("_module")
_slots, _bytes, _numbers, _objects = _Slots(), bytearray(1), array.array("i", [0]), np.array([0], dtype=object)
_nested: list = [0]
for _ in range(8):
    _nested = [_nested]


def _innermost(found: list) -> list:
    return _innermost(found[0]) if isinstance(found[0], list) else found


class InClass(nf.Program):
    def start(self, b):
        _Log.steps = 0
        return dict(x=b)

    def step(self, x):
        _Log.steps += 1
        return dict(x=x * (0.5 if _Log.steps < 8 else 2.0))


class InFunction(InClass):
    def start(self, b):
        _helper.steps = 0
        return dict(x=b)

    def step(self, x):
        _helper.steps += 1
        return dict(x=x * (0.5 if _helper.steps < 8 else 2.0))


class InModule(InClass):
    def start(self, b):
        _module.steps = 0
        return dict(x=b)

    def step(self, x):
        _module.steps += 1
        return dict(x=x * (0.5 if _module.steps < 8 else 2.0))


class InSlots(InClass):
    def start(self, b):
        _slots.steps = 0
        return dict(x=b)

    def step(self, x):
        _slots.steps += 1
        return dict(x=x * (0.5 if _slots.steps < 8 else 2.0))


def _in_place(found: Any) -> type[nf.Program]:
    class InPlace(nf.Program):
        def start(self, b):
            found()[0] = 0
            return dict(x=b)

        def step(self, x):
            found()[0] += 1
            return dict(x=x * (0.5 if found()[0] < 8 else 2.0))

    return InPlace


class _Schedule:
    """Step sizes from a callable object, or from a method of the class."""

    counted = 0

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps

    def __call__(self) -> float:
        self.steps += 1
        return 0.5 if self.steps < 8 else 2.0

    @classmethod
    def reset(cls) -> None:
        cls.counted = 0

    @classmethod
    def next(cls) -> float:
        cls.counted += 1
        return 0.5 if cls.counted < 8 else 2.0


class InCallable(InClass):
    factor = _Schedule()

    def start(self, b):
        self.factor.__init__()
        return dict(x=b)

    def step(self, x):
        return dict(x=x * self.factor())


class InClassMethod(InClass):
    def start(self, b):
        _Schedule.reset()
        return dict(x=b)

    def step(self, x):
        return dict(x=x * _Schedule.next())


class InNestedClass(InClass):
    class Kept:
        steps = 0

    def start(self, b):
        self.Kept.steps = 0
        return dict(x=b)

    def step(self, x):
        self.Kept.steps += 1
        return dict(x=x * (0.5 if self.Kept.steps < 8 else 2.0))


class InDefault(InClass):
    def factor(self, reset=False, steps=[0]):  # noqa: B006
        steps[0] = 0 if reset else steps[0] + 1
        return 0.5 if steps[0] < 8 else 2.0

    def start(self, b):
        self.factor(reset=True)
        return dict(x=b)

    def step(self, x):
        return dict(x=x * self.factor())


class InIterator(InClass):
    factors = itertools.cycle([0.5] * 60 + [2.0])

    def start(self, b):
        return dict(x=b)

    def step(self, x):
        return dict(x=x * next(self.factors))


_PLACES = {
    "callable": InCallable, "class method": InClassMethod, "nested class": InNestedClass, "default": InDefault,
    "iterator": InIterator, "class": InClass, "function": InFunction, "module": InModule, "slots": InSlots,
    "bytearray": _in_place(lambda: _bytes), "array": _in_place(lambda: _numbers),
    "objects": _in_place(lambda: _objects), "nested": _in_place(lambda: _innermost(_nested)),
}  # fmt: skip


@pytest.mark.parametrize("place", _PLACES)
def test_a_counter_that_start_resets_is_found_wherever_it_is_kept(place):
    """It acts after the steps that verification compares, so only its print gives it away."""
    with pytest.raises(CompileError):
        nf.compile(_PLACES[place](), n=2)


def _padded_program(update: Callable[..., Any]) -> nf.Program:
    class Padded(nf.Program):
        rectangular = True

        def start(self, A, b):
            return dict(x=0.0 * (A.T @ b))

        def step(self, A, b, x):
            return dict(x=update(A, b, x) + 0.05 * A.T @ (b - A @ x))

    return Padded()


@pytest.mark.parametrize(
    "update",
    [
        lambda A, b, x: np.roll(x, 1),
        lambda A, b, x: x[::-1],
        lambda A, b, x: x * b[-1],
        lambda A, b, x: x / A.shape[1],
        lambda A, b, x: x - np.mean(x),
    ],
    ids=["roll", "reversed", "last entry", "length", "mean"],
)
def test_a_program_that_sees_the_padding_of_rectangular_data_is_refused(update):
    with pytest.raises(CompileError, match="padded"):
        nf.compile(_padded_program(update), n=4)
    nf.compile(_padded_program(lambda A, b, x: np.maximum(x, 0.0)), n=4)


@pytest.mark.parametrize("name", ["finish()", "step x", ""])
def test_the_name_of_a_state_is_a_name(name):
    class Named(nf.Program):
        def start(self, b):
            return {name: b, "x": b}

        def step(self, x):
            return {name: x, "x": x}

    with pytest.raises(CompileError, match="named"):
        nf.compile(Named(), n=2)


def test_constants_whose_product_underflows_are_not_zero():
    class Small(StartsAtB):
        def step(self, x):
            return dict(x=x)

        def finish(self, x):
            return 1e-200 * (1e-200 * x)

    b = np.array([1e300, 2e300])
    np.testing.assert_allclose(Small().run(b=b, iterations=1).x[-1], 1e-200 * (1e-200 * b), rtol=1e-14)
    assert nf.compile(Small(), n=2).run(b=b, iterations=1).status is nf.RunStatus.INACCURATE


@pytest.mark.parametrize(("name", "n"), [("lanczos", 4), ("arnoldi", 4), ("arnoldi", 2)])
def test_a_method_that_is_complete_before_the_last_step_of_the_verification_compiles(name, n):
    """What it then makes of rounding errors differs between two evaluations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert nf.algorithm(name, n=n).verification is not None


class _ScalesInPlace(nf.Program):
    def start(self, A, b):
        b /= np.linalg.norm(b)
        return dict(x=b)

    def step(self, A, b, x):
        return dict(x=x + 0.1 * (b - A @ x))


class _UpdatesInPlace(nf.Program):
    def start(self, b):
        return dict(x=0 * b)

    def step(self, A, b, x):
        d = 0.1 * b
        b -= A @ d
        return dict(x=x + d)


class _CopiesFirst(nf.Program):
    def start(self, A, b):
        b = b.copy()
        b /= np.linalg.norm(b)
        return dict(x=b)

    def step(self, A, b, x):
        return dict(x=x + 0.1 * (b - A @ x))


@pytest.mark.parametrize("written", [_ScalesInPlace(), _UpdatesInPlace()], ids=["start", "step"])
def test_an_input_that_is_changed_in_place_and_used_again_is_refused(written):
    for call in (lambda: nf.compile(written, n=3), lambda: written.run(np.eye(3), np.ones(3), iterations=2)):
        with pytest.raises(CompileError, match="the input b"):
            call()
    assert nf.compile(_CopiesFirst(), n=3).run(np.eye(3), np.ones(3), iterations=2).x.shape == (3, 3)


class NegativeStep(nf.Program):
    """A step length of either sign beside a scalar of another size, both in one vector of start."""

    def start(self, A, b, x0):
        size = np.sqrt(b @ b)
        return dict(x=b, y=(b @ (A @ b)) / size * b + size * x0)

    def step(self, x, y):
        return dict(x=0.5 * x, y=0.5 * y)

    def finish(self, y):
        return y


@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_length_in_start_is_right_with_either_sign(sign):
    rng = np.random.default_rng(0)
    A, b, x0 = rng.normal(size=(4, 4)), rng.normal(size=4), rng.normal(size=4)
    A = sign * (A @ A.T + np.eye(4))
    run = nf.compile(NegativeStep(), n=4).run(A, b, x0, iterations=2)
    np.testing.assert_allclose(run.x[-1], NegativeStep().run(A, b, x0, iterations=2).x[-1], rtol=1e-10)


class AddsToAColumn(StartsAtB):
    def step(self, b, x):
        V = np.zeros((4, 2))
        V[:, 0] = b
        V[:, 0] += x
        return dict(x=0.1 * V[:, 0])


def test_a_column_that_is_added_to_in_place_is_right():
    b = np.array([1.0, -2.0, 0.5, 3.0])
    run = nf.compile(AddsToAColumn(), n=4).run(b=b, iterations=6)
    np.testing.assert_allclose(run.x, AddsToAColumn().run(b=b, iterations=6).x, rtol=1e-12)


class Cholesky(nf.Program):
    """The factor of A as a textbook has it, on the identity too."""

    def start(self, A, b):
        L = np.zeros((3, 3))
        for j in range(3):
            L[j, j] = np.sqrt(nf.positive(A[j, j] - sum(L[j, k] ** 2 for k in range(j))))
            for i in range(j + 1, 3):
                L[i, j] = (A[i, j] - sum(L[i, k] * L[j, k] for k in range(j))) / L[j, j]
        return dict(x=L @ b)

    def step(self, x):
        return dict(x=x)


def test_a_textbook_cholesky_factorization_compiles():
    A, b = np.array([[4.0, 2.0, 1.0], [2.0, 5.0, 3.0], [1.0, 3.0, 6.0]]), np.array([1.0, -2.0, 0.5])
    run = nf.compile(Cholesky(), n=3).run(A, b, iterations=1)
    np.testing.assert_allclose(run.x[-1], np.linalg.cholesky(A) @ b, rtol=1e-9)
