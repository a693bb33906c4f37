"""Programs with learned parts: what a part may say, what the program guarantees, how it is saved."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer import problems
from nlaformer.compiler.analysis import analyse
from nlaformer.compiler.reference import Reference
from nlaformer.compiler.trace import trace_program
from nlaformer.errors import CompileError, DTypeError, FileError, NLAFormerError, OptionError, ShapeError
from nlaformer.learn.data import Batch
from nlaformer.learn.methods import METHODS, GuidedCG, LearnedPCG
from nlaformer.learn.model import member, stack
from nlaformer.learn.programs import initial
from nlaformer.learn.recipes import Config
from nlaformer.learn.supervision import loss, objective, relative_distances
from tests.systems import ProposedCG

TINY = Config(n=6, T=4, d=16, heads=2, pre_layers=1, loop_layers=1)
SYSTEMS = problems.SPD(n=6, sigma=(1.0, 1.4))


def systems(count=5, seed=1):
    return SYSTEMS.sample(count, seed=seed)


def a_norm(A, error):
    """The error of every iterate in the norm of A, (..., T+1)."""
    return torch.einsum("...ti,...ij,...tj->...t", error, A, error).sqrt()


class Replaced(torch.nn.Module):
    """A network whose answer is replaced."""

    def __init__(self, network, answer):
        super().__init__()
        self.network, self.answer = network, answer
        self.part, self.positions = network.part, network.positions
        self.begin, self.first, self.blocks = network.begin, network.first, network.blocks

    def step(self, A, *values):
        given = self.network.step(A, *values)
        return given | {"value": self.answer(given["value"])}


def replaced(model, answer):
    other = initial(model.config, ProposedCG())
    other.load_state_dict(model.state_dict())
    other.networks["propose"] = Replaced(other.networks["propose"], answer)
    return other


# --- the language ---


class Misused(nf.Program):
    """A program whose step is given to the constructor."""

    propose = nf.Learned("vector", memory=True)

    def __init__(self, direction):
        self.direction = direction

    def start(self, A, b, x0):
        return dict(x=x0, r=b - A @ x0)

    def step(self, A, b, x, r):
        return dict(x=x + self.direction(self, A, b, x, r), r=b - A @ x)


WRONG = {
    "unit": lambda self, A, b, x, r: self.propose(A, r),
    "has a unit": lambda self, A, b, x, r: nf.norm(x) * self.propose(A, r / nf.norm(b), x),
    "second": lambda self, A, b, x, r: self.propose(A, r / nf.norm(r)) + self.propose(A, b / nf.norm(b)),
    "first argument": lambda self, A, b, x, r: self.propose(r / nf.norm(r)),
    "matrix": lambda self, A, b, x, r: self.propose(A, A),
    "attribute": lambda self, A, b, x, r: nf.Learned("vector")(A, r / nf.norm(r)),
}


@pytest.mark.parametrize("word", WRONG)
def test_a_part_that_is_called_wrongly_is_refused_in_words(word):
    with pytest.raises(CompileError) as caught:
        initial(TINY, Misused(WRONG[word]))
    assert "WRONG" not in str(caught.value)
    lines = str(caught.value).splitlines()  # in the order: what, where (with the user's line), why
    assert len(lines) == 3 and word in lines[2]
    assert Path(__file__).name in lines[1]


def test_a_part_takes_values_without_a_unit():
    def direction(self, A, b, x, r):
        c = self.propose(A, r / nf.norm(r), b / nf.norm(b), nf.norm(r) / nf.norm(b))
        return nf.norm(x) * self.again(A, r / nf.norm(r)) * c

    class Twice(Misused):
        again = nf.Learned("scalar")

    model = initial(TINY, Twice(direction))
    A, b, _ = systems()
    assert model.run(A, b, x0=b, iterations=3).x.isfinite().all()
    assert model.networks["propose"].part.inputs == ["vector", "vector", "scalar"]


def test_a_part_takes_constants_without_leading_axes():
    def direction(self, A, b, x, r):
        return nf.norm(x) * self.propose(A, np.ones_like(r), 0.5)

    models = [initial(TINY.replace(seed=seed), Misused(direction)) for seed in range(2)]
    A, b, _ = systems(4)
    assert models[0].run(A, b, iterations=2).x.shape == (4, 3, 6)
    assert stack(models)(A.reshape(2, 2, 6, 6), b.reshape(2, 2, 6)).shape == (2, 2, 5, 6)


def test_a_part_in_finish_is_refused():
    class Late(ProposedCG):
        def finish(self, A, x, r):
            return x + self.propose(A, r / nf.norm(r))

    with pytest.raises(CompileError, match="finish"):
        initial(TINY, Late())


def test_memory_in_start_is_refused():
    class Early(LearnedPCG):
        def __init__(self):
            self.precondition = nf.Learned("diagonal + rank 1", memory=True)

    with pytest.raises(CompileError, match="memory"):
        initial(TINY, Early())


@pytest.mark.parametrize("gives", ["matrix", "diagonal + rank 0", "diagonal+rank 1", "", None, 3])
def test_an_unknown_kind_of_part_is_refused(gives):
    with pytest.raises(NLAFormerError):
        nf.Learned(gives)


def test_memory_is_a_flag():
    with pytest.raises(OptionError):
        nf.Learned("vector", memory="yes")


@pytest.mark.parametrize("program", [GuidedCG(), LearnedPCG()])
def test_an_open_program_neither_runs_nor_compiles(program):
    with pytest.raises(CompileError, match="train"):
        program.run(np.eye(3), np.ones(3))
    with pytest.raises(CompileError, match="train"):
        nf.compile(program, n=3)
    with pytest.raises(OptionError, match="train"):
        program.precondition(np.eye(3))


def test_a_program_without_a_learned_part_has_nothing_to_train():
    from nlaformer.compiler.library import program

    with pytest.raises(OptionError, match="no learned part"):
        initial(TINY, program("cg"))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_data_that_survives_json(name):
    traced = trace_program(METHODS[name]())
    program = Reference.of(traced, analyse(traced).promises)
    assert Reference.read(json.loads(json.dumps(program.data()))).data() == json.loads(json.dumps(program.data()))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_m_is_the_inverse_of_a_diagonal_plus_columns(rank):
    model = initial(TINY, LearnedPCG(rank))
    A, b, _ = systems()
    D, U = model.preconditioner(A)
    assert U.shape == (5, 6, rank)
    M = torch.linalg.inv(torch.diag_embed(1 / D) + U @ U.mT)
    run = model.run(A, b, iterations=0)
    torch.testing.assert_close(run.state["d"][:, 0], (M @ b[..., None])[..., 0])


@pytest.mark.parametrize("program", [LearnedPCG(3, coarse=True), GuidedCG(3, coarse=True)])
def test_coarse_columns_are_those_of_m_itself(program):
    model = initial(TINY, program)
    with torch.no_grad():
        model.networks["precondition"].probe.weight.mul_(10.0)  # far from the Jacobi method
    A, b, _ = systems()
    if model.role == "preconditioner":
        D, U = model.preconditioner(A)
        M = torch.diag_embed(D) + U @ U.mT
        torch.testing.assert_close(model.run(A, b, iterations=0).state["d"][:, 0], (M @ b[..., None])[..., 0])
        ours, theirs = nf.solve(A, b, M=model), nf.solve(A, b, M=M)
        assert np.array_equal(ours.iterations, theirs.iterations) and ours.converged
        torch.testing.assert_close(ours.x, theirs.x)
    else:
        proposed, _ = model.propose(A, model.begin(A), b)
        d = model.run(A, b, iterations=1).state["d"][:, 1]
        torch.testing.assert_close(proposed / proposed.norm(dim=-1, keepdim=True), d / d.norm(dim=-1, keepdim=True))
    inverse = initial(TINY, type(program)(3))
    assert model.coarse and not inverse.coarse


def test_m_as_a_state_is_the_same_in_every_step():
    A, b, _ = systems()
    run = initial(TINY, LearnedPCG()).run(A, b, iterations=3)
    assert set(run.state) == {"x", "r", "d", "rho", "M.diagonal", "M.column1"}
    assert (run.state["M.diagonal"] == run.state["M.diagonal"][:, :1]).all()


@pytest.mark.parametrize("gives", ["vector", "scalar", "positive scalar", "positive diagonal"])
@pytest.mark.parametrize("method", ["start", "step"])
def test_every_kind_of_part_gives_its_kind(gives, method):
    class Kinds(nf.Program):
        part = nf.Learned(gives)

        def start(self, A, b):
            given = self.part(A, b / nf.norm(b)) if method == "start" else 0.0
            return dict(x=given + nf.zeros_like(b), y=b / nf.norm(b))

        def step(self, A, x, y):
            return dict(x=self.part(A, y) + nf.zeros_like(x) if method == "step" else x, y=y)

    A, b, _ = systems()
    x = initial(TINY, Kinds()).run(A, b, iterations=1).x[:, -1]
    assert x.shape == (5, 6)
    assert (x == x[:, :1]).all() == ("scalar" in gives)
    assert not gives.startswith("positive") or (x > 0).all()


# --- guarantees ---


ANSWERS = {
    "its own": lambda c: c,
    "constant": torch.ones_like,
    "constant but for rounding": lambda c: torch.ones_like(c) * (1 + c / 3),
    "nothing": torch.zeros_like,
    "large": lambda c: 1e30 * c,
    "small": lambda c: 1e-30 * c,
    "one entry": lambda c: torch.nn.functional.one_hot(c.abs().argmax(-1), c.shape[-1]).to(c),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_error_in_the_norm_of_a_never_grows_whatever_is_proposed(answer):
    model = replaced(initial(TINY, ProposedCG()), ANSWERS[answer])
    A, b, x = systems(64)
    iterates = model.run(A, b, iterations=40).x
    assert iterates.isfinite().all()
    error = a_norm(A, iterates - x[:, None])
    assert (error[:, 1:] <= error[:, :-1] + 1e-13 * error[:, :1]).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["guided-cg", "learned-pcg"])  # the others do not minimize this error
def test_weights_that_are_not_finite_leave_the_run_finite(name, value):
    model = initial(TINY, METHODS[name]())
    with torch.no_grad():
        for network in model.networks.values():
            network.probe.weight[0] = value
    A, b, x = systems(16)
    iterates = model.run(A, b, iterations=8).x
    assert iterates.isfinite().all()
    error = a_norm(A, iterates - x[:, None])
    assert (error[:, 1:] <= error[:, :-1] + 1e-13 * error[:, :1]).all()


@pytest.mark.parametrize("name", METHODS)
def test_a_network_of_nans_leaves_the_run_finite(name):
    model = initial(TINY, METHODS[name]())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    A, b, _ = systems(16)
    run = model.run(A, b, iterations=12)
    assert run.x.isfinite().all()
    if name == "learned-pcg":
        jacobi = (1 / A.diagonal(dim1=-2, dim2=-1), torch.zeros(16, 6, 1, dtype=torch.float64))
        for found, wanted in zip(model.preconditioner(A), jacobi, strict=True):
            torch.testing.assert_close(found, wanted)


def test_the_opposite_direction_gives_the_same_iterates_bit_for_bit():
    model = initial(TINY, ProposedCG())
    A, b, _ = systems(16)
    opposite = replaced(model, lambda c: -c)
    assert torch.equal(model.run(A, b, iterations=12).x, opposite.run(A, b, iterations=12).x)


@pytest.mark.parametrize("size", [1.0, 30.0, 1e6])
@pytest.mark.parametrize("rank", [1, 4])
def test_m_is_positive_definite_on_every_input_with_any_weights(size, rank):
    A = [
        systems(32)[0],
        torch.eye(6).double().expand(4, 6, 6),
        torch.diag(10.0 ** torch.arange(-9, 9, 3).double())[None],
    ]
    A = torch.cat([*A, 1e150 * systems(4)[0], 1e-150 * systems(4)[0], torch.ones(1, 6, 6).double()])
    for seed in range(4):
        model = initial(TINY.replace(seed=seed), LearnedPCG(rank))
        with torch.no_grad():
            model.networks["precondition"].probe.weight *= size
        D, U = model.preconditioner(A)
        assert (D > 0).all() and D.isfinite().all() and U.isfinite().all()
        run = model.run(A, torch.ones(len(A), 6).double(), iterations=0)
        columns = [run.state[f"M.column{j}"][:, 0] for j in range(1, rank + 1)]
        M = torch.diag_embed(run.state["M.diagonal"][:, 0]) - sum(w[:, :, None] * w[:, None, :] for w in columns)
        scale = A.diagonal(dim1=-2, dim2=-1).sqrt()
        assert torch.equal(M, M.mT)
        assert (torch.linalg.eigvalsh(M * scale[:, :, None] * scale[:, None, :]) > 0).all()


@pytest.mark.parametrize("entry", [0.0, -1.0])
def test_a_matrix_that_is_not_positive_definite_gets_the_identity(entry):
    A, _, _ = systems(3)
    A[1, 2, 2] = entry
    D, U = initial(TINY, LearnedPCG()).preconditioner(A)
    assert (D > 0).all() and D.isfinite().all() and U.isfinite().all()
    assert (D[1] == 1).all() and (U[1] == 0).all() and (D[0] != 1).any()


def test_the_scale_of_a_and_b_does_not_matter():
    A, b, _ = systems()
    for program in (GuidedCG(), LearnedPCG()):
        model = initial(TINY, program)
        x = model.run(A, b, iterations=5).x
        for power in (-40, 3, 60):
            scaled = model.run(A * 2.0 ** (2 * power), b * 2.0**power, iterations=5).x * 2.0**power
            assert torch.equal(scaled, x)


def test_an_indefinite_matrix_is_reported():
    A, b, _ = systems(3)
    for program in (GuidedCG(), LearnedPCG()):
        status = initial(TINY, program).run(-A, b, iterations=4).status
        assert all(found in (nf.RunStatus.NOT_POSITIVE, nf.RunStatus.NONFINITE) for found in status)


def test_preconditioned_runs_converge_in_n_steps():
    A, b, x = systems(16)
    run = initial(TINY, LearnedPCG()).run(A, b, iterations=8)
    torch.testing.assert_close(run.x[:, 6], x, rtol=1e-6, atol=1e-8)
    assert all(status is nf.RunStatus.CONVERGED for status in run.status)


# --- the model ---


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


def test_a_part_that_is_called_in_vain_is_refused_by_name() -> None:
    class Vain(nf.Program):
        propose = nf.Learned("vector")

        def start(self, A, b, x0):
            return dict(x=x0, r=b - A @ x0)

        def step(self, A, x, r):
            self.propose(A, r / nf.norm(r))
            return dict(x=x, r=r)

    with pytest.raises(CompileError, match="propose"):
        initial(TINY, Vain())


def test_a_part_that_is_never_called_is_refused_by_name() -> None:
    class Forgotten(ProposedCG):
        scale = nf.Learned("positive scalar")

    with pytest.raises(OptionError, match="scale"):
        initial(TINY, Forgotten())


class Weighted(nf.Program):
    """A direction whose entries are weighed by constants, or that is given them."""

    propose = nf.Learned("vector")

    def __init__(self, weights, given=False):
        self.weights, self.given = weights, given

    def start(self, A, b, x0):
        return dict(x=x0, r=b - A @ x0)

    def step(self, A, b, x, r):
        c = self.propose(A, self.weights if self.given else r / nf.norm(r))
        return dict(x=x + nf.norm(x) * (c if self.given else self.weights * c), r=b - A @ x)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("length", [TINY.n - 1, TINY.n + 1])
@pytest.mark.parametrize("kind", [np.array, torch.tensor, list, np.ones_like])
def test_constants_of_another_size_than_n_are_refused_by_name(kind, length, given) -> None:
    program = Weighted(kind([1.0 + k for k in range(length)]), given)
    with pytest.raises(CompileError, match=r"self\.weights"):
        initial(TINY, program)


def test_a_model_with_constants_takes_systems_of_their_size_alone(tmp_path) -> None:
    initial(TINY, Weighted(np.arange(1.0, 7.0))).save(tmp_path)
    model, (A, b, _) = nf.load(tmp_path), systems()
    assert model.run(A, b, iterations=2).x.shape == (5, 3, 6)
    with pytest.raises(ShapeError, match="6"):
        model.run(A[:, :4, :4], b[:, :4], iterations=2)
    assert initial(TINY, Weighted(np.ones(6))).run(A[:, :4, :4], b[:, :4], iterations=2).x.shape == (5, 3, 4)


@pytest.mark.parametrize("use", [lambda program: initial(TINY, program), lambda program: nf.compile(program, n=6)])
def test_more_columns_than_unknowns_are_refused_before_they_are_unrolled(use) -> None:
    with pytest.raises(CompileError, match="rank 1000000"):
        use(LearnedPCG(rank=1_000_000))
    assert initial(TINY, LearnedPCG(rank=6)).run(*systems()[:2], iterations=1).x.shape == (5, 2, 6)


class Shared(nf.Program):
    """A part under a second name, given by the constructor."""

    propose = nf.Learned("vector")

    def __init__(self, again):
        self.again = again

    def start(self, A, b, x0):
        return dict(x=x0, r=b - A @ x0)

    def step(self, A, x, r):
        unit = r / nf.norm(r)
        return dict(x=x + nf.norm(x) * (self.propose(A, unit) + self.again(A, unit)), r=r)


def test_one_part_under_two_names_is_refused_with_both() -> None:
    with pytest.raises(CompileError, match=r"propose and again"):
        initial(TINY, Shared(Shared.propose))
    assert set(initial(TINY, Shared(nf.Learned("vector"))).networks) == {"propose", "again"}


def test_a_part_has_the_name_that_its_own_program_gives_it() -> None:
    class Other(Shared):
        first = propose = None
        second = Shared.propose

        def step(self, A, x, r):
            return dict(x=x + nf.norm(x) * self.second(A, r / nf.norm(r)), r=r)

    assert set(initial(TINY, Other(None)).networks) == {"second"}
    assert "propose" in initial(TINY, Shared(nf.Learned("vector"))).networks


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
