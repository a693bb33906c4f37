"""Programs with learned parts as models: they run, train, are saved, and serve a solver."""

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer import problems
from nlaformer.errors import DTypeError, FileError, OptionError, ShapeError
from nlaformer.learn.data import Batch
from nlaformer.learn.methods import METHODS, GuidedCG, LearnedPCG
from nlaformer.learn.model import member, stack
from nlaformer.learn.programs import initial
from nlaformer.learn.recipes import Config
from nlaformer.learn.supervision import loss, objective, relative_distances
from tests.learned import SYSTEMS, TINY, systems
from tests.systems import ProposedCG


def test_a_part_starts_by_proposing_the_vector_that_it_is_given():
    model = initial(TINY.replace(d=256), ProposedCG())
    A, b, _ = systems(32)
    c, _ = model.propose(A, model.begin(A), b)
    assert (torch.cosine_similarity(c, b) > 0.8).all()


@pytest.mark.parametrize("name", ["guided-cg", "learned-pcg"])  # tests/test_tasks.py has the others
def test_training_lowers_the_loss(name):
    model = initial(TINY.replace(pre_layers=2), METHODS[name]())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(40):
        A, b, x = SYSTEMS.stream(32, generator)
        value = program_loss(model(A, b)[None], x[None].double()).sum()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.2
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_converged_systems_leave_the_gradient_finite():
    model = initial(TINY, LearnedPCG())
    A = torch.cat([torch.eye(6)[None].double(), torch.zeros(1, 6, 6).double() + 3 * torch.eye(6), systems(2)[0]])
    b = torch.cat([torch.ones(1, 6), torch.zeros(1, 6), torch.ones(2, 6)]).double()
    for program in (LearnedPCG(), GuidedCG()):
        model = initial(TINY, program)
        model(A, b, iterations=12).square().sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_a_stack_computes_what_its_members_do(name):
    models = [initial(TINY.replace(seed=seed), METHODS[name]()) for seed in range(3)]
    together = stack(models)
    A, b, _ = systems(6)
    A, b = A.reshape(3, 2, 6, 6), b.reshape(3, 2, 6)
    x = together(A, b)
    assert x.shape == (3, 2, 5, 6) and x.dtype == torch.float64 and together.stacked == 3
    for k, model in enumerate(models):
        torch.testing.assert_close(x[k], model(A[k], b[k]), rtol=1e-4, atol=1e-5)
        assert torch.equal(member(together, k).iterates(A[k], b[k]), model.iterates(A[k], b[k]))
    with pytest.raises(OptionError):
        together.run(A, b)
    with pytest.raises(OptionError):
        together.save("never")


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_model_loads_in_a_process_that_knows_nothing_of_the_program(name, tmp_path):
    class Mine(METHODS[name]):
        pass

    model = initial(TINY, Mine())
    model.save(tmp_path / "mine")
    loaded = nf.load(tmp_path / "mine")
    A, b, _ = systems()
    assert isinstance(loaded, nf.TrainedProgram) and loaded.config == model.config and loaded.program.name == "Mine"
    assert torch.equal(loaded.run(A, b, iterations=7).x, model.run(A, b, iterations=7).x)


@pytest.mark.parametrize("changes", [{"d": 32}, {"pre_layers": 0}, {"loop_layers": 0}, {"heads": 3}])
def test_weights_of_another_size_are_refused(changes, tmp_path):
    model = initial(TINY.replace(loop_layers=2), GuidedCG())
    model.config = model.config.replace(**changes)
    model.save(tmp_path / "wrong")
    with pytest.raises(FileError):
        nf.load(tmp_path / "wrong")


def test_a_run_takes_any_batch_and_library():
    model = initial(TINY, GuidedCG())
    A, b, _ = systems(6)
    whole = model.run(A.reshape(2, 3, 6, 6), b.reshape(2, 3, 6), iterations=2)
    assert whole.x.shape == (2, 3, 3, 6) and whole.status.shape == (2, 3) and whole.residual_norms.shape == (2, 3, 3)
    single = model.run(A[0].numpy(), b[0].numpy(), iterations=2)
    assert isinstance(single.x, np.ndarray) and isinstance(single.status, nf.RunStatus)
    np.testing.assert_allclose(single.x, whole.x[0, 0], rtol=1e-4, atol=1e-6)
    assert model.iterates(A.numpy(), b.numpy()).shape == (6, TINY.T + 1, 6)
    assert "precondition.memory" not in whole.state and "promise 0" not in whole.state


def test_large_batches_run_in_pieces(monkeypatch):
    model = initial(TINY, GuidedCG())
    A, b, _ = systems(9)
    at_once = model.run(A, b, iterations=3)
    monkeypatch.setattr("nlaformer.transformer._ENTRIES_AT_ONCE", {"cpu": 1})
    torch.testing.assert_close(model.run(A, b, iterations=3).x, at_once.x, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", [1, 4])
def test_smaller_systems_are_padded(n):
    A, b, x = problems.SPD(n=n).sample(5, seed=2)
    for program in (GuidedCG(), LearnedPCG()):
        run = initial(TINY, program).run(A, b, iterations=2 * n)
        assert run.x.shape == (5, 2 * n + 1, n)
    torch.testing.assert_close(run.x[:, -1], x, rtol=1e-6, atol=1e-9)


def test_larger_systems_are_refused():
    with pytest.raises(ShapeError, match="6"):
        initial(TINY, GuidedCG()).run(np.eye(7), np.ones(7))


@pytest.mark.parametrize("program", [ProposedCG(), GuidedCG()])
def test_a_solver_may_carry_out_the_method_itself(program):
    model = initial(TINY, program)
    A, b, _ = systems()
    run = model.run(A, b, iterations=1)
    c, memory = model.propose(A, model.begin(A), b)
    size = 1.0 if isinstance(program, ProposedCG) else b.norm(dim=-1, keepdim=True)  # it is asked for a direction
    torch.testing.assert_close(size * c, run.state["d"][:, 1], rtol=1e-5, atol=1e-6)
    again, _ = model.propose(A, memory, run.state["r"][:, 1])
    assert c.dtype == torch.float64 and not torch.equal(again, c)
    with pytest.raises(OptionError):
        model.preconditioner(A)
    with pytest.raises(OptionError):
        initial(TINY, LearnedPCG()).begin(A)


def test_the_program_computes_in_float64_around_a_float32_network():
    A, b, _ = systems()
    run = initial(TINY, LearnedPCG()).run(A.float(), b.float(), iterations=6)
    assert run.x.dtype == torch.float64
    assert initial(TINY, LearnedPCG()).networks["precondition"].positions.dtype == torch.float32


def program_loss(x, x_true):
    """The loss of the recipes, without the first iterate, which nothing changes."""
    T = x.shape[-2] - 1
    config = Config(program="guided-cg", supervision="solution", power=0.0, floor=1e-24, T=T, window=T)
    batch = Batch(x_true, x_true, x_true, x.new_empty(0), x.new_empty(0))  # its error needs the answers alone
    return loss(relative_distances(x, batch, SYSTEMS), objective([config]))


def test_the_loss_is_the_mean_logarithm_of_the_mean_squared_relative_error():
    x = torch.tensor([[3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
    iterates = torch.stack([9 * x, 0 * x, 1.1 * x], -2)
    expected = (np.log(1.0) + np.log(0.01)) / 2
    assert program_loss(iterates[None], x[None]).tolist() == pytest.approx([expected])
    exact = torch.stack([x, x], -2)
    assert program_loss(exact[None], x[None]).tolist() == pytest.approx([np.log(1e-24)])


@pytest.mark.parametrize("name", METHODS)
def test_a_step_and_its_gradient_are_one_graph(name):
    """Torch's tracer finds nothing in a step that depends on the data; so it can be compiled and captured."""
    model = stack([initial(TINY.replace(seed=seed), METHODS[name]()) for seed in range(2)])
    A, b, _ = systems(6)
    A, b = A.reshape(2, 3, 6, 6), b.reshape(2, 3, 6)
    expected = model(A, b, iterations=2)
    torch.compiler.reset()  # the same code is compiled for every method, and torch gives up after eight
    model.first = torch.compile(model.first, fullgraph=True, backend="eager")
    model.next = torch.compile(model.next, fullgraph=True, backend="eager")
    torch.testing.assert_close(model(A, b, iterations=2), expected)


def test_matrices_residuals_and_memories_of_another_shape_are_refused():
    model, A, r = initial(TINY, GuidedCG()), torch.eye(TINY.n), torch.ones(TINY.n)
    memory = model.begin(A)
    for wrong in (A[0], A[:-1], torch.eye(TINY.n + 1)):
        with pytest.raises(ShapeError):
            model.begin(wrong)
    for arguments in ((A, memory, r[1:]), (A, memory[1:], r), (A[None], memory, r), (A, memory, r * 1j)):
        with pytest.raises(ShapeError):
            model.propose(*arguments)
    with pytest.raises(DTypeError):
        initial(TINY, LearnedPCG()).preconditioner(A * 1j)


def test_a_preconditioner_that_is_given_b_is_no_preconditioner_of_a_solver() -> None:
    class Given(nf.Program):
        positive_definite = True
        precondition = nf.Learned("diagonal + rank 1")

        def start(self, A, b, x0):
            return dict(x=x0, M=self.precondition(A, b / nf.norm(b)))

        def step(self, A, b, x, M):
            return dict(x=x + M @ (b - A @ x), M=M)

    model = initial(TINY, Given())
    A, b = np.eye(TINY.n), np.ones(TINY.n)
    for use in (lambda: model.preconditioner(A), lambda: nf.solve(A, b, M=model)):
        with pytest.raises(OptionError):
            use()


@pytest.mark.parametrize("wrong", ["b", "-r", "x"])
def test_a_part_that_is_given_another_vector_than_the_residual_gives_a_solver_no_directions(wrong) -> None:
    class Given(ProposedCG):
        def step(self, A, b, x, r, d, q):
            seen = {"b": b, "-r": -r, "x": x}[wrong]
            c = self.propose(A, seen / nf.norm(seen))
            q = A @ c
            alpha = nf.dot(r, c) / nf.dot(c, q)
            return dict(x=x + alpha * c, r=r - alpha * q, d=c, q=q)

    model, own = initial(TINY, Given()), initial(TINY, ProposedCG())
    assert own.role == "directions" and model.role == ""
    A, b, _ = systems()
    with pytest.raises(OptionError, match="propose"):
        model.propose(A, model.begin(A), b)
    assert nf.solve(A, b, model=model).converged
