"""The evaluator of traced programs: batches and gradients."""

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.compiler.library import program
from nlaformer.errors import CompileError
from nlaformer.program.expression import Expression
from nlaformer.program.ir import Graph, reachable
from nlaformer.program.primitives import apply
from tests.systems import family


def made(op, *names):
    """The expression of an operation on vectors."""
    graph = Graph()
    return Expression({"x": apply(graph, op, *(graph.input(name, (2,)) for name in names))})


def cg_values(members=2, systems=3, n=4):
    A, b, _ = family(n, systems, 1.0)
    A = torch.tensor(A).expand(members, *A.shape)
    factors = torch.arange(1.0, members + 1, dtype=torch.float64)
    return {"A": A, "b": torch.tensor(b) * factors[:, None, None], "x0": torch.zeros(members, systems, n).double()}


def test_leading_axes_of_members_and_systems_are_batched():
    graph = program("cg").graph(4)
    start, step = Expression(graph.start), Expression(graph.step)
    values = cg_values()
    state = step(values | start(values))
    assert state["x"].shape == (2, 3, 4) and state["rho"].shape == (2, 3)
    for e in range(2):
        for i in range(3):
            run = program("cg").run(*(values[name][e, i] for name in ("A", "b")), iterations=1)
            for name, value in state.items():
                torch.testing.assert_close(value[e, i], run.state[name][-1], rtol=1e-12, atol=1e-14)


def test_each_node_is_in_the_expression_once():
    graph = program("cg_fused").graph(4)
    expression = Expression(graph.step)
    assert len(expression.nodes) == len(set(expression.nodes)) == len(reachable(graph.step.values()))
    assert expression.outputs.keys() == graph.start.keys()


def test_zero_over_zero_is_zero_with_gradient_zero():
    quotient = made("divide", "u", "v")
    u = torch.tensor([0.0, 6.0, 1.0, 1e-200], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([0.0, 3.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    result = quotient({"u": u, "v": v})["x"]
    assert result.tolist() == [0.0, 2.0, float("inf"), 0.0]  # 1 / 0 is no 0 / 0
    result[[0, 1, 3]].sum().backward()
    assert u.grad[[0, 1, 3]].tolist() == [0.0, 1 / 3, 0.0] and v.grad[[0, 1, 3]].tolist() == [0.0, -2 / 3, 0.0]


def test_the_direction_of_zero_is_zero_with_gradient_zero():
    class Direction(nf.Program):
        def start(self, b):
            return dict(x=b / nf.norm(b))

        def step(self, x):
            return dict(x=x)

    b = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1e-200, 0.0]], dtype=torch.float64, requires_grad=True)
    x = Expression(Direction().graph(2).start)({"b": b})["x"]
    assert x.tolist() == [[0.0, 0.0], [0.6, 0.8], [0.0, 0.0]]
    x[:, 0].sum().backward()
    torch.testing.assert_close(b.grad, torch.tensor([[0.0, 0.0], [0.128, -0.096], [0.0, 0.0]], dtype=torch.float64))


def test_a_converged_system_leaves_the_gradient_of_its_batch_finite():
    graph = program("cg").graph(3)
    start, step = Expression(graph.start), Expression(graph.step)
    A = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, 2.0, 3.0]))]).double().requires_grad_()
    b = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    inputs = {"A": A, "b": b, "x0": torch.zeros(2, 3, dtype=torch.float64)}
    state = start(inputs)
    for _ in range(6):
        state = step(inputs | state)
    torch.testing.assert_close(state["x"], torch.tensor([[1.0, 1, 1], [1, 1 / 2, 1 / 3]]).double())
    state["x"].sum().backward()
    assert A.grad.isfinite().all() and b.grad.isfinite().all() and b.grad.abs().sum() > 0


def test_a_run_stays_where_it_converged():
    run = program("cg").run(np.eye(3), np.ones(3), iterations=5)
    assert np.array_equal(run.x[1:], np.ones((5, 3))) and run.status is nf.RunStatus.CONVERGED


def test_the_size_is_that_of_a_vector_where_scalars_are_batched_too():
    class Shifted(nf.Program):
        def start(self, b):
            return dict(total=nf.dot(b, b), x=nf.zeros_like(b))

        def step(self, total, x):
            return dict(total=total, x=x + total + nf.zeros_like(x))

    assert Shifted().run(b=np.ones((2, 3)), iterations=1).x.tolist() == [[[0.0] * 3, [3.0] * 3]] * 2


def test_a_learned_part_is_called_once_for_all_its_outputs():
    graph, calls = Graph(), []
    b = graph.input("b", (2,))
    said = {name: graph.make("learned", (b,), ("part", of), (2,)) for name, of in (("x", "first"), ("y", "second"))}

    def part(b):
        calls.append(b)
        return {"first": 2 * b, "second": 3 * b}

    found = Expression(said)({"b": torch.ones(2)}, {"part": part})
    assert found["x"].tolist() == [2.0, 2.0] and found["y"].tolist() == [3.0, 3.0] and len(calls) == 1


def test_a_program_that_changes_its_attributes_is_refused_by_a_run():
    class Counting(nf.Program):
        count = 0

        def start(self, x0):
            return dict(x=x0)

        def step(self, b, x):
            self.count += 1
            return dict(x=x + self.count * b)

    with pytest.raises(CompileError, match="count"):
        Counting().run(b=np.ones(2))


FUNCTIONS = {
    "expm1": (np.expm1, [1e-12, -0.3]),
    "log1p": (np.log1p, [1e-12, 0.3]),
    "sinh": (np.sinh, [1e-12, -0.3]),
    "tanh": (np.tanh, [1e-12, 30.0]),
    "softplus": (lambda v: np.logaddexp(0.0, v), [-40.0, 800.0]),
}
PAIRS = {"maximum": np.maximum, "minimum": np.minimum, "logaddexp": np.logaddexp, "hypot": np.hypot}


@pytest.mark.parametrize("name", [*FUNCTIONS, *PAIRS])
def test_functions_without_weights_are_numpys_own_and_have_gradients(name):
    if name in FUNCTIONS:
        function, numbers = FUNCTIONS[name]
        given = [np.array(numbers)]
    else:
        function, given = PAIRS[name], [np.array([1e-14, -2e-170]), np.array([1.0, 1e-170])]
    names = ["u", "v"][: len(given)]
    expression = made(name, *names)
    values = {key: torch.tensor(value, requires_grad=True) for key, value in zip(names, given, strict=True)}
    np.testing.assert_allclose(expression(values)["x"].detach().numpy(), function(*given), rtol=1e-15, atol=0)
    plain = tuple(
        torch.tensor([0.3, 0.9], dtype=torch.float64, requires_grad=True) * (k + 1) for k in range(len(given))
    )
    assert torch.autograd.gradcheck(lambda *v: expression(dict(zip(names, v, strict=True)))["x"], plain)


def test_the_hypotenuse_of_zeros_has_the_gradient_zero():
    expression = made("hypot", "u", "v")
    u, v = (torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    expression({"u": u, "v": v})["x"].sum().backward()
    assert u.grad.tolist() == v.grad.tolist() == [0.0, 0.0]
