"""The language: programs run as plain arrays, trace into graphs, and say what cannot be compiled."""

import functools
import math
import random

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.compiler.library import program
from nlaformer.compiler.library.krylov import ConjugateGradient
from nlaformer.compiler.lower.facts import facts_of
from nlaformer.compiler.lower.normal import normal
from nlaformer.errors import CompileError
from nlaformer.program.expression import Expression
from tests.systems import StartsAtB, family

I3, ones = np.eye(3), np.ones(3)


class ConstantStep(nf.Program):
    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        return dict(x=x + 0.02 * (b - A @ x))


def problems_of(program):
    with pytest.raises(CompileError) as caught:
        nf.compile(program, n=4)
    return str(caught.value)


def line_of(text):
    """The number of the line of this file that holds the text first."""
    with open(__file__, encoding="utf-8") as source:
        return next(number for number, line in enumerate(source, start=1) if text in line)


def test_a_program_runs_alike_on_numpy_and_on_torch():
    A, b, x = family(5, 3, 1.0)
    in_numpy = ConjugateGradient().run(A, b, iterations=5)
    in_torch = ConjugateGradient().run(torch.tensor(A), torch.tensor(b), iterations=5)
    assert isinstance(in_numpy.x, np.ndarray) and isinstance(in_torch.x, torch.Tensor)
    assert in_numpy.x.shape == (3, 6, 5) and in_numpy.state["rho"].shape == (3, 6)
    np.testing.assert_allclose(in_torch.x.numpy(), in_numpy.x, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(in_numpy.x[:, -1], x, rtol=1e-9)
    single = ConjugateGradient().run(A[0], b[0], iterations=5)
    assert np.array_equal(single.x, in_numpy.x[0]) and single.status is nf.RunStatus.CONVERGED


def test_equal_expressions_are_one_node():
    class Twice(nf.Program):
        def start(self, x0):
            return dict(x=x0)

        def step(self, A, x):
            return dict(x=A @ x + 2.0 * (A @ x))

    step = Twice().graph(3).step["x"]
    assert step.args[0] is step.args[1].args[1]


def test_units_decide_what_may_be_scaled():
    def scaled(program):
        return facts_of(normal(program.graph(4))).scaled

    class Dimensionless(StartsAtB):
        def step(self, b, x):
            return dict(x=x - (x + nf.exp(x) - b) / (1 + nf.exp(x)))

    assert scaled(ConstantStep()) == {"b"}
    assert scaled(Dimensionless()) == frozenset()
    assert scaled(program("cg")) == {"A", "b"}
    assert scaled(program("heavy_ball")) == {"A", "b"}
    units = facts_of(normal(program("cg").graph(4))).units
    assert units["x"] == (-1, 1) and units["rho"] == (0, 2)


def test_an_expression_evaluates_a_batch_as_numpy_does_each_system():
    class Mixed(nf.Program):
        def start(self, A, b):
            return dict(x=(A.T @ b) / nf.diag(A) + nf.sqrt(nf.dot(b, b)) * b)

        def step(self, x):
            return dict(x=x)

    expression = Expression(Mixed().graph(4).start)
    A, b, _ = family(4, 3, 1.0)
    found = expression({"A": torch.tensor(A), "b": torch.tensor(b)})["x"].numpy()
    wanted = [a.T @ v / np.diag(a) + np.linalg.norm(v) * v for a, v in zip(A, b, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def branches(A, b, x):
    if nf.norm(x) > 1:  # data-dependent branch
        return b
    return x


@pytest.mark.parametrize(
    ("lines", "marker", "remedy"),
    [
        (branches, "# data-dependent branch", "if nf.norm(x) > 1"),
        (lambda A, b, x: nf.norm(b) @ A @ x, "@ A @ x, ", "write *"),
        (lambda A, b, x: x[1:] * b + 1, "x[1:] * b", "(3,)"),
        (lambda A, b, x: math.sqrt(nf.dot(x, x)) * x, "math.sqrt", "np.sqrt"),
        (lambda A, b, x: nf.log(x), "nf.log(x)", "nf.positive"),
        (lambda A, b, x: nf.largest(x), "nf.largest", "largest"),
    ],
)
def test_the_first_problem_is_reported_with_its_line_and_a_remedy(lines, marker, remedy):
    class Wrong(StartsAtB):
        def step(self, A, b, x):
            return dict(x=lines(A, b, x))

    message = problems_of(Wrong())
    assert f"line {line_of(marker)}" in message and remedy in message


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        (lambda A, b, x: nf.log(x), "nf.positive"),
        (lambda A, b, x: nf.sqrt(nf.dot(x, b)) * x, "nf.positive"),
        (lambda A, b, x: np.linalg.solve(A, x), "iteration"),
        (lambda A, b, x: max(x, b), "np.maximum"),
        (lambda A, b, x: np.max(A, axis=2), "the axes 0 and 1"),
        (lambda A, b, x: np.linalg.norm(x, 3) * x, "order 3"),
        (lambda A, b, x: np.sum(A, axis=1, keepdims=True), "(4, 1)"),
        (lambda A, b, x: sum(x @ x) * x, "scalar"),
        (lambda A, b, x: x + np.ones(5), "(5,)"),
        (lambda A, b, x: x + np.array([1j, 2, 3, 4]), "complex"),
        (lambda A, b, x: x + "a", "str"),
        (lambda A, b, x: float("inf") * x, "inf"),
        (lambda A, b, x: x / 0.0, "division by zero"),
        (lambda A, b, x: x**2.5, "nf.positive"),
        (lambda A, b, x: x ** nf.norm(x), "nf.positive"),
        (lambda A, b, x: x % 2, "**"),
        (lambda A, b, x: x // 2, "**"),
        (lambda A, b, x: x.__setitem__(4, 1.0) or x, "index 4"),
        (lambda A, b, x: A[:, 4] + x, "index 4"),
        (lambda A, b, x: x[1:3] @ b, "size 4"),
        (lambda A, b, x: x[1:] + b, "(3,)"),
        (lambda A, b, x: x[:, None] * b, "(4, 4)"),
        (lambda A, b, x: round(x @ b) * x, "Python number"),
        (lambda A, b, x: nf.dot(x, nf.norm(x)), "scalar"),
        (lambda A, b, x: np.diag(A, 1) * x, "(3,)"),
    ],
)
def test_an_expression_without_weights_is_refused_with_a_remedy(expression, remedy):
    class Program(nf.Program):
        def start(self, A, b, x0):
            return dict(x=x0)

        def step(self, A, b, x):
            return dict(x=expression(A, b, x))

    assert remedy in problems_of(Program())


def test_states_unlike_in_start_and_step_are_refused_by_name():
    class Names(nf.Program):
        def start(self, b):
            return dict(x=b, y=b)

        def step(self, x, y):
            return dict(x=x, z=y)

    class Kinds(nf.Program):
        def start(self, b):
            return dict(x=b, y=b)

        def step(self, x, y):
            return dict(x=x, y=nf.norm(y))

    class Unknown(StartsAtB):
        def step(self, x, momentum):
            return dict(x=x + momentum)

    class NoAnswer(nf.Program):
        def start(self, b):
            return dict(y=b)

        def step(self, y):
            return dict(y=y)

    class MissingScalar(nf.Program):
        def start(self, b):
            return dict(x=b, rho=nf.dot(b, b))

        def step(self, x):
            return dict(x=x)

    assert "'y'" in problems_of(Names())
    assert "'y'" in problems_of(Kinds()) and "scalar" in problems_of(Kinds())
    assert "'momentum'" in problems_of(Unknown())
    assert "def finish(self, y)" in problems_of(NoAnswer())
    assert "'rho'" in problems_of(MissingScalar())


def test_a_while_loop_on_data_is_refused_and_ends():
    class Loop(StartsAtB):
        def step(self, x):
            while nf.norm(x) > 1:
                x = 0.5 * x
            return dict(x=x)

    assert "while nf.norm(x) > 1" in problems_of(Loop())


def test_a_compile_traces_the_program_once(capsys):
    class Talking(ConstantStep):
        def step(self, A, b, x):
            print("traced" if not isinstance(x, np.ndarray) else "run")
            return super().step(A, b, x)

    nf.compile(Talking(), n=3)
    assert capsys.readouterr().out.count("traced") == 1


steps_taken = 0


def count_a_step():
    global steps_taken
    steps_taken += 1
    return steps_taken


class Remembers(nf.Program):
    """What start resets and step changes beside the states; ``step_size`` says how."""

    k, history, rates, table = 0, [], iter([0.1, 0.2, 0.3]), {"k": 0}
    sizes, rng = np.array([0.1, 0.2]), np.random.default_rng(0)

    def __init__(self, step_size):
        self.step_size = step_size

    def start(self, x0):
        type(self).k = self.k = self.table["k"] = 0
        self.history.clear()
        self.sizes[:] = 0.1, 0.2
        return dict(x=x0)

    def step(self, A, b, x):
        return dict(x=x + self.step_size(self, x) * (b - A @ x))


def on_the_instance(self, x):
    self.k += 1
    return 0.1 / self.k


def on_the_class(self, x):
    type(self).k += 1
    return 0.1 / type(self).k


def in_a_list(self, x):
    self.history.append(x)
    return 0.1 / len(self.history)


def in_a_dictionary(self, x):
    self.table["k"] += 1
    return 0.1 / self.table["k"]


def in_an_array(self, x):
    self.sizes *= 0.5
    return self.sizes[0]


def in_a_generator(self, x):
    return 0.1 * self.rng.random()


@pytest.mark.parametrize(
    ("step_size", "name"),
    [
        (on_the_instance, "k"),
        (on_the_class, "k"),
        (in_a_list, "history"),
        (in_a_dictionary, "table"),
        (in_an_array, "sizes"),
        (in_a_generator, "rng"),
        (lambda self, x: next(self.rates), "rates"),
        (lambda self, x: 0.1 / count_a_step(), "steps_taken"),
        (lambda self, x: np.random.rand(), "np.random"),
        (lambda self, x: random.random(), "random"),
    ],
)
def test_a_program_that_remembers_more_than_its_states_is_refused_by_name(step_size, name):
    class Own(Remembers):
        def step(self, A, b, x):
            return dict(x=x + step_size(self, x) * (b - A @ x))

    for written in (Own(step_size), Remembers(step_size)):
        with pytest.raises(CompileError, match=rf"\(.*\b{name}\b.*\)"):
            nf.compile(written, n=3)
        with pytest.raises(CompileError, match=rf"\(.*\b{name}\b.*\)"):
            written.run(I3, ones)


def test_constants_that_are_computed_once_are_no_memory():
    calls = {"k": 0}
    start_size = [0.02]

    class Constant(ConstantStep):
        @functools.cached_property
        def size(self):
            return start_size[0] * (1 + calls["k"])

        def step(self, A, b, x):
            return dict(x=x + self.size * (b - A @ x))

    assert np.array_equal(Constant().run(I3, ones).x, ConstantStep().run(I3, ones).x)


def test_whole_powers_of_any_number_type_compile():
    class Cube(StartsAtB):
        def step(self, b, x):
            return dict(x=0.1 * x**3.0 + 0.1 * x ** np.int64(2) + 0.1 * x**1 + b)

    b = np.array([0.5, -0.25, 1.0])
    np.testing.assert_allclose(
        nf.compile(Cube(), n=3).run(b=b, iterations=5).x, Cube().run(b=b, iterations=5).x, atol=1e-11
    )


def test_a_step_may_print_what_it_computes(capsys):
    class Talking(ConstantStep):
        def step(self, A, b, x):
            print(f"{nf.norm(x):.2e}")
            return super().step(A, b, x)

    nf.compile(Talking(), n=2, verify=False)
    assert "x @ x" in capsys.readouterr().out


def test_a_step_that_is_not_what_was_traced_is_refused():
    class Random(ConstantStep):
        def step(self, A, b, x):
            return dict(x=x + 0.01 * np.random.default_rng().random() * (b - A @ x))

    assert "random" in problems_of(Random())


def test_an_array_changed_in_place_changes_under_all_its_names():
    class Aliased(nf.Program):
        def start(self, x0):
            return dict(x=x0, previous=x0)

        def step(self, A, b, x, previous):
            old = x
            x += 0.02 * (b - A @ x) + 0.5 * (x - previous)  # changes old too
            return dict(x=x, previous=old)

    A, b, _ = family(3, 1, 1.0)
    run = Aliased().run(A[0], b[0], iterations=2)
    np.testing.assert_array_equal(run.state["previous"], run.x)
    first = 0.02 * b[0]
    np.testing.assert_allclose(run.x[2], first + 0.02 * (b[0] - A[0] @ first), rtol=1e-12)
    np.testing.assert_allclose(nf.compile(Aliased(), n=3).run(A[0], b[0], iterations=2).x, run.x, atol=1e-12)


def start_at_x0(self, x0):
    return dict(x=x0)


def a_step(self, A, b, x):
    return dict(x=x + 0.02 * (b - A @ x))


class NoStep(nf.Program):  # there is no step
    start = start_at_x0


class Strings(nf.Program):
    def start(self, b):  # states given as strings
        return dict(x="abc")

    step = a_step


class NoAnswer(nf.Program):
    start, step = start_at_x0, a_step

    def finish(self, x):  # forgets its return
        x + 1.0


class NoInput(nf.Program):
    def start(self):  # asks for nothing
        return dict(x=1.0)

    def step(self, x):
        return dict(x=x)


class Misspelt(nf.Program):
    start, step = start_at_x0, a_step

    def residual(self, A, b, y):  # asks for y
        return b - A @ y


class MisspeltScale(nf.Program):
    start, step = start_at_x0, a_step

    def residual_scale(self, B):  # asks for B
        return B


@pytest.mark.parametrize(
    ("written", "marker", "words"),
    [
        (NoStep(), "# there is no step", "def step"),
        (Strings(), "# states given as strings", "'abc'"),
        (NoAnswer(), "# forgets its return", "None"),
        (NoInput(), "# asks for nothing", "A, b or x0"),
        (Misspelt(), "# asks for y", "'y'"),
        (MisspeltScale(), "# asks for B", "residual_scale"),
    ],
)
def test_a_missing_part_is_reported_at_the_users_own_line(written, marker, words):
    message = problems_of(written)
    assert words in message and f"test_compiler_language.py, line {line_of(marker)}" in message
    with pytest.raises(CompileError):
        written.run(np.eye(3), np.ones(3))


@pytest.mark.parametrize("step", [3, {}, None, str, functools.partial(a_step, 1, 2, 3, 4, 5)])
def test_a_step_that_is_not_a_method_is_refused(step):
    assert "step" in problems_of(type("Strange", (nf.Program,), {"start": start_at_x0, "step": step})())


def test_a_partial_function_compiles_as_step():
    step = functools.partial(a_step, None)
    strange = type("Strange", (nf.Program,), {"start": start_at_x0, "step": step})()
    np.testing.assert_allclose(
        nf.compile(strange, n=3).run(np.eye(3), np.ones(3)).x, ConstantStep().run(np.eye(3), np.ones(3)).x, atol=1e-12
    )


def asserts(A, b, x):
    assert isinstance(x, np.ndarray)
    return dict(x=x)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda *args: dict(x=args[0]), "functools.wraps"),
        (lambda A, **others: dict(x=others["x"]), "**others"),
        (lambda A, b, x: dict(x=[2 * entry for entry in x]), "np.array"),
        (asserts, "omit it"),
    ],
)
def test_a_method_of_unusual_form_is_refused_once_at_its_own_line(step, words):
    class Unusual(nf.Program):
        def start(self, b):
            return dict(x=b)

    program = Unusual()
    program.step = step
    message = problems_of(program)
    assert words in message and "test_compiler_language.py" in message
