"""What a run is given and how it ends: the same for the transformer and for the program itself."""

import warnings

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.compiler.library import program
from nlaformer.errors import CompileError, DomainError, DTypeError, OptionError, ShapeError
from nlaformer.program.expression import Expression
from tests.systems import StartsAtB, with_eigenvalues

I3, ones = np.eye(3), np.ones(3)
BOTH = [program("cg").run, nf.algorithm("cg", n=3, verify=False).run]


@pytest.fixture(params=["reference", "float64", "float32"], scope="module")
def runner(request):
    """``runner(name, n)`` is the run method of the program or of its weights."""

    def find(name, n):
        if request.param == "reference":
            return program(name).run
        run = nf.algorithm(name, n=n, dtype=getattr(torch, request.param), verify=False).run
        return lambda *inputs, **options: run(*(np.asarray(v, request.param) for v in inputs), **options)

    return find


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("factor", [1.0, -3.0, 1e-9, 1e9])
def test_power_that_begins_at_an_eigenvector_has_converged(runner, n, factor):
    run = runner("power", n)(factor * np.eye(n), iterations=10)
    assert run.status is nf.RunStatus.CONVERGED
    np.testing.assert_allclose(np.abs(run.x[-1]), n**-0.5, rtol=1e-4)


def test_power_converges_only_to_an_eigenvector(runner):
    run = runner("power", 3)
    assert run(with_eigenvalues(np.array([3.0, 1.0, 0.5])), iterations=60).status is nf.RunStatus.CONVERGED
    assert run(np.diag([1.0, -1.0, 0.5]), iterations=60).status is nf.RunStatus.STAGNATED
    for A in (np.zeros((3, 3)), np.diag([1.0, 1.0], 1)):  # A x = 0 sooner or later: x is 0, or NaN in NumPy
        ended = run(A, iterations=10)
        assert ended.status in (nf.RunStatus.STAGNATED, nf.RunStatus.NONFINITE)


def test_a_start_near_a_root_has_a_scale_too():
    """Where b is 1, x = 0 solves x + e^x = b, and the residual of x = 0 is no measure of anything."""
    for b in (ones, ones + 1e-13):
        # 0 is an answer without a digit: of weights it is not called converged.
        weights = nf.algorithm("scalar_newton", n=3, verify=False).run(b=b).status
        assert weights in (nf.RunStatus.PRECISION, nf.RunStatus.CONVERGED)
        assert program("scalar_newton").run(b=b).status is nf.RunStatus.CONVERGED


class Halving(StartsAtB):
    """x -> 0 from x0; residual and scale are told, the scale as it is at each iterate."""

    def step(self, x):
        return dict(x=0.5 * x)

    def residual(self, x):
        return x


class Relative(Halving):
    def residual_scale(self, x):
        return x


class Absolute(Halving):
    def residual_scale(self, b, x):
        return b


def test_convergence_is_judged_against_residual_scale():
    for written, status in ((Relative(), nf.RunStatus.RUNNING), (Absolute(), nf.RunStatus.CONVERGED)):
        compiled = nf.compile(written, n=3)
        for run in (written.run, compiled.run):
            assert run(b=ones, iterations=40).status is status
            assert run(b=0 * ones, iterations=40).status is nf.RunStatus.STAGNATED  # a scale of zero judges nothing


def test_a_loaded_algorithm_keeps_its_residual_scale(tmp_path):
    power = nf.load(nf.algorithm("power", n=3, verify=False).save(tmp_path))
    assert power.run(I3).status is nf.RunStatus.CONVERGED


def test_a_broken_promise_ends_not_positive_without_a_residual():
    class Root(StartsAtB):
        def step(self, b, x):
            return dict(x=nf.sqrt(nf.positive(b)) + 0 * x)

    run = nf.compile(Root(), n=3).run(b=np.array([1.0, -1.0, 2.0]))
    assert run.residual_norms is None and run.status is nf.RunStatus.NOT_POSITIVE


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
def test_an_empty_batch_has_empty_iterates(runner, batch):
    run = runner("cg", 3)(np.zeros((*batch, 3, 3)), np.zeros((*batch, 3)), iterations=4)
    assert run.x.shape == (*batch, 5, 3) and run.state["rho"].shape == (*batch, 5)
    assert run.status.shape == batch and run.residual_norms.shape == (*batch, 5)


@pytest.mark.parametrize("run", BOTH, ids=["program", "weights"])
@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((I3, np.ones(4)), ShapeError, r"b .*\(4,\).*\(..., 3\)"),
        ((np.ones((2, 3)), ones), ShapeError, r"A .*\(2, 3\)"),
        ((I3, 3.0), ShapeError, r"b .*\(\)"),
        ((2.0, ones), ShapeError, r"A .*\(\)"),
        ((np.zeros((0, 0)), np.zeros(0)), ShapeError, r"A .*\(0, 0\)"),
        ((np.ones((2, 3, 3)), np.ones((4, 3))), ShapeError, r"\(2, 3, 3\)"),
        ((I3,), ShapeError, "b"),
        ((), ShapeError, "A, b"),
        ((I3, ["a"] * 3), DTypeError, "<U1"),
        ((1j * I3, ones), DTypeError, "complex"),
        ((I3.astype("f2"), ones), DTypeError, "float16.*float64$"),
        ((I3, [1.0, np.nan, 1.0]), DomainError, "NaN"),
    ],
)
def test_programs_and_weights_refuse_the_same_inputs(run, given, error, words):
    with pytest.raises(error, match=words):
        run(*given)


@pytest.mark.parametrize("run", BOTH, ids=["program", "weights"])
def test_iterates_that_do_not_fit_the_memory_are_refused(run):
    with pytest.raises(OptionError, match="104,000 GB"):
        run(I3, ones, iterations=10**12)
    for wrong in ("a", 1.5, True, None):
        with pytest.raises(OptionError, match="iterations"):
            run(I3, ones, iterations=wrong)
    assert run(I3, ones, iterations=np.int64(2)).x.shape == (3, 3)


def test_lists_numpy_and_torch_inputs_mix():
    A, b = np.diag([2, 3, 4]), [1, 2, 3]
    for run in BOTH:
        np.testing.assert_allclose(run(A, b, iterations=3).x[-1], [1 / 2, 2 / 3, 3 / 4], rtol=1e-9)
        mixed = run(torch.from_numpy(A).double(), np.array(b), iterations=3).x
        assert isinstance(mixed, torch.Tensor)
        np.testing.assert_allclose(mixed[-1], [1 / 2, 2 / 3, 3 / 4], rtol=1e-9)
    assert program("cg").run(A.astype("f4"), b, iterations=3).x.dtype == np.float32
    assert program("cg").run(A.astype("f4"), np.array(b, "f8"), iterations=3).x.dtype == np.float64


def test_a_program_may_write_into_its_arrays():
    class InPlace(nf.Program):
        def start(self, b, x0):
            return dict(x=x0, r=b)

        def step(self, A, x, r):
            x += 0.1 * r
            r -= 0.1 * (A @ r)
            return dict(x=x, r=r)

    A, b = np.diag([2.0, 3.0, 4.0]), np.ones(3)
    run = InPlace().run(A, b)
    assert np.array_equal(b, ones) and np.array_equal(run.state["r"][0], ones)
    np.testing.assert_allclose(run.x, nf.compile(InPlace(), n=3).run(A, b).x, rtol=0, atol=1e-12)


def test_a_state_may_be_named_answer():
    class Named(nf.Program):
        def start(self, x0):
            return dict(answer=x0)

        def step(self, A, b, answer):
            return dict(answer=answer + 0.1 * (b - A @ answer))

        def finish(self, A, answer):
            return A @ answer + 2.0 * answer

    A = np.diag([2.0, 3.0, 4.0])
    compiled, reference = nf.compile(Named(), n=3).run(A, ones), Named().run(A, ones)
    for run in (compiled, reference):
        np.testing.assert_allclose(run.x, run.state["answer"] @ (A + 2 * I3), rtol=0, atol=1e-12)
    np.testing.assert_allclose(compiled.x, reference.x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(compiled.residual_norms, reference.residual_norms, rtol=0, atol=1e-11)


def test_no_warning_of_numpy_leaves_a_run():
    class TooFar(nf.Program):
        def start(self, x0):
            return dict(x=x0)

        def step(self, A, b, x):
            return dict(x=x + 1e3 * (b - A @ x))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for run in (TooFar().run, nf.compile(TooFar(), n=3).run):
            assert run(2 * I3, ones, iterations=200).status is nf.RunStatus.NONFINITE
        program("cg").run(I3, ones)  # 0 / 0 after convergence


class StartsAtZero(nf.Program):
    """Conjugate gradients with d = 0 and beta = 0 at first, and a count of the steps."""

    positive_definite = True

    def start(self, A, b):
        return dict(x=nf.zeros_like(b), r=b, d=nf.zeros_like(b), rho=nf.dot(b, b), beta=0.0, count=0)

    def step(self, A, x, r, d, rho, beta, count):
        d = r + beta * d
        q = A @ d
        alpha = rho / nf.dot(d, q)
        r = r - alpha * q
        after = nf.dot(r, r)
        return dict(x=x + alpha * d, r=r, d=d, rho=after, beta=after / rho, count=count + 1)


@pytest.mark.parametrize("factor", [1.0, 1e9, 1e-9])
def test_states_may_start_at_zero_whatever_their_units(factor):
    compiled = nf.compile(StartsAtZero(), n=4, verify=factor == 1.0)
    assert compiled.config.scaled == ["A", "b"]
    A = factor * with_eigenvalues(np.array([1.0, 2.0, 3.0, 5.0]))
    run = compiled.run(A, np.ones(4), iterations=6)
    assert run.status is nf.RunStatus.CONVERGED
    np.testing.assert_allclose(run.x[-1], np.linalg.solve(A, np.ones(4)), rtol=1e-9)
    np.testing.assert_allclose(run.state["count"], np.arange(7), atol=1e-9)


class Signed(nf.Program):
    """Scalars of changing sign: one flips and is divided by, two turn, one is lowered by another."""

    def start(self, x0):
        return dict(x=x0, flip=-1e-6, cosine=1.0, sine=0.25, below=0.0, step=0.3)

    def step(self, A, b, x, flip, cosine, sine, below, step):
        return dict(
            x=x + (0.1 + 1e-8 / flip) * (b - A @ x),
            flip=-flip,
            cosine=0.8 * cosine - 0.6 * sine,
            sine=0.8 * sine + 0.6 * cosine,
            below=below - step,
            step=0.9 * step,
        )


def test_a_scalar_state_may_change_its_sign():
    A, b = with_eigenvalues(np.array([1.0, 2.0, 3.0])), np.array([1.0, -2.0, 0.5])
    run, reference = (run(A, b, iterations=50) for run in (nf.compile(Signed(), n=3).run, Signed().run))
    assert run.status is reference.status
    for name, value in reference.state.items():
        np.testing.assert_allclose(run.state[name], value, rtol=0, atol=1e-9 * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize("name", ["cg", "richardson", "newton_schulz", "scalar_newton"])
def test_sizes_that_do_not_fit_the_memory_are_refused(name):
    with pytest.raises(OptionError, match=r"n is 10,000,000: .* GB"):
        nf.algorithm(name, n=10**7)


def test_beyond_the_bound_the_remedy_can_be_followed():
    with pytest.raises(DomainError, match="bound=, at most 1"):
        nf.algorithm("scalar_newton", n=2, verify=False).run(b=np.array([2000.0, 1.0]))
    nf.algorithm("scalar_newton", n=2, bound=4096.0, verify=False).run(b=np.array([2000.0, 1.0]))
    with pytest.raises(DomainError, match="1e\\+300"):
        nf.algorithm("scalar_newton", n=2, verify=False).run(b=np.array([1e300, 1.0]))


@pytest.mark.parametrize("number", [1e-60, 1e60])
def test_a_list_beyond_float32_is_not_rounded_to_nothing(number):
    run = nf.algorithm("cg", n=2, dtype=torch.float32, verify=False).run
    with pytest.raises(DTypeError, match="float32"):
        run([[2.0, 0.0], [0.0, 3.0]], [number, 1.0])


def test_a_program_may_take_x0_alone():
    class Doubling(nf.Program):
        def start(self, x0):
            return dict(x=x0)

        def step(self, x):
            return dict(x=2.0 * x)

    for run in (Doubling().run, nf.compile(Doubling(), n=3).run):
        np.testing.assert_allclose(run(x0=ones, iterations=5).x[-1], 32.0, rtol=1e-12)
        with pytest.raises(ShapeError, match="x0"):
            run()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("device", ["cuda", "meta", 3.5, None])
def test_an_unusable_device_is_refused(device):
    for made in (nf.algorithm("richardson", n=2, verify=False), nf.operation("add", n=2)):
        with pytest.raises(OptionError, match="device"):
            made.to(device)
        assert made.to("cpu") is not made and made.device.type == "cpu"


class Stubborn(nf.Program):
    """Steepest descent with a constant that keeps A from being scaled."""

    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        r = b - A @ x
        return dict(x=x + 0.9 * nf.dot(r, r) / nf.dot(r, A @ r) * r + 1e-4 * r)


@pytest.mark.parametrize("bound", [4.0, 16.0, 1024.0])  # the random systems of the verification have norms about nine
def test_weights_keep_their_digits_for_any_bound(bound):
    found = nf.compile(Stubborn(), n=5, bound=bound).verification["systems"]["random"]
    assert found["last"] < 1e-8


def test_a_constant_start_that_keeps_A_unscaled_loses_no_digits():
    class Watched(nf.Program):
        def start(self, x0):
            return dict(x=x0, omega=1.0)

        def step(self, A, b, x, omega):
            r = b - A @ x
            q = A @ r
            ratio = nf.dot(r, q) / nf.dot(q, q)
            return dict(x=x + ratio * r, omega=ratio)

    assert nf.compile(Watched(), n=5).verification["systems"]["random"]["last"] < 1e-8


def test_a_run_on_tensors_prints_plain_shapes():
    run = nf.algorithm("richardson", n=3).run(torch.eye(3).double(), torch.ones(3).double(), iterations=2)
    assert "x (3, 3)" in str(run) and "torch" not in str(run)


def test_a_diagnosis_names_the_division_by_zero_of_the_program_itself():
    class Reciprocal(nf.Program):
        def start(self, b):
            return dict(x=1 / b)

        def step(self, x):
            return dict(x=x)

    run = nf.compile(Reciprocal(), 2).run(b=np.array([1.0, 0.0]), iterations=1)
    assert run.status is nf.RunStatus.NONFINITE and "1/b" in str(run.diagnose())
    assert not nf.compile(Reciprocal(), 2).run(b=np.array([1.0, 2.0]), iterations=1).diagnose().lost


def test_a_program_without_a_finite_value_is_not_verified_in_silence():
    class Pole(nf.Program):
        def start(self, x0):
            return dict(x=x0)

        def step(self, b, x):
            return dict(x=b / (x - x * np.eye(len(b))[0] * len(b) / len(b)))  # 0 in the first entry

    with pytest.warns(UserWarning, match="nothing was compared"):
        nf.compile(Pole(), 3)


class LimitedMemory(nf.Program):
    """L-BFGS with one pair after two steps of steepest descent: 0 / 0 where one solves the system, as for A = I."""

    def start(self, A, b, x0):
        g = A @ x0 - b
        x = x0 - (g @ g) / (g @ (A @ g)) * g
        g = A @ x - b
        s = -(g @ g) / (g @ (A @ g)) * g
        return dict(x=x + s, s=s, y=A @ (x + s) - b - g)

    def step(self, A, b, x, s, y):
        g = A @ x - b
        along = (s @ g) / (y @ s)
        r = (s @ y) / (y @ y) * (g - along * y)
        r = r + s * (along - (y @ r) / (y @ s))
        s = -(g @ r) / (r @ (A @ r)) * r
        return dict(x=x + s, s=s, y=A @ (x + s) - b - g)


def test_a_hard_system_on_which_the_program_divides_zero_by_zero_is_named_and_not_an_error():
    found = nf.compile(LimitedMemory(), 4)
    systems = found.verification["systems"]
    assert systems["identity"]["lost"] == 0 and "lost" not in systems["random"]
    assert 0 < systems["random"]["bars"] < 1 and 0 < systems["random"]["largest"] < 1e-9
    assert "identity" in str(found)


def test_differences_of_iterates_keep_their_digits_until_the_method_has_converged():
    A, b = with_eigenvalues(np.geomspace(0.3, 9.0, 8)), np.ones(8)
    run = nf.compile(LimitedMemory(), 8, verify=False).run(A, b, iterations=40)
    assert run.status is nf.RunStatus.CONVERGED and run.residual_norms[-1] <= 1e-12 * run.residual_norms[0]


def test_gmres_goes_on_after_a_cycle_that_is_exact():
    systems = [with_eigenvalues(np.where(np.arange(8) % 2, 1.0, 5.0), seed) for seed in range(20)]
    b = np.random.default_rng(1).standard_normal((20, 8))
    run = nf.algorithm("gmres", 8, verify=False).run(np.stack(systems), b, iterations=20)
    assert all(status is nf.RunStatus.CONVERGED for status in run.status)


def test_a_program_that_divides_zero_by_zero_on_every_system_is_refused():
    class Nothing(nf.Program):
        def start(self, b, x0):
            return dict(x=x0, s=b - b)

        def step(self, b, x, s):
            return dict(x=b + s / nf.norm(s), s=s)

    with pytest.raises(CompileError, match="verify="):
        nf.compile(Nothing(), 3)


def test_promises_on_inputs_are_kept_by_the_systems_of_the_verification():
    class Logarithm(nf.Program):
        def start(self, b):
            return dict(x=nf.log(nf.positive(b)))

        def step(self, b, x):
            return dict(x=x + b)

    assert nf.compile(Logarithm(), 8).verification["systems"]["random"]["bars"] > 0


def test_a_run_is_judged_when_it_is_asked_for(monkeypatch):
    cg, counted = nf.algorithm("cg", n=4, verify=False), []
    results = Expression.results
    monkeypatch.setattr(Expression, "results", lambda *given, **more: counted.append(1) or results(*given, **more))
    run = cg.run(np.diag([1.0, 2.0, 3.0, 4.0]), np.ones(4), iterations=3)
    assert not counted
    assert run.status is nf.RunStatus.RUNNING and counted
    once = len(counted)
    assert run.status is nf.RunStatus.RUNNING and len(run.residual_norms) == 4 and len(counted) == once
    assert len(run.digits["x"]) == 4 and run.diagnose().first is None and len(counted) == once


@pytest.mark.parametrize("weights", [True, False])
def test_what_a_run_says_stays_when_arrays_change_in_place(weights):
    A, b = np.diag([1.0, 2.0, 3.0, 4.0]), np.ones(4)
    run = nf.algorithm("cg", n=4, verify=False).run if weights else program("cg").run
    asked, later = run(A, b, iterations=8), run(A, b, iterations=8)
    said = asked.status, asked.residual_norms.copy(), asked.digits["x"].copy()
    for array in (A, b, later.x, *later.state.values()):
        array *= 7.0
    assert said[0] is later.status
    np.testing.assert_array_equal(said[1], later.residual_norms)
    np.testing.assert_array_equal(said[2], later.digits["x"])


def test_a_run_that_lacks_digits_does_not_blame_the_system():
    A, b = with_eigenvalues(np.geomspace(1.0, 1e4, 4)).astype("float32"), np.array([1.0, 2.0, -1.0, 0.5], "float32")
    ends = {
        name: nf.algorithm(name, 4, dtype="float32", verify=False).run(A, b, iterations=60).status
        for name in ("cg", "minimal_residual")
    }
    # In float64 the first solves the system, and the second is as slow as in float32.
    assert ends == {"cg": nf.RunStatus.PRECISION, "minimal_residual": nf.RunStatus.STAGNATED}


@pytest.mark.parametrize("name", ["cg", "craig", "cgls"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_methods_that_converge_within_a_few_steps_compile_for_small_systems(name, n):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert nf.algorithm(name, n).run(np.eye(n), np.ones(n), iterations=3).status is nf.RunStatus.CONVERGED


def test_a_conversion_to_the_own_precision_compiles_and_to_another_is_refused():
    class Converted(nf.Program):
        kind = "float64"

        def start(self, x0):
            return dict(x=x0)

        def step(self, b, x):
            return dict(x=x.astype(self.kind) + b)

    nf.compile(Converted(), 3)
    Converted.kind = "float32"
    with pytest.raises(CompileError, match="dtype="):
        nf.compile(Converted(), 3)


@pytest.mark.parametrize("name", ["minimal_residual", "bfgs"])
def test_a_step_length_of_either_sign_keeps_the_residual_that_of_x(name):
    A = np.stack([with_eigenvalues(np.geomspace(1.0, 50.0, 6), seed) for seed in range(4)])
    b = np.random.default_rng(0).standard_normal((4, 6))
    run = nf.algorithm(name, n=6, verify=False).run(A, b, iterations=12)
    r = run.state["r"] if "r" in run.state else -run.state["g"]
    lost = b[:, None] - (A[:, None] @ run.x[..., None])[..., 0] - r
    assert (np.linalg.norm(lost, axis=-1) <= 5e-14 * np.linalg.norm(b, axis=-1)[:, None]).all()


class OfLargeDiagonals(nf.Program):
    """Not finite, or not positive, on the systems that the verification draws."""

    def start(self, b):
        return dict(x=0 * b)

    def step(self, A, b, x):
        return dict(x=x + (b - A @ x) / np.log(nf.positive(np.diag(A) - 3)) / 10)


def test_a_program_is_verified_on_systems_that_it_is_meant_for():
    A, b = np.diag([6.0, 7.0, 8.0]) + 0.1, np.ones((2, 3))
    with pytest.warns(UserWarning, match="nothing was compared"):
        nf.compile(OfLargeDiagonals(), n=3)
    compiled = nf.compile(OfLargeDiagonals(), n=3, verify=dict(A=A, b=b))
    (found,) = compiled.verification["systems"].values()
    assert found["bars"] < 1
    with pytest.raises(ShapeError):
        nf.compile(OfLargeDiagonals(), n=3, verify=dict(A=A))
    with pytest.raises(ShapeError, match="no system"):
        nf.compile(OfLargeDiagonals(), n=3, verify=dict(A=np.zeros((0, 3, 3)), b=np.zeros((0, 3))))
    for nonsense in ({}, "yes", 1.5, {1: A}):
        with pytest.raises(OptionError, match="verify"):
            nf.compile(OfLargeDiagonals(), n=3, verify=nonsense)


def test_weights_that_are_wrong_on_given_systems_are_refused():
    class Quotients(nf.Program):
        inputs = dict(w="vector")  # noqa: RUF012

        def start(self, b, w):
            return dict(x=np.outer(1 / w, 1 / w) @ b)

        def step(self, x):
            return dict(x=x)

    nf.compile(Quotients(), n=3, verify=dict(b=np.ones(3), w=np.ones(3)))
    with pytest.raises(CompileError, match="your systems"):
        nf.compile(Quotients(), n=3, verify=dict(b=np.ones(3), w=np.full(3, 0.01)))


def test_a_program_without_a_residual_is_finished():
    class Power(nf.Program):
        residual = None

        def start(self, A, b):
            return dict(x=b)

        def step(self, A, b, x):
            return dict(x=A @ x / np.linalg.norm(A @ x))

    A, b = np.diag([1.0, 2.0, 3.0]), np.ones(3)
    assert nf.compile(Power(), n=3).run(A, b).status is nf.RunStatus.FINISHED
    assert Power().run(A, b).status is nf.RunStatus.FINISHED
    Power.residual_scale = lambda self, b: b
    with pytest.raises(CompileError, match="residual_scale"):
        nf.compile(Power(), n=3)


class Diverges(StartsAtB):
    def step(self, b, x):
        return dict(x=b + 0.1 * x**3 + 0.1 * x**2)


def test_systems_on_which_values_were_wrong_are_not_called_verified():
    with pytest.warns(UserWarning, match="of the verification"):
        printed = str(nf.compile(Diverges(), n=3))
    assert "not verified on random" in printed


def test_a_warning_is_at_the_line_that_called_the_package():
    with pytest.warns(UserWarning, match="on a system") as caught:
        nf.compile(Diverges(), n=3)  # which is decorated
    assert caught[0].filename == __file__
