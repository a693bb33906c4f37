"""What a run says of itself: a value that is not the program's own is said, and what is right is not called wrong."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.compiler.library import algorithm, program, record
from nlaformer.errors import OptionError
from nlaformer.program.data import ANSWER
from nlaformer.program.judge import RULES
from tests.systems import SAYS, StartsAtB, with_eigenvalues


class Still(StartsAtB):
    """It stays where it starts, whatever the residual says."""

    def step(self, x):
        return dict(x=1.0 * x)


class PoleAtZero(Still):
    def residual(self, b, x):
        return 1 / x - b


class LogarithmAtZero(Still):
    def residual(self, b, x):
        return nf.log(nf.positive(x)) - b


class InfiniteScale(Still):
    def residual(self, b, x):
        return x - 2 * b

    def residual_scale(self, b, x):
        return b / (x - x)


@pytest.mark.parametrize("written", [PoleAtZero(), LogarithmAtZero(), InfiniteScale()], ids=lambda p: p.name)
def test_a_residual_compared_with_infinity_has_not_converged(written):
    for run in (written.run, nf.compile(written, n=3, verify=False).run):
        assert run(b=np.array([2.0, 3.0, 4.0])).status is not nf.RunStatus.CONVERGED


def test_convergence_in_float32_is_that_of_the_true_residual():
    A = with_eigenvalues(np.geomspace(1.0, 1e3, 6)).astype("float32")
    rng = np.random.default_rng(0)
    b = (A @ rng.standard_normal((64, 6)).astype("float32")[..., None])[..., 0]
    run = nf.algorithm("cg", n=6, dtype="float32", verify=False).run(A, b, iterations=40)
    true = np.linalg.norm(b - np.einsum("ij,kj->ki", A.astype("float64"), run.x[:, -1].astype("float64")), axis=-1)
    converged = np.array([status is nf.RunStatus.CONVERGED for status in run.status])
    assert (true[converged] <= 1.000001e-4 * np.linalg.norm(b.astype("float64"), axis=-1)[converged]).all()


def test_a_diagnosis_names_the_value_the_step_and_the_line():
    cg = nf.algorithm("cg", n=4, verify=False)
    A, b = with_eigenvalues(np.array([1.0, 2.0, 3.0, 5.0])), np.ones(4)
    assert cg.run(A, b, iterations=3).diagnose().first is None
    layer = cg.model.loop[-1]
    layer.ffn.b_2.data[cg.layout["d"].start] += 1e-3  # damage what writes d
    found = cg.run(A, b, iterations=3)
    assert found.status is nf.RunStatus.INACCURATE
    stray = found.diagnose().first
    assert (stray.value, stray.step) == ("d", 1) and "krylov.py" in stray.line and "r + beta * d" in stray.line
    assert stray.bars > found.diagnose().allowed and stray.line in str(found.diagnose())
    with pytest.raises(OptionError, match="program itself"):
        program("cg").run(A, b).diagnose()


class Directed(nf.Program):
    """A function that may lose digits, and the direction of what it gives."""

    def __init__(self, function):
        self.function = function

    def start(self, b):
        return dict(x=self.function(b))

    def step(self, x):
        return dict(x=x)

    def finish(self, x):
        return x / nf.norm(x)


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (lambda b: np.minimum(b, 1.0), 1e-14),
        (lambda b: np.maximum(b, -1e14), 1.0),
        (lambda b: np.clip(b, -1.0, 1.0), 1e-14),
        (np.expm1, 1e-14),
        (np.tanh, 1e-14),
        (np.sinh, 1e-14),
        (lambda b: np.log1p(nf.positive(b)), 1e-14),
        (lambda b: np.logaddexp(0.0, b - 36.0), 1.0),
        (lambda b: np.hypot(b, 2 * b), 1e-170),
    ],
)
def test_digits_that_numpy_keeps_are_kept_or_said_to_be_lost(function, size):
    b = size * np.array([1.1, 0.3, 0.7])
    wanted = function(b) / np.linalg.norm(function(b) / size) / size
    np.testing.assert_allclose(Directed(function).run(b=b, iterations=1).state["x"][-1], function(b), rtol=1e-14)
    run = nf.compile(Directed(function), n=3, verify=False).run(b=b, iterations=1)
    assert run.status in SAYS or np.allclose(run.x[-1], wanted, rtol=0, atol=1e-6)


class Cancelled(nf.Program):
    """The root of what is left of 1."""

    def start(self, b):
        return dict(x=nf.sqrt(b * b))

    def step(self, b, x):
        return dict(x=nf.sqrt(b * b))

    def finish(self, b, x):
        return nf.sqrt(nf.positive(np.maximum(b, x) - x**2))


def test_a_root_of_a_cancelled_difference_is_right_to_three_digits_or_said_to_be_wrong():
    b = np.array([0.0, 0.5, 1.0])
    run = nf.compile(Cancelled(), n=3, verify=False).run(b=b, iterations=2)
    wanted = np.sqrt(np.maximum(np.maximum(b, run.state["x"]) - run.state["x"] ** 2, 0.0))
    assert run.status in SAYS or np.allclose(run.x, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


def _seen(found, own, dtype="float64"):
    """Whether values differ by no more than the rule is blind to: 30 times 2^-(p + 10) of the largest so far."""
    rule = RULES[getattr(torch, dtype)]
    sizes = np.linalg.norm(own, axis=-1)
    largest = np.maximum.accumulate(sizes)
    blind = rule.bars * np.maximum(2.0 ** -(rule.bits + rule.below) * largest, 2.0**-rule.bits * sizes)
    return np.linalg.norm(found - own, axis=-1) > blind


def test_a_value_that_the_weights_lose_to_underflow_is_lost_beside_what_it_was():
    class Falling(StartsAtB):
        def step(self, A, x):
            return dict(x=(A @ x) * np.exp(np.exp(x)))

    A, b = np.float32(1e-7) * np.eye(3, dtype="float32"), np.full(3, 1e-14, "float32")
    run = nf.compile(Falling(), n=3, dtype="float32", verify=False).run(A, b, iterations=4)
    assert (b * np.float32(2.7e-7) ** 3 > np.finfo("float32").tiny).all()  # float32 itself holds it
    own = Falling().run(A.astype("float64"), b.astype("float64"), iterations=4).x
    assert run.status in SAYS or not _seen(run.x, own, "float32").any()


@pytest.mark.parametrize("function", [np.tanh, np.sinh, np.expm1, lambda v: np.clip(v, -1.0, 1.0)])
def test_functions_that_vanish_at_zero_are_exactly_zero_there(function):
    zeros, ones = np.zeros(3), np.ones(3)
    run = nf.compile(Directed(lambda b: function(b)), n=3, verify=False).run(b=zeros, iterations=1)
    assert not run.state["x"].any() and run.status is nf.RunStatus.FINISHED
    assert nf.compile(Directed(function), n=3).run(b=ones, iterations=1).status is nf.RunStatus.FINISHED


class _Halved(nf.Program):
    def start(self, b, x0):
        return dict(x=x0)

    def step(self, b, x):
        return dict(x=0.5 * x)

    def residual(self, b, x):
        return x


class _Side(nf.Program):
    def start(self, b, x0):
        return dict(x=x0, y=b)

    def step(self, b, x, y):
        return dict(x=0 * x + b, y=np.logaddexp(x, b))

    def residual(self, b, x):
        return x - b


class _Logarithm(nf.Program):
    def start(self, b, x0):
        return dict(x=x0)

    def step(self, b, x):
        return dict(x=np.log(1 + x * x))

    def residual(self, b, x):
        return np.maximum(x - 50, 0)


@pytest.mark.parametrize(
    ("kind", "dtype", "b", "x0", "name"),
    [
        (_Halved, "float32", [10, -10, 3], [10, -10, 2.5], "x"),
        (_Side, "float64", [1, 1, 1], [1e7, 1, 1], "y"),
        (_Logarithm, "float64", [1, 1, 1], [1e12, -1e-3, 0], "x"),
    ],
)
def test_a_wrong_step_does_not_vouch_for_itself_by_a_small_residual(kind, dtype, b, x0, name):
    """Weights that lose x have a small residual wherever 0 solves the problem; the program's own step has not."""
    b, x0 = np.array(b, dtype), np.array(x0, dtype)
    run = nf.compile(kind(), n=3, dtype=dtype).run(b=b, x0=x0, iterations=1)
    wanted = kind().run(b=b.astype("float64"), x0=x0.astype("float64"), iterations=1).state[name][1]
    if not np.allclose(run.state[name][1], wanted, rtol=1e-2):
        assert run.status is nf.RunStatus.INACCURATE


class Vanishing(nf.Program):
    """Of d, which decays below every range, only the direction is kept; x, which is judged by its sum, takes it up."""

    c = np.array([1.0, -1.0, 2.0, -2.0])

    def start(self, b):
        return dict(x=0 * b, d=b)

    def step(self, b, x, d):
        return dict(x=0.5 * x + np.sum(np.abs(d)) / np.linalg.norm(d) * self.c, d=1e-4 * d + 1e-40 * b)

    def residual(self, b, x):
        return np.sum(x) * b

    def residual_scale(self, b, x):
        return b


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_vector_that_decayed_does_not_excuse_a_state_that_explodes(dtype):
    run = nf.compile(Vanishing(), n=4, dtype=dtype, verify=False).run(b=np.array([1, -2, 3, 0.5], dtype), iterations=8)
    assert np.abs(np.asarray(run.x)).max() < 100 or run.status is nf.RunStatus.INACCURATE


class Neumann(nf.Program):
    """x = sum (I - A)^k b; of its last term, which decays and cancels nothing, the direction and the rate."""

    def start(self, A, b):
        return dict(x=b, d=b, v=b, rate=1.0)

    def step(self, A, x, d, v, rate):
        after = d - A @ d
        return dict(x=x + after, d=after, v=after / np.linalg.norm(after), rate=(d @ after) / (d @ d))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_is_made_of_a_vector_that_decayed_is_right_or_said_to_be_wrong(dtype):
    rng = np.random.default_rng(1)
    Q = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    A, b = ((Q * [1, 0.97, 0.95, 0.9]) @ Q.T).astype(dtype), rng.normal(size=4).astype(dtype)
    neumann = nf.compile(Neumann(), n=4, dtype=dtype, verify=False)
    run, shorter = neumann.run(A, b, iterations=24), neumann.run(A, b, iterations=8)
    after = run.state["d"][:-1].astype("float64") @ (np.eye(4) - A)
    right = after / np.maximum(np.linalg.norm(after, axis=-1, keepdims=True), 1e-300)
    assert run.status in SAYS or np.allclose(run.state["v"][1:], right, atol=1e-4)
    assert shorter.status not in SAYS and np.allclose(shorter.state["v"][1:], right[:8], atol=1e-4)


class Cancelling(nf.Program):
    """On the identity y is 0 where x0 is: an entry that vanishes, and a difference of two that are equal."""

    def start(self, A, b, x0):
        p = np.sqrt(nf.positive(A[0, 0]))
        t = (b @ (A @ b)) / (b @ b) - p
        return dict(x=b, y=A[1, 0] / p * b + p * x0, z=t * b)

    def step(self, x, y, z):
        return dict(x=0.5 * x, y=0.5 * y, z=0.5 * z)


def test_a_value_that_is_zero_by_cancellation_is_measured_by_its_terms():
    zero, b = np.zeros(4), np.array([1, -2, 3, 0.5])
    run = nf.compile(Cancelling(), n=4).run(np.eye(4), b, zero, iterations=2)
    assert run.status not in SAYS and np.abs(run.state["y"]).max() < 1e-10 and np.abs(run.state["z"]).max() < 1e-10


class Flipping(nf.Program):
    """It starts at the solution for A = I, and leaves it."""

    def start(self, A, b):
        return dict(x=b)

    def step(self, x):
        return dict(x=-0.1 * x)


def test_a_method_that_leaves_the_solution_does_not_lack_digits():
    run = nf.compile(Flipping(), n=4).run(np.eye(4), np.array([1, -2, 3, 0.5]), iterations=8)
    assert run.status is nf.RunStatus.STAGNATED


class Underflowing(nf.Program):
    """A scalar that falls below what stands for 0 in the weights."""

    def start(self, b):
        return dict(x=b, s=1.0)

    def step(self, x, s):
        return dict(x=x, s=1e-20 * s)


def test_a_scalar_that_decays_is_not_called_wrong():
    run = nf.compile(Underflowing(), n=3).run(b=np.ones(3), iterations=8)
    np.testing.assert_allclose(run.state["s"], 1e-20 ** np.arange(9.0), rtol=1e-9)
    assert run.status is nf.RunStatus.FINISHED


def test_a_quotient_that_overflows_does_not_divide_by_zero():
    class Overflowing(nf.Program):
        def start(self, b):
            return dict(x=b, s=1.0)

        def step(self, x, s):
            return dict(x=x / s, s=1e-150 * s)

    run = nf.compile(Overflowing(), n=3, verify=False).run(b=np.ones(3), iterations=4)
    assert run.status in SAYS and "by 0" not in run.diagnose().lost


class Counted(nf.Program):
    """Three steps, and then no more: a jump at a number that is counted up to, by another state."""

    def start(self, b):
        return dict(x=0 * b, k=0.0, one=1.0)

    def step(self, b, x, k, one):
        return dict(x=x + np.maximum(np.sign(3 - k), 0) * b, k=k + one, one=one)


class Pole(Counted):
    def step(self, b, x, k, one):
        return dict(x=b / (np.abs(k - 3) + 1e-15), k=k + one, one=one)


@pytest.mark.parametrize("first", [0.0, 1.0, -2.0])
def test_a_state_that_counts_is_exact(first):
    class Counter(nf.Program):
        def start(self, b):
            return dict(x=0 * b, k=first)

        def step(self, b, x, k):
            return dict(x=x + np.maximum(np.sign(3 - k), 0) * b, k=k + 0.5)

    b = np.array([1, -0.5, 0.25])
    run, own = (each(b=b, iterations=12) for each in (nf.compile(Counter(), n=3).run, Counter().run))
    assert run.status is nf.RunStatus.FINISHED and np.array_equal(run.state["k"], own.state["k"])
    np.testing.assert_allclose(run.x, own.x, atol=1e-12)


class Orthogonal(nf.Program):
    """Zero, and a part in 1e13 of its terms in weights."""

    def start(self, b, x0):
        return dict(x=1e13 * (b @ x0 - 10) * b)

    def step(self, x):
        return dict(x=1.0 * x)


class Masked(nf.Program):
    """Small entries beside a large one, which finish takes away."""

    mask = np.array([0.0, 1.0, 1.0])

    def start(self, b, x0):
        return dict(x=b * x0)

    def step(self, x):
        return dict(x=1.0 * x)

    def finish(self, x):
        return self.mask * x


@pytest.mark.parametrize(
    ("kind", "b", "x0"),
    [
        (Counted, [1, -0.5, 0.25], None),
        (Pole, [1, -0.5, 0.25], None),
        (Orthogonal, [1, 2, 3], [3, 2, 1]),
        (Masked, [1e14, 1, 2], [1, 3, -0.7]),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_error_that_the_program_makes_large_is_said_end_to_end(kind, b, x0, dtype):
    """Every step is near the program's own on the same input, but the run is not the program's."""
    given = {name: np.array(value, dtype) for name, value in (("b", b), ("x0", x0)) if value is not None}
    run = nf.compile(kind(), n=3, dtype=dtype, verify=False).run(**given, iterations=6)
    own = kind().run(**{name: value.astype("float64") for name, value in given.items()}, iterations=6)
    if not np.allclose(run.x, own.x, rtol=0, atol=0.1 * max(np.abs(own.x).max(), 1.0)):
        assert run.status is nf.RunStatus.INACCURATE and run.diagnose().first is not None


class Divided(nf.Program):
    """y is divided by a state that is 0, and is not 0 itself."""

    residual = None

    def start(self, b):
        return dict(x=b, y=b, z=0 * b)

    def step(self, b, y, z):
        return dict(x=b, y=y / np.abs(z), z=z)


class Remainder(nf.Program):
    """x is divided by a sum that cancels: 0.1 + 0.2 - 0.3 is 6e-17 in NumPy."""

    def start(self, b):
        return dict(x=b, s=b[0] + b[1] - b[2])

    def step(self, x, s):
        return dict(x=x / s, s=s)


def test_a_division_by_0_that_the_weights_alone_make_is_inaccurate():
    remainder, b = nf.compile(Remainder(), n=3, verify=False), np.array([0.1, 0.2, 0.3])
    own = Remainder().run(b=b, iterations=2)
    assert np.isfinite(own.x).all() and (own.state["s"] > 0).all()
    record = remainder.run(b=b, iterations=2).record
    x = torch.from_numpy(own.x)[None].clone()
    x[:, 1:] = torch.inf
    made = replace(record, values={"x": x, "s": torch.zeros(1, 3, dtype=x.dtype), ANSWER: x})
    assert made.status[0] is not nf.RunStatus.FINISHED
    # The sum of these is 0 in NumPy too.
    assert remainder.run(b=np.array([1.0, 2.0, 3.0]), iterations=2).status is nf.RunStatus.NONFINITE


def test_a_value_that_is_all_rounding_may_have_either_sign():
    # In the plane nothing is left of the third of three orthogonal vectors; it is normalized all the same.
    inputs, _ = record("subspace_iteration").problems(2, 16, 11)
    compiled = algorithm("subspace_iteration", 2)
    run = compiled.run(**inputs, iterations=12)
    assert list(run.status).count(nf.RunStatus.INACCURATE) <= 2  # where rounding changes less of it than the weights do


def test_a_state_that_falls_to_0_with_the_residual_loses_digits_beside_what_it_was():
    # P <- 3 P^2 - 2 P^3 from 5e-7, where it was 0.4: the weights keep 1e-17 of it.
    assert algorithm("purification", 1).verification["systems"]


def test_infinity_is_not_taken_for_a_quotient_of_zeros():
    run = nf.compile(Divided(), n=3, verify=False).run(b=np.array([1, -0.5, 0.25]), iterations=2)
    assert run.status is nf.RunStatus.NONFINITE


class Falling(Divided):
    """y falls, and its logarithm has an error of 1e-13 in weights."""

    def residual(self, b, x):
        return x - b

    def step(self, b, y, z):
        return dict(x=b, y=np.log1p(0.01 * np.abs(y)), z=z)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_state_that_has_fallen_keeps_its_digits_down_to_a_part_of_what_it_was(dtype):
    b = np.array([1, 0.5, 0.25], dtype)
    run = nf.compile(Falling(), n=3, dtype=dtype, verify=False).run(b=b, iterations=10)
    own = Falling().run(b=b.astype("float64"), iterations=10).state["y"]
    assert run.status is nf.RunStatus.INACCURATE or not _seen(run.state["y"], own, dtype).any()


class NearAPole(Still):
    def residual(self, b, x):
        return 1 / (np.abs(x) + 1e-12) - b


def test_a_residual_that_is_huge_at_zero_does_not_lower_the_bar():
    for run in (NearAPole().run, nf.compile(NearAPole(), n=3, verify=False).run):
        assert run(b=np.array([2.0, 3.0, 4.0])).status is not nf.RunStatus.CONVERGED


@pytest.mark.parametrize(
    "residual",
    [lambda b, x: np.linalg.norm(x - b), lambda b, x: (x - b) * (x - 3 * b), lambda b, x: np.exp(x) - np.exp(b)],
)
def test_a_small_residual_converges_whatever_its_last_operation_is(residual):
    class Halving(nf.Program):
        def start(self, b):
            return dict(x=2 * b)

        def step(self, b, x):
            return dict(x=0.5 * x + 0.5 * b)

        def residual(self, b, x):
            return residual(b, x)

    assert Halving().run(b=np.array([1, -0.5, 0.25]), iterations=60).status is nf.RunStatus.CONVERGED


class Bounded(StartsAtB):
    """A bound that single precision, in which the program is run too, does not have."""

    def step(self, x):
        return dict(x=np.maximum(x, -1e300))


def test_a_constant_beyond_single_precision_is_judged():
    b = np.array([1.0, -0.5, 0.25])
    run = nf.compile(Bounded(), n=3, verify=False).run(b=b, iterations=3)
    assert run.status in SAYS or np.abs(run.x[-1] - b).max() < 1e-12


class Welford(nf.Program):
    """The sum of squares of the distances from the mean, one entry in each step."""

    def start(self, b):
        zero = 0.0 * np.sum(b)
        return dict(count=zero, mean=zero, squares=zero, left=b)

    def step(self, count, mean, squares, left):
        count, delta = count + 1.0, left[0] - mean
        mean = mean + delta / count
        return dict(count=count, mean=mean, squares=squares + delta * (left[0] - mean), left=np.roll(left, -1))

    def finish(self, squares):
        return squares


@pytest.mark.parametrize("spread", [1.0, 0.1])
def test_a_variance_far_from_zero_has_two_digits_or_is_said_to_be_wrong(spread):
    welford, b = nf.compile(Welford(), n=6, bound=2.0**20 - 1), 3e5 + spread * np.random.default_rng(0).normal(size=6)
    run, wanted = welford.run(b=b, iterations=6), 6 * np.var(b)
    np.testing.assert_allclose(Welford().run(b=b, iterations=6).x[-1], wanted, rtol=1e-6)
    assert run.status in SAYS or abs(run.x[-1] - wanted) <= 1e-2 * wanted


class Vanished(nf.Program):
    """A product with the logarithm of 1 and a little."""

    def start(self, b):
        return dict(x=2e7 * np.ones_like(b))

    def step(self, A, b, x):
        return dict(x=np.log2(1.0 + b @ b) * x)


def test_a_residual_that_is_small_beside_its_first_alone_does_not_vouch_for_the_answer():
    A, b = 1e-7 * np.eye(3), np.array([-1.7e-8, -9e-8, 5.4e-8])
    run, own = nf.compile(Vanished(), n=3).run(A, b, iterations=1), Vanished().run(A, b, iterations=1).x
    assert run.status is not nf.RunStatus.CONVERGED
    assert run.status in SAYS or not _seen(run.x, own).any()


class AwayFromAPole(nf.Program):
    """It begins near the pole of its residual, and a fixed step takes it away from there."""

    def start(self, b):
        return dict(x=1e-20 * b)

    def step(self, x):
        return dict(x=0.5 * x + 0.05)

    def residual(self, b, x):
        return 1 / x - b


def test_to_leave_a_pole_is_not_to_converge():
    for run in (AwayFromAPole().run, nf.compile(AwayFromAPole(), n=3).run):
        assert run(b=np.array([1.0, 2.0, 3.0]), iterations=6).status is not nf.RunStatus.CONVERGED


class Beside(nf.Program):
    """A state beside an x that converges, and has no part in it."""

    def __init__(self, change):
        self.change = change

    def start(self, b, x0):
        return dict(x=0.0 * b, y=x0)

    def step(self, A, b, x, y):
        return dict(x=x + 0.9 * (b - A @ x), y=self.change(y))


@pytest.mark.parametrize(
    ("change", "y", "count"),
    [
        (lambda y: y * y, [1.0, 1.0, 1.0, 1.0], 45),
        (lambda y: 4.0 * y * (1.0 - y), [0.75, 0.75, 0.75, 0.75], 45),
        (lambda y: y * (2.0 - y), [1.0, 1.0, 1.0, 1e-14], 50),
        (lambda y: np.clip(10.0 * y, -1.0, 1.0), [1.0, 1.0, 1.0, 1e-18], 18),
    ],
    ids=["squares", "logistic", "reciprocal", "clip"],
)
def test_a_state_that_has_no_part_in_the_residual_is_compared_after_convergence(change, y, count):
    wanted = np.array(y)
    for _ in range(count):
        wanted = change(wanted)
    run = nf.compile(Beside(change), n=4).run(np.eye(4), np.arange(1.0, 5.0), x0=np.array(y), iterations=count)
    assert run.status in SAYS or np.allclose(run.state["y"][-1], wanted, rtol=1e-2)


class Unseen(nf.Program):
    """The residual of a singular A does not see the last entry of x."""

    growth = np.array([1.0, 1.0, 1.0, 10.0])

    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        return dict(x=np.clip((x + (b - A @ x)) * self.growth, -1.0, 1.0))


def test_an_entry_of_the_answer_that_the_residual_does_not_see_is_compared():
    A, b = np.diag([1.0, 1.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 0.0])
    run = nf.compile(Unseen(), n=4).run(A, b, x0=np.array([1.0, 1.0, 1.0, 1e-18]), iterations=18)
    assert run.status in SAYS or np.allclose(run.x[-1], 1.0, rtol=1e-2)
